"""Whether a dataset is fit to train on: bad episodes, absent files and the split, judged before the first batch."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.data.problems import MAX_SKIPPED, Problem, list_problems, refuse
from chunkwise.errors import DataError
from driving.config import DataConfig, Split
from driving.data import split as splits
from driving.data.images import columns
from driving.data.index import ABSENT, Index, concatenate

SCORED_S = (1.0, 2.0, 3.0, 5.0)
"""Seconds ahead at which waypoints are compared, as far as they reach."""
LEAST_SCORED = 0.01
"""Share of the windows that must be known as far as the nearest of SCORED_S to learn waypoints from."""
LEAST_SHOWN = 0.01
"""Share of the samples that must have an image at each offset, where images of several moments are compared."""


def without_bad(index: Index | None, problems: list[Problem], config: DataConfig, notes: list[str]) -> Index:
    """The index of the good episodes; refuses, or notes, the others."""
    bad = {problem.file for problem in problems}
    if index is not None:
        repeated = [i for i, name in enumerate(index.ids) if name in index.ids[:i]]
        for i in repeated:
            first = index.files[index.ids.index(index.ids[i])]
            found = f"{index.ids[i]!r}, as in {first}"
            problems.append(Problem(file=index.files[i], key="episode_id", expected="an id of its own", found=found))
        bad |= {index.files[i] for i in repeated}
        if repeated:
            index = concatenate([index.one(i) for i in range(len(index.ids)) if i not in set(repeated)])
    if not problems and index is not None:
        return index
    total = len(bad) + (0 if index is None else len(index.ids))
    all_by = f"python -m driving.validate {config.path} --json"
    if config.on_bad == "refuse" or index is None:
        hint = "Repair or remove these, or set --data.on-bad skip to leave out up to 1 % of the episodes."
        raise refuse(problems, hint, all_by=all_by)
    if len(bad) > MAX_SKIPPED * total:
        hint = f"{len(bad)} of {total} episodes are bad; data.on_bad=skip leaves out at most 1 %."
        raise refuse(problems, hint, all_by=all_by)
    notes.append(f"skipped {len(bad)} bad episode(s) of {total} (data.on_bad=skip):")
    notes.extend(f"  {line}" for line in list_problems(problems, all_by=all_by))
    return index


def check_absent(index: Index, config: DataConfig, notes: list[str]) -> None:
    """Refuses, or counts, images whose file is absent."""
    wanted = [column for column in columns(index, config.cameras) if column >= 0]
    absent = np.argwhere(index.image_status[:, wanted] == ABSENT).tolist()
    if not absent:
        return
    if config.missing_files == "mask":
        notes.append(f"{len(absent)} images are named, and their files are absent: masked (data.missing_files=mask)")
        return
    problems = []
    for row, k in absent:
        episode = int(index.episode_of(np.array([row]))[0])
        key = f"frames[{row - int(index.starts[episode])}].observations.cameras.{index.cameras[wanted[k]]}.image_path"
        found = f"no file {index.path(row, wanted[k])}"
        problems.append(Problem(file=index.files[episode], key=key, expected="a file that exists", found=found))
    raise refuse(
        problems, "Restore the files, write null for images that were never taken, or set --data.missing-files mask"
    )


def steps_to(seconds: float, dt_s: float) -> int | None:
    """Returns how many steps of dt_s lead to `seconds` ahead; None where no number of them comes within 0.2 % of it."""
    steps = round(seconds / dt_s)
    return steps if steps and abs(steps * dt_s - seconds) <= 0.002 * seconds else None


def reached(steps: int, dt_s: float) -> dict[float, int]:
    """Returns those of SCORED_S at which one of so many waypoints lies, with how many lead there."""
    each = {seconds: steps_to(seconds, dt_s) for seconds in SCORED_S}
    return {seconds: count for seconds, count in each.items() if count is not None and count <= steps}


def between(steps: int, dt_s: float) -> str:
    """Says which of SCORED_S lie between two of so many waypoints, so that nothing is measured there; empty: none."""
    missed = [seconds for seconds in SCORED_S if seconds <= steps * dt_s and steps_to(seconds, dt_s) is None]
    if not missed:
        return ""
    named = ", ".join(f"{seconds:g}" for seconds in missed)
    return f"no score at {named} s: no waypoint lies there, {dt_s:g} s apart; set data.waypoint_dt_s to a part of 1 s"


def scored(valid: Bool[np.ndarray, "a t"], dt_s: float) -> dict[float, float]:
    """Share of the windows (one an anchor) of which all waypoints are known up to each of SCORED_S that they reach.

    Of windows that have no waypoint at any of these, up to their end.
    """
    steps = valid.shape[1]
    counts = reached(steps, dt_s) or {steps * dt_s: steps}
    return {seconds: float(valid[:, :count].all(axis=1).mean()) for seconds, count in counts.items()}


def scored_note(shares: Mapping[float, float]) -> str:
    """What `scored` found, in words."""
    return "windows with a score: " + ", ".join(f"{share:.1%} up to {s:g} s" for s, share in shares.items())


def require_scored(shares: Mapping[float, float], path: str) -> None:
    """Raises DataError where next to no window has a score, so that there is nothing to learn waypoints from."""
    seconds, share = next(iter(shares.items()))
    if share < LEAST_SCORED:
        raise DataError(
            f"{path}: expected waypoints that are known up to {seconds:g} s in at least {LEAST_SCORED:.0%} of the "
            f"windows, found {share:.1%}. Where poses are rare (2 Hz), raise data.max_gap_s, or convert the source "
            "anew with this version, which lists waypoints; python -m driving.validate says what the episodes hold"
        )


def require_moved(share: float, path: str) -> None:
    """Raises DataError where next to no sample's motion is known, so that there is none to predict."""
    if share < LEAST_SHOWN:
        raise DataError(
            f"{path}: objective.ego_motion: expected the vehicle's pose at the first and the last of data.offsets_s in "
            f"at least {LEAST_SHOWN:.0%} of the samples, found {share:.1%}; set --objective.ego-motion 0 where the "
            "drives have no poses"
        )


def shown_note(shares: Mapping[float, float]) -> str:
    """Says which share of the samples has an image at each offset."""
    return "samples with an image: " + ", ".join(f"{share:.1%} at {s:+g} s" for s, share in shares.items())


def require_shown(shares: Mapping[float, float], step_s: float | None, path: str) -> None:
    """Raises DataError where next to no sample has an image at an offset, so that moments cannot be compared.

    Args:
      shares: Of the samples with an image, by offset in seconds.
      step_s: Usual seconds between two frames with images.
      path: Of the dataset.
    """
    worst = min(shares, key=lambda offset: shares[offset])
    if shares[worst] >= LEAST_SHOWN:
        return
    hint = "choose offsets at which there are frames with images"
    if step_s:
        counts = {s: max(1, round(abs(s) / step_s - 1e-3)) * int(np.sign(s)) for s in shares}  # of two the nearer one
        better = sorted({round(count * step_s, 3) for count in counts.values()})
        hint = f"images are {step_s:g} s apart, so expected for example {tuple(better)}"
    raise DataError(
        f"{path}: data.offsets_s: expected an image at each of {list(shares)} s from a frame in at least "
        f"{LEAST_SHOWN:.0%} of the samples, found {shares[worst]:.1%} at {worst:+g} s, within data.tolerance_s; {hint}"
    )


def side_of(index: Index, config: DataConfig, episode: int) -> str:
    """Returns the split that an episode belongs to: train, val, test, or none; writes no manifest."""
    manifest, _, _ = _manifest(index, config)
    return next((side for side in splits.SPLITS if index.ids[episode] in manifest.episodes[side]), "none")


def require_held_out(index: Index, config: DataConfig, split: Literal["val", "test"]) -> None:
    """Raises DataError where no episode is of the split that a run is measured on at its end."""
    manifest, file, _ = _manifest(index, config)
    if not len(manifest.positions(index, split)):
        counts = ", ".join(f"{len(manifest.of(index).episodes[name])} {name}" for name in splits.SPLITS)
        other = "test" if split == "val" else "val"
        raise DataError(
            f"{file}: expected episodes of {split} (eval.split), which the run is measured on at its end, found "
            f"{counts}. Set --eval.split {other} where there are some, or remove the file and set "
            f"data.{split}_fraction above 0"
        )


def require_futures(
    index: Index, config: DataConfig, split: Literal["val", "test"], valid: Bool[np.ndarray, "F t"]
) -> str:
    """Returns a note where people rated frames of other parts than the one a run is measured on at its end; else "".

    Args:
      index: Of the dataset.
      config: Of the data.
      split: eval.split.
      valid: Which waypoints of every frame are known.

    Raises:
      DataError: If no frame of the split knows its future as far as the nearest score, so that nothing is measured.
    """
    manifest, file, _ = _manifest(index, config)
    rows = {
        side: np.concatenate([[], *(np.arange(index.frames)[index.rows(i)] for i in manifest.positions(index, side))])
        for side in splits.SPLITS
    }
    frames = {side: places.astype(np.int64) for side, places in rows.items()}
    known = scored(valid[frames[split]], config.waypoint_dt_s)
    seconds, share = next(iter(known.items()))
    rated = {side: int((index.rated_counts[places] > 0).sum()) for side, places in frames.items()}
    other = "test" if split == "val" else "val"
    if not share:
        raise DataError(
            f"{file}: expected frames of {split} (eval.split) whose waypoints are known up to {seconds:g} s, which the "
            f"run is measured by at its end, found none of {len(frames[split])} (the test parts of challenges have no "
            f"futures). Set --eval.split {other} where its frames have some"
        )
    if rated[split] or not rated[other]:
        return ""
    return (
        f"no frame of {split} (eval.split) has rated trajectories, {rated[other]} of {other} have: the run gets no "
        f"rater_feedback without --eval.split {other}"
    )


def calibrated_note(shares: Mapping[str, float]) -> str:
    """Says which share of each camera's images is calibrated."""
    return "images with intrinsics and extrinsics: " + ", ".join(f"{share:.1%} of {k}" for k, share in shares.items())


def require_calibrated(shares: Mapping[str, float], path: str) -> None:
    """Raises DataError where no camera's image has matrices, so that a model would learn nothing from any ray."""
    if not any(shares.values()):
        raise DataError(
            f"{path}: waypoints.use_calibration: expected intrinsics and extrinsics of some of the training images of "
            f"{list(shares)}, found none; add them to the episodes, or set --waypoints.no-use-calibration"
        )


def _manifest(index: Index, config: DataConfig) -> tuple[splits.Manifest, Path, bool]:
    """The manifest of the split, its file, and whether it was made just now and lies nowhere yet."""
    path = Path(config.path)
    beside = (path.parent if path.is_file() else path) / splits.SPLIT_FILE
    file = beside if config.split_file is None else Path(config.split_file)
    if file.is_file() or config.split_file is not None:
        return splits.load_manifest(file), file, False
    made = splits.make_manifest(index, val_fraction=config.val_fraction, test_fraction=config.test_fraction)
    return made, file, True


def _drawn_otherwise(index: Index, config: DataConfig, kept: splits.Manifest) -> bool:
    """Whether the config's fractions would give other parts than a manifest that is kept."""
    try:
        fresh = splits.make_manifest(index, val_fraction=config.val_fraction, test_fraction=config.test_fraction)
    except DataError:  # too few recordings for them
        return True
    return any(set(fresh.episodes[side]) != set(kept.of(index).episodes[side]) for side in splits.SPLITS)


def members(
    index: Index, config: DataConfig, split: Split, notes: list[str], *, keep: bool = True
) -> Int64[np.ndarray, " m"]:
    """Returns the episodes of the split; makes the manifest where there is none, and writes it if it is to be kept."""
    if split == "all":
        return np.arange(len(index.ids))
    manifest, file, made = _manifest(index, config)
    if made:
        if keep:
            with contextlib.suppress(OSError):  # a dataset that cannot be written to is split the same way each time
                splits.save_manifest(manifest, file)
        counts = ", ".join(f"{len(manifest.episodes[name])} {name}" for name in splits.SPLITS)
        official = splits.official_sides(index)
        by = "as the dataset itself says" if official else "by recording"
        notes.append(f"split {by} into {counts} episodes: {file}")
        silent = sum(not name for name in index.splits)
        if official and silent:
            notes.append(f"{silent} episode(s) have no source.split, where others have one: they are for training")
        if unknown := sorted({name for name in index.splits if name and not splits.side_of_word(name)}):
            notes.append(f"source.split {unknown} name none of train, val and test: taken as if they said nothing")
    elif config.split_file is None and _drawn_otherwise(index, config, manifest):
        notes.append(
            f"{file} is kept: data.val_fraction {config.val_fraction:g} and data.test_fraction "
            f"{config.test_fraction:g} would draw another split; remove it to draw anew"
        )
    splits.check_manifest(manifest, index, source=str(file), may_lack=config.on_bad == "skip")
    episodes = manifest.positions(index, split)
    return splits.share(index, episodes, config.episode_fraction) if split == "train" else episodes
