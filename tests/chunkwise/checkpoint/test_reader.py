"""Saves for those who only use them: damage of each kind is refused, the one before it taken, and nothing is moved."""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.checkpoint import reader
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.reader import (
    DamagedError,
    each_for_itself,
    list_saves,
    metadata_hash,
    quiet,
    read_fingerprint,
    read_newest,
    require_same_files,
    verify,
)
from chunkwise.checkpoint.weights import read_weights
from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.errors import ConfigError, DataError, MismatchError, StorageError
from tests.chunkwise.checkpoint.test_manager import FINGERPRINT, make_state, progress, written
from tests.chunkwise.toy import ToyConfig

# Orbax leaves reading tasks behind when a file is damaged, and Python reports their exceptions as unraisable.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

METADATA = "_CHECKPOINT_METADATA"
NOT_WHOLE = "the metadata beside the arrays are missing or damaged"


def abstract(width: int = 5, **fields: str) -> dict[str, Any]:
    """What a user asks for: by default the weights."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = make_state(0, width)
    parts = {name: getattr(state, name) for name in (fields or {"params": ""})}
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), parts)


def contents(run: Path) -> dict[str, bytes | None]:
    """Every file's bytes and every folder under a run."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in run.rglob("*")}


def assert_params(found: dict[str, Any], step: int) -> None:
    for name, leaf in make_state(step).params.items():
        assert found["params"][name].dtype == leaf.dtype
        np.testing.assert_array_equal(np.asarray(found["params"][name]), np.asarray(leaf))


def edit_metadata(save: Path, change: Callable[[dict[str, Any]], object], *, rehash: bool) -> None:
    """Changes the metadata as one would who knows its format; with `rehash` their own hash is right afterwards."""
    path = save / METADATA
    tree = json.loads(path.read_text())
    metadata = tree["custom_metadata"]
    change(metadata)
    if rehash:
        metadata["sha256"] = metadata_hash(metadata)
    path.write_text(json.dumps(tree))


def arrays_of_another(save: Path) -> None:
    """Whole arrays of the same shapes: only their checksums tell."""
    shutil.rmtree(save / "state")
    shutil.copytree(save.parent.parent / "other/checkpoints/3/state", save / "state")


def cut_arrays(save: Path) -> None:
    largest = max((save / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[:-40])


def overwrite_arrays(save: Path) -> None:
    for path in (save / "state").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(bytes(path.stat().st_size))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no metadata": (lambda save: (save / METADATA).unlink(), ""),
    "metadata that are no JSON": (lambda save: (save / METADATA).write_text("{"), ""),
    "empty metadata": (lambda save: (save / METADATA).write_text("{}"), NOT_WHOLE),
    "a changed number": (
        lambda save: edit_metadata(save, lambda m: m.update(metrics_bytes=21), rehash=False),
        NOT_WHOLE,
    ),
    "metadata without their hash": (
        lambda save: edit_metadata(save, lambda m: m.pop("sha256"), rehash=False),
        NOT_WHOLE,
    ),
    "another checksum": (
        lambda save: edit_metadata(save, lambda m: m["checksums"].update({"['params']['w']": 1}), rehash=True),
        r"checksum of \['params'\]\['w'\] does not match",
    ),
    "no checksum": (
        lambda save: edit_metadata(save, lambda m: m["checksums"].pop("['params']['w']"), rehash=True),
        "",
    ),
    "no arrays": (lambda save: shutil.rmtree(save / "state"), ""),
    "nothing at all": (lambda save: [shutil.rmtree(save), save.mkdir()], ""),
    "arrays of another": (arrays_of_another, r"checksum of \['params'\]\['half'\], \['params'\]\['w'\] does not match"),
    "arrays cut off": (cut_arrays, ""),
    "arrays of zeros": (overwrite_arrays, ""),
    "another step's metadata": (
        lambda save: edit_metadata(save, lambda m: m.update(step=7), rehash=True),
        "the folder is named 2, its metadata say step 7",
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with saves 1 and 2, and beside it another one of step 3."""
    run = tmp_path_factory.mktemp("saved")
    written(run, 1, 2)
    written(run / "other", 3)
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def test_the_newest_is_read_and_only_what_is_asked_for(run: Path):
    before = contents(run)
    step, found = read_newest(run, abstract())
    assert step == 2
    assert set(found) == {"params"}
    assert_params(found, 2)
    step, found = read_newest(run, abstract(params="", target="", opt_state=""))
    assert step == 2
    assert_params(found, 2)
    np.testing.assert_array_equal(found["target"]["w"], make_state(2).target["w"])
    assert int(found["opt_state"][0]["count"]) == 2
    assert contents(run) == before


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_the_older_one_is_read_and_nothing_moves(run: Path, kind: str):
    change, words = DAMAGE[kind]
    for sums in (run / "checkpoints").glob("*/SHA256SUMS"):
        sums.unlink()  # users read part of a save, which the checksums of its arrays prove
    change(run / "checkpoints/2")
    before = contents(run)
    step, found = read_newest(run, abstract())
    assert step == 1
    assert_params(found, 1)
    damaged, whole = list_saves(run)
    assert (damaged.step, whole.step) == (2, 1)
    assert verify(whole) is None
    assert verify(damaged)
    assert contents(run) == before, "training may go on in this folder"

    shutil.rmtree(run / "checkpoints/1/state")
    with pytest.raises(DataError, match=rf"(?s)expected a checkpoint of a run, found step 2: .*{words}.*; step 1: "):
        read_newest(run, abstract())


@pytest.mark.parametrize("only", [None, 2])
def test_a_step_that_training_removes_while_it_is_read_makes_room_for_the_newer_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, only: int | None
):
    read, moments = reader._read_part, [1]

    def slow(path: Path, *rest: Any) -> dict[str, Any]:
        if moments:
            moments.pop()
            shutil.copytree(run / "other/checkpoints/3", run / "checkpoints/3")
            for step in (1, 2):
                shutil.rmtree(run / "checkpoints" / str(step))
        return read(path, *rest)

    monkeypatch.setattr(reader, "_read_part", slow)
    if only is None:
        step, found = read_newest(run, abstract())
        assert step == 3
        assert_params(found, 3)
    else:
        with pytest.raises(DataError, match=r"expected a checkpoint of a run, found step 2: removed meanwhile$"):
            read_newest(run, abstract(), only=only)


def test_saves_that_come_faster_than_they_are_read_end_it(run: Path, monkeypatch: pytest.MonkeyPatch):
    steps = iter(range(3, 100))

    def slow(path: Path, *_: Any) -> dict[str, Any]:
        path.rename(path.with_name(str(next(steps))))
        raise FileNotFoundError(path)

    monkeypatch.setattr(reader, "_read_part", slow)
    with pytest.raises(StorageError, match="20 saves in turn were removed while they were read"):
        read_newest(run, abstract())


def test_a_run_without_saves_is_said(tmp_path: Path):
    with pytest.raises(DataError, match=r"checkpoints: expected a checkpoint of a run, found none"):
        read_newest(tmp_path, abstract())
    assert list_saves(tmp_path) == []


def test_other_arrays_than_asked_for_are_no_damage(run: Path):
    """An older save would not fit either: the newest one's tree is named, with what differs."""
    before = contents(run)
    with pytest.raises(MismatchError, match=r"\['params'\]\['w'\]: saved 'float32\[3, 5\]', now 'float32\[3, 4\]'"):
        read_newest(run, abstract(width=4))
    with pytest.raises(MismatchError, match=r"\['params'\]\['more'\]"):
        read_newest(run, {"params": {**abstract()["params"], "more": abstract()["params"]["w"]}})
    with pytest.raises(MismatchError, match=r"\['params'\]\['half'\]"):
        read_newest(run, {"params": {"w": abstract()["params"]["w"]}})
    assert contents(run) == before


def test_weights_are_given_with_the_files_alone_that_they_were_trained_with(tmp_path: Path):
    files = {"norm_stats.json": b"{}\n", "tokenizer.model": b"\x00\x01"}
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), FINGERPRINT, files)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    checkpoints.restore(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), make_state(0)))
    checkpoints.save_now(make_state(2), progress(2))
    checkpoints.close()
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    for name, content in (("norm_stats.json", b""), ("tokenizer.model", b"\x00\x01 "), ("tokenizer.model", None)):
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        expected = hashlib.sha256(files[name]).hexdigest()
        found = "nothing" if content is None else hashlib.sha256(content).hexdigest()
        before = contents(tmp_path)
        with pytest.raises(
            MismatchError,
            match=f"{name} is not the file that the checkpoint of step 2 was made with: expected SHA-256 {expected}, "
            f"found {found}",
        ):
            read_newest(tmp_path, abstract())
        assert contents(tmp_path) == before
        (tmp_path / name).write_bytes(files[name])
    assert_params(read_newest(tmp_path, abstract())[1], 2)


def test_steps_go_by_number_and_other_names_are_left_alone(tmp_path: Path):
    written(tmp_path, 4, 8, 12)
    (tmp_path / "checkpoints/notes").mkdir()
    assert [save.step for save in list_saves(tmp_path)] == [12, 8, 4]
    assert read_newest(tmp_path, abstract())[0] == 12
    shutil.rmtree(tmp_path / "checkpoints/12/state")
    assert read_newest(tmp_path, abstract())[0] == 8


def test_a_save_is_described_without_reading_its_arrays(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), FINGERPRINT)
    checkpoints.save_now(make_state(4), dataclasses.replace(progress(4), evaluation={"ade_2s": 0.25}))
    checkpoints.close()
    path = tmp_path / "checkpoints/4"
    (save,) = list_saves(tmp_path)
    assert (save.path, save.step, save.damage, save.evaluation) == (path, 4, None, {"ade_2s": 0.25})
    assert (save.leaves, save.numbers) == (6, 15 + 15 + 15 + 15 + 1 + 1)
    assert save.size == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert save.written.timestamp() == pytest.approx(path.stat().st_mtime)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["checksums"].update({"['target']['w']": 5}), "checksum of target/w does not match"),
        (lambda m: m["spec"].update({"['target']['w']": "float32[5, 3]"}), "checksum of target/w does not match"),
        (lambda m: m["spec"].pop("['opt_state'][1]"), "arrays missing or too many: opt_state/1"),
    ],
    ids=["sum", "shape", "leaf"],
)
def test_verify_names_the_array(run: Path, change: Any, words: str):
    newest = run / "checkpoints/2"
    (newest / "SHA256SUMS").unlink()
    edit_metadata(newest, change, rehash=True)
    assert str(verify(list_saves(run)[0])) == words


def test_verify_reads_the_sums_of_files_that_hold_no_array(run: Path):
    with open(run / "checkpoints/2/state/_METADATA", "a") as file:
        file.write(" ")
    assert str(verify(list_saves(run)[0])) == "SHA256SUMS gives another sum for state/_METADATA"


@pytest.mark.parametrize("place", ["state/d", "."])
def test_verify_condemns_a_pipe_and_a_file_larger_than_its_arrays_allow(tmp_path: Path, place: str) -> None:
    written(tmp_path, 1)
    folder = tmp_path / "checkpoints" / "1" / place
    file = next(path for path in sorted(folder.iterdir()) if path.is_file() and path.name != METADATA)
    content = file.read_bytes()
    os.truncate(file, 1 << 40)
    reason = verify(list_saves(tmp_path)[0])
    assert isinstance(reason, DamagedError)
    assert "1099511627776 bytes" in str(reason)
    file.write_bytes(content)
    assert verify(list_saves(tmp_path)[0]) is None
    file.unlink()
    os.mkfifo(file)
    assert isinstance(verify(list_saves(tmp_path)[0]), DamagedError)


def test_the_files_of_a_save_belong_to_the_next_one_too(tmp_path: Path):
    """What a resumed run's saves go on naming: the hashes that the metadata have, once they were compared."""
    (tmp_path / "norm_stats.json").write_text("{}")
    metadata = {"step": 5, "files": {"norm_stats.json": hashlib.sha256(b"{}").hexdigest()}}
    assert require_same_files(tmp_path, metadata, {}) == metadata["files"]
    assert require_same_files(tmp_path, {"step": 5}, {"norm_stats.json": "any"}) == {}


def test_a_reading_process_waits_for_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jax.process_index", lambda: 3)
    processes = each_for_itself().multiprocessing
    assert processes.primary_host == 3
    assert processes.active_processes == {3}


@pytest.mark.parametrize("before", [logging.NOTSET, logging.INFO])
def test_quiet_is_over_afterwards(before: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.root.manager, "disable", before)
    with quiet():
        assert logging.root.manager.disable == logging.CRITICAL
    assert logging.root.manager.disable == before


def test_what_a_save_was_made_with_is_read_without_its_arrays(tmp_path: Path):
    written(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "checkpoints" / "2" / "state")
    found = read_fingerprint(tmp_path, 2)
    assert found == json.loads(json.dumps(FINGERPRINT))
    edit_metadata(tmp_path / "checkpoints" / "2", lambda metadata: metadata["fingerprint"].clear(), rehash=False)
    with pytest.raises(DataError, match=f"2: expected a checkpoint of a run, found {NOT_WHOLE}"):
        read_fingerprint(tmp_path, 2)
    with pytest.raises(DataError, match="3: expected a checkpoint of a run"):
        read_fingerprint(tmp_path, 3)


def test_a_run_whose_path_is_no_utf8_is_named_as_that(tmp_path: Path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    folder.mkdir()
    config = ToyConfig(train=TrainConfig(steps=1, batch_size=1))
    with pytest.raises(ConfigError, match="expected a path in UTF-8, found other bytes, which Orbax does not open"):
        read_weights(folder, config, lambda: make_state(0))
