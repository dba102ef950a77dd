"""Weights in 8 bits: values by hand, bounds of the rounding, and the model that computes with them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from openpi_ript import parity
from openpi_ript.config.model import toy
from openpi_ript.model import int8
from openpi_ript.model.pi0 import Pi0, as_trained, encode, velocity
from openpi_ript.weights import by_path, model_shapes
from tests.openpi_ript.toy_policy import PARITY, compiled, make_model, make_observation, random_params

LINEAR = ("PaliGemma", "llm", "layers", "mlp", "linear")


@pytest.mark.parametrize("module", [np, jnp])
def test_a_matrix_by_hand(module: Any):
    weight = module.asarray([[[127.0, -1.0, 0.0], [63.5, 2.0, 0.0]]], np.float32)
    kept = int8.quantised(LINEAR, weight)
    np.testing.assert_array_equal(kept["int8"], [[[127, -64, 0], [64, 127, 0]]])
    np.testing.assert_allclose(kept["step"], [[[1.0, 2 / 127, 0.0]]], rtol=1e-7)
    assert (kept["int8"].dtype, kept["step"].dtype) == (np.int8, np.float32)
    assert int8.is_quantised(kept)
    assert not int8.is_quantised({"w": kept})
    np.testing.assert_allclose(
        int8.whole({"linear": kept}, "float32")["linear"], [[[127.0, -128 / 127, 0.0], [64.0, 2.0, 0.0]]], rtol=1e-6
    )


# The axis over which a product sums: what enters a channel.
SUMMED = {
    "llm/layers/attn/q_einsum/w": -2,
    "llm/layers/attn/kv_einsum/w": -2,
    "llm/layers/attn/attn_vec_einsum/w": -2,
    "llm/layers/mlp/gating_einsum": -2,
    "llm/layers/mlp_1/linear": -2,
    "llm/embedder/input_embedding": -1,
    "img/Transformer/encoderblock/MlpBlock_0/Dense_0/kernel": -2,
    "img/Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel": -3,
    "img/Transformer/encoderblock/MultiHeadDotProductAttention_0/out/kernel": -2,
}


@pytest.mark.parametrize(("name", "axis"), SUMMED.items())
def test_channels_do_not_share_a_step(name: str, axis: int):
    path = ("PaliGemma", *name.split("/"))
    assert int8.can_be(path)
    shape = model_shapes(Pi0(toy("pi0")))["/".join(path)].shape
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    kept = int8.quantised(path, weight)
    expected = list(shape)
    expected[axis] = 1
    assert kept["step"].shape == tuple(expected)
    assert kept["int8"].shape == shape, "a parameter is known by its shape"
    assert np.abs(kept["int8"]).max(axis=axis).min() == 127, "all of the range is used in each channel"
    error = np.abs(int8.whole(kept, "float32") - weight)
    assert (error <= kept["step"] * (0.5 + 1e-4)).all()


def test_small_arrays_and_adapters_stay_as_they_are():
    for name in ("img/head/kernel", "img/embedding/kernel", "llm/layers/attn/q_einsum/lora_a", "llm/final_norm/scale"):
        assert not int8.can_be(("PaliGemma", *name.split("/")))
    assert not int8.can_be(("action_in_proj", "kernel"))


@pytest.mark.parametrize("kind", ["pi0", pytest.param("pi05", marks=pytest.mark.long)])
def test_a_model_computes_with_them_as_with_rounded_weights(kind: Any):
    model = make_model(kind)
    seen = make_observation(model.config, batch=2)
    frozen = dataclasses.replace(model.config, freeze=("vision", "language", "expert"), frozen_dtype="int8")
    params = random_params(model)
    kept = as_trained(params, frozen)
    rounded = int8.whole(kept, "float32")
    assert jax.tree.structure(rounded) == jax.tree.structure(params)
    sizes = {name: leaf.size for name, leaf in by_path(kept).items()}
    eight = {name for name, leaf in by_path(kept).items() if leaf.dtype == np.int8}
    assert eight == {f"{name}/int8" for name in by_path(params) if int8.can_be(tuple(name.split("/")))}
    assert sum(sizes[name] for name in eight) > 0.6 * sum(sizes.values())

    @compiled
    def v(params: Any) -> Any:
        x_t = jnp.linspace(-1, 1, 2 * 8 * 8).reshape(2, 8, 8)
        return velocity(model, params, encode(model, params, seen), x_t, jnp.array([0.3, 0.9]), None)

    got, same, exact = (np.asarray(v(tree)) for tree in (kept, rounded, params))
    np.testing.assert_allclose(got, same, rtol=0, atol=2e-6 * np.abs(same).max())
    far = np.abs(got - exact).max() / np.abs(exact).max()
    assert 1e-5 < far < 0.05


@pytest.mark.long
@pytest.mark.parametrize(("name", "bound"), [("pi0", 0.06), ("pi05", 0.06)])
def test_openpis_numbers_within_a_bound(name: str, bound: float, monkeypatch: pytest.MonkeyPatch):
    """Against what openpi computed with these weights in float32; the largest difference beside the largest number."""
    fixture = parity.load_fixture(PARITY[0])
    unrounded = parity.model_params

    def rounded(*arguments: Any) -> Any:
        kept = int8.kept_in(unrounded(*arguments), "int8")
        flat = traverse_util.flatten_dict(unrounded(*arguments))
        eight = traverse_util.flatten_dict(int8.whole(kept, "float32"))
        return traverse_util.unflatten_dict({path: eight[path] if int8.can_be(path) else flat[path] for path in flat})

    monkeypatch.setattr(parity, "model_params", rounded)
    found = {one.name: one.relative for one in parity.outputs(fixture, name, "f32")}
    assert f"{name}/f32/v_t" in found
    assert all(1e-5 < far < bound for far in found.values()), found
