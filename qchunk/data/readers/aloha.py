"""Episodes in ALOHA-layout HDF5, one file each: /observations/qpos, /action and more; docs/data_formats.md."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Bool, Float64

from chunkwise.data.episodes import Episode
from chunkwise.data.images import decode_jpeg_into
from chunkwise.data.problems import Problem
from chunkwise.data.threads import Workers
from chunkwise.errors import DataError, one_line
from chunkwise.files import budget
from chunkwise.files.links import Bounds
from qchunk.data.readers.aloha_images import (
    COLOUR,
    JpegRows,
    blocks,
    common_size,
    examine_images,
    is_jpeg,
    read_jpegs,
    require_depth,
)
from qchunk.data.readers.hdf5 import (
    UNREADABLE,
    Refused,
    open_h5,
    read_attribute,
    require_affordable,
    require_readable,
    resolve,
)
from qchunk.data.readers.report import (
    EpisodeReport,
    GoodEpisodes,
    ImageReport,
    IndexedEpisodes,
    beyond_float32_as_inf,
    check_finite,
    check_lengths,
    report_rewards,
)
from qchunk.data.relabel import SingleTask, labelled_outcome

SUFFIXES = (".hdf5", ".h5")
DATASETS = {
    "action": "/action",
    "base_action": "/base_action",
    "qpos": "/observations/qpos",
    "state": "/observations/state",
    "reward": "/reward",
    "terminated": "/terminated",
    "sim_qpos": "/sim/qpos",
    "button_states": "/sim/button_states",
}
"""What is read, by short name; images are in aloha_images.py. Everything else in a file is left alone."""
_SCORE = re.compile(r"score_(\d+)")
_PER_FRAME = ("reward", "terminated")  # one number a frame


def episode_names(bounds: Bounds) -> list[str]:
    """All HDF5 files below a folder, episode_2 before episode_10. Raises DataError for links that lead out of it."""
    return sorted(bounds.walk(SUFFIXES), key=natural_order)


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Returns a key by which episode_2 comes before episode_10; no two names have the same one."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)], name


def examine(root: Path, path: Path, workers: Workers | None = None, *, digest: str) -> EpisodeReport:
    """Reads a file whole and reports what it holds and what is wrong with it; raises nothing for bad content.

    Args:
      root: The dataset's folder.
      path: The file, below it.
      workers: Decode its images; None leaves images alone.
      digest: The file's `content_hash`.
    """
    name = path.relative_to(root).as_posix()
    stat = path.stat()
    file = {"id": name, "path": name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        with open_h5(path) as h5:
            require_affordable(h5, DATASETS.values())
            arrays, problems = read_arrays(h5, name)
            env, success = read_attribute(h5, "env"), read_attribute(h5, "success")
            fps = _rate(h5)
            length = len(arrays["qpos"]) if "qpos" in arrays else 0
            images = None if workers is None else examine_images(h5, name, length, workers)
    except (*UNREADABLE, Refused, DataError) as error:
        busy = isinstance(error, BlockingIOError)  # HDF5's lock
        expected = "an HDF5 file that no other program is writing" if busy else "a whole HDF5 file"
        bad = Problem(file=name, expected=expected, found=one_line(error))
        return EpisodeReport(**file, content_hash="", score=_score(path.relative_to(root)), problems=(bad,))
    if arrays:
        problems += check_lengths(name, arrays, DATASETS) + check_finite(name, arrays, DATASETS)
    if isinstance(env, bytes):  # a text of fixed length
        env = env.decode(errors="replace")
    if success is not None and not (isinstance(success, bool | np.bool_ | np.integer) and success in (0, 1)):
        found = f"{success!r} of type {type(success).__name__}"
        problems.append(Problem(file=name, key="attribute success", expected="a bool, 0 or 1", found=found))
        success = None
    action = arrays.get("action", np.zeros((0, 0)))
    return EpisodeReport(
        **file,
        content_hash=digest,
        length=length,
        dims={key: x.shape[1] for key, x in arrays.items() if x.ndim == 2},
        fps=fps,
        env=env if isinstance(env, str) else None,
        score=_score(path.relative_to(root)),
        success=None if success is None else bool(success),
        total_reward=float(arrays["reward"].sum()) if "reward" in arrays else None,
        rewards=report_rewards(arrays["reward"], terminated="terminated" in arrays)
        if len(arrays.get("reward", ()))
        else None,
        action_low=tuple(action.min(0).tolist()) if len(action) else (),
        action_high=tuple(action.max(0).tolist()) if len(action) else (),
        problems=tuple(problems),
        images=None if images is None else images[0],
        image_problems=() if images is None else tuple(images[1]),
    )


def _rate(h5: h5py.File) -> float | None:
    """Frames a second; None where the file does not say them in one number. Nothing is read by them."""
    try:
        found = read_attribute(h5, "fps")
    except Refused:
        return None
    return float(found) if isinstance(found, int | float | np.integer | np.floating) and np.isfinite(found) else None


def _score(path: Path) -> int | None:
    """n of the innermost folder named score_<n>."""
    for folder in reversed(path.parts[:-1]):
        if (score := score_of(folder)) is not None:
            return score
    return None


def score_of(folder: str) -> int | None:
    """n of a folder's name score_<n>; None of other names."""
    match = _SCORE.fullmatch(folder)
    return int(match[1]) if match else None


def read_arrays(h5: h5py.File, name: str) -> tuple[dict[str, np.ndarray], list[Problem]]:
    """Reads what DATASETS names: arrays by short name, and what is wrong with others, of the file `name`."""
    arrays: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    for key, dataset in DATASETS.items():
        try:
            x = _read(h5, key)
        except Refused as refused:
            problems.append(refused.problem(name, dataset))
        except UNREADABLE as error:
            found = one_line(error)
            problems.append(Problem(file=name, key=dataset, expected="readable data", found=found))
        else:
            if x is not None:
                arrays[key] = x
    return arrays, problems


def _not_as_indexed(path: Path, refused: Refused) -> DataError:
    """Words a refusal of what the index has taken: the file changed, or the process's limits did."""
    changed = "" if budget.is_limit(str(refused)) else "changed since it was indexed: "
    return DataError(f"{path}: {changed}{refused}")


def _read(h5: h5py.File, key: str) -> np.ndarray | None:
    """One dataset as float32 [T, d], or [T] float64 and bool for reward and terminated; None where there is none.

    The simulator's state stays float64: a reward depends on a distance.

    Raises:
      Refused: With what is wrong.
    """
    dataset = resolve(h5, DATASETS[key])
    if dataset is None:
        return None
    require_readable(dataset)
    shape, per_frame = dataset.shape, key in _PER_FRAME
    if per_frame and len(shape) == 2 and shape[1] == 1:
        shape = shape[:1]
    if len(shape) != (1 if per_frame else 2):
        raise Refused("shape [T]" if per_frame else "shape [T, d]", f"shape {dataset.shape}")
    if not per_frame and not shape[1] and len(dataset):
        raise Refused("at least 1 column", f"shape {dataset.shape}")
    x = np.asarray(dataset[()]).reshape(shape)
    if key == "terminated":
        if not np.isin(x, (0, 1)).all():
            raise Refused("0 or 1 in each frame", f"values {x.min()} to {x.max()}")
        return x.astype(bool)
    if key == "button_states":
        return x.astype(np.int64)
    if key == "reward":
        return beyond_float32_as_inf(x)
    with np.errstate(over="ignore"):  # a number too large becomes Inf, which is reported as such
        return x.astype(np.float64 if key == "sim_qpos" else np.float32)


class AlohaSource(IndexedEpisodes):
    """Indexed ALOHA-layout episodes."""

    def __init__(
        self,
        good: GoodEpisodes,
        *,
        task: SingleTask | None,
        base_action: bool,
        success_reward: float | None = None,
    ) -> None:
        """Takes episodes that were found good.

        Args:
          good: By the reports of `examine`.
          task: Replaces the file's reward and termination; None keeps them.
          base_action: Appends the base's action to the arms'.
          success_reward: Ends an episode whose file does not say where it terminated; None: none does.
        """
        self._actions = (good.action, "base_action") if base_action else (good.action,)
        widths = good.reports[0].dims
        self._states = tuple(good.widths_of(("qpos", "state")))  # a robot's recorder adds a state that others lack
        dims = {name: widths[name] for name in self._states}
        super().__init__(good, dims | {"action": sum(widths[name] for name in self._actions)})
        self._task, self._success_reward = task, success_reward

    @property
    def images_of(self) -> Sequence[Mapping[str, ImageReport]]:
        """Cameras of each episode by the paths of their datasets, where images were indexed."""
        return [r.images or {} for r in self._reports]

    def load(self, index: int) -> Episode:
        report, positive = self._reports[index], bool(self._positives[index])
        path = self._path / report.path
        outcome = ("reward", "terminated") if self._task is None else ("sim_qpos", "button_states")
        wanted = {*self._actions, *self._states, *outcome}
        with self._unchanged(report), open_h5(path) as h5:
            require_affordable(h5, [DATASETS[key] for key in sorted(wanted)])
            try:
                arrays = {key: x for key in sorted(wanted) if (x := _read(h5, key)) is not None}
            except Refused as refused:
                raise _not_as_indexed(path, refused) from refused
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
            action=np.concatenate([arrays[name] for name in self._actions], axis=1),
            reward=reward,
            terminated=terminated,
            positive=positive,
        )

    @contextlib.contextmanager
    def images(self, index: int) -> Iterator["ImageFile"]:
        """The images of one episode, while its file is open.

        Raises:
          OSError: The file could not be read; worth another try.
          DataError: The file is no longer what was indexed.
        """
        report = self._reports[index]
        path = self._path / report.path
        with self._unchanged(report), open_h5(path) as h5:
            try:
                yield ImageFile(h5, report)
            except Refused as refused:
                raise _not_as_indexed(path, refused) from refused

    @contextlib.contextmanager
    def _unchanged(self, report: EpisodeReport) -> Iterator[None]:
        """Reads an episode's file in the block: DataError if its content is not, or does not stay, what was indexed.

        What was changed is named as that, not as the damage that it looks like to a reader.
        """
        place = self._files.place(report.path)
        self._files.require_unchanged(place)
        try:
            yield
        except UNREADABLE as error:
            self._files.require_unchanged(place)
            raise OSError(one_line(error)) from error
        self._files.require_unchanged(place)

    def _outcome(
        self, arrays: Mapping[str, np.ndarray], length: int, positive: bool
    ) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
        if self._task is not None:
            return self._task.relabel(arrays["sim_qpos"], arrays.get("button_states"))
        reward, terminated = arrays.get("reward"), arrays.get("terminated")
        return labelled_outcome(reward, terminated, length, positive, self._success_reward)


class ImageFile:
    """One open episode; cameras go by the paths of their datasets. Whatever is not as indexed raises Refused."""

    def __init__(self, h5: h5py.File, report: EpisodeReport) -> None:
        self._h5, self._report, self.length = h5, report, report.length

    def size(self, name: str) -> tuple[int, int]:
        """Height and width of a camera's images."""
        return self._expected(name).height, self._expected(name).width

    def jpegs(self, name: str) -> JpegRows | None:
        """The JPEGs of a camera, or None if it has raw images."""
        expected = self._expected(name)
        if expected.encoding == "raw":
            return None
        dataset = self._dataset(name)
        if not is_jpeg(dataset):
            raise Refused(f"JPEG rows in {name}", f"shape {dataset.shape}")
        rows = read_jpegs(dataset)
        height, width = common_size(rows)
        if (height, width) != (expected.height, expected.width):
            raise Refused(f"JPEGs of {expected.height} x {expected.width} in {name}", f"{height} x {width}")
        return rows

    def blocks(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Raw frames of a camera a few at a time, each block with the number of its first frame."""
        dataset, expected = self._dataset(name), self._expected(name)
        is_jpeg(dataset) if name.startswith(f"{COLOUR}/") else require_depth(dataset)
        shape = (self._report.length, expected.height, expected.width)
        if dataset.shape[:3] != shape or str(dataset.dtype.newbyteorder("=")) != expected.dtype:
            raise Refused(f"{expected.dtype} of {shape} in {name}", f"{dataset.dtype} of {dataset.shape}")
        return blocks(dataset)

    def image(self, name: str, frame: int) -> np.ndarray:
        """One image [h, w, 3], or depth map [h, w], at its recorded size."""
        dataset, expected = self._dataset(name), self._expected(name)
        if expected.encoding == "raw":
            return np.asarray(dataset[frame])
        out = np.empty((expected.height, expected.width, 3), np.uint8)
        jpeg = np.asarray(dataset[frame]).tobytes()  # the decoder stops at the end marker, before the padding
        decode_jpeg_into(jpeg, out, source=f"{self._report.id}: {name}, row {frame}")
        return out

    def _dataset(self, name: str) -> h5py.Dataset:
        dataset = resolve(self._h5, self._expected(name).stored_at or name)
        if dataset is None:
            raise Refused(name, "none")
        if len(dataset) != self._report.length:
            raise Refused(f"{self._report.length} rows in {name}", f"{len(dataset)} rows")
        return dataset

    def _expected(self, name: str) -> ImageReport:
        assert self._report.images is not None
        return self._report.images[name]
