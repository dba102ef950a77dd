"""Rollouts on disk, one npz file each: what was seen, done and reached, enough to audit, replay and train on.

The arrays of observations lie under `observation/<name>`, T + 1 rows: the frame before each action, and the last one.
Images are packed frame by frame (frames.py): `frames/<name>`, `ends/<name>`, and the shape of a frame in `facts`. What
the policy noted of its chunks lies under `note/<name>`, a row for each chunk.
Pickle is never read or written; zip's checksums tell a damaged file.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from chunkwise.envs.environment import Observation
from chunkwise.envs.frames import Frames, mapped, pack
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.npz import read_npz, stored_bytes, write_npz
from chunkwise.files.strict_json import parse_json

_ARRAYS = ("actions", "rewards")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One finished episode of a policy."""

    observations: Mapping[str, Any]
    """By name, T + 1 rows, images as Frames where they are read by frame; {} where only the outcome was wanted."""
    actions: Float32[np.ndarray, "T a"]
    """As executed."""
    rewards: Float32[np.ndarray, " T"]
    success: bool
    seed: int
    """Of the environment's reset: with it `actions` repeat the episode to the bit."""
    draw: tuple[int, ...]
    """Seeds the policy's noise."""
    offset: tuple[float, ...] = ()
    """What was added to each of the policy's actions, before they were clipped; empty where nothing was."""
    offset_steps: int | None = None
    """Steps from the first on to whose actions it was added; None: to all of them."""
    init_hash: str
    """Of the simulator's initial state."""
    prompt: str
    """The task in words."""
    task: str = ""
    """By its suite's name; empty where the environment has only one."""
    step: int
    """Updates behind the policy."""
    weights: str
    """Digest of the policy's weights; empty where nobody asked."""
    notes: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What the policy noted of each chunk that it gave, by name, a row a chunk; {} where it noted nothing."""

    @property
    def length(self) -> int:
        """T, actions that were executed."""
        return len(self.actions)


def save(path: Path, rollout: Rollout) -> None:
    """Writes a rollout; the file appears under its name only when it is complete and on disk."""
    arrays: dict[str, np.ndarray] = {}
    shapes: dict[str, list[int]] = {}
    for name, value in rollout.observations.items():
        if value.dtype == np.uint8 and value.ndim == 4:
            arrays[f"frames/{name}"], arrays[f"ends/{name}"] = pack(np.asarray(value))
            shapes[name] = list(value.shape[1:])
        else:
            arrays[f"observation/{name}"] = value
    arrays |= {f"note/{name}": value for name, value in rollout.notes.items()}
    arrays |= {name: getattr(rollout, name) for name in _ARRAYS}
    facts = {
        field.name: getattr(rollout, field.name)
        for field in dataclasses.fields(rollout)
        if field.name not in ("observations", "notes", *_ARRAYS)
    }
    facts |= {"frames": shapes} if shapes else {}
    make_folders(path.parent)
    arrays = {"facts": np.array(json.dumps(facts))} | arrays
    # What is compressed already is stored.
    write_durably(path, lambda file: write_npz(file, arrays, deflated=lambda name: not name.startswith("frames/")))


def load(path: Path, *, outcome_only: bool = False, by_frame: bool = False) -> Rollout:
    """Reads a rollout.

    Args:
      path: The file.
      outcome_only: Read no observations and no notes, which are most of the file.
      by_frame: Leave images in the file, as Frames; those of earlier versions' files are read.

    Raises:
      DataError: If the file is missing, damaged, or no rollout.
    """
    try:
        places = stored_bytes(path) if by_frame and not outcome_only else {}
        left = {name for name, (offset, _) in places.items() if name.startswith("frames/") and offset >= 0}
        names = ("facts", *_ARRAYS) if outcome_only else set(places) - left if by_frame else None
        arrays: dict[str, Any] = read_npz(path, names)
        facts: dict[str, Any] = parse_json(str(arrays.pop("facts")), source=f"{path}: facts")
        shapes = facts.pop("frames", {})
        if not outcome_only:
            arrays |= {name: mapped(path, *places[name]) for name in left}
            arrays |= _images(path, arrays, shapes, by_frame=by_frame)
        observations, notes = _taken(arrays, "observation/"), _taken(arrays, "note/")
        facts |= {"draw": tuple(facts["draw"]), "offset": tuple(facts.get("offset", ()))}
        parts: dict[str, Any] = {"observations": observations, "notes": notes} | arrays | facts
        rollout = Rollout(**parts)
        _require_types(rollout)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: expected a rollout, found {type(error).__name__}: {error}") from error
    if len(rollout.rewards) != rollout.length:
        raise DataError(f"{path}: expected {rollout.length} rewards, one an action, found {len(rollout.rewards)}")
    rows = {len(value) for value in observations.values()}
    if rows != {rollout.length + 1} and not outcome_only:
        raise DataError(f"{path}: expected {rollout.length + 1} rows of observations, found {sorted(rows)}")
    chunks = {len(value) for value in notes.values()}
    if len(chunks) > 1:
        raise DataError(f"{path}: expected a note of each chunk under every name, found {sorted(chunks)} of them")
    return rollout


def _images(path: Path, arrays: dict[str, Any], shapes: dict[str, Any], *, by_frame: bool) -> dict[str, Any]:
    """The images of a file under their names as observations; what they were packed in is taken out."""
    found: dict[str, Any] = {}
    spent = budget.Spent(str(path), path.stat().st_size)
    for name, shape in shapes.items():
        if len(shape) != 3 or not all(type(side) is int and side > 0 for side in shape):
            raise ValueError(f"frames of {name} of shape {shape}")
        budget.require("image_pixels", math.prod(shape) // min(shape[2], 4), f"{path}: {name}", "pixels")
        packed, ends = arrays.pop(f"frames/{name}"), arrays.pop(f"ends/{name}")
        frames = Frames(packed, ends, tuple(shape), f"{path}: {name}")
        if not by_frame:
            spent.add(math.prod(frames.shape), name)
        found[f"observation/{name}"] = frames if by_frame else np.asarray(frames)
    return found


def _taken(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names begin so, by the rest of their names; they are taken out."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}


def _require_types(rollout: Rollout) -> None:
    """Raises TypeError where a file holds values of other types than a rollout has."""
    arrays = {"rewards": rollout.rewards, **rollout.observations, **rollout.notes}
    wrong = [name for name, array in arrays.items() if array.ndim < 1 or array.dtype.kind not in "fiub"]
    wrong += ["actions"] if rollout.actions.ndim != 2 or rollout.actions.dtype.kind != "f" else []
    wrong += ["rewards"] if rollout.rewards.ndim != 1 else []
    texts = {name: getattr(rollout, name) for name in ("init_hash", "prompt", "task", "weights")}
    wrong += [name for name, value in texts.items() if not isinstance(value, str)]
    numbers = {"seed": rollout.seed, "step": rollout.step} | {f"draw {n}": seed for n, seed in enumerate(rollout.draw)}
    wrong += [name for name, value in numbers.items() if type(value) is not int]
    wrong += [] if isinstance(rollout.success, bool) else ["success"]
    wrong += [] if all(type(number) is float for number in rollout.offset) else ["offset"]
    wrong += [] if rollout.offset_steps is None or type(rollout.offset_steps) is int else ["offset_steps"]
    if wrong:
        raise TypeError(f"{', '.join(wrong)} of another type or shape")


def append_frames(parts: list[Observation]) -> dict[str, np.ndarray]:
    """Returns observations with a leading axis, one after another; {} of none."""
    return {} if not parts else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
