"""Trains a pi0-style policy: supervised, or guided by advantages (CFG-RIPT); hands data and model to the loop."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkwise.cli.named_paths import require_reachable
from chunkwise.distributed import processes
from chunkwise.errors import ConfigError
from chunkwise.printable import say
from chunkwise.reports.report import write_report
from chunkwise.train.ahead import of_rows, require_known
from chunkwise.train.interaction import Interaction
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.data.norm import stats_json
from openpi_ript.data.point import record
from openpi_ript.policies.saved import NORM_STATS, TOKENIZER
from openpi_ript.tasks.supervised import Imitation, SupervisedTask


def main(config: OpenpiRiptConfig, name: str) -> None:
    """Trains what `config` describes, in a run folder named after `name`."""
    require_reachable(
        {
            "data.path": config.data.path,
            "data.norm_stats": config.data.norm_stats,
            "tokenizer": config.tokenizer,
            "weights": config.weights,
        }
    )
    with RunFolder(config, name) as folder:
        print(f"run folder {folder.path}", flush=True)
        processes.run_on_primary(lambda: _record_if_missing(config))
        data = processes.primary_then_all(
            lambda: open_data(config.data, check=folder.require_same_files, allow_code=True)
        )
        for note in data.notes:
            say(f"data: {note}")
        if data.stats:
            folder.kept[NORM_STATS] = stats_json(data.stats, data.stats_source).encode()
        task, interaction = _make_task(config, data, folder.path)
        folder.kept[TOKENIZER] = Path(config.tokenizer).read_bytes()  # a run's policy needs nothing but its folder
        print(task.describe(), flush=True)
        if fit(config, task, folder, load=None if config.weights is None else task.load, interaction=interaction):
            write_report(folder.path)


def without_data(config: OpenpiRiptConfig, sizes: Mapping[str, int]) -> tuple[Imitation, dict[str, Any]]:
    """Returns the update of a run, and the shapes of its batches, which its config tells alone.

    Args:
      config: Of the run; rounds of rollouts have the same updates.
      sizes: Empty.

    Raises:
      ConfigError: Its updates depend on the dataset too, or are PPO's.
    """
    require_known(sizes, ())
    if config.guidance is not None and config.guidance.labels == "value":
        raise ConfigError(
            "guidance.labels is 'value', whose value function depends on the dataset; compile with 'rloo'"
        )
    if config.rollout is not None and config.rollout.objective == "ppo":
        raise ConfigError("rollout.objective is 'ppo', whose batches are chunks of rollouts; compile with 'guided'")
    model, cameras = config.model, len(config.data.cameras)
    size, tokens = model.image_size, model.prompt_tokens
    row = functools.partial(of_rows, config.train.batch_size)
    observation = {
        "images": row("uint8", cameras, size, size, 3),
        "image_mask": row("bool", cameras),
        "state": row("float32", model.action_dim),
        "tokens": row("int32", tokens),
        "token_mask": row("bool", tokens),
    }
    return Imitation(config), {
        "observation": observation,
        "actions": row("float32", model.action_horizon, model.action_dim),
        "action_is_pad": row("bool", model.action_horizon),
        "optimality": row("int32"),
        "advantages": row("float32"),
    }


def _record_if_missing(config: OpenpiRiptConfig) -> None:
    if config.record is not None:
        record(config.record, config.data.path)
    if config.demonstrate is not None:
        from openpi_ript.envs.demonstrate import demonstrate

        demonstrate(config)


def _make_task(config: OpenpiRiptConfig, data: TrainingData, folder: Path) -> tuple[SupervisedTask, Interaction | None]:
    """The task, and what it does between updates where it plays rollouts."""
    if config.env is None:
        return SupervisedTask(config, data), None
    from openpi_ript.tasks.ript import RiptTask  # simulators' workers, which a run on a dataset alone does not need

    task = RiptTask(config, data, folder)
    return task, task.ript
