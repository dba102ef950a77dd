"""What was announced stays, and what cannot be read at the moment is neither moved nor forgotten.

Each test names the change it is there for.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest
from orbax.checkpoint import v1 as ocp

from chunkwise.checkpoint import reader
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.reader import read_newest
from chunkwise.checkpoint.saved_steps import announced, remains_in, steps_in
from chunkwise.config.experiment import CheckpointConfig
from chunkwise.errors import DataError, MismatchError, StorageError
from chunkwise.files import durable
from chunkwise.state import TrainState
from tests.chunkwise.calls import Calls
from tests.chunkwise.checkpoint.test_manager import FINGERPRINT, make_state, progress, rewrite_metadata, steps, written

# Orbax leaves reading tasks behind when a file is damaged, and Python reports their exceptions as unraisable.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FILES = {"norm_stats.json": b"{}\n"}
EIO = OSError(errno.EIO, "Input/output error")
ROOT = Path(__file__).parents[3]


def abstract() -> TrainState:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), make_state(0))


def opened(run: Path, files: dict[str, bytes] | None = None) -> Checkpoints:
    return Checkpoints(run, CheckpointConfig(max_to_keep=2), FINGERPRINT, files)


def restored(run: Path, files: dict[str, bytes] | None = None) -> int | None:
    """The step from which a start goes on."""
    checkpoints = opened(run, files)
    found = checkpoints.restore(abstract())
    checkpoints.close()
    return None if found is None else found[1].step


def saved(run: Path, *steps: int, files: dict[str, bytes] | None = None) -> None:
    """A start that saves these steps."""
    checkpoints = opened(run, files)
    checkpoints.restore(abstract())
    for step in steps:
        checkpoints.save_now(make_state(step), progress(step))
    checkpoints.close()


@pytest.fixture
def no_waits():
    with mock.patch("time.sleep"):
        yield


def test_a_save_is_on_the_device_before_its_name_and_the_older_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kills: any of the fsyncs left out or late; sums before their files; pruning before the newer save is durable."""
    run = tmp_path / "run"
    run.mkdir()
    saved(run, 1, 2)
    calls = Calls(tmp_path, monkeypatch)
    saved(run, 3)
    seen = [
        line for line in calls.seen if "checkpoints" in line or "saved.json" in line or line.endswith((" run", " ."))
    ]
    seen = [line.replace("run/checkpoints/", "") for line in seen]
    name = next(i for i, line in enumerate(seen) if line.startswith("rename 3.saving 3"))
    files = {path.relative_to(run / "checkpoints/3").as_posix() for path in (run / "checkpoints/3").rglob("*")}
    forced = {line.split()[1].removeprefix("3.saving").strip("/") for line in seen[:name] if line.startswith("fsync")}
    assert files - {"SHA256SUMS"} <= forced, "before the name"
    sums = next(i for i, line in enumerate(seen) if line.startswith("fsync 3.saving/SHA256SUMS"))
    arrays = [i for i, line in enumerate(seen) if line.startswith("fsync 3.saving/") and i != sums]
    assert max(arrays) < sums
    assert seen[sums + 1 : name] == ["replace 3.saving/SHA256SUMS.SCRATCH.part 3.saving/SHA256SUMS", "fsync 3.saving"]
    after = seen[name + 1 :]
    assert after[:4] == ["fsync run/checkpoints", "fsync run/checkpoints", "fsync run", "fsync ."]
    assert after[4].startswith("fsync run/saved.json.SCRATCH.part")
    assert after[5:7] == ["replace run/saved.json.SCRATCH.part run/saved.json", "fsync run"]
    assert after[7:] == ["rename 1 1.SCRATCH.removed", "fsync run/checkpoints"]
    assert steps(run) == [2, 3]
    assert announced(run) == {"step": 3}


def test_a_save_in_a_hurry_is_on_the_device_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: the fsyncs left out with the sums."""
    checkpoints = opened(tmp_path)
    calls = Calls(tmp_path, monkeypatch)
    checkpoints.hurry()
    checkpoints.save_now(make_state(1), progress(1))
    checkpoints.close()
    name = calls.seen.index("rename checkpoints/1.saving checkpoints/1")
    assert any(line.startswith("fsync checkpoints/1.saving/_CHECKPOINT_METADATA") for line in calls.seen[:name])
    assert "fsync checkpoints" in calls.seen[name:]
    assert not (tmp_path / "checkpoints/1/SHA256SUMS").exists()


def test_what_broken_off_saves_and_removals_leave_goes_and_is_no_damage(tmp_path: Path):
    """Kills: remains moved to quarantine, or kept; names that are somebody else's removed; `²` taken for a number."""
    saved(tmp_path, 1, 2)
    folder = tmp_path / "checkpoints"
    for name in ("3.saving", "4.orbax-checkpoint-tmp", "1.77-0.removed", "5.pruned"):
        shutil.copytree(folder / "2", folder / name)
    for name in ("6", "notes", "²"):
        (folder / name).mkdir()
    assert sorted(path.name for path in remains_in(folder)) == sorted(
        ["3.saving", "4.orbax-checkpoint-tmp", "1.77-0.removed", "5.pruned", "6"]
    )
    assert restored(tmp_path) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "notes", "²"]
    assert not (tmp_path / "quarantine").exists()


def test_a_removal_that_fails_is_said_and_the_save_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Kills: an error of pruning counted as a failed save, or not said."""
    saved(tmp_path, 1, 2)
    monkeypatch.setattr("chunkwise.checkpoint.manager.remove_tree", mock.Mock(side_effect=EIO))
    saved(tmp_path, 3)
    assert "checkpoint of step 1 could not be removed" in capsys.readouterr().out
    assert restored(tmp_path) == 3


def test_a_save_whose_parts_could_not_be_listed_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Orbax lists the folders of all processes to merge them; one listing fails, and it merges none, without a word."""
    failing, scandir = [True], os.scandir

    def once(path: Any = ".") -> Any:
        if failing and ".saving" in str(path) and Path(str(path)).name.startswith("state"):
            failing.clear()
            raise EIO
        return scandir(path)

    saved(tmp_path, 1, 2)
    monkeypatch.setattr(os, "scandir", once)
    saved(tmp_path, 3)
    assert not failing
    assert "save of step 3 failed (1 of 3)" in (said := capsys.readouterr().out)
    assert "state/manifest.ocdbt: expected it once the arrays are written" in said
    monkeypatch.undo()
    assert restored(tmp_path) == 3


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize(
    ("place", "error"),
    [
        *itertools.product(["metadata", "sums", "arrays", "list"], [EIO, MemoryError()]),
        ("arrays", ValueError("RESOURCE_EXHAUSTED: x [os_error_code='12']")),
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_trouble_moves_nothing_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, sealed: bool
):
    """Kills: an error of reading taken for damage, where sums prove the files or not; an older save taken; step 0."""
    if place == "sums" and not sealed:
        return  # nothing reads what is not there
    saved(tmp_path, 1, 2)
    if not sealed:
        (tmp_path / "checkpoints/2/SHA256SUMS").unlink()
    owner, name = {
        "metadata": (reader.json, "loads"),
        "sums": (hashlib, "file_digest"),
        "arrays": (ocp, "load_checkpointables"),
        "list": (os, "scandir"),
    }[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, mock.Mock(side_effect=error))
        with pytest.raises(StorageError, match=r"checkpoints.*(Nothing was moved|nothing shows that it is damaged)"):
            restored(tmp_path)
    assert steps(tmp_path) == [1, 2]
    assert not (tmp_path / "quarantine").exists()
    assert restored(tmp_path) == 2


@pytest.mark.usefixtures("no_waits")
def test_trouble_that_passes_is_not_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: no second try of the arrays."""
    saved(tmp_path, 1)
    load = ocp.load_checkpointables
    monkeypatch.setattr(ocp, "load_checkpointables", mock.Mock(side_effect=[EIO, EIO, load]))
    real = mock.Mock(side_effect=lambda *a, **k: load(*a, **k) if real.call_count > 2 else (_ for _ in ()).throw(EIO))
    monkeypatch.setattr(ocp, "load_checkpointables", real)
    assert restored(tmp_path) == 1
    assert real.call_count == 3


def test_files_that_are_what_was_written_are_not_damaged_because_a_library_cannot_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kills: any error while loading taken for proof, although the sums are right; without sums it is one."""
    saved(tmp_path, 1, 2)
    monkeypatch.setattr(ocp, "load_checkpointables", mock.Mock(side_effect=TypeError("another version")))
    with pytest.raises(StorageError, match=r"another version, though its files are what was written"):
        restored(tmp_path)
    assert steps(tmp_path) == [1, 2]
    for path in (tmp_path / "checkpoints").glob("*/SHA256SUMS"):
        path.unlink()
    with pytest.raises(DataError, match="every checkpoint"):
        restored(tmp_path)


def test_an_older_save_that_cannot_be_read_stays_and_is_never_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Kills: it is set aside, ends the run, or goes although it may be the best."""
    saved(tmp_path, 1, 2)
    metadata = reader.read_metadata

    def unreadable(path: Path) -> dict:
        if path.name == "1":
            raise PermissionError(errno.EACCES, "Permission denied")
        return metadata(path)

    monkeypatch.setattr("chunkwise.checkpoint.manager.read_metadata", unreadable)
    saved(tmp_path, 3, 4)
    assert "checkpoints/1: cannot be read at this time" in capsys.readouterr().out
    assert steps(tmp_path) == [1, 3, 4]


def test_a_real_refusal_of_access_moves_nothing(tmp_path: Path):
    """Kills: `Path.glob` and `rglob`, for which a folder that may not be listed is empty."""
    code = f"""
import os
from pathlib import Path
from chunkwise.errors import StorageError
from tests.chunkwise.checkpoint.test_announced import restored, saved
run = Path({str(tmp_path)!r})
saved(run, 1, 2)
for locked in ("checkpoints", "checkpoints/2", "checkpoints/2/state", "checkpoints/2/state/_METADATA"):
    mode = os.stat(run / locked).st_mode
    os.chmod(run / locked, 0)
    try:
        print("goes on from", restored(run))
    except StorageError as error:
        print("refused" if str(run / "checkpoints") in str(error) else error)
    os.chmod(run / locked, mode)
    assert sorted(os.listdir(run / "checkpoints")) == ["1", "2"], locked
    assert not (run / "quarantine").exists(), locked
print("goes on from", restored(run))
"""
    # Root reads everything, unless it gives up the right to.
    unprivileged = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*unprivileged, sys.executable, "-c", code]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["refused"] * 4 + ["goes on from 2"], done.stdout + done.stderr[-3000:]


def test_a_run_whose_saves_are_lost_never_starts_again_from_the_beginning(tmp_path: Path):
    """Kills: the second start after all was set aside trains from 0; lost folders are not noticed."""
    saved(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").rglob("_CHECKPOINT_METADATA"):
        path.write_text("{")
    with pytest.raises(DataError, match=r"every checkpoint .* is damaged"):
        restored(tmp_path)
    for _ in range(2):
        with pytest.raises(DataError, match=r"expected the checkpoint of step 2, which saved\.json names, found none"):
            restored(tmp_path)
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == ["1", "2"]


def test_a_run_that_never_saved_starts_again_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Kills: lines of metrics taken for proof of a save; a start from 0 without a word."""
    assert restored(tmp_path) is None
    assert announced(tmp_path) == {"step": None}
    assert "starting again" not in capsys.readouterr().out
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert restored(tmp_path) is None
    assert "nothing had been saved when this run ended: starting again from step 0" in capsys.readouterr().out


@pytest.mark.parametrize("left", ["metrics.jsonl", "done.json"])
def test_an_older_versions_run_without_saves_is_refused(tmp_path: Path, left: str):
    """Kills: no saved.json taken for one that says that nothing was saved."""
    (tmp_path / left).write_text("{}\n")
    with pytest.raises(DataError, match=r"holds the metrics of a run and no checkpoint, and no saved\.json"):
        restored(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"step": "2"}'])
def test_a_note_of_what_was_announced_that_was_changed_by_hand_is_refused(tmp_path: Path, content: str):
    (tmp_path / "saved.json").write_text(content)
    with pytest.raises(DataError, match=r"saved\.json: expected"):
        restored(tmp_path)


def test_files_of_the_run_are_bound_to_its_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Kills: no comparison; a changed file overwritten, by which the change is not seen; a missing one not written."""
    saved(tmp_path, 1, files=FILES)
    path = tmp_path / "norm_stats.json"
    assert path.read_bytes() == FILES["norm_stats.json"]
    metadata = json.loads((tmp_path / "checkpoints/1/_CHECKPOINT_METADATA").read_text())["custom_metadata"]
    assert metadata["files"] == {"norm_stats.json": hashlib.sha256(b"{}\n").hexdigest()}
    part = {"params": abstract().params}
    path.write_bytes(b"{ }\n")
    for act in (lambda: restored(tmp_path, FILES), lambda: read_newest(tmp_path, part)):
        with pytest.raises(MismatchError, match=r"norm_stats\.json is not the file that the checkpoint of step 1 was"):
            act()
        assert path.read_bytes() == b"{ }\n"
    path.unlink()
    with pytest.raises(MismatchError, match="found nothing"):
        read_newest(tmp_path, part)
    with pytest.raises(MismatchError, match="not the file"):
        restored(tmp_path, {"norm_stats.json": b"of another dataset"})
    assert restored(tmp_path, FILES) == 1
    assert path.read_bytes() == b"{}\n"
    assert read_newest(tmp_path, part)[0] == 1
    assert steps(tmp_path) == [1]
    assert "not compared" not in capsys.readouterr().out


def test_a_save_of_a_version_without_hashes_is_read_and_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    saved(tmp_path, 1, files=FILES)
    rewrite_metadata(tmp_path, 1, "files")
    (tmp_path / "norm_stats.json").write_bytes(b"{ }\n")
    assert restored(tmp_path, FILES) == 1
    assert (tmp_path / "norm_stats.json").read_bytes() == b"{ }\n", "what the save was made with stays"
    assert "made before norm_stats.json belonged to it; not compared" in capsys.readouterr().out


def test_a_fresh_run_replaces_files_that_one_without_a_save_left(tmp_path: Path):
    """Kills: files written only where they are missing, though there is no save to which they belong."""
    (tmp_path / "norm_stats.json").write_bytes(b"of a run that was killed early")
    assert restored(tmp_path, FILES) is None
    assert (tmp_path / "norm_stats.json").read_bytes() == b"{}\n"


def test_a_kill_while_a_save_is_removed_leaves_no_half_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: a removal under the step's own name."""
    saved(tmp_path, 1, 2)

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        durable.remove_tree(tmp_path / "checkpoints/1")
    monkeypatch.undo()
    assert steps_in(tmp_path / "checkpoints") == [2]
    written(tmp_path, 3)
    assert restored(tmp_path) == 3
    assert steps(tmp_path) == [2, 3]
