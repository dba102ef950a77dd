"""The packages that build on this one, by name: which of them a run belongs to, and its config class.

None is imported before it is asked for; that `chunkwise` imports no other is held by tests/test_imports.py.
"""

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.saved import CONFIG, members, read_flat, resume_rules
from chunkwise.errors import ConfigError

PACKAGES = ("qchunk", "openpi_ript", "driving")


def config_class(package: str) -> type[ExperimentConfig]:
    """Returns the class of a package's configs."""
    module = importlib.import_module(f"{package}.config")
    (found,) = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ExperimentConfig) and value is not ExperimentConfig
    }
    return found


def package_of(run: Path) -> str:
    """Returns the package that trained a run: the one whose config has most of the fields in the run's config.json.

    Raises:
      ConfigError: It is no run, or of none of the packages.
      DataError: As `saved.read_flat`.
    """
    flat = read_flat(run)
    known: dict[str, int] = {}
    for package in PACKAGES:
        kind = config_class(package)
        fields, renamed = set(_leaves(kind, "")), resume_rules(kind).renamed
        known[package] = len(fields & {renamed.get(name, name) for name in flat})
    best = max(known, key=lambda name: known[name])
    if not known[best]:
        raise ConfigError(f"{run / CONFIG}: expected the config of a run of {', '.join(PACKAGES)}, found other fields")
    return best


def _leaves(kind: Any, prefix: str) -> Iterator[str]:
    """Dotted names of all fields of a config class that hold no config, and of those that may hold None."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        nested = [part for part in members(hints[field.name]) if dataclasses.is_dataclass(part)]
        if not nested or type(None) in members(hints[field.name]):
            yield prefix + field.name
        for part in nested:
            yield from _leaves(part, f"{prefix}{field.name}.")
