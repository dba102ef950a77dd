"""Processes of environments that die, freeze, or say what cannot be read."""

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.workers import ProcessWorkers, Reset, Run, Start, WorkerDiedError
from chunkwise.errors import RunError
from tests.chunkwise.envs.countdown import Countdown


def opener(task: str = "") -> Any:
    return functools.partial(Countdown, EnvSpec(suite="own", task=task))


def test_a_dead_process_is_named_by_its_slot_and_replaced() -> None:
    workers = ProcessWorkers(opener("deadly"), 2, name="countdown")
    workers.submit(0, Reset(1))
    workers.receive([0])
    workers.submit(1, Reset(4))
    with pytest.raises(WorkerDiedError) as died:
        workers.receive([1])
    assert (died.value.slot, died.value.why) == (1, "exit code 1")
    assert workers.pid(1) is None
    workers.submit(1, Reset(3))
    assert workers.receive([1])[0] == 1
    pid = workers.pid(1)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    workers.silence = 0.1
    workers.submit(1, Reset(2))
    with pytest.raises(WorkerDiedError, match=r"slot 1: silent for 0\.1 s"):
        workers.receive([1])
    workers.close()


def test_a_worker_that_freezes_in_the_middle_of_a_message_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 MB, in either direction; a pipe holds 0.2."""
    monkeypatch.setattr("chunkwise.envs.workers.REACHED", 1.0)
    workers = ProcessWorkers(opener(), 1, name="countdown")
    large = Run(np.ones((1, 6_000_000), np.float32))

    def freeze() -> None:
        pid = workers.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    try:
        workers.submit(0, Reset(2))
        workers.receive([0])
        workers.submit(0, large)
        assert workers._pipes[0].poll(25.0), "its answer is under way"
        freeze()
        with pytest.raises(WorkerDiedError, match="silent in the middle of an answer"):
            workers.receive([0])
        workers.submit(0, Reset(2))
        assert isinstance(workers.receive([0])[1], Start)
        freeze()
        workers.submit(0, large)
        with pytest.raises(WorkerDiedError, match="it takes no request"):
            workers.receive([0])
    finally:
        workers.close()


class OddError(RunError):
    """Cannot be made from its arguments."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")


class Odd(Countdown):
    def reset(self, seed: int) -> Any:
        raise OddError(7, "the arm is stuck")


def test_an_error_of_ones_own_comes_with_its_text() -> None:
    workers = ProcessWorkers(functools.partial(Odd, EnvSpec(suite="own")), 1, name="countdown")
    workers.submit(0, Reset(2))
    with pytest.raises(RunError, match=r"the arm is stuck \(7\)"):
        workers.receive([0])
    workers.close()


def test_an_answer_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ProcessWorkers(opener(), 1, name="countdown")
    monkeypatch.setattr(workers, "receive_pickled", lambda *_, **__: (0, b"garbage"))
    with pytest.raises(RunError, match="what the environment countdown answered cannot be read here: Unpickling"):
        workers.receive([0])
