"""A trained policy to call: what the robot sees in, a chunk of actions in the robot's own units out.

policy = Policy.from_checkpoint("runs/openpi_ript-cfg_ript-...")
actions = policy.infer({"image": {"base_0_rgb": picture}, "state": state, "prompt": "pick the cube"})["actions"]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from core import prng
from core.errors import ConfigError, DataError
from core.images import resize_with_pad
from core.norm_stats import NormStats
from openpi_ript import norm, saved
from openpi_ript.config import OpenpiRiptConfig
from openpi_ript.guidance import guided_sample
from openpi_ript.inputs import make_inputs
from openpi_ript.model.pi0 import Observation, Pi0, encode, sample_actions
from openpi_ript.transforms import ToOpenPi, adapt_state, require_uint8

SAMPLE_STEPS = 10
"""Euler steps of a policy without guidance; openpi's number."""


class Policy:
    """Weights, statistics and tokenizer, ready to act. One call at a time."""

    def __init__(
        self, config: OpenpiRiptConfig, params: Any, stats: Mapping[str, NormStats], *, step: int = 0, seed: int = 0
    ) -> None:
        """A policy from its parts; `from_checkpoint` reads them.

        Args:
          config: Of the run, or of the model that an openpi checkpoint holds.
          params: Weights of config.model.
          stats: Of "state" and "actions", as far as they are normalised.
          step: Updates that made the weights; shown in `metadata`.
          seed: Of the noise from which chunks are sampled.

        Raises:
          ConfigError: If the tokenizer is missing.
          DataError: If statistics are missing.
        """
        data, robot = config.data, config.data.robot
        for name, mode in (("state", data.state_norm), ("actions", data.action_norm)):
            if mode != "none" and name not in stats:
                raise DataError(f"norm statistics: expected {name!r}, found {sorted(stats)}")
        self.config = config
        self.step = step
        self._params = jax.device_put(params, jax.local_devices()[0])
        self._seed = seed
        self._calls = 0
        self._inputs = make_inputs(config.model, robot, tuple(data.cameras), config.tokenizer)
        self._to_openpi = ToOpenPi(
            cameras=data.cameras,
            image_size=data.image_size,
            robot=robot,
            state=norm.affine(stats.get("state"), data.state_norm, width=robot.state_dim, name="state")[0],
            action=norm.affine(stats.get("actions"), data.action_norm, width=robot.action_dim, name="actions")[0],
            default_prompt=data.default_prompt,
        )
        self._model = Pi0(config.model)
        self._sample = jax.jit(self._trace)

    @classmethod
    def from_checkpoint(cls, folder: str | Path, *, config: OpenpiRiptConfig | None = None, seed: int = 0) -> "Policy":
        """The policy of a run's newest checkpoint, or of an openpi checkpoint.

        Args:
          folder: A run's folder (its moving average is used where one is kept), an openpi checkpoint folder, or a
            .safetensors file.
          config: For weights that are not a run of this project: model, robot, cameras, tokenizer. A run has its own.
          seed: Of the noise.

        Raises:
          ConfigError: If the config is missing, given for a run, or damaged; or the tokenizer is missing.
          DataError: If there is no whole checkpoint, weights do not fit the model, or statistics are missing.
        """
        folder = Path(folder)
        if saved.is_run(folder):
            if config is not None:
                raise ConfigError(f"{folder} is a run and has its own config; expected no other, found one")
            config = saved.read_config(folder)
            step, params = saved.read_run_weights(folder, config)
        elif config is None:
            raise ConfigError(
                f"{folder} is no run of this project (it has no config.json); weights in openpi's format need a config "
                "that says what model and robot they are for"
            )
        else:
            step, params = 0, saved.read_openpi_weights(folder, config)
        return cls(config, params, saved.read_stats(folder, config), step=step, seed=seed)

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client should know, as plain values."""
        robot = self.config.data.robot
        return {
            "model": self.config.model.kind,
            "step": self.step,
            "cameras": list(self._inputs.cameras),
            "state_dim": robot.state_dim,
            "action_dim": robot.action_dim,
            "action_horizon": self.config.model.action_horizon,
            "guidance_scale": None if self.config.guidance is None else self.config.guidance.scale,
        }

    def example(self) -> dict[str, Any]:
        """An observation of the right shapes: black pictures, a state of zeros."""
        height, width = self.config.data.image_size
        black = np.zeros((height, width, 3), np.uint8)
        state = np.zeros(self.config.data.robot.state_dim, np.float32)
        return {"image": dict.fromkeys(self._inputs.cameras, black), "state": state, "prompt": "example"}

    def infer(
        self,
        observation: Mapping[str, Any],
        *,
        guidance_scale: float | None = None,
        noise: Float32[np.ndarray, "*b t a"] | None = None,
    ) -> dict[str, np.ndarray]:
        """A chunk of actions for what the robot sees; for a batch, a chunk for each.

        The first call with a new number of rows compiles. Other scales of guidance do not.

        Args:
          observation: One, or a batch with a leading axis in every entry and a list of prompts:
            image: by openpi's name, uint8 [h, w, 3] (or [3, h, w]) of any size; None: that camera is off.
            state: the robot's own [state_dim], not normalised.
            prompt: the task in words; may be left out where data.default_prompt is set.
          guidance_scale: w of the guidance; None takes guidance.scale of the config.
          noise: Where sampling starts, [t, model.action_dim] a row; None draws another one in each call.

        Returns:
          "actions": [t, action_dim] float32, absolute, in the units of the dataset's actions.

        Raises:
          DataError: If an entry is missing, or of another type, shape or range than expected.
          ConfigError: If a scale is given for a policy without guidance.
        """
        scale, steps = self._guidance(guidance_scale)
        raw_state, single = self._state(observation)
        rows = len(raw_state)
        state = adapt_state(self._to_openpi.state.apply(raw_state), self.config.data.robot)
        seen: Any = self._inputs.observation(
            self._images(observation, rows, single), state, self._prompts(observation, rows, single)
        )
        chunks = self._sample(self._params, Observation(**seen), self._noise(noise, rows), scale, steps)
        actions = np.asarray(chunks)[..., : self.config.data.robot.action_dim]
        actions = self._to_openpi.observed_action(actions, raw_state)
        return {"actions": actions[0] if single else actions}

    def _trace(
        self,
        params: Any,
        observation: Observation,
        noise: Float32[Array, "b t a"],
        scale: Float[Array, ""],
        steps: Int[Array, ""],
    ) -> Float32[Array, "b t a"]:
        context = encode(self._model, params, observation)
        if self.config.guidance is None:
            return sample_actions(self._model, params, context, noise, steps)
        return guided_sample(self._model, params, context, noise, scale=scale, steps=steps)

    def _guidance(self, scale: float | None) -> tuple[Float32[np.ndarray, ""], Int[np.ndarray, ""]]:
        guidance = self.config.guidance
        if guidance is None:
            if scale is not None:
                raise ConfigError(
                    f"guidance_scale is {scale} and this policy was trained without guidance; expected none"
                )
            return np.asarray(1.0, np.float32), np.asarray(SAMPLE_STEPS, np.int32)
        used = guidance.scale if scale is None else float(scale)
        if not (np.isfinite(used) and used >= 0):
            raise ConfigError(f"guidance_scale is {scale}; expected a number of 0 or above")
        return np.asarray(used, np.float32), np.asarray(guidance.sample_steps, np.int32)

    def _noise(self, noise: np.ndarray | None, rows: int) -> Float32[Array, "b t a"]:
        shape = (rows, self.config.model.action_horizon, self.config.model.action_dim)
        if noise is None:
            self._calls += 1
            return jax.random.normal(prng.key(self._seed, "policy", self._calls), shape)
        if noise.shape not in (shape, shape[1:]):
            raise DataError(f"noise: expected shape {list(shape)}, found {list(noise.shape)}")
        return jnp.broadcast_to(jnp.asarray(noise, jnp.float32).reshape(-1, *shape[1:]), shape)

    def _state(self, observation: Mapping[str, Any]) -> tuple[Float32[np.ndarray, "b s"], bool]:
        """States as a batch, and whether there was one only."""
        width = self.config.data.robot.state_dim
        state = _array(_entry(observation, "state"), "state")
        if state.dtype.kind not in "fiu" or state.ndim not in (1, 2) or state.shape[-1] != width or not state.size:
            raise DataError(
                f"state: expected {width} numbers, or a batch of them, found {state.dtype} {list(state.shape)}"
            )
        bad = state[~(np.abs(state.astype(np.float64)) <= np.finfo(np.float32).max)]
        if bad.size:
            raise DataError(f"state: expected finite numbers, found {bad[:3]}")
        return np.atleast_2d(state.astype(np.float32)), state.ndim == 1

    def _images(self, observation: Mapping[str, Any], rows: int, single: bool) -> dict[str, np.ndarray | None]:
        given = _entry(observation, "image") if self._inputs.cameras else {}
        if not isinstance(given, Mapping) or set(given) != set(self._inputs.cameras):
            got = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
            raise DataError(
                f"image: expected a dict with {list(self._inputs.cameras)}, None for a camera that is off; found {got}"
            )
        images: dict[str, np.ndarray | None] = {}
        for name, value in given.items():
            if value is None:
                images[name] = None
                continue
            pictures = _array(value, f"image {name}")
            pictures = pictures[None] if single else pictures
            if pictures.ndim != 4 or len(pictures) != rows:
                wanted = "one picture [h, w, 3]" if single else f"{rows} pictures [{rows}, h, w, 3]"
                raise DataError(f"image {name}: expected {wanted}, found shape {list(np.shape(value))}")
            if pictures.shape[1] == 3 and pictures.shape[3] != 3:
                pictures = pictures.transpose(0, 2, 3, 1)
            require_uint8(pictures[0], name)
            images[name] = np.stack([resize_with_pad(one, *self.config.data.image_size) for one in pictures])
        return images

    def _prompts(self, observation: Mapping[str, Any], rows: int, single: bool) -> Sequence[str]:
        default = self.config.data.default_prompt
        given = observation.get("prompt", "")
        prompts = [given] * rows if isinstance(given, str) else given
        several = isinstance(prompts, Sequence | np.ndarray) and np.ndim(prompts) == 1 and len(prompts) == rows
        if not several or not all(isinstance(prompt, str) for prompt in prompts):
            wanted = "text" if single else f"text, or {rows} of them"
            raise DataError(f"prompt: expected {wanted}, found {type(given).__name__} {str(given)[:80]!r}")
        filled = [prompt if prompt.strip() else default for prompt in prompts]
        if not all(filled):
            raise DataError("prompt: expected the task in words, found ''; send one, or set data.default_prompt")
        return [prompt for prompt in filled if prompt]


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{name}: expected an array, found {error}") from error


def _entry(observation: Mapping[str, Any], key: str) -> Any:
    if key not in observation:
        raise DataError(f"{key}: expected it in the observation, found {sorted(map(str, observation))}")
    return observation[key]
