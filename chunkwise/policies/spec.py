"""What goes into a policy and what comes out: names, shapes, dtypes, units, as plain values for clients."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.arrays import PyTree
from chunkwise.data.norm_stats import Affine

TEXT = "text"
"""Dtype of an entry of words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of an observation, or the actions. A batch has one more axis in front of `shape`."""

    shape: tuple[int, ...]
    dtype: str
    """numpy's name, or TEXT. Numbers of any other kind are converted, images are not."""
    unit: str
    meaning: str
    any_size: bool = False
    """An image of another height and width is resized to `shape`."""
    may_be_none: bool = False
    """None says that it is not known, or that a camera is off."""
    choices: tuple[str, ...] = ()
    """Words that are allowed; empty: any."""

    def example(self) -> Any:
        """Returns a value that is accepted: zeros, the first of the choices, or some word."""
        if self.dtype == TEXT:
            return self.choices[0] if self.choices else "example"
        return np.zeros(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """All of it. A name with "/" in it is an entry of a dict: image/top is observation["image"]["top"]."""

    observation: Mapping[str, Entry]
    actions: Entry
    """[t, a]: t actions of one chunk."""

    def example(self) -> dict[str, Any]:
        """Returns an observation of the right names, shapes and dtypes."""
        made: dict[str, Any] = {}
        for name, entry in self.observation.items():
            first, inside, last = name.partition("/")  # of a camera's own name, too: image/rig/left is of rig/left
            if inside:
                made.setdefault(first, {})[last] = entry.example()
            else:
                made[first] = entry.example()
        return made

    def plain(self) -> dict[str, Any]:
        """Returns it as JSON values."""

        def values(entry: Entry) -> dict[str, Any]:
            found = dataclasses.asdict(entry)
            return found | {"shape": list(entry.shape), "choices": list(entry.choices)}

        observation = {name: values(entry) for name, entry in self.observation.items()}
        return {"observation": observation, "actions": values(self.actions)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exportable:
    """A policy's program and what surrounds it."""

    program: Callable[[PyTree, dict[str, Any]], Any]
    """(weights, inputs by name) -> chunks [b, t, a], normalised."""
    params: Mapping[str, Any]
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape of one row, and dtype."""
    normalised: Mapping[str, Affine]
    """Inputs that are normalised before the program."""
    actions: Affine
    """Undone after it."""
    seed: str | None
    """Input that seeds what is drawn in the program; None where nothing is."""
    spec: Spec
    order: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Input with an axis of cameras, and their names along it."""
    noise: str | None = None
    """Input that is normal noise, drawn from the seed where an observation has none."""
    defaults: Mapping[str, bool | float] = dataclasses.field(default_factory=dict)
    """Inputs that an observation may leave out, and the value that they have then."""
    ranges: Mapping[str, tuple[float, float | None]] = dataclasses.field(default_factory=dict)
    """Smallest and largest number that an input takes, None where there is no largest; of others any finite one."""
    at_least: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Input of flags, of whose last k at least n are true: (k, n)."""
    masks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Input of ids, and the input that is true where one was given."""
    relative: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Input that is added to the actions, not normalised, in these dimensions of both."""
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """What else is copied into the export, by name."""


def image_entry(
    name: str,
    size: tuple[int, int],
    *,
    may_be_none: bool,
    shrunk: bool = False,
    recorded: tuple[int, int] | None = None,
) -> Entry:
    """Returns the entry of a camera whose images the model sees at `size`, height and width.

    Args:
      name: Of the camera.
      size: Of the images that the model sees.
      may_be_none: Whether it may be off.
      shrunk: Whether larger images are shrunk as JPEGs of them are (`shrink_into` of chunkwise/data/images.py).
      recorded: Height and width of its recordings; None where they are not known, or do not matter.
    """
    return Entry(
        shape=(*size, 3),
        dtype="uint8",
        unit="RGB, 0 to 255",
        meaning=f"camera {name}"
        + ("" if recorded is None else f"; recorded at {recorded[0]} x {recorded[1]}, height x width")
        + ("; larger images are shrunk as JPEGs of them are" if shrunk else ""),
        any_size=True,
        may_be_none=may_be_none,
    )
