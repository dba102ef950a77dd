"""Settings of the data of a driving run: which episodes, how they become samples, and how the town records some."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_ON_RESUME,
    FilesConfig,
    require_fraction,
    require_non_negative,
    require_positive,
)

CAMERAS = ("front", "front_left", "front_right", "side_left", "side_right")
"""The contract's canonical cameras; other names are allowed, and found in an episode as they are written there."""

AHEAD = CAMERAS[:3]
"""Those that look ahead: 168 degrees of the town, in three fifths of the time of all five."""

MOTION_HZ = 10.0
"""How often a recorded drive says how the car moves, and how often one in closed loop is asked for a plan."""

BRAKING_S, BRAKING_M = 2.0, 4.0
"""A driver brakes whose way of so many seconds is so many metres shorter than at its speed."""

Split = Literal["train", "val", "test", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of a training sample that keep labels and camera geometry true; all off by default.

    Drawn from (seed, epoch, index of the sample in the epoch). Evaluation never augments.
    """

    crop: float = 0.0
    """Largest share of height and of width that a crop leaves out; one crop a camera, the same at all times."""
    brightness: float = 0.0
    """Colours are multiplied by 1 - brightness to 1 + brightness, drawn for each image, as are the next two."""
    contrast: float = 0.0
    """Distances from mid-grey are multiplied by 1 - contrast to 1 + contrast."""
    saturation: float = 0.0
    """Distances from the pixel's grey are multiplied by 1 - saturation to 1 + saturation."""
    camera_dropout: float = 0.0
    """Probability that a camera is masked in a sample, at all times; one camera always stays."""
    flip: float = 0.0
    """Probability of a mirror image: left and right cameras change places, y, yaw and the route command change sign."""

    def __post_init__(self) -> None:
        require_fraction(self, "crop", "brightness", "contrast", "saturation", "camera_dropout", "flip")
        if self.crop == 1:
            raise ValueError("augment.crop is 1; expected below 1, since a crop must leave something")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(FilesConfig):
    """Driving episodes on disk, or a pack of them, and how their frames become samples."""

    path: str = dataclasses.field(metadata=FREE_AS_A_PLACE)
    """Folder of episode JSON files with their images, or the pack that `chunkwise pack` wrote."""
    cameras: tuple[str, ...] = CAMERAS
    """Order of the camera axis."""
    image_size: tuple[int, int] = (64, 96)
    """Height and width of every image of a batch. Other sizes are stretched, and the intrinsics with them."""
    offsets_s: tuple[float, ...] = (0.0,)
    """Times of a sample in seconds from its anchor frame, ascending, 0.0 among them: (0.0,) gives frames, (0.0, 1.0)
    temporal pairs, (-0.8, -0.4, 0.0) clips. Multiples of the time between two images, where a frame may have none."""
    tolerance_s: float = 0.05
    """How far the nearest frame may lie from an offset; farther, that time of the sample is masked."""
    incomplete: Literal["mask", "drop"] = "mask"
    """Anchors that lack a frame at some offset, or, with min_cameras above 0, any image there: drawn with that time
    masked, or not drawn."""
    min_cameras: int = 1
    """Images that an anchor frame must have to be drawn."""
    waypoint_steps: int = 20
    waypoint_dt_s: float = 0.1
    """Seconds between two waypoints; the first is one step ahead of the anchor."""
    waypoint_source: Literal["expert", "poses"] = "expert"
    """expert: what the episode lists, from poses where it lists none. poses: always from poses."""
    max_gap_s: float = 0.5
    """Poses farther apart in time are not interpolated; waypoints in such a gap are masked. A recording whose usual
    step is longer than two thirds of this bridges 1.5 of its steps, up to twice this."""
    missing_files: Literal["refuse", "mask"] = "refuse"
    """A path that is given, and whose file is absent: an error that lists them, or counted and masked."""
    on_bad: Literal["refuse", "skip"] = "refuse"
    """Bad episodes: refuse all with one report, or skip up to 1 % of them with the list printed."""
    split_file: str | None = None
    """Manifest of the split. None: `_split.json` in `path`, made from the two fractions if it is not there."""
    val_fraction: float = 0.15
    test_fraction: float = 0.15
    """Shares of the recordings when a split is made; where the dataset states its own, of a part that it lacks."""
    episode_fraction: float = 1.0
    """Share of the training episodes that are used, at least one; a smaller share is a subset of a larger one."""
    braking_repeats: int = 1
    """How often an epoch shows frames at which the driver brakes: 4 m less in 2 s, or the whole steps of waypoint_dt_s
    nearest to that, than at its speed. Others: once."""
    augment: AugmentConfig = AugmentConfig()
    cache_mb: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Memory for decoded images, in units of 10^6 bytes; 0 decodes each time."""
    read_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that build batches ahead; 0 builds them where they are used."""
    index_processes: int = dataclasses.field(default=1, metadata=FREE_ON_RESUME)
    """Processes that parse, check and hash new drives when they are opened, where there is work for several; 0: one a
    core. They import the main module: a script that asks for several opens data below `if __name__ == "__main__":`."""

    @property
    def longest_hold(self) -> int:
        """Tenths of a second that a plan can be followed, as long as its waypoints reach; at least 1."""
        return max(int(self.waypoint_steps * self.waypoint_dt_s * 10 + 1e-6), 1)

    def __post_init__(self) -> None:
        require_positive(self, "waypoint_steps", "waypoint_dt_s", "max_gap_s", "episode_fraction", "braking_repeats")
        require_non_negative(self, "tolerance_s", "min_cameras", "cache_mb", "read_threads", "index_processes")
        require_fraction(self, "val_fraction", "test_fraction", "episode_fraction")
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError("data.val_fraction and test_fraction leave nothing to train on; expected a sum below 1")
        if self.braking_repeats > 1 and self.waypoint_steps * self.waypoint_dt_s < BRAKING_S:
            raise ValueError(
                f"data.braking_repeats is {self.braking_repeats}, and waypoints end before {BRAKING_S:g} s, over which "
                "braking is told; raise data.waypoint_steps, or set braking_repeats to 1"
            )
        if self.braking_repeats > 1 and not round(BRAKING_S / self.waypoint_dt_s):
            raise ValueError(
                f"data.braking_repeats is {self.braking_repeats}, and data.waypoint_dt_s {self.waypoint_dt_s:g} is too "
                f"long for braking to be told over {BRAKING_S:g} s; expected less than {2 * BRAKING_S:g}, or "
                "braking_repeats 1"
            )
        if not self.cameras or len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"data.cameras is {self.cameras}; expected at least one name, and none twice")
        if min(self.image_size) < 1:
            raise ValueError(f"data.image_size is {self.image_size}; expected height and width of at least 1")
        if 0.0 not in self.offsets_s or list(self.offsets_s) != sorted(set(self.offsets_s)):
            raise ValueError(f"data.offsets_s is {self.offsets_s}; expected ascending seconds with 0.0 among them")

    @property
    def anchor(self) -> int:
        """Position of offset 0.0: the time that waypoints, route command and relative poses refer to."""
        return self.offsets_s.index(0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Errors in the plan that the car follows while it is recorded (driving/sim/noise.py)."""

    turn_rad: float = 0.08
    """Standard deviation of the angle by which the plan is turned. Of this and the next, each drive has 0 to 2 times as
    much, drawn for it; 0 in both records what the driver does alone."""
    stretch: float = 0.12
    """Standard deviation of the logarithm of the factor by which the plan, and so the speed, is stretched."""
    seconds: float = 1.0
    """After so long an error has kept 1/e of itself."""

    def __post_init__(self) -> None:
        require_non_negative(self, "turn_rad", "stretch")
        require_positive(self, "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Episodes recorded in a MuJoCo town (driving/record.py)."""

    episodes: int = 64
    seconds: float = 20.0
    """Length of an episode; one in which the car hits another, or leaves the road as a whole, ends there."""
    rate_hz: float = 5.0
    """Images a second: 10 or a whole part of it. How the car moves is written 10 times a second."""
    driver: str | None = None
    """Run whose policy drives, while the town's driver says what to do (DAgger, arXiv:1011.0686). None: it drives."""
    noise: NoiseConfig = NoiseConfig()
    cameras: tuple[str, ...] = CAMERAS
    """Of CAMERAS; each costs as much time as another."""
    image_size: tuple[int, int] = (64, 96)
    """Height and width of an image."""
    jpeg_quality: int = 92
    missing: float = 0.02
    """Share of the images that are left out, half of them singly and half in outages of 1 to 3 s."""
    seed: int = 0
    processes: int = dataclasses.field(default=2, metadata=FREE_ON_RESUME)
    """The episodes do not depend on it."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "seconds", "rate_hz", "processes")
        require_non_negative(self, "seed")
        require_fraction(self, "missing")
        if abs(MOTION_HZ / self.rate_hz - round(MOTION_HZ / self.rate_hz)) > 1e-9:
            raise ValueError(f"record.rate_hz is {self.rate_hz}; expected {MOTION_HZ:g} divided by a whole number")
        if not self.cameras or len(set(self.cameras)) < len(self.cameras) or not set(self.cameras) <= set(CAMERAS):
            raise ValueError(f"record.cameras is {self.cameras}; expected some of {CAMERAS}, none twice")
        if not 1 <= self.jpeg_quality <= 100:
            raise ValueError(f"record.jpeg_quality is {self.jpeg_quality}; expected 1 to 100")
        if min(self.image_size) < 1:
            raise ValueError(f"record.image_size is {self.image_size}; expected height and width of at least 1")
