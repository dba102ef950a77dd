"""The environments that a config names, as they are looked at before a run begins."""

import contextlib
import functools
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from chunkwise.errors import ConfigError, DataError, RunError
from qchunk.envs import simulators
from tests.chunkwise.envs.countdown import Countdown


class Listed(Countdown):
    """Shows lists of numbers; those that are open are counted."""

    open = 0

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        Listed.open += 1

    def reset(self, seed: int) -> Any:
        if self.spec.task == "broken":
            raise ZeroDivisionError
        return {name: list(array) for name, array in super().reset(seed).items()}

    def close(self) -> None:
        Listed.open -= 1


def test_the_environment_whose_widths_are_looked_at_is_closed_whatever_it_shows() -> None:
    name = "tests.qchunk.envs.test_simulators:Listed"
    simulators.require_widths("eval.env", name, "d", observation=("state", 2), action=3, kept={"state": 2})
    with pytest.raises(ConfigError, match="which shows state of width 2 "):
        simulators.require_widths("eval.env", name, "d", observation=("state", 4), action=3)
    with pytest.raises(RunError, match=r"reset with seed 0, step 0\) failed: ZeroDivisionError"):
        simulators.require_widths("eval.env", f"{name}:broken", "d", observation=("state", 2), action=3)
    assert Listed.open == 0


class Odd(Countdown):
    """Begins with what its task says."""

    def reset(self, seed: int) -> Any:
        state = np.array([seed, 0], np.float32)
        kinds = {"two": ({"state": state}, {}), "none": None, "array": state, "column": {"state": state[:, None]}}
        return (kinds | {"row": {"state": state[None]}, "scalar": {"state": state, "qpos": np.float32(1)}})[
            self.spec.task
        ]


@pytest.mark.parametrize(
    ("task", "error", "words"),
    [
        ("two", RunError, r"reset\(\) gave a tuple; expected a dict of arrays by name, the first of the two alone$"),
        ("none", RunError, r"reset\(\) gave a NoneType; expected a dict of arrays by name$"),
        ("array", RunError, r"reset\(\) gave a ndarray; expected a dict of arrays by name$"),
        ("column", ConfigError, r"shows arrays of shape {'state': \(2, 1\)}; expected one axis of each"),
        ("row", ConfigError, r"shows arrays of shape {'state': \(1, 2\)}; expected one axis of each"),
        ("scalar", ConfigError, r"shows arrays of shape {'qpos': \(\)}; expected one axis of each"),
    ],
)
def test_what_an_own_environment_begins_with_is_looked_at_before_a_run_begins(
    task: str, error: type[Exception], words: str
) -> None:
    name = f"tests.qchunk.envs.test_simulators:Odd:{task}"
    kept = {"qpos": 1} if task == "scalar" else {}
    with pytest.raises(error, match=words):
        simulators.require_widths("eval.env", name, "d", observation=("state", 2), action=3, kept=kept)


class Shown(Countdown):
    """Shows the images of its task's name."""

    def images(self) -> Any:
        if self.spec.task == "list":
            return [np.zeros((8, 6, 3), np.uint8)] * 2
        kinds = {
            "right": np.zeros((8, 6, 3), np.uint8),
            "grey": np.zeros((8, 6), np.uint8),
            "alpha": np.zeros((8, 6, 4), np.uint8),
            "larger": np.zeros((16, 12, 3), np.uint8),
            "float": np.zeros((8, 6, 3), np.float32),
        }
        return {"top": kinds["right"]} | ({} if self.spec.task == "missing" else {"side": kinds[self.spec.task]})


@pytest.mark.parametrize(
    ("task", "keeps", "error", "words"),
    [
        ("right", True, None, ""),
        (
            "larger",
            False,
            ConfigError,
            r"'side': \(16, 12, 3\), 'top': \(8, 6, 3\)}; expected .*, the same of all cameras",
        ),
        ("grey", False, ConfigError, r"images are {'side': \(8, 6\), .*; expected \[h, w, 3\]"),
        ("alpha", False, ConfigError, r"images are {'side': \(8, 6, 4\), .*; expected \[h, w, 3\]"),
        ("list", False, DataError, "Shown:list', which shows a list; expected a dict of images by camera"),
        ("missing", False, DataError, "Shown:missing', which shows top; expected side too"),
        ("float", False, RunError, r"Shown:float': images\(\) gave 'side' as float32; expected uint8"),
    ],
)
def test_images_of_an_own_environment_are_looked_at_before_a_run_begins(
    task: str, keeps: bool, error: type[Exception] | None, words: str
) -> None:
    """The online phase keeps them as they are shown; an evaluation resizes them."""
    view = simulators.View(cameras=("side", "top"), render_size=(8, 6), image_size=(8, 6))
    name = f"tests.qchunk.envs.test_simulators:Shown:{task}"
    refused = contextlib.nullcontext() if error is None else pytest.raises(error, match=words)
    with refused:
        simulators.require_widths(
            "online.env", name, "d", observation=("state", 2), action=3, view=view, keeps_images=keeps
        )


def test_the_online_phase_needs_the_size_at_which_images_are_kept() -> None:
    view = simulators.View(cameras=("side",), render_size=(8, 6), image_size=(8, 6))
    look = functools.partial(simulators.require_widths, observation=("state", 2), action=3, view=view)
    name = "tests.qchunk.envs.test_simulators:Shown:larger"
    look("eval.env", name, "d")
    words = r"images are {'side': \(16, 12, 3\)}; expected \(8, 6, 3\), as data\.image_size"
    with pytest.raises(ConfigError, match=words):
        look("online.env", name, "d", keeps_images=True)


def test_a_camera_that_is_lacking_is_named_where_images_are_stacked() -> None:
    view = simulators.View(cameras=("side", "top"), render_size=(2, 2), image_size=(2, 2))
    images = {"top": np.full((2, 2, 3), 1, np.uint8), "side": np.full((2, 2, 3), 2, np.uint8)}
    assert simulators.stacked_images(images, view)[:, 0, 0, 0].tolist() == [2, 1]
    with pytest.raises(DataError, match="shows top; expected side too"):
        simulators.stacked_images({"top": images["top"]}, view)


def test_gymnasiums_environments_may_show_images() -> None:
    view = simulators.View(cameras=("render",), render_size=(8, 8), image_size=(8, 8))
    for name in ("Pendulum-v1", "gymnasium/Pendulum-v1", "my_gym:Blob-v0", "mine:make", "aloha-transfer-cube"):
        simulators.require_images(name, view)
    for name in ("cube-single-play-singletask-task2-v0", "metaworld/reach-v3", "point/red"):
        with pytest.raises(ConfigError, match=f"{name} shows no images"):
            simulators.require_images(name, view)
