"""The run folder: one run at a time, refused where it would be overwritten, metrics cut back exactly."""

import dataclasses
import errno
import json
import math
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chunkwise.checkpoint.saved_steps import SAVES
from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.errors import BusyError, ConfigError, DataError, MismatchError, StorageError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.train import machine, run_dir
from chunkwise.train.run_dir import Appender, RunFolder, storage_error
from configs.qchunk.debug import get_config
from tests.chunkwise.calls import Calls
from tests.chunkwise.distributed.test_processes import run_two
from tests.chunkwise.toy import ToyConfig, toy_config

ROOT = Path(__file__).parents[3]


def resumed(config: ToyConfig) -> ToyConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))


def test_a_folder_with_a_run_is_refused_without_resume(tmp_path: Path):
    with RunFolder(toy_config(tmp_path), "toy"):
        pass
    with RunFolder(toy_config(tmp_path), "toy") as folder:  # nothing was trained: nothing is lost
        folder.log(1, "train", {})
    with pytest.raises(ConfigError, match=r"holds a run already\. Add --run\.resume"):
        RunFolder(toy_config(tmp_path), "toy")
    with RunFolder(resumed(toy_config(tmp_path)), "toy") as folder:
        assert folder.path == tmp_path


@pytest.mark.parametrize("name", ["lr=[0.1, 0.2]", "a*", "what?"])
def test_a_folder_into_which_no_checkpoint_can_be_written_is_refused(tmp_path: Path, name: str):
    """Orbax joins the folder's path into a pattern: [x] is not found then, and a* finds another run's save as well."""
    with pytest.raises(ConfigError, match=r"expected a folder without \*, \? and \[ in its path"):
        RunFolder(toy_config(tmp_path / name / "run"), "toy")
    assert not (tmp_path / name).exists()
    with RunFolder(toy_config(tmp_path / "lr=0.1, (x) ü]"), "toy"):
        pass


def test_resume_needs_a_folder_and_starts_an_empty_one(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"needs --run\.dir"):
        RunFolder(toy_config(tmp_path, run=RunConfig(resume=True)), "toy")
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r'--run\.dir is ""; expected the name of a folder'):
            RunFolder(toy_config(tmp_path, run=RunConfig(dir="", resume=resume)), "toy")
    with RunFolder(resumed(toy_config(tmp_path / "new")), "toy") as folder:
        assert json.loads((folder.path / "config.json").read_text())["train.steps"] == 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": RunConfig(seed=7)}, r"run\.seed: saved 0, now 7"),
        ({"width": 4}, r"width: saved 3, now 4"),
        ({"train": TrainConfig(steps=20, batch_size=4)}, r"train\.batch_size: saved 8, now 4"),
    ],
)
def test_a_run_goes_on_with_its_own_config_alone_also_before_its_first_save(
    tmp_path: Path, changes: dict[str, Any], words: str
):
    config = toy_config(tmp_path)
    with RunFolder(config, "toy") as folder:
        folder.log(1, "train", {"loss": 0.5})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = dataclasses.replace(config, **changes)
    other = dataclasses.replace(other, run=dataclasses.replace(other.run, dir=str(tmp_path), resume=True))
    for _ in range(2):
        with pytest.raises(MismatchError, match=rf"(?s)was started with another config.*{words}"):
            RunFolder(other, "toy")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=40))
    with RunFolder(resumed(longer), "toy") as folder:
        saved = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert (tmp_path / "config.json").read_bytes() == before["config.json"], "what it would go on from is not known"
        with pytest.raises(ConfigError, match=r"has 41 updates; expected train\.steps of at least that, found 40"):
            folder.go_on(41)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == saved
        folder.go_on(40)
        assert json.loads((tmp_path / "config.json").read_text())["train.steps"] == 40


def test_a_run_at_its_end_keeps_the_settings_that_it_was_measured_with(tmp_path: Path):
    """Evaluated, it is not evaluated again; where its data lie now is written down all the same."""
    config = get_config()
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, dir=str(tmp_path)))
    with RunFolder(config, "debug") as folder:
        folder.log(1, "train", {"loss": 0.5})
    measured = dataclasses.replace(config.eval, final_episodes=config.eval.final_episodes + 5)
    moved = dataclasses.replace(config, eval=measured, data=dataclasses.replace(config.data, path="elsewhere"))
    moved = dataclasses.replace(moved, run=dataclasses.replace(moved.run, resume=True))
    before = json.loads((tmp_path / "config.json").read_text())
    del before["eval.max_steps"]  # as of a version that did not have it
    (tmp_path / "config.json").write_text(json.dumps(before))
    steps, size = config.train.steps, (tmp_path / "metrics.jsonl").stat().st_size
    line = json.dumps({"step": steps, "split": "eval", "success": 0.5}) + "\n"
    for evaluated, behind, over in ((True, "", True), (False, line, True), (False, "", False)):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 0.5}\n' + behind)
        with RunFolder(moved, "debug") as folder:
            assert bool(folder.go_on(steps, size, evaluated=evaluated)) == bool(behind)
        saved = json.loads((tmp_path / "config.json").read_text())
        expected = config.eval if over else measured
        assert (saved["eval.final_episodes"], saved["data.path"]) == (expected.final_episodes, "elsewhere")
        assert ("eval.max_steps" in saved) != over, "its default then is what the field says was done"


def test_the_default_folder_says_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder(toy_config(tmp_path, run=RunConfig()), "toy") as folder:
        assert folder.path.parent == tmp_path / "runs"
        assert folder.path.name.startswith("tests-toy-")


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_dir.time, "strftime", lambda _: "20260102-030405")
    config, name = toy_config(tmp_path, run=RunConfig()), "tests-toy-20260102-030405"
    with RunFolder(config, "toy") as first, RunFolder(config, "toy") as second:
        assert [folder.path.name for folder in (first, second)] == [name, f"{name}-2"]
        first.log(1, "train", {})
    with RunFolder(config, "toy") as third:
        assert third.path.name == f"{name}-3"
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path / "runs" / name)
    Path("runs").touch()
    with pytest.raises(StorageError, match=r"cannot write .*Last durable step: None"):
        RunFolder(config, "toy")


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path):
    with (
        RunFolder(toy_config(tmp_path), "toy"),
        pytest.raises(BusyError, match=rf"in use by process \d+ on {socket.gethostname()}\."),
    ):
        RunFolder(resumed(toy_config(tmp_path)), "toy")
    with RunFolder(resumed(toy_config(tmp_path)), "toy"):  # free again
        pass


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path):
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.chunkwise.toy import toy_config\n"
        "from chunkwise.train.run_dir import RunFolder\n"
        f"RunFolder(toy_config(Path({str(tmp_path)!r})), 'toy'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == -9
    with RunFolder(resumed(toy_config(tmp_path)), "toy"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*Last durable step: None"):
        RunFolder(toy_config(tmp_path / "file" / "run"), "toy")


def test_a_line_that_cannot_be_written_names_its_file_and_the_newest_save(tmp_path: Path):
    """What was opened earlier fails without a name: /dev/full takes no byte."""
    with open("/dev/full", "wb", buffering=0) as full:
        appender = Appender(full)
        with pytest.raises(StorageError, match=r"cannot write /dev/full: No space left on device\. Last durable step"):
            appender.append({"step": 1})
    for step in (3, 12):
        (tmp_path / SAVES / str(step)).mkdir(parents=True)
    begin, end = re.escape(f"cannot write {tmp_path}"), r"Last durable step: 12\. .*--run\.resume"
    for error, place, said in (
        (OSError(errno.ENOSPC, "No space left on device"), "/done.json", "No space left on device"),
        (OSError(errno.EROFS, "Read-only file system", f"{tmp_path}/part"), "/part", "Read-only file system"),
        (OSError("odd"), "/done.json", "odd"),
        (MemoryError(), "/done.json", "out of memory"),
    ):
        with (
            pytest.raises(StorageError, match=rf"^{begin}{place}: {said}\. {end}$"),
            storage_error(tmp_path, "done.json"),
        ):
            raise error


def test_lines_that_a_checkpoint_counts_are_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with RunFolder(toy_config(tmp_path), "toy") as folder:
        folder.log(1, "train", {"loss": 0.5})
        calls = Calls(tmp_path, monkeypatch)
        size = folder.metrics_size()
    assert calls.seen[0] == f"fsync metrics.jsonl {size} bytes"


def test_metrics_are_cut_back_to_the_byte(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with RunFolder(toy_config(tmp_path), "toy") as folder:
        folder.log(1, "train", {"loss": 0.5})
        size = folder.metrics_size()
        whole = path.read_bytes()
        folder.log(2, "train", {"loss": float("nan")})
        assert json.loads(path.read_text().splitlines()[1]) == {"step": 2, "split": "train", "loss": None}
        folder.go_on(None, size)
        assert path.read_bytes() == whole
        assert folder.metrics_size() == size
        folder.log(2, "eval", {"success": 1.0})
        assert len(path.read_text().splitlines()) == 2
        with pytest.raises(ConfigError, match="changed by hand"):
            folder.go_on(None, 10**6)


def test_a_folder_with_rollouts_of_a_first_round_holds_a_run(tmp_path: Path):
    """The run would take them, of the same first weights, though they were played with other settings."""
    with RunFolder(toy_config(tmp_path), "toy"):
        pass
    with RunFolder(toy_config(tmp_path), "toy"):
        pass  # nothing to lose
    rollout = tmp_path / "rollouts/step_00000000-abc/route_00000-00.npz"
    rollout.parent.mkdir(parents=True)
    rollout.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"holds a run already\. Add --run\.resume"):
        RunFolder(toy_config(tmp_path), "toy")
    with RunFolder(resumed(toy_config(tmp_path)), "toy"):
        pass


def test_timing_tells_updates_from_the_seconds_that_they_took(tmp_path: Path):
    with RunFolder(toy_config(tmp_path), "test") as folder:
        before = peak_of_host()
        folder.log_timing(7, {"step": 1.23456, "wall": 2.0})
        after = peak_of_host()  # no longer the same where this is the first use of a device
    row = json.loads((tmp_path / "timing.jsonl").read_text())
    assert row == {"step": 7, "seconds": {"step": 1.2346, "wall": 2.0}, "memory": row["memory"]}
    assert set(row["memory"]) == {"host"}  # a CPU device tells nothing of its own
    assert 0.99 * before <= row["memory"]["host"] <= 1.01 * after


def peak_of_host() -> float:
    """The kernel's own figure in GB; the process's where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return machine.peak_memory()["host"]
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024e-9


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "timing.jsonl", "checkpoints"])
def test_nothing_is_written_through_a_link_that_leads_out(tmp_path: Path, name: str):
    other, run = tmp_path / "other", tmp_path / "run"
    other.write_text("mine")
    with RunFolder(toy_config(run), "toy") as folder:
        folder.log(1, "train", {})
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(other)
    with pytest.raises(DataError, match=f"links inside the folder alone, found {name} -> "):
        RunFolder(resumed(toy_config(run)), "toy")
    assert other.read_text() == "mine"


def test_a_run_goes_on_with_the_files_of_its_dataset_alone(tmp_path: Path):
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "a").write_bytes(b"1")

    def files() -> Files:
        found = Files(Bounds(dataset), verify="sample")
        found.require(["a"])
        return found

    config = toy_config(tmp_path / "run")
    with RunFolder(resumed(config), "toy") as folder:
        folder.require_same_files(files())  # and refused for something else: the data may be mended
    (dataset / "a").write_bytes(b"0")
    with RunFolder(resumed(config), "toy") as folder:
        folder.require_same_files(files())
        assert not (folder.path / "dataset_files.gz").exists()
        folder.go_on(None)  # and stopped before its first update, which is no run yet either
    (dataset / "a").write_bytes(b"3")
    with RunFolder(resumed(config), "toy") as folder:
        folder.require_same_files(files())
        folder.go_on(None)
        folder.log(1, "train", {"loss": 0.5})
    with RunFolder(resumed(config), "toy") as folder:
        folder.require_same_files(files())
        (dataset / "a").write_bytes(b"2")
        with pytest.raises(MismatchError, match="a"):
            folder.require_same_files(files())


def test_a_run_of_before_with_an_infinite_number_in_its_config_is_told_the_field(tmp_path: Path):
    """Such configs were taken once, and json writes Infinity; a run begins with none today."""
    config = toy_config(tmp_path)
    with RunFolder(config, "toy") as folder:
        folder.log(1, "train", {"loss": 0.5})
    file = tmp_path / "config.json"
    tree = json.loads(file.read_text())
    tree["optim.clip_norm"] = math.inf
    file.write_text(json.dumps(tree))
    with pytest.raises(MismatchError, match=r"optim\.clip_norm: saved inf, now"):
        RunFolder(resumed(config), "toy")


def test_a_dry_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with RunFolder(toy_config(tmp_path, run=RunConfig(dry_run=True)), "toy") as folder:
        assert folder.path.parent == tmp_path
        assert (folder.path / "config.json").exists()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="--dry-run has no folder"):
        RunFolder(toy_config(tmp_path, run=RunConfig(dry_run=True, dir=str(tmp_path))), "toy")


def test_what_a_killed_writer_left_goes_at_the_next_start(tmp_path: Path):
    with RunFolder(toy_config(tmp_path), "toy"):
        pass
    played = tmp_path / "rollouts/step_00000300-ab"
    played.mkdir(parents=True)
    kept = [played / "state_00001-00.npz", played / "state.12-3.partly"]
    log = tmp_path / "replay/layout.json.77-6.part"
    left = [log, tmp_path / "config.json.77-0.part", played / "state_00001-01.npz.77-4.part"]
    log.parent.mkdir()
    for file in (*kept, *left):
        file.write_bytes(b"x")
    with RunFolder(resumed(toy_config(tmp_path)), "toy"):
        assert sorted(played.iterdir()) == sorted(kept)
        assert not any(file.exists() for file in left)


OPEN = """
from chunkwise.train import run_dir
from tests.chunkwise.toy import toy_config
run_dir.SEEN_SECONDS = 0.3
shared, own = map(Path, sys.argv[1:3])
with run_dir.RunFolder(toy_config(shared), "toy") as folder:
    assert folder.path == shared.resolve()
text = run_dir._text
run_dir._text = lambda path: text(path if me == 0 else path / "on another disk")
try:
    run_dir.RunFolder(toy_config(own), "toy")
except ConfigError as error:
    said = str(error)
    assert "process 0 has written 'process " in said and "and process 1 finds 'nothing'. Expected --run.dir on" in said
    print("refused", me, file=sys.stderr)
processes.leave(0, together=True)
"""


def test_a_folder_that_another_process_does_not_see_is_refused_by_all(tmp_path: Path):
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    (first, said), (second, also) = run_two(OPEN, str(tmp_path / "shared"), str(tmp_path / "own"))
    assert (first, second) == (0, 0), said + also
    assert "refused 0" in said
    assert "refused 1" in also
