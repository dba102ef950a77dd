"""What agents share: weights, one update by the sum of the losses, the critic's target and loss, sight.

Symbols: s observation, a chunk of t actions, h backup horizon, z noise, Q critic, tau target rate. Inside, a chunk is
flat: d = t a numbers.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, Real

from chunkwise.arrays import PyTree
from chunkwise.errors import ConfigError
from chunkwise.state import TrainState
from chunkwise.train import gradients, rngs
from chunkwise.train.gradients import weighted
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.sharding import all_gather_params
from qchunk.config import QChunkConfig
from qchunk.data import Dims
from qchunk.models.networks import Critic, ReluCritic, apply
from qchunk.models.vision import ImageEncoder, augment

Batch = Mapping[str, Any]  # arrays of a qchunk.data.Batch
Metrics = dict[str, Mean]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent(abc.ABC):
    """An algorithm as pure functions of arrays; the caller jits them. A subclass adds its networks and losses."""

    config: QChunkConfig
    dims: Dims
    critic: Critic | ReluCritic
    encoder: ImageEncoder | None
    """Turns images into features, with weights that lie beside those of their network; None: no images."""
    optimiser: optax.GradientTransformation

    acts_by_depth: ClassVar[bool] = False
    """Whether the policy sees the depth maps of data.depth_cameras, and not the losses alone: whoever asks it sends
    them, and no environment here can."""
    targets: ClassVar[tuple[str, ...]] = ("critic",)
    """Networks of which the state's target holds a moving average."""

    @property
    def action_horizon(self) -> int:
        """Actions of one chunk that `act` returns."""
        return self.config.agent.action_horizon

    @property
    def chunk_size(self) -> int:
        """Numbers of a flat chunk, d."""
        return self.action_horizon * self.dims.action

    def init(self, key: Key[Array, ""]) -> TrainState:
        """Initialises weights and optimiser state at step 0; the target critic is a copy of the critic."""
        params = self._init_networks(key)
        if self.encoder is not None:
            images = jnp.zeros((1, len(self.dims.cameras), *(self.dims.image_size or ()), 3), jnp.uint8)
            for i, network in enumerate(("critic",) if self.encoder.config.share_actor_critic else tuple(params)):
                weights = self.encoder.init(jax.random.fold_in(key, i), images)["params"]
                params[network] = {**params[network], "encoder": weights}
        ema = None if self.config.train.ema_decay is None else params
        return TrainState.create(params, self.optimiser, {name: params[name] for name in self.targets}, ema=ema)

    @abc.abstractmethod
    def _init_networks(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Initialises weights by network, "critic" among them, without encoders."""

    def _examples(self) -> tuple[Float[Array, "1 s"], Float[Array, "1 d"], Float[Array, "1 1"]]:
        """Returns an observation, a chunk and a time, from which networks take their widths."""
        features = 0 if self.encoder is None else self.encoder.size
        return jnp.zeros((1, features + self.dims.observation)), jnp.zeros((1, self.chunk_size)), jnp.zeros((1, 1))

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Updates all networks by the sum of the losses, then of the target critic.

        Raises:
          ValueError: If the batch was made for another horizon or other widths.
          ConfigError: If a loss that has a weight is not among the metrics.
        """
        self._check(batch)
        batch = self._augmented(batch, state.step)
        key = rngs.key(self.config.run.seed, "agent", state.step)

        def loss(params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
            whole, target = all_gather_params((params, state.target))
            value, metrics = self.loss(whole, target, batch, key)
            self._require_weighted(metrics)
            return value, metrics

        gradient, metrics = gradients.gradient(
            loss, self.loss_weights, state.params, batch, key, self.config.train.grad_accum_steps
        )
        metrics["gradient_norm"] = mean_of(optax.tree.norm(gradient))
        new, tau = state.apply_gradients(gradient, self.optimiser), self.config.agent.tau
        # From the weights after their update; the official code takes those before.
        followed = {name: new.params[name] for name in self.targets}
        target = jax.tree.map(lambda old, new: (1 - tau) * old + tau * new, state.target, followed)
        return new.replace(target=target), metrics

    def _require_weighted(self, metrics: Metrics) -> None:
        """Raises ConfigError for a weight of no metric: that loss would not be learnt from.

        A class that leaves a loss of the one before it out, and inherits the weights, is taken, as it always was, but
        where parts of a batch are summed, which asks for each.
        """
        unknown = sorted(self.loss_weights.keys() - metrics.keys())
        order = type(self).__mro__
        named, made = (
            next(i for i, one in enumerate(order) if what in vars(one)) for what in ("loss_weights", "losses")
        )
        if unknown and (named <= made or self.config.train.grad_accum_steps > 1):
            raise ConfigError(
                f"{type(self).__name__}.loss_weights has {', '.join(unknown)}, and `losses` no metric of that name: "
                f"nothing would learn from it. Expected names among {', '.join(sorted(metrics))}; a class that leaves "
                "a loss out has a `loss_weights` without it"
            )

    @property
    @abc.abstractmethod
    def loss_weights(self) -> dict[str, float]:
        """Weights of the metrics whose sum is the loss."""

    def loss(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Returns the sum of the losses. Each reaches its own network's weights alone, so one optimiser serves all."""
        metrics = self.losses(params, target, batch, key)
        return weighted(metrics, self.loss_weights), metrics

    @abc.abstractmethod
    def losses(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns the means of which the loss consists, and others that are logged."""

    def critic_target(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Float[Array, " b"]:
        """Returns y = sum_k discount^k r_k + discount^m alive Q_target(s', a'), a' the policy's chunk in s'.

        m is the number of real steps of the chunk; Q_target is what `_aggregate` makes of `_target_critics`
        (Q-chunking, arXiv:2507.07969, the critic's equation; RLPD, arXiv:2302.02948, has an entropy term, its chunked
        form in Q-chunking's code has none).
        """
        after = batch["next_observations"]
        a_next = self.policy(jax.lax.stop_gradient(params), after, key)
        q_next = self._q(target["critic"], self.encode(target, "critic", after), a_next)
        q_next = self._aggregate(self._target_critics(q_next, key))
        return jax.lax.stop_gradient(chunk_td_target(batch, q_next, discount=self.config.agent.discount))

    def critic_loss(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Returns the mean of (Q(s, a) - y)^2 over the ensemble and the rows that agent.partial_chunks keeps."""
        settings = self.config.agent
        y = self.critic_target(params, target, batch, key)
        q = self._q(params["critic"], self.encode(params, "critic", batch["observations"]), self._chunks(batch))
        return squared_td_error(q, y, kept_rows(batch, settings.horizon, settings.partial_chunks))

    @abc.abstractmethod
    def policy(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """Returns the policy's chunk for each row, within [-1, 1]."""

    def act(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b t a"]:
        """Returns the chunk to execute, within [-1, 1].

        Args:
          observations: As in a batch; only the array that data.observation names is read.
        """
        return self._unflatten(self.policy(params, observations, key))

    def critic_value(
        self, params: PyTree, observations: Mapping[str, Any], chunks: Float[Array, "b t a"]
    ) -> Float[Array, " b"]:
        """Returns Q(s, a) as the agent's backup takes the ensemble: its mean or least by agent.q_aggregation, in QAM
        its mean less rho deviations."""
        s = self.encode(params, "critic", observations)
        return self._aggregate(self._q(params["critic"], s, chunks.reshape(-1, self.chunk_size)))

    def _q(self, params: PyTree, s: Float[Array, "*#b s"], a: Float[Array, "*#b d"]) -> Float[Array, "e *b"]:
        return apply(self.critic, params, s, a)

    def _target_critics(self, q: Float[Array, "e b"], key: Key[Array, ""]) -> Float[Array, "n b"]:
        """Returns the values of those target critics that make the target: all."""
        return q

    def _aggregate(self, q: Float[Array, "e *b"]) -> Float[Array, "*b"]:
        return q.mean(axis=0) if self.config.agent.q_aggregation == "mean" else q.min(axis=0)

    def encode(self, params: PyTree, network: str, observations: Mapping[str, Any]) -> Float[Array, "b s"]:
        """Returns the observation as a network sees it: the cameras' features, then the array. It enters here alone.

        Where critic, flow and one-step policy share the critic's encoder, the latter two get no gradient to it.

        Args:
          params: Weights, of which the encoder is read; the target's for the target critic.
        """
        s = policy_input(observations, self.config.data.observation)
        if self.encoder is None:
            return s
        owner = "critic" if self.encoder.config.share_actor_critic else network
        features = apply(self.encoder, params[owner]["encoder"], require_images(observations))
        if owner != network:
            features = jax.lax.stop_gradient(features)
        return jnp.concatenate([features, s], axis=-1)

    def _augmented(self, batch: Batch, step: Int[Array, ""]) -> Batch:
        """Returns the batch with its images shifted and recoloured: a function of (run.seed, step)."""
        if self.encoder is None:
            return batch
        moments = ("observations", "next_observations")
        keys = jax.random.split(rngs.key(self.config.run.seed, "augment", step), len(moments))
        changed = {
            moment: {
                **batch[moment],
                "images": augment(require_images(batch[moment]), key, self.encoder.config.augment),
            }
            for moment, key in zip(moments, keys, strict=True)
        }
        return {**batch, **changed}

    def _chunks(self, batch: Batch) -> Float[Array, "b d"]:
        """Returns the batch's actions that policy and critic see, flat."""
        return batch["actions"][:, : self.action_horizon].reshape(-1, self.chunk_size)

    def _unflatten(self, chunks: Float[Array, "b d"]) -> Float[Array, "b t a"]:
        return chunks.reshape(-1, self.action_horizon, self.dims.action)

    def _check(self, batch: Batch) -> None:
        """Checks shapes of a batch against config and dims."""
        horizon, observation = self.config.agent.horizon, self.config.data.observation
        for name, array, expected in (
            ("actions", batch["actions"], (horizon, self.dims.action)),
            ("rewards", batch["rewards"], (horizon,)),
            (f"observations.{observation}", policy_input(batch["observations"], observation), (self.dims.observation,)),
        ):
            if array.shape[1:] != expected:
                raise ValueError(f"batch {name} has shape {array.shape}; expected (b, {', '.join(map(str, expected))})")


def policy_input(observations: Mapping[str, Any], name: Literal["qpos", "state"]) -> Float[Array, "b s"]:
    """Returns the array that the networks see.

    Raises:
      ValueError: If the dataset has no such array.
    """
    if observations[name] is None:
        raise ValueError(f"data.observation is {name!r}, which the batch lacks; set it to an array that is recorded")
    return observations[name]


def require_images(observations: Mapping[str, Any]) -> Real[Array, "b k h w 3"]:
    """Returns the cameras' images, 0 to 255.

    Raises:
      ValueError: If the batch has none.
    """
    if observations["images"] is None:
        raise ValueError("agent.encoder is set, but the batch has no images; name them in data.cameras")
    return observations["images"]


def chunk_td_target(batch: Batch, next_value: Float[Array, " b"], *, discount: float) -> Float[Array, " b"]:
    """Returns y = sum_k discount^k r_k + discount^m alive next_value of each recorded chunk (arXiv:2507.07969).

    m is the number of real steps of the chunk, h inside an episode; alive is 0 if the episode terminated inside the
    chunk.

    Args:
      batch: Of its `rewards` the last column is read, which holds the discounted sum over the chunk.
      next_value: Of the state after the chunk.
      discount: Of one environment step.
    """
    after_chunk = discount ** batch["valid"].sum(axis=-1) * batch["masks"][:, -1]
    return batch["rewards"][:, -1] + after_chunk * next_value


def kept_rows(batch: Batch, steps: int, partial_chunks: Literal["use", "drop"]) -> Bool[Array, " b"]:
    """Returns the rows that a loss on the chunk's first `steps` actions takes: with "drop" those without padding.

    The official code leaves rows out too, but divides by all of them; a mean here divides by the rows that stay.
    """
    return batch["valid"][:, steps - 1 if partial_chunks == "drop" else 0] > 0


def squared_td_error(
    q: Float[Array, "e b"], target: Float[Array, " b"], kept: Bool[Array, " b"]
) -> tuple[Array, Metrics]:
    """Returns the mean of (Q - y)^2 over the ensemble and the kept rows, and with it the mean of Q, as metrics."""
    rows = jnp.broadcast_to(kept, q.shape)
    error = mean_of((q - target[None]) ** 2, rows)
    return error.value(), {"critic_loss": error, "q": mean_of(q, rows)}
