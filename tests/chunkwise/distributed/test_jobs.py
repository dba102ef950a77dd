"""Jobs that processes share: each is done, by whomever, and what stops them is said."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed import jobs
from chunkwise.distributed.jobs import Hands, do_all, in_order
from chunkwise.errors import ConfigError, DataError, RunError, StorageError


class Refused(DataError):
    """A reader's own, which another process cannot make from its message."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(f"{where}: expected whole data", f"found {found}")


def _recorder(folder: Path, episode: int) -> int:
    if episode == 7:
        raise OSError("no space")
    if episode == 8:
        raise ValueError("exploded")
    if episode == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if episode == 10 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if episode == 11 and len(died := list(folder.glob("died*"))) < 2:
        (folder / f"died{len(died)}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if episode == 12:
        raise Refused("a.bin", "a flipped bit")
    (folder / str(episode)).write_text(str(episode**2))
    return -episode


def opener(folder: Path) -> functools.partial[int]:
    return functools.partial(_recorder, folder)


def broken() -> Any:
    raise ConfigError("there is no such simulator")


def sleeper(folder: Path) -> Any:
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(600)


def test_every_episode_is_recorded_once_by_any_number_of_workers(tmp_path: Path) -> None:
    for processes in (1, 3):
        (folder := tmp_path / str(processes)).mkdir()
        done = list(do_all([0, 2, 3, 5], functools.partial(opener, folder), workers=processes))
        assert sorted(done) == [(0, 0), (2, -2), (3, -3), (5, -5)]
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"0": "0", "2": "4", "3": "9", "5": "25"}


@pytest.mark.parametrize(
    ("episode", "kind", "message"),
    [
        (7, StorageError, "episode 7 could not be written: no space"),
        (8, RunError, "episode 8 failed: ValueError: exploded"),
        (9, RunError, r"3 workers died while they did episode 9 \(killed by SIGKILL\)"),
        (12, DataError, "a.bin: expected whole data\nfound a flipped bit"),
    ],
)
def test_what_stops_a_recording_is_said(tmp_path: Path, episode: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as found:
        list(do_all([episode], functools.partial(opener, tmp_path), workers=1, name="episode"))
    assert found.type is kind


def test_a_worker_that_cannot_begin_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such simulator"):
        list(do_all([1], broken, workers=2))


def test_an_episode_whose_worker_died_is_recorded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(do_all([0, 10, 2], functools.partial(opener, tmp_path), workers=2, name="episode")) == [
        (0, 0),
        (2, -2),
        (10, -10),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "10", "2", "died"]
    assert "a worker died (killed by SIGKILL); episode 10 is done again" in capsys.readouterr().err


def test_two_deaths_in_one_episode_are_survived(tmp_path: Path) -> None:
    assert list(do_all([11], functools.partial(opener, tmp_path), workers=1, name="episode")) == [(11, -11)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11", "died0", "died1"]


def test_answers_come_in_order_whichever_is_first() -> None:
    closed = []

    def work() -> Generator[tuple[int, str], None, None]:
        try:
            yield from ((5, "five"), (2, "two"), (9, "nine"), (1, "one"))
        finally:
            closed.append(True)

    found = in_order([2, 9, 5, 1], work())
    assert [next(found), next(found), next(found)] == ["two", "nine", "five"]
    found.close()
    assert closed == [True]
    assert list(in_order([], work())) == []


def test_one_worker_without_a_cluster_is_this_process() -> None:
    for hands, alone in ((Hands(), True), (Hands(workers=1), True), (Hands(workers=2), False)):
        assert hands.is_alone is alone
    assert not Hands(fleet=FleetConfig(address="auto")).is_alone


def test_workers_that_were_stopped_end_with_the_recording(tmp_path: Path) -> None:
    recording = do_all([0, 2, 3], functools.partial(opener, tmp_path), workers=1, name="episode")
    assert next(recording) == (0, 0)
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    recording.close()
    assert worker.exitcode == -signal.SIGKILL


def test_a_worker_ends_with_its_parent_in_the_middle_of_a_job(tmp_path: Path) -> None:
    begin = f"list(do_all([1], functools.partial(sleeper, Path({str(tmp_path)!r})), workers=1))"
    lines = f"import functools; from pathlib import Path; from {__name__} import do_all, sleeper; {begin}"
    parent = subprocess.Popen([sys.executable, "-c", lines], cwd=Path(__file__).parents[3])
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert parent.poll() is None
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    worker, until = Path("/proc", (tmp_path / "pid").read_text()), time.monotonic() + 60
    while worker.exists() and "Z" not in (worker / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < until, "the worker outlives its parent"
        time.sleep(0.1)


def test_a_job_is_done_again_until_it_has_cost_three_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each job by itself; then it is given up, or answered by whoever knows what to say of it."""
    for lost in (None, lambda number: f"{number} is lost"):
        deaths = jobs._Deaths("part", lost)
        found = [deaths.count(number, "killed", RuntimeError()) for number in (5, 7, 5)]
        assert found == [None] * 3
        assert capsys.readouterr().err.count("part 5 is done again") == 2
        if lost is None:
            with pytest.raises(RunError, match=r"^3 workers died while they did part 5"):
                deaths.count(5, "killed", RuntimeError())
        else:
            assert deaths.count(5, "killed", RuntimeError()) == ("5 is lost",)
