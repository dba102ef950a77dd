"""The results of runs as one table: the newest evaluation of each, a row a policy, to read and to paste."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chunkwise.printable import printable
from chunkwise.reports.run_record import Evaluated, RunRecord

FIRST = ("success", "return", "length")
"""Columns that come first, where there are such."""
COUNTS = ("episodes", "env_steps")
"""Metrics that are no results."""
MOST_COLUMNS = 8
_SUFFIXES = ("_low", "_high")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A measured value, NaN where it was not finite, with its 95 % interval where one is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "NaN"
        if self.low is None or self.high is None:
            counts = self.value == round(self.value, 0) and abs(self.value) < 1e15
            return f"{self.value:.0f}" if counts else f"{self.value:.4g}"
        # As many decimals for all three as show the interval to two digits: rounded apart it may leave out its mean.
        width = abs(self.high - self.low) or abs(self.value) or 1.0
        decimals = min(max(0, 1 - math.floor(math.log10(width))), 9) if math.isfinite(width) else 3
        return f"{self.value:.{decimals}f} ({self.low:.{decimals}f} to {self.high:.{decimals}f})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What a policy of a run reached."""

    run: str
    policy: str
    """Or predictor: what stands before the first slash of a metric's name."""
    step: int
    episodes: int | None
    """Behind success, where that is measured."""
    cells: Mapping[str, Cell]


def split_name(name: str) -> tuple[str, str]:
    """Returns the policy and the metric of an evaluation's name: policy/success, holdout/policy/error, model/ade_2s."""
    head, _, rest = name.partition("/")
    if head == "holdout":
        policy, _, rest = rest.partition("/") if "/" in rest else ("", "", rest)
        return policy, f"holdout/{rest}"
    return (head, rest) if rest else ("", head)


def shown_policy(policy: str) -> str:
    """Returns how a policy or predictor is called: "val" is driving's model on the drives of that split."""
    return "model on val" if policy == "val" else policy


def is_part(metric: str) -> bool:
    """Returns whether a metric is of one step of the chunk or one dimension: error_step_3, error_dim_0."""
    return re.search(r"_(step|dim)_[0-9]+$", metric) is not None


def of_task(metric: str) -> str:
    """Returns the task of a metric such as success/reach-v3; empty where it is of all."""
    return metric.removeprefix("success/") if metric.startswith("success/") else ""


def rows_of_results(runs: Mapping[str, RunRecord]) -> list[Row]:
    """Returns a row for each policy of each run, from the newest evaluation in which it was measured."""
    rows = []
    for run, record in runs.items():
        found: dict[str, dict[str, tuple[int, float]]] = {}
        for name, point in record.last("eval").items():
            policy, metric = split_name(name)
            found.setdefault(policy, {})[metric] = point
        for policy, metrics in found.items():
            newest = max(step for step, _ in metrics.values())
            values = {metric: value for metric, (step, value) in metrics.items() if step == newest}
            shown = [m for m in values if not m.endswith(_SUFFIXES) and m not in COUNTS and not of_task(m)]
            known = {metric: value for metric, value in values.items() if math.isfinite(value)}
            cells = {m: Cell(value=values[m], low=known.get(f"{m}_low"), high=known.get(f"{m}_high")) for m in shown}
            episodes = round(known["episodes"]) if "episodes" in known else None
            if cells:
                rows.append(Row(run=run, policy=policy, step=newest, episodes=episodes, cells=cells))
    return rows


def unmeasured(runs: Mapping[str, RunRecord], rows: Sequence[Row]) -> list[str]:
    """Returns the names of runs of which no row is: no evaluation of them has a number."""
    return [name for name in runs if name not in {row.run for row in rows}]


def columns_of(rows: Sequence[Row], chosen: Sequence[str] = ()) -> list[str]:
    """Returns the metrics that a table shows: the chosen ones, or up to MOST_COLUMNS, success first, parts last.

    Raises:
      ValueError: None of the rows has one that was chosen.
    """
    known = list(dict.fromkeys(metric for row in rows for metric in row.cells))
    for name in chosen:
        if name not in known:
            raise ValueError(f"no run has the metric {name}; there are: {', '.join(known)}")
    ordered = [name for name in FIRST if name in known] + [name for name in known if name not in FIRST]
    ordered.sort(key=is_part)
    return list(chosen) or ordered[:MOST_COLUMNS]


def not_shown(rows: Iterable[Row], columns: Sequence[str]) -> list[str]:
    """Returns the metrics of rows that a table of these columns leaves out, but parts of errors (`is_part`)."""
    known = dict.fromkeys(metric for row in rows for metric in row.cells)
    return [metric for metric in known if metric not in columns and not is_part(metric)]


def texts(rows: Iterable[Row], columns: Sequence[str]) -> list[list[str]]:
    """Returns the table as texts: a line of headings, then a line a row."""
    lines = [["run", "policy", "updates", "episodes", *columns]]
    for row in (row for row in rows if not columns or any(name in row.cells for name in columns)):
        cells = [str(row.cells[name]) if name in row.cells else "" for name in columns]
        lines.append(
            [
                row.run,
                shown_policy(row.policy),
                str(row.step),
                "" if row.episodes is None else str(row.episodes),
                *cells,
            ]
        )
    empty = [k for k, _ in enumerate(lines[0]) if not any(line[k] for line in lines[1:])]
    return [[printable(text) for k, text in enumerate(line) if k not in empty] for line in lines]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts as Markdown."""
    head, *body = ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
    }
)


def latex(lines: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts as a LaTeX tabular, ruled by the package booktabs; intervals with an en dash."""
    names, *cells = [[text.translate(_LATEX) for text in line] for line in lines]
    cells = [[*line[:2], *(text.replace(" to ", "--") for text in line[2:])] for line in cells]  # not in runs' names
    head, *body = [" & ".join(line) + r" \\" for line in (names, *cells)]
    shape = "l" * 2 + "r" * (len(lines[0]) - 2)
    return "\n".join(
        [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    )


def plain(lines: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts in columns, for a terminal."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def own_evaluation(record: RunRecord) -> Evaluated | None:
    """Returns the newest of a run's evaluations with the run's own settings, that of the most episodes; else the
    newest; None without any."""
    return next(iter(newest(record)), None)


def own_evaluations_of(a: RunRecord, b: RunRecord) -> tuple[Evaluated, Evaluated] | None:
    """Returns the newest evaluations of two runs that had the same settings; None without any.

    They are the runs' own where these have initial states in common; of several pairs that which has the most of them,
    also where one was evaluated on more states than its run does, or on those of another seed.
    """

    def rank(pair: tuple[Evaluated, Evaluated]) -> tuple[bool, int, int]:
        common = len(pair[0].outcomes.keys() & pair[1].outcomes)
        return common > 0, -sum(len(_played(one)) for one in pair), common

    pairs = [(one, other) for one in newest(a) for other in newest(b) if _played(one) == _played(other)]
    return max(pairs, key=rank, default=None)


def newest(record: RunRecord) -> list[Evaluated]:
    """Returns a run's evaluations of the newest step, its own first."""
    return [one for one in record.evaluations if one.step == record.evaluations[-1].step]


def _played(one: Evaluated) -> dict[str, Any]:
    """The settings of an evaluation that change what happens from an initial state on: all but which states these are,
    which are told by themselves."""
    return {name: value for name, value in one.settings.items() if name not in ("episodes", "seed")}


def success_by_task(runs: Mapping[str, RunRecord]) -> dict[str, dict[str, float]]:
    """Returns the newest success of each task that an evaluation of several tasks lists: by task, then by run."""
    found: dict[str, dict[str, float]] = {}
    for run, record in runs.items():
        for name, (_, value) in record.last("eval").items():
            policy, metric = split_name(name)
            if policy == "policy" and (task := of_task(metric)):
                found.setdefault(task, {})[run] = value
    return found


def counts_by_task(record: RunRecord) -> dict[str, tuple[int, int]]:
    """Returns (successes, episodes) of each task in the file of the evaluation that `success_by_task` has the rates of,
    which is the run's own; empty where it has one task, or is not there."""
    found: dict[str, tuple[int, int]] = {}
    steps = {step for name, (step, _) in record.last("eval").items() if split_name(name)[0] == "policy"}
    own = next((one for one in record.evaluations if not one.settings and one.step == max(steps, default=-1)), None)
    for (task, _, _), outcome in own.outcomes.items() if own else ():
        won, played = found.get(task, (0, 0))
        found[task] = (won + outcome["success"], played + 1)
    return found if len(found) > 1 else {}
