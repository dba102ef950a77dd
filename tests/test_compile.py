"""Programs compiled from shapes alone: the shapes are those of real batches, the bytes those computed by hand."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.config.load import load
from chunkwise.errors import ConfigError
from chunkwise.train import compile as verb
from chunkwise.train import targets
from chunkwise.train.ahead import Dtype, require_known

SIZES = ("--size", "observation=28", "--size", "action=5")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "chunkwise", "compile", *words], capture_output=True, text=True)


def shapes(batch: Any) -> Any:
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in jax.tree.leaves_with_path(batch)}


def test_shapes_of_openpi_ript_are_those_of_its_batches(tmp_path: Path):
    from openpi_ript.train import without_data
    from tests.openpi_ript.small_run import make_dataset, make_task, small_config

    config = small_config(make_dataset(tmp_path), tmp_path / "run")
    known, task = without_data(config, {}), make_task(config)
    assert shapes(known.batch) == shapes(next(task.batches(0)))
    key = jax.random.key(0)
    assert shapes(jax.eval_shape(known.updates.init, key)) == shapes(jax.eval_shape(task.init, key))


@pytest.mark.parametrize("lookahead", [4, None])
def test_shapes_of_labels_by_a_value_are_those_of_its_batches(lookahead: int | None, tmp_path: Path):
    from openpi_ript.config import GuidanceConfig, ValueConfig
    from openpi_ript.train import without_data
    from tests.openpi_ript.small_run import make_dataset, make_task, small_config

    guidance = GuidanceConfig(labels="value", value=ValueConfig(lookahead=lookahead))
    config = small_config(make_dataset(tmp_path), tmp_path / "run", guidance=guidance)
    with pytest.raises(ConfigError, match="expected the sizes of tasks"):
        without_data(config, {})
    known, task = without_data(config, {"tasks": 2}), make_task(config)
    assert shapes(known.batch) == shapes(next(task.batches(0)))
    key = jax.random.key(0)
    assert shapes(jax.eval_shape(known.updates.init, key)) == shapes(jax.eval_shape(task.init, key))


def test_shapes_of_ppo_are_those_of_its_chunks(tmp_path: Path):
    from openpi_ript.data.inputs import make_inputs
    from openpi_ript.tasks.ppo import ppo_inputs
    from openpi_ript.train import without_data
    from tests.openpi_ript.small_run import make_dataset
    from tests.openpi_ript.tasks import test_ppo

    root = make_dataset(tmp_path)
    config = test_ppo.make_config(root, tmp_path / "run")
    passes = test_ppo.make_passes(root, tmp_path / "run")
    batch = passes.batch(passes.step, slice(0, config.train.batch_size))
    inputs = make_inputs(config.model, config.data.robot, tuple(config.data.cameras), config.tokenizer)
    known = without_data(config, {})
    assert shapes(known.batch) == shapes(ppo_inputs(batch, inputs(batch)))
    state = jax.eval_shape(known.updates.init, jax.random.key(0))
    after, metrics = jax.eval_shape(known.updates.step, state, known.batch)
    assert shapes(after) == shapes(state)
    assert "ppo_loss" in metrics


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(name, marks=pytest.mark.long) for name in ("bfloat16", "int8"))]
)
def test_what_is_served_is_what_a_policy_computes(dtype: Dtype, tmp_path: Path):
    from openpi_ript.data.dataset import open_data
    from openpi_ript.model.pi0 import Observation, Pi0
    from openpi_ript.policies.policy import Policy
    from openpi_ript.train import without_data
    from tests.openpi_ript.small_run import make_dataset, small_config
    from tests.openpi_ript.toy_policy import random_params

    config = small_config(make_dataset(tmp_path), tmp_path / "run")
    policy = Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats, dtype=dtype)
    request = policy.prepare(policy.example())
    call = without_data(config, {}).served(1, dtype)
    sent = request.inputs
    inputs = (Observation(**sent["observation"]), sent["noise"], sent["scale"], np.int32(4))
    assert shapes(call.inputs) == shapes(inputs)
    assert call.rounds == 4, "guidance.sample_steps"
    kept = jax.eval_shape(call.kept, random_params(Pi0(config.model)))
    assert shapes(kept) == shapes(policy._params)
    ours = np.asarray(jax.jit(call.function)(policy._params, *inputs))
    np.testing.assert_array_equal(ours, policy.act([request])[0])


def long(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # seven images of 28 x 28, tokens, masks, state and noise of 4 rows
        long(("openpi_ript/debug", "--what", "serve", "--dtype", "bfloat16"), {"what": "serve"}),
        long(("openpi_ript/debug_ppo", "--what", "evaluate"), {"what": "evaluate"}),
        (("qchunk/debug", *SIZES, "--what", "serve", "--rows", "3"), {"batch": 3 * (28 * 4 + 4)}),
        long(("qchunk/debug", *SIZES, "--what", "evaluate", "--eval.rows", "7"), {"batch": 7 * (28 * 4 + 4)}),
        long(("driving/debug", "--what", "evaluate"), {"what": "evaluate"}),
    ],
)
def test_calls_of_one_device_compile(words: tuple[str, ...], expected: dict[str, Any]):
    done = run(*words, "--topology", "cpu:1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: found[name] for name in expected} == expected
    assert set(found["state"]) == {"params"}
    whole = json.loads(run(words[0], *(SIZES if "qchunk" in words[0] else ()), "--topology", "cpu:1", "--json").stdout)
    half = 2 if "bfloat16" in words else 1
    assert found["state"]["params"] == whole["state"]["params"] / half
    assert found["flops"]


def bytes_by_hand(model: Any, *, trains: tuple[str, ...]) -> int:
    """Of all weights: in 8 bits with f32 steps for each channel, in bfloat16, or in float32 where they train."""
    from openpi_ript.model.pi0 import Pi0
    from openpi_ript.weights import model_shapes

    total = 0
    for name, leaf in model_shapes(Pi0(model)).items():
        size, last = int(np.prod(leaf.shape)), name.split("/")[-1]
        if any(part in name for part in trains) or (trains and last == "scale"):  # norms stay in float32 in a run
            total += 4 * size
        elif last == "input_embedding":
            total += size + 4 * leaf.shape[0]
        elif ("/layers/" in name or "/encoderblock/" in name) and last not in ("bias", "scale"):
            summed = -3 if name.split("/")[-2] in ("query", "key", "value") else -2  # the axis of a channel's inputs
            total += size + 4 * size // leaf.shape[summed]
        else:
            total += 2 * size
    return total


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "trains"),
    [
        (("--what", "serve", "--dtype", "int8"), ()),
        (("--model.freeze", "language", "--model.frozen-dtype", "int8"), ("_1/", "/img/", "_in/", "_out/", "_proj/")),
    ],
)
def test_bytes_of_weights_in_eight_bits_are_those_computed_by_hand(words: tuple[str, ...], trains: tuple[str, ...]):
    from configs.openpi_ript import debug

    done = run("openpi_ript/debug", *words, "--topology", "cpu:1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = bytes_by_hand(debug.get_config().model, trains=(*trains, "condition") if trains else ())
    assert found["state"]["params"] == expected
    if trains:
        in_float32 = json.loads(run("openpi_ript/debug", *words[:2], "--topology", "cpu:1", "--json").stdout)
        assert found["flops"] == in_float32["flops"], "products are those of model.dtype"


@pytest.mark.long
def test_fresh_weights_are_born_where_they_lie():
    words = ("--topology", "cpu:4", *SIZES, "--mesh.fsdp", "4", "--mesh.replicate-below", "0", "--json")
    update, init = (json.loads(run("qchunk/debug", *words, "--what", what).stdout) for what in ("update", "init"))
    assert init["state"] == update["state"]
    assert init["batch"] == 0
    assert init["flops"] == {}
    assert init["arguments"] < 100, "the key alone"
    state = sum(init["state"].values())
    assert state <= init["results"] <= state + 10_000, "as large as a device's part"


@pytest.mark.parametrize("kind", ["pretraining", "waypoints", "world"])
def test_shapes_of_driving_are_those_of_its_batches(kind: str, tmp_path: Path):
    from driving.config import AugmentConfig, WaypointConfig, WorldConfig
    from driving.data.batches import open_data
    from driving.tasks.pretrain import PretrainTask
    from driving.tasks.waypoints import WaypointTask
    from driving.train import without_data
    from tests.driving import test_train

    for i in range(6):
        test_train.write_drive(tmp_path, f"drive_{i}", frames=40, start_yaw=float(i))
    config = (test_train.pretraining if kind == "pretraining" else test_train.config)(tmp_path / "run", tmp_path)
    if kind == "world":
        settings = dataclasses.replace(WaypointConfig(hidden_sizes=(16,)), world=WorldConfig())
        augment = AugmentConfig(brightness=0.1)
        data = dataclasses.replace(config.data, offsets_s=(0.0, 0.5), augment=augment)
        config = dataclasses.replace(config, data=data, waypoints=settings)
    task: Any = (PretrainTask if kind == "pretraining" else WaypointTask)(config, open_data(config.data))
    known = without_data(config, {})
    assert shapes(known.batch) == shapes(next(task.batches(0)))
    assert type(known.updates) is type(task)


@pytest.mark.parametrize(
    ("env", "holdout", "rows"),
    [
        ("cube-single-play-singletask-task2-v0", 0.0, 6),
        ("cube-single-play-singletask-task2-v0", 0.5, 8),
        (None, 0.5, 8),
    ],
)
def test_an_evaluation_of_qchunk_is_compiled_for_the_rows_that_it_asks(env: str | None, holdout: float, rows: int):
    """Those of a batch of environments, eval.rows; and of the held-out episodes, as many as of an update."""
    from qchunk.config import EvalConfig
    from qchunk.train import without_data
    from tests.qchunk import recordings

    config = recordings.config(Path("none"), batch=8, holdout=holdout)
    config = dataclasses.replace(config, eval=EvalConfig(env=env, rows=6, num_envs=3))
    observation, seeds = without_data(config, {"observation": 3, "action": 2}).evaluated().inputs
    assert seeds.shape == (rows,)
    assert {value.shape[0] for value in jax.tree.leaves(observation)} == {rows}


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
    ours = shapes(without_data(config, {"observation": dims.observation, "action": dims.action}).batch)
    assert ours == {name: real[name] for name in ours}
    assert {name.split("'")[-2] for name in real.keys() - ours.keys()} <= {"state"}, "recorded too, and seen by nobody"


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


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("update", "a smaller --train.batch-size than 32, or --train.grad-accum-steps; a device with more memory"),
        ("serve", "--dtype bfloat16 or int8, fewer --rows; a device with more memory"),
        ("evaluate", "fewer --env.rows; a device with more memory"),
        ("init", "a device with more memory"),
    ],
)
def test_the_advice_is_what_the_program_reads(what: Any, expected: str):
    config, _ = load(["--config", "configs/openpi_ript/debug_ript.py", "--train.batch-size", "32"])
    report = SimpleNamespace(what=what, state={"weights": 1}, temporary=100, batch=0, devices=1)
    assert verb.advice(report, config) == expected  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_program_that_cannot_be_read_back_has_its_memory_told(error: Any, monkeypatch: pytest.MonkeyPatch):
    from chunkwise.train import exchanges
    from chunkwise.train.ahead import Program

    def unread(text: str) -> dict[str, float]:
        raise error(text)

    monkeypatch.setattr(exchanges, "bytes_sent", unread)
    double: Any = jax.jit(lambda x: 2 * x).lower(jax.ShapeDtypeStruct((6,), np.dtype("float32"))).compile()
    program = Program(compiled=double, state={}, batch=0, flops={"float32": 6.0}, seconds=1.0)
    target = targets.target_named("v5p:2x2x1")
    found = verb.report_of(program, config="a", topology="v5p:2x2x1", what="update", target=target)
    assert found.sent is None
    assert (found.arguments, found.results) == (24, 24)
    assert set(found.bounds) == {"products", "memory"}
    assert "sent in one run: not known" in str(found)


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
        long(("driving/debug", "--topology", "cpu:1", "--size", "action=5"), 64, "this package needs no sizes"),
        (("driving/debug", "--topology", "cpu:3"), 64, "not divisible by 3 devices"),
        (("driving/debug", "--topology", "cpu:1", "--model.witdh", "5"), 64, "witdh"),
        (("driving/debug", "--topology", "cpu:1", "--rows", "2"), 64, "of --what serve alone, found --what update"),
        (("driving/debug", "--topology", "cpu:2", "--what", "evaluate"), 64, "runs on one device"),
        (("driving/debug", "--topology", "cpu:2", "--find"), 64, "for devices whose memory is known"),
        long(("driving/pretrain", "--topology", "cpu:1", "--what", "serve"), 64, "a pretraining has no policy"),
        long(
            ("openpi_ript/sft", "--topology", "cpu:1", "--what", "evaluate"),
            64,
            "it has no eval, and data.holdout is 0",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(words: tuple[str, ...], code: int, message: str):
    done = run(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_compiler_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    for text, extra in (("v6e:4x4", "[tpu]"), ("l4:1", "[cuda]")):
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


DEBUG = [("qchunk/debug", *SIZES), ("driving/debug",), ("openpi_ript/debug",)]


@pytest.mark.long
@pytest.mark.extra  # tpu, 0.7 GB
@pytest.mark.parametrize("words", DEBUG)
def test_a_tpu_that_is_not_here_is_compiled_for(words: tuple[str, ...]):
    done = run(*words, "--topology", "v5e:2x2", "--train.batch-size", "8", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["capacity"] == 16 * 2**30
    assert set(found["bounds"]) == {"products", "memory", "exchanges"}


@pytest.mark.long
@pytest.mark.extra  # cuda, 3.4 GB
@pytest.mark.parametrize("words", DEBUG)
def test_a_gpu_that_is_not_here_is_compiled_for(words: tuple[str, ...]):
    done = run(*words, "--topology", "h100:2", "--train.batch-size", "8", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["capacity"] == 80e9
    assert found["sent"], "two devices sum their gradients"


def test_state_bytes_are_of_one_device():
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from chunkwise.train import ahead

    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    leaf = jax.ShapeDtypeStruct((6, 4), np.dtype("float32"), sharding=NamedSharding(mesh, PartitionSpec("d")))
    assert ahead._on_one({"a": leaf, "b": leaf}) == 2 * 6 * 4 * 4
