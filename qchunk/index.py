"""The index of a dataset: every episode is read once, judged before training starts, and remembered.

What a file holds is cached by its path, size and modification time, for all runs; what a run makes of it (labels,
arrays it needs) is judged anew each time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from core.episodes import EpisodeSource
from core.errors import DataError
from qchunk.config import DataConfig
from qchunk.relabel import base_env, needs_buttons, single_task
from qchunk.sources import aloha, ogbench
from qchunk.sources.report import EpisodeReport, Problem, from_json, refuse

INDEX_VERSION = 1
MAX_SKIPPED = 0.01
"""Largest share of bad episodes that on_bad=skip drops."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a run takes of a dataset."""

    reports: tuple[EpisodeReport, ...]
    """Episodes without a problem."""
    positives: Bool[np.ndarray, " episodes"]
    """Label of each."""
    problems: tuple[Problem, ...]
    bad: tuple[str, ...]
    """Episodes that the problems are of."""
    left_out: int
    """Episodes in score folders that are neither positive nor negative."""
    notes: tuple[str, ...]


def open_source(data: DataConfig) -> tuple[EpisodeSource, tuple[str, ...]]:
    """The dataset's good episodes, and what the run should say about them.

    Raises:
      DataError: The folder is missing or empty, or episodes are bad: all problems in one message.
      ConfigError: data.task names no task, or the simulator is not installed.
    """
    selection = select(read_index(data), data)
    notes = list(selection.notes)
    if selection.problems:
        _refuse_or_note(selection, data, notes)
    if not selection.reports:
        raise DataError(f"{data.path}: no episode is left to train on. {' '.join(selection.notes)}")
    task = None if data.task is None else single_task(data.task)
    make = aloha.AlohaSource if data.format == "aloha_hdf5" else ogbench.OgbenchSource
    source = make(Path(data.path), selection.reports, selection.positives, action=data.action, task=task)
    return source, tuple(notes)


def _refuse_or_note(selection: Selection, data: DataConfig, notes: list[str]) -> None:
    total = len(selection.bad) + len(selection.reports)
    if data.on_bad == "refuse":
        hint = "Repair or remove these files, or set --data.on-bad skip to leave out up to 1 % of the episodes."
        raise refuse(selection.problems, hint)
    if len(selection.bad) > MAX_SKIPPED * total:
        hint = f"{len(selection.bad)} of {total} episodes are bad; data.on_bad=skip leaves out at most 1 %."
        raise refuse(selection.problems, hint)
    notes.append(f"skipped {len(selection.bad)} bad episode(s) of {total} (data.on_bad=skip):")
    notes.extend(f"  {problem}" for problem in selection.problems)


def read_index(data: DataConfig, *, reread: bool = False) -> list[EpisodeReport]:
    """A report on every episode below data.path, from the cache where size and modification time are unchanged.

    Args:
      data: Only `path` and `format` matter.
      reread: Read every file again, and report content that changed although size and time did not.

    Raises:
      DataError: The folder or file is missing, of the wrong kind, or holds no episode.
    """
    root = Path(data.path)
    files = _dataset_files(root, data.format)
    known = _load_cache(root)
    reports: list[EpisodeReport] = []
    changed = False
    for file in files:
        name = file.name if data.format == "ogbench_npz" else file.relative_to(root).as_posix()
        before = known.get(name, [])
        stat = file.stat()
        same = bool(before) and (before[0].size, before[0].mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        if same and not reread:
            reports += before
            continue
        fresh = [aloha.examine(root, file)] if data.format == "aloha_hdf5" else ogbench.examine(file)
        if same and fresh[0].content_hash != before[0].content_hash:
            fresh = [_with_silent_change(report, before[0]) for report in fresh]
        reports += fresh
        changed = True
    if changed or {r.path for r in reports} != set(known):
        _save_cache(root, reports)
    return reports


def _with_silent_change(report: EpisodeReport, before: EpisodeReport) -> EpisodeReport:
    problem = Problem(
        file=report.id,
        dataset="",
        row=None,
        expected=f"content {before.content_hash[:12]} as indexed before (touch the file to accept the new content)",
        found=f"{report.content_hash[:12] or 'an unreadable file'}, with size and modification time unchanged",
    )
    return dataclasses.replace(report, content_hash=before.content_hash, problems=(*report.problems, problem))


def _dataset_files(root: Path, kind: str) -> list[Path]:
    if not root.exists():
        raise DataError(
            f"data.path: {root} does not exist; set --data.path to a folder of HDF5 episodes or an OGBench .npz file"
        )
    if kind == "ogbench_npz":
        if root.suffix != ".npz" or not root.is_file():
            raise DataError(f"data.path: {root} is no .npz file, which data.format=ogbench_npz expects")
        return [root]
    if not root.is_dir():
        hint = "; set --data.format ogbench_npz" if root.suffix == ".npz" else ""
        raise DataError(f"data.path: {root} is a file; data.format=aloha_hdf5 expects a folder of episodes{hint}")
    files = aloha.episode_files(root)
    if not files:
        raise DataError(
            f"data.path: {root} holds no episode; expected files *.hdf5 or *.h5, in score_<n> folders or not"
        )
    return files


def _cache_file(root: Path) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
    return Path(home) / "chunkwise" / "index" / f"{name}.json"


def _load_cache(root: Path) -> Mapping[str, list[EpisodeReport]]:
    """Reports by file; empty where there is no readable cache, which only costs time."""
    reports: dict[str, list[EpisodeReport]] = collections.defaultdict(list)
    try:
        tree = json.loads(_cache_file(root).read_text())
        if tree["version"] == INDEX_VERSION:
            for entry in tree["reports"]:
                reports[entry["path"]].append(from_json(entry))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(reports)


def _save_cache(root: Path, reports: Sequence[EpisodeReport]) -> None:
    file = _cache_file(root)
    tree = {
        "version": INDEX_VERSION,
        "dataset": str(root.resolve()),
        "reports": [dataclasses.asdict(report) for report in reports],
    }
    scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(tree))
        scratch.replace(file)
    except OSError:  # a read-only home, a full disk: the next run reads the dataset again
        with contextlib.suppress(OSError):
            scratch.unlink()


def select(reports: Sequence[EpisodeReport], data: DataConfig) -> Selection:
    """Judges what was indexed by what this run needs: labels, arrays, and widths that agree."""
    taken, positives, left_out, unlabelled = [], [], 0, []
    for report in reports:
        if report.score is not None and report.score not in (*data.positive_scores, *data.negative_scores):
            left_out += 1
            continue
        taken.append(report)
        positives.append(report.score in data.positive_scores if report.score is not None else report.success)
        if positives[-1] is None and not report.problems:
            unlabelled.append(report)
    notes = []
    if left_out:
        scores = f"positive {data.positive_scores}, negative {data.negative_scores}"
        notes.append(f"{left_out} episode(s) left out by the score of their folder ({scores})")
    labelled = any(label is not None for label in positives)
    problems = {report.id: [*report.problems] for report in taken}
    if unlabelled and labelled:
        for report in unlabelled:
            problems[report.id].append(
                Problem(
                    file=report.id,
                    dataset="attribute success",
                    row=None,
                    expected="a label, as other episodes have one (folder score_<n>, or this attribute)",
                    found="none",
                )
            )
    elif unlabelled:
        notes.append("no labels (folders score_<n>, or the attribute success): every episode counts as positive")
    widths = _common_widths([report for report in taken if not report.problems], data)
    for report in taken:
        if not report.problems:
            problems[report.id] += _needs(report, data) + _width_problems(report, widths)
    good = [not problems[report.id] for report in taken]
    return Selection(
        reports=tuple(report for report, ok in zip(taken, good, strict=True) if ok),
        positives=np.array([p is not False for p, ok in zip(positives, good, strict=True) if ok], bool),
        problems=tuple(problem for report in taken for problem in problems[report.id]),
        bad=tuple(report.id for report, ok in zip(taken, good, strict=True) if not ok),
        left_out=left_out,
        notes=tuple(notes),
    )


def _common_widths(reports: Sequence[EpisodeReport], data: DataConfig) -> dict[str, int | None]:
    """Width in most episodes of each array that the run reads; None where most have no such array."""
    names = {"qpos", "state", data.action, *(() if data.task is None else ("sim_qpos", "button_states"))}
    counts = {name: collections.Counter(report.dims.get(name) for report in reports) for name in sorted(names)}
    return {name: count.most_common(1)[0][0] for name, count in counts.items() if count}


def _width_problems(report: EpisodeReport, widths: Mapping[str, int | None]) -> list[Problem]:
    def words(width: int | None) -> str:
        return "no such array" if width is None else f"{width} dimensions"

    return [
        Problem(
            file=report.id,
            dataset=aloha.DATASETS[name],
            row=None,
            expected=f"{words(width)}, as in most episodes",
            found=words(report.dims.get(name)),
        )
        for name, width in widths.items()
        if report.dims.get(name) != width
    ]


def _needs(report: EpisodeReport, data: DataConfig) -> list[Problem]:
    """Arrays that the config asks for and the episode lacks."""
    names = aloha.DATASETS if data.format == "aloha_hdf5" else ogbench.KEYS
    needed = {"qpos": "data"} if data.format == "aloha_hdf5" else {}
    if data.observation == "state":
        needed["state"] = "data.observation=state"
    if data.action == "action":
        needed["action"] = "data.action=action"
    if data.task is not None:
        needed["sim_qpos"] = "data.task (rewards are computed from it)"
        if needs_buttons(data.task):
            needed["button_states"] = "data.task (rewards are computed from it)"
    found = [
        Problem(file=report.id, dataset=names[name], row=None, expected=f"this array, for {why}", found="none")
        for name, why in needed.items()
        if name not in report.dims
    ]
    if data.task is None and data.missing_reward == "refuse" and report.total_reward is None:
        expected = "a reward, for data.missing_reward=refuse"
        found.append(Problem(file=report.id, dataset=names["reward"], row=None, expected=expected, found="none"))
    if data.task is not None and report.env is not None and report.env != base_env(data.task):
        expected = f"{base_env(data.task)}, for data.task={data.task}"
        found.append(Problem(file=report.id, dataset="attribute env", row=None, expected=expected, found=report.env))
    return found
