"""OGBench's environments: that resets repeat to the bit, and names that are refused."""

from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec, make, state_hash
from chunkwise.envs.suites import ogbench
from chunkwise.errors import ConfigError

TASK = "cube-single-play-singletask-task2-v0"


def of(task: str) -> ogbench.OgbenchEnv:
    return ogbench.make(EnvSpec(suite="ogbench", task=task))


def test_a_reset_is_a_function_of_its_seed() -> None:
    env, other = of(TASK), of("cube-single-singletask-task2-v0")
    first, begin = env.reset(11), state_hash(env.state())
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 5)).astype(np.float32)
    after = [env.step(action).observation["state"] for action in actions]
    assert state_hash(env.state()) != begin
    for again in (env, other):
        repeated = again.reset(11)
        assert state_hash(again.state()) == begin
        assert again.info["time"][0] == 0
        np.testing.assert_array_equal(repeated["state"], first["state"])
        np.testing.assert_array_equal(repeated["qpos"], first["qpos"])
        np.testing.assert_array_equal([again.step(action).observation["state"] for action in actions], after)
    assert (first["state"].shape, first["qpos"].shape, env.action_dim) == ((28,), (7,), 5)
    env.reset(12)
    assert state_hash(env.state()) != begin
    np.testing.assert_array_equal(env.clip(np.array([-3.0, 0.5, 1.5])), np.array([-1, 0.5, 1], np.float32))


def test_buttons_are_part_of_the_state() -> None:
    env = of("puzzle-3x3-play-singletask-task1-v0")
    env.reset(0)
    before = state_hash(env.state())
    env.gym.unwrapped._cur_button_states[4] ^= 1
    assert state_hash(env.state()) != before


def double(**rules: Any) -> ogbench.OgbenchEnv:
    """Two cubes, one of them at its goal; how the state came about was not judged."""
    env = ogbench.make(EnvSpec(suite="ogbench", task="cube-double-singletask-task2-v0", **rules))
    env.reset(0)
    place(env, cube=0)
    return env


def place(env: ogbench.OgbenchEnv, *, cube: int) -> None:
    inner = env.gym.unwrapped
    qpos = inner._data.qpos.copy()
    qpos[14 + 7 * cube : 17 + 7 * cube] = inner._data.mocap_pos[inner._cube_target_mocap_ids[cube]]
    inner.set_state(qpos, np.zeros(inner.model.nv))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sparse_reward_is_minus_1_until_all_is_done(sparse: bool) -> None:
    env = double(sparse=sparse)
    reset = ogbench.make(EnvSpec(suite="ogbench", task="cube-double-singletask-task2-v0", sparse=sparse))
    reset.reset(0)
    still = np.zeros(5, np.float32)
    assert reset.step(still).reward == (-1 if sparse else -2)
    assert env.step(still).reward == -1
    place(env, cube=1)
    done = env.step(still)
    assert (done.reward, type(done.reward)) == (0, float)


def test_success_is_judged_before_an_action_or_after_it() -> None:
    still = np.zeros(5, np.float32)
    found = {}
    for timing in ("pre", "post"):
        env = double(success_timing=timing)
        place(env, cube=1)
        steps = [env.step(still), env.step(still)]
        found[timing] = [(step.success, step.terminated) for step in steps]
    assert found == {"pre": [(False, False), (True, True)], "post": [(True, True), (True, True)]}


def test_other_suites_have_no_such_rules() -> None:
    for spec in (
        EnvSpec(suite="point", task="red", sparse=True),
        EnvSpec(suite="point", task="red", success_timing="post"),
    ):
        with pytest.raises(ConfigError, match="point red: sparse rewards and success_timing are choices of OGBench's"):
            make(spec)


def test_names_that_are_refused() -> None:
    for name in ("cube-single-v0", "visual-cube-single-singletask-v0"):
        with pytest.raises(ConfigError, match="no single task with state observations"):
            of(name)
    with pytest.raises(ConfigError, match="OGBench has no environment cube-single-singletask-task9-v0"):
        of("cube-single-play-singletask-task9-v0")
    with pytest.raises(ConfigError, match="would import Python code"):
        of("evil:cube-single-singletask-v0")
    with pytest.raises(ConfigError, match="no images here, and front are asked for"):
        ogbench.make(EnvSpec(suite="ogbench", task=TASK, cameras=("front",)))
