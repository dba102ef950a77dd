"""RIPT: supervised updates, then rounds of rollouts of the policy that is being trained, and evaluation of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkwise.arrays import NumpyTree
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.distributed.stopping import is_requested
from chunkwise.envs.evaluate import Evaluation
from chunkwise.errors import StopRequested
from chunkwise.state import TrainState
from chunkwise.train.metrics import Mean
from chunkwise.train.run_dir import storage_error
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.batch import TrainingBatch
from openpi_ript.data.dataset import TrainingData
from openpi_ript.envs.make import tasks_of
from openpi_ript.ript.acting import ActingPolicy, ExploringPolicy
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.evaluation import MANIFEST, evaluate, manifest_of, require_even, write_video
from openpi_ript.ript.round import NoSignal, Ript
from openpi_ript.ript.starts import Starts
from openpi_ript.tasks.ppo import Ppo, is_ppo, ppo_inputs
from openpi_ript.tasks.supervised import SupervisedTask


class RiptTask(SupervisedTask):
    """Supervised updates, then rounds of rollouts where `rollout` is set; evaluation in the environment."""

    def __init__(self, config: OpenpiRiptConfig, data: TrainingData, folder: Path) -> None:
        """Starts no environment yet.

        Raises:
          ConfigError: The tokenizer is missing, fewer initial states are published than evaluations and groups need, or
            evaluations have not equally many episodes of each task.
          DataError: The file of initial states is bad.
        """
        assert config.env is not None
        assert config.eval is not None
        tasks = tasks_of(config.env)
        if 0 < config.train.eval_every < config.train.steps:
            require_even(config.eval.episodes, len(tasks), "eval.episodes")
        require_even(config.eval.final_episodes, len(tasks), "eval.final_episodes")
        most = max(config.eval.episodes, config.eval.final_episodes)
        Starts(config.env).require_apart(most, 0 if config.rollout is None else config.rollout.initial_states)
        super().__init__(config, data, tasks)
        self.collector = Collector(config.env, allow_code=True, fleet=config.fleet)
        self.policy = ActingPolicy(config, data.stats, allow_code=True)
        self.folder = folder
        self._division = Division()
        self.ript: Ript | None = None
        self._ppo: Ppo | None = None
        if config.rollout is not None:
            self.ript = Ript(config, self.data, folder, self.collector, self.policy)
            if config.rollout.objective == "ppo":
                self._ppo = Ppo(config, self.model, self._trains, self._optimiser)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update of the weights that train: by imitation, guided or not, or by PPO on chunks of rollouts.

        Where no rollout tells anything, weights and optimiser stay as they are, as with the gradient of a group whose
        rewards are equal, which is 0 (arXiv:2505.17016).
        """
        if "no_signal" in batch:
            return state.replace(step=state.step + 1), {}
        if self._ppo is not None and is_ppo(batch):
            return self._ppo.step(state, batch)
        return super().step(state, batch)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """Model inputs from update `start_step` on: of the dataset, then of rollouts."""
        if self.ript is None:
            return super().batches(start_step, shard=shard, num_shards=num_shards)

        def supervised(start_step: int) -> Iterator[TrainingBatch]:
            train, seed = self.config.train, self.config.run.seed
            return self.data.batches(
                seed=seed, batch_size=train.batch_size, start_step=start_step, shard=shard, num_shards=num_shards
            )

        batches = self.ript.batches(supervised, start_step, shard=shard, num_shards=num_shards)
        return map(self._inputs_of, batches)

    def _inputs_of(self, batch: TrainingBatch | NoSignal) -> NumpyTree:
        if "no_signal" in batch:
            return {"no_signal": batch["no_signal"]}
        inputs = self.inputs(batch)
        return ppo_inputs(batch, inputs) if is_ppo(batch) else inputs

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """Plays an episode from each held-out initial state, writes what came of it, at the end a video too.

        After that, what SupervisedTask measures of the dataset: an error there reaches the others, who have played.
        """
        if self.config.eval is None or self.config.env is None:
            return self._of_dataset(state)
        result, folder = self._played(state, final=final), self._folder_of(state)
        with storage_error(self.folder):
            result.save(folder.with_suffix(".json"))
        print(f"\nstep {int(state.step)}: {result}", flush=True)
        if videos := self._videos(final=final):
            write_video(self.collector, folder, folder.with_suffix(".mp4"), episodes=videos)
        return self._of_dataset(state) | result.metrics()

    def help_evaluate(self, state: TrainState, *, final: bool) -> None:
        """Plays this process's part of the episodes."""
        if self.config.eval is not None and self.config.env is not None:
            self._played(state, final=final)

    def _played(self, state: TrainState, *, final: bool) -> Evaluation:
        """An episode from each held-out initial state, played by all processes together.

        A round that is played beside the updates uses the same policy and environments, and comes to its end before.
        """
        if self.ript is not None and self._division.work(self.ript.settled, is_requested) is None:
            raise StopRequested("the evaluation was broken off; what was finished before stands")
        settings, rollout = self.config.eval, self.config.rollout
        assert settings is not None
        episodes = settings.final_episodes if final else settings.episodes
        most = max(episodes, settings.final_episodes)
        manifest = processes.primary_then_all(
            lambda: manifest_of(self.collector, self.folder / MANIFEST, seed=settings.seed, episodes=most)
        )
        self.policy.use(state.params, int(state.step))
        result = evaluate(
            self.collector,
            ExploringPolicy(self.policy) if rollout and rollout.evaluated_with_noise else self.policy,
            manifest,
            episodes=episodes,
            guidance_scale=None if self.config.guidance is None else self.config.guidance.scale,
            folder=self._folder_of(state),
            keep=self._videos(final=final),
            division=self._division,
        )
        self.policy.release()
        return result

    def _folder_of(self, state: TrainState) -> Path:
        return self.folder / f"evaluations/step_{int(state.step):08d}"

    def _videos(self, *, final: bool) -> int:
        """Episodes of the video of an evaluation."""
        settings = self.config.eval
        return min(settings.videos, settings.final_episodes) if final and settings is not None else 0

    def finish(self) -> None:
        """Ends the workers."""
        self.collector.close()
