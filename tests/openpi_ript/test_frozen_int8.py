"""Runs whose frozen weights lie in 8 bits: their updates, checkpoints, weights from files, policies."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.model import int8
from openpi_ript.model.lora import trainable
from openpi_ript.policies.policy import Policy
from openpi_ript.policies.saved import read_run_weights
from openpi_ript.train import main
from openpi_ript.weights import by_path, save_openpi
from tests.openpi_ript.small_run import make_dataset, make_task, small_config
from tests.openpi_ript.toy_policy import compiled, make_model, random_params


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data"))


def in_eight_bits(config: OpenpiRiptConfig) -> OpenpiRiptConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, frozen_dtype="int8"))


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2])
def test_updates_are_those_of_rounded_weights(parts: int, root: Path, tmp_path: Path):
    """The frozen language model in 8 bits, against the same numbers in float32."""
    train = TrainConfig(steps=6, batch_size=4, ema_decay=0.5, grad_accum_steps=parts)
    config = small_config(root, tmp_path, train=train)
    eight, plain = make_task(in_eight_bits(config)), make_task(config)
    state = compiled(eight.init)(jax.random.key(3))
    trains = by_path(trainable(state.params, config.model))
    kinds = {name.rsplit("/", 1)[-1] for name, leaf in by_path(state.params).items() if leaf.dtype == jnp.int8}
    assert kinds == {"int8"}
    assert {leaf.dtype.name for name, leaf in by_path(state.params).items() if trains[name]} == {"float32"}
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), int8.whole(state.params, "float32"))
    other = compiled(plain.init)(jax.random.key(3)).replace(params=wide)
    batch = next(plain.batches(0))
    before = by_path(state.params)
    state, metrics = compiled(eight.step)(state, batch)
    other, expected = compiled(plain.step)(other, batch)
    for name in expected:
        np.testing.assert_allclose(metrics[name].value(), expected[name].value(), rtol=1e-5, err_msg=name)
    after = by_path(other.params)
    for name, leaf in by_path(state.params).items():
        if trains[name]:
            np.testing.assert_allclose(leaf, after[name], rtol=0, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(leaf, before[name], err_msg=name)
    assert jax.tree.structure(state.opt_state) != jax.tree.structure(other.opt_state), "none of the frozen is in it"
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.dtype == jnp.int8]
    assert not moments


@pytest.mark.long
def test_weights_of_a_file_are_rounded_where_they_are_frozen(root: Path, tmp_path: Path):
    stored = random_params(make_model("pi0"))
    save_openpi(stored, tmp_path / "pi0/params")
    config = in_eight_bits(small_config(root, tmp_path / "run", weights=str(tmp_path / "pi0")))
    task = make_task(config)
    state = task.load(task.init(jax.random.key(0)))
    loaded = by_path(state.params)
    for name, leaf in by_path(stored).items():
        path = tuple(name.split("/"))
        if "llm" in path and not name.endswith("scale") and "_1" not in name:
            expected = int8.quantised(path, np.asarray(leaf))
            np.testing.assert_array_equal(loaded[f"{name}/int8"], expected["int8"], err_msg=name)
            np.testing.assert_array_equal(loaded[f"{name}/step"], expected["step"], err_msg=name)
        else:
            np.testing.assert_array_equal(loaded[name], leaf, err_msg=name)


@pytest.mark.long
def test_a_run_is_stopped_goes_on_bit_for_bit_and_acts(root: Path, tmp_path: Path):
    whole, cut = (in_eight_bits(small_config(root, tmp_path / name)) for name in ("whole", "cut"))
    main(whole, "test")
    main(dataclasses.replace(cut, train=dataclasses.replace(cut.train, steps=4)), "test")
    main(dataclasses.replace(cut, run=dataclasses.replace(cut.run, resume=True)), "test")
    digests = [json.loads((tmp_path / name / "done.json").read_text())["digest"] for name in ("whole", "cut")]
    assert digests[0] == digests[1]
    _, params = read_run_weights(tmp_path / "whole", config=whole)
    table = by_path(params)["PaliGemma/llm/embedder/input_embedding/int8"]
    assert table.dtype == jnp.int8
    for dtype in ("float32", "bfloat16", "int8"):
        policy = Policy.from_checkpoint(tmp_path / "whole", dtype=dtype)
        kept = by_path(policy._params)
        np.testing.assert_array_equal(kept["PaliGemma/llm/embedder/input_embedding/int8"], table)
        assert np.isfinite(policy.infer(policy.example() | {"prompt": "move"})["actions"]).all()
