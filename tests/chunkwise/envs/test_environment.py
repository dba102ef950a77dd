"""Environments by suite or by `module:factory`: what is made, and what is refused by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs import environment
from chunkwise.envs.environment import EnvSpec, Observation, Step, make, state_hash
from chunkwise.errors import ConfigError, RunError
from tests.chunkwise.envs.countdown import Countdown

HERE = "tests.chunkwise.envs.test_environment"


class Counter:
    """Counts steps from a seed on."""

    fps = 10
    action_dim = 1

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.at = spec, 0

    def reset(self, seed: int) -> Observation:
        self.at = seed
        return {"at": np.array([seed], np.float32)}

    def state(self) -> Any:
        return np.array([self.at], np.float64)

    def clip(self, action: Any) -> Any:
        return np.clip(action, 0, 1).astype(np.float32)

    def step(self, action: Any) -> Step:
        self.at += 1
        return Step({"at": np.array([self.at], np.float32)}, 1.0, self.at == 3)

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> Any:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None: ...


class Half:
    """Lacks most of an environment."""

    fps = action_dim = 1

    def __init__(self, spec: EnvSpec) -> None: ...

    def reset(self, seed: int) -> None: ...


def test_a_factory_of_the_users_own_gets_the_spec() -> None:
    spec = EnvSpec(suite=f"{HERE}:Counter", task="up", cameras=("top",), allow_code=True)
    env = make(spec)
    assert isinstance(env, Counter)
    assert env.spec == spec


def test_code_that_the_user_did_not_name_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_env.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.mark').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"env.suite is 'evil_env:Env', which would import Python code.*SECURITY.md"):
        make(EnvSpec(suite="evil_env:Env"))
    assert not (tmp_path / "evil_env.mark").exists()
    with pytest.raises(ConfigError, match=r"evil_env:Env: expected a factory .*, found AttributeError"):
        make(EnvSpec(suite="evil_env:Env", allow_code=True))
    assert (tmp_path / "evil_env.mark").exists()


def test_what_is_no_environment_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"env.suite is 'mujoco'; expected one of aloha, .*, point, .*, robosuite, town, or"
    ):
        make(EnvSpec(suite="mujoco"))
    with pytest.raises(ConfigError, match=r"no_such_module:Env: expected a factory.*No module named 'no_such_module'"):
        make(EnvSpec(suite="no_such_module:Env", allow_code=True))
    with pytest.raises(ConfigError, match=r"found Half without clip, close, images, render, state, step; chunkwise"):
        make(EnvSpec(suite=f"{HERE}:Half", allow_code=True))


def test_a_rate_below_one_step_a_second_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded from a Gymnasium environment's 0.4 it is 0, by which times of frames are divided."""
    monkeypatch.setattr(Counter, "fps", 0)
    with pytest.raises(ConfigError, match="its fps is 0; expected a number of steps a second above 0"):
        make(EnvSpec(suite=f"{HERE}:Counter", allow_code=True))


def test_all_suites_have_a_factory() -> None:
    for name in environment.SUITES.values():
        assert callable(environment.find_factory(name))


def test_a_states_hash_is_that_of_its_bytes() -> None:
    """printf '\\0\\0\\0\\0\\0\\0\\0\\0' | sha256sum."""
    assert state_hash(np.zeros(1)) == "af5570f5a1810b7a"
    assert state_hash(np.zeros(2)) != "af5570f5a1810b7a"


def test_workers_start_without_jax() -> None:
    """A worker process imports the protocol, suites and workers: jax would cost each a second."""
    code = (
        "import sys, chunkwise.envs.environment as e; [e.find_factory(name) for name in e.SUITES.values()];"
        "print([name for name in ('jax', 'mujoco', 'gymnasium', 'robosuite') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Spread(Countdown):
    """Clips two numbers to one."""

    def clip(self, action: Any) -> Any:
        return np.clip(action[:1], -1, 1)


def test_a_clip_of_another_shape_is_refused() -> None:
    """numpy would spread it over the action that is kept, which is not what was executed."""
    env = Spread(EnvSpec(suite="mine:Spread"))
    assert environment.executed(env, np.array([3.0])).tolist() == [1.0]
    with pytest.raises(RunError, match=r"^clip\(\) gave shape \(1,\) of an action of shape \(2,\); expected the same$"):
        environment.executed(env, np.zeros(2))
