"""Layers 1 and 2 of the data specification: a dataset's frame -> openpi sample -> RIPT sample.

Each layer is a typed dict and a callable that makes it, used as a Grain transform. Images are height x width x RGB
uint8 here; openpi_ript/data/batch.py has layers 3 and 4, and the documents' channel-first dicts.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import NotRequired, Required, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int32, Shaped

from chunkwise.data.images import require_uint8, resize_with_pad
from chunkwise.data.norm_stats import Affine
from chunkwise.errors import DataError
from openpi_ript.config.data import RobotConfig
from openpi_ript.data.returns import ReturnSample
from openpi_ript.robots.adapter import OWN, Adapter


class RawSample(TypedDict):
    """One frame as the dataset has it, with the window of actions that begins there."""

    images: Mapping[str, np.ndarray]
    """By the dataset's camera key: [h, w, 3] uint8, as recorded."""
    state: np.ndarray
    """[state_dim] float32, of the window's own first frame."""
    action: np.ndarray
    """[t, action_dim] float32, as stored; past the episode's end the last one is repeated."""
    action_is_pad: np.ndarray
    """[t] bool, true for those repetitions."""
    task: str
    episode: int
    """Position of the episode in the frame table."""


class OpenPiSample(TypedDict, total=False):
    """Layer 1."""

    image: Required[dict[str, np.ndarray]]
    """By openpi's name (base_0_rgb, ...): [224, 224, 3] uint8, 0 to 255."""
    state: Required[np.ndarray]
    """[sample_state_dim] float32, normalised."""
    action: Required[np.ndarray]
    """[t, action_dim] float32, relative to the window's own state where the robot's config says so."""
    action_is_pad: Required[np.ndarray]
    """[t] bool."""
    prompt: Required[str]
    episode: int
    """Position of the episode in the frame table; no part of the specification."""


class RiptSample(OpenPiSample):
    """Layer 2."""

    advantages: Required[np.ndarray]
    """[t] float32, the episode's processed advantage at every step."""
    init_hash: Required[str]
    optimality: NotRequired[int]
    """Value of `Optimality`, from the raw advantage; no part of the specification, not to be read off `advantages`."""
    returns: NotRequired[ReturnSample]
    """Where chunks are labelled by a value; no part of the specification."""
    rollout_success: NotRequired[bool]
    rollout_reward: NotRequired[float]
    episode_length: NotRequired[int]


def adapt_state(state: Float32[np.ndarray, "*b s"], robot: RobotConfig) -> Float32[np.ndarray, "*b s2"]:
    """Pads with zeros, or cuts, the last axis to robot.sample_state_dim.

    Raises:
      DataError: If the state is not robot.state_dim wide.
    """
    width = state.shape[-1]
    if width != robot.state_dim:
        raise DataError(f"state: expected {robot.state_dim} values as robot.state_dim says, found {width}")
    adapted = np.zeros((*state.shape[:-1], robot.sample_state_dim), np.float32)
    kept = min(width, robot.sample_state_dim)
    adapted[..., :kept] = state[..., :kept]
    return adapted


def relative_action(
    action: Float[np.ndarray, "*b t a"], state: Float[np.ndarray, "*b s"], dims: Sequence[int]
) -> Float[np.ndarray, "*b t a"]:
    """action - state on `dims`, where `state` is that of the window's first frame, not normalised. Copies."""
    relative = action.copy()
    relative[..., list(dims)] -= state[..., None, list(dims)]
    return relative


def absolute_action(
    action: Float[np.ndarray, "*b t a"], state: Float[np.ndarray, "*b s"], dims: Sequence[int]
) -> Float[np.ndarray, "*b t a"]:
    """Undoes `relative_action`, up to rounding."""
    absolute = action.copy()
    absolute[..., list(dims)] += state[..., None, list(dims)]
    return absolute


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToOpenPi:
    """Layer 1 from a dataset's frame: images resized, state normalised and adapted, action relative, prompt."""

    cameras: Mapping[str, str]
    """openpi's name to the dataset's key."""
    image_size: tuple[int, int]
    robot: RobotConfig
    state: Affine
    """Normalises the state, before it is padded or cut."""
    action: Affine
    """Normalises the action, after it was made relative."""
    default_prompt: str | None = None
    adapter: Adapter = OWN
    """Between the robot's numbers and the policy's, in which state and action are normalised."""

    def __call__(self, raw: RawSample) -> OpenPiSample:
        """Raises DataError for a sample that went through here before, float images, wrong widths, no prompt."""
        if "prompt" in raw or "image" in raw:
            raise DataError(
                "ToOpenPi: expected a dataset's frame with an absolute action, found a sample that is in openpi's "
                "format already; its state would be subtracted from the action a second time"
            )
        missing = sorted(set(self.cameras.values()) - set(raw["images"]))
        if missing:
            raise DataError(f"images: expected {missing}, found {sorted(raw['images'])}")
        if raw["action"].shape[-1] != self.robot.action_dim:
            found = raw["action"].shape[-1]
            raise DataError(f"action: expected {self.robot.action_dim} values as robot.action_dim says, found {found}")
        for name in ("state", "action"):
            if not np.isfinite(raw[name]).all():
                raise DataError(f"{name}: expected finite numbers, found NaN or Inf in episode {raw['episode']}")
        prompt = raw["task"] if raw["task"].strip() else self.default_prompt
        if not prompt:
            raise DataError(f"episode {raw['episode']}: expected a task, found ''; set data.default_prompt")
        return {
            "image": {name: self._image(raw["images"][key], key) for name, key in self.cameras.items()},
            "state": adapt_state(self.state.apply(self.adapter.state(raw["state"])), self.robot),
            "action": self.seen_action(raw["action"], raw["state"]),
            "action_is_pad": raw["action_is_pad"],
            "prompt": prompt,
            "episode": raw["episode"],
        }

    def _image(self, image: np.ndarray, key: str) -> np.ndarray:
        require_uint8(image, key)
        return resize_with_pad(image, *self.image_size)

    def observed_action(
        self, action: Float[np.ndarray, "*b t a"], state: Float32[np.ndarray, "*b s"]
    ) -> Float32[np.ndarray, "*b t a"]:
        """What a robot is sent for a chunk that the policy gave: normalisation and relative frame undone.

        Args:
          action: The policy's chunk.
          state: Raw state at which the policy was asked.
        """
        return self.sent_action(self.action.invert(action), state)

    def seen_action(
        self, action: Float[np.ndarray, "*b t a"], state: Float32[np.ndarray, "*b s"]
    ) -> Float32[np.ndarray, "*b t a"]:
        """What the policy has of a robot's chunk: undoes `observed_action`."""
        relative = relative_action(self.adapter.action(action), self.adapter.state(state), self.robot.relative_dims)
        return self.action.apply(relative)

    def sent_action(
        self, action: Float[np.ndarray, "*b t a"], state: Float32[np.ndarray, "*b s"]
    ) -> Float32[np.ndarray, "*b t a"]:
        """What a robot is sent for actions that are relative where the config says so, and normalised no more."""
        absolute = absolute_action(action, self.adapter.state(state), self.robot.relative_dims)
        return self.adapter.acted(absolute).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollouts:
    """What is known of each episode as a rollout; arrays over the episodes of the frame table."""

    init_hash: Sequence[str]
    success: Bool[np.ndarray, " e"]
    reward: Float64[np.ndarray, " e"]
    length: np.ndarray
    raw_advantage: Float64[np.ndarray, " e"]
    """RLOO, before it was shaped."""
    advantage: Float32[np.ndarray, " e"]
    """Processed."""
    optimality: Int32[np.ndarray, " e"]
    """Label by the sign of raw_advantage."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToRipt:
    """Layer 2 from layer 1: the episode's advantage at every step, the hash of its initial state, its outcome."""

    rollouts: Rollouts

    def __call__(self, sample: OpenPiSample) -> RiptSample:
        """Raises DataError if the sample does not say which episode it is from."""
        if "episode" not in sample:
            raise DataError("ToRipt: expected key 'episode', the position of the sample's episode, found none")
        episode, rollouts = sample["episode"], self.rollouts
        advantage = rollouts.advantage[episode]
        return {
            **sample,
            "advantages": np.full(len(sample["action"]), advantage, np.float32),
            "init_hash": rollouts.init_hash[episode],
            "optimality": int(rollouts.optimality[episode]),
            "rollout_success": bool(rollouts.success[episode]),
            "rollout_reward": float(rollouts.reward[episode]),
            "episode_length": int(rollouts.length[episode]),
        }


def init_hash(state: Shaped[np.ndarray, " s"]) -> str:
    """16 hex digits of the SHA-256 of an initial state's bytes: equal for bitwise equal states alone."""
    return hashlib.sha256(np.ascontiguousarray(state).tobytes()).hexdigest()[:16]
