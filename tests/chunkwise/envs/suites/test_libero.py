"""LIBERO's resets in a stand-in for its simulator: ten steps of rest, from drawn and from given states."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites.robosuite import RobosuiteEnv
from chunkwise.errors import ConfigError


class StandIn:
    """Two joints and one speed; a step writes down its action and lets the first joint fall."""

    def __init__(self) -> None:
        data = SimpleNamespace(qpos=np.zeros(2), qvel=np.zeros(1), time=0.0)
        self.sim = SimpleNamespace(data=data, forward=lambda: None, set_state_from_flattened=self._set)
        self.controller = SimpleNamespace(joint_pos=np.zeros(2), updates=[])
        self.controller.update = lambda force: self.controller.updates.append(force)
        self.controller.update_initial_joints = lambda joints: self.controller.updates.append(joints.tolist())
        self.robots = [SimpleNamespace(controller=self.controller)]
        self.actions: list[list[float]] = []
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.sim.data.qpos[:] = self.seeds[-1]
        return self._get_observations()

    def step(self, action: np.ndarray) -> Any:
        self.actions.append(action.tolist())
        self.sim.data.qpos[0] -= 1
        return self._get_observations(), 0.0, False, {}

    def _set(self, state: np.ndarray) -> None:
        self.sim.data.time, self.sim.data.qpos[:], self.sim.data.qvel[:] = state[0], state[1:3], state[3:]

    def _get_observations(self, force_update: bool = False) -> Any:
        hand = np.append(self.sim.data.qpos, 0.0)
        return {"robot0_eef_pos": hand, "robot0_eef_quat": np.eye(4)[3], "robot0_gripper_qpos": np.zeros(2)}


def made(suite: str) -> tuple[Any, StandIn]:
    env: Any = object.__new__(RobosuiteEnv)
    env._spec, env._fast, env._env = EnvSpec(suite=suite, task="libero_spatial/0"), False, StandIn()
    return env, env._env


def test_an_episode_begins_after_ten_steps_of_rest_with_open_fingers():
    """num_steps_wait and LIBERO_DUMMY_ACTION of openpi's examples/libero/main.py."""
    env, its = made("libero")
    shown = env.reset(20)
    assert its.seeds == [20]
    assert its.actions == [[0, 0, 0, 0, 0, 0, -1]] * 10
    assert shown["robot0_eef_pos"].tolist() == [10, 20, 0]
    other, its = made("robosuite")
    assert other.reset(20)["robot0_eef_pos"].tolist() == [20, 20, 0]
    assert its.actions == []


def test_a_published_state_falls_into_place_too():
    env, its = made("libero")
    shown = env.reset_to(np.array([0.5, 3.0, 4.0, 5.0]))
    assert its.seeds == [0], "furniture stands where seed 0 puts it"
    assert len(its.actions) == 10
    assert shown["robot0_eef_pos"].tolist() == [-7, 4, 0]
    assert (its.sim.data.time, its.sim.data.qvel.tolist()) == (0.5, [5.0])
    assert its.controller.updates == [True, [0, 0]]
    with pytest.raises(
        ConfigError, match=r"expected an initial state of 4 numbers \(time, 2 positions, 1 velocities\)"
    ):
        env.reset_to(np.zeros(3))
