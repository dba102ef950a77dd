"""Q-chunking in the paper's symbols: QC, QC-FQL, FQL and n-step FQL as settings of one agent.

Q-chunking: arXiv:2507.07969. FQL (the flow policy and its distillation): arXiv:2502.02538. Symbols: s observation,
a chunk of t actions, h backup horizon, z noise, Q critic, v velocity of the behaviour flow, mu one-step policy, N
samples, alpha weight of the distillation, tau target rate. Inside, a chunk is flat: d = t a numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from core import prng
from core.arrays import PyTree
from core.flow import euler, straight_path
from core.metrics import Mean, mean_of
from core.optim import make_optimiser
from core.state import TrainState
from qchunk.config import QChunkConfig
from qchunk.data import Dims
from qchunk.networks import ChunkPolicy, Critic, apply, pictures, policy_input
from qchunk.vision import ImageEncoder, augment

# Rows (samples x batch) that the best of N pushes through the networks at once. 1,024 rows of width 256 are 1 MB and
# stay in a core's cache: an update with N = 32 and batch 256 took 375 ms against 423 ms with all 8,192 rows at once.
TILE_ROWS = 1024

Batch = Mapping[str, Any]  # arrays of a qchunk.data.Batch
Metrics = dict[str, Mean]
Network = Literal["critic", "flow", "onestep"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """The algorithm as pure functions of arrays; the caller jits them."""

    config: QChunkConfig
    dims: Dims
    critic: Critic
    flow: ChunkPolicy
    onestep: ChunkPolicy
    """Distilled policy; without weights where agent.policy is best_of_n."""
    encoder: ImageEncoder | None
    """Turns pictures into features, with weights that lie beside those of their network; None: no pictures."""
    optimiser: optax.GradientTransformation

    @property
    def action_horizon(self) -> int:
        """Actions of one chunk that `act` returns."""
        return self.config.agent.action_horizon

    @property
    def chunk_size(self) -> int:
        """Numbers of a flat chunk, d."""
        return self.action_horizon * self.dims.action

    def init(self, key: Key[Array, ""]) -> TrainState:
        """Fresh weights and optimiser state at step 0; the target critic is a copy of the critic."""
        critic_key, flow_key, onestep_key = jax.random.split(key, 3)
        features = 0 if self.encoder is None else self.encoder.size
        s, a, t = jnp.zeros((1, features + self.dims.observation)), jnp.zeros((1, self.chunk_size)), jnp.zeros((1, 1))
        params = {
            "critic": self.critic.init(critic_key, s, a)["params"],
            "flow": self.flow.init(flow_key, s, a, t)["params"],
        }
        if self.config.agent.policy == "distill":
            params["onestep"] = self.onestep.init(onestep_key, s, a)["params"]
        if self.encoder is not None:
            images = jnp.zeros((1, len(self.dims.cameras), *(self.dims.image_size or ()), 3), jnp.uint8)
            for i, network in enumerate(("critic",) if self.encoder.config.share_actor_critic else tuple(params)):
                weights = self.encoder.init(jax.random.fold_in(key, i), images)["params"]
                params[network] = {**params[network], "encoder": weights}
        return TrainState.create(params, self.optimiser, {"critic": params["critic"]})

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One update of all networks by the sum of the losses, then of the target critic.

        Raises:
          ValueError: If the batch was made for another horizon or other widths.
        """
        self._check(batch)
        batch = self._augmented(batch, state.step)
        key = prng.key(self.config.run.seed, "agent", state.step)
        gradient, metrics = jax.grad(self.loss, has_aux=True)(state.params, state.target, batch, key)
        updates, opt_state = self.optimiser.update(gradient, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        tau = self.config.agent.target_rate
        # From the critic after its update; the official code takes the one before.
        target = jax.tree.map(lambda old, new: (1 - tau) * old + tau * new, state.target["critic"], params["critic"])
        metrics["gradient_norm"] = mean_of(optax.tree.norm(gradient))
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state, target={"critic": target}), metrics

    def loss(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Sum of the losses of critic, flow and, where there is one, one-step policy.

        Each loss reaches the weights of its own network alone, so that their sum needs one optimiser only.
        """
        critic_key, flow_key, distill_key = jax.random.split(key, 3)
        loss, metrics = self.critic_loss(params, target, batch, critic_key)
        flow_loss, flow_metrics = self.flow_loss(params, batch, flow_key)
        loss, metrics = loss + flow_loss, metrics | flow_metrics
        if self.config.agent.policy == "distill":
            distill_loss, distill_metrics = self.distill_loss(params, batch, distill_key)
            loss, metrics = loss + distill_loss, metrics | distill_metrics
        return loss, metrics

    def critic_loss(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Mean of (Q(s, a) - y)^2, y = sum_k discount^k r_k + discount^m alive Q_target(s', pi(s')).

        m is the number of real steps of the chunk, h inside an episode (Q-chunking, equation for the critic). With
        partial_chunks="drop" rows with m < h are left out, and the mean divides by the rows that stay; the official
        code leaves them out too, but divides by all rows.
        """
        agent = self.config.agent
        after = batch["next_observations"]
        a_next = self.policy(jax.lax.stop_gradient(params), after, key)
        q_next = self._aggregate(self._q(target["critic"], self.see(target, "critic", after), a_next))
        real_steps = batch["valid"].sum(axis=-1)
        y = batch["rewards"][:, -1] + agent.discount**real_steps * batch["masks"][:, -1] * q_next
        q = self._q(params["critic"], self.see(params, "critic", batch["observations"]), self._chunks(batch))
        kept = batch["valid"][:, -1] > 0 if agent.partial_chunks == "drop" else real_steps > 0
        kept = jnp.broadcast_to(kept, q.shape)
        error = mean_of((q - jax.lax.stop_gradient(y)[None]) ** 2, kept)
        return error.value(), {"critic_loss": error, "q": mean_of(q, kept)}

    def flow_loss(self, params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Behaviour cloning: mean of |v(t, s, x_t) - (a - z)|^2 over the actions that exist, t uniform."""
        noise_key, time_key = jax.random.split(key)
        a = self._chunks(batch)
        z = jax.random.normal(noise_key, a.shape)
        t = jax.random.uniform(time_key, (a.shape[0], 1))
        x, u = straight_path(z, a, t)
        v = apply(self.flow, params["flow"], self.see(params, "flow", batch["observations"]), x, t)
        squared = self._unflatten((v - u) ** 2)
        real = jnp.broadcast_to(batch["valid"][:, : self.action_horizon, None], squared.shape)
        error = mean_of(squared, real)
        return error.value(), {"flow_loss": error}

    def distill_loss(self, params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """One-step policy: alpha |mu(s, z) - flow(s, z)|^2 - Q(s, mu(s, z)), Q the mean of the ensemble.

        All rows count: every s is a real frame. Q is not normalised; the official code has an option for it that
        nothing reads, and its default is off.
        """
        now = batch["observations"]
        s = self.see(params, "onestep", now)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        fixed = jax.lax.stop_gradient(params)
        mu = apply(self.onestep, params["onestep"], s, z)
        distance = mean_of((mu - self._flow_chunks(fixed["flow"], self.see(fixed, "flow", now), z)) ** 2)
        q = mean_of(self._q(fixed["critic"], self.see(fixed, "critic", now), jnp.clip(mu, -1, 1)))
        loss = self.config.agent.alpha * distance.value() - q.value()
        return loss, {"distill_loss": distance, "q_policy": q}

    def policy(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """The policy's chunk for each row, within [-1, 1]."""
        if self.config.agent.policy == "best_of_n":
            return self._best_of_n(params, observations, key)
        s = self.see(params, "onestep", observations)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        return jnp.clip(apply(self.onestep, params["onestep"], s, z), -1, 1)

    def act(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b t a"]:
        """Chunk to execute, within [-1, 1].

        Args:
          observations: As in a batch; only the array that data.observation names is read.
        """
        return self._unflatten(self.policy(params, observations, key))

    def act_flow(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b t a"]:
        """Chunk of the behaviour-cloning flow alone, within [-1, 1]: what the data does, for scale."""
        s = self.see(params, "flow", observations)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        return self._unflatten(self._flow_chunks(params["flow"], s, z))

    def _best_of_n(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """Of N chunks of the flow for each row, the one that the critic values most.

        Each network sees the observation once, whatever N is.
        """
        s_flow, s_critic = (self.see(params, network, observations)[None] for network in ("flow", "critic"))
        n, b = self.config.agent.num_samples, s_flow.shape[1]
        tiles = next((k for k in range(1, n) if n % k == 0 and n // k * b <= TILE_ROWS), n)

        def tile(z: Array) -> tuple[Array, Array]:
            a = self._flow_chunks(params["flow"], s_flow, z)
            return a, self._aggregate(self._q(params["critic"], s_critic, a))

        z = jax.random.normal(key, (n, b, self.chunk_size))
        a, q = jax.lax.map(tile, z.reshape(tiles, n // tiles, b, self.chunk_size))
        best = q.reshape(n, b).argmax(axis=0)
        return jnp.take_along_axis(a.reshape(z.shape), best[None, :, None], axis=0)[0]

    def _flow_chunks(self, params: PyTree, s: Float[Array, "*#b s"], z: Float[Array, "*#b d"]) -> Float[Array, "*b d"]:
        """Euler steps of the behaviour flow from noise z at t = 0 to a chunk at t = 1, clipped to [-1, 1]."""

        def velocity(x: Array, t: Array) -> Array:
            return apply(self.flow, params, s, x, t.reshape((1,) * x.ndim))

        return jnp.clip(euler(velocity, z, steps=self.config.agent.flow_steps), -1, 1)

    def _q(self, params: PyTree, s: Float[Array, "*#b s"], a: Float[Array, "*#b d"]) -> Float[Array, "e *b"]:
        return apply(self.critic, params, s, a)

    def _aggregate(self, q: Float[Array, "e *b"]) -> Float[Array, "*b"]:
        return q.mean(axis=0) if self.config.agent.q_aggregation == "mean" else q.min(axis=0)

    def see(self, params: PyTree, network: Network, observations: Mapping[str, Any]) -> Float[Array, "b s"]:
        """The observation as a network sees it, the one place where it enters: the cameras' features, then the array.

        Where critic, flow and one-step policy share the critic's encoder, the latter two get no gradient to it.

        Args:
          params: Weights, of which the encoder is read; the target's for the target critic.
        """
        s = policy_input(observations, self.config.data.observation)
        if self.encoder is None:
            return s
        owner = "critic" if self.encoder.config.share_actor_critic else network
        features = apply(self.encoder, params[owner]["encoder"], pictures(observations))
        if owner != network:
            features = jax.lax.stop_gradient(features)
        return jnp.concatenate([features, s], axis=-1)

    def _augmented(self, batch: Batch, step: Int[Array, ""]) -> Batch:
        """The batch with its pictures shifted and recoloured: a function of (run.seed, step)."""
        if self.encoder is None:
            return batch
        moments = ("observations", "next_observations")
        keys = jax.random.split(prng.key(self.config.run.seed, "augment", step), len(moments))
        changed = {
            moment: {**batch[moment], "images": augment(pictures(batch[moment]), key, self.encoder.config.augment)}
            for moment, key in zip(moments, keys, strict=True)
        }
        return {**batch, **changed}

    def _chunks(self, batch: Batch) -> Float[Array, "b d"]:
        """The batch's actions that policy and critic see, flat."""
        return batch["actions"][:, : self.action_horizon].reshape(-1, self.chunk_size)

    def _unflatten(self, chunks: Float[Array, "b d"]) -> Float[Array, "b t a"]:
        return chunks.reshape(-1, self.action_horizon, self.dims.action)

    def _check(self, batch: Batch) -> None:
        """Shapes of a batch against config and dims."""
        horizon, observation = self.config.agent.horizon, self.config.data.observation
        for name, array, expected in (
            ("actions", batch["actions"], (horizon, self.dims.action)),
            ("rewards", batch["rewards"], (horizon,)),
            (f"observations.{observation}", policy_input(batch["observations"], observation), (self.dims.observation,)),
        ):
            if array.shape[1:] != expected:
                raise ValueError(f"batch {name} has shape {array.shape}; expected (b, {', '.join(map(str, expected))})")


def make_agent(config: QChunkConfig, dims: Dims) -> Agent:
    """Agent of a config.

    Args:
      dims: Widths of the observation that data.observation names, and of one action; cameras and their size.

    Raises:
      ConfigError: If the learning-rate schedule does not fit into train.steps.
    """
    agent = config.agent
    encoder = None if agent.encoder is None else ImageEncoder(agent.encoder, dims.cameras)
    policy = ChunkPolicy(agent.hidden_sizes, agent.action_horizon * dims.action, agent.actor_layer_norm)
    return Agent(
        config=config,
        dims=dims,
        critic=Critic(agent.hidden_sizes, agent.num_critics, agent.critic_layer_norm),
        flow=policy,
        onestep=policy,
        encoder=encoder,
        optimiser=make_optimiser(config.optim, config.train.steps),
    )
