"""JSON read strictly: NaN, Infinity, duplicate keys, half characters and endless nesting are errors that name the key.

Size, number of values, nesting and time have limits (chunkwise/files/budget.py), asked before the text is parsed.
"""

import collections
import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from chunkwise.errors import DataError
from chunkwise.files import budget

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""How such a text is written; a pair is found as well, and read as one character."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")

MAX_DIGITS = 4000
"""Of an integer; Python itself refuses 4,300, with an error that names no file."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE = (b"e000", b"0" * 200)
"""What a number has, as _DIGITS writes it, that is infinite as a float or above MAX_DIGITS; two digits of an exponent
make up for 99 others at most."""


def read_json(path: Path) -> Any:
    """Parses one JSON file.

    Raises:
      DataError: If the file is missing, is not UTF-8 JSON, holds NaN, Infinity, a duplicate key or half a surrogate
        pair, or costs more than a limit.
    """
    return parse_json(_read_text(path), source=str(path))


def read_json_lines(path: Path) -> list[Any]:
    """Parses a file with one JSON value a line; empty lines are passed over. Raises DataError as `read_json`."""
    text = _read_text(path)
    _require_few_values(text, str(path))
    clock = budget.Clock(str(path))
    values = []
    for n, line in enumerate(text.split("\n"), start=1):  # not splitlines: a text may hold U+2028
        clock.check()
        if line.strip():
            values.append(parse_json(line, source=f"{path}, line {n}"))
    return values


def parse_json(text: str, *, source: str, finite: bool = True) -> Any:
    """Parses JSON text.

    Args:
      text: One value.
      source: Names it in errors.
      finite: Refuse NaN and Infinity, which metadata of our own runs may hold; without, they become floats.

    Raises:
      DataError: As `read_json`.
    """

    def refuse(found: str) -> NoReturn:
        raise DataError(f"{source}: expected JSON with finite numbers and unique keys, found {found}")

    def number(literal: str) -> float:
        value = float(literal)
        if finite and not math.isfinite(value):
            refuse(f"the number {literal}, which is infinite as a float")
        return value

    constants: list[_Constant] = []

    def constant(name: str) -> _Constant:
        constants.append(_Constant(name))
        return constants[-1]

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            (key, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
            refuse(f"the key {key!r:.200} twice in one object")
        for key, value in pairs if constants else ():
            if isinstance(value, _Constant):
                refuse(f"{value.name} at key {key!r}")
        return tree

    def whole(literal: str) -> int:
        if len(literal) > MAX_DIGITS:
            refuse(f"an integer of {len(literal)} digits")
        return int(literal)

    _require_few_values(text, source)
    written = text.encode(errors="surrogatepass")
    large = _may_be_large(written)  # else Python's own numbers do, which take half the time of all parsing
    try:
        value = json.loads(
            text,
            parse_int=whole if large else None,
            parse_constant=constant if finite else float,
            parse_float=number if large else None,
            object_pairs_hook=unique,
        )
        found = None if not constants and _is_shallow(written) else _first_constant(value, source)
    except json.JSONDecodeError as error:
        raise DataError(f"{source}: expected JSON, found {error}") from error
    except RecursionError as error:
        raise DataError(f"{source}: expected JSON of a few levels, found nesting too deep to read") from error
    if found is not None:
        refuse(found)
    if not (text.isascii() and "\\" not in text) and _HALF.search(text) and (half := _first_half(value)) is not None:
        raise DataError(f"{source}: expected text of whole characters, found half a surrogate pair {half}")
    return value


def _may_be_large(text: bytes) -> bool:
    """Whether JSON may have a number that is infinite as a float, or an integer of more than MAX_DIGITS."""
    digits = text.translate(_DIGITS, b"+")
    return any(large in digits for large in _LARGE)


def _is_shallow(text: bytes) -> bool:
    """Whether the brackets of valid JSON say that it is nested no deeper than json_depth, without a look at its values.

    False, too, where a text has a bracket in it: which of them are meant is not told apart.
    """
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    left = text.translate(_BRACKETS, _NO_BRACKETS).replace(b'""', b"")
    for _ in range(budget.current().json_depth):
        left, before = left.replace(b"[]", b""), left  # without the innermost level
        if len(left) == len(before):
            break
    return not left


def _first_half(value: Any) -> str | None:
    """Where a text or key has half of a surrogate pair, which nothing can write or look up, as words; None: nowhere."""
    level = [("the top level", value)]
    while level:
        key, item = level.pop()
        if isinstance(item, str) and not _is_whole(item):
            return f"at {key!r:.200}: {item!r:.80}"
        if isinstance(item, dict):
            for name in item:
                if not _is_whole(name):
                    return f"in the key {name!r:.80} of {key!r:.200}"
            level += item.items()
        elif isinstance(item, list):
            level += [(key, part) for part in item]
    return None


def _is_whole(text: str) -> bool:
    return not _SURROGATE.search(text)


class _Constant:
    """Stands for NaN, Infinity or -Infinity until the key that holds it is known."""

    def __init__(self, name: str) -> None:
        self.name = name


def _first_constant(value: Any, source: str) -> str | None:
    """Where a list holds NaN or Infinity, as words; objects were checked while parsing.

    Goes down level by level, which no nesting can make too deep. Raises LimitError by json_depth, or by seconds.
    """
    if isinstance(value, _Constant):
        return f"{value.name} at the top level"
    clock = budget.Clock(source)
    level, depth = [("the top level", value)] if isinstance(value, dict | list) else [], 0
    while level:
        depth += 1
        if depth > budget.current().json_depth:
            raise budget.LimitError(source, "json_depth", f"at least {depth} levels, at {level[0][0]!r:.200}")
        deeper: list[tuple[str, Any]] = []
        for key, item in level:
            if isinstance(item, dict):
                deeper += [(name, part) for name, part in item.items() if isinstance(part, dict | list)]
                continue
            for part in item:
                if isinstance(part, _Constant):
                    return f"{part.name} at {key if key == 'the top level' else f'key {key!r:.200}'}"
                if isinstance(part, dict | list):
                    deeper.append((key, part))
        clock.check()
        level = deeper
    return None


def _require_few_values(text: str, source: str) -> None:
    """Asks before parsing: a value stands behind a bracket or a comma, so that there are no more values than those."""
    budget.require("metadata_values", text.count(",") + text.count("[") + text.count("{"), source)


def _read_text(path: Path) -> str:
    try:
        return budget.read_bytes(path).decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected a JSON file, found no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 file, found {error}") from error
