"""The policy's state of an observation: named functions, and one of the user's."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import code_of, spec_of
from openpi_ript.robots.libero import Libero

HAND = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
HALF = np.float32(np.sqrt(0.5))
SEEN = {
    "robot0_eef_pos": np.array([[0.1, 0.2, 0.3], [1, 2, 3]], np.float32),
    # A quarter turn about x; a third of a turn about (1, 1, 1): half of every component.
    "robot0_eef_quat": np.array([[HALF, 0, 0, HALF], [0.5, 0.5, 0.5, 0.5]], np.float32),
    "robot0_gripper_qpos": np.array([[0.04, -0.04], [0, 0]], np.float32),
}
THIRD = 2 * np.pi / 3 / np.sqrt(3)


def test_quaternions_become_axis_times_angle():
    state = policy_state(SEEN, HAND, "axis_angle")
    expected = [[0.1, 0.2, 0.3, np.pi / 2, 0, 0, 0.04, -0.04], [1, 2, 3, THIRD, THIRD, THIRD, 0, 0]]
    np.testing.assert_allclose(state, expected, atol=1e-6)
    assert state.dtype == np.float32
    one = {name: array[1] for name, array in SEEN.items()}
    np.testing.assert_array_equal(policy_state(one, HAND, "axis_angle"), state[1])
    joined = policy_state(SEEN, HAND)
    np.testing.assert_array_equal(joined, np.concatenate([SEEN[name] for name in HAND], axis=-1))
    np.testing.assert_array_equal(Libero().simulated_state(joined), state, "what openpi's LIBERO adapter makes of it")


def test_the_order_is_the_configs():
    state = policy_state(SEEN, ("robot0_gripper_qpos", "robot0_eef_quat"), "axis_angle")
    np.testing.assert_allclose(state[0], [0.04, -0.04, np.pi / 2, 0, 0], atol=1e-6)
    with pytest.raises(ConfigError, match="expected 4 numbers in my_quat, found 3"):
        policy_state({"my_quat": np.zeros((2, 3), np.float32)}, ("my_quat",), "axis_angle")


TWO_FRAMES = {
    "hand": np.array([[1, 2, 3, 0.5], [0, 0, 1, 1]], np.float32),
    "object": np.array([[1, 0, 0, 7, 8], [0.5, 0, 0, 9, 6]], np.float32),
    "goal": np.array([[2, 2, 5], [0, -1, 1]], np.float32),
}


def test_places_are_given_from_the_first():
    seen = TWO_FRAMES
    state = policy_state(seen, ("hand", "object", "goal"), "relative")
    expected = [[1, 2, 3, 0.5, 0, -2, -3, 7, 8, 1, 0, 2], [0, 0, 1, 1, 0.5, 0, -1, 9, 6, 0, -1, 0]]
    np.testing.assert_array_equal(state, np.array(expected, np.float32), strict=True)
    one = {name: array[1] for name, array in seen.items()}
    np.testing.assert_array_equal(policy_state(one, ("hand", "object", "goal"), "relative"), state[1])
    with pytest.raises(ConfigError, match="three numbers, at the beginning of open, found 2; a function of your own"):
        policy_state(seen | {"open": np.zeros((2, 2), np.float32)}, ("hand", "open"), "relative")
    with pytest.raises(ConfigError, match="at the beginning of open, found 2"):
        policy_state(seen | {"open": np.zeros((2, 2), np.float32)}, ("open", "hand"), "relative")
    with pytest.raises(ValueError, match=r"'relative' and env.state .*expected the array from which places"):
        config(state_function="relative", state=("hand",))
    with pytest.raises(ValueError, match=r"'relative' and env.state .*none whose name ends in quat; a function"):
        config(state_function="relative", state=("robot0_eef_pos", "robot0_eef_quat"))


def test_differences_hold_no_place_so_that_a_moved_scene_is_the_same():
    seen = TWO_FRAMES
    state = policy_state(seen, ("hand", "object", "goal"), "differences")
    expected = [[0, -2, -3, 1, 0, 2, 1, 2, 5, 0.5, 7, 8], [0.5, 0, -1, 0, -1, 0, -0.5, -1, 1, 1, 9, 6]]
    np.testing.assert_array_equal(state, np.array(expected, np.float32), strict=True)
    way = np.array([4, -2, 8], np.float32)
    moved = {name: np.concatenate([array[:, :3] + way, array[:, 3:]], axis=1) for name, array in seen.items()}
    np.testing.assert_array_equal(policy_state(moved, ("hand", "object", "goal"), "differences"), expected)
    one = {name: array[1] for name, array in seen.items()}
    np.testing.assert_array_equal(policy_state(one, ("hand", "object", "goal"), "differences"), state[1])
    with pytest.raises(ConfigError, match="differences: expected a place, three numbers, at the beginning of open"):
        policy_state(seen | {"open": np.zeros((2, 2), np.float32)}, ("hand", "open"), "differences")
    with pytest.raises(ValueError, match=r"'differences' and env.state .*expected the array from which places"):
        config(state_function="differences", state=("hand",))
    with pytest.raises(ValueError, match=r"'differences' and env.state .*none whose name ends in quat; a function"):
        config(state_function="differences", state=("robot0_eef_pos", "robot0_eef_quat"))


def config(**change: object) -> EnvConfig:
    made = EnvConfig(suite="robosuite", task="Lift", prompt="lift", max_steps=9)
    return dataclasses.replace(made, **change)  # pyright: ignore[reportArgumentType]


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"'axis_angel'; expected one of concatenate, axis_angle, .* mean 'axis"):
        config(state_function="axis_angel")
    with pytest.raises(ValueError, match=r"\('cube_pos',\); expected a quaternion among them"):
        config(state_function="axis_angle", state=("cube_pos",))
    config(state_function="axis_angle")


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_state.py").write_text(
        "import numpy as np\n"
        "def height(seen, names): return seen[names[0]][..., 2:].astype(float)\n"
        "def number(seen, names): return 3\n"
        "def first(seen, names): return seen[names[0]][0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    state = policy_state(SEEN, HAND, "my_state:height")
    np.testing.assert_array_equal(state, np.array([[0.3], [3]], np.float32))
    assert state.dtype == np.float32
    with pytest.raises(ConfigError, match=r"my_state:number: expected floats of shape \[2, s\], found int"):
        policy_state(SEEN, HAND, "my_state:number")
    with pytest.raises(ConfigError, match=r"expected floats of shape \[2, s\], found float32 of shape \(3,\)"):
        policy_state(SEEN, HAND, "my_state:first")
    with pytest.raises(ConfigError, match="my_state:missing: expected a function"):
        policy_state(SEEN, HAND, "my_state:missing")


def test_one_that_a_folder_brought_is_not_imported():
    own = config(state_function="antigravity:geohash")
    with pytest.raises(ConfigError, match=r"env\.state_function is 'antigravity:geohash', which would import"):
        spec_of(own)
    spec_of(own, allow_code=True)
    assert code_of(own) == "robosuite,antigravity:geohash"
    several = config(suite="gymnasium", task="", prompt="", tasks=("evil:A-v0", "Pendulum-v1", "evil:B-v0"))
    assert code_of(several) == "gymnasium,evil:A-v0,evil:B-v0"
    with pytest.raises(
        ConfigError, match=r"'evil:A-v0'.* unless it is named: --allow-env gymnasium,evil:A-v0,evil:B-v0"
    ):
        spec_of(several)
    assert spec_of(several, allow_code=True).allow_code
    there = config(suite="my:Env", task="", python="old/python")
    assert code_of(there) == "my:Env@old/python"
