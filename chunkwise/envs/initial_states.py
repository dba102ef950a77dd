"""Published initial states: the simulator's states with which a benchmark's episodes begin, as an .npz file.

    states                     float [n, d], of an environment's only task; or, of several tasks,
    libero_spatial/0, ...      float [n, d] each, under the tasks' names

A row is what the environment's `reset_to` takes: MuJoCo's time, positions and velocities one after another (robosuite,
robomimic's `states`, LIBERO's .pruned_init), or where Meta-World puts objects and goal. With such a file
(`EnvSpec.initial_states`) a reset with seed k begins in row k, or k modulo n; so seeds, rollouts and replays mean what
they always mean.

    python -m chunkwise.envs.initial_states OUT.npz libero_spatial/0=FILE.pruned_init libero_spatial/1=FILE ...
    python -m chunkwise.envs.initial_states OUT.npz libero_spatial         # where LIBERO is installed

writes one of LIBERO's own files, which are not unpickled (chunkwise/files/torch_array.py).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.cli import command
from chunkwise.envs.environment import Environment, Observation, Step
from chunkwise.envs.suites.robosuite import TASK_SETS, published_file
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.durable import write_durably
from chunkwise.files.npz import read_npz
from chunkwise.files.torch_array import read_torch_array

ONLY = "states"
"""Name of the array where there is only one task."""


@runtime_checkable
class Restorable(Environment, Protocol):
    """An environment that can begin in a state that it is given."""

    def reset_to(self, state: Float64[np.ndarray, " d"]) -> Observation:
        """Starts an episode that is a function of `state` alone, to the bit, whatever happened before.

        Raises:
          ConfigError: It has no such state: another number of values, or one that its task never begins with.
        """
        ...


class PublishedStates:
    """An environment whose episodes begin in the rows of a file."""

    def __init__(self, env: Restorable, states: Float64[np.ndarray, "n d"]) -> None:
        """Begins nothing yet.

        Args:
          env: That plays.
          states: Where, a row an initial state.
        """
        self._env, self._states = env, states

    def __getattr__(self, name: str) -> Any:
        """What an environment offers beside `Environment`: `expert`, `video_size`."""
        if name == "_env":  # not there yet: while this is unpickled
            raise AttributeError(name)
        return getattr(self._env, name)

    @property
    def fps(self) -> float:
        return self._env.fps

    @property
    def action_dim(self) -> int:
        return self._env.action_dim

    def reset(self, seed: int) -> Observation:
        """Starts an episode in row `seed` modulo their number."""
        return self._env.reset_to(self._states[seed % len(self._states)])

    def state(self) -> Float64[np.ndarray, " q"]:
        return self._env.state()

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return self._env.clip(action)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        return self._env.step(action)

    def images(self) -> Observation:
        return self._env.images()

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        return self._env.render(height, width)

    def close(self) -> None:
        self._env.close()


def beginning_in(env: Environment, path: str, task: str) -> PublishedStates:
    """Returns an environment that begins in a file's states of its task.

    Raises:
      ConfigError: It cannot begin in a given state.
      DataError: The file is bad, or has no states of the task.
    """
    if not isinstance(env, Restorable):
        raise ConfigError(
            f"initial_states {path}: {type(env).__name__} cannot begin in a given state; expected robosuite, robomimic,"
            " libero, metaworld, or an environment of your own with a method reset_to(state)"
        )
    return PublishedStates(env, read_states(path, (task,))[task])


def read_states(path: str | Path, tasks: Sequence[str]) -> dict[str, Float64[np.ndarray, "n d"]]:
    """Returns the initial states of each task.

    Raises:
      DataError: The file is missing or no .npz, has no array for one of the tasks, or one that is no table of finite
        numbers.
    """
    try:
        arrays = read_npz(path, (*tasks, ONLY))
    except OSError as error:
        raise DataError(f"env.initial_states: {path} cannot be read: {error.strerror}") from error
    found: dict[str, np.ndarray] = {}
    for task in tasks:
        name = ONLY if len(tasks) == 1 and task not in arrays else task
        if name not in arrays:
            has = ", ".join(sorted(read_npz(path))) or "nothing"
            raise DataError(f"{path}: expected initial states of {task or ONLY!r}, found {has}")
        found[task] = _checked(arrays[name], f"{path}: {name}")
    return found


def _checked(array: np.ndarray, source: str) -> Float64[np.ndarray, "n d"]:
    """An array as a table of states. Raises DataError if it is none."""
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(
            f"{source}: expected floats of shape [states, numbers], found {array.dtype} of shape {list(array.shape)}"
        )
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise DataError(f"{source}: expected finite numbers, found NaN or Inf in row {np.argmin(finite)}")
    return array.astype(np.float64)


def write_states(path: Path, states: Mapping[str, Float[np.ndarray, "n d"]]) -> None:
    """Writes initial states by task. Raises DataError if they are no tables of finite numbers, ConfigError if the file
    exists."""
    if path.exists():
        raise ConfigError(f"{path} exists; expected a file to be made")
    arrays: dict[str, Any] = {name: _checked(array, name) for name, array in states.items()}
    write_durably(path, lambda file: np.savez_compressed(file, **arrays))


def _sources(given: Sequence[str]) -> dict[str, Path]:
    """The file of each task that a command line names. Raises ConfigError where one is named twice, or has no file."""
    files: dict[str, Path] = {}
    for word in given:
        name, equals, file = word.partition("=")
        if equals and not (name and file):
            raise ConfigError(f"{word}: expected TASK=FILE, such as libero_spatial/0=FILE.pruned_init")
        for task in (name,) if equals else TASK_SETS.get(name, (name,)):
            if task in files:
                raise ConfigError(f"{task} is named twice; expected each task once")
            files[task] = Path(file) if equals else published_file(task)
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = command.Parser(
        prog="python -m chunkwise.envs.initial_states",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT.npz", help="file to make; it must not exist")
    parser.add_argument("tasks", nargs="+", metavar="TASK[=FILE]", help="a task, or a set of them, and its file")
    found = parser.parse_args(argv)
    try:
        states = {task: read_torch_array(file) for task, file in _sources(found.tasks).items()}
        write_states(found.out, states)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return DataError.exit_code
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    count = sum(len(array) for array in states.values())
    print(f"wrote {count} initial states of {len(states)} tasks to {found.out}\nnext: --env.initial_states {found.out}")
    return 0


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
