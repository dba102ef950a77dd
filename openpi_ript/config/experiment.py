"""A pi0 run as a whole: its parts, and what they need of one another. No jax is imported here."""

import dataclasses
from typing import Literal

from chunkwise.config.augmentation import AugmentationConfig
from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_ON_RESUME,
    ExperimentConfig,
    FleetConfig,
    refuse_anew,
    require_defaults,
    require_fraction,
    require_non_negative,
    require_positive,
)
from openpi_ript.config.data import SHAPING, AdvantageConfig, DataConfig
from openpi_ript.config.model import ModelConfig
from openpi_ript.config.rollouts import DemonstrateConfig, EnvConfig, EvalConfig, RecordConfig, RolloutConfig
from openpi_ript.config.value import ValueConfig

__all__ = ["GuidanceConfig", "OpenpiRiptConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """Classifier-free guidance on optimality: what its training minimises, and how strongly it steers (guidance.py)."""

    labels: Literal["rloo", "value"] = "rloo"
    """rloo: a rollout's advantage over the others of its group labels all of its chunks. value: each chunk is labelled
    by a value function that learns beside the policy (`value`); demonstrations and corrections are positive."""
    value: ValueConfig = dataclasses.field(default_factory=ValueConfig)
    """That value function."""
    loss: Literal["two_branch", "label_dropout"] = "two_branch"
    """two_branch: each sample under the positive condition and under none. label_dropout: under its own label."""
    positive_weight: Literal["indicator", "advantage"] = "indicator"
    """Weight of the positive branch: 1[A > 0], or the processed advantage (two_branch only)."""
    unconditional_weight: float = 0.1
    """Weight of the branch without condition (two_branch only)."""
    dropout: float = 0.1
    """Probability that a label is replaced by none (label_dropout only)."""
    scale: float = 3.0
    """w of v = v_none + w (v_positive - v_none) when acting; 1 is the conditional policy, 0 the unconditional."""
    sample_steps: int = 10
    """Euler steps from noise to a chunk."""

    def __post_init__(self) -> None:
        require_non_negative(self, "unconditional_weight", "scale")
        require_fraction(self, "dropout")
        require_positive(self, "sample_steps")
        unused = {"label_dropout": ("positive_weight", "unconditional_weight"), "two_branch": ("dropout",)}[self.loss]
        require_defaults(self, "guidance", unused, f"guidance.loss {self.loss!r}")
        if self.labels == "rloo" and self.value != ValueConfig():
            raise ValueError(
                f"guidance.value is {self.value} and guidance.labels 'rloo', which has none; expected labels 'value'"
            )
        if self.labels == "value" and self.positive_weight == "advantage":
            raise ValueError(
                "guidance.positive_weight is 'advantage', that of a whole rollout, and guidance.labels 'value'; "
                "expected 'indicator'"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenpiRiptConfig(ExperimentConfig):
    """A pi0 run: a LeRobot dataset, a pi0 or pi0.5 model, supervised or guided training."""

    model: ModelConfig
    data: DataConfig
    guidance: GuidanceConfig | None = None
    """None: supervised fine-tuning, every action is imitated. Else guided training (CFG-RIPT) on the advantages."""
    augment: AugmentationConfig | None = None
    """Random changes of the training images, on the device; None: they are seen as they were recorded."""
    tokenizer: str = dataclasses.field(metadata=FREE_AS_A_PLACE)
    """PaliGemma's tokenizer.model."""
    weights: str | None = None
    """Where training starts: an openpi checkpoint folder (or the one above its `params`), a .safetensors file of this
    project, or one of openpi's or LeRobot's PyTorch model (or its folder); None starts from random weights."""
    record: RecordConfig | None = None
    """How to make the dataset if data.path does not exist; None: a missing dataset is an error."""
    demonstrate: DemonstrateConfig | None = None
    """The same with a scripted policy in `env`."""
    env: EnvConfig | None = None
    """Where the policy acts; None: it is trained on recorded data alone."""
    rollout: RolloutConfig | None = None
    """Rounds of rollouts in `env` after the updates on the dataset (RIPT); None: there are none."""
    fleet: FleetConfig = dataclasses.field(default=FleetConfig(), metadata=FREE_ON_RESUME)
    """Where the environments run."""
    eval: EvalConfig | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Evaluation in `env`; None where there is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_equal("data.horizon", self.data.horizon, "model.action_horizon", self.model.action_horizon)
        size = (self.model.image_size, self.model.image_size)
        if self.augment is not None and not self.data.cameras:
            raise ValueError("augment is set and data.cameras is empty; expected None where there are no images")
        if self.data.cameras:
            self._require_equal("data.image_size", self.data.image_size, "model.image_size, twice,", size)
        robot = self.data.robot
        for name, width in (("target_state_dim", robot.sample_state_dim), ("action_dim", robot.action_dim)):
            if width > self.model.action_dim:
                raise ValueError(
                    f"data.robot.{name} is {width} and model.action_dim {self.model.action_dim}; state and action are "
                    "padded to it, so expected at most that"
                )
        if (self.guidance is not None) != self.model.optimality:
            raise ValueError(
                f"guidance is {self.guidance} and model.optimality {self.model.optimality}; guided training needs a "
                "model with the condition, supervised training one without"
            )
        if self.guidance is not None and self.data.advantage is None and self.rollout is None:
            raise ValueError(
                "guidance is set, rollout None and data.advantage None; guidance needs advantages of rollouts. Set one "
                "of the two, or imitate: --guidance None --model.no-optimality"
            )
        self._check_labels()
        self._check_acting()

    @property
    def unread(self) -> dict[str, str]:
        found = {} if self.env is None or self.env.tasks else {"rollout.tasks": "several env.tasks"}
        if not self.weighs:
            found |= {f"data.advantage.{name}": "guidance.positive_weight advantage" for name in SHAPING}
        by, guidance = self.data.advantage, self.guidance
        if by is not None and by.uniform_groups == "keep" and guidance is not None and guidance.labels == "value":
            groups = "guidance.labels rloo, or data.advantage.uniform_groups drop"
            found |= dict.fromkeys(("data.advantage.group_by", "data.init_key"), groups)
        if by is None or (by.group_by != "init_hash" and not self.data.holdout):
            found["data.init_key"] = "data.advantage with group_by init_hash"
        if self.augment is not None and not self.augment.colour_probability:
            names = (f"augment.{name}" for name in ("brightness", "contrast", "hue", "saturation"))
            found |= dict.fromkeys(names, "augment.colour_probability above 0")
        if self.evaluates_nothing and self.data.advantage is None:
            found["train.eval_every"] = "env or data.holdout"
        return found

    @property
    def evaluates_nothing(self) -> bool:
        """Whether there is neither an environment nor an episode held out to evaluate in."""
        return self.env is None and not self.data.holdout

    @property
    def weighs(self) -> bool:
        """Whether the size of an advantage counts in training, not its sign alone."""
        return self.guidance is not None and self.guidance.positive_weight == "advantage"

    def _check_labels(self) -> None:
        """What labels by a value function need of the rest."""
        rollout, recorded = self.rollout, self.data.advantage is not None
        guidance = self.guidance if self.guidance is not None and self.guidance.labels == "value" else None
        if self.data.correction_key is not None and (guidance is None or not recorded):
            raise ValueError(
                f"data.correction_key is {self.data.correction_key!r}; corrections are told apart where recorded "
                "rollouts are labelled by a value: expected guidance.labels 'value' and data.advantage, or None"
            )
        if guidance is None:
            return
        if rollout is not None and (rollout.objective != "guided" or rollout.advantage != AdvantageConfig()):
            raise ValueError(
                f"guidance.labels is 'value', rollout.objective {rollout.objective!r} and rollout.advantage "
                f"{rollout.advantage}; expected 'guided' and the default, since the value alone labels chunks"
            )
        if rollout is not None and rollout.dataset_share == 1:
            found = "guidance.labels is 'value' and rollout.dataset_share 1, with which no rollouts are played"
            raise ValueError(f"{found}; expected less than 1, or guidance.labels 'rloo'")
        if recorded and self.data.holdout:
            raise ValueError(
                f"guidance.labels is 'value' and data.holdout {self.data.holdout}; rollouts that are held out have no "
                "such labels: expected 0"
            )
        if self.train.batch_size > guidance.value.window:
            raise ValueError(
                f"guidance.value.window is {guidance.value.window} and train.batch_size {self.train.batch_size}; "
                "expected at least that many advantages"
            )
        if guidance.value.warmup >= self.train.steps:
            raise ValueError(
                f"guidance.value.warmup is {guidance.value.warmup} and train.steps {self.train.steps}; expected labels "
                "before the end"
            )

    def _check_acting(self) -> None:
        """What the parts that act need of one another."""
        env, rollout = self.env, self.rollout
        if (env is None) != (self.eval is None) or (env is None and (rollout is not None or self.demonstrate)):
            raise ValueError(
                f"env is {env}, eval {self.eval}, rollout {rollout}, demonstrate {self.demonstrate}; expected env and "
                "eval together, and an env for rollouts and demonstrations"
            )
        if env is None:
            return
        hand = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
        if self.data.robot.adapter == "libero":
            self._require_equal("env.state", env.state, "what data.robot.adapter libero reads", hand)
            self._require_equal("env.state_function", env.state_function, "what it reads", "concatenate")
        if (shown := sorted(env.cameras)) != (wanted := sorted(self.data.cameras)):
            raise ValueError(f"env.cameras shows {shown} and data.cameras {wanted}; expected the same names in both")
        if env.execute > self.model.action_horizon:
            raise ValueError(
                f"env.execute is {env.execute} and model.action_horizon {self.model.action_horizon}; no more actions "
                "than a chunk has can be executed"
            )
        if rollout is not None and rollout.objective == "guided" and self.guidance is None:
            raise ValueError("rollout.objective is 'guided' and guidance is None; set guidance, or take 'rejection'")
        if rollout is not None and rollout.objective == "ppo":
            self._check_ppo()
        size = self.train.batch_size
        if rollout is not None and 0 < rollout.dataset_share < 1 and not 0 < round(rollout.dataset_share * size) < size:
            refuse_anew(
                f"rollout.dataset_share is {rollout.dataset_share} and train.batch_size {size}, of which rounded "
                f"{round(rollout.dataset_share * size)} rows are the dataset's; expected a row of each, 0, or 1"
            )
        if rollout is not None:
            self._check_trying(env, rollout)
        if rollout is not None and self.data.advantage is not None:
            raise ValueError(
                "rollout is set and data.advantage too; before the first round the dataset is imitated as it is, so "
                "expected data.advantage None"
            )
        if rollout is not None and rollout.start >= self.train.steps:
            found = f"rollout.start is {rollout.start} and train.steps {self.train.steps}"
            raise ValueError(f"{found}; expected updates after it")

    def _check_trying(self, env: EnvConfig, rollout: RolloutConfig) -> None:
        """What exploration and hindsight need of the rest."""
        if rollout.exploration is not None and len(rollout.exploration.deviation) != self.data.robot.action_dim:
            raise ValueError(
                f"rollout.exploration.deviation has {len(rollout.exploration.deviation)} numbers and "
                f"data.robot.action_dim is {self.data.robot.action_dim}; expected one for each number of an action"
            )
        longest = max(env.max_steps, *env.steps.values()) if env.steps else env.max_steps
        if rollout.exploration is not None and -(-(rollout.exploration.steps or 0) // 2) >= longest:
            raise ValueError(
                f"rollout.exploration.steps is {rollout.exploration.steps} and an episode has {longest} at most, so "
                f"that no offset would end; expected at most {2 * longest - 2}, or None, which says so"
            )
        if rollout.rows == "need" and not env.tasks:
            raise ValueError(
                "rollout.rows is 'need' and env.tasks empty: of a single task there is no choice; expected 'frames' or "
                "'tasks', or several env.tasks"
            )
        if rollout.hindsight is not None and rollout.hindsight.goal not in env.state:
            raise ValueError(
                f"rollout.hindsight.goal is {rollout.hindsight.goal!r} and env.state {env.state}; expected it among "
                "them: a policy that does not see the goal cannot learn from another one"
            )

    def _check_ppo(self) -> None:
        """What the objective ppo asks of the rest: that an update finds the policy as the rollouts had it."""
        for name, value, reason in (
            ("guidance", self.guidance, "the likelihood is that of a flow without guidance"),
            ("augment", self.augment, "the likelihood is that of a chunk for the images that were seen"),
        ):
            if value is not None:
                raise ValueError(f"{name} is {value} and rollout.objective 'ppo': {reason}; expected None")
        if self.optim.method == "schedule_free":
            raise ValueError(
                "optim.method is schedule_free and rollout.objective 'ppo', which scales the steps of the weights that "
                "act by rollout.ppo.learning_rate_scale: the average would be another's; expected adamw or muon"
            )

    def _require_equal(self, name: str, value: object, other: str, expected: object) -> None:
        if value != expected:
            raise ValueError(f"{name} is {value} and {other} is {expected}; expected the same")
