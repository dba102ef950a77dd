"""The kernel for TPUs, interpreted on the CPU: numbers and gradients of attention at once; where it is taken at all."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.errors import ConfigError
from openpi_ript.config.model import toy
from openpi_ript.model import splash
from openpi_ript.model.attention import attend
from openpi_ript.model.gemma import LANGUAGE, Attention

B, K, G, H = 2, 1, 2, 256


def draw(t: int, dtype: str) -> tuple[Any, ...]:
    """Queries, keys, values, and a mask that hides keys in the middle and at the end."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((B, t, K, G, H), (B, t, K, H), (B, t, K, H)))
    seen = rng.random((B, 1, t)) < 0.6
    seen[1, 0, t // 2 :] = False
    return q * jnp.asarray(H**-0.5, dtype), k, v, jnp.asarray(seen)


@pytest.mark.parametrize(("t", "dtype", "bound"), [(130, "float32", 2e-6), (20, "bfloat16", 1e-2)])
def test_numbers_and_gradients_are_those_of_attention_at_once(t: int, dtype: str, bound: float):
    q, k, v, mask = draw(t, dtype)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=q.shape), jnp.float32)

    def of(function: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            read = function(q, k, v)
            return (read.astype(jnp.float32) * weight).sum(), read

        gradient, read = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        return read, *gradient

    ours = of(lambda q, k, v: splash.attend(q, k, v, mask, interpret=True))
    expected = of(lambda q, k, v: attend(q, [(k, v)], mask, None))
    for found, wanted in zip(ours, expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        difference = np.abs(np.asarray(found, np.float32) - np.asarray(wanted, np.float32)).max()
        assert difference <= bound * np.abs(np.asarray(wanted, np.float32)).max()


def on(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    """Traces as an update on devices of a kind; None: outside any mesh."""
    device = None if kind is None else SimpleNamespace(device_kind=kind)
    mesh = SimpleNamespace(empty=kind is None, abstract_device=device)
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: mesh)


def test_it_is_taken_by_updates_on_tpus_alone(monkeypatch: pytest.MonkeyPatch):
    on(monkeypatch, "TPU v5p")
    assert splash.wanted_here()
    on(monkeypatch, None)
    assert not splash.wanted_here()
    on(monkeypatch, "NVIDIA H100 80GB HBM3")
    with pytest.raises(
        ConfigError, match=r"model\.splash is on, and the update is for NVIDIA H100.*--model\.no-splash"
    ):
        splash.wanted_here()


def test_it_reads_the_prefix_alone(monkeypatch: pytest.MonkeyPatch):
    """The suffix attends to keys and values of the prefix too, which the kernel does not take."""
    lengths: list[int] = []

    def kernel(q: Any, keys: Any, values: Any, mask: Any) -> Any:
        lengths.append(q.shape[1])
        return attend(q, [(keys, values)], mask, None)

    monkeypatch.setattr(splash, "wanted_here", lambda: True)
    monkeypatch.setattr(splash, "attend", kernel)
    config = toy("pi0").language
    prefix, suffix = jnp.ones((1, 5, config.width)), jnp.ones((1, 2, config.width))
    first, then = jnp.arange(5)[None], 5 + jnp.arange(2)[None]

    def run(on: bool) -> None:
        attention = Attention((config, config), None, splash=on)
        mask = jnp.ones((1, 1, 5), bool)
        (_, cache), variables = attention.init_with_output(jax.random.key(0), prefix, None, first, mask, LANGUAGE)
        attention.apply(variables, suffix, cache, then, jnp.ones((1, 1, 7), bool), LANGUAGE)

    run(True)
    assert lengths == [5]
    run(False)
    assert lengths == [5]


def test_heads_that_a_tpu_cannot_take_are_refused():
    with pytest.raises(ValueError, match=r"model\.splash is on and model\.language\.head_dim 16; expected a multiple"):
        dataclasses.replace(toy("pi0"), splash=True)
