"""The table of runs: evaluations that gave NaN, and names that look like intervals."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunkwise.files import dataset_files
from chunkwise.files.identity import Entry
from chunkwise.reports import compare, results, states
from chunkwise.reports.page import page
from chunkwise.reports.run_record import RunRecord, read_run
from tests.chunkwise.reports.test_page import evaluated, write_run


def test_an_evaluation_that_gave_nan_is_not_replaced_by_an_earlier_one(tmp_path: Path):
    lost = dict.fromkeys(("policy/return", "policy/success_low", "policy/episodes"))
    rows = [evaluated(10, 0.5, **{"policy/return": -50.0}), evaluated(20, 0.25) | lost]
    record = read_run(write_run(tmp_path / "a", rows))
    (row,) = results.rows_of_results({"a": record})
    assert row.step == 20
    assert {name: str(cell) for name, cell in row.cells.items()} == {
        "success": "0.25", "return": "NaN", "length": "9.5",
    }  # fmt: skip
    assert row.episodes is None
    lines = results.texts([row], results.columns_of([row]))
    assert lines == [
        ["run", "policy", "updates", "success", "return", "length"],
        ["a", "policy", "20", "0.25", "NaN", "9.5"],
    ]
    assert record.series("eval")["policy/return"] == [(10, -50.0)], "a curve has no place for it"


def test_a_table_has_results_alone(tmp_path: Path):
    """Counts of steps are none, nor a row without any of the columns; drives of the val split are called so."""
    measured = {"val/ade_2s": 1.5, "model/ade_2s": 3.5, "holdout/loss": 0.5, "env_steps": 200.0}
    record = read_run(write_run(tmp_path / "a", [{"step": 20, "split": "eval", **measured}]))
    rows = results.rows_of_results({"a": record})
    assert results.columns_of(rows) == ["ade_2s", "holdout/loss"]
    assert results.texts(rows, ["ade_2s"]) == [
        ["run", "policy", "updates", "ade_2s"],
        ["a", "model on val", "20", "1.5"],
        ["a", "model", "20", "3.5"],
    ]
    assert results.not_shown(rows, ["ade_2s"]) == ["holdout/loss"]


def test_what_was_evaluated_apart_is_on_the_page(tmp_path: Path):
    shown = page({"a": driven(tmp_path / "a", ({}, True), ({"seconds": 5.0}, True))}, beside=tmp_path)
    assert "<li>a, step 20, seconds 5.0: 2 of 2 (34% to 100%) succeeded</li>" in shown
    (file,) = (tmp_path / "a/evaluations").glob("*seconds*.json")
    tree = json.loads(file.read_text())
    for outcome, score in zip(tree["outcomes"], (0.25, "none"), strict=True):
        outcome["score"] = score
    file.write_text(json.dumps(tree))
    shown = page({"a": read_run(tmp_path / "a")}, beside=tmp_path)
    assert "<li>a, step 20, seconds 5.0: score 0.250 in the mean of 1</li>" in shown


@pytest.mark.parametrize(
    "line",
    ["NonFiniteError: step 6: critic_loss not finite", "UserWarning: old", "run.loggers: wandb failed and is left out"],
)
def test_what_ended_a_run_is_among_its_warnings(tmp_path: Path, line: str):
    run = write_run(tmp_path / "a", [{"step": 20, "split": "train"}])
    (run / "log.txt").write_text(f"step 10  loss 1.0\n{line}\n")
    assert read_run(run).warnings == [line]


def test_only_intervals_get_an_en_dash():
    lines = [["run", "policy", "from 1 to 2"], ["sim to real", "go to x", "0.5 (0.4 to 0.6)"]]
    assert results.latex(lines).splitlines()[2:5:2] == [
        r"run & policy & from 1 to 2 \\",
        r"sim to real & go to x & 0.5 (0.4--0.6) \\",
    ]


def driven(folder: Path, *drives: tuple[dict[str, Any], bool], old: bool = False) -> RunRecord:
    """Reads a run that drove two routes in closed loop with each of some settings, and succeeded in both or in none."""
    run = write_run(folder, [{"step": 20, "split": "train"}], won={})
    (run / "evaluations/step_00000020.json").unlink()
    for settings, won in drives:
        usual = {"seconds": 15.0, "lead_s": 0.0, "hold": 1}
        outcomes = [{"seed": k, "init_hash": f"h{k}", "success": won} for k in range(2)]
        tree = {"kind": "closed_loop", "step": 20, "outcomes": outcomes, **usual, **settings}
        if not old:
            tree["settings"] = settings
        name = "-".join(["closed_loop-step_00000020", *(f"{key}_{value}" for key, value in settings.items())])
        (run / f"evaluations/{name}.json").write_text(json.dumps(tree))
    return read_run(run)


@pytest.mark.parametrize("old", [False, True])
def test_only_drives_with_the_same_settings_are_paired(tmp_path: Path, old: bool):
    """With a plan held for half a second no route is driven, else both: what differs is no difference of the runs."""
    own, held = ({}, True), ({"hold": 5}, False)
    a, b = driven(tmp_path / "a", held, own, old=old), driven(tmp_path / "b", own, old=old)
    c = driven(tmp_path / "c", ({"hold": 5}, True), old=old)
    found = results.own_evaluation(a)
    assert found is not None
    assert (found.settings, found.successes) == ({}, 2)
    text = page({"a": a, "b": b}, beside=tmp_path)
    assert "Both 2, only a 0, only b 0, neither 0" in text
    assert results.own_evaluations_of(b, c) is None
    assert "McNemar" not in page({"b": b, "c": c}, beside=tmp_path)
    pair = results.own_evaluations_of(a, c)
    assert pair is not None
    assert [(one.settings, one.successes) for one in pair] == [({"hold": 5}, 0), ({"hold": 5}, 2)]


def test_a_video_says_with_which_settings_it_was_made(tmp_path: Path):
    records = {name: driven(tmp_path / name, (settings, True)) for name, settings in (("a", {}), ("b", {"hold": 5}))}
    for record in records.values():
        (film,) = (record.path / "evaluations").glob("*.json")
        film.with_suffix("").mkdir()
        (film.with_suffix("") / "episode_0000.mp4").write_bytes(b"film")
    records = {name: read_run(record.path) for name, record in records.items()}
    text = states.films(records, states.filmed(records, room=100))
    assert "a: succeeded after ? steps<" in text
    assert "b: succeeded after ? steps (hold 5)<" in text


def test_parts_of_an_error_come_after_what_is_whole():
    metrics = ["error_dim_0", "holdout/error_step_1", "holdout/error_step_10", "holdout/error", "step_error", "success"]
    cells = {name: results.Cell(value=1.0) for name in metrics}
    row = results.Row(run="a", policy="policy", step=1, episodes=None, cells=cells)
    assert results.columns_of([row]) == ["success", *metrics[3:5], *metrics[:3]]


def test_runs_without_an_evaluation_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [write_run(tmp_path / "a", [evaluated(20, 0.5)]), write_run(tmp_path / "b", [])]
    assert compare.main([str(run) for run in runs]) == 0
    assert capsys.readouterr().err == "no evaluation of: b\n"
    text = page({run.name: read_run(run) for run in runs}, beside=tmp_path)
    assert "No evaluation of: b." in text


def test_runs_that_read_other_files_at_one_path_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of a run with other cameras, which read more of them, nothing is said where those of both are the same."""
    runs = []
    for name, hashes in (("a", "12"), ("b", "13"), ("c", "124")):
        runs.append(write_run(tmp_path / name, [evaluated(20, 0.5)]))
        entries = {f"episode_{k}": Entry(found, 10, "") for k, found in enumerate(hashes)}
        dataset_files.write(runs[-1], dataset_files._pack(entries))
    assert compare.main([str(run) for run in runs]) == 0
    path = read_run(runs[0]).config["data.path"]
    said = f"b was trained on other files of {path} than a: 1 changed (episode_1)"
    assert capsys.readouterr().err == f"note: {said}\n"
    assert said in page({run.name: read_run(run) for run in runs}, beside=tmp_path)
    elsewhere = [runs[0], write_run(tmp_path / "d", [evaluated(20, 0.5)], None, **{"data.path": "another"})]
    (elsewhere[1] / dataset_files.NAME).write_bytes((runs[1] / dataset_files.NAME).read_bytes())
    assert compare.main([str(run) for run in elsewhere]) == 0
    assert capsys.readouterr().err == "", "the table of settings says it"


def test_what_a_table_leaves_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Eight columns are shown; a metric of one step of the chunk is left out without a word."""
    more = {f"policy/m{k}": float(k) for k in range(9)} | {"policy/error_step_1": 0.5}
    run = write_run(tmp_path / "a", [evaluated(20, 0.5) | more])
    assert compare.main([str(run)]) == 0
    told = capsys.readouterr()
    assert "m5" in told.out
    assert "m6" not in told.out
    assert told.err == "not shown: m6, m7, m8 (--metric NAME)\n"
    assert "Not in the table: m6, m7, m8." in page({"a": read_run(run)}, beside=tmp_path)
    assert compare.main([str(run), "--metric", "m7"]) == 0
    assert capsys.readouterr().err == ""


def measured(folder: Path, *files: tuple[dict[str, Any], int, int], tasks: bool = False, step: int = 20) -> RunRecord:
    """Reads a run with evaluations of a step: (settings, episodes, of which succeeded the first so many)."""
    run = write_run(folder, [evaluated(step, 0.5)], won={})
    for file in (run / "evaluations").iterdir():
        file.unlink()
    for settings, episodes, won in files:
        outcomes: list[dict[str, Any]] = [
            {"seed": k, "init_hash": f"h{k}", "success": k < won} | ({"task": f"t{k % 2}"} if tasks else {})
            for k in range(episodes)
        ]
        at = settings.get("at", step)
        settings = {key: value for key, value in settings.items() if key != "at"}
        tree = {"step": at, "outcomes": outcomes, "settings": settings}
        name = "-".join([f"step_{at:08d}", *(f"{key}_{value}" for key, value in settings.items())])
        (run / f"evaluations/{name}.json").write_text(json.dumps(tree))
    return read_run(run)


def test_the_pair_with_the_most_states_is_compared(tmp_path: Path):
    """As `chunkwise evaluate RUN --episodes 200` adds it, beside the runs' own of 10."""
    a = measured(tmp_path / "a", ({}, 10, 6), ({"episodes": 200}, 200, 140))
    b = measured(tmp_path / "b", ({}, 10, 6), ({"episodes": 200}, 200, 110))
    pair = results.own_evaluations_of(a, b)
    assert pair is not None
    assert [(len(one.outcomes), one.successes) for one in pair] == [(200, 140), (200, 110)]
    assert "Both 110, only a 30, only b 0" in page({"a": a, "b": b}, beside=tmp_path)


def test_states_of_another_seed_are_told_by_themselves(tmp_path: Path):
    """A run of another seed, evaluated on this one's scenes."""
    a = measured(tmp_path / "a", ({}, 20, 10))
    c = measured(tmp_path / "c", ({"seed": 0}, 20, 20))
    assert "Both 10, only a 0, only c 10, neither 0" in page({"a": a, "c": c}, beside=tmp_path)


def test_what_is_left_out_of_a_pair_is_said(tmp_path: Path):
    whole = page(
        {"a": measured(tmp_path / "a", ({}, 40, 9)), "b": measured(tmp_path / "b", ({}, 10, 10))}, beside=tmp_path
    )
    assert "a 9 of 10" in whole
    assert "Of 10 states that both have: a was evaluated on 40; b was evaluated on 10." in whole
    late = measured(tmp_path / "c", ({"delay": 4}, 10, 0))
    whole = page({"a": read_run(tmp_path / "a"), "c": late}, beside=tmp_path)
    assert "a and c have no evaluations of their newest steps with the same settings" in whole
    assert "step_00000020-delay_4.json" in whole


def test_counts_of_tasks_are_of_the_evaluation_that_the_table_is_of(tmp_path: Path):
    """Not of one at a later step under a delay, which solved nothing."""
    files = [({"at": 20}, 10, 10), ({"at": 30, "delay": 4}, 10, 0)]
    record = measured(tmp_path / "a", *files, tasks=True)
    assert results.counts_by_task(record) == {"t0": (5, 5), "t1": (5, 5)}
    assert results.counts_by_task(measured(tmp_path / "b", files[1], tasks=True)) == {}


def test_cells_hold_no_escape_sequence():
    row = results.Row(run="a\x1b[2J", policy="policy", step=1, episodes=None, cells={})
    assert results.texts([row], [])[1][0] == "a\\x1b[2J"
