"""What goes into a policy and what comes out: names, shapes, dtypes, units, as plain values for clients."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

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
            *parents, last = name.split("/")
            inner = made
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = entry.example()
        return made

    def plain(self) -> dict[str, Any]:
        """Returns it as JSON values."""

        def values(entry: Entry) -> dict[str, Any]:
            found = dataclasses.asdict(entry)
            return found | {"shape": list(entry.shape), "choices": list(entry.choices)}

        observation = {name: values(entry) for name, entry in self.observation.items()}
        return {"observation": observation, "actions": values(self.actions)}


def image_entry(name: str, size: tuple[int, int], *, may_be_none: bool) -> Entry:
    """Returns the entry of a camera whose images the model sees at `size`, height and width."""
    return Entry(
        shape=(*size, 3),
        dtype="uint8",
        unit="RGB, 0 to 255",
        meaning=f"camera {name}",
        any_size=True,
        may_be_none=may_be_none,
    )
