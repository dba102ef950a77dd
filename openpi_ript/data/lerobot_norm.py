"""LeRobot's normalisation files of pi0 and pi0.5: the statistics of state and actions beside a policy's weights.

`policy_preprocessor.json` lists steps; the one named normalizer_processor says how each kind of feature is normalised
(norm_map) and names a safetensors file, whose tensors are called `<feature>.<statistic>`: observation.state.mean.
LeRobot divides by std + 1e-8, or by q99 - q01; openpi's formula, which is used here, adds 1e-6 in their place.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data import norm_stats
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
from chunkwise.files.strict_json import read_json
from openpi_ript.config.data import DataConfig, Normalization

PREPROCESSOR = "policy_preprocessor.json"
"""Of LeRobot's folders, beside model.safetensors."""
STEP = "normalizer_processor"
FEATURES = {"state": ("observation.state", "STATE"), "actions": ("action", "ACTION")}
"""Ours to LeRobot's name of an array, and the kind under which norm_map has it."""
MODES: Mapping[str, Normalization] = {"MEAN_STD": "mean_std", "QUANTILES": "quantile", "IDENTITY": "none"}
"""LeRobot's names of normalisations to ours."""


def is_lerobot(folder: Path) -> bool:
    """Whether a folder holds a policy of LeRobot, with its processors."""
    return (folder / PREPROCESSOR).is_file()


def state_file(folder: Path) -> Path:
    """Returns the file of a folder's statistics. Raises DataError where the preprocessor names none."""
    return folder / _step(folder)["state_file"]


def modes(folder: Path) -> dict[str, Normalization]:
    """Returns how a policy of LeRobot normalises "state" and "actions".

    Raises:
      DataError: Its preprocessor is bad, or normalises in a way that is not known here.
    """
    path = folder / PREPROCESSOR
    config = _step(folder).get("config")
    norm_map = config.get("norm_map") if isinstance(config, dict) else None
    if not isinstance(norm_map, dict):
        raise DataError(f"{path}: expected norm_map in the config of {STEP}, found {json.dumps(config)[:80]}")
    found = {name: norm_map.get(kind, "IDENTITY") for name, (_, kind) in FEATURES.items()}
    for name, mode in found.items():
        if not isinstance(mode, str) or mode not in MODES:
            raise DataError(f"{path}: expected {name} normalised by one of {', '.join(MODES)}, found {str(mode)[:80]}")
    return {name: MODES[mode] for name, mode in found.items()}


def require_modes(folder: Path, config: DataConfig) -> None:
    """Raises ConfigError if a config normalises otherwise than the policy of a folder, and DataError as `modes`."""
    asked = {"state": config.state_norm, "actions": config.action_norm}
    fields = {"state": "data.state_norm", "actions": "data.action_norm"}
    wrong = {name: mode for name, mode in modes(folder).items() if asked[name] != mode}
    if wrong:
        lines = [f"{fields[name]} is {asked[name]!r}; expected {mode!r}" for name, mode in wrong.items()]
        raise ConfigError(f"{folder / PREPROCESSOR} normalises otherwise than this config:", *lines)


def load(file: Path) -> dict[str, NormStats]:
    """Reads a file of statistics.

    Raises:
      DataError: It is missing or damaged, lacks state or action, or holds what cannot be a statistic.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        budget.regular(file)
        tensors = load_file(file)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: expected LeRobot's statistics as safetensors, reading it failed: {error}") from error
    return {name: _stats(tensors, feature, f"{file}: {feature}") for name, (feature, _) in FEATURES.items()}


def _stats(tensors: Mapping[str, np.ndarray], feature: str, where: str) -> NormStats:
    """Statistics of one feature; quantiles that LeRobot left out are NaN, as in openpi's files."""
    known = {name.rpartition(".")[2] for name in tensors if name.rpartition(".")[0] == feature}
    if not {"mean", "std"} <= known:
        raise DataError(f"{where}: expected mean and std, found {sorted(known)} among {sorted(tensors)[:20]}")
    mean = tensors[f"{feature}.mean"]
    fields = {}
    for name in ("mean", "std", "q01", "q99"):
        value = tensors.get(f"{feature}.{name}")
        if value is None:
            value = np.full(mean.shape, np.nan)
        elif value.ndim != 1 or value.shape != mean.shape or value.dtype.kind != "f" or not np.isfinite(value).all():
            raise DataError(
                f"{where}: expected {name} as {mean.size} finite floats, found {value.dtype} of shape {value.shape}"
            )
        fields[name] = value.astype(np.float64)
    stats = NormStats(**fields)
    norm_stats.require_sensible(stats, where)
    return stats


def _step(folder: Path) -> dict[str, Any]:
    path = folder / PREPROCESSOR
    tree = read_json(path)
    listed = tree.get("steps") if isinstance(tree, dict) else None
    steps = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    found = [one for one in steps if one.get("registry_name") == STEP]
    if len(found) != 1:
        raise DataError(f"{path}: expected one step with registry_name {STEP}, found {len(found)}")
    name = found[0].get("state_file")
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors"):
        raise DataError(
            f"{path}: expected the name of a safetensors file as state_file of {STEP}, found {str(name)[:80]}"
        )
    return found[0]
