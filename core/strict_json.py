"""JSON read strictly: NaN, Infinity, duplicate keys and endless nesting are errors that name file and key."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from core.errors import DataError

MAX_DIGITS = 4000
"""Of an integer; Python itself refuses 4,300, with an error that names no file."""


def read_json(path: Path) -> Any:
    """Parses one JSON file.

    Raises:
      DataError: If the file is missing, is not UTF-8 JSON, or holds NaN, Infinity, a duplicate key or deep nesting.
    """
    return parse_json(_read_text(path), source=str(path))


def read_json_lines(path: Path) -> list[Any]:
    """Parses a file with one JSON value a line; empty lines are passed over. Raises DataError as `read_json`."""
    lines = _read_text(path).splitlines()
    return [parse_json(line, source=f"{path}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]


def parse_json(text: str, *, source: str) -> Any:
    """Parses JSON text; `source` names it in errors. Raises DataError as `read_json`."""

    def refuse(found: str) -> NoReturn:
        raise DataError(f"{source}: expected JSON with finite numbers and unique keys, found {found}")

    def number(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            refuse(f"the number {literal}, which is infinite as a float")
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            refuse(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice in one object")
        for key, value in pairs:
            if isinstance(value, _Constant):
                refuse(f"{value.name} at key {key!r}")
        return dict(pairs)

    def whole(literal: str) -> int:
        if len(literal) > MAX_DIGITS:
            refuse(f"an integer of {len(literal)} digits")
        return int(literal)

    try:
        value = json.loads(
            text, parse_int=whole, parse_constant=_Constant, parse_float=number, object_pairs_hook=unique
        )
        constant = _first_constant(value)
    except json.JSONDecodeError as error:
        raise DataError(f"{source}: expected JSON, found {error}") from error
    except RecursionError as error:
        raise DataError(f"{source}: expected JSON of a few levels, found nesting too deep to read") from error
    if constant is not None:
        refuse(constant)
    return value


class _Constant:
    """Stands for NaN, Infinity or -Infinity until the key that holds it is known."""

    def __init__(self, name: str) -> None:
        self.name = name


def _first_constant(value: Any, key: str = "the top level") -> str | None:
    """Where a list holds NaN or Infinity, as words; objects were checked while parsing."""
    if isinstance(value, _Constant):
        return f"{value.name} at {key}"
    if isinstance(value, dict):
        found = (_first_constant(item, f"key {name!r}") for name, item in value.items())
    elif isinstance(value, list):
        found = (_first_constant(item, key) for item in value)
    else:
        return None
    return next((words for words in found if words is not None), None)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected a JSON file, found no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 file, found {error}") from error
