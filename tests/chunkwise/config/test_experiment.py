"""Values of configs: what is out of range is refused by name."""

import dataclasses
from pathlib import Path

import pytest

from chunkwise.config.experiment import CheckpointConfig, FleetConfig, MeshConfig, OptimConfig, RunConfig, TrainConfig
from chunkwise.config.load import load

ROOT = Path(__file__).parents[3]
DEBUG = ["--config", str(ROOT / "configs/qchunk/debug.py")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimConfig(clip_norm=0.0), "clip_norm"),
        (lambda: OptimConfig(learning_rate=-1.0), "learning_rate"),
        (lambda: MeshConfig(data=0), "data"),
        (lambda: TrainConfig(steps=1, batch_size=0), "batch_size"),
        (lambda: RunConfig(seed=-1), "seed is -1; expected 0 or above"),
        (lambda: FleetConfig(address="somewhere"), "expected auto, local, ray://host:port, or host:port"),
    ],
)
def test_values_out_of_range_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("address", [None, "auto", "local", "node:6379", "ray://node:10001"])
def test_addresses_of_a_cluster(address: str | None):
    assert FleetConfig(address=address).address == address


def test_configs_are_frozen():
    config, _ = load(DEBUG)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run.seed = 3  # type: ignore[misc]  the point of the test


def test_the_smallest_numbers_of_saves_are_taken():
    assert CheckpointConfig(keep_period=1, max_to_keep=1, every=1).keep_period == 1
    for name in ("keep_period", "max_to_keep", "every"):
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(CheckpointConfig(), **{name: 0})
