"""RLPD with action chunks: soft actor-critic with an ensemble of critics, on offline and online data.

RLPD: arXiv:2302.02948; with chunks RLPD-AC, and with a little behaviour cloning QC-RLPD (Q-chunking,
arXiv:2507.07969, and its code, whose choices are taken: the target has no entropy term, all critics make it).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.train.gradients import weighted
from chunkwise.train.metrics import Mean, mean_of
from qchunk.agents.base import Agent, Batch, Metrics
from qchunk.models.networks import GaussianPolicy

# Recorded actions are pulled inside the open interval on which tanh has an inverse (the official code's number).
INSIDE = 1 - 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLPDAgent(Agent):
    """A Gaussian over whole chunks, squashed by tanh, whose entropy is held near a target."""

    actor: GaussianPolicy

    def _init_networks(self, key: Key[Array, ""]) -> dict[str, Any]:
        critic_key, actor_key = jax.random.split(key)
        s, a, _ = self._examples()
        return {
            "critic": self.critic.init(critic_key, s, a)["params"],
            # Beside the actor's weights, which do not read it.
            "actor": {
                **self.actor.init(actor_key, s)["params"],
                "log_temperature": jnp.log(jnp.float32(self.config.agent.gaussian.initial_temperature)),
            },
        }

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses of critics, policy, temperature and behaviour cloning."""
        cloning = self.config.agent.gaussian.bc_weight
        return {"critic_loss": 1.0, "policy_loss": 1.0, "temperature_loss": 1.0, "cloning": cloning}

    def losses(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns the losses of critics, policy, temperature and behaviour cloning."""
        critic_key, actor_key = jax.random.split(key)
        _, metrics = self.critic_loss(params, target, batch, critic_key)
        return metrics | self.actor_loss(params, batch, actor_key)[1]

    def _target_critics(self, q: Float[Array, "e b"], key: Key[Array, ""]) -> Float[Array, "n b"]:
        """Draws gaussian.target_critics of the target critics anew; all where it is None."""
        if (count := self.config.agent.gaussian.target_critics) is None:
            return q
        return q[jax.random.choice(jax.random.fold_in(key, 1), len(q), (count,), replace=False)]

    def actor_loss(self, params: PyTree, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Metrics]:
        """Returns the mean of eta log pi(a | s) - Q(s, a), a ~ pi, plus eta's loss and, by weight, behaviour cloning.

        eta, the temperature, rises where the policy's entropy is below its target: its loss is
        eta (entropy - target). Behaviour cloning is -log pi of the recorded chunk; of a chunk that passes an
        episode's end the real actions alone count, where the official code counts the padding too.
        """
        settings, now = self.config.agent.gaussian, batch["observations"]
        mean, log_std = self._gaussian(params, now)
        z = jax.random.normal(key, mean.shape)
        x = mean + jnp.exp(log_std) * z
        log_pi = _log_density(x, mean, log_std).sum(axis=-1)
        fixed = jax.lax.stop_gradient(params)
        q = self._q(fixed["critic"], self.encode(fixed, "critic", now), jnp.tanh(x)).mean(axis=0)
        eta = jnp.exp(params["actor"]["log_temperature"])
        policy = mean_of(jax.lax.stop_gradient(eta) * log_pi - q)
        entropy = mean_of(-jax.lax.stop_gradient(log_pi))
        above = entropy.sum - settings.entropy_per_action * self.chunk_size * entropy.count
        recorded = jnp.arctanh(jnp.clip(self._chunks(batch), -INSIDE, INSIDE))
        real = jnp.repeat(batch["valid"][:, : self.action_horizon], self.dims.action, axis=1)
        cloning = mean_of(-(_log_density(recorded, mean, log_std) * real).sum(axis=-1))
        metrics = {
            "policy_loss": policy,
            "temperature_loss": Mean(eta * above, entropy.count),
            "cloning": cloning,
            "entropy": entropy,
            "temperature": mean_of(eta[None]),
            "q_policy": mean_of(q),
        }
        return weighted(metrics, self.loss_weights), metrics

    def policy(self, params: PyTree, observations: Mapping[str, Any], key: Key[Array, ""]) -> Float[Array, "b d"]:
        """Draws a flat chunk for each row from the Gaussian, squashed to [-1, 1]."""
        mean, log_std = self._gaussian(params, observations)
        return jnp.tanh(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def _gaussian(
        self, params: PyTree, observations: Mapping[str, Any]
    ) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
        """Returns the mean, and logarithm of the standard deviation, before tanh."""
        output: Any = self.actor.apply({"params": params["actor"]}, self.encode(params, "actor", observations))
        return output


def _log_density(
    x: Float[Array, "b d"], mean: Float[Array, "b d"], log_std: Float[Array, "b d"]
) -> Float[Array, "b d"]:
    """Returns the log density of tanh(x), x Gaussian, of each number: log N(x) - log(1 - tanh(x)^2), stably."""
    gaussian = -0.5 * ((x - mean) * jnp.exp(-log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    return gaussian - 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))
