"""The online phase: the policy acts in environments between updates, and batches hold what it found there.

All of it is a function of (seed, step) and of the weights at each step (qchunk/online/player.py), and the rows of batch
n are drawn by a generator of their own from the transitions that were there before update n. Environment e is played by
the process whose index is e modulo the processes; after each stretch each reads from the logs in the run folder what
the others found, and each draws the whole batch's rows to take its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from chunkwise.data.sampling import Purpose, generator
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.envs.thread_workers import end_all
from chunkwise.errors import MismatchError, NonFiniteError
from chunkwise.state import TrainState
from chunkwise.train.run_dir import storage_error
from qchunk.config import OnlineConfig, QChunkConfig
from qchunk.data import Batch, Dataset
from qchunk.data.holdout import held_out
from qchunk.envs import simulators
from qchunk.evaluate import Policy
from qchunk.online.player import NOTHING, Player
from qchunk.online.replay import folders, gather


class Online:
    """An `Interaction` of chunkwise/train/loop.py: steps of environments, recorded and ready to be drawn."""

    def __init__(
        self,
        config: QChunkConfig,
        dataset: Dataset,
        folder: Path,
        policy: Callable[[TrainState], Policy],
        view: simulators.View | None = None,
    ) -> None:
        """Makes no environment yet. All processes of a run make one at the same place of the program.

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
        self._config, self._online, self._policy, self._run = config, config.online, policy, folder
        self._render_size = None if view is None else list(view.render_size)
        cameras = () if view is None else view.cameras
        self._sized = simulators.renders_at_a_size(config.online.env, cameras)
        drawn = ~held_out(config.data, dataset.source)
        self._offline_starts = int(dataset.source.lengths[drawn].sum())
        self._players = [
            Player(config, dataset, place, number, view)
            for number, place in enumerate(folders(folder, config.online.num_envs))
        ]
        self.replays = [player.replay for player in self._players]
        self._division = Division()
        self._position = self._joined([NOTHING] * len(self._players))

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

    def interact(
        self, state: TrainState, step: int, stopping: Callable[[], bool]
    ) -> Mapping[str, Sequence[float]] | None:
        """Takes `online_interval` environment steps, as many in each; at the first call those of the warm-up too.

        Returns:
          Of each episode that came to its end, `online/success`, `online/return`, and `online/length`.

        Raises:
          DataError: An environment does not repeat the episode under way, or a process does not see another's log.
          ConfigError: An environment does not show what the dataset has.
          NonFiniteError: The policy gave NaN or Inf.
          RunError: An environment did.
        """
        policy = self._policy(state)
        steps = self._config.online_interval + (self._online.warmup if step == self.start else 0)
        each = steps // self._online.num_envs
        parts = self._division.work(lambda stopping: self._part(policy, each, stopping), stopping)
        if parts is None:
            return None
        told = {number: rest for part in parts for number, *rest in part}
        ended: dict[str, list[float]] = {"online/success": [], "online/return": [], "online/length": []}
        for player in self._players:
            position, episodes = told[player.number]
            if not self._division.mine(player.number):
                player.follow(position)
            for episode in episodes:
                for name, value in episode.items():
                    ended[name].append(value)
        self._position = self._joined([told[player.number][0] for player in self._players])
        return ended

    def _part(self, policy: Policy, steps: int, stopping: Callable[[], bool]) -> list[list[Any]] | None:
        """Takes so many steps in each environment of this process.

        Returns:
          Of each its number, its position, and what its episodes that ended were worth; None if stopped.
        """
        mine = [player for player in self._players if self._division.mine(player.number)]
        ended: list[list[dict[str, float]]] = [[] for _ in mine]
        for _ in range(steps):
            if stopping():
                return None
            for player in mine:
                player.prepare()
            self._choose(policy, [player for player in mine if player.waits])
            steps_taken = [player.hands.begin(player.step) for player in mine]
            for player, episodes, step_taken in zip(mine, ended, steps_taken, strict=True):
                if (episode := player.record(*step_taken.result())) is not None:
                    episodes.append(episode)
        if processes.is_multiprocess():  # before the others are told that it is there
            self.sync()
        return [[player.number, player.position(), episodes] for player, episodes in zip(mine, ended, strict=True)]

    def _choose(self, policy: Policy, waiting: Sequence[Player]) -> None:
        """Infers chunks for the environments that wait, in one batch.

        Whoever waits, the batch has a row for every environment of the run, and each its own, so that its chunk depends
        on nothing else: in a batch of another size, or at another place in it, numbers may round differently.
        """
        if not waiting:
            return
        of_row = dict.fromkeys(range(len(self._players)), waiting[0]) | {player.number: player for player in waiting}
        shown = [player.observed for player in of_row.values()]
        observations = {name: np.stack([row[name] for row in shown]) for name in shown[0]}
        seeds = np.array([player.action_seed for player in of_row.values()], np.uint32)
        chunks = policy(observations, seeds)
        for player in waiting:
            if not np.isfinite(chunks[player.number]).all():
                raise NonFiniteError(
                    f"{self._online.env}: the policy answered with NaN or Inf in online environment {player.number}, "
                    "whose observation is finite. Lower optim.learning_rate, or set optim.clip_norm"
                )
            player.take(chunks[player.number])

    def position(self) -> dict[str, Any]:
        """Of every environment the records of its log and their checksum, and the actions still to be executed."""
        return self._position

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Loads the logs, and cuts back those of the environments that this process plays.

        Raises:
          DataError: A log is shorter than it was, or damaged.
          MismatchError: Its images were rendered at another eval.render_size.
          StorageError: A log cannot be written.
        """
        saved = (position or {}).get("render_size", self._render_size)
        if saved != self._render_size and self._sized:
            raise MismatchError(
                f"eval.render_size is {self._render_size}, and {saved} where the online images of this run were "
                f"rendered; expected --eval.render-size {' '.join(map(str, saved))}, or a new folder"
            )
        each = [NOTHING] * len(self._players)
        if position is not None:
            each = [position] if len(self._players) == 1 else position["environments"]
        with storage_error(self._run):
            for player, one in zip(self._players, each, strict=True):
                player.rewind(one, plays=self._division.mine(player.number))
        self._position = self._joined(each)

    def close(self) -> None:
        """Closes the environments."""
        end_all([(player.hands, player.close) for player in self._players])

    def sync(self) -> None:
        """Forces to disk what this process has logged. Raises StorageError if that fails."""
        for player in self._players:
            with storage_error(self._run, str(player.log.path.relative_to(self._run))):
                player.log.sync()

    def _joined(self, positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The position of the phase: that of the only environment, as runs of before have it, or of each.

        With the size at which images are rendered: `eval` may change on resume, and what is trained on may not.
        """
        position = positions[0] if len(positions) == 1 else {"environments": list(positions)}
        return position if self._render_size is None else position | {"render_size": self._render_size}

    def mixed(
        self, offline: Iterator[Batch], start_step: int, *, shard: int = 0, num_shards: int = 1
    ) -> Iterator[Batch]:
        """The dataset's batches with some of their rows replaced by online ones: the last rows of each virtual shard's
        stretch of the global batch, of all shards as many, or one more in the last ones.

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
            there = sum(replay.starts for replay in self.replays)
            count = online_rows(self._online, rows, there, self._offline_starts, rng)
            if count:
                starts, places = rng.integers(0, there, count), replaced_rows(rows, count, self._config.data.shards)
                own = (places >= first) & (places < end)
                if own.any():
                    batch = _replace(batch, places[own] - first, gather(self.replays, starts[own]))
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
    if (fixed := online.fixed_rows(rows)) is not None:
        return fixed
    return int(rng.binomial(rows, online_starts / (online_starts + offline_starts)))


def replaced_rows(rows: int, count: int, shards: int) -> Int64[np.ndarray, " count"]:
    """Returns which rows of a batch of several virtual shards, one after the other, are online ones: the last of each.

    Were they the last of the batch, the pools of the last shards would be loaded and hardly trained on.
    """
    size = rows // shards
    each = [count // shards + (shards - shard <= count % shards) for shard in range(shards)]
    return np.concatenate([np.arange(size * (k + 1) - own, size * (k + 1)) for k, own in enumerate(each)])


def _replace(batch: Any, rows: Int64[np.ndarray, " o"], online: Any) -> Any:
    """A batch with these rows from `online`, key by key."""
    if isinstance(batch, dict):
        return {key: _replace(value, rows, online[key]) for key, value in batch.items()}
    if batch is None:
        return None
    batch = np.array(batch)  # a copy
    batch[rows] = online
    return batch
