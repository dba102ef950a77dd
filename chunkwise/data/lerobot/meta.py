"""LeRobot datasets on disk, versions v2.1 and v3.0, without torch: what meta/ says, checked when it is opened.

  v2.1  meta/{info.json, episodes.jsonl, tasks.jsonl}; one parquet file and one mp4 a camera for each episode.
  v3.0  meta/{info.json, tasks.parquet, episodes/*/*.parquet}; several episodes share a parquet file and an mp4;
        the episode table says in which file, and at which second of the video, an episode begins.

v2.0 is read as v2.1: they differ in the files of statistics alone, which are not used here.

Tables are read by chunkwise/data/lerobot/tables.py, images by chunkwise/data/lerobot/video.py.
"""

import dataclasses
import itertools
import math
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from chunkwise.data.problems import Problem, refuse
from chunkwise.errors import DataError, one_line
from chunkwise.files.links import Bounds
from chunkwise.files.parquet import open_parquet, read_rows
from chunkwise.files.strict_json import read_json, read_json_lines

TIME_TOLERANCE_S = 1e-4
"""How far a frame's timestamp may lie from frame_index / fps; LeRobot's own default."""
VERSIONS = ("v2.0", "v2.1", "v3.0")
DEFAULT_IMAGE_PATH = "images/{image_key}/episode_{episode_index:06d}/frame_{frame_index:06d}.png"
"""Where v2.1 keeps images that are neither in the table nor in a video."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """One entry of info.json's features."""

    dtype: str
    """A numpy dtype name, or "image", "video", "string"."""
    shape: tuple[int, ...]
    is_depth: bool = False
    """Of a camera: whether info.json calls it a depth map, or gives it one channel."""
    is_depth_map: bool = False
    """Whether info.json calls it so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoSpan:
    """Where one camera of one episode lies."""

    file: str
    start_s: float
    """Second of the video at which the episode's first frame is shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeMeta:
    """One episode as meta/ describes it."""

    index: int
    length: int
    """Frames; at least 1."""
    file: str
    """Parquet file, relative to the dataset."""
    videos: Mapping[str, VideoSpan]
    """By camera key; cameras that are stored as images are not in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeRobotMeta:
    """A dataset's description; `read_meta` makes it."""

    root: Path
    bounds: Bounds
    """What its names may lead to."""
    version: str
    fps: float
    robot_type: str | None
    features: Mapping[str, Feature]
    tasks: Mapping[int, str]
    """Task index to instruction."""
    episodes: tuple[EpisodeMeta, ...]
    """By index, 0 to n - 1."""
    tolerance_s: float = TIME_TOLERANCE_S
    """How far a row's timestamp, and the frame of a video, may lie from frame_index / fps."""
    notes: tuple[str, ...] = ()
    """What was passed over because the caller allowed it."""

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(key for key, feature in self.features.items() if feature.dtype in ("image", "video"))

    @property
    def depth_maps(self) -> tuple[str, ...]:
        """Cameras that info.json calls depth maps; one channel alone may be a grey camera's."""
        return tuple(key for key in self.cameras if self.features[key].is_depth_map)

    def feature(self, key: str) -> Feature:
        """Raises DataError with the keys that there are."""
        if key not in self.features:
            raise DataError(f"{self.root}/meta/info.json: expected feature {key!r}, found {sorted(self.features)}")
        return self.features[key]


def read_meta(
    root: str | Path,
    *,
    bounds: Bounds | None = None,
    tolerance_s: float = TIME_TOLERANCE_S,
    wrong_totals: Literal["refuse", "note"] = "refuse",
) -> LeRobotMeta:
    """Opens a dataset: reads and checks meta/, touches no table and no image.

    Args:
      root: The dataset.
      bounds: What links in it may lead to; by default nothing outside of it but a hub's blobs.
      tolerance_s: How far a row's timestamp, and the frame of a video, may lie from frame_index / fps.
      wrong_totals: refuse: total_episodes and total_frames of info.json must be what meta/ lists. note: they are only
        noted, and what is listed counts, as LeRobot does.

    Raises:
      DataError: With every problem in meta/, each with file, key, expected and found.
    """
    root = Path(root)
    info_file = root / "meta" / "info.json"
    if not info_file.exists():
        raise DataError(f"{root}: expected a LeRobot dataset with meta/info.json, found none; is the path right?")
    bounds = Bounds(root) if bounds is None else bounds
    info = read_json(bounds.require("meta/info.json"))
    problems = _check_info(info)
    if problems:
        raise refuse(problems, what=str(info_file))
    features = {
        key: Feature(dtype=f["dtype"], shape=tuple(f["shape"]), is_depth=_is_depth(f), is_depth_map=_is_depth_map(f))
        for key, f in info["features"].items()
    }
    version = info["codebase_version"]
    if version in ("v2.0", "v2.1"):
        tasks, episodes = _meta_v21(bounds, info, features, problems)
    else:
        tasks, episodes = _meta_v30(bounds, info, features, problems)
    if problems:
        raise refuse(problems, what=f"{root}/meta")
    episodes = sorted(episodes, key=lambda episode: episode.index)
    totals = _check_totals(episodes, info)
    problems += totals if wrong_totals == "refuse" else []
    _check_episodes(episodes, problems)
    _check_spans(episodes, float(info["fps"]), problems)
    if problems:
        raise refuse(problems, what=f"{root}/meta")
    return LeRobotMeta(
        root=root,
        bounds=bounds,
        version=version,
        fps=float(info["fps"]),
        robot_type=info.get("robot_type"),
        features=features,
        tasks=tasks,
        episodes=tuple(episodes),
        tolerance_s=tolerance_s,
        notes=tuple(f"passed over: {problem}" for problem in totals),
    )


def _check_info(info: Any) -> list[Problem]:
    """Types and values of info.json's own keys."""
    file = "meta/info.json"
    if not isinstance(info, dict):
        return [Problem(file=file, expected="an object", found=type(info).__name__)]
    version = info.get("codebase_version")
    if version not in VERSIONS:
        hint = "v2.0, v2.1 or v3.0 (LeRobot's own scripts convert older ones)"
        return [Problem(file=file, key="codebase_version", expected=hint, found=str(version))]
    wanted: dict[str, tuple[type, ...]] = {"fps": (int, float), "features": (dict,), "data_path": (str,)}
    wanted |= {"total_episodes": (int,), "total_frames": (int,)}
    wanted |= {} if version == "v3.0" else {"chunks_size": (int,)}
    problems = []
    for key, types in wanted.items():
        value = info.get(key)
        if not isinstance(value, types) or isinstance(value, bool):
            expected = " or ".join(t.__name__ for t in types)
            problems.append(Problem(file=file, key=key, expected=expected, found=repr(value)))
        elif isinstance(value, int | float) and value < (0 if key.startswith("total") else 1e-6):
            problems.append(Problem(file=file, key=key, expected="a number above 0", found=repr(value)))
    if not problems:
        for key, feature in info["features"].items():
            if not _is_feature(feature):
                found = repr(feature)[:120]
                problems.append(Problem(file=file, key=key, expected='{"dtype": text, "shape": integers}', found=found))
    return problems


def _is_feature(feature: Any) -> bool:
    return (
        isinstance(feature, dict)
        and isinstance(feature.get("dtype"), str)
        and isinstance(feature.get("shape"), list)
        and all(isinstance(size, int) for size in feature["shape"])
    )


def _is_depth_map(feature: Mapping[str, Any]) -> bool:
    """Whether a camera holds depth, by LeRobot's mark of it."""
    if feature["dtype"] not in ("image", "video"):
        return False
    marks = [about for name in ("info", "video_info") if isinstance(about := feature.get(name), dict)]
    return any(about.get(key) is True for about in marks for key in ("is_depth_map", "video.is_depth_map"))


def _is_depth(feature: Mapping[str, Any]) -> bool:
    """Whether a camera holds depth, by LeRobot's mark of it or by its shape, channels last or first."""
    if feature["dtype"] not in ("image", "video"):
        return False
    ends = feature["shape"][:1] + feature["shape"][-1:]
    return _is_depth_map(feature) or len(feature["shape"]) == 2 or (1 in ends and 3 not in ends)


def _check_totals(episodes: Sequence[EpisodeMeta], info: Mapping[str, Any]) -> list[Problem]:
    """Where the totals of info.json are not what meta/ lists."""
    totals = {"total_episodes": len(episodes), "total_frames": sum(episode.length for episode in episodes)}
    return [
        Problem(file="meta/info.json", key=key, expected=str(info[key]), found=f"{total} in meta/episodes")
        for key, total in totals.items()
        if info[key] != total
    ]


def _check_episodes(episodes: Sequence[EpisodeMeta], problems: list[Problem]) -> None:
    """Episodes count from 0 without gaps, and none is empty."""
    file = "meta/episodes"
    indices = [episode.index for episode in episodes]
    if indices != list(range(len(indices))):
        gap = next((n for n, index in enumerate(indices) if n != index), len(indices))
        problems.append(
            Problem(file=file, key="episode_index", expected=f"{gap} in place {gap}", found=f"{indices[gap]}")
        )
    problems.extend(
        Problem(file=file, episode=e.index, key="length", expected="at least 1 frame", found=str(e.length))
        for e in episodes
        if e.length < 1
    )
    if not episodes:
        problems.append(Problem(file=file, expected="at least 1 episode", found="none"))


def _check_spans(episodes: Sequence[EpisodeMeta], fps: float, problems: list[Problem]) -> None:
    """Episodes that share a video have frames of their own in it: none begins before the one before it ends."""
    for key in episodes[0].videos if episodes else ():
        spans = sorted((e.videos[key].file, e.videos[key].start_s, e.length, e.index) for e in episodes)
        for (file, start, length, index), (next_file, next_start, _, later) in itertools.pairwise(spans):
            end = start + length / fps
            if file == next_file and next_start < end - 0.5 / fps:
                expected, found = f"a start at {end:.3f} s or later, where episode {index} ends", f"{next_start:.3f} s"
                problems.append(Problem(file=file, episode=later, key=key, expected=expected, found=found))


def _add_task(tasks: dict[int, str], index: Any, task: Any, file: str, problems: list[Problem]) -> None:
    """One line of the table of tasks."""
    if type(index) is not int or index < 0 or not isinstance(task, str):
        found = repr({"task_index": index, "task": task})[:120]
        expected = "a number task_index of 0 or above, and a text task"
        problems.append(Problem(file=file, expected=expected, found=found))
    elif index in tasks:
        found = repr([tasks[index], task])[:120]
        problems.append(Problem(file=file, key=f"task_index {index}", expected="one task", found=found))
    else:
        tasks[index] = task


def _meta_v21(
    bounds: Bounds, info: Mapping[str, Any], features: Mapping[str, Feature], problems: list[Problem]
) -> tuple[dict[int, str], list[EpisodeMeta]]:
    tasks: dict[int, str] = {}
    for row in read_json_lines(bounds.require("meta/tasks.jsonl")):
        cells = row if isinstance(row, dict) else {}
        _add_task(tasks, cells.get("task_index"), cells.get("task"), "meta/tasks.jsonl", problems)
    episodes = []
    for row in read_json_lines(bounds.require("meta/episodes.jsonl")):
        if not _has(row, {"episode_index": int, "length": int}):
            found = repr(row)[:120]
            problems.append(
                Problem(file="meta/episodes.jsonl", expected="episode_index and length a line", found=found)
            )
            continue
        index = row["episode_index"]
        where = {"episode_chunk": index // info["chunks_size"], "episode_index": index}
        videos = {
            key: VideoSpan(file=_fill(bounds.root, info, "video_path", {**where, "video_key": key}), start_s=0.0)
            for key, feature in features.items()
            if feature.dtype == "video"
        }
        file = _fill(bounds.root, info, "data_path", where)
        episodes.append(EpisodeMeta(index=index, length=row["length"], file=file, videos=videos))
    return tasks, episodes


def _meta_v30(
    bounds: Bounds, info: Mapping[str, Any], features: Mapping[str, Feature], problems: list[Problem]
) -> tuple[dict[int, str], list[EpisodeMeta]]:
    tasks = _read_tasks_v30(bounds, problems)
    cameras = [key for key, feature in features.items() if feature.dtype == "video"]
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for key in cameras:
        columns += [f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    episodes = []
    files = [bounds.root / name for name in _episode_tables(bounds)]
    if not files:
        problems.append(Problem(file="meta/episodes", expected="chunk-*/file-*.parquet", found="no such file"))
    for path in files:
        for row in _read_columns(bounds, path, columns):
            wrong = {key: value for key, value in row.items() if not _is_cell(key, value)}
            if wrong:
                name, expected = bounds.relative(path), "whole numbers, and seconds in from_timestamp"
                where = None if "episode_index" in wrong else row["episode_index"]
                problems.append(Problem(file=name, episode=where, expected=expected, found=repr(wrong)[:200]))
                continue
            where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
            videos = {}
            for key in cameras:
                chunk, number = row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"]
                names = {"video_key": key, "chunk_index": chunk, "file_index": number}
                start = float(row[f"videos/{key}/from_timestamp"])
                videos[key] = VideoSpan(file=_fill(bounds.root, info, "video_path", names), start_s=start)
            file = _fill(bounds.root, info, "data_path", where)
            episodes.append(EpisodeMeta(index=row["episode_index"], length=row["length"], file=file, videos=videos))
    return tasks, episodes


def _episode_tables(bounds: Bounds) -> list[str]:
    """Names of v3.0's tables of episodes, without hidden files, such as those that macOS puts beside others."""
    tables = (bounds.root / "meta" / "episodes").glob("*/*.parquet")
    return sorted(bounds.relative(path) for path in tables if not path.name.startswith("."))


def meta_files(meta: "LeRobotMeta") -> list[str]:
    """Names of the files below meta/ that are read."""
    if meta.version == "v3.0":
        return ["meta/info.json", "meta/tasks.parquet", *_episode_tables(meta.bounds)]
    return ["meta/info.json", "meta/tasks.jsonl", "meta/episodes.jsonl"]


def _is_cell(key: str, value: Any) -> bool:
    """Whether a value of v3.0's table of episodes is of the type that its column must have."""
    types = (int, float) if key.endswith("/from_timestamp") else (int,)
    return isinstance(value, types) and not isinstance(value, bool) and math.isfinite(value)


def _read_tasks_v30(bounds: Bounds, problems: list[Problem]) -> dict[int, str]:
    """tasks.parquet is a pandas frame: the instruction is its index, stored as column "task" or without a name."""
    path = bounds.root / "meta" / "tasks.parquet"
    schema = _open_parquet(bounds, path).schema_arrow
    text = [field.name for field in schema if _is_text(field.type)]
    if len(text) != 1 or "task_index" not in schema.names:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise DataError(f"{path}: expected columns task_index and one text column with the instruction, found {found}")
    tasks: dict[int, str] = {}
    for row in _read_columns(bounds, path, ["task_index", text[0]]):
        _add_task(tasks, row["task_index"], row[text[0]], "meta/tasks.parquet", problems)
    return tasks


def _is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts; pandas writes a categorical of them as a dictionary, others as views."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _read_columns(bounds: Bounds, path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    file = _open_parquet(bounds, path)
    missing = sorted(set(columns) - set(file.schema_arrow.names))
    if missing:
        raise DataError(f"{path}: expected columns {missing}, found {file.schema_arrow.names}")
    try:
        return read_rows(path, file, columns)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a whole parquet file, found {one_line(error)}") from error


def _open_parquet(bounds: Bounds, path: Path) -> pq.ParquetFile:
    bounds.require(bounds.relative(path))
    try:
        return open_parquet(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a whole parquet file, found {one_line(error)}") from error


def _has(row: Any, types: Mapping[str, type]) -> bool:
    return isinstance(row, dict) and all(key in row and isinstance(row[key], types[key]) for key in types)


def _fill(root: Path, info: Mapping[str, Any], key: str, values: Mapping[str, Any]) -> str:
    """Fills a path template of info.json; only plain names and widths up to 9, not all that str.format can."""
    template = info.get(key)
    if not isinstance(template, str):
        raise DataError(f"{root}/meta/info.json: expected a path template at {key}, found {template!r}")
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise DataError(
            f"{root}/meta/info.json: expected a path template at {key}, found {template!r}: {error}"
        ) from error
    for _, name, width, conversion in parts:
        plain = name is None or (name in values and not conversion and width in ("", *(f"0{n}d" for n in range(1, 10))))
        if not plain:
            raise DataError(
                f"{root}/meta/info.json: expected {key} made of {sorted(values)} such as {{{sorted(values)[0]}:03d}}, "
                f"found {template!r}"
            )
    return template.format(**values)
