"""What a study's table makes of the runs' scores: which is better, intervals, states of several tasks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.study import Run, StudyConfig, runs_of
from chunkwise.reports import study_table
from chunkwise.reports.study_progress import unfinished
from chunkwise.train.run_dir import RunFolder

GRID = {"agent.horizon": ("1", "5")}


def write_errors(out: Path, runs: list[Run], errors: dict[str, tuple[float, ...]]) -> None:
    """Gives the runs of each horizon one evaluation, whose policy/error is that of its seed."""
    for run in runs:
        row = {"step": 10, "split": "eval", "policy/error": errors[run.cell[-1]][run.seed]}
        (out / run.folder).mkdir(parents=True)
        (out / run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")


@pytest.mark.parametrize(("best", "share", "word"), [("highest", 2 / 9, "higher"), ("lowest", 7 / 9, "lower")])
def test_the_better_score_is_the_one_that_the_study_names(tmp_path: Path, best: Any, share: float, word: str):
    """Of nine pairs the second row has the larger error in two: 3 against 2.5 and against 2."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2), grid=GRID, metric="error", best=best)
    runs = runs_of(study)
    write_errors(tmp_path, runs, {"1": (2.0, 2.5, 4.0), "5": (1.0, 1.5, 3.0)})
    found = study_table.table(study, runs, tmp_path, {}, {})
    against = found["rows"][1]["against_first"]
    assert found["best"] == best
    assert against["probability_of_improvement"] == pytest.approx(share)
    low, high = against["interval"]
    assert low <= share <= high
    assert against["paired_seeds"]["mean_difference"] == pytest.approx(-1.0), "a difference has the scores' own sign"
    assert f"| | better ({word}) in a pair of runs (bootstrap 95 %) |" in study_table.markdown(found)


@pytest.mark.parametrize(
    ("given", "found"),
    [({"best": "smallest"}, "'smallest'"), ({"metric": "ade_2s"}, "None"), ({"metric": "holdout/loss"}, "None")],
)
def test_which_score_is_better_is_asked_where_it_is_not_plain(given: dict[str, Any], found: str):
    with pytest.raises(ValueError, match=f"best is {found}; expected 'highest' or 'lowest', whichever is better of"):
        StudyConfig(config="qchunk/debug", seeds=(0,), **given)
    assert StudyConfig(config="qchunk/debug", seeds=(0,), metric="success/reach-v3").best is None


def test_one_run_has_no_interval_over_seeds(tmp_path: Path):
    """The first row has two runs and so an interval; the second has one, and neither has what needs two of both."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid=GRID, metric="error", best="lowest")
    runs = runs_of(study)
    write_errors(tmp_path, runs[:3], {"1": (2.0, 4.0), "5": (3.0,)})
    found = study_table.table(study, runs, tmp_path, {}, {})
    both, alone = json.loads(json.dumps(found))["rows"]
    low, high = both["over_seeds"]
    assert 2.0 <= low < high <= 4.0
    assert (alone["mean"], alone["over_seeds"]) == (3.0, None)
    assert alone["against_first"]["probability_of_improvement"] == 0.5
    assert alone["against_first"]["interval"] is None
    text = study_table.markdown(found)
    assert "\n| agent.horizon=5 | 3 |  | 3 (without seed 1) | 3 | - |\n" in text
    assert "\n| agent.horizon=5 | 0.50 (-) | +1, p = 1 (signs flipped) |  |\n" in text


def test_a_difference_in_the_last_bits_is_none(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid=GRID, metric="error", best="lowest")
    write_errors(tmp_path, runs_of(study), {"1": (0.1 + 0.2, 0.1 + 0.2), "5": (0.3, 0.3)})
    assert "| +0, p = 1 (signs flipped) |" in study_table.markdown(
        study_table.table(study, runs_of(study), tmp_path, {}, {})
    )


def test_states_of_several_tasks_are_told_apart(tmp_path: Path):
    """Two tasks begin with the same seed and the same state; each of two runs solves another one of them."""
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid=GRID, evaluate=())
    runs = runs_of(study)
    for run, solved in zip(runs, ("open", "close"), strict=True):
        study_table.begin_evaluation(tmp_path / run.folder, (), 1)
        state = {"seed": 0, "init_hash": "h"}
        outcomes = [state | {"task": task, "success": task == solved} for task in ("open", "close")]
        (tmp_path / run.folder / study_table.EVALUATION).write_text(json.dumps({"step": 1, "outcomes": outcomes}))
    against = study_table.table(study, runs, tmp_path, {}, {})["rows"][1]["against_first"]
    assert against["paired_episodes"] == {"states": 2, "only_this": 1, "only_first": 1, "mcnemar_p": 1.0}


def test_scores_are_compared_state_by_state(tmp_path: Path):
    """By hand: over two seeds the second row has 2, 1 and 0 more in three states: mean 1, deviation 1, t of 2 degrees
    of freedom 4.303, so 1 -+ 4.303 / sqrt(3). A state that only one row has does not count."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid=GRID, metric="return", evaluate=())
    runs = runs_of(study)
    more = {(1, 0): (3.0, 1.0, -1.0), (1, 1): (1.0, 1.0, 1.0)}
    for number, run in enumerate(runs):
        study_table.begin_evaluation(tmp_path / run.folder, (), 1)
        added = more.get((number // 2, run.seed), (0.0, 0.0, 0.0))
        outcomes = [
            {"seed": state, "init_hash": "h", "success": state == 0, "reward": 10.0 * state + added[state]}
            for state in range(3)
        ]
        if number == 3:
            outcomes.append({"seed": 9, "init_hash": "h", "success": True, "reward": 100.0})
        (tmp_path / run.folder / study_table.EVALUATION).write_text(json.dumps({"step": 1, "outcomes": outcomes}))
    found = study_table.table(study, runs, tmp_path, {}, {})
    half = 4.302652729749462 / 3**0.5
    expected = {"states": 3, "mean_difference": 1.0, "interval": pytest.approx((1 - half, 1 + half))}
    assert found["rows"][1]["against_first"]["paired_episodes"] == expected
    text = study_table.markdown(found)
    assert "| difference, paired seeds | paired episodes: mean difference (95 % over states) |" in text
    assert "| +1 (-1.48 to 3.48) of 3 |" in text


def test_return_is_the_sum_of_rewards_of_an_episode(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), metric="return", evaluate=())
    study_table.begin_evaluation(tmp_path, (), 1)
    outcomes = [{"seed": k, "init_hash": "h", "success": False, "reward": sum_} for k, sum_ in enumerate((-3.0, -4.0))]
    (tmp_path / study_table.EVALUATION).write_text(json.dumps({"step": 1, "outcomes": outcomes}))
    found = study_table.score(tmp_path, study, "policy")
    assert found is not None
    assert (found["score"], found["episodes"]) == (-3.5, 2)


def begin(run: Run, out: Path, *rows: dict[str, Any], done: bool) -> None:
    """Makes the folder of a run as training does, with its metrics, and ended or not."""
    folder = out / run.folder
    with RunFolder(dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, dir=str(folder))), "test"):
        pass
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done:
        (folder / "done.json").write_text(json.dumps({"step": run.config.train.steps}))


def test_an_evaluation_of_an_earlier_step_is_no_result_of_a_run_that_ended(tmp_path: Path):
    """As where the last lines of metrics.jsonl are missing, after a copy that was broken off."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), metric="error", best="lowest")
    runs = runs_of(study)
    steps = runs[0].config.train.steps
    early, last = ({"step": step, "split": "eval", "policy/error": float(step)} for step in (steps - 1, steps))
    begin(runs[0], tmp_path, early, done=True)
    begin(runs[1], tmp_path, early, last, done=True)
    found = study_table.table(study, runs, tmp_path, {}, unfinished(study, runs, tmp_path))
    assert found["rows"][0]["by_seed"] == {"1": float(steps)}
    (said,) = found["failed"].values()
    assert f"expected the evaluation of step {steps}, with which the run ended, found that of step {steps - 1}" in said


def test_every_run_without_a_score_is_listed_with_the_reason(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2, 3, 4), metric="error", best="lowest")
    runs = runs_of(study)
    steps = runs[0].config.train.steps
    trained, measured = {"step": 9, "split": "train"}, {"step": steps, "split": "eval", "policy/error": 2.0}
    begin(runs[1], tmp_path, done=False)
    begin(runs[2], tmp_path, trained, done=True)
    begin(runs[3], tmp_path, trained, measured, done=True)
    begin(runs[4], tmp_path, trained, measured | {"policy/error": None}, done=True)
    left_out = unfinished(study, runs, tmp_path)
    reasons = ("not begun", "begun, no update logged", "not evaluated")
    assert left_out == {run.folder: why for run, why in zip(runs[:3], reasons, strict=True)}
    found = study_table.table(study, runs, tmp_path, {}, left_out)
    assert found["rows"][0]["by_seed"] == {"3": 2.0}
    assert list(found["failed"]) == [runs[4].folder], "NaN, of which the table says so itself"
    asked = dataclasses.replace(study, metric="success", evaluate=("--episodes", "3"))
    assert unfinished(asked, runs[3:4], tmp_path) == {runs[3].folder: "not evaluated"}
