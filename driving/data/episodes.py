"""Episodes: one JSON file a drive, read strictly, checked against `episode.schema.json`, turned into arrays.

    root/any/where/drive_0001.json            every *.json below the root; not "_*.json", nor what begins with "."
    root/any/where/images/000000_front.jpg    named in it, relative to its folder, inside the root

World frame: x, y on the ground, metres, yaw counter-clockwise. Vehicle (ego) frame: x forward, y left, z up. Camera
frame: x right, y down, z along the view. Unknown numbers are NaN here, and masked in a batch.
"""

import dataclasses
import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int8

from chunkwise.data.problems import Problem, problem_of, refuse
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.links import Bounds
from chunkwise.files.strict_json import read_json
from driving.data.history import COLUMNS, History
from driving.data.rater import Rated
from driving.data.schema import non_finite_problems, schema_problems

ROUTE_COMMANDS = ("unknown", "left", "straight", "right")
"""Meaning of a batch's route_command, by its number."""
TRAFFIC_LIGHTS = ("unknown", "none", "green", "yellow", "red")
"""Meaning of an episode's traffic_light, by its number."""
DEFAULT_WAYPOINT_DT_S = 0.1
_CAMERA_BYTES = 8 * (1 + 3 + 9 + 16)
"""Of one camera in one frame: offset, pose, intrinsics, extrinsics."""
RIGID_TOLERANCE = 1e-3
"""How far R^T R of extrinsics may lie from the identity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """One drive of T frames and k cameras."""

    id: str
    domain: str
    recording: str
    """Episodes with the same value come from one recording and must stay on one side of a split."""
    cameras: tuple[str, ...]
    """Names found in the frames, sorted; the order of every camera axis here."""
    t: Float64[np.ndarray, " T"]
    """Seconds since the start, strictly increasing."""
    pose: Float64[np.ndarray, "T 3"]
    """x, y in metres and yaw in radians, as written."""
    speed_mps: Float64[np.ndarray, " T"]
    yaw_rate_radps: Float64[np.ndarray, " T"]
    route_command: Int8[np.ndarray, " T"]
    """Position in ROUTE_COMMANDS."""
    image_paths: tuple[tuple[str | None, ...], ...]
    """T x k, relative to the JSON's folder; None where there is no image."""
    t_offset_s: Float64[np.ndarray, "T k"]
    camera_pose: Float64[np.ndarray, "T k 3"]
    """The vehicle's pose when the image was exposed."""
    intrinsics: Float64[np.ndarray, "T k 3 3"]
    extrinsics: Float64[np.ndarray, "T k 4 4"]
    waypoints: Float64[np.ndarray, "T m 2"]
    """What expert.waypoints lists; rows shorter than the longest are NaN at their end."""
    waypoint_dt_s: float
    waypoints_driven: bool
    """Whether the car went there; else an expert would have."""
    rated: tuple[tuple[Rated, ...], ...]
    """Of each frame, the trajectories that people rated."""
    history: tuple[History | None, ...]
    """Of each frame, how the car came there, where the frame says it itself."""
    vehicle_ahead_m: Float64[np.ndarray, " T"]
    """To the next vehicle in the lane; inf where none is in sight, NaN where it is not known."""
    traffic_light: Int8[np.ndarray, " T"]
    """What the next one of the route shows: position in TRAFFIC_LIGHTS."""
    split: str
    """What the source calls the part of it that the drive is of; empty where it does not say."""


def episode_names(root: Path, bounds: Bounds) -> list[str]:
    """Names of a dataset's episode files in sorted order: below a folder, or of the one file that `root` is.

    Raises:
      DataError: If `root` does not exist, or holds none; or links lead out of it.
    """
    if root.exists() and not root.is_dir():
        return [root.name]
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of driving episodes, found no such folder")
    names = [name for name in bounds.walk((".json",)) if not posixpath.basename(name).startswith("_")]
    if not names:
        raise DataError(f"{root}: expected episodes (*.json, names not beginning with '_' or '.'), found none")
    return names


def load_episode(path: Path) -> Episode:
    """Reads and checks one episode; images are not looked at.

    Raises:
      DataError: With every problem of the file.
    """
    episode, problems = examine(path)
    if episode is None:
        raise refuse(problems)
    return episode


def write_episode(path: Path, tree: Mapping[str, Any]) -> None:
    """Writes an episode as JSON, whole or not at all.

    Raises:
      DataError: If it does not obey the schema or is inconsistent; nothing is written then.
    """
    problems = non_finite_problems(tree, source=path.name) or schema_problems(tree, source=path.name)
    if not problems:
        problems = parse(tree, source=path.name)[1]
    if problems:
        raise refuse(problems)
    make_folders(path.parent)
    write_durably(path, json.dumps(tree, allow_nan=False, separators=(",", ":")) + "\n")


def examine(path: Path) -> tuple[Episode | None, list[Problem]]:
    """An episode, or the problems for which it is refused."""
    try:
        tree = read_json(path)
    except DataError as error:
        return None, [problem_of(error, str(path))]
    problems = schema_problems(tree, source=str(path))
    return (None, problems) if problems else parse(tree, source=str(path))


def parse(tree: Mapping[str, Any], *, source: str) -> tuple[Episode | None, list[Problem]]:
    """Arrays of an episode that obeys the schema, or what is inconsistent in it."""
    problems: list[Problem] = []
    try:
        episode = _arrays(tree, source, problems)
    except budget.LimitError as error:
        return None, [problem_of(error, source)]
    return (None, problems) if problems else (episode, problems)


def _arrays(tree: Mapping[str, Any], source: str, problems: list[Problem]) -> Episode:
    frames = tree["frames"]
    states = [frame["observations"].get("state") or {} for frame in frames]
    seen = [
        {name: camera for name, camera in (frame["observations"].get("cameras") or {}).items() if camera is not None}
        for frame in frames
    ]
    cameras = tuple(sorted(set().union(*seen)))
    _require_affordable(frames, len(cameras), source)
    t = np.array([frame["t"] for frame in frames], np.float64)
    problems += [
        Problem(file=source, key=f"frames[{row + 1}].t", expected=f"more than {t[row]}", found=str(t[row + 1]))
        for row in np.flatnonzero(np.diff(t) <= 0)
    ]
    commands = [frame["observations"].get("route_command") or "unknown" for frame in frames]
    entries = [(i, k, seen[i][name]) for i in range(len(frames)) for k, name in enumerate(cameras) if name in seen[i]]
    spec = tree.get("waypoint_spec") or {}
    recorded = tree.get("source") or {}
    scene = recorded.get("scene_id")
    return Episode(
        id=tree["episode_id"],
        domain=tree["domain"],
        recording=f"{recorded.get('dataset', '')}/{scene}" if scene else f"episode/{tree['episode_id']}",
        cameras=cameras,
        t=t,
        pose=np.stack([_numbers(states, key) for key in ("x_m", "y_m", "yaw_rad")], axis=1),
        speed_mps=_numbers(states, "speed_mps"),
        yaw_rate_radps=_numbers(states, "yaw_rate_radps"),
        route_command=np.array([ROUTE_COMMANDS.index(command) for command in commands], np.int8),
        image_paths=tuple(
            tuple(seen[i][name].get("image_path") if name in seen[i] else None for name in cameras)
            for i in range(len(frames))
        ),
        waypoints=_waypoints(frames),
        waypoint_dt_s=float(spec.get("dt", DEFAULT_WAYPOINT_DT_S)),
        waypoints_driven=spec.get("driven", True),
        rated=tuple(_rated(frame) for frame in frames),
        history=tuple(_history(frame, i, source, problems) for i, frame in enumerate(frames)),
        **surroundings(frames),
        split=recorded.get("split", ""),
        **_camera_arrays(len(frames), cameras, entries, source, problems),
    )


def _require_affordable(frames: Sequence[Mapping[str, Any]], cameras: int, source: str) -> None:
    """Asks for the arrays of a drive: each frame has room for every camera, and for the longest list of waypoints.

    A few bytes of JSON name one camera more, or one list that is longer than all others.
    """
    longest = max(len((frame.get("expert") or {}).get("waypoints") or ()) for frame in frames)
    budget.Spent(source, 0).add(
        len(frames) * (cameras * _CAMERA_BYTES + longest * 16), "cameras and waypoints of frames"
    )


def surroundings(frames: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns what frames that obey the schema say of their surroundings: two arrays of Episode, by their names."""
    said = [frame.get("surroundings") or {} for frame in frames]
    ahead = [one.get("vehicle_ahead_m", np.nan) for one in said]
    lights = [one.get("traffic_light") or "unknown" for one in said]
    return {
        "vehicle_ahead_m": np.array([np.inf if metres is None else metres for metres in ahead], np.float64),
        "traffic_light": np.array([TRAFFIC_LIGHTS.index(light) for light in lights], np.int8),
    }


def _numbers(states: Sequence[Mapping[str, Any]], key: str) -> Float64[np.ndarray, " T"]:
    values = (state.get(key) for state in states)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _waypoints(frames: Sequence[Mapping[str, Any]]) -> Float64[np.ndarray, "T m 2"]:
    rows = [(frame.get("expert") or {}).get("waypoints") or [] for frame in frames]
    out = np.full((len(rows), max(map(len, rows)), 2), np.nan)
    for i, row in enumerate(rows):
        if row:
            out[i, : len(row)] = row
    return out


def _rated(frame: Mapping[str, Any]) -> tuple[Rated, ...]:
    trees = (frame.get("expert") or {}).get("rated_trajectories") or []
    return tuple(
        Rated(waypoints=np.array(tree["waypoints"], np.float64), dt_s=float(tree["dt"]), score=float(tree["score"]))
        for tree in trees
    )


def _history(frame: Mapping[str, Any], i: int, source: str, problems: list[Problem]) -> History | None:
    tree = frame["observations"].get("history")
    if tree is None:
        return None
    states = np.full((len(tree["position"] or ()), COLUMNS), np.nan)
    for column, name in enumerate(("position", "velocity", "acceleration")):
        values = tree.get(name) or ()
        if values and len(values) != len(states):
            key = f"frames[{i}].observations.history.{name}"
            expected = f"as many as of position, {len(states)}"
            problems.append(Problem(file=source, key=key, expected=expected, found=str(len(values))))
        elif values:
            states[:, 2 * column : 2 * column + 2] = values
    return History(dt_s=float(tree["dt"]), states=states)


def _camera_arrays(
    frames: int,
    cameras: Sequence[str],
    entries: Sequence[tuple[int, int, Mapping[str, Any]]],
    source: str,
    problems: list[Problem],
) -> dict[str, np.ndarray]:
    """Offsets, poses and calibration of each (frame, camera) entry."""
    size = (frames, len(cameras))
    offsets, poses = np.zeros(size), np.full((*size, 3), np.nan)
    intrinsics, extrinsics = np.full((*size, 3, 3), np.nan), np.full((*size, 4, 4), np.nan)
    known: dict[tuple[str, tuple[float, ...]], np.ndarray | None] = {}  # a calibration rarely changes in a drive
    for i, k, camera in entries:
        offsets[i, k] = camera.get("t_offset_s") or 0.0
        pose = camera.get("pose")
        if pose:
            poses[i, k] = pose["x_m"], pose["y_m"], pose["yaw_rad"]
        for name, out, make in (("intrinsics", intrinsics, intrinsics_of), ("extrinsics", extrinsics, extrinsics_of)):
            numbers = tuple(camera.get(name) or ())
            if not numbers:
                continue
            if (name, numbers) not in known:
                known[name, numbers] = matrix = make(numbers)
                if matrix is None:
                    key = f"frames[{i}].observations.cameras.{cameras[k]}.{name}"
                    problems.append(
                        Problem(file=source, key=key, expected=CALIBRATION_EXPECTED[name], found=str(list(numbers)))
                    )
            matrix = known[name, numbers]
            if matrix is not None:
                out[i, k] = matrix
    return {"t_offset_s": offsets, "camera_pose": poses, "intrinsics": intrinsics, "extrinsics": extrinsics}


CALIBRATION_EXPECTED = {
    "intrinsics": "fx, fy, cx, cy with focal lengths above 0, or the matrix [fx, s, cx, 0, fy, cy, 0, 0, 1]",
    "extrinsics": "a rotation and a translation row by row, the last row 0, 0, 0, 1",
}


def intrinsics_of(numbers: Sequence[float | int]) -> Float64[np.ndarray, "3 3"] | None:
    """Returns the matrix of four numbers or of its nine, row by row; None where they are none."""
    if len(numbers) == 4:
        fx, fy, cx, cy = numbers
        numbers = (fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0)
    matrix = np.array(numbers, np.float64).reshape(3, 3)
    good = matrix[0, 0] > 0 and matrix[1, 1] > 0 and matrix[1, 0] == 0 and (matrix[2] == (0, 0, 1)).all()
    return matrix if good else None


def extrinsics_of(numbers: Sequence[float | int]) -> Float64[np.ndarray, "4 4"] | None:
    """Returns the matrix of its sixteen numbers, row by row; None where they are no rotation and translation."""
    matrix = np.array(numbers, np.float64).reshape(4, 4)
    rotation = matrix[:3, :3]
    rigid = np.abs(rotation.T @ rotation - np.eye(3)).max() < RIGID_TOLERANCE and np.linalg.det(rotation) > 0
    return matrix if rigid and (matrix[3] == (0, 0, 0, 1)).all() else None


def image_name(episode_name: str, image_path: str) -> tuple[str, str]:
    """Name of an image in its dataset, and words for why the path is refused; empty where it is not.

    What the name leads to is another question, which `chunkwise.files.links.Bounds` answers.

    Args:
      episode_name: Of the JSON that names the image, relative to the dataset.
      image_path: As written in it.
    """
    if "://" in image_path:
        return "", "a URL"
    if os.path.isabs(image_path):
        return "", "an absolute path"
    if "\\" in image_path or "\0" in image_path:
        return "", "a backslash or NUL in it"
    name = posixpath.normpath(posixpath.join(posixpath.dirname(episode_name), image_path))
    return name, "a path that leads out of the dataset" if name.split("/")[0] == ".." else ""


def iter_images(episode: Episode) -> Iterator[tuple[int, int, str]]:
    """Frame, camera and path of every image that is named."""
    for i, row in enumerate(episode.image_paths):
        for k, path in enumerate(row):
            if path is not None:
                yield i, k, path
