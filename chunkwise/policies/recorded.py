"""What happened while a policy drove a robot: kept step by step, and written as an episode that training reads."""

import concurrent.futures
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import h5py
import numpy as np
from jaxtyping import Float32

from chunkwise.data.images import encode_jpeg, require_uint8
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.aloha_hdf5 import write_array, write_jpegs
from chunkwise.files.durable import make_folders, scratch_file
from chunkwise.policies.observations import channels_last

Ended = Literal["steps", "done", "watchdog", "interrupted", "error"]
Joints = Callable[[Mapping[str, Any]], np.ndarray]
"""Tells the measured joints of an observation."""
JPEG_QUALITY = 95
STATES = ("state", "qpos")
"""Entries of which an observation has one at least."""
CAMERAS = ("image/", "images/")
"""How entries begin that are images whatever they hold: ours, and those of openpi's ALOHA."""
IMAGE, DEPTH = "image", "depth"
"""Parts of the name of an entry that is an image, such as openpi's observation/wrist_image; not of a depth map."""
FOLDERS = ("observation", "observations", "image", "images")
"""First parts of an entry's name that are not part of its name in a file."""
Entry = TypeVar("Entry")


@dataclasses.dataclass(kw_only=True)
class RobotEpisode:
    """One episode of a robot, step by step: what was seen, what was commanded, who commanded it."""

    rate_hz: float
    ended: Ended = "error"
    """steps: all were done. done: somebody said so. watchdog: actions stayed out, `reason` says why. interrupted: by
    Ctrl-C. error: the robot or the person's device raised, and so did the loop."""
    reason: str = ""
    missed: int = 0
    """Steps whose command went out after the step's time was over."""
    limited: int = 0
    """Steps whose action was beyond a limit, and was executed within it."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """Of inferences, in words: errors, NaN."""
    delays: list[int] = dataclasses.field(default_factory=list)
    """Steps that were executed while each chunk was computed."""
    actions: list[Float32[np.ndarray, " a"]] = dataclasses.field(default_factory=list)
    """As commanded."""
    interventions: list[bool] = dataclasses.field(default_factory=list)
    """Whether a person chose the action."""
    ticks: list[int] = dataclasses.field(default_factory=list)
    """Number of each step's place on the clock; the robot stood at those that are left out."""
    prompt: str | None = None
    joints: Joints | None = None
    """Tells the measured joints of an observation that has no state or qpos; None: it has them."""
    _others: dict[str, str] = dataclasses.field(default_factory=dict)
    """Entries that a file has no place for, in words, by their names."""
    _arrays: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    _images: list[dict[str, concurrent.futures.Future[bytes]]] = dataclasses.field(default_factory=list)
    _encoder: concurrent.futures.ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(1, "jpeg")
    )

    def __len__(self) -> int:
        return len(self.actions)

    def add(
        self, tick: int, observation: Mapping[str, Any], action: Float32[np.ndarray, " a"], *, person: bool
    ) -> None:
        """Keeps a step; images are encoded by another thread, so that they take little memory and no time here.

        Args:
          tick: Its place on the clock.
          observation: What was seen before the action. Vectors of numbers and images are kept, uint8 [h, w, 3] or
            [3, h, w], as a policy takes them, by our names or by those of openpi's clients.
          action: As commanded.
          person: Whether a person chose it.

        Raises:
          DataError: If an image is none of uint8 in colour, or two entries have the same name.
        """
        arrays, images, others = self._seen(observation)
        self._others.update(others)
        self._arrays.append(arrays)
        self._images.append(
            {name: self._encoder.submit(encode_jpeg, image, quality=JPEG_QUALITY) for name, image in images.items()}
        )
        self.prompt = observation.get("prompt", self.prompt)
        self.actions.append(action)
        self.interventions.append(person)
        self.ticks.append(tick)

    def measured(self, observation: Mapping[str, Any]) -> Float32[np.ndarray, " a"]:
        """Returns the measured joints: qpos, or state.

        Raises:
          DataError: No episode could be written of the observation: it has no joints, or see `add`.
        """
        arrays, _, _ = self._seen(observation)
        return arrays.get("qpos", arrays[_state_of(arrays)])

    @property
    def left_out(self) -> list[str]:
        """What is not written, in words: cameras, and arrays besides state and qpos, that some steps lacked; and what
        is neither a vector of numbers nor an image."""
        steps = len(self)
        there = Counter(name for step in (*self._arrays, *self._images) for name in step)
        return [
            f"{name}: there at {count} of {steps} steps"
            for name, count in sorted(there.items())
            if count < steps and name not in STATES
        ] + [f"{key}: {found}" for key, found in sorted(self._others.items())]

    def save(self, path: str | Path, *, success: bool | None, overwrite: bool = False) -> Path:
        """Writes an HDF5 file in ALOHA's layout (docs/data_formats.md); it appears under its name when it is whole.

        A camera that gave no image at some step is left out as a whole, since the layout has no missing frame, and so
        is an array; `left_out` and the file's attribute of that name say which.

        Args:
          path: The file; episodes of one dataset lie in one folder.
          success: The episode's label: training takes it for the reward of the last frame. None: there is none.
          overwrite: Replaces a file that is there.

        Raises:
          ConfigError: The file exists; the episode can still be saved under another name.
          DataError: Nothing was executed, or steps saw different things.
        """
        path = Path(path)
        if not overwrite and os.path.lexists(path):
            raise ConfigError(f"{path} exists; save the episode under another name, or with overwrite=True")
        if not self.actions:
            raise DataError(f"{path}: the robot executed no action ({self.ended}: {self.reason}); there is no episode")
        arrays = {name: np.stack(steps) for name, steps in _at_every_step(self._arrays).items()}
        if lacking := sorted({name for step in self._arrays for name in step if name in STATES} - set(arrays)):
            raise DataError(f"{path}: expected {', '.join(lacking)} at every step, found steps without")
        alone = _state_of(arrays)
        images = _at_every_step(self._images)
        make_folders(path.parent)
        with scratch_file(path) as part, h5py.File(part, "w") as h5:
            for name, x in arrays.items():
                write_array(h5, f"/observations/{name}", x)
            for name in set(STATES) - set(arrays):
                h5[f"/observations/{name}"] = h5[f"/observations/{alone}"]  # a hard link: no second copy
            write_array(h5, "/action", np.stack(self.actions))
            write_array(h5, "/intervention", np.array(self.interventions, bool))
            write_array(h5, "/step", np.array(self.ticks, np.int64))
            if images:
                write_jpegs(h5, {name: [jpeg.result() for jpeg in steps] for name, steps in images.items()})
            h5.attrs.update(sim=False, fps=self.rate_hz, ended=self.ended, reason=self.reason, missed=self.missed)
            if self.prompt is not None:
                h5.attrs["prompt"] = self.prompt
            if success is not None:
                h5.attrs["success"] = success
            if self.left_out:
                h5.attrs["left_out"] = "; ".join(self.left_out)
        return path

    def _seen(
        self, observation: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
        """Vectors and images of an observation, by the names that they have in a file; and what else there is."""
        arrays: dict[str, np.ndarray] = {}
        images: dict[str, np.ndarray] = {}
        others: dict[str, str] = {}
        for key, value in _flat(observation):
            name, x = _name(key), np.asarray(value)
            colours = x.ndim == 3 and x.dtype == np.uint8 and 3 in (x.shape[0], x.shape[-1])
            named = x.ndim > 1 and IMAGE in key.lower() and DEPTH not in key.lower()
            if colours or named or key.startswith(CAMERAS):
                if name in images:
                    raise DataError(f"{key}: expected a camera's name once in an observation, found {name} twice")
                images[name] = channels_last(x)
                require_uint8(images[name], name)
            elif x.ndim == 1 and x.dtype.kind in "fiu":
                if name in arrays:
                    raise DataError(f"{key}: expected an array's name once in an observation, found {name} twice")
                arrays[name] = np.array(x, np.float32)
            elif x.ndim:
                others[key] = f"{x.dtype} of shape {list(x.shape)}, neither a vector of numbers nor a uint8 image"
        if self.joints is not None and not set(STATES) & set(arrays):
            arrays["qpos"] = np.array(self.joints(observation), np.float32)
        return arrays, images, others


def _flat(observation: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Entries that are there and no text, those of nested maps as a/b."""
    for key, value in observation.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}/")
        elif value is not None and not isinstance(value, str | bytes):
            yield f"{above}{key}", value


def _name(key: str) -> str:
    """An entry's name in a file, without the folder that it has there anyway."""
    head, _, rest = key.partition("/")
    return rest if rest and head in FOLDERS else key


def _at_every_step(steps: Sequence[Mapping[str, Entry]]) -> dict[str, list[Entry]]:
    return {name: [step[name] for step in steps] for name in steps[0] if all(name in step for step in steps)}


def _state_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Which of the arrays is the state. Raises DataError where there is none."""
    if found := [name for name in STATES if name in arrays]:
        return found[0]
    raise DataError(
        f"expected state or qpos in the robot's observations, found {sorted(arrays)}; give Control(joints=...), a "
        "function that tells the measured joints of an observation"
    )
