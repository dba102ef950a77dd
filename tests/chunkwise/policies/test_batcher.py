"""What waits while the device is busy is computed together, in the order of arrival."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from chunkwise.policies.policy import Prepared
from chunkwise.policies.server import Batcher


class Device:
    """Computes when it is let, and notes the rows of each batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.busy = threading.Event()
        self.go = threading.Semaphore(0)

    def act(self, requests: Sequence[Prepared]) -> list[np.ndarray]:
        self.batches.append([int(request.inputs[0, 0]) for request in requests])
        self.busy.set()
        assert self.go.acquire(timeout=30)
        if any(request.inputs[0, 0] == 13 for request in requests):
            raise RuntimeError("out of memory")
        return [request.inputs for request in requests]


def request(number: int, rows: int = 1) -> Prepared:
    state = np.full((rows, 2), number, np.float32)
    return Prepared(inputs=state, rows=rows, single=rows == 1)


async def until_waiting(batcher: Batcher, count: int) -> None:
    while len(batcher._waiting) < count:
        await asyncio.sleep(0.001)


def test_what_waits_is_gathered_up_to_the_largest_size_in_order():
    async def run() -> list[Any]:
        tasks = [asyncio.create_task(batcher.act(request(0)))]
        await asyncio.to_thread(device.busy.wait, 30)
        for number, rows in ((1, 1), (2, 2), (3, 1), (4, 1), (5, 9), (6, 1)):
            tasks.append(asyncio.create_task(batcher.act(request(number, rows))))
        await until_waiting(batcher, 6)
        device.go.release(10)
        return await asyncio.gather(*tasks)

    device = Device()
    batcher = Batcher(device.act, 4)
    answers = asyncio.run(run())
    batcher.close()
    # The first was alone on an idle device; 1, 2 and 3 are four rows; nine rows are a batch of their own.
    assert device.batches == [[0], [1, 2, 3], [4], [5], [6]]
    assert [(len(answer), int(answer[0, 0])) for answer in answers] == [
        (1, 0),
        (1, 1),
        (2, 2),
        (1, 3),
        (1, 4),
        (9, 5),
        (1, 6),
    ]


def test_who_has_left_is_not_computed_for_and_a_failure_ends_its_own_batch_alone():
    async def run() -> list[Any]:
        tasks = [asyncio.create_task(batcher.act(request(0)))]
        await asyncio.to_thread(device.busy.wait, 30)
        tasks.append(asyncio.create_task(batcher.act(request(1), lambda: False)))
        tasks.append(asyncio.create_task(batcher.act(request(2))))
        tasks.append(asyncio.create_task(batcher.act(request(3))))
        tasks.append(asyncio.create_task(batcher.act(request(13))))
        tasks.append(asyncio.create_task(batcher.act(request(4))))
        await until_waiting(batcher, 5)
        tasks[2].cancel()
        await asyncio.sleep(0)
        device.go.release(10)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        return [*answers, await batcher.act(request(5))]

    device = Device()
    batcher = Batcher(device.act, 2)
    answers = asyncio.run(run())
    batcher.close()
    assert device.batches == [[0], [3, 13], [4], [5]]
    assert isinstance(answers[1], ConnectionResetError)
    assert isinstance(answers[2], asyncio.CancelledError)
    for failed in (3, 4):
        assert str(answers[failed]) == "out of memory"
    assert [int(answers[i][0, 0]) for i in (0, 5, 6)] == [0, 4, 5]


def test_an_idle_device_waits_for_nobody():
    """Each of several requests, one after the other, is a batch of one."""

    async def run() -> None:
        for number in range(3):
            await batcher.act(request(number))

    device = Device()
    device.go.release(3)
    batcher = Batcher(device.act, 8)
    asyncio.run(run())
    batcher.close()
    assert device.batches == [[0], [1], [2]]


@pytest.mark.parametrize("rows", [1, 4])
def test_a_batch_is_never_larger_than_the_largest_size(rows: int):
    async def run() -> None:
        tasks = [asyncio.create_task(batcher.act(request(number))) for number in range(10)]
        await asyncio.to_thread(device.busy.wait, 30)
        device.go.release(20)
        await asyncio.gather(*tasks)

    device = Device()
    batcher = Batcher(device.act, rows)
    asyncio.run(run())
    batcher.close()
    assert max(map(len, device.batches)) == rows
    assert [number for batch in device.batches for number in batch] == list(range(10))


def test_closing_waits_for_no_batch_and_ends_the_thread_after_it():
    before = set(threading.enumerate())

    async def run() -> threading.Thread:
        task = asyncio.create_task(batcher.act(request(0)))
        await asyncio.to_thread(device.busy.wait, 30)
        (thread,) = (one for one in set(threading.enumerate()) - before if one.name.startswith("device"))
        batcher.close()
        assert thread.is_alive(), "its batch is under way"
        device.go.release()
        assert (await task).shape == (1, 2)
        return thread

    device = Device()
    batcher = Batcher(device.act, 4)
    thread = asyncio.run(run())
    thread.join(10)
    assert not thread.is_alive()
