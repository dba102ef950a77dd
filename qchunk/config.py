"""Every setting of a Q-chunking run, as frozen dataclasses. No jax is imported here."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    FREE_AT_A_CONSTANT_RATE,
    FREE_ON_RESUME,
    ExperimentConfig,
    FilesConfig,
    renamed_from,
    require_fraction,
    require_non_negative,
    require_positive,
)

Normalization = Literal["none", "mean_std", "quantile", "min_max"]
FORMATS = ("aloha_hdf5", "ogbench_npz", "lerobot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(FilesConfig):
    """Episodes on disk and the pool that is drawn from them (specification: the pool loader)."""

    path: str = dataclasses.field(metadata=FREE_ON_RESUME)
    """Folder of ALOHA-layout HDF5 episodes, an OGBench .npz file, or a LeRobot folder; of a reader of your own, its
    files."""
    format: str = "aloha_hdf5"
    """aloha_hdf5, ogbench_npz, lerobot (v2.1 or v3.0, without images), or `module:function` of your own: it makes an
    Episode of a file (docs/extend.md)."""
    mixture: dict[str, float] = dataclasses.field(default_factory=dict)
    """Folders below `path`, each a dataset, by their weights: of all frames that are drawn a folder's expected share is
    its weight over the sum (qchunk/data/mixture.py). Empty: all episodes below `path` alike."""
    task: str | None = None
    """OGBench single-task environment whose reward replaces the file's, e.g. cube-single-play-singletask-task2-v0."""
    observation: Literal["qpos", "state"] = "qpos"
    """Array of /observations that the networks see."""
    action: Literal["action", "qpos"] = "action"
    """Array that holds the actions; the original loader took qpos of the same step."""
    cameras: tuple[str, ...] = ()
    """Cameras whose images enter a batch, in this order: names of /observations/images/<name>."""
    depth_cameras: tuple[str, ...] = ()
    """Cameras whose depth maps enter a batch: names of /observations/images_depth/<name>,
    or of /observations/depth_images/<name>."""
    image_size: tuple[int, int] | None = None
    """Height and width of images in a batch; None keeps the recorded size, which all cameras must share."""
    jpeg_channels: Literal["rgb", "bgr"] = "rgb"
    """bgr: the recorder handed RGB to OpenCV's encoder, as ALOHA's does, so that its JPEGs show red as blue."""
    base_action: bool = False
    """Appends /base_action (a mobile base's velocities) to the actions."""
    frames: Literal["auto", "decoded", "recorded"] = dataclasses.field(default="auto", metadata=FREE_ON_RESUME)
    """How the pool keeps images: decoded and resized once, while it loads; or as recorded (JPEG, raw), decoded when
    drawn. auto: decoded, if that fits memory_gib."""
    memory_gib: float = dataclasses.field(default=16.0, metadata=FREE_ON_RESUME)
    """Memory for images: of the pool in use, of what loads behind it, and of batches (GiB, per process)."""
    decode_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that decode and copy images; 0 takes one a core."""
    missing_reward: Literal["label", "refuse"] = "label"
    """File without /reward: 1 at the last frame of a positive episode, 0 elsewhere, ending terminated; or an error."""
    positive_scores: tuple[int, ...] = (4, 5)
    """Folders score_<n> whose episodes are positive."""
    negative_scores: tuple[int, ...] = (1, 2)
    """Folders score_<n> whose episodes are negative; other scores are left out, and counted."""
    on_bad: Literal["refuse", "skip"] = "refuse"
    """Bad episodes: refuse all with one report, or skip up to 1 % of them with the list printed."""
    episodes_per_epoch: int = 32
    """Whole episodes that the pool holds, per shard."""
    steps_per_epoch: int = 5000
    """Updates in which the whole pool is replaced once."""
    refresh: Literal["epoch", "rolling"] = "epoch"
    """epoch: all episodes at once; rolling: in refresh_parts, one after another, evenly over the epoch."""
    refresh_parts: int = 8
    """Parts of a rolling refresh; memory then holds one pool and a part, where epoch holds two pools."""
    positive_ratio: float = 0.6
    """Share of positive episodes in the pool."""
    holdout: float = 0.0
    """Share of the episodes of each label that no pool draws, at least one; evaluations measure policy and critic on
    them (qchunk/policies/offline_metrics.py). 0: none, as the specification has it."""
    shards: int = 1
    """Pools that are drawn independently, a fixed number whatever the number of processes."""
    action_norm: Normalization = "none"
    """Policies give out -1 .. 1 of it: min_max alone reaches every recorded action (docs/data_formats.md)."""
    observation_norm: Normalization = "none"
    norm_stats: str | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """JSON of statistics to use; None computes them in a streaming pass and keeps them beside the run."""
    read_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that build batches ahead; 0 builds them where they are used, best for state-only batches."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes_per_epoch", "steps_per_epoch", "shards", "refresh_parts", "memory_gib")
        require_fraction(self, "positive_ratio")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"data.holdout is {self.holdout}; expected 0 or above, and below 1")
        require_non_negative(self, "read_threads", "decode_threads")
        for name in ("cameras", "depth_cameras"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"data.{name} is {getattr(self, name)}; expected each camera once")
        if self.format not in FORMATS and ":" not in self.format:
            raise ValueError(
                f"data.format is {self.format!r}; expected {', '.join(FORMATS)}, or module:function of your own"
            )
        if ":" in self.format and (self.task is not None or self.missing_reward != "label"):
            raise ValueError(
                f"data.task is {self.task!r} and data.missing_reward {self.missing_reward!r}; expected None and "
                "'label', since the reader of your own that data.format names gives the rewards"
            )
        self._check_mixture()
        if self.format == "lerobot" and self.task is not None:
            raise ValueError(
                f"data.task is {self.task!r}: its rewards are computed from the simulator's state, which a LeRobot "
                "dataset does not have; expected None"
            )
        if (self.cameras or self.depth_cameras) and self.format == "lerobot":
            raise ValueError(
                "data.format is lerobot, of which training takes no images; convert the dataset for cameras: "
                f"python -m qchunk.convert {self.path} OUT, and set --data.path OUT --data.format aloha_hdf5"
            )
        if (self.cameras or self.depth_cameras) and self.format != "aloha_hdf5":
            raise ValueError(f"data.format is {self.format}, which holds no images; expected aloha_hdf5 for cameras")
        if self.base_action and self.format != "aloha_hdf5":
            raise ValueError(f"data.base_action: data.format {self.format} has none; expected aloha_hdf5")
        if self.image_size is not None and min(self.image_size) < 1:
            raise ValueError(f"data.image_size is {self.image_size}; expected height and width above 0, or None")
        most = min(self.episodes_per_epoch, self.steps_per_epoch)
        if self.refresh == "rolling" and self.refresh_parts > most:
            raise ValueError(
                f"data.refresh_parts is {self.refresh_parts}; expected at most {most}, an episode and a step each"
            )

    def _check_mixture(self) -> None:
        """Folders that are below `path`, apart from one another, and weights that are shares of something."""
        if not self.mixture:
            return
        if self.format in ("ogbench_npz", "lerobot"):
            raise ValueError(
                f"data.mixture: data.format {self.format} is one dataset; expected folders of HDF5 episodes "
                "(python -m qchunk.convert makes them), or of a reader of your own"
            )
        if len(self.mixture) < 2 or not all(0 < weight < float("inf") for weight in self.mixture.values()):
            raise ValueError(f"data.mixture is {self.mixture}; expected two folders or more with weights above 0")
        outside = [name for name in self.mixture if {"", ".", ".."} & set(name.split("/"))]
        nested = [a for a in self.mixture for b in self.mixture if a.startswith(f"{b}/")]
        if outside or nested:
            raise ValueError(
                f"data.mixture names {outside + nested}; expected folders below data.path, written as dirA or dir/A, "
                "none of them inside another"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Changes to every training image, drawn anew at each update; observation and next observation draw apart."""

    shift: int = 4
    """Random shift in pixels, up to so many each way; 4 at 84 x 84 is DrQ's (arXiv:2004.13649). 0: none."""
    brightness: float = 0.0
    """Factor drawn from 1 - x to 1 + x; so are the next two. 0: none."""
    contrast: float = 0.0
    saturation: float = 0.0
    same_for_cameras: bool = False
    """One draw for all images of a row instead of one an image."""

    def __post_init__(self) -> None:
        require_non_negative(self, "shift")
        require_fraction(self, "brightness", "contrast", "saturation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Convolutional encoder of the cameras; its features and the array that data.observation names are joined.

    Which loss trains which encoder:

    | share_actor_critic | critic loss          | flow loss          | distillation loss             |
    |--------------------|----------------------|--------------------|-------------------------------|
    | False              | the critic's encoder | the flow's encoder | the one-step policy's encoder |
    | True               | the one encoder      | none               | none                          |

    No other path exists: where the critic or the flow judges inside another network's loss, it and its encoder are
    fixed. The target critic has an encoder of its own that follows the critic's at agent.tau.
    """

    kind: Literal["impala", "resnet"] = "impala"
    """impala: the residual network of IMPALA. resnet: He et al. 2015 with group norm, 10 or 18 layers."""
    widths: tuple[int, ...] = (16, 32, 32)
    """Channels of each stage; resnet: 64, 128, 256, 512 is the published size."""
    blocks: int = 2
    """Residual blocks of a stage; resnet with four stages: 1 is ResNet-10, 2 is ResNet-18."""
    pooling: Literal["flatten", "mean", "spatial_softmax"] = "flatten"
    """How a stage's last map becomes a vector: all of it, its mean, or where each channel is active."""
    feature_size: int = 256
    """Numbers that a camera gives."""
    share_cameras: bool = False
    """One set of weights for all cameras, or one each."""
    share_actor_critic: bool = False
    """One encoder, trained by the critic's loss alone, or one each for critic, flow and one-step policy."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the convolutions; weights and features stay float32."""
    augment: AugmentConfig = AugmentConfig()

    def __post_init__(self) -> None:
        require_positive(self, "blocks", "feature_size")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"encoder.widths is {self.widths}; expected at least one stage, all above 0")
        if self.kind == "resnet" and any(width > 16 and width % 16 for width in self.widths):
            raise ValueError(f"encoder.widths is {self.widths}; group norm needs multiples of 16 above 16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianConfig:
    """The tanh-Gaussian policy of RLPD (arXiv:2302.02948), as Q-chunking's code sets it; agent.policy gaussian only."""

    bc_weight: float = 0.0
    """Weight of behaviour cloning by likelihood: 0.01 makes QC-RLPD."""
    entropy_per_action: float = -0.5
    """Target of the policy's entropy, in nats per number of the chunk."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the first update; learned from then on."""
    target_critics: int | None = None
    """Critics, drawn anew at each update, that make the target: 2 in RLPD; None takes all, as Q-chunking does."""

    def __post_init__(self) -> None:
        require_non_negative(self, "bc_weight")
        require_positive(self, "initial_temperature")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoupledConfig:
    """Decoupled Q-chunking (DQC, arXiv:2512.10926): the policy's chunk is shorter than the critic's."""

    policy_horizon: int = 5
    """Actions of the policy's chunk, h_a; the critic's is agent.horizon."""
    distillation: Literal["expectile", "quantile"] = "expectile"
    """Regression of the critic of h_a actions on that of all: towards the best way to go on."""
    kappa_d: float = 0.8
    """Its level; 0.5 is the mean (expectile) or the median (quantile)."""
    backup: Literal["expectile", "quantile"] = "quantile"
    """Regression of the state value on the critic of h_a actions: towards the best of the data's chunks."""
    kappa_b: float = 0.93
    """Its level."""

    def __post_init__(self) -> None:
        require_positive(self, "policy_horizon")
        for name in ("kappa_d", "kappa_b"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"agent.decoupled.{name} is {getattr(self, name)}; expected between 0 and 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One agent whose settings are QC, QC-FQL, FQL and n-step FQL (arXiv:2507.07969, arXiv:2502.02538), and two more.

    | agent         | policy    | horizon | action_chunking | decoupled |
    |---------------|-----------|---------|-----------------|-----------|
    | QC            | best_of_n | > 1     | yes             |           |
    | QC-FQL        | distill   | > 1     | yes             |           |
    | FQL           | distill   | 1       | either          |           |
    | n-step FQL    | distill   | n       | no              |           |
    | RLPD          | gaussian  | 1       | either          |           |
    | RLPD-AC       | gaussian  | > 1     | yes             |           |
    | QC-RLPD       | gaussian  | > 1     | yes             |           | gaussian.bc_weight 0.01
    | DQC           | best_of_n | > h_a   | yes             | set       |
    """

    factory: str | None = None
    """`module:function` of your own that makes the agent in place of those above (docs/extend.md)."""
    settings: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of that agent, by its own names."""
    policy: Literal["best_of_n", "distill", "gaussian"] = "distill"
    """best_of_n: the best of the flow's samples by the critic. distill: a one-step policy beside the flow.
    gaussian: no flow, a Gaussian squashed by tanh."""
    horizon: int = 5
    """Environment steps of one chunk and of the critic's backup."""
    action_chunking: bool = True
    """False: policy and critic see the first action alone, the backup stays `horizon` steps long."""
    discount: float = 0.99
    """Per environment step; the only discount there is."""
    tau: float = dataclasses.field(default=0.005, metadata=renamed_from("target_rate"))
    """Share of the new critic that enters the target critic at each update."""
    alpha: float = 100.0
    """Weight of the distillation loss (distill only)."""
    num_samples: int = 32
    """Chunks that the critic chooses from (best_of_n only)."""
    flow_steps: int = 10
    """Euler steps of the flow policy."""
    flow_predicts: Literal["velocity", "chunk"] = "velocity"
    """What the flow's network gives out: the velocity, as in the papers, or the chunk, from which the velocity follows
    (arXiv:2511.13720). A velocity holds the noise, which must then pass through the network: chunks of more numbers
    than a layer is wide come out blurred."""
    num_critics: int = 2
    q_aggregation: Literal["mean", "min"] = "mean"
    """How the critics' values of the next chunk become one target."""
    hidden_sizes: tuple[int, ...] = (512, 512, 512, 512)
    """Widths of the hidden layers of actor and critic."""
    critic_layer_norm: bool = True
    actor_layer_norm: bool = False
    partial_chunks: Literal["use", "drop"] = "use"
    """Chunks that run past an episode's end: used with their real steps, or dropped as in the official code."""
    encoder: EncoderConfig | None = None
    """Encoder of data.cameras; None: the networks see no images."""
    gaussian: GaussianConfig = GaussianConfig()
    decoupled: DecoupledConfig | None = None
    """A shorter chunk for the policy than for the critic; None: one length for both."""

    def __post_init__(self) -> None:
        if self.settings and self.factory is None:
            raise ValueError(f"agent.settings is {self.settings}, which agent.factory alone reads; expected none")
        if self.factory is not None and ":" not in self.factory:
            raise ValueError(f"agent.factory is {self.factory!r}; expected module:function")
        require_positive(self, "horizon", "num_samples", "flow_steps", "num_critics", "alpha")
        require_fraction(self, "tau")
        if not 0 < self.discount <= 1:
            raise ValueError(f"agent.discount is {self.discount}; expected above 0 and at most 1")
        subset = self.gaussian.target_critics
        if subset is not None and not 1 <= subset <= self.num_critics:
            raise ValueError(
                f"agent.gaussian.target_critics is {subset}; expected 1 to agent.num_critics, {self.num_critics}"
            )
        if self.decoupled is None:
            return
        if self.policy != "best_of_n" or not self.action_chunking:
            raise ValueError("agent.decoupled needs agent.policy best_of_n and agent.action_chunking")
        if self.decoupled.policy_horizon > self.horizon:
            raise ValueError(
                f"agent.decoupled.policy_horizon is {self.decoupled.policy_horizon}; "
                f"expected at most agent.horizon, {self.horizon}"
            )

    @property
    def action_horizon(self) -> int:
        """Actions of the policy's chunk."""
        if self.decoupled is not None:
            return self.decoupled.policy_horizon
        return self.horizon if self.action_chunking else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """The online phase: from update `start` on the policy acts in an environment, and trains on what it finds there.

    `train.steps` counts all updates: start + (steps - warmup) * updates_per_step.
    """

    env: str
    """Of the environment, as eval.env."""
    steps: int = dataclasses.field(metadata=FREE_AT_A_CONSTANT_RATE)
    """Environment steps in all."""
    start: int
    """Updates on the dataset alone before the first environment step."""
    warmup: int = 0
    """Environment steps before the first online update."""
    updates_per_step: int = 1
    """Updates for each environment step (the updates-to-data ratio)."""
    interval: int | None = None
    """Environment steps between two returns to training; None: the length of the policy's chunk."""
    online_ratio: float | None = None
    """Share of online rows in a batch: 0.5 is RLPD's symmetric sampling. None draws from dataset and online
    transitions together, as Q-chunking does: the share grows with them."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "updates_per_step")
        require_non_negative(self, "start", "warmup")
        if self.online_ratio is not None:
            require_fraction(self, "online_ratio")
        if self.interval is not None:
            require_positive(self, "interval")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Rollouts in the real environment; at intervals of train.eval_every and at the end."""

    env: str | None = None
    """OGBench's single task, e.g. cube-single-play-singletask-task2-v0; aloha-transfer-cube; or a `module:factory` of
    your own, which is called with an EnvSpec (chunkwise/envs/environment.py). None switches evaluation off."""
    episodes: int = 25
    """Episodes at an interval."""
    final_episodes: int = 50
    """Episodes at the end, for the policy and, beside it, for the behaviour-cloning flow alone."""
    num_envs: int = 5
    """Environments that share one call of the policy; each takes 0.9 s to make."""
    max_steps: int | None = None
    """Steps after which an episode is cut; None: where the environment ends it, as all but one of your own will."""
    render_size: tuple[int, int] = (480, 640)
    """Height and width at which data.cameras are rendered before they are resized: those of the recordings."""
    videos: int = 2
    """Rollouts in the video of the last evaluation, successes and failures, where the machine can render."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "final_episodes", "num_envs")
        if self.max_steps is not None:
            require_positive(self, "max_steps")
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
    aloha: AlohaRecordConfig = AlohaRecordConfig()
    """Read for aloha-transfer-cube alone, in place of noise and random_action."""
    seed: int = 0
    processes: int = dataclasses.field(default=2, metadata=FREE_ON_RESUME)

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "episode_length", "processes")
        require_non_negative(self, "noise")
        require_fraction(self, "random_action")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QChunkConfig(ExperimentConfig):
    """A Q-chunking run: data -> agent -> evaluation."""

    data: DataConfig
    agent: AgentConfig
    eval: EvalConfig = dataclasses.field(default=EvalConfig(), metadata=FREE_ON_RESUME)
    online: OnlineConfig | None = None
    """None: offline training alone."""
    record: RecordConfig | None = None
    """How to make the dataset if data.path does not exist; None: a missing dataset is an error."""

    def __post_init__(self) -> None:
        if self.train.batch_size % self.data.shards:
            raise ValueError(
                f"train.batch_size {self.train.batch_size} is not divisible by data.shards {self.data.shards}; "
                "every shard gives the same number of rows"
            )
        if self.agent.encoder is not None and not self.data.cameras:
            raise ValueError("agent.encoder is set, but data.cameras is empty; name the cameras that it sees")
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
                "or the length of the policy's chunk)"
            )
        expected = online.start + trained * online.updates_per_step
        if self.train.steps != expected:
            raise ValueError(
                f"train.steps is {self.train.steps}; expected {expected}: online.start {online.start}, and "
                f"online.updates_per_step {online.updates_per_step} for each of {trained} environment steps"
            )

    @property
    def online_interval(self) -> int:
        """Environment steps between two returns to training."""
        if self.online is None or self.online.interval is None:
            return self.agent.action_horizon
        return self.online.interval

    def env_steps(self, step: int) -> int:
        """Environment steps taken when `step` updates are done, those before update `step` itself not counted."""
        if self.online is None or step <= self.online.start:
            return 0
        updates = self.online_interval * self.online.updates_per_step
        rounds = -(-(step - self.online.start) // updates)
        return self.online.warmup + rounds * self.online_interval
