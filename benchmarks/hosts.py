"""How rollouts would go on many hosts: a simulation from latencies that were measured on one.

    python benchmarks/rollouts.py --suite robosuite --latencies lift.json
    python benchmarks/hosts.py lift.json [--hosts 10] [--workers 200] [--network-ms 1] [--slower 5]

`every`: each host has its share of the workers, and infers for these alone; a rollout's number says whose it is, so
that a host that is done early waits for the last (chunkwise/distributed/division.py). `one`: a single host infers for
all workers, whose requests cross the network. Where a policy is free it takes whoever waits, up to the rows of a batch,
and a batch always takes as long as a full one (chunkwise/envs/collect.py). Between two batches it spends the measured
time for each request, one after the other.

Steps, inferences and the time for a request are drawn from the quantiles in the file; the network is assumed, and so is
that a host steps as many environments as it has workers without slowing any. The ideal is the sum over workers of the
steps a second of each alone, as in slow_worker.py. `flow` counts from the first rollout of each worker to when none is
left to begin, `round` to the end of the last.
"""

import argparse
import dataclasses
import heapq
import json
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import numpy as np
from jaxtyping import Float64

ARRIVES, FREE = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latencies:
    """Seconds, as quantiles from the least to the greatest, evenly spaced."""

    step: Float64[np.ndarray, " q"]
    """Of an environment."""
    inference: Float64[np.ndarray, " q"]
    """Of a batch of `rows`."""
    request: Float64[np.ndarray, " q"]
    """Of the inferring process, besides inference, for each request."""
    rows: int
    chunk: int
    """Steps for each request."""
    length: int
    """Steps of a rollout."""

    @classmethod
    def load(cls, path: Path) -> "Latencies":
        """Reads what rollouts.py wrote."""
        tree = json.loads(path.read_text())
        quantiles = {name: np.array(tree.pop(name)) for name in ("step", "inference", "request")}
        return cls(**quantiles, **{name: tree[name] for name in ("rows", "chunk", "length")})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """What came of one inferring process's rollouts."""

    flow_steps: int
    flow_seconds: float
    seconds: float
    """Until the last rollout ended."""
    busy: float
    """Share of that time in which the process inferred or served requests."""


def play(
    latencies: Latencies, slower: Sequence[float], rollouts: int, *, network: float, rng: np.random.Generator
) -> Played:
    """Plays rollouts with one inferring process.

    Args:
      latencies: As measured.
      slower: For each worker by what factor its steps take longer.
      rollouts: In all; at least one a worker.
      network: Seconds that a message takes on its way.
      rng: Draws the latencies.
    """

    def draw(quantiles: np.ndarray, count: int) -> float:
        return float(np.interp(rng.random(count) * (len(quantiles) - 1), np.arange(len(quantiles)), quantiles).sum())

    chunks = -(-latencies.length // latencies.chunk)
    left = rollouts - len(slower)
    done = [0] * len(slower)  # chunks of a worker's rollout that were played
    waiting = deque(range(len(slower)))
    events: list[tuple[float, int, int]] = []  # time, kind, worker
    steps = flow_steps = 0
    now = flow_seconds = busy = 0.0
    free = True
    while waiting or events:
        if free and waiting:
            batch = [waiting.popleft() for _ in range(min(latencies.rows, len(waiting)))]
            took = draw(latencies.request, len(batch)) + draw(latencies.inference, 1)
            busy += took
            free = False
            heapq.heappush(events, (now + took, FREE, -1))
            for worker in batch:
                played = slower[worker] * draw(latencies.step, latencies.chunk)
                heapq.heappush(events, (now + took + 2 * network + played, ARRIVES, worker))
            continue
        now, kind, worker = heapq.heappop(events)
        if kind == FREE:
            free = True
            continue
        steps += latencies.chunk
        done[worker] += 1
        if done[worker] < chunks:
            waiting.append(worker)
        elif left:
            left -= 1
            done[worker] = 0
            waiting.append(worker)
            if not left:
                flow_steps, flow_seconds = steps, now
    if not flow_seconds:  # a rollout a worker: there is nothing but the end
        flow_steps, flow_seconds = steps, now
    return Played(flow_steps=flow_steps, flow_seconds=flow_seconds, seconds=now, busy=busy / now)


def alone(latencies: Latencies, slower: float, *, network: float) -> float:
    """Returns the steps a second of a worker that has the inferring process for itself."""
    step, inference, request = (
        float(np.trapezoid(x) / (len(x) - 1)) for x in (latencies.step, latencies.inference, latencies.request)
    )
    return latencies.chunk / (latencies.chunk * slower * step + inference + request + 2 * network)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latencies", type=Path, metavar="FILE.json", help="as rollouts.py --latencies writes it")
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--workers", type=int, default=200, help="on all hosts")
    parser.add_argument("--rollouts", type=int, default=2000, help="of a round")
    parser.add_argument("--network-ms", type=float, default=1.0, help="of a message from host to host")
    parser.add_argument("--slower", type=float, default=5.0, help="factor of the steps of one worker on the first host")
    parser.add_argument("--rows", type=int, nargs="+", default=[], help="of a batch; a batch takes as long as measured")
    arguments = parser.parse_args()
    if arguments.workers % arguments.hosts or arguments.rollouts < arguments.workers:
        parser.error("expected as many workers on each host, and at least a rollout for each")
    measured = Latencies.load(arguments.latencies)
    slower = [arguments.slower, *([1.0] * (arguments.workers - 1))]
    network = arguments.network_ms / 1000
    print(f"{arguments.hosts} hosts, {arguments.workers} workers, {arguments.rollouts} rollouts of {measured.length}")
    for rows in arguments.rows or [measured.rows]:
        latencies = dataclasses.replace(measured, rows=rows)
        for name, hosts, way in (("every", arguments.hosts, 0.0), ("one", 1, network)):
            share = arguments.workers // hosts
            of_hosts = [slower[host * share : (host + 1) * share] for host in range(hosts)]
            ends = [
                play(
                    latencies,
                    each,
                    len(range(host, arguments.rollouts, hosts)),
                    network=way,
                    rng=np.random.default_rng([0, host]),
                )
                for host, each in enumerate(of_hosts)
            ]
            ideal = sum(alone(latencies, one, network=way) for each in of_hosts for one in each)
            flow = sum(end.flow_steps / end.flow_seconds for end in ends)
            seconds = max(end.seconds for end in ends)
            total = arguments.rollouts * -(-latencies.length // latencies.chunk) * latencies.chunk
            print(
                f"{name:5} {rows:3} rows: flow {flow:8.0f} steps/s, {flow / ideal:4.2f} of the ideal {ideal:.0f}; "
                f"round {total / seconds:8.0f} steps/s ({seconds:.1f} s); policy busy {max(e.busy for e in ends):.0%}"
            )


if __name__ == "__main__":
    main()
