"""Arrays that lie on the devices of several processes, brought to where one process can read them."""

from typing import Any

import jax
from jax.experimental import multihost_utils


def to_host(tree: Any) -> Any:
    """Whole arrays as numpy, wherever their parts lie.

    Every process must call it for arrays that lie on the devices of several; one that lies here whole is read alone.
    """

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return jax.device_get(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, tree)


def to_one_device(tree: Any, *, everywhere: bool = False) -> Any:
    """Copies of whole arrays on the first process's first device; None on the others. Every process must call it.

    Args:
      tree: The arrays.
      everywhere: Whether each process gets a copy, on its own first device.
    """

    def gather(leaf: jax.Array) -> Any:
        whole = to_host(leaf)
        here = everywhere or jax.process_index() == 0
        return jax.device_put(whole, jax.local_devices()[0]) if here else None

    return jax.tree.map(gather, tree)
