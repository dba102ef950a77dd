"""What travels between a policy's server and its clients: openpi's msgpack, and entries under other names.

Arrays travel as maps with the byte-string keys __ndarray__ (true), data, dtype (numpy's string), shape; numpy scalars
as __npgeneric__, data, dtype.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from core.errors import DataError

KINDS = "biuf"
"""Kinds of numpy dtypes that travel; no objects, so nothing that is received can run code."""


def pack(value: Any) -> bytes:
    """Msgpack with numpy arrays and scalars, as openpi-client writes it. Raises DataError for other dtypes."""
    return msgpack.packb(value, default=_encode)  # pyright: ignore[reportReturnType]


def unpack(data: bytes) -> Any:
    """Undoes `pack`; arrays are read-only views of `data`.

    Raises:
      DataError: If it is no such message.
    """
    try:
        return msgpack.unpackb(data, object_hook=_decode)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise DataError(f"request: expected msgpack as openpi-client writes it, found {error}") from error


def rename(observation: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An observation with some entries under other names; "/" in a name leads into a nested dict.

    Args:
      observation: As the client sent it; not changed. Entries that are not named stay.
      names: Client's key to the policy's, e.g. {"observation/image": "image/base_0_rgb"}. A client's key with "/" in it
        is found as it is, as openpi's LIBERO client sends it, or nested, as its ALOHA client does.

    Raises:
      DataError: If an entry is missing, or a new name leads into what is no dict.
    """
    renamed = _copy(observation)
    missing = object()
    taken = {old: _take(renamed, old, missing) for old in names}
    lost = sorted(old for old, value in taken.items() if value is missing)
    if lost:
        raise DataError(f"request: expected the entries {lost} as --rename says, found {sorted(map(str, observation))}")
    for old, new in names.items():
        *parents, last = new.split("/")
        inner = renamed
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                found = f"{type(inner).__name__} at {parent!r}"
                raise DataError(f"request: expected a dict to put {old!r} into as --rename says, found {found}")
        inner[last] = taken[old]
    return renamed


def _copy(value: Any) -> Any:
    """Nested dicts copied, their arrays shared."""
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _take(observation: dict[str, Any], name: str, missing: object) -> Any:
    """Removes an entry, by its whole name or along its parts, and returns it; `missing` where there is none."""
    if name in observation:
        return observation.pop(name)
    *parents, last = name.split("/")
    inner: Any = observation
    for parent in parents:
        inner = inner.get(parent) if isinstance(inner, dict) else None
    return inner.pop(last, missing) if isinstance(inner, dict) else missing


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise DataError(f"message: expected plain values and numpy arrays, found {type(value).__name__}")
    if value.dtype.kind not in KINDS:
        raise DataError(f"message: expected numbers, found an array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        dtype, shape, data = np.dtype(value[b"dtype"]), tuple(value[b"shape"]), value[b"data"]
        if dtype.kind not in KINDS or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {dtype} {list(shape)} in {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in value:
        dtype, data = np.dtype(value[b"dtype"]), value[b"data"]
        if dtype.kind not in KINDS or not isinstance(data, bool | int | float):
            raise ValueError(f"a scalar of {dtype} from {type(data).__name__}")
        return dtype.type(data)
    return value
