"""One joint pass over prefix and suffix, as pi0's paper draws it: the reference for the cached one.

Plain functions and a loop over layers, f32, nothing shared with the package but the image encoder.
"""

from typing import Any

import jax
import jax.numpy as jnp

from openpi_ript.config.model import ModelConfig
from openpi_ript.model.pi0 import Observation
from openpi_ript.model.siglip import Siglip


def joint_velocity(params: Any, c: ModelConfig, o: Observation, x_t: jax.Array, time: jax.Array) -> jax.Array:
    """Velocity from one attention over all tokens, with the mask written out token by token."""
    b, horizon = x_t.shape[:2]
    prefix, prefix_mask = _prefix(params, c, o)
    suffix, adaptive = _suffix(params, c, o, x_t, time)
    n, s = prefix.shape[1], suffix.shape[1]
    valid = jnp.concatenate([prefix_mask, jnp.ones((b, s), bool)], axis=1)
    # 0: prefix, 1: state, 2: actions. A token sees its own group and those before it.
    group = jnp.array([0] * n + [1] * (s - horizon) + [2] * horizon)
    mask = (group[:, None] >= group[None, :])[None] & valid[:, None, :] & valid[:, :, None]
    positions = jnp.cumsum(valid, axis=1) - 1
    xs, layers = [prefix, suffix], params["PaliGemma"]["llm"]["layers"]
    for i in range(c.language.depth):
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], layers)
        xs = _layer(layer, xs, mask, positions, adaptive, c)
    out, _ = _norm(xs[1], params["PaliGemma"]["llm"]["final_norm_1"], adaptive)
    return _dense(out[:, -horizon:], params["action_out_proj"])


def _prefix(params: Any, c: ModelConfig, o: Observation) -> tuple[jax.Array, jax.Array]:
    siglip = Siglip(c.vision, c.language.width, "float32", None, 1)
    tokens, masks = [], []
    for k in range(o.images.shape[1]):
        image: Any = siglip.apply(
            {"params": params["PaliGemma"]["img"]}, o.images[:, k].astype(jnp.float32) / 127.5 - 1.0
        )
        tokens.append(image)
        masks.append(jnp.repeat(o.image_mask[:, k : k + 1], image.shape[1], axis=1))
    table = params["PaliGemma"]["llm"]["embedder"]["input_embedding"]
    tokens.append(table[o.tokens] * c.language.width**0.5)
    return jnp.concatenate(tokens, axis=1), jnp.concatenate([*masks, o.token_mask], axis=1)


def _suffix(
    params: Any, c: ModelConfig, o: Observation, x_t: jax.Array, time: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    half = c.expert.width // 2
    period = 4e-3 * 1000.0 ** jnp.linspace(0.0, 1.0, half)
    angle = time[:, None] * (1.0 / period * 2 * jnp.pi)[None]
    embedded = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)
    actions = _dense(x_t, params["action_in_proj"])
    if c.kind == "pi05":
        hidden = jax.nn.silu(_dense(embedded, params["time_mlp_in"]))
        return actions, jax.nn.silu(_dense(hidden, params["time_mlp_out"]))
    both = jnp.concatenate([actions, jnp.broadcast_to(embedded[:, None], actions.shape)], axis=2)
    actions = _dense(jax.nn.silu(_dense(both, params["action_time_mlp_in"])), params["action_time_mlp_out"])
    return jnp.concatenate([_dense(o.state, params["state_proj"])[:, None], actions], axis=1), None


def _layer(
    p: Any, xs: list[jax.Array], mask: jax.Array, positions: jax.Array, adaptive: jax.Array | None, c: ModelConfig
) -> list[jax.Array]:
    conditions, names, starts = (None, adaptive), ("", "_1"), (0, xs[0].shape[1])
    normed, gates, qkv = [], [], []
    for x, name, condition in zip(xs, names, conditions, strict=True):
        y, gate = _norm(x, p[f"pre_attention_norm{name}"], condition)
        normed.append(y)
        gates.append(gate)
        q = jnp.einsum("btd,ndh->btnh", y, p["attn"][f"q_einsum{name}"]["w"])
        k, v = jnp.einsum("btd,xkdh->xbtkh", y, p["attn"][f"kv_einsum{name}"]["w"])
        qkv.append((q, k, v))
    q, k, v = (jnp.concatenate(parts, axis=1) for parts in zip(*qkv, strict=True))
    q, k = _rotate(q, positions), _rotate(k, positions)
    k, v = (jnp.repeat(x, c.language.num_heads // c.language.num_kv_heads, axis=2) for x in (k, v))
    logits = jnp.einsum("btnh,bsnh->bnts", q, k) / c.language.head_dim**0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None], logits, -1e30), axis=-1)
    read = jnp.einsum("bnts,bsnh->btnh", weights, v)
    out = []
    for x, name, condition, gate, start in zip(xs, names, conditions, gates, starts, strict=True):
        part = read[:, start : start + x.shape[1]]
        x = x + gate * jnp.einsum("btnh,nhd->btd", part, p["attn"][f"attn_vec_einsum{name}"]["w"])
        y, gate = _norm(x, p[f"pre_ffw_norm{name}"], condition)
        w = p[f"mlp{name}"]
        hidden = jax.nn.gelu(y @ w["gating_einsum"][0]) * (y @ w["gating_einsum"][1])
        out.append(x + gate * (hidden @ w["linear"]))
    return out


def _norm(x: jax.Array, p: Any, condition: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    normed = x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
    if condition is None:
        return normed * (1 + p["scale"][None, None]), jnp.ones((1, 1, 1))
    scale, shift, gate = jnp.split(_dense(condition, p["Dense_0"])[:, None], 3, axis=-1)
    return normed * (1 + scale) + shift, gate


def _dense(x: jax.Array, p: Any) -> jax.Array:
    return x @ p["kernel"] + p["bias"].reshape((1,) * (x.ndim - 1) + (-1,))


def _rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Pairs (i, i + d/2) turned by the angle position / 10000^(2 i / d)."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency[None, None, None]
    pairs = jnp.stack([x[..., :half], x[..., half:]], axis=-1)
    turn = jnp.stack(
        [jnp.stack([jnp.cos(angle), -jnp.sin(angle)], axis=-1), jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)],
        axis=-2,
    )
    turned = jnp.einsum("btnfij,btnfj->btnif", jnp.broadcast_to(turn, (*pairs.shape, 2)), pairs)
    return turned.reshape(x.shape)
