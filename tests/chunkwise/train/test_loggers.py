"""Loggers as tails of metrics.jsonl: the same numbers, none twice after a resume, and a run that goes on without."""

import dataclasses
import json
import os
import re
import shutil
import struct
import sys
import types
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from tensorboardX.proto import event_pb2

from chunkwise.config.experiment import RunConfig
from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError
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

    def init(self, *, name: str, resume: str, id: str = "", config: Any, **settings: Any) -> Any:
        assert resume == "allow"
        assert config["width"] == 3
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

        def finish() -> None:
            self.finished += 1

        return types.SimpleNamespace(
            dir=str(self.folder / "files"), step=next_step, _next_step=next_step, log=log, finish=finish
        )

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
    assert loggers.run_id(tmp_path) == loggers.run_id(tmp_path) != "../x"


def test_a_copy_of_a_run_is_another_run_to_a_service_and_a_moved_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Kills: what W&B wrote of the original was removed when a copy of its folder went on."""
    (tmp_path / "a run").mkdir()
    name = loggers.run_id(tmp_path / "a run")
    shutil.copytree(tmp_path / "a run", tmp_path / "copy")
    other = loggers.run_id(tmp_path / "copy")
    assert other == loggers.run_id(tmp_path / "copy") != name
    assert f"copy is a copy of {tmp_path}/a run, and has a name of its own" in capsys.readouterr().out
    assert loggers.run_id(tmp_path / "a run") == name
    (tmp_path / "a run").rename(tmp_path / "moved")
    assert loggers.run_id(tmp_path / "moved") == loggers.run_id(tmp_path / "moved") == name
    (tmp_path / "moved").rename(tmp_path / "again")
    (tmp_path / "moved").symlink_to(tmp_path / "again")  # so that its old path leads to it still
    assert loggers.run_id(tmp_path / "again") == loggers.run_id(tmp_path / "moved") == name
    (tmp_path / "moved" / loggers.ID).write_text(f"{name}\n")  # as earlier versions wrote it
    assert loggers.run_id(tmp_path / "moved") == name
    assert capsys.readouterr().out == ""


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
    """Its step's line of training was there before."""
    made = Service()
    monkeypatch.setitem(sys.modules, "trackio", made)
    rows = [{"step": step, "split": "train", "loss": step / 2} for step in (1, 2)]
    loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows).close()
    again = loggers.Loggers(["trackio"], tmp_path, {"width": 3}, rows)
    again.write({"step": 2, "split": "eval", "distance": 7.0})
    again.close()
    (kept,) = made.runs.values()
    assert kept == [(1, {"train/loss": 0.5}), (2, {"train/loss": 1.0}), (2, {"eval/distance": 7.0})]


def test_what_w_and_b_wrote_offline_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    run, name = tmp_path / "run", loggers.run_id(tmp_path)
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
