"""Q-learning with adjoint matching (QAM, arXiv:2601.14234): a flow policy that is fine-tuned by the critic's gradient.

Two flows: f_beta imitates the data, f_theta is the policy. At its optimum f_theta samples from
pi_beta(a | s) exp(tau Q(s, a)), tau the inverse temperature. No gradient passes through the steps of its sampler: its
samples are drawn along the memoryless stochastic path of f_theta, and the critic's gradient at the end is carried back
along it by the adjoint of f_beta (adjoint matching, arXiv:2409.08861). With K steps of size h = 1 / K, t = k h:

    sigma_t^2 = 2 (1 - t + h) / (t + h)
    x_0 = z,   x_k+1 = x_k + h (2 f_theta(s, x_k, t) - x_k / (t + h)) + sqrt(h) sigma_t eps_k
    x_K = x_K-1 + h f_beta(s, x_K-1, 1 - h)
    g_K = -tau grad_a Q_target(s, a) at a = clip(x_K)
    g_k = g_k+1 + h (d/dx (2 f_beta(s, x, t + h) - x / (t + h)) at x_k)^T g_k+1
    loss of f_theta: mean over rows of sum_k |2 (f_theta - f_beta)(s, x_k, t) / sigma_t + sigma_t g_k|^2

f_beta is there its moving average at the rate agent.tau. The sampler of the policy itself is f_theta's Euler steps, as
in FQL. The critics, ten in the paper, are pessimistic: their target is the mean less rho standard deviations.

This is the plain variant of the authors' code: one sample, no one-step policy, no edit policy. Two differences are
those of base.py: averages follow the weights after an update, and means divide by the rows that stay.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.train.metrics import Mean, mean_of
from qchunk.agents.base import Batch, Metrics
from qchunk.agents.qc import Goal, QCAgent
from qchunk.models.networks import ChunkPolicy

Path = tuple[Float[Array, "k b d"], Float[Array, "k b d"]]
"""Points x_k and adjoints g_k of each step k and row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QAMAgent(QCAgent):
    """`flow` is f_beta and has a moving average beside the target critic; `tuned` is f_theta."""

    tuned: ChunkPolicy

    targets = ("critic", "flow")

    def _init_networks(self, key: Key[Array, ""]) -> dict[str, Any]:
        tuned_key, rest = jax.random.split(key)
        s, a, t = self._examples()
        return super()._init_networks(rest) | {"tuned": self.tuned.init(tuned_key, s, a, t)["params"]}

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses of critics, f_beta and f_theta."""
        return dict.fromkeys(("critic_loss", "flow_loss", "adjoint_loss"), 1.0)

    def losses(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns the losses of critics, f_beta and f_theta."""
        critic_key, flow_key, adjoint_key = jax.random.split(key, 3)
        _, metrics = self.critic_loss(params, target, batch, critic_key)
        metrics |= self.flow_loss(params, batch, flow_key)[1]
        return metrics | self.adjoint_loss(params, target, batch, adjoint_key)

    def policy(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """Returns a flat chunk for each row, within [-1, 1]: Euler steps of f_theta from noise."""
        return self._sampled("tuned", params, observations, key)

    def _completed(
        self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""], goal: Goal
    ) -> Float[Array, "b d"]:
        """Returns a flat chunk of f_theta for each row, completed."""
        return self._sampled("tuned", params, observations, key, goal)

    def _aggregate(self, q: Float[Array, "e *b"]) -> Float[Array, "*b"]:
        return q.mean(axis=0) - self.config.agent.adjoint.rho * q.std(axis=0)

    def adjoint_loss(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns f_theta's loss, and the mean size of the adjoint at the end. All rows count: every s is a frame."""
        now = batch["observations"]
        s_beta = self.encode(target, "flow", now)
        x, g = self.adjoints(params, target, now, key)
        t = self._times()[:, None, None]
        sigma = self._sigma(t)
        f_theta = self._velocity(params["tuned"], self.encode(params, "tuned", now)[None], x, t)
        f_beta = self._velocity(target["flow"], s_beta[None], x, t)
        squared = jnp.sum((2 * (f_theta - f_beta) / sigma + sigma * g) ** 2, axis=(0, 2))
        size: Mean = mean_of(jnp.abs(g[-1]))
        return {"adjoint_loss": mean_of(squared), "adjoint_size": size}

    def adjoints(self, params: PyTree, target: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Path:
        """Samples the path of each row, and carries the critic's gradient back along it; none of it has a gradient."""
        params, target = jax.lax.stop_gradient((params, target))
        s_theta, s_beta = self.encode(params, "tuned", observations), self.encode(target, "flow", observations)
        s_critic = self.encode(target, "critic", observations)
        times, h = self._times(), 1 / self.config.agent.flow_steps
        z_key, eps_key = jax.random.split(key)
        z = jax.random.normal(z_key, (s_theta.shape[0], self.chunk_size))
        eps = jax.random.normal(eps_key, (len(times) - 1, *z.shape))

        def forward(x: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            t, noise = step
            f = self._velocity(params["tuned"], s_theta, x, t[None, None])
            return x + h * (2 * f - x / (t + h)) + jnp.sqrt(h) * self._sigma(t) * noise, x

        last, points = jax.lax.scan(forward, z, (times[:-1], eps))
        x = jnp.concatenate([points, last[None]])
        end = last + h * self._velocity(target["flow"], s_beta, last, times[-1:, None])

        def value(a: Array) -> Array:  # of each row, summed: a row's gradient is its own
            return self._q(target["critic"], s_critic, jnp.clip(a, -1, 1)).mean(axis=0).sum()

        def back(g: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            x, t = step

            def drift(x: Array) -> Array:
                return 2 * self._velocity(target["flow"], s_beta, x, (t + h)[None, None]) - x / (t + h)

            _, transposed = jax.vjp(drift, x)
            g = g + h * transposed(g)[0]
            return g, g

        g = -self.config.agent.adjoint.inverse_temperature * jax.grad(value)(end)
        return x, jax.lax.scan(back, g, (x, times), reverse=True)[1]

    def _times(self) -> Float[Array, " k"]:
        steps = self.config.agent.flow_steps
        return jnp.arange(steps, dtype=jnp.float32) / steps

    def _sigma(self, t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns the memoryless noise schedule, shifted by a step so that it is finite at t = 0."""
        h = 1 / self.config.agent.flow_steps
        return jnp.sqrt(2 * (1 - t + h) / (t + h))
