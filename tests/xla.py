"""XLA's options for programs that compile quickly, and for those of training, as this version of jax takes them."""

import importlib.metadata

from packaging.version import Version

# From 0.11 on there is no other way to fuse on a CPU, and a program that names the option is refused.
_FUSION = (
    {"xla_cpu_use_fusion_emitters": False} if Version(importlib.metadata.version("jaxlib")) < Version("0.11") else {}
)

QUICK: dict[str, int | bool] = {"xla_backend_optimization_level": 0, **_FUSION}
"""Without LLVM's passes and XLA's fusion."""
AS_IN_TRAINING: dict[str, int | bool] = {"xla_backend_optimization_level": 3, **dict.fromkeys(_FUSION, True)}


def flags(options: dict[str, int | bool]) -> str:
    """Returns options as XLA_FLAGS has them."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
