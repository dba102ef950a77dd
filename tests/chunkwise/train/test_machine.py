import dataclasses
import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import jax
import pytest

from chunkwise import get_config
from chunkwise.config.experiment import TrainConfig
from chunkwise.errors import DataError, StorageError
from chunkwise.train import machine
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this another machine."""

    def put(cores: int) -> None:
        monkeypatch.setattr(machine, "cores", lambda: list(range(cores)))

    return put


def steps(run: Path) -> list[tuple[int, int]]:
    return [(entry["step"], entry["cores"]) for entry in json.loads((run / "machine.json").read_text())]


def test_what_a_digest_depends_on_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    machine.note(tmp_path, 0, {})
    said = capsys.readouterr().out
    assert said.startswith(f"machine: cores {len(os.sched_getaffinity(0))}, devices 1 cpu, processes 1, jax ")
    (entry,) = json.loads((tmp_path / "machine.json").read_text())
    assert {"step", "cores", "devices", "processes", "jax", "jaxlib", "numpy", "XLA_FLAGS", "cpu"} <= entry.keys()


def test_nproc_stands_for_the_cores(monkeypatch: pytest.MonkeyPatch, on: Any):
    on(4)
    for text, expected in (("2", 2), ("", 4), ("0", 4), ("all", 4)):
        monkeypatch.setenv("NPROC", text)
        assert machine.describe()["cores"] == expected


def test_going_on_elsewhere_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], on: Any):
    on(4)
    machine.note(tmp_path, 0, {})
    machine.note(tmp_path, 50, {})
    assert "resumed" not in capsys.readouterr().out
    on(1)
    machine.note(tmp_path, 60, {})
    assert "resumed with cores 1 (saved on 4): the digest may differ" in capsys.readouterr().out
    assert steps(tmp_path) == [(0, 4), (60, 1)]
    machine.note(tmp_path, 90, {})
    assert "resumed" not in capsys.readouterr().out
    assert steps(tmp_path) == [(0, 4), (60, 1)]


def test_source_of_ones_own_that_is_another_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """Nothing is imported for it: a package's __init__ that raises is found too."""
    for file in ("mine.py", "lab/__init__.py", "lab/robot.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = QChunkConfig(
        train=TrainConfig(steps=1, batch_size=1),
        data=DataConfig(path="s3://bucket/a:b", format="mine:read"),
        agent=AgentConfig(factory="lab.robot:Own:x"),
        eval=EvalConfig(env="nowhere:Env"),
    )
    code = machine.own_code(config)
    assert code == {
        name: hashlib.sha256(b"raise SystemExit\n").hexdigest()[:16] for name in ("mine:read", "lab.robot:Own:x")
    }
    machine.note(tmp_path, 0, code)
    machine.note(tmp_path, 30, machine.own_code(config))
    assert "resumed" not in capsys.readouterr().out
    (tmp_path / "lab/robot.py").write_text("raise SystemExit(1)\n")
    other = machine.own_code(config)
    assert other["mine:read"] == code["mine:read"]
    machine.note(tmp_path, 60, other)
    assert "resumed with other source than before of lab.robot:Own:x: what lies in" in capsys.readouterr().out
    entries = json.loads((tmp_path / "machine.json").read_text())
    assert [(entry["step"], entry["own_code"]) for entry in entries] == [(0, code), (60, other)]
    machine.note(tmp_path, 90, other)
    assert "resumed" not in capsys.readouterr().out


def test_a_run_of_before_kept_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """From then on it does."""
    machine.note(tmp_path, 0, {})
    machine.note(tmp_path, 30, {"mine:read": "1234"})
    machine.note(tmp_path, 40, {"mine:read": "1234"})
    assert "resumed" not in capsys.readouterr().out
    machine.note(tmp_path, 50, {"mine:read": "5678", "mine:Env": "9"})
    assert "resumed with other source than before of mine:read: " in capsys.readouterr().out
    assert [step for step, _ in steps(tmp_path)] == [0, 30, 50]


@pytest.mark.parametrize("step", [0, 300])
def test_what_played_and_did_not_save_counts_too(step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its rollouts lie in the round that was cut off."""
    if step:
        machine.note(tmp_path, 0, {"mine:Env": "a"})
    for source, said in (("a", False), ("b", True), ("a", True), ("a", False)):
        machine.note(tmp_path, step, {"mine:Env": source})
        assert ("resumed with other source" in capsys.readouterr().out) == said


def test_names_that_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def hashed(env: str) -> bool:
        config = QChunkConfig(
            train=TrainConfig(steps=1, batch_size=1),
            data=DataConfig(path="d"),
            agent=AgentConfig(),
            eval=EvalConfig(env=env),
        )
        return env in machine.own_code(config)

    assert all(map(hashed, ("mine:Env", "mine:Env:its-task", "mine:MyEnv-v0", "mine:ns/My-v0")))
    assert not any(map(hashed, ("mine.os:Env", "nothing:Env", "cube-single-play-singletask-task2-v0")))


def test_processes_of_other_source_are_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What one of several processes shares has a hash of the project's source, and of the user's own."""
    names = ("alpha_source", "beta_source")
    for name in names:
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "inner/part.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("y = 1\n")
    (tmp_path / "beta_source/.#part.py").symlink_to("somebody@somewhere")  # of an editor
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine, "PACKAGES", names)
    config = dataclasses.replace(get_config("qchunk/debug"), eval=EvalConfig(env="mine:Env"))
    assert machine.shared(config) == machine.program(), "alone there is nothing to compare with"
    monkeypatch.setattr(machine.processes, "is_multiprocess", lambda: True)
    seen = [machine.shared(config)]
    for file, text in (
        ("beta_source/inner/part.py", "x = 2\n"),
        ("beta_source/inner/other.py", ""),
        ("mine.py", "y = 2\n"),
    ):
        assert machine.shared(config) == seen[-1]
        (tmp_path / file).write_text(text)
        seen.append(machine.shared(config))
    changed = [[name for name in now if now[name] != before[name]] for before, now in itertools.pairwise(seen)]
    assert changed == [["source of chunkwise"], ["source of chunkwise"], ["source of mine:Env"]]


def test_a_setting_of_jax_by_which_numbers_are_others_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = machine.program()
    assert {name: before[name] for name in machine._SETTINGS} == dict.fromkeys(machine._SETTINGS, "")
    (tmp_path / "machine.json").write_text(
        json.dumps([{"step": 0} | {k: v for k, v in machine.describe().items() if k not in machine._SETTINGS}])
    )
    machine.note(tmp_path, 5, {})
    assert "resumed" not in capsys.readouterr().out, "an earlier version wrote no settings"
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    try:
        assert machine.program() == before | {"jax_default_matmul_precision": "bfloat16"}
        machine.note(tmp_path, 6, {})
        assert "resumed with jax_default_matmul_precision bfloat16 (saved on not set): " in capsys.readouterr().out
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    machine.note(tmp_path, 7, {})
    assert "resumed with jax_default_matmul_precision not set (saved on bfloat16): " in capsys.readouterr().out


def test_a_machine_that_saved_nothing_is_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str], on: Any):
    on(4)
    machine.note(tmp_path, 0, {})
    on(1)
    machine.note(tmp_path, 60, {})
    on(4)
    capsys.readouterr()
    machine.note(tmp_path, 60, {})  # the run was killed before it saved
    assert "resumed" not in capsys.readouterr().out
    assert steps(tmp_path) == [(0, 4)]
    on(2)
    machine.note(tmp_path, 0, {})  # nor before its first save
    assert "resumed" not in capsys.readouterr().out
    assert steps(tmp_path) == [(0, 2)]


def test_a_note_that_cannot_be_read_or_written(tmp_path: Path):
    (tmp_path / "machine.json").write_text('[{"cores": 1}]')
    with pytest.raises(DataError, match=r"machine\.json: expected a list of machines, each with its step; delete"):
        machine.note(tmp_path, 0, {})
    with pytest.raises(StorageError, match=r"cannot write .*none/machine\.json: No such file"):
        machine.note(tmp_path / "none", 0, {})
