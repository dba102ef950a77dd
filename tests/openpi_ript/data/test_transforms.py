"""openpi_ript/data/transforms.py: layers 1 and 2 by hand, and what they refuse."""

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from chunkwise.data.norm_stats import Affine, identity
from chunkwise.errors import DataError
from openpi_ript.config.data import PANDA, UR5E, RobotConfig
from openpi_ript.data.transforms import (
    RawSample,
    Rollouts,
    ToOpenPi,
    ToRipt,
    absolute_action,
    adapt_state,
    init_hash,
    relative_action,
)


def raw(robot: RobotConfig, **changes: Any) -> RawSample:
    rng = np.random.default_rng(0)
    sample = {
        "images": {"top": np.full((48, 64, 3), 200, np.uint8), "unused": np.zeros((2, 2, 3), np.uint8)},
        "state": rng.normal(size=robot.state_dim).astype(np.float32),
        "action": rng.normal(size=(5, robot.action_dim)).astype(np.float32),
        "action_is_pad": np.array([False, False, False, True, True]),
        "task": "pick the cube",
        "episode": 1,
    }
    return cast(RawSample, sample | changes)


def layer1(robot: RobotConfig, **changes: Any) -> ToOpenPi:
    transform = ToOpenPi(
        cameras={"base_0_rgb": "top"},
        image_size=(32, 32),
        robot=robot,
        state=identity(robot.state_dim),
        action=identity(robot.action_dim),
    )
    return dataclasses.replace(transform, **changes)


def test_a_frame_becomes_an_openpi_sample() -> None:
    offset, scale = np.arange(6.0), np.arange(1.0, 7.0)
    source = raw(UR5E)
    sample = layer1(UR5E, state=Affine(offset=offset, scale=scale))(source)
    assert set(sample) == {"image", "state", "action", "action_is_pad", "prompt", "episode"}
    normalised = (source["state"] - offset) / scale
    np.testing.assert_allclose(sample["state"], [*normalised, *np.zeros(8)], rtol=1e-6)
    expected = source["action"].copy()
    expected[:, :6] -= source["state"]  # the raw state, not the normalised one; the gripper stays
    np.testing.assert_array_equal(sample["action"], expected)
    np.testing.assert_array_equal(sample["action_is_pad"], source["action_is_pad"])
    image = sample["image"]["base_0_rgb"]
    assert image.dtype == np.uint8
    assert (image[4:28] == 200).all()
    assert not image[:4].any()
    assert sample["prompt"] == "pick the cube"


def test_action_normalisation_comes_after_the_relative_transform() -> None:
    robot = RobotConfig(state_dim=2, target_state_dim=2, action_dim=2, relative_dims=(1,))
    half = Affine(offset=np.ones(2), scale=np.full(2, 2.0))
    source = raw(robot, state=np.array([10, 20], np.float32), action=np.array([[3, 27]] * 5, np.float32))
    sample = layer1(robot, action=half)(source)
    np.testing.assert_array_equal(sample["action"], [[1.0, 3.0]] * 5)  # (3 - 1) / 2 and (27 - 20 - 1) / 2


def test_a_policys_chunk_goes_back_to_what_the_robot_is_sent() -> None:
    source = raw(UR5E)
    affine = Affine(offset=np.arange(7.0), scale=np.arange(1.0, 8.0))
    transform = layer1(UR5E, action=affine)
    found = transform.observed_action(transform(source)["action"], source["state"])
    np.testing.assert_allclose(found, source["action"], atol=1e-5)


def test_relative_and_absolute_are_inverse_and_copy() -> None:
    rng = np.random.default_rng(1)
    action, state = rng.normal(size=(3, 5, 7)).astype(np.float32), rng.normal(size=(3, 14)).astype(np.float32)
    before = action.copy()
    relative = relative_action(action, state, PANDA.relative_dims)
    np.testing.assert_array_equal(relative, action - state[:, None, :7])
    np.testing.assert_array_equal(action, before)
    np.testing.assert_allclose(absolute_action(relative, state, PANDA.relative_dims), action, atol=1e-6)


def test_state_adaptation_is_explicit() -> None:
    state = np.arange(14, dtype=np.float32)
    np.testing.assert_array_equal(adapt_state(state, PANDA), state)
    np.testing.assert_array_equal(adapt_state(state[:6], UR5E), [*range(6), *[0] * 8])
    wide = RobotConfig(state_dim=14, target_state_dim=4)
    np.testing.assert_array_equal(adapt_state(state[None], wide), [[0, 1, 2, 3]])
    assert PANDA.adaptation == "state 14 -> 14: as it is"
    both_arms = RobotConfig(state_dim=16)
    np.testing.assert_array_equal(adapt_state(np.arange(16, dtype=np.float32), both_arms), np.arange(16))
    assert both_arms.adaptation == "state 16 -> 16: as it is"
    with pytest.raises(ValueError, match=r"RobotConfig\.target_state_dim is 0; expected a number above 0"):
        RobotConfig(state_dim=2, target_state_dim=0)
    assert UR5E.adaptation == "state 6 -> 14: 8 zeros appended after normalisation"
    assert wide.adaptation == "state 14 -> 4: the last 10 values are cut off"
    with pytest.raises(DataError, match=r"expected 14 values as robot\.state_dim says, found 13"):
        adapt_state(state[:13], PANDA)
    with pytest.raises(ValueError, match=r"relative_dims is \(0, 6\); expected different numbers from 0 to 5"):
        RobotConfig(state_dim=6, relative_dims=(0, 6))
    with pytest.raises(ValueError, match="different numbers"):
        RobotConfig(state_dim=6, relative_dims=(1, 1))


def test_a_second_relative_transform_is_refused() -> None:
    transform = layer1(UR5E)
    sample = transform(raw(UR5E))
    with pytest.raises(DataError, match="subtracted from the action a second time"):
        transform(cast(Any, sample))
    with pytest.raises(DataError, match="a second time"):
        transform(cast(Any, {**raw(UR5E), "prompt": "x"}))


def test_float_images_are_refused() -> None:
    image = np.random.default_rng(0).random((8, 8, 3)).astype(np.float32)
    with pytest.raises(DataError, match=r"image top: expected uint8 in 0\.\.255, found float32 in 0\.\d+.*multiply"):
        layer1(UR5E)(raw(UR5E, images={"top": image}))
    with pytest.raises(DataError, match=r"expected \[height, width, 3\], found shape \(3, 8, 8\)"):
        layer1(UR5E)(raw(UR5E, images={"top": np.zeros((3, 8, 8), np.uint8)}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": {"side": np.zeros((8, 8, 3), np.uint8)}}, r"images: expected \['top'\], found \['side'\]"),
        ({"state": np.full(6, np.nan, np.float32)}, "state: expected finite numbers, found NaN or Inf in episode 1"),
        ({"action": np.full((5, 7), np.inf, np.float32)}, "action: expected finite numbers"),
        ({"action": np.zeros((5, 6), np.float32)}, "action: expected 7 values as robot.action_dim says, found 6"),
        ({"task": ""}, "episode 1: expected a task, found ''; set data.default_prompt"),
    ],
)
def test_bad_frames_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        layer1(UR5E)(raw(UR5E, **changes))


def test_a_default_prompt_serves_frames_without_a_task() -> None:
    for task in ("", "  "):
        assert layer1(UR5E, default_prompt="do it")(raw(UR5E, task=task))["prompt"] == "do it"
        with pytest.raises(DataError, match="expected a task, found ''"):
            layer1(UR5E)(raw(UR5E, task=task))


def test_layer_2_says_what_came_of_the_episode() -> None:
    rollouts = Rollouts(
        init_hash=["aa", "bb"],
        success=np.array([True, False]),
        reward=np.array([3.0, 0.5]),
        length=np.array([9, 4]),
        raw_advantage=np.array([2.5, -2.5]),
        advantage=np.array([2.6, 0.08], np.float32),
        optimality=np.array([1, 0], np.int32),
    )
    sample = ToRipt(rollouts=rollouts)(layer1(UR5E)(raw(UR5E)))
    np.testing.assert_array_equal(sample["advantages"], np.full(5, 0.08, np.float32))
    found = {key: value for key, value in sample.items() if key.startswith(("init", "optim", "rollout", "episode_"))}
    assert found == {
        "init_hash": "bb",
        "optimality": 0,
        "rollout_success": False,
        "rollout_reward": 0.5,
        "episode_length": 4,
    }
    with pytest.raises(DataError, match="expected key 'episode'"):
        ToRipt(rollouts=rollouts)(cast(Any, {"action": np.zeros((5, 7))}))


def test_hashes_tell_bitwise_different_states() -> None:
    state = np.arange(6, dtype=np.float32)
    assert init_hash(state) == init_hash(state.copy())
    assert init_hash(np.nextafter(state, 9, dtype=np.float32)) != init_hash(state)
    assert len(init_hash(state)) == 16
