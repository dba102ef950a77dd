import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunkwise.data.threads import Behind, Workers
from chunkwise.errors import DataError


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_piece_is_done_once(threads: int):
    done = np.zeros(200, np.int64)

    def work(i: int) -> None:
        done[i] += 1

    Workers(threads).run(work, 200)
    assert (done == 1).all()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_failure_is_raised(threads: int):
    def work(i: int) -> None:
        if i == 7:
            raise DataError("seven")

    with pytest.raises(DataError, match="seven"):
        Workers(threads).run(work, 100)


def test_none_takes_one_a_core():
    assert Workers(0).threads == len(os.sched_getaffinity(0))


STEP_BACK = """
import os, threading
from chunkwise.data.threads import step_back
os.setpriority(os.PRIO_PROCESS, 0, {niceness})
found = []
def work():
    for _ in range(2):
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
step_back()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*found, os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.parametrize(("niceness", "found"), [(10, "15 15 10"), (18, "19 19 18"), (19, "19 19 19")])
def test_a_thread_steps_back_from_where_its_process_is(niceness: int, found: str):
    """By five, once, up to the last: less than the process's own is for root alone. The main thread does not."""
    done = subprocess.run([sys.executable, "-c", STEP_BACK.format(niceness=niceness)], capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr


def test_work_is_done_behind_in_order_and_what_failed_is_told():
    """Kills: the first failure forgotten by `do`, `wait` or the end of the block; room that is not given back."""
    done: list[int] = []

    def work(i: int, *, fail: bool = False) -> None:
        if fail:
            raise OSError(f"number {i}")
        done.append(i)

    with Behind("test", waiting=1) as behind:
        for i in range(5):
            behind.do(work, i)
        behind.wait()
        assert done == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="number 5"), Behind("test", waiting=2) as behind:
        behind.do(work, 5, fail=True)
    with Behind("test", waiting=1) as behind:
        behind.do(work, 7, fail=True)
        with pytest.raises(OSError, match="number 7"):
            behind.wait()
        behind.wait()

    go = threading.Event()
    with Behind("test", waiting=4) as behind:
        behind.do(go.wait, 30)
        behind.do(work, 8, fail=True)
        behind.do(time.sleep, 0.05)
        behind.do(work, 9)
        go.set()
        with pytest.raises(OSError, match="number 8"):
            behind.wait()
        assert done[-1] == 9, "wait waits for all, whatever failed"
    for _ in range(5):  # the room of what could not be handed over is given back: the fifth would wait for ever
        with pytest.raises(RuntimeError, match="after shutdown"):
            behind.do(work, 10)

    def told_by_the_next() -> None:
        behind = Behind("test", waiting=1)
        for i in range(11, 100):
            behind.do(work, i, fail=i == 11)

    with pytest.raises(OSError, match="number 11"):
        told_by_the_next()


def test_no_more_waits_than_there_is_room_for_and_what_was_handed_over_is_done_all_the_same():
    go, done, given = threading.Event(), list[int](), list[int]()

    def work(i: int) -> None:
        go.wait(30)
        done.append(i)

    def hand_over() -> None:
        with Behind("test", waiting=2) as behind:
            for i in range(4):
                behind.do(work, i)
                given.append(i)
            raise ZeroDivisionError

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(hand_over)
        for _ in range(3000):
            if given == [0, 1]:
                break
            time.sleep(0.001)
        time.sleep(0.05)
        assert given == [0, 1]
        go.set()
        with pytest.raises(ZeroDivisionError):
            ended.result(30)
    assert done == [0, 1, 2, 3]
