"""Reads what callers and clients send as an observation: each entry is checked, and refused by its name."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Shaped, UInt8, UInt32

from chunkwise.data.images import require_uint8
from chunkwise.data.norm_stats import Affine
from chunkwise.errors import DataError

MAX_STATE = 1e6
"""Largest state after normalising. A model was trained on numbers around 1; one a million times as large is a broken
sensor or another unit, and from about 1e19 on its square is no number any more."""


def entry(observation: Mapping[str, Any], key: str) -> Any:
    """Returns an entry. Raises DataError where there is none, with what there is."""
    if key not in observation:
        raise DataError(f"{key}: expected it in the observation, found {sorted(map(str, observation))}")
    return observation[key]


def nested(observation: Mapping[str, Any], *entries: str) -> Mapping[str, Any]:
    """Returns an observation in which what is sent as "image/NAME", as the spec writes it, is in the dict "image".

    Args:
      observation: As it was sent.
      entries: Dicts by camera.

    Raises:
      DataError: One is sent both ways, or an entry is no dict by camera.
    """
    for entry in entries:
        beside = {
            key: key.removeprefix(f"{entry}/")
            for key in observation
            if isinstance(key, str) and key.startswith(f"{entry}/")
        }
        if not beside:
            continue
        given = observation.get(entry, {})
        if not isinstance(given, Mapping):
            raise DataError(f"{entry}: expected a dict by camera beside {sorted(beside)}, found {type(given).__name__}")
        if twice := sorted(name for name in beside.values() if name in given):
            raise DataError(
                f"{entry}: expected each camera once, found {twice} in the dict and as entries {entry}/NAME"
            )
        others = {key: value for key, value in observation.items() if key not in beside}
        observation = {**others, entry: {**given, **{name: observation[key] for key, name in beside.items()}}}
    return observation


def as_array(value: Any, name: str) -> np.ndarray:
    """Returns an entry as an array. Raises DataError for lists of different lengths."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{name}: expected an array, found {error}") from error


def found_as(value: Any, array: np.ndarray) -> str:
    """What was sent in place of an array, in words; `array` is what numpy makes of it."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes; decode images before they are sent"
    if array.dtype.kind not in "fiub":
        return f"{type(value).__name__} {reprlib.repr(value)[:60]}"
    return f"{array.dtype} {list(array.shape)}"


def numbers(observation: Mapping[str, Any], key: str, width: int) -> tuple[Float32[np.ndarray, "b s"], bool]:
    """Reads an entry of `width` numbers, or a batch of such.

    Returns:
      The rows, and whether there was one only, without the axis of rows.

    Raises:
      DataError: If it is missing, or of another type or width, or not finite in float32.
    """
    value = as_array(entry(observation, key), key)
    if value.dtype.kind not in "fiu" or value.ndim not in (1, 2) or value.shape[-1] != width or not value.size:
        raise DataError(
            f"{key}: expected {width} numbers, or a batch of them, found {found_as(observation[key], value)}"
        )
    wide = np.atleast_2d(value.astype(np.float64))
    bad = np.argwhere(~(np.abs(wide) <= np.finfo(np.float32).max))
    if len(bad):
        raise DataError(f"{key}: expected finite numbers, found {wide[tuple(bad[0])]:g} {_place(bad[0], wide)}")
    return wide.astype(np.float32), value.ndim == 1


def one_seed(seed: int | float, rows: int) -> UInt32[np.ndarray, " 1"]:
    """Returns the option `seed` of a request, which has one row.

    Raises:
      DataError: It is no whole number of 32 bits, or there are more rows.
    """
    if rows != 1 or not 0 <= seed < 2**32 or seed != int(seed):
        raise DataError(f"seed: expected a whole number of 0 to 2^32 - 1 and one row, found {seed:g} and {rows}")
    return np.array([int(seed)], np.uint32)


def known_numbers(
    observation: Mapping[str, Any], key: str, shape: tuple[int, ...], *, rows: int, single: bool
) -> tuple[Float64[np.ndarray, "b *s"], Bool[np.ndarray, "b *s"]]:
    """Reads an entry of numbers, each of which may be None where it is not known.

    Args:
      observation: As it was sent.
      key: Of the entry, which must be there; None: nothing of it is known.
      shape: Of one row.
      rows: Of the observation.
      single: Whether it has no axis of rows.

    Returns:
      The numbers, 0 where they are not known, and which are.

    Raises:
      DataError: If it is missing, of another type or shape, not finite or above MAX_STATE.
    """
    value = entry(observation, key)
    if value is None:
        return np.zeros((rows, *shape)), np.zeros((rows, *shape), bool)
    given = as_array(value, key)
    known = np.array([one is not None for one in given.flat], bool).reshape(given.shape)
    plain = all(isinstance(one, int | float | np.number) and not isinstance(one, bool) for one in given[known].flat)
    whole = shape if single else (rows, *shape)
    if given.shape != whole or not plain:
        wanted = f"numbers {list(whole)}" if whole else "a number"
        found = f"{given.dtype} {list(given.shape)}" if plain else repr(value)[:80]
        raise DataError(f"{key}: expected {wanted}, None where it is not known, found {found}")
    filled = np.where(known, given, 0).astype(np.float64)
    bad = np.argwhere(~(np.abs(filled) <= MAX_STATE))
    if len(bad):
        at = f" at {bad[0].tolist()}" if whole else ""
        raise DataError(f"{key}: expected numbers of at most {MAX_STATE:g}, found {filled[tuple(bad[0])]:g}{at}")
    return filled.reshape(rows, *shape), known.reshape(rows, *shape)


def normalised(affine: Affine, raw: Float[np.ndarray, "b s"], key: str) -> Float32[np.ndarray, "b s"]:
    """Normalises numbers as in training. Raises DataError where one is absurd, above MAX_STATE."""
    with np.errstate(over="ignore"):
        state = affine.apply(raw)
    bad = np.argwhere(~(np.abs(state) <= MAX_STATE))
    if len(bad):
        at = tuple(bad[0])
        found = f"{raw[at]:g} {_place(bad[0], state)}, which is {state[at]:g} normalised"
        raise DataError(f"{key}: expected at most {MAX_STATE:g} after normalising, found {found}")
    return state


def images(
    observation: Mapping[str, Any],
    cameras: Sequence[str],
    resize: Callable[[str, UInt8[np.ndarray, "h w 3"]], UInt8[np.ndarray, "h2 w2 3"]],
    *,
    rows: int,
    single: bool,
    may_be_off: bool,
) -> dict[str, UInt8[np.ndarray, "b h w 3"] | None]:
    """Reads the entry "image", a dict by camera.

    Args:
      observation: As it was sent.
      cameras: Names of those that the policy sees; an observation has each of them, and others are ignored.
      resize: As in training: of a camera, by its name in `cameras`, and its image.
      rows: Of the observation.
      single: Whether it has no axis of rows.
      may_be_off: Whether None is taken, for a camera that is off.

    Returns:
      Images of each camera, resized, in the order of `cameras`; None where it is off.

    Raises:
      DataError: If a camera is missing, or an image is none of uint8 [h, w, 3] or [3, h, w].
    """
    off = ", None for a camera that is off" if may_be_off else ""
    given = _by_camera(observation, "image", cameras, off) if cameras else {}
    found: dict[str, np.ndarray | None] = {}
    for name in cameras:
        value = given[name]
        if value is None and may_be_off:
            found[name] = None
            continue
        if isinstance(value, Sequence) and any(one is None for one in value):
            wanted = (
                "images of all rows, or None; ask row by row where a camera is off in some" if may_be_off else "images"
            )
            raise DataError(f"image {name}: expected {wanted}, found a {type(value).__name__} with None in it")
        sent = as_array(value, f"image {name}")
        stack = sent[None] if single else sent
        if stack.ndim != 4 or len(stack) != rows:
            wanted = "one image [h, w, 3]" if single else f"{rows} images [{rows}, h, w, 3]"
            raise DataError(f"image {name}: expected {wanted}, found {found_as(value, sent)}")
        stack = channels_last(stack)
        require_uint8(stack[0], name)
        found[name] = np.stack([resize(name, np.ascontiguousarray(one)) for one in stack])
    return found


def depth_maps(
    observation: Mapping[str, Any],
    cameras: Sequence[str],
    resize: Callable[[Shaped[np.ndarray, "h w"]], Shaped[np.ndarray, "h2 w2"]],
    *,
    dtype: str | None,
    rows: int,
    single: bool,
) -> dict[str, Shaped[np.ndarray, "b h w"]]:
    """Reads the entry "depth", a dict by camera of depth maps in the unit of the recordings.

    Args:
      observation: As it was sent.
      cameras: Names of those that the policy sees; an observation has each of them, and others are ignored.
      resize: As in training.
      dtype: Of the recordings; another one may have another unit, and is refused. None: not known, any.
      rows: Of the observation.
      single: Whether it has no axis of rows.

    Returns:
      Depth maps of each camera, resized, in the order of `cameras`.

    Raises:
      DataError: If a camera is missing, or a depth map is none of `dtype` [h, w].
    """
    given = _by_camera(observation, "depth", cameras)
    found: dict[str, np.ndarray] = {}
    for name in cameras:
        sent = as_array(given[name], f"depth {name}")
        stack = sent[None] if single else sent
        known = sent.dtype.kind in "fu" if dtype is None else sent.dtype == dtype
        if stack.ndim != 3 or len(stack) != rows or not known or not stack.size:
            wanted = "one depth map [h, w]" if single else f"{rows} depth maps [{rows}, h, w]"
            of = dtype or "numbers"
            raise DataError(f"depth {name}: expected {wanted} of {of}, found {sent.dtype} {list(sent.shape)}")
        found[name] = np.stack([resize(one) for one in stack])
    return found


def _by_camera(observation: Mapping[str, Any], key: str, cameras: Sequence[str], more: str = "") -> Mapping[Any, Any]:
    """Returns an entry that is a dict with each of the cameras. Raises DataError, which says what `more` is taken."""
    given = entry(observation, key)
    if not isinstance(given, Mapping) or set(cameras) - set(given):
        got = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise DataError(f"{key}: expected a dict with {list(cameras)}{more}; found {got}")
    return given


def channels_last(images: np.ndarray) -> np.ndarray:
    """Returns images [..., 3, h, w] as [..., h, w, 3], and others as they are."""
    first = images.ndim >= 3 and images.shape[-3] == 3 and images.shape[-1] != 3
    return np.moveaxis(images, -3, -1) if first else images


def texts(observation: Mapping[str, Any], key: str, *, rows: int, single: bool, default: Any = None) -> Sequence[str]:
    """Reads an entry of words: one for all rows, or one a row. Raises DataError for anything else.

    Args:
      observation: As it was sent.
      key: Of the entry.
      rows: Of the observation.
      single: Whether it has no axis of rows.
      default: Taken where the entry is missing; None: it must be there.
    """
    given = entry(observation, key) if default is None else observation.get(key, default)
    words = [given] * rows if isinstance(given, str) else given
    flat = words.ndim == 1 if isinstance(words, np.ndarray) else isinstance(words, Sequence)
    if not flat or len(words) != rows or not all(isinstance(word, str) for word in words):
        wanted = "text" if single else f"text, or {rows} of them"
        raise DataError(f"{key}: expected {wanted}, found {type(given).__name__} {str(given)[:80]!r}")
    return list(words)


def require_rows(key: str, rows: int, max_rows: int | None) -> None:
    """Raises DataError if one request has more rows than a server takes."""
    if max_rows is not None and rows > max_rows:
        raise DataError(f"{key}: expected at most {max_rows} rows in one request as --max-rows says, found {rows}")


def _place(index: np.ndarray, batch: np.ndarray) -> str:
    """Where a value lies, in words; rows are named where there are several."""
    row, at = index.tolist()
    return f"at entry {at} of row {row}" if len(batch) > 1 else f"at entry {at}"
