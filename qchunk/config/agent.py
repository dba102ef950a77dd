"""The agents and their networks."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    refuse_anew,
    renamed_from,
    require_fraction,
    require_non_negative,
    require_positive,
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

    | share_actor_critic | critic loss          | flow loss          | distillation or adjoint loss                  |
    |--------------------|----------------------|--------------------|-----------------------------------------------|
    | False              | the critic's encoder | the flow's encoder | the one-step policy's, or the tuned flow's    |
    | True               | the one encoder      | none               | none                                          |

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
class AdjointConfig:
    """Q-learning with adjoint matching (QAM, arXiv:2601.14234); agent.policy adjoint_matching only."""

    inverse_temperature: float = 0.3
    """tau: how much the critic bends the policy away from the data. The authors take 1 for cube-double and scene, 3
    for puzzle-3x3 and cube-triple."""
    rho: float = 0.5
    """Standard deviations of the critics that are taken off their mean in the target and in values."""

    def __post_init__(self) -> None:
        require_positive(self, "inverse_temperature")
        require_non_negative(self, "rho")


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
    """One agent whose settings are QC, QC-FQL, FQL and n-step FQL (arXiv:2507.07969, arXiv:2502.02538), and three more.

    | agent         | policy           | horizon | action_chunking | decoupled |
    |---------------|------------------|---------|-----------------|-----------|
    | QC            | best_of_n        | > 1     | yes             |           |
    | QC-FQL        | distill          | > 1     | yes             |           |
    | FQL           | distill          | 1       | either          |           |
    | n-step FQL    | distill          | n       | no              |           |
    | RLPD          | gaussian         | 1       | either          |           |
    | RLPD-AC       | gaussian         | > 1     | yes             |           |
    | QC-RLPD       | gaussian         | > 1     | yes             |           | gaussian.bc_weight 0.01
    | DQC           | best_of_n        | > h_a   | yes             | set       |
    | QAM           | adjoint_matching | > 1     | yes             |           | num_critics 10
    """

    factory: str | None = None
    """`module:function` of your own that makes the agent in place of those above (docs/extend.md)."""
    settings: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Of that agent, by its own names."""
    policy: Literal["best_of_n", "distill", "gaussian", "adjoint_matching"] = "distill"
    """best_of_n: the best of the flow's samples by the critic. distill: a one-step policy beside the flow.
    gaussian: no flow, a Gaussian squashed by tanh. adjoint_matching: a second flow, fine-tuned by the critic."""
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
    """Chunks that run past an episode's end: used with their real steps, or dropped as in the official code. With
    `decoupled` those of the policy's length are; the critic of all actions learns from every chunk."""
    encoder: EncoderConfig | None = None
    """Encoder of data.cameras; None: the networks see no images."""
    gaussian: GaussianConfig = GaussianConfig()
    adjoint: AdjointConfig = AdjointConfig()
    decoupled: DecoupledConfig | None = None
    """A shorter chunk for the policy than for the critic; None: one length for both."""

    def __post_init__(self) -> None:
        if self.settings and self.factory is None:
            raise ValueError(f"agent.settings is {self.settings}, which agent.factory alone reads; expected none")
        if self.factory is not None and ":" not in self.factory:
            raise ValueError(f"agent.factory is {self.factory!r}; expected module:function")
        require_positive(self, "horizon", "num_samples", "flow_steps", "num_critics", "alpha")
        if any(size < 1 for size in self.hidden_sizes):
            raise ValueError(f"agent.hidden_sizes is {self.hidden_sizes}; expected numbers above 0")
        require_fraction(self, "tau")
        if not 0 < self.discount <= 1:
            raise ValueError(f"agent.discount is {self.discount}; expected above 0 and at most 1")
        subset = self.gaussian.target_critics
        if subset is not None and not 1 <= subset <= self.num_critics:
            raise ValueError(
                f"agent.gaussian.target_critics is {subset}; expected 1 to agent.num_critics, {self.num_critics}"
            )
        if self.policy == "adjoint_matching" and self.q_aggregation != "mean":
            raise ValueError(
                f"agent.q_aggregation is {self.q_aggregation!r}, which agent.policy adjoint_matching does not read; "
                "expected 'mean', less agent.adjoint.rho standard deviations"
            )
        if self.policy != "gaussian" and self.gaussian != GaussianConfig():
            refuse_anew(
                f"agent.gaussian is {self.gaussian}, which agent.policy {self.policy} does not read; "
                "expected the defaults, or agent.policy gaussian"
            )
        if self.policy != "adjoint_matching" and self.adjoint != AdjointConfig():
            raise ValueError(
                f"agent.adjoint is {self.adjoint}, which agent.policy {self.policy} does not read; "
                "expected the defaults"
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

    @property
    def critic_steps(self) -> int:
        """Real steps that a recorded chunk needs for the critic of the policy's chunks to learn from it."""
        if self.partial_chunks == "use":
            return 1
        return self.horizon if self.decoupled is None else self.decoupled.policy_horizon
