import os

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
