"""Updates a second of QC-FQL at cube-single's sizes, with 1 and 50 updates a call, and how much of the time is not XLA.

    python benchmarks/qchunk_update.py

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

from core.config import TrainConfig
from core.loop import CALLS_IN_FLIGHT, run_updates
from qchunk.agent import make_agent
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data import make_batches, open_dataset

EPISODES, FRAMES, OBSERVATION, ACTION, BATCH = 20, 1000, 28, 5, 256
UPDATES = 50  # of a round, and of the longer call


def write_episodes(folder: Path) -> None:
    """Episodes of random numbers in the ALOHA layout."""
    rng = np.random.default_rng(0)
    for number in range(EPISODES):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["/observations/qpos"] = rng.normal(size=(FRAMES, OBSERVATION)).astype(np.float32)
            file["/action"] = np.tanh(rng.normal(size=(FRAMES, ACTION))).astype(np.float32)
            file["/reward"] = np.full(FRAMES, -1, np.float32)
            file.attrs["success"] = True


class Updates:
    """Training of one agent in calls of `per_call` updates."""

    def __init__(self, config: QChunkConfig, batches: Iterator[Any], per_call: int) -> None:
        agent = make_agent(config, open_dataset(config).dims(config.data.observation))
        self.per_call = per_call
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
        """Seconds of UPDATES updates, batches and metrics included."""
        began = time.perf_counter()
        under_way: deque[Any] = deque()
        for _ in range(UPDATES // self.per_call):
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


def measure(folder: str, width: int, rounds: int) -> None:
    """Prints the rows of one width."""
    config = QChunkConfig(
        train=TrainConfig(steps=10**6, batch_size=BATCH),
        data=DataConfig(path=folder, episodes_per_epoch=EPISODES, positive_ratio=1.0, steps_per_epoch=10**9),
        agent=AgentConfig(hidden_sizes=(width,) * 4),
    )
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


def main() -> None:
    """Prints one row a width and number of updates a call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512], help="widths of the layers (256 512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of 50 updates of each (5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the index of a dataset that is gone afterwards
        write_episodes(Path(folder))
        print(f"{'width':>6}{'K':>6}{'updates/s':>12}{'ms/update':>12}{'not XLA':>10}{'ratio':>8}", flush=True)
        for width in arguments.widths:
            measure(folder, width, arguments.rounds)


if __name__ == "__main__":
    main()
