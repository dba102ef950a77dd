"""The JSON schema of an episode, enforced."""

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs

from chunkwise.data.problems import Problem, problem_of
from chunkwise.files import budget

SCHEMA_FILE = Path(__file__).with_name("episode.schema.json")
NARROW = 10**18
"""Up to which numbers are checked quickly; those that go further are compared with the schema's own limits."""
MAX_FOUND = 1000
"""Problems of one file that are looked for."""


@functools.cache
def schema() -> Mapping[str, Any]:
    """The JSON schema (draft 2020-12) of an episode."""
    return json.loads(SCHEMA_FILE.read_text())


@functools.cache
def _quick() -> Sequence[jsonschema_rs.Draft202012Validator]:
    """The schema with NARROW limits, and as it is.

    A limit beyond 64 bits is compared digit by digit: 0.6 microseconds a number, and nearly all of the time. Nothing in
    the schema is negated, so that what obeys the narrow one obeys it.
    """
    return [jsonschema_rs.Draft202012Validator(one) for one in (_narrowed(schema()), dict(schema()))]


def _narrowed(part: Any) -> Any:
    """A part of the schema, with NARROW in place of limits beyond it, which are floats."""
    if isinstance(part, Mapping):
        return {key: _narrowed(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_narrowed(value) for value in part]
    return max(-NARROW, min(int(part), NARROW)) if isinstance(part, float) else part


def _is_good(tree: Any) -> bool:
    """Whether a value obeys the schema, some 450 times faster than the places where it does not are found.

    The library that is so fast holds all of these places in memory, 2.6 GB for a file of 48 MB that is wrong all over:
    it gives the verdict, and `_errors` the reasons.
    """
    try:
        return any(validator.is_valid(tree) for validator in _quick())
    except ValueError:  # what JSON has not, such as half a surrogate pair
        return False


@functools.cache
def _validators() -> tuple[Any, Any]:
    """Of an episode, and of one of its frames."""
    import jsonschema  # 0.1 s

    frame = {"$ref": "#/$defs/frame", "$defs": schema()["$defs"]}
    return jsonschema.Draft202012Validator(schema()), jsonschema.Draft202012Validator(frame)


def schema_problems(tree: Any, *, source: str) -> list[Problem]:
    """Where a parsed JSON value departs from the schema."""
    if _is_good(tree):
        return []
    clock, problems = budget.Clock(source), []
    try:
        for path, error in _errors(tree, clock):
            problems.append(
                Problem(file=source, key=_dotted(path), expected=_expected(error), found=_short(error.instance))
            )
            if len(problems) == MAX_FOUND:
                break
    except budget.LimitError as error:
        problems.append(problem_of(error, source))
    return problems


def non_finite_problems(tree: Any, *, source: str) -> list[Problem]:
    """NaN and infinities in a value, which JSON has not; what was parsed by strict_json holds none."""
    problems: list[Problem] = []

    def look(part: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(part, float) and not math.isfinite(part) and len(problems) < MAX_FOUND:
            expected = "a finite number, or null where it is unknown"
            problems.append(Problem(file=source, key=_dotted(path), expected=expected, found=str(part)))
        inside = (
            part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list | tuple) else ()
        )
        for key, value in inside:
            look(value, (*path, key))

    look(tree, ())
    return problems


def _errors(tree: Any, clock: budget.Clock) -> Iterator[tuple[list[str | int], Any]]:
    """Where and why a value departs from the schema. Frames are looked at one by one, and the clock between them."""
    whole, one_frame = _validators()
    frames = tree.get("frames") if isinstance(tree, dict) else None
    frames = frames if isinstance(frames, list) else []
    head = {**tree, "frames": frames[:1]} if frames else tree
    for error in whole.iter_errors(head):
        yield list(error.absolute_path), error
    for row, frame in enumerate(frames[1:], start=1):
        clock.check()
        for error in one_frame.iter_errors(frame):
            yield ["frames", row, *error.absolute_path], error


def _dotted(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _expected(error: Any) -> str:
    """What a keyword of the schema asks for, in words where the keyword alone would not say it."""
    value = error.validator_value
    if error.validator == "required":
        return f"the keys {', '.join(value)}"
    if error.validator == "type":
        return value if isinstance(value, str) else " or ".join(value)
    if error.validator == "enum":
        return f"one of {value}"
    if error.validator == "anyOf":
        return f"a list of {' or '.join(str(option['maxItems']) for option in value)} numbers"
    return f"{error.validator} {value!r}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
