"""The script lifts a cube, in a world of its own that needs no simulator, and its episodes become a dataset."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.collect import Task
from chunkwise.envs.environment import Observation, Step
from chunkwise.errors import ConfigError
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.rollouts import DemonstrateConfig, EnvConfig, EvalConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.tokenizer import PromptTokenizer
from openpi_ript.envs import demonstrate as demonstrate_lib
from openpi_ript.envs.demonstrate import demonstrate, play
from openpi_ript.envs.scripts import METRES
from openpi_ript.robots.adapter import Adapter
from tests.openpi_ript.small_run import make_dataset, small_config, supervised

STATE = ("robot0_eef_pos", "robot0_gripper_qpos", "cube_pos")
ENV = EnvConfig(suite="robosuite", task="Lift", prompt="lift the cube", max_steps=40, state=STATE)
LIFT = ("robosuite", Task(name="Lift", prompt="lift the cube", max_steps=40))


class World:
    """A hand that goes where it is told, and a cube that sticks to it once the fingers closed around it."""

    fps = 20
    action_dim = 7

    def reset(self, seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        self.hand = np.array([0.0, 0.0, 1.0])
        self.cube = np.array([*rng.uniform(-0.03, 0.03, 2), 0.82])
        self.fingers = -1.0
        return self._observe()

    def clip(self, action: Any) -> np.ndarray:
        return np.clip(action, -1, 1).astype(np.float32)

    def step(self, action: np.ndarray) -> Step:
        held = self.fingers > 0 and np.linalg.norm(self.hand - self.cube) < 0.02
        move = METRES * action[:3].astype(float)
        self.hand = self.hand + move
        self.cube = self.cube + move * held
        self.fingers = float(action[6])
        success = bool(self.cube[2] > 0.86)
        return Step(self._observe(), float(success), success)

    def state(self) -> np.ndarray:
        return np.concatenate([self.hand, self.cube])

    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None: ...

    def _observe(self) -> Observation:
        arrays = {"robot0_eef_pos": self.hand, "robot0_gripper_qpos": [self.fingers] * 2, "cube_pos": self.cube}
        return {name: np.asarray(value, np.float32) for name, value in arrays.items()}

    def images(self) -> Observation:
        return {"agentview_image": np.full((8, 8, 3), 7, np.uint8)}


def test_the_script_lifts_and_stops_with_success():
    world: Any = World()
    frames, actions, success = play(world, *LIFT, 0.0, np.random.default_rng(0))
    assert success
    assert len(frames) == len(actions) < 30
    closed = [action[6] > 0 for action in actions]
    assert closed == sorted(closed), "once closed, the fingers stay closed"
    at = frames[closed.index(True)]
    assert np.linalg.norm(at["robot0_eef_pos"] - at["cube_pos"]) < 0.02
    assert all((action[3:6] == 0).all() for action in actions)
    _, clumsy, success = play(world, *LIFT, 2.0, np.random.default_rng(0))
    assert not success
    assert len(clumsy) == 40
    assert np.abs(clumsy).max() <= 1


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenpiRiptConfig:
    monkeypatch.setattr(demonstrate_lib, "make", lambda env, task, allow_code: World())
    root = make_dataset(tmp_path)
    base = supervised(small_config(root, tmp_path / "run"))
    cameras = {"base_0_rgb": "observation.images.base"}
    robot = RobotConfig(state_dim=8, target_state_dim=8)
    data = DataConfig(path=str(tmp_path / "lift"), robot=robot, cameras=cameras, horizon=8, image_size=(28, 28))
    return dataclasses.replace(
        base,
        data=data,
        env=dataclasses.replace(ENV, cameras={"base_0_rgb": "agentview_image"}),
        eval=EvalConfig(),
        demonstrate=DemonstrateConfig(episodes=5, noise=(0.0, 2.0)),
    )


def test_demonstrations_become_a_dataset_that_training_reads(config: OpenpiRiptConfig, capsys: pytest.CaptureFixture):
    demonstrate(config)
    assert "demonstrated 5 episodes of Lift, 3 of which succeeded" in capsys.readouterr().out
    data = open_data(config.data)
    assert data.to_ript.rollouts.success.tolist() == [True, False, True, False, True]
    frames, actions, _ = play(World(), *LIFT, 0.0, np.random.default_rng([0, 2]))  # pyright: ignore
    raw = data.raw(int(data.table.starts[2]) + 3)
    np.testing.assert_array_equal(raw["state"], np.concatenate([frames[3][name] for name in STATE]))
    np.testing.assert_array_equal(raw["action"], actions[3:11])
    assert raw["task"] == "lift the cube"
    assert (raw["images"]["observation.images.base"] == 7).all()
    tokenizer = PromptTokenizer(Path(config.data.path) / "tokenizer.model", 16)
    assert tokenizer.encode("lift the cube")[1].sum() <= 8

    demonstrate(config)  # it is there already
    assert config.demonstrate is not None
    other = dataclasses.replace(config, demonstrate=dataclasses.replace(config.demonstrate, seed=1))
    with pytest.raises(ConfigError, match=r"other settings: seed is 1, there 0\. Change them back"):
        demonstrate(other)


class Plain(Adapter):
    """A robot whose dataset has what environments show."""


class Robot(Adapter):
    """A robot whose dataset has centimetres, and images the other way up."""

    def simulated_state(self, state: Any) -> Any:
        return 100 * state

    def simulated_image(self, image: Any) -> Any:
        return image[..., ::-1, :, :]


def with_changes(config: OpenpiRiptConfig, adapter: str = "none", **env: Any) -> OpenpiRiptConfig:
    """Returns the config with another robot, or settings of the environment."""
    assert config.env is not None
    robot = dataclasses.replace(config.data.robot, adapter=adapter)
    data = dataclasses.replace(config.data, robot=robot)
    return dataclasses.replace(config, data=data, env=dataclasses.replace(config.env, **env))


def test_state_and_images_are_those_that_a_rollout_s_policy_is_shown(
    config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        World, "images", lambda self: {"agentview_image": np.repeat(np.array([1, 2], np.uint8), 96).reshape(8, 8, 3)}
    )
    demonstrate(with_changes(config, f"{__name__}:Robot"))
    frames, *_ = play(World(), *LIFT, 0.0, np.random.default_rng([0, 2]))  # pyright: ignore
    data = open_data(config.data)
    raw = data.raw(int(data.table.starts[2]) + 3)
    np.testing.assert_array_equal(raw["state"], 100 * np.concatenate([frames[3][name] for name in STATE]))
    image = raw["images"]["observation.images.base"]
    assert (image[:4] == 2).all()
    assert (image[4:] == 1).all()


def test_a_dataset_of_another_state_function_prompt_or_robot_is_not_taken(config: OpenpiRiptConfig):
    demonstrate(config)
    for changed, message in (
        (with_changes(config, state_function="relative"), "state_function is 'relative', there 'concatenate'"),
        (with_changes(config, prompt="raise it"), "prompts is .'Lift': 'raise it'., there .'Lift': 'lift the cube'."),
        (with_changes(config, f"{__name__}:Robot"), f"adapter is '{__name__}:Robot', there 'none'"),
        (with_changes(config, f"{__name__}:Plain"), ""),
    ):
        with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
            demonstrate(changed)


def test_a_dataset_of_before_these_were_written_down_is_taken_for_what_was_done_then(
    config: OpenpiRiptConfig, capsys: pytest.CaptureFixture[str]
):
    """Its prompts are in the dataset, and adapters had no effect; which state function it was nobody can tell."""
    demonstrate(config)
    info = Path(config.data.path) / "meta/info.json"
    tree = json.loads(info.read_text())
    for key in ("state_function", "prompts", "adapter"):
        del tree["synthetic"][key]
    info.write_text(json.dumps(tree))
    demonstrate(config)
    capsys.readouterr()
    demonstrate(with_changes(config, state_function="relative"))
    assert "did not write down env.state_function: whether it was relative cannot be told" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"prompts is {'Lift': 'raise it'}, there \['lift the cube'\]"):
        demonstrate(with_changes(config, prompt="raise it"))
    with pytest.raises(ConfigError, match=f"adapter is '{__name__}:Robot', there 'none'"):
        demonstrate(with_changes(config, f"{__name__}:Robot"))


def test_where_nothing_succeeds_and_failures_are_left_out_there_is_no_dataset(config: OpenpiRiptConfig):
    settings = DemonstrateConfig(episodes=2, noise=(2.0,), keep_failures=False)
    with pytest.raises(ConfigError, match="expected an episode that succeeds, found none among 2 of Lift"):
        demonstrate(dataclasses.replace(config, demonstrate=settings))
    assert not Path(config.data.path).exists()


def test_failures_can_be_left_out(config: OpenpiRiptConfig):
    settings = DemonstrateConfig(episodes=5, noise=(0.0, 2.0), keep_failures=False)
    demonstrate(dataclasses.replace(config, demonstrate=settings))
    assert open_data(config.data).to_ript.rollouts.success.tolist() == [True] * 3


def test_an_environment_brings_its_own_script():
    class Guided(World):
        def expert(self) -> Any:
            return lambda observed: np.array([0.5, 0, 0, 0, 0, 0, 1.0])

    world: Any = Guided()
    far = ("mine:World", Task(name="far", max_steps=5))
    _, actions, _ = play(world, *far, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, [[0.5, 0, 0, 0, 0, 0, 1.0]] * 5)
    _, noisy, _ = play(world, *far, 0.1, np.random.default_rng(0))
    drawn = np.random.default_rng(0)
    drawn.integers(1 << 32)  # the initial state
    expected = np.array([0.5, 0, 0, 0, 0, 0, 1.0]) + np.pad(drawn.normal(0, 0.1, (5, 6)), [(0, 0), (0, 1)])
    np.testing.assert_array_equal(noisy, expected.astype(np.float32), "on every number but the gripper's")


def test_a_demonstration_ends_where_the_environment_does():
    """Success that comes after a fall is none, and neither are the frames after it."""

    class Fallen(World):
        taken = 0

        def reset(self, seed: int) -> Observation:
            self.taken = 0
            return super().reset(seed)

        def step(self, action: np.ndarray) -> Step:
            self.taken += 1
            over = dict.fromkeys(("terminated", "truncated"), False) | ({self.end: True} if self.taken == 3 else {})
            return Step(super().step(action).observation, 0.0, self.taken == 5, **over)

        end = "terminated"

        def expert(self) -> Any:
            return lambda observed: np.zeros(7)

    for Fallen.end in ("terminated", "truncated"):
        world: Any = Fallen()
        frames, actions, success = play(
            world, "mine:World", Task(name="far", max_steps=9), 0.0, np.random.default_rng(0)
        )
        assert (len(frames), len(actions), success) == (3, 3, False)


def test_noise_is_added_to_what_the_script_asks_for_each_time():
    """Of a script that gives the same array again, one of whole numbers, and one of a single number."""

    class Still(World):
        still = np.zeros(7)

        def expert(self) -> Any:
            return lambda observed: self.still

    def noise(still: np.ndarray) -> np.ndarray:
        world: Any = Still()
        world.still = still
        far = Task(name="far", max_steps=200)
        actions = play(world, "mine:World", far, 0.1, np.random.default_rng(0))[1]
        np.testing.assert_array_equal(still, still.astype(int))
        return np.stack(actions).std(axis=0)

    np.testing.assert_allclose(noise(np.zeros(7)), [0.1] * 6 + [0], atol=0.02)
    np.testing.assert_allclose(noise(np.zeros(7, np.int64)), [0.1] * 6 + [0], atol=0.02)


def test_without_a_script_it_says_what_has_one(config: OpenpiRiptConfig):
    assert config.env is not None
    with pytest.raises(ConfigError, match=r"no script for robosuite TwoArmLift; expected .* method expert\(\)"):
        demonstrate(dataclasses.replace(config, env=dataclasses.replace(config.env, task="TwoArmLift")))


def test_several_tasks_are_demonstrated_one_after_the_other(config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    class Named(World):
        def expert(self) -> Any:
            return lambda observed: np.array([0.5, 0, 0, 0, 0, 0, 1.0])

    monkeypatch.setattr(demonstrate_lib, "make", lambda env, task, allow_code: made.append(task) or Named())
    assert config.env is not None
    prompts = {"near": "go near", "far": "go far"}
    env = dataclasses.replace(
        config.env, suite="mine:make", task="", prompt="", tasks=("near", "far"), prompts=prompts, max_steps=4,
        steps={"far": 6},
    )  # fmt: skip
    demonstrate(dataclasses.replace(config, env=env))
    assert made == ["near", "far"]
    data = open_data(config.data)
    assert data.table.lengths.tolist() == [4, 6, 4, 6, 4]
    told = [data.raw(int(start))["task"] for start in data.table.starts]
    assert told == ["go near", "go far", "go near", "go far", "go near"]


def two_tasks(config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> OpenpiRiptConfig:
    """Returns the config with the tasks near and far, whose script stands still; of "far" nothing else succeeds."""

    class Still(World):
        def __init__(self, task: str) -> None:
            self.near = task == "near"

        def expert(self) -> Any:
            return lambda observed: np.zeros(7)

        def step(self, action: np.ndarray) -> Step:
            return dataclasses.replace(super().step(action), success=self.near)

    monkeypatch.setattr(demonstrate_lib, "make", lambda env, task, allow_code: Still(task))
    assert config.env is not None
    env = dataclasses.replace(
        config.env, suite="mine:make", task="", prompt="", tasks=("near", "far"),
        prompts={"near": "go near", "far": "go far"}, max_steps=3,
    )  # fmt: skip
    return dataclasses.replace(config, env=env, demonstrate=DemonstrateConfig(**settings))


def test_each_task_is_demonstrated_with_all_noises_in_turn(config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch):
    config = two_tasks(config, monkeypatch, episodes=8, noise=(0.0, 0.5))
    demonstrate(config)
    data = open_data(config.data)
    found = [(data.raw(int(start))["task"], bool(data.raw(int(start))["action"].any())) for start in data.table.starts]
    assert found == 2 * [("go near", False), ("go far", False), ("go near", True), ("go far", True)]
    demonstrate(config)  # it is there already


def without_noise_by(config: OpenpiRiptConfig) -> None:
    """Takes from a recording what earlier versions did not write down."""
    info = Path(config.data.path) / "meta/info.json"
    tree = json.loads(info.read_text())
    del tree["synthetic"]["noise_by"]
    info.write_text(json.dumps(tree))


def test_a_recording_of_before_whose_tasks_had_some_noises_alone_is_for_runs_that_go_on(
    config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    config = two_tasks(config, monkeypatch, episodes=4, noise=(0.0, 0.5))
    demonstrate(config)
    without_noise_by(config)
    with pytest.raises(ConfigError, match=r"some of the noises alone; expected all .* another data.path, or set demo"):
        demonstrate(config)
    capsys.readouterr()
    demonstrate(config, begun=True)
    assert "some of the noises alone; this run goes on with it" in capsys.readouterr().out
    other = dataclasses.replace(config, demonstrate=DemonstrateConfig(episodes=4, noise=(0.0, 0.5), seed=1))
    with pytest.raises(ConfigError, match=r"other settings: seed is 1, there 0\. Change"):
        demonstrate(other, begun=True)


@pytest.mark.parametrize(
    ("episodes", "noise"),
    [(4, (0.5,)), (4, (0.5, 0.5)), (1, (0.0, 0.5)), (6, (0.0, 0.5, 1.0))],
    ids=["one", "alike", "the first alone", "all of each task"],
)
def test_recordings_whose_noises_are_those_of_before_say_no_more_than_before(
    episodes: int, noise: tuple[float, ...], config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch
):
    config = two_tasks(config, monkeypatch, episodes=episodes, noise=noise)
    demonstrate(config)
    assert "noise_by" not in json.loads((Path(config.data.path) / "meta/info.json").read_text())["synthetic"]


def test_a_recording_says_so_where_one_task_alone_has_other_noises_than_before(
    config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch
):
    """Of three noises and four episodes the first task had the first and third, and has the first and second."""
    config = two_tasks(config, monkeypatch, episodes=4, noise=(0.0, 0.5, 1.0))
    demonstrate(config)
    assert json.loads((Path(config.data.path) / "meta/info.json").read_text())["synthetic"]["noise_by"] == "task"


def test_one_task_has_its_noises_one_after_another_as_before(config: OpenpiRiptConfig):
    demonstrate(config)
    made = json.loads((Path(config.data.path) / "meta/info.json").read_text())["synthetic"]
    assert (made["noise"], "noise_by" in made) == ([0.0, 2.0], False)


def test_tasks_without_an_episode_are_named(
    config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    config = two_tasks(config, monkeypatch, episodes=4, noise=(0.0,), keep_failures=False)
    demonstrate(config)
    said = capsys.readouterr().out
    assert "the dataset has no episode of 1 of 2 tasks, far: none of theirs succeeded" in said
    assert "(env.max_steps, or env.steps by name) or more demonstrate.episodes" in said
    assert len(open_data(config.data).table.lengths) == 2
    kept = dataclasses.replace(config, data=dataclasses.replace(config.data, path=f"{config.data.path}-all"))
    demonstrate(dataclasses.replace(kept, demonstrate=DemonstrateConfig(episodes=4, noise=(0.0,))))
    assert "has no episode" not in capsys.readouterr().out
