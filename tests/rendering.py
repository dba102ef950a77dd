"""Whether this machine can render at all; where it can, an image or video that is missing is an error."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def can_render() -> None:
    """In a process of its own: a broken GL driver can abort the one that uses it."""
    code = "from qchunk.envs.aloha import TransferCube as T; e = T(); e.reset(0); e.render(8, 8)"
    root = Path(__file__).parents[1]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    if "this machine cannot render" in child.stderr:  # no GL driver: nothing that the project can install
        pytest.skip(child.stderr.strip().splitlines()[-1][:200])
    assert child.returncode == 0, child.stderr
