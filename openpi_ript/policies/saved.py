"""What a policy needs of a folder: config, weights and statistics, from a run of ours or an openpi checkpoint."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from chunkwise.checkpoint.weights import Which, read_weights
from chunkwise.config import saved
from chunkwise.config.experiment import of_a_run_of_before
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.trust import require_own_files
from chunkwise.train.rngs import key
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data import lerobot_norm, norm
from openpi_ript.model.lora import only_where, trainable
from openpi_ript.model.pi0 import Pi0, as_trained, init_params
from openpi_ript.weights import fit_to_model, load_openpi, load_safetensors

NORM_STATS = "norm_stats.json"
"""File of statistics, in a run's folder, and below `assets` in openpi's checkpoints."""
PYTORCH = "model.safetensors"
"""Weights in a folder that openpi's converter or LeRobot wrote."""
TOKENIZER = "tokenizer.model"
"""Copy of the tokenizer in a run's folder."""
INITIAL_STATES = "initial_states.npz"
"""Copy of env.initial_states in a run's folder, where it has any."""


def read_config(folder: Path) -> OpenpiRiptConfig:
    """The config with which a run was started; the tokenizer and the initial states are the run's own copies.

    Raises:
      ConfigError: If config.json is missing, damaged, or of another package or version; or there is no tokenizer, or
        no initial states although it began in some.
      DataError: If links lead out of the folder.
    """
    config = saved.read_config(folder, OpenpiRiptConfig)
    own = folder / TOKENIZER
    if not own.is_file():  # a run that came from elsewhere may name any file of this machine
        raise ConfigError(
            f"{folder}: expected the run's tokenizer in {TOKENIZER}, found none. Its config names "
            f"{config.tokenizer!r}, which is not read from here; if that is PaliGemma's, copy it there"
        )
    with of_a_run_of_before():
        config = dataclasses.replace(config, tokenizer=str(own))
    if config.env is None or not config.env.initial_states:
        return config
    states = folder / INITIAL_STATES
    if not states.is_file():
        raise ConfigError(
            f"{folder}: expected the run's initial states in {INITIAL_STATES}, found none. Its config names "
            f"{config.env.initial_states!r}, which is not read from here; if it is that file, copy it there"
        )
    with of_a_run_of_before():
        return dataclasses.replace(config, env=dataclasses.replace(config.env, initial_states=str(states)))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of this project; those of PyTorch's policies have a config.json too."""
    return saved.is_run(folder) and not (folder / PYTORCH).is_file()


def read_stored_weights(path: str | Path, model: Pi0) -> dict[str, Any]:
    """Weights as stored: a .safetensors file, or the folder of openpi's or LeRobot's that holds one, or else a
    checkpoint folder of openpi's. Raises DataError if it is bad, or PyTorch's and not of the model."""
    file = Path(path) / PYTORCH if (Path(path) / PYTORCH).is_file() else Path(path)
    return load_safetensors(file, model) if file.suffix == ".safetensors" else load_openpi(path)


def read_run_weights(
    folder: Path, config: OpenpiRiptConfig, *, checkpoint: int | Which = "newest"
) -> tuple[int, dict[str, Any]]:
    """Returns step and weights of a run's checkpoint, with the moving average where one is kept; see read_weights.

    Raises:
      DataError: If there is no whole checkpoint.
      MismatchError: If it holds another model than the config says.
    """
    return read_weights(
        folder,
        config,
        lambda: as_trained(init_params(Pi0(config.model), jax.random.key(0)), config.model),
        averaged=lambda shapes: only_where(shapes, trainable(shapes, config.model)),
        checkpoint=checkpoint,
    )


def read_openpi_weights(path: Path, config: OpenpiRiptConfig) -> dict[str, Any]:
    """Weights of an openpi checkpoint in the config's model.

    Raises DataError if they do not fit, and lists what, or if links lead out of the checkpoint.
    """
    require_own_files(path)
    model = Pi0(config.model)
    return fit_to_model(read_stored_weights(path, model), model, key(config.run.seed, "fresh weights"))


def read_stats(folder: Path, config: OpenpiRiptConfig) -> Mapping[str, NormStats]:
    """Statistics that belong to the weights of a folder; none where nothing is normalised.

    Those of a run lie in it. For an openpi checkpoint they are data.norm_stats, or the one file below its `assets`; for
    a folder of LeRobot's, data.norm_stats or those of its preprocessor.

    Raises:
      DataError: If they are missing or bad.
      ConfigError: If an openpi checkpoint has several, or LeRobot's normalises otherwise than the config.
    """
    if (config.data.state_norm, config.data.action_norm) == ("none", "none"):
        return {}
    if is_run(folder):
        return norm.load_stats(folder / NORM_STATS, {})
    if config.data.norm_stats is not None:
        return norm.named_stats(config.data.norm_stats, config.data, {})
    if lerobot_norm.is_lerobot(folder):
        lerobot_norm.require_modes(folder, config.data)
        return norm.load_stats(folder, {})
    places = [place / "assets" for place in (folder, folder.parent) if (place / "assets").is_dir()]
    found = sorted(path for place in places for path in place.rglob(NORM_STATS))
    if not found:
        raise DataError(f"{folder}: expected {NORM_STATS} below its assets, found none; name it in data.norm_stats")
    if len(found) > 1:
        raise ConfigError(f"data.norm_stats is None and there are {', '.join(map(str, found))}; set it to one of them")
    return norm.load_stats(found[0], {})
