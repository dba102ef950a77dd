"""What the run folders of a study say: a table, tests against the first row, learning curves.

A function of the run folders: no clock, no host and no absolute path is in table.md and table.json.
"""

import contextlib
import difflib
import math
import shlex
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from chunkwise.config.study import OUTCOMES, Run, StudyConfig
from chunkwise.errors import DataError, NonFiniteError, StorageError, one_line
from chunkwise.files.durable import make_folders, scratch_file, write_durably, write_json
from chunkwise.files.place import told_place
from chunkwise.files.strict_json import read_json
from chunkwise.reports.aggregate import bootstrap, interquartile_mean, probability_of_improvement, sign_flip_p
from chunkwise.reports.figures import new_figure
from chunkwise.reports.intervals import of_mean, wilson
from chunkwise.reports.paired import compare
from chunkwise.reports.run_record import State, last_word, read_evaluation, remove_videos, rows_of, state_of

EVALUATION = "evaluations/study.json"
"""In a run's folder, where the study asked for it."""
FLAGS = "evaluations/study_flags.json"
"""Beside it, with which flags."""
TABLE = "table.json"
"""In the study's folder."""
COLOURS, LINE_STYLES = 10, ("-", "--", ":", "-.")
"""Of matplotlib, before they come again, and what tells those then from the first."""
LEGEND_COLUMNS, LEGEND_INCHES = 95, 0.19
"""Letters of a line below the curves, and its height."""
NEAREST = 10
"""Names that are said in place of one that there is not, those most like it."""
DIGITS = 12
"""After the point, of differences of scores."""


class UnmeasuredError(DataError):
    """A run was evaluated, and nothing of it is the metric of the study's policy."""


def begin_evaluation(run: Path, flags: Sequence[str], updates: int) -> None:
    """Writes down the flags of the evaluation that is made next, of a run of so many updates, and removes the last."""
    make_folders((run / EVALUATION).parent)
    (run / EVALUATION).unlink(missing_ok=True)
    remove_videos(run / EVALUATION)
    write_json(run / FLAGS, {"kind": "flags of the study's evaluation", "flags": list(flags), "updates": updates})


def evaluated_step(run: Path, flags: Sequence[str]) -> int | None:
    """Returns the updates behind the policy that was evaluated for the study; None where none was, or with other flags.

    Earlier versions did not write the flags down; their evaluation is taken for the study's.

    Raises:
      DataError: A file is no evaluation, or its flags are none.
    """
    if not (run / EVALUATION).is_file():
        return None
    if (run / FLAGS).is_file() and _flags(run)["flags"] != list(flags):
        return None
    return _evaluation(run)["step"]


def _flags(run: Path) -> dict[str, Any]:
    tree = read_json(run / FLAGS)
    if not isinstance(tree, dict) or not isinstance(tree.get("flags"), list):
        raise DataError(f"{run / FLAGS}: expected the flags of {EVALUATION}; remove both to evaluate again")
    return tree


def is_evaluated(run: Path, flags: Sequence[str], steps: int) -> bool:
    """Whether a finished run of `steps` updates was evaluated with these flags, by which it may be another checkpoint.

    Which is the newest and the best, a run that has trained further may say anew.

    Raises:
      DataError: As `evaluated_step`.
    """
    step = evaluated_step(run, flags)
    if step is None or not any(word.partition("=")[0] == "--checkpoint" for word in flags):
        return step == steps
    # Earlier versions did not write down of how many updates the run was.
    return not (run / FLAGS).is_file() or _flags(run).get("updates", steps) == steps


def _evaluation(run: Path) -> dict[str, Any]:
    path = run / EVALUATION
    tree = read_json(path)
    outcomes = tree.get("outcomes") if isinstance(tree, dict) else None
    if not isinstance(outcomes, list) or not outcomes or not isinstance(tree.get("step"), int):
        raise DataError(f"{path}: expected an evaluation with its step and outcomes; remove it to evaluate again")
    return tree


def score(run: Path, study: StudyConfig, policy: str) -> dict[str, Any] | None:
    """Returns a run's score, its episodes where they are counted, and that of each where they are known by state.

    Raises:
      DataError: A file is no evaluation, or the last evaluation is missing.
      UnmeasuredError: No evaluation has the study's metric.
      NonFiniteError: The last one is NaN or infinite.
    """
    if study.evaluate is not None:
        if evaluated_step(run, study.evaluate) is None:
            return None
        outcomes = _evaluation(run)["outcomes"]
        try:
            values = [float(one[OUTCOMES[study.metric]]) for one in outcomes]
            states = {_named(state_of(one)): value for one, value in zip(outcomes, values, strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{run / EVALUATION}: expected {study.metric} of each episode, found {error!r}") from error
        return {"score": sum(values) / len(values), "episodes": len(values), "states": states}
    name = f"{policy}/{study.metric}" if policy else study.metric
    measured = [row for row in rows_of(run) if row.get("split") == "eval"]
    known = sorted({key for row in measured for key in row} - {"step", "split"})
    if known and name not in known:
        near = sorted(difflib.get_close_matches(name, known, n=NEAREST, cutoff=0.0))
        others = f" and {len(known) - NEAREST} others" if len(known) > NEAREST else ""
        raise UnmeasuredError(
            f"{run / 'metrics.jsonl'}: expected evaluations with {name}, by the study's policies and metric, "
            f"found {near}{others}; set the study's policies, metric and best to what there is"
        )
    evaluations = [row for row in measured if name in row]
    if not evaluations:
        return None
    last, done = evaluations[-1], last_word(run, 0)
    if done is not None and last["step"] < (ended := done["step"]):
        raise DataError(
            f"{run / 'metrics.jsonl'}: expected the evaluation of step {ended}, with which the run ended, found that "
            f"of step {last['step']} as the last: lines are missing, as of a copy broken off. Copy the folder again"
        )
    if last[name] is None:
        raise NonFiniteError(
            f"{run / 'metrics.jsonl'}: {name} of step {last['step']}: expected a number, found NaN or Inf"
        )
    episodes = last.get(f"{policy}/episodes")
    found: dict[str, Any] = {"score": float(last[name]), "episodes": None if episodes is None else int(episodes)}
    return found | {"states": _states(run, last["step"], found) if name == "policy/success" else {}}


def unmeasured(run: Path, study: StudyConfig) -> str:
    """Returns what is said of a finished run that has no number of any of the study's policies; empty where it has."""
    said = ""
    for policy in study.policies:
        try:
            score(run, study, policy)
        except UnmeasuredError as error:
            said = one_line(error)
        except DataError:  # said when the table is made
            return ""
        else:
            return ""
    return said


def _states(run: Path, step: int, measured: Mapping[str, Any]) -> dict[str, float]:
    """Whether a run's own evaluation after so many updates solved each of its initial states, 1 or 0.

    {} without its file, and where the file is not that of what was measured: earlier versions gave that of a later
    evaluation, with more episodes or at another scale of guidance, the same name.
    """
    file = run / f"evaluations/step_{step:08d}.json"
    one = read_evaluation(file, run) if file.is_file() else None
    if one is None or one.settings or (one.step, len(one.outcomes)) != (step, measured["episodes"]):
        return {}
    if not math.isclose(one.successes / len(one.outcomes), measured["score"], abs_tol=1e-6):  # metrics are float32
        return {}
    return {_named(state): float(outcome["success"]) for state, outcome in one.outcomes.items()}


def _named(state: State) -> str:
    return " ".join(map(str, state))


def table(
    study: StudyConfig, runs: Sequence[Run], out: Path, failed: Mapping[str, str], unfinished: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the table as JSON values: a row for each combination and policy, and each row's tests against the first.

    Args:
      study: The study.
      runs: Its runs.
      out: Its folder.
      failed: By a run's folder what is said of it; they are left out of the rows.
      unfinished: The same of those that are not at their end, or have no score there; they are left out too.

    Raises:
      UnmeasuredError: No row is measured; one stays empty where another is.
    """
    cells = {run.cell: run.table for run in runs}
    not_finite: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    not_measured: dict[str, UnmeasuredError] = {}
    rows, scores, tables = [], [], []
    for cell, group in cells.items():
        for policy in study.policies:
            mine = [run for run in runs if run.cell == cell and run.folder not in {*failed, *unfinished}]
            label = f"{cell}{_of(policy, study)}"
            found = {}
            for run in mine:
                try:
                    one = score(out / run.folder, study, policy)
                except NonFiniteError as error:  # the others' scores are no worse for it
                    not_finite[f"{run.folder}{_of(policy, study)}"] = _said(error, out)
                    continue
                except UnmeasuredError as error:  # a Gaussian policy has no behaviour cloning beside it, say
                    not_measured[label] = error
                    continue
                except DataError as error:  # a file that was damaged
                    unreadable[f"{run.folder}{_of(policy, study)}"] = _said(error, out)
                    continue
                if one is not None:
                    found[run.seed] = one
            rows.append(_row(label, found, study))
            scores.append(found)
            tables.append(group)
    if not_measured and not any(scores):  # the study's file names none that there is
        raise next(iter(not_measured.values()))
    for i, row in enumerate(rows):
        first = tables.index(tables[i])
        if first < i:
            row["first"] = rows[first]["row"]
            row["against_first"] = _against(scores[i], scores[first], study)
    return {
        "config": study.config,
        "metric": study.metric,
        "best": study.best or "highest",
        "seeds": list(study.seeds),
        "rows": rows,
        "failed": {name: _within(why, out) for name, why in sorted({**not_finite, **unreadable, **failed}.items())},
        "unfinished": {name: _within(why, out) for name, why in sorted(unfinished.items())},
        "not_measured": {row: _said(error, out) for row, error in not_measured.items()},
        "commands": commands(study, runs),
    }


def _of(policy: str, study: StudyConfig) -> str:
    """What says in the name of a row, and of a run, which policy's numbers are meant; empty where there is one."""
    return "" if len(study.policies) == 1 else f": {policy.replace('_', ' ')}"


def _said(error: Exception, out: Path) -> str:
    return _within(one_line(error), out)


def _within(why: str, out: Path) -> str:
    """What is said of a run, with paths as in the study's folder."""
    return why.replace(f"{out}/", "")


def commands(study: StudyConfig, runs: Sequence[Run]) -> list[str]:
    """Lists the commands for a shell in which OUT is the study's folder."""
    lines = []
    for run in runs:
        folder = f'"$OUT"/{shlex.quote(run.folder)}'
        lines.append(f"{shlex.join(['chunkwise', 'train', *run.words])} --run.dir {folder} --run.resume")
        if study.evaluate is not None:
            lines.append(
                f"chunkwise evaluate {folder} --out {folder}/{EVALUATION} {shlex.join(study.evaluate)}".rstrip()
            )
    return lines


def _row(label: str, found: Mapping[int, dict[str, Any]], study: StudyConfig) -> dict[str, Any]:
    values = np.array([one["score"] for one in found.values()])
    row: dict[str, Any] = {"row": label, "by_seed": {str(seed): one["score"] for seed, one in found.items()}}
    counts = [one["episodes"] for one in found.values()]
    if found and study.metric == "success" and None not in counts:
        successes = sum(round(one["score"] * one["episodes"]) for one in found.values())
        row |= {"episodes": sum(counts), "successes": successes, "over_episodes": wilson(successes, sum(counts))}
    if found:
        row |= {"mean": float(values.mean()), "interquartile_mean": interquartile_mean([values])}
        row["over_seeds"] = bootstrap(interquartile_mean, [values]) if len(values) > 1 else None  # one has no spread
    return row


def _against(ours: Mapping[int, dict[str, Any]], first: Mapping[int, dict[str, Any]], study: StudyConfig) -> Any:
    """Tests against the first row."""
    if not ours or not first:
        return None
    a, b = (np.array([one["score"] for one in scores.values()]) for scores in (ours, first))
    sign = -1 if study.best == "lowest" else 1
    tests: dict[str, Any] = {
        "probability_of_improvement": probability_of_improvement([sign * a], [sign * b]),
        "interval": bootstrap(probability_of_improvement, [sign * a], [sign * b]) if min(len(a), len(b)) > 1 else None,
    }
    seeds = [seed for seed in ours if seed in first]
    if seeds:
        differences = np.round([ours[seed]["score"] - first[seed]["score"] for seed in seeds], DIGITS)
        tests["paired_seeds"] = {"mean_difference": float(differences.mean()), "p": sign_flip_p(differences)}
    states = [(seed, state) for seed in seeds for state in ours[seed]["states"] if state in first[seed]["states"]]
    if states:
        pairs = [(state, ours[seed]["states"][state], first[seed]["states"][state]) for seed, state in states]
        tests["paired_episodes"] = (_mcnemar if study.metric == "success" else _mean_difference)(pairs)
    return tests


def _mcnemar(pairs: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Compares two rows' successes, of (state, ours, the first's)."""
    result = compare([bool(ours) for _, ours, _ in pairs], [bool(first) for _, _, first in pairs])
    return {
        "states": result.episodes,
        "only_this": result.only_a,
        "only_first": result.only_b,
        "mcnemar_p": result.p_value,
    }


def _mean_difference(pairs: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Compares two rows' scores by state: each state's difference, its mean over runs, and an interval over states."""
    by_state: dict[str, list[float]] = {}
    for state, ours, first in pairs:
        by_state.setdefault(state, []).append(ours - first)
    means = np.round([np.mean(differences) for differences in by_state.values()], DIGITS)
    return {"states": len(means), "mean_difference": float(means.mean()), "interval": of_mean(means)}


def markdown(found: Mapping[str, Any]) -> str:
    """Returns the table as Markdown."""
    metric = found["metric"]

    def name(row: Mapping[str, Any]) -> str:
        return str(row["row"]).replace("|", "\\|")

    lines = [
        f"# {found['config']}: {metric} over seeds {', '.join(map(str, found['seeds']))}",
        "",
        f"| | {metric} | over episodes (Wilson 95 %) | each seed | interquartile mean | over seeds (bootstrap 95 %) |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if not row["by_seed"]:
            lines.append(f"| {name(row)} | {'-' if row['row'] in found['not_measured'] else 'no score'} | | | | |")
            continue
        wide = f"{_pair(row['over_episodes'])} ({row['successes']} of {row['episodes']})" if "episodes" in row else ""
        each = ", ".join(_number(value) for value in row["by_seed"].values())
        if lacking := [str(seed) for seed in found["seeds"] if str(seed) not in row["by_seed"]]:
            each += f" (without seed {' and '.join(lacking)})"
        middle = f"{_number(row['interquartile_mean'])} | {_pair(row['over_seeds']) if row['over_seeds'] else '-'}"
        lines.append(f"| {name(row)} | {_number(row['mean'])} | {wide} | {each} | {middle} |")
    tested = [row for row in found["rows"] if row.get("against_first")]
    lower_or_higher = {"highest": "higher", "lowest": "lower"}[found["best"]]
    for i, row in enumerate(tested):
        if not i or row["first"] != tested[i - 1]["first"]:
            lines += [
                "",
                f"Against {row['first']}:",
                "",
                f"| | better ({lower_or_higher}) in a pair of runs (bootstrap 95 %) | difference, paired seeds "
                f"| paired episodes{'' if metric == 'success' else ': mean difference (95 % over states)'} |",
                "|---|---|---|---|",
            ]
        tests = row["against_first"]
        better = f"{tests['probability_of_improvement']:.2f} ({_pair(tests['interval']) if tests['interval'] else '-'})"
        seeds, states = tests.get("paired_seeds"), tests.get("paired_episodes")
        by_seed = ""
        if seeds:
            difference = round(seeds["mean_difference"], DIGITS) + 0.0  # not the last bits of a sum that is 0, nor -0
            by_seed = f"{difference:+.3g}, p = {seeds['p']:.3g} (signs flipped)"
        by_state = ""
        if states and "mean_difference" in states:
            by_state = f"{states['mean_difference'] + 0.0:+.3g} "
            by_state += f"({_pair(states['interval']) if states['interval'] else '-'}) of {states['states']}"
        elif states:
            by_state = f"{states['only_this']} against {states['only_first']} of {states['states']}, "
            by_state += f"McNemar p = {states['mcnemar_p']:.3g}"
        lines.append(f"| {name(row)} | {better} | {by_seed} | {by_state} |")
    for heading, left_out in (
        ("Failed, and left out", found["failed"]),
        ("No result yet, or none that compares, and in no row", found["unfinished"]),
        ("Not measured", found["not_measured"]),
        ("Evaluated with other settings than the study has now", found.get("evaluated_otherwise", {})),
    ):
        if left_out:
            lines += ["", f"{heading}:", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join(
        [
            *lines,
            "",
            "Commands, with OUT the folder of this file:",
            "",
            *(f"    {line}" for line in found["commands"]),
            "",
        ]
    )


def write(
    study: StudyConfig,
    runs: Sequence[Run],
    out: Path,
    failed: Mapping[str, str],
    unfinished: Mapping[str, str],
    otherwise: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Writes table.json and table.md into the study's folder; returns the table.

    Args:
      study: The study.
      runs: Its runs.
      out: Its folder.
      failed: As of `table`.
      unfinished: As of `table`.
      otherwise: By a run's folder what is said of one that was evaluated with other settings than the study has now.

    Raises:
      UnmeasuredError: As `table`.
      StorageError: The folder cannot be written; the table is printed then.
    """
    found = table(study, runs, out, failed, unfinished) | {"evaluated_otherwise": dict(sorted(otherwise.items()))}
    text = markdown(found)
    try:
        with told_place(out):
            write_json(out / TABLE, found)
            write_durably(out / "table.md", text)
    except StorageError:
        print(text, flush=True)  # the runs are there, whatever becomes of the table's files
        raise
    return found


def draw(study: StudyConfig, runs: Sequence[Run], out: Path, left_out: Collection[str] = ()) -> bool:
    """Draws curves.png: the metric at each evaluation, its mean over seeds and their range; whether there is any.

    Training evaluates no score of closed loop, say: then there is no file.

    A mean over fewer seeds than the row has is hollow: a run has not come so far. Runs whose folders are in `left_out`
    have no part, nor has a run's policy whose name is there, as in the table's `failed`.
    """
    cells = list(dict.fromkeys(run.cell for run in runs))
    labels = {
        (cell, policy): textwrap.fill(f"{cell}{_of(policy, study)}", LEGEND_COLUMNS, break_on_hyphens=False)
        for cell in cells
        for policy in study.policies
    }
    # Below the curves, as high as it is: names of several settings would leave these no place beside it.
    lines = sum(label.count("\n") + 1 for label in labels.values())
    figure = new_figure(figsize=(7, 4.2 + LEGEND_INCHES * lines), dpi=100)
    axes, drawn = figure.add_subplot(), list[bool]()
    for cell in cells:
        for policy in study.policies:
            name = f"{policy}/{study.metric}" if policy else study.metric
            points: dict[int, list[float]] = {}
            names = {run.folder: {run.folder, f"{run.folder}{_of(policy, study)}"} for run in runs}
            mine = [run for run in runs if run.cell == cell and names[run.folder].isdisjoint(left_out)]
            for run in mine:
                rows: list[dict[str, Any]] = []
                with contextlib.suppress(DataError):  # of a damaged file, which is told where it counts
                    rows = rows_of(out / run.folder)
                for row in rows:
                    if row.get("split") == "eval" and row.get(name) is not None:
                        points.setdefault(row["step"], []).append(row[name])
            steps = sorted(points)
            means = [float(np.mean(points[step])) for step in steps]
            label = labels[cell, policy].replace("$", r"\$")  # no formula
            label = f" {label}" if label.startswith("_") else label  # which matplotlib would leave out
            style = LINE_STYLES[len(drawn) // COLOURS % len(LINE_STYLES)]
            (line,) = axes.plot(steps, means, style, marker="o", label=label)
            drawn.append(bool(points))
            low, high = [min(points[step]) for step in steps], [max(points[step]) for step in steps]
            axes.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
            few = [i for i, step in enumerate(steps) if len(points[step]) < len(mine)]
            if few:
                style = {"marker": "o", "linestyle": "none", "color": line.get_color(), "markerfacecolor": "white"}
                axes.plot([steps[i] for i in few], [means[i] for i in few], **style, label="_fewer seeds")
    axes.set_xlabel("updates")
    axes.locator_params(axis="x", integer=True)
    metric = study.metric.replace("$", r"\$")
    axes.set_title(f"{metric}: mean over seeds, and their range", fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower left")
    with told_place(out):
        if not any(drawn):
            (out / "curves.png").unlink(missing_ok=True)
            return False
        with scratch_file(out / "curves.png") as scratch:
            figure.savefig(scratch, format="png")
    return True


def _number(value: float) -> str:
    return f"{value:.3g}"


def _pair(interval: Sequence[float]) -> str:
    return f"{_number(interval[0])} to {_number(interval[1])}"
