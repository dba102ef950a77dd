"""Layer 3 of the data -> what the model takes: cameras stacked, widths padded, prompts as tokens. Host code, numpy.

Padded action dimensions hold zeros and are trained on, as in openpi: their velocity is the noise minus 0, which the
model learns at once, and the fitted weights of openpi's checkpoints expect it. They are cut off when acting.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
from jaxtyping import Float, Float32

from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.model import ModelConfig
from openpi_ript.data.batch import TrainingBatch
from openpi_ript.data.returns import ReturnBatch
from openpi_ript.data.tokenizer import PromptTokenizer


class ObservationArrays(TypedDict):
    """The fields of `model.pi0.Observation`, on the host."""

    images: np.ndarray
    """[b, k, h, w, 3] uint8, cameras in the order of their names."""
    image_mask: np.ndarray
    """[b, k] bool."""
    state: np.ndarray
    """[b, model.action_dim] float32, normalised, then zeros."""
    tokens: np.ndarray
    """[b, n] int32."""
    token_mask: np.ndarray
    """[b, n] bool."""


class LaterArrays(TypedDict):
    """What a value sees of a later observation."""

    state: np.ndarray
    """[b, model.action_dim] float32."""
    images: NotRequired[np.ndarray]
    """[b, k, h, w, 3] uint8; none without cameras."""


class ReturnArrays(TypedDict):
    """`ReturnBatch` with observations as a model takes them."""

    observed: np.ndarray
    ahead: np.ndarray
    continues: np.ndarray
    task: np.ndarray
    forced: np.ndarray
    later: NotRequired[LaterArrays]


class ModelBatch(TypedDict):
    """What a train step takes."""

    observation: ObservationArrays
    actions: np.ndarray
    """[b, t, model.action_dim] float32, then zeros."""
    action_is_pad: np.ndarray
    """[b, t] bool."""
    optimality: np.ndarray
    """[b] int32, values of `Optimality`."""
    advantages: np.ndarray
    """[b] float32, processed."""
    returns: NotRequired[ReturnArrays]
    """Where chunks are labelled by a value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToModel:
    """Makes model inputs; `make_inputs` builds it from a config."""

    model: ModelConfig
    robot: RobotConfig
    cameras: tuple[str, ...]
    """openpi's names, sorted, as the model wants them."""
    tokenizer: PromptTokenizer

    def __call__(self, batch: TrainingBatch) -> ModelBatch:
        """Raises DataError if the chunks are not as long as the model's."""
        chunk = batch["action"]
        if chunk.shape[1] != self.model.action_horizon:
            raise DataError(
                f"action: expected chunks of {self.model.action_horizon} steps as model.action_horizon says, found "
                f"{chunk.shape[1]}"
            )
        inputs: ModelBatch = {
            "observation": self.observation(batch["image"], batch["state"], batch["prompt"]),
            "actions": pad_last(chunk, self.model.action_dim),
            "action_is_pad": batch["action_is_pad"],
            "optimality": batch["optimality"],
            "advantages": batch["advantages"],
        }
        return {**inputs, "returns": self._returns(batch["returns"], batch["prompt"])} if "returns" in batch else inputs

    def _returns(self, returns: ReturnBatch, prompts: Sequence[str]) -> ReturnArrays:
        """What came of each row, with what was seen later as the model would see it."""
        arrays: ReturnArrays = {
            "observed": returns["observed"],
            "ahead": returns["ahead"],
            "continues": returns["continues"],
            "task": returns["task"],
            "forced": returns["forced"],
        }
        if "later" not in returns:
            return arrays
        seen = self.observation(returns["later"]["image"], returns["later"]["state"], prompts)
        later: LaterArrays = {"state": seen["state"]}
        return {**arrays, "later": {**later, "images": seen["images"]} if self.cameras else later}

    def observation(
        self, images: Mapping[str, np.ndarray | None], state: Float32[np.ndarray, "b s"], prompts: Sequence[str]
    ) -> ObservationArrays:
        """What the model sees.

        Args:
          images: By openpi's name: [b, h, w, 3] uint8 of the model's size; None: that camera is masked out.
          state: Normalised, adapted to robot.sample_state_dim.
          prompts: One a row.

        Raises:
          DataError: If cameras or sizes are not the config's.
        """
        if set(images) != set(self.cameras):
            raise DataError(f"image: expected the cameras {list(self.cameras)}, found {sorted(images)}")
        size = (self.model.image_size, self.model.image_size, 3)
        black = np.zeros((len(state), *size), np.uint8)
        # Without any camera the model still takes one image, which nothing attends to.
        stack = [images[name] for name in self.cameras] or [None]
        for name, image in zip(self.cameras, stack, strict=False):
            if image is not None and (image.dtype != np.uint8 or image.shape != black.shape):
                raise DataError(
                    f"image {name}: expected uint8 {list(black.shape)}, found {image.dtype} {list(image.shape)}"
                )
        mask = np.array([image is not None for image in stack])
        tokens, token_mask = self.tokenizer.encode_batch(prompts, self._state_in_prompt(state))
        return {
            "images": np.stack([black if image is None else image for image in stack], axis=1),
            "image_mask": np.broadcast_to(mask, (len(state), len(mask))).copy(),
            "state": pad_last(state, self.model.action_dim),
            "tokens": tokens,
            "token_mask": token_mask,
        }

    def _state_in_prompt(self, state: Float32[np.ndarray, "b s"]) -> Float32[np.ndarray, "b s2"] | None:
        """What pi0.5 reads as words: the robot's own dimensions, without the zeros behind them, as in openpi."""
        if not self.model.prompt_has_state:
            return None
        return state[:, : min(self.robot.state_dim, self.robot.sample_state_dim)]


def make_inputs(model: ModelConfig, robot: RobotConfig, cameras: Sequence[str], tokenizer: str) -> ToModel:
    """The transform of one run.

    Raises:
      ConfigError: If the tokenizer is missing, or has more pieces than the model.
    """
    pieces = PromptTokenizer(tokenizer, model.prompt_tokens)
    if pieces.vocab_size > model.vocab_size:
        raise ConfigError(
            f"tokenizer {tokenizer}: it has {pieces.vocab_size} pieces and model.vocab_size is {model.vocab_size}; "
            "expected at most that"
        )
    return ToModel(model=model, robot=robot, cameras=tuple(sorted(cameras)), tokenizer=pieces)


def pad_last(x: Float[np.ndarray, "*b d"], width: int) -> Float[np.ndarray, "*b d2"]:
    """Zeros appended to the last axis up to `width`; x itself where it is as wide."""
    missing = width - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
