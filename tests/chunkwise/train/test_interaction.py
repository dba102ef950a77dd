"""Two processes that evaluate and act together, without training."""

from typing import Any

import pytest

from chunkwise.train.interaction import Home, Metrics, interact
from tests.chunkwise.distributed.test_processes import run_two

EVALUATE = """
import numpy as np
from chunkwise.distributed.division import Division
from chunkwise.errors import RunError, StorageError
from chunkwise.state import TrainState
from chunkwise.train import interaction

class Task:
    def __init__(self):
        self.division, self.late = Division(), False
    def evaluate(self, state, *, final):
        told = self.part(state, final)
        if self.late:
            raise DataError("disk full")
        return {"sum": sum(told)}
    def help_evaluate(self, state, *, final):
        self.part(state, final)
    def part(self, state, final):
        assert final
        shift = processes.primary_then_all(lambda: 100 if me == 0 else 200)
        told = self.division.work(lambda stopping: None if stopping() else float(state.params["w"].sum()) + shift)
        if told is None:
            raise PreemptedError("stopped")
        return told

class World:
    start, every, averaged = 0, 1, False
    found = {"count": 7}
    def interact(self, state, step, stopping):
        assert state.params["w"].sum() == 6 and not state.opt_state
        return {"world": [float(step)]}
    def position(self):
        return self.found
    def sync(self):
        pass

def evaluated(task):
    work = lambda work, patience: work()
    return interaction.evaluate(task, state, final=True, stopping=lambda: False, unless_stopped=work)

state = TrainState(step=3, params={"w": np.arange(4.0)}, opt_state={"m": np.ones(2)}, target={})
task = Task()
for _ in range(2):
    assert evaluated(task) == {"sum": 312.0}, "both parts, the same on both"
assert interaction.interact(World(), state, 3, lambda: False, lambda work: work(), id) == {"world": [3.0]}
World.found = {"count": me}
try:
    interaction.interact(World(), state, 4, lambda: False, lambda work: work(), id)
except RunError as error:
    assert "processes 0 and 1 came from acting with different things" in str(error)
else:
    raise AssertionError
def full():
    if me:
        raise StorageError("no room")
    return {}
World.sync = lambda self: full()
try:
    interaction.interact(World(), state, 5, lambda: False, lambda work: work(), id)
except StorageError as error:
    assert str(error) == "no room", "of the other, too"
else:
    raise AssertionError
task.late = True
try:
    evaluated(task)
except DataError as error:
    assert str(error) == "disk full"
else:
    raise AssertionError
print("evaluated", me, file=sys.stderr)
processes.leave(0, together=True)
"""


def test_two_processes_evaluate_and_act_together():
    (first, said), (second, also) = run_two(EVALUATE)
    assert (first, second) == (0, 0), said + also
    assert "evaluated 0" in said
    assert "evaluated 1" in also


@pytest.mark.parametrize("metrics", [{"success": [1.0, 0.0]}, {}, None])
def test_what_it_comes_home_with_is_told_before_it_is_left(metrics: Metrics | None):
    """Another thread may save while the main one is held there: the new position with the old word that nothing was
    done made a run that was stopped play a round twice."""
    order: list[object] = []

    class World:
        def interact(self, *_: Any) -> Metrics | None:
            order.append("acted")
            return metrics

        def position(self) -> dict[str, Any]:
            return {"count": 7}

    def unless_stopped(act: Any) -> Metrics | None:
        found = act()
        order.append("left")
        return found

    world: Any = World()
    state: Any = None
    assert interact(world, state, 3, lambda: False, unless_stopped, order.append) == metrics
    told = [] if metrics is None else [Home(position={"count": 7}, metrics=metrics, interacted=True)]
    assert order == ["acted", *told, "left"]


def test_values_count_once_each_in_the_window():
    window = {"success": [2.0, 4.0]}
    found = Home(metrics={"success": [1.0, 0.5], "length": [7.0], "none": []}).counted(window)
    assert found == {"success": [3.5, 6.0], "length": [7.0, 1.0], "none": [0.0, 0.0]}
    assert window == {"success": [2.0, 4.0]}, "what the main thread may still change"
