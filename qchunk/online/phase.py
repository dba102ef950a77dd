"""The online phase: the policy acts in an environment between updates, and batches hold what it found there.

All of it is a function of (seed, step) and of the weights at each step: episode e starts from a seed of its own, the
policy's draw at environment step i has a key of its own, and the rows of batch n are drawn by a generator of their
own from the transitions that were there before update n. Of several processes the first acts; the others read what it
found from the log in the run folder, and each draws the whole batch's rows to take its own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.sampling import Purpose, generator, seed_of
from chunkwise.distributed import processes
from chunkwise.envs.environment import Environment, Observation
from chunkwise.errors import ConfigError, DataError
from chunkwise.state import TrainState
from qchunk.config import OnlineConfig, QChunkConfig
from qchunk.data import Batch, Dataset
from qchunk.data.holdout import held_out
from qchunk.envs import simulators
from qchunk.evaluate import Policy
from qchunk.online.replay import Log, Records, Replay


class Online:
    """An `Interaction` of chunkwise/train/loop.py: steps of the environment, recorded and ready to be drawn."""

    def __init__(
        self,
        config: QChunkConfig,
        dataset: Dataset,
        folder: Path,
        policy: Callable[[TrainState], Policy],
        view: simulators.View | None = None,
    ) -> None:
        """Makes no environment yet.

        Args:
          config: Of the run; `online` is set.
          dataset: The offline one.
          folder: The run's, which gets `replay/`.
          policy: Makes a policy of the weights of a state.
          view: What the policy sees of the scene; None without cameras.

        Raises:
          ConfigError: There are cameras, and the environment shows no images.
        """
        assert config.online is not None
        if view is not None:
            simulators.require_images(config.online.env, view)
        self._config, self._online, self._policy, self._view = config, config.online, policy, view
        drawn = ~held_out(config.data, dataset.source)
        self._offline_starts = int(dataset.source.lengths[drawn].sum())
        self.replay = Replay(config, dataset, config.online.steps)
        self._log = Log(folder / "replay", self.replay.dtype)
        self._queue: deque[np.ndarray] = deque()  # actions of the chunk under way that are still to be executed
        self._env: Environment | None = None
        self._observed: Observation = {}
        self._unfinished: list[Records] = []  # records of the episode under way, one by one
        self._position: dict[str, Any] = {}
        self._commit()

    @property
    def start(self) -> int:
        """First update before which the policy acts."""
        return self._online.start

    @property
    def every(self) -> int:
        """Updates between two stretches of acting."""
        return self._config.online_interval * self._online.updates_per_step

    @property
    def averaged(self) -> bool:
        """The moving average acts, as it does in evaluations."""
        return True

    @property
    def together(self) -> bool:
        """The first process acts: one step of one environment comes after another."""
        return False

    def interact(
        self, state: TrainState, step: int, stopping: Callable[[], bool]
    ) -> Mapping[str, Sequence[float]] | None:
        """Takes `online_interval` environment steps, at the first call those of the warm-up too.

        Returns:
          Of each episode that came to its end, `online/success`, `online/return`, and `online/length`.
        """
        policy = self._policy(state)
        ended: dict[str, list[float]] = {"online/success": [], "online/return": [], "online/length": []}
        for _ in range(self._config.online_interval + (self._online.warmup if step == self.start else 0)):
            if stopping():
                return None
            env = self._open_env() if self._env is None else self._env
            if self.replay.over:
                self._begin_episode(env)
            if self._step(env, policy):
                episode = np.concatenate(self._unfinished)
                ended["online/success"].append(float(episode["success"].any()))
                ended["online/return"].append(float(episode["reward"].sum()))
                ended["online/length"].append(float(len(episode) - 1))
        self._commit()
        return ended

    def position(self) -> dict[str, Any]:
        """Records of the log and their checksum, and the actions still to be executed."""
        self._log.sync()
        return self._position

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Cuts the log back and loads it; of several processes, all but the first read on from where they are.

        Raises:
          DataError: The log is shorter than it was, or damaged.
        """
        position = {"rows": 0, "crc32": 0, "queue": []} if position is None else position
        if processes.is_primary():
            records = self._log.open(position["rows"], position["crc32"])
            self.replay.extend(records)
            unfinished = self.replay.unfinished(records)
            self._unfinished = [unfinished[i : i + 1].copy() for i in range(len(unfinished))]
        else:
            self.replay.extend(self._log.follow(position["rows"], position["crc32"]))
        self._queue = deque(np.array(action, np.float32) for action in position["queue"])
        self._commit()

    def close(self) -> None:
        """Nothing goes on beside the updates."""

    def _commit(self) -> None:
        """Takes note of where the interaction stands."""
        queue = [action.tolist() for action in self._queue]
        self._position = {"rows": self._log.rows, "crc32": self._log.crc32, "queue": queue}

    def _open_env(self) -> Environment:
        """Makes the environment and, after a resume, brings it to where the log ends.

        The simulator's state is not stored: the same seed and actions give it again, to the bit.

        Raises:
          DataError: They do not.
          ConfigError: The environment does not show what the dataset has.
        """
        self._env = env = simulators.make(self._online.env, self._view, simulators.rules_of(self._config))
        if not len(self._unfinished):
            return env
        episode = self.replay.episodes - 1
        self._observed = self._arrays(env.reset(self._episode_seed(episode)))
        for t, (record,) in enumerate(self._unfinished):
            if t:
                step = env.step(record["action"])
                self._observed = self._arrays(step.observation)
                self._compare(episode, t, "reward", np.float64(step.reward), record["reward"])
            for name, found in self._observed.items():
                self._compare(episode, t, name, found, record[name])
        if self._view is not None:  # rendered again they would cost more than the steps
            self._observed["images"] = self._unfinished[-1]["images"][0]
        return env

    def _compare(self, episode: int, t: int, name: str, found: Any, logged: Any) -> None:
        """The environment against the log."""
        if not np.array_equal(found, logged):
            raise DataError(
                f"{self._online.env} does not repeat online episode {episode}: {name} at its step {t} is {found}, "
                f"{logged} in replay/frames.bin. A run can only go on with the simulator, and on the kind of machine, "
                "with which it began; start anew in another folder"
            )

    def _episode_seed(self, episode: int) -> int:
        return seed_of(Purpose.ONLINE_SCENE, self._config.run.seed, episode)

    def _begin_episode(self, env: Environment) -> None:
        """Resets the environment and records what it shows."""
        self._observed = self._seen(env, env.reset(self._episode_seed(self.replay.episodes)))
        self._queue.clear()
        self._unfinished = []
        self._record(first=True)

    def _step(self, env: Environment, policy: Policy) -> bool:
        """Executes one action and records what came of it; whether the episode is over."""
        if not self._queue:
            observations = {name: value[None] for name, value in self._observed.items()}
            seed = seed_of(Purpose.ONLINE_ACTION, self._config.run.seed, self.replay.steps)
            chunk = policy(observations, np.array([seed], np.uint32))[0]
            self._queue.extend(simulators.clip(env, chunk))
        action = self._queue.popleft()
        step = env.step(action)
        self._observed = self._seen(env, step.observation)
        self._record(
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            success=step.success,
        )
        return self.replay.over

    def _seen(self, env: Environment, observation: Observation) -> Observation:
        """Returns what the policy is shown: the arrays that the dataset has too, and the cameras' images."""
        seen = self._arrays(observation)
        return seen if self._view is None else seen | {"images": simulators.stacked_images(env.images(), self._view)}

    def _arrays(self, observation: Observation) -> Observation:
        """Returns the arrays that the dataset has too. Raises ConfigError if one is lacking."""
        names = [name for name in self.replay.dtype.names or () if name in ("qpos", "state")]
        if missing := [name for name in names if name not in observation]:
            raise ConfigError(
                f"online.env is {self._online.env!r}, which shows {sorted(observation)}; expected "
                f"{', '.join(missing)}, as the dataset in data.path has"
            )
        return {name: observation[name] for name in names}

    def _record(self, **step: Any) -> None:
        """Appends a record to log and memory."""
        record = np.zeros(1, self.replay.dtype)
        for name, value in {**self._observed, **step}.items():
            if name in (self.replay.dtype.names or ()):
                record[name] = value
        self._log.append(record)
        self.replay.extend(record)
        self._unfinished.append(record)

    def mixed(
        self, offline: Iterator[Batch], start_step: int, *, shard: int = 0, num_shards: int = 1
    ) -> Iterator[Batch]:
        """The dataset's batches with some of their rows replaced by online ones: the last rows of the global batch.

        Args:
          offline: Rows of this process, from update `start_step` on.
          start_step: First update.
          shard: Which stretch of the global batch these rows are.
          num_shards: Stretches.
        """
        rows = self._config.train.batch_size
        first, end = shard * rows // num_shards, (shard + 1) * rows // num_shards
        for step, batch in enumerate(offline, start_step):
            rng = generator(Purpose.ONLINE_ROWS, self._config.run.seed, step)
            count = online_rows(self._online, rows, self.replay.starts, self._offline_starts, rng)
            if count:
                starts, before = rng.integers(0, self.replay.starts, count), rows - count
                own = starts[max(first - before, 0) : max(end - before, 0)]
                if len(own):
                    batch = _replace_last(batch, self.replay.gather(own))
            yield batch


def online_rows(
    online: OnlineConfig, rows: int, online_starts: int, offline_starts: int, rng: np.random.Generator
) -> int:
    """Rows of a batch that come from the online transitions.

    With a ratio, so many of them; without, as many as fall there when each row is drawn from all starts alike.

    Args:
      online: Settings.
      rows: Of the batch.
      online_starts: Chunks that may be drawn so far; none are taken while there is none.
      offline_starts: Frames of the dataset.
      rng: Of the step.
    """
    if not online_starts:
        return 0
    if online.online_ratio is not None:
        return round(online.online_ratio * rows)
    return int(rng.binomial(rows, online_starts / (online_starts + offline_starts)))


def _replace_last(batch: Any, online: Any) -> Any:
    """A batch whose last rows are those of `online`, key by key."""
    if isinstance(batch, dict):
        return {key: _replace_last(value, online[key]) for key, value in batch.items()}
    if batch is None:
        return None
    return np.concatenate([batch[: len(batch) - len(online)], online])
