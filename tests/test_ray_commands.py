"""The commands by which the pages put environments on a cluster: two nodes of this machine, started by them."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.page_commands import clone, commands, finish, start

PAGE = "docs/pods.md"
SECONDS_TO_START = 600
SMALL = (
    *("--env.tasks reach-v3 push-v3 pick-place-v3", "--env.num-envs 4", "--demonstrate.episodes 1", "--train.steps 8"),
    *("--train.updates-per-call 4", "--train.log-every 4", "--train.eval-every 0", "--train.batch-size 8"),
    *("--checkpoint.every 4", "--optim.warmup-steps 1", "--rollout.start 4", "--rollout.updates 4"),
    *("--rollout.groups 3", "--rollout.max-groups 3", "--eval.final-episodes 3", "--eval.videos 0"),
)
"""One round of three groups, of tasks of which hindsight makes failures successes: some rollout always teaches."""


def command(words: str) -> str:
    """Returns the one command of the page that holds some words."""
    (found,) = [one.line for one in commands() if one.page == PAGE and words in one.line]
    return found


def of_this_cluster(folder: Path) -> list[int]:
    """Processes whose environment has the cluster's folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RAY_TMPDIR={folder}\0".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def wait_for_nodes(
    nodes: Sequence["subprocess.Popen[str]"], folder: Path, variables: Mapping[str, str], address: str
) -> None:
    """Returns once all nodes are there. Raises AssertionError where one ended, or they are not there in time."""
    code = (
        f"import ray; ray.init({address!r}, logging_level='error', log_to_driver=False); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    until, said = time.monotonic() + SECONDS_TO_START, ""
    while time.monotonic() < until:
        asked = start(f'python -c "{code}"', folder=folder, variables=variables)
        said, _ = asked.communicate()
        if said.strip().endswith(str(len(nodes))):
            return
        for node in nodes:
            assert node.poll() is None, node.communicate()[0]
    raise AssertionError(f"expected {len(nodes)} nodes at {address}, found: {said}")


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Mapping[str, str]]:
    """Starts them by the page's commands; yields what the environment of a program on the first has.

    Home and Ray's folder are the test's, so a user's token and cluster are left alone. A node stays in the foreground
    (`--block`), and is ended by its processes: `ray stop` would end every other cluster of the user as well.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "home").mkdir()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:  # sockets need short paths
        variables = {
            "HOME": str(folder / "home"),
            "RAY_TMPDIR": place,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
        }
        nodes: list[subprocess.Popen[str]] = []
        here = (
            "--block --num-cpus 2 --node-ip-address 127.0.0.1",
            # Of a node alone on its machine Ray knows the ports; here two share one.
            "--dashboard-agent-listen-port 0 --min-worker-port 0 --max-worker-port 0",
        )
        head = ("--port", str(port), "--include-dashboard", "false")
        other = command("ray start --address").replace("HEAD:6379", f"127.0.0.1:{port}")
        without_mode = {name: value for name, value in variables.items() if name != "RAY_AUTH_MODE"}
        try:
            finish(start(command("ray get-auth-token"), folder=folder, variables=without_mode))
            assert (folder / "home/.ray/auth_token").exists()
            for line, more in ((command("ray start --head"), head), (other, ())):
                nodes.append(start(line, *here, *more, folder=folder, variables=without_mode))
                wait_for_nodes(nodes, folder, variables, f"127.0.0.1:{port}")
            yield variables
        finally:
            for node in nodes:
                node.terminate()
            for pid in of_this_cluster(Path(place)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for node in nodes:
                node.communicate()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_cluster_started_by_the_page_plays_rollouts_and_evaluates(tmp_path: Path):
    with two_nodes(clone(tmp_path)) as variables:
        said = finish(
            start(command("--fleet.address auto"), *SMALL, "--run.dir RUN", folder=tmp_path, variables=variables)
        )
        assert "done step=8" in said
        said = finish(
            start(command("evaluate RUN --fleet auto"), "--episodes", "3", folder=tmp_path, variables=variables)
        )
        assert "of 3" in said, said
