"""What is read from a run's folder has limits: a file just above one is refused by its name, and nothing is moved."""

import dataclasses
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from chunkwise.checkpoint.file_sums import seal, verify_files
from chunkwise.checkpoint.orbax_files import require_arrays, require_declared, require_metadata
from chunkwise.checkpoint.reader import DamagedError, UnreadableError, list_saves, read_newest, verify
from chunkwise.checkpoint.saved_steps import announced
from chunkwise.checkpoint.tool import main
from chunkwise.config.saved import read_config
from chunkwise.errors import ConfigError, DataError, RunError, StorageError
from chunkwise.files import budget, dataset_files
from chunkwise.train import machine
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.checkpoint.test_manager import restored, written
from tests.chunkwise.checkpoint.test_reader import abstract
from tests.chunkwise.toy import ToyConfig, toy_config

DEEP = "[" * 65 + "]" * 65
METADATA = "checkpoints/1/_CHECKPOINT_METADATA"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("saved")
    written(run, 1)
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def contents(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def resume(run: Path) -> None:
    config = toy_config(run)
    with RunFolder(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True)), "toy"):
        pass


def train_some(run: Path) -> None:
    with RunFolder(toy_config(run), "toy") as folder:
        folder.log(1, "train", {})


def resume_config(run: Path, text: str) -> None:
    train_some(run)
    (run / "config.json").write_text(text)
    resume(run)


def use_config(run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    read_config(run, ToyConfig)


def read_announced(run: Path, text: str) -> None:
    (run / "saved.json").write_text(text)
    announced(run)


def read_machine(run: Path, text: str) -> None:
    (run / "machine.json").write_text(text)
    machine.note(run, 1, {})


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (resume_config, "config.json"),
        (use_config, "config.json"),
        (read_announced, "saved.json"),
        (read_machine, "machine.json"),
    ],
)
@pytest.mark.parametrize("limit", ["metadata_mib", "metadata_values", "json_depth"])
def test_a_file_of_json(tmp_path: Path, read: Callable[[Path, str], None], name: str, limit: str) -> None:
    values = 4_001
    text = {
        "metadata_mib": json.dumps("x" * (1 << 20)),
        "metadata_values": json.dumps([0] * values),
        "json_depth": DEEP,
    }[limit]
    with (
        budget.using(metadata_mib=1, metadata_values=values - 1),
        pytest.raises(budget.LimitError, match=name) as error,
    ):
        read(tmp_path, text)
    assert error.value.limit == limit
    assert error.value.exit_code == 65


@pytest.mark.parametrize("text", ['{"step": "1"}', '{"other": 1}', "[]", "{", "\xff"])
def test_saved_json_of_another_kind(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"saved\.json"):
        read_announced(tmp_path, text)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": 1, "a": 2}', "[]"])
def test_a_config_of_another_kind(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        resume_config(tmp_path, text)


@pytest.mark.parametrize("name", [METADATA, "checkpoints/1/state/_METADATA"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_checkpoint_above_a_limit_is_not_damaged(
    run: Path, name: str, sealed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not sealed:
        (run / "checkpoints/1/SHA256SUMS").unlink()
    with open(run / name, "ab") as file:
        file.write(b" " * (1 << 20))
    before = contents(run)
    if sealed and name.endswith("_METADATA") and "state" in name:
        return  # its sum tells first
    with budget.using(metadata_mib=1):
        with pytest.raises(StorageError, match=rf"{name}: expected at most 1 MiB.*metadata-mib") as error:
            restored(run)
        assert error.value.exit_code == 74
        with pytest.raises(StorageError, match=rf"{name}: expected at most 1 MiB"):
            read_newest(run, abstract())
        assert main(["verify", str(run)]) == 74
        assert "metadata-mib" in capsys.readouterr().out.replace("\n", "")
    assert contents(run) == before


@pytest.mark.parametrize("more", [0, 1])
def test_sums_above_a_limit_are_damaged_by_their_size_alone(tmp_path: Path, more: int) -> None:
    for n in range(4_000):
        (tmp_path / f"{n:0200}").touch()
    seal(tmp_path, lambda: False)
    sums = tmp_path / "SHA256SUMS"
    assert sums.stat().st_size == 4_000 * (64 + 2 + 200 + 1) > 1 << 20
    assert verify_files(tmp_path) == ""
    with open(sums, "ab") as file:
        file.write(b" " * more)
    with budget.using(metadata_mib=1):
        if more:
            assert (
                verify_files(tmp_path) == "SHA256SUMS has 1068001 bytes, and sums of the files that are there 1068000"
            )
        else:
            with pytest.raises(budget.LimitError, match=r"SHA256SUMS: expected at most 1 MiB.*metadata-mib"):
                verify_files(tmp_path)


def test_sums_of_lists_are_damage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sums = run / "checkpoints/1/SHA256SUMS"
    sums.write_text(f"{'0' * 64}  x\n" * 20_000)
    with budget.using(metadata_mib=1):
        assert main(["verify", str(run)]) == 65
        assert "damaged: SHA256SUMS has" in " ".join(capsys.readouterr().out.split())
        with pytest.raises(DataError, match=r"every checkpoint under .* is damaged \(steps \[1\]"):
            restored(run)


def test_levels_and_values_of_a_note(run: Path) -> None:
    good = (run / METADATA).read_text()
    (run / "checkpoints/1/SHA256SUMS").unlink()
    (run / METADATA).write_text(good[:-1] + f', "x": {DEEP}}}')
    with pytest.raises(StorageError, match=r"_CHECKPOINT_METADATA: expected at most 64 levels"):
        read_newest(run, abstract())
    (run / METADATA).write_text(good)
    values = good.count(",") + good.count("[") + good.count("{")
    with budget.using(metadata_values=values - 1), pytest.raises(StorageError, match=f"found {values}"):
        read_newest(run, abstract())


def test_a_pipe_in_a_checkpoint(run: Path) -> None:
    os.mkfifo(run / "checkpoints/1/state/d/pipe")
    with pytest.raises(DataError, match="pipe: expected a regular file, found a pipe"):
        require_metadata(run / "checkpoints/1")
    (run / "checkpoints/1/SHA256SUMS").unlink()
    assert isinstance(verify(list_saves(run)[0]), DamagedError)  # no save that was written has one
    (run / "checkpoints/1/SHA256SUMS").symlink_to(run / "checkpoints/1/state/d/pipe")
    assert "SHA256SUMS: expected a regular file, found a pipe" in verify_files(run / "checkpoints/1")


def test_arrays_that_a_few_bytes_declare(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    here = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)  # 4 MiB
    with budget.using(free_mib=8, decoded_mib=1, expansion=1):
        require_arrays(tmp_path, [here, here])
        with pytest.raises(budget.LimitError, match=r"found 12.0 MiB from a file of 1.000 MiB"):
            require_arrays(tmp_path, [here, here, here])
    with budget.using(free_mib=1, expansion=12):
        require_arrays(tmp_path, [here, here, here])


def tree_of(*shapes: object) -> dict[str, object]:
    """Orbax's metadata of arrays of these shapes; those of an older version, without a shape, for None."""
    entries = {f"('w{n}',)": {"value_metadata": {"write_shape": shape}} for n, shape in enumerate(shapes)}
    return {"tree_metadata": {"('old',)": {"value_metadata": {}}, **entries}}


def test_shapes_that_orbax_is_not_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orbax.checkpoint import v1 as ocp

    for name in ("load_checkpointables", "checkpointables_metadata"):
        monkeypatch.setattr(ocp, name, lambda *_: pytest.fail("Orbax was asked"))
    (run / "checkpoints/1/SHA256SUMS").unlink()
    file = run / "checkpoints/1/state/_METADATA"
    file.write_text(json.dumps(tree_of([1 << 20, 3], [1 << 20, 2])))
    with budget.using(free_mib=5, expansion=1):
        require_declared(run)
    with budget.using(free_mib=4, expansion=1):
        with pytest.raises(
            budget.LimitError,
            match=r"/_METADATA: \('w1',\) of shape \[1048576, 2\]: .*found 5\.0 MiB.*limits\.expansion",
        ):
            require_declared(run)
        found = verify(list_saves(run)[0])
    assert isinstance(found, UnreadableError)
    assert "limits.expansion" in str(found)


@pytest.mark.parametrize("shape", ["[1]", [1.5], [True], [-1, -1], {"a": 1}, [[1]]])
def test_a_shape_of_no_numbers(tmp_path: Path, shape: object) -> None:
    (tmp_path / "_METADATA").write_text(json.dumps(tree_of([4], shape)))
    with pytest.raises(DataError, match=r"_METADATA: \('w1',\): expected a shape of whole numbers, found"):
        require_declared(tmp_path)


def test_a_checkpoint_of_zeros_is_asked_for_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orbax.checkpoint import v1 as ocp

    from tests.chunkwise.checkpoint.test_manager import make_state, opened, progress

    state = dataclasses.replace(make_state(1), params={"w": jnp.zeros((1024, 512))})  # 2 MiB in 1 kB
    checkpoints = opened(tmp_path)
    checkpoints.save_now(state, progress(1))
    checkpoints.close()
    (save,) = list_saves(tmp_path)
    with budget.using(free_mib=3):
        assert verify(save) is None
    with budget.using(free_mib=1), monkeypatch.context() as patch:
        patch.setattr(ocp, "load_checkpointables", lambda *_: pytest.fail("read"))
        found = verify(save)
    assert isinstance(found, UnreadableError)
    assert "--data.limits.expansion" in str(found)


def test_a_list_of_files(tmp_path: Path) -> None:
    file = tmp_path / dataset_files.NAME
    head = "chunkwise-dataset-files-1\n"
    line = '- 1 - "a"\n'

    def load(text: str) -> object:
        file.write_bytes(gzip.compress(text.encode()))
        return dataset_files._load(file)

    assert load(head + line) == {"a": dataset_files.Entry("", 1, "")}
    for bad in (
        "- 1 - [1]\n",
        "- 1 - {}\n",
        f"- 1 - {'[' * 100_000}\n",
        "- x - 1\n",
        "a\n",
        "- " + "9" * 9999 + " - 1\n",
    ):
        assert load(head + bad) is None
    with budget.using(metadata_values=3):
        assert load(head + 2 * line) == {"a": dataset_files.Entry("", 1, "")}
        with pytest.raises(budget.LimitError, match=r"dataset_files\.gz: expected at most 3 values"):
            load(head + 3 * line)
    with budget.using(free_mib=1), pytest.raises(budget.LimitError, match="from a file of"):
        load(head + " " * (1 << 20))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RunError, match="found a pipe"):
        dataset_files._load(file)
