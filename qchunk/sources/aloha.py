"""Episodes in ALOHA-layout HDF5, one file each: /observations/qpos, /action and more; docs/data_formats.md."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Bool, Float64, Int64

from core.episodes import Episode, content_hash, manifest_hash
from core.errors import DataError
from qchunk.relabel import SingleTask, labelled_outcome
from qchunk.sources.report import EpisodeReport, Problem, check_finite, check_lengths, declared_size_problem

SUFFIXES = (".hdf5", ".h5")
DATASETS = {
    "action": "/action",
    "qpos": "/observations/qpos",
    "state": "/observations/state",
    "reward": "/reward",
    "terminated": "/terminated",
    "sim_qpos": "/sim/qpos",
    "button_states": "/sim/button_states",
}
"""What is read, by short name. Everything else in a file is left alone."""
_SCORE = re.compile(r"score_(\d+)")
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError)  # what h5py raises on damaged files
_PER_FRAME = ("reward", "terminated")  # one number a frame


def episode_files(root: Path) -> list[Path]:
    """All HDF5 files below a folder, episode_2 before episode_10."""
    files = [p for p in root.rglob("*") if p.suffix in SUFFIXES and p.is_file()]
    return sorted(files, key=lambda p: _natural(p.relative_to(root).as_posix()))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def examine(root: Path, path: Path) -> EpisodeReport:
    """Reads a file whole and reports what it holds and what is wrong with it; raises nothing for bad content."""
    name = path.relative_to(root).as_posix()
    stat = path.stat()
    file = {"id": name, "path": name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        digest = content_hash(path)
        with h5py.File(path, "r") as h5:
            arrays, problems = _read_all(h5, name)
            env, success = h5.attrs.get("env"), h5.attrs.get("success")
    except _UNREADABLE as error:
        bad = Problem(file=name, dataset="", row=None, expected="a whole HDF5 file", found=_one_line(error))
        return EpisodeReport(**file, content_hash="", problems=(bad,))
    if arrays:
        problems += check_lengths(name, arrays, DATASETS) + check_finite(name, arrays, DATASETS)
    if not isinstance(success, bool | np.bool_ | np.integer | None):
        found = f"{success!r} of type {type(success).__name__}"
        problems.append(Problem(file=name, dataset="attribute success", row=None, expected="a bool", found=found))
        success = None
    action = arrays.get("action", np.zeros((0, 0)))
    return EpisodeReport(
        **file,
        content_hash=digest,
        length=len(arrays["qpos"]) if "qpos" in arrays else 0,
        dims={key: x.shape[1] for key, x in arrays.items() if x.ndim == 2},
        env=env if isinstance(env, str) else None,
        score=_score(path.relative_to(root)),
        success=None if success is None else bool(success),
        total_reward=float(arrays["reward"].sum()) if "reward" in arrays else None,
        action_low=tuple(action.min(0).tolist()) if len(action) else (),
        action_high=tuple(action.max(0).tolist()) if len(action) else (),
        problems=tuple(problems),
    )


def _score(path: Path) -> int | None:
    """n of the innermost folder named score_<n>."""
    for folder in reversed(path.parts[:-1]):
        if match := _SCORE.fullmatch(folder):
            return int(match[1])
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read_all(h5: h5py.File, name: str) -> tuple[dict[str, np.ndarray], list[Problem]]:
    arrays: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    for key, dataset in DATASETS.items():
        try:
            x = _read(h5, key)
        except _Refused as refused:
            problems.append(
                Problem(file=name, dataset=dataset, row=None, expected=refused.expected, found=refused.found)
            )
        except _UNREADABLE as error:
            found = _one_line(error)
            problems.append(Problem(file=name, dataset=dataset, row=None, expected="readable data", found=found))
        else:
            if x is not None:
                arrays[key] = x
    return arrays, problems


class _Refused(Exception):
    """A dataset that is not read."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}; found {found}")
        self.expected, self.found = expected, found


def _read(h5: h5py.File, key: str) -> np.ndarray | None:
    """One dataset as float32 [T, d], or [T] float64 and bool for reward and terminated; None where there is none.

    The simulator's state stays float64: a reward depends on a distance. A file can name data outside itself
    (external storage, links, virtual datasets), which would read any file of the machine: all are refused.
    """
    dataset = _resolve(h5, DATASETS[key])
    if dataset is None:
        return None
    if dataset.external or dataset.is_virtual:
        raise _Refused("data stored in this file", "external storage" if dataset.external else "a virtual dataset")
    if dataset.dtype.kind not in "fiub":
        raise _Refused("numbers", f"dtype {dataset.dtype}")
    shape, per_frame = dataset.shape, key in _PER_FRAME
    if per_frame and len(shape) == 2 and shape[1] == 1:
        shape = shape[:1]
    if len(shape) != (1 if per_frame else 2):
        raise _Refused("shape [T]" if per_frame else "shape [T, d]", f"shape {dataset.shape}")
    if problem := declared_size_problem(dataset.nbytes, dataset.id.get_storage_size()):
        raise _Refused(*problem)
    x = np.asarray(dataset[()]).reshape(shape)
    if key == "terminated":
        if not np.isin(x, (0, 1)).all():
            raise _Refused("0 or 1 in each frame", f"values {x.min()} to {x.max()}")
        return x.astype(bool)
    if key == "button_states":
        return x.astype(np.int64)
    with np.errstate(over="ignore"):  # a number too large becomes Inf, which is reported as such
        return x.astype(np.float64 if key in ("reward", "sim_qpos") else np.float32)


def _resolve(h5: h5py.File, name: str) -> h5py.Dataset | None:
    node: object = h5
    for part in name.strip("/").split("/"):
        if not isinstance(node, h5py.Group):
            raise _Refused("a group on the way", f"{type(node).__name__} above {part!r}")
        link = node.get(part, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise _Refused("data stored in this file", f"{type(link).__name__} at {part!r}")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        raise _Refused("a dataset", type(node).__name__)
    return node


class AlohaSource:
    """Indexed ALOHA-layout episodes; an EpisodeSource."""

    def __init__(
        self,
        root: Path,
        reports: Sequence[EpisodeReport],
        positives: Bool[np.ndarray, " episodes"],
        *,
        action: str,
        task: SingleTask | None,
    ) -> None:
        """Takes episodes that were found good.

        Args:
          root: The dataset's folder.
          reports: From `examine`.
          positives: Label of each.
          action: Short name of the array that holds the actions, action or qpos.
          task: Replaces the file's reward and termination; None keeps them.
        """
        self._root, self._reports, self._positives, self._action, self._task = root, reports, positives, action, task
        self._states = tuple(name for name in ("qpos", "state") if name in reports[0].dims)
        self._dims = {name: reports[0].dims[name] for name in self._states} | {"action": reports[0].dims[action]}
        self._lengths = np.array([r.length for r in reports], np.int64)

    @property
    def ids(self) -> Sequence[str]:
        return [r.id for r in self._reports]

    @property
    def lengths(self) -> Int64[np.ndarray, " episodes"]:
        return self._lengths

    @property
    def positives(self) -> Bool[np.ndarray, " episodes"]:
        return self._positives

    @property
    def dims(self) -> Mapping[str, int]:
        return self._dims

    def __len__(self) -> int:
        return len(self._reports)

    def manifest_hash(self) -> str:
        return manifest_hash(r.row() for r in self._reports)

    def load(self, index: int) -> Episode:
        report, positive = self._reports[index], bool(self._positives[index])
        path = self._root / report.path
        outcome = ("reward", "terminated") if self._task is None else ("sim_qpos", "button_states")
        wanted = {self._action, *self._states, *outcome}
        with h5py.File(path, "r") as h5:
            try:
                arrays = {key: x for key in sorted(wanted) if (x := _read(h5, key)) is not None}
            except _Refused as refused:
                raise DataError(f"{path}: changed since it was indexed: {refused}") from refused
        found = {key: x.shape[1] for key, x in arrays.items() if x.ndim == 2}
        expected = {key: report.dims[key] for key in wanted if key in report.dims}
        if found != expected or {len(x) for x in arrays.values()} != {report.length}:
            raise DataError(
                f"{path}: changed since it was indexed: expected {report.length} frames of {expected}; "
                f"found {sorted({len(x) for x in arrays.values()})} frames of {found}"
            )
        reward, terminated = self._outcome(arrays, report.length, positive)
        return Episode(
            id=report.id,
            states={name: arrays[name] for name in self._states},
            action=arrays[self._action],
            reward=reward,
            terminated=terminated,
            positive=positive,
        )

    def _outcome(
        self, arrays: Mapping[str, np.ndarray], length: int, positive: bool
    ) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
        if self._task is not None:
            return self._task.relabel(arrays["sim_qpos"], arrays.get("button_states"))
        return labelled_outcome(arrays.get("reward"), arrays.get("terminated"), length, positive)
