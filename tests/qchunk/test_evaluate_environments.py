"""Which environments evaluations of Q-chunking keep, and when they are closed."""

from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from qchunk import evaluate
from qchunk.envs import simulators
from tests.chunkwise.envs.countdown import Countdown


def test_they_are_kept_for_the_same_evaluation_and_closed_for_another_and_at_the_end(monkeypatch: pytest.MonkeyPatch):
    made: list[Countdown] = []

    def make(name: str, view: Any = None, rules: Any = None) -> Countdown:
        made.append(Countdown(EnvSpec(suite="own")))
        return made[-1]

    def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
        return np.zeros((len(seeds), 3, 3))

    monkeypatch.setattr(simulators, "make", make)
    evaluate.close_environments()
    for num_envs in (2, 2, 1):
        evaluate.evaluate(policy, "countdown", seed=0, step=0, episodes=4, num_envs=num_envs, horizon=3)
    assert [env.closed for env in made] == [True, True, False]
    evaluate.close_environments()
    assert made[2].closed
