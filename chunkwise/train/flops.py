"""Floating-point operations of products in a traced program, loops counted."""

import collections
import math
from typing import Any

from jax.extend import core


def flops(program: Any, *, rounds: int = 1) -> dict[str, float]:
    """Counts multiplications and additions of dot products and convolutions, by the type of the numbers multiplied.

    A compiler's own count takes the body of a loop once, and knows nothing of its kernels. What is computed again
    (jax.checkpoint) is in a gradient's program and counts; of branches the dearest one does.

    Args:
      program: A closed jaxpr, from jax.make_jaxpr.
      rounds: Of a loop whose length the program does not tell.
    """
    return dict(_of(program.jaxpr, rounds))


def _of(jaxpr: Any, rounds: int) -> dict[str, float]:
    found: dict[str, float] = collections.defaultdict(float)
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (over, _), _ = params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            found[left.dtype.name] += 2.0 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in over)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            features = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
            found[kernel.dtype.name] += 2.0 * math.prod(out.shape) * math.prod(kernel.shape) / features
        elif name == "cond":
            branches = [_of(branch.jaxpr, rounds) for branch in params["branches"]]
            for dtype, count in max(branches, key=lambda one: sum(one.values())).items():
                found[dtype] += count
        else:
            times = {"scan": params.get("length", 1), "while": rounds}.get(name, 1)
            for inner in _programs(params):
                for dtype, count in _of(inner, rounds).items():
                    found[dtype] += times * count
    return found


def _programs(params: dict[str, Any]) -> list[Any]:
    """Programs inside an operation: of a call, a loop, a function with a gradient of its own."""
    values = [one for value in params.values() for one in (value if isinstance(value, tuple | list) else [value])]
    closed = [value.jaxpr if isinstance(value, core.ClosedJaxpr) else value for value in values]
    return [value for value in closed if isinstance(value, core.Jaxpr)]  # both are one class from jax 0.11 on
