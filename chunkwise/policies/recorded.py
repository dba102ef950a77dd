"""What happened while a policy drove a robot: kept step by step, and written as an episode that training reads."""

import concurrent.futures
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import h5py
import numpy as np
from jaxtyping import Float32

from chunkwise.data.images import MAX_JPEG_SIDE, encode_jpeg, require_uint8
from chunkwise.errors import ConfigError, DataError, one_line
from chunkwise.files.aloha_hdf5 import DEPTH_DTYPES, deflated, write_array, write_depth, write_jpegs
from chunkwise.files.durable import make_folders, scratch_file
from chunkwise.policies.observations import as_array, channels_last
from chunkwise.printable import printable

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
IMAGES = "images"
"""Folder of the cameras in a file, beside the arrays."""
DEPTH_MAPS = "depth/"
"""How entries begin that are depth maps, as an agent is asked that acts by them."""
IMAGES_DEPTH = "images_depth"
"""Folder of their cameras in a file."""


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


class _Picture(NamedTuple):
    """An image or depth map of a step, while it is encoded and afterwards."""

    shape: tuple[int, ...]
    dtype: np.dtype
    encoded: concurrent.futures.Future[bytes]


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
    not_finite: list[str] = dataclasses.field(default_factory=list)
    """Steps whose state or qpos was not, in words."""
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
    """Tells the measured joints of an observation, which are its qpos from then on; None: it has qpos or state."""
    base_action: int = 0
    """Last numbers of each action that are velocities of a mobile base, and no joints."""
    _others: dict[str, str] = dataclasses.field(default_factory=dict)
    """Entries that a file has no place for, in words, by their names."""
    _arrays: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    _images: list[dict[str, _Picture]] = dataclasses.field(default_factory=list)
    _depth: list[dict[str, _Picture]] = dataclasses.field(default_factory=list)
    _encoder: concurrent.futures.ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(1, "encoder")
    )

    def __len__(self) -> int:
        return len(self.actions)

    def add(
        self, tick: int, observation: Mapping[str, Any], action: Float32[np.ndarray, " a"], *, person: bool
    ) -> None:
        """Keeps a step; images are encoded by another thread, so that they take little memory and no time here.

        Args:
          tick: Its place on the clock.
          observation: What was seen before the action. Numbers, vectors of numbers and images are kept, uint8
            [h, w, 3] or [3, h, w], as a policy takes them, by our names or by those of openpi's clients; and below
            "depth" depth maps by camera, uint16, float32 or uint8 [h, w].
          action: As commanded.
          person: Whether a person chose it.

        Raises:
          DataError: If an image is none of uint8 in colour, entries have names that no file can hold beside one
            another, the prompt is no text of a file, or state, qpos or action are not as at the first step.
        """
        arrays, images, depth, others = self._seen(observation)
        if self.actions:
            first = {name: x.shape for name, x in self._arrays[0].items() if name in STATES}
            now = {name: x.shape for name, x in arrays.items() if name in STATES}
            for name, expected, found in (
                *((name, first.get(name), now.get(name)) for name in STATES),
                ("action", self.actions[0].shape, action.shape),
            ):
                if expected != found:
                    raise DataError(
                        f"{name}: expected {_of_shape(expected)} at every step, as at the first, found "
                        f"{_of_shape(found)} at step {len(self)}"
                    )
        for name in _not_finite(arrays):
            self.not_finite.append(
                f"{name} at step {len(self)}: expected finite numbers, found {arrays[name].tolist()}"
            )
        self._others.update(others)
        self._arrays.append(arrays)
        self._images.append(
            {
                name: _Picture(image.shape, image.dtype, self._encoder.submit(encode_jpeg, image, quality=JPEG_QUALITY))
                for name, image in images.items()
            }
        )
        self._depth.append(
            {
                name: _Picture(seen.shape, seen.dtype, self._encoder.submit(deflated, seen))
                for name, seen in depth.items()
            }
        )
        prompt = observation.get("prompt")
        if isinstance(prompt, str | bytes):
            self.prompt = prompt if isinstance(prompt, str) else prompt.decode(errors="replace")
        self.actions.append(action)
        self.interventions.append(person)
        self.ticks.append(tick)

    def measured(self, observation: Mapping[str, Any]) -> Float32[np.ndarray, " a"]:
        """Returns the measured joints: what `joints` tells, else qpos, or state; behind them a base that stands.

        Raises:
          DataError: No episode could be written of the observation: it has no joints, or see `add`.
        """
        arrays, _, _, _ = self._seen(observation)
        joints = arrays.get("qpos", arrays[_state_of(arrays)])
        return np.concatenate([joints, np.zeros(self.base_action, np.float32)])

    @property
    def left_out(self) -> list[str]:
        """What is not written, in words: cameras, and arrays besides state and qpos, that some steps lacked or had in
        another shape; and what is neither numbers nor an image."""
        depth = {f"{DEPTH_MAPS}{name}": why for name, why in _varying(self._depth, dtypes=True).items()}
        varying = [*_varying(self._arrays).items(), *_varying(self._images).items(), *depth.items()]
        return [f"{name}: {why}" for name, why in (*sorted(varying), *sorted(self._others.items()))]

    def save(self, path: str | Path, *, success: bool | None, overwrite: bool = False) -> Path:
        """Writes an HDF5 file in ALOHA's layout (docs/data_formats.md); it appears under its name when it is whole.

        A camera that gave no image at some step, or one of another size, is left out as a whole, since the layout has
        no missing frame, and so are depth maps and arrays; `left_out` and the file's attribute of that name say which.
        Arrays and depth maps keep their dtype, besides state, qpos and action, which are float32. The part of the
        actions that moves a mobile base becomes /base_action, as recordings have it that a policy with data.base_action
        learnt from. Warns where a state is not finite, since training refuses the episode.

        Args:
          path: The file; episodes of one dataset lie in one folder.
          success: The episode's label: training takes it for the reward of the last frame. None: there is none.
          overwrite: Replaces a file that is there.

        Raises:
          ConfigError: The file exists, success is no label, or base_action leaves none for /action; the episode can
            still be saved.
          DataError: Nothing was executed, or observations had neither state nor qpos.
        """
        path = Path(path)
        if not isinstance(success, bool | np.bool_ | None):
            raise ConfigError(f"success is {success!r}; expected True, False, or None where nobody judged")
        if not overwrite and os.path.lexists(path):
            raise ConfigError(f"{path} exists; save the episode under another name, or with overwrite=True")
        if not self.actions:
            raise DataError(f"{path}: the robot executed no action ({self.ended}: {self.reason}); there is no episode")
        actions = np.stack(self.actions)
        if not 0 <= self.base_action < actions.shape[1]:
            most = actions.shape[1] - 1
            raise ConfigError(f"base_action is {self.base_action}; expected 0 to {most} of the action's numbers")
        arms = actions.shape[1] - self.base_action
        kept = sorted(set(self._arrays[0]) - set(_varying(self._arrays)))
        arrays = {name: np.stack([step[name] for step in self._arrays]) for name in kept}
        alone = _state_of(arrays)
        cameras = sorted(set(self._images[0]) - set(_varying(self._images)))
        make_folders(path.parent)
        with scratch_file(path) as part, h5py.File(part, "w") as h5:
            for name, x in arrays.items():
                write_array(h5, f"/observations/{name}", x)
            for name in set(STATES) - set(arrays):
                h5[f"/observations/{name}"] = h5[f"/observations/{alone}"]  # a hard link: no second copy
            write_array(h5, "/action", actions[:, :arms])
            if self.base_action:
                write_array(h5, "/base_action", actions[:, arms:])
            write_array(h5, "/intervention", np.array(self.interventions, bool))
            write_array(h5, "/step", np.array(self.ticks, np.int64))
            if cameras:
                write_jpegs(h5, {name: [step[name].encoded.result() for step in self._images] for name in cameras})
            for name in sorted(set(self._depth[0]) - set(_varying(self._depth, dtypes=True))):
                first, rows = self._depth[0][name], [step[name].encoded.result() for step in self._depth]
                write_depth(h5, name, rows, first.shape, first.dtype)
            reason = printable(self.reason)  # an error's words may hold what no attribute can
            h5.attrs.update(sim=False, fps=self.rate_hz, ended=self.ended, reason=reason, missed=self.missed)
            if self.prompt is not None:
                h5.attrs["prompt"] = self.prompt
            if success is not None:
                h5.attrs["success"] = success
            if self.left_out:
                h5.attrs["left_out"] = printable("; ".join(self.left_out))
        kept = {name: name if name in arrays else alone for name in STATES}
        steps = {name: [t for t, x in enumerate(arrays[of]) if not np.isfinite(x).all()] for name, of in kept.items()}
        for name, rows in steps.items():
            if rows:
                warnings.warn(
                    f"{path}: {name} has NaN or infinite numbers in {len(rows)} of {len(self)} rows, first {rows[0]}; "
                    f"training that reads {name} refuses the episode, or with data.on_bad skip leaves it out",
                    stacklevel=2,
                )
        return path

    def _seen(
        self, observation: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
        """Vectors, images and depth maps of an observation, by their names in a file; and what else there is.

        Raises:
          DataError: See `add`.
        """
        arrays: dict[str, np.ndarray] = {}
        images: dict[str, np.ndarray] = {}
        depth: dict[str, np.ndarray] = {}
        others: dict[str, str] = {}
        singles: dict[str, np.ndarray] = {}
        for key, value in _flat(observation):
            name, x = _name(key), as_array(value, key)
            colours = x.ndim == 3 and x.dtype == np.uint8 and 3 in (x.shape[0], x.shape[-1])
            named = x.ndim > 1 and IMAGE in key.lower() and DEPTH not in key.lower()
            if colours or named or key.startswith(CAMERAS):
                if name in images:
                    raise DataError(f"{key}: expected a camera's name once in an observation, found {name} twice")
                images[name] = channels_last(x)
                require_uint8(images[name], name)
                if max(images[name].shape[:2]) > MAX_JPEG_SIDE:
                    shape = list(images[name].shape)
                    raise DataError(f"{key}: expected sides of up to {MAX_JPEG_SIDE}, as JPEG has, found {shape}")
            elif key.startswith(DEPTH_MAPS) and x.ndim == 2 and x.size and x.dtype.name in DEPTH_DTYPES:
                name = key.removeprefix(DEPTH_MAPS)
                if name in depth:
                    raise DataError(f"{key}: expected a depth map's name once in an observation, found {name} twice")
                depth[name] = np.array(x, x.dtype.newbyteorder("="))
            elif x.ndim == 0 and x.dtype.kind in "fiu":
                singles[key] = x
            elif x.ndim == 1 and x.dtype.kind in "fiu" and (x.size or name in STATES):
                if not x.size:
                    raise DataError(f"{key}: expected numbers, found an empty vector")
                if name in arrays:
                    raise DataError(f"{key}: expected an array's name once in an observation, found {name} twice")
                # In its own dtype: float32 has no room for a time in seconds, nor for a large count.
                arrays[name] = np.array(x, np.float32 if name in STATES else x.dtype)
            else:
                found = f"{x.dtype} of shape {list(x.shape)}"
                others[key] = f"{found}, neither a vector of numbers, nor a uint8 image, nor a depth map"
        if self.joints is not None:
            joints = as_array(self.joints(observation), "joints")
            if joints.ndim != 1 or joints.dtype.kind not in "fiu":
                raise DataError(f"joints: expected a vector of numbers, found {joints.dtype} of {list(joints.shape)}")
            arrays["qpos"] = np.array(joints, np.float32)
        _require_places(arrays, images, depth)
        for key, x in singles.items():
            name = _name(key)
            try:
                if name in arrays:
                    raise DataError(f"a number beside a vector {name}")
                _require_places({**arrays, name: x}, images, depth)
            except DataError as error:
                others[key] = one_line(error)
            else:
                arrays[name] = np.array([x], np.float32 if name in STATES else x.dtype)
        _require_text(observation.get("prompt"))
        return arrays, images, depth, others


def _not_finite(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Returns which of state and qpos have NaN or infinite numbers."""
    return [name for name in STATES if name in arrays and not np.isfinite(arrays[name]).all()]


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


def _varying(steps: Sequence[Mapping[str, _Shaped]], *, dtypes: bool = False) -> dict[str, str]:
    """Entries that some steps lack, or have in another shape, which no array over all steps holds; by name, why.

    With `dtypes` also those whose numbers are of several kinds.
    """
    why = {}
    for name in sorted({name for step in steps for name in step}):
        shapes = [step[name].shape for step in steps if name in step]
        kinds = [step[name].dtype for step in steps if name in step] if dtypes else []
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        if len(shapes) < len(steps):
            why[name] = f"there at {len(shapes)} of {len(steps)} steps"
        elif other is not None:
            why[name] = f"of shape {list(shapes[0])} at the first step and {list(other)} at step {shapes.index(other)}"
        elif len(set(kinds)) > 1:
            why[name] = f"in {' and '.join(sorted({kind.name for kind in kinds}))}"
    return why


def _of_shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"shape {list(shape)}"


def _require_places(arrays: Iterable[str], cameras: Iterable[str], depth: Iterable[str]) -> None:
    """Raises DataError for names that are none of a file, or of which one would be the folder of another."""
    places = ({*STATES, *arrays}, {IMAGES, IMAGES_DEPTH}), (set(cameras), set[str]()), (set(depth), set[str]())
    for names, folders in places:  # a file has both of STATES
        for name in sorted(names):
            parts = name.split("/")
            if {"", "."} & set(parts) or not _storable(name):
                raise DataError(f"{name!r}: expected a name of a dataset in an HDF5 file; rename it in the observation")
            above = {"/".join(parts[:count]) for count in range(1, len(parts))}
            if clash := sorted(above & names | {*above, name} & folders):
                raise DataError(
                    f"{name}: expected names of which none is the folder of another in a file, found {clash[0]} "
                    "beside it; rename one of them in the observation"
                )


def _require_text(prompt: Any) -> None:
    """Raises DataError for words that no attribute of a file holds."""
    if isinstance(prompt, bytes):
        prompt = prompt.decode(errors="replace")
    if isinstance(prompt, str) and not _storable(prompt):
        raise DataError(f"prompt: expected text without NUL, in UTF-8, found {prompt!r:.80}")


def _storable(text: str) -> bool:
    return "\0" not in text and text.encode(errors="replace").decode() == text


def _state_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Which of the arrays is the state. Raises DataError where there is none."""
    if found := [name for name in STATES if name in arrays]:
        return found[0]
    raise DataError(
        f"expected state or qpos in the robot's observations, found {sorted(arrays)}; give Control(joints=...), a "
        "function that tells the measured joints of an observation"
    )
