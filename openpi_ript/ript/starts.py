"""Which published initial states evaluations and groups of rollouts begin in: never the same ones."""

from chunkwise.envs.initial_states import read_states
from chunkwise.errors import ConfigError
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import names_of


class Starts:
    """The states of env.initial_states; a row's number is the seed of the reset that begins there."""

    def __init__(self, env: EnvConfig) -> None:
        """Reads the file, where there is one. Raises DataError if it is bad, or lacks one of the tasks."""
        self._path = env.initial_states
        states = read_states(self._path, names_of(env)) if self._path else {}
        self._counts = {task: len(rows) for task, rows in states.items()}

    @property
    def published(self) -> bool:
        """Whether there is such a file; else states are drawn by seeds."""
        return bool(self._counts)

    def held_out(self, task: str, number: int) -> int:
        """Returns the row of an evaluation's episode of a task: the first ones. Raises ConfigError if it has none."""
        self._require(task, number + 1)
        return number

    def of_group(self, task: str, number: int) -> int:
        """Returns the row of a group's initial state: the last ones, from the end. Raises ConfigError as `held_out`."""
        self._require(task, number + 1)
        return self._counts[task] - 1 - number

    def require_apart(self, episodes: int, groups: int) -> None:
        """Raises ConfigError where so many episodes of all tasks, and states of each for groups, would share one."""
        for task, count in self._counts.items():
            held_out = -(-episodes // len(self._counts))
            if held_out + groups > count:
                raise ConfigError(
                    f"{self._path}: {count} initial states of {task or 'its task'}, of which an evaluation takes the "
                    f"first {held_out} and rollout.initial_states the last {groups}; expected at most {count} together"
                )

    def _require(self, task: str, count: int) -> None:
        if count > self._counts[task]:
            raise ConfigError(
                f"{self._path}: {self._counts[task]} initial states of {task or 'its task'}, and {count} are asked "
                "for; evaluate fewer episodes, or lower rollout.initial_states"
            )
