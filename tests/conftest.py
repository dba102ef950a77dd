"""Strictness for every test, and the flag that checks array annotations at run time."""

import os
import signal
from pathlib import Path

# Before jax is imported: tests run on the CPU, and 32-bit as in training.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs are compiled once for all tests, their child processes and later runs: 232 seconds of a core became 81 for
# three test files. A program is found by what is compiled, so a changed one is compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache/programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

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
