"""Episodes of files that a function of the user's reads: `data.format` names it; docs/extend.md has one.

The function is given a path and returns an Episode, or None where the file holds none. Nothing of it is cached: every
file is read once more at each start, and a run does not go on once the reader makes something else of a file.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.episodes import Episode, manifest_hash
from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from chunkwise.files import trust
from qchunk.data.readers.report import (
    EpisodeReport,
    GoodEpisodes,
    IndexedEpisodes,
    beyond_float32_as_inf,
    check_finite,
    check_lengths,
)

Read = Callable[[Path], Episode | None]
STATES = ("qpos", "state")
"""Of the arrays in `states` those that a config can name; others stay in the file."""


def reader(name: str) -> Read:
    """Imports the user's function. Raises ConfigError if Python cannot."""
    return trust.import_named(name, what="a reader of episodes")


def examine(root: Path, name: str, read: Read, *, digest: str) -> list[EpisodeReport]:
    """Reads a file: one report, or none where it holds no episode."""
    stat = (root / name).stat()
    about = {"path": name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "content_hash": digest}
    try:
        episode = read(root / name)
    except Exception as error:  # whatever a reader raises is about this file, and is listed with the others
        found = f"{type(error).__name__}: {error}"
        problem = Problem(file=name, expected="a file that the reader reads", found=found)
        return [EpisodeReport(**about, id=name, problems=(problem,))]
    if episode is None:
        return []
    if wrong := _wrong_types(episode):
        problem = Problem(file=name, expected="an Episode of numpy arrays from the reader", found=wrong)
        return [EpisodeReport(**about, id=name, problems=(problem,))]
    arrays = _beside_states(episode) | dict(episode.states)
    names = {key: key for key in arrays}
    problems = []
    for key, x in arrays.items():
        if x.dtype.kind not in "fiub":
            problems.append(Problem(file=name, key=key, expected="numbers", found=f"dtype {x.dtype}"))
            continue
        expected = "[T]" if key in ("reward", "terminated") else "[T, d]"
        if x.ndim != (1 if expected == "[T]" else 2):
            found = f"shape {x.shape}"
            problems.append(Problem(file=name, key=key, expected=expected, found=found))
    if not problems:
        steps = len(episode.action)
        # the state after the last action may be there, and no other
        within = {key: x[:steps] if key in episode.states and len(x) == steps + 1 else x for key, x in arrays.items()}
        problems = check_lengths(name, within, names) + check_finite(
            name, {key: beyond_float32_as_inf(x) for key, x in arrays.items()}, names
        )
    return [
        EpisodeReport(
            **about,
            id=name,
            length=episode.length,
            dims={key: x.shape[1] for key, x in arrays.items() if x.ndim == 2},
            success=bool(episode.positive),  # not numpy's, which "is not False"
            total_reward=None if problems else float(episode.reward.sum()),
            arrays_hash="" if problems else _hash(episode),
            problems=tuple(problems),
        )
    ]


def _beside_states(episode: Episode) -> dict[str, np.ndarray]:
    return {"action": episode.action, "reward": episode.reward, "terminated": episode.terminated}


def _hash(episode: Episode) -> str:
    """SHA-256 of all of an episode that a run can draw, in the precision in which it does."""
    found = hashlib.sha256(repr(bool(episode.positive)).encode())
    named = {name: x for name, x in episode.states.items() if name in STATES}
    for name, given in sorted((_beside_states(episode) | named).items()):
        x = given.astype(np.float64 if name == "reward" else np.float32)
        found.update(repr((name, x.shape)).encode())
        found.update(x.tobytes())
    return found.hexdigest()


def _wrong_types(episode: Any) -> str:
    """What a reader gave instead of an Episode of arrays, in words; empty where it is one."""
    if not isinstance(episode, Episode):
        return type(episode).__name__
    if not isinstance(episode.states, Mapping):
        return f"states of type {type(episode.states).__name__}"
    if taken := sorted(_beside_states(episode).keys() & episode.states.keys()):
        return f"states named {', '.join(taken)}, which the episode has beside its states"
    arrays = _beside_states(episode) | dict(episode.states)
    other = [f"{key} of type {type(x).__name__}" for key, x in arrays.items() if not isinstance(x, np.ndarray)]
    if not isinstance(episode.positive, (bool, np.bool_)):
        other.append(f"positive of type {type(episode.positive).__name__}")
    return ", ".join(other)


class OwnSource(IndexedEpisodes):
    """Indexed episodes of the user's files."""

    def __init__(self, good: GoodEpisodes, read: Read) -> None:
        """Takes episodes that were found good; reads nothing yet."""
        dims = good.reports[0].dims
        widths = good.widths_of(STATES) | {"action": dims[good.action]}
        super().__init__(good, widths)
        self._read, self._action = read, good.action

    def arrays_hash(self) -> str:
        """Fingerprint of what the reader makes of all files."""
        return manifest_hash([(report.id, report.arrays_hash) for report in self._reports])

    def load(self, index: int) -> Episode:
        report = self._reports[index]
        episode = self._read(self._path / report.path)
        self._files.require_unchanged(self._files.place(report.path))
        if episode is None or episode.length != report.length:
            found = "none" if episode is None else f"{episode.length}"
            raise DataError(f"{report.id}: expected {report.length} frames, as the reader gave before, found {found}")
        action = episode.action if self._action == "action" else episode.states[self._action][: episode.length]
        states = {key: x for key, x in episode.states.items() if key in self._dims}
        return dataclasses.replace(episode, states=states, action=action, positive=bool(episode.positive))
