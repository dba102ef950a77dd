"""The tables of a LeRobot dataset: read once, file by file, checked row by row, never decoding an image."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int, Int64

from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, EpisodeMeta, Feature, LeRobotMeta
from chunkwise.data.problems import MAX_SKIPPED, Problem, refuse
from chunkwise.errors import DataError, one_line
from chunkwise.files.parquet import open_parquet, read_columns

INDEX_COLUMNS = ("episode_index", "frame_index", "timestamp", "task_index")
"""What every table has besides its own columns; they say which row it is, and nothing of the robot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeTable:
    """One episode's columns, or what is wrong with them."""

    meta: EpisodeMeta
    columns: Mapping[str, np.ndarray]
    """Key to [frames] or [frames, width]; incomplete where there are problems."""
    problems: tuple[Problem, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameTable:
    """All frames of a dataset in order, without images; the same whether read from LeRobot files or from a pack."""

    fps: float
    lengths: Int64[np.ndarray, " e"]
    """Frames of each episode."""
    episodes: Int64[np.ndarray, " e"]
    """Index of each episode in the dataset; not 0..e-1 where bad episodes were skipped."""
    columns: Mapping[str, np.ndarray]
    """Key to [T] or [T, width], all episodes one after another."""
    tasks: Mapping[int, str]

    @functools.cached_property
    def starts(self) -> Int64[np.ndarray, " e"]:
        """Row of each episode's first frame."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def frames(self) -> int:
        return int(self.lengths.sum())

    def only(self, chosen: Bool[np.ndarray, " e"]) -> "FrameTable":
        """Returns the table of some of the episodes."""
        frames = np.repeat(chosen, self.lengths)
        columns = {key: column[frames] for key, column in self.columns.items()}
        return dataclasses.replace(self, lengths=self.lengths[chosen], episodes=self.episodes[chosen], columns=columns)

    def fingerprint(self, keys: Sequence[str]) -> str:
        """SHA-256 over rate, lengths, tasks and the columns `keys`: equal for a dataset and its pack alone."""
        digest = hashlib.sha256()
        digest.update(repr((self.fps, self.lengths.tolist(), sorted(self.tasks.items()))).encode())
        for key in keys:
            column = np.ascontiguousarray(self.columns[key])
            digest.update(f"{key} {column.dtype} {column.shape}".encode())
            digest.update(column.data)
        return digest.hexdigest()


def iter_tables(meta: LeRobotMeta, keys: Sequence[str]) -> Iterator[EpisodeTable]:
    """Streams the dataset's episodes in order, one file in memory at a time.

    Every episode is checked: number of rows, indices, timestamps on the grid of fps, known task, widths as info.json
    says, no null, NaN or Inf. What is wrong is in `problems`; nothing is raised for a bad file.

    Args:
      meta: The opened dataset.
      keys: Columns to read besides the index columns; numbers of one dimension at most.
    """
    columns = tuple(dict.fromkeys((*INDEX_COLUMNS, *keys)))
    for file, group in itertools.groupby(meta.episodes, key=lambda episode: episode.file):
        episodes = list(group)
        try:
            table = _read_file(meta, file, columns, sum(episode.length for episode in episodes))
        except DataError as error:
            problem = Problem(file=file, episode=episodes[0].index, expected="a readable table", found=str(error))
            yield EpisodeTable(meta=episodes[0], columns={}, problems=(problem,))
            for episode in episodes[1:]:
                yield EpisodeTable(
                    meta=episode, columns={}, problems=(dataclasses.replace(problem, episode=episode.index),)
                )
            continue
        start = 0
        for episode in episodes:
            yield _read_episode(meta, episode, table.slice(start, episode.length), columns)
            start += episode.length


def load_table(
    meta: LeRobotMeta,
    keys: Sequence[str],
    *,
    on_bad: str,
    check: Callable[[int], Sequence[Problem]] = lambda episode: (),
) -> tuple[FrameTable, list[Problem]]:
    """Reads and checks all episodes.

    Args:
      meta: The opened dataset.
      keys: Columns to keep besides the index columns.
      on_bad: "refuse" raises; "skip" drops bad episodes, as long as they are at most 1 %.
      check: More to find wrong with an episode whose table could be read, such as its images.

    Returns:
      The good episodes, and the problems of those that were skipped.

    Raises:
      DataError: One error that lists the problems of all episodes; or a key is no feature of the dataset.
    """
    for key in keys:
        meta.feature(key)
    good, problems, bad = [], [], 0
    for episode in iter_tables(meta, keys):
        found = [*episode.problems, *(check(episode.meta.index) if episode.columns else ())]
        if found:
            problems.extend(found)
            bad += 1
        else:
            good.append(episode)
    if problems and (on_bad == "refuse" or bad > MAX_SKIPPED * len(meta.episodes)):
        raise refuse(problems, what=f"{meta.root}: {bad} of {len(meta.episodes)} episodes are bad")
    names = good[0].columns if good else ()
    table = FrameTable(
        fps=meta.fps,
        lengths=np.array([episode.meta.length for episode in good], np.int64),
        episodes=np.array([episode.meta.index for episode in good], np.int64),
        columns={key: np.concatenate([episode.columns[key] for episode in good]) for key in names},
        tasks=meta.tasks,
    )
    return table, problems


def delta_indices(delta_timestamps: Sequence[float], fps: float, *, key: str) -> Int64[np.ndarray, " t"]:
    """Frames relative to the current one, from seconds relative to it.

    Raises:
      DataError: If a delta is not a multiple of 1 / fps within TIME_TOLERANCE_S.
    """
    deltas = np.asarray(delta_timestamps, np.float64)
    frames = np.rint(deltas * fps)
    off = np.abs(frames / fps - deltas) > TIME_TOLERANCE_S
    if off.any():
        raise DataError(
            f"delta_timestamps of {key}: expected multiples of 1/{fps:g} s, found {deltas[off].tolist()[:5]}; "
            "the dataset's fps is not the one these deltas were written for"
        )
    return frames.astype(np.int64)


def window(
    frame: Int[np.ndarray, "*b"], length: Int[np.ndarray, "*b"], deltas: Int[np.ndarray, " t"]
) -> tuple[Int[np.ndarray, "*b t"], Bool[np.ndarray, "*b t"]]:
    """Frames of a window that stays inside its episode, and which of them are padding.

    A frame before the episode's first or after its last is replaced by that one and marked, as LeRobot does.

    Args:
      frame: Current frame inside the episode.
      length: Frames of the episode.
      deltas: Relative frames of the window.
    """
    wanted = frame[..., None] + deltas
    inside_episode = np.clip(wanted, 0, length[..., None] - 1)
    return inside_episode, wanted != inside_episode


def _read_file(meta: LeRobotMeta, file: str, columns: Sequence[str], rows: int) -> pa.Table:
    path = meta.bounds.require(file)
    try:
        parquet = open_parquet(path)
        missing = [key for key in columns if key not in parquet.schema_arrow.names]
        if missing:
            raise DataError(f"no column {missing}; it has {parquet.schema_arrow.names}")
        if parquet.metadata.num_rows != rows:  # before reading: a small file can declare any number of rows
            raise DataError(f"a table of {parquet.metadata.num_rows} rows where meta/ says {rows}")
        return read_columns(path, parquet, columns)
    except FileNotFoundError as error:
        raise DataError("no such file") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"a damaged parquet file: {one_line(error)}") from error


def _read_episode(meta: LeRobotMeta, episode: EpisodeMeta, table: pa.Table, keys: Sequence[str]) -> EpisodeTable:
    columns: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    for key in keys:
        column = table[key].combine_chunks()
        array = _to_numpy(
            column,
            meta.feature(key),
            Problem(file=episode.file, episode=episode.index, key=key, expected="", found=""),
            problems,
        )
        if array is not None:
            columns[key] = array
    if not problems:
        problems.extend(_check_index(meta, episode, columns))
    return EpisodeTable(meta=episode, columns=columns, problems=tuple(problems))


def _to_numpy(column: pa.Array, feature: Feature, where: Problem, problems: list[Problem]) -> np.ndarray | None:
    """A column as [rows] or [rows, width]; appends the first fault and returns None where there is one."""

    def fault(expected: str, found: str, row: int | None) -> None:
        problems.append(dataclasses.replace(where, expected=expected, found=found, row=row))

    if column.null_count:
        return fault("a value in every row", f"{column.null_count} nulls", int(np.argmax(column.is_null())))
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        width = feature.shape[0] if len(feature.shape) == 1 else None
        sizes = pc.list_value_length(column).to_numpy(zero_copy_only=False)  # pyright: ignore[reportAttributeAccessIssue]
        wrong = np.flatnonzero(sizes != width)
        if wrong.size:
            expected = f"{width} values as info.json's shape {list(feature.shape)} says"
            return fault(expected, f"{sizes[wrong[0]]} values", int(wrong[0]))
        flat = column.flatten()
        if flat.null_count:
            return fault("numbers", f"{flat.null_count} nulls", int(np.argmax(flat.is_null())) // int(sizes[0]))
        array = flat.to_numpy(zero_copy_only=False)
        # LeRobot writes a width of 1 as single values; lists of one value are the same column.
        array = array if width == 1 else array.reshape(len(column), -1)
    else:
        array = column.to_numpy(zero_copy_only=False)
        if feature.shape not in ((1,), ()):
            return fault(f"shape {list(feature.shape)} as in info.json", "single values", None)
    if array.dtype.kind not in "biuf":
        return fault("numbers", f"type {kind}", None)
    # What float32 cannot hold would become Inf on its way into a batch.
    good = np.abs(array) <= np.finfo(np.float32).max if array.dtype.kind == "f" else np.ones(array.shape, bool)
    if not good.all():
        bad = np.flatnonzero(~good.reshape(len(array), -1).all(axis=1))
        found = f"{array[bad[0]].ravel()[:8].tolist()} ({bad.size} rows are wrong)"
        return fault("finite numbers that float32 holds", found, int(bad[0]))
    return array


def _check_index(meta: LeRobotMeta, episode: EpisodeMeta, columns: Mapping[str, np.ndarray]) -> Iterator[Problem]:
    """The index columns say what meta/ says, and time runs on the grid of fps."""
    frames = np.arange(episode.length)
    known = np.array(sorted(meta.tasks), np.int64)
    checks = {
        "episode_index": (columns["episode_index"] != episode.index, str(episode.index)),
        "frame_index": (columns["frame_index"] != frames, "0, 1, 2, ..."),
        "timestamp": (
            np.abs(columns["timestamp"].astype(np.float64) - frames / meta.fps) > _time_tolerance(meta, frames),
            f"frame_index / fps at {meta.fps:g} fps within {meta.tolerance_s:g} s",
        ),
        "task_index": (
            ~np.isin(columns["task_index"], known),
            f"a task of meta/tasks, which has {known.tolist()[:20]}",
        ),
    }
    for key, (wrong, expected) in checks.items():
        if wrong.any():
            row = int(np.argmax(wrong))
            found = f"{columns[key][row].item():g} ({int(wrong.sum())} rows are wrong)"
            yield Problem(file=episode.file, episode=episode.index, key=key, row=row, expected=expected, found=found)


def _time_tolerance(meta: LeRobotMeta, frames: np.ndarray) -> np.ndarray:
    """Timestamps are float32: after 28 minutes its rounding alone exceeds LeRobot's tolerance."""
    return meta.tolerance_s + np.finfo(np.float32).eps * frames / meta.fps
