"""Several environments online: what each of them plays, how they share batches, and who plays them."""

import concurrent.futures
import dataclasses
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.errors import DataError
from qchunk.config import QChunkConfig
from qchunk.envs import simulators
from qchunk.online.phase import Online
from qchunk.online.replay import gather, read
from tests import kill, pod
from tests.qchunk.online.test_phase import NORM, STATE, Line, config_of, never, offline, policy_of, saved
from tests.qchunk.online.test_replay import assert_equal

CONFIG = "configs/qchunk/debug_online.py"
ROUNDS = 8


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Line())


def of(num_envs: int, **online: Any) -> QChunkConfig:
    """Two steps of each environment in a stretch."""
    settings = {"num_envs": num_envs, "steps": 2 * ROUNDS * num_envs, "interval": 2 * num_envs} | online
    return config_of(**settings)


def placed(state: Any) -> Any:
    """A policy whose numbers depend on the row's place and on the rows of the batch, as roundings do."""

    def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
        rows = len(seeds)
        return policy_of(state)(observations, seeds) + 1e-3 * np.arange(rows)[:, None, None] + 1e-2 * rows

    return policy


class Shared:
    """What the processes of a run tell one another."""

    def __init__(self, count: int) -> None:
        self.said: list[Any] = [None] * count
        self.barrier = threading.Barrier(count)


class OneOf(Division):
    """The division of a process that is a thread here."""

    def __init__(self, shared: Shared, index: int) -> None:
        self._shared, self._index = shared, index

    def mine(self, number: int) -> bool:
        return number % len(self._shared.said) == self._index

    def work(self, part: Callable[..., Any], stopping: Callable[[], bool] = never) -> Any:
        self._shared.said[self._index] = json.loads(json.dumps(part(stopping)))
        self._shared.barrier.wait(timeout=60)
        told = [*self._shared.said]
        self._shared.barrier.wait(timeout=60)
        return None if None in told else told


def online_of(folder: Path, config: QChunkConfig, position: Any = None, count: int = 1) -> list[Online]:
    """The phase in each of so many processes, gone back to a position."""
    shared, found = Shared(count), []
    for index in range(count):
        online = Online(config, NORM, folder, placed)
        online._division = OneOf(shared, index)
        online.rewind(position)
        found.append(online)
    return found


def play(onlines: list[Online], rounds: range, every: int) -> list[Any]:
    """What each process tells of these stretches."""

    def one(online: Online) -> list[Any]:
        return [online.interact(STATE, 4 + every * i, never) for i in rounds]

    with concurrent.futures.ThreadPoolExecutor(len(onlines)) as pool:
        return list(pool.map(one, onlines))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def test_each_environment_plays_episodes_of_its_own_in_step_with_the_others(tmp_path: Path):
    """Seeds and keys are numbered across all of them; each executes what its own row was asked for."""
    config = dataclasses.replace(of(3, warmup=12, steps=12 + 6 * ROUNDS), run=RunConfig(seed=5))
    asked: list[tuple[Any, np.ndarray, np.ndarray]] = []

    def noted(state: Any) -> Any:
        def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
            drawn = policy_of(state)(observations, seeds)
            asked.append((observations["state"].copy(), seeds, drawn))
            return drawn

        return policy

    online = Online(config, NORM, tmp_path, noted)
    online.rewind(None)
    ended: dict[str, list[float]] = {}
    for i in range(ROUNDS):
        for name, values in (online.interact(STATE, 4 + 6 * i, never) or {}).items():
            ended.setdefault(name, []).extend(values)
        assert [replay.steps for replay in online.replays] == [4 + 2 * i + 2] * 3
    online.sync()
    assert all(len(seeds) == len(seen) == 3 for seen, seeds, _ in asked), "a row for each, whoever waits"
    lengths, begun = list[int](), set[float]()
    for env in range(3):
        records = read(tmp_path / f"replay/env_{env:04d}")
        edges = [*np.flatnonzero(records["first"]).tolist(), len(records)]
        steps = 0
        for episode, (begin, end) in enumerate(itertools.pairwise(edges)):
            seed = np.random.SeedSequence([5, 3 * episode + env, 1]).generate_state(1)[0] % 1000
            assert set(records["state"][begin:end, 0]) == {np.float32(seed)}
            begun.add(seed)
            for t in range(0, end - begin - 1, 3):
                key = np.random.SeedSequence([5, 3 * steps + env, 2]).generate_state(1)[0]
                (chunk,) = [drawn[env] for seen, seeds, drawn in asked if seeds[env] == key and seen[env, 1] == t]
                done = records["action"][begin + 1 + t : end][:3]
                np.testing.assert_array_equal(done, np.clip(chunk, -1, 1).astype(np.float32)[: len(done)])
                steps += len(done)
        over = records["terminated"] | records["truncated"]
        lengths += [b - a - 1 for a, b in itertools.pairwise(edges)][: over.sum()]
        assert steps == 4 + 2 * ROUNDS
    assert len(begun) > 6, "no two episodes begin alike"
    assert sorted(ended["online/length"]) == sorted(lengths)


def test_environments_that_wait_at_once_are_asked_for_at_once(tmp_path: Path):
    """Three begin together, so the first batch serves all; later only those that are through with their chunk ask."""
    batches: list[int] = []

    def noted(state: Any) -> Any:
        def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
            batches.append(len(set(seeds.tolist())))
            return policy_of(state)(observations, seeds)

        return policy

    online = Online(of(3), NORM, tmp_path, noted)
    online.rewind(None)
    for i in range(ROUNDS):
        online.interact(STATE, 4 + 6 * i, never)
    assert batches[0] == 3
    assert set(batches) > {3}, "what fills up the batch draws as a row that waits"


@pytest.mark.parametrize(("num_envs", "count"), [(1, 2), (3, 2), (2, 3)])
def test_processes_play_what_one_plays(num_envs: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Logs to the byte, positions, metrics and batches; one of them may have nothing to play."""
    config, every = of(num_envs), 2 * num_envs
    (alone,) = online_of(tmp_path / "one", config)
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)  # what one has played the others read
    several = online_of(tmp_path / "several", config, count=count)
    shards, drawn = 2 * count, set[int]()
    for i in range(ROUNDS):
        ((told,), others) = play([alone], range(i, i + 1), every), play(several, range(i, i + 1), every)
        assert all(other == [*told] for other in others)
        assert {json.dumps(saved(one)) for one in several} == {json.dumps(saved(alone))}
        assert files(tmp_path / "several") == files(tmp_path / "one")
        for step in range(4 + every * i, 4 + every * i + every):
            whole: Any = next(alone.mixed(offline(), step))
            parts: list[Any] = []
            for shard in range(shards):
                own = (rows_of(batch, shard, shards) for batch in offline())
                parts.append(next(several[shard % count].mixed(own, step, shard=shard, num_shards=shards)))
            assert_equal(joined(parts), whole)
            drawn.add(int((whole["final_reward"] != 77).sum()))
    assert len(drawn) > 2
    played = [[player._env is not None for player in one._players] for one in several]
    assert played == [[env % count == index for env in range(num_envs)] for index in range(count)]


def rows_of(tree: Any, shard: int, shards: int) -> Any:
    """A stretch of a batch of eight."""
    if isinstance(tree, dict):
        return {key: rows_of(value, shard, shards) for key, value in tree.items()}
    return None if tree is None else tree[8 * shard // shards : 8 * (shard + 1) // shards]


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)


@pytest.mark.parametrize("done", [1, 3, 4])
def test_going_on_with_other_processes_repeats_the_rest(done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = of(3)
    (untouched,) = online_of(tmp_path / "a", config)
    play([untouched], range(ROUNDS), 6)
    expected = saved(untouched)
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    killed = online_of(tmp_path / "b", config, count=2)
    play(killed, range(done), 6)
    position = saved(killed[0])
    play(killed, range(done, done + 2), 6)  # later than the save
    for online in killed:
        assert saved(online) != position
    resumed = online_of(tmp_path / "b", config, position, count=3)
    assert [one.replays[2].steps for one in resumed] == [2 * done] * 3
    play(resumed, range(done, ROUNDS), 6)
    assert [saved(one) for one in resumed] == [expected] * 3
    assert files(tmp_path / "b") == files(tmp_path / "a")


def test_a_stop_of_one_leaves_the_position_of_before_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    onlines = online_of(tmp_path, of(2), count=2)
    play(onlines, range(2), 4)
    before = saved(onlines[0])
    asked = iter([False, True])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        questions = (never, lambda: next(asked))
        told = pool.map(lambda one, stopping: one.interact(STATE, 12, stopping), onlines, questions)
        assert list(told) == [None, None]
    assert [saved(one) for one in onlines] == [before, before]


def test_a_log_that_another_process_damaged_or_does_not_show_is_refused(tmp_path: Path):
    (online,) = online_of(tmp_path, of(2))
    play([online], range(2), 4)
    position, log = saved(online), tmp_path / "replay/env_0001/frames.bin"
    content = log.read_bytes()
    log.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"env_0001/frames\.bin: expected \d+ records"):
        online_of(tmp_path, of(2), position, count=2)
    log.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    with pytest.raises(DataError, match=r"env_0001/frames\.bin: .* it is damaged"):
        online_of(tmp_path, of(2), position, count=2)


def test_rows_come_from_all_environments_alike(tmp_path: Path):
    (online,) = online_of(tmp_path, of(3))
    counts = [0] * 3
    for i in range(ROUNDS):
        play([online], range(i, i + 1), 6)
        counts = [replay.starts for replay in online.replays]
        if i > 2 and len(set(counts)) > 1:  # some are through with an episode, of which others cannot draw the end yet
            break
    else:
        raise AssertionError("all episodes ended at once")
    order = np.random.default_rng(0).permutation(sum(counts))
    each = [replay.gather(np.arange(replay.starts)) for replay in online.replays]
    in_order = {key: joined([one[key] for one in each]) for key in each[0]}
    assert_equal(gather(online.replays, order), taken(in_order, order))
    assert_equal(gather(online.replays, np.array([counts[0]])), taken(each[1], np.array([0])))
    drawn = [next(online.mixed(offline(), step))["rewards"] for step in range(40)]
    seen = {tuple(row) for rows in drawn for row in rows.tolist()} - {(77.0,) * 3}
    for one in each:
        assert seen & {tuple(row) for row in one["rewards"].tolist()}


def taken(tree: Any, rows: np.ndarray) -> Any:
    if isinstance(tree, dict):
        return {key: taken(value, rows) for key, value in tree.items()}
    return None if tree is None else tree[rows]


SHORT = ["--online.num-envs", "3", "--online.interval", "6", "--online.start", "30", "--online.warmup", "30"]
SHORT += ["--online.steps", "360", "--train.steps", "360", "--eval.env", "None", "--train.eval-every", "0"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sigkill_and_sigterm_between_and_in_stretches(tmp_path: Path):
    counts = kill.run(CONFIG, 2, tmp_path, [*SHORT, "--checkpoint.every", "10"], seed=2, terms=1)
    assert sum(counts.values()) >= 2
    assert {f"replay/env_{env:04d}/frames.bin" for env in range(3)} <= kill.written(tmp_path / "untouched").keys()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_two_processes_end_as_one_of_two_devices(num_envs: int, tmp_path: Path):
    """Digest, metrics and logs: two numbers have one sum, whoever adds them."""
    options = [*SHORT, "--online.num-envs", str(num_envs), "--checkpoint.every", "100"]
    digest = pod.finish(CONFIG, tmp_path / "one", options, processes=1, devices=2)
    assert pod.finish(CONFIG, tmp_path / "two", options, processes=2, devices=1) == digest
    assert kill.written(tmp_path / "two") == kill.written(tmp_path / "one")
