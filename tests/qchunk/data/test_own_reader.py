"""Readers of the user's own: labels, actions and lengths are taken as what they are."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.episodes import Episode
from qchunk.config import QChunkConfig
from qchunk.data.dataset import open_dataset
from qchunk.data.readers import own
from tests.qchunk.recordings import config

STEPS = 6


def read(path: Path) -> Episode:
    """An episode of two numbers a step, drawn by the number in the file; labelled by numpy's bool."""
    number = int(path.read_text())
    rng = np.random.default_rng(number)
    reward = np.zeros(STEPS)
    reward[-1] = number % 2
    episode = Episode(
        id=path.name,
        states={name: rng.normal(size=(STEPS + 1, 2)).astype(np.float32) for name in ("qpos", "state")},
        action=rng.uniform(-1, 1, (STEPS, 2)).astype(np.float32),
        reward=reward,
        terminated=np.arange(STEPS) == STEPS - 1,
        positive=bool(number % 2),
    )
    return labelled(episode, reward.sum() > 0)


def labelled(episode: Episode, label: Any) -> Episode:
    """With a label of any type, which a user's environment does not check as the tests' does."""
    object.__setattr__(episode, "positive", label)
    return episode


def folder(root: Path, count: int = 8) -> Path:
    for number in range(count):
        (root / f"e{number}.csv").write_text(str(number))
    return root


def made(root: Path, **data: Any) -> QChunkConfig:
    return config(folder(root), horizon=3, format="tests.qchunk.data.test_own_reader:read", **data)


def test_numpys_bool_is_a_label_as_pythons_is(tmp_path: Path):
    assert type(read(folder(tmp_path) / "e2.csv").positive) is np.bool_
    assert open_dataset(made(tmp_path)).source.positives.tolist() == [False, True] * 4


@pytest.mark.parametrize("label", [1, None, "yes"])
def test_a_label_of_another_type_is_named(label: Any, tmp_path: Path):
    (report,) = own.examine(folder(tmp_path), "e1.csv", lambda path: labelled(read(path), label), digest="")
    assert f"found positive of type {type(label).__name__}" in str(report.problems[0])


def test_the_joints_are_the_action_where_the_config_says_so(tmp_path: Path):
    dataset = open_dataset(made(tmp_path, action="qpos"))
    for number in range(8):
        there, given = read(tmp_path / f"e{number}.csv"), dataset.source.load(number)
        np.testing.assert_array_equal(given.action, there.states["qpos"][:STEPS])
    recorded = open_dataset(made(tmp_path)).source.load(3).action
    np.testing.assert_array_equal(recorded, read(tmp_path / "e3.csv").action)


@pytest.mark.parametrize(("more", "good"), [(0, True), (1, True), (2, False), (-1, False)])
def test_states_are_as_many_as_actions_or_one_more(more: int, good: bool, tmp_path: Path):
    def longer(path: Path) -> Episode:
        episode = labelled(read(path), True)
        rows = np.zeros((STEPS + more, 2), np.float32)
        return dataclasses.replace(episode, states={"qpos": rows, "state": rows})

    (report,) = own.examine(folder(tmp_path), "e1.csv", longer, digest="")
    assert (not report.problems) == good
    if not good:
        expected = f"expected {STEPS} rows, as many as action, found {STEPS + more} rows"
        assert [expected in str(problem) for problem in report.problems] == [True, True]
