"""Requests to stop while the main thread waits, computes, or is in a call that hears no signal."""

import functools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chunkwise.distributed import stopping
from chunkwise.errors import PreemptedError, StopRequested

PIPE = multiprocessing.Pipe()
ROOT = Path(__file__).parents[3]


def no_rescue() -> NoReturn:
    raise AssertionError("the main thread came by itself")


def ask(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def ask_soon() -> None:
    threading.Timer(0.05, ask).start()


@pytest.mark.parametrize(
    "wait",
    [
        threading.Event().wait,
        functools.partial(os.read, os.pipe()[0], 1),
        functools.partial(PIPE[0].poll, None),
        lambda: subprocess.run(["sleep", "60"], check=True),
        lambda: time.sleep(60),
    ],
    ids=["event", "pipe", "connection", "process", "sleep"],
)
def test_a_wait_is_broken_off_at_once(wait: Any):
    with stopping.watched() as watch:
        watch.carry_on()
        ask_soon()
        with pytest.raises(StopRequested):
            watch.attend(wait, no_rescue, patience=0.0)
        assert watch.requested == signal.SIGTERM


def test_patience_leaves_work_alone_for_so_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "_NUDGE", 0.1)
    with stopping.watched() as watch:
        watch.carry_on()

        def work() -> int:
            ask()
            return 3

        assert watch.attend(work, no_rescue, patience=0.2) == 3
        with pytest.raises(StopRequested):
            watch.attend(threading.Event().wait, no_rescue, patience=0.2)


def test_without_a_section_a_request_is_noted():
    with stopping.watched() as watch:
        watch.carry_on()
        ask()
        assert watch.requested == signal.SIGTERM
        assert watch.attend(lambda: 3, no_rescue, patience=math.inf) == 3


def test_before_the_first_section_there_is_nothing_to_save():
    with stopping.watched("nothing yet"), pytest.raises(StopRequested, match="nothing yet"):
        ask()
    with stopping.watched("nothing yet"), pytest.raises(KeyboardInterrupt):
        ask(signal.SIGINT)


def test_the_second_ctrl_c_stops_at_once():
    with stopping.watched() as watch:
        watch.carry_on()
        ask(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ask(signal.SIGINT)


def test_no_reader_takes_a_request_for_damage():
    assert not issubclass(StopRequested, Exception)


def test_handlers_are_put_back_and_a_watch_inside_is_the_same():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stopping.watched() as outer, stopping.watched() as inner:
        assert inner is outer
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert "watch" not in {thread.name for thread in threading.enumerate()}


PROGRAM = """
import ctypes, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from chunkwise.cli import command
from chunkwise.distributed import stopping
from chunkwise.errors import DataError, PreemptedError
stopping.GRACE = 0.5

def stuck():
    lock, libc = ctypes.create_string_buffer(256), ctypes.CDLL(None)
    print("stuck", flush=True)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)

def slow():
    print("stuck", flush=True)
    time.sleep(2)

def saved():
    raise PreemptedError("saved in its place")

def main():
    with stopping.watched() as watch:
        {body}

command.run(main, "nothing yet")
"""


def run(body: str, *signals: signal.Signals) -> tuple[int, str]:
    """Exit code and output of a program that is sent signals once it is stuck."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{body}", body)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "stuck\n":
            break
    for number in signals:
        time.sleep(0.3)
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)  # else it hangs
    return process.returncode, output


def test_a_call_that_hears_no_signal_is_left_behind():
    code, said = run("watch.attend(stuck, saved, 0.0)", signal.SIGTERM)
    assert code == 75
    assert "stopping without the main thread, which has been in stuck (<string>:" in said
    assert said.rstrip().endswith("error: saved in its place")
    code, said = run("stuck()", signal.SIGTERM)
    assert (code, said.rstrip().splitlines()[-1]) == (75, "error: nothing yet")
    assert run("stuck()", signal.SIGINT)[0] == 130


def test_a_section_without_a_rescue_is_waited_for_until_the_second_ctrl_c():
    code, said = run("watch.carry_on(); stuck()", signal.SIGTERM, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert "stopping without" not in said


def test_work_without_a_rescue_is_broken_off_after_its_patience_and_never_left_behind():
    """It is longer than the 0.5 s after which work with a rescue is left behind."""
    code, said = run("watch.attend(slow, None, float('inf')); print('came to its end')", signal.SIGTERM)
    assert (code, said.rstrip().splitlines()[-1]) == (0, "came to its end"), said
    code, said = run("watch.attend(slow, None, 0.0); print('came to its end')", signal.SIGTERM)
    assert (code, said.rstrip().splitlines()[-1]) == (75, "error: nothing yet"), said


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise DataError('bad file')", 65),
        ("raise KeyError('x')", 1),
        ("return 3", 3),
        ("return", 0),
        ("sys.exit(4)", 4),
    ],
)
def test_the_end_waits_for_no_thread(end: str, code: int):
    """The pool's threads are joined by Python's own end; stopped workers by that of multiprocessing."""
    begun, said = run(f"pool = ThreadPoolExecutor(2); pool.submit(stuck); time.sleep(0.2); {end}")
    assert begun == code
    assert ("error: bad file" in said) == (code == 65)
    assert ("Traceback" in said) == (code == 1)


def test_the_exit_code_of_a_request_is_that_of_a_saved_run():
    assert StopRequested.exit_code == PreemptedError.exit_code == 75


def test_in_another_thread_nothing_is_watched_and_nothing_changed() -> None:
    """Where a program trains beside its own work, the signals are that program's."""
    before, said = signal.getsignal(signal.SIGTERM), list[Any]()

    def train() -> None:
        with stopping.watched() as watch:
            watch.carry_on()
            said.extend([watch.attend(lambda: 3, no_rescue, patience=0.0), stopping.is_requested()])
            said.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert said == [3, False, True]
    with stopping.watched() as watch:
        watch.carry_on()
        ask_soon()
        with pytest.raises(StopRequested):
            watch.attend(threading.Event().wait, no_rescue, patience=0.0)
