"""Parts of a config that may be None, switched on and off by flags: `--agent.encoder.kind impala`, `--online None`.

tyro takes a part that is None in the config file for a value, which has no fields to set. Here a flag for a field of
such a part gives the command line's parser a class in which the part is there, with its defaults; what it parsed is
turned into the config's own classes again. A part without defaults for all its fields (online.env) has flags that are
required then. No value is checked before all flags are known: a config may be valid only with several of them.
"""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from chunkwise.config.saved import members
from chunkwise.errors import ConfigError

Config = TypeVar("Config")


def with_parts(config: Any, arguments: Sequence[str], *, missing: Any) -> tuple[type, Any, list[str]]:
    """Returns a class to parse the arguments for, its default, and the arguments without those that say None of a part.

    Args:
      config: Of the config file.
      arguments: Flags and values.
      missing: What stands in a default for a field that has none.

    Raises:
      ConfigError: A part is None and has a field set as well.
    """
    rest = list(arguments)
    kind, default = _part(type(config), config, "", rest, missing)
    return kind, default, rest


def restored(parsed: Any) -> Any:
    """Turns an instance of a class from `with_parts` into one of the config's own classes, which checks its values."""
    if not dataclasses.is_dataclass(parsed) or isinstance(parsed, type):
        return parsed
    values = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(parsed)}
    kind = getattr(type(parsed), "_original", type(parsed))
    now = {name: restored(value) for name, value in values.items()}
    if kind is type(parsed) and all(now[name] is value for name, value in values.items()):
        return parsed
    return kind(**now)


def switchable(config: Any, prefix: str = "") -> list[tuple[str, bool]]:
    """Lists the parts that may be None, by dotted name, and whether each is there."""
    found = []
    for field, nested, optional in _parts(type(config)):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if optional:
            found.append((name, value is not None))
        if value is not None and isinstance(value, nested):
            found += switchable(value, f"{name}.")
    return found


def _parts(kind: type) -> list[tuple[dataclasses.Field, type, bool]]:
    """Fields that hold a config: the field, the config's class, and whether it may be None."""
    hints, found = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        kinds = members(hints[field.name])
        nested = [one for one in kinds if isinstance(one, type) and dataclasses.is_dataclass(one)]
        if len(nested) == 1:
            found.append((field, nested[0], type(None) in kinds))
    return found


def _part(kind: type, config: Any, prefix: str, arguments: list[str], missing: Any) -> tuple[type, Any]:
    """The class and the default of one config; `config` is None for one that a flag has switched on."""
    values = {field.name: _value(config, field, missing) for field in dataclasses.fields(kind)}
    narrowed: list[tuple[str, Any, Any]] = []
    for field, nested, optional in _parts(kind):
        name, value = f"{prefix}{field.name}", values[field.name]
        off, on = optional and _take_none(name, arguments), _is_set(name, arguments)
        if off and on:
            raise ConfigError(f"--{_flag(name)} None and --{on}: expected the one or the other")
        if off:
            values[field.name] = None
        elif on or dataclasses.is_dataclass(value):
            own = value if dataclasses.is_dataclass(value) and not isinstance(value, type) else None
            child, values[field.name] = _part(nested if own is None else type(own), own, f"{name}.", arguments, missing)
            narrowed.append((field.name, child, dataclasses.field()))
    changed = [one for one in narrowed if one[1] is not type(getattr(config, one[0], None))]
    if config is not None and not changed and all(values[n] is getattr(config, n) for n in values):
        return kind, config
    made = dataclasses.make_dataclass(
        kind.__name__, narrowed, bases=(kind,), frozen=True, kw_only=True, namespace={"_original": kind, **_UNCHECKED}
    )
    default = object.__new__(made)
    for name, value in values.items():
        object.__setattr__(default, name, value)
    return made, default


_UNCHECKED = {"__post_init__": lambda self: None}  # `restored` checks, when all parts are what they are going to be


def _value(config: Any, field: dataclasses.Field, missing: Any) -> Any:
    if config is not None:
        return getattr(config, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    return missing if field.default_factory is dataclasses.MISSING else field.default_factory()


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _is_set(name: str, arguments: Sequence[str]) -> str:
    """The first flag for a field of a part; empty where there is none."""
    flags = [argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")]
    return next((flag for flag in flags if _flag(flag).startswith(f"{_flag(name)}.")), "")


def _take_none(name: str, arguments: list[str]) -> bool:
    """Removes `--part None` or `--part=None` from the arguments; whether it was there."""
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or _flag(flag[2:]) != _flag(name):
            continue
        if equals and value == "None":
            del arguments[i]
            return True
        if not equals and arguments[i + 1 : i + 2] == ["None"]:
            del arguments[i : i + 2]
            return True
    return False
