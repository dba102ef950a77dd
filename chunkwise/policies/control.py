"""Drives a robot by a policy at a fixed rate: limits, missed deadlines, a watchdog, and a recording of every step.

    from chunkwise.policies.control import Control, Limits
    episode = Control(robot, policy, rate_hz=50, execution=Execution(how="realtime", execute=8, delay=2)).run(500)
    episode.save("recordings/score_5/episode_0.hdf5", success=True)

The policy is asked in a thread beside the loop, so that the rate holds however long it takes. A chunk that is early
waits for its step, so that with an inference of at most `delay` steps the robot does what `chunkwise evaluate --delay`
does. One that is late is executed from when it is there; until then the old one runs on, and where that ends the robot
gets no command. If that lasts for `patience_s` the watchdog stops it.
"""

import concurrent.futures
import dataclasses
import functools
import inspect
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64

from chunkwise.errors import ConfigError, DataError, NonFiniteError, one_line
from chunkwise.policies.bounds import require_finite
from chunkwise.policies.execution import Execution, Plan
from chunkwise.policies.observations import as_array
from chunkwise.policies.recorded import Joints, RobotEpisode
from chunkwise.policies.spec import Spec

LATE = 0.01
"""Share of a period by which a command may pass the step's end without being called late."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Sent by service managers, `docker stop` and `timeout`, and where a terminal is closed."""
Observation = Mapping[str, Any]
Person = Callable[[Observation], np.ndarray | None]
"""Gives the action of a person who has taken over, and None while nobody has."""


@runtime_checkable
class Robot(Protocol):
    """What a robot has to offer."""

    def observe(self) -> Observation:
        """Returns what is seen now, as the policy takes it, in arrays that are not changed later.

        "qpos", the measured joints, may stand beside it, and whatever else is to be recorded.
        """
        ...

    def act(self, action: Float32[np.ndarray, " a"]) -> None:
        """Commands an action, and returns at once. The array is the robot's to change: nobody reads it after this."""
        ...

    def stop(self) -> None:
        """Brings the robot to a safe halt. It is called at the end of every episode, however it ends."""
        ...


@runtime_checkable
class Infers(Protocol):
    """A policy of this process, or a client of one that is served."""

    def infer(self, observation: Any) -> Any:
        """Returns {"actions": [t, a]}. For real-time chunking it also takes `committed`, as chunkwise's policies do."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Time, which tests replace."""

    def now(self) -> float:
        """Returns seconds since some moment."""
        ...

    def wait(self, until: float, answer: concurrent.futures.Future[Any] | None = None) -> None:
        """Waits until a time, or until an answer is there."""
        ...


class MonotonicClock:
    """The machine's own."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, until: float, answer: concurrent.futures.Future[Any] | None = None) -> None:
        left = max(until - self.now(), 0.0)
        if answer is None:
            time.sleep(left)
        else:
            concurrent.futures.wait([answer], left)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What the robot may be commanded, dimension by dimension; None: anything."""

    low: Float[np.ndarray, " a"] | None = None
    high: Float[np.ndarray, " a"] | None = None
    speed: Float[np.ndarray, " a"] | None = None
    """Largest change a second from one command to the next, and from the measured joints to the first; for actions
    that are positions."""

    def __post_init__(self) -> None:
        for name in ("low", "high", "speed"):
            if (given := getattr(self, name)) is None:
                continue
            limit = np.asarray(given, np.float64)
            if limit.ndim != 1 or not np.isfinite(limit).all():
                raise ConfigError(f"Limits.{name}: expected a finite number for each dimension, found {limit}")
            object.__setattr__(self, name, limit)
        if self.speed is not None and not (self.speed > 0).all():
            raise ConfigError(f"Limits.speed: expected numbers above 0, found {self.speed}")
        low, high = self.low, self.high
        if low is not None and high is not None and not (low.shape == high.shape and (low <= high).all()):
            raise ConfigError(f"Limits.low: expected at most Limits.high, {high}, found {low}")

    def apply(
        self, action: Float32[np.ndarray, " a"], before: np.ndarray | None, seconds: float
    ) -> tuple[Float32[np.ndarray, " a"], bool]:
        """Returns the nearest action within the limits, and whether it is another one.

        The speed holds always: from beyond the range it leads towards the range, outside of which the action still is.

        Args:
          action: As the policy wants it.
          before: The last command, or the measured joints; needed for `speed` alone.
          seconds: Since then.

        Raises:
          ConfigError: Limits have another width than the action, or there is nothing to measure speed from.
          NonFiniteError: What speed is measured from is NaN or infinite.
        """
        for name in ("low", "high", "speed"):
            limit = getattr(self, name)
            if limit is not None and limit.shape != action.shape:
                raise ConfigError(
                    f"Limits.{name}: expected {len(action)} numbers, as an action has, found {limit.shape}"
                )
        wide = np.clip(action.astype(np.float64), self.low, self.high)
        if self.speed is not None:
            if before is None or before.shape != action.shape:
                found = "none" if before is None else f"{len(before)}"
                raise ConfigError(
                    f"Limits.speed: expected qpos (or state) of {len(action)} joints in the robot's observation, to "
                    f"tell how far the first action is from it, found {found}, those of a mobile base (base_action) "
                    "among them"
                )
            if not np.isfinite(before).all():
                raise NonFiniteError(f"Limits.speed: the robot's joints are {before}, from which no speed can be told")
            # Last, so that a joint which is measured beyond the range is led back at this speed, and not in one step.
            wide = np.clip(wide, before - self.speed * seconds, before + self.speed * seconds)
        limited = self._rounded(wide)
        return limited, not np.array_equal(limited, action)

    def _rounded(self, wide: Float64[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        """In float32, which rounds 2.9 to more than 2.9: what lies within the range stays within it.

        A range in which there is no number of float32 gives the nearest one.
        """
        near = wide.astype(np.float32)
        out = near
        for limit, sign in ((self.low, -1.0), (self.high, 1.0)):
            if limit is not None:
                beyond = (sign * near.astype(np.float64) > sign * limit) & (sign * wide <= sign * limit)
                out = np.where(beyond, np.nextafter(near, np.float32(-sign * np.inf)), out)
        return np.where(np.clip(out, self.low, self.high) == out, out, near)


def in_a_thread(call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """Computes beside the loop. One that hangs for ever does not keep the process from ending."""
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # whatever it is, the loop has to hear of it
            answer.set_exception(error)

    threading.Thread(target=work, name="inference", daemon=True).start()
    return answer


_under_way: dict[int, tuple[Infers, concurrent.futures.Future[Any]]] = {}
"""Policies and inferences of all loops, by the id of the policy, which is kept alive so that it stays its own."""
_noting = threading.Lock()


def _note(policy: Infers, answer: concurrent.futures.Future[Any]) -> None:
    """Keeps an inference in mind until it has ended."""

    def forget(ended: concurrent.futures.Future[Any]) -> None:
        with _noting:
            if _under_way.get(id(policy), (policy, None))[1] is ended:
                del _under_way[id(policy)]

    with _noting:
        _under_way[id(policy)] = policy, answer
    answer.add_done_callback(forget)


class _Signalled(SystemExit):
    """A signal that ends the program, raised where the robot is still to be stopped."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class _Signals:
    """While it is entered, in the main thread, signals that would end the program raise _Signalled: the first of them,
    and none any more once they are held back."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._held = False
        main = threading.current_thread() is threading.main_thread()
        self._ours = [each for each in ENDING if main and signal.getsignal(each) is signal.SIG_DFL]

    def __enter__(self) -> Self:
        for each in self._ours:
            signal.signal(each, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._ours:
            signal.signal(each, signal.SIG_DFL)

    def hold(self) -> None:
        """Only remembers what comes from now on: a robot that is being stopped is not interrupted."""
        self._held = True

    def _take(self, number: int, _: Any) -> None:
        first, self.caught = self.caught is None, number if self.caught is None else self.caught
        if first and not self._held:
            raise _Signalled(number)


class Control:
    """A loop of fixed rate around a robot and a policy."""

    def __init__(
        self,
        robot: Robot,
        policy: Infers,
        *,
        rate_hz: float,
        execution: Execution | None = None,
        limits: Limits | None = None,
        patience_s: float = 0.5,
        first_s: float = 60.0,
        person: Person | None = None,
        joints: Joints | None = None,
        base_action: int = 0,
        clock: Clock | None = None,
        beside: Callable[[Callable[[], Any]], concurrent.futures.Future[Any]] = in_a_thread,
    ) -> None:
        """Commands nothing yet.

        Args:
          robot: Who acts.
          policy: Who is asked; nobody else may ask it meanwhile, nor after `run` has returned until the inference under
            way has ended, which another loop of this policy waits for.
          rate_hz: Steps a second: those of the recordings that the policy was trained on.
          execution: How chunks are executed; `delay` is the time of an inference in steps. None: each as a whole, and
            every step waits for an inference that begins with it.
          limits: Of what is commanded, to the policy and to the person; None: none.
          patience_s: The robot is stopped after so many seconds without an action.
          first_s: For the first chunk, while the robot stands; it may have to be compiled.
          person: Tells whether a person has taken over, and what they do.
          joints: Tells the measured joints of an observation, for `Limits.speed` and the recording; None: its qpos, or
            its state.
          base_action: Last numbers of each action that are velocities of a mobile base, and no joints: of the first
            action `Limits.speed` is measured from 0 for them, and the recording has them apart.
          clock: None: the machine's.
          beside: Computes beside the loop.

        Raises:
          ConfigError: A number is out of range, or real-time chunking is asked of a policy that is not told what is
            committed, such as openpi's client.
        """
        for name, value in (("rate_hz", rate_hz), ("patience_s", patience_s), ("first_s", first_s)):
            if isinstance(value, str) or not (np.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}; expected a number above 0")
        self._execution, self._limits = execution or Execution(), limits or Limits()
        if self._execution.how == "realtime":
            taken = inspect.signature(policy.infer).parameters.values()
            if not any(one.name == "committed" or one.kind is one.VAR_KEYWORD for one in taken):
                raise ConfigError(
                    f"--how realtime: the infer of a {type(policy).__name__} takes no `committed`; expected a policy "
                    "of this process. Choose open_loop, every or ensemble"
                )
        if base_action < 0:
            raise ConfigError(f"base_action is {base_action}; expected 0 or more of the action's numbers")
        self._robot, self._policy, self._person = robot, policy, person
        self._recording: dict[str, Any] = {"rate_hz": rate_hz, "joints": joints, "base_action": base_action}
        self._period = 1 / rate_hz
        self._patience, self._first = patience_s, first_s
        self._clock, self._beside = clock or MonotonicClock(), beside
        self._plan = Plan(self._execution)
        spec = getattr(policy, "spec", None)
        self._shape: tuple[int, ...] | None = spec.actions.shape if isinstance(spec, Spec) else None
        """Of every chunk, as the policy says; None: a chunk may be longer than another."""
        self._taken = False
        """Whether there was a chunk."""
        self._width: int | None = None if self._shape is None else self._shape[1]
        """Of every action: of a chunk, or of the person who acted before there was one."""
        self._answer: concurrent.futures.Future[Any] | None = None
        self._unwanted = False
        self._asked = self._failed = 0
        self.episode = RobotEpisode(**self._recording)
        """The last one; also where `run` raised."""

    def run(self, steps: int, *, done: Callable[[Observation], bool] = lambda observation: False) -> RobotEpisode:
        """Drives the robot for an episode, and stops it.

        In the main thread SIGTERM and SIGHUP, unless the program handles them itself, stop the robot too, and then end
        the program as they would have (SystemExit, 128 plus the signal's number).

        Args:
          steps: At most.
          done: Told what is seen before each step; true ends the episode.

        Raises:
          ConfigError: `steps` is below 1, chunks are too short for the execution, or limits are of another width than
            actions.
          DataError: The first observation is one that could not be recorded, and no action was commanded; or an action
            of the person is no vector of as many numbers as the others.
          Exception: What the robot or the person's device raised, when the robot has been stopped.
        """
        self._plan = Plan(self._execution)
        # Of any loop: of two at a time on one connection each has the answer of the one before.
        _, self._answer = _under_way.get(id(self._policy), (None, None))
        self._unwanted, self._failed = self._answer is not None, 0
        self.episode = episode = RobotEpisode(**self._recording)
        with _Signals() as signals:
            try:
                try:
                    if steps < 1:
                        raise ConfigError(f"steps is {steps}; expected at least 1")
                    self._drive(episode, steps, done)
                except KeyboardInterrupt:
                    episode.ended, episode.reason = "interrupted", "Ctrl-C"
                except _Signalled as stop:
                    episode.ended, episode.reason = "interrupted", stop.name
                    raise
                except BaseException as error:
                    episode.ended, episode.reason = "error", one_line(error)
                    raise
                finally:
                    signals.hold()
            finally:  # apart, for a signal that comes right before it would be held back
                self._robot.stop()
        if signals.caught is not None:  # it came while the robot was stopped
            raise _Signalled(signals.caught)
        return episode

    def _drive(self, episode: RobotEpisode, steps: int, done: Callable[[Observation], bool]) -> None:
        """The loop; sets how the episode ended."""
        start = tick = alive = self._clock.now()
        number, by_person = 0, False
        before: np.ndarray | None = None
        while len(episode) < steps:
            self._clock.wait(tick)
            observation = self._robot.observe()
            if done(observation):
                episode.ended = "done"
                return
            self._receive()
            action = None if self._person is None else self._person(observation)
            if action is None:
                by_person = False
                action = self._by_policy(observation, tick)
            else:
                action = self._of_person(action)
                if not by_person:
                    by_person = True
                    self._plan.restart()
                    self._unwanted = self._answer is not None
            patience = self._patience if len(episode) else self._first
            if action is not None and np.isfinite(action).all():
                if (base := self._recording["base_action"]) >= len(action):
                    raise ConfigError(f"base_action is {base}; expected fewer than the {len(action)} of an action")
                known = episode.measured(observation) if before is None else before
                action, limited = self._limits.apply(action, known, self._period)
                self._robot.act(action.copy())
                episode.add(number, observation, action, person=by_person)
                episode.limited += limited
                before, alive = action, self._clock.now()
            elif self._clock.now() - alive >= patience:
                wrong = action if by_person else None
                episode.ended, episode.reason = "watchdog", self._why(patience, wrong)
                return
            over = self._clock.now() - tick - self._period
            if over > LATE * self._period:  # what was lost is not caught up with
                episode.missed += len(episode) > 0
                tick += over
            tick += self._period
            number = max(number + 1, round((tick - start) / self._period))
        episode.ended = "steps"

    def _by_policy(self, observation: Observation, tick: float) -> Float32[np.ndarray, " a"] | None:
        """Begins an inference where one is due; returns the action of this step, None where there is none."""
        if self._plan.due and self._answer is None:
            self._ask(observation)
            if self._execution.delay == 0:
                self._clock.wait(tick + self._period, self._answer)
                self._receive()
        return self._plan.next()

    def _of_person(self, given: Any) -> Float32[np.ndarray, " a"]:
        """Returns an action of the person. Raises DataError for one that is not as wide as the others."""
        action = as_array(given, "person")
        if action.ndim != 1 or action.dtype.kind not in "bfiu" or self._width not in (None, len(action)):
            wanted = "a vector of" if self._width is None else f"{self._width}"
            raise DataError(
                f"person: expected an action of {wanted} numbers, found {action.dtype} of shape {list(action.shape)}"
            )
        self._width = len(action)
        return action.astype(np.float32)

    def _ask(self, observation: Observation) -> None:
        committed = self._plan.begin()
        options = {} if committed is None else {"committed": committed}
        self._asked = self._plan.step
        self._answer = self._beside(functools.partial(self._policy.infer, observation, **options))
        _note(self._policy, self._answer)

    def _receive(self) -> None:
        """Takes the answer of the inference under way, if it is there. An unwanted one is forgotten."""
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        unwanted, self._unwanted = self._unwanted, False
        if unwanted:
            return
        try:
            actions = _actions(answer.result(), self._shape, self._width)
            if self._taken:
                _require_length(self._execution, len(actions))
        except ConfigError:
            raise
        except Exception as error:  # a dead server, NaN: there is no chunk, and the next one is asked for
            self.episode.failures.append(one_line(error))
            self._failed += 1
            self._plan.fail()
            return
        self._failed = 0
        self._plan.take(actions)
        self._taken, self._width = True, actions.shape[1]
        self.episode.delays.append(self._plan.step - self._asked)

    def _why(self, seconds: float, wrong: np.ndarray | None) -> str:
        """Why there was no action; `wrong` is that of a person, where one acts."""
        why = f"no action for {seconds:g} s; "
        if wrong is not None:
            return why + f"the person's is {wrong.tolist()}, which no robot is told"
        if self._failed:
            return why + f"the last {self._failed} inferences failed: {self.episode.failures[-1]}"
        if self._unwanted:
            return why + (
                "the policy has not answered what it was asked before, by an earlier episode or before a person took "
                "over; if it never does, connect anew"
            )
        return why + f"the policy has not answered what it was asked at step {self._asked}"


def _require_length(execution: Execution, count: int) -> None:
    """Raises DataError for a later chunk of too few actions: of the first that is a matter of settings."""
    try:
        execution.interval(count)
    except ConfigError as error:
        raise DataError(one_line(error)) from error


def _actions(reply: Any, shape: tuple[int, ...] | None, width: int | None) -> Float32[np.ndarray, "t a"]:
    """Returns the chunk of an answer.

    Args:
      reply: What the policy answered.
      shape: Of a chunk; None: the policy does not say.
      width: Of an action; None: not known yet.

    Raises:
      DataError: It is no chunk, or one of another shape.
      NonFiniteError: It has NaN or infinite numbers.
    """
    found = reply.get("actions") if isinstance(reply, Mapping) else reply
    actions = np.asarray(found, np.float32)
    if actions.ndim != 2 or not actions.size:
        raise DataError(f"actions: expected [t, a] numbers, found shape {list(actions.shape)}")
    if shape not in (None, actions.shape) or width not in (None, actions.shape[1]):
        wanted = f"[t, {width}]" if shape is None else f"{list(shape)}, as all chunks of this policy"
        raise DataError(f"actions: expected {wanted}, found shape {list(actions.shape)}")
    require_finite(actions[None])
    return actions
