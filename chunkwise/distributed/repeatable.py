"""The same bits from the same program on a GPU."""

import importlib.util
import os
import pkgutil

FLAG = "--xla_gpu_deterministic_ops"
"""XLA's: kernels whose sums have an order, and none that is chosen by timing some, which ends otherwise each time."""


def ask_for_repeatable_kernels() -> None:
    """Adds FLAG to XLA_FLAGS where jax has a GPU and nobody has set it, to false for example.

    Without it no two runs of one config were the same to the bit on an H200, and so no resumed run was that of one left
    alone (docs/reliability.md). To be called before jax opens its devices: XLA reads its flags once. Child processes
    take the variable over. Where the variable names a file of flags, nothing can be added, and it is left as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    names_a_file = bool(flags.strip()) and not flags.lstrip().startswith("-")
    if FLAG not in flags and not names_a_file and _has_gpu_plugin():
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=true".strip()


def _has_gpu_plugin() -> bool:
    """Whether jax would find a package for GPUs, which it is not asked for: it need not be imported yet."""
    found = importlib.util.find_spec("jax_plugins")
    places = [] if found is None else list(found.submodule_search_locations or [])
    return any(module.name.startswith(("xla_cuda", "xla_rocm")) for module in pkgutil.iter_modules(places))
