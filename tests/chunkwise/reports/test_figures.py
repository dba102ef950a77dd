"""Figures where the environment names what they have no use for."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = """
import os, sys
from chunkwise.reports.figures import new_figure
assert "matplotlib" not in sys.modules, "importing it takes 0.8 s"
figure = new_figure(figsize=(2, 1))
figure.add_subplot().plot([0, 1])
figure.savefig(sys.argv[1])
assert os.environ["MPLBACKEND"] == "module://of_a_notebook"
"""


def test_a_figure_needs_no_backend(tmp_path: Path):
    """A notebook names its own to the programs that it starts, and matplotlib refuses to be imported without it."""
    env = os.environ | {"MPLBACKEND": "module://of_a_notebook", "PYTHONPATH": str(ROOT)}
    file = tmp_path / "figure.png"
    subprocess.run([sys.executable, "-c", CODE, str(file)], env=env, check=True, timeout=120)
    assert file.read_bytes().startswith(b"\x89PNG")
