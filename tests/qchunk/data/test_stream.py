"""Which starts a batch has, where the pool is the same in every epoch: against the documented law, in numpy alone."""

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qchunk.data import Batch, make_batches
from qchunk.data.pool import Pool
from qchunk.data.stream import StepBatches
from tests.qchunk.recordings import arrays, config, write

LENGTH, ROWS, STEPS, SHARDS = 50, 4, 70, 2
"""Frames of the one episode, rows that a shard gives to a batch, steps of an epoch (more than a block of draws)."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of one episode, whose first joint is the number of the frame."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = arrays(LENGTH, 0)
    content["/observations/qpos"][:, 0] = np.arange(LENGTH)
    return write(tmp_path / "data/episode_0.hdf5", content, success=True).parent


def starts(batch: Batch) -> list[int]:
    return batch["observations"]["qpos"][:, 0].astype(int).tolist()


def expected(seed: int, step: int) -> list[int]:
    """64 steps of a shard are one draw of Philox with key (seed, epoch), counter (0, block, shard, 1)."""
    epoch, inside = divmod(step, STEPS)
    block, row = divmod(inside, 64)
    rows = []
    for shard in range(SHARDS):
        key, counter = np.array([seed, epoch], np.uint64), np.array([0, block, shard, 1], np.uint64)
        drawn = np.random.Generator(np.random.Philox(key=key, counter=counter)).integers(0, LENGTH, (64, ROWS))
        rows += drawn[row].tolist()
    return rows


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("refresh", ["epoch", "rolling"])
def test_starts_differ_by_epoch_step_shard_and_seed_as_the_law_says(root: Path, threads: int, refresh: str):
    taken = []
    for seed in (0, 3):
        cfg = config(
            root,
            batch=SHARDS * ROWS,
            seed=seed,
            shards=SHARDS,
            steps_per_epoch=STEPS,
            episodes_per_epoch=1,
            positive_ratio=1.0,
            read_threads=threads,
            refresh=refresh,
            **({"refresh_parts": 1} if refresh == "rolling" else {}),
        )
        batches = make_batches(cfg)
        for step in range(2 * STEPS + 2):
            found = starts(next(batches))
            assert found == expected(seed, step), step
            taken.append(tuple(found))
        resumed = make_batches(cfg, start_step=STEPS + 66)
        assert starts(next(resumed)) == expected(seed, STEPS + 66)
    assert len(set(taken)) == len(taken), "no batch is another one's"
    assert all(batch[:ROWS] != batch[ROWS:] for batch in taken), "no shard has the rows of the other"


def test_the_parts_of_processes_are_of_the_same_law(root: Path):
    cfg = config(
        root, batch=SHARDS * ROWS, shards=SHARDS, steps_per_epoch=STEPS, episodes_per_epoch=1, positive_ratio=1.0
    )
    parts = [make_batches(cfg, shard=process, num_shards=4) for process in range(4)]
    for step in range(STEPS + 2):
        assert [start for part in parts for start in starts(next(part))] == expected(0, step)


def test_a_pool_stays_until_the_last_thread_has_left_it(root: Path, monkeypatch: pytest.MonkeyPatch):
    built, ahead, make, get = list[int](), threading.Event(), Pool.__init__, StepBatches.__getitem__

    def noted(pool: Pool, cfg: Any, epoch: int, *rest: Any, **named: Any) -> None:
        built.append(epoch)
        make(pool, cfg, epoch, *rest, **named)

    def late(batches: StepBatches, step: int) -> Batch:
        """The epoch's last step begins when the fourth after it, the last that Grain begins beside it, is done."""
        if step == STEPS - 1:
            assert ahead.wait(60)
        batch = get(batches, step)
        if step == STEPS + 3:
            ahead.set()
        return batch

    monkeypatch.setattr(Pool, "__init__", noted)
    monkeypatch.setattr(StepBatches, "__getitem__", late)
    batches = make_batches(
        config(root, steps_per_epoch=STEPS, episodes_per_epoch=1, positive_ratio=1.0, read_threads=3)
    )
    for _ in itertools.islice(batches, STEPS + 10):
        pass
    assert sorted(built) in ([0, 1], [0, 1, 2]), "none was loaded again"
