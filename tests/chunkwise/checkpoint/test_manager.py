"""Checkpoints: what is restored is what was saved, and nothing damaged is ever loaded."""

import dataclasses
import itertools
import json
import logging
import os
import pkgutil
import random
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from chunkwise.checkpoint.checksums import digest
from chunkwise.checkpoint.file_sums import probe, seal, verify_files
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.reader import Progress, metadata_hash
from chunkwise.config.experiment import CheckpointConfig
from chunkwise.errors import DataError, MismatchError, NonFiniteError, StorageError
from chunkwise.state import TrainState

# Orbax leaves reading tasks behind when a file is damaged, and Python reports their exceptions as unraisable.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FINGERPRINT = {"run.seed": 0, "dataset.hash": "abc"}


def make_state(step: int, width: int = 5) -> TrainState:
    """A state with the dtypes that occur: f32, bf16, int32, bool."""
    values = np.random.default_rng(step).normal(size=(3, width))
    params = {"w": jnp.asarray(values, jnp.float32), "half": jnp.asarray(values, jnp.bfloat16)}
    opt_state = ({"count": jnp.int32(step)}, jnp.asarray(values > 0))
    return TrainState(step=jnp.int32(step), params=params, opt_state=opt_state, target={"w": params["w"] * 2})


def progress(step: int) -> Progress:
    return Progress(
        step=step,
        metrics_bytes=10 * step,
        window={"loss": [0.1, 3.0]},
        evaluated=False,
        position={"rows": step},
        skipped_in_a_row=0,
    )


def opened(run: Path, max_to_keep: int = 2, fingerprint: dict = FINGERPRINT) -> Checkpoints:
    return Checkpoints(run, CheckpointConfig(max_to_keep=max_to_keep, keep_period=4), fingerprint)


def written(run: Path, *steps: int) -> None:
    checkpoints = opened(run)
    for step in steps:
        checkpoints.save_now(make_state(step), progress(step))
    checkpoints.close()


def restored(run: Path, **changes) -> tuple[TrainState, Progress] | None:
    checkpoints = opened(run, **changes)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_state(0))
    try:
        return checkpoints.restore(abstract)
    finally:
        checkpoints.close()


def steps(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def test_restores_to_the_bit(tmp_path: Path):
    written(tmp_path, 3)
    found = restored(tmp_path)
    assert found is not None
    state, at = found
    assert at == progress(3)
    assert digest(state, {"step": 3}) == digest(make_state(3), {"step": 3})
    assert digest(state, {"step": 3}) != digest(state, {"step": 4})
    assert jax.tree.structure(state) == jax.tree.structure(make_state(3))


def test_nothing_to_restore(tmp_path: Path):
    assert restored(tmp_path) is None


def test_keeps_the_newest_and_the_multiples(tmp_path: Path):
    written(tmp_path, 2, 4, 5, 6, 7)
    assert steps(tmp_path) == [4, 6, 7]


def flip_a_bit(newest: Path, rng: random.Random) -> str:
    """In any file of the save; its name."""
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    path = rng.choices(files, [file.stat().st_size for file in files])[0]
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return path.name


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path, seed: int):
    written(tmp_path, 1, 2)
    flip_a_bit(tmp_path / "checkpoints/2", random.Random(seed))
    found = restored(tmp_path)
    assert found is not None
    assert digest(found[0], {}) == digest(make_state(1), {})
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["2"]


@pytest.mark.parametrize("seed", range(8))
def test_without_sums_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, seed: int):
    """A kill between a save and its sums leaves this: the checksums of the arrays and the hash of the metadata do."""
    written(tmp_path, 1, 2)
    (tmp_path / "checkpoints/2/SHA256SUMS").unlink()
    flip_a_bit(tmp_path / "checkpoints/2", random.Random(seed))
    found = restored(tmp_path)
    assert found is not None
    state, at = found
    assert digest(state, {}) == digest(make_state(at.step), {})
    assert (tmp_path / "quarantine").exists() == (at.step == 1)


@pytest.mark.parametrize("change", ["removed", "added"])
def test_a_file_removed_or_added_is_refused(tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]):
    written(tmp_path, 1, 2)
    newest = tmp_path / "checkpoints/2"
    if change == "added":
        (newest / "state/more").write_text("")
    else:
        (newest / "state/_METADATA").unlink()
    found = restored(tmp_path)
    assert found is not None
    assert found[1].step == 1
    name = "more" if change == "added" else "_METADATA"
    assert f"files missing, or not in SHA256SUMS: state/{name}" in capsys.readouterr().out


def test_any_flipped_bit_of_the_sums_is_refused(tmp_path: Path):
    written(tmp_path, 2)
    newest = tmp_path / "checkpoints/2"
    sums = (newest / "SHA256SUMS").read_bytes()
    assert verify_files(newest) == ""
    # A line is a hash, two spaces, a name, a newline.
    places = (0, 63, 64, 65, 66, sums.index(b"\n") - 1, sums.index(b"\n"), len(sums) - 1)
    for place, bit in itertools.product(places, range(8)):
        flipped = bytearray(sums)
        flipped[place] ^= 1 << bit
        (newest / "SHA256SUMS").write_bytes(flipped)
        assert verify_files(newest) != "", (place, bit)


@pytest.mark.parametrize("folder", [".", "state", "state/d"])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    """Neither proof of damage, nor left out of what is sealed or opened."""
    written(tmp_path, 2)
    newest = tmp_path / "checkpoints/2"
    list_folder, locked = os.scandir, str(newest / folder)

    def refused(path: str | os.PathLike[str]):
        if os.path.realpath(path) == os.path.realpath(locked):
            raise PermissionError(13, "Permission denied", locked)
        return list_folder(path)

    sums = (newest / "SHA256SUMS").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        for read in (verify_files, probe, lambda step: seal(step, lambda: False)):
            with pytest.raises(PermissionError):
                read(newest)
    assert (newest / "SHA256SUMS").read_bytes() == sums
    assert verify_files(newest) == ""


def test_a_save_in_a_hurry_has_no_sums_and_is_whole(tmp_path: Path):
    checkpoints = opened(tmp_path)
    checkpoints.save_now(make_state(1), progress(1))
    checkpoints.hurry()
    checkpoints.save_now(make_state(2), progress(2))
    checkpoints.close()
    assert [(tmp_path / f"checkpoints/{i}/SHA256SUMS").exists() for i in (1, 2)] == [True, False]
    found = restored(tmp_path)
    assert found is not None
    assert digest(found[0], {}) == digest(make_state(2), {})


def test_the_command_that_people_would_use_reads_the_sums(tmp_path: Path):
    """Our own code reads them in every other test. macOS comes with Perl's shasum in place of coreutils."""
    written(tmp_path, 2)
    newest = tmp_path / "checkpoints/2"
    command = ["sha256sum"] if shutil.which("sha256sum") else ["shasum", "--algorithm", "256"]
    check = [*command, "--check", "--strict", "SHA256SUMS"]
    told = subprocess.run(check, cwd=newest, capture_output=True, text=True, check=True).stdout.splitlines()
    files = {path.relative_to(newest).as_posix() for path in newest.rglob("*") if path.is_file()}
    assert set(told) == {f"{name}: OK" for name in files - {"SHA256SUMS"}}


def test_a_changed_value_is_caught_by_the_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An array swapped for another of the same shape: valid for Orbax, and wrong."""
    written(tmp_path, 1, 2)
    other = tmp_path / "other"
    written(other, 3)
    shutil.rmtree(tmp_path / "checkpoints/2/state")
    shutil.copytree(other / "checkpoints/3/state", tmp_path / "checkpoints/2/state")
    (tmp_path / "checkpoints/2/SHA256SUMS").unlink()
    found = restored(tmp_path)
    assert found is not None
    assert found[1].step == 1
    assert "checksum" in capsys.readouterr().out


@pytest.mark.parametrize("fake", ["empty folder", "copy under a later name", "half removed", "metadata damaged"])
def test_a_fake_newest_step_is_set_aside(tmp_path: Path, fake: str):
    written(tmp_path, 1, 2)
    folder = tmp_path / "checkpoints"
    if fake == "empty folder":
        (folder / "9").mkdir()
    elif fake == "copy under a later name":
        shutil.copytree(folder / "2", folder / "9")
    elif fake == "half removed":
        shutil.copytree(folder / "2", folder / "9")
        shutil.rmtree(folder / "9/state")
    else:
        metadata = folder / "2/_CHECKPOINT_METADATA"
        metadata.write_text(metadata.read_text().replace('"metrics_bytes": 20', '"metrics_bytes": 21'))
    found = restored(tmp_path)
    assert found is not None
    assert found[1].step == (1 if fake == "metadata damaged" else 2)
    if fake == "empty folder":  # what a removal that was broken off leaves is no damage
        assert not (tmp_path / "quarantine").exists()
    else:
        assert len(list((tmp_path / "quarantine").iterdir())) == 1
    # and the run can go on saving
    checkpoints = opened(tmp_path)
    checkpoints.save_now(make_state(9), progress(9))
    checkpoints.close()
    assert steps(tmp_path)[-1] == 9


def test_a_damaged_older_step_is_no_obstacle(tmp_path: Path):
    written(tmp_path, 1, 2)
    (tmp_path / "checkpoints/1/_CHECKPOINT_METADATA").write_text("{")
    found = restored(tmp_path)
    assert found is not None
    assert found[1].step == 2
    assert steps(tmp_path) == [2]


def test_all_damaged_is_an_error(tmp_path: Path):
    written(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").rglob("_CHECKPOINT_METADATA"):
        path.unlink()
    with pytest.raises(DataError, match=r"every checkpoint .* damaged"):
        restored(tmp_path)


def test_another_config_or_tree_is_refused_and_nothing_moved(tmp_path: Path):
    written(tmp_path, 1)
    with pytest.raises(MismatchError, match=r"run\.seed: saved 0, now 7"):
        restored(tmp_path, fingerprint=FINGERPRINT | {"run.seed": 7})
    checkpoints = opened(tmp_path)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wider = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_state(0, width=6))
    with pytest.raises(MismatchError, match=r"params.*\[3, 5\].*\[3, 6\]"):
        checkpoints.restore(wider)
    checkpoints.close()
    assert steps(tmp_path) == [1]


def rewrite_metadata(run: Path, step: int, drop: str) -> None:
    """Leaves whole metadata that lack a field, as another version of the code would write it."""
    path = run / f"checkpoints/{step}/_CHECKPOINT_METADATA"
    tree = json.loads(path.read_text())
    metadata = tree["custom_metadata"]
    del metadata[drop]
    metadata["sha256"] = metadata_hash(metadata)
    path.write_text(json.dumps(tree))
    (path.parent / "SHA256SUMS").unlink()


def test_a_save_of_another_version_is_refused_and_stays(tmp_path: Path):
    written(tmp_path, 1)
    rewrite_metadata(tmp_path, 1, "skipped_in_a_row")
    with pytest.raises(MismatchError, match=r"step 1 was made by another version .* did not write skipped_in_a_row"):
        restored(tmp_path)
    assert steps(tmp_path) == [1]


def test_a_save_without_a_field_that_came_later_is_read(tmp_path: Path):
    written(tmp_path, 1)
    rewrite_metadata(tmp_path, 1, "evaluation")
    found = restored(tmp_path)
    assert found is not None
    assert found[1] == progress(1)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path):
    checkpoints = opened(tmp_path)
    state = make_state(1)
    state = dataclasses.replace(state, params=state.params | {"w": state.params["w"].at[1, 2].set(jnp.nan)})
    with pytest.raises(NonFiniteError, match=r"step 1: not saved, because \['params'\]\['w'\] is not finite"):
        checkpoints.save_now(state, progress(1))
    checkpoints.close()
    assert restored(tmp_path) is None


def failing(monkeypatch: pytest.MonkeyPatch, *outcomes: bool) -> None:
    """Lets the next saves end as told, True for failing, those after them as they do."""
    real, left = ocp.save_checkpointables, list(outcomes)

    def save(*args: Any, **kwargs: Any) -> Any:
        if left and left.pop(0):
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(ocp, "save_checkpointables", save)


def test_three_failed_saves_end_the_run_and_name_the_last_good_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, 1)
    checkpoints = opened(tmp_path)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    checkpoints.restore(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_state(0))
    )
    failing(monkeypatch, True, True, True)
    checkpoints.save(make_state(2), progress(2))
    checkpoints.save(make_state(3), progress(3))
    checkpoints.save(make_state(4), progress(4))
    with pytest.raises(StorageError, match=r"No space left on device\. Last durable step: 1"):
        checkpoints.wait()
    checkpoints.close()
    assert steps(tmp_path) == [1]


def test_failures_between_which_a_save_succeeds_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, True, True, False, True, True)
    checkpoints = opened(tmp_path)
    for step, succeeds in enumerate((False, False, True, False, False, True), start=1):
        checkpoints.save(make_state(step), progress(step))
        assert checkpoints.wait() is succeeds
    checkpoints.close()
    assert steps(tmp_path) == [3, 6]


def test_the_last_save_is_tried_until_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, True, True)
    checkpoints = opened(tmp_path)
    checkpoints.save_now(make_state(2), progress(2))
    assert checkpoints.durable_step == 2
    checkpoints.close()
    assert steps(tmp_path) == [2]


def test_the_loss_of_another_process_is_no_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, True)
    monkeypatch.setattr("chunkwise.checkpoint.manager.processes.lost", lambda error: error)
    checkpoints = opened(tmp_path)
    checkpoints.save(make_state(1), progress(1))
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.wait()
    checkpoints.close()


@pytest.mark.parametrize(
    ("at", "failures"),
    [("seal", 1), ("give_name", 1), ("sync_up", 1), ("saved_steps.announce", 2), ("Checkpoints._prune", 1)],
)
def test_a_save_that_failed_anywhere_succeeds_at_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, failures: int
):
    """Also where the folder has its name already: what it holds is replaced."""
    checkpoints = opened(tmp_path)
    checkpoints.save_now(make_state(3), progress(3))
    module, _, attribute = f"chunkwise.checkpoint.manager.{at}".rpartition(".")
    owner = pkgutil.resolve_name(module)
    real, calls = getattr(owner, attribute), []

    def after(*args, **kwargs):
        calls.append(args)
        real(*args, **kwargs)
        if len(calls) <= failures:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(owner, attribute, after)
    for attempt in range(failures):
        checkpoints.save(make_state(5 + attempt), progress(7))
        assert not checkpoints.wait()
        assert checkpoints.durable_step == 3
    checkpoints.save_now(make_state(7), progress(7))
    assert checkpoints.durable_step == 7
    checkpoints.close()
    assert len(calls) == failures + 1
    assert steps(tmp_path) == [3, 7]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "7"]
    found = restored(tmp_path)
    assert found is not None
    assert digest(found[0], {}) == digest(make_state(7), {})


def test_of_a_failed_save_asyncio_logs_nothing_and_of_the_rest_all(tmp_path: Path):
    """What tensorstore raised at a full disk, without its name, was printed after the run's last word."""
    opened(tmp_path).close()  # from the first on that a process opens
    quota = "RESOURCE_EXHAUSTED: Error writing \"params.w/c/0\" in OCDBT database: No space left [os_error_code='28']"
    for error, shown in ((ValueError(quota), False), (ValueError("of somebody else"), True)):
        info = (ValueError, error, None)
        text = "Future exception was never retrieved"
        record = logging.LogRecord("asyncio", logging.ERROR, "base_events.py", 1, text, None, info)
        assert bool(logging.getLogger("asyncio").filter(record)) == shown


def test_a_save_holds_what_the_state_was_though_its_memory_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = opened(tmp_path)
    write, reused = ocp.save_checkpointables, threading.Event()

    def write_late(*args, **kwargs):
        assert reused.wait(timeout=60.0)
        return write(*args, **kwargs)

    monkeypatch.setattr(ocp, "save_checkpointables", write_late)
    state = make_state(1)
    wanted = jax.tree.map(np.array, state.params)
    checkpoints.save(state, progress(1))
    next_update = jax.jit(lambda x: jax.tree.map(lambda leaf: leaf + leaf, x), donate_argnums=0)
    jax.block_until_ready(next_update(state))
    assert state.params["w"].is_deleted()
    reused.set()
    checkpoints.close()
    found = restored(tmp_path)
    assert found is not None
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, found[0].params), wanted)


def test_notes_are_plain_json(tmp_path: Path):
    written(tmp_path, 1)
    metadata = json.loads((tmp_path / "checkpoints/1/_CHECKPOINT_METADATA").read_text())["custom_metadata"]
    spec = metadata["spec"]
    assert spec[".params['w']" if ".params['w']" in spec else "['params']['w']"] == "float32[3, 5]"
    assert metadata["fingerprint"] == FINGERPRINT


def test_a_failed_save_is_logged_by_no_library_once_checkpoints_are_opened(tmp_path: Path):
    """However often: other records pass, with and without an exception, and one filter does it."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).filters.clear()
    for _ in range(2):
        opened(tmp_path)
    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        assert len(logger.filters) == 1

        def kept(error: BaseException | None, logger: logging.Logger = logger) -> bool:
            about = None if error is None else (type(error), error, None)
            return bool(logger.filter(logging.LogRecord(logger.name, 40, "a.py", 1, "failed", None, about)))

        assert kept(None)
        assert kept(ValueError("of a user"))
        assert not kept(ValueError("Error writing OCDBT file"))
