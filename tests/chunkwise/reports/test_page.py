"""Pages of runs: the numbers that they show, what is left of hostile texts, and folders that are none."""

import base64
import hashlib
import json
import math
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.saved import flatten
from chunkwise.data.video import write_mp4
from chunkwise.errors import ConfigError, DataError
from chunkwise.reports import compare, report, results
from chunkwise.reports.page import page
from chunkwise.reports.run_record import differing, read_run
from configs.qchunk.debug import get_config
from tests.browser import browsing, find_chromium, needs_chromium

SECONDS = {"step": 6.0, "data": 1.0, "compile": 2.0, "wall": 10.0}
START = {"step": 0, "time": "2026-11-01T00:00:00+00:00", "command": "chunkwise train x", "host": "h", "versions": None}


def write_run(folder: Path, rows: list[dict[str, Any]], won: dict[int, bool] | None = None, **fields: Any) -> Path:
    """Writes a run of qchunk that was at step 20 of 200 when it was looked at."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(flatten(get_config()) | fields))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "timing.jsonl").write_text(json.dumps({"step": 20, "seconds": SECONDS, "memory": {"host": 1.5}}) + "\n")
    (folder / "starts.jsonl").write_text(json.dumps(START) + "\n")
    if won is not None:
        (folder / "evaluations").mkdir()
        outcomes = [{"seed": s, "init_hash": f"h{s}", "success": ok, "length": 7} for s, ok in won.items()]
        text = json.dumps({"step": 20, "outcomes": outcomes, "settings": {}})
        (folder / "evaluations/step_00000020.json").write_text(text)
    return folder


def evaluated(step: int, rate: float, **more: float) -> dict[str, Any]:
    row = {"policy/success": rate, "policy/success_low": rate - 0.1, "policy/success_high": rate + 0.1}
    return {"step": step, "split": "eval", "policy/episodes": 50.0, "policy/length": 9.5, **row, **more}


class Tags(HTMLParser):
    """Collects tags with their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._in:
            self.scripts.append(data)
            self._in = False


def curves(text: str) -> dict[str, Any]:
    return json.loads(Tags(text).scripts[0])


def test_curves_are_the_lines_of_the_metrics(tmp_path: Path):
    train = [{"step": s, "split": "train", "loss": 1 / s, "q": None if s == 10 else 2.0} for s in (10, 20)]
    rows = [*train, evaluated(10, 0.5), evaluated(20, 0.75, **{"behaviour_cloning/success": 0.25})]
    path = write_run(tmp_path / "a", rows)
    found = curves(page({"a": read_run(path)}, beside=path))
    assert found["keys"] == ["policy", "behaviour cloning", "training"]
    shown = {chart["name"]: chart for chart in found["charts"]}
    assert list(shown) == ["success", "length", "loss", "q"]  # no chart of intervals, nor of counts
    own, cloned = shown["success"]["series"]
    assert own == {"key": "policy", "x": [10, 20], "y": [0.5, 0.75], "low": [0.4, 0.65], "high": [0.6, 0.85]}
    assert cloned == {"key": "behaviour cloning", "x": [20], "y": [0.25]}
    assert shown["loss"]["series"] == [{"key": "training", "x": [10, 20], "y": [0.1, 0.05]}]
    assert shown["q"]["series"] == [{"key": "training", "x": [20], "y": [2.0]}]
    assert [chart["smooth"] for chart in found["charts"]] == [False, False, True, True]


def test_a_page_says_what_was_measured(tmp_path: Path):
    path = write_run(tmp_path / "a", [evaluated(20, 0.75)])
    (path / "log.txt").write_text("fine\nwarning: the arm is blind\nwarning: the arm is blind\n")
    text = page({"a": read_run(path)}, beside=path)
    assert "step 20 of 200, not finished" in text
    assert "0.75 (0.65 to 0.85)" in text
    assert text.count("warning: the arm is blind") == 1
    # 6 of 10 s; what no purpose has is a tenth
    assert ">60%<" in text
    assert "step 60%, data 10%, compile 20%, other 10%" in text
    assert "host 1.50 GB" in text
    assert "<code>agent.alpha</code></td><td class=n><code>300.0</code>" in text  # the default is another
    assert "<code>agent.discount</code>" not in text
    (path / "done.json").write_text('{"step": 200, "digest": "0123456789abcdef0123"}')
    assert "done, digest <code>0123456789abcdef</code>" in page({"a": read_run(path)}, beside=path)
    for done in ('{"step": 199, "digest": "d"}', '{"digest": "d"}', "[]"):  # of fewer updates than it goes on to
        (path / "done.json").write_text(done)
        assert ", not finished" in page({"a": read_run(path)}, beside=path)


def test_two_runs_are_compared_state_by_state(tmp_path: Path):
    """Of six states that both met the first run solves two alone, the second one; a seventh was met by one of them."""
    a = write_run(tmp_path / "a", [evaluated(20, 0.7)], dict(enumerate([True] * 4 + [False] * 2)))
    b = write_run(tmp_path / "b", [evaluated(20, 0.5)], dict(enumerate([False] * 2 + [True] * 3 + [False, True])))
    runs = {
        "a": read_run(a),
        "b": read_run(
            b,
        ),
    }
    text = page(runs, beside=tmp_path)
    assert "Both 2, only a 2, only b 1, neither 1; McNemar's exact p = 1;" in text
    assert "a 4 of 6 (30% to 90%); b 3 of 6 (19% to 81%)" in text
    marks = re.findall(r'<span title="seed (\d)[^"]*"><i( class=yes)?></i><i( class=yes)?></i></span>', text)
    assert [(int(seed), bool(x), bool(y)) for seed, x, y in marks] == [
        (2, True, True), (3, True, True), (0, True, False), (1, True, False), (4, False, True), (5, False, False),
    ]  # fmt: skip
    assert curves(text)["keys"] == ["a", "b"]  # one colour a run, whatever is shown of it


def filmed_run(folder: Path, won: dict[int, bool], films: dict[int, bytes]) -> Path:
    """A run whose evaluation has videos of some of its episodes, by their place in it."""
    path = write_run(folder, [evaluated(20, 0.5)], won)
    (path / "evaluations/step_00000020").mkdir()
    for number, film in films.items():
        (path / f"evaluations/step_00000020/episode_{number:04d}.mp4").write_bytes(film)
    return path


def shown_films(text: str) -> list[tuple[str, list[tuple[bytes, str]]]]:
    """The states whose videos a page has: title, and what each figure holds and says."""
    rows = re.findall(r'<div class="together" id="v\d+"><h3>(.*?) <button>.*?</h3>(.*?)</div></div>', text)
    figure = r'<video src="data:video/mp4;base64,([^"]*)" [^>]*></video><figcaption>(.*?)</figcaption>'
    return [(title, [(base64.b64decode(b), said) for b, said in re.findall(figure, body)]) for title, body in rows]


def test_videos_of_a_state_are_side_by_side(tmp_path: Path):
    """The evaluations list states in another order; 8 has no video in b, 9 was not played there, 5 has none in a."""
    won = ({5: True, 6: True, 7: False, 4: True, 8: True, 9: True}, {4: True, 7: False, 6: False, 5: True, 8: True})
    a = filmed_run(tmp_path / "a", won[0], {1: b"a6", 2: b"a7", 3: b"a4", 4: b"a8", 5: b"a9"})
    b = filmed_run(tmp_path / "b", won[1], {0: b"b4", 1: b"b7", 2: b"b6", 3: b"b5"})
    runs = {"a": read_run(a), "b": read_run(b)}
    text = page(runs, beside=tmp_path)
    yes, no = "succeeded after 7 steps", "failed after 7 steps"
    films = [
        ("seed 6", [(b"a6", f"a: {yes}"), (b"b6", f"b: {no}")]),  # what tells them apart comes first
        ("seed 7", [(b"a7", f"a: {no}"), (b"b7", f"b: {no}")]),
        ("seed 4", [(b"a4", f"a: {yes}"), (b"b4", f"b: {yes}")]),
    ]
    assert shown_films(text) == films
    assert re.findall(r'<a href="#(v\d)" title="(seed \d)', text) == [
        ("v2", "seed 4"),
        ("v0", "seed 6"),
        ("v1", "seed 7"),
    ]
    assert len(re.findall(r'<span title="seed \d', text)) == 2  # the other two that both met
    assert shown_films(page({"a": runs["a"]}, beside=tmp_path)) == []


def test_three_runs_show_the_states_that_two_have(tmp_path: Path):
    paths = [filmed_run(tmp_path / name, {1: True, 2: True}, {0: name.encode()}) for name in ("a", "b")]
    third = filmed_run(tmp_path / "c", {1: False, 2: True}, {1: b"c"})
    text = page({path.name: read_run(path) for path in [*paths, third]}, beside=tmp_path)
    assert [[film for film, _ in films] for _, films in shown_films(text)] == [[b"a", b"b"]]


def test_videos_have_so_much_room(tmp_path: Path):
    """Of three states with a MiB in each run, two fit into five."""
    film = bytes(2**20)
    paths = [filmed_run(tmp_path / n, dict.fromkeys(range(3), True), dict.fromkeys(range(3), film)) for n in "ab"]
    runs = {path.name: read_run(path) for path in paths}
    text = page(runs, beside=tmp_path, film_mib=5)
    assert len(shown_films(text)) == 2
    assert "1 more states have videos" in text
    assert len(shown_films(page(runs, beside=tmp_path, film_mib=6))) == 3
    assert not shown_films(page(runs, beside=tmp_path, film_mib=0))
    (paths[0] / "evaluations/step_00000020/episode_0001.mp4").unlink()
    (paths[0] / "evaluations/step_00000020/episode_0001.mp4").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match=r"episode_0001\.mp4 -> /etc/hostname"):
        read_run(paths[0])


def test_each_task_has_its_count(tmp_path: Path):
    rows = [evaluated(20, 0.5, **{"policy/success/push": 0.5, "policy/success/pull": 1.0})]
    path = write_run(tmp_path / "a", rows, {1: True, 2: False, 3: True})
    other = write_run(tmp_path / "b", rows)
    file = path / "evaluations/step_00000020.json"
    tree = json.loads(file.read_text())
    for outcome, task in zip(tree["outcomes"], ("push", "push", "pull"), strict=True):
        outcome["task"] = task
    file.write_text(json.dumps(tree))
    text = page({"a": read_run(path), "b": read_run(other)}, beside=tmp_path)
    # Wilson's intervals
    assert "<td>push</td><td class=n>1 of 2 (9% to 91%)</td><td class=n>50.0%</td>" in text
    assert "<td>pull</td><td class=n>1 of 1 (21% to 100%)</td><td class=n>100.0%</td>" in text


def test_a_report_of_another_kind_is_no_evaluation_of_states(tmp_path: Path):
    path = write_run(tmp_path / "a", [evaluated(20, 0.5)], {1: True})
    (path / "evaluations/closed_loop.json").write_text('{"kind": "closed_loop", "step": 30, "drives": {}}')
    assert [one.file for one in read_run(path).evaluations] == ["evaluations/step_00000020.json"]


def test_what_differs_is_listed(tmp_path: Path):
    a = write_run(tmp_path / "a", [], **{"agent.alpha": 1.0, "run.dir": "x", "run.resume": True})
    b = write_run(tmp_path / "b", [], **{"agent.alpha": 2.0, "run.dir": "y", "own.field": 3})
    runs = {"a": read_run(a), "b": read_run(b)}
    assert differing(runs) == {"agent.alpha": {"a": 1.0, "b": 2.0}, "own.field": {"a": None, "b": 3}}
    assert "No evaluation yet." in page(runs, beside=tmp_path)


def test_the_newest_evaluation_of_each_policy_makes_a_row(tmp_path: Path):
    rows = [
        evaluated(10, 0.9, **{"holdout/policy/error": 3.0, "holdout/loss": 0.4, "policy/success/push": 0.1}),
        evaluated(20, 0.5, **{"holdout/policy/error": 2.0, "policy/success/push": 0.3, "policy/success/pull": 0.7}),
    ]
    runs = {"a": read_run(write_run(tmp_path / "a", rows))}
    found = results.rows_of_results(runs)
    assert [(row.policy, row.step, row.episodes) for row in found] == [("policy", 20, 50), ("", 10, None)]
    assert {name: cell.value for name, cell in found[0].cells.items()} == {
        "length": 9.5, "success": 0.5, "holdout/error": 2.0,
    }  # fmt: skip
    assert results.columns_of(found) == ["success", "length", "holdout/error", "holdout/loss"]
    assert results.columns_of(found, ["length"]) == ["length"]
    with pytest.raises(ValueError, match="no run has the metric lenght; there are: length, success"):
        results.columns_of(found, ["lenght"])
    assert results.success_by_task(runs) == {"push": {"a": 0.3}, "pull": {"a": 0.7}}


def test_tables_to_paste():
    lines = [["run", "policy", "a_b|c"], ["50%", "x&y", "0.5 (0.4 to 0.6)"]]
    assert results.markdown(lines) == "| run | policy | a_b\\|c |\n|---|---|---|\n| 50% | x&y | 0.5 (0.4 to 0.6) |"
    assert results.latex(lines).splitlines() == [
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"run & policy & a\_b|c \\",
        r"\midrule",
        r"50\% & x\&y & 0.5 (0.4--0.6) \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert results.plain([["run", "x"], ["long", ""], ["a", "2"]]) == "run   x\nlong\na     2"


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"


def hostile_run(folder: Path) -> Path:
    """A run with markup in every text that it can bring."""
    rows = [{"step": 20, "split": "train", HOSTILE: 1.0}, evaluated(20, 0.5, **{f"policy/success/{HOSTILE}": 0.5})]
    path = write_run(folder, rows, {1: True}, **{"data.path": HOSTILE, HOSTILE: HOSTILE})
    evaluation = json.loads((path / "evaluations/step_00000020.json").read_text())
    evaluation["outcomes"][0] |= {"task": HOSTILE, "length": HOSTILE}
    (path / "evaluations" / "step_00000020.json").write_text(json.dumps(evaluation))
    (path / "log.txt").write_text(f"error: {HOSTILE}\n")
    groups = {
        name: {"devices": HOSTILE, "commit": HOSTILE, "jax": HOSTILE} for name in ("machine", "commit", "versions")
    }
    (path / "starts.jsonl").write_text(
        json.dumps({"step": HOSTILE, "command": HOSTILE, "host": HOSTILE, **groups}) + "\n"
    )
    (path / "timing.jsonl").write_text(json.dumps({"seconds": {HOSTILE: 1.0}, "memory": {HOSTILE: 2}}) + "\n")
    (path / "done.json").write_text(json.dumps({"step": 200, "digest": HOSTILE}))
    (path / "videos").mkdir()
    (path / "videos" / "<img src=x onerror=alert(3)>.mp4").write_bytes(b"none")
    return path


def test_runs_are_paired_by_the_evaluations_with_the_most_states_in_common(tmp_path: Path) -> None:
    """Drives in closed loop: 3 routes and later 8, of another run 8, and 2 of another seed that sort first."""

    def drives(run: Path, name: str, won: dict[int, bool]) -> None:
        outcomes = [{"seed": s, "init_hash": f"h{s}", "success": ok, "length": 7} for s, ok in won.items()]
        tree = {"step": 20, "kind": "closed_loop", "outcomes": outcomes}
        (run / "evaluations" / f"closed_loop-step_00000020-{name}.json").write_text(json.dumps(tree))

    runs = [write_run(tmp_path / name, [{"step": 20, "split": "train"}], won={}) for name in ("a", "b")]
    for run in runs:
        (run / "evaluations/step_00000020.json").unlink()
    drives(runs[0], "episodes_3-seed_0", dict.fromkeys(range(3), False))
    drives(runs[0], "episodes_8-seed_0", dict.fromkeys(range(8), True))
    drives(runs[1], "episodes_8-seed_0", dict.fromkeys(range(8), False))
    drives(runs[1], "episodes_2-seed_9", dict.fromkeys((90, 91), True))
    drives(runs[1], "episodes_9-seed_9", dict.fromkeys(range(90, 99), True))
    one, other = (read_run(run) for run in runs)
    found = results.own_evaluation(one)
    assert found is not None
    assert len(found.outcomes) == 8
    html = page({"a": one, "b": other}, beside=tmp_path)
    assert "a 8 of 8" in html
    assert "b 0 of 8" in html


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.264, 1.255, 1.273, "1.264 (1.255 to 1.273)"),
        (0.9971, 0.9963, 0.9979, "0.9971 (0.9963 to 0.9979)"),
        (123.4, 120.6, 126.2, "123.4 (120.6 to 126.2)"),
        (1500.0, 1200.0, 1800.0, "1500 (1200 to 1800)"),
        (0.5, 0.0, 1.0, "0.5 (0.0 to 1.0)"),
        (1.0, 1.0, 1.0, "1.0 (1.0 to 1.0)"),
        (2.0, -math.inf, math.inf, "2.000 (-inf to inf)"),
    ],
)
def test_an_interval_is_rounded_as_its_mean_is(value: float, low: float, high: float, text: str) -> None:
    """Two digits of the interval's width: bounds of fewer digits than the mean would leave it out."""
    assert str(results.Cell(value=value, low=low, high=high)) == text


def test_texts_of_a_run_are_no_markup(tmp_path: Path):
    paths = [hostile_run(tmp_path / name) for name in ("a", "b")]
    tags = Tags(page({f"{path.name}{HOSTILE}": read_run(path) for path in paths}, beside=tmp_path))
    kinds = {tag for tag, _ in tags.found}
    assert not kinds & {"img", "iframe", "object", "embed", "form", "base", "link"}
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert [attributes for tag, attributes in tags.found if tag == "script"] == [
        {"type": "application/json", "id": "data"}, {},
    ]  # fmt: skip
    policy = next(a["content"] for tag, a in tags.found if tag == "meta" and "http-equiv" in a)
    allowed = base64.b64encode(hashlib.sha256(tags.scripts[1].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{allowed}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert any(HOSTILE in chart["name"] for chart in json.loads(tags.scripts[0])["charts"])


@pytest.mark.long
@needs_chromium
def test_a_browser_draws_it_and_runs_nothing_else(tmp_path: Path):
    paths = {name: hostile_run(tmp_path / name) for name in ("a", "b")}
    out = tmp_path / "page.html"
    script = '<script>document.title = "run"</script></body>'
    out.write_text(page({n: read_run(p) for n, p in paths.items()}, beside=tmp_path).replace("</body>", script))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
    done = subprocess.run(
        [str(find_chromium()), *flags, out.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    tags = Tags(done.stdout)
    data = json.loads(tags.scripts[0])
    lines = sum(len(chart["series"]) for chart in data["charts"])
    assert lines == 6  # of success, length and a loss, each of two runs
    assert sum(tag == "polyline" for tag, _ in tags.found) == lines
    assert sum(tag == "polygon" for tag, _ in tags.found) == 2  # intervals
    assert "<title>a, b</title>" in done.stdout  # no script but the page's own has run


@pytest.mark.long
@needs_chromium
def test_videos_of_a_state_play_together(tmp_path: Path):
    """The one of a lasts 2 s, the one of b 1 s, which waits at its end; where one is moved, the other follows."""
    runs = {}
    for name, seconds in (("a", 2), ("b", 1)):
        film = tmp_path / f"{name}.mp4"
        write_mp4(film, [np.full((32, 32, 3), 9 * t, np.uint8) for t in range(10 * seconds)], fps=10.0)
        runs[name] = read_run(filmed_run(tmp_path / name, {1: True}, {0: film.read_bytes()}))
    out = tmp_path / "page.html"
    out.write_text(page(runs, beside=tmp_path))
    with browsing(tmp_path / "browser") as tab:
        tab.go(out.as_uri())
        tab.wait("document.querySelectorAll('video').length === 2")
        tab.evaluate("window.films = [...document.querySelectorAll('video')]; 0")
        tab.wait("films.every((film) => film.readyState >= 2)")
        assert tab.evaluate("films.map((film) => film.duration)") == [2, 1]
        tab.evaluate("films[0].currentTime = 0.5; 0")
        tab.wait("films[1].currentTime === 0.5")
        tab.click(".together button")
        tab.wait(
            "films.every((film) => !film.paused) && document.querySelector('.together button').textContent == 'stop'"
        )
        tab.wait("films.every((film) => film.ended)")
        assert tab.evaluate("films.map((film) => film.currentTime)") == [2, 1]
        assert tab.evaluate("document.querySelector('.together button').textContent") == "play together"
        assert not tab.errors


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("metrics.jsonl", '{"step": "1"}\n', "a step on each line"),
        ("metrics.jsonl", "[1]\n", "line 1: expected a JSON object, found list"),
        ("metrics.jsonl", '{}\n{"step": 1 2}\n', "metrics.jsonl, line 2: expected JSON"),
        ("starts.jsonl", '{"machine": "x"}\n', "line 1: expected machine to be an object, found 'x'"),
        ("timing.jsonl", '{}\n{"seconds": {"step": "x"}}\n', "line 2: expected seconds to be an object of numbers"),
        ("evaluations/a.json", '{"step": 1, "outcomes": [{"seed": 1}]}', "found KeyError"),
        ("config.json", '{"agent.alpha": 1, "train.steps": "x"}', "expected train.steps to be a number, found 'x'"),
    ],
)
def test_files_that_no_run_writes_are_named(tmp_path: Path, file: str, text: str, said: str):
    path = write_run(tmp_path / "a", [evaluated(20, 0.5)], {1: True})
    (path / file).write_text(text)
    with pytest.raises(DataError, match=re.escape(file.rpartition("/")[2])) as refused:
        read_run(path)
    assert said in str(refused.value)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path):
    path = write_run(tmp_path / "a", [evaluated(10, 0.5)])
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 20, "spl')
    assert read_run(path).step == 10


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    paths = [write_run(tmp_path / name / "run", [evaluated(20, rate)]) for name, rate in (("a", 0.5), ("b", 0.25))]
    assert compare.main([*map(str, paths), "--html", "new/ab.html", "--metric", "success", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| run | policy | updates | episodes | success |",
        "|---|---|---|---|---|",
        "| a/run | policy | 20 | 50 | 0.50 (0.40 to 0.60) |",
        "| b/run | policy | 20 | 50 | 0.25 (0.15 to 0.35) |",
        "new/ab.html",
    ]
    assert "<title>a/run, b/run</title>" in Path("new/ab.html").read_text()
    with pytest.raises(ConfigError, match="a run is given twice"):
        compare.main(["a/run", "b/../a/run"])
    Path("link").symlink_to("a")
    with pytest.raises(ConfigError, match="a run is given twice"):
        compare.main(["a/run", "link/run"])
    with pytest.raises(ConfigError, match="--metric: no run has the metric x"):
        compare.main(["a/run", "--metric", "x"])
    with pytest.raises(ConfigError, match=r"found no config\.json in it"):
        report.main(["a"])


def test_watching_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = write_run(tmp_path / "a", [evaluated(20, 0.5)])
    pages: list[str] = []

    def pause(seconds: float) -> None:
        pages.append((path / "report.html").read_text())
        assert seconds == 7
        if len(pages) == 2:
            (path / "done.json").write_text('{"step": 200, "digest": "d"}')

    monkeypatch.setattr(report.time, "sleep", pause)
    for odd in ("-5", "0"):
        with pytest.raises(SystemExit):
            report.main([str(path), "--watch", odd])
    assert report.main([str(path), "--watch", "7"]) == 0
    assert len(pages) == 2
    assert all('http-equiv="refresh" content="7"' in one for one in pages)
    assert "refresh" not in (path / "report.html").read_text().partition("<style>")[0]
    assert capsys.readouterr().out.splitlines() == ["step 20 of 200", "step 20 of 200", str(path / "report.html")]


def test_a_report_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_run(tmp_path / "a", [])
    (path / "starts.jsonl").write_text("[]\n")
    report.write_report(path)
    assert not (path / "report.html").exists()
    assert "report.html: not written: " in capsys.readouterr().err
