"""A trained policy to call: what the robot sees in, a chunk of actions in the robot's own units out.

policy = Policy.from_checkpoint("runs/openpi_ript-cfg_ript-...")
actions = policy.infer({"image": {"base_0_rgb": image}, "state": state, "prompt": "pick the cube"})["actions"]
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.weights import Which
from chunkwise.data.images import resize_with_pad
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies import observations, policy
from chunkwise.policies.execution import Committed, padded
from chunkwise.policies.policy import Asked, Draws
from chunkwise.policies.runner import draw_noise
from chunkwise.policies.spec import TEXT, Entry, Exportable, Spec, image_entry
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data import norm
from openpi_ript.data.inputs import make_inputs
from openpi_ript.data.transforms import ToOpenPi, adapt_state
from openpi_ript.model import int8
from openpi_ript.model.guidance import guided_sample
from openpi_ript.model.pi0 import Known, Observation, Pi0, as_used, encode, sample_actions
from openpi_ript.policies import saved
from openpi_ript.robots.adapter import find_adapter

SAMPLE_STEPS = 10
"""Euler steps of a policy without guidance and without rollout.ppo; openpi's number."""
MAX_PROMPT = 10_000
"""Characters of a prompt; the model reads the first few dozen words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared(policy.Prepared):
    """`inputs` are the model's observation, noise, and the scale of the guidance."""

    raw_state: Float32[np.ndarray, "b s"]
    """The robot's own."""


class Policy(policy.Policy[Prepared]):
    """Weights, statistics and tokenizer, ready to act.

    Options of a call:
      seed: of the noise of a request with one row, 0 to 2^32 - 1; by default `draw` says what is drawn.
      guidance_scale: w of the guidance, 0 or above; by default guidance.scale of the config. Refused without guidance.
      noise: where sampling starts, [t, model.action_dim] a row; by default it is drawn.
      committed: what the chunk is completed from, for real-time chunking (`Committed`); for a batch, of each row.
    """

    options = ("guidance_scale", "seed")
    local_options = ("noise", "committed")

    def __init__(
        self,
        config: OpenpiRiptConfig,
        params: Any,
        stats: Mapping[str, NormStats],
        *,
        step: int = 0,
        seed: int = 0,
        allow_code: bool = False,
        dtype: Literal["float32", "bfloat16", "int8"] = "float32",
    ) -> None:
        """A policy from its parts; `from_checkpoint` reads them.

        Args:
          config: Of the run, or of the model that an openpi checkpoint holds.
          params: Weights of config.model.
          stats: Of "state" and "actions", as far as they are normalised.
          step: Updates that made the weights; shown in `metadata`.
          seed: Of the noise from which chunks are sampled.
          allow_code: Whether the user named `module:factory`, if that is what data.robot.adapter is.
          dtype: In which the weights are kept; bfloat16 halves their memory, and is what openpi's server does;
            int8 halves that again, by rounding the matrices (model/int8.py).

        Raises:
          ConfigError: If the tokenizer is missing, or the adapter is code that the user did not name.
          DataError: If statistics are missing.
        """
        data, robot = config.data, config.data.robot
        for name, mode in (("state", data.state_norm), ("actions", data.action_norm)):
            if mode != "none" and name not in stats:
                raise DataError(f"norm statistics: expected {name!r}, found {sorted(stats)}")
        super().__init__(step=step, seed=seed)
        self.config = config
        self._dtype = dtype
        device = jax.local_devices()[0]
        # One at a time: two copies of all weights may be more than there is memory.
        self._params = int8.kept_in(params, dtype, lambda leaf: jax.device_put(leaf, device))
        self._stats = stats
        self._inputs = make_inputs(config.model, robot, tuple(data.cameras), config.tokenizer)
        state, action = norm.affines(data, stats)
        self._to_openpi = ToOpenPi(
            cameras=data.cameras,
            image_size=data.image_size,
            robot=robot,
            state=state[0],
            action=action[0],
            default_prompt=data.default_prompt,
            adapter=find_adapter(robot.adapter, allow_code=allow_code),
        )
        self._sample = jax.jit(sampler(config, dtype))

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        config: OpenpiRiptConfig | None = None,
        checkpoint: int | Which = "newest",
        seed: int = 0,
        allow_code: str | None = None,
        dtype: Literal["float32", "bfloat16", "int8"] = "float32",
    ) -> "Policy":
        """Loads the policy of a run, or of an openpi checkpoint.

        Args:
          folder: A run's folder (its moving average is used where one is kept), an openpi checkpoint folder, or a
            .safetensors file.
          config: For weights that are not a run of this project: model, robot, cameras, tokenizer. A run has its own.
          checkpoint: Which of a run's checkpoints; see chunkwise.checkpoint.weights.
          seed: Of the noise.
          allow_code: `module:factory` of the run's data.robot.adapter, which may then be imported: you trust it.
          dtype: In which the weights are kept.

        Raises:
          ConfigError: If the config is missing, given for a run, or damaged; or the tokenizer is missing.
          DataError: If there is no whole checkpoint, weights do not fit the model, or statistics are missing.
        """
        folder, own = Path(folder), config is not None
        if saved.is_run(folder):
            if config is not None:
                raise ConfigError(f"{folder} is a run and has its own config; expected no other, found one")
            config = saved.read_config(folder)
            step, params = saved.read_run_weights(folder, config, checkpoint=checkpoint)
        elif config is None:
            raise ConfigError(
                f"{folder} is no run of this project (it has no config.json); weights in openpi's format need a config "
                "that says what model and robot they are for"
            )
        elif checkpoint != "newest":
            raise ConfigError(f"checkpoint is {checkpoint}, and {folder} is no run, which has several; expected none")
        else:
            step, params = 0, saved.read_openpi_weights(folder, config)
        trusted = own or config.data.robot.adapter == allow_code
        stats = saved.read_stats(folder, config)
        return cls(config, params, stats, step=step, seed=seed, allow_code=trusted, dtype=dtype)

    @property
    def entries(self) -> frozenset[str] | None:
        """See Policy; with the names of the robot's own client, and None with an adapter that names none."""
        own, theirs = super().entries, self._to_openpi.adapter.entries
        return None if own is None or theirs is None else own | theirs

    @property
    def spec(self) -> Spec:
        """Cameras, state and prompt; actions absolute, as in the dataset."""
        data, robot = self.config.data, self.config.data.robot
        prompt = "the task in words" + ("" if data.default_prompt is None else f"; empty: {data.default_prompt!r}")
        own = self._to_openpi.adapter.words or "as in the dataset"
        return Spec(
            observation={
                **{
                    f"image/{name}": image_entry(name, data.image_size, may_be_none=True)
                    for name in self._inputs.cameras
                },
                "state": Entry(shape=(robot.state_dim,), dtype="float32", unit=own, meaning="not normalised"),
                "prompt": Entry(shape=(), dtype=TEXT, unit="words", meaning=prompt),
            },
            actions=Entry(
                shape=(self.config.model.action_horizon, robot.action_dim),
                dtype="float32",
                unit=own,
                meaning="absolute",
            ),
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client should know, as plain values."""
        robot, bounds = self.config.data.robot, self.bounds
        return super().metadata | {
            "model": self.config.model.kind,
            "cameras": list(self._inputs.cameras),
            "state_dim": robot.state_dim,
            "dtype": self._dtype,
            "adapter": robot.adapter,
            **self._to_openpi.adapter.metadata,
            "guidance_scale": None if self.config.guidance is None else self.config.guidance.scale,
            "bounds": None if bounds is None else bounds.metadata | {"relative_dims": list(robot.relative_dims)},
        }

    def _prepare(
        self, observation: Mapping[str, Any], draw: Draws, max_rows: int | None, options: Mapping[str, Any]
    ) -> Prepared:
        scale = self._scale(options.get("guidance_scale"))
        adapter = self._to_openpi.adapter
        raw_state, single = observations.numbers(observation, "state", self.config.data.robot.state_dim)
        rows = len(raw_state)
        observations.require_rows("state", rows, max_rows)
        size = self.config.data.image_size
        inputs = self._inputs.observation(
            observations.images(
                observation,
                self._inputs.cameras,
                lambda _, image: resize_with_pad(image, *size),
                rows=rows,
                single=single,
                may_be_off=True,
            ),
            adapt_state(
                observations.normalised(self._to_openpi.state, adapter.state(raw_state), "state"),
                self.config.data.robot,
            ),
            self._prompts(observation, rows, single),
        )
        noise = self._noise(options.get("noise"), rows, draw)
        if "seed" in options:
            noise = draw_noise(observations.one_seed(options["seed"], rows)[0], noise.shape[1:])[None]
        scales = np.full(rows, scale, np.float32)
        sent = {"observation": inputs, "noise": noise, "scale": scales}
        if (committed := options.get("committed")) is not None:
            sent["known"] = self._known([committed] if single else committed, raw_state)
        return Prepared(inputs=sent, raw_state=raw_state, rows=rows, single=single)

    def _by_spec(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        return observations.nested(self._to_openpi.adapter.observation(observation, self._inputs.cameras), "image")

    def _compute(self, inputs: Any) -> Any:
        observed = Observation(**inputs["observation"])
        known = Known(**inputs["known"]) if "known" in inputs else None
        return self._sample(self._params, observed, inputs["noise"], inputs["scale"], sample_steps(self.config), known)

    def _known(
        self, committed: Sequence[Committed], raw_state: Float32[np.ndarray, "b s"]
    ) -> dict[str, Float32[np.ndarray, "b t n"]]:
        """What is committed as the model has it: relative, normalised, nothing in the dimensions that are padding."""
        if len(committed) != len(raw_state):
            raise DataError(f"committed: expected what is committed in {len(raw_state)} rows, found {len(committed)}")
        model, robot = self.config.model, self.config.data.robot
        actions, weights = padded(committed, model.action_horizon, robot.action_dim)
        own = [(0, 0), (0, 0), (0, model.action_dim - robot.action_dim)]
        normal = np.pad(self._to_openpi.seen_action(actions, raw_state), own)
        per_number = np.repeat(weights[..., None], robot.action_dim, axis=-1)
        return {"actions": normal, "weights": np.pad(per_number, own)}

    def _denormalised(self, chunk: Float32[np.ndarray, "b t d"]) -> Float32[np.ndarray, "b t a"]:
        return self._to_openpi.action.invert(chunk[..., : self.config.data.robot.action_dim])

    def _absolute(self, actions: Float32[np.ndarray, "b t a"], request: Prepared) -> Float32[np.ndarray, "b t a"]:
        return self._to_openpi.sent_action(actions, request.raw_state)

    def exportable(self) -> Exportable:
        """Inputs: `state`, raw; `images` (k, h, w, 3), cameras by their names' order, `image_mask` (k) where one is on;
        `tokens` and `token_mask`; `noise`, drawn from the seed if left out; with guidance `guidance_scale`."""
        model, robot, cameras = self.config.model, self.config.data.robot, len(self._inputs.cameras)
        if not self._to_openpi.adapter.same_numbers:
            raise ConfigError(
                f"data.robot.adapter is {robot.adapter}, which changes numbers, and an export has no place for that; "
                "serve the policy instead (chunkwise serve)"
            )
        inputs: dict[str, tuple[tuple[int, ...], str]] = {
            "state": ((robot.state_dim,), "float32"),
            "tokens": ((model.prompt_tokens,), "int32"),
            "token_mask": ((model.prompt_tokens,), "bool"),
            "noise": ((model.action_horizon, model.action_dim), "float32"),
        }
        defaults: dict[str, bool | float] = {}
        if cameras:
            inputs["images"] = ((cameras, model.image_size, model.image_size, 3), "uint8")
            inputs["image_mask"], defaults["image_mask"] = ((cameras,), "bool"), True
        if self.config.guidance is not None:
            inputs["guidance_scale"], defaults["guidance_scale"] = ((), "float32"), self.config.guidance.scale

        def program(params: PyTree, given: dict[str, Any]) -> Any:
            rows, kept = len(given["state"]), min(robot.state_dim, robot.sample_state_dim)
            black = jnp.zeros((rows, 1, model.image_size, model.image_size, 3), jnp.uint8)
            observed = Observation(
                images=given.get("images", black),
                image_mask=given.get("image_mask", jnp.zeros((rows, 1), bool)),
                state=jnp.zeros((rows, model.action_dim), jnp.float32).at[:, :kept].set(given["state"][:, :kept]),
                tokens=given["tokens"],
                token_mask=given["token_mask"],
            )
            scale = given.get("guidance_scale", jnp.ones(rows, jnp.float32))
            chunk = self._sample(params, observed, given["noise"], scale, sample_steps(self.config), None)
            return chunk[..., : robot.action_dim]

        return Exportable(
            program=program,
            params=self._params,
            inputs=inputs,
            normalised={"state": self._to_openpi.state},
            actions=self._to_openpi.action,
            order={"images": self._inputs.cameras, "image_mask": self._inputs.cameras} if cameras else {},
            seed=None,
            noise="noise",
            defaults=defaults,
            ranges={"tokens": (0, model.vocab_size - 1), "guidance_scale": (0, None)},
            masks={"tokens": "token_mask"},
            relative={"state": robot.relative_dims},
            files={"tokenizer.model": Path(self.config.tokenizer)},
            spec=self.spec,
        )

    def _action_stats(self) -> NormStats | None:
        return self._stats.get("actions")

    def _scale(self, scale: float | None) -> float:
        guidance = self.config.guidance
        if guidance is None:
            if scale is not None:
                raise ConfigError(
                    f"guidance_scale is {scale} and this policy was trained without guidance; expected none"
                )
            return 1.0
        used = guidance.scale if scale is None else float(scale)
        if not (0 <= used <= float(np.finfo(np.float32).max)):
            raise ConfigError(f"guidance_scale is {scale}; expected a number of 0 or above")
        return used

    def _noise(self, noise: np.ndarray | None, rows: int, draw: Draws) -> Float32[np.ndarray, "b t a"]:
        chunk = (self.config.model.action_horizon, self.config.model.action_dim)
        if noise is None:
            return np.stack([rng.standard_normal(chunk, np.float32) for rng in self._row_generators(draw, rows)])
        if noise.shape not in ((rows, *chunk), chunk):
            raise DataError(f"noise: expected shape {[rows, *chunk]}, found {list(noise.shape)}")
        return np.broadcast_to(noise.astype(np.float32).reshape(-1, *chunk), (rows, *chunk))

    def _prompts(self, observation: Mapping[str, Any], rows: int, single: bool) -> list[str]:
        default = self.config.data.default_prompt
        prompts = observations.texts(observation, "prompt", rows=rows, single=single, default="")
        if longest := max((len(prompt) for prompt in prompts if len(prompt) > MAX_PROMPT), default=0):
            raise DataError(f"prompt: expected at most {MAX_PROMPT} characters, found {longest}")
        filled = [prompt if prompt.strip() else default for prompt in prompts]
        if not all(filled):
            raise DataError("prompt: expected the task in words, found ''; send one, or set data.default_prompt")
        return [prompt for prompt in filled if prompt]


def sampler(config: OpenpiRiptConfig, dtype: Literal["float32", "bfloat16", "int8"]) -> Callable[..., Array]:
    """Returns what a policy compiles: normalised chunks of weights, observation, noise, guidance scale, steps, `Known`.

    Args:
      config: Of the run.
      dtype: In which the weights are kept.
    """
    model = Pi0(config.model)

    def sample(
        params: PyTree,
        observation: Observation,
        noise: Float32[Array, "b t a"],
        scale: Float[Array, " b"],
        steps: Int[Array, ""],
        known: Known | None,
    ) -> Float32[Array, "b t a"]:
        if dtype != "float32":
            params = as_used(params)
        context = encode(model, params, observation)
        if config.guidance is None:
            return sample_actions(model, params, context, noise, steps, known)
        return guided_sample(model, params, context, noise, scale=scale, steps=steps, known=known)

    return sample


def sample_steps(config: OpenpiRiptConfig) -> Int[np.ndarray, ""]:
    """Returns the Euler steps of a run's policy."""
    guidance, rollout, steps = config.guidance, config.rollout, SAMPLE_STEPS
    if guidance is not None:
        steps = guidance.sample_steps
    elif rollout is not None and rollout.objective == "ppo":
        steps = rollout.ppo.sample_steps
    return np.asarray(steps, np.int32)


def load(asked: Asked) -> Policy:
    """Loads a policy for `chunkwise.load_policy`; see Policy.from_checkpoint."""
    config = asked.config
    if not isinstance(config, OpenpiRiptConfig | None):
        raise ConfigError(f"config: expected one of openpi_ript, found {type(config).__name__}")
    return Policy.from_checkpoint(
        asked.folder,
        config=config,
        checkpoint=asked.checkpoint,
        seed=asked.seed,
        allow_code=asked.allow_code,
        dtype=asked.dtype or "float32",
    )
