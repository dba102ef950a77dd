"""Configs as a run's folder and its checkpoints hold them: written, read back, compared when a run goes on."""

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chunkwise.config.experiment import ExperimentConfig, of_a_run_of_before, refuse_anew
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget, trust
from chunkwise.files.strict_json import parse_json

CONFIG = "config.json"
"""In a run's folder."""
LARGEST = 2**63
"""No number of a config is as large: what computes with it has 64 bits."""

Config = TypeVar("Config", bound=ExperimentConfig)


def flatten(config: Any) -> dict[str, Any]:
    """Leaves of a nested config by dotted name, as JSON values: {"agent.discount": 0.99, ...}."""

    def walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from walk(f"{prefix}.{field.name}" if prefix else field.name, getattr(value, field.name))
        else:
            yield prefix, _as_json(value)

    return dict(walk("", config))


def with_fitting_values(config: Config, source: str) -> Config:
    """Checks that a config can be read back from a run's folder; Python does not ask what stands in a field.

    Args:
      config: Of a config file, a command line, or a program.
      source: Where it came from, for the message.

    Returns:
      The config as it is read back: a path as its text, a list as a tuple.

    Raises:
      ConfigError: A value is of another type than its field, none of its words, or no finite number of 64 bits.
    """
    try:
        if ExperimentConfig not in type(config).__bases__:
            raise ValueError(_other_class("the config", config, type(config).__bases__))
        return _fitting(config, "")
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def require_as_new(config: Any) -> None:
    """Raises ConfigError for what a run of before may have been begun with, and a new one may not be."""
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(part := getattr(config, field.name)):
            require_as_new(part)
    try:
        dataclasses.replace(config)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _fitting(config: Any, prefix: str) -> Any:
    hints, changed = typing.get_type_hints(type(config)), {}
    for field in dataclasses.fields(config):
        name, value, hint = f"{prefix}{field.name}", getattr(config, field.name), hints[field.name]
        nested = tuple(part for part in members(hint) if isinstance(part, type) and dataclasses.is_dataclass(part))
        if isinstance(value, nested):
            if type(value) not in nested:
                raise ValueError(_other_class(name, value, nested))
            now = _fitting(value, f"{name}.")
        else:
            try:
                now = _immutable(_as_json(value))
            except (TypeError, ValueError) as error:
                raise ValueError(_misfit(name, value, hint)) from error
            if not _fits(hint, now):
                raise ValueError(_misfit(name, value, hint))
            if now == "" != field.default:  # as a shell makes of a variable that is not set
                refuse_anew(f"{name} is empty; expected {_words(hint)} of at least one letter, or to be left out")
        if now != value:
            changed[field.name] = now
    return dataclasses.replace(config, **changed) if changed else config


def _as_json(value: Any) -> Any:
    """A field's value as JSON holds it; a path is its text. Raises TypeError for what JSON has no word for."""
    return json.loads(json.dumps(value, default=os.fspath))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeRules:
    """What the fields of a config class say of runs that go on: dotted names; one that ends in a dot means all below.

    `always` and `at_a_constant_rate` may differ; `renamed` has today's name by the one that earlier versions wrote;
    `defaults` the value of a field that an earlier version did not have yet; `before` that of one whose default is
    another one now; `none` makes the value that None stands for in a field, of those beside it. `places`, which are of
    `always`, say where files lie, of which the content is compared.
    """

    always: tuple[str, ...] = ()
    at_a_constant_rate: tuple[str, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    before: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    none: Mapping[str, Callable[[Mapping[str, Any]], Any]] = dataclasses.field(default_factory=dict)
    places: tuple[str, ...] = ()


NO_RULES = ResumeRules()


def resume_rules(kind: type) -> ResumeRules:
    """Collects what the metadata of a config class, and of the classes nested in it, say of their fields."""
    always, constant, places = list[str](), list[str](), list[str]()
    renamed, defaults, before, none = {}, {}, {}, {}

    def walk(prefix: str, kind: type, free: bool) -> None:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            name = f"{prefix}{field.name}"
            parts = [part for part in members(hints[field.name]) if isinstance(part, type)]
            nested = [part for part in parts if dataclasses.is_dataclass(part)]
            when = None if free else field.metadata.get("free on resume")
            if when is not None:
                (always if when == "always" else constant).append(f"{name}." if nested else name)
            if "place" in field.metadata:
                places.append(name)
            if "renamed from" in field.metadata:
                renamed[f"{prefix}{field.metadata['renamed from']}"] = name
            if "before it was there" in field.metadata:
                before[name] = field.metadata["before it was there"]
            if "none stands for" in field.metadata:
                none[name] = field.metadata["none stands for"]
            if field.default is not dataclasses.MISSING:
                defaults[name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[name] = field.default_factory()
            for part in nested:
                walk(f"{name}.", part, free or when is not None)

    walk("", kind, free=False)
    plain = {name: value for name, value in defaults.items() if not dataclasses.is_dataclass(value)}
    jsonable = json.loads(json.dumps(plain))
    return ResumeRules(
        always=tuple(always),
        at_a_constant_rate=tuple(constant),
        renamed=renamed,
        defaults=jsonable,
        before=before,
        none=none,
        places=tuple(places),
    )


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of another type, itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def fingerprint(flat: Mapping[str, Any], rules: ResumeRules) -> dict[str, Any]:
    """Returns the part of a flattened config, by the names of today, that must be the same when a run goes on."""
    names = rules.always + (rules.at_a_constant_rate if flat.get("optim.schedule") == "constant" else ())
    below = tuple(name for name in names if name.endswith("."))
    now = as_written_today(flat, rules)
    beside = _siblings(now)
    now |= {
        name: value(beside[name.rpartition(".")[0]]) for name, value in rules.none.items() if now.get(name, 0) is None
    }
    return {name: value for name, value in now.items() if name not in names and not name.startswith(below)}


def as_written_today(flat: Mapping[str, Any], rules: ResumeRules) -> dict[str, Any]:
    """Renames the fields of a flattened config that an earlier version wrote under other names.

    A field that it did not have, and whose default is another one now, gets the value that stands for what it did.
    """
    now = {rules.renamed.get(name, name): value for name, value in flat.items()}
    siblings = _siblings(now)
    lacking = {
        name: value for name, value in rules.before.items() if name not in now and name.rpartition(".")[0] in siblings
    }
    # Only of what is lacking: a field that it is computed from may since have become free on resume, and not be saved.
    return now | {
        name: value(siblings[name.rpartition(".")[0]]) if callable(value) else value for name, value in lacking.items()
    }


def _siblings(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields of each config in a flattened one, by their own names."""
    siblings: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        parent, _, own = name.rpartition(".")
        siblings.setdefault(parent, {})[own] = value
    return siblings


def without_younger(current: Mapping[str, Any], saved: Mapping[str, Any], rules: ResumeRules) -> dict[str, Any]:
    """Leaves out of a fingerprint the fields that an earlier version, which saved the other one, did not have.

    A field counts as younger where the other lacks it; it must have its default, which stands for what was done before.
    """
    defaults = rules.defaults
    return {k: v for k, v in current.items() if k in saved or k not in defaults or v != defaults[k]}


YOUNGER = {
    "dataset.files": (
        "kept no list of the dataset's files: whether images or videos changed since cannot be told; from the next "
        "save on it can. (Files above 256 MiB were hashed in another way then: if nothing but dataset.manifest "
        "differs, go on with that version, or start anew)"
    ),
    "dataset.arrays_of_the_reader": (
        "kept nothing of what a reader of your own makes of the files: whether the reader changed since cannot be "
        "told; from the next save on it can"
    ),
}
"""Entries of a checkpoint's fingerprint that earlier versions did not write, and what to say of those versions."""


def comparable(
    saved: dict[str, Any], current: dict[str, Any], rules: ResumeRules
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The parts of a checkpoint's fingerprint and of a run's that both versions of the code know, and a note.

    Args:
      saved: Of the checkpoint, which an earlier version may have written.
      current: Of the run.
      rules: Of the run's config class: what this version lets differ, an earlier one may have saved.

    Returns:
      Both, to be compared, and what to say of entries that are in `current` alone; empty where there are none.
    """
    new = [name for name in YOUNGER if name in current and name not in saved]
    note = "; ".join(f"the checkpoint is an earlier version's, which {YOUNGER[name]}" for name in new)
    before = fingerprint(saved, rules)
    now = {name: value for name, value in current.items() if name not in new}
    return before, without_younger(now, before, rules), note


def read_config(folder: Path, kind: type[Config]) -> Config:
    """The config with which a run was started, also one that a new run would not be begun with.

    Raises:
      ConfigError: If config.json is missing, damaged, or of another package or version, or a value is of another type
        than its field.
      DataError: If links lead out of the folder, or config.json costs more than a limit.
    """
    flat = read_flat(folder)
    try:
        with of_a_run_of_before():
            return _unflatten(kind, as_written_today(flat, resume_rules(kind)), "")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{folder / CONFIG}: expected a {kind.__name__} as this version writes it: {error}"
        ) from error


def read_flat(folder: Path) -> dict[str, Any]:
    """Returns the fields of a run's config.json by dotted name, of whatever package and version.

    Raises:
      ConfigError: It is missing, or damaged.
      DataError: Links lead out of the folder, or config.json costs more than a limit.
    """
    trust.require_own_files(folder)
    path = folder / CONFIG
    try:
        flat = parse_json(budget.read_bytes(path).decode(), source=str(path), finite=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: expected the folder of a run, found no {CONFIG} in it") from error
    except budget.LimitError:
        raise
    except (OSError, ValueError, DataError) as error:
        raise ConfigError(f"{path}: expected the config of a run, found {error}") from error
    if not isinstance(flat, dict):
        raise ConfigError(f"{path}: expected the config of a run, an object of fields, found {type(flat).__name__}")
    return flat


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of this project. Raises DataError if its config.json is a pipe or a device."""
    path = folder / CONFIG
    if path.exists():
        budget.regular(path)
    return path.is_file()


def _unflatten(kind: Any, flat: Mapping[str, Any], prefix: str) -> Any:
    """Undoes flatten.

    A field that the file lacks, because it is younger than the run, gets its default. Raises KeyError if it has none.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        if name in flat:
            value = _immutable(flat[name])
            if not _fits(hints[field.name], value):
                raise TypeError(_misfit(name, value, hints[field.name]))
            values[field.name] = value
        else:
            nested = [part for part in members(hints[field.name]) if dataclasses.is_dataclass(part)]
            if nested and any(other.startswith(f"{name}.") for other in flat):
                values[field.name] = _unflatten(nested[0], flat, f"{name}.")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise KeyError(f"{name} is missing")
    return kind(**values)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value of JSON, its lists made tuples, is one of a field's type. Python itself does not ask."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return any(_fits(member, value) for member in arguments)
    if kind is typing.Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in arguments)
    if kind is tuple:
        items = arguments[:1] * len(value) if arguments[1:] == (...,) and isinstance(value, tuple) else arguments
        return (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(_fits(item, part) for item, part in zip(items, value, strict=True))
        )
    if kind is dict:
        return isinstance(value, dict) and all(
            _fits(arguments[0], key) and _fits(arguments[1], item) for key, item in value.items()
        )
    if hint in (int, float):
        if type(value) is float:
            return hint is float and math.isfinite(value)
        return type(value) is int and abs(value) < LARGEST
    return value is None if hint is type(None) else isinstance(value, hint)


def _other_class(name: str, value: Any, expected: tuple[type, ...]) -> str:
    """Says that a config is of a subclass, whose own fields a run's folder would not give back."""
    return (
        f"{name} is a {type(value).__name__}, a class of your own; expected a "
        f"{' or '.join(kind.__name__ for kind in expected)} itself, since a run's folder gives back the fields of that "
        "class alone. Settings for code of your own go into agent.settings or where else that code is named"
    )


def _misfit(name: str, value: Any, hint: Any) -> str:
    """Says what a field holds, and what is expected in it."""
    said = f"{name} is {value!r:.200}; expected {_words(hint)}"
    if type(value) is int and abs(value) >= LARGEST:
        return f"{said}, of 64 bits: from {1 - LARGEST} to {LARGEST - 1}"
    if type(value) is not float:
        return said
    if not math.isfinite(value):
        return f"{said}, finite"
    return f"{said}: write {int(value):_}" if int in members(hint) and value.is_integer() else said


def _words(hint: Any) -> str:
    """A type as people write it."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _immutable(value: Any) -> Any:
    """JSON's lists as the tuples that configs hold."""
    return tuple(_immutable(item) for item in value) if isinstance(value, list) else value
