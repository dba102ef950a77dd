"""Trains a Q-chunking agent: records the dataset if it is missing, then hands data, agent, evaluation to the loop."""

import dataclasses
import functools
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from chunkwise.arrays import NumpyTree
from chunkwise.checkpoint.prune import require_evaluated
from chunkwise.checkpoint.reader import list_saves
from chunkwise.cli.named_paths import require_reachable
from chunkwise.data import norm_stats
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.distributed.ray_cluster import require_answers
from chunkwise.envs import evaluate as evaluation
from chunkwise.envs.collect import Job
from chunkwise.envs.evaluate import Evaluation
from chunkwise.envs.recorder import to_be_recorded
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.errors import ConfigError
from chunkwise.files.durable import make_folders
from chunkwise.policies.recorded_images import images_json, shrunk_of, sizes_of
from chunkwise.printable import say
from chunkwise.reports.report import write_report
from chunkwise.state import TrainState
from chunkwise.train.ahead import Call, Dtype, WithoutData, of_rows, require_float32, require_known
from chunkwise.train.loop import fit
from chunkwise.train.metrics import Mean
from chunkwise.train.run_dir import RunFolder, storage_error
from qchunk import data
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from qchunk.config import QChunkConfig
from qchunk.data import reach, stream
from qchunk.data.dataset import load_episode, norm_stats_of
from qchunk.data.holdout import open_measured
from qchunk.data.readers.aloha import AlohaSource
from qchunk.data.readers.aloha_images import COLOUR
from qchunk.envs import run_summary, simulators
from qchunk.evaluate import Policy, close_environments, evaluate, require_shown, view_of, write_video
from qchunk.online.phase import Online
from qchunk.online.replay import STATES
from qchunk.policies.offline_metrics import OfflineMetrics, summary
from qchunk.policies.policy import DIMS, NORM_STATS, QChunkPolicy, Way, by_row, dims_json
from qchunk.record import MADE_BY, METADATA, record

KEPT_LOOKS = 32
"""Episodes that are looked at, over the whole dataset, for whether `qpos` and `state` are the same."""


class QChunkTask:
    """A Q-chunking run as the train loop sees it."""

    def __init__(self, config: QChunkConfig, folder: Path, dataset: data.Dataset) -> None:
        self.config = config
        self.folder = folder
        self.dataset = dataset
        self.agent = make_agent(config, dataset.dims(config.data.observation), allow_code=True)
        if config.eval.env is not None:
            require_shown(self.agent)
        view = view_of(config, self.agent.dims)
        if view is not None and config.eval.env is not None:  # now, not at the first evaluation
            simulators.require_images(config.eval.env, view)
        self._policy = self._acting("policy")
        self._cloning = self._acting("behaviour_cloning") if isinstance(self.agent, QCAgent) else None
        self._division = Division()
        if config.data.holdout:  # whether there is room, now and not at the first evaluation
            open_measured(config, dataset.source)
        self._measured: OfflineMetrics | None = None  # loaded at the first evaluation, by the process that evaluates
        self.online: Online | None = None
        if config.online is not None:
            self.online = Online(config, dataset, folder, lambda state: _asked(self._policy, state), view)

    def init(self, key: Any) -> TrainState:
        """Fresh networks and optimiser."""
        return self.agent.init(key)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update."""
        return self.agent.step(state, batch)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """Batches of the pool, from update `start_step` on, and of the online transitions."""
        batches = stream.open_stream(
            self.config, self.dataset, shard=shard, num_shards=num_shards, start_step=start_step, training=True
        )
        if self.online is None:
            return batches
        return self.online.mixed(batches, start_step, shard=shard, num_shards=num_shards)

    def finish(self) -> None:
        """Draws the run's figure, and says what to look at and what to do with the policy."""
        print(f"figure: {run_summary.draw(self.folder)}", flush=True)
        videos = run_summary.videos_of(self.folder)
        look = [f"look at: {videos[-1]}"] if videos else []
        env = self.config.eval.env
        run = shlex.quote(str(self.folder)) + (
            f" --allow-code {factory}" if (factory := self.config.agent.factory) else ""
        )
        again = f"chunkwise evaluate {run}{f' --env {env}' if ':' in env else ''}, " if env is not None else ""
        print(*look, f"next: {again}chunkwise serve {run}", sep="\n", flush=True)

    def data_fingerprint(self) -> dict[str, Any]:
        """Hashes of the good episodes, of all files, and of what a reader of the user's makes of them."""
        found = {"manifest": self.dataset.fingerprint, "files": self.dataset.files.digest()}
        arrays = self.dataset.arrays_hash
        return found if arrays is None else found | {"arrays_of_the_reader": arrays}

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """Success of the policy in the environment; an offline run ends with that of behaviour cloning too; a video.

        Beside it, what data.holdout keeps for it.
        """
        settings, step = self.config.eval, int(state.step)
        if settings.env is None:
            return self._offline(state)
        file = evaluation.file_of(self.folder, step, {})
        results, played = self._played(state, final=final)  # first of all: the other processes wait for nothing else
        metrics = self._offline(state)
        if self.config.online is not None:
            metrics["env_steps"] = float(self.config.env_steps(step))
        for name, result in results.items():
            print(f"step {step}: {name.replace('_', ' ')}: {result}", flush=True)
            metrics |= result.metrics(name)
        with storage_error(self.folder):
            results["policy"].save(file)
        if final and settings.videos:
            others = set(range(len(results["policy"].outcomes))) - set(played)
            played |= {number: load(self._parts(step) / f"{number}.npz", outcome_only=True) for number in others}
            path = self.folder / f"videos/step_{step}.mp4"
            rules, clips = simulators.rules_of(self.config), file.with_suffix("")
            with storage_error(self.folder):
                write_video(settings.env, played, path, settings.videos, clips=clips, rules=rules)
            shutil.rmtree(self._parts(step), ignore_errors=True)
        return metrics

    def help_evaluate(self, state: TrainState, *, final: bool) -> None:
        """Plays this process's part of the episodes, and writes those that the first one may need for a video."""
        if self.config.eval.env is not None:
            self._played(state, final=final)

    def _played(self, state: TrainState, *, final: bool) -> tuple[dict[str, Evaluation], dict[int, Rollout]]:
        """Evaluations by name, played by all processes together, and the policy's episodes that this one played."""
        settings, step = self.config.eval, int(state.step)
        assert settings.env is not None
        policies = {"policy": self._policy}
        if self.config.online is None and final and self._cloning is not None:
            policies["behaviour_cloning"] = self._cloning  # online, the flow imitates the policy too
        results: dict[str, Evaluation] = {}
        played: dict[int, Rollout] = {}
        shown = bool(final and settings.videos)

        def done(job: Job, rollout: Rollout) -> None:
            if shown and processes.is_primary():
                played[job.number] = rollout
            elif shown:
                with storage_error(self.folder):
                    make_folders(self._parts(step))
                    save(self._parts(step) / f"{job.number}.npz", rollout)

        for name, policy in policies.items():
            results[name] = evaluate(
                _asked(policy, state),
                settings.env,
                seed=self.config.run.seed,
                step=step,
                episodes=settings.final_episodes if final else settings.episodes,
                num_envs=settings.num_envs,
                rows=settings.rows,
                horizon=self.agent.action_horizon,
                max_steps=settings.max_steps,
                fleet=self.config.fleet,
                view=view_of(self.config, self.agent.dims),
                rules=simulators.rules_of(self.config),
                done=done if name == "policy" else lambda job, rollout: None,
                division=self._division,
            )
        return results, played

    def _parts(self, step: int) -> Path:
        """Folder of the episodes that others than the first process played, until their video is made."""
        return evaluation.file_of(self.folder, step, {}).with_suffix(".parts")

    def _offline(self, state: TrainState) -> dict[str, float]:
        """Metrics on the episodes held out; none without data.holdout."""
        if not self.config.data.holdout:
            return {}
        if self._measured is None:
            self._measured = OfflineMetrics(self.config, self.dataset)
        policies = {"policy": self._policy} | ({"behaviour_cloning": self._cloning} if self._cloning else {})
        metrics = self._measured.measure(
            {name: policy.with_weights(state.params, int(state.step)) for name, policy in policies.items()}
        )
        print(f"step {int(state.step)}: {summary(metrics, self._measured.episodes)}", flush=True)
        return metrics

    def _acting(self, way: Way) -> QChunkPolicy:
        """The policy that is loaded from the run, without weights."""
        seen, done = self.dataset.observation_norm, self.dataset.action_norm
        return QChunkPolicy(self.agent, {}, observation_norm=seen, action_norm=done, way=way)


def _asked(policy: QChunkPolicy, state: TrainState) -> Policy:
    """A policy with the weights of a state, as an evaluation asks it."""
    acting = policy.with_weights(state.params, int(state.step))
    return acting.chunks


def without_data(config: QChunkConfig, sizes: Mapping[str, int]) -> WithoutData:
    """Returns the programs of a run: its agent's updates, and its policy's chunks.

    Args:
      config: Of the run, with data.image_size where there are cameras.
      sizes: Of an observation and of an action, which the dataset would tell.

    Raises:
      ConfigError: A size is missing, or agent.factory names code of one's own.
    """
    require_known(sizes, ("observation", "action"))
    cameras, size = config.data.cameras, config.data.image_size
    if cameras and size is None:
        raise ConfigError("data.image_size is None, which is the recorded size; give it: --data.image-size H W")
    dims = data.Dims(
        observation=sizes["observation"],
        action=sizes["action"],
        cameras=cameras,
        image_size=size if cameras else None,
    )
    row = functools.partial(of_rows, config.train.batch_size)
    horizon, name = config.agent.horizon, config.data.observation

    def seen(rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        state = {name: of_rows(rows, "float32", dims.observation)}
        if not cameras or size is None:
            return state
        return state | {"images": of_rows(rows, "uint8", len(cameras), *size, 3)}

    agent = make_agent(config, dims, allow_code=True)
    observation = {"qpos": row("float32", dims.observation), "state": None, "images": None, "depth_images": None}
    observation |= seen(config.train.batch_size)
    batch = {
        "observations": observation,
        "next_observations": observation,
        "actions": row("float32", horizon, dims.action),
        "rewards": row("float32", horizon),
        "masks": row("float32", horizon),
        "valid": row("float32", horizon),
        "terminals": row("bool", horizon),
        "is_positive": row("bool"),
        "final_reward": row("float32"),
    }

    def served(rows: int, dtype: Dtype) -> Call:
        require_float32("qchunk", dtype)
        return Call(function=by_row(agent.act), inputs=(seen(rows), of_rows(rows, "uint32")))

    def evaluated() -> Call:
        if config.evaluates_nothing:
            raise ConfigError("this run evaluates nothing: eval.env is None, and data.holdout is 0")
        asked = [config.eval.rows] if config.eval.env is not None else []
        asked += [config.train.batch_size] if config.data.holdout else []
        return served(max(asked), "float32")

    return WithoutData(updates=agent, batch=batch, served=served, evaluated=evaluated)


def main(config: QChunkConfig, name: str) -> None:
    """Trains what `config` describes, in a run folder named after `name`."""
    processes.on_all(lambda: require_reachable({"data.path": config.data.path}))
    if config.evaluates_nothing:
        require_evaluated(config.checkpoint.keep_best, "eval.env is None, and data.holdout is 0")
    with RunFolder(config, name) as folder:
        print(f"run folder {folder.path}", flush=True)
        plays = processes.broadcast_one_to_all(lambda: folder.plays)  # others may not see the file yet
        if plays and (config.eval.env is not None or config.online is not None):
            processes.on_all(lambda: require_answers(config.fleet.address))
        processes.run_on_primary(lambda: _record_if_missing(config, begun=folder.begun))
        dataset = processes.primary_then_all(lambda: data.open_dataset(config, check=folder.require_same_files))
        dataset = dataclasses.replace(dataset, shrunk=_shrunk(folder.path, dataset))
        beside = processes.broadcast_one_to_all(lambda: _beside(config, dataset))
        sizes = processes.broadcast_one_to_all(lambda: sizes_of(folder.path, dataset.recorded_sizes))
        folder.kept |= {name: text.encode() for name, text in beside.items()} | images_json(dataset.shrunk, sizes)
        processes.run_on_primary(lambda: _judge(config, folder.path, dataset))
        task = QChunkTask(config, folder.path, dataset)
        try:
            done = fit(config, task, folder, interaction=task.online)
        finally:
            close_environments()
        if done:
            write_report(folder.path)


def require_fit(config: QChunkConfig, dataset: data.Dataset) -> None:
    """Compares the dataset's widths with those of the environments of evaluation and of the online phase.

    Before anything is compiled, and by the process that will act in them. An environment takes 1 s to make.

    Raises:
      ConfigError: They differ, the environment is another task than data.task, or it cannot be made.
    """
    dims = dataset.dims(config.data.observation)
    _require_shift(config, dims)
    # The online phase's first, of which more is asked.
    fields = {"online.env": config.online.env if config.online is not None else None, "eval.env": config.eval.env}
    seen = set[str]()
    for field, name in fields.items():
        if name is not None and not config.run.resume:
            simulators.require_task(field, name, config.data.task)
        if name is not None and name not in seen:
            observation = (config.data.observation, dims.observation)
            simulators.require_widths(
                field,
                name,
                config.data.path,
                observation=observation,
                action=dims.action,
                kept={} if field == "eval.env" else _kept(config, dataset),
                view=view_of(config, dims),
                keeps_images=field == "online.env",
                rules=simulators.rules_of(config),
            )
            seen.add(name)


def _require_shift(config: QChunkConfig, dims: data.Dims) -> None:
    """Raises ConfigError for a new run whose images may be shifted until nothing of them is left but an edge."""
    encoder = config.agent.encoder
    if encoder is None or dims.image_size is None or config.run.resume:
        return
    if (shift := encoder.augment.shift) >= min(dims.image_size):
        high, wide = dims.image_size
        raise ConfigError(
            f"agent.encoder.augment.shift is {shift}, and images are {high} x {wide}; expected less than either side, "
            "as 4 at 84 x 84"
        )


def _kept(config: QChunkConfig, dataset: data.Dataset) -> dict[str, int]:
    """Widths of the arrays that an online environment has to show, since the dataset has them; not of an array that is
    the observation once more, as readers of npz, HDF5 and LeRobot name it `qpos` too."""
    widths, other, count = dataset.source.dims, set[str](), len(dataset.source)
    asked = [array for array in STATES if array in widths and array != config.data.observation]
    for number in np.unique(np.linspace(0, count - 1, min(count, KEPT_LOOKS)).astype(int)).tolist():
        if len(other) == len(asked):
            break
        states = load_episode(dataset.source, number).states
        seen = states[config.data.observation]
        other |= {array for array in asked if not np.array_equal(states[array], seen)}
    return {array: widths[array] for array in STATES if array in {*other, config.data.observation}}


def _judge(config: QChunkConfig, run: Path, dataset: data.Dataset) -> None:
    """Raises what a run is refused for, and prints what is said of its data. --run.resume without a save begins anew,
    as every run of a study does."""
    if config.run.resume and not list_saves(run):
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=False))
    require_fit(config, dataset)
    _say(_rendered(config, dataset))
    _say(reach.judge(config, dataset))


def _rendered(config: QChunkConfig, dataset: data.Dataset) -> tuple[str, ...]:
    """What is said where environments render images of another size than was recorded."""
    acting = {config.eval.env, config.online and config.online.env} - {None}
    rendered = any(simulators.renders_at_a_size(name, dataset.cameras) for name in acting if name is not None)
    if not rendered or not dataset.cameras or not isinstance(dataset.source, AlohaSource):
        return ()
    images = dataset.source.images_of[0]
    sizes = {(images[f"{COLOUR}/{name}"].height, images[f"{COLOUR}/{name}"].width) for name in dataset.cameras}
    if config.eval.render_size in sizes:
        return ()
    (height, width), asked = min(sizes), " x ".join(map(str, config.eval.render_size))
    return (
        f"cameras were recorded at {height} x {width}, and environments render them at eval.render_size {asked}, so "
        f"that a policy sees other pixels there; --eval.render-size {height} {width} renders what was recorded",
    )


def _say(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(f"data: {note}")


def _shrunk(run: Path, dataset: data.Dataset) -> tuple[str, ...]:
    """Cameras of a run whose policy shrinks images as the pool shrinks their JPEGs; the same on all processes."""
    return tuple(processes.broadcast_one_to_all(lambda: list(shrunk_of(run, dataset.shrunk))))


def _beside(config: QChunkConfig, dataset: data.Dataset) -> dict[str, str]:
    """Texts, by name, of the files without which the run's policy cannot be loaded."""
    stats = norm_stats_of(config.data, dataset.source)  # of the files that were opened: more may lie there by now
    if "min_max" not in (config.data.action_norm, config.data.observation_norm):
        stats = norm_stats.without_range(stats)  # checkpoints of earlier versions are bound to a text that has none
    return {NORM_STATS: norm_stats.to_json(stats), DIMS: dims_json(dataset.dims(config.data.observation))}


def _record_if_missing(config: QChunkConfig, *, begun: bool) -> None:
    if config.record is not None and to_be_recorded(Path(config.data.path), METADATA, MADE_BY):
        record(config.record, config.data.path, begun=begun)
