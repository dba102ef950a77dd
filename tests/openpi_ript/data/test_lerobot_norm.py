"""LeRobot's normalisation files, written by safetensors from numbers that can be followed by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.data import lerobot_norm, norm

FILE = "policy_preprocessor_step_2_normalizer_processor.safetensors"
TENSORS = {
    "observation.state.mean": [1.0, -2.0],
    "observation.state.std": [0.5, 4.0],
    "observation.state.q01": [-1.0, -10.0],
    "observation.state.q99": [3.0, 10.0],
    "observation.state.count": [100.0],
    "action.mean": [0.0, 0.25],
    "action.std": [2.0, 1.0],
    "action.q01": [-4.0, -1.0],
    "action.q99": [4.0, 3.0],
    "observation.images.front.mean": [[[0.5]], [[0.5]], [[0.5]]],
}


def write(folder: Path, tensors: dict[str, Any] | None = None, **change: Any) -> Path:
    """A folder as LeRobot's save_pretrained writes its preprocessor."""
    folder.mkdir(exist_ok=True)
    arrays = {name: np.array(value, np.float32) for name, value in (tensors or TENSORS).items()}
    save_file(arrays, folder / FILE)
    norm_map = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}
    step = {"registry_name": "normalizer_processor", "config": {"eps": 1e-8, "norm_map": norm_map}, "state_file": FILE}
    steps = [{"registry_name": "to_batch_processor", "config": {}}, step | change]
    (folder / "policy_preprocessor.json").write_text(json.dumps({"name": "policy_preprocessor", "steps": steps}))
    return folder


def config(**change: Any) -> DataConfig:
    robot = RobotConfig(state_dim=2, target_state_dim=2, action_dim=2)
    made = DataConfig(path="unused", robot=robot, horizon=4, state_norm="quantile", action_norm="quantile")
    return dataclasses.replace(made, **change)


def test_values_are_normalised_as_lerobot_does(tmp_path: Path):
    folder = write(tmp_path / "policy")
    for named in (folder, folder / FILE):
        stats = norm.load_stats(named, {"dataset": "another"})
        (state, _), (action, _) = norm.affines(config(), stats)
        # 2 (x - q01) / (q99 - q01) - 1: 2 (1 + 1) / 4 - 1 = 0 and 2 (0 + 10) / 20 - 1 = 0; 2 (2 + 1) / 4 - 1 = 0.5.
        np.testing.assert_allclose(state.apply(np.array([[1.0, 0.0], [2.0, 10.0]])), [[0, 0], [0.5, 1]], atol=1e-6)
        # (y + 1) (q99 - q01) / 2 + q01: -1 gives q01 and 0.5 gives 1.5 * 8 / 2 - 4 = 2, 1.5 * 4 / 2 - 1 = 2.
        np.testing.assert_allclose(action.invert(np.array([[-1.0, -1.0], [0.5, 0.5]])), [[-4, -1], [2, 2]], atol=1e-5)
    (state, _), _ = norm.affines(config(state_norm="mean_std", action_norm="mean_std"), stats)
    np.testing.assert_allclose(state.apply(np.array([[2.0, 2.0]])), [[2, 1]], rtol=1e-5)
    assert norm.stats_file(folder) == folder / FILE


def test_a_config_that_normalises_otherwise_is_told_how(tmp_path: Path):
    folder = write(tmp_path / "policy")
    assert lerobot_norm.modes(folder) == {"state": "quantile", "actions": "quantile"}
    lerobot_norm.require_modes(folder, config())
    other_way = config(action_norm="mean_std", norm_stats=str(folder))
    for asked in (
        lambda: lerobot_norm.require_modes(folder, other_way),
        lambda: norm.named_stats(str(folder), other_way, {}),
    ):
        with pytest.raises(ConfigError, match=r"data\.action_norm is 'mean_std'; expected 'quantile'") as told:
            asked()
        assert "data.state_norm" not in str(told.value)
    assert set(norm.named_stats(str(folder), config(), {})) == {"state", "actions"}
    other = write(tmp_path / "other", config={"norm_map": {"STATE": "MEAN_STD"}})
    assert lerobot_norm.modes(other) == {"state": "mean_std", "actions": "none"}


def test_without_quantiles_only_mean_and_deviation_can_be_used(tmp_path: Path):
    few = {name: value for name, value in TENSORS.items() if name.split(".")[-1] in ("mean", "std")}
    stats = norm.load_stats(write(tmp_path / "policy", few), {})
    with pytest.raises(DataError, match="expected q01 and q99"):
        norm.affines(config(), stats)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state_file": "../../elsewhere.safetensors"}, "expected the name of a safetensors file"),
        ({"state_file": None}, "expected the name of a safetensors file"),
        ({"registry_name": "other"}, "expected one step with registry_name normalizer_processor, found 0"),
    ],
)
def test_a_preprocessor_that_is_none_is_refused(change: dict, words: str, tmp_path: Path):
    with pytest.raises(DataError, match=words):
        norm.load_stats(write(tmp_path / "policy", **change), {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action.std": None}, r"action: expected mean and std, found \['mean', 'q01', 'q99'\]"),
        ({"action.std": [1.0]}, "expected std as 2 finite floats, found float32 of shape"),
        ({"action.q01": [np.nan, 0.0]}, "expected q01 as 2 finite floats"),
        ({"observation.state.std": [-1.0, 1.0]}, "expected std of at least 0, found -1 in dimension 0"),
        ({"action.q99": [-5.0, 3.0]}, "expected q01 of at most q99"),
    ],
)
def test_statistics_that_cannot_be_are_refused(change: dict, words: str, tmp_path: Path):
    tensors = {name: value for name, value in (TENSORS | change).items() if value is not None}
    with pytest.raises(DataError, match=words):
        norm.load_stats(write(tmp_path / "policy", tensors), {})


def test_a_damaged_file_and_an_unknown_way_are_named(tmp_path: Path):
    folder = write(tmp_path / "policy", config={"norm_map": {"STATE": "MIN_MAX"}})
    with pytest.raises(
        DataError, match="expected state normalised by one of MEAN_STD, QUANTILES, IDENTITY, found MIN_MAX"
    ):
        lerobot_norm.modes(folder)
    (folder / FILE).write_bytes(b"\0" * 20)
    with pytest.raises(DataError, match=f"{FILE}: expected LeRobot's statistics as safetensors"):
        norm.load_stats(folder, {})
