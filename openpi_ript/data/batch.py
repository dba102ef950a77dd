"""Layers 3 and 4: samples -> training batch -> episodes and back, and the documents' exact dicts.

The documents hold channel-first images in torch tensors. `document_sample` and `document_batch` give those dicts with
numpy arrays, key for key; `from_document_*` take them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from jaxtyping import Bool, Float32, Int32, Shaped, UInt8

from chunkwise.data.images import require_uint8
from chunkwise.errors import DataError, one_line
from openpi_ript.config.model import Optimality
from openpi_ript.data.returns import ReturnBatch, to_return_batch
from openpi_ript.data.transforms import OpenPiSample, RiptSample

_LABELS = ", ".join(f"{label.value} ({label.name.lower()})" for label in Optimality)
DOCUMENT_KEYS = ("image", "state", "action", "action_is_pad", "prompt", "advantages")
"""What the specification's layer 3 holds, and layer 2 at least."""


class TrainingBatch(TypedDict):
    """Layer 3."""

    image: dict[str, np.ndarray]
    """By openpi's name: [b, h, w, 3] uint8."""
    state: np.ndarray
    """[b, sample_state_dim] float32, normalised."""
    action: np.ndarray
    """[b, t, action_dim] float32."""
    action_is_pad: np.ndarray
    """[b, t] bool; a padded step has no gradient."""
    prompt: list[str]
    advantages: np.ndarray
    """[b] float32, processed."""
    optimality: np.ndarray
    """[b] int32, values of `Optimality` by the sign of the raw advantage: the document's is_positive, with a third
    value for groups without differences."""
    returns: NotRequired[ReturnBatch]
    """Where chunks are labelled by a value."""


def to_training_batch(samples: Sequence[RiptSample]) -> TrainingBatch:
    """Layer 3 from layer 2.

    Raises:
      DataError: If there is no sample, or one lacks `optimality`, its images are not uint8, its shapes are not those of
        layer 2 or differ from the first one's, or its advantages are not one finite number repeated.
    """
    if not samples:
        raise DataError("layer 3: expected at least one sample, found none")
    for row, sample in enumerate(samples):
        _check_sample(sample, samples[0], row)
    batch: TrainingBatch = {
        "image": {name: np.stack([sample["image"][name] for sample in samples]) for name in samples[0]["image"]},
        "state": np.stack([sample["state"] for sample in samples]),
        "action": np.stack([sample["action"] for sample in samples]),
        "action_is_pad": np.stack([sample["action_is_pad"] for sample in samples]),
        "prompt": [sample["prompt"] for sample in samples],
        "advantages": np.array([sample["advantages"][0] for sample in samples], np.float32),
        "optimality": np.array([sample["optimality"] for sample in samples], np.int32),  # pyright: ignore[reportTypedDictNotRequiredAccess]
    }
    returns = [sample["returns"] for sample in samples if "returns" in sample]
    return {**batch, "returns": to_return_batch(returns)} if returns else batch


def document_sample(sample: OpenPiSample) -> dict[str, Any]:
    """The specification's dict of layer 1, or of layer 2 where the sample is one: its keys, images [3, h, w]."""
    extensions = ("advantages", "init_hash", "rollout_success", "rollout_reward", "episode_length")
    keys = ("state", "action", "action_is_pad", "prompt", *(key for key in extensions if key in sample))
    images = {name: np.ascontiguousarray(image.transpose(2, 0, 1)) for name, image in sample["image"].items()}
    return {"image": images, **{key: sample[key] for key in keys}}


def document_batch(batch: TrainingBatch) -> dict[str, Any]:
    """The specification's dict of layer 3: its keys, images [b, 3, h, w]."""
    keys = ("state", "action", "action_is_pad", "prompt", "advantages")
    images = {name: np.ascontiguousarray(image.transpose(0, 3, 1, 2)) for name, image in batch["image"].items()}
    return {"image": images, **{key: batch[key] for key in keys}}


def from_document_sample(document: Mapping[str, Any], *, optimality: int) -> RiptSample:
    """Layer 2 from the specification's dict; `optimality` is the label by the raw advantage, which it lacks.

    Raises:
      DataError: If an entry is missing, or of another type or shape than the specification's.
    """
    _require_keys(document, DOCUMENT_KEYS, "document")
    _require_images(document)
    images = {name: _channels_last(image, name) for name, image in document["image"].items()}
    sample: Any = {key: value for key, value in document.items() if key != "image"}
    sample |= {key: _array(document, key) for key in ("state", "action", "action_is_pad", "advantages")}
    sample |= {"image": images, "optimality": optimality}
    _check_sample(sample, sample, 0)
    return sample


def from_document_batch(document: Mapping[str, Any], *, optimality: Int32[np.ndarray, " b"]) -> TrainingBatch:
    """Layer 3 from the specification's dict; `optimality` are the labels by the raw advantages.

    Raises:
      DataError: If an entry is missing, has not as many rows as there are labels, or does not hold what the
        specification says.
    """
    _require_keys(document, DOCUMENT_KEYS, "document")
    _require_images(document)
    arrays = {key: _array(document, key) for key in ("state", "action", "action_is_pad", "advantages")}
    if arrays["advantages"].ndim != 1:
        raise DataError(f"document, advantages: expected [b], found shape {arrays['advantages'].shape}")
    if isinstance(document["prompt"], str | bytes) or not isinstance(document["prompt"], Sequence):
        raise DataError(f"document, prompt: expected a list of texts, found {type(document['prompt']).__name__}")
    entries = {**arrays, **{name: np.asarray(image) for name, image in document["image"].items()}}
    rows = {key: None if entry.ndim == 0 else len(entry) for key, entry in entries.items()}
    rows["prompt"] = len(document["prompt"])
    if not len(optimality) or set(rows.values()) != {len(optimality)}:
        raise DataError(f"document: expected {len(optimality)} rows as there are labels, at least 1, found {rows}")
    samples = []
    for row, label in enumerate(optimality.tolist()):
        one = {key: document[key][row] for key in DOCUMENT_KEYS[1:]}
        one |= {"image": {name: images[row] for name, images in document["image"].items()}}
        one |= {"advantages": np.full(np.shape(one["action"])[:1], one["advantages"])}
        samples.append(from_document_sample(one, optimality=label))
    return to_training_batch(samples)


class Observation(TypedDict):
    """Layer 4, one step of an episode."""

    agentview_image: np.ndarray
    """[h, w, 3] uint8."""
    robot0_eye_in_hand_image: np.ndarray
    """[h, w, 3] uint8."""
    robot0_eef_pos: np.ndarray
    """[3] float32."""
    robot0_eef_quat: list[float]
    """Four numbers."""
    robot0_gripper_qpos: np.ndarray
    """[2] float32."""


class EpisodeRecord(TypedDict):
    """Layer 4: an episode of windows, observation i with chunk i."""

    observations: list[Observation]
    actions: list[np.ndarray]
    """[t, action_dim] float32 each."""
    action_is_pad: list[np.ndarray]
    """[t] bool each; no part of the specification, without it padding would become a target."""
    task: str
    success: bool
    """Whether the label is positive."""
    optimality: int
    """The label; no part of the specification, whose flag cannot tell a negative one from none."""
    total_reward: float
    """The processed advantage."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateLayout:
    """Where layer 4's parts lie in the state: [start, stop)."""

    eef_pos: tuple[int, int] = (0, 3)
    eef_quat: tuple[int, int] | None = (3, 7)
    """None: the state has no rotation; [0, 0, 0, 1] is given, and not read back."""
    gripper_qpos: tuple[int, int] = (7, 9)

    def require(self, state_dim: int) -> None:
        """Raises DataError unless a state of this width holds every part."""
        last = max(self.eef_pos[1], self.gripper_qpos[1], self.eef_quat[1] if self.eef_quat else 0)
        if state_dim < last:
            raise DataError(f"layer 4: expected a state of at least {last} values for {self}, found {state_dim}")


_CAMERAS = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
_PARTS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


def batch_to_episodes(batch: TrainingBatch, layout: StateLayout) -> list[EpisodeRecord]:
    """Layer 4 from layer 3: one episode of one window a row. Everything is copied, so that no row shares memory.

    Raises:
      DataError: If one of the two cameras of layer 4 is missing, or the state is too short for the layout.
    """
    missing = sorted(set(_CAMERAS) - set(batch["image"]))
    if missing:
        raise DataError(f"layer 4: expected images {sorted(_CAMERAS)}, found {sorted(batch['image'])}")
    layout.require(batch["state"].shape[1])
    episodes: list[EpisodeRecord] = []
    for row, state in enumerate(batch["state"]):
        quat = state[slice(*layout.eef_quat)].tolist() if layout.eef_quat else [0.0, 0.0, 0.0, 1.0]
        observation: Observation = {
            "agentview_image": batch["image"]["base_0_rgb"][row].copy(),
            "robot0_eye_in_hand_image": batch["image"]["left_wrist_0_rgb"][row].copy(),
            "robot0_eef_pos": state[slice(*layout.eef_pos)].copy(),
            "robot0_eef_quat": quat,
            "robot0_gripper_qpos": state[slice(*layout.gripper_qpos)].copy(),
        }
        episodes.append(
            {
                "observations": [observation],
                "actions": [batch["action"][row].copy()],
                "action_is_pad": [batch["action_is_pad"][row].copy()],
                "task": batch["prompt"][row],
                "success": bool(batch["optimality"][row] == Optimality.POSITIVE),
                "optimality": int(batch["optimality"][row]),
                "total_reward": float(batch["advantages"][row]),
            }
        )
    return episodes


def episodes_to_batch(
    episodes: Sequence[Mapping[str, Any]], layout: StateLayout, *, state_dim: int, horizon: int
) -> TrainingBatch:
    """Layer 3 from layer 4: one row a window, each with its own observation.

    A chunk shorter than the horizon is padded with its last action, and marked. State values that layer 4 has no name
    for are 0.

    Args:
      episodes: Layer 4; without `action_is_pad` nothing is padded; without `optimality` the success is the label.
      layout: Where the parts lie in the state.
      state_dim: Width of the state in the batch.
      horizon: Steps of a window in the batch.

    Raises:
      DataError: If an entry is missing or of another shape, an episode has not one observation for each chunk, or an
        image is not uint8.
    """
    layout.require(state_dim)
    samples: list[Any] = []
    for index, episode in enumerate(episodes):
        _require_keys(
            episode, ("observations", "actions", "task", "success", "total_reward"), f"layer 4, episode {index}"
        )
        observations, chunks = episode["observations"], episode["actions"]
        if len(observations) != len(chunks) or not chunks:
            raise DataError(
                f"layer 4, episode {index}: expected an observation for each chunk of actions, found "
                f"{len(observations)} for {len(chunks)}; a window must not be trained on another window's observation"
            )
        given = episode["action_is_pad"] if "action_is_pad" in episode else [np.zeros(len(c), bool) for c in chunks]
        for observation, chunk, pad in zip(observations, chunks, given, strict=True):
            where = f"layer 4, episode {index}, observation"
            _require_keys(observation, (*_CAMERAS.values(), *_PARTS), where)
            action, is_pad = _pad_chunk(np.asarray(chunk, np.float32), np.asarray(pad, bool), horizon)
            sample = {"image": {ours: np.asarray(observation[theirs]) for ours, theirs in _CAMERAS.items()}}
            sample |= {
                "state": _state(observation, layout, state_dim, where),
                "action": action,
                "action_is_pad": is_pad,
            }
            sample |= {"prompt": episode["task"], "advantages": np.full(horizon, episode["total_reward"], np.float32)}
            label = episode["optimality"] if "optimality" in episode else int(episode["success"])
            samples.append({**sample, "optimality": label})
    if not samples:
        raise DataError("layer 4: expected at least one episode, found none")
    return to_training_batch(samples)


def _state(
    observation: Mapping[str, Any], layout: StateLayout, state_dim: int, where: str
) -> Float32[np.ndarray, " s"]:
    state = np.zeros(state_dim, np.float32)
    for key, part in zip(_PARTS, (layout.eef_pos, layout.eef_quat, layout.gripper_qpos), strict=True):
        if part is not None:
            value = np.asarray(observation[key], np.float32)
            if value.shape != (part[1] - part[0],):
                raise DataError(f"{where}, {key}: expected {part[1] - part[0]} numbers, found shape {value.shape}")
            state[slice(*part)] = value
    return state


def _require_images(document: Mapping[str, Any]) -> None:
    if not isinstance(document["image"], Mapping) or not document["image"]:
        raise DataError(f"document, image: expected at least one image by its name, found {document['image']!r:.60}")


def _array(document: Mapping[str, Any], key: str) -> Shaped[np.ndarray, "..."]:
    """An entry as an array. Raises DataError for rows of different lengths."""
    try:
        return np.asarray(document[key])
    except ValueError as error:
        raise DataError(f"document, {key}: expected an array, found {one_line(error)}") from error


def _require_keys(mapping: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    missing = [key for key in keys if key not in mapping]
    if missing:
        raise DataError(f"{where}: expected the entries {missing}, found {sorted(mapping)}")


def _channels_last(image: Any, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """An image of the documents, [3, h, w], as [h, w, 3]."""
    array = np.asarray(image)
    if array.ndim != 3:
        raise DataError(f"image {name}: expected [3, height, width], found shape {array.shape}")
    array = array.transpose(1, 2, 0)
    require_uint8(array, name)
    return array


def _pad_chunk(
    action: Float32[np.ndarray, "n a"], is_pad: Bool[np.ndarray, " n"], horizon: int
) -> tuple[Float32[np.ndarray, "t a"], Bool[np.ndarray, " t"]]:
    if not 0 < len(action) <= horizon:
        raise DataError(f"layer 4: expected chunks of 1 to {horizon} actions, found {len(action)}")
    more = horizon - len(action)
    return np.pad(action, ((0, more), (0, 0)), mode="edge"), np.pad(is_pad, (0, more), constant_values=True)


def _check_sample(sample: RiptSample, first: RiptSample, row: int) -> None:
    """Types and shapes of one sample of a batch."""
    if "optimality" not in sample:
        raise DataError(
            f"sample {row}: expected optimality, the label by the raw advantage, found none; a processed advantage "
            "cannot tell (softplus makes every one positive)"
        )
    if not isinstance(sample["prompt"], str):
        raise DataError(f"sample {row}, prompt: expected text, found {type(sample['prompt']).__name__}")
    if np.ndim(sample["optimality"]) or sample["optimality"] not in list(Optimality):
        raise DataError(f"sample {row}, optimality: expected {_LABELS}, found {sample['optimality']}")
    for name, image in sample["image"].items():
        require_uint8(image, name)
    state, action = np.shape(sample["state"]), np.shape(sample["action"])
    if len(state) != 1 or len(action) != 2 or not action[0]:
        raise DataError(
            f"sample {row}: expected a state [s] and a chunk of actions [t, a], found shapes {state} and {action}"
        )
    for key in ("action_is_pad", "advantages"):
        if (found := np.shape(sample[key])) != action[:1]:
            raise DataError(
                f"sample {row}, {key}: expected one for each of the {action[0]} actions, found shape {found}"
            )
    for key, dtype in (("state", np.float32), ("action", np.float32), ("action_is_pad", bool)):
        value, shape = np.asarray(sample[key]), np.shape(first[key])
        if value.shape != shape or value.dtype != dtype:
            raise DataError(
                f"sample {row}, {key}: expected {np.dtype(dtype)} of shape {shape}, found {value.dtype} of shape "
                f"{value.shape}"
            )
        if not np.isfinite(value).all():
            raise DataError(f"sample {row}, {key}: expected finite numbers, found NaN or Inf")
    sizes = {name: image.shape for name, image in sample["image"].items()}
    if sizes != {name: image.shape for name, image in first["image"].items()}:
        raise DataError(f"sample {row}, image: expected the cameras and sizes of sample 0, found {sizes}")
    advantages = np.asarray(sample["advantages"])
    if not (np.isfinite(advantages).all() and (advantages == advantages[0]).all()):
        raise DataError(f"sample {row}, advantages: expected one finite number repeated, found {advantages[:5]}...")
