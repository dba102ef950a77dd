"""Steps a second of the collector of commit 9ac8221, for slow_worker.py --old, which starts it.

It runs with that tree's packages before this one's: `openpi_ript` and `core` are the old ones, and `chunkwise`, from
which the environments are, is this one's, since the old tree has none.
"""

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

from benchmarks.slow_worker import LENGTH, Policy, Rates

TREE, *ASKED = pickle.loads(Path(sys.argv[1]).read_bytes())
sys.path.insert(0, str(TREE))  # before this tree, which slow_worker.py has put there
# Its workers run this file as well, so that they too make the environment that was asked for.
OLD: Any = importlib.import_module("openpi_ript.workers")
OLD.make = lambda config: ASKED[0]()


def main() -> None:
    """Plays what was asked for, and prints a number."""
    old: Any = importlib.import_module("openpi_ript.collect")
    _, count, rollouts, infer, actions = ASKED
    rates = Rates(count, rollouts)
    config = OLD.EnvConfig(suite="point", task="red", prompt="", max_steps=LENGTH, state=("state",), num_envs=count)
    collector = old.Collector(config)
    jobs = [old.Job(number=n, seed=n, draw=(n,), path=Path(f"rollout_{n}.npz")) for n in range(rollouts)]
    try:
        collector.play(jobs, Policy(infer, actions), lambda job, rollout: rates.done(rollout.rewards))
    finally:
        collector.close()
    print(rates.together())


if __name__ == "__main__":
    main()
