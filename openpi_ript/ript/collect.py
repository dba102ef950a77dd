"""RIPT's collector: worker processes, and a policy that is shown layer 4."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from chunkwise.config.experiment import FleetConfig
from chunkwise.envs import collect, environment
from chunkwise.envs.collect import Draw, Job
from chunkwise.envs.environment import Observation
from chunkwise.envs.fleet import make_workers
from chunkwise.envs.rollout import Rollout
from chunkwise.policies.execution import Committed, Execution
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import spec_of, tasks_of


@runtime_checkable
class Actor(Protocol):
    """A policy of this package, with the names of its inputs."""

    @property
    def step(self) -> int:
        """Updates behind it."""
        ...

    @property
    def weights(self) -> str:
        """Digest of the weights."""
        ...

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of what is drawn for one chunk: steps and width, and before them how often where noise is added."""
        ...

    def __call__(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b *chunk"]
    ) -> Float32[np.ndarray, "b t a"]:
        """Returns chunks for a batch: "state" [b, s], "image" by openpi's names, "prompt", a list."""
        ...


@runtime_checkable
class NotingActor(Actor, Protocol):
    """A policy of this package that notes something of each chunk, which the rollout keeps."""

    def noted(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b *chunk"]
    ) -> tuple[Float32[np.ndarray, "b t a"], dict[str, np.ndarray]]:
        """Returns chunks for a batch, and notes by name, a row for each of them."""
        ...


@dataclasses.dataclass
class _Seen:
    """An actor as the collector calls it: named inputs from observations, noise from draws."""

    actor: Actor
    config: EnvConfig
    step: int
    weights: str

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        return self.actor(*self._given(observations, draws, prompts))

    def complete(
        self,
        observations: Observation,
        draws: Sequence[Draw | None],
        prompts: Sequence[str],
        committed: Sequence[Committed],
    ) -> Float32[np.ndarray, "b t a"]:
        actor: Any = self.actor  # one that completes chunks takes what is committed behind the noise
        return actor(*self._given(observations, draws, prompts), committed)

    def _given(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> tuple[dict[str, Any], Float32[np.ndarray, "b *chunk"]]:
        noise = np.zeros((len(draws), *self.actor.chunk), np.float32)
        for row, draw in zip(noise, draws, strict=True):
            if draw is not None:
                row[:] = np.random.default_rng(draw).standard_normal(self.actor.chunk, np.float32)
        batch = {
            "state": policy_state(observations, self.config.state, self.config.state_function),
            "image": {name: observations[shown] for name, shown in self.config.cameras.items()},
            "prompt": list(prompts),
        }
        return batch, noise


class _SeenNoting(_Seen):
    """The same, of an actor that notes."""

    def noted(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> tuple[Float32[np.ndarray, "b t a"], dict[str, np.ndarray]]:
        actor: Any = self.actor
        return actor.noted(*self._given(observations, draws, prompts))


class Collector(collect.Collector):
    """Plays jobs in the tasks of a config."""

    def __init__(
        self,
        config: EnvConfig,
        *,
        allow_code: bool = False,
        execution: Execution | None = None,
        fleet: FleetConfig | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
          config: Which environment, and how the policy acts in it.
          allow_code: Whether the user named `module:factory`, if that is what env.suite is.
          execution: How chunks are executed; None: env.execute actions of each.
          fleet: Where the environments run; None: in processes of this machine.

        Raises:
          ConfigError: env.suite is code that the user did not name, or a task has no prompt.
        """
        self.config = config
        self.tasks = tasks_of(config)
        """In their order."""
        self.spec = spec_of(config, allow_code=allow_code)
        """What its environments are made of."""
        opener = functools.partial(environment.make, self.spec)
        workers = make_workers(fleet or FleetConfig(), opener, config.num_envs, name=config.suite)
        super().__init__(
            workers,
            rows=config.rows,
            execution=Execution(how="every", execute=config.execute) if execution is None else execution,
            tasks=self.tasks,
        )

    def seen_by(self, actor: Actor) -> collect.Actor:
        """Returns an actor that takes observations as the environment shows them."""
        seen = _SeenNoting if isinstance(actor, NotingActor) else _Seen
        return seen(actor, self.config, actor.step, actor.weights)

    def collect(
        self,
        jobs: Sequence[Job],
        actor: Actor,
        done: Callable[[Job, Rollout], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Plays rollouts of a policy of this package, with the result and errors of `play`."""
        return self.play(jobs, self.seen_by(actor), done, stopping)
