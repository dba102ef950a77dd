"""Two processes that divide numbered work, without devices: who does what, stops, errors."""

import pytest

from chunkwise.distributed.division import Division
from chunkwise.errors import StopRequested
from tests.chunkwise.distributed.test_processes import run_two

DIVIDE = """
import time
from chunkwise.distributed.division import Division
from chunkwise.errors import StopRequested
one, other = Division(), Division()
mine = [number for number in range(5) if one.mine(number)]
assert mine == [[0, 2, 4], [1, 3]][me]
assert one.work(lambda stopping: {"by": me, "did": mine}) == [{"by": 0, "did": [0, 2, 4]}, {"by": 1, "did": [1, 3]}]

def until_stopped(stopping):
    while not stopping():
        time.sleep(0.02)
    return None if me == 0 else fail()

def fail():
    raise StopRequested

began = time.monotonic()
for asked in (0, 1):  # process 0 waits for the other's answer in the second, process 1 in the first
    assert other.work(until_stopped if me != asked else lambda _: [me], lambda: me == asked) is None, asked
assert one.work(until_stopped, lambda: me == 1) is None
assert one.work(lambda _: 0 if me else None) is None, "one that gives nothing has stopped"

def broken(stopping):
    if me == 1:
        raise NonFiniteError("NaN in rollout 3")
    while not stopping():
        time.sleep(0.02)

try:
    one.work(broken)
except NonFiniteError as error:
    assert str(error) == "NaN in rollout 3"
else:
    raise AssertionError
assert time.monotonic() - began < 60
assert one.work(lambda stopping: stopping()) == [False, False], "nothing of before stops what comes after"
for _ in range(5):
    one.work(lambda _: True)
processes.gather("")
kept = [key for key, _ in processes._client().key_value_dir_get(one._key)]
assert len(kept) == 2, kept
print("divided", me, file=sys.stderr)
processes.leave(0, together=True)
"""


def test_two_processes_divide_work_and_end_it_together():
    (first, said), (second, also) = run_two(DIVIDE)
    assert (first, second) == (0, 0), said + also
    assert "divided 0" in said
    assert "divided 1" in also


def test_alone_all_is_ones_own():
    alone = Division()
    assert all(alone.mine(number) for number in range(4))
    assert alone.work(lambda stopping: stopping(), lambda: True) == [True]
    assert alone.work(lambda stopping: None if stopping() else 1, lambda: True) is None
    with pytest.raises(StopRequested):
        alone.work(lambda _: (_ for _ in ()).throw(StopRequested()))
