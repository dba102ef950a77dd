"""Rollouts as training data: the same table, windows, masks and transforms as a dataset's. No jax here."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64, UInt8

from chunkwise.data.groups import rloo
from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import EnvConfig, RolloutConfig
from openpi_ript.data.advantage import label, process
from openpi_ript.data.dataset import TrainingData
from openpi_ript.data.transforms import Rollouts, ToRipt
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.ript.hindsight import in_hindsight, knows
from openpi_ript.robots.adapter import OWN, Adapter


@runtime_checkable
class Ended(Protocol):
    """What became of a rollout; a Rollout is one, too."""

    @property
    def success(self) -> bool: ...
    @property
    def length(self) -> int:
        """Actions that were executed."""
        ...

    @property
    def init_hash(self) -> str:
        """Of the simulator's initial state."""
        ...


E = TypeVar("E", bound=Ended)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Generic[E]):
    """Rollouts from one initial state, or what became of them."""

    state: int
    """Number of the initial state."""
    files: list[str]
    """Where each rollout lies, inside its round's folder."""
    rollouts: list[E]

    def __post_init__(self) -> None:
        hashes = {rollout.init_hash for rollout in self.rollouts}
        if len(hashes) != 1:
            raise DataError(
                f"{self.files[0]} and its group: expected one initial state, found init_hash {sorted(hashes)}; the "
                "environment's reset is no function of its seed, or the simulator changed in the middle of a run"
            )

    @property
    def init_hash(self) -> str:
        return self.rollouts[0].init_hash

    @property
    def mixed(self) -> bool:
        """Whether some succeeded and some failed."""
        return len({rollout.success for rollout in self.rollouts}) == 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:
    """What training takes rollouts for; arrays over them."""

    raw: Float64[np.ndarray, " n"]
    """Leave-one-out advantage inside the group."""
    weight: Float32[np.ndarray, " n"]
    """The same, shaped as the config says."""
    optimality: Int32[np.ndarray, " n"]
    """Label by the sign of `raw`."""
    replaced: Mapping[str, int]
    """As `advantage.process` has it."""


def labels_of(
    success: Float64[np.ndarray, " n"],
    group: Int64[np.ndarray, " n"],
    config: RolloutConfig,
    *,
    objective: Literal["guided", "rejection", "ppo"] | None = None,
) -> Labels:
    """Labels rollouts that are trained on together by their advantages, as `training_data` says.

    Args:
      success: 1 or 0.
      group: Number of each one's group.
      config: The objective, and the advantages' shaping.
      objective: In place of the config's.
    """
    objective = objective or config.objective
    raw = np.ones(len(success))
    weight, replaced = raw.astype(np.float32), dict[str, int]()
    optimality = np.full(len(success), Optimality.POSITIVE, np.int32)
    if objective != "rejection":
        raw = rloo(success, group)
        weight = raw.astype(np.float32)
        if objective == "guided":
            weight, replaced = process(raw, config.advantage)
        optimality = label(raw)
    return Labels(raw=raw, weight=weight, optimality=optimality, replaced=replaced)


def teaches(group: Group[E], config: RolloutConfig, *, task: str, by_value: bool) -> bool:
    """Whether a group is trained on: with a signal, for rejection sampling with a success, all for a value. One of a
    task that hindsight knows may turn out to hold nothing.

    Args:
      group: Of one initial state.
      config: The objective.
      task: Name of the group's.
      by_value: Whether chunks are labelled by a value.
    """
    if by_value:
        return True
    if config.objective == "rejection":
        return knows(config.hindsight, task) or any(rollout.success for rollout in group.rollouts)
    return group.mixed


def imitated(rollouts: Iterable[tuple[int, Rollout]], config: RolloutConfig) -> list[tuple[int, Rollout]]:
    """Returns what rejection sampling imitates: successes, and what hindsight makes of failures; with their numbers."""
    chosen = [
        (number, rollout if rollout.success or config.hindsight is None else in_hindsight(rollout, config.hindsight))
        for number, rollout in rollouts
    ]
    return [(number, rollout) for number, rollout in chosen if rollout is not None and rollout.success]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutImages:
    """An ImageReader of rollouts in memory."""

    rollouts: Sequence[Rollout]
    cameras: Mapping[str, str]
    """The dataset's key of each image to the observation's."""
    adapter: Adapter = OWN
    """Gives the dataset's images of the environment's."""

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        observations = self.rollouts[episode].observations
        shown = self.adapter.simulated_image
        return {key: shown(observations[name][frame]) for key, name in self.cameras.items()}


def training_data(
    data: TrainingData, groups: Sequence[Group[Rollout]], env: EnvConfig, config: RolloutConfig
) -> TrainingData | None:
    """Windows of every start of rollouts, labelled by their advantages; None where there is nothing to imitate.

    guided: leave-one-out inside each group, then shaped over all rollouts (config.advantage).
    rejection: the successful rollouts alone, and what hindsight makes successes, all positive with weight 1.
    ppo: leave-one-out inside each group, as they are.

    Args:
      data: The dataset whose transforms and statistics the policy was trained with.
      groups: At least one.
      env: Names state and cameras.
      config: The objective, and the advantages' shaping.
    """
    adapter = data.to_openpi.adapter
    pairs = [(number, rollout) for number, group in enumerate(groups) for rollout in group.rollouts]
    if config.objective == "rejection":
        pairs = imitated(pairs, config)
    if not pairs:
        return None
    rollouts = [rollout for _, rollout in pairs]
    reward = np.array([rollout.success for rollout in rollouts], np.float64)
    labels = labels_of(reward, np.array([number for number, _ in pairs]), config)
    lengths = np.array([rollout.length for rollout in rollouts], np.int64)
    prompts = sorted({rollout.prompt for rollout in rollouts})
    prompt = np.array([prompts.index(rollout.prompt) for rollout in rollouts], np.int64)
    table = FrameTable(
        fps=data.table.fps,
        lengths=lengths,
        episodes=np.arange(len(rollouts)),
        columns={
            data.config.state_key: np.concatenate(
                [
                    adapter.simulated_state(
                        policy_state(rollout.observations, env.state, env.state_function)[:-1]
                    ).astype(np.float32)
                    for rollout in rollouts
                ]
            ),
            data.config.action_key: np.concatenate([rollout.actions for rollout in rollouts]),
            "task_index": np.repeat(prompt, lengths),
        },
        tasks=dict(enumerate(prompts)),
    )
    facts = Rollouts(
        init_hash=[rollout.init_hash for rollout in rollouts],
        success=reward > 0,
        reward=reward,
        length=lengths,
        raw_advantage=labels.raw,
        advantage=labels.weight,
        optimality=labels.optimality,
    )
    cameras = {key: env.cameras[name] for name, key in data.config.cameras.items()}
    return dataclasses.replace(
        data,
        table=table,
        images=RolloutImages(rollouts=rollouts, cameras=cameras, adapter=adapter),
        to_ript=ToRipt(rollouts=facts),
        rows=np.arange(table.frames),
        held_rows=np.zeros(0, np.int64),
        replaced=labels.replaced,
        notes=(),
        returns=data.returns and data.returns.of_rollouts(),
    )


def drawn_rows(
    training: TrainingData,
    count: int,
    law: Literal["frames", "tasks", "need"],
    rng: np.random.Generator,
    *,
    need: Mapping[str, float] | None = None,
) -> list[int]:
    """Returns rows of rollouts for a batch, with replacement (RolloutConfig.rows). What the policy is told in the same
    words is one task.

    Args:
      training: From `training_data`.
      count: How many.
      law: How they are drawn.
      rng: Draws them.
      need: Of the law need: how much of a batch each task wants, by its words; its unit does not matter.
    """
    if law == "frames":
        return rng.choice(training.rows, count).tolist()
    # Not by label: where a value labels chunks, groups that ended alike are here too, and have none.
    solved = training.to_ript.rollouts.success[training.episodes_of(training.rows)]
    told = training.table.columns["task_index"][training.rows]
    tasks = np.unique(told)
    pools = [
        [training.rows[(told == task) & side] for side in (solved, ~solved) if ((told == task) & side).any()]
        for task in tasks
    ]
    if law == "need":
        assert need is not None
        wanted = np.array([need[training.table.tasks[int(task)]] for task in tasks])
        places = rng.choice(len(pools), size=count, p=wanted / wanted.sum())
    else:
        places = rng.integers(len(pools), size=count)
    chosen = [pools[place] for place in places]
    return [int(rng.choice(sides[rng.integers(len(sides))])) for sides in chosen]
