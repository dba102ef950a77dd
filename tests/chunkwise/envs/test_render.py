"""Videos: what is shown when, which rollouts, and what is said where there is none."""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from chunkwise.envs import render
from chunkwise.envs.collect import Collector
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.render import (
    FAILURE,
    SUCCESS,
    UNDECIDED,
    grid,
    replay,
    replayed,
    some_of_both,
    write_some,
    write_video,
)
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from tests.chunkwise.envs.countdown import LENGTHS, Countdown, Drawn, jobs, threads

SPEC = EnvSpec(suite="own")


@pytest.fixture(scope="module")
def rollouts() -> list[Rollout]:
    """Of seeds 0 to 5: the even ones succeed, after 1, 3 and 5 steps; the odd ones are cut at 9."""
    finished: dict[int, Rollout] = {}
    Collector(threads(2)).play(jobs(range(6)), Drawn(), lambda job, rollout: finished.update({job.number: rollout}))
    return [finished[n] for n in range(6)]


class Slower(Countdown):
    """Takes a second an image."""

    def render(self, height: int, width: int) -> Any:
        import time

        time.sleep(1)
        return super().render(height, width)


class Aborts(Countdown):
    """Ends its process with a word, as a broken driver does."""

    def render(self, height: int, width: int) -> Any:
        os.write(2, f"driver {os.environ['MUJOCO_GL']}: cannot\n".encode())
        os.abort()


def test_a_replay_shows_begin_end_and_every_nth_step(rollouts: list[Rollout]) -> None:
    env = Countdown(SPEC)
    for rollout, length in zip(rollouts, LENGTHS, strict=False):
        for every in (1, 2, 4):
            shown = [int(image[0, 0, 0]) // 20 for image in replay(env, rollout, every=every)]
            assert shown == sorted({0, *range(every, length + 1, every), length})
    assert replay(env, rollouts[0], every=1)[0].shape == (200, 200, 3)
    env.video_size = (40, 60)  # pyright: ignore[reportAttributeAccessIssue]
    assert replay(env, rollouts[0], every=1)[0].shape == (40, 60, 3)


def test_a_simulator_that_does_not_repeat_is_an_error(rollouts: list[Rollout]) -> None:
    with pytest.raises(DataError, match="expected the initial state 0000000000000000, found"):
        replay(Countdown(SPEC), dataclasses.replace(rollouts[0], init_hash="0" * 16), every=1)
    with pytest.raises(DataError, match="replay of seed 1: expected success True, found False"):
        replay(Countdown(SPEC), dataclasses.replace(rollouts[1], success=True), every=1)


def test_a_simulator_that_changes_its_actions_leaves_the_rollout_as_it_was(rollouts: list[Rollout]) -> None:
    class Halving(Countdown):
        def step(self, action: Any) -> Any:
            action *= 0.5
            return super().step(action)

    rollout = dataclasses.replace(rollouts[0], actions=rollouts[0].actions + 1)
    before = rollout.actions.copy()
    replay(Halving(SPEC), rollout, every=1)
    np.testing.assert_array_equal(rollout.actions, before)


def test_frames_are_grey_until_an_episode_is_over() -> None:
    """Five rollouts of 1 to 5 images: a grid of 2 x 3, whose last place is black; the last frame stays twice more."""
    shown = [[np.full((20, 30, 3), 10 * n + t, np.uint8) for t in range(n)] for n in (1, 2, 3, 4, 5)]
    successes = [True, False, True, False, True]
    frames = list(grid(shown, successes, hold=2))
    assert len(frames) == 5 + 2
    assert {frame.shape for frame in frames} == {(40, 90, 3)}
    for t, frame in enumerate(frames):
        for n, success in enumerate(successes):
            y, x = 20 * (n // 3), 30 * (n % 3)
            over = t >= n
            np.testing.assert_array_equal(frame[y, x], UNDECIDED if not over else SUCCESS if success else FAILURE)
            assert (frame[y + 5 : y + 15, x + 5 : x + 25] == 10 * (n + 1) + min(t, n)).all()
        assert not frame[20:, 60:].any()


@pytest.mark.parametrize(
    ("successes", "count", "expected"),
    [
        ("++--", 4, [0, 1, 2, 3]),
        ("-+-+-+", 4, [0, 1, 2, 3]),
        ("----++", 4, [0, 1, 4, 5]),
        ("-----+", 4, [0, 1, 2, 5]),
        ("------", 4, [0, 1, 2, 3]),
        ("+++-", 2, [0, 3]),
        ("++++-", 4, [0, 1, 2, 4]),
        ("--+", 1, [2]),
        ("--", 1, [0]),
        ("-+", 9, [0, 1]),
    ],
)
def test_successes_and_failures_are_shown_where_there_are(successes: str, count: int, expected: list[int]) -> None:
    assert some_of_both([one == "+" for one in successes], count) == expected


def test_a_video_in_real_time(rollouts: list[Rollout], tmp_path: Path) -> None:
    path = tmp_path / "videos" / "a.mp4"
    assert write_video(functools.partial(Countdown, SPEC), rollouts[:2], path) == path
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 10
    assert len(frames) == 10 + 10  # every step at 10 a second; the last stays for a second
    assert frames[0].shape == (200, 400, 3)
    np.testing.assert_allclose(frames[-1][:3, :190].mean(axis=(0, 1)), SUCCESS, atol=12)
    np.testing.assert_allclose(frames[-1][:3, 210:].mean(axis=(0, 1)), FAILURE, atol=12)


def test_each_episode_has_a_video_of_its_own(rollouts: list[Rollout], tmp_path: Path) -> None:
    """The first two whatever came of them, and the failure that is shown beside the first success."""
    played = [rollouts[0], rollouts[0], rollouts[1]]
    assert [one.success for one in played] == [True, True, False]
    path = tmp_path / "a.mp4"
    assert write_some(functools.partial(Countdown, SPEC), played, path, 2, clips=tmp_path / "a") == path
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == [f"episode_{n:04d}.mp4" for n in range(3)]
    shown = {}
    for file in (path, *sorted((tmp_path / "a").iterdir())):
        with av.open(str(file)) as container:
            *_, shown[file.stem] = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
    assert shown["a"].shape == (200, 400, 3)
    edges = {name: frame[:3, :190].mean(axis=(0, 1)) for name, frame in shown.items()}
    for name, colour in (("episode_0000", SUCCESS), ("episode_0001", SUCCESS), ("episode_0002", FAILURE)):
        assert shown[name].shape == (200, 200, 3)
        np.testing.assert_allclose(edges[name], colour, atol=12)
    np.testing.assert_allclose(edges["a"], SUCCESS, atol=12)
    np.testing.assert_allclose(shown["a"][:3, 210:].mean(axis=(0, 1)), FAILURE, atol=12)


def test_no_video_is_one_line_that_says_why(
    rollouts: list[Rollout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    path = tmp_path / "a.mp4"
    assert write_video(functools.partial(Aborts, SPEC), rollouts[:1], path, report=said.append) is None
    monkeypatch.setenv("MUJOCO_GL", "mine")
    assert write_video(functools.partial(Aborts, SPEC), rollouts[:1], path, report=said.append) is None
    other = dataclasses.replace(rollouts[0], init_hash="0" * 16)
    assert write_video(functools.partial(Countdown, SPEC), [other], path, report=said.append) is None
    monkeypatch.setattr(render, "SECONDS", 0.5)
    assert write_video(functools.partial(Slower, SPEC), rollouts[:1], path, report=said.append) is None
    assert said[0] == "no video: MUJOCO_GL=egl: driver egl: cannot; MUJOCO_GL=osmesa: driver osmesa: cannot"
    assert said[1] == "no video: MUJOCO_GL=mine: driver mine: cannot"
    assert said[2].startswith("no video: MUJOCO_GL=mine: DataError: replay: expected the initial state")
    assert said[3] == "no video: MUJOCO_GL=mine: not done after 0.5 s"
    assert os.environ["MUJOCO_GL"] == "mine"
    assert list(tmp_path.iterdir()) == []
    assert not capfd.readouterr().err


def test_rollouts_of_several_tasks_are_replayed_each_in_its_own(rollouts: list[Rollout]) -> None:
    made: list[Named] = []

    def opener(task: str = "only") -> Named:
        made.append(Named(EnvSpec(suite="own", task=task)))
        return made[-1]

    told = [dataclasses.replace(one, task=task) for one, task in zip(rollouts, ("a", "bb", "a", ""), strict=False)]
    shown, fps = replayed(opener, told)
    assert fps == 10
    assert [{int(image.max()) for image in images} for images in shown] == [{1}, {2}, {1}, {4}]
    assert [env.spec.task for env in made] == ["a", "bb", "only"], "one of each"
    assert all(env.closed for env in made)


class Named(Countdown):
    """Its images show how long its task's name is."""

    def render(self, height: int, width: int) -> Any:
        return np.full((height, width, 3), len(self.spec.task), np.uint8)
