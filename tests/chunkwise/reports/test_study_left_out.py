"""What is no result of a study, and what is said of it."""

import argparse
import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from chunkwise.config.experiment import RunConfig
from chunkwise.config.study import StudyConfig, digest_of, runs_of
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.lock import locked
from chunkwise.reports import study as program
from chunkwise.reports import study_fleet, study_progress, study_table
from chunkwise.reports.study_progress import unfinished
from chunkwise.train.run_dir import RunFolder


def write_metrics(folder: Path, *rows: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(step: int, **values: float) -> dict[str, Any]:
    return {"step": step, "split": "eval", "policy/success": 0.5, "policy/episodes": 10, **values}


def test_a_run_that_is_not_at_its_end_is_no_result(tmp_path: Path):
    """One of three stopped on its way, one is not there yet, and one is finished."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2))
    runs = runs_of(study)
    write_metrics(tmp_path / runs[0].folder, row(10), row(20))
    write_metrics(tmp_path / runs[2].folder, row(40))
    (tmp_path / runs[2].folder / "done.json").write_text("{}")
    begun = unfinished(study, runs[:2], tmp_path)
    steps = runs[0].config.train.steps
    assert begun == {runs[0].folder: f"at step 20 of {steps}", runs[1].folder: "not begun"}
    found = study_table.table(study, runs, tmp_path, {}, begun)
    assert list(found["rows"][0]["by_seed"]) == ["2"]
    listed = f"- {runs[0].folder}: at step 20 of {steps}\n- {runs[1].folder}: not begun\n"
    assert f"\nNo result yet, or none that compares, and in no row:\n\n{listed}" in study_table.markdown(found)


def test_a_finished_run_that_goes_on_to_more_updates_is_on_its_way(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), flags=("--train.steps", "60"))
    runs = runs_of(study)
    write_metrics(tmp_path / runs[0].folder, row(40), row(45))
    with RunFolder(dataclasses.replace(runs[0].config, run=RunConfig(dir=str(tmp_path / "new"))), "qchunk"):
        pass
    (tmp_path / "new/config.json").rename(tmp_path / runs[0].folder / "config.json")
    for step, said in ((40, "at step 45 of 60"), (80, "has 80 updates, where the study has train.steps 60")):
        (tmp_path / runs[0].folder / "done.json").write_text(json.dumps({"step": step}))
        assert unfinished(study, runs, tmp_path) == {runs[0].folder: said}


def test_the_command_leaves_it_out_too(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,))
    write_metrics(tmp_path / runs_of(study)[0].folder, row(20))
    file = tmp_path / "mine.py"
    file.write_text(
        "from chunkwise.config.study import StudyConfig\n"
        "def get_study():\n    return StudyConfig(config='qchunk/debug', seeds=(0,))\n"
    )
    shown: list[str] = []
    assert program.main([str(file), "--out", str(tmp_path), "--table"], show=shown.append) == 0
    assert "no score" in shown[0]
    assert "debug/seed_0: at step 20 of" in shown[0]


def test_a_run_with_a_damaged_file_fails_alone(tmp_path: Path):
    """The table of the others is written, and their curves; a row's name may have a bar."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid={"data.path": ("a|b", "c")})
    runs = runs_of(study)
    for run in runs:
        write_metrics(tmp_path / run.folder, row(20))
    with open(tmp_path / runs[0].folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 2\n')
    found = study_table.write(study, runs, tmp_path, {}, {})
    assert [list(one["by_seed"]) for one in found["rows"]] == [["1"], ["0", "1"]]
    assert list(found["failed"]) == [runs[0].folder]
    assert "metrics.jsonl, line 2: expected JSON" in found["failed"][runs[0].folder]
    assert "| data.path=a\\|b | 0.5 |" in (tmp_path / "table.md").read_text()
    study_table.draw(study, runs, tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_are_of_the_runs_of_the_study_and_show_where_seeds_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One of three has come to step 20 alone, and one was made with another config."""
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), Path(path).touch()))
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2))
    runs = runs_of(study)
    for run, steps in zip(runs, ((10, 20), (10,), (10, 20, 30)), strict=True):
        write_metrics(tmp_path / run.folder, *(row(step) | {"policy/success": step / 100} for step in steps))
    study_table.draw(study, runs, tmp_path, {runs[2].folder})
    line, hollow = figures[0].axes[0].lines
    assert (list(line.get_xdata()), list(hollow.get_xdata())) == ([10, 20], [20])
    assert hollow.get_markerfacecolor() == "white"
    assert not program._is_drawn(runs[0], tmp_path), "no run has a config.json yet"
    with RunFolder(dataclasses.replace(runs[0].config, run=RunConfig(dir=str(tmp_path / "new"))), "qchunk"):
        pass
    (tmp_path / "new/config.json").rename(tmp_path / runs[0].folder / "config.json")
    (other,) = runs_of(dataclasses.replace(study, seeds=(0,), flags=("--agent.horizon", "2")))
    assert [program._is_drawn(run, tmp_path) for run in (runs[0], other)] == [True, False]


def test_curves_are_without_what_the_table_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the second run the policy's numbers are, the third is as a whole."""
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), Path(path).touch()))
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2), policies=("policy", "behaviour_cloning"))
    first, second, third = runs = runs_of(study)
    for run, value in zip(runs, (0.1, 0.3, 0.9), strict=True):
        write_metrics(tmp_path / run.folder, row(10, **{"policy/success": value, "behaviour_cloning/success": value}))
    study_table.draw(study, runs, tmp_path, {f"{second.folder}: policy", third.folder})
    assert [list(line.get_ydata()) for line in figures[0].axes[0].lines] == [[0.1], [pytest.approx(0.2)]]
    study_table.draw(study, runs, tmp_path, {first.folder})
    assert [list(line.get_ydata()) for line in figures[1].axes[0].lines] == [[pytest.approx(0.6)]] * 2


def test_a_metric_that_no_evaluation_has_is_named(tmp_path: Path):
    write_metrics(tmp_path / "run", row(20))
    study = StudyConfig(config="qchunk/debug", seeds=(0,), metric="sucess", best="highest")
    with pytest.raises(
        DataError, match=r"expected evaluations with policy/sucess, .* found \['policy/episodes', 'policy/"
    ):
        study_table.score(tmp_path / "run", study, "policy")
    assert "set the study's policies, metric and best to what there is" in study_table.unmeasured(
        tmp_path / "run", study
    )
    known = dataclasses.replace(study, metric="success", policies=("elsewhere", "policy"))
    assert study_table.unmeasured(tmp_path / "run", known) == ""
    write_metrics(tmp_path / "none", {"step": 20, "split": "train", "loss": 1.0})
    assert study_table.unmeasured(tmp_path / "none", study) == ""
    assert study_table.score(tmp_path / "none", study, "policy") is None


def test_of_many_names_those_like_the_one_that_is_missing_are_said(tmp_path: Path):
    many = {f"mean/fde_{n}s_low": 1.0 for n in range(30)} | {"model/ade_3s": 1.0, "val/ade_3s": 1.0}
    write_metrics(tmp_path / "run", {"step": 20, "split": "eval"} | many)
    study = StudyConfig(config="qchunk/debug", seeds=(0,), metric="model/ade_3s", best="lowest")
    with pytest.raises(
        DataError, match=r"policy/model/ade_3s, .*found \[.*'model/ade_3s'.*\] and 22 others; set"
    ) as error:
        study_table.score(tmp_path / "run", study, "policy")
    assert len(re.findall(r"'[^' ]+/[^' ]+'", str(error.value))) == 10


def test_a_row_that_is_not_measured_is_empty_and_the_others_are_written(tmp_path: Path):
    """Only one of two agents has behaviour cloning beside its policy; of a metric that none has there is no table."""
    grid, policies = {"agent.policy": ("distill", "gaussian")}, ("policy", "behaviour_cloning")
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid=grid, policies=policies)
    runs = runs_of(study)
    write_metrics(tmp_path / runs[0].folder, row(20, **{"behaviour_cloning/success": 0.25}))
    write_metrics(tmp_path / runs[1].folder, row(20))
    found = study_table.write(study, runs, tmp_path, {}, {})
    assert [list(one["by_seed"].values()) for one in found["rows"]] == [[0.5], [0.25], [0.5], []]
    text = (tmp_path / "table.md").read_text()
    assert "\n| agent.policy=gaussian: behaviour cloning | - | | | | |\n" in text
    why = "agent.policy=gaussian/seed_0/metrics.jsonl: expected evaluations with behaviour_cloning/success"
    assert f"\nNot measured:\n\n- agent.policy=gaussian: behaviour cloning: {why}" in text
    none = StudyConfig(config="qchunk/debug", seeds=(0,), grid=grid, policies=policies, metric="sucess", best="highest")
    with pytest.raises(DataError, match="expected evaluations with policy/sucess"):
        study_table.table(none, runs, tmp_path, {}, {})


@pytest.mark.parametrize(
    ("config", "metric", "flags", "why"),
    [
        ("qchunk/debug", "success", ("--episode", "4"), "unrecognized arguments: --episode 4"),
        ("qchunk/debug", "success", ("--episodes", "four"), "argument --episodes: invalid int value: 'four'"),
        ("qchunk/debug", "success", ("--chunks", "4"), "unrecognized arguments: --chunks 4"),
        ("qchunk/debug", "success", ("--episodes", "0"), "--episodes is 0; expected a number above 0"),
        ("qchunk/debug", "success", ("--checkpoint", "bset"), "--checkpoint is bset; expected newest, best or"),
        (
            "qchunk/debug",
            "success",
            ("--checkpoint", "best"),
            "best: expected checkpoint.keep_best in the config of each",
        ),
        ("qchunk/debug", "success", ("--how", "every"), "--execute"),
        ("qchunk/debug", "success", ("--delay", "-1"), "0 or above"),
        ("openpi_ript/debug", "success", ("--how", "open_loop", "--execute", "2"), "execute"),
        ("openpi_ript/debug", "success", ("--execute", "0"), "--execute is 0; expected at least 1"),
        ("openpi_ript/debug", "success", ("--checkpoint", "best"), "unrecognized arguments: --checkpoint best"),
        ("openpi_ript/debug", "success", ("--prompt", "lift"), "--prompt: expected --env"),
        ("driving/debug", "score", ("--episodes", "4"), "--episodes, --out: expected with --closed-loop"),
        ("driving/debug", "score", ("--closed-loop", "--hold", "0"), "--hold is 0; expected at least 1"),
    ],
)
def test_flags_that_evaluate_does_not_take_are_found_before_a_run_is_trained(
    config: str, metric: str, flags: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, out = tmp_path / "mine.py", tmp_path / "out"
    given = f"config={config!r}, seeds=(0, 1), metric={metric!r}, evaluate={flags!r}"
    file.write_text(f"from chunkwise.config.study import StudyConfig\ndef get_study(): return StudyConfig({given})\n")
    assert program.main([str(file), "--out", str(out)]) == 64
    said = f"error: the study's evaluate is {shlex.join(flags)!r}, which chunkwise evaluate does not take: "
    told = capsys.readouterr().err
    assert told.startswith(said), told
    assert why in told
    assert not out.exists()


def test_a_flag_that_another_cell_reads_is_no_fault():
    grid = {"agent.policy": ("distill", "best_of_n")}
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid=grid, flags=("--agent.num-samples", "8"))
    assert len(runs_of(study)) == 2


def test_the_last_evaluation_counts_also_where_it_is_none(tmp_path: Path):
    rows = [{"step": 1, "split": "eval", "policy/error": 0.5}, {"step": 2, "split": "eval", "policy/error": None}]
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), metric="error", best="lowest")
    for run, kept in zip(runs_of(study), (rows, rows[:1]), strict=True):
        write_metrics(tmp_path / run.folder, *kept)
    found = study_table.table(study, runs_of(study), tmp_path, {}, {})
    (row,), (why,) = found["rows"], found["failed"].values()
    assert row["by_seed"] == {"1": 0.5}
    assert why.startswith(f"{runs_of(study)[0].folder}/metrics.jsonl: policy/error of step 2: expected a number"), why
    assert "| 0.5 (without seed 0) |" in study_table.markdown(found)


def test_a_policy_without_a_number_is_named_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The other policy of that run keeps its own. Failed runs are an exit code, whoever found that they had failed."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), policies=("policy", "behaviour_cloning"))
    (first, second), other = runs_of(study), {"behaviour_cloning/success": 0.2, "behaviour_cloning/episodes": 10}
    broken: dict[str, Any] = {"policy/success": None} | other
    write_metrics(tmp_path / first.folder, row(1, **broken))
    write_metrics(tmp_path / second.folder, row(1, **other))
    found = study_table.table(study, [first, second], tmp_path, {}, {})
    assert list(found["failed"]) == [f"{first.folder}: policy"]
    assert [len(row["by_seed"]) for row in found["rows"]] == [1, 2]
    monkeypatch.setattr(program, "read_study", lambda _: (study, "mine"))
    monkeypatch.setattr(program, "unfinished", lambda *_: {})
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
    words = ["mine", "--out", str(tmp_path), "--table"]
    assert program.main(words, show=lambda _: None) == 70


def test_a_run_that_is_no_result_after_all_were_trained_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(program, "train_all", lambda *_: {})
    assert program.main(["debug", "--out", str(tmp_path), "--table"], show=lambda _: None) == 0
    capsys.readouterr()
    assert program.main(["debug", "--out", str(tmp_path)], show=lambda _: None) == 70
    assert " runs are no result, and the table says why: " in capsys.readouterr().err


def test_an_earlier_checkpoint_that_a_study_asks_for_is_complete(tmp_path: Path):
    """Not once the run has more updates: another may be its best, and its newest by then."""
    for flags, complete in (((), False), (("--checkpoint", "best"), True), (("--checkpoint=1",), True)):
        study_table.begin_evaluation(tmp_path, flags, 4)
        assert not study_table.is_evaluated(tmp_path, flags, 4)
        made = {"step": 1, "outcomes": [{"seed": 0}]}
        (tmp_path / study_table.EVALUATION).write_text(json.dumps(made))
        assert study_table.is_evaluated(tmp_path, flags, 4) is complete
    assert not study_table.is_evaluated(tmp_path, ("--checkpoint=1",), 5)
    (tmp_path / study_table.FLAGS).write_text(json.dumps({"flags": ["--checkpoint=1"]}))  # as earlier versions wrote it
    assert study_table.is_evaluated(tmp_path, ("--checkpoint=1",), 5)
    (tmp_path / study_table.FLAGS).unlink()
    assert study_table.is_evaluated(tmp_path, ("--checkpoint=1",), 5)


def test_an_evaluation_waits_for_that_of_another_process_and_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Kills: outcomes of one process beside the flags of another, where a study's `evaluate` had changed meanwhile."""
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--episodes", "3"))
    (run,) = runs_of(study)
    folder, steps, asked = tmp_path / run.folder, run.config.train.steps, []
    place = (folder / study_table.EVALUATION).parent
    place.mkdir(parents=True)
    monkeypatch.setattr(program, "is_finished", lambda *_: True)
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
    monkeypatch.setattr(program, "_call", lambda *_: asked.append(1) or "")
    processes = program.Processes()

    def ends(seconds: float) -> bool:
        """The other one ends while this one waits for it."""
        study_table.begin_evaluation(folder, study.evaluate or (), steps)
        (folder / study_table.EVALUATION).write_text(json.dumps({"step": steps, "outcomes": [{"seed": 0}]}))
        held.close()
        return False

    monkeypatch.setattr(processes.stopping, "wait", ends)
    held = contextlib.ExitStack()
    held.enter_context(locked(place, "mine"))
    assert program._one(study, run, tmp_path, processes) == ""
    assert not asked
    assert capsys.readouterr().out.count("debug/seed_0: another process evaluates it; waiting for that") == 1
    changed = dataclasses.replace(study, evaluate=("--episodes", "4"))
    assert program._one(changed, run, tmp_path, processes) == ""
    assert asked == [1]
    assert digest_of(study, [run]) != digest_of(changed, [run]), "a job of an array that evaluates otherwise is another"


def test_a_run_that_failed_is_said_to_have_where_nothing_is_trained(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,))
    (run,) = runs_of(study)
    log = study_progress.log_of(run, tmp_path)
    log.parent.mkdir()
    log.write_text("step 3\nerror: loss is not finite\n\n")
    said = study_progress.unfinished(study, [run], tmp_path)
    assert said == {run.folder: "not begun; its last start ended: error: loss is not finite"}
    log.write_text("error: the dataset is another\n  changed: a.hdf5\n\nRestore these files\n")
    said = "; its last start ended: error: the dataset is another changed: a.hdf5"
    assert study_progress.unfinished(study, [run], tmp_path) == {run.folder: f"not begun{said}"}
    study_progress.begun(log, ["chunkwise", "train", "my config"])
    assert log.read_text().endswith("\n$ chunkwise train 'my config'\n")
    assert study_progress.unfinished(study, [run], tmp_path) == {run.folder: "not begun"}, "it is on its way again"
    with open(log, "a") as file:
        file.write(f"error: {tmp_path / run.folder} is in use by process 3. Wait for it\n")
    assert study_progress.unfinished(study, [run], tmp_path) == {run.folder: "not begun"}, "another process trains it"


def test_a_run_does_not_begin_with_one_that_is_not_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Kills: gains over starts that had not been trained to the end, in silence."""
    (first,) = runs_of(StudyConfig(config="qchunk/debug", seeds=(0,)))
    begin = dataclasses.replace(first.config, run=RunConfig(dir=str(tmp_path / "first")))
    with RunFolder(begin, "qchunk"):
        pass
    (tmp_path / "first/metrics.jsonl").write_text(json.dumps({"step": 3, "split": "train"}) + "\n")
    study = StudyConfig(config="qchunk/debug", seeds=(0,), flags=("--data.path", str(tmp_path / "first")))
    (run,) = runs_of(study)
    steps = first.config.train.steps
    why = f"begins with {tmp_path / 'first'}, which is at step 3 of {steps}; finish that run first"
    assert program._one(study, run, tmp_path, program.Processes()) == why
    assert capsys.readouterr().err == f"{run.folder}: {why}\n"
    (tmp_path / "first/done.json").write_text(json.dumps({"step": steps}))
    assert study_progress.unfinished_start(run) == ""


def test_without_a_curve_there_is_no_file_of_curves(tmp_path: Path):
    """Such as of scores in closed loop, which training does not evaluate."""
    study = StudyConfig(config="qchunk/debug", seeds=(0,), metric="score", evaluate=())
    (run,) = runs_of(study)
    write_metrics(tmp_path / run.folder, row(10))
    (tmp_path / "curves.png").touch()
    assert not study_table.draw(study, [run], tmp_path)
    assert not (tmp_path / "curves.png").exists()
    assert study_table.draw(dataclasses.replace(study, metric="success", evaluate=None), [run], tmp_path)


def test_names_of_many_settings_leave_the_curves_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: a legend beside the curves, which left them none, and cut each name at its first letters."""
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), Path(path).touch()))
    alone = ("agent.horizon", "optim.learning-rate", "agent.discount", "agent.tau")
    grid = {**dict.fromkeys(alone, ("1",)), "data.task": ("a", "b"), "data.path": ("a", "b")}
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid=grid)
    runs = runs_of(study)
    for run in runs:
        write_metrics(tmp_path / run.folder, *(row(step) | {"policy/success": step / 100} for step in (10, 20)))
    study_table.draw(study, runs, tmp_path)
    (figure,) = figures
    figure.draw_without_rendering()
    (legend,) = figure.legends
    names = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert names == [run.cell for run in runs]
    whole, curves, below = figure.bbox, figure.axes[0].get_window_extent(), legend.get_window_extent()
    assert curves.width > 0.7 * whole.width
    assert curves.height > 300
    assert whole.x0 <= below.x0
    assert below.x1 <= whole.x1
    assert below.y1 <= curves.y0


def test_one_run_is_listed_and_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program, "train_all", lambda *_: pytest.fail("it trains"))
    shown: list[str] = []
    assert program.main(["debug", "--out", str(tmp_path), "--only", "0", "--dry-run"], show=shown.append) == 0
    assert shown[0].count("chunkwise train") == 1


@pytest.mark.parametrize("other", [["--only", "0"], ["--watch"], ["--table"]])
def test_workers_without_runs_at_once_are_refused(other: list[str], capsys: pytest.CaptureFixture[str]):
    assert program.main(["debug", "--workers", "2", *other]) == ConfigError.exit_code
    assert f"with {other[0]} there are none" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], {}, {"flags": "--episodes 4"}])
def test_flags_of_an_evaluation_that_are_none_are_named(tmp_path: Path, flags: Any):
    for file, tree in ((study_table.EVALUATION, {"step": 3, "outcomes": [{}]}), (study_table.FLAGS, flags)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"expected the flags of .*; remove both to evaluate again"):
        study_table.evaluated_step(tmp_path, ["--episodes", "4"])


def test_runs_on_a_fleet_are_given_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those that are not complete; the second of them fails."""
    runs = runs_of(StudyConfig(config="qchunk/debug", seeds=(0, 1, 2)))
    places = argparse.Namespace(workers=2, fleet="local", cores=3)

    def do_all(numbers: Sequence[int], worker: Any, **more: Any) -> Any:
        assert list(numbers) == [0, 2]
        assert (worker.command, worker.cores) == (("chunkwise", "study"), 3)
        assert more == {"workers": 2, "fleet": "local", "name": "run", "cores": 3, "lost": study_fleet.lost_run}
        yield 0, (0, "")
        yield 2, (74, "debug/seed_2: error: x")

    monkeypatch.setattr(program, "do_all", do_all)
    failed: dict[str, str] = {}
    program.train_on_fleet(runs, tmp_path, ["chunkwise", "study"], [0, 2], places, failed)
    assert failed == {"debug/seed_2": "error: x"}


def test_the_script_of_an_array_bears_the_studys_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    places = argparse.Namespace(workers=2, cores=3, dry_run=True, sbatch="")
    program._submit("mine", ["chunkwise", "study", "mine.py"], tmp_path, [0, 2], places)
    text = capsys.readouterr().out
    assert "#SBATCH --job-name=study-mine\n" in text
    assert "chunkwise study mine.py --only" in text


def test_a_finished_run_that_the_first_policy_has_no_part_in_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Such as a Gaussian policy in a study whose first row is behaviour cloning: its table leaves the cell empty."""
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), policies=("behaviour_cloning", "policy"))
    runs = runs_of(study)
    steps = runs[0].config.train.steps
    write_metrics(tmp_path / runs[0].folder, row(steps))
    write_metrics(tmp_path / runs[1].folder, row(steps, **{"behaviour_cloning/success": 0.25}))
    monkeypatch.setattr(study_progress, "is_finished", lambda *_: True)
    assert study_progress.rows(study, runs, tmp_path, {}) == [
        (runs[0].folder, "finished", f"{steps}/{steps}", "-"),
        (runs[1].folder, "finished", f"{steps}/{steps}", "0.25"),
    ]
