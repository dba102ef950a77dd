"""A run's policy between updates: one compiled sampler for the weights of every round."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float32

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError
from chunkwise.policies.execution import Committed
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.model.flow_sde import Chain, sample_chain
from openpi_ript.model.pi0 import Observation, Pi0, encode, velocity
from openpi_ript.policies.policy import Policy, Prepared
from openpi_ript.ript.passes import CHAIN, LOG_PROB


class ActingPolicy(Policy):
    """A policy whose weights are replaced; it is an `Actor` of collect.py."""

    def __init__(self, config: OpenpiRiptConfig, stats: Mapping[str, NormStats], *, allow_code: bool = False) -> None:
        """Arguments and errors are those of Policy."""
        super().__init__(config, {}, stats, allow_code=allow_code)
        self.weights = ""
        self.guidance_scale: float | None = None
        self.chunk = (config.model.action_horizon, config.model.action_dim)
        self._sample_chain = jax.jit(functools.partial(sample_with_noise, config))

    def use(self, params: PyTree, step: int) -> None:
        """Takes the weights that `step` updates made; they must live as long as they are used."""
        self._params, self.step, self.weights = params, step, tree_digest(params)

    def release(self) -> None:
        """Forgets the weights, before the next update takes their memory."""
        self._params = {}

    def __call__(
        self,
        observation: dict[str, Any],
        noise: Float32[np.ndarray, "b t n"],
        committed: Sequence[Committed] | None = None,
    ) -> Float32[np.ndarray, "b t a"]:
        """Chunks for a batch of observations; `guidance_scale` None takes the config's.

        They may hold NaN: the collector looks, and keeps what the policy saw.

        Args:
          observation: Rows as an environment shows them: "state" of env.state, "image" by openpi's name, "prompt".
          noise: From which each row is sampled.
          committed: What each row's chunk is completed from; None: chunks are not completed.
        """
        prepared = self._prepared(observation, noise, committed)
        return self._sent(self.act([prepared])[0], prepared)

    def explore(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b points t n"]
    ) -> tuple[Float32[np.ndarray, "b t a"], Chain]:
        """Chunks for a batch of observations, sampled with noise as rollout.ppo says, and how.

        Args:
          observation: As for a call.
          noise: From which each row is sampled, and what each step of the sampler adds.
        """
        prepared = self._prepared(observation, noise[:, 0], None)
        seen = Observation(**prepared.inputs["observation"])
        chain = self._sample_chain(self._params, seen, noise)
        return self._sent(np.asarray(chain.points[:, -1]), prepared), chain

    def _prepared(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b t n"], committed: Sequence[Committed] | None
    ) -> Prepared:
        adapter = self._to_openpi.adapter
        images = {name: adapter.simulated_image(image) for name, image in observation["image"].items()}
        seen = {**observation, "state": adapter.simulated_state(observation["state"]), "image": images}
        return self.prepare(seen, by_spec=True, guidance_scale=self.guidance_scale, noise=noise, committed=committed)

    def _sent(self, chunk: Float32[np.ndarray, "b t n"], prepared: Prepared) -> Float32[np.ndarray, "b t a"]:
        return self._to_openpi.observed_action(chunk[..., : self.config.data.robot.action_dim], prepared.raw_state)


class ExploringPolicy:
    """An acting policy whose chunks are sampled with noise, and whose rollouts keep how (rollout.ppo); an `Actor`."""

    def __init__(self, policy: ActingPolicy) -> None:
        """Compiles nothing yet.

        Args:
          policy: Of a run whose rollout.objective is ppo; its weights act.
        """
        rollout = policy.config.rollout
        assert rollout is not None
        self._policy = policy
        self.chunk = (rollout.ppo.sample_steps + 1, *policy.chunk)

    @property
    def step(self) -> int:
        return self._policy.step

    @property
    def weights(self) -> str:
        return self._policy.weights

    def __call__(
        self,
        observation: dict[str, Any],
        noise: Float32[np.ndarray, "b points t n"],
        committed: Sequence[Committed] | None = None,
    ) -> Float32[np.ndarray, "b t a"]:
        """Chunks for a batch of observations, as `noted`. Raises ConfigError where they are to be completed."""
        if committed is not None:
            raise ConfigError("rollout.ppo.evaluate is 'sde', whose chunks cannot be completed; act in another way")
        return self.noted(observation, noise)[0]

    def noted(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b points t n"]
    ) -> tuple[Float32[np.ndarray, "b t a"], dict[str, np.ndarray]]:
        """Chunks for a batch of observations, and of each the chain with its log-probabilities."""
        chunks, chain = self._policy.explore(observation, noise)
        return chunks, {CHAIN: np.asarray(chain.points), LOG_PROB: np.asarray(chain.log_prob)}


def sample_with_noise(
    config: OpenpiRiptConfig, params: PyTree, seen: Observation, noise: Float32[Array, "b points t n"]
) -> Chain:
    """Samples chunks as rollout.ppo says, and how likely they were; traced."""
    rollout, dims, model = config.rollout, config.data.robot.action_dim, Pi0(config.model)
    assert rollout is not None
    context = encode(model, params, seen)

    def field(x: Float32[Array, "b t n"], time: Float32[Array, " b"]) -> Float32[Array, "b t n"]:
        return velocity(model, params, context, x, time, None)

    return sample_chain(field, noise, level=rollout.ppo.noise, dims=dims)
