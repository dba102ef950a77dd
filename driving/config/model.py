"""Settings of what a driving run trains: the encoder of cameras, the objectives of pretraining, and waypoints."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    RematPolicy,
    before_it_was_there,
    require_defaults,
    require_fraction,
    require_non_negative,
    require_positive,
    require_remat,
)

STEM = 4
"""Pixels of height and width that the convolutional encoder takes as one."""


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
    distilled: float = 0.0
    """Self-distillation: what a slowly moving encoder makes of a whole image, from a crop of it."""
    temperature: float = 0.1
    near_s: float = 2.0
    """Moments of one drive that are closer than this are no negatives of each other."""
    projection: int = 64
    """Width in which InfoNCE compares."""
    hidden_share: float = 0.5
    """Share of a camera's tokens that is hidden."""
    distilled_crop: float = 0.6
    """Largest share of height and of width that a crop leaves out."""
    prototypes: int = 128
    """Directions of which self-distillation says to which an image belongs."""
    target_decay: float = 0.99
    """Of the slowly moving encoder, per update."""

    def __post_init__(self) -> None:
        require_non_negative(self, "cross_camera", "temporal", "masked", "ego_motion", "distilled", "near_s")
        require_positive(self, "temperature", "projection", "prototypes")
        require_fraction(self, "hidden_share", "target_decay", "distilled_crop")
        if self.distilled_crop == 1:
            raise ValueError("objective.distilled_crop is 1; expected below 1, since a crop must leave something")
        if not self.cross_camera + self.temporal + self.masked + self.ego_motion + self.distilled:
            raise ValueError("every objective has weight 0; expected at least one above 0")
        if not self.cross_camera + self.temporal:
            read = ("temperature", "near_s")
            require_defaults(self, "objective", read, "an objective without cross_camera and temporal")
        if not self.cross_camera + self.temporal + self.distilled:
            without = "an objective without cross_camera, temporal and distilled"
            require_defaults(self, "objective", ("projection",), without)
        if not self.masked:
            require_defaults(self, "objective", ("hidden_share",), "an objective without masked")
        if not self.distilled:
            require_defaults(self, "objective", ("distilled_crop", "prototypes"), "an objective without distilled")
        if not self.masked + self.distilled:
            without = "an objective without masked and distilled"
            require_defaults(self, "objective", ("target_decay",), without)


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
class WorldConfig:
    """A latent world model beside the waypoints (LAW, arXiv:2406.08481): from what the cameras show, and the waypoints,
    what they will show at the last of data.offsets_s."""

    weight: float = 0.2
    """Of its loss, beside that of the waypoints."""
    width: int = 256
    """Of its hidden layer."""

    def __post_init__(self) -> None:
        require_positive(self, "weight", "width")


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
    world: WorldConfig | None = None
    """Learns what the waypoints lead to, too. None: the waypoints alone."""
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
        for name, on in (("freeze", self.freeze), ("use_calibration", self.use_calibration)):
            if self.world is not None and on:
                found = f"waypoints.world is set and waypoints.{name} is true"
                raise ValueError(f"{found}: it trains the encoder, by images alone; switch one of them off")
        if self.world is not None and not self.use_cameras:
            raise ValueError("waypoints.world is set and use_cameras false: nothing is seen; switch one of them")
        if self.use_calibration and self.freeze:
            fresh = "what reads the rays is part of the encoder, is fresh, and would never be trained"
            raise ValueError(f"waypoints.use_calibration is true and freeze too: {fresh}; switch one of them off")
        if self.freeze and not self.use_cameras:
            raise ValueError("waypoints.freeze is true and use_cameras false: there is no encoder; switch one of them")
        if not (self.use_cameras or self.use_ego or self.use_past or self.use_command):
            raise ValueError("waypoints.use_cameras, use_ego, use_past, use_command are all false; expected an input")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"waypoints.hidden_sizes is {self.hidden_sizes}; expected at least one number above 0")
