"""Processes that a program starts: a script without Python's guard for them, a worker that may start none."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chunkwise.distributed import children
from chunkwise.envs.render import write_video
from chunkwise.errors import ConfigError
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import toy_config

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
from pathlib import Path
from chunkwise.distributed import children
from chunkwise.errors import ConfigError
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import toy_config

def body(path):
    Path(path).write_text("done")

folder = Path(sys.argv[1])
try:
    with RunFolder(toy_config(folder / f"run{len(list(folder.iterdir()))}"), "toy"):
        print("begun", flush=True)
    child = children.start(body, str(folder / "child"))
    child.join()
    print("ended with", child.exitcode, flush=True)
except ConfigError as error:
    print("refused:", error, flush=True)
"""


def test_a_script_without_a_main_guard_trains_once_and_its_processes_work(tmp_path: Path) -> None:
    """Spawned processes import it again; the run of each was begun, too, and the first one's stayed without a video."""
    script, folder = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    folder.mkdir()
    found = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = found.stdout.splitlines()
    assert lines[0] == "begun", found.stderr
    assert lines[1].startswith("refused: this script is imported by a process that it started itself")
    assert lines[1].endswith('put what it does under `if __name__ == "__main__":`')
    assert lines[2:] == ["ended with 0"]
    assert sorted(path.name for path in folder.iterdir()) == ["child", "run0"]


def refused(start: bool, folder: str) -> list[str]:
    """What is said in a worker of a Pool, of a process and of a video."""
    said: list[str] = []
    if start:
        try:
            children.start(print)
        except ConfigError as error:
            return [str(error)]
    assert write_video(print, [], Path(folder) / "video.mp4", report=said.append) is None  # pyright: ignore
    return said


@pytest.mark.parametrize("start", [True, False])
def test_a_worker_of_a_pool_is_told_what_may_start_processes(start: bool, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (said,) = pool.apply(refused, (start, str(tmp_path)))
    assert "this process may start no others, as a worker of multiprocessing.Pool may not. Take" in said
    assert said.startswith("this process" if start else "no video: MUJOCO_GL=")


def test_what_a_process_does_not_do_twice_it_may_do_once(tmp_path: Path) -> None:
    children.require_first_import()
    with RunFolder(toy_config(tmp_path / "run"), "toy") as folder:
        assert not folder.begun
