"""From a dataset on disk to training batches: opened and checked once, then sample i is a function of (seed, i).

    dataset -> RawSample -> OpenPiSample -> RiptSample -> TrainingBatch        (a Grain pipeline)

Epoch e goes through all frames in the order of a permutation drawn from (seed, e); row j of step n of shard p of P is
sample n B + p B / P + j. So the stream does not depend on how many processes read it, and resuming is a jump to a step.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.data import holdout
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import INDEX_COLUMNS, FrameTable, delta_indices, load_table, window
from chunkwise.data.lerobot.video import LeRobotImages, file_names
from chunkwise.data.norm_stats import NormStats
from chunkwise.data.pack import TABLES, ImageReader, PackedImages, read_pack_table
from chunkwise.data.problems import Problem, list_problems
from chunkwise.data.sampling import Purpose
from chunkwise.data.shards import add_pack, is_pack
from chunkwise.data.stream import EpochOrder, StreamConfig, batches_of_run, iterator_at, require_shares
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
from chunkwise.files.identity import Check, Files, any_files, open_files
from openpi_ript.config.data import DataConfig
from openpi_ript.data import norm
from openpi_ript.data.batch import TrainingBatch, to_training_batch
from openpi_ript.data.doubts import doubts
from openpi_ript.data.outcomes import rollouts_of, starts_of
from openpi_ript.data.returns import Returns, ReturnSample
from openpi_ript.data.transforms import RawSample, RiptSample, ToOpenPi, ToRipt
from openpi_ript.robots.adapter import Adapter, find_adapter


@runtime_checkable
class BatchesConfig(StreamConfig, Protocol):
    """What `make_batches` reads of a run's config."""

    @property
    def data(self) -> DataConfig: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """A dataset that was opened, checked, and found fit for training; `open_data` makes it."""

    config: DataConfig
    files: Files
    """That it was read from, and the data.norm_stats that it uses."""
    table: FrameTable
    images: ImageReader
    stats: Mapping[str, NormStats]
    """Of "state" and "actions"; empty if nothing is normalised."""
    stats_source: Mapping[str, Any]
    """What the statistics belong to; its "fingerprint" is the dataset's."""
    to_openpi: ToOpenPi
    to_ript: ToRipt
    rows: Int64[np.ndarray, " n"]
    """Rows of the table that training samples may begin at."""
    held_rows: Int64[np.ndarray, " m"]
    """The same of what data.holdout keeps for evaluation; empty without it."""
    replaced: Mapping[str, int]
    """How many advantages each step of their shaping replaced, see `advantage.process`; empty without advantages."""
    notes: tuple[str, ...]
    """What a user should know: the state's adaptation, groups, replaced values, skipped episodes."""
    refused: tuple[str, ...] = ()
    """Those of `notes` for which a new training ends, see `Doubts`; one that goes on does as it did."""
    success_tells_apart: bool = False
    """Whether rewards are compared, and successes, were they compared instead, would find a better rollout."""
    returns: Returns | None = None
    """Tells what came of each frame, where chunks are labelled by a value."""

    @functools.cached_property
    def deltas(self) -> Int64[np.ndarray, " t"]:
        """Frames of a window, relative to its first."""
        seconds = [t / self.table.fps for t in range(self.config.horizon)]
        return delta_indices(seconds, self.table.fps, key=self.config.action_key)

    def episodes_of(self, rows: Int64[np.ndarray, " r"]) -> Int64[np.ndarray, " r"]:
        """Returns the position in the table of the episode of each row."""
        return np.searchsorted(self.table.starts, rows, side="right") - 1

    def raw(self, row: int) -> RawSample:
        """Layer 0: one frame of the dataset, with the window of actions that begins there."""
        table, config = self.table, self.config
        episode = int(self.episodes_of(np.array([row]))[0])
        start = int(table.starts[episode])
        frames, is_pad = window(np.asarray(row - start), np.asarray(table.lengths[episode]), self.deltas)
        return {
            "images": self.images.read(int(table.episodes[episode]), row - start),
            "state": table.columns[config.state_key][row],
            "action": table.columns[config.action_key][start + frames],
            "action_is_pad": is_pad,
            "task": table.tasks[int(table.columns["task_index"][row])],
            "episode": episode,
        }

    def sample(self, row: int) -> RiptSample:
        """Layer 2 of the window that begins at a row of the table."""
        sample = self.to_ript(self.to_openpi(self.raw(row)))
        return sample if self.returns is None else {**sample, "returns": self._came_of(row, sample, self.returns)}

    def _came_of(self, row: int, sample: RiptSample, returns: Returns) -> ReturnSample:
        episode = int(self.episodes_of(np.array([row]))[0])
        key, columns = self.config.correction_key, self.table.columns
        found = returns.of(
            sample["prompt"],
            row - int(self.table.starts[episode]),
            int(self.table.lengths[episode]),
            success=bool(self.to_ript.rollouts.success[episode]),
            corrected=key is not None and key in columns and bool(np.any(columns[key][row])),
        )
        if returns.config.lookahead is None:
            return found
        later = self.to_openpi(self.raw(row + returns.config.lookahead)) if found["continues"] else sample
        return {**found, "later": {"image": later["image"], "state": later["state"]}}

    def batches(
        self, *, seed: int, batch_size: int, shard: int = 0, num_shards: int = 1, start_step: int = 0
    ) -> Iterator[TrainingBatch]:
        """Endless layer 3, from step `start_step` on; each shard gets its rows of every global batch.

        Args:
          seed: Of the order of the samples.
          batch_size: b of the global batch, over all shards.
          shard: Which rows, 0 to num_shards - 1.
          num_shards: Processes that share a batch.
          start_step: Steps to jump over; costs nothing.

        Raises:
          ConfigError: If the shards do not divide the batch.
          DataError: While iterating, if an image turns out to be damaged.
        """
        import grain  # 1 s, and imports jax

        require_shares(batch_size, shard, num_shards, start=start_step)
        local = batch_size // num_shards
        order = EpochOrder(self.rows, Purpose.RIPT_ORDER, seed)
        dataset = grain.MapDataset.source(order).map(self.sample)
        dataset = dataset.batch(local, batch_fn=to_training_batch)[shard::num_shards]
        return iterator_at(dataset, start_step, threads=self.config.read_threads)


def make_batches(
    config: BatchesConfig, *, shard: int = 0, num_shards: int = 1, start_step: int = 0
) -> Iterator[TrainingBatch]:
    """Opens config.data and gives its training batches; see `open_data` and `TrainingData.batches`."""
    return batches_of_run(open_data(config.data), config, start_step=start_step, shard=shard, num_shards=num_shards)


def open_data(config: DataConfig, *, check: Check = any_files, allow_code: bool = False) -> TrainingData:
    """Opens a dataset or a pack, checks every episode, and prepares statistics, advantages and transforms.

    Args:
      config: Which dataset, and how to take it.
      check: Told which files the dataset is made of, data.norm_stats among them, before any of them is judged.
      allow_code: Whether the user named `module:factory`, if that is what data.robot.adapter is.

    Raises:
      DataError: If the dataset is bad (all problems in one error), does not fit the config, has no outcome to compute
        advantages from, nothing can be held out of it, or the statistics are another dataset's.
      ConfigError: If the pack's image size is not the config's, or no frame is left to draw, or to measure on.
    """
    budget.use(config.limits)
    adapter = find_adapter(config.robot.adapter, allow_code=allow_code)
    files = open_files(config.path, config)
    notes: list[str] = []
    table, images, skipped = _open_source(config, files, check, notes)
    _check_against_config(table, config)
    notes += [f"skipped {line}" for line in list_problems(skipped)]
    notes += [config.robot.adaptation, *_relative_notes(table, config, adapter)]
    starts = starts_of(table, config)
    held = _held_out(table, config, starts, notes)
    source = norm.stats_source(table, config)
    table = _with_prompts(table, config, notes)
    stats: Mapping[str, NormStats] = {}
    if config.norm_stats is not None:
        stats = norm.named_stats(config.norm_stats, config, source)
        if held.any():
            notes.append(
                "data.norm_stats and data.holdout are set: statistics that `inspect` wrote without --config are of all "
                "episodes, those held out too"
            )
    elif (config.state_norm, config.action_norm) != ("none", "none"):
        stats = norm.dataset_stats(table.only(~held) if held.any() else table, config, adapter=adapter)
    to_openpi = _to_openpi(config, stats, adapter)
    found = doubts(table, config, stats, adapter)
    turned = tuple(
        f"{where}: viewers and LeRobot's own reader turn such an image, and it is trained on as it is stored; turn the "
        "pixels, or take the tag away where they are right as they are"
        for where in (images.turned.values() if isinstance(images, LeRobotImages) else ())
    )
    notes += (*found.notes, *turned)
    rollouts, kept, replaced, by_success = rollouts_of(table, config, starts, held, notes)
    rows, held_rows = (np.flatnonzero(np.repeat(kept & side, table.lengths)) for side in (~held, held))
    if not rows.size or (held.any() and not held_rows.size):
        whose = " that data.holdout keeps for evaluation" if rows.size else ""
        raise ConfigError(
            f"data.advantage.uniform_groups is 'drop' and every group{whose} has one rollout or equal rewards; use "
            "'keep', or another data.advantage.group_by than "
            f"{config.advantage.group_by if config.advantage else None!r}"
        )
    return TrainingData(
        config=config,
        files=files,
        table=table,
        images=images,
        stats=stats,
        stats_source=source,
        to_openpi=to_openpi,
        to_ript=ToRipt(rollouts=rollouts),
        rows=rows,
        held_rows=held_rows,
        replaced=replaced,
        notes=tuple(notes),
        refused=(*found.refused, *turned),
        success_tells_apart=by_success,
    )


def columns_of(config: DataConfig, meta: LeRobotMeta) -> tuple[str, ...]:
    """Returns the columns that training reads; a reward or success that the dataset lacks is none of them."""
    outcomes = [key for key in (config.reward_key, config.success_key) if key in meta.features]
    others = [key for key in (config.init_key, config.correction_key) if key]
    return (*(config.state_parts or (config.state_key,)), config.action_key, *others, *outcomes)


def _open_source(
    config: DataConfig, files: Files, check: Check, notes: list[str]
) -> tuple[FrameTable, ImageReader, Sequence[Problem]]:
    path, cameras = Path(config.path), tuple(config.cameras.values())
    skipped: Sequence[Problem] = ()
    _require_columns_of_the_robot(config)
    if config.norm_stats is not None:
        files.add_other("data.norm_stats", norm.stats_file(Path(config.norm_stats)))
    if is_pack(path):
        add_pack(files, TABLES)
        check(files)
        table = read_pack_table(path)
        images = PackedImages(path, table, cameras, files=files)
        if images.image_size != config.image_size:
            raise ConfigError(
                f"data.image_size is {config.image_size}, and {path} was packed at {images.image_size}; change the "
                "field, or pack again"
            )
    else:
        meta = read_meta(path, bounds=files.bounds, tolerance_s=config.tolerance_s, wrong_totals=config.wrong_totals)
        notes += meta.notes
        files.require(file_names(meta, cameras))
        check(files)
        images = LeRobotImages(meta, cameras, files=files, upright=False)
        table, skipped = load_table(meta, columns_of(config, meta), on_bad=config.on_bad, check=images.check)
        notes += _clock_notes(table, config)
    for name in files.names:  # what was read just now is what was hashed
        if name.endswith((".parquet", ".npz", ".json", ".jsonl")):
            files.require_unchanged(files.place(name))
    columns = dict(table.columns)
    if config.state_parts:
        missing = sorted(set(config.state_parts) - set(columns))
        if missing:
            raise DataError(f"{path}: expected columns {missing} as data.state_parts says, found {sorted(columns)}")
        parts = [columns[key].astype(np.float32).reshape(table.frames, -1) for key in config.state_parts]
        columns[config.state_key] = np.concatenate(parts, axis=1)
    for key in (config.init_key or config.state_key, config.correction_key, config.state_key, config.action_key):
        if key is not None and key not in columns:
            raise DataError(f"{path}: expected column {key!r}, found {sorted(columns)}")
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for field in ("reward_key", "success_key", "correction_key"):
        key = getattr(config, field)
        if key not in (defaults[field], "none", *columns):
            raise DataError(
                f"{path}: expected column {key!r} as data.{field} says, found {sorted(columns)}; 'none' is for none"
            )
        if key in columns and columns[key].ndim != 1:
            raise DataError(
                f"{path}: {key}: expected one number a frame, found {columns[key].shape[1]}; name another column in "
                f"data.{field}"
            )
        if key in columns and field != "reward_key":
            _require_flags(table, key, f"{path}: {key}", field)
    for key in (config.state_key, config.action_key):
        columns[key] = columns[key].astype(np.float32).reshape(table.frames, -1)
    return dataclasses.replace(table, columns=columns), images, skipped


def _require_flags(table: FrameTable, key: str, source: str, field: str) -> None:
    """Raises DataError where a column of flags is neither 0 nor 1: any other number would count as true."""
    wrong = np.flatnonzero(~np.isin(table.columns[key], (0, 1)))
    if len(wrong):
        episode = int(np.searchsorted(table.starts, wrong[0], side="right")) - 1
        raise DataError(
            f"{source}, episode {table.episodes[episode]}, row {wrong[0] - table.starts[episode]}: expected 0 or 1, "
            f"found {table.columns[key][wrong[0]]} ({len(wrong)} such rows); name another column in data.{field}, or "
            "'none'"
        )


def _require_columns_of_the_robot(config: DataConfig) -> None:
    """Raises ConfigError where state or action is one of the columns by which a table is read.

    The task's number may be a part of the state: so may a policy be told the task.
    """
    indices = {*INDEX_COLUMNS, "index"}
    used = {"state_parts": {*config.state_parts} - {"task_index"}} if config.state_parts else {}
    for field, keys in {"state_key": {config.state_key}, "action_key": {config.action_key}, **used}.items():
        if found := sorted(keys & indices):
            raise ConfigError(f"data.{field}: expected columns of the robot's, found {found}, which number the rows")


def _clock_notes(table: FrameTable, config: DataConfig) -> Iterator[str]:
    """How far timestamps lie off, where a config lets them lie farther off than LeRobot does."""
    if config.tolerance_s > TIME_TOLERANCE_S:
        frame = np.arange(table.frames) - np.repeat(table.starts, table.lengths)
        off = float(np.abs(table.columns["timestamp"].astype(np.float64) - frame / table.fps).max())
        yield f"timestamps lie up to {off:.2g} s from frame_index / fps; data.tolerance_s is {config.tolerance_s:g}"


def _check_against_config(table: FrameTable, config: DataConfig) -> None:
    if config.fps is not None and table.fps != config.fps:
        raise DataError(f"{config.path}: expected {config.fps:g} fps as data.fps says, found {table.fps:g}")
    for key, name in ((config.state_key, "state_dim"), (config.action_key, "action_dim")):
        wanted, found = getattr(config.robot, name), table.columns[key].shape[1]
        if wanted != found:
            raise DataError(f"{config.path}: expected {key!r} of {wanted} values as robot.{name} says, found {found}")
    used = np.unique(table.columns["task_index"]).tolist()
    empty = [index for index in used if not table.tasks[index].strip()]
    if empty and not (config.default_prompt or "").strip():
        raise DataError(
            f"{config.path}: expected an instruction for tasks {empty}, found ''; set data.default_prompt (of inspect "
            "--default-prompt)"
        )


def _relative_notes(table: FrameTable, config: DataConfig, adapter: Adapter) -> Iterator[str]:
    """What is subtracted, and a doubt where the actions look relative already.

    A target lies near the state, so subtracting the state leaves less variance. If it leaves more in every dimension,
    the dataset probably holds relative actions, and the transform would be applied a second time.
    """
    dims = list(config.robot.relative_dims)
    yield f"action {config.robot.action_dim}: dimensions {dims} become action - state, the others stay as they are"
    if dims:
        state = adapter.state(table.columns[config.state_key])[:, dims]
        action = adapter.action(table.columns[config.action_key])[:, dims]
        if ((action - state).var(0) > action.var(0)).all():
            yield (
                f"{config.action_key}: subtracting the state makes every dimension of {dims} vary more; if the "
                "dataset's actions are relative already, set robot.relative_dims to ()"
            )


def _with_prompts(table: FrameTable, config: DataConfig, notes: list[str]) -> FrameTable:
    """The table with the prompts that frames are trained on as its tasks."""
    default = config.default_prompt
    if default is None:
        return table
    if not config.prompt_from_task:
        notes.append(f"every frame's prompt is data.default_prompt, {default!r}, as data.prompt_from_task False says")
        return dataclasses.replace(table, tasks=dict.fromkeys(table.tasks, default))
    if all(table.tasks[index].strip() for index in np.unique(table.columns["task_index"]).tolist()):
        notes.append(
            f"data.default_prompt, {default!r}, is the prompt of no frame: each has its task. To train on the prompt "
            "that a policy takes where none is sent, set data.prompt_from_task False"
        )
    return table


def _to_openpi(config: DataConfig, stats: Mapping[str, NormStats], adapter: Adapter) -> ToOpenPi:
    """The transform of layer 1."""
    for name, mode in (("state", config.state_norm), ("actions", config.action_norm)):
        if mode != "none" and name not in stats:
            raise DataError(f"{config.norm_stats}: expected statistics of {name!r}, found {sorted(stats)}")
    state, action = norm.affines(config, stats)
    return ToOpenPi(
        cameras=config.cameras,
        image_size=config.image_size,
        robot=config.robot,
        state=state[0],
        action=action[0],
        default_prompt=config.default_prompt,
        adapter=adapter,
    )


def _held_out(
    table: FrameTable, config: DataConfig, starts: Sequence[tuple[str, str]], notes: list[str]
) -> Bool[np.ndarray, " e"]:
    """Which episodes data.holdout keeps for evaluation, by their index in the dataset; of rollouts, by their start."""
    names = [str(index) for index in table.episodes.tolist()]
    what = "episodes"
    if config.advantage is not None:
        names, what = [" ".join(start) for start in starts], "initial states"
    each = list(dict.fromkeys(names))
    chosen = dict(zip(each, holdout.held_out(each, config.holdout).tolist(), strict=True))
    held = np.array([chosen[name] for name in names])
    if not config.holdout:
        return held
    if not held.any():
        raise DataError(
            f"{config.path}: data.holdout is {config.holdout}, and there is one of {what}; expected 2 or more, or "
            "data.holdout 0"
        )
    notes.append(f"data.holdout {config.holdout:g}: {held.sum()} of {len(held)} episodes are kept for evaluation alone")
    return held
