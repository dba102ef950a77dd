"""Every setting of the data path, from a LeRobot dataset to a training batch, as frozen dataclasses. No jax here."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_ON_RESUME,
    FilesConfig,
    before_it_was_there,
    none_stands_for,
    require_defaults,
    require_non_negative,
    require_positive,
)

Normalization = Literal["none", "mean_std", "quantile"]
ADAPTED = {"aloha": (14, 14), "droid": (8, 8), "libero": (8, 7), "ur5": (7, 7)}
"""Widths of state and action of the robots that openpi_ript/robots knows."""


NARROWEST = 14
"""Width of the specification's state, to which narrower ones are padded."""


def _uncut(beside: Mapping[str, Any]) -> int | None:
    """What robot.target_state_dim None is, of the fields beside it; None where a damaged file lacks them."""
    width = beside.get("state_dim")
    return max(NARROWEST, width) if isinstance(width, int) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobotConfig:
    """Widths of a robot's state and action, and how they enter a sample."""

    state_dim: int
    """Width of the state in the dataset; a dataset of another width is refused."""
    target_state_dim: int | None = dataclasses.field(default=None, metadata=none_stands_for(_uncut))
    """Width of the state in a sample: normalised values, then zeros (or the first values, if it is the smaller). None:
    14, or state_dim where that is more, so that nothing is cut off."""
    action_dim: int = 7
    """Width of the action in the dataset and in a sample."""
    relative_dims: tuple[int, ...] = ()
    """Action dimensions stored as targets that become `action - state` of the window's own first frame; dimension i of
    the action belongs to dimension i of the state. Empty: the dataset's actions are used as they are."""
    adapter: str = "none"
    """Between the robot's numbers and names and those of openpi's policies (openpi_ript/robots): none, aloha, droid,
    libero, ur5, or `module:factory` of your own."""

    def __post_init__(self) -> None:
        require_positive(
            self, "state_dim", "action_dim", *(() if self.target_state_dim is None else ("target_state_dim",))
        )
        if self.adapter != "none" and self.adapter not in ADAPTED and ":" not in self.adapter:
            raise ValueError(
                f"robot.adapter is {self.adapter!r}; expected none, {', '.join(ADAPTED)}, or module:factory of your own"
            )
        widths = ADAPTED.get(self.adapter, (self.state_dim, self.action_dim))
        if (self.state_dim, self.action_dim) != widths:
            raise ValueError(
                f"robot.adapter is {self.adapter}, robot.state_dim {self.state_dim} and robot.action_dim "
                f"{self.action_dim}; expected {widths[0]} and {widths[1]}"
            )
        limit = min(self.state_dim, self.action_dim)
        bad = [dim for dim in self.relative_dims if not 0 <= dim < limit]
        if bad or len(set(self.relative_dims)) < len(self.relative_dims):
            raise ValueError(
                f"robot.relative_dims is {self.relative_dims}; expected different numbers from 0 to {limit - 1}, "
                f"dimensions that state ({self.state_dim}) and action ({self.action_dim}) both have"
            )

    @property
    def sample_state_dim(self) -> int:
        """Width of the state in a sample."""
        return max(NARROWEST, self.state_dim) if self.target_state_dim is None else self.target_state_dim

    @property
    def adaptation(self) -> str:
        """What happens to the state's width, in words."""
        change = self.sample_state_dim - self.state_dim
        if change > 0:
            return f"state {self.state_dim} -> {self.sample_state_dim}: {change} zeros appended after normalisation"
        if change < 0:
            return f"state {self.state_dim} -> {self.sample_state_dim}: the last {-change} values are cut off"
        return f"state {self.state_dim} -> {self.sample_state_dim}: as it is"


PANDA = RobotConfig(state_dim=14, relative_dims=(0, 1, 2, 3, 4, 5, 6))
"""Panda of the specification: state of 14 as it is, every action dimension relative."""
UR5E = RobotConfig(state_dim=6, relative_dims=(0, 1, 2, 3, 4, 5))
"""UR5e: six joints padded to 14; the gripper command has no state and stays absolute."""


ALOHA = RobotConfig(state_dim=14, action_dim=14, relative_dims=(0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12), adapter="aloha")
"""ALOHA of openpi's pi0_aloha and pi05_aloha: joints relative, grippers absolute."""
DROID = RobotConfig(state_dim=8, action_dim=8, adapter="droid")
"""DROID of openpi's pi0_droid and pi05_droid: velocities of the joints, used as they are."""
DROID_POSITION = RobotConfig(state_dim=8, action_dim=8, relative_dims=(0, 1, 2, 3, 4, 5, 6), adapter="droid")
"""DROID of openpi's pi05_full_droid_finetune: positions of the joints, relative; the gripper's is absolute."""
LIBERO = RobotConfig(state_dim=8, action_dim=7, adapter="libero")
"""LIBERO of openpi's pi05_libero; its pi0_libero also subtracts the state from the first six dimensions."""
UR5 = RobotConfig(state_dim=7, action_dim=7, relative_dims=(0, 1, 2, 3, 4, 5), adapter="ur5")
"""UR5 of openpi's example: six joints relative, the gripper absolute."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """From rewards of rollouts to the advantage of a sample: RLOO inside groups, then these steps in this order."""

    group_by: Literal["init_hash", "task", "dataset"] = "init_hash"
    """Rollouts that are compared: of the same task from the same initial state (bytes equal, see data.init_key), of
    the same task, or all."""
    uniform_groups: Literal["keep", "drop"] = "keep"
    """Groups of one rollout or of equal rewards: kept with advantage 0, or left out: their frames are not drawn, and
    they have no part in the statistics of the steps below (RIPT)."""
    normalization: Literal["none", "zero_mean", "standard", "min_max", "robust"] = "standard"
    """zero_mean: A - mean. standard: (A - mean) / std. min_max: to 0..1. robust: (A - median) / (1.4826 median absolute
    deviation)."""
    ddof: Literal[0, 1] = 0
    """The standard deviation of n values divides by n - ddof: 0 as numpy does, 1 as torch does."""
    clipping: Literal["none", "symmetric", "sigma", "quantile"] = "symmetric"
    """symmetric: to +-clip_value. sigma: to the mean +- clip_value standard deviations of what was normalised.
    quantile: to the quantiles clip_quantile and 1 - clip_quantile."""
    clip_value: float = 3.0
    clip_quantile: float = 0.05
    negative_handling: Literal["none", "softplus", "relu", "shift", "exponential"] = "softplus"
    """softplus: log(1 + e^A). relu: max(A, 0). shift: A - min(A, 0) over all. exponential: e^(A / temperature)."""
    temperature: float = 1.0
    max_weight: float = 20.0
    """Cap of the exponential weights."""

    def __post_init__(self) -> None:
        require_positive(self, "clip_value", "temperature", "max_weight")
        if not 0 <= self.clip_quantile < 0.5:
            raise ValueError(f"advantage.clip_quantile is {self.clip_quantile}; expected 0 to below 0.5")
        read = {"none": (), "quantile": ("clip_quantile",)}.get(self.clipping, ("clip_value",))
        unused = {"clip_value", "clip_quantile"} - set(read)
        require_defaults(self, "advantage", unused, f"advantage.clipping {self.clipping!r}")
        if self.negative_handling != "exponential":
            reader = f"advantage.negative_handling {self.negative_handling!r}"
            require_defaults(self, "advantage", ("temperature", "max_weight"), reader)
        if self.ddof and self.normalization not in ("standard", "robust") and self.clipping != "sigma":
            raise ValueError(
                f"advantage.ddof is {self.ddof}, and neither advantage.normalization {self.normalization!r} nor "
                f"advantage.clipping {self.clipping!r} has a standard deviation; expected 0"
            )


SHAPING = tuple(
    field.name for field in dataclasses.fields(AdvantageConfig) if field.name not in ("group_by", "uniform_groups")
)
"""Fields of AdvantageConfig that make a weight of an advantage, whose sign they leave to the label."""


def default_cameras() -> dict[str, str]:
    """The specification's two cameras."""
    return {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(FilesConfig):
    """A LeRobot dataset (v2.1 or v3.0) or a pack made of one, and how its frames become samples."""

    path: str = dataclasses.field(metadata=FREE_AS_A_PLACE)
    """Folder of the dataset, or of the pack that `chunkwise pack` wrote."""
    robot: RobotConfig
    cameras: dict[str, str] = dataclasses.field(default_factory=default_cameras)
    """openpi's name of each image to the dataset's key; empty: no images are read."""
    state_key: str = "observation.state"
    state_parts: tuple[str, ...] = ()
    """Columns that one after another are the state, where the dataset has it in several (DROID: joint_position and
    gripper_position); state_key is then what messages call it. Empty: state_key alone."""
    action_key: str = "action"
    reward_key: str = "next.reward"
    """Reward of each frame, summed over the episode; where there is none, success counts 1. none: it is not read."""
    success_key: str = "next.success"
    """True in any frame of a successful episode; where there is none, a sum of rewards above 0. none: not read."""
    correction_key: str | None = None
    """Column that is true in the frames of a rollout in which a person acted; with guidance.labels 'value' they are
    positive. None: there are none."""
    init_key: str | None = None
    """Column whose first row is an episode's initial state, for the groups of rollouts: the simulator's state, or a
    number of the start. None takes state_key, which is right only if the robot's own state tells the starts apart."""
    horizon: int = 50
    """Actions of one window."""
    fps: float | None = None
    """Rate that the dataset must have; None takes it as it is."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width that images are resized to, with padding."""
    state_norm: Normalization = "mean_std"
    action_norm: Normalization = "none"
    """The specification leaves actions as they are; pi0's weights expect mean_std, those of pi0.5 quantile."""
    constant_dims: Literal["openpi", "floored"] = dataclasses.field(
        default="openpi", metadata=before_it_was_there("floored")
    )
    """How dimensions that never move in the data are normalised. openpi: as all others, which divides them by 1e-6, so
    that openpi's policies see the numbers that they were trained on. floored: divided by 0.001, as earlier versions
    did; their runs keep acting so, and go on with it."""
    norm_stats: str | None = dataclasses.field(default=None, metadata=FREE_AS_A_PLACE)
    """norm_stats.json, or the folder that holds it; or a folder of LeRobot's pi0 or pi0.5, whose preprocessor has them.
    None computes the statistics from the dataset's tables."""
    default_prompt: str | None = None
    """Prompt of frames whose task is an empty string; None refuses them. A policy takes it where none is sent."""
    prompt_from_task: bool = True
    """Whether a frame's prompt is its task. False: every frame's is default_prompt, as in openpi's ALOHA configs."""
    advantage: AdvantageConfig | None = None
    """None: no rollouts, every sample weighs 1 and is labelled positive (supervised fine-tuning)."""
    holdout: float = 0.0
    """Share of the episodes that are not trained on (with `advantage`, of the initial states, so that rollouts that are
    compared stay together); every evaluation measures the loss on them."""
    on_bad: Literal["refuse", "skip"] = "refuse"
    """Bad episodes: refuse all with one report, or skip up to 1 % of them with the list printed."""
    tolerance_s: float = 1e-4
    """How far the timestamp of a row, and the frame of a video that belongs to it, may lie from frame_index / fps, in
    seconds; LeRobot's default. A recording whose clock jitters, or whose fps is rounded (9.99 for 10), needs more; the
    frames of a video are told apart in any case."""
    wrong_totals: Literal["refuse", "note"] = "refuse"
    """Totals in info.json that are not what meta/ lists: a bad dataset, or a note, and what is listed counts."""
    read_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that build batches ahead; 0 builds them where they are used."""

    def __post_init__(self) -> None:
        require_positive(self, "horizon", "tolerance_s")
        require_non_negative(self, "read_threads")
        if min(self.image_size) < 1:
            raise ValueError(f"data.image_size is {self.image_size}; expected height and width of at least 1")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"data.holdout is {self.holdout}; expected 0 or above, and below 1")
        if self.fps is not None and self.fps <= 0:
            raise ValueError(f"data.fps is {self.fps}; expected a number above 0, or None")
        if not self.prompt_from_task and not (self.default_prompt or "").strip():
            raise ValueError(
                f"data.prompt_from_task is False and data.default_prompt {self.default_prompt!r}; expected a prompt in "
                "words, which every frame then has"
            )
