"""A run as a whole: data, agent, the online phase, evaluation, recording."""

import dataclasses
import math

from chunkwise.config.experiment import (
    FREE_AT_A_CONSTANT_RATE,
    FREE_ON_RESUME,
    ExperimentConfig,
    FleetConfig,
    before_it_was_there,
    require_fraction,
    require_non_negative,
    require_positive,
)
from qchunk.config.agent import AgentConfig
from qchunk.config.data import DataConfig
from qchunk.envs import aloha


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """The online phase: from update `start` on the policy acts in environments, and trains on what it finds there.

    `train.steps` counts all updates: start + (steps - warmup) * updates_per_step. Environment steps are counted over
    all environments, of which each takes as many.
    """

    env: str
    """Of the environment, as eval.env."""
    num_envs: int = 1
    """Environments, each with episodes and a log of its own. The processes of a run divide them among themselves; what
    is found there depends on how many environments there are, and not on how many processes."""
    max_steps: int | None = None
    """As eval.max_steps: where an episode is cut, as by a time limit, it is bootstrapped from."""
    steps: int = dataclasses.field(metadata=FREE_AT_A_CONSTANT_RATE)
    """Environment steps in all."""
    start: int
    """Updates on the dataset alone before the first environment step."""
    warmup: int = 0
    """Environment steps before the first online update."""
    updates_per_step: int = 1
    """Updates for each environment step (the updates-to-data ratio)."""
    interval: int | None = None
    """Environment steps between two returns to training; None: the length of the policy's chunk in each environment."""
    online_ratio: float | None = None
    """Share of online rows in a batch: 0.5 is RLPD's symmetric sampling. None draws from dataset and online
    transitions together, as Q-chunking does: the share grows with them."""

    def fixed_rows(self, rows: int) -> int | None:
        """Returns how many rows of a batch are online ones by online_ratio; None without it."""
        return None if self.online_ratio is None else round(self.online_ratio * rows)

    def __post_init__(self) -> None:
        require_positive(self, "steps", "updates_per_step", "num_envs")
        require_non_negative(self, "start", "warmup")
        if self.online_ratio is not None:
            require_fraction(self, "online_ratio")
        for name in ("interval", "max_steps"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        given = {name: getattr(self, name) or 0 for name in ("steps", "warmup", "interval")}
        if wrong := {name: steps for name, steps in given.items() if steps % self.num_envs}:
            found = ", ".join(f"online.{name} is {steps}" for name, steps in wrong.items())
            enough = {name: math.ceil(steps / self.num_envs) * self.num_envs for name, steps in wrong.items()}
            flags = " ".join(f"--online.{name} {steps}" for name, steps in enough.items())
            raise ValueError(
                f"{found}; expected a multiple of online.num_envs {self.num_envs}, of which each takes as many steps: "
                f"{flags}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Rollouts in the real environment; at intervals of train.eval_every and at the end."""

    env: str | None = None
    """OGBench's single task, e.g. cube-single-play-singletask-task2-v0; robomimic/lift; aloha-transfer-cube; or a
    `module:factory` of your own, which is called with an EnvSpec (chunkwise/envs/environment.py). None switches
    evaluation off."""
    episodes: int = 25
    """Episodes at an interval."""
    final_episodes: int = 50
    """Episodes at the end, for the policy and, beside it, for the behaviour-cloning flow alone."""
    num_envs: int = 5
    """Environments that are played at once; each takes 0.9 s to make."""
    rows: int = dataclasses.field(default=5, metadata=before_it_was_there(lambda settings: settings["num_envs"]))
    """Rows of every batch that the policy infers for, whoever is ready. It is a part of what the policy does: in a
    batch of another size numbers may round differently."""
    max_steps: int | None = None
    """Steps after which an episode is cut; None: where the environment ends it. Those of OGBench, robomimic and
    aloha-transfer-cube have a time limit; aloha/AlohaInsertion, and one of your own, may end with a success alone."""
    render_size: tuple[int, int] = (480, 640)
    """Height and width at which data.cameras are rendered before they are resized: those of the recordings."""
    videos: int = 2
    """Rollouts in the video of the last evaluation, successes and failures, where the machine can render."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "final_episodes", "num_envs", "rows")
        if self.max_steps is not None:
            require_positive(self, "max_steps")
        if min(self.render_size) < 1:
            raise ValueError(f"eval.render_size is {self.render_size}; expected height and width above 0")
        require_non_negative(self, "videos")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlohaRecordConfig:
    """Scripted transfers of the cube in ALOHA's simulation."""

    noise_levels: tuple[float, ...] = (0.0, 0.01, 0.02)
    """Standard deviations (m) by which waypoints miss their place; each episode draws one, all equally likely."""
    cameras: tuple[str, ...] = ()
    """Cameras that are recorded: top, angle, front_close, left_pillar, right_pillar. None: 0.3 ms a step, not 35."""
    image_size: tuple[int, int] = (480, 640)
    """Height and width of the images."""
    jpeg_quality: int = 90
    success_score: int = 5
    """Successes are written to the folder score_<n> of this n."""
    failure_score: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "jpeg_quality")
        if not self.noise_levels or min(self.noise_levels) < 0:
            raise ValueError(f"record.aloha.noise_levels is {self.noise_levels}; expected at least one, none below 0")
        if min(self.image_size) < 1 or self.jpeg_quality > 100:
            raise ValueError(
                f"record.aloha: image_size is {self.image_size}, jpeg_quality {self.jpeg_quality}; "
                "expected sizes above 0 and a quality of 1 to 100"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectedPlayConfig:
    """Play a part of which works at one task, so that data of a few hundred episodes show it solved."""

    task: str = ""
    """OGBench's single task in record.env, e.g. cube-double-play-singletask-task2-v0; "": all targets are random."""
    share: float | None = None
    """Probability that the next target is one that the task still needs, rather than a random one."""

    def __post_init__(self) -> None:
        if (self.task == "") != (self.share is None):
            raise ValueError(f"task is {self.task!r} and share {self.share}; give both, or neither")
        if self.share is not None:
            require_fraction(self, "share")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Episodes recorded where the dataset is missing: OGBench's scripted oracles at play, or ALOHA's transfer cube."""

    env: str
    """OGBench environment without a task, e.g. cube-single-v0, or aloha-transfer-cube."""
    episodes: int
    episode_length: int = 1001
    """Environment steps, and so frames, of one episode; aloha-transfer-cube ends earlier at success."""
    noise: float = 0.1
    """Standard deviation of the noise on the oracle's plan, in units of a full action (OGBench's --noise)."""
    random_action: float = 0.0
    """Probability of a random action at each step (OGBench's --p_random_action)."""
    directed: DirectedPlayConfig = DirectedPlayConfig()
    aloha: AlohaRecordConfig = AlohaRecordConfig()
    """Read for aloha-transfer-cube alone, in place of noise, random_action and directed."""
    seed: int = 0
    processes: int = dataclasses.field(default=2, metadata=FREE_ON_RESUME)

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "episode_length", "processes")
        require_non_negative(self, "noise", "seed")
        require_fraction(self, "random_action")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QChunkConfig(ExperimentConfig):
    """A Q-chunking run: data -> agent -> evaluation."""

    data: DataConfig
    agent: AgentConfig
    eval: EvalConfig = dataclasses.field(default=EvalConfig(), metadata=FREE_ON_RESUME)
    fleet: FleetConfig = dataclasses.field(default=FleetConfig(), metadata=FREE_ON_RESUME)
    """Where the environments of evaluations run; without an address in threads of this process."""
    online: OnlineConfig | None = None
    """None: offline training alone."""
    record: RecordConfig | None = None
    """How to make the dataset if data.path does not exist; None: a missing dataset is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train.batch_size % self.data.shards:
            raise ValueError(
                f"train.batch_size {self.train.batch_size} is not divisible by data.shards {self.data.shards}; "
                "every shard gives the same number of rows"
            )
        if self.agent.encoder is not None and not self.data.cameras:
            raise ValueError("agent.encoder is set, but data.cameras is empty; name the cameras that it sees")
        if self.data.success_timing == "post" and self.eval.env is None and self.online is None:
            raise ValueError(
                "data.success_timing is 'post', which environments alone read, and there is none; set eval.env or "
                "online, or 'pre'"
            )
        if self.online is not None:
            self._check_online(self.online)

    def _check_online(self, online: OnlineConfig) -> None:
        """train.steps is what the phases add up to."""
        if self.data.depth_cameras:
            raise ValueError("online is set, and data.depth_cameras is not empty; no environment here shows depth")
        trained = online.steps - online.warmup
        if trained <= 0 or trained % self.online_interval:
            raise ValueError(
                f"online.steps {online.steps} less online.warmup {online.warmup} is {trained}; expected a multiple of "
                f"{self.online_interval}, the environment steps between two returns to training (online.interval, "
                "or the length of the policy's chunk times online.num_envs)"
            )
        expected = online.start + trained * online.updates_per_step
        if self.train.steps != expected:
            raise ValueError(
                f"train.steps is {self.train.steps}; expected {expected}: online.start {online.start}, and "
                f"online.updates_per_step {online.updates_per_step} for each of {trained} environment steps"
            )

    @property
    def unread(self) -> dict[str, str]:
        agent, found = self.agent, {}
        if agent.policy != "distill":
            found["agent.alpha"] = "agent.policy distill"
        if agent.policy != "best_of_n":
            found["agent.num_samples"] = "agent.policy best_of_n"
        if agent.num_critics == 1:
            found["agent.q_aggregation"] = "agent.num_critics above 1"
            if agent.policy == "adjoint_matching":
                found["agent.adjoint.rho"] = "agent.num_critics above 1"
        if agent.horizon == 1 and agent.decoupled is None:
            found["agent.partial_chunks"] = "agent.horizon above 1"
        if agent.policy == "gaussian":
            found |= dict.fromkeys(("agent.flow_steps", "agent.flow_predicts"), "an agent.policy with a flow")
        if agent.factory is not None:  # one of the user's own may read any of these
            found = {}
        if self.record is not None and self.record.env == aloha.NAME:
            names = ("noise", "random_action")  # `directed` is refused where episodes are recorded
            found |= dict.fromkeys((f"record.{name}" for name in names), "a record.env of OGBench")
        elif self.record is not None:
            names = (field.name for field in dataclasses.fields(AlohaRecordConfig))
            found |= dict.fromkeys((f"record.aloha.{name}" for name in names), f"record.env {aloha.NAME}")
        if self.data.refresh != "rolling":
            found["data.refresh_parts"] = "data.refresh rolling"
        if not self.data.cameras and not self.data.depth_cameras:
            names = ("image_size", "jpeg_channels", "frames", "decode_threads")
            found |= dict.fromkeys((f"data.{name}" for name in names), "data.cameras")
        if self.eval.env is None:
            # Not those that `chunkwise evaluate RUN --env ID` takes from the run: final_episodes, num_envs, rows, ...
            found |= dict.fromkeys(("fleet.address", "fleet.silence", "eval.episodes", "eval.videos"), "eval.env")
        if self.evaluates_nothing and self.train.eval_every:
            found["train.eval_every"] = "eval.env or data.holdout"
        return found

    @property
    def evaluates_nothing(self) -> bool:
        """Whether there is neither an environment nor an episode held out to evaluate in."""
        return self.eval.env is None and not self.data.holdout

    @property
    def online_interval(self) -> int:
        """Environment steps between two returns to training."""
        if self.online is None:
            return self.agent.action_horizon
        return self.online.interval or self.agent.action_horizon * self.online.num_envs

    def env_steps(self, step: int) -> int:
        """Environment steps taken when `step` updates are done, those before update `step` itself not counted."""
        if self.online is None or step <= self.online.start:
            return 0
        updates = self.online_interval * self.online.updates_per_step
        rounds = -(-(step - self.online.start) // updates)
        return self.online.warmup + rounds * self.online_interval
