import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunkwise.config.installed import pip
from chunkwise.envs import environment
from chunkwise.envs.environment import EnvSpec, state_hash
from chunkwise.envs.suites import metaworld
from chunkwise.envs.suites.metaworld import CAMERAS, MT10, PROMPTS, MetaworldEnv
from chunkwise.errors import ConfigError

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def door() -> Iterator[MetaworldEnv]:
    """A task that places an object in the model itself."""
    env = made("door-open-v3")
    yield env
    env.close()


def made(task: str, **changes: tuple[str, ...] | tuple[int, int]) -> MetaworldEnv:
    settings: dict = {"suite": "metaworld", "task": task, **changes}
    env = environment.make(EnvSpec(**settings))
    assert isinstance(env, MetaworldEnv)
    return env


def play(env: MetaworldEnv, seed: int, steps: int = 20) -> tuple[str, np.ndarray]:
    seen = [env.reset(seed)["state"]]
    begin = state_hash(env.state())
    actions = np.random.default_rng(seed).uniform(-1, 1, (steps, 4))
    seen += [env.step(env.clip(action)).observation["state"] for action in actions]
    return begin, np.stack(seen)


@pytest.mark.filterwarnings("ignore")  # the simulator's own
def test_a_rollout_repeats_to_the_bit_whatever_was_before(door: MetaworldEnv):
    first = play(door, 1)
    other = play(door, 2)
    again = play(door, 1)
    fresh = made("door-open-v3")
    anew = play(fresh, 1)
    fresh.close()
    assert first[0] == again[0] == anew[0] != other[0]
    np.testing.assert_array_equal(first[1], again[1])
    np.testing.assert_array_equal(first[1], anew[1])
    assert first[1].shape == (21, 39)
    assert np.any(first[1][0, -3:] != other[1][0, -3:]), "the goal is visible, and drawn"
    np.testing.assert_array_equal(first[1][1:, 18:36], first[1][:-1, :18], "the step before")


@pytest.mark.filterwarnings("ignore")
def test_parts_of_the_state_are_shown_by_themselves(door: MetaworldEnv):
    first = door.reset(1)
    seen = door.step(np.array([1, 0, 0, 1], np.float32)).observation
    inner = door._env
    np.testing.assert_allclose(seen["hand"][:3], inner.get_endeff_pos(), atol=1e-6)
    np.testing.assert_allclose(seen["object"][:3], inner._get_pos_objects(), atol=1e-6)
    np.testing.assert_allclose(seen["object"][3:], inner._get_quat_objects(), atol=1e-6)
    np.testing.assert_allclose(seen["goal"], inner._target_pos, atol=1e-6)
    assert not seen["other_object"].any(), "a door is one object"
    parts = [first[name] for name in ("hand", "object", "other_object")]
    np.testing.assert_array_equal(seen["before"], np.concatenate(parts))
    assert {name: len(part) for name, part in seen.items()} == {
        "state": 39, "hand": 4, "object": 7, "other_object": 7, "before": 18, "goal": 3
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", [*PROMPTS])
def test_every_task_resets_alike_after_another_episode(task: str):
    env = made(task)
    first = play(env, 3, 5)
    play(env, 4, 30)
    again = play(env, 3, 5)
    env.close()
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", MT10)
def test_experts_solve_the_ten(task: str):
    env = made(task)
    solved = 0
    for seed in range(3):
        observed, expert = env.reset(seed), env.expert()
        for _ in range(400):
            step = env.step(env.clip(expert(observed)))
            observed = step.observation
            if step.success:
                solved += 1
                break
    env.close()
    assert solved >= (2 if task == "peg-insert-side-v3" else 3)  # which is weaker on mujoco 3.8 than on 3.3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("can_render")
def test_images_are_upright():
    env = made("reach-v3", cameras=CAMERAS, image_size=(96, 128))
    seen = {}
    try:
        for way, action in {"up": (0, 0, 1, 0), "down": (0, 0, -1, 0)}.items():
            env.reset(1)
            for _ in range(20):
                env.step(np.array(action, np.float32))
            seen[way] = {name: arm_of(image) for name, image in env.images().items()}
        turned = env.images()["corner2"]
        np.testing.assert_array_equal(
            turned, np.rot90(env._renderer.render(env._env.data, "corner2"), 2), "turned, not mirrored"
        )
    finally:
        env.close()
    assert seen["up"].keys() == set(CAMERAS)
    for name in ("corner", "corner2", "corner3", "corner4"):
        assert seen["up"][name][0] < seen["down"][name][0] - 1, f"{name}: what is raised is seen higher"


def arm_of(image: np.ndarray) -> np.ndarray:
    """Mean row and column of what is red: the arm."""
    assert image.shape == (96, 128, 3)
    values = image.astype(float)
    return np.argwhere(values[..., 0] - values[..., 1:].max(-1) > 40).mean(0)


def test_what_is_unknown_is_named():
    assert len(PROMPTS) == 50
    assert len(set(PROMPTS.values())) == 50
    assert set(MT10) < set(PROMPTS)
    with pytest.raises(ConfigError, match=r"env.task is 'lift'; Meta-World has assembly-v3"):
        made("lift")
    with pytest.raises(ConfigError, match="reach-v3 has no camera front; choose from topview, corner"):
        made("reach-v3", cameras=("front",))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=rf"make env, or .* {re.escape(pip())} install --no-deps metaworld==3.1.1"):
        metaworld._package("metaworld")


def test_simulators_that_render_in_turns_see_their_own_scenes():
    """Each has a GL context of its own; the first image after a change of contexts came from another buffer."""
    specs = [
        EnvSpec(suite="aloha", task="AlohaTransferCube", cameras=("top",), image_size=(48, 64)),
        EnvSpec(suite="metaworld", task="reach-v3", cameras=("corner2",), image_size=(84, 84)),
    ]
    worlds = [environment.make(spec) for spec in specs]
    for world in worlds:
        world.reset(0)
    first = [world.images() for world in worlds]
    for _ in range(2):
        for world, expected in zip(worlds, first, strict=True):
            for name, image in world.images().items():
                np.testing.assert_array_equal(image, expected[name])
    for world in worlds:
        world.close()


def test_every_task_is_in_one_group_of_difficulty() -> None:
    """28, 11, 6 and 5, as in the tables of SmolVLA (arXiv:2506.01844) and pi_RL (arXiv:2510.25889)."""
    groups = [metaworld.TASK_SETS[name] for name in ("easy", "medium", "hard", "very_hard")]
    assert [len(group) for group in groups] == [28, 11, 6, 5]
    assert sorted(task for group in groups for task in group) == sorted(metaworld.PROMPTS)


ENDS = """
from chunkwise.envs.environment import EnvSpec, make
for suite, task, camera in (("metaworld", "reach-v3", "corner2"), ("robosuite", "Lift", "agentview_image")):
    env = make(EnvSpec(suite=suite, task=task, cameras=(camera,)))
    env.reset(0)
    env.images()
    globals()[suite] = env
"""


@pytest.mark.long
def test_a_process_that_rendered_in_two_simulators_ends_without_a_word() -> None:
    """robosuite ends EGL for the whole process, before our contexts are let go of."""
    ended = subprocess.run([sys.executable, "-c", ENDS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "EGL" not in ended.stderr
