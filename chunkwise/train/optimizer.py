"""OptimConfig -> an optax chain: clipping, Adam or AdamW, and a learning rate that depends on the update."""

from typing import Any

import jax
import optax

from chunkwise.config.experiment import OptimConfig
from chunkwise.errors import ConfigError


def learning_rate(config: OptimConfig, total_steps: int) -> optax.Schedule:
    """Learning rate of update i, counted from 0.

    While i < warmup_steps it is learning_rate (i + 1) / (warmup_steps + 1), so that no update is wasted at rate 0.
    Then it is constant, or follows half a cosine from learning_rate to 0 at `total_steps`.

    Raises:
      ConfigError: If the warm-up leaves nothing of a cosine schedule.
    """
    if config.schedule == "cosine":
        decay_steps = total_steps - config.warmup_steps
        if decay_steps < 1:
            raise ConfigError(
                f"optim.warmup_steps is {config.warmup_steps} and train.steps is {total_steps}: "
                "a cosine schedule needs steps after the warm-up; lower optim.warmup_steps or raise train.steps"
            )
        after = optax.cosine_decay_schedule(config.learning_rate, decay_steps)
    else:
        after = optax.constant_schedule(config.learning_rate)
    if config.warmup_steps == 0:
        return after
    first = config.learning_rate / (config.warmup_steps + 1)
    warmup = optax.linear_schedule(first, config.learning_rate, config.warmup_steps)
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def make_optimiser(config: OptimConfig, total_steps: int) -> optax.GradientTransformation:
    """Optimiser of one run.

    Weight decay is decoupled (AdamW, arXiv:1711.05101) and acts on every weight, biases included, as `optax.adamw`
    does; 0 gives Adam. Clipping scales the whole gradient to a global norm of at most clip_norm, before Adam.

    Args:
      config: Settings; every field is used.
      total_steps: Updates of the whole run, where the cosine schedule ends.

    Raises:
      ConfigError: If the warm-up leaves nothing of a cosine schedule.
    """
    adam = optax.adamw(
        learning_rate(config, total_steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    return _with_standard_promotion(optax.chain(clip, adam))


def _with_standard_promotion(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser under strict dtype promotion too: optax's Adam raises a float to the power of an int32."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(updates, state, params)

    return optax.GradientTransformation(optimiser.init, update)
