"""Labels of chunks by a value function that learns beside the policy, as pi*0.6 describes them (arXiv:2511.14759).

    A = (rewards of the next N steps + V of what was seen then, or the return where the episode ends before) - V
    positive where A is above the quantile 1 - positive_share of the newest advantages of its task, else negative

Each update judges its own rows with the value as it is, then moves the value towards the returns that were observed on
them. All of it is state of the run: weights, their optimiser, the newest advantages. Unlike there, the value and the
policy learn in the same updates and not one after the other, and the quantile is that of a window which moves along.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key

from chunkwise.arrays import PyTree
from chunkwise.config.experiment import OptimConfig
from chunkwise.envs.collect import Task
from chunkwise.train import gradients
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.optimizer import make_optimiser
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.config.value import ValueConfig
from openpi_ript.data.dataset import TrainingData
from openpi_ript.data.returns import returns_of
from openpi_ript.model.lora import count
from openpi_ript.model.value import ValueNetwork, cross_entropy, expected_value


def with_returns(data: TrainingData, value: ValueConfig, tasks: Sequence[Task]) -> TrainingData:
    """Returns data whose samples tell what came of them; a dataset without data.advantage is one of demonstrations.

    Args:
      data: The dataset.
      value: Settings of the value.
      tasks: In which the policy acts; a prompt's limit is the longest of theirs and of the dataset's episodes.
    """
    limits: dict[str, int] = {}
    for task in tasks:
        limits[task.prompt] = max(limits.get(task.prompt, 0), task.max_steps or 0)
    returns = returns_of(
        data.table,
        value,
        demonstrations=data.config.advantage is None,
        default_prompt=data.config.default_prompt,
        limits=limits,
    )
    return dataclasses.replace(data, returns=returns)


def task_names(data: TrainingData, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Returns what metrics call each task of the returns: as the environment does, else by its prompt.

    Tasks of one prompt are one task of the returns, called by all their names: "red+blue".
    """
    assert data.returns is not None
    names = {
        prompt: "+".join(task.name for task in tasks if task.name and task.prompt == prompt)
        for prompt in data.returns.prompts
    }
    return tuple(names[prompt] or prompt for prompt in data.returns.prompts)


class ValueLabels:
    """The value function of a run, and the labels by it."""

    def __init__(self, config: OpenpiRiptConfig, value: ValueConfig, tasks: Sequence[str]) -> None:
        """Compiles nothing yet.

        Args:
          config: Of the run.
          value: Its settings of the value.
          tasks: What metrics call each task, in the order of their numbers.
        """
        self._value, self._tasks = value, tuple(tasks)
        self._micro_batches = config.train.grad_accum_steps
        model = config.model
        images = (1, len(config.data.cameras), model.image_size, model.image_size, 3)
        self._images = jnp.zeros(images, jnp.uint8) if config.data.cameras else None
        self._state_dim = model.action_dim
        self._network = ValueNetwork(value.bins, len(self._tasks), value.width)
        self._optimiser = make_optimiser(OptimConfig(learning_rate=value.learning_rate), config.train.steps)

    @property
    def weights(self) -> int:
        """Weights of the network."""
        return count(jax.eval_shape(self.init, jax.random.key(0))["params"])

    def init(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Returns the state at update 0: random weights, no advantage seen."""
        state, task = jnp.zeros((1, self._state_dim)), jnp.zeros(1, jnp.int32)
        params = self._network.init(key, state, task, self._images)["params"]
        tasks = len(self._tasks)
        return {
            "params": params,
            "opt_state": self._optimiser.init(params),
            "advantages": jnp.zeros((tasks, self._value.window)),
            "judged": jnp.zeros(tasks, jnp.int32),
        }

    def step(
        self, state: Any, batch: Any, step: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Int32[Array, " b"], dict[str, Any], dict[str, Mean]]:
        """Judges a batch, and learns from it.

        Args:
          state: As `init` gives it.
          batch: A `ModelBatch` with `returns`; its images are those that were recorded.
          step: Updates made.
          key: For micro-batches; nothing is drawn.

        Returns:
          Labels, values of `Optimality`; the state after the update; means: `value_loss`, and of the rows that the
          value labelled, of which there are none in the warm-up, `positive_share`, of each task where there are
          several.
        """
        returns = batch["returns"]
        now = self._now(batch)
        advantage = self._estimate(state["params"], returns, now) - self.values(state["params"], now)
        judged = ~returns["forced"]
        newest, counts = remembered(state["advantages"], state["judged"], advantage, returns["task"], judged)
        positive = advantage > quantiles(newest, counts, 1 - self._value.positive_share)[returns["task"]]
        label = jnp.where(positive, Optimality.POSITIVE, Optimality.NEGATIVE)
        label = jnp.where(step < self._value.warmup, Optimality.NONE, label)
        label = jnp.where(judged, label, Optimality.POSITIVE).astype(jnp.int32)

        rows = {**now, "observed": returns["observed"]}
        gradient, metrics = gradients.gradient(
            self._loss, {"value_loss": 1.0}, state["params"], rows, key, self._micro_batches
        )
        updates, opt_state = self._optimiser.update(gradient, state["opt_state"], state["params"])
        params = jax.tree.map(jnp.add, state["params"], updates)
        after = {"params": params, "opt_state": opt_state, "advantages": newest, "judged": counts}
        labelled = judged & (step >= self._value.warmup)
        return label, after, metrics | self._shares(label, labelled, returns["task"])

    def values(self, params: PyTree, seen: Any) -> Float32[Array, " b"]:
        """Returns V of observations: "state", "task", and "images" where there are cameras."""
        return expected_value(self._logits(params, seen))

    def _logits(self, params: PyTree, seen: Any) -> Float32[Array, "b n"]:
        logits: Any = self._network.apply({"params": params}, seen["state"], seen["task"], seen.get("images"))
        return logits

    def _now(self, batch: Any) -> dict[str, Array]:
        observation = batch["observation"]
        now = {"state": observation["state"], "task": batch["returns"]["task"]}
        return now if self._images is None else {**now, "images": observation["images"]}

    def _estimate(self, params: PyTree, returns: Any, now: Any) -> Float32[Array, " b"]:
        """What came of each row, as far as it was seen, and V from there."""
        if "later" not in returns:
            return returns["observed"]
        later = self.values(params, {**returns["later"], "task": now["task"]})
        return jnp.where(returns["continues"], returns["ahead"] + later, returns["observed"])

    def _loss(self, params: PyTree, rows: Any, key: Key[Array, ""]) -> tuple[Float32[Array, ""], dict[str, Mean]]:
        del key
        loss = mean_of(cross_entropy(self._logits(params, rows), rows["observed"]))
        return loss.value(), {"value_loss": loss}

    def _shares(
        self, label: Int32[Array, " b"], labelled: Bool[Array, " b"], task: Int32[Array, " b"]
    ) -> dict[str, Mean]:
        positive = (label == Optimality.POSITIVE).astype(jnp.float32)
        shares = {"positive_share": mean_of(positive, labelled)}
        if len(self._tasks) > 1:
            of_tasks = {name: mean_of(positive, labelled & (task == i)) for i, name in enumerate(self._tasks)}
            shares |= {f"positive_share/{name}": share for name, share in of_tasks.items()}
        return shares


def remembered(
    newest: Float32[Array, "n w"],
    counts: Int32[Array, " n"],
    advantage: Float32[Array, " b"],
    task: Int32[Array, " b"],
    judged: Bool[Array, " b"],
) -> tuple[Float32[Array, "n w"], Int32[Array, " n"]]:
    """Returns the newest advantages of each task and how many there ever were, after a batch.

    Args:
      newest: The w newest of each task; number i of a task lies in column i % w.
      counts: How many there were of each before.
      advantage: Of the batch's rows, at most w.
      task: Of each row.
      judged: Rows that are remembered.
    """
    tasks, window = newest.shape
    mine = (task[:, None] == jnp.arange(tasks)[None]) & judged[:, None]
    number = counts[None] + jnp.cumsum(mine.astype(jnp.int32), axis=0) - 1  # of each row, if it is of that task
    column = jnp.take_along_axis(number, task[:, None], axis=1)[:, 0] % window
    nowhere = jnp.where(judged, task, tasks)
    return newest.at[nowhere, column].set(advantage, mode="drop"), counts + mine.sum(axis=0, dtype=jnp.int32)


def quantiles(newest: Float32[Array, "n w"], counts: Int32[Array, " n"], share: float) -> Float32[Array, " n"]:
    """Returns the quantile of each task's newest advantages, as far as there are any; NaN where there is none."""
    there = jnp.arange(newest.shape[1])[None] < counts[:, None]
    return jnp.nanquantile(jnp.where(there, newest, jnp.nan), share, axis=1)
