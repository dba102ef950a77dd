import dataclasses
import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.train import sharding
from openpi_ript.config.experiment import GuidanceConfig
from openpi_ript.config.model import LoraConfig, Optimality, full, full_lora
from openpi_ript.config.ppo import PpoConfig
from openpi_ript.model.flow_sde import chain_log_prob
from openpi_ript.model.guidance import guided_loss
from openpi_ript.model.lora import Einsum, FeedForward, count, stop_frozen, train_only, trainable, trained_gradient
from openpi_ript.model.pi0 import (
    Observation,
    Pi0,
    encode,
    flow_error,
    flow_loss,
    gathered_outside_layers,
    init_params,
    velocity,
)
from openpi_ript.tasks.ppo import ppo_loss
from openpi_ript.weights import by_path, fit_to_model
from tests.openpi_ript.toy_policy import (
    PARITY,
    compiled,
    make_actions,
    make_model,
    make_observation,
    random_params,
)

LORA = LoraConfig(rank=2, alpha=6.0)  # scale 3


def draw(module: nn.Module, x: jax.Array) -> dict[str, Any]:
    """Random weights of every name that the module asks for."""
    shapes: Any = jax.eval_shape(lambda: module.init(jax.random.key(0), x))["params"]
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for name, leaf in shapes.items()}


@pytest.mark.parametrize(
    ("equation", "shape", "x_shape", "half_a", "half_b"),
    [
        ("btd,ndh->btnh", (2, 5, 3), (1, 4, 5), "btd,ndr->btnr", "btnr,nrh->btnh"),
        ("btd,xkdh->xbtkh", (2, 1, 5, 3), (1, 4, 5), "btd,xkdr->xbtkr", "xbtkr,xkrh->xbtkh"),
        ("btnh,nhd->btd", (2, 3, 5), (1, 4, 2, 3), "btnh,nhr->btr", "btr,nrd->btd"),
    ],
)
def test_adapter_of_attention_weights(
    equation: str, shape: tuple[int, ...], x_shape: tuple[int, ...], half_a: str, half_b: str
) -> None:
    module = Einsum(equation, shape, nn.initializers.zeros, LORA)
    x = jnp.asarray(np.random.default_rng(1).normal(size=x_shape), jnp.float32)
    p = draw(module, x)
    assert p["lora_a"].shape == (*shape[:-1], 2)
    assert p["lora_b"].shape == (*shape[:-2], 2, shape[-1])
    w, a, b = (np.asarray(p[name], np.float64) for name in ("w", "lora_a", "lora_b"))
    expected = np.einsum(equation, x, w) + 3 * np.einsum(half_b, np.einsum(half_a, x, a), b)
    got: Any = module.apply({"params": p}, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_adapter_of_feed_forward_weights() -> None:
    module = FeedForward(6, LORA)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 4)), jnp.float32)
    p = draw(module, x)
    e = {name: np.asarray(leaf, np.float64) for name, leaf in p.items()}
    gating = e["gating_einsum"] + 3 * e["gating_einsum_lora_a"] @ e["gating_einsum_lora_b"]
    linear = e["linear"] + 3 * e["linear_lora_a"] @ e["linear_lora_b"]
    gate = np.asarray(nn.gelu(jnp.asarray(x @ gating[0], jnp.float32)))
    expected = (gate * (x @ gating[1])) @ linear
    got: Any = module.apply({"params": p}, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def adapted_model(**changes: Any) -> Pi0:
    gemma = dataclasses.replace(make_model("pi0").config.language, lora=LORA)
    return make_model("pi0", language=gemma, expert=gemma, **changes)


@pytest.mark.parametrize("fixture", PARITY, ids=lambda path: path.stem)
def test_freezing_both_transformers_freezes_what_openpi_freezes(fixture: Path) -> None:
    with np.load(fixture) as recorded:
        frozen = json.loads(recorded["meta"].tobytes())["models"]["pi0_lora"]["frozen"]
    model = adapted_model(freeze=("language", "expert"))
    trains = by_path(trainable(random_params(model), model.config))
    assert sorted(name for name, train in trains.items() if not train) == sorted(frozen)


def test_each_part_can_be_frozen() -> None:
    for part, name in (
        ("vision", "PaliGemma/img/head/kernel"),
        ("language", "PaliGemma/llm/embedder/input_embedding"),
        ("language", "PaliGemma/llm/layers/mlp/linear"),
        ("expert", "PaliGemma/llm/layers/attn/q_einsum_1/w"),
        ("expert", "PaliGemma/llm/final_norm_1/scale"),
    ):
        model = adapted_model(optimality=True)
        shapes = jax.eval_shape(lambda key, m=model: init_params(m, key), jax.random.key(0))
        everything = by_path(trainable(shapes, model.config))
        assert all(everything.values())
        frozen = by_path(trainable(shapes, dataclasses.replace(model.config, freeze=(part,))))
        assert not frozen[name]
        assert frozen["PaliGemma/llm/layers/attn/q_einsum_1/lora_a"]
        assert frozen["PaliGemma/llm/layers/mlp/linear_lora_b"]
        assert frozen["state_proj/kernel"]
        assert frozen["condition_embedding/embedding"]


def test_frozen_and_trained_weights_at_full_size() -> None:
    config = full_lora("pi0")
    shapes = jax.eval_shape(lambda key: init_params(Pi0(config), key), jax.random.key(0))
    trains = by_path(trainable(shapes, config))
    flat = by_path(shapes)
    trained = {name: flat[name] for name, train in trains.items() if train}
    adapters = sum(leaf.size for name, leaf in trained.items() if "lora" in name)
    assert count(shapes) - adapters == 3_238_048_528
    vision = sum(leaf.size for name, leaf in trained.items() if name.startswith("PaliGemma/img"))
    assert 412_000_000 < vision < 415_000_000  # openpi's adapter setting still trains SigLIP
    assert not any(
        "lora" in name
        for name in by_path(jax.eval_shape(lambda k: init_params(Pi0(full("pi0")), k), jax.random.key(0)))
    )


def test_a_step_moves_trained_weights_alone() -> None:
    model = adapted_model(freeze=("vision", "language", "expert"))
    pretrained = random_params(make_model("pi0"))
    params = jax.tree.map(jnp.asarray, fit_to_model(pretrained, model, jax.random.key(1)))
    trains = trainable(params, model.config)
    seen, actions, time = make_observation(model.config), make_actions(model.config), jnp.full((3,), 0.4)

    def loss(params: Any) -> jax.Array:
        params = stop_frozen(params, trains)
        return flow_error(model, params, encode(model, params, seen), actions, -actions, time, None).mean()

    gradient = compiled(jax.grad(loss))(params)
    optimiser = train_only(optax.adamw(1e-2, weight_decay=0.1), trains)
    state = jax.jit(optimiser.init)(params)
    moments = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim > 0)
    trained = [leaf.size for leaf, train in zip(jax.tree.leaves(params), jax.tree.leaves(trains), strict=True) if train]
    assert moments == 2 * sum(trained)  # Adam keeps nothing for frozen weights
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes int32 and float
        updates, _ = compiled(optimiser.update)(gradient, state, params)
    applied: Any = optax.apply_updates(params, updates)
    after = by_path(applied)
    for name, train in by_path(trains).items():
        before = by_path(params)[name]
        changed = bool((after[name] != before).any())
        assert changed == train, name
        assert train or not by_path(gradient)[name].any()


@pytest.mark.parametrize(
    ("objective", "parts", "block"),
    [
        ("flow", 1, None),
        pytest.param("flow", 2, None, marks=pytest.mark.long),
        pytest.param("flow", 1, 16, marks=pytest.mark.long),
        pytest.param("guided", 1, None, marks=pytest.mark.long),
        pytest.param("ppo", 1, None, marks=pytest.mark.long),
    ],
)
def test_gradients_of_layers_wait_in_the_dtype_of_products(
    objective: str, parts: int, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what they are in float32, for large matrices alone, and zeros where nothing trains.

    Under guidance and in PPO, too, whose branches and denoising steps share the expert's matrices: their gradient is
    that of one product over all of them, or it would be added up in 16 bits.
    """
    monkeypatch.setattr(sharding, "TRAVELS_APART", 32 * 16)
    changes = {"dtype": "bfloat16", "remat": True, "freeze": ("vision",), "hidden_block": block}
    model = make_model("pi0", **changes, optimality=objective == "guided")
    params, trains = random_params(model), trainable(random_params(model), model.config)
    actions = make_actions(model.config, batch=2)
    batch = {"observation": make_observation(model.config, batch=2)._asdict(), "actions": actions}
    rng = np.random.default_rng(0)
    label, advantage = jnp.array([Optimality.POSITIVE, Optimality.NEGATIVE]), jnp.array([1.0, 0.5])
    chain = jnp.asarray(rng.normal(size=(2, 4, *actions.shape[1:])), jnp.float32)
    batch |= {"label": label, "advantages": advantage, "chain": chain, "valid": jnp.ones((2, 8), bool)}
    if objective == "ppo":  # near ratios of 1, or there would be no gradient
        context, dims = encode(model, params, Observation(**batch["observation"])), model.config.action_dim

        def field(x: Any, time: Any) -> Any:
            return velocity(model, params, context, x, time, None)

        batch["log_prob"] = chain_log_prob(field, chain, level=PpoConfig().noise, dims=dims)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        params = stop_frozen(gathered_outside_layers(params), trains)
        if objective == "ppo":
            return ppo_loss(model, params, batch, PpoConfig(clip=1e9), model.config.action_dim)
        chunks = Observation(**batch["observation"]), batch["actions"], ~batch["valid"]
        if objective == "flow":
            return flow_loss(model, params, *chunks, key)
        return guided_loss(model, params, *chunks, batch["label"], batch["advantages"], GuidanceConfig(), key)

    def of(dtype: str) -> Any:
        options: Any = {"xla_backend_optimization_level": 0, "xla_allow_excess_precision": False}
        weights = {f"{objective}_loss": 1.0}
        step = jax.jit(
            lambda params: trained_gradient(loss, weights, params, trains, batch, jax.random.key(1), parts, dtype)[0],
            compiler_options=options,
        )
        return by_path(step(params))

    found, expected = of("bfloat16"), of("float32")
    narrow = {name for name, leaf in found.items() if leaf.dtype == jnp.bfloat16}
    assert (narrow == set()) == (parts == 2), "sums are in float32"
    if parts == 1:
        layers = {name: leaf for name, leaf in expected.items() if "/layers/" in name}
        assert narrow == {name for name, leaf in layers.items() if leaf.ndim > 2 and leaf[0].size >= 32 * 16}
        for part in ("mlp", "mlp_1"):
            assert f"PaliGemma/llm/layers/{part}/linear" in narrow
            assert expected[f"PaliGemma/llm/layers/{part}/linear"][0].all(), "each number of the first layer has one"
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf.astype(jnp.float32), expected[name], err_msg=name)
        assert by_path(trains)[name] or not leaf.any(), name
