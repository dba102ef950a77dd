"""One or several runs as one HTML file that opens without a network: results, curves, outcomes, settings, time.

Texts of a run are data here: escaped in the markup, and out of reach of it among the numbers of the curves. The page's
own policy allows one script, by its hash, and no connection, so that nothing that a hostile run brings is executed.
"""

import base64
import hashlib
import html
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.files import budget
from chunkwise.reports import results
from chunkwise.reports.intervals import wilson
from chunkwise.reports.paired import compare
from chunkwise.reports.run_record import RunRecord, State, differing

HERE = Path(__file__).parent
MOST_POINTS = 1500
"""Of a curve; of a longer one every n-th point is kept, and the last."""
MOST_BYTES = 8 * 2**20
"""Of an image or video that is put into the page; a larger one is linked."""
MOST_WARNINGS = 20
LIBRARIES = ("jax", "flax", "optax", "numpy")
OWN = ("policy", "model", "val")
"""Names under which an evaluation lists the run's own weights."""
KINDS = {".png": "image/png", ".mp4": "video/mp4"}


def page(runs: Mapping[str, RunRecord], *, beside: Path, refresh_s: int = 0) -> str:
    """Returns the page of one run, or of several that are compared.

    Args:
      runs: By the name under which each is shown.
      beside: Folder in which the page will lie, for links to what is too large to be put into it.
      refresh_s: Seconds after which a browser loads it again; 0: never.
    """
    rows = results.rows_of_results(runs)
    table = results.texts(rows, results.columns_of(rows)) if rows else []
    sections = {
        "Results": _results(table),
        "Outcomes": "".join(_paired(*pair) for pair in itertools.combinations(runs.items(), 2)),
        "Tasks": _tasks(runs),
        "Curves": '<div class="tools" id="tools"></div><div class="charts" id="charts"></div>',
        "Images and videos": _media(runs, beside),
        "Settings": _settings(runs),
        "Time and memory": _time(runs),
        "Where it ran": _starts(runs),
        "Warnings": _warnings(runs),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#s{k}">{_text(title)}</a>' for k, title in enumerate(shown))
    body = "".join(f'<section id="s{k}"><h2>{_text(t)}</h2>{one}</section>' for k, (t, one) in enumerate(shown.items()))
    title = ", ".join(runs)
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    allowed = f"default-src 'none'; img-src data:; media-src data:; script-src '{_hash(script)}'; "
    allowed += "style-src 'unsafe-inline'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">',
        '<meta name="viewport" content="width=device-width">',
        f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else "",
        f"<title>{_text(title)}</title><style>{style}</style>",
    ]
    about = "".join(_about(name, record) for name, record in runs.items())
    data = json.dumps(_curves(runs), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head>{"".join(head)}</head><body><h1>{_text(title)}</h1>{about}'
        f'<nav>{links}</nav>{body}<script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def _text(text: object) -> str:
    """As it stands in the markup."""
    return html.escape(str(text))


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table of texts and of markup that is ready; the second and later columns are set as numbers are."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = ("".join(f"<td{' class=n' if k else ''}>{cell}</td>" for k, cell in enumerate(line)) for line in body)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _about(name: str, record: RunRecord) -> str:
    """Whose run it is and how far it came."""
    if record.done is not None:
        state = f"done, digest <code>{_text(str(record.done.get('digest', ''))[:16])}</code>"
    else:
        state = "not finished"
    command = _text(record.starts[-1].get("command", "")) if record.starts else ""
    line = f"<b>{_text(name)}</b>: {record.package}, step {record.step:,} of {record.steps:,}, {state}"
    return f'<p>{line}<br><span class="soft"><code>{command}</code></span></p>'


def _results(table: Sequence[Sequence[str]]) -> str:
    if not table:
        return '<p class="soft">No evaluation yet.</p>'
    head, *body = [[_text(cell) for cell in line] for line in table]
    pasted = f"<pre>{_text(results.markdown(table))}</pre><pre>{_text(results.latex(table))}</pre>"
    note = '<p class="soft">The newest evaluation of each; intervals are 95 %.</p>'
    return f"{_table(head, body)}{note}<details><summary>as Markdown and LaTeX</summary>{pasted}</details>"


def _curves(runs: Mapping[str, RunRecord]) -> dict[str, Any]:
    """The numbers of the curves: {"keys": of the colours, "charts": [{"name", "smooth", "series": [...]}]}."""
    several = len(runs) > 1
    charts: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for run, record in runs.items():
        evaluated = record.series("eval")
        for name, points in evaluated.items():
            policy, metric = results.split_name(name)
            if metric.endswith(("_low", "_high")) or metric == "episodes" or results.of_task(metric):
                continue
            other = "" if several and policy in OWN else policy.replace("_", " ")
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
    stride = max(1, -(-len(points) // MOST_POINTS))
    kept = [*points[:-1:stride], points[-1]]
    steps = [step for step, _ in kept]
    series: dict[str, Any] = {"key": key, "x": steps, "y": [float(f"{value:.6g}") for _, value in kept]}
    if low and high:
        series |= {"low": [low.get(step) for step in steps], "high": [high.get(step) for step in steps]}
    return series


def _paired(a: tuple[str, RunRecord], b: tuple[str, RunRecord]) -> str:
    """Two runs on the initial states that both were evaluated on; empty without any."""
    ours, theirs = (results.own_evaluation(record) for _, record in (a, b))
    if ours is None or theirs is None:
        return ""
    states = [state for state in ours.outcomes if state in theirs.outcomes]
    names = [_text(name) for name, _ in (a, b)]
    if not states:
        return f'<p class="soft">{names[0]} and {names[1]} were evaluated on no initial state in common.</p>'
    pairs = [(ours.outcomes[state], theirs.outcomes[state]) for state in states]
    found = compare([x["success"] for x, _ in pairs], [y["success"] for _, y in pairs])
    order = sorted(range(len(states)), key=lambda k: (not pairs[k][0]["success"], not pairs[k][1]["success"]))
    marks = "".join(_state(states[k], pairs[k]) for k in order)
    counts = (found.both + found.only_a, found.both + found.only_b)
    shares = [
        f"{n} {c} of {found.episodes} ({_interval(c, found.episodes)})" for n, c in zip(names, counts, strict=True)
    ]
    unclear = "" if found.p_value < 0.05 else f"; so many states would show a difference of {found.detectable:.0%}"
    return (
        f"<h3>{names[0]} (upper half) and {names[1]} (lower half), state by state</h3><p>{'; '.join(shares)}. "
        f"Both {found.both}, only {names[0]} {found.only_a}, only {names[1]} {found.only_b}, neither {found.neither}; "
        f"McNemar's exact p = {found.p_value:.3g}{unclear}.</p>"
        f'<div class="states">{marks}</div><p class="soft">{_text(ours.file)} and {_text(theirs.file)}</p>'
    )


def _state(state: State, pair: Sequence[Mapping[str, Any]]) -> str:
    task, seed, _ = state
    said = [f"{'succeeded' if one['success'] else 'failed'} after {one.get('length', '?')} steps" for one in pair]
    title = _text(f"{task} seed {seed}: {said[0]}; {said[1]}".strip())
    halves = "".join(f"<i{' class=yes' if one['success'] else ''}></i>" for one in pair)
    return f'<span title="{title}">{halves}</span>'


def _interval(successes: int, episodes: int) -> str:
    low, high = wilson(successes, episodes)
    return f"{low:.0%} to {high:.0%}"


def _tasks(runs: Mapping[str, RunRecord]) -> str:
    found = results.success_by_task(runs)
    if not found:
        return ""
    body = [[_text(task), *(f"{by[run]:.1%}" if run in by else "" for run in runs)] for task, by in found.items()]
    return _table(["task", *map(_text, runs)], body)


def _media(runs: Mapping[str, RunRecord], beside: Path) -> str:
    """The newest video of each run and its figures, next to each other."""
    figures = []
    for name, record in runs.items():
        videos = sorted([*record.path.glob("videos/*.mp4"), *record.path.glob("evaluations/*.mp4")], key=_number)
        for file in [*videos[-1:], *sorted(record.path.glob("*.png"))]:
            shown = _embedded(file, beside)
            figures.append(f"<figure>{shown}<figcaption>{_text(f'{name}: {file.name}')}</figcaption></figure>")
    return f'<div class="media">{"".join(figures)}</div>' if figures else ""


def _number(file: Path) -> tuple[int, str]:
    """By the step in the name of a video, step_200.mp4."""
    digits = "".join(itertools.takewhile(str.isdigit, file.stem.removeprefix("step_")))
    return int(digits or 0), file.name


def _embedded(file: Path, beside: Path) -> str:
    """An image or a video as markup, put into the page where it is small enough."""
    if file.stat().st_size > MOST_BYTES:
        link = file.relative_to(beside).as_posix() if file.is_relative_to(beside) else file.as_uri()
        return f'<a href="{_text(link)}">{_text(file.name)}</a>'
    data = base64.b64encode(budget.read_bytes(file, "image_mib")).decode()
    source = f"data:{KINDS[file.suffix]};base64,{data}"
    return (
        f'<img src="{source}" alt="">'
        if file.suffix == ".png"
        else f'<video src="{source}" controls loop muted></video>'
    )


def _settings(runs: Mapping[str, RunRecord]) -> str:
    parts = []
    if len(runs) > 1:
        rows = [
            [f"<code>{_text(field)}</code>", *(_value(by[run]) for run in runs)]
            for field, by in differing(runs).items()
        ]
        parts.append(_table(["where they differ", *map(_text, runs)], rows) if rows else "<p>The same in all.</p>")
    for name, record in runs.items():
        rows = [[f"<code>{_text(field)}</code>", _value(value)] for field, value in record.changed.items()]
        title = f"{_text(name)}: {len(rows)} fields that are not at their defaults"
        opened = " open" if len(runs) == 1 and len(rows) <= 30 else ""
        parts.append(f"<details{opened}><summary>{title}</summary>{_table(['field', 'value'], rows)}</details>")
    return "".join(parts)


def _value(value: object) -> str:
    return f"<code>{_text(json.dumps(value))}</code>"


def _time(runs: Mapping[str, RunRecord]) -> str:
    """Where the wall-clock time of each run's last start went, and its peak of memory."""
    rows = []
    for name, record in runs.items():
        if not record.timing:
            continue
        last = record.timing[-1]
        spent = dict(last["seconds"])
        wall = max(spent.pop("wall", 0.0), sum(spent.values()), 1e-9)
        spent["other"] = wall - sum(spent.values())
        shares = ", ".join(f"{key} {value / wall:.0%}" for key, value in spent.items() if value >= 0.005 * wall)
        parts = "".join(
            f'<span style="width:{100 * value / wall:.2f}%;background:hsl({hue} 45% 55%)" title="{_text(key)}"></span>'
            for hue, (key, value) in zip(range(140, 2000, 47), spent.items(), strict=False)
        )
        peak = ", ".join(f"{_text(key)} {value:.2f} GB" for key, value in last["memory"].items())
        goodput = f"{spent.get('step', 0.0) / wall:.0%}"
        rows.append([_text(name), f"{wall:,.0f} s", goodput, f'<div class="time">{parts}</div>{_text(shares)}', peak])
    head = ["run", "last start took", "updates", "where the time went", "peak memory"]
    return _table(head, rows) if rows else ""


def _starts(runs: Mapping[str, RunRecord]) -> str:
    rows = []
    for name, record in runs.items():
        for start in record.starts:
            machine, commit, versions = start["machine"], start["commit"], start["versions"]
            version = str(commit.get("commit", ""))[:12] + ("" if commit.get("clean", True) else ", changed")
            where = f"{start.get('host', '')}: {machine.get('devices', '')}, {machine.get('cores', '')} cores"
            libraries = ", ".join(f"{key} {versions[key]}" for key in LIBRARIES if versions.get(key))
            cells = [name, start.get("time", ""), start.get("step", ""), version, where, libraries]
            rows.append([_text(cell) for cell in cells])
    return _table(["run", "start", "from step", "commit", "machine", "versions"], rows) if rows else ""


def _warnings(runs: Mapping[str, RunRecord]) -> str:
    parts = []
    for name, record in runs.items():
        lines = record.warnings[-MOST_WARNINGS:]
        if lines:
            more = len(record.warnings) - len(lines)
            lines += [f"and {more} earlier ones in log.txt"] if more else []
            parts.append(f"<h3>{_text(name)}</h3><pre>{_text(chr(10).join(lines))}</pre>")
    return "".join(parts)
