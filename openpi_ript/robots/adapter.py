"""Adapters: a robot's own numbers, names and images on one side, those of openpi's policies on the other.

    client or dataset -> observation, state, action -> normalisation, model -> acted -> robot

An adapter is chosen by `data.robot.adapter`: one of ADAPTERS, or `module:factory` of your own, which is called without
arguments and gives an Adapter. Arrays are numpy's, with any axes in front of the last.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from chunkwise.errors import ConfigError, DataError
from chunkwise.files import trust
from chunkwise.policies.observations import as_array, nested

ADAPTERS: Mapping[str, str] = {
    "none": "openpi_ript.robots.adapter:Adapter",
    "aloha": "openpi_ript.robots.aloha:Aloha",
    "droid": "openpi_ript.robots.arms:Droid",
    "libero": "openpi_ript.robots.libero:Libero",
    "ur5": "openpi_ript.robots.arms:Ur5",
}


class Adapter:
    """A robot whose numbers the policy sees as they are, and whose observations have our names."""

    words = ""
    """What its state and actions are, for the spec."""
    metadata: Mapping[str, Any] = {}
    """What clients are told beside the spec."""

    @property
    def entries(self) -> frozenset[str] | None:
        """Names that `observation` reads beside ours, a/b for b inside of a; None where it may read any."""
        return frozenset[str]() if type(self).observation is Adapter.observation else None

    @property
    def same_numbers(self) -> bool:
        """Whether `state`, `action` and `acted` are Adapter's, which give what they are given."""
        own = type(self)
        return own.state is Adapter.state and own.action is Adapter.action and own.acted is Adapter.acted

    @property
    def same_simulation(self) -> bool:
        """Whether `simulated_state` and `simulated_image` are Adapter's, which give what they are given."""
        own = type(self)
        return own.simulated_state is Adapter.simulated_state and own.simulated_image is Adapter.simulated_image

    def state(self, state: Float[np.ndarray, "*b s"]) -> Float[np.ndarray, "*b s"]:
        """Returns the policy's numbers of a robot's state, before they are normalised."""
        return state

    def action(self, action: Float[np.ndarray, "*b a"]) -> Float[np.ndarray, "*b a"]:
        """Returns the policy's numbers of a robot's absolute action, before the state is subtracted."""
        return action

    def acted(self, action: Float[np.ndarray, "*b a"]) -> Float[np.ndarray, "*b a"]:
        """Returns the robot's numbers of a policy's absolute action: undoes `action`."""
        return action

    def observation(self, sent: Mapping[str, Any], cameras: Sequence[str]) -> Mapping[str, Any]:
        """Returns an observation by our names: "state", "image" by openpi's camera, "prompt".

        Called for what `infer` and a server are asked. Rollouts, evaluation and the compilation before them have our
        names, and come by `simulated_state` and `simulated_image`.

        Args:
          sent: As a client sends it, or a caller of `infer`, who may use our names.
          cameras: That the policy sees.

        Raises:
          DataError: If an entry is missing, or cannot be what it stands for.
        """
        return sent

    def simulated_state(self, state: Float[np.ndarray, "*b s"]) -> Float[np.ndarray, "*b s2"]:
        """Returns the robot's state of what our environments show, the arrays of env.state one after another."""
        return state

    def simulated_image(self, image: UInt8[np.ndarray, "*b h w 3"]) -> UInt8[np.ndarray, "*b h w 3"]:
        """Returns the image that the dataset has of what our environments show, upright."""
        return image


OWN = Adapter()
"""Of a robot without one of its own."""


class Named(Adapter):
    """A robot whose openpi client has names of its own. Observations with ours are taken too, and entries with ours
    before those that stand for the same, so that a server's --rename decides."""

    state_keys: tuple[str, ...]
    """Entries that are the state, one after another; those below others are written a/b."""
    camera_keys: Mapping[str, str]
    """Entry of each image, by the name of the camera that it is for the policy."""
    optional: tuple[str, ...] = ()
    """Cameras that an observation may lack, and that are then masked."""

    @property
    def entries(self) -> frozenset[str] | None:
        """See Adapter."""
        return frozenset((*self.state_keys, *self.camera_keys.values()))

    def observation(self, sent: Mapping[str, Any], cameras: Sequence[str]) -> Mapping[str, Any]:
        """See Adapter; as openpi's server does it."""
        sent = nested(sent, "image")
        flat = _flat(sent)
        theirs = {_root(key) for key in (*self.state_keys, *self.camera_keys.values())} - {"state"}
        if not theirs & {_root(key) for key in flat}:
            return sent
        read: dict[str, Any] = {"state": sent["state"] if "state" in sent else joined(flat, self.state_keys)}
        if cameras:
            given = sent.get("image", {})
            if not isinstance(given, Mapping):
                raise DataError(f"image: expected a dict by camera, found {type(given).__name__}")
            read["image"] = {name: self._image(flat, name) for name in cameras if name not in given}
            # A camera that the policy does not see may be of any kind.
            images = {key: as_bytes(x, key) if key in cameras and x is not None else x for key, x in given.items()}
            read["image"] |= images
        if "prompt" in flat:
            read["prompt"] = _words(flat["prompt"])
        return read

    def _image(self, flat: Mapping[str, Any], camera: str) -> Any:
        """The image of a camera; None where one is off.

        Raises:
          DataError: An entry is missing, or the robot's client has no name for the camera.
        """
        key = self.camera_keys.get(camera)
        if key is None:
            raise DataError(
                f"image/{camera}: expected it in the observation, since this policy was trained on it and "
                f"data.robot.adapter has no name for it, found {sorted(flat)}; None for a camera that is off"
            )
        if camera in self.optional and key not in flat:
            return None
        image = _entry(flat, key)
        return None if image is None else as_bytes(image, key)


def find_adapter(name: str, *, allow_code: bool = False) -> Adapter:
    """Makes an adapter.

    Args:
      name: One of ADAPTERS, or `module:factory`.
      allow_code: Whether `module:factory` may be imported: where the user wrote it, not where a folder brought it.

    Raises:
      ConfigError: There is none of that name, it may not be imported, or it makes no adapter.
    """
    if name in ADAPTERS:
        module, _, attribute = ADAPTERS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)()
    if ":" not in name:
        raise ConfigError(
            f"data.robot.adapter is {name!r}; expected one of {', '.join(ADAPTERS)}, or module:factory of your own"
        )
    if not allow_code:
        trust.refuse_code(f"data.robot.adapter is {name!r}, which would import Python code")
    made = trust.import_named(name, what="a factory of adapters")()
    if not isinstance(made, Adapter):
        raise ConfigError(
            f"data.robot.adapter {name}: expected an openpi_ript.robots.adapter.Adapter, found {type(made).__name__}"
        )
    return made


def joined(flat: Mapping[str, Any], keys: Sequence[str]) -> np.ndarray:
    """Returns entries one after another; one that is a single number may lack its axis. Raises DataError."""
    parts = [as_array(_entry(flat, key), key) for key in keys]
    axes = max(part.ndim for part in parts)
    parts = [part[..., None] if part.ndim == axes - 1 else part for part in parts]
    try:
        return np.concatenate(parts, axis=-1)
    except ValueError as error:
        found = {key: list(part.shape) for key, part in zip(keys, parts, strict=True)}
        raise DataError(
            f"{', '.join(keys)}: expected numbers of one moment, or of as many rows, found {found}"
        ) from error


def as_bytes(image: Any, key: str) -> np.ndarray:
    """Returns an image of floats, 0 to 1, as bytes, cut off as openpi does; one of bytes as it is. Raises DataError."""
    array = as_array(image, f"image {key}")
    if array.dtype.kind != "f":
        return array
    if not ((array >= 0) & (array <= 1)).all():
        raise DataError(f"image {key}: expected floats from 0 to 1, or bytes, found {array.min():g} to {array.max():g}")
    return (255 * array).astype(np.uint8)


def _words(prompt: Any) -> Any:
    """A prompt, of bytes as text."""
    try:
        return prompt.decode() if isinstance(prompt, bytes) else prompt
    except UnicodeDecodeError as error:
        raise DataError(f"prompt: expected text in UTF-8, found bytes that are none: {prompt[:20]!r}") from error


def _entry(flat: Mapping[str, Any], key: str) -> Any:
    if key not in flat:
        raise DataError(f"{key}: expected it in the observation, found {sorted(flat)}")
    return flat[key]


def _root(key: str) -> str:
    return key.partition("/")[0]


def _flat(sent: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Entries by name, those of nested maps as a/b."""
    flat: dict[str, Any] = {}
    for key, value in sent.items():
        flat |= _flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
