"""The weights of a run for those who use them: to act, to evaluate, to begin another run; for all packages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax

from chunkwise.checkpoint.prune import KeepBest
from chunkwise.checkpoint.reader import list_saves, read_newest
from chunkwise.config.experiment import ExperimentConfig
from chunkwise.errors import ConfigError, DataError, MismatchError
from chunkwise.files.place import is_utf8
from chunkwise.state import average_of, tree_merge

Which = Literal["newest", "best"]
"""newest: the newest checkpoint that verifies. best: the one with the best evaluation by checkpoint.keep_best."""


def which(text: str) -> int | Which:
    """Returns what --checkpoint says. Raises ConfigError if it is neither a word of `Which` nor a step."""
    if text == "newest" or text == "best":
        return text
    if not text.isdecimal():
        raise ConfigError(f"--checkpoint is {text}; expected newest, best or the number of a step")
    return int(text)


def read_weights(
    run: Path,
    config: ExperimentConfig,
    init: Callable[[], Any],
    *,
    averaged: Callable[[Any], Any] = lambda params: params,
    checkpoint: int | Which = "newest",
) -> tuple[int, Any]:
    """Reads step and weights of a verified checkpoint, on one device; averaged where the run averages them.

    Args:
      run: The run's folder; training may go on in it meanwhile.
      config: Of the run.
      init: Makes fresh weights; only their shapes are computed.
      averaged: The part of the weights of which an average is kept, where it is not all of them.
      checkpoint: A step, or see `Which`.

    Raises:
      ConfigError: "best" is asked for, and the run's config has no checkpoint.keep_best; or the run's path is no UTF-8.
      DataError: There is no whole checkpoint, none of this step, or none that was evaluated.
      MismatchError: It holds other weights than the config says, or a file of the run that belongs to it is another.
      StorageError: It cannot be read, and nothing shows that it is damaged.
    """
    if not is_utf8(run.resolve()):
        raise ConfigError(f"{run}: expected a path in UTF-8, found other bytes, which Orbax does not open; rename it")
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), jax.eval_shape(init)
    )
    only = best_step(run, config) if checkpoint == "best" else None if checkpoint == "newest" else checkpoint
    if config.optim.method == "schedule_free":
        step, arrays = read_newest(run, {"params": shapes}, only=only, plain=("opt_state",))
        try:
            return step, average_of(arrays["opt_state"], arrays["params"])
        except ValueError as error:
            raise MismatchError(f"{run}: step {step}: the optimiser averages other weights: {error}") from error
    if config.train.ema_decay is None:
        wanted = {"params": shapes}
    else:
        part = averaged(shapes)
        whole = jax.tree.structure(part) == jax.tree.structure(shapes)
        wanted = {"ema": part} if whole else {"params": shapes, "ema": part}
    step, arrays = read_newest(run, wanted, only=only)
    if "params" not in arrays:
        return step, arrays["ema"]
    return step, tree_merge(arrays["params"], arrays.get("ema", {}))


def best_step(run: Path, config: ExperimentConfig) -> int:
    """Returns the step of the checkpoint with the best evaluation.

    Raises:
      ConfigError: The run's config does not say which metric is meant.
      DataError: No checkpoint was evaluated.
    """
    if config.checkpoint.keep_best is None:
        raise ConfigError(f"{run}: the best checkpoint is asked for; expected checkpoint.keep_best in its config")
    saves = list_saves(run)
    scores = KeepBest(config.checkpoint)
    for save in saves:
        scores.note(save.step, save.evaluation)
    best = scores.best([save.step for save in saves if save.damage is None])
    if best is None:
        raise DataError(f"{run}: expected a checkpoint that was evaluated by {config.checkpoint.keep_best}, found none")
    return best
