"""A trained policy to call: what the robot sees in, a chunk of actions in the robot's own units out.

policy = Policy.from_checkpoint("runs/openpi_ript-cfg_ript-...")
actions = policy.infer({"image": {"base_0_rgb": picture}, "state": state, "prompt": "pick the cube"})["actions"]
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from chunkwise.data.images import resize_with_pad
from chunkwise.data.norm_stats import NormStats
from chunkwise.data.sampling import Purpose, generator
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies.bounds import Bounds, require_finite
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data import norm
from openpi_ript.data.inputs import ObservationArrays, make_inputs
from openpi_ript.data.transforms import ToOpenPi, absolute_action, adapt_state, require_uint8
from openpi_ript.model.guidance import guided_sample
from openpi_ript.model.pi0 import Observation, Pi0, encode, sample_actions
from openpi_ript.policies import saved

SAMPLE_STEPS = 10
"""Euler steps of a policy without guidance; openpi's number."""
MAX_STATE = 1e6
"""Largest state after normalising. The model was trained on numbers around 1; one a million times as large is a broken
sensor or another unit, and from about 1e19 on its square is no number any more."""
MAX_PROMPT = 10_000
"""Characters of a prompt; the model reads the first few dozen words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """An observation as the model takes it, on the host."""

    inputs: ObservationArrays
    raw_state: Float32[np.ndarray, "b s"]
    """The robot's own."""
    noise: Float32[np.ndarray, "b t a"]
    scale: Float32[np.ndarray, " b"]
    """Of the guidance."""
    single: bool
    """Whether it came without the axis of rows."""

    @property
    def rows(self) -> int:
        return len(self.raw_state)


class Policy:
    """Weights, statistics and tokenizer, ready to act. One call at a time; `prepare` from any number of threads."""

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
        self._sizes: tuple[int, ...] = ()
        self.bounds: Bounds | None = None
        """What becomes of actions that are far from those that it was trained on; None: they are given as they are."""
        self._action_stats = stats.get("actions")
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
            "bounds": None
            if self.bounds is None
            else self.bounds.metadata | {"relative_dims": list(robot.relative_dims)},
        }

    def example(self) -> dict[str, Any]:
        """An observation of the right shapes: black pictures, a state of zeros."""
        height, width = self.config.data.image_size
        black = np.zeros((height, width, 3), np.uint8)
        state = np.zeros(self.config.data.robot.state_dim, np.float32)
        return {"image": dict.fromkeys(self._inputs.cameras, black), "state": state, "prompt": "example"}

    def bound(self, mode: Literal["refuse", "clip"], *, margin: float) -> None:
        """From now on actions stay inside the range of the training data (see bounds.Bounds.of).

        Raises:
          ConfigError: If the statistics have no quantiles of the actions, or the margin is none.
        """
        width = self.config.data.robot.action_dim
        self.bounds = Bounds.of(self._action_stats, mode, margin=margin, width=width)

    def compile(self, sizes: Sequence[int]) -> None:
        """Compiles for batches of these numbers of rows. From then on nothing else is compiled: fewer rows are filled
        up to the next of them, more are answered part by part."""
        self._sizes = tuple(sorted(set(sizes)))
        one = self.prepare(self.example())
        for size in self._sizes:
            self.act([one] * size)

    def infer(
        self,
        observation: Mapping[str, Any],
        *,
        guidance_scale: float | None = None,
        noise: Float32[np.ndarray, "*b t a"] | None = None,
    ) -> dict[str, Any]:
        """A chunk of actions for what the robot sees; for a batch, a chunk for each.

        The first call with a new number of rows compiles, unless `compile` was called. Other scales of guidance do not.

        Args:
          observation: One, or a batch with a leading axis in every entry and a list of prompts:
            image: by openpi's name, uint8 [h, w, 3] (or [3, h, w]) of any size; None: that camera is off.
            state: the robot's own [state_dim], not normalised.
            prompt: the task in words; may be left out where data.default_prompt is set.
          guidance_scale: w of the guidance; None takes guidance.scale of the config.
          noise: Where sampling starts, [t, model.action_dim] a row; None draws another one in each call.

        Returns:
          "actions": [t, action_dim] float32, absolute, in the units of the dataset's actions. Where bounds clip also
          "clipped": how many of the values were.

        Raises:
          DataError: If an entry is missing, or of another type, shape or range than expected.
          ConfigError: If a scale is given for a policy without guidance.
          NonFiniteError: If the model answers with NaN or Inf.
          OutOfBoundsError: If an action lies outside bounds that refuse.
        """
        prepared = self.prepare(observation, guidance_scale=guidance_scale, noise=noise)
        return self.finish(prepared, self.act([prepared])[0])

    def prepare(
        self,
        observation: Mapping[str, Any],
        *,
        guidance_scale: float | None = None,
        noise: Float32[np.ndarray, "*b t a"] | None = None,
        draw: tuple[int, ...] | None = None,
        max_rows: int | None = None,
    ) -> Prepared:
        """What `act` takes of an observation.

        Args:
          observation: As `infer`.
          guidance_scale: As `infer`.
          noise: As `infer`.
          draw: Numbers that seed the noise of this call; each row's is a function of them, the policy's seed and the
            row's place in the observation. None: the number of calls so far.
          max_rows: Rows that are taken; None: any number.

        Raises:
          DataError: As `infer`.
          ConfigError: As `infer`.
        """
        scale = self._scale(guidance_scale)
        raw_state, single = self._state(observation)
        rows = len(raw_state)
        if max_rows is not None and rows > max_rows:
            raise DataError(f"state: expected at most {max_rows} rows in one request as --max-rows says, found {rows}")
        inputs = self._inputs.observation(
            self._images(observation, rows, single),
            self._normalised(raw_state),
            self._prompts(observation, rows, single),
        )
        return Prepared(
            inputs=inputs,
            raw_state=raw_state,
            noise=self._noise(noise, rows, draw),
            scale=np.full(rows, scale, np.float32),
            single=single,
        )

    def act(self, requests: Sequence[Prepared]) -> list[Float32[np.ndarray, "_ t a"]]:
        """The model's chunks of several observations, computed together: normalised, unchecked.

        No row has a part in another's chunk, wherever it stands. Batches of another size may round differently.
        """
        sent = [(request.inputs, request.noise, request.scale) for request in requests]
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *sent)
        rows = sum(request.rows for request in requests)
        at_once = self._sizes[-1] if self._sizes else rows
        chunks = []
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            size = next((size for size in self._sizes if size >= count), count)
            # The last row again fills what is left.
            chosen = np.minimum(np.arange(start, start + size), start + count - 1)
            inputs, noise, scale = jax.tree.map(lambda x, chosen=chosen: x[chosen], together)
            out = self._sample(self._params, Observation(**inputs), noise, scale, self._steps)
            chunks.append(np.asarray(out)[:count])
        ends = np.cumsum([request.rows for request in requests])
        return np.split(np.concatenate(chunks), ends[:-1])

    def finish(self, request: Prepared, chunk: Float32[np.ndarray, "b t a"]) -> dict[str, Any]:
        """What `infer` returns, from the model's chunk.

        Raises:
          NonFiniteError: As `infer`.
          OutOfBoundsError: As `infer`.
        """
        robot = self.config.data.robot
        with np.errstate(over="ignore"):  # what is infinite afterwards is refused
            actions = self._to_openpi.action.invert(chunk[..., : robot.action_dim])
        require_finite(actions)
        reply: dict[str, Any] = {}
        if self.bounds is not None:
            actions, clipped = self.bounds.apply(actions)
            if self.bounds.mode == "clip":
                reply["clipped"] = int(clipped[0]) if request.single else clipped
        actions = absolute_action(actions, request.raw_state, robot.relative_dims)
        require_finite(actions)
        return {"actions": actions[0] if request.single else actions} | reply

    def _trace(
        self,
        params: Any,
        observation: Observation,
        noise: Float32[Array, "b t a"],
        scale: Float[Array, " b"],
        steps: Int[Array, ""],
    ) -> Float32[Array, "b t a"]:
        context = encode(self._model, params, observation)
        if self.config.guidance is None:
            return sample_actions(self._model, params, context, noise, steps)
        return guided_sample(self._model, params, context, noise, scale=scale, steps=steps)

    @property
    def _steps(self) -> Int[np.ndarray, ""]:
        guidance = self.config.guidance
        return np.asarray(SAMPLE_STEPS if guidance is None else guidance.sample_steps, np.int32)

    def _scale(self, scale: float | None) -> float:
        guidance = self.config.guidance
        if guidance is None:
            if scale is not None:
                raise ConfigError(
                    f"guidance_scale is {scale} and this policy was trained without guidance; expected none"
                )
            return 1.0
        used = guidance.scale if scale is None else float(scale)
        if not (0 <= used <= np.finfo(np.float32).max):
            raise ConfigError(f"guidance_scale is {scale}; expected a number of 0 or above")
        return used

    def _noise(self, noise: np.ndarray | None, rows: int, draw: tuple[int, ...] | None) -> Float32[np.ndarray, "b t a"]:
        chunk = (self.config.model.action_horizon, self.config.model.action_dim)
        if noise is None:
            if draw is None:
                self._calls += 1
                draw = (self._calls,)
            # By numpy: a number of rows that is new would have jax compile.
            name = (self._seed % 2**32, len(draw), *draw)
            rngs = [generator(Purpose.SERVED_ACTION, *name, row) for row in range(rows)]
            return np.stack([rng.standard_normal(chunk, np.float32) for rng in rngs])
        if noise.shape not in ((rows, *chunk), chunk):
            raise DataError(f"noise: expected shape {[rows, *chunk]}, found {list(noise.shape)}")
        return np.broadcast_to(noise.astype(np.float32).reshape(-1, *chunk), (rows, *chunk))

    def _state(self, observation: Mapping[str, Any]) -> tuple[Float32[np.ndarray, "b s"], bool]:
        """States as a batch, and whether there was one only."""
        width = self.config.data.robot.state_dim
        state = _array(_entry(observation, "state"), "state")
        if state.dtype.kind not in "fiu" or state.ndim not in (1, 2) or state.shape[-1] != width or not state.size:
            raise DataError(
                f"state: expected {width} numbers, or a batch of them, found {state.dtype} {list(state.shape)}"
            )
        wide = np.atleast_2d(state.astype(np.float64))
        bad = np.argwhere(~(np.abs(wide) <= np.finfo(np.float32).max))
        if len(bad):
            raise DataError(f"state: expected finite numbers, found {wide[tuple(bad[0])]:g} {_place(bad[0], wide)}")
        return wide.astype(np.float32), state.ndim == 1

    def _normalised(self, raw_state: Float32[np.ndarray, "b s"]) -> Float32[np.ndarray, "b s2"]:
        """The state as the model takes it. Raises DataError if it is absurd."""
        with np.errstate(over="ignore"):
            state = self._to_openpi.state.apply(raw_state)
        bad = np.argwhere(~(np.abs(state) <= MAX_STATE))
        if len(bad):
            found = (
                f"{raw_state[tuple(bad[0])]:g} {_place(bad[0], state)}, which is {state[tuple(bad[0])]:g} normalised"
            )
            raise DataError(f"state: expected at most {MAX_STATE:g} after normalising, found {found}")
        return adapt_state(state, self.config.data.robot)

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
        if longest := max((len(prompt) for prompt in prompts if len(prompt) > MAX_PROMPT), default=0):
            raise DataError(f"prompt: expected at most {MAX_PROMPT} characters, found {longest}")
        filled = [prompt if prompt.strip() else default for prompt in prompts]
        if not all(filled):
            raise DataError("prompt: expected the task in words, found ''; send one, or set data.default_prompt")
        return [prompt for prompt in filled if prompt]


def _place(index: np.ndarray, batch: np.ndarray) -> str:
    """Where a value lies, in words; rows are named where there are several."""
    row, entry = index.tolist()
    return f"at entry {entry} of row {row}" if len(batch) > 1 else f"at entry {entry}"


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{name}: expected an array, found {error}") from error


def _entry(observation: Mapping[str, Any], key: str) -> Any:
    if key not in observation:
        raise DataError(f"{key}: expected it in the observation, found {sorted(map(str, observation))}")
    return observation[key]
