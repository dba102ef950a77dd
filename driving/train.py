"""Trains an encoder, or waypoints; records the dataset if it is missing, then hands data and task to the loop."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from chunkwise.arrays import NumpyTree
from chunkwise.cli.named_paths import require_reachable
from chunkwise.data.verdict import Verdict
from chunkwise.distributed import processes
from chunkwise.envs.recorder import to_be_recorded
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.policies.recorded_images import images_json, shrunk_of, sizes_of
from chunkwise.printable import say
from chunkwise.reports.report import write_report
from chunkwise.state import TrainState
from chunkwise.train.ahead import Call, Dtype, WithoutData, of_rows, require_float32, require_known
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from driving import evaluate
from driving.config import DrivingConfig
from driving.data.batches import DrivingData, open_data
from driving.data.images import recorded_sizes, shrunk_cameras
from driving.data.tables import PAST_S
from driving.data.validation import (
    calibrated_note,
    members,
    require_calibrated,
    require_futures,
    require_held_out,
    require_moved,
    require_scored,
    require_shown,
    scored,
)
from driving.eval.divided import Divided
from driving.model.images import changes_pixels
from driving.record import MADE_BY, METADATA, record
from driving.tasks.held_out import HeldOut, means_of
from driving.tasks.pretrain import PretrainTask
from driving.tasks.waypoints import WaypointTask, input_names, predict, tell_of_other_drives

if TYPE_CHECKING:
    from driving.online.round import Rounds


class EvaluatedPretrain(PretrainTask):
    """A pretraining that is measured on the validation drives, and probed at its end."""

    def __init__(self, config: DrivingConfig, data: DrivingData, folder: Path) -> None:
        super().__init__(config, data)
        self.folder = folder
        self._held_out: HeldOut | None = None  # opened at the first evaluation, by the process that evaluates

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """The objectives on the validation drives; at the end probes, beside those of an encoder that learnt nothing.

        Where the split has no validation drives, the second alone.
        """
        check = self.data.files.require_equal
        metrics: dict[str, float] = {}
        if _has_validation(self.data):
            if self._held_out is None:
                self._held_out = HeldOut(self, open_data(self.config.data, "val", check=check))
            metrics = self._held_out.measure(state.params)
            loss, samples = metrics["holdout/loss"], self._held_out.rows.size
            print(f"step {int(state.step)}: held out, {samples} samples of val: loss {loss:.4g}", flush=True)
        if final:
            probed = evaluate.probe(self.config, state.params["encoder"], check=check)
            metrics |= evaluate.report(probed, self.folder, int(state.step))
        return metrics

    def finish(self) -> None:
        """Nothing to draw."""


class EvaluatedWaypoints(WaypointTask):
    """Waypoints that are measured on drives that were not trained on."""

    def __init__(self, config: DrivingConfig, data: DrivingData, folder: Path, shrunk: tuple[str, ...] = ()) -> None:
        super().__init__(config, data)
        self.folder = folder
        self._divided = Divided(folder)
        self.rounds: Rounds | None = None if config.rollout is None else _rounds(config, folder, data, shrunk)

    def load(self, state: TrainState) -> TrainState:
        """As `WaypointTask.load`; says where the start learnt from other drives than this run."""
        if self.settings.weights is not None and processes.is_primary():
            tell_of_other_drives(Path(self.settings.weights), self.data.fingerprint()["manifest"])
        return super().load(state)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """What the model sees of the batches, from update `start_step` on, and decisions of drives where some are
        driven."""
        if self.rounds is None:
            return super().batches(start_step, shard=shard, num_shards=num_shards)
        imitated = functools.partial(super().batches, shard=shard, num_shards=num_shards)
        return self.rounds.batches(imitated, start_step, shard=shard, num_shards=num_shards)

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """Errors on the validation drives; at the end also on those of eval.split, beside every blind predictor.

        The first are there at the end as well, so that checkpoint.keep_best has one metric at every evaluation. Where
        the split has no validation drives, the second alone.
        """
        check, over = self.data.files.require_equal, self._divided.at(int(state.step))
        metrics: dict[str, float] = {}
        if _has_validation(self.data):
            metrics = evaluate.quick(self.config, state.params, check=check, over=over)
        if final:
            plot = self.folder / evaluate.PLOT
            compared = evaluate.compare(self.config, state.params, plot, check=check, over=over)
            metrics |= evaluate.report(compared, self.folder, int(state.step))
        return metrics

    def help_evaluate(self, state: TrainState, *, final: bool) -> None:
        """Predicts this process's part of the frames."""
        check, over = self.data.files.require_equal, self._divided.at(int(state.step))
        val = _has_validation(self.data)
        evaluate.help_predict(self.config, state.params, val=val, final=final, check=check, over=over)

    def finish(self) -> None:
        """Ends the workers, and says where the figure is, which the last evaluation drew."""
        if self.rounds is not None:
            self.rounds.close()
        if (self.folder / evaluate.PLOT).exists():
            print(f"figure: {self.folder / evaluate.PLOT}", flush=True)


def without_data(config: DrivingConfig, sizes: Mapping[str, int]) -> WithoutData:
    """Returns the programs of a run, which its config tells alone.

    Args:
      config: Of the run.
      sizes: Empty.
    """
    require_known(sizes, ())
    no_data: Any = None  # neither an update nor a loss reads any
    row = functools.partial(of_rows, config.train.batch_size)
    cameras, moments, size = len(config.data.cameras), len(config.data.offsets_s), config.data.image_size
    if config.objective is not None:
        task = PretrainTask(config, no_data)
        batch = {
            "images": row("uint8", moments, cameras, *size, 3),
            "image_valid": row("bool", moments, cameras),
            "t": row("float32", moments),
            "episode": row("int32"),
            "relative_pose": row("float32", moments, 3),
            "relative_pose_valid": row("bool", moments),
        }
        rows = config.train.batch_size // config.train.grad_accum_steps
        held = Call(function=means_of(task), inputs=(_of(batch, rows), jax.random.key(0)))
        if changes_pixels(config.data.augment):
            changes = {"crop": row("float32", cameras, 3), "colour": row("float32", moments, cameras, 3)}
            batch |= {**changes, "flipped": row("bool")}
        return WithoutData(updates=task, batch=batch, served=_no_policy, evaluated=lambda: held)
    past, steps = 2 * len(PAST_S), config.data.waypoint_steps
    task = WaypointTask(config, no_data)
    assert config.waypoints is not None
    views = cameras * (moments if config.waypoints.use_moments else 1)
    batch = {
        "images": row("uint8", views, *size, 3),
        "image_valid": row("bool", views),
        "motion": row("float32", 2),
        "past_motion": row("float32", past),
        "route_command": row("int32"),
        "known_motion": row("bool", 2 + past),
        "waypoints": row("float32", steps, 2),
        "waypoint_valid": row("bool", steps),
    }

    if config.waypoints.use_calibration:
        batch |= {"intrinsics": row("float32", views, 3, 3), "extrinsics": row("float32", views, 4, 4)}
        batch |= {"calibration_valid": row("bool", views)}

    if changes_pixels(config.data.augment):
        batch |= {"crop": row("float32", cameras, 3), "colour": row("float32", views, 3), "flipped": row("bool")}
    if config.waypoints.world is not None:
        batch |= {"later_images": row("uint8", cameras, *size, 3), "later_valid": row("bool", cameras)}
        if "colour" in batch:
            batch |= {"later_colour": row("float32", cameras, 3)}
    if config.rollout is not None:
        seen = {name: batch[name] for name in input_names(task.settings)}
        batch |= {"decisions": {**seen, "mode": row("int32"), "log_prob": row("float32"), "advantage": row("float32")}}

    def served(rows: int, dtype: Dtype) -> Call:
        require_float32("driving", dtype)
        seen = {name: batch[name] for name in input_names(task.settings)}
        return Call(function=functools.partial(predict, task.model), inputs=(_of(seen, rows),))

    evaluated = functools.partial(served, config.eval.batch_size, "float32")
    return WithoutData(updates=task, batch=batch, served=served, evaluated=evaluated)


def _of(batch: Any, rows: int) -> Any:
    """Shapes of a batch with another number of rows."""
    return jax.tree.map(lambda x: x.update(shape=(rows, *x.shape[1:])), batch)


def _no_policy(rows: int, dtype: Dtype) -> Call:
    raise ConfigError("objective is set: a pretraining has no policy to serve; expected a config that learns waypoints")


def main(config: DrivingConfig, name: str) -> None:
    """Trains what `config` describes, in a run folder named after `name`."""
    named = {"data.path": config.data.path, "waypoints.weights": config.waypoints and config.waypoints.weights}
    processes.on_all(lambda: require_reachable(named))
    hold, longest = config.rollout and config.rollout.hold, config.data.longest_hold
    if hold is not None and hold > longest and not config.run.resume:  # those of before go on
        raise ConfigError(
            f"rollout.hold is {hold} tenths of a second; expected at most {longest}, where a plan ends "
            "(data.waypoint_steps, data.waypoint_dt_s)"
        )
    with RunFolder(config, name) as folder:
        print(f"run folder {folder.path}", flush=True)
        processes.run_on_primary(lambda: _record_if_missing(config, begun=folder.begun))
        data = processes.primary_then_all(lambda: open_data(config.data, check=folder.require_same_files))
        for note in data.notes:
            say(f"data: {note}")
        for note in _fitting(config, data):
            say(f"data: {note}")
        if config.objective is not None:
            ended = fit(config, EvaluatedPretrain(config, data, folder.path), folder)
        else:
            shrunk = _shrunk(config, folder.path, data)
            folder.kept |= images_json(shrunk, _sizes(config, folder.path, data))
            task = EvaluatedWaypoints(config, data, folder.path, shrunk)
            load = task.load if task.loads else None
            ended = fit(config, task, folder, load=load, interaction=task.rounds)
        if ended:
            write_report(folder.path)


def of_training(config: DrivingConfig) -> Verdict:
    """Asks of a dataset what a run asks of it before its first update.

    No image is read, nothing is driven, and a split that is drawn is not written.
    """
    notes: list[str] = []
    try:
        data = open_data(config.data, keep_split=False)
        notes += data.notes
        notes += _fitting(config, data)
    except RunError as error:
        return Verdict(notes=tuple(notes), refusal=str(error), exit_code=error.exit_code)
    return Verdict(notes=tuple(notes), refusal=None)


def _fitting(config: DrivingConfig, data: DrivingData) -> list[str]:
    """What is to be said of data that a run can learn from, and be measured on. Raises DataError where it cannot."""
    if compared := _compared_moments(config):
        shown = {offset: share for offset, share in data.shown().items() if offset in compared}
        require_shown(shown, data.image_step_s(), config.data.path)
    if config.objective is not None and config.objective.ego_motion:
        require_moved(data.moved(), config.data.path)
    require_held_out(data.index, config.data, config.eval.split)
    if not set(config.data.cameras) & set(data.index.cameras) and (config.views or config.objective is not None):
        raise DataError(
            f"{config.data.path}: expected images of one of data.cameras {config.data.cameras}, found cameras "
            f"{data.index.cameras}; waypoints without images take waypoints.use_cameras false"
        )
    if config.objective is not None:
        return []
    require_scored(scored(data.tables.waypoint_valid[data.anchors], config.data.waypoint_dt_s), config.data.path)
    elsewhere = require_futures(data.index, config.data, config.eval.split, data.tables.waypoint_valid)
    notes = [elsewhere] if elsewhere else []
    if config.waypoints is not None and config.waypoints.use_calibration:
        require_calibrated(data.calibrated(), config.data.path)
        notes.append(calibrated_note(data.calibrated()))
    return notes


def _has_validation(data: DrivingData) -> bool:
    """Whether there are drives to measure a run on while it trains."""
    return len(members(data.index, data.config, "val", [])) > 0


def _compared_moments(config: DrivingConfig) -> tuple[float, ...]:
    """Those of data.offsets_s whose images a run learns from together; none where it takes each by itself."""
    if config.waypoints is not None and config.waypoints.world is not None:
        return (0.0, config.data.offsets_s[-1])
    if config.waypoints is not None:
        return config.data.offsets_s if config.waypoints.use_moments else ()
    pairs = config.objective is not None and config.objective.temporal + config.objective.ego_motion > 0
    return (config.data.offsets_s[0], config.data.offsets_s[-1]) if pairs else ()


def _rounds(config: DrivingConfig, folder: Path, data: DrivingData, shrunk: tuple[str, ...]) -> "Rounds":
    """What is driven between updates."""
    from driving.online.round import Rounds  # a simulator, which a run on a dataset alone does not need

    return Rounds(config, folder, data.index, shrunk=shrunk)


def _shrunk(config: DrivingConfig, run: Path, data: DrivingData) -> tuple[str, ...]:
    """Cameras of a run whose policy shrinks images as training shrinks their JPEGs; the same on all processes."""

    def look() -> list[str]:
        seen = config.data.cameras if config.views else ()
        return list(shrunk_of(run, list(shrunk_cameras(data.index, seen, config.data.image_size))))

    return tuple(processes.broadcast_one_to_all(look))


def _sizes(config: DrivingConfig, run: Path, data: DrivingData) -> dict[str, tuple[int, int]]:
    """Height and width at which the cameras that the policy sees were recorded; the same on all processes."""
    seen = config.data.cameras if config.views else ()
    return processes.broadcast_one_to_all(lambda: sizes_of(run, recorded_sizes(data.index, seen)))


def _record_if_missing(config: DrivingConfig, *, begun: bool) -> None:
    if config.record is not None and to_be_recorded(Path(config.data.path), METADATA, MADE_BY):
        record(config.record, config.data.path, begun=begun)
