"""One environment of the online phase: its episodes, how they are played, logged and gone on with.

All of it is a function of (seed, environment) and of the weights at each step: each episode starts from a seed of its
own, and each chunk is drawn with a key of its own. What an environment counts for itself, episodes and steps, is
numbered across all of them for that: of two environments the first has the even numbers.
"""

import dataclasses
import functools
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.collect import ENDLESS
from chunkwise.envs.environment import Environment, Observation, Step
from chunkwise.envs.failures import Shapes, close_anyway, require_cameras, require_finite, require_observed
from chunkwise.envs.thread_workers import OwnThread
from chunkwise.envs.workers import require_step, told
from chunkwise.errors import ConfigError, DataError, MismatchError, RunError
from qchunk.config import QChunkConfig
from qchunk.data import Dataset
from qchunk.envs import simulators
from qchunk.online.replay import STATES, Log, Records, Replay

NOTHING = {"rows": 0, "crc32": 0, "queue": []}
"""Position before the first episode."""


class Player:
    """One environment, its log and its replay; it is played in one process, and followed in the others."""

    def __init__(
        self, config: QChunkConfig, dataset: Dataset, folder: Path, number: int, view: simulators.View | None
    ) -> None:
        """Makes no environment yet.

        Args:
          config: Of the run; `online` is set.
          dataset: The offline one.
          folder: Of the log.
          number: Of the environment, from 0 on.
          view: What the policy sees of the scene; None without cameras.
        """
        assert config.online is not None
        self._config, self._online, self._view = config, config.online, view
        self.number = number
        self.replay = Replay(config, dataset, config.online.steps // config.online.num_envs)
        self.log = Log(folder, self.replay.dtype)
        self.observed: Observation = {}
        """What the environment shows now, as the policy takes it."""
        self._queue: deque[np.ndarray] = deque()  # actions of the chunk under way that are still to be executed
        self._env: Environment | None = None
        self.hands = OwnThread(f"online environment {number}")
        """Where the environment does all that it does."""
        self._unfinished: list[Records] = []  # records of the episode under way, one by one

    def rewind(self, position: dict[str, Any], *, plays: bool) -> None:
        """Loads the log up to a position.

        Args:
          position: As `position` gives it.
          plays: Whether this process is going to play, and so cuts off what came later.

        Raises:
          DataError: The log is shorter than it was, or damaged.
          MismatchError: More steps were taken than online.steps allows.
        """
        if not plays:
            self.follow(position)
            return
        records = self.log.open(position["rows"], position["crc32"])
        self._extend(records)
        unfinished = self.replay.unfinished(records)
        self._unfinished = [unfinished[i : i + 1].copy() for i in range(len(unfinished))]
        self._queue = deque(np.array(action, np.float32) for action in position["queue"])

    def follow(self, position: dict[str, Any]) -> None:
        """Reads on to where another process has come. Raises DataError and MismatchError as `rewind`."""
        self._extend(self.log.follow(position["rows"], position["crc32"]))

    def _extend(self, records: Records) -> None:
        """Takes records of the log into memory. Raises MismatchError if there is no room for them."""
        taken = self.replay.steps + np.count_nonzero(~records["first"])
        if taken > self.replay.capacity:
            raise MismatchError(
                f"online.steps is {self._online.steps}, and {taken * self._online.num_envs} steps have been taken: "
                f"{taken} in {self.log.path}. Give at least as many on resume, or start anew in another folder"
            )
        self.replay.extend(records)

    def position(self) -> dict[str, Any]:
        """Records of the log and their checksum, and the actions still to be executed: JSON values."""
        queue = [action.tolist() for action in self._queue]
        return {"rows": self.log.rows, "crc32": self.log.crc32, "queue": queue}

    def prepare(self) -> None:
        """Makes the environment if it is not there yet, and begins an episode where none is under way.

        Raises:
          DataError: After a resume it does not come to where the log ends.
          ConfigError: The environment does not show what the dataset has.
          RunError: It failed, or begins with NaN or Inf.
        """
        if self._env is not None and not self.replay.over:
            return
        self.hands.begin(self._begin).result()

    def _begin(self) -> None:
        if self._env is None:
            self._env = self._open_env()
        if self.replay.over:
            episode = self.replay.episodes
            observation = self._reset(self._env, episode)
            self.observed = self._seen(self._env, observation, self._where(0, episode))
            self._queue.clear()
            self._unfinished = []
            self._record(first=True)

    @property
    def waits(self) -> bool:
        """Whether it needs a chunk."""
        return not self._queue

    @property
    def action_seed(self) -> int:
        """Of what the policy draws for the next chunk."""
        return seed_of(Purpose.ONLINE_ACTION, self._config.run.seed, self._among_all(self.replay.steps))

    def take(self, chunk: np.ndarray) -> None:
        """Takes a chunk, to be executed step by step. Raises RunError if the environment fails."""
        assert self._env is not None
        with self._told(len(self._unfinished)):
            self._queue.extend(simulators.clip(self._env, chunk))

    def close(self) -> None:
        """Closes the environment, if it was made."""
        if self._env is not None:
            close_anyway(f"the environment {self._online.env}", self._env.close)
            self._env = None

    def step(self) -> tuple[np.ndarray, Step]:
        """Executes one action, which it returns with what came of it; nothing but the environment is touched.

        Raises:
          RunError: The environment failed, or gave NaN or Inf, which the log would keep and every update learn from.
        """
        assert self._env is not None
        with self._told(len(self._unfinished)):
            step = self._env.step(self._queue[0].copy())  # which an environment may change in place
            require_step(f"{self._where(len(self._unfinished))}: step()", step)
        taken = len(self._unfinished)  # this one included: the first record is of the reset
        most = self._online.max_steps
        if most is not None and taken >= most and not step.terminated:
            step = dataclasses.replace(step, truncated=True)
        elif most is None and taken == ENDLESS and not (step.terminated or step.truncated):
            print(
                f"\n{self._online.env}: online episode {self.replay.episodes - 1} has not ended after {taken} steps; "
                "if the environment has no time limit, cut episodes with online.max_steps N, in a new run",
                flush=True,
            )
        return self._queue[0], step

    def record(self, action: np.ndarray, step: Step) -> dict[str, float] | None:
        """Records what came of an action, with images; what the episode was worth if it is over."""
        env = self._env
        assert env is not None
        self._queue.popleft()
        seen = functools.partial(self._seen, env, step.observation, self._where(len(self._unfinished)))
        self.observed = seen() if self._view is None else self.hands.begin(seen).result()
        self._record(
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            success=step.success,
        )
        if not self.replay.over:
            return None
        episode = np.concatenate(self._unfinished)
        return {
            "online/success": float(episode["success"].any()),
            "online/return": float(episode["reward"].sum()),
            "online/length": float(len(episode) - 1),
        }

    def _open_env(self) -> Environment:
        """Makes the environment and, after a resume, brings it to where the log ends.

        The simulator's state is not stored: the same seed and actions give it again, to the bit.
        """
        with told(f"the environment {self._online.env} could not be made"):
            env = simulators.make(self._online.env, self._view, simulators.rules_of(self._config))
        if not len(self._unfinished):
            return env
        episode = self.replay.episodes - 1
        self.observed = self._arrays(self._reset(env, episode))
        for t, (record,) in enumerate(self._unfinished):
            if t:
                with self._told(t):
                    step = env.step(record["action"])
                self.observed = self._arrays(step.observation)
                self._compare(episode, t, "reward", np.float64(step.reward), record["reward"])
                for name in ("terminated", "truncated", "success"):  # online.max_steps ended none that is unfinished
                    self._compare(episode, t, name, bool(getattr(step, name)), bool(record[name]))
            for name, found in self.observed.items():
                self._compare(episode, t, name, found, record[name])
        if self._view is not None:  # rendered again they would cost more than the steps
            self.observed["images"] = self._unfinished[-1]["images"][0]
        return env

    def _reset(self, env: Environment, episode: int) -> Observation:
        """Begins an episode. Raises RunError if the environment fails."""
        where = self._where(0, episode)
        with told(f"{where} failed"):
            observation = env.reset(self._episode_seed(episode))
        require_observed(f"{where}: reset()", observation)
        require_finite(f"{where}: reset()", observation)
        return observation

    def _told(self, step: int) -> AbstractContextManager[None]:
        """Raises what the environment raises in a step of the episode under way as a RunError that names it."""
        return told(f"{self._where(step)} failed")

    def _where(self, step: int, episode: int | None = None) -> str:
        """The environment and a step of an episode, in words; of the one under way where none is given."""
        seed = self._episode_seed(self.replay.episodes - 1 if episode is None else episode)
        return f"the environment {self._online.env} (reset with seed {seed}, step {step})"

    def _compare(self, episode: int, t: int, name: str, found: Any, logged: Any) -> None:
        """The environment against the log."""
        if not np.array_equal(found, logged):
            raise DataError(
                f"{self._online.env} does not repeat online episode {episode}: {name} at its step {t} is {found}, "
                f"{logged} in {self.log.path}. A run can only go on with the simulator, and on the kind of machine, "
                "with which it began; start anew in another folder"
            )

    def _among_all(self, count: int) -> int:
        """Numbers what this environment counts across all of them; of a single one it is the count."""
        return count * self._online.num_envs + self.number

    def _episode_seed(self, episode: int) -> int:
        return seed_of(Purpose.ONLINE_SCENE, self._config.run.seed, self._among_all(episode))

    def _seen(self, env: Environment, observation: Observation, where: str) -> Observation:
        """Returns what the policy is shown: the arrays that the dataset has too, and the cameras' images.

        Raises:
          ConfigError: An array is lacking, or has another shape.
          DataError: So does a camera.
          RunError: Images have another size or type than they had; it begins with `where`.
        """
        seen = self._arrays(observation)
        if self._view is None:
            return seen
        with told(f"{where} failed to show images"):
            images = env.images()
            require_cameras(where, images, self._view.cameras)
            Shapes().require_images(f"{where}: images()", {name: images[name] for name in self._view.cameras})
            stacked = simulators.stacked_images(images, self._view)
        if stacked.shape != (kept := self.replay.dtype["images"].shape):
            raise RunError(
                f"{where}: images() gave [cameras, h, w, 3] of {list(stacked.shape)}; expected {list(kept)}, as at the "
                "start"
            )
        return seen | {"images": stacked}

    def _arrays(self, observation: Observation) -> Observation:
        """Returns the arrays that the dataset has too, as the log keeps them: what is seen and what a resumed run reads
        are the same bits, of an environment that shows float64 too.

        The observation stands for an array that the environment does not show: `require_fit` let the run begin since
        the dataset has it under both names too.

        Raises:
          ConfigError: One is lacking.
        """
        dtype, seen = self.replay.dtype, observation.get(self._config.data.observation)
        found: Observation = {}
        for name in (name for name in STATES if name in (dtype.names or ())):
            width = dtype[name].shape[0]
            shown = (observation.get(name), seen)
            fitting = [array for array in shown if array is not None and np.shape(array) == (width,)]
            if not fitting:
                found_shapes = {array: np.shape(value) for array, value in observation.items()}
                raise ConfigError(
                    f"online.env is {self._online.env!r}, which shows {found_shapes}; expected {name} of shape "
                    f"({width},), as the dataset in data.path has"
                )
            found[name] = np.asarray(fitting[0], dtype[name].base)
        return found

    def _record(self, **step: Any) -> None:
        """Appends a record to log and memory."""
        record = np.zeros(1, self.replay.dtype)
        for name, value in {**self.observed, **step}.items():
            if name in (self.replay.dtype.names or ()):
                record[name] = value
        self.log.append(record)
        self.replay.extend(record)
        self._unfinished.append(record)
