"""Play directed at a task: which targets a task needs, by hand, and what a recording of it holds."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.envs.suites import ogbench
from chunkwise.errors import ConfigError
from qchunk.config import DirectedPlayConfig, RecordConfig
from qchunk.data.relabel import single_task
from qchunk.envs.directed_play import DirectedPlay, Target, needed_cubes, needed_in_scene, presses
from qchunk.envs.play import play_episode
from qchunk.record import episode_path, open_recorder, record

TASK = "cube-double-play-singletask-task2-v0"
GOALS = np.array([[0.35, 0.1, 0.02], [0.50, 0.1, 0.02]])


def _needed(*positions: tuple[float, float, float], goals: np.ndarray = GOALS) -> list[int]:
    return [target.index for target in needed_cubes(np.array(positions), goals)]


def test_cubes_that_are_not_at_their_goals_are_needed() -> None:
    assert needed_cubes(np.array([[0.35, -0.1, 0.02], [0.50, -0.1, 0.02]]), GOALS) == [
        Target("cube", 0, (0.35, 0.1, 0.02)),
        Target("cube", 1, (0.50, 0.1, 0.02)),
    ]
    assert _needed((0.35, 0.1, 0.02), (0.50, -0.1, 0.02)) == [1]
    assert _needed((0.35, 0.129, 0.02), (0.50, 0.069, 0.02)) == [1]  # 0.029 m and 0.031 m beside their goals
    assert _needed((0.35, 0.1, 0.02), (0.50, 0.1, 0.02)) == []


def test_a_cube_under_another_or_whose_place_is_taken_has_to_wait() -> None:
    assert _needed((0.4, -0.1, 0.02), (0.4, -0.1, 0.06)) == [1]
    assert _needed((0.5, 0.1, 0.02), (0.35, 0.1, 0.02)) == []  # they are to be exchanged
    assert _needed((0.5, 0.11, 0.02), (0.35, -0.1, 0.02)) == [0]


def test_a_cube_is_stacked_after_the_one_below_it() -> None:
    stacked = np.array([[0.425, 0.0, 0.06], [0.425, 0.0, 0.02]])
    assert _needed((0.35, -0.1, 0.02), (0.50, -0.1, 0.02), goals=stacked) == [1]
    assert _needed((0.35, -0.1, 0.02), (0.425, 0.0, 0.02001), goals=stacked) == [0]
    three = np.array([[0.425, 0.0, 0.02], [0.425, 0.0, 0.06], [0.5, 0.1, 0.02]])
    assert _needed((0.35, -0.1, 0.02), (0.5, -0.1, 0.02), (0.425, 0.0, 0.02), goals=three) == [2]  # the base is another


def test_presses_of_every_pattern_lead_to_the_goal() -> None:
    """Each of 512 patterns is turned off by pressing what is said, by the game's own rule."""
    for pattern in itertools.product([False, True], repeat=9):
        lights = np.array(pattern).reshape(3, 3)
        for button in presses(np.array(pattern), 3, 3) or []:
            y, x = divmod(button, 3)
            for dy, dx in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
                if 0 <= y + dy < 3 and 0 <= x + dx < 3:
                    lights[y + dy, x + dx] ^= True
        assert not lights.any()


def test_presses_by_hand() -> None:
    corner = np.zeros((3, 4), bool)
    corner[0, :2] = corner[1, 0] = True
    assert presses(corner.ravel(), 3, 4) == [0]
    assert presses(np.zeros(12, bool), 3, 4) == []
    single = np.zeros(16, bool)
    single[0] = True
    assert presses(single, 4, 4) is None  # no presses of a 4 x 4 grid turn one corner alone


def _scene(cube: tuple[float, ...], buttons: tuple[int, int], drawer: float, window: float) -> dict[str, Any]:
    return {
        "privileged/block_0_pos": np.array(cube),
        "button_states": np.array(buttons),
        "privileged/drawer_pos": np.array([drawer]),
        "privileged/window_pos": np.array([window]),
    }


def test_a_drawer_is_unlocked_then_moved_then_locked() -> None:
    """Task 2 of OGBench's scene: both locked and open at first, both locked and closed at the end."""
    table = (0.35, -0.05, 0.02)
    goal = {
        "block_xyzs": np.array([table]),
        "button_states": np.array([0, 0]),
        "drawer_pos": 0.0,
        "window_pos": 0.0,
    }
    press = [Target("button", 0), Target("button", 1)]
    assert needed_in_scene(_scene(table, (0, 0), -0.16, 0.2), goal) == press
    assert needed_in_scene(_scene(table, (1, 0), -0.16, 0.2), goal) == [Target("drawer"), press[1]]
    assert needed_in_scene(_scene(table, (1, 1), -0.01, 0.2), goal) == [press[0], Target("window")]
    assert needed_in_scene(_scene(table, (0, 0), 0.0, 0.0), goal) == []
    assert needed_in_scene(_scene((0.4, 0.1, 0.02), (0, 0), 0.0, 0.0), goal) == [Target("cube", 0, table)]


def test_a_cube_goes_into_the_open_drawer_which_closes_after_that() -> None:
    """Task 4: the drawer is locked and closed at first."""
    goal = {
        "block_xyzs": np.array([[0.33, -0.356, 0.066]]),
        "button_states": np.array([1, 0]),
        "drawer_pos": 0.0,
        "window_pos": 0.0,
    }
    table, inside = (0.35, 0.05, 0.02), (0.33, -0.24, 0.06)
    assert needed_in_scene(_scene(table, (0, 0), 0.0, 0.0), goal) == [Target("button", 0)]
    assert needed_in_scene(_scene(table, (1, 0), 0.0, 0.0), goal) == [Target("drawer")]
    assert needed_in_scene(_scene(table, (1, 0), -0.16, 0.0), goal) == [Target("cube", 0, (0.33, -0.24, 0.066))]
    assert needed_in_scene(_scene(inside, (1, 0), -0.16, 0.0), goal) == [Target("drawer")]
    assert needed_in_scene(_scene((0.33, -0.356, 0.066), (1, 0), 0.0, 0.0), goal) == []


@pytest.mark.parametrize(
    ("env", "task"),
    [
        ("cube-double-v0", TASK),
        pytest.param("puzzle-3x3-v0", "puzzle-3x3-play-singletask-task4-v0", marks=pytest.mark.long),
        pytest.param("scene-v0", "scene-play-singletask-task2-v0", marks=pytest.mark.long),
    ],
)
def test_the_scene_gets_a_target_that_the_task_needs(env: str, task: str) -> None:
    played = ogbench.make_play(env, 100)
    directed = DirectedPlay(played.gym, task)
    for seed in range(3):
        played.reset(seed)
        needed = directed.needed(played.info)
        _, info = directed.set_target(np.random.default_rng(seed), 0.5)
        assert needed
        assert any(target.is_set(info) for target in needed)
        if env == "cube-double-v0":
            cube = info["privileged/target_block"]
            np.testing.assert_array_equal(info["privileged/target_block_pos"], GOALS[cube])


@pytest.mark.long
def test_half_an_episode_of_directed_play_solves_the_task() -> None:
    """Oracles without noise, and targets that are all the task's; random play has solved it in 1 of 40 episodes."""
    directed = DirectedPlayConfig(task=TASK, share=1.0)
    config = RecordConfig(env="cube-double-v0", episodes=1, episode_length=500, noise=0.0, directed=directed)
    env = ogbench.make_play(config.env, config.episode_length)
    frames = play_episode(env, config, 0)
    reward, _ = single_task(TASK, sparse=True).relabel(frames["/sim/qpos"], None)
    assert (reward == 0).any()
    again = play_episode(env, config, 0)
    np.testing.assert_array_equal(again["/sim/qpos"], frames["/sim/qpos"])


def test_an_episode_begins_where_the_puzzle_can_be_solved() -> None:
    """Of the scenes that OGBench draws of 4 x 4 buttons one in 16 can be."""
    task = "puzzle-4x4-play-singletask-task2-v0"
    directed = DirectedPlayConfig(task=task, share=1.0)
    config = RecordConfig(env="puzzle-4x4-v0", episodes=1, episode_length=2, directed=directed)
    env = ogbench.make_play(config.env, config.episode_length)
    for episode in range(3):
        play_episode(env, config, episode)
        assert DirectedPlay(env.gym, task).solvable(env.info)


def test_share_0_is_random_play() -> None:
    random = RecordConfig(env="cube-double-v0", episodes=1, episode_length=150)
    directed = dataclasses.replace(random, directed=DirectedPlayConfig(task=TASK, share=1.0))
    env = ogbench.make_play(random.env, random.episode_length)
    actions = [play_episode(env, config, 0)["/action"] for config in (random, directed)]
    assert (actions[0][:20] == actions[1][:20]).all()  # the first target is that of the reset
    assert (actions[0] != actions[1]).any()


def test_a_recording_names_its_task_and_keeps_to_it(tmp_path: Path) -> None:
    plain = RecordConfig(env="cube-double-v0", episodes=1, episode_length=20, processes=1)
    directed = dataclasses.replace(plain, directed=DirectedPlayConfig(task=TASK, share=0.5))
    record(directed, tmp_path, report=lambda _: None)
    with h5py.File(episode_path(tmp_path, 0)) as file:
        assert file.attrs["source"] == f"ogbench oracle play directed at {TASK}"
    with pytest.raises(ConfigError, match=r"record\.directed is None, there .*'share': 0\.5"):
        record(plain, tmp_path, report=lambda _: None)
    metadata = json.loads((tmp_path / "dataset.json").read_text())
    del metadata["config"]["directed"]  # as in a recording of before, which was all random
    (tmp_path / "dataset.json").write_text(json.dumps(metadata))
    record(plain, tmp_path, report=lambda _: None)
    with pytest.raises(ConfigError, match=r"record\.directed is .*, there None"):
        record(directed, tmp_path, report=lambda _: None)


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="give both, or neither"):
        DirectedPlayConfig(share=0.5)
    with pytest.raises(ValueError, match="give both, or neither"):
        DirectedPlayConfig(task=TASK)
    with pytest.raises(ValueError, match="share"):
        DirectedPlayConfig(task=TASK, share=1.5)
    directed = DirectedPlayConfig(task=TASK, share=0.5)
    with pytest.raises(ConfigError, match=r"expected a task of record\.env 'cube-single-v0'"):
        open_recorder(RecordConfig(env="cube-single-v0", episodes=1, directed=directed))
    with pytest.raises(ConfigError, match="whose script has one task"):
        open_recorder(RecordConfig(env="aloha-transfer-cube", episodes=1, directed=directed))
