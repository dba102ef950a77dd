"""Weights with low-rank adapters, and the choice of which weights train."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import traverse_util
from jaxtyping import Array, Float, Key

from chunkwise.state import tree_merge
from chunkwise.train import gradients
from chunkwise.train.metrics import Mean
from chunkwise.train.sharding import Exchanged, all_gather_params, in_blocks, travels_apart
from openpi_ript.config.model import LoraConfig, ModelConfig, Part

# A fresh adapter adds nothing: b starts at 0 (arXiv:2106.09685, section 4.1). openpi draws both from
# normal(0.01), so that its adapted model differs from the pretrained one before the first step.
A_INIT = nn.initializers.normal(0.01)
B_INIT = nn.initializers.zeros

_STACKED = {"layers", "encoderblock"}
"""Parts whose weights have an axis of layers, and are gathered a layer at a time."""


class Einsum(nn.Module):
    """einsum(x, w), plus an adapter of rank r between the last two axes of w.

    With equation "btd,ndh->btnh" the adapter computes "btd,ndr->btnr" and then "btnr,nrh->btnh". An axis of w that
    is summed but is not one of the last two is summed in both halves, as openpi's checkpoints expect: of
    "btnh,nhd->btd" the halves are "btnh,nhr->btr" and "btr,nrd->btd".
    """

    equation: str
    """Of x and w; w's last two letters are input and output of the adapter. The letter r is taken."""
    shape: tuple[int, ...]
    initializer: nn.initializers.Initializer
    lora: LoraConfig | None

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        w = self.param("w", self.initializer, self.shape)
        y = jnp.einsum(self.equation, x, w.astype(x.dtype))
        if self.lora is None:
            return y
        rank = self.lora.rank
        a = self.param("lora_a", A_INIT, (*self.shape[:-1], rank))
        b = self.param("lora_b", B_INIT, (*self.shape[:-2], rank, self.shape[-1]))
        operands, out = self.equation.split("->")
        left, right = operands.split(",")
        enters, leaves = right[-2], right[-1]
        middle = out.replace(leaves, "r")
        low = jnp.einsum(f"{left},{right.replace(leaves, 'r')}->{middle}", x, a.astype(x.dtype))
        added = jnp.einsum(f"{middle},{right.replace(enters, 'r')}->{out}", low, b.astype(x.dtype))
        return y + added * self.lora.scale


class FeedForward(nn.Module):
    """Gated GELU: (gelu(x w_0) * (x w_1)) w_out, each product with its adapter."""

    mlp_dim: int
    lora: LoraConfig | None
    block: int | None = None
    """Hidden units at a time, a divisor of mlp_dim, whose weights are gathered here; None: all, gathered before."""

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        width = x.shape[-1]
        stacked_init = nn.initializers.lecun_normal(batch_axis=(0,))
        gating = self._weights("gating_einsum", (2, width, self.mlp_dim), stacked_init)
        linear = self._weights("linear", (self.mlp_dim, width), nn.initializers.lecun_normal())
        if self.block is None:
            return self._through(x, gating, linear)
        return self._in_blocks(x, (*gating, *linear), self.block)

    def _through(
        self, x: Float[Array, "b n d"], gating: Sequence[Array], linear: Sequence[Array]
    ) -> Float[Array, "b n d"]:
        """What comes of x by the hidden units whose weights these are."""
        gate, up = (jax.tree.map(lambda leaf, i=i: leaf[i], gating) for i in (0, 1))
        return self._product(nn.gelu(self._product(x, gate)) * self._product(x, up), linear)

    def _in_blocks(self, x: Float[Array, "b n d"], weights: Sequence[Any], size: int) -> Float[Array, "b n d"]:
        """As `_through`, a block of hidden units at a time, which the backward pass computes again.

        Of weights that are split over devices a block at a time is put together. Numbers of a unit, and gradients of
        its weights, are those of all at once. Sums over units (the output, and gradients of x and of the halves of
        adapters that all units share) are made of the blocks' sums, in f32.
        """
        axes = (2, 0) if self.lora is None else (2, None, 2, 0, 0, None)  # that of the hidden units
        pairs = list(zip(weights, axes, strict=True))
        own = [in_blocks(weight, axis, size) for weight, axis in pairs if axis is not None]
        shared = all_gather_params([weight for weight, axis in pairs if axis is None], x.dtype.name)
        wide = [one.astype(jnp.float32) for one in (x, *shared)]

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def part(wide: Sequence[Array], own: Sequence[Any]) -> Float[Array, "b n d"]:
            narrow, *shared = (one.astype(x.dtype) for one in wide)
            rest, blocks = iter(shared), iter(own)
            whole = [
                next(rest) if axis is None else all_gather_params(next(blocks), x.dtype.name, axis) for axis in axes
            ]
            half = len(whole) // 2
            return self._through(narrow, whole[:half], whole[half:]).astype(jnp.float32)

        out, _ = jax.lax.scan(lambda total, own: (total + part(wide, own), None), jnp.zeros_like(wide[0]), own)
        return out.astype(x.dtype)

    def _weights(self, name: str, shape: tuple[int, ...], init: nn.initializers.Initializer) -> tuple[Array, ...]:
        """The weight alone, or weight and both halves of its adapter."""
        w = self.param(name, init, shape)
        if self.lora is None:
            return (w,)
        a = self.param(f"{name}_lora_a", A_INIT, (*shape[:-1], self.lora.rank))
        b = self.param(f"{name}_lora_b", B_INIT, (*shape[:-2], self.lora.rank, shape[-1]))
        return w, a, b

    def _product(self, x: Float[Array, "b n _d"], weights: Sequence[Array]) -> Float[Array, "b n _e"]:
        w, *adapter = (weight.astype(x.dtype) for weight in weights)
        if self.lora is None:
            return x @ w
        a, b = adapter
        return x @ w + x @ a @ b * self.lora.scale


def trainable(params: Any, config: ModelConfig) -> Any:
    """Tree of bools, true where a weight trains.

    Weights of the parts in `config.freeze` do not, except their adapters. The heads (projections of state, action,
    time, and the condition embedding) belong to no part and always train.
    """
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
        {path: "lora" in path[-1] or part_of(path) not in config.freeze for path in flat}
    )


def part_of(path: tuple[str, ...]) -> Part | None:
    """Part of the model that a parameter path belongs to; None for the heads."""
    if path[:2] == ("PaliGemma", "img"):
        return "vision"
    if path[:2] == ("PaliGemma", "llm"):
        return "expert" if any(name.endswith("_1") for name in path) else "language"
    return None


def only_where(tree: Any, mask: Any) -> Any:
    """The leaves of a nested dict at which `mask` is true, such as the weights that train."""
    wanted = traverse_util.flatten_dict(mask)
    flat = {path: leaf for path, leaf in traverse_util.flatten_dict(tree).items() if wanted[path]}
    return traverse_util.unflatten_dict(flat)


def trained_gradient(
    loss: gradients.Loss,
    weights: Mapping[str, float],
    params: Any,
    trains: Any,
    batch: Any,
    key: Key[Array, ""],
    micro_batches: int,
    dtype: str,
) -> tuple[Any, dict[str, Mean]]:
    """`gradients.gradient` in the weights where `trains` is true; of the others, which may be in 8 bits, it is 0.

    Gradients of the layers' matrices are left in the dtype of products, as the layers made them: the optimiser widens
    them.

    Args:
      dtype: Of the layers' products, in which they gather their matrices.
    """
    trained: Any = traverse_util.flatten_dict(only_where(params, trains))
    apart = {
        path
        for path, leaf in trained.items()
        if _STACKED & set(path) and travels_apart(leaf.shape[1:]) and leaf.dtype != dtype
    }
    places = {path: jnp.zeros(leaf.shape, dtype) if path in apart else leaf for path, leaf in trained.items()}

    def of_places(places: Any, batch: Any, key: Key[Array, ""]) -> tuple[Float[Array, ""], dict[str, Mean]]:
        both = {path: Exchanged(trained[path], leaf) if path in apart else leaf for path, leaf in places.items()}
        return loss(tree_merge(params, traverse_util.unflatten_dict(both)), batch, key)

    gradient, metrics = gradients.gradient(of_places, weights, places, batch, key, micro_batches)
    return tree_merge(jax.tree.map(jnp.zeros_like, params), traverse_util.unflatten_dict(gradient)), metrics


def stop_frozen(params: Any, trains: Any) -> Any:
    """The same weights, without gradient where `trains` is false; the compiler then drops that backward pass."""
    return jax.tree.map(lambda train, leaf: leaf if train else jax.lax.stop_gradient(leaf), trains, params)


def train_only(optimiser: optax.GradientTransformation, trains: Any) -> optax.GradientTransformation:
    """`optimiser` on the weights where `trains` is true; the others get no update, no decay and no moments."""
    frozen = jax.tree.map(lambda train: not train, trains)
    return optax.chain(optax.masked(optimiser, trains), optax.masked(optax.set_to_zero(), frozen))


def count(params: Any) -> int:
    """Number of weights in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
