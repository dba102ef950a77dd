"""Imitation of a dataset by flow matching, plain or guided by advantages (CFG-RIPT), without an environment."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, UInt8

from chunkwise.arrays import NumpyTree, PyTree
from chunkwise.data.norm_stats import as_lists
from chunkwise.data.stream import batches_of_run
from chunkwise.envs.collect import Task
from chunkwise.errors import ConfigError
from chunkwise.models.augmentation import augmented
from chunkwise.state import TrainState
from chunkwise.train import rngs
from chunkwise.train.gradients import widened
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.optimizer import make_optimiser
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data.dataset import TrainingData
from openpi_ript.data.inputs import make_inputs
from openpi_ript.model.lora import count, only_where, stop_frozen, train_only, trainable, trained_gradient
from openpi_ript.model.pi0 import Pi0, as_trained, gathered_outside_layers, init_params
from openpi_ript.policies.saved import read_stored_weights
from openpi_ript.tasks.held_out import HeldOut
from openpi_ript.tasks.objective import loss_of, objective_name
from openpi_ript.tasks.value_labels import ValueLabels, task_names, with_returns
from openpi_ript.weights import fit_to_model


def require_positive(config: OpenpiRiptConfig, data: TrainingData) -> None:
    """Refuses guidance by advantages that call nothing positive.

    Args:
      config: Of the run.
      data: Its dataset.

    Raises:
      ConfigError: No sample that is trained on is positive; labels by a value judge later, and are not asked.
    """
    if config.guidance is None or config.guidance.labels == "value":
        return
    trained = data.episodes_of(data.rows)
    if (data.to_ript.rollouts.optimality[trained] == Optimality.POSITIVE).any():
        return
    assert config.data.advantage is not None
    instead = ""
    if data.success_tells_apart:
        instead = (
            f"data.reward_key to none, since {config.data.success_key!r} differs where the sums of "
            f"{config.data.reward_key!r} do not, "
        )
    raise ConfigError(
        "guidance is set and no rollout is better than the others of its group; expected groups with different "
        f"rewards: set {instead}data.advantage.group_by to another than "
        f"{config.data.advantage.group_by!r} or data.init_key, or record more rollouts from each start"
    )


class Imitation:
    """The update of a pi0, plain or guided, as a function of batches that come from anywhere."""

    def __init__(self, config: OpenpiRiptConfig, labels: ValueLabels | None = None) -> None:
        """Compiles nothing yet.

        Args:
          config: Of the run.
          labels: The value function that labels chunks; None: the batch brings labels, or none are needed.
        """
        self.config = config
        self.model = Pi0(config.model)
        self._labels = labels
        self._shapes = jax.eval_shape(lambda: self._fresh(jax.random.key(0)))
        self._trains = trainable(self._shapes, config.model)
        self._optimiser = train_only(make_optimiser(config.optim, config.train.steps), self._trains)

    def init(self, key: Key[Array, ""]) -> TrainState:
        """Fresh weights; zeros where `load` is going to put a checkpoint's, so that none are drawn in vain."""
        if self.config.weights is None:
            params = self._fresh(key)
        else:
            params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._shapes)
        value = None if self._labels is None else self._labels.init(jax.random.fold_in(key, 1))
        return TrainState.create(params, self._optimiser, value, ema=self._averaged(params))

    def load(self, state: TrainState) -> TrainState:
        """The weights of `config.weights` in a fresh state; adapters and condition are drawn where it has none.

        Raises:
          DataError: If it is missing or damaged, or does not fit the model; the message lists what differs.
        """
        assert self.config.weights is not None
        stored = read_stored_weights(self.config.weights, self.model)
        fitted = fit_to_model(stored, self.model, rngs.key(self.config.run.seed, "fresh weights"))
        fitted = as_trained(fitted, self.config.model)
        # Copied: on the CPU device_put shares numpy's memory, and the state is going to be donated.
        params = jax.tree.map(
            lambda new, old: jnp.copy(jax.device_put(new.astype(old.dtype, copy=False), old.sharding)),
            fitted,
            state.params,
        )
        return state.starting_from(params, ema=jax.tree.map(jnp.copy, self._averaged(params)))

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update of the weights that train."""
        key = rngs.key(self.config.run.seed, "loss", state.step)
        weights = {objective_name(self.config.guidance): 1.0}
        value, judgement = state.target, dict[str, Mean]()
        if self._labels is not None:
            label, value, judgement = self._labels.step(value, batch, state.step, key)
            batch = {name: part for name, part in batch.items() if name != "returns"} | {"optimality": label}
        batch = self._augmented(batch, state.step)
        parts, dtype = self.config.train.grad_accum_steps, self.config.model.dtype
        gradient, metrics = trained_gradient(self._loss, weights, state.params, self._trains, batch, key, parts, dtype)
        metrics["gradient_norm"] = mean_of(optax.tree.norm(widened(only_where(gradient, self._trains))))
        return state.apply_gradients(gradient, self._optimiser).replace(target=value), metrics | judgement

    def _fresh(self, key: Key[Array, ""]) -> PyTree:
        """Weights as the run keeps them."""
        return as_trained(init_params(self.model, key), self.config.model)

    def _augmented(self, batch: Any, step: Int[Array, ""]) -> Any:
        """The batch with other images, drawn from (run.seed, step)."""
        if self.config.augment is None:
            return batch
        observation = batch["observation"]
        images = augmented_images(self.config, observation["images"], step)
        return {**batch, "observation": {**observation, "images": images}}

    def _loss(self, params: PyTree, batch: Any, key: Key[Array, ""]) -> tuple[Float[Array, ""], dict[str, Mean]]:
        params = stop_frozen(gathered_outside_layers(params), self._trains)
        return loss_of(self.model, params, batch, key, self.config.guidance)

    def _averaged(self, params: PyTree) -> PyTree:
        """The weights of which a moving average is kept: those that train, or none."""
        return {} if self.config.train.ema_decay is None else only_where(params, self._trains)


def augmented_images(
    config: OpenpiRiptConfig, images: UInt8[Array, "b k h w 3"], step: Int[Array, ""]
) -> Float[Array, "b k h w 3"]:
    """Returns the images of a batch as update `step` changes them, drawn from (run.seed, step); `augment` is set."""
    assert config.augment is not None
    moves = ["wrist" not in name for name in sorted(config.data.cameras)]
    return augmented(images, rngs.key(config.run.seed, "augmentation", step), config.augment, moves)


class SupervisedTask(Imitation):
    """A pi0 run on a dataset as the train loop sees it: imitation, guided by advantages where `guidance` is set."""

    def __init__(self, config: OpenpiRiptConfig, data: TrainingData, tasks: Sequence[Task] = ()) -> None:
        """Compiles nothing yet.

        Args:
          config: Of the run.
          data: The dataset.
          tasks: In which the policy acts, with prompts and limits.

        Raises:
          ConfigError: If the tokenizer is missing, or guidance has no positive sample to learn from.
        """
        labels: ValueLabels | None = None
        if config.guidance is not None and config.guidance.labels == "value":
            data = with_returns(data, config.guidance.value, tasks)
            labels = ValueLabels(config, config.guidance.value, task_names(data, tasks))
        require_positive(config, data)
        super().__init__(config, labels)
        self.data = data
        self.inputs = make_inputs(config.model, config.data.robot, tuple(config.data.cameras), config.tokenizer)
        self._held_out: HeldOut | None = None  # compiled at the first evaluation, by the process that evaluates

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """Model inputs from update `start_step` on."""
        batches = batches_of_run(self.data, self.config, start_step=start_step, shard=shard, num_shards=num_shards)
        return map(self.inputs, batches)

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """The loss on what data.holdout keeps, and how many advantages were replaced while they were shaped.

        A recorded dataset has no environment: `chunkwise serve` gives the policy to one.
        """
        return self._of_dataset(state)

    def _of_dataset(self, state: TrainState) -> dict[str, float]:
        """Metrics that need no environment."""
        replaced = self.data.replaced if self._labels is None else {}
        metrics = {f"advantages_{name}": float(count) for name, count in replaced.items()}
        return metrics | self._held_out_loss(state)

    def _held_out_loss(self, state: TrainState) -> dict[str, float]:
        """Metrics of the episodes held out; none without data.holdout."""
        if not self.data.held_rows.size:
            return {}
        if self._held_out is None:
            self._held_out = HeldOut(self.config, self.data, self.inputs)
        metrics = self._held_out.measure(state.params)
        print(f"step {int(state.step)}: {self._held_out.summary(metrics)}", flush=True)
        return metrics

    def finish(self) -> None:
        """Nothing to draw."""

    def data_fingerprint(self) -> dict[str, Any]:
        """Hashes of all that makes the batches: files, tables, labels, statistics, tokenizer."""
        rollouts, prompts = self.data.to_ript.rollouts, self.data.table.columns["task_index"]
        stats = {name: as_lists(one) for name, one in sorted(self.data.stats.items())}
        return {
            "files": self.data.files.digest(),
            "tables": self.data.stats_source["fingerprint"],
            "prompts": _sha256(prompts.tobytes()),
            "labels": _sha256(rollouts.optimality.tobytes() + rollouts.advantage.tobytes() + self.data.rows.tobytes()),
            "norm_stats": _sha256(json.dumps(stats).encode()),
            "tokenizer": _sha256(Path(self.config.tokenizer).read_bytes()),
        }

    def describe(self) -> str:
        """Sizes of model and dataset, in words."""
        trained = count(only_where(self._shapes, self._trains))
        frames = len(self.data.rows)
        value = "" if self._labels is None else f", {self._labels.weights:,} of a value function beside them"
        return f"{count(self._shapes):,} weights, {trained:,} of them train{value}; {frames:,} frames to draw from"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
