"""Steps a second of the collector of commit 9ac8221, for slow_worker.py --old, which starts it.

It runs with that tree's packages before this one's: `openpi_ript` and `core` are the old ones, and `chunkwise`, from
which the environments are, is this one's, since the old tree has none. The point belongs to `openpi_ript`, so that
it is the old tree's own, which computes the same.
"""

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

from benchmarks.slow_worker import LENGTH, Policy, Rates
from chunkwise.envs.environment import SUITES, EnvSpec, Observation, Step

TREE, *ASKED = pickle.loads(Path(sys.argv[1]).read_bytes())
sys.path.insert(0, str(TREE))  # before this tree, which slow_worker.py has put there
# Its workers run this file as well, so that they too make the environment that was asked for.
OLD: Any = importlib.import_module("openpi_ript.workers")
POINT: Any = importlib.import_module("openpi_ript.environments.point").PointEnv
OLD.make = lambda config: ASKED[0]()


class OldPoint(POINT):
    """The old tree's point, whose steps are this tree's."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(OLD.EnvConfig(suite=spec.suite, task=spec.task, prompt="", max_steps=LENGTH))

    def step(self, action: Any) -> Step:
        step = super().step(action)
        return Step(step.observation, step.reward, step.success)

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> Any:
        return self.picture(height, width)


SUITES["point"] = f"{__name__}:OldPoint"


def main() -> None:
    """Plays what was asked for, and prints a number."""
    old: Any = importlib.import_module("openpi_ript.collect")
    _, count, rollouts, infer, actions, state = ASKED
    rates = Rates(count, rollouts)
    config = OLD.EnvConfig(suite="point", task="red", prompt="", max_steps=LENGTH, state=(state,), num_envs=count)
    collector = old.Collector(config)
    jobs = [old.Job(number=n, seed=n, draw=(n,), path=Path(f"rollout_{n}.npz")) for n in range(rollouts)]
    try:
        collector.play(jobs, Policy(infer, actions), lambda job, rollout: rates.done(rollout.rewards))
    finally:
        collector.close()
    print(rates.together())


if __name__ == "__main__":
    main()
