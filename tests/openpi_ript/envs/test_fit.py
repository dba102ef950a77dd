"""An environment that the policy cannot act in is refused before anything is trained."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec, Observation
from chunkwise.errors import ConfigError, DataError, RunError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.rollouts import EnvConfig, EvalConfig
from openpi_ript.envs.fit import require_fit
from openpi_ript.envs.point import PointEnv
from openpi_ript.robots.adapter import OWN, find_adapter
from openpi_ript.train import _prompt_notes, main, of_training
from tests.openpi_ript.small_run import make_dataset, small_config, supervised
from tests.openpi_ript.toy_rollouts import point

ROBOT = RobotConfig(state_dim=2, target_state_dim=2, action_dim=3)
"""That the simulated point is."""


def test_the_points_own_robot_fits() -> None:
    assert require_fit(point(), ROBOT, OWN) == 10


@pytest.mark.parametrize(("played", "said"), [(20, "0.5 times"), (10.05, ""), (9.99, ""), (4, "2.5 times"), (None, "")])
def test_an_environment_of_another_rate_than_the_dataset_is_told(
    played: float | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PointEnv, "fps", played or PointEnv.fps)
    config = supervised(small_config(make_dataset(tmp_path / "data"), tmp_path / "run"))
    if played is not None:
        data = dataclasses.replace(config.data, cameras={})
        config = dataclasses.replace(config, data=data, env=point(), eval=EvalConfig())
    verdict = of_training(config)
    assert verdict.refusal is None
    told = [note for note in verdict.notes if "frames a second, where the environment makes" in note]
    assert [said in note for note in told] == ([True] if said else [])


@pytest.mark.parametrize(("prompt", "said"), [("push the cube", True), ("move to_the red disc ", False)])
def test_a_prompt_that_no_frame_has_is_told(prompt: str, said: bool, tmp_path: Path) -> None:
    config = supervised(small_config(make_dataset(tmp_path / "data"), tmp_path / "run"))
    data = dataclasses.replace(config.data, cameras={})
    verdict = of_training(dataclasses.replace(config, data=data, env=point(prompt=prompt), eval=EvalConfig()))
    assert verdict.refusal is None
    told = [note for note in verdict.notes if "which is the prompt of no frame of the dataset; there it is" in note]
    assert len(told) == said
    assert all(repr(prompt) in note and "'move to the blue disc', 'move to the red disc'" in note for note in told)


@pytest.mark.parametrize(("default", "said"), [("push the cube", False), ("push", True), (None, True)])
def test_a_task_without_words_has_the_default_prompt(default: str | None, said: bool, tmp_path: Path) -> None:
    """As it is trained on; a folder of frames that do not say their task has no other."""
    config = small_config(tmp_path, tmp_path / "run")
    data = dataclasses.replace(config.data, cameras={}, default_prompt=default)
    config = dataclasses.replace(supervised(config), data=data, env=point(prompt="push the cube"), eval=EvalConfig())
    table = SimpleNamespace(tasks={0: "", 1: "never drawn"}, columns={"task_index": np.zeros(3, np.int64)})
    assert bool(_prompt_notes(config, SimpleNamespace(table=table))) == said  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("env", "robot", "message"),
    [
        (
            point(state=("position", "robot0_eef_pos")),
            ROBOT,
            r"env\.state position, robot0_eef_pos: expected 2 numbers as data\.robot\.state_dim .* 5 in point red;",
        ),
        (
            point(),
            dataclasses.replace(ROBOT, action_dim=7),
            r"env point red: expected actions of 7 numbers as data\.robot\.action_dim says, found 3",
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


class Flat(PointEnv):
    """Its camera gives bytes of another shape than an image's."""

    shape: ClassVar[tuple[int, ...]] = ()

    def images(self) -> Observation:
        return {"top": np.zeros(self.shape, np.uint8)}


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 4), (3, 4, 6)])
def test_a_camera_of_another_shape_is_named_before_training(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flat, "shape", shape)
    said = rf"Flat.* shows the camera 'top' as uint8 {re.escape(str(list(shape)))}; expected uint8 \[h, w, 3\], RGB"
    with pytest.raises(DataError, match=said):
        require_fit(point(suite=f"{__name__}:Flat", cameras={"base_0_rgb": "top"}), ROBOT, OWN)


class Blind(PointEnv):
    """Its camera is not there, at the task blue; at red it gives floats."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._dark = spec.task == "blue"

    def images(self) -> Observation:
        return {} if self._dark else {"top": np.zeros((4, 4, 3), np.float32)}


@pytest.mark.parametrize(
    ("task", "error", "said"),
    [
        ("blue", DataError, r"env .*:Blind blue shows position, .*; expected top too, which cameras name"),
        ("red", RunError, r"images\(\) gave 'top' as float32; expected uint8"),
    ],
)
def test_a_camera_that_shows_nothing_is_named_before_training(task: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        require_fit(point(suite=f"{__name__}:Blind", task=task, cameras={"base_0_rgb": "top"}), ROBOT, OWN)


class Uneven(PointEnv):
    """One whose task blue shows a number more, and made, which says which tasks were."""

    made: ClassVar[list[str]] = []

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(dataclasses.replace(spec, task="red"))
        self._more = spec.task == "blue"
        self.made.append(spec.task)

    def reset(self, seed: int) -> Observation:
        seen = super().reset(seed)
        return seen | ({"position": np.append(seen["position"], np.float32(0))} if self._more else {})


@pytest.mark.parametrize("tasks", [("red", "blue"), (*"abcdefghijk", "blue")])
def test_each_of_several_tasks_is_looked_at(tasks: tuple[str, ...]) -> None:
    env = point(suite=f"{__name__}:Uneven", task="", prompt="", tasks=tasks)
    with pytest.raises(ConfigError, match=r"expected 2 numbers .*, found 3 in .*:Uneven blue; name other arrays"):
        require_fit(env, ROBOT, OWN)


def test_of_very_many_tasks_the_first_stands_for_all() -> None:
    Uneven.made.clear()
    require_fit(point(suite=f"{__name__}:Uneven", task="", prompt="", tasks=(*"abcdefghijkl", "blue")), ROBOT, OWN)
    assert Uneven.made == ["a"]


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
