import os
import subprocess
import sys

import numpy as np
import pytest

from chunkwise.data.threads import Workers
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
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*found, os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.parametrize(("niceness", "found"), [(10, "15 15 10"), (18, "19 19 18"), (19, "19 19 19")])
def test_a_thread_steps_back_from_where_its_process_is(niceness: int, found: str):
    """By five, once, up to the last: less than the process's own is for root alone."""
    done = subprocess.run([sys.executable, "-c", STEP_BACK.format(niceness=niceness)], capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr
