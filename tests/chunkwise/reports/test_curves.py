"""Curves of a page: of long runs, of runs that are compared, of numbers that are always the same; and its times."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunkwise.reports.page import MOST_POINTS, page
from chunkwise.reports.run_record import read_run, starts_of
from tests.browser import browsing, needs_chromium
from tests.chunkwise.reports.test_page import Tags, write_run


def charts_of(text: str) -> dict[str, list[dict[str, Any]]]:
    return {chart["name"]: chart["series"] for chart in json.loads(Tags(text).scripts[0])["charts"]}


def train_rows(*losses: float, **constant: float) -> list[dict[str, Any]]:
    return [{"step": k + 1, "split": "train", "loss": loss, **constant} for k, loss in enumerate(losses)]


def test_of_a_long_curve_no_spike_is_lost(tmp_path: Path):
    """3,002 points: of three in a row their mean, with the least and the greatest."""
    count = 2 * MOST_POINTS + 2
    losses = [float(step % 3) for step in range(count)]
    losses[1500:1503] = [0.0, 1e6, 2.0]
    path = write_run(tmp_path / "a", train_rows(*losses))
    (series,) = charts_of(page({"a": read_run(path)}, beside=path))["loss"]
    assert series["each"] == 3
    assert series["x"][:2] == [3, 6]
    assert series["x"][-1] == count
    assert len(series["x"]) == -(-count // 3)
    assert (series["y"][0], series["low"][0], series["high"][0]) == (1.0, 0.0, 2.0)
    assert (series["y"][500], series["low"][500], series["high"][500]) == (333334.0, 0.0, 1e6)
    assert (series["y"][-1], series["low"][-1], series["high"][-1]) == (0.5, 0.0, 1.0), "of the two that are left"


def test_two_errors_of_a_run_have_two_names_where_runs_are_compared(tmp_path: Path):
    """On validation drives along the way, and at the end on test drives; a run's own of one kind needs no name."""
    row = {"step": 20, "split": "eval", "val/ade_1s": 0.4, "model/ade_1s": 0.9, "val/loss": 2.0, "ego_mlp/ade_1s": 3.0}
    ends = {"a": row, "b": {name: value for name, value in row.items() if "model" not in name}}  # b is under way
    runs = {name: read_run(write_run(tmp_path / name, [end])) for name, end in ends.items()}
    found = charts_of(page(runs, beside=tmp_path))
    assert [(one["key"], one["y"]) for one in found["ade_1s"]] == [
        ("a model on val", [0.4]), ("a", [0.9]), ("a ego mlp", [3.0]), ("b model on val", [0.4]), ("b ego mlp", [3.0]),
    ]  # fmt: skip
    assert [one["key"] for one in found["loss"]] == ["a", "b"]


def test_the_time_of_a_run_is_that_of_all_its_starts(tmp_path: Path):
    """The second start's first line comes later than the first one's last; the third did nothing but look."""
    path = write_run(tmp_path / "a", train_rows(1.0))
    told = [
        (10, {"step": 6.0, "start": 1.0, "wall": 8.0}, 2.0),
        (20, {"step": 20.0, "start": 2.0, "wall": 30.0}, 3.0),
        (30, {"step": 35.0, "start": 2.0, "wall": 50.0}, 3.5),
        (30, {"step": 0.0, "start": 1.5, "wall": 2.0}, 1.0),
    ]
    lines = [{"step": step, "seconds": seconds, "memory": {"host": gb}} for step, seconds, gb in told]
    (path / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read_run(path)
    assert [len(rows) for rows in starts_of(record.timing)] == [1, 2, 1]
    text = page({"a": record}, beside=path)
    # 8 + 50 + 2 s, 6 + 35 of which were updates.
    for said in ("60 s in 3 starts", ">68%<", "host 3.50 GB", "step 68%, start 8%, other 24%"):
        assert said in text, said


@pytest.mark.long
@needs_chromium
def test_numbers_that_are_always_the_same_are_drawn_however_they_are_smoothed(tmp_path: Path):
    """A mean of 200 or 0.1 may differ from them in the last bit, and no tick fits between."""
    path = write_run(tmp_path / "a", train_rows(*(1 / (k + 1) for k in range(30)), length=200.0, rate=0.1))
    out = tmp_path / "page.html"
    out.write_text(page({"a": read_run(path)}, beside=tmp_path))
    with browsing(tmp_path / "browser") as tab:
        tab.go(out.as_uri())
        tab.wait("document.querySelectorAll('#charts polyline').length === 3")
        drawn = tab.evaluate(
            """(() => {
              const slider = document.querySelector("input[type=range]"), found = [];
              for (let k = 0; k < 50; k++) {
                slider.value = String(k * 0.02);
                slider.dispatchEvent(new Event("input"));
                found.push(document.querySelectorAll("#charts polyline").length);
              }
              return found;
            })()"""
        )
        assert drawn == [3] * 50
        labels = tab.evaluate("[...document.querySelectorAll('#charts .tick')].map((tick) => tick.textContent)")
        assert all(labels)
        assert not tab.errors
