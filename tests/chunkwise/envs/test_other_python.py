"""Environments in a Python of their own: one with numpy and nothing of ours, made in a temporary folder."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs import environment, inspect
from chunkwise.envs.collect import Collector, Draw, Task
from chunkwise.envs.environment import EnvSpec, Observation
from chunkwise.envs.other_python import OtherPythonEnv, SimulatorDiedError
from chunkwise.envs.workers import ProcessWorkers, Reset, Run
from chunkwise.errors import ConfigError, RunError
from tests.chunkwise.envs.countdown import Drawn, jobs

ENVIRONMENT = """
import os, sys, types
import numpy as np
import simulator

class Env:
    fps, action_dim, video_size = 10, 2, (6, 8)

    def __init__(self, spec):
        self.spec = spec
        if spec.task == "broken":
            raise ZeroDivisionError("made in vain")
        print("a line of the simulator's")

    def reset(self, seed):
        self.t, self.seed = 0, seed
        if self.spec.task == "fails":
            raise ValueError("no such seed")
        if self.spec.task == "objects":
            return {"state": np.array([object()])}
        if self.spec.task == "deadly" and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
        return self._seen()

    def state(self):
        return np.array([self.seed, self.t], np.float64)

    def clip(self, action):
        return np.clip(action, -1, 1)

    def step(self, action):
        if self.spec.task == "tuple":
            return self._seen(), 0.0
        self.t += 1
        return types.SimpleNamespace(observation=self._seen(), reward=np.float64(0.1) * action[0], success=self.t == 3)

    def images(self):
        return {name: np.full((*self.spec.image_size, 3), self.t, np.uint8) for name in self.spec.cameras}

    def render(self, height, width):
        return np.zeros((height, width, 3), np.uint8)

    def close(self):
        pass

    def expert(self):
        return lambda seen: np.array([seen["state"][0] / 3, -1.0])

    def _seen(self):
        ours = any(name.split(".")[0] in ("chunkwise", "jax", "flax") for name in sys.modules)
        return {"state": np.array([self.seed / 3, self.t, simulator.VERSION, ours])}
"""


@pytest.fixture
def spec(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvSpec:
    """Of the environment in the user's folder."""
    (tmp_path / "theirs.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".")
    return EnvSpec(suite="theirs:Env", python=str(bare), allow_code=True)


def test_what_it_shows_is_what_it_showed_there(spec: EnvSpec):
    env = environment.make(dataclasses.replace(spec, cameras=("top",), image_size=(2, 3)))
    assert "simulator" not in sys.modules
    seen = env.reset(1)
    assert seen["state"].dtype == np.float64
    np.testing.assert_array_equal(seen["state"], [1 / 3, 0, 330, 0], "to the bit, and nothing of ours is there")
    np.testing.assert_array_equal(env.clip(np.array([3.0, -0.5])), np.array([1, -0.5], np.float32))
    step = env.step(np.array([0.3, 0], np.float32))
    assert step.reward == np.float64(0.1) * np.float32(0.3)
    assert (step.success, step.terminated, step.truncated) == (False, False, False)
    np.testing.assert_array_equal(env.images()["top"], np.ones((2, 3, 3), np.uint8))
    np.testing.assert_array_equal(env.state(), [1, 1])
    assert env.render(4, 5).shape == (4, 5, 3)
    env.step(np.zeros(2, np.float32))
    assert env.step(np.zeros(2, np.float32)).success
    assert (env.fps, env.action_dim, getattr(env, "video_size", None)) == (10, 2, (6, 8))
    assert 0 < (used := getattr(env, "cpu_s")) < 60  # noqa: B009
    env.render(800, 800)
    assert getattr(env, "cpu_s") > used, "of its own process, up to its last answer"  # noqa: B009
    script = getattr(env, "expert")()  # noqa: B009
    np.testing.assert_array_equal(script(seen), [1 / 9, -1])
    env.close()


def test_it_is_inspected_and_played_as_any_other(spec: EnvSpec, capfd: pytest.CaptureFixture[str]):
    code = inspect.main(["--env", spec.suite, "--python", spec.python, "--steps", "9"])
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "state float64 [4]" in said.out
    assert "resets and replays are exact" in said.out
    assert "a line of the simulator's" in said.err


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("broken", r"Python 3\.\d+\.\d+\): ZeroDivisionError: made in vain\n.*theirs.py, line 12"),
        ("fails", r"ValueError: no such seed\n.*theirs.py, line 18"),
        ("objects", r"reset\(\) shows 'state' of dtype object; expected names, and arrays of numbers"),
        ("tuple", r"step\(\) gave a tuple without observation, reward, success"),
    ],
)
def test_what_it_raises_is_told_with_its_lines(task: str, words: str, spec: EnvSpec):
    def play() -> None:
        env = environment.make(spec, task)
        env.reset(0)
        env.step(np.zeros(2, np.float32))

    with pytest.raises(RunError, match=words):
        play()


def test_a_worker_says_where_in_an_episode(spec: EnvSpec):
    workers = ProcessWorkers(functools.partial(environment.make, spec, "tuple"), 1, name="theirs")
    try:
        workers.submit(0, Reset(5))
        workers.receive([0])
        workers.submit(0, Run(np.zeros((2, 2), np.float32)))
        with pytest.raises(RunError, match=r"theirs \(reset with seed 5, step 1\).*\n?.*gave a tuple"):
            workers.receive([0])
    finally:
        workers.close()


def test_a_death_is_named_and_costs_a_rollout_that_is_played_again(
    spec: EnvSpec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    env = environment.make(spec, "deadly")
    with pytest.raises(SimulatorDiedError, match=r"theirs:Env in .*python: its process ended \(killed by SIGKILL\)"):
        env.reset(0)
    (tmp_path / "died").unlink()
    workers = ProcessWorkers(functools.partial(environment.make, spec), 1, name="theirs")
    collector = Collector(workers, rows=1, tasks=[Task(name="deadly", prompt="", max_steps=6)])
    lengths: list[int] = []
    two = [dataclasses.replace(job, task="deadly") for job in jobs([0, 1])]
    try:
        collector.play(two, Narrow(), lambda job, rollout: lengths.append(rollout.length))
    finally:
        collector.close()
    assert (lengths, collector.deaths) == ([3, 3], 1)
    assert "its process ended (killed by SIGKILL)" in capfd.readouterr().err


class Narrow(Drawn):
    """Chunks of the width that the environment takes."""

    def __call__(self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]) -> Any:
        return super().__call__(observations, draws, prompts)[:, :, :2]


def test_it_ends_with_the_process_that_asked(spec: EnvSpec):
    env = OtherPythonEnv(spec)
    process = env._process
    env.close()
    assert process.returncode == 0
    second = OtherPythonEnv(spec)
    process = second._process
    process.send_signal(signal.SIGTERM)
    second.reset(0)  # a request to stop is for the one that asks
    process.stdin.close()
    assert process.wait(20) == 0
    with pytest.raises(SimulatorDiedError, match="exit code 0"):
        second.reset(0)


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_cannot_is_named_with_what_to_change(
    spec: EnvSpec, tmp_path: Path, bare: Path, capfd: pytest.CaptureFixture[str]
):
    def refused(words: str, **change: str) -> None:
        with pytest.raises(ConfigError, match=words):
            environment.make(dataclasses.replace(spec, **change))

    refused("expected the path of a Python interpreter, found no program there", python="/nowhere/python")
    refused("found no program there", python=str(tmp_path))
    odd = script(tmp_path / "odd", "#!/bin/sh\necho something else\n")
    refused("expected an interpreter of Python 3.8 or newer.*\n.*expected the begin of a message", python=odd)
    silent = script(tmp_path / "silent", "#!/bin/sh\necho 'no, thanks' >&2\nexit 3\n")
    refused("expected an interpreter of Python 3.8 or newer(.|\n)*exit code 3[)]\n  no, thanks", python=silent)
    old = f'#!/bin/sh\nexec {bare} -c "import sys; sys.version_info = (3, 7, 0); exec(sys.argv[1])" "$2" "$3"\n'
    refused("(.|\n)*Python 3.7 is too old", python=script(tmp_path / "old", old))
    refused("No module named 'nothing'. Install what is missing there", suite="nothing:Env")
    refused("env.suite 'robosuite'; expected module:factory", suite="robosuite")
    (tmp_path / "half.py").write_text("class Env:\n    fps = 1\n    def __init__(self, spec): pass\n")
    with pytest.raises(RunError, match="found Env without reset, state, clip, step, images, render, close, action_dim"):
        environment.make(dataclasses.replace(spec, suite="half:Env"))
    empty = tmp_path / "empty"
    venv.create(empty, symlinks=True)
    refused("No module named 'numpy'. Install what is missing there", python=str(empty / "bin/python"))


def test_code_that_a_folder_brought_is_not_run_there_either(spec: EnvSpec, tmp_path: Path):
    run = script(tmp_path / "evil", "#!/bin/sh\ntouch ran\n")
    with pytest.raises(ConfigError, match="would import Python code"):
        environment.make(dataclasses.replace(spec, allow_code=False, python=run))
    assert not (tmp_path / "ran").exists()


def test_the_worker_needs_numpy_alone(bare: Path):
    """It is a file of its own: the interpreter finds it by its path, and nothing else of the project."""
    worker = Path(environment.__file__).with_name("other_python_worker.py")
    code = f"import runpy, sys; runpy.run_path({str(worker)!r}); print('chunkwise' in sys.modules)"
    found = subprocess.run([bare, "-I", "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert found.stdout == "False\n"
