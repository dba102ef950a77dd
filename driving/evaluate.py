"""What a run learnt, on drives that it was not trained on, beside those who see nothing or learnt nothing.

    python -m driving.evaluate RUN...              # one table of all runs, from their evaluation.json
    python -m driving.evaluate --again RUN...      # computed anew from each run's newest checkpoint
    python -m driving.evaluate RUN --closed-loop   # drives in the town (driving/eval/routes.py)

Writes <run>/evaluation.json and, for waypoints, <run>/evaluation.png.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64, Int64

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.reader import read_fingerprint
from chunkwise.checkpoint.saved_steps import SAVES, steps_in
from chunkwise.checkpoint.weights import read_weights
from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.config.saved import read_config
from chunkwise.errors import ConfigError, DataError, NonFiniteError, RunError, StorageError
from chunkwise.files import budget
from chunkwise.files.durable import write_json
from chunkwise.files.identity import Check, any_files
from chunkwise.files.strict_json import parse_json
from chunkwise.files.trust import require_own_files
from chunkwise.reports.compare import names_of
from chunkwise.train import rngs
from chunkwise.train.gradients import weighted
from chunkwise.train.run_dir import storage_error
from driving.config import DrivingConfig
from driving.data.batches import DrivingData, open_data
from driving.data.rater import RATE_HZ, TIMES_S, rater_feedback_scores, reaches
from driving.data.split import SPLIT_FILE
from driving.data.validation import SCORED_S, between
from driving.eval import plot, probes, routes
from driving.eval.baselines import EgoStates, blind_predictions, knows_enough
from driving.eval.divided import Over, here
from driving.eval.metrics import LEAST_DRIVES, Score, least, measures, score
from driving.model.heads import Modes
from driving.policies.policy import WaypointPolicy
from driving.sim.environment import SECONDS
from driving.sim.vehicle import CONTROL_S
from driving.tasks import pretrain, waypoints

REPORT, PLOT = "evaluation.json", "evaluation.png"
MODEL = "model"
"""Row of the run's own predictions."""
RATER = "rater_feedback"
FARTHEST = 1e9
"""Metres, and logits: what is beyond is no prediction."""


def quick(config: DrivingConfig, params: PyTree, *, check: Check = any_files, over: Over = here) -> dict[str, float]:
    """Returns mean errors on the validation drives, and the loss there, for the curve during training.

    `val/ade_1s` and so on (driving/eval/metrics.py), and `holdout/loss`, what training minimises, over all known steps;
    each left out where no step that it needs is known. `check` as of `open_data`, `over` as of `predict`.
    """
    data = open_data(config.data, "val", check=check)
    states = EgoStates(data, data.anchors[:: config.eval.every])
    predicted = _finite(predict(config, params, data, states.rows, over))
    values = measures(predicted, states.waypoints, states.valid, _dt(config))
    several = _modes_of(config, params, data, states.rows, over)
    if several is not None:
        values |= least(several[0], states.waypoints, states.valid, _dt(config))
    metrics = {f"val/{name}": float(np.nanmean(value)) for name, value in values.items() if np.isfinite(value).any()}
    if states.valid.any():
        assert config.waypoints is not None
        places, logits = (predicted[:, None], np.zeros((len(predicted), 1))) if several is None else several
        modes = Modes(jnp.asarray(places), jnp.asarray(logits, jnp.float32))
        losses = waypoints.losses_of(modes, *(jnp.asarray(x) for x in (states.waypoints, states.valid)))
        metrics["holdout/loss"] = float(weighted(losses, waypoints.loss_weights(config.waypoints)))
    return metrics


def compare(
    config: DrivingConfig,
    params: PyTree,
    out: Path | None = None,
    *,
    check: Check = any_files,
    over: Over = here,
) -> dict[str, Any]:
    """Errors of the run's waypoints and of every blind predictor on the drives of eval.split.

    Args:
      config: Of the run.
      params: Its weights.
      out: Where to draw the figure, or None.
      check: As of `open_data`.
      over: As of `predict`.

    Returns:
      {"split", "drives", "samples", "rated", "rows": {predictor: {measure: {mean, low, high}}}, "gain": {measure:
      {...}}, "notes"}; gain is the paired difference to the strongest blind row, history_mlp - model, metres, above 0
      where cameras help, or, for the rater feedback score, model - history_mlp. A measure that no sample has is left
      out; formulas of speed and yaw rate are measured where these are known, which a note says if it is not everywhere.
    """
    data, train = (open_data(config.data, split, check=check) for split in (config.eval.split, "train"))
    states = EgoStates(data, _held_out(data, config.eval.every))
    predicted = {MODEL: _finite(predict(config, params, data, states.rows, over))}
    several = _modes_of(config, params, data, states.rows, over)
    predicted |= blind_predictions(config, EgoStates(train), states)
    errors = {name: measures(one, states.waypoints, states.valid, _dt(config)) for name, one in predicted.items()}
    gain = {key: errors["history_mlp"][key] - value for key, value in errors[MODEL].items()}
    notes = [
        f"{key}: no sample's future is known that far" for key, value in gain.items() if not np.isfinite(value).any()
    ]
    missed = between(config.data.waypoint_steps, _dt(config))
    notes += [missed] if missed else []
    if not gain and not missed:
        notes.append(f"nothing is measured: the waypoints end before {SCORED_S[0]:g} s")
    drives = len(np.unique(states.drive))
    if drives < LEAST_DRIVES:
        notes.append(f"{drives} drive(s) say too little of how drives differ for intervals, {LEAST_DRIVES} are needed")
    if several is not None:
        errors[MODEL] |= least(several[0], states.waypoints, states.valid, _dt(config))
    feedback, rated = _rater_feedback(config, data, states, predicted, notes)
    if feedback:
        errors = {name: values | {RATER: feedback[name]} for name, values in errors.items()}
        gain[RATER] = feedback[MODEL] - feedback["history_mlp"]
    for name, known in knows_enough(states).items():
        errors[name] = {key: np.where(known, value, np.nan) for key, value in errors[name].items()}
        if not known.all():
            wanted = "speed is" if name == "constant_velocity" else "speed and yaw rate are"
            notes.append(f"{name}: measured at {known.sum()} of {len(known)} frames, whose {wanted} known")
    moments = config.eval.plotted_moments
    if out is not None and moments:
        try:
            drawn = plot.draw(out, data, states, predicted[MODEL], predicted["history_mlp"], moments)
            notes += [] if drawn else ["no figure: no sample's future is known"]
        except OSError as error:  # the numbers count for more
            notes.append(f"no figure: cannot write {out}: {error.strerror or error}")

    def scored(values: dict[str, Any]) -> dict[str, Any]:
        known = {key: value for key, value in values.items() if np.isfinite(value).any()}
        return {key: vars(score(value, states.drive)) for key, value in known.items()}

    return {
        "kind": "waypoints",
        "split": config.eval.split,
        "drives": drives,
        "samples": int(states.valid.all(axis=1).sum()),
        "rated": rated,
        "rows": {name: scored(values) for name, values in errors.items()},
        "gain": scored(gain),
        "notes": notes,
    }


def help_predict(
    config: DrivingConfig, params: PyTree, *, val: bool, final: bool, check: Check = any_files, over: Over
) -> None:
    """Predicts this process's parts of what another predicts in `quick`, if `val`, and if `final` in `compare`."""
    asked = []
    if val:
        drives = open_data(config.data, "val", check=check)
        asked.append((drives, drives.anchors[:: config.eval.every]))
    if final:
        data = open_data(config.data, config.eval.split, check=check)
        asked.append((data, _held_out(data, config.eval.every)))
    for of, rows in asked:
        _finite(predict(config, params, of, rows, over))  # the first process ends there, too
        _modes_of(config, params, of, rows, over)


def _held_out(data: DrivingData, every: int) -> Int64[np.ndarray, " b"]:
    """Anchors, every `every`-th of them, and all that people rated."""
    return np.union1d(data.anchors[::every], data.anchors[data.index.rated_counts[data.anchors] > 0])


def _rater_feedback(
    config: DrivingConfig,
    data: DrivingData,
    states: EgoStates,
    predicted: dict[str, Float32[np.ndarray, "b t 2"]],
    notes: list[str],
) -> tuple[dict[str, Float64[np.ndarray, " b"]], int]:
    """Rater feedback score of every predictor, NaN where a frame has none, and how many frames have one."""
    known = data.tables.speed_valid[states.rows]
    rated = [data.index.rated(row) for row in states.rows.tolist()]
    count = sum(map(bool, rated))
    steps, dt_s = config.data.waypoint_steps, _dt(config)
    if not count:
        return {}, 0
    if not reaches(steps, dt_s):
        wanted = f"--data.waypoint-steps {round(max(TIMES_S) * RATE_HZ)} --data.waypoint-dt-s {1 / RATE_HZ:g}"
        notes.append(
            f"{RATER}: {count} frame(s) have rated trajectories, and the score looks {max(TIMES_S):g} s ahead; the "
            f"waypoints of this run end after {steps * dt_s:g} s. Train with {wanted}"
        )
        return {}, 0
    usable = [trajectories if known[i] else () for i, trajectories in enumerate(rated)]
    left = sum(map(bool, usable))
    if left < count:
        notes.append(f"{RATER}: {count - left} frame(s) with rated trajectories left out, whose speed is not known")
    scores = {name: rater_feedback_scores(one, dt_s, usable, states.motion[:, 0]) for name, one in predicted.items()}
    return scores, left


def probe(config: DrivingConfig, encoder: PyTree, *, check: Check = any_files) -> dict[str, Any]:
    """Linear probes and retrieval of an encoder and of one with fresh weights, on the drives of eval.split.

    Beside them what the motion so far tells of what lies ahead, without an image.

    `check` as of `open_data`.
    """
    train, held_out = (open_data(config.data, split, check=check) for split in ("train", config.eval.split))
    init = jax.jit(lambda key: pretrain.init_params(config, key)["encoder"])  # not layer by layer
    fresh = init(rngs.key(config.run.seed, "untrained"))
    labels = (probes.ahead_labels(train), probes.ahead_labels(held_out))
    rows = {
        name: probes.probe(config, params, train, held_out, labels)
        for name, params in ((MODEL, encoder), ("untrained", fresh))
    }
    if blind := probes.ahead_of(train, held_out, labels):
        rows["motion"] = blind
    wanted = {"speed_r2": "no frame of a split knows speed, yaw rate and all moments"}
    wanted["retrieval_top1"] = f"no frame has another {probes.LATER_S:g} s later"
    wanted["curvature_r2"] = "no car goes 17.5 m on, or all go straight"
    wanted["stop_auroc"] = "nobody stops within 3 s, or everybody does"
    unsaid = "drives say nothing of it (surroundings, which a pack does not keep), or always the same"
    wanted |= {"vehicle_ahead_r2": unsaid, "red_light_auroc": unsaid}
    notes = [f"{name}: {reason}" for name, reason in wanted.items() if name not in rows[MODEL]]
    return {
        "kind": "pretraining",
        "split": config.eval.split,
        "drives": len(np.unique(held_out.index.recording_of(held_out.anchors))),
        "rows": rows,
        "notes": notes,
    }


def report(result: dict[str, Any], folder: Path, step: int) -> dict[str, float]:
    """Writes evaluation.json of so many updates, prints the table, and gives the metrics for the run's log."""
    print(text([(folder.name, result)]), flush=True)  # first: a full disk does not take it
    with storage_error(folder, REPORT):
        write_json(folder / REPORT, {"step": step} | result)
    metrics: dict[str, float] = {}
    for row, values in result["rows"].items():
        for name, value in values.items():
            if isinstance(value, dict):
                ends = {end: one for end, one in value.items() if one is not None}
                metrics |= {f"{row}/{name}{'' if end == 'mean' else f'_{end}'}": one for end, one in ends.items()}
            else:
                metrics[f"{row}/{name}"] = value
    return metrics


def predict(
    config: DrivingConfig, params: PyTree, data: DrivingData, rows: Int64[np.ndarray, " b"], over: Over = here
) -> Float32[np.ndarray, "b t 2"]:
    """Predicts the waypoints of frames (rows of the index), metres; `over` says who computes which part of them."""
    policy, each = WaypointPolicy(config, params), parts(rows, config.eval.batch_size)

    def part(number: int) -> tuple[np.ndarray, ...]:
        batch = data.batch(each[number])
        return (policy.predict(waypoints.inputs(batch, config.data.anchor, config.waypoints)),)

    out = [places for (places,) in over(len(each), part)]
    return np.concatenate(out)[: len(rows)]


def _modes_of(
    config: DrivingConfig, params: PyTree, data: DrivingData, rows: Int64[np.ndarray, " b"], over: Over
) -> tuple[Float32[np.ndarray, "b m t 2"], Float32[np.ndarray, "b m"]] | None:
    """All modes of frames, and their logits; None where there is one alone."""
    if config.waypoints is None or config.waypoints.modes == 1:
        return None
    policy, each = WaypointPolicy(config, params), parts(rows, config.eval.batch_size)

    def part(number: int) -> tuple[np.ndarray, ...]:
        return policy.modes(waypoints.inputs(data.batch(each[number]), config.data.anchor, config.waypoints))

    places, logits = (np.concatenate(found)[: len(rows)] for found in zip(*over(len(each), part), strict=True))
    return _finite(places), _finite(logits)


def _finite(predicted: np.ndarray) -> np.ndarray:
    """Returns what was predicted. Raises NonFiniteError where it is no number: errors would leave it out as unknown."""
    bad = ~(np.abs(predicted) < FARTHEST).reshape(len(predicted), -1).all(axis=1)
    if bad.any():
        raise NonFiniteError(
            f"the model's waypoints are NaN, Inf or beyond {FARTHEST:g} m at {bad.sum()} of {len(predicted)} frames; "
            "lower optim.learning_rate, or set optim.clip_norm"
        )
    return predicted


def parts(rows: Int64[np.ndarray, " b"], size: int) -> list[Int64[np.ndarray, " size"]]:
    """Rows in parts of one size, so that one program serves all; the last is filled up with its own last row."""
    whole = np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % size)])
    return list(whole.reshape(-1, size))


def text(results: list[tuple[str, dict[str, Any]]]) -> str:
    """The table of runs, and below it what a reader has to know of them."""
    notes = [f"{name}: {note}" for name, result in results for note in result.get("notes", ())]
    return "\n".join([table(results), *(["", *notes] if notes else [])])


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """A table in Markdown for each set of drives that runs were measured on.

    Each lists blind predictors once; where those of a further run differ, they follow with its name.
    """
    lines: list[str] = []
    sets: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, result in sorted(results, key=lambda one: one[1]["kind"] != "waypoints"):
        sets.setdefault(_drives_of(result), []).append((name, result))
    for chosen in sets.values():
        kind = chosen[0][1]["kind"]
        columns = list(dict.fromkeys(key for _, result in chosen for row in result["rows"].values() for key in row))
        header = f"| {kind}, {chosen[0][1]['drives']} {chosen[0][1]['split']} drives | " + " | ".join(columns) + " |"
        lines += ["", header, "|---" * (len(columns) + 1) + "|"]
        rows: dict[str, dict[str, Any]] = {}
        for name, result in chosen:
            for key, value in result["rows"].items():
                before = rows.get(key) or value
                printed = [[_cell(row.get(column)) for column in columns] for row in (value, before)]
                rows[key if printed[0] == printed[1] else f"{key} ({name})"] = value  # of its own drives and seed
            del rows[MODEL]
        runs = [(name, result["rows"][MODEL]) for name, result in chosen]  # whose folder may be named like a predictor
        lines += [
            f"| {name} | " + " | ".join(_cell(row.get(key)) for key in columns) + " |"
            for name, row in [*rows.items(), *((f"{name} (run)" if name in rows else name, row) for name, row in runs)]
        ]
    return "\n".join(lines)


def _drives_of(result: dict[str, Any]) -> str:
    """What tells the drives of a report: their number, and, as printed, what depends on them alone and on no seed.

    Where no speed is known, by what depends on the training drives too.
    """
    driven = "constant_velocity" if result["rows"].get("constant_velocity") else "mean_trajectory"
    alone = [(driven, "ade_1s"), ("untrained", "retrieval_chance")]
    cells = [_cell(result["rows"].get(row, {}).get(name)) for row, name in alone]
    return json.dumps([result["kind"], result["split"], result["drives"], *cells])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return str(Score(**value)) if isinstance(value, dict) else f"{value:.3f}"


def _dt(config: DrivingConfig) -> float:
    return config.data.waypoint_dt_s


def evaluate_run(run: Path) -> dict[str, Any]:
    """Evaluates the newest checkpoint of a run, and writes what the run itself writes at its end.

    Raises:
      ConfigError: If the folder is no run of this package.
      DataError: If there is no whole checkpoint, the dataset is bad, or its training drives are others than the run's.
      StorageError: The report cannot be written; it is printed then.
    """
    config = read_config(run, DrivingConfig)
    init = pretrain.init_params if config.objective is not None else waypoints.init_params
    step, params = read_weights(run, config, lambda: init(config, rngs.key(0, "init")))
    _require_same_drives(run, step, config)
    probed = config.objective is not None
    result = {"step": step} | (probe(config, params["encoder"]) if probed else compare(config, params, run / PLOT))
    try:
        write_json(run / REPORT, result)
    except OSError as error:
        print(text([(run.name, result)]), flush=True)
        said = f"cannot write {run / REPORT}: {error.strerror or error}"
        raise StorageError(f"{said}. Its figures are above; make room, and --again writes it") from error
    return result


def _require_same_drives(run: Path, step: int, config: DrivingConfig) -> None:
    """Refuses a dataset whose training drives are not those that a run learnt from: it may be measured on its own."""
    learnt = read_fingerprint(run, step).get("dataset.manifest")
    if learnt is not None and learnt != open_data(config.data, "train").fingerprint()["manifest"]:
        file = config.data.split_file or Path(config.data.path) / SPLIT_FILE
        raise DataError(
            f"{run}: expected the training drives that it learnt from, found others in {config.data.path} by {file}: a "
            f"drive that is held out now may be one of them. Put back the episodes and the split of its training; "
            f"{run / REPORT} was left as it is"
        )


def read_report(run: Path) -> dict[str, Any]:
    """What an evaluation wrote into a run's folder, with a note where there is a newer checkpoint.

    Raises:
      DataError: If it is nothing that can be shown, or links lead out of the folder.
    """
    require_own_files(run)
    try:
        result = parse_json(budget.read_bytes(run / REPORT).decode(), source=str(run / REPORT), finite=False)
        if result["kind"] not in ("waypoints", "pretraining"):
            raise ValueError(f"kind is {result['kind']!r:.80}")
        text([(run.name, result)])
        step, newest = result.get("step"), max(steps_in(run / SAVES), default=0)  # a report of before has no step
        if isinstance(step, int) and newest > step:
            result["notes"] = [*result.get("notes", ()), f"figures of step {step}; --again measures step {newest}"]
    except budget.LimitError:
        raise
    except (DataError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        path = run / REPORT
        raise DataError(f"{path}: expected what an evaluation wrote, found {found}; --again writes it anew") from error
    return result


_DRIVING_FLAGS = (
    ("episodes", 1, routes.EPISODES, "routes"),
    ("seed", 0, 0, "of the routes"),
    ("workers", 1, routes.WORKERS, "processes that simulate; the result does not depend on it"),
    ("video", 0, 0, "drives of the model in a video, from above and from the front camera"),
    ("seconds", CONTROL_S, SECONDS, "of a drive"),
    ("lead-s", 0.0, 0.0, "at most so many seconds, drawn for each route, the town's own driver drives before"),
    ("hold", 1, 1, "tenths of a second that a plan is followed; the town's own driver plans anew each time"),
)
"""Flag, least value, default and meaning; whole numbers where these are."""


def _drive(runs: list[Path], given: dict[str, float], *, out: Path | None, as_json: bool) -> int:
    """Drives runs in closed loop, and prints what each is worth."""
    asked: dict[str, Any] = {flag.replace("-", "_"): value for flag, value in given.items()}
    for name, run in zip(names_of(runs), runs, strict=True):
        report = routes.evaluate_run(run, **asked, out=out)
        print(json.dumps(report) if as_json else routes.text(report, name), flush=True)
    return 0


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads a command line, None is this process's; `driving` has the given ones of _DRIVING_FLAGS.

    Raises:
      ConfigError: A number is out of its range, or a flag has no effect beside the others.
      SystemExit: A flag is unknown, or its value is.
    """
    parser = Parser(
        prog="python -m driving.evaluate",
        description="Compares runs on held-out drives with one another, and with predictors that see no image "
        "(waypoints) or encoders that learnt nothing (pretrainings). Figures come from <run>/evaluation.json, which a "
        "run writes at its end; where it is missing, from the run's newest checkpoint.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--again", action="store_true", help="evaluate anew, and write evaluation.json and evaluation.png"
    )
    parser.add_argument("--closed-loop", action="store_true", help="drive routes through the town instead")
    for flag, _, default, meaning in _DRIVING_FLAGS:
        kind, told = type(default), f"--closed-loop: {meaning}; default: {default:g}"
        parser.add_argument(f"--{flag}", type=kind, metavar="N", dest=flag, help=told)
    parser.add_argument("--json", action="store_true", help="--closed-loop: print the report as one JSON object")
    told = "--closed-loop: file of the report; default: one in RUN/evaluations"
    parser.add_argument("--out", type=Path, metavar="FILE", help=told)
    arguments = parser.parse_args(argv)
    given = {flag: value for flag, *_ in _DRIVING_FLAGS if (value := getattr(arguments, flag)) is not None}
    arguments.driving = given
    alone = [flag for flag, on in (("json", arguments.json), ("out", arguments.out is not None)) if on]
    if not arguments.closed_loop and (given or alone):
        flags = ", ".join(f"--{flag}" for flag in (*given, *alone))
        raise ConfigError(f"{flags}: expected with --closed-loop alone; without it a run is measured on its dataset")
    if arguments.out is not None and (found := len(arguments.runs)) > 1:
        raise ConfigError(f"--out {arguments.out}: expected one run, whose report is written there, found {found}")
    for flag, lowest, _, _ in _DRIVING_FLAGS:
        if flag in given and not lowest <= given[flag] < math.inf:
            raise ConfigError(f"--{flag} is {given[flag]:g}; expected at least {lowest:g}, and a finite number")
    return arguments


def main() -> int:
    """Command line."""
    try:
        arguments = read_arguments(None)
        if arguments.closed_loop:
            return _drive(arguments.runs, arguments.driving, out=arguments.out, as_json=arguments.json)
        results = []
        for name, run in zip(names_of(arguments.runs), arguments.runs, strict=True):
            made = run / REPORT
            fresh = arguments.again or not made.exists()
            results.append((name, evaluate_run(run) if fresh else read_report(run)))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(text(results))
    return 0


if __name__ == "__main__":
    command.run(main)
