"""Environments in worker processes: one each, started on first use, replaced when one dies.

A worker is told ("reset", seed) or ("run", actions) and answers with what it saw; everything crosses the pipe as numpy
arrays. A worker whose pipe closes, because the parent died in whatever way, ends.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from chunkwise.envs.environment import Environment, EnvSpec, Observation, make, state_hash
from chunkwise.errors import RunError, StopRequested
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import spec_of

SILENCE = 300.0
"""Seconds after which a worker that does not answer counts as dead; the first answer waits for numba to compile."""
ASK_AGAIN = 1.0
"""Seconds between two questions whether the run is to stop, while a worker does not answer."""


@dataclasses.dataclass(frozen=True)
class Start:
    """The begin of an episode."""

    observation: Observation
    init_hash: str


@dataclasses.dataclass(frozen=True)
class Stretch:
    """What came of the actions that were executed; fewer than asked for where success ended the episode."""

    observations: Observation
    """After each action: arrays with a leading axis."""
    actions: Float32[np.ndarray, "t a"]
    """As executed."""
    rewards: Float32[np.ndarray, " t"]
    success: Bool[np.ndarray, " t"]


class WorkerDiedError(Exception):
    """A worker is gone, or hangs; what it was doing is lost."""


class Workers:
    """Environments of one config, by slot."""

    def __init__(self, config: EnvConfig, *, allow_code: bool = False) -> None:
        """Starts nothing yet. Raises ConfigError as `spec_of`."""
        self.config = config
        self.spec = spec_of(config, allow_code=allow_code)
        # Forking a process that runs jax's threads can deadlock.
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess | None] = [None] * config.num_envs
        self._pipes: list[Any] = [None] * config.num_envs

    def reset(self, slot: int, seed: int) -> None:
        """Asks for the begin of an episode; `receive` gives a Start."""
        self._send(slot, ("reset", seed))

    def run(self, slot: int, actions: Float32[np.ndarray, "t a"]) -> None:
        """Asks to execute actions; `receive` gives a Stretch."""
        self._send(slot, ("run", actions))

    def receive(self, slot: int, stopping: Callable[[], bool] = lambda: False) -> Any:
        """The answer to what was asked last.

        Args:
          slot: Of the worker.
          stopping: Asked while there is no answer.

        Raises:
          WorkerDiedError: There is none; the slot's next request starts a new worker.
          StopRequested: There is none yet, and `stopping` is true.
          RunError: What the environment raised; any other error of it comes with its traceback.
        """
        pipe = self._pipes[slot]
        silent_until = time.monotonic() + SILENCE
        try:
            while pipe is None or not pipe.poll(ASK_AGAIN):
                if pipe is None or time.monotonic() > silent_until:
                    raise EOFError
                if stopping():
                    raise StopRequested
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            self._end(slot)
            raise WorkerDiedError from error
        if isinstance(answer, RunError):
            raise answer
        return answer

    def pid(self, slot: int) -> int | None:
        """Process of a slot, None before it started."""
        process = self._processes[slot]
        return None if process is None else process.pid

    def close(self) -> None:
        """Ends all workers."""
        for slot in range(len(self._pipes)):
            self._end(slot)

    def _send(self, slot: int, message: tuple[str, Any]) -> None:
        if self._pipes[slot] is None:
            self._begin(slot)
        pipe = self._pipes[slot]
        assert pipe is not None
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is received
            pipe.send(message)

    def _begin(self, slot: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self.spec), daemon=True)
        process.start()
        theirs.close()
        self._pipes[slot], self._processes[slot] = ours, process

    def _end(self, slot: int) -> None:
        pipe, process = self._pipes[slot], self._processes[slot]
        self._pipes[slot] = self._processes[slot] = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.kill()
            process.join()


def serve(pipe: Any, spec: EnvSpec) -> None:
    """Body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Before numpy computes: matrices of 7 x 7 gain nothing from threads, which would fight over the cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    try:
        env = make(spec)
        while True:
            what, value = pipe.recv()
            pipe.send(begin(env, value) if what == "reset" else advance(env, value))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone; EGL's exit handlers would complain to nobody
    except RunError as error:
        pipe.send(error)
    except Exception:  # anything a simulator raises: unsent, the parent would see a death and play the rollout again
        lines = traceback.format_exc().rstrip().split("\n")
        pipe.send(RunError(f"an environment of {spec.suite} {spec.task} failed:", *lines))


def begin(env: Environment, seed: int) -> Start:
    """Resets an environment."""
    observation = env.reset(seed) | env.images()
    return Start(observation, state_hash(env.state()))


def advance(env: Environment, actions: Float32[np.ndarray, "t a"]) -> Stretch:
    """Executes actions up to the first success."""
    executed = [env.clip(action) for action in actions]
    steps, observations = [], []
    for action in executed:
        steps.append(env.step(action))
        observations.append(steps[-1].observation | env.images())
        if steps[-1].success:
            break
    return Stretch(
        observations={name: np.stack([one[name] for one in observations]) for name in observations[0]},
        actions=np.stack(executed[: len(steps)]),
        rewards=np.array([step.reward for step in steps], np.float32),
        success=np.array([step.success for step in steps], bool),
    )
