"""The environments that a config names, as they are looked at before a run begins."""

from typing import Any

import pytest

from chunkwise.envs.environment import EnvSpec
from chunkwise.errors import ConfigError, RunError
from qchunk.envs import simulators
from tests.chunkwise.envs.countdown import Countdown


class Listed(Countdown):
    """Shows lists of numbers; those that are open are counted."""

    open = 0

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        Listed.open += 1

    def reset(self, seed: int) -> Any:
        if self.spec.task == "broken":
            raise ZeroDivisionError
        return {name: list(array) for name, array in super().reset(seed).items()}

    def close(self) -> None:
        Listed.open -= 1


def test_the_environment_whose_widths_are_looked_at_is_closed_whatever_it_shows() -> None:
    name = "tests.qchunk.envs.test_simulators:Listed"
    simulators.require_widths("eval.env", name, "d", observation=("state", 2), action=3, kept={"state": 2})
    with pytest.raises(ConfigError, match="which shows state of width 2 "):
        simulators.require_widths("eval.env", name, "d", observation=("state", 4), action=3)
    with pytest.raises(RunError, match=r"reset with seed 0, step 0\) failed: ZeroDivisionError"):
        simulators.require_widths("eval.env", f"{name}:broken", "d", observation=("state", 2), action=3)
    assert Listed.open == 0


def test_gymnasiums_environments_may_show_images() -> None:
    view = simulators.View(cameras=("render",), render_size=(8, 8), image_size=(8, 8))
    for name in ("Pendulum-v1", "gymnasium/Pendulum-v1", "my_gym:Blob-v0", "mine:make", "aloha-transfer-cube"):
        simulators.require_images(name, view)
    for name in ("cube-single-play-singletask-task2-v0", "metaworld/reach-v3", "point/red"):
        with pytest.raises(ConfigError, match=f"{name} shows no images"):
            simulators.require_images(name, view)
