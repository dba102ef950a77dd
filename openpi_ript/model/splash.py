"""Attention of a prefix by jax's splash kernel for TPUs, in forward and backward pass: scores never leave the chip."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from chunkwise.errors import ConfigError
from chunkwise.models.remat import ATTENTION

LANES = 128
"""Of a TPU: heads and blocks are multiples of it."""
LONGEST = 1024
"""Keys that one block takes; longer prefixes go through in blocks of `LANES`."""


def wanted_here() -> bool:
    """Whether this trace is of an update for TPUs, on whose mesh it is (chunkwise/train/sharding.py `on_mesh`).

    An evaluation and a served policy are outside any mesh, and may be on anything.

    Raises:
      ConfigError: The update is for other devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return False
    kind = "unknown devices" if mesh.abstract_device is None else mesh.abstract_device.device_kind
    if "TPU" not in kind:
        raise ConfigError(f"model.splash is on, and the update is for {kind}; its kernel is of TPUs: --model.no-splash")
    return True


def attend(
    q: Float[Array, "b t k g h"],
    keys: Float[Array, "b t k h"],
    values: Float[Array, "b t k h"],
    mask: Bool[Array, "b 1 t"],
    *,
    interpret: bool = False,
) -> Float[Array, "b t k g h"]:
    """Returns what `attention.attend` does, where all queries see the same keys.

    Padding goes by the kernel's segments: every query is of segment 1, and so are the keys that it may see.

    Args:
      q: Queries, scaled; g of them share a key head k. h is a multiple of `LANES`.
      keys: Of the same tokens.
      values: Likewise.
      mask: True where a key may be seen.
      interpret: Runs the kernel step by step on any device, for tests.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return _of_rows(q, keys, values, mask[:, 0], interpret=interpret)
    rows = PartitionSpec(("data", "fsdp"))  # the compiler cannot split a kernel by itself
    split = jax.shard_map(
        lambda *parts: _of_rows(*parts, interpret=interpret), in_specs=rows, out_specs=rows, check_vma=False
    )
    return split(q, keys, values, mask[:, 0])


def _of_rows(
    q: Float[Array, "b t k g h"],
    keys: Float[Array, "b t k h"],
    values: Float[Array, "b t k h"],
    seen: Bool[Array, "b t"],
    *,
    interpret: bool,
) -> Float[Array, "b t k g h"]:
    """As `attend`, of the rows of one device."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (  # Pallas takes a second to import
        splash_attention_kernel as kernel_lib,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    t, g = q.shape[1], q.shape[3]
    length = -(-t // LANES) * LANES
    block = length if length <= LONGEST else LANES

    def padded(x: Array) -> Array:
        return jnp.pad(x, [(0, length - t) if axis == 1 else (0, 0) for axis in range(x.ndim)])

    kernel = kernel_lib.make_splash_mqa_single_device(
        masks.MultiHeadMask([masks.FullMask((length, length))] * g),
        block_sizes=kernel_lib.BlockSizes(
            block_q=LANES,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=LANES,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=LANES,
            block_kv_dq=block,
        ),
        residual_checkpoint_name=ATTENTION,
        interpret=interpret,
    )
    segments = kernel_lib.SegmentIds(q=jnp.ones((q.shape[0], length), jnp.int32), kv=padded(seen).astype(jnp.int32))
    heads_first = padded(q).transpose(0, 2, 3, 1, 4), *(padded(x).transpose(0, 2, 1, 3) for x in (keys, values))
    of_heads = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    read: Any = jax.vmap(of_heads)(*heads_first, segments)
    return read.transpose(0, 3, 1, 2, 4)[:, :t]
