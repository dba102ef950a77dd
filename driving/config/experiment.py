"""Settings of a whole driving run, of its drives in closed loop, and of its evaluation."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    FREE_ON_RESUME,
    ExperimentConfig,
    refuse_anew,
    renamed_from,
    require_non_negative,
    require_positive,
)
from chunkwise.config.saved import flatten
from driving.config.data import CAMERAS, MOTION_HZ, DataConfig, RecordConfig
from driving.config.model import ModelConfig, ObjectiveConfig, WaypointConfig

_OF_IMAGES = ("crop", "brightness", "contrast", "saturation", "camera_dropout")
"""Of data.augment, what changes images and no label."""
TOWN_PAST_S = 1.0
"""The town shows its cameras also as they were some tenths of a second before, at most so many seconds."""


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
class DrivingConfig(ExperimentConfig):
    """A driving run: episodes -> objectives on multi-camera features (pretraining), or waypoints on top of them."""

    data: DataConfig
    model: ModelConfig = dataclasses.field(default=ModelConfig())
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
        o = self.objective
        contrasted = o is not None and o.cross_camera + o.temporal + o.distilled > 0
        compares = "objective.cross_camera, temporal and distilled compare a row with the others of"
        if contrasted and self.train.grad_accum_steps > 1:
            raise ValueError(
                f"train.grad_accum_steps is {self.train.grad_accum_steps}, and {compares} the whole batch: a part has "
                "fewer. Set it to 1, lower train.batch_size, or spread the batch over more devices"
            )
        if contrasted and self.train.batch_size == 1:
            refuse_anew(f"train.batch_size is 1, and {compares} it; expected 2 or more")
        if self.objective is not None and self.objective.cross_camera and len(self.data.cameras) < 2:
            found = f"objective.cross_camera compares the cameras of a moment, and data.cameras is {self.data.cameras}"
            refuse_anew(f"{found}; expected two or more, or --objective.cross-camera 0")
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
        if self.waypoints is not None and self.waypoints.world is not None and self.data.offsets_s[-1] <= 0:
            raise ValueError(
                f"waypoints.world predicts what is seen later, and {offsets}; expected a last one after the anchor, "
                "for example (0.0, 0.4)"
            )
        paired = self.objective is not None and self.objective.temporal + self.objective.ego_motion > 0
        if paired and len(self.data.offsets_s) < 2:
            wanted = "expected for example (0.0, 0.4), at multiples of the time between images"
            raise ValueError(f"objective.temporal and objective.ego_motion compare two moments; {offsets}, {wanted}")

    @property
    def unread(self) -> dict[str, str]:
        found = dict[str, str]()
        if self.model.vit is not None:
            found |= dict.fromkeys(("model.conv.channels", "model.conv.blocks"), "model.vit None")
        if len(self.data.cameras) == 1 and self.data.min_cameras:  # without, a moment beside the anchor may lose it
            found["data.augment.camera_dropout"] = "two or more data.cameras"
        if self.waypoints is None:
            found |= dict.fromkeys(("eval.blind_updates", "eval.plotted_moments"), "waypoints")
            if self.data.braking_repeats == 1:
                names = ("waypoint_steps", "waypoint_dt_s", "waypoint_source")
                found |= dict.fromkeys((f"data.{name}" for name in names), "waypoints, or data.braking_repeats above 1")
            return found
        if not self.waypoints.use_cameras:
            found |= {f"model.{name}": "waypoints.use_cameras" for name in flatten(self.model)}
            on = [name for name in _OF_IMAGES if getattr(self.data.augment, name)]
            found |= {f"data.augment.{name}": "waypoints.use_cameras" for name in on}
        if not self.waypoints.use_moments and self.waypoints.world is None and self.data.incomplete != "drop":
            found["data.offsets_s"] = "waypoints.use_moments, waypoints.world or data.incomplete drop"
        if not self.waypoints.use_ego and not self.waypoints.use_past:
            found["waypoints.use_known"] = "waypoints.use_ego or use_past"
        return found

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
