"""A server of any policy in a thread, and a client written from the protocol's description."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
from websockets.sync.client import ClientConnection, connect

from chunkwise.policies.policy import Policy
from chunkwise.policies.server import PolicyServer

SIZES = (1, 4)


class Running:
    """A server in a thread with an event loop of its own."""

    def __init__(self, server: PolicyServer) -> None:
        self._server = server
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._listening.wait(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await self._server.start("127.0.0.1", 0) as listening:
            self.port = listening.sockets[0].getsockname()[1]
            self._listening.set()
            await self._stop.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._server.close()


@contextlib.contextmanager
def running(policy: Policy[Any], **settings: Any) -> Iterator[int]:
    """The port of a server."""
    listening = Running(PolicyServer(policy, batch_sizes=SIZES, **settings))
    try:
        yield listening.port
    finally:
        listening.close()


def client(port: int, **settings: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, **settings)


def wire(array: np.ndarray) -> dict[bytes, Any]:
    """An array as the protocol describes it."""
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": list(array.shape)}


def read(message: str | bytes) -> Any:
    """A message with its arrays, decoded by the protocol's description and nothing of the server's code."""
    assert isinstance(message, bytes), message

    def decode(value: dict[Any, Any]) -> Any:
        if b"__ndarray__" in value:
            return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
        return value

    return msgpack.unpackb(message, object_hook=decode)


def sent(value: Any) -> Any:
    """An observation with its arrays as the protocol describes them."""
    if isinstance(value, dict):
        return {name: sent(item) for name, item in value.items()}
    return wire(value) if isinstance(value, np.ndarray) else value


def ask(connection: ClientConnection, observation: dict[str, Any]) -> Any:
    """The answer to an observation: a map, or the text of an error."""
    connection.send(msgpack.packb(sent(observation)) or b"")
    answer = connection.recv()
    return answer if isinstance(answer, str) else read(answer)
