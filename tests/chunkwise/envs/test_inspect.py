"""`chunkwise inspect --env`: what it says of environments that are exact, and of those that are not."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from chunkwise.cli import verbs
from chunkwise.envs import inspect
from chunkwise.envs.environment import Step
from tests.chunkwise.envs.countdown import Countdown

HERE = __name__


class Leaks(Countdown):
    """Its reward remembers how many episodes there were; nothing that is seen does."""

    def reset(self, seed: int) -> Any:
        self.episodes = getattr(self, "episodes", 0) + 1
        return super().reset(seed)

    def step(self, action: Any) -> Any:
        step = super().step(action)
        return Step(step.observation, float(self.episodes), step.success, step.terminated, step.truncated)


class Unlike(Countdown):
    """Every one that is made shows another number from step 3 on."""

    made = 0

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        Unlike.made += 1
        self.number = Unlike.made

    def _observe(self) -> Any:
        return super()._observe() | {"number": np.array([self.number if self.t >= 3 else 0], np.float32)}


class Broken(Countdown):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("at once")


class Unrewarded(Countdown):
    def step(self, action: Any) -> Any:
        return dataclasses.replace(super().step(action), reward=float("nan"))


class Loose(Countdown):
    """Gives what looks like a step."""

    def step(self, action: Any) -> Any:
        return types.SimpleNamespace(**vars(super().step(action)))


class Blind(Countdown):
    def _observe(self) -> Any:
        return {"state": [float("nan"), float("inf")]}


class Two(Countdown):
    def reset(self, seed: int) -> Any:
        return super().reset(seed), {}


class Grey(Countdown):
    def images(self) -> Any:
        return {"top": np.zeros((4, 6), np.uint8)}


class Dark(Countdown):
    def images(self) -> Any:
        return {"depth": np.full((2, 2), np.nan if self.t else 0, np.float32)}


def run(*words: str) -> int:
    return inspect.main(list(words))


def test_an_exact_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    image = tmp_path / "a.png"
    words = ["--env", f"{HERE}:Countdown", "--camera", "top", "side", "--image-size", "8", "9", "--image", str(image)]
    assert run(*words, "--steps", "12", "--seed", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["observation"] == {"state": "float32 [2]", "top": "uint8 [2, 3, 3]", "side": "uint8 [2, 3, 3]"}
    assert (found["steps"], found["action_dim"], found["fps"], found["differences"]) == (12, 3, 10, [])
    assert (found["episodes"], found["successes"]) == (2, 0), "9 steps of seed 3, then 3 of seed 4's 5"
    written = cv2.imread(str(image))
    assert written is not None
    assert written.shape == (2, 6, 3), "side by side"
    assert run(*words, "--steps", "14", "--seed", "3") == 0
    said = capsys.readouterr().out
    assert "14 random steps, 2 episodes, 1 of which succeeded" in said
    assert "resets and replays are exact" in said
    assert f"image: {image}" in said


def test_a_trace_of_the_episode_before_is_found(capsys: pytest.CaptureFixture[str]):
    assert run("--env", f"{HERE}:Leaks", "--steps", "5") == 65
    said = capsys.readouterr().out
    assert "not exact, after other episodes: from step 1: reward" in said
    assert "anew" not in said


def test_an_environment_made_anew_that_is_another_is_found(capsys: pytest.CaptureFixture[str]):
    assert run("--env", f"{HERE}:Unlike", "--steps", "5", "--seed", "1") == 65
    assert "not exact, in an environment made anew: from step 3: number" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--env", f"{HERE}:Broken"), 70, "ZeroDivisionError: at once"),
        (("--env", "Nothing"), 64, "expected suite/task"),
        (("--env", f"{HERE}:Countdown", "--steps", "0"), 64, "--steps is 0"),
        (("--env", f"{HERE}:Countdown", "--image", "a.png"), 64, "--image needs --camera"),
        (("--env", f"{HERE}:Broken", "--camera", "a", "--image", "/dev"), 64, "/dev is a folder"),
        (("--env", f"{HERE}:Broken", "--camera", "a", "--image", "/dev/null/a.png"), 74, "cannot write /dev/null/a"),
        (("--env", f"{HERE}:nan", "--steps", "9"), 64, "expected a factory"),
        (
            ("--env", f"{HERE}:Countdown:nan", "--steps", "9", "--seed", "1"),
            65,
            "nan, step 3 observed 'state' with 1 of 2",
        ),
        (("--env", f"{HERE}:Unrewarded"), 65, "Unrewarded, step 1 gave the reward nan; expected a finite number"),
        (("--env", f"{HERE}:Loose"), 65, "Loose, step 1 gave a SimpleNamespace; expected a chunkwise.envs"),
        (("--env", f"{HERE}:Blind"), 65, "Blind, reset with seed 0 observed 'state' with 2 of 2 numbers not finite"),
        (
            ("--env", f"{HERE}:Two"),
            65,
            "Two, reset with seed 0 gave a tuple; expected a dict of arrays by name, the fi",
        ),
        (
            ("--env", f"{HERE}:Grey", "--camera", "top"),
            65,
            "Grey shows the camera 'top' as uint8 [4, 6]; expected ui",
        ),
        (("--env", f"{HERE}:Dark"), 65, "Dark, step 1 observed 'depth' with 4 of 4 numbers not finite"),
    ],
)
def test_what_goes_wrong_is_said(words: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]):
    assert run(*words) == code
    assert message in capsys.readouterr().err


def test_the_verb_finds_it():
    assert verbs.resolve(["inspect", "--env", "point/red"]) == ("chunkwise.envs.inspect", ["--env", "point/red"])
    assert verbs.resolve(["inspect", "--env=point/red"])[0] == "chunkwise.envs.inspect"
