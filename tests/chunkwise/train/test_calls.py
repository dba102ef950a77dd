"""How many updates a call of the loop has, at each step; and what the clock says at the end."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.train.clock import Clock
from chunkwise.train.loop import _Run
from tests.chunkwise.toy import toy_config


class World:
    """Met before updates 7, 10, 13, ..."""

    start, every = 7, 3


def calls(
    tmp_path: Path, world: World | None, *, steps: int = 20, start: int = 0, **train: Any
) -> list[tuple[int, int]]:
    """Of each call until the end of the run: its updates, and those that the compiled program has room for."""
    settings = TrainConfig(steps=steps, batch_size=8, **train)
    run: Any = _Run.__new__(_Run)
    run.config = toy_config(tmp_path, train=settings, checkpoint=CheckpointConfig(every=12))
    run.interaction, run.step = world, start
    found = []
    while run.step < steps:
        found.append((run._updates_until_due(), run._longest_call()))
        run.step += found[-1][0]
    return found


def test_calls_end_where_a_line_an_evaluation_or_a_save_is_due(tmp_path: Path):
    found = calls(tmp_path, None, updates_per_call=4, log_every=5, eval_every=8)
    # 0 to 4, 5 (line), 8 (evaluation), 10 (line), 12 (save), 15 (line), 16 (evaluation), 20 (line, end).
    assert found == [(4, 4), (1, 4), (3, 4), (2, 4), (2, 4), (3, 4), (1, 4), (4, 4)]
    found = calls(tmp_path, None, updates_per_call=100, log_every=100, eval_every=0)
    assert found == [(12, 100), (8, 100)]
    assert calls(tmp_path, None, updates_per_call=1, log_every=5, steps=3) == [(1, 1)] * 3
    assert calls(tmp_path, None, updates_per_call=4, log_every=5, start=18) == [(2, 4)]


def test_calls_end_where_the_world_is_met(tmp_path: Path):
    found = calls(tmp_path, World(), updates_per_call=10, log_every=100, eval_every=0)
    # 0 to 7, then 10, 12 (save), 13, 16, 19, 20; from update 7 on no call has more than 3.
    assert found == [(7, 10), (3, 3), (2, 3), (1, 3), (3, 3), (3, 3), (1, 3)]
    assert calls(tmp_path, World(), updates_per_call=2, log_every=100, eval_every=0, steps=10) == [
        (2, 2), (2, 2), (2, 2), (1, 2), (2, 2), (1, 2)
    ]  # fmt: skip
    assert calls(tmp_path, World(), updates_per_call=10, log_every=100, start=8, steps=11) == [(2, 3), (1, 3)]


def test_the_clock_tells_the_productive_share_and_what_the_rest_was():
    clock = Clock(step=3.0, data=0.5, save=0.04)
    assert clock.summary(4.0) == "goodput 75% of 4 s: step 3.0 s, data 0.5 s, other 0.5 s"
    assert Clock(step=1.0).summary(1.0) == "goodput 100% of 1 s: step 1.0 s"


def test_the_clock_adds_to_its_purpose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("chunkwise.train.clock.time.perf_counter", lambda: 10.0)
    clock = Clock(save=1.0)
    clock.charge("save", 7.5)
    clock.charge("evaluate", 9.0)
    assert {name: value for name, value in dataclasses.asdict(clock).items() if value} == {"save": 3.5, "evaluate": 1.0}
