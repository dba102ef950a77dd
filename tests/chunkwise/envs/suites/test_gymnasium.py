"""Gymnasium's environments behind our protocol: what they show, take and say, by ones whose answers are known."""

import dataclasses
import os
import re
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from chunkwise.config.installed import pip_install
from chunkwise.envs.environment import EnvSpec, make, state_hash
from chunkwise.envs.suites import gymnasium as suite
from chunkwise.errors import ConfigError


class Line(gymnasium.Env):
    """x moves by the action, from where the seed says; there is success above 1, and an end after 5 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12.5}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(np.float32(-0.5), np.float32(0.25), (2,))
    observation_space = gymnasium.spaces.Dict(
        {
            "x": gymnasium.spaces.Box(-9, 9, (1, 2), np.float64),
            "eye": gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8),
        }
    )

    def __init__(self, render_mode: str | None = None, says: str = "is_success") -> None:
        self.render_mode, self.says = render_mode, says

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(0, 1, (1, 2)), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert action.dtype == np.float32
        self.x, self.t = self.x + action, self.t + 1
        there = bool((self.x > 1).all())
        return self._seen(), float(self.x.sum()), there, self.t == 5, {self.says: there} if self.says else {}

    def render(self) -> Any:
        return np.full((8, 12, 3), 40 * self.t, np.uint8)

    def expert(self) -> Any:
        return lambda seen: np.full(2, 0.25)

    def _seen(self) -> Any:
        return {"x": self.x.copy(), "eye": np.full((4, 6, 3), self.t, np.uint8)}


class Fall(Line):
    """Ends for good at once, and has failed."""

    def step(self, action: Any) -> Any:
        seen, reward, _, truncated, _ = super().step(action)
        return seen, reward, True, truncated, {"success": False}


class Whole(Line):
    """Takes whole numbers."""

    action_space = gymnasium.spaces.Box(0, 9, (2,), np.int64)


class First(Line):
    """Shows images with the channels first."""

    observation_space = gymnasium.spaces.Dict(
        {"x": gymnasium.spaces.Box(-9, 9, (1, 2), np.float64), "eye": gymnasium.spaces.Box(0, 255, (3, 4, 6), np.uint8)}
    )


class Grey(Line):
    """Shows a grey image alone."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def _seen(self) -> Any:
        return np.zeros((8, 8, 1), np.uint8)


class Wide(Line):
    """Takes float64 within 0.1, next to which float32 has no number below; it has no render_mode."""

    action_space = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float64)

    def __init__(self) -> None:
        super().__init__()

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return super().step(action.astype(np.float32))


@pytest.fixture(autouse=True)
def registered() -> Any:
    names = {"Line-v0": Line, "Silent-v0": lambda **options: Line(says="", **options), "Fall-v0": Fall}
    names |= {"Whole-v0": Whole, "First-v0": First, "Grey-v0": Grey, "Wide-v0": Wide}
    for name, entry in names.items():
        gymnasium.register(name, entry, max_episode_steps=4)
    yield
    for name in names:
        del gymnasium.registry[name]


def test_what_is_shown_taken_and_reached():
    env = make(EnvSpec(suite="gymnasium", task="Line-v0", cameras=("eye", "render"), image_size=(4, 6)))
    assert (env.fps, env.action_dim) == (12.5, 2)
    observed = env.reset(7)
    x = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7))).uniform(0, 1, (1, 2))
    assert set(observed) == {"x"}
    np.testing.assert_array_equal(observed["x"], x.ravel().astype(np.float32))
    np.testing.assert_array_equal(env.state(), x.ravel(), "an image is no part of it where there is something else")
    np.testing.assert_array_equal(env.clip(np.array([-1.0, 1.0])), np.array([-0.5, 0.25], np.float32))
    steps = [env.step(np.full(2, 0.25, np.float32)) for _ in range(4)]
    for t, step in enumerate(steps, start=1):
        there = bool((x + 0.25 * t > 1).all())
        assert (step.success, step.terminated, step.truncated) == (there, there, t == 4), "the registered limit counts"
        assert step.reward == pytest.approx((x + 0.25 * t).sum())
    assert any(step.success for step in steps)
    images = env.images()
    assert (images["eye"] == 4).all()
    assert images["eye"].shape == (4, 6, 3)
    assert images["render"].shape == (4, 6, 3), "resized"
    assert (images["render"] == 160).all()
    assert env.render(8, 12).shape == (8, 12, 3)
    first = state_hash(env.state())
    env.reset(7)
    assert state_hash(env.state()) != first
    np.testing.assert_array_equal(env.reset(7)["x"], observed["x"])
    assert env.expert()(observed).tolist() == [0.25, 0.25]  # pyright: ignore[reportAttributeAccessIssue]
    env.close()


def test_a_box_is_the_state_and_a_script_is_no_duty():
    env = make(EnvSpec(suite="gymnasium", task="Pendulum-v1"))
    assert set(env.reset(3)) == {"state"}
    assert env.reset(3)["state"].shape == (3,)
    assert env.clip(np.array([5.0])) == [2.0]
    assert env.images() == {}
    assert not hasattr(env, "expert")


def test_actions_lie_within_bounds_of_another_type_and_a_constructor_needs_no_render_mode():
    env = make(EnvSpec(suite="gymnasium", task="Wide-v0"))
    x = env.reset(0)["x"]
    seen = env.step(env.clip(np.array([1.0, -1.0]))).observation["x"]
    np.testing.assert_allclose(seen - x, [0.1, -0.1], atol=1e-6)
    spec = EnvSpec(suite="gymnasium", task="Wide-v0")
    for changes in ({"video": True}, {"cameras": ("render",), "image_size": (4, 6)}):
        with pytest.raises(ConfigError, match="Wide-v0 cannot render: its constructor takes no render_mode"):
            make(dataclasses.replace(spec, **changes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("display", "given", "found"), [(None, None, "egl"), (None, "osmesa", "osmesa"), (":0", None, None)]
)
def test_without_a_screen_gymnasium_renders_by_egl(
    display: Any, given: Any, found: Any, monkeypatch: pytest.MonkeyPatch
):
    """Asked for images or not: what is observed may be rendered, in the constructor already."""
    monkeypatch.setattr("sys.platform", "linux")
    for name, value in (("DISPLAY", display), ("MUJOCO_GL", given)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    make(EnvSpec(suite="gymnasium", task="Line-v0"))
    assert os.environ.get("MUJOCO_GL") == found


def test_mujocos_positions_are_part_of_the_state():
    env = make(EnvSpec(suite="gymnasium", task="InvertedPendulum-v5"))
    env.reset(0)
    assert env.state().shape == (4 + 2 + 2,)


def test_an_environment_that_never_says_success_is_told_of_once_it_ends():
    env = make(EnvSpec(suite="gymnasium", task="Silent-v0"))
    env.reset(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            env.step(np.zeros(2, np.float32))
    with pytest.warns(UserWarning, match="Silent-v0 never says whether an episode succeeded, so each counts as failed"):
        assert not env.step(np.zeros(2, np.float32)).success


def test_images_that_are_left_out_are_said_when_it_is_opened():
    said = r"^First-v0: left out of what is observed, eye \(3, 4, 6\); expected images \(h, w, 3\)"
    with pytest.warns(UserWarning, match=said) as found:
        make(EnvSpec(suite="gymnasium", task="First-v0"))
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(EnvSpec(suite="gymnasium", task="Line-v0"))


def test_an_environment_of_other_images_may_be_seen_by_its_render():
    with pytest.warns(UserWarning, match=r"left out of what is observed, state \(8, 8, 1\)"):
        env = make(EnvSpec(suite="gymnasium", task="Grey-v0", cameras=("render",), image_size=(8, 12)))
    env.reset(0)
    assert env.images()["render"].shape == (8, 12, 3)


def test_an_end_is_no_success_by_itself():
    env = make(EnvSpec(suite="gymnasium", task="Fall-v0"))
    env.reset(0)
    step = env.step(np.zeros(2, np.float32))
    assert (step.success, step.terminated, step.truncated) == (False, True, False)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"task": "Lime-v0"}, "Gymnasium has no environment 'Lime-v0' that it can make"),
        ({"task": "CartPole-v1"}, r"takes actions of Discrete\(2\); expected a Box"),
        ({"task": "Line-v0", "cameras": ("front",)}, "no camera front; choose from eye, render"),
        ({"task": "Whole-v0"}, r"takes actions of Box\(0, 9, \(2,\), int64\); expected a Box of one axis, continuous"),
        (
            {"task": "First-v0", "cameras": ("eye",)},
            r"no camera eye; .*; eye is \(3, 4, 6\), expected \(h, w, 3\)",
        ),
        ({"task": "Grey-v0"}, r"Grey-v0 observes uint8 numbers of shape \(8, 8, 1\); expected an image \(h, w, 3\)"),
        ({"task": "antigravity:Line-v0"}, "which would import Python code"),
        ({"task": "no_such_module:Line-v0", "allow_code": True}, "no_such_module"),
    ],
)
def test_what_cannot_be_made_is_named(spec: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        make(EnvSpec(suite="gymnasium", **spec))


def test_gymnasium_may_be_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ConfigError, match=f"suite gymnasium needs .*: {re.escape(pip_install('sim'))}, or gymnasium"):
        suite.GymnasiumEnv(EnvSpec(suite="gymnasium", task="Pendulum-v1"))
