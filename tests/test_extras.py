"""Commands of the pages that need what the suite's environment lacks: compilers, packages of viewers, a browser.

`.ci/full` runs them in an environment that has the extras.
"""

import gzip
import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser import needs_chromium
from tests.page_commands import clone, commands, finish, put_in_place, start

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
TOPOLOGIES = {line.line for line in commands() if line.line.startswith("chunkwise compile")}


def lines(page: str, words: str) -> list[str]:
    """Returns the commands of a page that hold some words."""
    return [one.line for one in commands() if one.page == page and words in one.line]


@pytest.mark.extra  # tpu and cuda
@pytest.mark.parametrize("line", sorted(TOPOLOGIES))
def test_a_device_that_is_not_here_is_compiled_for(line: str, tmp_path: Path):
    # Without the flags that spare the suite's programs their optimisation: they would tell of other memory.
    said = finish(start(line, "--json", folder=clone(tmp_path), variables={"XLA_FLAGS": ""}))
    found = json.loads(said[said.index("{") :])
    assert 0 < found["total"] < found["capacity"]
    assert set(found["bounds"]) >= {"products", "memory"}


@pytest.mark.extra  # rerun
def test_a_dataset_becomes_a_file_of_rerun(tmp_path: Path):
    put_in_place({"path/to/episodes": "episodes"}, clone(tmp_path), trained=True)
    (line,) = lines("docs/view.md", "--rerun")
    finish(start(line, folder=tmp_path))
    assert (tmp_path / "episodes.rrd").stat().st_size > 10_000


@pytest.mark.extra  # xprof, a viewer of another project, in no extra of ours
def test_a_traced_run_is_shown_by_xprof(tmp_path: Path):
    put_in_place({}, clone(tmp_path), trained=True)
    folder = "runs/traced"
    short = "--run.profile 2 --train.steps 40 --train.log-every 5 --train.eval-every 0 --checkpoint.every 40"
    small = "--eval.videos 0 --eval.final-episodes 1 --eval.num-envs 1 --eval.max-steps 20"
    finish(start(f"chunkwise train qchunk/debug --run.dir {folder}", short, small, folder=tmp_path))
    (line,) = lines("docs/performance.md", "xprof")
    program = line.split("&&")[1].strip()
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    process = start(f"exec {program}", f"--port {port}", folder=tmp_path)
    assert process.stdout is not None
    said = ""
    while f":{port}/" not in said:
        shown = process.stdout.readline()
        assert shown, said
        said += shown
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/profile/runs") as answer:
                assert json.loads(gzip.decompress(answer.read())), "expected the trace among its runs"
            break
        except urllib.error.URLError:  # it says where it answers before it does
            assert time.monotonic() < until, said
            time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


@needs_chromium
def test_how_long_a_page_takes_is_measured(tmp_path: Path):
    """The numbers of frames and jumps alone are smaller."""
    (line,) = lines("docs/view.md", "benchmarks.view_page")
    small = re.sub(r"--jumps \d+", "--jumps 2", re.sub(r"--make \d+", "--make 1000", line))
    said = finish(start(small, folder=clone(tmp_path)))
    assert "(median of 2)" in said
