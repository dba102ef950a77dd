"""Operations of products, counted by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.train.flops import flops

B, N, M, P = 5, 7, 11, 3


def counted(function: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> dict[str, float]:
    arrays = [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape in shapes]
    return flops(jax.make_jaxpr(function)(*arrays))


def test_a_product_is_a_multiplication_and_an_addition_for_each_pair():
    assert counted(lambda a, b: a @ b, (N, M), (M, P)) == {"float32": 2 * N * M * P}
    assert counted(lambda a, b: jnp.einsum("bnm,bmp->bnp", a, b), (B, N, M), (B, M, P)) == {
        "float32": 2 * B * N * M * P
    }
    assert counted(lambda a: a + a, (N, M)) == {}
    assert counted(lambda a, b: a @ b, (N, M), (M, P), dtype="bfloat16") == {"bfloat16": 2 * N * M * P}


def test_a_gradient_has_three_products_and_four_where_it_computes_again():
    def loss(w: Any, x: Any) -> Any:
        return (jnp.sin(x @ w) ** 2).sum()

    def plain(w: Any, x: Any) -> Any:
        return jax.grad(loss, argnums=(0, 1))(w, x)

    def again(w: Any, x: Any) -> Any:
        return jax.grad(jax.checkpoint(loss), argnums=(0, 1))(w, x)

    product = 2 * N * M * P
    assert counted(plain, (M, P), (N, M)) == {"float32": 3 * product}
    assert counted(again, (M, P), (N, M)) == {"float32": 4 * product}


def test_loops_count_as_often_as_they_run_and_branches_by_the_dearest():
    def layers(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]

    assert counted(layers, (N, M), (B, M, M)) == {"float32": B * 2 * N * M * M}

    def unknown(x: Any, w: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count.astype(jnp.int32)[0], lambda i, x: x @ w, x)

    assert counted(unknown, (N, M), (M, M), (1,)) == {"float32": 2 * N * M * M}

    def either(x: Any, w: Any) -> Any:
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert counted(either, (N, M), (M, M)) == {"float32": 2 * 2 * N * M * M}


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_meets_each_number_of_the_kernel_for_each_output(groups: int):
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    outputs = B * 4 * 4 * 6  # from 9 x 9 by a kernel of 3 x 3 in steps of 2
    assert counted(convolve, (B, 9, 9, 4), (3, 3, 4 // groups, 6)) == {"float32": 2 * outputs * 3 * 3 * 4 / groups}


def test_functions_with_gradients_of_their_own_count():
    @jax.custom_vjp
    def product(x: Any, w: Any) -> Any:
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    one = 2 * N * M * M
    assert counted(product, (N, M), (M, M)) == {"float32": one}
    gradient = counted(jax.grad(lambda w, x: product(x, w).sum()), (M, M), (N, M))
    assert gradient == {"float32": 3 * one}, "forward, and both of the backward rule"


def test_a_loop_of_unknown_length_runs_as_often_as_is_said():
    def steps(a: Any, n: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, x: x @ a, a)

    program = jax.make_jaxpr(steps)(jax.ShapeDtypeStruct((N, N), np.dtype("float32")), np.int32(3))
    assert flops(program) == {"float32": 2 * N**3}
    assert flops(program, rounds=6) == {"float32": 6 * 2 * N**3}
