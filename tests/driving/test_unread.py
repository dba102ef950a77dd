"""Flags of driving that a run would not read are refused."""

import pytest

from chunkwise.config import names
from chunkwise.config.load import load
from chunkwise.errors import ConfigError
from driving.config import ObjectiveConfig

ONE = ["--data.cameras", "front"]
VIT = ["--model.vit.depth", "2"]
BLIND = ["--waypoints.no-use-cameras"]
UNTOLD = ["--waypoints.no-use-ego", "--waypoints.no-use-past"]


@pytest.mark.parametrize(
    ("name", "without", "flag", "value", "reader"),
    [
        ("debug", VIT, "--model.conv.blocks", ["0", "1", "1"], "model.vit None"),
        ("debug", VIT, "--model.conv.channels", ["8", "8", "8"], "model.vit None"),
        ("debug", ONE, "--data.augment.camera-dropout", ["0.1"], "two or more data.cameras"),
        ("debug", BLIND, "--model.camera-width", ["64"], "waypoints.use_cameras"),
        ("debug", BLIND, "--model.conv.blocks", ["0", "1", "1"], "waypoints.use_cameras"),
        ("debug", BLIND, "--data.augment.brightness", ["0.5"], "waypoints.use_cameras"),
        ("debug", [], "--data.offsets-s", ["-0.4", "0.0"], "waypoints.use_moments, waypoints.world or data.incomplete"),
        ("debug", UNTOLD, "--waypoints.no-use-known", [], "waypoints.use_ego or use_past"),
        ("pretrain", [], "--data.waypoint-steps", ["5"], "waypoints, or data.braking_repeats above 1"),
        ("pretrain", [], "--eval.blind-updates", ["9"], "waypoints"),
        ("pretrain", [], "--eval.plotted-moments", ["9"], "waypoints"),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(
    name: str, without: list[str], flag: str, value: list[str], reader: str
) -> None:
    config = ["--config", str(names.find(f"driving/{name}"))]
    said = f"^{flag} has no effect here; leave it out, or set {reader}.*, which reads it$"
    with pytest.raises(ConfigError, match=said):
        load([*config, *without, flag, *value])


def test_what_a_blind_model_switches_off_may_be_said() -> None:
    """As its rows of studies say it; images are mirrored with the labels."""
    off = ["--data.augment.brightness", "0", "--data.augment.camera-dropout", "0", "--data.augment.flip", "0.5"]
    load(["--config", str(names.find("driving/modes")), *BLIND, *off])


def test_a_projection_that_compares_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"objective\.projection is 8, which an objective without cross_camera, temporal"
    ):
        ObjectiveConfig(ego_motion=1.0, projection=8)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--waypoints.use-moments", ["--data.offsets-s", "-0.4", "0.0"]),
        ("--waypoints.no-use-ego", ["--waypoints.no-use-known"]),
        ("--model.camera-width", ["64"]),
        ("--data.augment.brightness", ["0.5"]),
        ("--data.waypoint-steps", ["21"]),
        ("--model.conv.blocks", ["0", "1", "1"]),
        ("--data.augment.camera-dropout", ["0.1"]),
        ("--eval.blind-updates", ["9"]),
        ("--eval.plotted-moments", ["9"]),
    ],
)
def test_it_is_taken_where_it_is_read(flag: str, value: list[str]) -> None:
    load(["--config", str(names.find("driving/debug")), flag, *value])
