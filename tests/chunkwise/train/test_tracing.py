"""The trace of a run: which updates are in it, that nothing else changes, and what is said where there is none."""

import dataclasses
from pathlib import Path

import jax
import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.config.load import load
from chunkwise.errors import ConfigError
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from chunkwise.train.tracing import Tracing
from tests.chunkwise.toy import ToyTask, toy_config

ROOT = Path(__file__).parents[3]


def traced(folder: Path) -> list[int]:
    """Steps of the `update` events in the one trace below a folder, as xprof reads it."""
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    events = (
        event
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
    )
    return sorted(dict(event.stats)["step_num"] for event in events if event.name == "update")


def trained(folder: Path, profile: int, updates_per_call: int = 1) -> str:
    config = toy_config(folder, run=RunConfig(dir=str(folder), profile=profile))
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, updates_per_call=updates_per_call))
    with RunFolder(config, "toy") as opened:
        return fit(config, ToyTask(config), opened)


@pytest.mark.filterwarnings("ignore:builtin type event_stats")  # jaxlib 0.11 aborts where that is an error
def test_a_trace_has_the_updates_asked_for_and_changes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain, with_trace = trained(tmp_path / "plain", 0), trained(tmp_path / "traced", 4)
    assert traced(tmp_path / "traced/profile") == [3, 4, 5, 6], "after the call that compiles and two more"
    assert plain == with_trace
    for name in ("metrics.jsonl", "done.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "traced" / name).read_bytes()
    assert not (tmp_path / "plain/profile").exists()
    assert f"trace of updates: {tmp_path / 'traced/profile'}" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:builtin type event_stats")
def test_calls_are_traced_whole_and_what_the_end_cuts_off_is_written(tmp_path: Path):
    trained(tmp_path / "whole", 4, updates_per_call=3)
    # Calls end at 3, 5 (logged), 6 (saved), 8 (evaluated), 10: the fourth and the fifth have two updates each.
    assert traced(tmp_path / "whole/profile") == [6, 8]
    trained(tmp_path / "cut", 1000)
    assert traced(tmp_path / "cut/profile") == list(range(3, 20))


def test_without_enough_updates_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trained(tmp_path / "short", 4, updates_per_call=20)
    calls = capsys.readouterr().out
    assert "trace of updates" in calls, "calls that end where something is due are calls"
    tracing = Tracing(tmp_path, 4)
    with tracing.call(0, 1, lambda: None):
        pass
    tracing.stop()
    assert "no update was traced" in capsys.readouterr().out


def test_a_trace_that_cannot_begin_is_said_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    jax.profiler.start_trace(tmp_path / "another")
    try:
        assert trained(tmp_path / "run", 4)
    finally:
        jax.profiler.stop_trace()
    assert "run.profile: no trace: " in capsys.readouterr().out
    assert not (tmp_path / "run/profile").exists()


def test_profile_for_short():
    words = ["--config", str(ROOT / "configs/qchunk/debug.py"), "--profile", "7"]
    assert load(words)[0].run.profile == 7
    with pytest.raises(ConfigError, match=r"run\.profile is 7 and run\.dry_run on"):
        load([*words, "--dry-run"])
