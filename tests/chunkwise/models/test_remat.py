"""What is kept of a layer that is computed again: by what its backward pass does a second time."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import RematPolicy
from chunkwise.models.remat import ATTENTION, INPUT, marked, rematerialised
from driving.config import VitConfig
from openpi_ript.config.model import toy

B, N, D = 2, 5, 4
WEIGHT, BATCHED, SINE = 2 * B * N * D * D, 2 * B * N * N * D, "sin"


class Layer(nn.Module):
    """A product with weights, one of tokens with tokens, a sine that its own gradient does not need, a product."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = marked(x, INPUT)
        y = jnp.sin(nn.Dense(D, use_bias=False)(x))
        read = marked(jnp.einsum("bnd,bmd,bme->bne", y, y, y), ATTENTION)
        return x + jnp.sin(nn.Dense(D, use_bias=False)(read))


def gradient_of(policy: RematPolicy | None) -> tuple[Any, Any]:
    module = rematerialised(Layer, policy)(name="layer")
    x = jax.random.normal(jax.random.key(0), (B, N, D))
    params = module.init(jax.random.key(1), x)
    return jax.jit(jax.grad(lambda p: jnp.square(module.apply(p, x)).sum())), params


def operations(jaxpr: Any, name: str) -> list[Any]:
    """Equations of a name, those of what a program calls included."""
    found = [equation for equation in jaxpr.eqns if equation.primitive.name == name]
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += operations(inner, name)
    return found


def counts(policy: RematPolicy | None) -> tuple[int, int, int]:
    """Products with weights, products of tokens with tokens, sines in the program of a gradient."""
    gradient, params = gradient_of(policy)
    program = jax.make_jaxpr(gradient)(params).jaxpr
    products = operations(program, "dot_general")
    batched = [one for one in products if one.params["dimension_numbers"][1][0]]
    return len(products) - len(batched), len(batched), len(operations(program, SINE))


def test_each_policy_computes_again_what_it_does_not_keep():
    everything, nothing = counts(None), counts("nothing")
    # Again both products with weights, and both of tokens: what they read goes into the gradient of the second weights.
    assert nothing[0] == everything[0] + 2
    assert nothing[1] == everything[1] + 2
    assert counts("attention")[:2] == (everything[0] + 2, everything[1] + 1)
    assert counts("products")[:2] == (everything[0], everything[1] + 2)
    assert counts("products")[2] > everything[2]
    assert counts("inputs_on_host") == nothing


def test_an_input_waits_on_the_host():
    for policy in ("inputs_on_host", "nothing"):
        gradient, params = gradient_of(policy)
        puts = operations(jax.make_jaxpr(gradient)(params).jaxpr, "device_put")
        moved = [str(memory) for put in puts for memory in put.params["devices"]]
        assert bool([memory for memory in moved if "Host" in memory]) == (policy == "inputs_on_host"), moved


@pytest.mark.parametrize("policy", ["nothing", "attention", "products", "inputs_on_host"])
def test_gradients_are_those_of_a_layer_that_keeps_everything(policy: RematPolicy):
    (gradient, params), (other, _) = gradient_of(policy), gradient_of(None)
    for found, expected in zip(jax.tree.leaves(gradient(params)), jax.tree.leaves(other(params)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_policy_without_recomputation_is_refused():
    with pytest.raises(ValueError, match=r"model\.remat_policy is attention and model\.remat off.*expected nothing"):
        dataclasses.replace(toy("pi0"), remat_policy="attention")
    with pytest.raises(ValueError, match=r"vit\.remat_policy is products and vit\.remat off"):
        VitConfig(remat_policy="products")
