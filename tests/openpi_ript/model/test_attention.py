"""Attention in blocks of queries: by numpy, against attention at once, in values, gradients and what it keeps."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from openpi_ript.config.model import toy
from openpi_ript.model.attention import attend
from openpi_ript.model.pi0 import Pi0, flow_loss
from tests.openpi_ript.toy_policy import compiled, make_observation, random_params

B, T, K, G, H = 2, 11, 2, 3, 4
SIZES = (13, 6)
"""Keys of two sources; T and their sum, 19, are lengths that nothing else has."""
N = sum(SIZES)


def draw(dtype: str = "float32", sources: int = 2, seed: int = 0) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), dtype)

    return normal(B, T, K, G, H), [(normal(B, n, K, H), normal(B, n, K, H)) for n in SIZES[:sources]]


def masks(own: bool, keys: int = N) -> Any:
    """Some keys hidden; a row of a mask of its own sees nothing at all."""
    seen = np.random.default_rng(1).random((B, T if own else 1, keys)) < 0.6
    if own:
        seen[1, 3] = False
    return jnp.asarray(seen)


@pytest.mark.parametrize("block", [None, 1, 4, 11, 50])
@pytest.mark.parametrize("own", [False, True])
def test_each_query_averages_values_by_the_softmax_of_its_scores(block: int | None, own: bool):
    q, sources = draw()
    mask = masks(own)
    found = compiled(lambda: attend(q, sources, mask, block))()
    k, v = (np.concatenate([np.asarray(source[i]) for source in sources], axis=1) for i in (0, 1))
    for b, t, kv, g in np.ndindex(B, T, K, G):
        seen = np.asarray(mask)[b, t if own else 0]
        score = np.where(seen, k[b, :, kv] @ np.asarray(q)[b, t, kv, g], -1e30)
        weight = np.exp(score - score.max())
        np.testing.assert_allclose(found[b, t, kv, g], weight @ v[b, :, kv] / weight.sum(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("sources", [1, 2])
def test_gradients_are_those_of_attention_at_once(dtype: str, bound: float, sources: int):
    q, all_sources = draw(dtype, sources)
    weight = jnp.asarray(np.random.default_rng(2).normal(size=q.shape), dtype)
    mask = masks(True, sum(SIZES[:sources]))

    def gradient(block: int | None) -> Any:
        def loss(q: Any, sources: Any) -> Any:
            return (attend(q, sources, mask, block).astype(jnp.float32) * weight.astype(jnp.float32)).sum()

        return compiled(jax.grad(loss, argnums=(0, 1)))(q, all_sources)

    for got, expected in zip(jax.tree.leaves(gradient(4)), jax.tree.leaves(gradient(None)), strict=True):
        assert got.dtype == expected.dtype
        scale = float(jnp.abs(expected.astype(jnp.float32)).max())
        difference = jnp.abs(got.astype(jnp.float32) - expected.astype(jnp.float32))
        assert float(difference.max()) <= bound * scale


def shapes_in(jaxpr: Any) -> set[tuple[int, ...]]:
    """Of all arrays of a program, those of loops and of what they call included."""
    found = {tuple(v.aval.shape) for equation in jaxpr.eqns for v in equation.outvars if hasattr(v.aval, "shape")}
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= shapes_in(inner)
    return found


@pytest.mark.parametrize(("block", "kept"), [(None, True), (4, False)])
def test_scores_of_all_queries_never_exist_in_blocks(block: int | None, kept: bool):
    q, sources = draw(sources=1)
    mask = masks(False, SIZES[0])
    program = jax.make_jaxpr(jax.grad(lambda q: attend(q, sources, mask, block).sum()))(q)
    scores = [shape for shape in shapes_in(program.jaxpr) if np.prod(shape) >= B * K * G * T * SIZES[0]]
    assert bool(scores) == kept, scores


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_a_model_in_blocks_has_the_same_loss_and_gradients(kind: Literal["pi0", "pi05"]):
    observation = make_observation(toy(kind))
    actions = jax.random.normal(jax.random.key(0), (3, 8, 8))
    real = jnp.zeros((3, 8), bool)
    params = random_params(Pi0(toy(kind)))

    def of(block: int | None, remat: bool) -> Any:
        model = Pi0(dataclasses.replace(toy(kind), attention_block=block, remat=remat))

        def loss(params: Any) -> Any:
            return flow_loss(model, params, observation, actions, real, jax.random.key(1))[0]

        return compiled(jax.value_and_grad(loss))(params)

    expected, gradient = of(None, remat=False)
    for remat in (False, True):
        found, ours = of(5, remat=remat)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        for got, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(gradient), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * float(jnp.abs(wanted).max()) + 1e-9)


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"model\.attention_block is 0; expected 1 or above, or None"):
        dataclasses.replace(toy("pi0"), attention_block=0)
