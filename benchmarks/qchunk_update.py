"""Updates a second of QC-FQL at cube-single's sizes, with 1 and 50 updates a call, and how much of the time is not XLA.

    python benchmarks/qchunk_update.py
    python benchmarks/qchunk_update.py --peer PYTHON --peer-path DIR

With --peer it compares with the official implementation instead, in the same run, taking turns: DIR is a checkout of
github.com/ColinQiyangLi/qc, PYTHON an environment with what its requirements.txt pins (qchunk_peer.py). Updates are
of cube-triple's sizes (observation 46, action 5, horizon 5, batch 256, four layers of 512, two critics), batches
drawn and metrics read back as each does it in a run; evaluation is of an untrained QC-FQL agent in cube-triple, whole
episodes, one environment there and ten here.

Observation 28, action 5, horizon 5, batch 256, four layers of 256 or 512, two critics, 10 flow steps. A round makes
50 updates the way a run does: batches from the pool, stacked, moved to the device, dispatched, metrics read back, with
at most two calls under way. XLA's time is that of 50 updates in one call whose batches lie on the device already, from
the call until its state is ready. What a round takes above that is not XLA: drawing and moving batches, dispatch,
reading metrics, each as far as it is not hidden behind the device's work. The three take turns, and the best round of
each counts, since other programs can only slow a round down; on a busy machine the share is as uncertain as they are.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.config.experiment import TrainConfig
from chunkwise.distributed.repeatable import FLAG, ask_for_repeatable_kernels
from chunkwise.train.loop import CALLS_IN_FLIGHT
from chunkwise.train.update import run_updates
from qchunk.agents.make import make_agent
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data import make_batches, open_dataset
from qchunk.evaluate import evaluate
from qchunk.policies.policy import by_row

EPISODES, FRAMES, OBSERVATION, ACTION, BATCH = 20, 1000, 28, 5, 256
UPDATES = 50  # of a round, and of the longer call
PEER_OBSERVATION = 46
PEER_AGENTS = {"qc_fql": (AgentConfig(), 40), "qc": (AgentConfig(policy="best_of_n"), 8)}  # and updates of a round
COMPARISONS = [*PEER_AGENTS, "evaluation"]
PEER_TASK = "cube-triple-play-singletask-task2-v0"


def write_episodes(folder: Path, observation: int) -> None:
    """Episodes of random numbers in the ALOHA layout."""
    rng = np.random.default_rng(0)
    for number in range(EPISODES):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["/observations/qpos"] = rng.normal(size=(FRAMES, observation)).astype(np.float32)
            file["/action"] = np.tanh(rng.normal(size=(FRAMES, ACTION))).astype(np.float32)
            file["/reward"] = np.full(FRAMES, -1, np.float32)
            file.attrs["success"] = True


class Updates:
    """Training of one agent in calls of `per_call` updates."""

    def __init__(self, config: QChunkConfig, batches: Iterator[Any], per_call: int, updates: int = UPDATES) -> None:
        self.agent = agent = make_agent(config, open_dataset(config).dims(config.data.observation))
        self.per_call, self.updates = per_call, updates
        self.batches = batches
        self.update = jax.jit(functools.partial(run_updates, agent.step), donate_argnums=0)
        self.count = jax.device_put(np.int32(per_call))
        self.state = jax.jit(agent.init)(jax.random.key(0))
        self.on_device = self.load()
        self.round()  # compiles

    def load(self) -> Any:
        """The batches of one call, on the device."""
        drawn = [next(self.batches) for _ in range(self.per_call)]
        return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *drawn))

    def round(self) -> float:
        """Seconds of `updates` updates, batches and metrics included."""
        began = time.perf_counter()
        under_way: deque[Any] = deque()
        for _ in range(self.updates // self.per_call):
            self.state, metrics = self.update(self.state, self.load(), self.count)
            under_way.append(metrics)
            if len(under_way) > CALLS_IN_FLIGHT:
                jax.device_get(under_way.popleft())
        jax.device_get(list(under_way))
        jax.block_until_ready(self.state)
        return time.perf_counter() - began

    def xla(self) -> float:
        """Seconds of one call whose batches lie on the device."""
        jax.block_until_ready((self.state, self.on_device))
        began = time.perf_counter()
        self.state, _ = self.update(self.state, self.on_device, self.count)
        jax.block_until_ready(self.state)
        return time.perf_counter() - began


def config_of(folder: str, agent: AgentConfig) -> QChunkConfig:
    """All episodes in one pool that is never refreshed."""
    return QChunkConfig(
        train=TrainConfig(steps=10**6, batch_size=BATCH),
        data=DataConfig(path=folder, episodes_per_epoch=EPISODES, positive_ratio=1.0, steps_per_epoch=10**9),
        agent=agent,
    )


def measure(folder: str, width: int, rounds: int) -> None:
    """Prints the rows of one width."""
    config = config_of(folder, AgentConfig(hidden_sizes=(width,) * 4))
    batches = make_batches(config)
    one, many = (Updates(config, batches, per_call) for per_call in (1, UPDATES))
    timers: dict[str, Callable[[], float]] = {"1": one.round, str(UPDATES): many.round, "xla": many.xla}
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(rounds):
        for name, timer in timers.items():
            best[name] = min(best[name], timer())
    for name in ("1", str(UPDATES)):
        took, not_xla = best[name] / UPDATES, 1 - best["xla"] / best[name]
        ratio = best["1"] / best[name]
        print(f"{width:>6}{name:>6}{1 / took:>12.1f}{1e3 * took:>12.2f}{not_xla:>10.1%}{ratio:>8.2f}", flush=True)


class Peer:
    """The official implementation in a process of its own."""

    def __init__(self, python: str, path: str) -> None:
        script = Path(__file__).with_name("qchunk_peer.py")
        flags = os.environ.get("XLA_FLAGS", "").replace(f"{FLAG}=true", "")  # it asks for no repeatable kernels
        site = str(Path(h5py.__file__).parents[1])
        self.process = subprocess.Popen(
            [python, str(script), path, site],
            env=os.environ | {"XLA_FLAGS": flags},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = self._line()

    def ask(self, command: str) -> list[float]:
        """Numbers that it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return [float(word) for word in self._line().split()]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer ended with {self.process.wait()}; run it by hand to see why")
        return line.strip()


def compare(folder: str, peer: Peer, only: list[str], rounds: int) -> None:
    """Prints updates a second of each agent, and environment steps a second of evaluation, beside the peer's."""
    print(f"official implementation with {peer.version}, ours with jax {jax.__version__}", flush=True)
    print(f"{'':>12}{'official':>12}{'ours':>12}{'ratio':>8}  a second", flush=True)
    for name in [name for name in PEER_AGENTS if name in only]:
        agent, updates = PEER_AGENTS[name]
        config = config_of(folder, agent)
        ours = Updates(config, make_batches(config), updates // 4, updates)
        theirs = f"update {name} {updates}"
        peer.ask(theirs)  # compiles
        report(name, ours.round, lambda theirs=theirs: peer.ask(theirs)[0], updates, rounds)
    if "evaluation" in only:
        compare_evaluation(folder, peer, rounds)


def compare_evaluation(folder: str, peer: Peer, rounds: int) -> None:
    """The row of evaluation."""
    config = config_of(folder, AgentConfig())
    ours = Updates(config, make_batches(config), 1, 1)
    act = by_row(ours.agent.act)

    def policy(observations: dict[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
        return np.asarray(act(ours.state.params, {"qpos": observations["state"]}, seeds))

    def evaluation() -> float:
        began = time.perf_counter()
        lengths: list[int] = []
        play: dict[str, Any] = {"seed": 0, "step": 0, "episodes": 10, "num_envs": 10, "horizon": 5}
        evaluate(policy, PEER_TASK, **play, done=lambda _, rollout: lengths.append(len(rollout.actions)))
        return (time.perf_counter() - began) / sum(lengths)

    def official() -> float:
        seconds, steps = peer.ask("evaluate 1")
        return seconds / steps

    for first in (evaluation, official):
        first()  # compiles, makes environments
    report("evaluation", evaluation, official, 1, max(2, rounds // 2))


def report(name: str, ours: Callable[[], float], theirs: Callable[[], float], count: int, rounds: int) -> None:
    """One row: the best of some rounds of each, in turns."""
    best = {"ours": float("inf"), "theirs": float("inf")}
    for _ in range(rounds):
        best["theirs"] = min(best["theirs"], theirs() / count)
        best["ours"] = min(best["ours"], ours() / count)
    ratio = best["theirs"] / best["ours"]
    print(f"{name:>12}{1 / best['theirs']:>12.1f}{1 / best['ours']:>12.1f}{ratio:>8.2f}", flush=True)


def main() -> None:
    """Prints one row a width and number of updates a call, or one a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512], help="widths of the layers (256 512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of 50 updates of each (5)")
    parser.add_argument("--peer", metavar="PYTHON", help="compare with the official implementation, run by PYTHON")
    parser.add_argument("--peer-path", metavar="DIR", help="its checkout")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=COMPARISONS, help="comparisons (all)")
    arguments = parser.parse_args()
    if (arguments.peer is None) != (arguments.peer_path is None):
        parser.error("--peer and --peer-path belong together")
    ask_for_repeatable_kernels()  # as commands do
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the index of a dataset that is gone afterwards
        if arguments.peer is not None:
            write_episodes(Path(folder), PEER_OBSERVATION)
            compare(folder, Peer(arguments.peer, arguments.peer_path), arguments.only, arguments.rounds)
            return
        write_episodes(Path(folder), OBSERVATION)
        print(f"{'width':>6}{'K':>6}{'updates/s':>12}{'ms/update':>12}{'not XLA':>10}{'ratio':>8}", flush=True)
        for width in arguments.widths:
            measure(folder, width, arguments.rounds)


if __name__ == "__main__":
    main()
