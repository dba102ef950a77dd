"""Plays rollouts on two Ray nodes of this machine, and takes away an actor, a node, a worker in the middle.

    python -m tests.fleet                       # each once
    python -m tests.fleet --times 10 --only frozen-worker

Each rollout is written as a file, which must be equal to the byte to that of worker processes without Ray. `ray`: left
alone; the cluster listens on the loopback alone. `client`: through Ray's client. `waits`: one environment answers only
once all the other rollouts have ended. `actor`: SIGKILL of a node's actor. `node`: of a whole node. `frozen-worker`,
`frozen-actor`: SIGSTOP of an environment's process, of an actor.
"""

import argparse
import contextlib
import functools
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed.connections import listen_on
from chunkwise.envs.collect import Collector, Job
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.fleet import RayWorkers
from chunkwise.envs.rollout import Rollout, save
from chunkwise.envs.workers import ProcessWorkers, Workers
from tests.chunkwise.envs.countdown import Countdown, Drawn, Waits, jobs

ROLLOUTS, SLOTS, NODES = 24, 4, 2
SILENCE = 20.0
"""Seconds; enough for a process to start on a machine that does other things too."""
SECONDS_TO_GO = 60.0
"""In which Ray ends an actor that is frozen."""
PARTS = ("ray", "client", "waits", "actor", "node", "frozen-worker", "frozen-actor")


class Disturbed(Drawn):
    """Does something at the tenth inference."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        super().__init__()
        self._disturb = disturb

    def __call__(self, observations: Any, draws: Any, prompts: Any) -> Any:
        if len(self.calls) == 10:
            self._disturb()
        return super().__call__(observations, draws, prompts)


def play(workers: Workers, disturb: Callable[[], None] = lambda: None, mark: Path | None = None) -> dict[int, bytes]:
    """Returns the file of each rollout, by its number; touches `mark` when all but one have ended."""
    files: dict[int, bytes] = {}
    collector = Collector(workers, rows=3)
    with tempfile.TemporaryDirectory() as folder:

        def done(job: Job, rollout: Rollout) -> None:
            path = Path(folder) / "rollout.npz"
            save(path, rollout)
            files[job.number] = path.read_bytes()
            if mark is not None and len(files) == ROLLOUTS - 1:
                mark.touch()

        try:
            assert collector.play(jobs(range(ROLLOUTS)), Disturbed(disturb), done)
        finally:
            collector.close()
    return files


def processes(words: str) -> dict[int, int]:
    """Process and parent of all whose command line holds some words."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words.encode() in (folder / "cmdline").read_bytes().replace(b"\0", b" "):  # of any bytes
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def actors(ours: int) -> list[int]:
    """Processes of the actors whose node is a child of this process."""
    nodes = {pid for pid, parent in processes("raylet").items() if parent == ours}
    return sorted(pid for pid, parent in processes("ray::NodeWorkers").items() if parent in nodes)


def signal_one(pids: list[int], number: signal.Signals) -> None:
    """Sends a signal to the first of some processes. Raises AssertionError where there is none."""
    assert pids, "expected a process to disturb, found none"
    os.kill(pids[0], number)


@contextlib.contextmanager
def two_nodes(client: int) -> Iterator[Any]:
    """A cluster of two nodes with two cores each, on the loopback, with a token; Ray's client is served on a port."""
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(Path(__file__).parents[1]),  # through a client Ray does not tell where this was started
    }
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": client}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    try:
        yield cluster
    finally:
        cluster.shutdown()


def listening() -> set[str]:
    """Addresses, in hexadecimal, on which processes of Ray accept connections."""
    sockets = set()
    for pid in chain(*map(processes, ("raylet", "gcs_server", "ray::", "ray.util.client.server"))):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def check(part: str, cluster: Any, client: int, expected: dict[int, bytes], silence: float) -> None:
    """Plays all rollouts on the cluster, at the port `client` if that is the part.

    Raises:
      AssertionError: A file is another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "others have ended"
        spec = EnvSpec(suite="own", task=str(mark) if part == "waits" else "slow")
        opener = functools.partial(Waits if part == "waits" else Countdown, spec)
        address = f"ray://127.0.0.1:{client}" if part == "client" else cluster.address
        fleet = FleetConfig(address=address, silence=silence)
        workers, seen = RayWorkers(fleet, opener, SLOTS, name="countdown"), list[str]()

        def disturb() -> None:
            found = actors(os.getpid())
            assert len(found) == NODES, f"expected an actor on each of {NODES} nodes, found {found}"
            if part == "ray":
                seen.extend(listening())
            elif part == "actor":
                signal_one(found, signal.SIGKILL)
            elif part == "frozen-actor":
                signal_one(found, signal.SIGSTOP)
            elif part == "frozen-worker":
                children = processes("multiprocessing.spawn")
                signal_one([pid for pid, parent in children.items() if parent == found[0]], signal.SIGSTOP)
            elif part == "node":
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                cluster.add_node(num_cpus=2)

        files = play(workers, disturb, mark)
    assert files == expected, f"{part}: rollouts {[n for n in expected if files.get(n) != expected[n]]} differ"
    local = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert part != "ray" or (seen and set(seen) <= local), f"expected to listen on the loopback, found {seen}"
    until = time.monotonic() + SECONDS_TO_GO
    while processes("ray::NodeWorkers") and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes("ray::NodeWorkers"), f"expected no actor {SECONDS_TO_GO:.0f} s after the end"
    print(f"{part}: {len(files)} rollouts, the same to the byte", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable; default all")
    parser.add_argument("--silence", type=float, default=SILENCE, help="as fleet.silence; more on a busy machine")
    arguments = parser.parse_args()
    opener = functools.partial(Countdown, EnvSpec(suite="own", task="slow"))
    expected = play(ProcessWorkers(opener, 3, name="countdown"))
    assert len(set(expected.values())) == ROLLOUTS
    with listen_on("127.0.0.1") as listener:
        client = listener.getsockname()[1]
    with two_nodes(client) as cluster:
        for part in (arguments.only or PARTS) * arguments.times:
            check(part, cluster, client, expected, arguments.silence)


if __name__ == "__main__":
    main()
