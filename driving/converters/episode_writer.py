"""Writes converted drives as driving/data/episodes.py reads them: OUT/<episode>.json, OUT/images/<episode>/<name>.jpg.

Images are written as they are read, by a thread, so that a drive's JPEG files are never in memory together.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chunkwise.data import convert
from chunkwise.data.images import read_image_size
from chunkwise.data.problems import Problem, problem_of
from chunkwise.data.threads import Behind
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.durable import write_ahead
from driving.converters.trajectory import Pose
from driving.data.episodes import parse, schema_problems, write_episode
from driving.data.history import History
from driving.data.rater import Rated

MAX_NAME = 200
"""Letters of a drive's name, and bytes of its file's; names of files end at 255 bytes, and endings come behind it."""
IMAGES_WAITING = 16
"""Images in memory that wait to be written, at most: three frames of five cameras."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertSettings(convert.ConvertSettings):
    """What may be chosen; a setting that the source's format cannot use is refused.

    `cameras` change single entries of the map, where "" leaves one out; `quality`, of what was video, is for lerobot.
    """

    camera_map: Mapping[str, str] | None = None
    """In place of the format's own map: the source's cameras to names in the episodes; others are left out."""
    images: bool = True
    """False: frames keep times, poses and calibration of their cameras, and name no image."""
    sweeps: bool = False
    """nuscenes: all camera frames (12 Hz) instead of the key frames (2 Hz)."""
    state: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """lerobot: quantity to KEY:INDEX or KEY:INDEX:FACTOR."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Records of a file."""

    read: int
    bad: int
    """Of these, left out with a problem."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriveCamera:
    """One camera of one frame."""

    path: str | None
    """From `EpisodeWriter.add_image`; None where there is no image."""
    time_s: float | None = None
    """When it was exposed, on the clock of the frames; None: when the frame was."""
    pose: Pose | None = None
    """The vehicle's, at that time."""
    intrinsics: Sequence[float] | None = None
    """fx, fy, cx, cy in pixels."""
    extrinsics: Sequence[float] | None = None
    """Camera (x right, y down, z ahead) to vehicle, 4 x 4 row by row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriveFrame:
    """All cameras at about one time, and the vehicle's state at that time; None is unknown."""

    time_s: float
    cameras: Mapping[str, DriveCamera]
    pose: Pose | None = None
    position: tuple[float, float] | None = None
    """x, y where the heading is not known; else the pose has it."""
    yaw_rad: float | None = None
    """Where the position is not known; else the pose has it."""
    speed_mps: float | None = None
    yaw_rate_radps: float | None = None
    route_command: Literal["left", "straight", "right"] | None = None
    waypoints: Sequence[tuple[float, float]] | None = None
    rated: Sequence[Rated] = ()
    """Trajectories that people rated; Waymo E2E."""
    history: History | None = None
    """How the car came here; Waymo E2E."""
    name: str | None = None
    """What the source calls the frame, where a submission must say it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drive:
    """One episode."""

    id: str
    """As the source names it."""
    dataset: str
    scene_id: str
    """Recording; a split keeps all its episodes together."""
    split: str | None
    frames: Sequence[DriveFrame]
    """In any order."""
    waypoint_dt_s: float | None = None
    waypoint_steps: int | None = None


class EpisodeWriter:
    """Collects images and episodes in a folder, and everything that is wrong with the source.

    Images are written by a thread of its own: leave its block to have all of them there. What their writing raised is
    raised by a later image or there.
    """

    def __init__(self, root: Path, *, images: bool) -> None:
        """Writes into `root`, which exists; without `images` no image is written."""
        self._root, self._images = root, images
        self._behind = Behind("images", waiting=IMAGES_WAITING)
        self.problems: list[Problem] = []
        self.claims: dict[str, tuple[str, str]] = {}
        """Name of a drive's file, without ending, to the drive and its source."""
        self.drives: dict[str, int] = {}
        """Frames of the episodes that are written, by the name of the file."""
        self._refused: set[tuple[str, str]] = set()
        self._written: dict[Path, None] = {}  # in order
        self._folders: set[Path] = set()  # that are made

    def __enter__(self) -> "EpisodeWriter":
        self._behind.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._behind.__exit__(*error)

    def problem(self, file: str, key: str, expected: str, found: str) -> None:
        """Notes what is wrong; the conversion goes on, to find the rest, and is refused at its end."""
        self.problems.append(Problem(file=file, key=key, expected=expected, found=found))

    def claim(self, drive: str, source: str) -> bool:
        """Whether a drive may be written from a source; False, and noted once, if its name is none, or is taken.

        A name is taken by the same drive of another source, and by another drive whose file would have the same name.
        """
        reason = _wrong_name(drive)
        if reason is None:
            first, of = self.claims.setdefault(file_name(drive), (drive, source))
            if (first, of) == (drive, source):
                return True
            reason = taken(drive, (first, of))
        if (drive, source) not in self._refused:
            self._refused.add((drive, source))
            self.problem(source, drive if len(drive) <= MAX_NAME and drive.isprintable() else repr(drive[:40]), *reason)
        return False

    def add_image(
        self, episode: str, name: str, data: bytes | memoryview, *, source: str, size: tuple[int, int] | None = None
    ) -> str | None:
        """Writes one image; returns its path relative to the JSON, None without `images` or where it is bad.

        Args:
          episode: Id of the drive, as the source names it.
          name: Of the file in the episode's folder, without ending.
          data: JPEG or PNG, written as it is, later: it must not change.
          source: Names the image in a problem.
          size: (height, width) that the calibration says.
        """
        try:
            found = read_image_size(data, source=source)
        except DataError as error:
            self.problems.append(problem_of(error, source))
            return None
        if size is not None and found != size:
            expected = f"height x width {size[0]} x {size[1]} as in the calibration"
            self.problem(source, "", expected, f"{found[0]} x {found[1]}")
            return None
        if not self._images:
            return None
        ending = ".png" if bytes(data[:4]) == b"\x89PNG" else ".jpg"
        path = Path("images") / file_name(episode) / f"{file_name(name)}{ending}"
        if path in self._written:
            self.problem(source, "", "one image of each camera at a time", f"a second one for {path.name}")
            return None
        self._written[path] = None
        file = self._root / path
        if file.parent not in self._folders:
            self._folders.add(file.parent)
            file.parent.mkdir(parents=True, exist_ok=True)
        self._behind.do(write_ahead, file, data)
        return path.as_posix()

    @property
    def images(self) -> dict[str, int]:
        """Images of each episode, by the name of its file."""
        return collections.Counter(path.parts[1] for path in self._written)

    @property
    def image_count(self) -> int:
        """Images that are written."""
        return len(self._written)

    def discard_images(self, *, of: str | None = None, after: int = 0) -> None:
        """Removes images: those of an episode, by the name of its file, or all but the first so many."""
        doomed = [path for path in list(self._written)[after:] if of is None or path.parts[1] == of]
        if doomed:
            self._behind.wait()
        for path in doomed:
            del self._written[path]
            (self._root / path).unlink()

    def discard(self, drive: str) -> None:
        """Removes what was written of a drive, which keeps its claim."""
        name = file_name(drive)
        self.discard_images(of=name)
        (self._root / f"{name}.json").unlink(missing_ok=True)
        self.drives.pop(name, None)

    def add_drive(self, drive: Drive, *, source: str) -> bool:
        """Writes one episode; what is wrong with it becomes a problem, and it is not written then.

        Args:
          drive: The episode, with the paths of its images.
          source: File of the dataset, for problems.
        """
        if not self.claim(drive.id, source):
            return False
        if not drive.frames:
            self.problem(source, drive.id, "at least 1 frame", "none")
            return False
        name = file_name(drive.id)
        tree, where = _tree(drive, name), f"{source}, {drive.id}"
        problems = schema_problems(tree, source=where) or parse(tree, source=where)[1]
        self.problems += problems
        if problems:
            return False
        write_episode(self._root / f"{name}.json", tree)
        self.drives[name] = len(drive.frames)
        return True


def camera_names(camera_map: Mapping[str, str], settings: ConvertSettings) -> dict[str, str]:
    """Cameras to convert and their names in the episodes: a format's own map, or the user's, with the user's changes.

    Raises:
      ConfigError: A camera that the user names is not in the format's map, or two cameras get one name, or names that
        are one in the files of their images.
    """
    own, chosen = settings.camera_map, settings.cameras
    for option, given in (("--camera-map", own or {}), ("--camera", chosen)):
        if unknown := sorted(set(given) - set(camera_map)):
            raise ConfigError(f"{option}: the source has no cameras {unknown}; it has {sorted(camera_map)}")
    if own is not None:
        camera_map = own
    names = {camera: name for camera, name in {**camera_map, **chosen}.items() if name}
    files = {camera: file_name(f"0_{name}") for camera, name in names.items()}  # a frame's number comes before it
    if twice := sorted({names[camera] for camera, file in files.items() if list(files.values()).count(file) > 1}):
        hint = "give each a name of its own by --camera KEY=NAME"
        raise ConfigError(f"--camera: {twice} would name several cameras, or their files; {hint}. The map is {names}")
    return names


def file_name(text: str) -> str:
    """A name that is safe as a file's: letters and digits of any script, '.', '_', '-', no more than MAX_NAME bytes.

    It begins with neither '.' nor '_', since such files are no episodes; "drive" is put in front of those that would.
    """
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in text)
    name = name if name and name[0] not in "._" else f"drive{name}"
    return name.encode()[:MAX_NAME].decode(errors="ignore")


def taken(drive: str, by: tuple[str, str]) -> tuple[str, str]:
    """What is expected of a drive, and what was found, where the name of its file is that of another drive and source.

    That other one may be the same drive of another source.
    """
    other, source = by
    if other == drive:
        return "each drive once", f"it is also in {source}"
    return "names that differ as names of files", f"{other!r} in {source}: both are {file_name(drive)}.json"


def _wrong_name(drive: str) -> tuple[str, str] | None:
    """What is expected of the name of a drive, and what was found; None for a good one."""
    if not drive or len(drive) > MAX_NAME:
        return f"a name of 1 to {MAX_NAME} letters", f"{len(drive)}"
    if "/" in drive or "\\" in drive or not drive.isprintable():
        return "a name without '/', '\\' and control characters", repr(drive)
    return None


def _tree(drive: Drive, episode_id: str) -> dict[str, Any]:
    frames = sorted(drive.frames, key=lambda frame: frame.time_s)
    start = frames[0].time_s
    source = {"dataset": drive.dataset, "scene_id": drive.scene_id}
    tree: dict[str, Any] = {
        "episode_id": episode_id,
        "domain": "driving",
        "source": source if drive.split is None else {**source, "split": drive.split},
        "cameras": sorted({name for frame in frames for name in frame.cameras}),
        "frames": [_frame(frame, start) for frame in frames],
    }
    if drive.waypoint_dt_s is not None:
        tree["waypoint_spec"] = {
            "horizon_steps": drive.waypoint_steps,
            "dt": drive.waypoint_dt_s,
            "frame": "ego",
            "units": "m",
        }
    return tree


def _frame(frame: DriveFrame, start: float) -> dict[str, Any]:
    state: dict[str, Any] = {"speed_mps": _rounded(frame.speed_mps), "yaw_rate_radps": _rounded(frame.yaw_rate_radps)}
    state["yaw_rad"] = _rounded(frame.yaw_rad)
    if frame.position is not None:
        state |= dict(zip(("x_m", "y_m"), map(_rounded, frame.position), strict=True))
    if frame.pose is not None:
        state |= dict(zip(("x_m", "y_m", "yaw_rad"), map(_rounded, frame.pose), strict=True))
    observations: dict[str, Any] = {
        "cameras": {name: _camera(camera, frame.time_s) for name, camera in sorted(frame.cameras.items())},
        "state": state,
    }
    if frame.route_command is not None:
        observations["route_command"] = frame.route_command
    if frame.history is not None:
        observations["history"] = _history(frame.history)
    tree: dict[str, Any] = {"t": _rounded(frame.time_s - start), "observations": observations}
    if frame.name is not None:
        tree["name"] = frame.name
    expert: dict[str, Any] = {}
    if frame.waypoints is not None:
        expert["waypoints"] = [[_rounded(x), _rounded(y)] for x, y in frame.waypoints]
    if frame.rated:
        expert["rated_trajectories"] = [
            {
                "score": _rounded(one.score),
                "dt": one.dt_s,
                "waypoints": [[_rounded(x), _rounded(y)] for x, y in one.waypoints.tolist()],
            }
            for one in frame.rated
        ]
    return {**tree, "expert": expert} if expert else tree


def _history(history: History) -> dict[str, Any]:
    tree: dict[str, Any] = {"dt": history.dt_s}
    for column, name in enumerate(("position", "velocity", "acceleration")):
        values = history.states[:, 2 * column : 2 * column + 2]
        if np.isfinite(values).all():
            tree[name] = [[_rounded(x), _rounded(y)] for x, y in values.tolist()]
    return tree


def _camera(camera: DriveCamera, time_s: float) -> dict[str, Any]:
    tree: dict[str, Any] = {"image_path": camera.path}
    if camera.time_s is not None:
        tree["t_offset_s"] = _rounded(camera.time_s - time_s)
    if camera.pose is not None:
        tree["pose"] = dict(zip(("x_m", "y_m", "yaw_rad"), map(_rounded, camera.pose), strict=True))
    if camera.intrinsics is not None:
        tree["intrinsics"] = [_rounded(value) for value in camera.intrinsics]
    if camera.extrinsics is not None:
        tree["extrinsics"] = [round(float(value), 9) for value in camera.extrinsics]
    return tree


def _rounded(value: float | None) -> float | None:
    """A micrometre, a microsecond, a microradian."""
    return None if value is None else round(float(value), 6)
