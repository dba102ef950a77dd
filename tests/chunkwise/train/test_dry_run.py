"""What --dry-run and --print-config say, by hand for a toy, and that nothing is trained."""

import json
from pathlib import Path

import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.config.load import load
from chunkwise.config.saved import flatten
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyTask, toy_config

ROOT = Path(__file__).parents[3]


def test_a_dry_run_says_shapes_and_sizes_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = toy_config(tmp_path, run=RunConfig(dry_run=True))
    with RunFolder(config, "toy") as folder:
        fit(config, ToyTask(config), folder)
        assert not (folder.path / "done.json").exists()
        assert not (folder.path / "metrics.jsonl").read_text()
    said = capsys.readouterr().out
    assert "x: float32 (8, 3)" in said
    assert "  w: 3\n" in said
    assert "done step" not in said
    assert "the update compiled in" in said


def test_print_config_is_the_config_and_starts_nothing(capsys: pytest.CaptureFixture[str]):
    arguments = [
        "--config",
        str(ROOT / "configs/qchunk/debug.py"),
        "--agent.encoder.kind",
        "resnet",
        "--data.cameras",
        "a",
    ]
    with pytest.raises(SystemExit) as stop:
        load([*arguments, "--print-config"])
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out) == flatten(load(arguments)[0])
