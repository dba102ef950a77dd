"""A study: a config, a grid of its fields, seeds. `chunkwise study NAME_OR_FILE` trains and compares them."""

import dataclasses
import hashlib
import importlib.util
import itertools
import json
import operator
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.load import load
from chunkwise.config.names import find, folder
from chunkwise.errors import ConfigError

OWN = {
    "run.seed": "seeds has them",
    **dict.fromkeys(("run.dir", "run.resume", "run.no-resume"), "each run has its folder in the study's"),
    **dict.fromkeys(("dry-run", "print-config"), "chunkwise study --dry-run lists the commands"),
}
"""Flags that a study gives its runs itself, or that leave nothing of a run, and what is there for them."""
OUTCOMES = {"success": "success", "return": "reward", "length": "length", "score": "score"}
"""Metrics that `chunkwise evaluate` gives of an episode, and their names in its file."""
LONGEST_NAME = 150
"""Bytes of a folder's name that is the cell in words; of a longer one the end is a digest, since a file system takes
255, and the name of a log is longer."""
SEED = "{seed}"
"""In a word of the flags, it stands for the run's seed: a run begins with what another study trained of its seed."""
HIGHER_IS_BETTER = ("success", "return", "score")
"""Metrics, and what begins with their names, as success/reach-v3 does, of which a study need not say it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """What `get_study()` of a file of configs/studies returns."""

    config: str
    """Name of a shipped config, or a file."""
    seeds: tuple[int, ...]
    """A run for each, by run.seed."""
    grid: Mapping[str, tuple[str, ...] | Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Field of the config: its values, as on a command line; or a word of yours for an axis: its values by their names,
    each the flags that make it. All combinations are trained; the first is what others are tested against. {seed} in a
    flag is the run's seed: --waypoints.weights studies/first/scratch/seed_{seed}."""
    tables: str | None = None
    """An axis of `grid` whose values are tables of their own, such as tasks: others are tested against the first of
    theirs. It comes first in `grid`. None: all are one table."""
    flags: tuple[str, ...] = ()
    """Of every run, with {seed} as in `grid`."""
    policies: tuple[str, ...] = ("policy",)
    """Whose `<policy>/<metric>` is compared: behaviour_cloning is the twin that qchunk evaluates at a run's end."""
    metric: str = "success"
    """Of the last evaluation; with `evaluate` success, return, length, or in closed loop score."""
    best: Literal["highest", "lowest"] | None = None
    """Which score is the better one in a pair of runs. None: the highest, of success, return and score; a study of
    another metric says it, since an error or a loss compared as a success would tell the opposite."""
    evaluate: tuple[str, ...] | None = None
    """Flags of `chunkwise evaluate`, which is asked after each run where this is not None; its outcomes are compared
    in place of the last evaluation's. Other flags evaluate finished runs again."""

    def __post_init__(self) -> None:
        for field in ("config", "metric"):
            if not isinstance(getattr(self, field), str):
                raise ValueError(f"{field} is {getattr(self, field)!r}; expected a name, as a word")
        if not isinstance(self.grid, Mapping):
            raise ValueError(f"grid is {self.grid!r}; expected values by field: {{'train.steps': ('5', '10')}}")
        for field in ("flags", "policies", "evaluate"):
            words = getattr(self, field)
            if isinstance(words, str):
                raise ValueError(f"{field} is {words!r}; expected a tuple of words, such as {tuple(words.split())!r}")
            listed = isinstance(words, tuple | list) and all(isinstance(word, str) for word in words)
            if not listed and not (field == "evaluate" and words is None):
                raise ValueError(f"{field} is {words!r}; expected a tuple of words as on a command line: ('--a', '1')")
        if not self.policies or len(set(self.policies)) != len(self.policies):
            raise ValueError(f"policies is {self.policies}; expected different names, at least one")
        try:
            seeds = tuple(operator.index(seed) for seed in self.seeds)  # numpy's whole numbers are no JSON
        except TypeError:
            seeds = ()
        if not seeds or len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds is {self.seeds}; expected different whole numbers, at least one")
        object.__setattr__(self, "seeds", seeds)
        for name, values in self.grid.items():
            odd = not isinstance(values, tuple | list | Mapping) or [v for v in _flat(values) if not isinstance(v, str)]
            if odd:
                raise ValueError(
                    f"grid has {values!r} for {name}; expected a tuple of words as on a command line: ('1', '5')"
                )
        if empty := [name for name, values in self.grid.items() if not values]:
            raise ValueError(f"grid has no values for {', '.join(empty)}")
        if self.tables is not None and self.tables != next(iter(self.grid), None):
            raise ValueError(f"tables is {self.tables!r}; expected the first axis of grid, which is {list(self.grid)}")
        if self.evaluate is not None and (own := [w for w in self.evaluate if w.partition("=")[0] == "--out"]):
            raise ValueError(f"evaluate has {own[0]}; each run's outcomes have their place in the study's folder")
        if seeds := [word for word in self.evaluate or () if SEED in word]:
            raise ValueError(f"evaluate has {seeds[0]}; expected the same flags for all runs, without {SEED}")
        if self.evaluate is not None and self.metric not in OUTCOMES:
            raise ValueError(
                f"metric is {self.metric!r}, and evaluate measures none of that name; expected one of "
                f"{', '.join(OUTCOMES)}, or evaluate to be None"
            )
        if self.evaluate is not None and self.policies != ("policy",):
            raise ValueError("evaluate asks the policy alone; expected policies to be ('policy',)")
        plain = self.best is None and self.metric.partition("/")[0] in HIGHER_IS_BETTER
        if not plain and self.best not in ("highest", "lowest"):
            raise ValueError(
                f"best is {self.best!r}; expected 'highest' or 'lowest', whichever is better of {self.metric}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a study."""

    cell: str
    """Combination of the grid, in words."""
    table: str
    """Value of the axis `tables`; empty without one."""
    seed: int
    folder: str
    """In the study's folder."""
    words: tuple[str, ...]
    """After `chunkwise train`, without the run's folder."""
    config: ExperimentConfig


def read_study(name: str) -> tuple[StudyConfig, str]:
    """Returns the study of a file or of a shipped name, with or without `studies/`, and its short name.

    Raises:
      ConfigError: There is none, or the file is broken.
    """
    path = Path(name)
    if path.suffix != ".py":
        root = folder() / "studies"
        path = root / f"{name.removeprefix('studies/')}.py"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in root.glob("*.py") if file.stem != "__init__"))
            raise ConfigError(f"no study is named {name}, and no file; there are: {known}")
    spec = importlib.util.spec_from_file_location("chunkwise_study_file", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"study {path}: expected a Python file with get_study()")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for what annotations name
    try:
        spec.loader.exec_module(module)
        study = module.get_study()
    except Exception as error:  # whatever a user's file raises is the user's to mend
        raise ConfigError(f"study {path}: {type(error).__name__}: {error}") from error
    if not isinstance(study, StudyConfig):
        raise ConfigError(f"study {path}: get_study() returned {type(study).__name__}, expected a StudyConfig")
    return study, path.stem


def runs_of(study: StudyConfig) -> list[Run]:
    """Lists the runs, cell by cell. Raises ConfigError where the config does not take a flag."""
    config = find(study.config)
    found = []
    for values in itertools.product(*study.grid.values()):
        chosen = dict(zip(study.grid, values, strict=True))
        cell = ", ".join(f"{name}={value}" for name, value in chosen.items()) or config.stem
        place = _place(cell)
        for seed in study.seeds:
            flags = [*study.flags, *(word for name, value in chosen.items() for word in _words(study, name, value))]
            _require_free(flags)
            words = [study.config, *(flag.replace(SEED, str(seed)) for flag in flags), "--run.seed", str(seed)]
            # A flag of all runs may be one that the policy of another cell reads.
            parsed, _ = load(["--config", str(config), *words[1:]], trains=False)
            table = chosen.get(study.tables or "", "")
            where = f"{place}/seed_{seed}"
            found.append(Run(cell=cell, table=table, seed=seed, folder=where, words=tuple(words), config=parsed))
    if len({run.folder for run in found}) < len(found):
        raise ConfigError("two combinations of the study's grid have the same folder; write their values differently")
    return found


def digest_of(study: StudyConfig, runs: Sequence[Run]) -> str:
    """Returns what tells the runs of a study, and how they are evaluated, from those of another: a job knows its run by
    its number."""
    said = [study.evaluate, *((run.folder, run.words) for run in runs)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]


def _place(cell: str) -> str:
    """Name of a cell's folder."""
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", cell)
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(cell.encode()).hexdigest()[:12]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def _flat(values: Any) -> list[Any]:
    return [*values, *values.values()] if isinstance(values, Mapping) else list(values)


def _require_free(flags: Sequence[str]) -> None:
    """Raises ConfigError where a study's flags set what the study sets itself, so that one of them has no effect."""
    for word in flags:
        name = word.partition("=")[0].removeprefix("--").replace("_", "-")
        if word.startswith("--") and name in OWN:
            raise ConfigError(f"{word}: expected no such flag in a study's grid and flags; {OWN[name]}")


def _words(study: StudyConfig, axis: str, value: str) -> list[str]:
    """Flags of one value of an axis. Raises ConfigError where a quote in it has no end."""
    values = study.grid[axis]
    flags = values[value] if isinstance(values, Mapping) else value
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"grid has {flags!r} for {axis}: {error}; expected words as on a command line") from error
    return words if isinstance(values, Mapping) else [f"--{axis}", *words]
