"""A run's policy between updates: one compiled sampler for the weights of every round."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float32

from chunkwise.arrays import PyTree
from chunkwise.data.norm_stats import NormStats
from chunkwise.policies.execution import Committed
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.policies.policy import Policy


class ActingPolicy(Policy):
    """A policy whose weights are replaced; it is an `Actor` of collect.py."""

    def __init__(self, config: OpenpiRiptConfig, stats: Mapping[str, NormStats], *, allow_code: bool = False) -> None:
        """Arguments and errors are those of Policy."""
        super().__init__(config, {}, stats, allow_code=allow_code)
        self.weights = ""
        self.guidance_scale: float | None = None
        self.chunk = (config.model.action_horizon, config.model.action_dim)

    def use(self, params: PyTree, step: int) -> None:
        """Takes the weights that `step` updates made; they must live as long as they are used."""
        self._params, self.step, self.weights = params, step, digest(params)

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
        adapter = self._to_openpi.adapter
        images = {name: adapter.simulated_image(image) for name, image in observation["image"].items()}
        seen = {**observation, "state": adapter.simulated_state(observation["state"]), "image": images}
        prepared = self.prepare(seen, guidance_scale=self.guidance_scale, noise=noise, committed=committed)
        chunk = self.act([prepared])[0][..., : self.config.data.robot.action_dim]
        return self._to_openpi.observed_action(chunk, prepared.raw_state)


def digest(params: PyTree) -> str:
    """SHA-256 over path, dtype, shape and bytes of each leaf."""
    hasher = hashlib.sha256()
    for path, leaf in sorted((jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)):
        array = np.asarray(jax.device_get(leaf))
        hasher.update(f"{path} {array.dtype} {array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()
