"""Loggers as tails of metrics.jsonl: the same numbers, none twice after a resume, and a run that goes on without."""

import dataclasses
import errno
import functools
import json
import os
import re
import shutil
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from chunkwise.config.experiment import RunConfig
from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError, PreemptedError
from chunkwise.train import loggers
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config

messages: Any = event_pb2  # its names are made at import


def masked(data: bytes) -> int:
    """The checksum of TensorFlow's records."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    """All numbers in event files, record by record, with their checksums compared."""
    found = []
    for file in sorted(folder.glob("*")):
        data = file.read_bytes()
        while data:
            (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
            assert crc == masked(data[:8])
            record, data = data[12 : 12 + length], data[12 + length :]
            assert struct.unpack("<I", data[:4]) == (masked(record),)
            data = data[4:]
            event = messages.Event.FromString(record)
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def in_metrics(run: Path) -> list[tuple[int, str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], name, pytest.approx(value)) for row in rows for name, value in loggers.named(row).items()]


def config_of(folder: Path, *names: Any, resume: bool = False) -> ToyConfig:
    return toy_config(folder, run=RunConfig(dir=str(folder), loggers=names, resume=resume))


def train(config: ToyConfig, task: ToyTask | None = None) -> None:
    with RunFolder(config, "toy") as folder:
        fit(config, task or ToyTask(config), folder)


class KilledError(Exception):
    """Stands for what ends a process between two saves."""


def kill_at(step: int) -> Any:
    def on_batch(at: int) -> None:
        if at == step:
            raise KilledError

    return on_batch


class Service:
    """Stands for W&B and trackio: runs by name that go on with `resume`, and take no step below the last."""

    def __init__(self) -> None:
        self.folder = Path("nowhere/run-1")
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.failing = False
        self.finished = 0
        self.exits: list[int] = []
        self.preempted = 0

    def init(self, *, name: str, resume: str, id: str = "", config: Any, **settings: Any) -> Any:
        assert resume == "allow"
        assert config["width"] == 3
        self.settings = {"name": name} | settings
        if not id:  # trackio
            expected = {"project": "chunkwise", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
            assert settings == expected, "else it adds rows of its own, with steps that the run's then come before"
        rows = self.runs.setdefault(id or name, [])
        next_step = rows[-1][0] + 1 if rows else 0

        def log(row: dict[str, float], *, step: int) -> None:
            if self.failing:
                raise ConnectionError("no network")
            assert step >= next_step or (not id and step == next_step - 1), "a line that the service has"
            rows.append((step, row))

        def finish(*, exit_code: int | None = None) -> None:
            assert (exit_code is None) == (not id), "trackio is told no exit code"
            self.finished += 1
            self.exits += [] if exit_code is None else [exit_code]

        def mark_preempting() -> None:
            self.preempted += 1

        return types.SimpleNamespace(
            dir=str(self.folder / "files"),
            step=next_step,
            _next_step=next_step,
            log=log,
            finish=finish,
            mark_preempting=mark_preempting,
        )

    def Api(self) -> Any:
        def runs(project: str) -> list[Any]:
            assert project == "chunkwise"
            if not self.runs:
                raise ValueError("Project 'chunkwise' does not exist")
            return [
                types.SimpleNamespace(name=name, delete=functools.partial(self.runs.pop, name)) for name in self.runs
            ]

        return types.SimpleNamespace(runs=runs)

    def Settings(self, **settings: Any) -> None:
        assert settings["console"] == "off", "else it takes stdout from the run's own log"
        assert settings["disable_git"], "else it sends what was changed in the user's repository"
        assert settings["save_code"] is False, "else it sends the user's program"


@pytest.fixture(params=["wandb", "trackio"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Service]:
    made = Service()
    monkeypatch.setitem(sys.modules, request.param, made)
    return request.param, made


def test_tensorboard_has_the_numbers_of_metrics_jsonl(tmp_path: Path):
    train(config_of(tmp_path, "tensorboard"))
    found = scalars(tmp_path / "tensorboard")
    assert found == in_metrics(tmp_path)
    assert {name for _, name, _ in found} >= {"train/loss", "eval/distance"}
    assert {step for step, _, _ in found} >= {5, 8, 20}


def test_tensorboard_has_no_line_twice_after_a_resume_and_all_where_it_is_switched_on_late(tmp_path: Path):
    config = config_of(tmp_path, "tensorboard")
    with pytest.raises(KilledError):
        train(config, ToyTask(config, on_batch=kill_at(17)))  # saved at 12; 15 and 16 are made again
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert scalars(tmp_path / "tensorboard"), "what the killed run wrote is there"
    # Names hold the second of the start: one of the same second would be overwritten, whoever removes the others.
    events.rename(events.with_name("events.out.tfevents.1000000000.host"))
    train(config_of(tmp_path, "tensorboard", resume=True))
    assert scalars(tmp_path / "tensorboard") == in_metrics(tmp_path)
    late = tmp_path / "late"
    config = config_of(late)
    with pytest.raises(KilledError):
        train(config, ToyTask(config, on_batch=kill_at(17)))
    train(config_of(late, "tensorboard", resume=True))
    assert scalars(late / "tensorboard") == in_metrics(late)
    assert (late / "metrics.jsonl").read_bytes() == (tmp_path / "metrics.jsonl").read_bytes()


def test_a_service_gets_each_line_once(service: tuple[str, Service], tmp_path: Path):
    name, made = service
    config = config_of(tmp_path, name)
    with pytest.raises(KilledError):
        train(config, ToyTask(config, on_batch=kill_at(17)))
    train(config_of(tmp_path, name, resume=True))
    (rows,) = made.runs.values()
    assert [(step, k, v) for step, row in rows for k, v in row.items()] == in_metrics(tmp_path)
    (tmp_path / loggers.ID).write_text("../x")
    assert loggers.identity(tmp_path) == loggers.identity(tmp_path)
    assert loggers.identity(tmp_path).name != "../x"


def test_a_copy_of_a_run_is_another_run_to_a_service_and_a_moved_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Kills: what W&B wrote of the original was removed when a copy of its folder went on."""

    def name_of(folder: str) -> str:
        made = loggers.identity(tmp_path / folder)
        assert made == loggers.identity(tmp_path / folder)
        return made.name

    (tmp_path / "a run").mkdir()
    name = name_of("a run")
    shutil.copytree(tmp_path / "a run", tmp_path / "copy")
    assert name_of("copy") != name
    assert f"copy is a copy of {tmp_path}/a run, and has a name of its own" in capsys.readouterr().out
    assert name_of("a run") == name
    (tmp_path / "a run").rename(tmp_path / "moved")
    assert name_of("moved") == name
    assert loggers.identity(tmp_path / "moved").label == "a run"
    (tmp_path / "moved").rename(tmp_path / "again")
    (tmp_path / "moved").symlink_to(tmp_path / "again")  # so that its old path leads to it still
    assert name_of("again") == name_of("moved") == name
    for older in ("", f" {json.dumps(str(tmp_path / 'moved'))}", f" {json.dumps(str(tmp_path / 'gone'))}"):
        (tmp_path / "moved" / loggers.ID).write_text(f"{name}{older}\n")  # as earlier versions wrote it
        assert name_of("moved") == name
    assert capsys.readouterr().out == ""


def test_copies_of_a_run_that_is_gone_are_other_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Their inodes tell; the one that was moved keeps its own. A file that is no identity is none."""
    (tmp_path / "run").mkdir()
    name = loggers.identity(tmp_path / "run").name
    for copy in "ab":
        shutil.copytree(tmp_path / "run", tmp_path / copy)
    (tmp_path / "run").rename(tmp_path / "archived")
    names = [loggers.identity(tmp_path / folder).name for folder in ("a", "b", "archived")]
    assert len({name, *names}) == 3
    assert names[2] == name
    said = capsys.readouterr().out
    assert said.count(f"is a copy of {tmp_path}/run, which is gone, or was moved from another file system") == 2
    for wrong in ("", "abc", f"{name} [1]", f'{name} ["x", "y", "z"]', f"{name} {{", f"{name} 3"):
        (tmp_path / "a" / loggers.ID).write_text(wrong)
        assert loggers.identity(tmp_path / "a").name != name


def test_a_service_gets_the_lines_that_it_lacks_from_the_very_next_step_and_is_told_the_end(
    service: tuple[str, Service], tmp_path: Path
):
    name, made = service
    rows = [{"step": step, "split": "train", "loss": step / 2} for step in (1, 2, 3, 4)]
    opened = loggers.Loggers([name], tmp_path, {"width": 3}, rows[:2])
    assert made.finished == 0
    opened.close()
    opened.close()
    assert made.finished == 1, "what is closed is not closed again"
    again = loggers.Loggers([name], tmp_path, {"width": 3}, rows[:3])
    again.write(rows[3])
    again.close()
    assert made.finished == 2
    (kept,) = made.runs.values()
    assert kept == [(step, {"train/loss": step / 2}) for step in (1, 2, 3, 4)]


def test_trackio_gets_the_evaluation_that_a_stop_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the network its step's line of training was there before; on this machine all lines are written anew."""
    rows = [{"step": step, "split": "train", "loss": step / 2} for step in (1, 2)]
    late = {"step": 2, "split": "eval", "distance": 7.0}
    want = [(1, {"train/loss": 0.5}), (2, {"train/loss": 1.0}), (2, {"eval/distance": 7.0})]
    made = Service()
    monkeypatch.setitem(sys.modules, "trackio", made)
    loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows).close()
    loggers.Loggers(["trackio"], tmp_path, {"width": 3}, [*rows, late]).close()
    assert list(made.runs.values()) == [want], "a kill came before trackio's own thread had handed it over"
    loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows[:1]).close()
    assert list(made.runs.values()) == [want[:1]], "a resume with another rhythm dropped the others"
    monkeypatch.setenv("TRACKIO_SPACE_ID", "someone/runs")
    made.runs.clear()
    loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows).close()
    again = loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows)
    again.write(late)
    again.close()
    assert list(made.runs.values()) == [want]


def test_a_renamed_run_is_the_same_one_to_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "trackio", made)
    rows = [{"step": 1, "split": "train", "loss": 1.0}]
    (tmp_path / "first").mkdir()
    loggers.Loggers(["trackio"], tmp_path / "first", {"width": 3}, rows).close()
    (tmp_path / "first").rename(tmp_path / "second")
    loggers.Loggers(["trackio"], tmp_path / "second", {"width": 3}, rows).close()
    assert [name.rpartition("-")[0] for name in made.runs] == ["first"]


def test_w_and_b_is_told_how_a_run_ended_and_its_own_variables_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    config = config_of(tmp_path / "run", "wandb")
    with pytest.raises(KilledError):
        train(config, ToyTask(config, on_batch=kill_at(17)))
    assert (made.exits, made.preempted) == ([1], 0)
    assert made.settings["project"] == "chunkwise"
    assert made.settings["name"] == "run"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_NAME", "first try")
    config = config_of(tmp_path / "run", "wandb", resume=True)

    def preempted(at: int) -> None:
        raise PreemptedError("the machine is needed")

    with pytest.raises(PreemptedError):
        train(config, ToyTask(config, on_batch=preempted))
    assert (made.exits, made.preempted) == ([1, 75], 1)
    assert (made.settings["project"], made.settings["name"]) == ("mine", "first try")
    train(config)
    assert (made.exits, made.preempted) == ([1, 75, 0], 1)


def test_a_full_disk_stops_tensorboard_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Kills: a writer with a thread of its own, which such an error ends; ten values later the run stood still."""
    written = []

    def full(data: bytes) -> None:
        written.append(data)
        if len(written) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = record_writer.open_file
    monkeypatch.setattr(record_writer, "open_file", lambda path: wrapped(real(path), full))
    train(config_of(tmp_path, "tensorboard"))
    assert capsys.readouterr().out.count("run.loggers: tensorboard failed and is left out until the next start") == 1
    assert (tmp_path / "done.json").exists()


def wrapped(file: Any, before: Callable[[bytes], None]) -> Any:
    """A file whose writes are told to `before` first."""

    def write(data: bytes) -> int:
        before(data)
        return file.write(data)

    return types.SimpleNamespace(write=write, flush=file.flush, fileno=file.fileno, close=file.close)


def test_a_line_is_in_tensorboards_file_when_it_has_been_written(tmp_path: Path):
    opened = loggers.Loggers(["tensorboard"], tmp_path, {}, [{"step": 1, "split": "train", "loss": 0.5}])
    assert scalars(tmp_path / "tensorboard") == [(1, "train/loss", 0.5)]
    opened.write({"step": 2, "split": "train", "loss": 0.25})
    assert scalars(tmp_path / "tensorboard") == [(1, "train/loss", 0.5), (2, "train/loss", 0.25)]
    opened.close()


def test_what_w_and_b_wrote_offline_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    run, name = tmp_path / "run", loggers.identity(tmp_path).name
    run.mkdir()
    (run / loggers.ID).write_text(name)
    for folder in (f"offline-run-1-{name}", f"offline-run-2-{name}", "offline-run-1-another", f"run-1-{name}"):
        (tmp_path / "wandb" / folder).mkdir(parents=True)
    made.folder = tmp_path / f"wandb/offline-run-2-{name}"
    train(config_of(run, "wandb"))
    left = sorted(path.name for path in (tmp_path / "wandb").iterdir())
    assert left == ["offline-run-1-another", f"offline-run-2-{name}", f"run-1-{name}"]


@pytest.mark.parametrize("error", ["opening", "writing"])
def test_a_run_goes_on_without_a_logger_that_fails(
    error: str, service: tuple[str, Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name, made = service
    made.failing = error == "writing"
    if error == "opening":
        made.init = lambda **_: sys.exit("no login")
    train(config_of(tmp_path, name, "tensorboard"))
    said = capsys.readouterr().out
    assert said.count(f"run.loggers: {name} failed and is left out until the next start") == 1
    assert ("ConnectionError: no network" if error == "writing" else "SystemExit: no login") in said
    assert scalars(tmp_path / "tensorboard") == in_metrics(tmp_path)
    assert (tmp_path / "done.json").exists()


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "tb"), ("wandb", "wandb"), ("trackio", "trackio")])
def test_an_absent_package_is_named_before_anything_is_made(
    name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, loggers.PACKAGES[name][0], None)
    with pytest.raises(ConfigError, match=rf"run\.loggers: {name} needs .* {re.escape(pip_install(extra))}"):
        RunFolder(config_of(tmp_path / "run", name), "toy")
    assert not (tmp_path / "run").exists()


def test_nan_is_left_out_and_zero_is_not():
    row = {"step": 3, "split": "train", "loss": None, "norm": 1.5, "skipped": 0.0}
    assert loggers.named(row) == {"train/norm": 1.5, "train/skipped": 0.0}


def test_a_digest_and_the_metrics_know_nothing_of_loggers(tmp_path: Path):
    for name, config in (("a", config_of(tmp_path / "a", "tensorboard")), ("b", config_of(tmp_path / "b"))):
        train(dataclasses.replace(config, run=dataclasses.replace(config.run, dir=str(tmp_path / name))))
    for file in ("metrics.jsonl", "done.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert "tensorboard" not in os.listdir(tmp_path / "b")
