"""An environment that the policy cannot act in is refused before anything is trained."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.experiment import EvalConfig
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.fit import require_fit
from openpi_ript.robots.adapter import OWN, find_adapter
from openpi_ript.train import main
from tests.openpi_ript.small_run import make_dataset, small_config, supervised
from tests.openpi_ript.toy_rollouts import point

ROBOT = RobotConfig(state_dim=2, target_state_dim=2, action_dim=3)
"""That the simulated point is."""


def test_the_points_own_robot_fits() -> None:
    require_fit(point(), ROBOT, OWN)


@pytest.mark.parametrize(
    ("env", "robot", "message"),
    [
        (
            point(state=("position", "robot0_eef_pos")),
            ROBOT,
            r"env\.state position, robot0_eef_pos: expected 2 numbers as data\.robot\.state_dim says, found 5 in point",
        ),
        (
            point(),
            dataclasses.replace(ROBOT, action_dim=7),
            r"env point: expected actions of 7 numbers as data\.robot\.action_dim says, found 3",
        ),
        (point(task="purple"), ROBOT, r"env\.task is 'purple'; expected one of red, blue"),
        (
            point(state=("joints",)),
            ROBOT,
            r"env\.state: expected arrays of an observation, which has .*not \['joints'\]",
        ),
    ],
)
def test_what_does_not_fit_is_named(env: EnvConfig, robot: RobotConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_fit(env, robot, OWN)


def test_the_state_is_the_adapters() -> None:
    """LIBERO's makes 8 numbers of 9, and takes no others."""
    with pytest.raises(DataError, match="9 numbers, found 2"):
        require_fit(point(), RobotConfig(state_dim=8, adapter="libero"), find_adapter("libero"))


def test_training_does_not_begin_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_dataset(tmp_path)

    def trained(*_: Any, **__: Any) -> bool:
        raise AssertionError("training began")

    monkeypatch.setattr("openpi_ript.train.fit", trained)
    base = supervised(small_config(root, tmp_path / "run"))
    data = dataclasses.replace(base.data, cameras={})
    config = dataclasses.replace(base, data=data, env=point(task="purple"), eval=EvalConfig())
    with pytest.raises(ConfigError, match=r"env\.task is 'purple'"):
        main(config, "test")
