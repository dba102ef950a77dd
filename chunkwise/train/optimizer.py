"""OptimConfig -> an optax chain: clipping, a method, and a learning rate that depends on the update."""

from typing import Any

import jax
import optax
from optax import contrib

from chunkwise.config.experiment import OptimConfig
from chunkwise.errors import ConfigError
from chunkwise.train.gradients import widened


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


def unfinished_warmup(config: OptimConfig, total_steps: int) -> str | None:
    """Returns what a run should say of a warm-up that it never leaves, None of another.

    It is no error: short trials of a config are such runs, and those of before must go on.
    """
    if config.warmup_steps < total_steps:
        return None
    return (
        f"optim.warmup_steps is {config.warmup_steps} and train.steps is {total_steps}: the warm-up does not end "
        f"within the run, whose last update has {total_steps / (config.warmup_steps + 1):.2g} of optim.learning_rate; "
        "lower optim.warmup_steps or raise train.steps"
    )


def make_optimiser(config: OptimConfig, total_steps: int) -> optax.GradientTransformation:
    """Optimiser of one run.

    Weight decay is decoupled (AdamW, arXiv:1711.05101) and acts on every weight, biases included, as `optax.adamw`
    does; 0 gives Adam. Clipping scales the whole gradient to a global norm of at most clip_norm, before Adam.

    Muon (github.com/KellerJordan/Muon) makes the momentum of each matrix orthogonal, by five steps of Newton and
    Schulz; both it and the AdamW beside it look ahead with Nesterov's momentum, as optax has them. Here it is scaled so
    that an update of a matrix is as large as one of Adam usually is, 0.2 of the learning rate for a weight in the
    quadratic mean (arXiv:2502.16982), and one learning rate serves both. Matrices are the last two axes of all weights
    that have two and are neither biases, scales nor embeddings; others go by AdamW.

    Schedule-free AdamW (arXiv:2405.15682) moves weights z, which it keeps in place of the first moment; their average x
    over all updates is what the run is for; a run's own weights are those where gradients are taken, y = beta1 x +
    (1 - beta1) z. Updates count in x by the square of the largest learning rate so far. `TrainState.averaged` gives x.

    Args:
      config: Settings; every field is used.
      total_steps: Updates of the whole run, where the cosine schedule ends.

    Raises:
      ConfigError: If the warm-up leaves nothing of a cosine schedule.
    """
    rate = learning_rate(config, total_steps)
    if config.method == "muon":
        method = contrib.muon(
            rate,
            beta=config.beta1,
            weight_decay=config.weight_decay,
            mu_dtype=config.first_moment,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            eps=config.epsilon,
            adam_weight_decay=config.weight_decay,
            muon_weight_dimension_numbers=_matrices,
            consistent_rms=0.2,
        )
    elif config.method == "schedule_free":
        method = contrib.schedule_free(
            optax.chain(
                optax.scale_by_rms(config.beta2, config.epsilon, eps_in_sqrt=False, bias_correction=True),
                optax.add_decayed_weights(config.weight_decay),
                optax.scale_by_learning_rate(rate),
            ),
            lambda count: rate(count - 1),  # it counts updates from 1, and the method inside from 0
            b1=config.beta1,
        )
    else:
        method = optax.adamw(
            rate,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mu_dtype=config.first_moment,
        )
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    return _with_standard_promotion(optax.chain(clip, method))


# Ends of the names of weights that are no matrices whatever their axes: a row is of an entry and enters by addition or
# look-up. The last four are learned embeddings of driving/model/encoders.py.
NO_MATRICES = ("bias", "scale", "embedding", "position", "camera", "missing", "mask_token")


def _matrices(params: Any) -> Any:
    """Which axes of each weight form matrices, from what enters to what leaves; None where they form none.

    The last two, with these exceptions: a convolution's neighbourhood enters as a whole (kernel: ... rows, columns,
    channels, features), and flax's attention has its heads between the two (query, key, value: ... width, heads, size).
    Each head is a matrix of its own, there and in the projections of openpi_ript/model/gemma.py.
    """

    def axes(path: Any, leaf: Any) -> contrib.MuonDimensionNumbers | None:
        above, name = ("", *(str(getattr(part, "key", "")) for part in path))[-2:]
        last = leaf.ndim - 1
        if leaf.ndim < 2 or name.endswith(NO_MATRICES):
            return None
        if name == "kernel" and leaf.ndim > 2 and above in ("query", "key", "value"):
            return contrib.MuonDimensionNumbers(reduction_axis=last - 2, output_axis=last)
        if name == "kernel" and leaf.ndim > 3 and above != "out":
            return contrib.MuonDimensionNumbers(reduction_axis=(last - 3, last - 2, last - 1), output_axis=last)
        return contrib.MuonDimensionNumbers(reduction_axis=last - 1, output_axis=last)

    return jax.tree.map_with_path(axes, params)


def _with_standard_promotion(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser under strict dtype promotion too: optax's Adam raises a float to the power of an int32."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(widened(updates), state, params)

    return optax.GradientTransformation(optimiser.init, update)
