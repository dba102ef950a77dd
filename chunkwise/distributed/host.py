"""Arrays that lie on the devices of several processes, brought to where one process can read them."""

from typing import Any

import jax
from jax.experimental import multihost_utils


def to_host(tree: Any) -> Any:
    """Whole arrays as numpy, on every process, wherever their parts lie; every process must call it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(lambda leaf: multihost_utils.process_allgather(leaf, tiled=True), tree)


def to_one_device(tree: Any) -> Any:
    """Whole arrays on the first process's first device; None on the others. Every process must call it."""

    def gather(leaf: jax.Array) -> Any:
        whole = to_host(leaf)
        return jax.device_put(whole, jax.local_devices()[0]) if jax.process_index() == 0 else None

    return jax.tree.map(gather, tree)
