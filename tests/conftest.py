"""Strictness for every test, and the flag that checks array annotations at run time."""

import os
import signal

# Before jax is imported: tests run on the CPU, and 32-bit as in training.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from jaxtyping import install_import_hook

PACKAGES = ["core", "qchunk", "openpi_ript", "driving"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--typecheck", action="store_true", help="check shapes and dtypes of annotations at run time")


def pytest_configure(config: pytest.Config) -> None:
    # Started from a script's background, tests would ignore Ctrl-C, and so would every program that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if config.getoption("--typecheck"):
        install_import_hook(PACKAGES, "beartype.beartype")
