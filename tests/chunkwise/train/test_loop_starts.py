"""What the loop hands on: seeds, loaded weights, shards, evaluations, and what the first process brought home."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.arrays import NumpyTree
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.config.experiment import OptimConfig, RunConfig
from chunkwise.distributed import processes
from chunkwise.errors import PeerError, PreemptedError
from chunkwise.state import TrainState
from chunkwise.train import loop
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config


class EnoughError(Exception):
    """Ends a run where a test has seen what it wanted to see."""


def seen_at_start(config: ToyConfig) -> list[float]:
    """Weights with which a run of a seed begins."""
    weights: list[float] = []

    def load(state: TrainState) -> TrainState:
        weights.extend(np.asarray(state.params["w"]).tolist())
        raise EnoughError

    with RunFolder(config, "toy") as folder, pytest.raises(EnoughError):
        fit(config, ToyTask(config), folder, load=load)
    return weights


def test_weights_begin_as_the_seed_says(tmp_path: Path):
    begun = [
        seen_at_start(toy_config(tmp_path, run=RunConfig(dir=str(tmp_path / f"{n}"), seed=seed)))
        for n, seed in enumerate((3, 3, 4))
    ]
    assert begun[0] == begun[1]
    assert begun[0] != begun[2]


def test_training_begins_with_the_loaded_weights(tmp_path: Path):
    config = toy_config(tmp_path)
    with RunFolder(config, "toy") as folder:
        fit(config, ToyTask(config), folder, load=lambda state: state.replace(params={"w": jnp.full((3,), 1e6)}))
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] > 1e10  # fresh ones begin near 0


@pytest.mark.parametrize(("warmup", "share"), [(19, None), (20, "0.95"), (39, "0.5")])
def test_a_warm_up_as_long_as_the_run_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warmup: int, share: str | None
):
    """Of twenty updates the last has 20 / (warmup + 1) of the learning rate. A run that goes on says nothing new."""
    config = toy_config(tmp_path, optim=OptimConfig(warmup_steps=warmup))

    def said() -> list[str]:
        with RunFolder(config, "toy") as folder:
            fit(config, ToyTask(config), folder)
        return [line for line in capsys.readouterr().out.splitlines() if "warmup" in line]

    lines = said()
    if share is None:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith(f"optim.warmup_steps is {warmup} and train.steps is 20:")
        assert f"last update has {share} of optim.learning_rate" in line
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))
    assert said() == []


def test_a_process_reads_its_own_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int, int]] = []

    class Task(ToyTask):
        def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
            asked.append((start_step, shard, num_shards))
            raise EnoughError

    monkeypatch.setattr(loop.mesh_lib, "shard_of_batch", lambda mesh: (1, 2))
    config = toy_config(tmp_path)
    with RunFolder(config, "toy") as folder, pytest.raises(EnoughError):
        fit(config, Task(config), folder)
    assert asked == [(0, 1, 2)]


def test_a_save_carries_the_evaluation_of_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Saved every 4 updates and evaluated every 8: the best is chosen among those that were evaluated themselves."""
    carried: dict[int, bool] = {}
    save = Checkpoints.save

    def noted(self: Checkpoints, state: TrainState, progress: Any) -> None:
        carried[progress.step] = "distance" in progress.evaluation
        save(self, state, progress)

    monkeypatch.setattr(Checkpoints, "save", noted)
    config = toy_config(tmp_path)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=4))
    with RunFolder(config, "toy") as folder:
        fit(config, ToyTask(config), folder)
    assert carried == {4: False, 8: True, 12: False, 16: True, 20: True}


def test_a_run_whose_data_never_come_is_saved_in_their_place(monkeypatch: pytest.MonkeyPatch):
    """By another thread than the one that waits; of several processes none can be saved alone."""
    run, done = loop._Run.__new__(loop._Run), list[str]()
    vars(run).update(step=7, checkpoints=SimpleNamespace(hurry=lambda: done.append("hurry")))
    monkeypatch.setattr(run, "_save_durably", lambda: done.append("saved"))
    with pytest.raises(PreemptedError, match=r"^stopped and saved at step 7"):
        run._save_alone()
    assert done == ["hurry", "saved"]
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    with pytest.raises(PeerError, match=r"which none can save alone. Start all again"):
        run._save_alone()
    assert done == ["hurry", "saved"]


@pytest.mark.parametrize("several", [False, True])
def test_of_several_processes_one_leaves_alone_only_where_it_waits_for_data(
    monkeypatch: pytest.MonkeyPatch, several: bool
):
    run = loop._Run.__new__(loop._Run)
    vars(run).update(watch=SimpleNamespace(attend=lambda work, rescue, patience: (work(), rescue, patience)))
    monkeypatch.setattr(processes, "is_multiprocess", lambda: several)
    waited: Any = run._unless_stopped(lambda: 3, 0.0)
    assert waited == (3, None if several else run._save_alone, 0.0)
    alone: Any = run._unless_stopped(lambda: 4, alone=True)
    assert alone == (4, run._save_alone, math.inf)
