"""What a study's file says: its runs and their flags, and what is refused before anything is trained."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.study import Run, StudyConfig, read_study, runs_of
from chunkwise.errors import ConfigError


@pytest.mark.parametrize("flag", ["--run.seed", "--run.dir", "--run.resume", "--run.no-resume", "--dry-run"])
def test_what_a_study_sets_itself_is_no_flag_of_its_own(flag: str):
    with pytest.raises(ConfigError, match=f"^{flag}: expected no such flag"):
        runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), flags=(flag, "1")))
    with pytest.raises(ConfigError, match=f"^{flag}: expected no such flag"):
        runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid={flag[2:]: ("1", "2")}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grid": {"agent.horizon": ("15")}}, "grid has '15' for agent.horizon; expected a tuple of words"),
        ({"grid": {"agent.horizon": (1, 5)}}, r"grid has \(1, 5\) for agent.horizon; expected"),
        ({"grid": {"size": {"small": 4}}}, "grid has {'small': 4} for size; expected"),
        ({"evaluate": ("--episodes", "4", "--out", "x")}, "evaluate has --out; each run's outcomes have their place"),
        ({"evaluate": (), "metric": "error"}, "metric is 'error', and evaluate measures none .* success, return"),
    ],
)
def test_a_grid_of_other_than_words_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        StudyConfig(config="qchunk/debug", seeds=(0,), **settings)


@pytest.mark.parametrize("axis", ["data.task", "task"])
def test_values_of_a_grid_are_words_as_on_a_command_line(axis: str):
    def runs(words: str) -> list[Run]:
        values: Any = {"mine": f"--data.task {words}"} if axis == "task" else (words,)
        return runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid={axis: values}))

    (run,) = runs("'my task'")
    assert run.words == ("qchunk/debug", "--data.task", "my task", "--run.seed", "0")
    with pytest.raises(ConfigError, match=f'my task" for {axis}: No closing quotation; expected words as on'):
        runs("'my task")


def test_a_runs_seed_stands_where_its_flags_say():
    grid = {"data.path": ("data/{seed}",), "mine": {"own": "--data.task {seed}-{seed}"}}
    study = StudyConfig(config="qchunk/debug", seeds=(7, 12), grid=grid, flags=("--run.compile-cache", "all-{seed}"))
    for run in runs_of(study):
        number = str(run.seed)
        assert run.words[1:3] == ("--run.compile-cache", f"all-{number}")
        assert run.words[3:] == (
            "--data.path", f"data/{number}", "--data.task", f"{number}-{number}", "--run.seed", number
        )  # fmt: skip
    cell = "data.path=data_seed_mine=own"
    assert {run.folder for run in runs_of(study)} == {f"{cell}/seed_7", f"{cell}/seed_12"}
    with pytest.raises(ValueError, match=r"evaluate has \{seed\}; expected the same flags for all runs"):
        StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--seed", "{seed}"))


def test_reinforcement_goes_on_with_each_run_of_the_closed_loop():
    """Twice with each, with drives to learn from and without."""
    first, then = (runs_of(read_study(name)[0]) for name in ("driving_closed_loop", "driving_reinforcement"))
    starts = [run.words[run.words.index("--waypoints.weights") + 1] for run in then]
    assert sorted(starts) == sorted(f"studies/driving_closed_loop/{run.folder}" for run in first * 2)
    assert all(start.endswith(f"/seed_{run.seed}") for start, run in zip(starts, then, strict=True))


def test_a_cell_with_a_long_name_has_a_folder_that_can_be_made_and_a_short_one_its_words(tmp_path: Path):
    """Every byte of these names is one character."""
    axis = "data.task"

    def place(value: str) -> str:
        (run,) = runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid={axis: (value,)}))
        assert run.cell == f"{axis}={value}"
        return run.folder.removesuffix("/seed_0")

    short = "a" * 140
    assert place(short) == f"{axis}={short}"
    names = {place("a" * 300), place("a" * 301), place("a" * 141)}
    assert {len(name) for name in names} == {150}
    assert len(names) == 3
    assert all(re.fullmatch(rf"{axis}=a{{127}}-[0-9a-f]{{12}}", name) for name in names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flags": ("--train.steps", 20)}, r"flags is \('--train.steps', 20\); expected a tuple of words"),
        ({"flags": None}, "flags is None; expected a tuple of words"),
        ({"evaluate": ("--episodes", 2)}, "evaluate is .* expected a tuple of words"),
        ({"policies": ()}, r"policies is \(\); expected different names, at least one"),
        ({"policies": ("policy", "policy")}, "policies is .* expected different names"),
        ({"config": Path("mine.py")}, "config is .*mine.py.*; expected a name, as a word"),
        ({"metric": 3, "best": "highest"}, "metric is 3; expected a name"),
        ({"grid": None}, "grid is None; expected values by field"),
        ({"grid": [("a", "b")]}, "grid is .* expected values by field"),
        ({"seeds": (0.5, 1)}, r"seeds is \(0.5, 1\); expected different whole numbers"),
        ({"seeds": "012"}, "seeds is 012; expected different whole numbers"),
        ({"seeds": np.array([3, 3])}, "seeds is .*3 3.*; expected different whole numbers"),
    ],
)
def test_values_of_other_kinds_are_refused_before_a_run_is_trained(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        StudyConfig(**{"config": "qchunk/debug", "seeds": (0,), **settings})


def test_whole_numbers_of_numpy_are_seeds():
    study = StudyConfig(config="qchunk/debug", seeds=np.arange(2))  # pyright: ignore[reportArgumentType]
    assert json.dumps(study.seeds) == "[0, 1]", "else the table could not be written, once all were trained"
    assert [run.folder for run in runs_of(study)] == ["debug/seed_0", "debug/seed_1"]


@pytest.mark.parametrize("name", ["flags", "policies", "evaluate"])
def test_a_word_in_place_of_words_is_refused(name: str):
    given: dict[str, Any] = {name: "--episodes 3"}
    with pytest.raises(ValueError, match=f"{name} is '--episodes 3'; .* such as .'--episodes', '3'."):
        StudyConfig(config="qchunk/debug", seeds=(0,), **given)
