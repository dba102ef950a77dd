"""Which starts a batch has, where the pool is the same in every epoch: against the documented law, in numpy alone."""

from pathlib import Path

import numpy as np
import pytest

from qchunk.data import Batch, make_batches
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
