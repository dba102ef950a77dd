"""One or several runs as one HTML file that opens without a network: results, curves, outcomes, settings, time.

Texts of a run are data here: escaped in the markup, and out of reach of it among the numbers of the curves. The page's
own policy allows one script, by its hash, and no connection, so that nothing that a hostile run brings is executed.
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.reports import results, states
from chunkwise.reports.markup import embedded, link_to, table, text
from chunkwise.reports.run_record import RunRecord, differing, other_files, starts_of

HERE = Path(__file__).parent
MOST_POINTS = 1500
"""Of a curve; of a longer one as many in a row are one, their mean, with their range."""
MOST_BYTES = 8 * 2**20
"""Of an image or video that is put into the page; a larger one is linked."""
MOST_WARNINGS = 20
LIBRARIES = ("jax", "flax", "optax", "numpy")
OWN = ("policy", "model", "val")
"""Names under which an evaluation lists the run's own weights."""
FILM_MIB = 32
"""Of the videos of single episodes in a page, all together; in the page they take a third more."""


def page(runs: Mapping[str, RunRecord], *, beside: Path, refresh_s: int = 0, film_mib: int = FILM_MIB) -> str:
    """Returns the page of one run, or of several that are compared.

    Args:
      runs: By the name under which each is shown.
      beside: Folder in which the page will lie, for links to what is too large to be put into it.
      refresh_s: Seconds after which a browser loads it again; 0: never.
      film_mib: Room for the videos of single episodes, which only a page of several runs has.
    """
    rows = results.rows_of_results(runs)
    columns = results.columns_of(rows)
    lines = results.texts(rows, columns) if rows else []
    filmed = states.filmed(runs, room=film_mib * 2**20) if len(runs) > 1 else states.Filmed()
    pairs = itertools.combinations(runs.items(), 2)
    sections = {
        "Results": _results(lines, results.not_shown(rows, columns), results.unmeasured(runs, rows)) + _apart(runs),
        "Outcomes": "".join(states.paired(*pair, filmed) for pair in pairs),
        "Videos by initial state": states.films(runs, filmed),
        "Tasks": _tasks(runs),
        "Curves": '<div class="tools" id="tools"></div><div class="charts" id="charts"></div>',
        "Images and videos": _media(runs, beside),
        "Settings": _settings(runs),
        "Time and memory": _time(runs),
        "Where it ran": _starts(runs),
        "Warnings": _warnings(runs),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#s{k}">{text(title)}</a>' for k, title in enumerate(shown))
    body = "".join(f'<section id="s{k}"><h2>{text(t)}</h2>{one}</section>' for k, (t, one) in enumerate(shown.items()))
    title = ", ".join(runs)
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    allowed = f"default-src 'none'; img-src data:; media-src data:; script-src '{_hash(script)}'; "
    allowed += "style-src 'unsafe-inline'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">',
        '<meta name="viewport" content="width=device-width">',
        f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else "",
        f"<title>{text(title)}</title><style>{style}</style>",
    ]
    about = "".join(_about(name, record) for name, record in runs.items())
    data = json.dumps(curves(runs), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head>{"".join(head)}</head><body><h1>{text(title)}</h1>{about}'
        f'<nav>{links}</nav>{body}<script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _about(name: str, record: RunRecord) -> str:
    """Whose run it is and how far it came."""
    if record.done is not None:
        state = f"done, digest <code>{text(str(record.done.get('digest', ''))[:16])}</code>"
    else:
        state = "not finished"
    command = text(record.starts[-1].get("command", "")) if record.starts else ""
    line = f"<b>{text(name)}</b>: {record.package}, step {record.step:,} of {record.steps:,}, {state}"
    return f'<p>{line}<br><span class="soft"><code>{command}</code></span></p>'


def _results(lines: Sequence[Sequence[str]], rest: Sequence[str], absent: Sequence[str]) -> str:
    """The table, and the names of measured metrics, and of runs, that are not in it."""
    if not lines:
        return '<p class="soft">No evaluation yet.</p>'
    head, *body = [[text(cell) for cell in line] for line in lines]
    pasted = f"<pre>{text(results.markdown(lines))}</pre><pre>{text(results.latex(lines))}</pre>"
    more = f" Not in the table: {text(', '.join(rest))}." if rest else ""
    more += f" No evaluation of: {text(', '.join(absent))}." if absent else ""
    note = f'<p class="soft">The newest evaluation of each in training; intervals are 95 %.{more}</p>'
    return f"{table(head, body)}{note}<details><summary>as Markdown and LaTeX</summary>{pasted}</details>"


def _apart(runs: Mapping[str, RunRecord]) -> str:
    """Evaluations by `chunkwise evaluate`, with what differed from the run's own; empty without any."""
    lines = []
    for name, record in runs.items():
        for one in (one for one in record.evaluations if one.settings):
            settings = ", ".join(f"{key} {value}" for key, value in one.settings.items())
            found = [outcome.get("score") for outcome in one.outcomes.values()]
            scores = [score for score in found if isinstance(score, int | float)]
            came = f"{states.share(one.successes, len(one.outcomes))} succeeded"
            if scores:
                came = f"score {sum(scores) / len(scores):.3f} in the mean of {len(scores)}"
            lines.append(f"{name}, step {one.step}, {settings}: {came}")
    shown = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<p class="soft">Evaluated apart:</p><ul>{shown}</ul>' if lines else ""


def curves(runs: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Returns the numbers of the curves: {"keys": of the colours, "charts": [{"name", "smooth", "series": [...]}]}."""
    several = len(runs) > 1
    charts: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    # Of a metric's own names of all runs one is left out: what one run alone has so far is not called as another's.
    names = {results.split_name(name) for record in runs.values() for name in record.series("eval")}
    leading = {metric: own for own in reversed(OWN) for policy, metric in names if policy == own}
    for run, record in runs.items():
        evaluated = record.series("eval")
        for name, points in evaluated.items():
            policy, metric = results.split_name(name)
            if metric.endswith(("_low", "_high")) or metric == "episodes" or results.of_task(metric):
                continue
            other = "" if several and leading.get(metric) == policy else results.shown_policy(policy).replace("_", " ")
            key = " ".join(filter(None, [run if several else "", other]))
            bounds = [dict(evaluated.get(f"{name}{end}", [])) for end in ("_low", "_high")]
            charts.setdefault((False, metric), []).append(_series(key, points, *bounds))
        for name, points in record.series("train").items():
            charts.setdefault((True, name), []).append(_series(run if several else "training", points))
    first = {name: k for k, name in enumerate(results.FIRST)}
    order = sorted(charts, key=lambda chart: (chart[0], first.get(chart[1], len(first))))
    keys = dict.fromkeys(series["key"] for chart in order for series in charts[chart])
    listed = [{"name": name, "smooth": train, "series": charts[train, name]} for train, name in order]
    return {"keys": list(keys), "charts": listed}


def _series(
    key: str, points: Sequence[tuple[int, float]], low: Mapping[int, float] | None = None, high: Any = None
) -> dict[str, Any]:
    """The points of a curve: of more than MOST_POINTS means of as many each, with their least and greatest value, so
    that no spike is lost; points with an interval are thinned, the last one stays."""
    stride = max(1, -(-len(points) // MOST_POINTS))
    if stride > 1 and not (low and high):
        parts = [points[k : k + stride] for k in range(0, len(points), stride)]
        ranges = [[value for _, value in part] for part in parts]
        return {
            "key": key,
            "x": [part[-1][0] for part in parts],
            "y": _short(sum(values) / len(values) for values in ranges),
            "low": _short(map(min, ranges)),
            "high": _short(map(max, ranges)),
            "each": stride,
        }
    kept = [*points[:-1:stride], points[-1]]
    steps = [step for step, _ in kept]
    series: dict[str, Any] = {"key": key, "x": steps, "y": _short(value for _, value in kept)}
    if low and high:
        series |= {"low": [low.get(step) for step in steps], "high": [high.get(step) for step in steps]}
    return series


def _short(values: Iterable[float]) -> list[float]:
    """Numbers to six digits."""
    return [float(f"{value:.6g}") for value in values]


def _tasks(runs: Mapping[str, RunRecord]) -> str:
    """The newest success on each task, counted where the evaluation's episodes are there."""
    found = results.success_by_task(runs)
    if not found:
        return ""
    counts = {run: results.counts_by_task(record) for run, record in runs.items()}
    body = []
    for task, rates in found.items():
        cells = [
            states.share(*counts[run][task]) if task in counts[run] else f"{rates[run]:.1%}" if run in rates else ""
            for run in runs
        ]
        body.append([text(task), *cells])
    return table(["task", *map(text, runs)], body)


def _media(runs: Mapping[str, RunRecord], beside: Path) -> str:
    """The newest video of each run and its figures, next to each other."""
    figures = []
    for name, record in runs.items():
        videos = sorted([*record.path.glob("videos/*.mp4"), *record.path.glob("evaluations/*.mp4")], key=_number)
        for file in [*videos[-1:], *sorted(record.path.glob("*.png"))]:
            shown = embedded(file) if file.stat().st_size <= MOST_BYTES else link_to(file, beside)
            figures.append(f"<figure>{shown}<figcaption>{text(f'{name}: {file.name}')}</figcaption></figure>")
    return f'<div class="media">{"".join(figures)}</div>' if figures else ""


def _number(file: Path) -> tuple[int, str]:
    """By the step in the name of a video, step_200.mp4."""
    digits = "".join(itertools.takewhile(str.isdigit, file.stem.removeprefix("step_")))
    return int(digits or 0), file.name


def _settings(runs: Mapping[str, RunRecord]) -> str:
    parts = []
    if len(runs) > 1:
        rows = [
            [f"<code>{text(field)}</code>", *(_value(by[run]) for run in runs)] for field, by in differing(runs).items()
        ]
        parts.append(table(["where they differ", *map(text, runs)], rows) if rows else "<p>The same in all.</p>")
        parts += [f"<p>{text(line)}</p>" for line in other_files(runs)]
    for name, record in runs.items():
        rows = [[f"<code>{text(field)}</code>", _value(value)] for field, value in record.changed.items()]
        title = f"{text(name)}: {len(rows)} fields that are not at their defaults"
        opened = " open" if len(runs) == 1 and len(rows) <= 30 else ""
        parts.append(f"<details{opened}><summary>{title}</summary>{table(['field', 'value'], rows)}</details>")
    return "".join(parts)


def _value(value: object) -> str:
    return f"<code>{text(json.dumps(value))}</code>"


def _time(runs: Mapping[str, RunRecord]) -> str:
    """Where the wall-clock time of each run went over all its starts, and its peak of memory."""
    rows = []
    for name, record in runs.items():
        if not record.timing:
            continue
        starts = starts_of(record.timing)
        spent, memory, wall = dict[str, float](), dict[str, float](), 0.0
        for last in (rows_of_start[-1] for rows_of_start in starts):
            seconds = dict(last["seconds"])
            took = max(seconds.pop("wall", 0.0), sum(seconds.values()), 1e-9)
            wall += took
            for key, value in {**seconds, "other": took - sum(seconds.values())}.items():
                spent[key] = spent.get(key, 0.0) + value
            memory = {
                key: max(memory.get(key, 0.0), last["memory"].get(key, 0.0)) for key in {**memory, **last["memory"]}
            }
        shares = ", ".join(f"{key} {value / wall:.0%}" for key, value in spent.items() if value >= 0.005 * wall)
        parts = "".join(
            f'<span style="width:{100 * value / wall:.2f}%;background:hsl({hue} 45% 55%)" title="{text(key)}"></span>'
            for hue, (key, value) in zip(range(140, 2000, 47), spent.items(), strict=False)
        )
        peak = ", ".join(f"{text(key)} {value:.2f} GB" for key, value in memory.items())
        goodput = f"{spent.get('step', 0.0) / wall:.0%}"
        took = f"{wall:,.0f} s" + (f" in {len(starts)} starts" if len(starts) > 1 else "")
        rows.append([text(name), took, goodput, f'<div class="time">{parts}</div>{text(shares)}', peak])
    head = ["run", "took", "goodput: in updates", "where the time went", "peak memory"]
    return table(head, rows) if rows else ""


def _starts(runs: Mapping[str, RunRecord]) -> str:
    rows = []
    for name, record in runs.items():
        for start in record.starts:
            machine, commit, versions = start["machine"], start["commit"], start["versions"]
            version = str(commit.get("commit", ""))[:12] + ("" if commit.get("clean", True) else ", changed")
            where = f"{start.get('host', '')}: {machine.get('devices', '')}, {machine.get('cores', '')} cores"
            libraries = ", ".join(f"{key} {versions[key]}" for key in LIBRARIES if versions.get(key))
            cells = [name, start.get("time", ""), start.get("step", ""), version, where, libraries]
            rows.append([text(cell) for cell in cells])
    return table(["run", "start", "from step", "commit", "machine", "versions"], rows) if rows else ""


def _warnings(runs: Mapping[str, RunRecord]) -> str:
    parts = []
    for name, record in runs.items():
        lines = record.warnings[-MOST_WARNINGS:]
        if lines:
            more = len(record.warnings) - len(lines)
            lines += [f"and {more} earlier ones in log.txt"] if more else []
            parts.append(f"<h3>{text(name)}</h3><pre>{text(chr(10).join(lines))}</pre>")
    return "".join(parts)
