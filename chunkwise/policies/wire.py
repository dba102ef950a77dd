"""What travels between a policy's server and its clients: openpi's msgpack, and entries under other names.

Arrays travel as maps with the byte-string keys __ndarray__ (true), data, dtype (numpy's string), shape; numpy scalars
as __npgeneric__, data, dtype.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from chunkwise.errors import DataError

DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
"""Dtypes that travel, as numpy writes them: numbers; no objects, so nothing that is received can run code."""
MAX_DEPTH = 8
"""Maps and lists inside one another."""
MAX_DIMS = 8
"""Dimensions of an array."""
MAX_ENTRIES = 4096
"""Entries of all maps of a message together, and of one list."""
MAX_ITEMS = 1 << 16
"""Items of all lists together: one of a byte on the wire takes fifty in memory. Arrays have no such limit."""
MAX_TEXT = 1 << 16
"""Bytes of one text, a prompt above all."""


class MessageError(DataError):
    """What was received is no message of this protocol."""


def pack(value: Any) -> bytes:
    """Msgpack with numpy arrays and scalars, as openpi-client writes it. Raises DataError for other dtypes."""
    return msgpack.packb(value, default=_encode)  # pyright: ignore[reportReturnType]


def unpack(data: bytes) -> dict[str, Any]:
    """An observation, or whatever else a map of numbers, texts and arrays holds; undoes `pack`.

    Arrays are read-only views of `data`'s parts. What is read takes at most a few times the memory of `data`.

    Raises:
      MessageError: If it is no such message: no msgpack, no map at the top, a key twice, an extension type, lists or
        maps that are too deep or too large, an array of objects, or one whose shape does not fit its bytes.
    """
    counts = _Counts()
    try:
        value = msgpack.unpackb(
            data,
            object_pairs_hook=counts.map,
            list_hook=counts.list,
            ext_hook=_no_extension,
            max_array_len=MAX_ENTRIES,
            max_map_len=MAX_ENTRIES,
            max_str_len=MAX_TEXT,
            max_ext_len=0,
        )
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise MessageError(f"request: expected msgpack as openpi-client writes it, found {reason}") from error
    _require_plain(value, MAX_DEPTH)
    if not isinstance(value, dict):
        raise MessageError(f"request: expected a map, found {type(value).__name__}")
    return value


def rename(observation: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An observation with some entries under other names; "/" in a name leads into a nested dict.

    Args:
      observation: As the client sent it; not changed. Entries that are not named stay.
      names: Client's key to the policy's, e.g. {"observation/image": "image/base_0_rgb"}. A client's key with "/" in it
        is found as it is, as openpi's LIBERO client sends it, or nested, as its ALOHA client does.

    Raises:
      DataError: If an entry is missing or there twice, flat and nested, or a new name leads into what is no dict.
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
    *parents, last = name.split("/")
    inner: Any = observation
    for parent in parents:
        inner = inner.get(parent) if isinstance(inner, dict) else None
    if name not in observation:
        return inner.pop(last, missing) if isinstance(inner, dict) else missing
    if parents and isinstance(inner, dict) and last in inner:
        raise DataError(f"request: expected {name!r} once, as --rename says, found it flat and nested")
    return observation.pop(name)


class _Counts:
    """Makes the maps and lists of one message, and refuses more of them than an observation can have."""

    def __init__(self) -> None:
        self._entries = 0
        self._items = 0

    def map(self, pairs: list[tuple[Any, Any]]) -> Any:
        self._entries += len(pairs) + 1
        if self._entries > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES} entries")
        value = dict(pairs)
        if len(value) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.80} twice in one map")
        return _decode(value)

    def list(self, items: list[Any]) -> list[Any]:
        self._items += len(items) + 1
        if self._items > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items in lists; send arrays")
        return items


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"an extension type, {code}")


def _require_plain(value: Any, depth: int) -> None:
    """Raises MessageError for types that no client sends, and for what lies too deep."""
    if isinstance(value, dict | list):
        if not depth:
            raise MessageError(f"request: expected at most {MAX_DEPTH} levels of maps and lists, found more")
        for item in value.values() if isinstance(value, dict) else value:
            _require_plain(item, depth - 1)
    elif not isinstance(value, str | bytes | bool | int | float | np.ndarray | np.generic | None):
        raise MessageError(f"request: expected numbers, texts and arrays, found {type(value).__name__}")


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise DataError(f"message: expected plain values and numpy arrays, found {type(value).__name__}")
    if not DTYPE.fullmatch(value.dtype.str):
        raise DataError(f"message: expected numbers, found an array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode(value: dict[Any, Any]) -> Any:
    of = {b"__ndarray__": (b"data", b"dtype", b"shape"), b"__npgeneric__": (b"data", b"dtype")}
    for kind, needed in of.items():
        if kind in value and (missing := [key for key in needed if key not in value]):
            raise ValueError(f"an array's map without {', '.join(map(repr, missing))}")
    if b"__ndarray__" in value:
        dtype, shape, data = _dtype(value[b"dtype"]), value[b"shape"], value[b"data"]
        whole = isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 31 for n in shape)
        if not (whole and len(shape) <= MAX_DIMS and isinstance(data, bytes)):
            raise ValueError(f"an array of {dtype} with the shape {shape!r:.80} from {type(data).__name__}")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {dtype} {shape!s:.80} in {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in value:
        dtype, data = _dtype(value[b"dtype"]), value[b"data"]
        if not isinstance(data, bool | int | float):
            raise ValueError(f"a scalar of {dtype} from {type(data).__name__}")
        with np.errstate(over="ignore"):  # infinite is an answer; who uses it asks
            return dtype.type(data)
    return value


def _dtype(name: Any) -> np.dtype[Any]:
    if not (isinstance(name, str) and DTYPE.fullmatch(name)):
        raise ValueError(f"the dtype {name!r:.80}; expected one of numbers, such as '<f4' or '|u1'")
    return np.dtype(name)
