"""From a folder to a policy, whichever package trained it."""

import importlib
from pathlib import Path
from typing import Any, Literal

from chunkwise.checkpoint.weights import Which
from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.packages import package_of
from chunkwise.config.saved import is_run, with_fitting_values
from chunkwise.errors import ConfigError
from chunkwise.policies.policy import Asked, Policy


def load_policy(
    run: str | Path,
    *,
    checkpoint: int | Which = "newest",
    config: ExperimentConfig | None = None,
    seed: int = 0,
    allow_code: str | None = None,
    dtype: Literal["bfloat16", "int8"] | None = None,
) -> Policy[Any]:
    """Loads a trained policy.

    Args:
      run: The folder of a run, of any package. For openpi's weights, with `config`, their folder or file.
      checkpoint: "newest", the newest that verifies; "best", by the metric of checkpoint.keep_best; or a step.
      config: For weights that are not a run of this project, which has its own: model, robot, cameras, tokenizer.
      seed: Of what the policy draws.
      allow_code: `module:function` that the run's config names (agent.factory, data.robot.adapter), which may then be
        imported: you trust it.
      dtype: In which the weights are kept, where that is a choice: bfloat16 halves the memory of a large model,
        int8 that of its matrices again. None:
        as they were trained, float32.

    Raises:
      ConfigError: It is no run, or a pretraining, which has no policy; or the config is missing or damaged, or
        a value of the one given is of another type than its field.
      DataError: There is no whole checkpoint, or a file beside it is missing or bad.
      MismatchError: A file of the run is not the one that the checkpoint was made with.
    """
    folder = Path(run)
    if config is not None:
        config = with_fitting_values(config, "config")
        package = config.package
    elif is_run(folder):
        package = package_of(folder)
    elif not folder.exists():
        raise ConfigError(f"{folder}: expected the folder of a run, found nothing (in {Path.cwd()})")
    else:
        raise ConfigError(
            f"{folder} is no run of this project (it has no config.json); weights in openpi's format need a config "
            "that says what model and robot they are for"
        )
    module = importlib.import_module(f"{package}.policies.policy")
    return module.load(
        Asked(folder=folder, config=config, checkpoint=checkpoint, seed=seed, allow_code=allow_code, dtype=dtype)
    )
