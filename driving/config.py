"""Every setting of a driving run, as frozen dataclasses. No jax is imported here."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    FREE_ON_RESUME,
    ExperimentConfig,
    FilesConfig,
    RematPolicy,
    before_it_was_there,
    renamed_from,
    require_defaults,
    require_fraction,
    require_non_negative,
    require_positive,
    require_remat,
)

CAMERAS = ("front", "front_left", "front_right", "side_left", "side_right")
"""The contract's canonical cameras; other names are allowed, and found in an episode as they are written there."""

AHEAD = CAMERAS[:3]
"""Those that look ahead: 168 degrees of the town, in three fifths of the time of all five."""

MOTION_HZ = 10.0
"""How often a recorded drive says how the car moves, and how often one in closed loop is asked for a plan."""

TOWN_PAST_S = 1.0
"""The town shows its cameras also as they were some tenths of a second before, at most so many seconds."""

STEM = 4
"""Pixels of height and width that the convolutional encoder takes as one."""

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

    path: str = dataclasses.field(metadata=FREE_ON_RESUME)
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
    """How often an epoch shows frames at which the driver brakes: 4 m less in 2 s than at its speed. Others: once."""
    augment: AugmentConfig = AugmentConfig()
    cache_mb: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Memory for decoded images, in units of 10^6 bytes; 0 decodes each time."""
    read_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that build batches ahead; 0 builds them where they are used."""
    index_processes: int = dataclasses.field(default=1, metadata=FREE_ON_RESUME)
    """Processes that parse, check and hash new drives when they are opened, where there is work for several; 0: one a
    core. They import the main module: a script that asks for several opens data below `if __name__ == "__main__":`."""

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
class ConvConfig:
    """The encoder of one camera for CPUs: patches of 4 x 4 pixels, then stages of residual 3 x 3 convolutions."""

    channels: tuple[int, ...] = (32, 64, 128)
    """Of each stage; each has half the resolution of the one before."""
    blocks: tuple[int, ...] = (0, 1, 1)
    """Convolutions of each stage."""

    def __post_init__(self) -> None:
        found = f"conv.channels is {self.channels} and conv.blocks {self.blocks}"
        if not self.channels or len(self.channels) != len(self.blocks):
            raise ValueError(f"{found}; expected equal lengths")
        if min(self.channels) < 1 or min(self.blocks) < 0:
            raise ValueError(f"{found}; expected 1, 0 or above")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VitConfig:
    """The encoder of one camera for accelerators: a vision transformer (arXiv:2010.11929)."""

    patch_size: int = 16
    width: int = 384
    depth: int = 12
    num_heads: int = 6
    mlp_dim: int = 1536
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the blocks' arithmetic; weights, norms and softmax stay float32."""
    remat: bool = False
    """Compute each block again in the backward pass instead of keeping its activations."""
    remat_policy: RematPolicy = "nothing"
    """What is kept of a recomputed block all the same."""

    def __post_init__(self) -> None:
        require_positive(self, "patch_size", "width", "depth", "num_heads", "mlp_dim")
        require_remat(self.remat, self.remat_policy, "vit")
        if self.width % self.num_heads:
            raise ValueError(f"vit.width {self.width} is not divisible by vit.num_heads {self.num_heads}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Images of several cameras to one vector (driving/model/encoders.py)."""

    conv: ConvConfig = ConvConfig()
    vit: VitConfig | None = None
    """None: the convolutional encoder."""
    camera_width: int = 128
    """Width of the vector of one camera."""
    scene_width: int = 256
    """Width of the vector of all cameras."""

    def __post_init__(self) -> None:
        require_positive(self, "camera_width", "scene_width")

    @property
    def token_pixels(self) -> int:
        """Height and width of what becomes one token of a camera."""
        return self.vit.patch_size if self.vit is not None else STEM * 2 ** (len(self.conv.channels) - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Weights and settings of the pretraining objectives (driving/tasks/objectives.py); weight 0 switches one off."""

    cross_camera: float = 0.0
    """InfoNCE between the cameras of one moment."""
    temporal: float = 0.0
    """InfoNCE between the first and the last of data.offsets_s."""
    masked: float = 0.0
    """Prediction of hidden tokens of a slowly moving encoder."""
    ego_motion: float = 0.0
    """Prediction of the relative pose between the first and the last of data.offsets_s."""
    temperature: float = 0.1
    near_s: float = 2.0
    """Moments of one drive that are closer than this are no negatives of each other."""
    projection: int = 64
    """Width in which InfoNCE compares."""
    hidden_share: float = 0.5
    """Share of a camera's tokens that is hidden."""
    target_decay: float = 0.99
    """Of the slowly moving encoder, per update."""

    def __post_init__(self) -> None:
        require_non_negative(self, "cross_camera", "temporal", "masked", "ego_motion", "near_s")
        require_positive(self, "temperature", "projection")
        require_fraction(self, "hidden_share", "target_decay")
        if not self.cross_camera + self.temporal + self.masked + self.ego_motion:
            raise ValueError("every objective has weight 0; expected at least one above 0")
        if not self.cross_camera + self.temporal:
            read = ("temperature", "near_s")
            require_defaults(self, "objective", read, "an objective without cross_camera and temporal")
        if not self.masked:
            require_defaults(self, "objective", ("hidden_share", "target_decay"), "an objective without masked")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualConfig:
    """What cameras add to waypoints that the other inputs alone would give (driving/model/heads.py)."""

    width: int = 32
    """Numbers a moment through which all that the cameras see has to go."""
    dropout: float = 0.2
    """Share of them that is left out in each training sample."""

    def __post_init__(self) -> None:
        require_positive(self, "width")
        require_fraction(self, "dropout")
        if self.dropout == 1:
            raise ValueError("residual.dropout is 1; expected below 1, since something must be left")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaypointConfig:
    """Behaviour cloning of waypoints (driving/tasks/waypoints.py)."""

    weights: str | None = None
    """Folder of a pretraining, whose encoder is the start, or of a run of this model to go on with. None: neither."""
    freeze: bool = False
    """Train the head alone."""
    use_cameras: bool = True
    use_ego: bool = True
    """Speed and yaw rate."""
    use_past: bool = True
    """How speed and yaw rate have changed within the last second (driving.data.tables.PAST_S)."""
    use_known: bool = dataclasses.field(default=True, metadata=before_it_was_there(False))
    """Which of these motions are known: without it, as in runs of versions before it, unknown looks like 0."""
    use_command: bool = True
    """Where the route goes."""
    use_moments: bool = False
    """All of data.offsets_s, the images of earlier moments too; else those of the anchor alone."""
    use_calibration: bool = False
    """In which direction each token looks, by the cameras' matrices (driving/model/rays.py)."""
    residual: ResidualConfig | None = None
    """The other inputs predict, and what the cameras see is added to that. None: one network takes all of it."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Of the head."""
    modes: int = 1
    """Trajectories, each with a probability; the most probable one drives (driving/tasks/modes.py)."""
    mode_weight: float = 1.0
    """Of the loss of the probabilities, beside that of the trajectory nearest to the truth."""

    def __post_init__(self) -> None:
        require_positive(self, "modes", "mode_weight")
        if self.modes == 1 and self.mode_weight != 1:
            found = f"waypoints.mode_weight is {self.mode_weight} and waypoints.modes 1, whose probability is 1"
            raise ValueError(f"{found} whatever is learnt; expected more modes, or mode_weight 1")
        others = self.use_ego or self.use_past or self.use_command
        for name, on in (("use_moments", self.use_moments), ("use_calibration", self.use_calibration)):
            if on and not self.use_cameras:
                raise ValueError(f"waypoints.{name} is true and use_cameras false: nothing is seen; switch one of them")
        if self.residual is not None and not (self.use_cameras and others):
            added = "waypoints.residual is what cameras add to what other inputs give"
            raise ValueError(f"{added}; expected use_cameras, and one of use_ego, use_past, use_command")
        if self.use_calibration and self.freeze:
            fresh = "what reads the rays is part of the encoder, is fresh, and would never be trained"
            raise ValueError(f"waypoints.use_calibration is true and freeze too: {fresh}; switch one of them off")
        if self.freeze and not self.use_cameras:
            raise ValueError("waypoints.freeze is true and use_cameras false: there is no encoder; switch one of them")
        if not (self.use_cameras or self.use_ego or self.use_past or self.use_command):
            raise ValueError("waypoints.use_cameras, use_ego, use_past, use_command are all false; expected an input")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"waypoints.hidden_sizes is {self.hidden_sizes}; expected at least one number above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Reinforcement in closed loop: drives of the policy that trains, between its updates (driving/online/round.py)."""

    start: int = 0
    """Updates by imitation alone, before the first drives."""
    updates: int = 50
    """Of a round: drives are played, then learnt from so many times; each batch has as many decisions as rows."""
    routes: int = 64
    """Starts that there are, each a town and who drives in it. Those of evaluations are others."""
    groups: int = 8
    """Of these, so many are driven in a round."""
    size: int = 4
    """Drives from each, which are compared with one another."""
    seconds: float = 15.0
    """Of a drive."""
    lead_s: float = 0.0
    """At most so many seconds, drawn for each route, the town's driver drives before: short drives begin anywhere."""
    hold: int = 5
    """Tenths of a second that a plan is followed before the next mode is drawn."""
    keep: int = 1
    """Decisions that one random number draws: the mode stays the same while its probability does."""
    horizon_s: float | None = None
    """Seconds after a decision by whose score it is judged. None: by that of the whole drive."""
    clip: float = 0.2
    """How far from 1 the ratio of a mode's probabilities still counts."""
    weight: float = 1.0
    """Of the clipped ratio's loss, beside that of imitation."""
    num_envs: int = dataclasses.field(default=2, metadata=FREE_ON_RESUME)
    """Processes that simulate, for each process of the run; the drives do not depend on either."""

    def __post_init__(self) -> None:
        require_positive(self, "updates", "routes", "groups", "seconds", "hold", "keep", "clip", "weight", "num_envs")
        require_non_negative(self, "start", "lead_s")
        if self.size < 2:
            raise ValueError(f"rollout.size is {self.size}; expected at least 2: a drive is compared with the others")
        if self.groups > self.routes:
            raise ValueError(f"rollout.groups is {self.groups} of {self.routes} rollout.routes; expected at most all")
        if self.horizon_s is not None and not self.hold / 10 <= self.horizon_s <= self.seconds:
            allowed = f"{self.hold / 10:g} (rollout.hold) to {self.seconds:g} s"
            raise ValueError(f"rollout.horizon_s is {self.horizon_s}; expected {allowed}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What is measured on drives that were not trained on (driving/evaluate.py)."""

    split: Literal["val", "test"] = "test"
    """At the end of a run; during training it is always val."""
    batch_size: int = 64
    every: int = 1
    """Frames between two that are evaluated."""
    blind_updates: int = 3000
    """Updates of the blind MLP on ego state and route command."""
    plotted_moments: int = dataclasses.field(default=3, metadata=renamed_from("pictures"))
    """Moments drawn into the run's figure."""

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "every", "blind_updates")
        require_non_negative(self, "plotted_moments")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivingConfig(ExperimentConfig):
    """A driving run: episodes -> objectives on multi-camera features (pretraining), or waypoints on top of them."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig | None = None
    """Pretrains. Exactly one of this and `waypoints` is set."""
    waypoints: WaypointConfig | None = None
    """Learns waypoints."""
    rollout: RolloutConfig | None = None
    """Drives in closed loop between updates, and learns from them. None: imitates alone."""
    eval: EvalConfig = dataclasses.field(default=EvalConfig(), metadata=FREE_ON_RESUME)
    record: RecordConfig | None = None
    """Records the dataset where it is missing. None: `data.path` must be there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.objective is None) == (self.waypoints is None):
            raise ValueError("expected either objective or waypoints to be set, found both or neither")
        looks, pixels = self.waypoints is None or self.waypoints.use_cameras, self.model.token_pixels
        if looks and any(side % pixels for side in self.data.image_size):
            near = tuple(max(1, round(side / pixels)) * pixels for side in self.data.image_size)
            raise ValueError(
                f"data.image_size is {self.data.image_size}; expected multiples of {pixels} pixels, a token's size "
                f"(model.conv.channels, model.vit.patch_size), for example {near}"
            )
        contrasted = self.objective is not None and self.objective.cross_camera + self.objective.temporal > 0
        negatives = "objective.cross_camera and objective.temporal take their negatives from"
        if contrasted and self.train.grad_accum_steps > 1:
            raise ValueError(
                f"train.grad_accum_steps is {self.train.grad_accum_steps}, and {negatives} the whole batch: a part has "
                "fewer. Set it to 1, lower train.batch_size, or spread the batch over more devices"
            )
        if contrasted and self.train.batch_size == 1:
            raise ValueError(f"train.batch_size is 1, and {negatives} the other rows; expected 2 or more")
        if self.objective is not None and self.objective.cross_camera and len(self.data.cameras) < 2:
            found = f"objective.cross_camera compares the cameras of a moment, and data.cameras is {self.data.cameras}"
            raise ValueError(f"{found}; expected two or more, or --objective.cross-camera 0")
        if self.rollout is not None and (self.waypoints is None or self.waypoints.modes == 1):
            raise ValueError("rollout draws one of several modes; expected waypoints with waypoints.modes above 1")
        if self.rollout is not None and self.rollout.start >= self.train.steps:
            found = f"rollout.start is {self.rollout.start} and train.steps {self.train.steps}"
            raise ValueError(f"{found}: nothing would be driven; expected a start below")
        if self.rollout is not None and self.unseen_in_town:
            raise ValueError(f"rollout drives in the town, and {self.unseen_in_town}")
        moments = self.waypoints is not None and self.waypoints.use_moments
        offsets = f"data.offsets_s is {self.data.offsets_s}"
        if moments and (len(self.data.offsets_s) < 2 or self.data.offsets_s[-1] > 0):
            raise ValueError(
                f"waypoints.use_moments is true and {offsets}; expected moments before the anchor, for example "
                "(-0.4, 0.0): a car that drives knows none after it"
            )
        paired = self.objective is not None and self.objective.temporal + self.objective.ego_motion > 0
        if paired and len(self.data.offsets_s) < 2:
            wanted = "expected for example (0.0, 0.4), at multiples of the time between images"
            raise ValueError(f"objective.temporal and objective.ego_motion compare two moments; {offsets}, {wanted}")

    @property
    def unseen_in_town(self) -> str:
        """What of the images that a waypoint model is given the town does not show, in words; empty: it shows all."""
        if self.waypoints is None or not self.waypoints.use_cameras:
            return ""
        if set(self.data.cameras) - set(CAMERAS):
            return f"data.cameras is {self.data.cameras}; expected some of the town's, {CAMERAS}"
        steps = [-offset * MOTION_HZ for offset in self.data.offsets_s] if self.waypoints.use_moments else []
        if all(0 <= step <= TOWN_PAST_S * MOTION_HZ + 1e-6 and abs(step - round(step)) <= 1e-6 for step in steps):
            return ""
        wanted = f"whole tenths of a second from {-TOWN_PAST_S:g} to 0, for example (-0.4, 0.0)"
        return f"data.offsets_s is {self.data.offsets_s}; expected moments that it shows, {wanted}"

    @property
    def views(self) -> tuple[str, ...]:
        """Images that a waypoint model is given, moment by moment: front is the camera now, front@-0.4 as it was 0.4 s
        before; empty where it sees none."""
        if self.waypoints is None or not self.waypoints.use_cameras:
            return ()
        offsets = self.data.offsets_s if self.waypoints.use_moments else (0.0,)
        return tuple(name if not offset else f"{name}@{offset:g}" for offset in offsets for name in self.data.cameras)
