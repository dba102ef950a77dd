"""A config that was written into a run folder comes back equal."""

import dataclasses
import json
from pathlib import Path

import pytest

from core.config import CheckpointConfig, TrainConfig, flatten
from core.errors import ConfigError
from core.saved_config import read_config
from tests.core.toy import ToyConfig


def test_round_trip(tmp_path: Path):
    config = ToyConfig(
        train=TrainConfig(steps=3, batch_size=2),
        checkpoint=CheckpointConfig(every=7, keep_every=None),
        width=5,
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, ToyConfig) == config


def test_optional_parts_come_back(tmp_path: Path):
    from driving.config import DataConfig, DrivingConfig, ModelConfig, ObjectiveConfig, VitConfig

    config = DrivingConfig(
        train=TrainConfig(steps=3, batch_size=2),
        data=DataConfig(path="here", offsets_s=(0.0, 0.5)),
        model=ModelConfig(vit=VitConfig(depth=2)),
        objective=ObjectiveConfig(temporal=1.0),
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, DrivingConfig) == config
    without = dataclasses.replace(config, model=ModelConfig())
    (tmp_path / "config.json").write_text(json.dumps(flatten(without)))
    assert read_config(tmp_path, DrivingConfig) == without


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected the config of a run"),
        ("{}", "train is missing"),
        ('{"train.steps": 0, "train.batch_size": 1}', "expected a ToyConfig"),
    ],
)
def test_what_is_no_config_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path, ToyConfig)


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"expected the folder of a run, found no config\.json in it"):
        read_config(tmp_path, ToyConfig)
