"""The config of a run, read back from its folder."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from core import budget
from core.config import ExperimentConfig
from core.errors import ConfigError, DataError

Config = TypeVar("Config", bound=ExperimentConfig)


def read_config(folder: Path, kind: type[Config]) -> Config:
    """The config with which a run was started.

    Raises:
      ConfigError: If config.json is missing, damaged, or of another package or version.
    """
    path = folder / "config.json"
    try:
        flat = json.loads(budget.read_bytes(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: expected the folder of a run, found no config.json in it") from error
    except (OSError, ValueError, RecursionError, DataError) as error:
        raise ConfigError(f"{path}: expected the config of a run, found {error}") from error
    if not isinstance(flat, dict):
        raise ConfigError(f"{path}: expected the config of a run, an object of fields; found {type(flat).__name__}")
    try:
        return _unflatten(kind, flat, "")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: expected a {kind.__name__} as this version writes it: {error}") from error


def _unflatten(kind: Any, flat: Mapping[str, Any], prefix: str) -> Any:
    """Undoes core.config.flatten.

    A field that the file lacks, because it is younger than the run, gets its default. Raises KeyError if it has none.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        if name in flat:
            values[field.name] = _immutable(flat[name])
        else:
            nested = [part for part in _members(hints[field.name]) if dataclasses.is_dataclass(part)]
            if nested and any(other.startswith(f"{name}.") for other in flat):
                values[field.name] = _unflatten(nested[0], flat, f"{name}.")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise KeyError(f"{name} is missing")
    return kind(**values)


def _members(hint: Any) -> tuple[Any, ...]:
    """Members of a union; of another type, itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _immutable(value: Any) -> Any:
    """JSON's lists as the tuples that configs hold."""
    return tuple(_immutable(item) for item in value) if isinstance(value, list) else value
