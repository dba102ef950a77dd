"""Two Gemma transformers that share attention: the language model reads the prefix, the action expert the suffix.

The prefix (images, prompt) never attends to the suffix (state, actions), so the two run one after the other: the
language model once, keeping keys and values of every layer; then the expert, whose queries attend to those and to
its own. That equals one joint pass in values and gradients, skips the quarter of the attention that is masked, and
lets any number of suffixes share one prefix. Sources: arXiv:2403.08295 (Gemma), arXiv:2410.24164 (pi0, expert),
arXiv:2504.16054 (pi0.5, adaptive norms). Parameter names and shapes are those of openpi's checkpoints: the expert's
have the suffix _1, and layers are stacked on a leading axis.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from chunkwise.config.experiment import RematPolicy
from chunkwise.models.remat import ATTENTION, INPUT, marked, rematerialised
from openpi_ript.config.model import GemmaConfig
from openpi_ript.model import int8, splash
from openpi_ript.model.attention import attend
from openpi_ript.model.lora import Einsum, FeedForward

LANGUAGE, EXPERT = 0, 1

LayerCache = tuple[Float[Array, "b _n heads head"], Float[Array, "b _n heads head"]]
"""Keys (rotated) and values of some tokens in one layer."""
KeysValues = tuple[Float[Array, "layers b _n heads head"], Float[Array, "layers b _n heads head"]]
"""The same in all layers."""


class RmsNorm(nn.Module):
    """x / rms(x) (1 + scale), in f32; with a condition, scale and shift come from it, and a gate for the residual."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "b n d"], condition: Float[Array, "b d"] | None
    ) -> tuple[Float[Array, "b n d"], Float[Array, "b 1 d"] | None]:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6)
        if condition is None:
            scale = self.param("scale", nn.initializers.zeros, (x.shape[-1],))
            return (normed * (1 + scale[None, None])).astype(x.dtype), None
        modulation = nn.Dense(3 * x.shape[-1], kernel_init=nn.initializers.zeros, dtype=x.dtype, name="Dense_0")
        scale, shift, gate = jnp.split(modulation(condition)[:, None], 3, axis=-1)
        normed = normed * (1 + scale.astype(jnp.float32)) + shift.astype(jnp.float32)
        return normed.astype(x.dtype), gate


class Attention(nn.Module):
    """Attention of one transformer's tokens to themselves and to cached keys and values."""

    configs: tuple[GemmaConfig, GemmaConfig]
    block: int | None
    """Queries at a time."""
    splash: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: LayerCache | None,
        positions: Int[Array, "b t"],
        mask: Bool[Array, "b #t _n"],
        which: int,
    ) -> tuple[Float[Array, "b t d"], LayerCache]:
        c = self.configs[which]
        init = nn.initializers.lecun_normal
        q_shape, kv_shape = (c.num_heads, c.width, c.head_dim), (2, c.num_kv_heads, c.width, c.head_dim)
        q_init, kv_init = init(batch_axis=(0,)), init(batch_axis=(0, 1))
        q = Einsum("btd,ndh->btnh", q_shape, q_init, c.lora, name=_name("q_einsum", which))(x)
        k, v = Einsum("btd,xkdh->xbtkh", kv_shape, kv_init, c.lora, name=_name("kv_einsum", which))(x)
        q = rotate(q, positions) * c.head_dim**-0.5
        own = rotate(k, positions), v

        q = q.reshape(*q.shape[:2], c.num_kv_heads, -1, c.head_dim)
        if cache is None and self.splash and splash.wanted_here():
            read = splash.attend(q, *own, mask)
        else:
            read = attend(q, [own] if cache is None else [cache, own], mask, self.block)
        read = marked(read, ATTENTION)
        read = read.reshape(*read.shape[:2], c.num_heads, c.head_dim)

        out_shape, out_init = (c.num_heads, c.head_dim, c.width), init(in_axis=(-3, -2), out_axis=-1)
        out = Einsum("btnh,nhd->btd", out_shape, out_init, c.lora, name=_name("attn_vec_einsum", which))
        return out(read), own


class Block(nn.Module):
    """One layer of either transformer."""

    configs: tuple[GemmaConfig, GemmaConfig]
    block: int | None
    """Queries at a time."""
    hidden_block: int | None
    """Hidden units of the language model at a time."""
    splash: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: LayerCache | None,
        positions: Int[Array, "b t"],
        mask: Bool[Array, "b #t _n"],
        condition: Float[Array, "b d"] | None,
        which: int,
    ) -> tuple[Float[Array, "b t d"], LayerCache]:
        c = self.configs[which]
        x = marked(x, INPUT)
        y, gate = RmsNorm(name=_name("pre_attention_norm", which))(x, condition)
        y, cache = Attention(self.configs, self.block, self.splash, name="attn")(y, cache, positions, mask, which)
        x = x + (y if gate is None else y * gate)
        y, gate = RmsNorm(name=_name("pre_ffw_norm", which))(x, condition)
        hidden = self.hidden_block if which == LANGUAGE else None
        y = FeedForward(c.mlp_dim, c.lora, hidden, name=_name("mlp", which))(y)
        return x + (y if gate is None else y * gate), cache


class Embedder(nn.Module):
    """Table of token embeddings, scaled by the square root of the width."""

    vocab_size: int
    width: int

    @nn.compact
    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n d"]:
        table = self.param("input_embedding", nn.initializers.normal(), (self.vocab_size, self.width))
        return int8.rows(table, tokens) * jnp.sqrt(jnp.float32(self.width))


class Gemma(nn.Module):
    """The two transformers; a call runs one of them."""

    configs: tuple[GemmaConfig, GemmaConfig]
    """Language model and action expert."""
    vocab_size: int
    dtype: str
    remat: RematPolicy | None
    """None: nothing is computed again."""
    unroll: int
    block: int | None
    """Queries of which attention keeps the scores at a time; None: all."""
    hidden_block: int | None
    """Hidden units that the language model's feed-forward layers keep at a time; None: all."""
    splash: bool
    """Whether the language model's attention is a kernel where it trains on TPUs."""

    def setup(self) -> None:
        in_axes: Any = (0, *(4 * [nn.broadcast]))  # each layer has its own cache
        # With FSDP a layer's weights are put together for that layer alone; with remat again in the backward pass, else
        # they are kept until then.
        gather = functools.partial(_gathered, dtype=self.dtype, hidden_block=self.hidden_block)
        whole: Any = nn.map_variables(Block, "params", gather, init=True)
        block = rematerialised(whole, self.remat, prevent_cse=False, static_argnums=(6,))
        self.embedder = Embedder(self.vocab_size, self.configs[LANGUAGE].width)
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=in_axes,
            length=self.configs[LANGUAGE].depth,
            unroll=self.unroll,
        )(self.configs, self.block, self.hidden_block, self.splash)
        self.final_norm = RmsNorm()
        self.final_norm_1 = RmsNorm()

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n d"]:
        """Token embeddings, in the transformers' dtype."""
        return self.embedder(tokens).astype(self.dtype)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: KeysValues | None,
        positions: Int[Array, "b t"],
        mask: Bool[Array, "b #t _n"],
        condition: Float[Array, "b d"] | None,
        which: int,
    ) -> tuple[Float[Array, "b t d"], KeysValues]:
        """Output of the last layer, normed, and keys and values of all layers.

        Args:
          x: Embedded tokens of one transformer.
          cache: Keys and values that they attend to beside their own, layers first; None: only their own.
          positions: Index of each token in the whole sequence.
          mask: True where a token (axis 1, of size 1 if all alike) may attend to cached tokens, then to own ones.
          condition: For the adaptive norms; None uses plain ones.
          which: LANGUAGE or EXPERT.
        """
        x, own = self.layers(x.astype(self.dtype), cache, positions, mask, condition, which)
        norm = (self.final_norm, self.final_norm_1)[which]
        return norm(x, condition)[0], own


def _gathered(variables: Any, dtype: str, hidden_block: int | None) -> Any:
    """A layer's weights whole, but for those that the language model's feed-forward part gathers a block at a time."""

    def ready(name: str, part: Any) -> Any:
        in_blocks = name == "mlp" and hidden_block is not None
        return int8.whole(part, dtype) if in_blocks else int8.gathered(part, dtype)

    return {kind: {name: ready(name, part) for name, part in tree.items()} for kind, tree in variables.items()}


def rotate(x: Float[Array, "b t n d"], positions: Int[Array, "b t"]) -> Float[Array, "b t n d"]:
    """Rotary position embedding (arXiv:2104.09864) with wavelengths up to 10,000, in f32, halves as pairs."""
    half = x.shape[-1] // 2
    timescale = 10_000 ** ((2.0 / x.shape[-1]) * jnp.arange(half, dtype=jnp.float32))
    angle = positions.astype(jnp.float32)[..., None, None] / timescale[None, None, None]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def _name(name: str, which: int) -> str:
    return name if which == LANGUAGE else f"{name}_1"
