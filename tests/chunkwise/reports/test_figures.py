"""Figures where the environment names what they have no use for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
import os, sys
from chunkwise.reports.figures import new_figure
assert "matplotlib" not in sys.modules, "importing it takes 0.8 s"
figure = new_figure(figsize=(2, 1))
axes = figure.add_subplot()
axes.plot([0, 1], label="curve")
axes.imshow([[0, 1]])
axes.legend()
figure.savefig(sys.argv[1])
assert os.environ["MPLBACKEND"] == sys.argv[2]
import matplotlib
assert sys.argv[2] != "svg" or matplotlib.rcParams["backend"] == "svg"
"""


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "svg"])
def test_a_figure_needs_no_backend(backend: str, tmp_path: Path):
    """A notebook names its own to the programs that it starts, and matplotlib refuses to be imported without it. One
    that there is stays, for who draws on a screen after this."""
    env = os.environ | {"MPLBACKEND": backend, "PYTHONPATH": str(ROOT)}
    file = tmp_path / "figure.png"
    subprocess.run([sys.executable, "-c", CODE, str(file), backend], env=env, check=True, timeout=120)
    assert file.read_bytes().startswith(b"\x89PNG")
