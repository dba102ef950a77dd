"""The save with the best evaluation stays, beside the newest ones."""

import dataclasses
import itertools
import json
import os
import signal
from pathlib import Path
from unittest import mock

import pytest

from chunkwise.checkpoint.weights import best_step
from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.errors import ConfigError, PreemptedError, StopRequested
from chunkwise.state import TrainState
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config

SCORES = {5: 1.0, 10: 3.0, 15: 2.0, 20: 0.5, 25: 3.0, 30: float("nan"), 35: 1.0}


class ScoredTask(ToyTask):
    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        return {"score": SCORES[int(state.step)]}


def config(folder: Path, steps: int, *, every: int = 5, **checkpoint) -> ToyConfig:
    train = TrainConfig(steps=steps, batch_size=8, log_every=5, eval_every=5)
    keep = CheckpointConfig(every=every, max_to_keep=1, **checkpoint)
    one = toy_config(folder, train=train, checkpoint=keep)
    return dataclasses.replace(one, run=dataclasses.replace(one.run, resume=True))


def saves(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def train(config: ToyConfig) -> str:
    with RunFolder(config, "toy") as folder:
        return fit(config, ScoredTask(config), folder)


HIGHEST = [[10], [10, 15], [10, 20], [25], [25, 35]]
LOWEST = [[5, 10], [5, 15], [20], [20, 25], [20, 35]]


@pytest.mark.parametrize(("best", "kept"), [("highest", HIGHEST), ("lowest", LOWEST)])
def test_the_best_stays_over_restarts(tmp_path: Path, best: str, kept: list[list[int]]):
    """A second 3 is as good as the first and newer; NaN is no score."""
    for steps, expected in zip((10, 15, 20, 25, 35), kept, strict=True):
        train(config(tmp_path, steps, keep_best="score", best=best))
        assert saves(tmp_path) == expected


@pytest.mark.parametrize("stops", [(10,), (10, 15), (5, 10, 15), (20,)])
def test_an_evaluation_that_was_made_up_for_counts(tmp_path: Path, stops: tuple[int, ...]):
    """A run that is stopped within an evaluation has saved without it, and evaluates when it goes on."""

    wanted = config(tmp_path, 20, keep_best="score")
    for stop in stops:
        stopped(wanted, stop)
    train(wanted)
    assert saves(tmp_path) == [10, 20]
    assert best_step(tmp_path, wanted) == 10
    train(config(tmp_path, 25, keep_best="score"))  # 3 again, and newer
    assert saves(tmp_path) == [25]


def test_a_last_evaluation_that_was_made_up_for_stays_where_the_run_goes_on_for_longer(tmp_path: Path):
    """Its line was cut, since the save of that step says that nothing was evaluated, and the best save went with it."""
    ten, more = (evaluated_last(config(tmp_path, steps, keep_best="score")) for steps in (10, 15))
    stopped(ten, 10)
    train(ten)
    lines = (tmp_path / "metrics.jsonl").read_bytes()
    with mock.patch.object(ScoredTask, "evaluate", side_effect=AssertionError("evaluated twice")):
        train(ten)
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines
    train(more)
    assert evaluated(tmp_path) == [10, 15]
    assert saves(tmp_path) == [10, 15]
    assert best_step(tmp_path, more) == 10


def test_half_a_line_of_an_evaluation_is_none(tmp_path: Path):
    """As a power cut leaves one: it is evaluated again."""
    ten = evaluated_last(config(tmp_path, 10, keep_best="score"))
    stopped(ten, 10)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    train(ten)
    lines = (tmp_path / "metrics.jsonl").read_bytes()
    assert b'"eval"' in lines[size:]
    (tmp_path / "metrics.jsonl").write_bytes(lines[:-1])
    train(ten)
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines


def stopped(wanted: ToyConfig, step: int) -> None:
    """Trains until a request to stop comes within the evaluation of a step."""

    class Stopped(ScoredTask):
        def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
            if int(state.step) == step:
                os.kill(os.getpid(), signal.SIGTERM)
                raise StopRequested
            return super().evaluate(state, final=final)

    with pytest.raises(PreemptedError), RunFolder(wanted, "toy") as folder:
        fit(wanted, Stopped(wanted), folder)


def evaluated_last(config: ToyConfig) -> ToyConfig:
    """The same, evaluated at its end alone."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, eval_every=0))


def evaluated(run: Path) -> list[int]:
    """Steps of the evaluations that metrics.jsonl has."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["split"] == "eval"]


def test_without_it_only_the_newest_stay(tmp_path: Path):
    for steps in itertools.accumulate([10, 5]):
        train(config(tmp_path, steps))
        assert saves(tmp_path) == [steps]


def test_a_metric_that_is_not_evaluated_is_refused_with_those_that_are(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"checkpoint\.keep_best is scroe; expected one of score"):
        train(config(tmp_path, 10, keep_best="scroe", every=100))
    assert saves(tmp_path) == [5], "what was trained until the first evaluation is not lost"
    train(config(tmp_path, 10, keep_best="score"))
    assert evaluated(tmp_path) == [5, 10]
