"""Readers of the user's own: labels, actions and lengths are taken as what they are."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.data.episodes import Episode
from qchunk.config import QChunkConfig
from qchunk.data import make_batches
from qchunk.data.dataset import open_dataset
from qchunk.data.readers import own
from qchunk.train import QChunkTask
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
    """With a label of any type."""
    return given(episode, positive=label)


def given(episode: Episode, **fields: Any) -> Episode:
    """With values of any type, which a user's environment does not check as the tests' does."""
    for name, value in fields.items():
        object.__setattr__(episode, name, value)
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


def wider(path: Path) -> Episode:
    """As `read`, with one array more in all files but the first, of another width in each."""
    episode, number = read(path), int(path.read_text())
    more = {"velocity": np.zeros((STEPS, 1 + number), np.float32)} if number else {}
    return dataclasses.replace(episode, states={**episode.states, **more}, positive=bool(episode.positive))


def test_arrays_that_no_config_names_may_differ_from_file_to_file(tmp_path: Path):
    taken = [
        list(itertools.islice(make_batches(config(folder(tmp_path), horizon=3, format=f"{__name__}:{name}")), 2))
        for name in ("read", "wider")
    ]
    jax.tree.map(np.testing.assert_array_equal, *taken)
    assert set(taken[0][0]["observations"]) >= {"qpos", "state"}


@pytest.mark.parametrize("key", ["state", "action", "reward"])
def test_numbers_that_32_bits_cannot_hold_are_named(key: str, tmp_path: Path):
    def large(path: Path) -> Episode:
        episode = read(path)
        x = {"action": episode.action, "reward": episode.reward, **episode.states}[key].astype(np.float64)
        x[2] = 1e39
        return given(episode, **({"states": {**episode.states, key: x}} if key == "state" else {key: x}))

    (report,) = own.examine(folder(tmp_path), "e1.csv", large, digest="")
    (problem,) = report.problems
    assert (problem.key, problem.row, problem.expected) == (key, 2, "finite numbers")


def rewarded(path: Path) -> Episode:
    """The same with another reward in one step."""
    episode = read(path)
    return given(episode, reward=episode.reward + 0.5 * (np.arange(STEPS) == 2))


def relabelled(path: Path) -> Episode:
    return labelled(read(path), np.True_)


def test_what_a_run_goes_on_with_is_what_its_reader_made_of_the_files(tmp_path: Path):
    """By the same files; the reader's own name has no part in it."""
    marks = {}
    for name in ("read", "again", "rewarded", "relabelled"):
        dataset = open_dataset(config(folder(tmp_path), horizon=3, format=f"{__name__}:{name}"))
        task = object.__new__(QChunkTask)
        task.dataset = dataset
        marks[name] = task.data_fingerprint()
    assert marks["read"] == marks["again"]
    for name in ("rewarded", "relabelled"):
        different = [key for key, value in marks["read"].items() if marks[name][key] != value]
        assert different == ["arrays_of_the_reader"], name


def again(path: Path) -> Episode:
    return read(path)


@pytest.mark.parametrize("name", ["action", "reward"])
def test_a_state_named_as_what_is_beside_it_is_refused(name: str, tmp_path: Path):
    def named(path: Path) -> Episode:
        episode = read(path)
        return given(episode, states={**episode.states, name: episode.states["qpos"]})

    (report,) = own.examine(folder(tmp_path), "e1.csv", named, digest="")
    assert f"found states named {name}, which the episode has beside its states" in str(report.problems[0])


@pytest.mark.parametrize("key", ["task", "reward"])
def test_arrays_of_text_are_named(key: str, tmp_path: Path):
    def words(path: Path) -> Episode:
        episode, text = read(path), np.full((STEPS, 1), "pick")
        return given(
            episode, **({"reward": text[:, 0]} if key == "reward" else {"states": {**episode.states, key: text}})
        )

    (report,) = own.examine(folder(tmp_path), "e1.csv", words, digest="")
    assert str(report.problems[0]) == f"e1.csv: {key}: expected numbers, found dtype <U4"
