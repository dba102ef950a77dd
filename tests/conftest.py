"""Strictness for every test, and the flag that checks array annotations at run time."""

import gc
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Generator, Iterator
from pathlib import Path

from tests import xla

# Before jax is imported: tests run on the CPU, and 32-bit as in training.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs are compiled once for all tests, their child processes and later runs: 232 seconds of a core became 81 for
# three test files. A program is found by what is compiled, so a changed one is compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache/programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Tests compile much and compute little: without XLA's fusion and LLVM's passes a file of them took 49 seconds of a core
# instead of 88; compiled in one part in place of 32, another took 43 in place of 46. `.ci/full` sets it empty, so that
# programs are compared as they are trained with.
os.environ.setdefault("XLA_FLAGS", xla.flags(xla.QUICK | {"xla_cpu_parallel_codegen_split_count": 1}))

import jax
import numpy as np
import pytest

from tests import array_checks, slow

SKIPS = {
    "this machine cannot render": "without a GL driver, which the project cannot install, nothing is drawn",
    "only root may mount an image": "a power cut needs a file system of its own; `.ci/full` runs where it is possible",
    r"(losetup|mkfs\.ext4|e2fsck|u?mount) not found": "as above; not every system has the tools for it",
    "no loop device can be mounted here": "as above",
    "no Chromium": "a browser is no package of Python; pages are parsed, and servers asked, without one",
}
"""Reasons for which a test may be skipped where CI is set, as patterns, and why that is no loss there."""
PACKAGES = ["chunkwise", "qchunk", "openpi_ript", "driving"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--typecheck", action="store_true", help="check shapes and dtypes of annotations at run time")


def pytest_configure(config: pytest.Config) -> None:
    # Started from a script's background, tests would ignore Ctrl-C, and so would every program that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if config.getoption("--typecheck"):
        array_checks.install(PACKAGES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = slow.read_list()
    for item in items:
        if slow.function_of(item.nodeid) in listed:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def caches_of_this_run_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What an earlier run of the tests kept was made by other code: a fault in what reads a dataset would not show."""
    before = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    with pytest.MonkeyPatch.context() as patch:
        # Matplotlib would make its list of fonts anew in every run.
        patch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR") or f"{before}/matplotlib")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="module")
def garbage_of_this_file_alone() -> None:
    """Keeps what was there before out of full collections, of which a save and a restore have one.

    After tests that had compiled much, a short one with 14 trainings took 36 seconds of a core, 28 of them in
    collections. What is frozen stays so: else each file would go through all that those before it left, 0.3 s and more.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has numpy, nothing of ours, and a module `simulator` that no other has."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    (packages / "simulator.py").write_text("VERSION = 330\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def can_render() -> None:
    """Skips where the machine cannot render; where it can, an image or video that is missing is an error.

    In a process of its own: a broken GL driver can abort the one that uses it.
    """
    code = "from qchunk.envs.aloha import TransferCube as T; e = T(); e.reset(0); e.render(8, 8)"
    root = Path(__file__).parents[1]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    if "this machine cannot render" in child.stderr:
        said = child.stderr.strip().splitlines()[-1][:200]
        # Its absence is no failure of ours, and what is drawn cannot be tested without one.
        pytest.skip(reason=f"no GL driver, which pip cannot install: {said}")  # training needs no OpenGL
    assert child.returncode == 0, child.stderr


@pytest.fixture(autouse=True)
def same_limits_afterwards() -> Iterator[None]:
    """Limits hold for the process: those that a test's config or command line set must not reach the next test."""
    from chunkwise.files import budget  # after pytest_configure has hooked the imports

    with budget.using():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a skip for an unknown reason is a failure: a check that never ran would look like one passed."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(known, reason) for known in SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: skipped ({reason}), and this is none of the reasons in tests/conftest.py"
    return report
