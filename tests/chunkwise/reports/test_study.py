"""Studies: what is run, what is skipped, what a kill leaves, and that the table is a function of the run folders."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.study import StudyConfig, read_study, runs_of
from chunkwise.errors import ConfigError, DataError
from chunkwise.reports import study as program
from chunkwise.reports import study_table

ROOT = Path(__file__).parents[3]
STUDY = f"""
from chunkwise.config.study import StudyConfig

def get_study():
    flags = ("--train.steps", "30", "--train.eval-every", "10", "--width", "4")
    grid = {{"optim.learning-rate": ("1e-3", "1e-2")}}
    return StudyConfig(config={str(ROOT / "tests/train.py")!r}, seeds=(3, 4), grid=grid, flags=flags, policies=("",),
                       metric="distance")
"""


@pytest.mark.parametrize("name", ["quickstart", "studies/debug"])
def test_shipped_studies_have_flags_that_their_configs_take(name: str):
    study, short = read_study(name)
    runs = runs_of(study)
    assert short == name.rpartition("/")[2]
    assert len(runs) == 3 if short == "quickstart" else 4
    assert [run.config.run.seed for run in runs][: len(study.seeds)] == list(study.seeds)
    assert len({run.folder for run in runs}) == len(runs)
    assert (ROOT / f"configs/{study.config}.py").is_file()


def test_a_study_that_cannot_be_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="no study is named quick, and no file; there are: debug, quickstart"):
        read_study("quick")
    with pytest.raises(ConfigError, match=r"none\.py: expected a Python file"):
        read_study(str(tmp_path / "none.py"))
    (tmp_path / "x.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"x\.py: ZeroDivisionError"):
        read_study(str(tmp_path / "x.py"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seeds": (1, 1)}, "different numbers"),
        ({"seeds": (1,), "grid": {"a": ()}}, "no values for a"),
    ]
    for wrong, words in cases:
        with pytest.raises(ValueError, match=words):
            StudyConfig(config="qchunk/debug", **wrong)
    with pytest.raises(ConfigError, match="same folder"):
        runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid={"data.path": ("a*b", "a_b")}))
    with pytest.raises(ConfigError, match="horizn"):
        runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid={"agent.horizn": ("1",)}))


def write_run(folder: Path, lines: list[dict[str, Any]], outcomes: list[bool] | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if outcomes is not None:
        (folder / "evaluations").mkdir()
        episodes = [{"seed": n, "init_hash": f"h{n}", "success": won} for n, won in enumerate(outcomes)]
        (folder / study_table.EVALUATION).write_text(json.dumps({"step": 10, "outcomes": episodes}))


def line(step: int, rate: float, episodes: int = 10) -> dict[str, Any]:
    return {"step": step, "split": "eval", "policy/success": rate, "policy/episodes": episodes}


def test_the_table_by_hand(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2, 3), grid={"agent.horizon": ("1", "5")})
    runs = runs_of(study)
    rates = {"1": (0.1, 0.2, 0.3, 0.9), "5": (0.4, 0.3, 0.5, 0.9)}
    for run in runs:
        rate = rates[run.cell[-1]][run.seed]
        write_run(tmp_path / run.folder, [line(10, 0.0), {"step": 15, "split": "train", "loss": 1.0}, line(20, rate)])
    found = study_table.write(study, runs, tmp_path, {})
    first, second = found["rows"]
    assert first["row"] == "agent.horizon=1"
    assert (first["successes"], first["episodes"]) == (15, 40)
    assert first["over_episodes"] == pytest.approx((0.2422, 0.5297), abs=1e-4)  # 15 of 40
    assert first["by_seed"] == {"0": 0.1, "1": 0.2, "2": 0.3, "3": 0.9}
    assert first["interquartile_mean"] == pytest.approx(0.25)
    assert first["over_seeds"][0] < 0.25 < first["over_seeds"][1]
    against = second["against_first"]
    # Of 16 pairs: 0.4 beats three, 0.3 two and a half, 0.5 three, 0.9 three and a half.
    assert against["probability_of_improvement"] == pytest.approx(12 / 16)
    # Differences 0.3, 0.1, 0.2, 0: all signs alike of three, any of the fourth, both ways: 4 of 16.
    assert against["paired_seeds"] == {"mean_difference": pytest.approx(0.15), "p": 0.25}
    assert "paired_episodes" not in against
    text = (tmp_path / "table.md").read_text()
    assert "| agent.horizon=1 | 0.375 | 0.242 to 0.53 (15 of 40) | 0.1, 0.2, 0.3, 0.9 | 0.25 |" in text
    assert 'chunkwise train qchunk/debug --agent.horizon 5 --run.seed 3 --run.dir "$OUT"/agent.horizon=5/seed_3' in text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    before = {name: (tmp_path / name).read_bytes() for name in ("table.json", "table.md")}
    study_table.write(study, runs, tmp_path, {})
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    failed = study_table.table(study, runs, tmp_path, {runs[0].folder: "ended with 70: error: x"})
    assert list(failed["rows"][0]["by_seed"]) == ["1", "2", "3"]
    assert "- agent.horizon=1/seed_0: ended with 70: error: x" in study_table.markdown(failed)


def test_episodes_are_paired_by_seed_and_state(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid={"agent.horizon": ("1", "5")}, evaluate=())
    runs = runs_of(study)
    won = {
        "agent.horizon=1/seed_0": [True, False, False, False],
        "agent.horizon=1/seed_1": [False, False, True, False],
        "agent.horizon=5/seed_0": [True, True, True, False],
        "agent.horizon=5/seed_1": [True, True, False, False],
    }
    for run in runs:
        write_run(tmp_path / run.folder, [], won[run.folder])
    first, second = study_table.table(study, runs, tmp_path, {})["rows"]
    assert (first["successes"], second["successes"], second["episodes"]) == (2, 5, 8)
    paired = second["against_first"]["paired_episodes"]
    # Only the second solves 4 states, only the first 1: p = 2 * (1 + 5) / 2^5.
    assert paired == {"states": 8, "only_this": 4, "only_first": 1, "mcnemar_p": 0.375}
    assert "/evaluations/study.json" in study_table.commands(study, runs)[1]


@pytest.mark.parametrize("text", ["[]", "{}", '{"step": 3, "outcomes": []}', '{"step": 3, "outcomes": [{"seed": 1}]}'])
def test_a_damaged_evaluation_is_named(text: str, tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=())
    (tmp_path / "evaluations").mkdir()
    assert study_table.evaluated_step(tmp_path) is None
    assert study_table.score(tmp_path, study, "policy") is None
    (tmp_path / study_table.EVALUATION).write_text(text)
    with pytest.raises(DataError, match=r"study\.json: expected"):
        study_table.score(tmp_path, study, "policy")


def test_what_is_evaluated_is_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--episodes", "3"))
    (run,) = runs_of(study)
    monkeypatch.setattr(program, "is_finished", lambda *_: True)
    asked: list[Any] = []
    monkeypatch.setattr(program, "_call", lambda _, words, *__: asked.append(words) or "")
    for step, times in ((None, 1), (10, 2), (run.config.train.steps, 2)):
        if step is not None:
            (tmp_path / run.folder / "evaluations").mkdir(parents=True, exist_ok=True)
            text = json.dumps({"step": step, "outcomes": [{}]})
            (tmp_path / run.folder / study_table.EVALUATION).write_text(text)
        assert program._one(study, run, tmp_path, program.Processes()) == ""
        assert len(asked) == times
    assert asked[0][3:4] == ["evaluate"]
    assert asked[0][-2:] == ["--episodes", "3"]


def test_a_folder_that_cannot_be_read_fails_alone(tmp_path: Path):
    runs = runs_of(StudyConfig(config="qchunk/debug", seeds=(0,)))
    folder = tmp_path / runs[0].folder
    folder.mkdir(parents=True)
    (folder / "done.json").write_text("{")
    failed = program.train_all(StudyConfig(config="qchunk/debug", seeds=(0,)), runs, tmp_path, 1)
    assert list(failed) == [runs[0].folder]
    assert "done.json" in failed[runs[0].folder]


def test_cores_are_divided_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7})
    assert program._shares(2) == [{0, 1}, {2, 5}]
    assert program._shares(1) == [{0, 1, 2, 5, 7}]
    assert program._shares(6) == [{0, 1, 2, 5, 7}] * 6


def study_in(folder: Path, *more: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(STUDY)
    return [sys.executable, "-m", "chunkwise", "study", str(folder / "mine.py"), "--out", str(folder / "out"), *more]


def play(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(study_in(folder, *more), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_killed_in_the_middle_the_table_is_the_same(tmp_path: Path):
    alone = play(tmp_path / "alone", "--workers", "2")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    dry = play(tmp_path / "killed", "--dry-run")
    assert dry.stdout.count("chunkwise train ") == 4
    assert "# 0 of 4 runs are finished" in dry.stdout
    killed = subprocess.Popen(study_in(tmp_path / "killed", "--workers", "2"), cwd=ROOT, start_new_session=True)
    out = tmp_path / "killed/out"
    while not list(out.glob("*/seed_*/done.json")):
        assert killed.poll() is None
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    finished = len(list(out.glob("*/seed_*/done.json")))
    again = play(tmp_path / "killed", "--workers", "2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("finished before") == finished < 4
    for name in ("table.json", "table.md"):
        assert (out / name).read_text() == (tmp_path / "alone/out" / name).read_text()
    starts = [len(path.read_text().splitlines()) for path in sorted(out.glob("*/seed_*/starts.jsonl"))]
    once = play(tmp_path / "killed")
    assert once.stdout.count("finished before") == 4
    assert [len(path.read_text().splitlines()) for path in sorted(out.glob("*/seed_*/starts.jsonl"))] == starts


@pytest.mark.slow
def test_a_run_that_fails_is_reported_and_the_rest_goes_on(tmp_path: Path):
    bad = tmp_path / "out" / runs_of(read_study(str(write_study(tmp_path)))[0])[0].folder
    bad.mkdir(parents=True)
    (bad / "starts.jsonl").touch()
    (bad / "checkpoints").touch()  # where a folder is to be made
    ended = play(tmp_path)
    assert ended.returncode == 70, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "out/table.json").read_text())
    assert len(found["failed"]) == 1
    assert "ended with 74: error: " in next(iter(found["failed"].values()))
    assert [len(row["by_seed"]) for row in found["rows"]] == [1, 2]


def write_study(folder: Path) -> Path:
    (folder / "mine.py").write_text(STUDY)
    return folder / "mine.py"
