"""Every field of every config is read by something, from a config of its type: an option that nothing reads lies."""

import shutil
from pathlib import Path

import pytest

from tests.config_reads import Program

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("chunkwise", "qchunk", "openpi_ript", "driving") if (ROOT / name).is_dir()]

CONFIG = """
import dataclasses
from spine.experiment import ExperimentConfig

@dataclasses.dataclass
class Inner:
    used: int = 1
    planted: int = 2

    def __post_init__(self):
        assert self.planted > 0 and self.used > 0

    @property
    def twice(self) -> int:
        return 2 * self.doubled

    doubled: int = 3

@dataclasses.dataclass
class Outer:
    inner: Inner | None = None
    many: tuple["Item", ...] = ()

@dataclasses.dataclass
class Item:
    size: int = 1

@dataclasses.dataclass
class MyConfig(ExperimentConfig):
    outer: Outer = Outer()
"""
EXPERIMENT = """
import dataclasses
from typing import Protocol

@dataclasses.dataclass
class RunConfig:
    seed: int = 0
    name: str = ""

@dataclasses.dataclass
class ExperimentConfig:
    run: RunConfig = RunConfig()
"""
CODE = """
from pack import config as configs
from pack.config import MyConfig
from spine.experiment import ExperimentConfig, RunConfig

class Other:
    planted: int = 0

class Task:
    def __init__(self, config: MyConfig, other: Other) -> None:
        self._outer = config.outer
        self.number = other.planted

    def act(self) -> int:
        inner = self._outer.inner
        return 0 if inner is None else inner.used + sum(item.size for item in self._outer.many)

def of(run: RunConfig, name: str = "seed") -> int:
    return getattr(run, name)

def both(config: ExperimentConfig) -> int:
    return of(config.run) + of(config.run, "name")
"""


def planted(folder: Path, *, code: str = CODE, config: str = CONFIG) -> list[str]:
    """Unread fields of a small program."""
    files = {"spine/experiment": EXPERIMENT, "pack/config": config, "pack/task": code}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    return Program(folder, ["spine", "pack"]).unread()


def test_every_field_is_read():
    program = Program(ROOT, PACKAGES)
    found = program.configs()
    fields = [f"{name}.{field}" for name, fields in found.items() for field in fields]
    assert len(fields) > 300
    assert {"qchunk.config.agent.AugmentConfig.shift", "chunkwise.files.budget.Limits.seconds"} <= set(fields)
    assert not program.unread()


def test_planted_fields_of_a_small_program_are_found(tmp_path: Path):
    """`planted` is read on another class, and checked by its own; `doubled` is read by a property that nobody reads."""
    assert planted(tmp_path) == ["pack.config.Inner.planted", "pack.config.Inner.doubled"]


@pytest.mark.parametrize(
    ("old", "new", "unread"),
    [
        ("other.planted", "config.outer.inner.planted", ["Inner.doubled"]),
        ("inner.used", "inner.twice", ["Inner.used", "Inner.planted"]),
        ("item.size", "1", ["Inner.planted", "Inner.doubled", "Item.size"]),
        ("self._outer = config.outer", "self._outer: Other = config.other", []),
        ("config: MyConfig", "config: configs.MyConfig", ["Inner.planted", "Inner.doubled"]),
    ],
)
def test_a_field_counts_as_read_by_the_type_of_what_it_is_read_from(
    tmp_path: Path, old: str, new: str, unread: list[str]
):
    assert old in CODE
    found = planted(tmp_path, code=CODE.replace(old, new))
    if unread:
        assert found == [f"pack.config.{name}" for name in unread]
    else:  # nothing of the config is read any more
        assert {f"pack.config.{name}" for name in ("Outer.inner", "Inner.used", "Item.size")} <= set(found)


def test_a_field_that_is_read_by_its_name_is_read(tmp_path: Path):
    found = planted(tmp_path, code=CODE.replace(', "name")', ")"))
    assert found == [*planted(tmp_path), "spine.experiment.RunConfig.name"]
    assert "spine.experiment.RunConfig.seed" in planted(tmp_path, code=CODE.replace("of(config.run) +", "0 +"))


@pytest.mark.long
def test_fields_planted_in_the_program_are_found(tmp_path: Path):
    """The last one's name is read nowhere, those of the others are: on other classes."""
    plants = {
        "qchunk/config/agent.py": ("AugmentConfig", "horizon"),
        "driving/config/model.py": ("ObjectiveConfig", "discount"),
        "chunkwise/config/experiment.py": ("CheckpointConfig", "seed"),
        "openpi_ript/config/model.py": ("SiglipConfig", "read_nowhere"),
    }
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, (name, field) in plants.items():
        text = (tmp_path / file).read_text()
        end_of_words = text.index('"""\n', text.index('"""', text.index(f"class {name}:")) + 3) + 4
        (tmp_path / file).write_text(f"{text[:end_of_words]}\n    {field}: int = 3\n{text[end_of_words:]}")
    expected = {f"{file[:-3].replace('/', '.')}.{name}.{field}" for file, (name, field) in plants.items()}
    assert set(Program(tmp_path, PACKAGES).unread()) == expected
