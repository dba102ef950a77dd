"""Which episodes train, validate and test: a manifest beside the dataset, and a check that nothing leaks.

Whole recordings go to one side: neighbouring frames of one drive are all but equal, so a split by frame, or through a
recording, measures memory.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from chunkwise.errors import DataError
from chunkwise.files.durable import write_json
from chunkwise.files.strict_json import read_json
from driving.config import Split
from driving.data.index import Index

SPLIT_FILE = "_split.json"
FORMAT = "chunkwise-driving-split-1"
SPLITS = ("train", "val", "test")
_VERSION = re.compile(r"v\d+(\.\d+)*-(?=test)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Episodes of each split, by id, with the hash of what they show."""

    episodes: Mapping[str, Mapping[str, str]]
    """Split to {episode id: drive hash}."""

    def of(self, index: Index) -> "Manifest":
        """The same split of the episodes that an index has."""
        known = set(index.ids)
        return Manifest(
            episodes={
                split: {name: drive for name, drive in members.items() if name in known}
                for split, members in self.episodes.items()
            }
        )

    def positions(self, index: Index, split: Split) -> Int64[np.ndarray, " m"]:
        """Episodes of a split (or all of them) in the order of the index."""
        if split == "all":
            return np.arange(len(index.ids))
        members = self.episodes[split]
        return np.array([i for i, name in enumerate(index.ids) if name in members], np.int64)


def side_of_word(word: str) -> str:
    """Returns the split that a source's own word for a part begins with: "training", "Val", "testing_location"; or "".

    nuScenes writes its version before: v1.0-test is one part, v1.0-trainval and v1.0-mini are none.
    """
    word = _VERSION.sub("", word.lower())
    return next((split for split in SPLITS if word.startswith(split)), "")


def official_sides(index: Index) -> list[str] | None:
    """Split of each episode as its source says it, by `side_of_word`.

    None where none says so, as nuScenes' v1.0-trainval, or all are for validation: whoever has that part alone trains
    on it. Beside others, those that say nothing are for training. Where none is left for it, those for validation are,
    unless all are for testing: what a source keeps for a test is never trained on.
    """
    sides = [side_of_word(name) for name in index.splits]
    if set(sides) in ({""}, {"val"}):
        return None
    if not {"train", ""} & set(sides):
        return ["train" if side == "val" else side for side in sides]
    return [side or "train" for side in sides]


def make_manifest(index: Index, *, val_fraction: float, test_fraction: float) -> Manifest:
    """The split that the source of all episodes states, or else one by recording, drawn by hash.

    It is the same for the same recordings, in whatever order they come. Where a source states a split and none of the
    episodes is of its validation (or test) part, that part is drawn from the training part, if there is one.

    Raises:
      DataError: If there are too few recordings for the splits that are asked for.
    """
    groups = _groups(index)
    official = official_sides(index) or ["train"] * len(groups)
    training = {group for group, side in zip(groups, official, strict=True) if side == "train"}
    order = sorted(training, key=lambda group: hashlib.sha256(f"split {group}".encode()).digest())
    fractions = {name: 0.0 if name in official else f for name, f in (("val", val_fraction), ("test", test_fraction))}
    counts = {name: max(1, round(f * len(order))) if f and order else 0 for name, f in fractions.items()}
    if order and sum(counts.values()) >= len(order):
        raise DataError(
            f"{len(order)} recording(s) cannot be split into training, {counts['val']} for validation and "
            f"{counts['test']} for testing; record more, or set data.val_fraction to 0, or data.test_fraction to 0 "
            "with eval.split val: a run is measured on drives that it was not trained on"
        )
    held = dict.fromkeys(order[: counts["val"]], "val")
    held |= dict.fromkeys(order[counts["val"] : sum(counts.values())], "test")
    sides = [held.get(group, side) if side == "train" else side for group, side in zip(groups, official, strict=True)]
    return Manifest(
        episodes={
            split: {
                name: drive
                for name, drive, side in zip(index.ids, index.drive_hashes, sides, strict=True)
                if side == split
            }
            for split in SPLITS
        }
    )


def share(index: Index, episodes: Int64[np.ndarray, " m"], fraction: float) -> Int64[np.ndarray, " l"]:
    """Some of the episodes, drawn by hash of their id: at least one, and a part of what any larger fraction gives."""
    order = sorted(episodes.tolist(), key=lambda i: hashlib.sha256(f"share {index.ids[i]}".encode()).digest())
    return np.array(sorted(order[: max(1, round(fraction * len(order)))]), np.int64)


def _groups(index: Index) -> list[str]:
    """A name for each episode, equal where two are of one recording or show the same."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for recording, drive in zip(index.recordings, index.drive_hashes, strict=True):
        one, other = sorted((root(recording), root(f"drive {drive}")))
        parent[other] = one
    return [root(recording) for recording in index.recordings]


def save_manifest(manifest: Manifest, file: Path) -> None:
    """Writes a manifest. Raises OSError if the folder cannot be written."""
    write_json(file, {"format": FORMAT, **manifest.episodes})


def load_manifest(file: Path) -> Manifest:
    """Reads a manifest. Raises DataError if it is missing or damaged."""
    tree = read_json(file)
    found = tree.get("format") if isinstance(tree, dict) else None
    if found != FORMAT:
        raise DataError(f"{file}: expected format {FORMAT!r}, found {found!r}")
    for split in SPLITS:
        members = tree.get(split)
        if not isinstance(members, dict) or not all(isinstance(value, str) for value in members.values()):
            raise DataError(f"{file}: {split}: expected an object of episode id to hash, found {str(members)[:80]}")
    return Manifest(episodes={split: tree[split] for split in SPLITS})


def check_manifest(manifest: Manifest, index: Index, *, source: str, may_lack: bool) -> None:
    """Refuses a manifest that does not fit a dataset, or lets anything leak.

    Args:
      manifest: To check.
      index: Of the dataset.
      source: Names the manifest in errors.
      may_lack: Whether listed episodes may be missing from the dataset (bad ones were skipped).

    Raises:
      DataError: With everything that is wrong.
    """
    side: dict[str, str] = {}
    wrong = []
    for split in SPLITS:
        for name in manifest.episodes[split]:
            if name in side:
                wrong.append(f"episode {name!r} is in {side[name]} and in {split}")
            side[name] = split
    known = dict(zip(index.ids, index.drive_hashes, strict=True))
    if not may_lack:
        wrong += [
            f"episode {name!r} of {split} is not in the dataset" for name, split in side.items() if name not in known
        ]
    wrong += [f"episode {name!r} is in no split" for name in index.ids if name not in side]
    changed = [n for n in index.ids if n in side and manifest.episodes[side[n]][n] != known[n]]
    wrong += [f"episode {name!r} has changed since the split was made" for name in changed]
    wrong += leaks(index, [side.get(name, "") for name in index.ids])
    if wrong:
        more = [f"and {len(wrong) - 20} more"] if len(wrong) > 20 else []
        raise DataError(
            f"{source}: expected a split of this dataset without leaks, found:",
            *(f"  {line}" for line in (*wrong[:20], *more)),
            "Mend it, or remove it to split anew",
        )


def leaks(index: Index, sides: Sequence[str]) -> list[str]:
    """Pairs of episodes on different sides that are of one recording or show the same, in words."""
    found = []
    for what, values in (
        ("come from the recording", index.recordings),
        ("show the same drive, hash", index.drive_hashes),
    ):
        first: dict[str, int] = {}
        for i, value in enumerate(values):
            j = first.setdefault(value, i)
            if sides[i] and sides[j] and sides[i] != sides[j]:
                pair = f"{index.ids[j]!r} ({sides[j]}) and {index.ids[i]!r} ({sides[i]})"
                found.append(f"{pair} {what} {value[:60]}")
    return found
