"""XLA's flag for the same bits, where jax has a package for GPUs: a folder of the name that jax looks for stands in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAG = "--xla_gpu_deterministic_ops"
PROGRAM = "import os; from chunkwise.cli import command; command.run(lambda: print(repr(os.environ.get('XLA_FLAGS'))))"
SERVER = """
import os
from chunkwise.policies import serve
assert serve.main(["no folder of this name"])
print(repr(os.environ.get("XLA_FLAGS")))
"""


def flags_of_a_command(path: Path, given: str | None, program: str = PROGRAM) -> str:
    """XLA_FLAGS inside a command that was started with others."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(path)} | ({} if given is None else {"XLA_FLAGS": given})
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return ended.stdout.strip()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, f"'{FLAG}=true'"),
        ("--xla_dump_to=/x", f"'--xla_dump_to=/x {FLAG}=true'"),
        (f"{FLAG}=false", f"'{FLAG}=false'"),  # the user's word stands
        ("/my/flags.txt", "'/my/flags.txt'"),  # XLA would take all of it for the name of a file
    ],
)
def test_where_jax_has_a_gpu_kernels_are_repeatable(tmp_path: Path, given: str | None, found: str) -> None:
    for name in ("xla_cuda13", "xla_rocm7"):
        plugin = tmp_path / name / "jax_plugins" / name
        plugin.mkdir(parents=True)
        (plugin / "__init__.py").touch()
        assert flags_of_a_command(tmp_path / name, given) == found


def test_elsewhere_nothing_is_set(tmp_path: Path) -> None:
    """A run on a CPU goes on under the flags that its machine.json names."""
    (tmp_path / "jax_plugins" / "xla_tpu").mkdir(parents=True)
    assert flags_of_a_command(tmp_path, None) == "None"
    assert flags_of_a_command(tmp_path, "--xla_dump_to=/x") == "'--xla_dump_to=/x'"


def test_a_server_acts_by_the_kernels_of_an_evaluation(tmp_path: Path) -> None:
    """It is no command that `command.run` ends."""
    (tmp_path / "jax_plugins" / "xla_cuda12").mkdir(parents=True)
    assert flags_of_a_command(tmp_path, None, SERVER) == "None", "a folder without __init__.py is no plugin"
    (tmp_path / "jax_plugins" / "xla_cuda12" / "__init__.py").touch()
    assert flags_of_a_command(tmp_path, None, SERVER) == f"'{FLAG}=true'"
