"""robomimic's tasks: what a state is, when an episode ends, and what is refused."""

import concurrent.futures
import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec, make
from chunkwise.envs.suites.robomimic import TASKS
from chunkwise.errors import ConfigError

LIFT = EnvSpec(suite="robomimic", task="lift")


@pytest.mark.filterwarnings("ignore")  # the simulator's own
@pytest.mark.parametrize(
    ("task", "width"),
    [pytest.param("lift", 19, marks=pytest.mark.long), ("can", 23), pytest.param("square", 23, marks=pytest.mark.long)],
)
def test_a_state_is_what_the_files_hold(task: str, width: int):
    """The widths of robomimic's files: 10 or 14 numbers of the object, then the gripper's place, rotation, fingers."""
    env: Any = make(dataclasses.replace(LIFT, task=task))
    seen = env.reset(3)
    raw = env._env._get_observations()
    parts = [raw[name] for name in ("object-state", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")]
    assert seen["state"].shape == (width,)
    np.testing.assert_array_equal(seen["state"], np.concatenate(parts).astype(np.float32))
    np.testing.assert_array_equal(seen["qpos"], seen["state"])
    np.testing.assert_array_equal(env.reset(3)["state"], seen["state"])
    assert env.action_dim == 7
    env.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the simulator's own
def test_an_episode_ends_at_success_or_after_its_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TASKS, "lift", ("Lift", 3))
    env: Any = make(LIFT)
    env.reset(0)
    still = np.zeros(7, np.float32)
    steps = [env.step(still) for _ in range(3)]
    assert [(step.reward, step.success, step.terminated, step.truncated) for step in steps] == [
        (0, False, False, False),
        (0, False, False, False),
        (0, False, False, True),
    ]
    env.reset(0)
    cube = env._env.cube.joints[0]
    pose = env._env.sim.data.get_joint_qpos(cube).copy()
    pose[2] += 0.2  # m above the table
    env._env.sim.data.set_joint_qpos(cube, pose)
    step = env.step(still)
    assert (step.reward, step.success, step.terminated, step.truncated) == (1, True, True, False)
    env.close()


@pytest.mark.filterwarnings("ignore")
def test_threads_do_not_draw_from_one_anothers_seeds():
    """robosuite draws from numpy's global generator: 20 resets of each of two environments at once, in two threads."""
    envs = [make(LIFT) for _ in range(2)]
    alone = [envs[0].reset(seed)["state"] for seed in range(20)]
    start = threading.Barrier(2)

    def resets(env: Any) -> list[np.ndarray]:
        start.wait()
        return [env.reset(seed)["state"] for seed in range(20)]

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for found in threads.map(resets, envs):
            np.testing.assert_array_equal(found, alone)
    for env in envs:
        env.close()


def test_other_tasks_and_images_are_refused():
    with pytest.raises(ConfigError, match="robomimic/transport: expected one of lift, can, square"):
        make(dataclasses.replace(LIFT, task="transport"))
    with pytest.raises(ConfigError, match="robomimic/lift shows no images here, and agentview_image are asked for"):
        make(dataclasses.replace(LIFT, cameras=("agentview_image",)))
