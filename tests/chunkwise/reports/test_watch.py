"""A run in a notebook: what is shown, when it changes, and that the folder's texts stay texts."""

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import chunkwise
from chunkwise.errors import ConfigError
from chunkwise.reports import watch
from chunkwise.reports.run_record import read_run
from tests.chunkwise.reports.test_page import HOSTILE, Tags, evaluated, hostile_run, write_run

SECONDS = 0.01


class Notebook:
    """The one output of a cell, as IPython.display leaves it."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.changed = threading.Event()

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Notebook":
        assert raw
        assert display_id
        assert not self.outputs
        self.update(data, raw=True)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs.append(data)
        self.changed.set()

    def said(self, number: int = -1) -> str:
        return self.outputs[number]["text/plain"].splitlines()[0]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    for name, members in (
        ("IPython", {}),
        ("IPython.core", {}),
        ("IPython.core.getipython", {"get_ipython": lambda: made}),
        ("IPython.display", {"display": made.display}),
    ):
        module: Any = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return made


def shown_once(path: Path) -> dict[str, str]:
    return watch.live(read_run(path))


def test_the_output_follows_the_run_until_it_is_done(tmp_path: Path, notebook: Notebook):
    """Before its folder is there, while a line is added, with a file that is damaged for a while, and at the end."""
    path = tmp_path / "runs" / "first"
    watching = chunkwise.watch(path, seconds=SECONDS)
    assert notebook.said() == f"{path}: no run yet"

    def then(change: Callable[[], object], said: str) -> None:
        notebook.changed.clear()
        change()
        while said not in notebook.said():
            assert notebook.changed.wait(30)
            notebook.changed.clear()

    then(lambda: write_run(path, [{"step": 10, "split": "train", "loss": 2.0}]), "first: step 10 of 200")
    lines = json.dumps({"step": 20, "split": "train", "loss": 1.0}) + "\n"
    then(lambda: (path / "metrics.jsonl").write_text(lines), "first: step 20 of 200")
    then(lambda: (path / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl, line 1: expected a JSON object")
    then(lambda: (path / "metrics.jsonl").write_text(lines), "first: step 20 of 200")
    count = len(notebook.outputs)
    (tmp_path / "done.json").write_text('{"step": 200, "digest": "d"}')
    then(lambda: (tmp_path / "done.json").rename(path / "done.json"), "first: step 20 of 200, done")
    watching.wait()  # it is over
    (path / "metrics.jsonl").write_text("")
    assert not notebook.changed.wait(5 * SECONDS)
    assert len(notebook.outputs) == count + 1  # nothing was sent while nothing had changed


def test_waiting_follows_too_and_ends_with_the_run(tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch):
    path = write_run(tmp_path / "a", [{"step": 10, "split": "train", "loss": 2.0}])
    monkeypatch.setattr(watch.Watch, "_follow", lambda self: (path / "done.json").write_text('{"step": 200}'))
    watch.watch(path, seconds=SECONDS).wait()
    assert [notebook.said(k) for k in range(len(notebook.outputs))][-1] == "a: step 10 of 200, done"


def test_stopping_leaves_the_output(tmp_path: Path, notebook: Notebook):
    path = write_run(tmp_path / "a", [])
    watching = chunkwise.watch(str(path), seconds=SECONDS)
    watching.stop()
    (path / "done.json").write_text('{"step": 200}')
    watching.wait()
    assert [notebook.said(k) for k in range(len(notebook.outputs))] == ["a: step 0 of 200"]


def test_no_notebook_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: Notebook):
    with pytest.raises(ValueError, match="seconds is 0"):
        watch.watch(tmp_path, seconds=0)
    monkeypatch.setattr(sys.modules["IPython.core.getipython"], "get_ipython", lambda: None)
    with pytest.raises(ConfigError, match=r"elsewhere: chunkwise report runs/a --watch"):
        watch.watch("runs/a")
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", None)  # as where it is not installed
    with pytest.raises(ConfigError, match=r"elsewhere: chunkwise report runs/a --watch"):
        watch.watch("runs/a")


def test_speed_and_time_left(tmp_path: Path):
    """20 updates in 4 s after a resume, whose seconds begin anew: 180 left take 36 s."""
    rows = [{"step": 20, "split": "train", "loss": 1.0}]
    path = write_run(tmp_path / "a", rows)
    walls = [(5, 50.0), (10, 90.0), (10, 3.0), (15, 5.0), (30, 7.0)]
    text = "".join(json.dumps({"step": step, "seconds": {"wall": wall}}) + "\n" for step, wall in walls)
    (path / "timing.jsonl").write_text(text)
    assert watch.updates_per_second(read_run(path).timing) == 5.0
    plain = shown_once(path)["text/plain"]
    assert plain == "a: step 20 of 200, 5 updates a second, 36 s left"
    assert watch.updates_per_second(read_run(path).timing[:1]) is None
    assert watch.updates_per_second(read_run(path).timing[1:3]) is None
    quiet = watch.live(read_run(path), quiet_s=60 * 12.0)["text/plain"]
    assert quiet == f"{plain}, no news for 12 min"
    (path / "done.json").write_text('{"step": 200}')
    assert watch.live(read_run(path), quiet_s=1e6)["text/plain"] == "a: step 20 of 200, done"


def test_curves_end_where_the_newest_value_is(tmp_path: Path):
    """Of 260 x 90 with an edge of 4: success 0.25 stands at 86 - 0.25 * 82, a loss runs from top to bottom."""
    train = [{"step": s, "split": "train", "loss": 1 / s} for s in (10, 15, 20)]
    path = write_run(tmp_path / "a", [*train, evaluated(10, 0.75), evaluated(20, 0.25)])
    (path / "log.txt").write_text("".join(f"warning: {k}\n" for k in range(5)))
    html = shown_once(path)["text/html"]
    charts = re.findall(r"<small>(\w+) .*?<polyline points=\"(.*?)\"", html)
    assert [name for name, _ in charts] == ["success", "length", "loss"]
    assert charts[0][1] == "4.0,24.5 256.0,65.5"
    assert charts[1][1] == "4.0,45.0 256.0,45.0"  # constant: in the middle
    assert charts[2][1].startswith("4.0,4.0 130.0,")
    assert charts[2][1].endswith(" 256.0,86.0")
    assert '<polygon points="4.0,16.3 256.0,57.3 256.0,73.7 4.0,32.7"' in html  # 0.85, 0.35, and back along 0.15, 0.65
    assert "0.25 (0.15 to 0.35)" in html
    assert "width:10.0%" in html
    assert re.findall(r"warning: \d", html) == ["warning: 2", "warning: 3", "warning: 4"]


def test_texts_of_a_run_are_no_markup(tmp_path: Path):
    tags = Tags(shown_once(hostile_run(tmp_path / "a"))["text/html"])
    kinds = {tag for tag, _ in tags.found}
    assert kinds <= {
        "div",
        "b",
        "table",
        "tr",
        "th",
        "td",
        "small",
        "br",
        "svg",
        "polyline",
        "polygon",
        "circle",
        "span",
    }
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert HOSTILE in shown_once(tmp_path / "a")["text/plain"]
