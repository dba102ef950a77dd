"""Environments that work for a collector: in processes of their own, or in threads of this one.

Both are asked in one way: `submit` a request to a slot, `receive` the answer of any of some slots, `close`. A slot has
one environment of each task that it is asked for, made when it is first asked, and one request under way at most.

Processes are for simulators that hold Python's lock or render; each is started on first use, replaced when it dies,
and ends when its pipe closes, because the parent died in whatever way. Threads are for those that step in C in a
millisecond and let go of the lock: nothing has to start, nothing is copied.
"""

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import numbers
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed import children
from chunkwise.distributed.connections import REACHED, limit
from chunkwise.distributed.cores import cores
from chunkwise.distributed.jobs import portable
from chunkwise.envs.environment import Environment, Observation, Step, copies, executed, state_hash
from chunkwise.envs.failures import LARGEST, Shapes, close_anyway, failure, require_finite, require_observed
from chunkwise.envs.other_python import SimulatorDiedError
from chunkwise.errors import RunError, StopRequested, exit_reason

ASK_AGAIN = 1.0
"""Seconds between two questions whether the run is to stop, while no worker answers."""

Opener = Callable[..., Environment]
"""Makes an environment: the only one without an argument, that of a task with the task's name; pickled for a worker
process."""
GOING = 1.0
"""Seconds in which a worker whose pipe has ended has an exit code."""

OPEN = 12
"""Environments of different tasks that a slot keeps; for one more, the one that was reset longest ago is closed.
One of Meta-World takes 25 MiB and 0.1 s to make."""


@dataclasses.dataclass(frozen=True)
class Reset:
    """Asks for the begin of an episode; the answer is a Start."""

    seed: int
    task: str = ""
    """Whose environment is meant; empty where there is only one."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Asks to execute actions, up to the end of the episode; the answer is a Stretch."""

    actions: Float32[np.ndarray, "t a"]


Request = Reset | Run


@dataclasses.dataclass(frozen=True)
class Start:
    """The begin of an episode."""

    observation: Observation
    init_hash: str
    took_s: float = 0.0
    """Seconds from when it was begun to when it was done."""


@dataclasses.dataclass(frozen=True)
class Stretch:
    """What came of the actions that were executed; fewer than asked for where the episode ended."""

    observations: Observation
    """After each action, or after the last alone: arrays with a leading axis."""
    actions: Float32[np.ndarray, "t a"]
    """As executed."""
    rewards: Float32[np.ndarray, " t"]
    success: Bool[np.ndarray, " t"]
    over: bool
    """Whether the episode ended: by success, or by the environment itself."""
    busy_s: float = 0.0
    """Seconds of processors that it took, and that it waited for one."""
    took_s: float = 0.0
    """Seconds from when it was begun to when it was done: whoever asked may look for the answer later."""


class WorkerDiedError(Exception):
    """A worker is gone, or hangs; what it was doing is lost, and its slot's next request starts a new one."""

    def __init__(self, slot: int, why: str) -> None:
        """Takes the slot, and in words what became of its worker."""
        super().__init__(f"the worker of slot {slot}: {why}")
        self.slot, self.why = slot, why


@runtime_checkable
class Workers(Protocol):
    """Environments by slot."""

    count: int
    """Slots."""
    every_frame: bool
    """Whether a Stretch has the observation after every action, or the last one alone."""

    @property
    def parallel(self) -> int:
        """Slots that are worked at in one moment: of more that were asked, the others wait for a core."""
        ...

    def submit(self, slot: int, request: Request) -> None:
        """Asks a slot for something."""
        ...

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        """Waits for the answer of any of some slots, each of which was asked; the first in their order that is there.

        Args:
          slots: At least one.
          stopping: Asked while there is no answer.
          within: Seconds that it waits.

        Raises:
          TimeoutError: There is no answer after so many seconds.
          WorkerDiedError: A worker is gone, or silent for too long.
          StopRequested: There is no answer yet, and `stopping` is true.
          RunError: What the environment raised; any other error of it comes with its traceback.
        """
        ...

    def close(self) -> None:
        """Ends all of them; a later request begins anew."""
        ...


class ProcessWorkers:
    """Environments in processes of their own."""

    def __init__(
        self,
        opener: Opener,
        count: int,
        *,
        name: str,
        every_frame: bool = True,
        silence: float = FleetConfig.silence,
        wake: Any = None,
    ) -> None:
        """Starts nothing yet.

        Args:
          opener: Makes an environment, in its process.
          count: Slots.
          name: Of the environment, for errors.
          every_frame: Whether each action's observation is answered.
          silence: Seconds after which a worker that does not answer counts as dead.
          wake: A connection; while something is to be read from it, a wait for answers ends with a TimeoutError.
        """
        self.count, self.every_frame, self.silence = count, every_frame, silence
        self.parallel = min(count, len(cores()))
        self._name, self._wakes = name, [] if wake is None else [wake]
        self._body = functools.partial(serve, opener=opener, name=name, every_frame=every_frame)
        self._processes: list[BaseProcess | None] = [None] * count
        self._pipes: list[Any] = [None] * count
        self._asked = [0.0] * count

    def submit(self, slot: int, request: Request) -> None:
        self.pass_on(slot, ForkingPickler.dumps(request))

    def pass_on(self, slot: int, pickled: Any) -> None:
        """Asks a slot for something, by its pickle; as `submit`."""
        if self._pipes[slot] is None:
            self._begin(slot)
        self._asked[slot] = time.monotonic()
        try:
            self._pipes[slot].send_bytes(pickled)
        except BlockingIOError:  # a part of it is there: nothing can follow
            self._end(slot)
        except OSError:
            pass  # a dead worker is noticed when its answer is received

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        slot, pickled = self.receive_pickled(slots, stopping, within=within)
        try:
            answer = pickle.loads(pickled)
        except Exception as error:  # whatever its classes raise
            raise failure(f"what the environment {self._name} answered cannot be read here", error) from error
        if isinstance(answer, RunError):
            raise answer
        return slot, answer

    def receive_pickled(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, bytes]:
        """Waits for an answer, as `receive`, and leaves it as it came: the pickle of a Start, Stretch or RunError."""
        until = time.monotonic() + within
        while True:
            for slot in slots:
                if self._pipes[slot] is None:
                    raise WorkerDiedError(slot, "it takes no request")
            pipes = [self._pipes[slot] for slot in slots]
            ready = wait([*pipes, *self._wakes], min(ASK_AGAIN, max(until - time.monotonic(), 0.0)))
            now = time.monotonic()
            for slot in slots:  # first: while the others answer, nobody would ask
                if self._pipes[slot] not in ready and now - self._asked[slot] > self.silence:
                    self._end(slot)
                    raise WorkerDiedError(slot, f"silent for {self.silence:g} s")
            for slot in slots:
                if self._pipes[slot] in ready:
                    return slot, self._read(slot)
            if now >= until or any(wake in ready for wake in self._wakes):
                raise TimeoutError
            if stopping():
                raise StopRequested

    def pid(self, slot: int) -> int | None:
        """Process of a slot, None before it started."""
        process = self._processes[slot]
        return None if process is None else process.pid

    def close(self) -> None:
        for slot in range(self.count):
            self._end(slot)

    def _read(self, slot: int) -> bytes:
        try:
            return self._pipes[slot].recv_bytes()
        except BlockingIOError as error:
            self._end(slot)
            raise WorkerDiedError(slot, "silent in the middle of an answer") from error
        except (EOFError, OSError) as error:
            process = self._processes[slot]
            assert process is not None
            process.join(GOING)  # its pipe ends a moment before it does
            code = process.exitcode
            self._end(slot)
            raise WorkerDiedError(slot, exit_reason(code)) from error

    def _begin(self, slot: int) -> None:
        both: Any = multiprocessing.Pipe()
        ours, theirs = both
        limit(ours, min(self.silence, REACHED))  # of a message that has begun: no other slot is served meanwhile
        process = children.start(self._body, theirs)
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


def serve(pipe: Any, opener: Opener, name: str, every_frame: bool) -> None:
    """Body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A write to a pipe lets the reader that wakes go first on the writer's core, so that the process that serves all
    # waited for the steps that it had just asked for: 0.3 of the 2.9 ms of a chunk of the simulated point. A batch
    # process waits its turn. Linux has it, and a container may forbid it.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # Before numpy computes: matrices of 7 x 7 gain nothing from threads, which would fight over the cores.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    try:
        seat = Seat(opener, name, time.process_time)
        while True:
            pipe.send(seat.answer(pipe.recv(), every_frame=every_frame))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone; EGL's exit handlers would complain to nobody
    except SimulatorDiedError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # to the parent a death of this worker, whose rollout is played again
    except RunError as error:
        pipe.send(portable(error))
    except (Exception, SystemExit) as error:  # unsent, the parent would see a death and play the rollout again
        pipe.send(failure(f"the environment {name} failed", error))


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raises what an environment raises in the block as a RunError that begins with `what`."""
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit) as error:  # anything a simulator raises; its sys.exit() is no end of the run
        raise failure(what, error) from error


class Seat:
    """A slot's environments, with where the one that plays is in its episode, for errors; as text "the environment NAME
    (reset with seed 3, step 12)"."""

    def __init__(self, opener: Opener, name: str, clock: Callable[[], float]) -> None:
        """Makes nothing yet; `clock` gives the seconds of processors that were used where it answers."""
        self._opener, self._name, self._clock = opener, name, clock
        self._open: dict[str, Environment] = {}
        self._shown = Shapes()  # of the episode: another one may show a goal of another length
        self._task, self._seed, self._steps = "", 0, 0

    def __str__(self) -> str:
        return f"the environment {self._named} (reset with seed {self._seed}, step {self._steps})"

    @property
    def env(self) -> Environment:
        """The one that plays."""
        return self._open[self._task]

    def sit(self, task: str) -> None:
        """Takes the environment of a task; makes it where it is not open, and closes another if that is one too many.

        Raises:
          RunError: It could not be made.
        """
        self._task = task
        if task in self._open:
            self._open[task] = self._open.pop(task)  # to the end: the first is the one that was reset longest ago
            return
        if len(self._open) == OPEN:
            self._close(next(iter(self._open)))
        with told(f"the environment {self._named} could not be made"):
            self._open[task] = self._opener(task) if task else self._opener()

    def close(self) -> None:
        """Closes all of them; what one raises is said in a line."""
        for task in list(self._open):
            self._close(task)

    def _close(self, task: str) -> None:
        close_anyway(f"the environment {self._name} {task}".rstrip(), self._open.pop(task).close)

    @property
    def _named(self) -> str:
        return f"{self._name} {self._task}".rstrip()

    def answer(self, request: Request, *, every_frame: bool, images: bool = True) -> Start | Stretch:
        """As the function. Raises RunError, with name, seed and step, for whatever the environment raises."""
        if isinstance(request, Reset):
            self.sit(request.task)
            self._seed, self._steps, self._shown = request.seed, 0, Shapes()
        began, busy = time.monotonic(), self._busy()
        try:
            found = answer(
                self.env, request, every_frame=every_frame, images=images, stepped=self._stepped, shown=self._shown
            )
        except RunError as error:
            if type(error) is not RunError:  # it has an exit code of its own
                raise
            raise RunError(f"{self}: {error.args[0]}", *error.args[1:]) from error
        except (Exception, SystemExit) as error:  # anything a simulator raises
            raise failure(f"{self} failed", error) from error
        took = time.monotonic() - began
        if isinstance(found, Start):
            return dataclasses.replace(found, took_s=took)
        return dataclasses.replace(found, busy_s=self._busy() - busy, took_s=took)

    def _busy(self) -> float:
        """Seconds of processors up to now and of waiting for one, and those of an environment's own process."""
        return self._clock() + _waited_s() + float(getattr(self.env, "cpu_s", 0.0))

    def _stepped(self) -> None:
        self._steps += 1


def require_step(what: str, step: object) -> None:
    """Raises RunError, which begins with `what`, if it is no Step, or holds a number that is not finite in 32 bits."""
    if not isinstance(step, Step):
        raise RunError(f"{what} gave a {type(step).__name__}; expected a chunkwise.envs.environment.Step")
    if not isinstance(step.observation, Mapping):
        raise RunError(f"{what} observed a {type(step.observation).__name__}; expected a dict of arrays by name")
    require_finite(what, step.observation)
    for name in ("reward", "success", "terminated", "truncated"):
        if isinstance(value := getattr(step, name), numbers.Real | np.bool_):
            continue
        if np.shape(value) != ():
            raise RunError(f"{what} gave the {name} {value!r}; expected one number or bool, not an array")
        if np.asarray(value).dtype.kind not in "biuf":  # of torch and jax, too
            raise RunError(f"{what} gave the {name} {value!r}; expected one number or bool")
    try:
        reward = float(step.reward)  # of torch and jax, too
    except (TypeError, ValueError) as error:
        raise RunError(f"{what} gave the reward {step.reward!r}; expected one number") from error
    if not abs(reward) <= LARGEST:  # of 16 bits it would make the bound infinite
        raise RunError(f"{what} gave the reward {step.reward}; expected a finite number, at most {LARGEST:.2g}")


def _waited_s() -> float:
    """Seconds for which this thread could have run and had no core; 0 on systems other than Linux."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)  # 5 us, and 13 as a text file
        try:
            return int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError):
        return 0.0


def answer(
    env: Environment,
    request: Request,
    *,
    every_frame: bool,
    images: bool = True,
    stepped: Callable[[], None] = lambda: None,
    shown: Shapes | None = None,
) -> Start | Stretch:
    """Does what was asked.

    Args:
      env: The environment.
      request: What was asked.
      every_frame: Whether the observation after every action is wanted, not the last one alone.
      images: Whether the cameras' images are part of what is observed.
      stepped: Called before each action.
      shown: Of what the environment observed before in this episode; None: nothing yet.

    Raises:
      RunError: A step gave what is none, or a number that is not finite, or an observation lacks a name, or has
        another shape, than before.
    """
    shown = shown or Shapes()
    if isinstance(request, Reset):
        observation = env.reset(request.seed)
        require_observed("reset()", observation)
        require_finite("reset()", observation)
        shown.require("reset()", observation)
        return Start(copies(observation | looked(env, shown) if images else observation), state_hash(env.state()))
    actions = [executed(env, action) for action in request.actions]
    steps, observations, over = [], [], False
    for action in actions:
        stepped()
        steps.append(step := env.step(action.copy()))  # which an environment may change in place
        require_step("step()", step)
        shown.require("step()", step.observation)
        over = step.success or step.terminated or step.truncated
        last = over or len(steps) == len(actions)
        if every_frame or last:
            looks = images and (every_frame or not over)
            observations.append(copies(step.observation | looked(env, shown) if looks else step.observation))
        if over:
            break
    return Stretch(
        observations={name: np.stack([one[name] for one in observations]) for name in observations[0]},
        actions=np.stack(actions[: len(steps)]),
        rewards=np.array([step.reward for step in steps], np.float32),
        success=np.array([step.success for step in steps], bool),
        over=over,
    )


def looked(env: Environment, shown: Shapes) -> Observation:
    """Renders the cameras. Raises RunError as `Shapes.require_images`."""
    images = env.images()
    shown.require_images("images()", images)
    return images
