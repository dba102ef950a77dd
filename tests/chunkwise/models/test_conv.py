"""The project's convolution against flax's and XLA's own."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.models.layers import Conv, convolve, max_pool


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((7, 9), (3, 3)),
        *(pytest.param(*one, marks=pytest.mark.long) for one in [((8, 6), (3, 3)), ((9, 8), (7, 7)), ((5, 5), (1, 1))]),
    ],
)
def test_equal_to_flax_with_its_own_weights(size: tuple[int, int], window: tuple[int, int], stride: int):
    x = jax.random.normal(jax.random.key(0), (2, *size, 3))
    theirs: Any = nn.Conv(5, window, strides=stride)
    ours: Any = Conv(5, window, strides=stride)
    params = theirs.init(jax.random.key(1), x)
    params = jax.tree.map(lambda leaf: leaf + jnp.float32(0.1), params)  # a bias that is not 0
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(1), x)) == jax.tree.map(jnp.shape, params)
    np.testing.assert_allclose(ours.apply(params, x), theirs.apply(params, x), atol=1e-5)

    def loss(module: Any, params: Any) -> Any:
        return (module.apply(params, x) ** 2).sum()

    for a, b in zip(*(jax.tree.leaves(jax.grad(loss, argnums=1)(m, params)) for m in (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 6), (7, 9)])
def test_max_pool_equals_flax(size: tuple[int, int], stride: int):
    x = jax.random.normal(jax.random.key(0), (2, *size, 3))
    np.testing.assert_array_equal(max_pool(x, 3, stride), nn.max_pool(x, (3, 3), (stride, stride), "SAME"))


def test_bfloat16_stays_bfloat16():
    x = jnp.ones((1, 4, 4, 2))
    out: Any
    params: Any
    out, params = Conv(3, (3, 3), dtype="bfloat16").init_with_output(jax.random.key(0), x)
    assert out.dtype == jnp.bfloat16
    assert params["params"]["kernel"].dtype == jnp.float32


def elsewhere(*operands: Any, cpu: Any, default: Any) -> Any:
    """Stands in for jax.lax.platform_dependent: as on a GPU or TPU."""
    return default(*operands)


@pytest.mark.parametrize("form", ["product", "own"])
def test_convolution_by_hand(monkeypatch: pytest.MonkeyPatch, form: str):
    if form == "own":
        monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
    x = jnp.arange(9, dtype=jnp.float32).reshape(1, 3, 3, 1)
    out = convolve(x, jnp.ones((3, 3, 1, 1)), 1)[0, :, :, 0]
    np.testing.assert_array_equal(out, [[8, 15, 12], [21, 36, 27], [20, 33, 24]])


@pytest.mark.parametrize(("platform", "own"), [("cpu", 0), ("cuda", 1), ("tpu", 1)])
def test_the_form_is_that_of_the_device_that_it_is_compiled_for(platform: str, own: int):
    """Not of the one that compiles it: chunkwise compile asks for GPUs and TPUs on a CPU."""
    traced = jax.jit(lambda x, kernel: convolve(x, kernel, 1)).trace(jnp.ones((1, 8, 8, 2)), jnp.ones((3, 3, 2, 4)))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.convolution") == own


def test_weights_of_another_precision_than_the_images_are_taken():
    """Images are float32 and weights float64 under JAX_ENABLE_X64; both forms are traced, whatever the device."""
    x = jax.ShapeDtypeStruct((1, 8, 8, 2), jnp.bfloat16)
    assert jax.eval_shape(lambda x: convolve(x, jnp.ones((3, 3, 2, 4)), 1), x).dtype == jnp.float32
