"""Every field of every config is read by something: an option that nothing reads is a lie."""

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

import chunkwise.config.experiment

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


def test_fingerprint_leaves_out_what_may_change_on_resume():
    flat = {"run.dir": "a", "run.seed": 1, "train.steps": 5, "optim.schedule": "constant", "checkpoint.every": 3}
    assert chunkwise.config.experiment.fingerprint(flat) == {"run.seed": 1, "optim.schedule": "constant"}
    kept = dict.fromkeys(["train.batch_size", "train.accumulate", "train.ema", "data.horizon", "agent.alpha"], 2)
    assert chunkwise.config.experiment.fingerprint(kept) == kept
    assert "train.steps" in chunkwise.config.experiment.fingerprint(flat | {"optim.schedule": "cosine"})


def test_a_checkpoint_of_before_the_list_of_files_is_comparable():
    before = {"run.seed": 1, "data.path": "a", "optim.schedule": "constant", "dataset.manifest": "x"}
    now = {"run.seed": 1, "optim.schedule": "constant", "dataset.manifest": "x", "dataset.files": "y"}
    saved, current, note = chunkwise.config.experiment.comparable(before, now)
    assert saved == current
    assert "earlier version" in note
    assert chunkwise.config.experiment.comparable(now, now) == (now, now, "")
    saved, current, _ = chunkwise.config.experiment.comparable(now, now | {"dataset.files": "z"})
    assert saved != current
    saved, current, _ = chunkwise.config.experiment.comparable(before, now | {"dataset.manifest": "z"})
    assert saved != current
