"""Programs compiled from shapes alone: the shapes are those of real batches, the bytes those computed by hand."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.errors import ConfigError
from chunkwise.train import compile as verb
from chunkwise.train import targets
from chunkwise.train.ahead import require_known

SIZES = ("--size", "observation=28", "--size", "action=5")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "chunkwise", "compile", *words], capture_output=True, text=True)


def shapes(batch: Any) -> Any:
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in jax.tree.leaves_with_path(batch)}


@pytest.mark.slow
def test_shapes_of_openpi_ript_are_those_of_its_batches(tmp_path: Path):
    from openpi_ript.train import without_data
    from tests.openpi_ript.small_run import make_dataset, make_task, small_config

    config = small_config(make_dataset(tmp_path), tmp_path / "run")
    updates, batch = without_data(config, {})
    task = make_task(config)
    assert shapes(batch) == shapes(next(task.batches(0)))
    key = jax.random.key(0)
    assert shapes(jax.eval_shape(updates.init, key)) == shapes(jax.eval_shape(task.init, key))


@pytest.mark.slow
@pytest.mark.parametrize("objective", [True, False])
def test_shapes_of_driving_are_those_of_its_batches(objective: bool, tmp_path: Path):
    from driving.data.batches import open_data
    from driving.tasks.pretrain import PretrainTask
    from driving.tasks.waypoints import WaypointTask
    from driving.train import without_data
    from tests.driving import test_train

    for i in range(6):
        test_train.write_drive(tmp_path, f"drive_{i}", frames=40, start_yaw=float(i))
    config = (test_train.pretraining if objective else test_train.config)(tmp_path / "run", tmp_path)
    task: Any = (PretrainTask if objective else WaypointTask)(config, open_data(config.data))
    updates, batch = without_data(config, {})
    assert shapes(batch) == shapes(next(task.batches(0)))
    assert type(updates) is type(task)


@pytest.mark.slow
@pytest.mark.parametrize("images", [False, True])
def test_shapes_of_qchunk_are_those_of_its_batches(images: bool, tmp_path: Path):
    from qchunk import data
    from qchunk.config import EncoderConfig
    from qchunk.data import stream
    from qchunk.train import without_data
    from tests.qchunk import image_recordings, recordings

    if images:
        for number in range(4):
            image_recordings.write_episode(tmp_path / f"episode_{number}.hdf5", 12, number)
        config = recordings.config(tmp_path, cameras=("cam_high",), image_size=(16, 16), positive_ratio=0.0)
        agent = dataclasses.replace(config.agent, encoder=EncoderConfig(widths=(4,)))
        config = dataclasses.replace(config, agent=agent)
    else:
        config = recordings.config(recordings.dataset(tmp_path))
    dataset = data.open_dataset(config)
    real = shapes(next(stream.open_stream(config, dataset, shard=0, num_shards=1, start_step=0, training=True)))
    dims = dataset.dims(config.data.observation)
    _, batch = without_data(config, {"observation": dims.observation, "action": dims.action})
    ours = shapes(batch)
    assert ours == {name: real[name] for name in ours}
    assert {name.split("'")[-2] for name in real.keys() - ours.keys()} <= {"state"}, "recorded too, and seen by nobody"


@pytest.mark.slow
def test_bytes_of_a_device_are_those_computed_by_hand():
    words = ("qchunk/debug", "--topology", "cpu:4", *SIZES, "--mesh.fsdp", "4", "--mesh.replicate-below", "0", "--json")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    whole = json.loads(run("qchunk/debug", "--topology", "cpu:1", *SIZES, "--json").stdout)
    assert found["devices"] == 4
    assert found["state"]["step"] == whole["state"]["step"] == 4
    ours = whole["state"]["params"] / 4  # biases are whole on each device, weights in four parts
    assert ours < found["state"]["params"] < 1.3 * ours
    assert set(found["sent"]) >= {"all-gather"}
    assert whole["sent"] == {}
    assert found["flops"] == whole["flops"]
    for one in (found, whole):
        assert one["capacity"] is None
        assert one["bounds"] == {}
        arguments = sum(one["state"].values()) + one["batch"]
        assert arguments <= one["arguments"] <= arguments + 10_000, "the compiler adds the count and aligns"
        assert one["total"] == one["arguments"] + one["results"] + one["temporary"] + one["code"]


@pytest.mark.slow
def test_what_does_not_fit_ends_with_78_and_advice():
    program = (
        "import dataclasses, sys; from chunkwise.cli import command; from chunkwise.train import compile, targets; "
        "compile.target_named = lambda text: targets.Target(name='cpu', shape=(1,), chip=None); "
        "real = compile.report_of; "
        "compile.report_of = lambda *a, **k: dataclasses.replace(real(*a, **k), capacity=1e4); "
        f"sys.argv[1:] = ['qchunk/debug', '--topology', 'cpu:1', *{SIZES!r}]; command.run(compile.main)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 78, done.stderr
    assert "of 0.01 MB" in done.stdout
    assert "does not fit cpu:1; try a smaller --train.batch-size than" in done.stderr
    assert "a device with more memory" in done.stderr


def test_a_bound_is_the_slowest_of_products_memory_and_links():
    chip = dataclasses.replace(targets.CHIPS["v5p"], flops=100.0, flops_float32=50.0, bandwidth=10.0, link=2.0)
    found = verb.bounds(chip, 4, {"bfloat16": 800.0, "float32": 400.0}, 30.0, {"all-gather": 6.0, "all-reduce": 2.0})
    assert found == {"products": (800 / 100 + 400 / 50) / 4, "memory": 3.0, "exchanges": 4.0}


@pytest.mark.parametrize(
    ("text", "count"),
    [("v5p:2x2x2", 8), ("v6e:4x4", 16), ("v5e:2x4", 8), ("h100:8", 8), ("rtx4090:1", 1), ("cpu:3", 3)],
)
def test_a_target_has_as_many_devices_as_it_says(text: str, count: int):
    assert targets.target_named(text).count == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100", "such as v5p:2x2x2"),
        ("a100:8", "such as v5p:2x2x2"),
        ("h100:0", "such as v5p:2x2x2"),
        ("h100:2x4", "expected one number of devices, such as h100:8"),
        ("v5p:8", "a slice of v5p has 3 axes, such as v5p:2x2x2"),
        ("v6e:2x2x2", "a slice of v6e has 2 axes, such as v6e:4x4"),
    ],
)
def test_a_target_that_is_none_is_refused_with_those_there_are(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        targets.target_named(text)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("qchunk/debug", "--topology", "cpu:1"),
            64,
            "expected the sizes of observation, action: --size observation=N",
        ),
        (("driving/debug", "--topology", "cpu:1", "--size", "action=5"), 64, "this package needs no sizes"),
        (("driving/debug", "--topology", "cpu:3"), 64, "not divisible by 3 devices"),
        (("driving/debug", "--topology", "cpu:1", "--model.witdh", "5"), 64, "witdh"),
        (("openpi_ript/debug_ppo", "--topology", "cpu:1"), 64, "compile with 'guided'"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused(words: tuple[str, ...], code: int, message: str):
    done = run(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_compiler_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    for text, extra in (("v6e:4x4", "chunkwise[tpu]"), ("l4:1", "chunkwise[cuda]")):
        with pytest.raises(ConfigError, match=r"compiler is not installed") as caught:
            targets.opened(targets.target_named(text)).__enter__()
        assert extra in str(caught.value)


def test_sizes_are_names_with_numbers():
    assert verb.sizes_of(["observation=28", "action=5"]) == {"observation": 28, "action": 5}
    for wrong in ("observation", "observation=", "observation=0", "observation=-1", "observation=x"):
        with pytest.raises(ConfigError, match="expected a name and a number"):
            verb.sizes_of([wrong])
    with pytest.raises(ConfigError, match="--size b"):
        require_known({"a": 1, "b": 2}, ("a",))


@pytest.mark.slow
@pytest.mark.skipif(targets.importlib.util.find_spec("libtpu") is None, reason="no compiler for TPUs is installed")
def test_a_tpu_that_is_not_here_is_compiled_for():
    done = run("driving/debug", "--topology", "v5e:2x4", "--train.batch-size", "8", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["capacity"] == 16 * 2**30
    assert set(found["bounds"]) == {"products", "memory", "exchanges"}


@pytest.mark.slow
@pytest.mark.skipif(
    targets.importlib.util.find_spec("jax_cuda13_plugin") is None, reason="no compiler for GPUs is installed"
)
def test_a_gpu_that_is_not_here_is_compiled_for():
    done = run("qchunk/debug", "--topology", "h100:1", *SIZES, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["capacity"] == 80e9


def test_state_bytes_are_of_one_device():
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from chunkwise.train import ahead

    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    leaf = jax.ShapeDtypeStruct((6, 4), np.dtype("float32"), sharding=NamedSharding(mesh, PartitionSpec("d")))
    assert ahead._on_one({"a": leaf, "b": leaf}) == 2 * 6 * 4 * 4
