"""Every field of every config is read by something: an option that nothing reads is a lie."""

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = ["chunkwise.config.experiment"] + [
    f"{package}.config" for package in ("qchunk", "openpi_ript", "driving") if (ROOT / package / "config.py").exists()
]


def attributes_read() -> set[str]:
    """Names of attributes that library code reads, `x.name`."""
    found = set()
    for package in ("chunkwise", "qchunk", "openpi_ript", "driving"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            # The checks of chunkwise/config/experiment.py read a field by its name too, but that is no use of it.
    return found


READ = attributes_read()


@pytest.mark.parametrize("module", MODULES)
def test_every_field_is_read(module: str):
    for value in vars(importlib.import_module(module)).values():
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module:
            for field in dataclasses.fields(value):
                assert field.name in READ, f"{module}.{value.__name__}.{field.name} is read nowhere"
