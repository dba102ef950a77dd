"""How far a study's runs are: what is evaluated again, and what is said of runs that were evaluated otherwise."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.study import StudyConfig, runs_of
from chunkwise.errors import DataError
from chunkwise.files import dataset_files
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.reports import study as program
from chunkwise.reports import study_progress, study_table
from chunkwise.train.run_dir import RunFolder


def test_a_run_is_evaluated_again_where_the_study_s_flags_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An evaluation of before the flags were written down is taken for the study's."""
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--episodes", "3"))
    other = dataclasses.replace(study, evaluate=("--episodes", "4"))
    (run,) = runs_of(study)
    folder, steps = tmp_path / run.folder, run.config.train.steps
    file = folder / study_table.EVALUATION
    file.parent.mkdir(parents=True)

    def write(success: bool) -> None:
        episodes = [{"seed": 0, "init_hash": "h", "success": success}]
        file.write_text(json.dumps({"step": steps, "outcomes": episodes}))

    write(True)
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
    monkeypatch.setattr(program, "is_finished", lambda *_: True)
    monkeypatch.setattr(study_progress, "is_finished", lambda *_: True)
    asked: list[str] = []

    def evaluate(_: Any, words: list[str], *__: Any) -> str:
        asked.append(words[-1])
        assert not file.exists(), "one that is broken off leaves none of other flags"
        write(False)
        return ""

    monkeypatch.setattr(program, "_call", evaluate)
    for now in (study, other):
        assert program._one(now, run, tmp_path, program.Processes()) == ""
    assert not asked, "of before the flags were written down"
    file.unlink()
    done = []
    for now in (study, study, other, other, study):
        assert program._one(now, run, tmp_path, program.Processes()) == ""
        done.append(study_progress.is_complete(other, run, tmp_path))
    assert asked == ["3", "4", "3"]
    assert done == [False, False, True, True, False]
    assert study_table.score(folder, other, "policy") is None, "the table has no numbers of another command"
    found = study_table.score(folder, study, "policy")
    assert found is not None
    assert found["score"] == 0
    (folder / study_table.FLAGS).write_text("[]")
    with pytest.raises(DataError, match=r"study_flags\.json: expected the flags"):
        study_table.evaluated_step(folder, ())


def test_a_finished_run_that_was_evaluated_otherwise_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    study = StudyConfig(config="qchunk/debug", seeds=(0,))
    (run,) = runs_of(study)
    where = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, dir=str(tmp_path / run.folder)))
    with RunFolder(where, "test"):
        pass
    (tmp_path / run.folder / "done.json").write_text(json.dumps({"step": where.train.steps}))
    assert program._one(study, run, tmp_path, program.Processes()) == ""
    assert "warning" not in capsys.readouterr().err
    (more,) = runs_of(dataclasses.replace(study, flags=("--eval.final-episodes", "7")))
    assert program._one(study, more, tmp_path, program.Processes()) == ""
    said = "".join(capsys.readouterr())
    assert "finished before" in said
    assert "warning: eval.final_episodes was" in said
    assert "the study has 7" in said
    assert '("--episodes", "50")' in said
    asked = dataclasses.replace(study, evaluate=())  # which takes from the run what it does not say itself
    monkeypatch.setattr(program, "_call", lambda *_: "")
    assert program._one(asked, more, tmp_path, program.Processes()) == ""
    assert "warning: eval.final_episodes was" in (said := "".join(capsys.readouterr()))
    assert "say it there" in said
    told = {run.folder: "eval.final_episodes was 50, the study has 7"}
    monkeypatch.setattr(study_table, "score", lambda *_: {"score": 0.5, "episodes": 50, "states": {}})
    found = study_table.write(study, (run,), tmp_path, {}, {}, told)
    heading = "Evaluated with other settings than the study has now"
    assert f"{heading}:\n\n- {run.folder}: {told[run.folder]}" in study_table.markdown(found)


def test_an_evaluation_outlives_a_study_whose_config_the_run_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One flag of a finished study is changed and changed back: nothing is lost."""
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--episodes", "3"))
    (run,) = runs_of(study)
    (other,) = runs_of(dataclasses.replace(study, flags=("--optim.learning-rate", "0.5")))
    folder, steps = tmp_path / run.folder, run.config.train.steps
    where = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, dir=str(folder)))
    with RunFolder(where, "test"):
        pass
    (folder / "done.json").write_text(json.dumps({"step": steps}))
    film = (folder / study_table.EVALUATION).with_suffix(".mp4")
    film.parent.mkdir(exist_ok=True)
    film.write_bytes(b"of the evaluation before")
    study_table.begin_evaluation(folder, ("--episodes", "3"), 1)
    assert not film.exists()
    (folder / study_table.EVALUATION).write_text(json.dumps({"step": steps, "outcomes": [{}]}))
    monkeypatch.setattr(program, "_call", lambda *_: "ended with 78: error: another config")
    assert program._one(study, other, tmp_path, program.Processes()) == "ended with 78: error: another config"
    assert study_progress.is_complete(study, run, tmp_path)
    (folder / "done.json").write_text(json.dumps({"step": steps - 1}))
    program._one(study, run, tmp_path, program.Processes())
    assert not (folder / study_table.EVALUATION).exists(), "the run goes on, and the evaluation is of fewer updates"


def test_a_finished_run_whose_data_lie_elsewhere_is_begun_again_and_compares(tmp_path: Path):
    """Whether the same is there the run says, with 0 or 78; the same place by another name is no other place."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    study = StudyConfig(config="qchunk/debug", seeds=(0,), flags=("--data.path", str(tmp_path / "data")))
    (run,) = runs_of(study)
    where = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, dir=str(tmp_path / run.folder)))
    with RunFolder(where, "test"):
        pass
    (tmp_path / run.folder / "done.json").write_text(json.dumps({"step": where.train.steps}))
    saved = json.loads((tmp_path / run.folder / "config.json").read_text())
    del saved["data.norm_stats"]  # as of a version that did not have it
    (tmp_path / run.folder / "config.json").write_text(json.dumps(saved))
    for place, finished in (("data", True), ("link", True), ("x/../data", True), ("other", False)):
        (moved,) = runs_of(dataclasses.replace(study, flags=("--data.path", str(tmp_path / place))))
        assert study_progress.is_finished(moved, tmp_path) == finished
        said = {} if finished else {run.folder: "finished with another data.path; not compared yet"}
        left_out = study_progress.unfinished(study, [moved], tmp_path)
        assert left_out.get(run.folder, "") == said.get(run.folder, left_out.get(run.folder, ""))
        assert finished or left_out == said


def test_an_evaluation_outlives_a_study_of_fewer_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=())
    (run,) = runs_of(study)
    folder, steps = tmp_path / run.folder, run.config.train.steps
    where = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, dir=str(folder)))
    with RunFolder(where, "test"):
        pass
    (folder / "done.json").write_text(json.dumps({"step": steps + 5}))
    study_table.begin_evaluation(folder, (), 1)
    (folder / study_table.EVALUATION).write_text(json.dumps({"step": steps + 5, "outcomes": [{}]}))
    said = f"ended with 78: error: has {steps + 5} updates"
    monkeypatch.setattr(program, "_call", lambda *_: said)
    assert program._one(study, run, tmp_path, program.Processes()) == said
    assert (folder / study_table.EVALUATION).exists()


def files_of(root: Path, *names: str) -> Files:
    files = Files(Bounds(root), verify="sample")
    files.require(list(names))
    return files


def test_runs_whose_datasets_hold_other_files_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files were added to the folder between the starts of two seeds. Runs with other data fields may read others."""
    grid = {"data.holdout": ("0.25", "0.5")}
    flags = ("--data.path", str(tmp_path / "data"))
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2), grid=grid, flags=flags, metric="error", best="lowest")
    runs = runs_of(study)
    monkeypatch.setattr(study_progress, "is_finished", lambda *_: True)
    (tmp_path / "data").mkdir()
    for run, names in zip(runs, ("ab", "ab", "bc", "c", "c", ""), strict=True):
        folder = tmp_path / run.folder
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "split": "eval", "policy/error": 1}) + "\n")
        for name in names:
            (tmp_path / "data" / name).write_text("changed" if (run, name) == (runs[2], "b") else name)
        files = files_of(tmp_path / "data", *names)
        if names and (listed := dataset_files.require_same(folder, files, resume=False)):
            dataset_files.write(folder, listed)
    first, third = runs[0].folder, runs[2].folder
    assert study_progress.unfinished(study, runs, tmp_path) == {}
    found = study_progress.other_data(runs, tmp_path)
    assert list(found) == [third]
    assert found[third].startswith(
        f"trained on other data than {first}: 1 changed (b), 1 missing (a), 1 added (c). To "
    )
    late = [runs[1], runs[2]]  # as many of both, and the last of them saw what is there now
    assert list(study_progress.other_data(late, tmp_path)) == [runs[1].folder]
    assert study_progress.other_data(runs[2:], tmp_path) == {}, "with other settings other files are read"
    (tmp_path / "data/c").write_text("another")
    listed = dataset_files.require_same(tmp_path / "none", files_of(tmp_path / "data", "c"), resume=False)
    assert listed
    dataset_files.write(tmp_path / runs[3].folder, listed)
    dataset_files.write(tmp_path / runs[4].folder, listed)
    assert list(study_progress.other_data(runs[2:5], tmp_path)) == [third], "with other settings c itself changed"
