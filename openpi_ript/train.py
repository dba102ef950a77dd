"""Trains a pi0-style policy: supervised, or guided by advantages (CFG-RIPT); hands data and model to the loop."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from chunkwise.checkpoint.prune import require_evaluated
from chunkwise.cli.named_paths import require_reachable
from chunkwise.config.saved import flatten, resume_rules
from chunkwise.data.verdict import Verdict
from chunkwise.distributed import processes
from chunkwise.distributed.ray_cluster import require_answers
from chunkwise.errors import ConfigError, DataError, MismatchError, RunError
from chunkwise.files.budget import read_bytes
from chunkwise.printable import say
from chunkwise.reports.report import write_report
from chunkwise.train.ahead import Call, Dtype, WithoutData, of_rows, require_known
from chunkwise.train.interaction import Interaction
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.data.norm import stats_json
from openpi_ript.data.point import record
from openpi_ript.model.int8 import kept_in
from openpi_ript.model.pi0 import Observation
from openpi_ript.policies.policy import sample_steps, sampler
from openpi_ript.policies.saved import INITIAL_STATES, NORM_STATS, TOKENIZER
from openpi_ript.robots.adapter import find_adapter
from openpi_ript.tasks.held_out import means_of
from openpi_ript.tasks.supervised import Imitation, SupervisedTask, require_positive
from openpi_ript.tasks.value_labels import ValueLabels


def main(config: OpenpiRiptConfig, name: str) -> None:
    """Trains what `config` describes, in a run folder named after `name`."""
    named = {
        "data.path": config.data.path,
        "data.norm_stats": config.data.norm_stats,
        "tokenizer": config.tokenizer,
        "weights": config.weights,
        "env.initial_states": (config.env and config.env.initial_states) or None,
    }
    processes.on_all(lambda: require_reachable(named))
    if not config.run.resume:  # a run of before may have been begun so
        _require_effect(config)
    _require_playable(config)
    for note in _notes_of(config):
        say(note)
    with RunFolder(config, name) as folder:
        print(f"run folder {folder.path}", flush=True)
        plays = processes.broadcast_one_to_all(lambda: folder.plays)  # others may not see the file yet
        if plays and config.env is not None:
            processes.on_all(lambda: require_answers(config.fleet.address))
        if not folder.begun:  # of a new one, too, that is always told to go on, as a study's and a scheduler's are
            _require_effect(config)
        played = processes.broadcast_one_to_all(lambda: _require_fit(config))
        processes.run_on_primary(lambda: _record_if_missing(config, begun=folder.begun))
        data = processes.primary_then_all(
            lambda: open_data(config.data, check=folder.require_same_files, allow_code=True)
        )
        for note in (*data.notes, *_rate_notes(played, data.table.fps), *_prompt_notes(config, data)):
            say(f"data: {note}")
        if not folder.begun:
            _require_taken(data)
        if data.stats:
            folder.kept[NORM_STATS] = stats_json(data.stats, data.stats_source).encode()
        task, interaction = _make_task(config, data, folder.path)
        folder.kept[TOKENIZER] = Path(config.tokenizer).read_bytes()  # a run's policy needs nothing but its folder
        if config.env is not None and config.env.initial_states:
            folder.kept[INITIAL_STATES] = _same_states(config.env.initial_states, folder.path / INITIAL_STATES)
        print(task.describe(), flush=True)
        if fit(config, task, folder, load=None if config.weights is None else task.load, interaction=interaction):
            write_report(folder.path)


def of_training(config: OpenpiRiptConfig) -> Verdict:
    """Asks of a config and its dataset what a new run asks of them before it makes a model.

    Environments that the config names are made, as in training; no rollout is played, and no image of the dataset read.
    """
    notes = list(_notes_of(config))
    try:
        _require_effect(config)
        _require_playable(config)
        played = _require_fit(config)
        data = open_data(config.data, allow_code=True)
        notes += (*data.notes, *_rate_notes(played, data.table.fps), *_prompt_notes(config, data))
        _require_taken(data)
        require_positive(config, data)
    except RunError as error:
        return Verdict(notes=tuple(notes), refusal=str(error), exit_code=error.exit_code)
    return Verdict(notes=tuple(notes), refusal=None)


def _require_playable(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError for a task without a prompt, before demonstrations are recorded, or two cameras of one key."""
    _require_image_of_each(config)
    if config.env is not None:
        from openpi_ript.envs.make import tasks_of  # as in `_make_task`

        tasks_of(config.env)


def _require_taken(data: TrainingData) -> None:
    """Raises DataError for numbers that a run of before went on with, and a new one does not begin with."""
    if data.refused:
        raise DataError(
            f"{data.config.path}: a new training refuses these data:", *(f"  {line}" for line in data.refused)
        )


def _require_effect(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError for settings of a new run that would do nothing, or teach what is not so."""
    _require_read(config)
    if config.evaluates_nothing:
        require_evaluated(config.checkpoint.keep_best, "env is None, and data.holdout is 0")
    _require_rest(config)
    _require_states(config)
    _require_goals_told_in_numbers(config)


def _require_read(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError for a setting of a config file that this run would not read."""
    flat, defaults = flatten(config), resume_rules(type(config)).defaults
    for name, reader in config.unread.items():
        if name in flat and flat[name] != defaults[name]:
            raise ConfigError(
                f"{name} is {flat[name]!r}, which has no effect here; expected {defaults[name]!r}, its default, or "
                f"{reader}, which reads it"
            )


def _notes_of(config: OpenpiRiptConfig) -> Iterator[str]:
    """What of a config has its effect elsewhere."""
    rollout, guidance = config.rollout, config.guidance
    if config.data.advantage is not None and guidance is not None and guidance.labels == "value":
        yield (
            "guidance.labels is 'value', and the value labels each chunk: groups and advantages of the dataset's "
            "rollouts are counted below, and decide only what data.advantage.uniform_groups drops"
        )
    if rollout is not None and rollout.dataset_share == 1:
        yield (
            "rollout.dataset_share is 1, as of a control: no rollout is played, and the dataset is imitated to the "
            "end; what rollout says of groups, their rounds, and how rollouts explore and are drawn has no effect"
        )
    if rollout is None or rollout.advantage == AdvantageConfig():
        return
    if rollout.objective != "guided" or not config.weighs:
        yield (
            "rollout.advantage shapes what chunkwise convert --layer-4 writes of the rollouts, and not this training, "
            "which reads it with rollout.objective guided and guidance.positive_weight advantage"
        )


def _require_rest(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError for rests of initial states that end before the next round."""
    rollout = config.rollout
    if rollout is not None and rollout.dataset_share < 1 and 0 < rollout.retry_after <= rollout.updates:
        raise ConfigError(
            f"rollout.retry_after is {rollout.retry_after} and rollout.updates {rollout.updates}: a solved initial "
            "state would be tried again in the next round. Expected 0, or above rollout.updates"
        )


def _require_states(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError where a round wants more groups than there are initial states, one of which each takes."""
    env, rollout = config.env, config.rollout
    if env is None or rollout is None or rollout.dataset_share == 1:
        return
    from openpi_ript.envs.make import names_of  # as in `_make_task`

    if (states := rollout.initial_states * len(names_of(env))) < rollout.groups:
        raise ConfigError(
            f"rollout.groups is {rollout.groups}, and rollout.initial_states {rollout.initial_states} of each task are "
            f"{states} initial states, one for a group at most; expected as many states as groups"
        )


def _require_goals_told_in_numbers(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError for hindsight beside images, which would go on to show the goal that was meant.

    Here and not in the config, since runs that were begun so before are loaded, act, and go on.
    """
    if config.rollout is not None and config.rollout.hindsight is not None and config.env and config.env.cameras:
        raise ConfigError(
            f"rollout.hindsight is set and env.cameras shows {', '.join(sorted(set(config.env.cameras.values())))}: "
            "hindsight puts another goal into env.state, and the images of a rollout go on to show the one that was "
            "meant. Expected rollout.hindsight None, or env.cameras and data.cameras empty"
        )


def _require_image_of_each(config: OpenpiRiptConfig) -> None:
    """Raises ConfigError where a rollout would keep one image for two cameras, and train on what it did not act on.

    Here and not in the config, since runs that were begun so before are loaded, and act.
    """
    if config.env is None:
        return
    shown: dict[str, str] = {}
    for name, key in config.data.cameras.items():
        image = config.env.cameras[name]
        if shown.setdefault(key, image) != image:
            raise ConfigError(
                f"data.cameras names {key} more than once, and env.cameras shows {shown[key]} and {image} in its "
                "place: a rollout keeps one of them; expected a key for each"
            )


def _require_fit(config: OpenpiRiptConfig) -> float | None:
    """Raises ConfigError for an environment that does not fit the policy; returns its steps a second.

    On a fleet it may be missing here, and None is returned, as without an environment.
    """
    if config.env is None or config.fleet.address is not None:
        return None
    from openpi_ript.envs.fit import require_fit  # as in `_make_task`

    return require_fit(config.env, config.data.robot, find_adapter(config.data.robot.adapter, allow_code=True))


def _rate_notes(played: float | None, recorded: float) -> list[str]:
    """Says where the environment's steps a second are not the dataset's, by more than the rounding of an fps."""
    if played is None or abs(played - recorded) <= 0.01 * recorded:
        return []
    return [
        f"{recorded:g} frames a second, where the environment makes {played:g} steps: a chunk is executed in "
        f"{recorded / played:.2g} times the time in which it was demonstrated"
    ]


def _prompt_notes(config: OpenpiRiptConfig, data: TrainingData) -> list[str]:
    """Says of prompts that the policy is told in `env`, and which no frame of the dataset has: typing errors, too."""
    if config.env is None:
        return []
    from openpi_ript.envs.make import tasks_of  # as in `_make_task`

    table = data.table
    tasks = (table.tasks[index] for index in np.unique(table.columns["task_index"]).tolist())
    taught = {_plain(task if task.strip() else config.data.default_prompt or "") for task in tasks}
    told = dict.fromkeys(task.prompt for task in tasks_of(config.env))
    new = [prompt for prompt in told if _plain(prompt) not in taught]
    if not new:
        return []
    known = ", ".join(repr(prompt) for prompt in sorted(taught)[:3]) + (", ..." if len(taught) > 3 else "")
    strange = ", ".join(map(repr, new[:3])) + (", ..." if len(new) > 3 else "")
    return [
        f"in env the policy is told {strange}, which is the prompt of no frame of the dataset; there it is {known} "
        "(env.prompt, env.prompts)"
    ]


def _plain(prompt: str) -> str:
    """A prompt as the tokenizer reads it."""
    return prompt.strip().replace("_", " ").replace("\n", " ")


def _same_states(given: str, kept: Path) -> bytes:
    """The file of initial states. Raises MismatchError if it is not the one that the run keeps since it began."""
    content = read_bytes(given)
    if kept.is_file() and read_bytes(kept) != content:
        raise MismatchError(
            f"env.initial_states {given}: not the file that the run began with, which lies in {kept}; name that one, "
            "or start anew in another folder"
        )
    return content


def without_data(config: OpenpiRiptConfig, sizes: Mapping[str, int]) -> WithoutData:
    """Returns the programs of a run, which its config tells nearly alone.

    Of a run by PPO the update is that on chunks of rollouts; of one with other rounds all updates are alike.

    Args:
      config: Of the run.
      sizes: Where a value function labels chunks, of `tasks`, which dataset and environment would tell; else empty.

    Raises:
      ConfigError: The number of tasks is missing.
    """
    value = None if config.guidance is None or config.guidance.labels != "value" else config.guidance.value
    require_known(sizes, () if value is None else ("tasks",))
    labels = None if value is None else ValueLabels(config, value, [f"task {n}" for n in range(sizes["tasks"])])
    update, rows, horizon = Imitation(config, labels), config.train.batch_size, config.model.action_horizon
    row = functools.partial(of_rows, rows)
    batch: dict[str, Any] = {"observation": _seen(config, rows), "advantages": row("float32")}
    if config.rollout is not None and config.rollout.objective == "ppo":
        from openpi_ript.tasks.ppo import PpoUpdate

        steps = config.rollout.ppo.sample_steps
        update = PpoUpdate(config)
        batch |= {
            "chain": row("float32", steps + 1, horizon, config.model.action_dim),
            "log_prob": row("float32", steps, horizon),
            "valid": row("bool", horizon),
        }
    else:
        batch |= {
            "actions": row("float32", horizon, config.model.action_dim),
            "action_is_pad": row("bool", horizon),
            "optimality": row("int32"),
        }
    if value is not None:
        numbers = {"observed": "float32", "ahead": "float32", "continues": "bool", "task": "int32", "forced": "bool"}
        returns: dict[str, Any] = {name: row(dtype) for name, dtype in numbers.items()}
        if value.lookahead is not None:
            seen = ("state", "images") if config.data.cameras else ("state",)
            returns["later"] = {name: batch["observation"][name] for name in seen}
        batch["returns"] = returns
    return WithoutData(
        updates=update,
        batch=batch,
        served=functools.partial(_served, config),
        evaluated=lambda: _evaluated(config, batch),
    )


def _seen(config: OpenpiRiptConfig, rows: int) -> dict[str, Any]:
    """Shapes of `Observation`."""
    model, row = config.model, functools.partial(of_rows, rows)
    cameras = max(len(config.data.cameras), 1)  # without any the model takes one image, which nothing attends to
    return {
        "images": row("uint8", cameras, model.image_size, model.image_size, 3),
        "image_mask": row("bool", cameras),
        "state": row("float32", model.action_dim),
        "tokens": row("int32", model.prompt_tokens),
        "token_mask": row("bool", model.prompt_tokens),
    }


def _served(config: OpenpiRiptConfig, rows: int, dtype: Dtype) -> Call:
    """The sampler of a policy."""
    noise = of_rows(rows, "float32", config.model.action_horizon, config.model.action_dim)
    steps = jax.ShapeDtypeStruct((), np.dtype("int32"))
    sample = sampler(config, dtype)
    return Call(
        function=lambda params, seen, noise, scale, steps: sample(params, seen, noise, scale, steps, None),
        inputs=(Observation(**_seen(config, rows)), noise, of_rows(rows, "float32"), steps),
        rounds=int(sample_steps(config)),
        kept=functools.partial(kept_in, dtype=dtype),
    )


def _evaluated(config: OpenpiRiptConfig, batch: Any) -> Call:
    """The sampler for half of the environments, as they are stepped, or the loss of what is held out."""
    rollout, rows = config.rollout, config.train.batch_size // config.train.grad_accum_steps
    if config.env is not None and config.eval is not None:
        rows = config.env.rows
        if rollout is None or not rollout.evaluated_with_noise:
            return dataclasses.replace(_served(config, rows, "float32"), kept=lambda params: params)
        from openpi_ript.ript.acting import sample_with_noise

        chain = batch["chain"].shape[1:]
        seen = Observation(**_seen(config, rows))
        return Call(
            function=functools.partial(sample_with_noise, config), inputs=(seen, of_rows(rows, "float32", *chain))
        )
    if not config.data.holdout:
        raise ConfigError("this run evaluates nothing on its device: it has no eval, and data.holdout is 0")
    parts = {name: part for name, part in batch.items() if name != "returns"}
    return Call(
        function=means_of(config),
        inputs=(jax.tree.map(lambda x: x.update(shape=(rows, *x.shape[1:])), parts), jax.random.key(0)),
    )


def _record_if_missing(config: OpenpiRiptConfig, *, begun: bool) -> None:
    if config.record is not None:
        record(config.record, config.data.path)
    if config.demonstrate is not None:
        from openpi_ript.envs.demonstrate import demonstrate

        demonstrate(config, begun=begun)


def _make_task(config: OpenpiRiptConfig, data: TrainingData, folder: Path) -> tuple[SupervisedTask, Interaction | None]:
    """The task, and what it does between updates where it plays rollouts."""
    if config.env is None:
        return SupervisedTask(config, data), None
    from openpi_ript.tasks.ript import RiptTask  # simulators' workers, which a run on a dataset alone does not need

    task = RiptTask(config, data, folder)
    return task, task.ript
