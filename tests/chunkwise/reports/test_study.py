"""Studies: what is run, what is skipped, what a kill leaves, and that the table is a function of the run folders."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from chunkwise.config.experiment import RunConfig
from chunkwise.config.study import StudyConfig, read_study, runs_of
from chunkwise.distributed.cores import shares_of
from chunkwise.errors import ConfigError, DataError, StopRequested
from chunkwise.reports import study as program
from chunkwise.reports import study_table
from chunkwise.train.run_dir import RunFolder
from qchunk.config import QChunkConfig

ROOT = Path(__file__).parents[3]
STUDY = f"""
from chunkwise.config.study import StudyConfig

def get_study():
    flags = ("--train.steps", "30", "--train.eval-every", "10", "--width", "4")
    grid = {{"optim.learning-rate": ("1e-3", "1e-2")}}
    return StudyConfig(config={str(ROOT / "tests/train.py")!r}, seeds=(3, 4), grid=grid, flags=flags, policies=("",),
                       metric="distance", best="lowest")
"""


@pytest.mark.parametrize("name", ["quickstart", "studies/debug", "lift", "metaworld_mt10", "metaworld_mt50"])
def test_shipped_studies_have_flags_that_their_configs_take(name: str):
    study, short = read_study(name)
    runs = runs_of(study)
    assert short == name.rpartition("/")[2]
    assert len(runs) == {"quickstart": 3, "debug": 4, "lift": 15, "metaworld_mt10": 15, "metaworld_mt50": 2}[short]
    assert [run.config.run.seed for run in runs][: len(study.seeds)] == list(study.seeds)
    assert len({run.folder for run in runs}) == len(runs)
    assert (ROOT / f"configs/{study.config}.py").is_file()


def test_a_study_that_cannot_be_is_named(tmp_path: Path):
    known = "debug, .*, quickstart"
    with pytest.raises(ConfigError, match=f"no study is named quick, and no file; there are: {known}"):
        read_study("quick")
    with pytest.raises(ConfigError, match=r"none\.py: expected a Python file"):
        read_study(str(tmp_path / "none.py"))
    (tmp_path / "x.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"x\.py: ZeroDivisionError"):
        read_study(str(tmp_path / "x.py"))
    own = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Mine: x: int = 1"
    (tmp_path / "y.py").write_text(own + STUDY)
    assert read_study(str(tmp_path / "y.py"))[0].seeds == (3, 4)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seeds": (1, 1)}, "different whole numbers"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1,), "grid": {"a": ()}}, "no values for a"),
        ({"seeds": (1,), "evaluate": (), "policies": ("policy", "behaviour_cloning")}, "expected policies to be"),
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
    found = study_table.write(study, runs, tmp_path, {}, {})
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
    assert (tmp_path / "table.json").read_text() == json.dumps(found, indent=1) + "\n"
    before = {name: (tmp_path / name).read_bytes() for name in ("table.json", "table.md")}
    study_table.write(study, runs, tmp_path, {}, {})
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    failed = study_table.table(study, runs, tmp_path, {runs[0].folder: "ended with 70: error: x"}, {})
    assert list(failed["rows"][0]["by_seed"]) == ["1", "2", "3"]
    assert "- agent.horizon=1/seed_0: ended with 70: error: x" in study_table.markdown(failed)


def test_curves_are_the_means_over_seeds_at_each_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), Path(path).touch()))
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1), grid={"agent.horizon": ("1", "5")})
    runs = runs_of(study)
    for number, run in enumerate(runs):
        train = {"step": 15, "split": "train", "policy/success": 9.0}
        write_run(tmp_path / run.folder, [line(20, 0.2 * number), train, line(10, 0.1 * number), {"step": 30}])
    study_table.draw(study, runs, tmp_path)
    (axes,) = figures[0].axes
    found = {drawn.get_label(): [list(drawn.get_xdata()), list(drawn.get_ydata())] for drawn in axes.lines}
    assert found == {
        "agent.horizon=1": [[10, 20], pytest.approx([0.05, 0.1])],
        "agent.horizon=5": [[10, 20], pytest.approx([0.25, 0.5])],
    }
    ranges = [band.get_paths()[0].get_extents() for band in axes.collections]
    assert [(box.x0, box.x1) for box in ranges] == [(10, 20)] * 2
    assert [(box.y0, box.y1) for box in ranges] == [pytest.approx((0.0, 0.2)), pytest.approx((0.2, 0.6))]


def test_named_values_are_flags_and_each_task_is_a_table_of_its_own(tmp_path: Path):
    tasks = {"near": "--agent.discount 0.9", "far": "--agent.discount 0.99 --agent.tau 0.01"}
    agents = {"QC-FQL": "--agent.horizon 5", "FQL": "--agent.horizon 1"}
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid={"task": tasks, "agent": agents}, tables="task")
    runs = runs_of(study)
    assert [(run.cell, run.table) for run in runs] == [
        (f"task={task}, agent={agent}", task) for task in tasks for agent in agents
    ]
    words = ("--agent.discount", "0.99", "--agent.tau", "0.01", "--agent.horizon", "1", "--run.seed", "0")
    assert runs[3].words == ("qchunk/debug", *words)
    assert isinstance(runs[3].config, QChunkConfig)
    assert (runs[3].config.agent.horizon, runs[3].config.agent.tau) == (1, 0.01)
    for number, run in enumerate(runs):
        write_run(tmp_path / run.folder, [line(10, 0.1 * number)])
    found = study_table.table(study, runs, tmp_path, {}, {})
    assert [row.get("first") for row in found["rows"]] == [None, runs[0].cell, None, runs[2].cell]
    assert found["rows"][3]["against_first"]["paired_seeds"]["mean_difference"] == pytest.approx(0.1)
    text = study_table.markdown(found)
    assert text.index(f"Against {runs[0].cell}:") < text.index(f"Against {runs[2].cell}:")
    with pytest.raises(
        ValueError, match=r"tables is 'agent'; expected the first axis of grid, which is \['task', 'agent'\]"
    ):
        StudyConfig(config="qchunk/debug", seeds=(0,), grid=study.grid, tables="agent")


@pytest.mark.long
def test_the_papers_tasks_and_agents():
    """The shipped table: six agents on three tasks, and what makes each of them."""
    study, _ = read_study("qchunk_table")
    configs = {run.cell: run.config for run in runs_of(study)}
    assert len(configs) == 18
    assert len(runs_of(study)) == 54
    made = {}
    for cell, config in configs.items():
        assert isinstance(config, QChunkConfig)
        assert config.online is not None
        assert config.record is not None
        assert {config.eval.env, config.online.env, config.record.directed.task} == {config.data.task}
        assert config.data.sparse == ("sparse" in cell)
        assert config.data.success_timing == "post"
        assert config.online.start == (0 if "RLPD" in cell else 4000)
        assert config.env_steps(config.train.steps) == 4000
        agent = config.agent
        made[cell.rpartition("=")[2]] = (agent.policy, agent.horizon, agent.action_horizon)
    assert made == {
        "QC": ("best_of_n", 5, 5),
        "QC-FQL": ("distill", 5, 5),
        "FQL": ("distill", 1, 1),
        "n-step FQL": ("distill", 5, 1),
        "RLPD": ("gaussian", 1, 1),
        "QAM": ("adjoint_matching", 5, 5),
    }


def test_seeds_that_only_one_row_has_are_not_paired(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2), grid={"agent.horizon": ("1", "5")})
    runs = runs_of(study)
    for run in runs:
        if (run.cell[-1], run.seed) not in (("1", 0), ("5", 2)):
            write_run(tmp_path / run.folder, [line(10, 0.1 * run.seed + 0.5 * (run.cell[-1] == "5"))])
    row = study_table.table(study, runs, tmp_path, {}, {})["rows"][1]
    assert row["by_seed"] == {"0": 0.5, "1": 0.6}
    assert row["against_first"]["paired_seeds"] == {"mean_difference": pytest.approx(0.5), "p": 1.0}


def test_successes_are_whole_numbers_of_episodes(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,))
    runs = runs_of(study)
    write_run(tmp_path / runs[0].folder, [line(10, 0.29, episodes=100)])
    (row,) = study_table.table(study, runs, tmp_path, {}, {})["rows"]
    assert (row["successes"], row["episodes"]) == (29, 100), "0.29 times 100 is 28.999999999999996"


def test_what_is_finished(tmp_path: Path):
    """Its last update is done, with the settings that the study has now."""
    grid = {"optim.learning-rate": ("1e-3",)}
    (run,) = runs_of(StudyConfig(config="qchunk/debug", seeds=(0,), grid=grid))
    folder, steps = tmp_path / run.folder, run.config.train.steps
    assert not program.is_finished(run, tmp_path)
    with RunFolder(dataclasses.replace(run.config, run=RunConfig(dir=str(folder))), "qchunk"):
        pass
    assert not program.is_finished(run, tmp_path)
    for done, finished in (({"step": steps}, True), ({"step": steps - 1}, False), ({}, False), ([], False)):
        (folder / "done.json").write_text(json.dumps(done))
        assert program.is_finished(run, tmp_path) is finished
    (folder / "done.json").write_text(json.dumps({"step": steps}))
    other = dataclasses.replace(run.config, optim=dataclasses.replace(run.config.optim, learning_rate=1e-4))
    assert not program.is_finished(dataclasses.replace(run, config=other), tmp_path)


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
    first, second = study_table.table(study, runs, tmp_path, {}, {})["rows"]
    assert (first["successes"], second["successes"], second["episodes"]) == (2, 5, 8)
    paired = second["against_first"]["paired_episodes"]
    # Only the second solves 4 states, only the first 1: p = 2 * (1 + 5) / 2^5.
    assert paired == {"states": 8, "only_this": 4, "only_first": 1, "mcnemar_p": 0.375}
    assert "/evaluations/study.json" in study_table.commands(study, runs)[1]


def test_a_runs_own_evaluation_is_paired_too(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), grid={"agent.horizon": ("1", "5")})
    runs = runs_of(study)
    for run, won in zip(runs, ([True, False, False], [True, True, True]), strict=True):
        write_run(tmp_path / run.folder, [line(10, 0.0, 3), line(20, sum(won) / 3, 3)])
        write_own(tmp_path / run.folder, "step_00000010", 10, [False] * 3)
        write_own(tmp_path / run.folder, "step_00000020", 20, won)
    (tmp_path / runs[0].folder / "evaluations/step_00000020-seed_7.json").write_text("{")

    def paired() -> Any:
        return study_table.table(study, runs, tmp_path, {}, {})["rows"][1]["against_first"].get("paired_episodes")

    assert paired() == {"states": 3, "only_this": 2, "only_first": 0, "mcnemar_p": 0.5}
    evaluated_again = (
        (20, [True, True], {}),
        (20, [True, True, False], {}),
        (10, [True] * 3, {}),
        (20, [True] * 3, {"seed": 7}),
    )
    for step, won, settings in evaluated_again:
        write_own(tmp_path / runs[1].folder, "step_00000020", step, won, settings)
        assert paired() is None, (step, won, settings)


def write_own(run: Path, name: str, step: int, won: list[bool], settings: dict[str, Any] | None = None) -> None:
    (run / "evaluations").mkdir(exist_ok=True)
    episodes = [{"task": f"t{n}", "seed": 0, "init_hash": "h", "success": success} for n, success in enumerate(won)]
    tree = {"step": step, "settings": settings or {}, "outcomes": episodes}
    (run / f"evaluations/{name}.json").write_text(json.dumps(tree))


@pytest.mark.parametrize("text", ["[]", "{}", '{"step": 3, "outcomes": []}', '{"step": 3, "outcomes": [{"seed": 1}]}'])
def test_a_damaged_evaluation_is_named(text: str, tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=())
    (tmp_path / "evaluations").mkdir()
    assert study_table.evaluated_step(tmp_path, ()) is None
    assert study_table.score(tmp_path, study, "policy") is None
    (tmp_path / study_table.EVALUATION).write_text(text)
    with pytest.raises(DataError, match=r"study\.json: expected"):
        study_table.score(tmp_path, study, "policy")


def test_what_is_evaluated_is_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--episodes", "3"))
    (run,) = runs_of(study)
    monkeypatch.setattr(program, "is_finished", lambda *_: True)
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
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


def test_a_run_that_trains_on_is_evaluated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = StudyConfig(config="qchunk/debug", seeds=(0,), evaluate=("--checkpoint", "best"))
    (run,) = runs_of(study)
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
    asked: list[str] = []
    monkeypatch.setattr(program, "_call", lambda _, words, *__: asked.append(words[3]) or "")
    for finished, verbs in ((False, ["train", "evaluate"]), (True, []), (False, ["train", "evaluate"])):
        monkeypatch.setattr(program, "is_finished", lambda *_, finished=finished: finished)
        assert program._one(study, run, tmp_path, program.Processes()) == ""
        assert asked == verbs
        asked.clear()
        (tmp_path / run.folder / study_table.EVALUATION).write_text(json.dumps({"step": 1, "outcomes": [{}]}))


def test_a_run_is_always_told_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = StudyConfig(config="qchunk/debug", seeds=(5,), flags=("--train.steps", "40"))
    (run,) = runs_of(study)
    asked: list[Any] = []
    monkeypatch.setattr(program, "_call", lambda _, words, *__: asked.append(words) or "ended with 3: x")
    assert program._one(study, run, tmp_path, program.Processes()) == "ended with 3: x"
    flags = ["--train.steps", "40", "--run.seed", "5", "--run.dir", str(tmp_path / run.folder), "--run.resume"]
    assert asked == [[sys.executable, "-m", "chunkwise", "train", "qchunk/debug", *flags]]


def test_a_folder_that_cannot_be_read_fails_alone(tmp_path: Path):
    runs = runs_of(StudyConfig(config="qchunk/debug", seeds=(0,)))
    folder = tmp_path / runs[0].folder
    folder.mkdir(parents=True)
    (folder / "done.json").write_text("{")
    failed = program.train_all(StudyConfig(config="qchunk/debug", seeds=(0,)), runs, tmp_path, 1)
    assert list(failed) == [runs[0].folder]
    assert "done.json" in failed[runs[0].folder]


def test_the_others_wait_until_the_first_run_trains_since_it_may_record_their_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1))
    runs = runs_of(study)
    second = threading.Event()
    early: list[bool] = []

    def one(_: Any, run: Any, out: Path, *__: Any) -> str:
        if run.seed == 1:
            second.set()
            return ""
        early.append(second.wait(2 * program.ASK_AGAIN))
        write_run(out / run.folder, [{"step": 1}])
        assert second.wait(60), "the second never begins while the first trains"
        return ""

    monkeypatch.setattr(program, "_one", one)
    assert program.train_all(study, runs, tmp_path, 2) == {}
    assert early == [False]


def test_a_run_that_another_process_has_open_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    processes = program.Processes()
    codes, waits = [73, 73, 73, 0], []
    monkeypatch.setattr(processes, "call", lambda *_: codes.pop(0))
    monkeypatch.setattr(processes.stopping, "wait", lambda seconds: waits.append(seconds))
    assert program._call(processes, ["x"], tmp_path / "log", "a/seed_0") == ""
    assert waits == [5.0, 5.0, 5.0]
    assert capsys.readouterr().out.count("a/seed_0: another process has it open") == 1
    codes[:] = [73]
    monkeypatch.setattr(processes.stopping, "wait", lambda seconds: True)
    with pytest.raises(StopRequested):
        program._call(processes, ["x"], tmp_path / "log", "a/seed_0")


@pytest.mark.parametrize(("failed", "code"), [({}, 0), ({"agent.horizon=1/seed_0": "ended with 74: error: x"}, 70)])
def test_a_study_one_of_whose_runs_failed_writes_its_table_and_ends_with_70(
    failed: dict[str, str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program, "train_all", lambda *_: failed)
    monkeypatch.setattr(program, "unfinished", lambda *_: {})
    monkeypatch.setattr(program, "evaluated_otherwise", lambda *_: "")
    shown: list[str] = []
    assert program.main(["debug", "--out", str(tmp_path)], show=shown.append) == code
    assert json.loads((tmp_path / "table.json").read_text())["failed"] == failed
    assert shown[0].count("ended with 74: error: x") == len(failed)


def test_what_is_said_of_a_run_that_failed_is_its_error(tmp_path: Path):
    log = tmp_path / "logs/x.txt"
    lines = "print('error: first'); print('error: the last'); print('more', end='\\n\\n'); raise SystemExit(65)"
    assert (
        program._call(program.Processes(), [sys.executable, "-c", lines], log, "x") == "ended with 65: error: the last"
    )
    listed = "print('error: files differ:\\n  a\\n  b\\nRestore them'); raise SystemExit(78)"
    assert (
        program._call(program.Processes(), [sys.executable, "-c", listed], log, "x")
        == "ended with 78: error: files differ: a b"
    )
    killed = "import os; print('no error', flush=True); os.kill(os.getpid(), 9)"
    why = "ended with -9: killed by SIGKILL, perhaps for want of memory"
    assert program._call(program.Processes(), [sys.executable, "-c", killed], log, "x") == why
    assert program._code_of(why) == 137
    assert program._call(program.Processes(), [sys.executable, "-c", "exit(3)"], log, "x") == "ended with 3: "
    assert "error: the last" in log.read_text(), "what was said before is kept"


def test_a_study_that_is_to_stop_asks_its_runs_to(tmp_path: Path):
    processes = program.Processes()
    began = tmp_path / "began"
    waits = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75))"
    waits += f"; open({str(began)!r}, 'w').close(); time.sleep(600)"
    found: list[BaseException] = []

    def call() -> None:
        try:
            processes.call([sys.executable, "-c", waits], tmp_path / "logs/x.txt")
        except StopRequested as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not began.exists():
        time.sleep(0.02)
    processes.stopping.set()
    thread.join(60)
    assert len(found) == 1
    with pytest.raises(StopRequested):
        processes.call(["/nothing/is/started"], tmp_path / "logs/x.txt")


def test_cores_are_divided_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7})
    assert shares_of(2) == [{0, 1}, {2, 5}]
    assert shares_of(1) == [{0, 1, 2, 5, 7}]
    assert shares_of(5) == [{0}, {1}, {2}, {5}, {7}]
    assert shares_of(6) == [{0, 1, 2, 5, 7}] * 6


def study_in(folder: Path, *more: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(STUDY)
    return [sys.executable, "-m", "chunkwise", "study", str(folder / "mine.py"), "--out", str(folder / "out"), *more]


def play(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(study_in(folder, *more), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
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


@pytest.mark.long
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
