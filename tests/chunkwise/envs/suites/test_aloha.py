"""ALOHA's tasks against gym-aloha's own, stages, and what a machine that cannot render is told."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites import aloha, offscreen
from chunkwise.envs.suites.aloha import LEFT_FINGER, RIGHT_FINGER, TABLE, AlohaEnv, insertion_stage, transfer_stage
from chunkwise.errors import ConfigError


def env_of(task: str, **more: Any) -> AlohaEnv:
    return AlohaEnv(EnvSpec(suite="aloha", task=task, **more))


@pytest.mark.parametrize(("task", "theirs"), [("AlohaTransferCube", "transfer_cube"), ("AlohaInsertion", "insertion")])
def test_steps_are_gym_alohas(task: str, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, positions and stages while the arms flail; without the images that it renders."""
    from gym_aloha.env import AlohaEnv as Gym
    from gym_aloha.tasks import sim

    def observe(self: Any, physics: Any) -> dict[str, Any]:
        return {"qpos": self.get_qpos(physics), "qvel": self.get_qvel(physics), "images": {"top": np.zeros(1)}}

    monkeypatch.setattr(sim.BimanualViperXTask, "get_observation", observe)
    gym: Any = Gym(theirs, obs_type="pixels_agent_pos")
    gym.reset(seed=3)
    env = env_of(task)
    drawn: Any = sim.BOX_POSE[0]
    observed = env.reset_to(drawn)
    physics = gym._env.physics
    np.testing.assert_array_equal(env.state(), np.concatenate([physics.data.qpos, physics.data.qvel]))
    np.testing.assert_allclose(env.data.qacc, physics.data.qacc, atol=1e-6)  # no actuator pulls yet
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = env.clip(observed["qpos"] + rng.normal(0, 0.3, 14)).astype(np.float64)  # it scales in its dtype
        seen, reward, terminated, _, _ = gym.step(action)
        step = env.step(action)
        observed = step.observation
        expected = np.concatenate([physics.data.qpos, physics.data.qvel])
        np.testing.assert_allclose(env.state(), expected, atol=1e-6)
        np.testing.assert_allclose(observed["qpos"], seen["agent_pos"], atol=1e-6)
        np.testing.assert_allclose(observed["qvel"], sim.BimanualViperXTask.get_qvel(physics), atol=1e-4)
        hand = physics.named.data.xpos["vx300s_right/gripper_link"]
        np.testing.assert_allclose(observed["robot0_eef_pos"], hand, atol=1e-6)
        assert (step.reward, step.terminated) == (reward, terminated)


def test_initial_states_are_gym_alohas() -> None:
    from gym_aloha.utils import sample_box_pose, sample_insertion_pose

    for seed in (0, 5, 2**32 - 1):
        np.testing.assert_array_equal(aloha.TASKS["AlohaTransferCube"].draw(seed), sample_box_pose(seed))
        expected = np.concatenate(sample_insertion_pose(seed))
        np.testing.assert_array_equal(aloha.TASKS["AlohaInsertion"].draw(seed), expected)


def touching(*pairs: tuple[str, str]) -> aloha.Touching:
    return lambda one, other: (one, other) in pairs


def test_stages_of_a_transfer() -> None:
    cube, table = ("red_box", TABLE), ("red_box", RIGHT_FINGER)
    assert transfer_stage(touching(cube)) == 0
    assert transfer_stage(touching(cube, table)) == 1
    assert transfer_stage(touching(table)) == 2
    assert transfer_stage(touching(cube, ("red_box", LEFT_FINGER))) == 3
    assert transfer_stage(touching(("red_box", LEFT_FINGER))) == 4


def test_stages_of_an_insertion() -> None:
    held = (("red_peg", RIGHT_FINGER), ("socket-3", LEFT_FINGER))
    assert insertion_stage(touching(held[0])) == insertion_stage(touching(held[1])) == 0
    assert insertion_stage(touching(*held, ("red_peg", TABLE))) == 1
    assert insertion_stage(touching(*held, ("socket-2", TABLE))) == 1
    assert insertion_stage(touching(*held)) == 2
    assert insertion_stage(touching(("red_peg", "socket-4"))) == 3
    assert insertion_stage(touching(*held, ("red_peg", "socket-4"), ("socket-1", TABLE))) == 1
    assert insertion_stage(touching(("red_peg", "pin"), ("red_peg", TABLE))) == 4


def test_gripper_values_and_fingers_are_inverse() -> None:
    action = np.linspace(0.1, 0.9, 14)
    command = aloha.controls(action)
    np.testing.assert_allclose(aloha.joints(command), action)
    np.testing.assert_allclose(command[[7, 15]], -command[[6, 14]])
    opened = aloha.controls(np.array([*np.zeros(6), 0.0, *np.zeros(6), 1.0]))
    np.testing.assert_allclose(opened[[6, 7, 14, 15]], [0.01844, -0.01844, 0.058, -0.058])


@pytest.mark.usefixtures("can_render")
def test_rendering_does_not_depend_on_who_imported_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo's own renderer takes the way that MUJOCO_GL named at the first import; the same image here."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    code = (
        "import mujoco; from chunkwise.envs.environment import EnvSpec, make;"
        "e = make(EnvSpec(suite='aloha', task='AlohaInsertion')); e.reset(5);"
        "p = e.render(24, 32); print(p.sum(), p.std())"
    )
    root = Path(__file__).parents[4]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    env = env_of("AlohaInsertion")
    env.reset(5)
    here = env.render(24, 32)
    assert child.stdout.split() == [str(here.sum()), str(here.std())], child.stderr


@pytest.mark.usefixtures("can_render")
def test_images_go_by_either_name_and_are_resized() -> None:
    names = ("agentview_image", "robot0_eye_in_hand_image", "top", "front_close")
    env = env_of("AlohaTransferCube", cameras=names, image_size=(24, 32), render_size=(48, 64))
    env.reset(0)
    images = env.images()
    assert list(images) == list(names)
    assert {image.shape for image in images.values()} == {(24, 32, 3)}
    np.testing.assert_array_equal(images["agentview_image"], images["top"])
    mean = env.render(48, 64, "angle").astype(np.float64).reshape(24, 2, 32, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(images["robot0_eye_in_hand_image"], mean, atol=1)


def test_a_machine_that_cannot_render_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    with pytest.raises(ConfigError, match=r"this machine cannot render \(MUJOCO_GL=nonsense: "):
        aloha.Renderer(aloha.load_model("bimanual_viperx_insertion"), 8, 8)


@pytest.mark.parametrize("error", ["AttributeError('None has no glGetError')", "ImportError('no library OSMesa')"])
def test_a_library_that_is_not_there_is_named_and_nothing_else_is(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyOpenGL raises without libOSMesa, and the same of a module that loads no such library."""
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    said = r"cannot render \(MUJOCO_GL=osmesa: .*; set MUJOCO_GL to egl"
    for module in ("OpenGL.raw.GL._errors", "mujoco.osmesa"):
        with pytest.raises(ConfigError, match=said), offscreen.naming_mujoco_gl():
            exec(f"raise {error}", {"__name__": module})
    with pytest.raises((AttributeError, ImportError), match=r"glGetError|OSMesa"), offscreen.naming_mujoco_gl():
        exec(f"raise {error}", {"__name__": "mujoco"})


@pytest.mark.parametrize(
    "first",
    [
        "from chunkwise.envs.suites import aloha; aloha.load_model('bimanual_viperx_insertion')",
        "from chunkwise.envs.suites import ogbench; ogbench._make('cube-single-v0')",
        "from chunkwise.envs.suites import robosuite; robosuite._import_robosuite()",
        "from chunkwise.envs.suites import metaworld; metaworld._package('metaworld.env_dict')",
    ],
)
def test_so_does_whatever_imports_mujoco_first(first: str) -> None:
    """MuJoCo refuses an unknown MUJOCO_GL as it is imported; in a process of its own, since here it is imported."""
    ended = subprocess.run(
        [sys.executable, "-c", f"try: {first}\nexcept Exception as error: print(type(error).__name__, error)"],
        env=os.environ | {"MUJOCO_GL": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.startswith("ConfigError this machine cannot render (MUJOCO_GL=nonsense: "), ended.stderr
