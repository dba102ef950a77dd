"""Flags of driving that a run would not read are refused."""

import pytest

from chunkwise.config import names
from chunkwise.config.load import load
from chunkwise.errors import ConfigError

ONE = ["--data.cameras", "front"]
VIT = ["--model.vit.depth", "2"]


@pytest.mark.parametrize(
    ("name", "without", "flag", "value", "reader"),
    [
        ("debug", VIT, "--model.conv.blocks", ["0", "1", "1"], "model.vit None"),
        ("debug", VIT, "--model.conv.channels", ["8", "8", "8"], "model.vit None"),
        ("debug", ONE, "--data.augment.camera-dropout", ["0.1"], "two or more data.cameras"),
        ("pretrain", [], "--eval.blind-updates", ["9"], "waypoints"),
        ("pretrain", [], "--eval.plotted-moments", ["9"], "waypoints"),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(
    name: str, without: list[str], flag: str, value: list[str], reader: str
) -> None:
    config = ["--config", str(names.find(f"driving/{name}"))]
    said = f"^{flag} has no effect here; leave it out, or set {reader}, which reads it$"
    with pytest.raises(ConfigError, match=said):
        load([*config, *without, flag, *value])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--model.conv.blocks", ["0", "1", "1"]),
        ("--data.augment.camera-dropout", ["0.1"]),
        ("--eval.blind-updates", ["9"]),
        ("--eval.plotted-moments", ["9"]),
    ],
)
def test_it_is_taken_where_it_is_read(flag: str, value: list[str]) -> None:
    load(["--config", str(names.find("driving/debug")), flag, *value])
