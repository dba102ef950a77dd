"""QC, QC-FQL, FQL and n-step FQL as settings of one agent, in the papers' symbols: the policy's losses, acting.

Q-chunking: arXiv:2507.07969. FQL (the flow policy and its distillation): arXiv:2502.02538. Symbols beside those of
base.py: v velocity of the behaviour flow, pi policy, mu one-step policy, N samples, alpha weight of the distillation.

All of QC-FQL is in four files: this one; base.py, the update, the critic's target and loss, and the observation as a
network sees it; qchunk/models/networks.py, the networks, MLPs all; and chunkwise/models/flow_matching.py, the path and
its sampler.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.models.flow_matching import euler, inpainting, straight_path
from chunkwise.train.gradients import weighted
from chunkwise.train.metrics import mean_of
from qchunk.agents.base import Agent, Batch, Metrics
from qchunk.models.networks import ChunkPolicy, apply

# Rows (samples x batch) that the best of N pushes through the networks at once on a CPU. 1,024 rows of width 256 are
# 1 MB and stay in a core's cache: an update with N = 32 and batch 256 took 375 ms against 423 with all 8,192 rows at
# once. Elsewhere all go at once: on an H200 an update in such parts took 4.78 ms, the official one, without, 3.25.
TILE_ROWS = 1024
# Below which 1 - t is not divided by, in prediction and target alike, as in the code of arXiv:2511.13720: at t = 1 the
# chunk is reached, nothing is left to learn.
MIN_TIME_LEFT = 0.05

Goal = tuple[Float[Array, "*#b d"], Float[Array, "*#b d"]]
"""What is known of flat chunks, and the weight of each number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QCAgent(Agent):
    """A behaviour-cloning flow, and a policy that is the best of its samples or distilled from it."""

    flow: ChunkPolicy
    onestep: ChunkPolicy
    """Distilled policy; without weights where agent.policy is best_of_n."""

    def _init_networks(self, key: Key[Array, ""]) -> dict[str, Any]:
        critic_key, flow_key, onestep_key = jax.random.split(key, 3)
        s, a, t = self._examples()
        params = {
            "critic": self.critic.init(critic_key, s, a)["params"],
            "flow": self.flow.init(flow_key, s, a, t)["params"],
        }
        if self.config.agent.policy == "distill":
            params["onestep"] = self.onestep.init(onestep_key, s, a)["params"]
        return params

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses of critic, flow and, where there is one, one-step policy."""
        weights = {"critic_loss": 1.0, "flow_loss": 1.0}
        if self.config.agent.policy == "distill":
            weights |= {"distill_loss": self.config.agent.alpha, "q_policy": -1.0}
        return weights

    def losses(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns the losses of critic, flow and, where there is one, one-step policy."""
        critic_key, flow_key, distill_key = jax.random.split(key, 3)
        _, metrics = self.critic_loss(params, target, batch, critic_key)
        metrics |= self.flow_loss(params, batch, flow_key)[1]
        if self.config.agent.policy == "distill":
            metrics |= self.distill_loss(params, batch, distill_key)[1]
        return metrics

    def flow_loss(self, params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Returns the behaviour-cloning loss: the mean of |v(t, s, x_t) - (a - z)|^2 over real actions, t uniform.

        Where the flow's network predicts the chunk, a - z = (a - x_t) / (1 - t) is divided as its prediction is: for t
        near 1 the best prediction is the recorded chunk there too.
        """
        noise_key, time_key = jax.random.split(key)
        a = self._chunks(batch)
        z = jax.random.normal(noise_key, a.shape)
        t = jax.random.uniform(time_key, (a.shape[0], 1))
        x, u = straight_path(z, a, t)
        if self.config.agent.flow_predicts == "chunk":
            u = _velocity_towards(a, x, t)
        v = self._velocity(params["flow"], self.encode(params, "flow", batch["observations"]), x, t)
        squared = self._unflatten((v - u) ** 2)
        real = jnp.broadcast_to(batch["valid"][:, : self.action_horizon, None], squared.shape)
        error = mean_of(squared, real)
        return error.value(), {"flow_loss": error}

    def distill_loss(self, params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Returns the one-step policy's loss: alpha |mu(s, z) - flow(s, z)|^2 - Q(s, mu(s, z)).

        Q is the mean of the ensemble, not normalised; the official code has an option for it that nothing reads, off
        by default. All rows count: every s is a real frame.
        """
        now = batch["observations"]
        s = self.encode(params, "onestep", now)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        fixed = jax.lax.stop_gradient(params)
        mu = apply(self.onestep, params["onestep"], s, z)
        distance = mean_of((mu - self._flow_chunks(fixed["flow"], self.encode(fixed, "flow", now), z)) ** 2)
        q = mean_of(self._q(fixed["critic"], self.encode(fixed, "critic", now), jnp.clip(mu, -1, 1)))
        metrics = {"distill_loss": distance, "q_policy": q}
        return weighted(metrics, self.loss_weights), metrics

    def policy(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """Returns the policy's flat chunk for each row, within [-1, 1]: the best of N, or the one-step policy's."""
        if self.config.agent.policy == "best_of_n":
            return self._best_of_n(params, observations, key)
        s = self.encode(params, "onestep", observations)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        return jnp.clip(apply(self.onestep, params["onestep"], s, z), -1, 1)

    def act_flow(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b t a"]:
        """Returns a chunk of the behaviour-cloning flow alone, within [-1, 1]: what the data does, for scale."""
        return self._unflatten(self._sampled("flow", params, observations, key))

    def complete(
        self,
        params: PyTree,
        observations: Mapping[str, Any],
        key: Key[Array, ""],
        known: Float[Array, "b t a"],
        weights: Float[Array, "b t"],
        *,
        behaviour_cloning: bool = False,
    ) -> Float[Array, "b t a"]:
        """Returns a chunk for each row that agrees with what is known of it, for real-time chunking.

        Args:
          known: Actions, in [-1, 1].
          weights: Of each, 0 to 1; 0 where nothing is known.
          behaviour_cloning: As `act_flow`, and not as the policy acts.
        """
        goal = known.reshape(-1, self.chunk_size), jnp.repeat(weights, self.dims.action, axis=1)
        if behaviour_cloning:
            return self._unflatten(self._sampled("flow", params, observations, key, goal))
        return self._unflatten(self._completed(params, observations, key, goal))

    def _completed(
        self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""], goal: Goal
    ) -> Float[Array, "b d"]:
        """Returns the policy's flat chunk, completed: of N that are, the one that the critic values most."""
        return self._best_of_n(params, observations, key, goal)

    def _sampled(
        self,
        network: str,
        params: PyTree,
        observations: Mapping[str, Any],
        key: Key[Array, ""],
        goal: Goal | None = None,
    ) -> Float[Array, "b d"]:
        """Returns one flat chunk of a network's flow for each row."""
        s = self.encode(params, network, observations)
        z = jax.random.normal(key, (s.shape[0], self.chunk_size))
        return self._flow_chunks(params[network], s, z, goal)

    def _best_of_n(
        self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""], goal: Goal | None = None
    ) -> Float[Array, "b d"]:
        """Returns, of N chunks of the flow for each row, the one that the critic values most.

        Each network sees the observation once, whatever N is.
        """
        s_flow, s_critic = (self.encode(params, network, observations)[None] for network in ("flow", "critic"))
        n, b = self.config.agent.num_samples, s_flow.shape[1]
        tiles = next((k for k in range(1, n) if n % k == 0 and n // k * b <= TILE_ROWS), n)

        def valued(z: Array) -> tuple[Array, Array]:
            a = self._flow_chunks(params["flow"], s_flow, z, goal and (goal[0][None], goal[1][None]))
            return a, self._aggregate(self._q(params["critic"], s_critic, a))

        def in_tiles(z: Array) -> tuple[Array, Array]:
            a, q = jax.lax.map(valued, z.reshape(tiles, n // tiles, b, self.chunk_size))
            return a.reshape(z.shape), q.reshape(n, b)

        z = jax.random.normal(key, (n, b, self.chunk_size))
        a, q = jax.lax.platform_dependent(z, cpu=in_tiles, default=valued)
        return jnp.take_along_axis(a, q.argmax(axis=0)[None, :, None], axis=0)[0]

    def _flow_chunks(
        self, params: PyTree, s: Float[Array, "*#b s"], z: Float[Array, "*#b d"], goal: Goal | None = None
    ) -> Float[Array, "*b d"]:
        """Integrates the behaviour flow by Euler steps from noise z, t = 0, to a chunk, t = 1, clipped to [-1, 1]."""

        def velocity(x: Array, t: Array) -> Array:
            return self._velocity(params, s, x, t.reshape((1,) * x.ndim))

        field = velocity if goal is None else inpainting(velocity, *goal)
        return jnp.clip(euler(field, z, steps=self.config.agent.flow_steps), -1, 1)

    def _velocity(
        self, params: PyTree, s: Float[Array, "*#b s"], x: Float[Array, "*b d"], t: Float[Array, "*#b 1"]
    ) -> Float[Array, "*b d"]:
        """Returns v(t, s, x): the network's output y, or (y - x) / (1 - t) where it predicts the chunk y."""
        y = apply(self.flow, params, s, x, t)
        if self.config.agent.flow_predicts == "velocity":
            return y
        return _velocity_towards(y, x, t)


def _velocity_towards(
    chunk: Float[Array, "*#b d"], x: Float[Array, "*#b d"], t: Float[Array, "*#b 1"]
) -> Float[Array, "*b d"]:
    """Returns the velocity that brings x to a chunk in the time left, or in MIN_TIME_LEFT if that is more."""
    return (chunk - x) / jnp.maximum(1 - t, MIN_TIME_LEFT)
