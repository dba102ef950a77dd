"""The shipped configs come back from a run's folder."""

import json
from pathlib import Path

import pytest

from chunkwise.config import names
from chunkwise.config.load import load
from chunkwise.config.saved import flatten, read_config

CONFIGS = [names.find(name) for name in names.names()]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_config_has_values_of_its_fields_types(file: Path, tmp_path: Path):
    """As the config of a folder from elsewhere must."""
    config, _ = load(["--config", str(file)])
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, type(config)) == config
