"""A policy behind openpi's websocket protocol; `serve` is the command."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import http
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State

from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.policies.access import Access
from chunkwise.policies.policy import Policy, Prepared
from chunkwise.policies.wire import MessageError, pack, rename, unpack

MIB = 1 << 20
LONGEST_ERROR = 1000
"""Characters of an error that a client is told: what it sent may be quoted in it."""
SEND_SECONDS = 30.0
"""For a client to take an answer; one that does not is dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of the server clients may take."""

    clients: int = 16
    """Connected at once."""
    message_mib: int = 96
    """Largest message; three 4K images are 75."""
    rows: int = 16
    """Of one request."""
    idle_s: float = 3600.0
    """Without a request, until a client is dropped; one whose machine is gone is dropped after 40 s."""


class Batcher:
    """Hands the device what waits: one batch at a time, in the order of arrival.

    Nobody is waited for: what has come while the device was busy is the next batch.
    """

    def __init__(self, act: Callable[[Sequence[Prepared]], list[np.ndarray]], rows: int) -> None:
        """Starts no thread before it is needed.

        Args:
          act: Computes a batch; runs in a thread of its own.
          rows: Of the largest batch; a request of more rows is one by itself.
        """
        self._act = act
        self._rows = rows
        self._waiting: collections.deque[tuple[Prepared, Callable[[], bool], asyncio.Future[Any]]] = collections.deque()
        self._device = concurrent.futures.ThreadPoolExecutor(1, "device")
        self._working: asyncio.Task[None] | None = None

    async def act(self, request: Prepared, wanted: Callable[[], bool] = lambda: True) -> np.ndarray:
        """The chunk of one request.

        Args:
          request: From Policy.prepare.
          wanted: Asked when its turn comes; if false nothing is computed.

        Raises:
          ConnectionResetError: It was not wanted any more.
          Exception: Whatever the batch failed with.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, wanted, answer))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        """Computes until nothing waits."""
        try:
            while batch := self._next():
                try:
                    requests = [request for request, _ in batch]
                    chunks = await asyncio.get_running_loop().run_in_executor(self._device, self._act, requests)
                except Exception as error:
                    for _, answer in batch:
                        if not answer.done():
                            answer.set_exception(error)
                else:
                    for (_, answer), chunk in zip(batch, chunks, strict=True):
                        if not answer.done():
                            answer.set_result(chunk)
        finally:
            self._working = None

    def _next(self) -> list[tuple[Prepared, asyncio.Future[Any]]]:
        """The requests that are computed together now; none if nothing waits."""
        batch: list[tuple[Prepared, asyncio.Future[Any]]] = []
        rows = 0
        while self._waiting:
            request, wanted, answer = self._waiting[0]
            if answer.done() or not wanted():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the client left"))
            elif batch and rows + request.rows > self._rows:
                break
            else:
                batch.append((request, answer))
                rows += request.rows
            self._waiting.popleft()
        return batch

    def close(self) -> None:
        """Ends the thread once it is done with its batch."""
        self._device.shutdown(wait=False, cancel_futures=True)


def _require_read(policy: Policy[Any], names: Mapping[str, str]) -> None:
    """Raises ConfigError for entries that would be renamed into what the policy does not read: a camera, once misspelt,
    would be as one that is off."""
    entries = policy.entries
    if entries is None:
        return
    known = {*policy.options, *entries}
    above = {name[:place] for name in entries for place, letter in enumerate(name) if letter == "/"}
    if wrong := sorted(set(names.values()) - known - above):
        listed = ", ".join(sorted(known))
        raise ConfigError(f"--rename: expected names that the policy reads, {listed}, found {', '.join(wrong)}")


class PolicyServer:
    """Answers a number of clients, each request with its own actions or with an error."""

    def __init__(
        self,
        policy: Policy[Any],
        *,
        options: Mapping[str, float | None] | None = None,
        names: Mapping[str, str] | None = None,
        batch_sizes: Sequence[int] = (1, 2, 4),
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        """Does not listen yet; `start` does. Compiles, unless the policy has programs for these sizes.

        Args:
          policy: Who acts.
          options: For requests without their own, such as guidance_scale; None takes the policy's.
          names: See `rename`.
          batch_sizes: Rows for which programs are compiled; requests that wait are computed together.
          limits: By default those of the command line.
          access: By default whoever is on this machine and no browser.

        Raises:
          ConfigError: If the policy has no such option, or not with this value, or reads no entry of such a name.
        """
        _require_read(policy, names or {})
        self._options: dict[str, Any] = dict(options or {})
        policy.prepare(policy.example(), draw=(0,), by_spec=True, **self._options)
        policy.compile(batch_sizes)
        self._policy = policy
        self._names = names or {}
        self._limits = limits or Limits()
        self._access = access or Access()
        self._batcher = Batcher(policy.act, max(batch_sizes))
        self._clients: set[ServerConnection] = set()
        self._numbers = itertools.count()
        self._failures = itertools.count(1)
        given = {name: value for name, value in self._options.items() if value is not None}
        self.metadata: dict[str, Any] = (
            policy.metadata
            | given
            | {
                "max_rows": self._limits.rows,
                "max_message_bytes": self._limits.message_mib * MIB,
            }
        )
        """What a client is told when it has connected."""

    async def start(self, host: str, port: int) -> Server:
        """Listens; closing the returned server ends it. Port 0 takes a free one."""
        return await serve(
            self._answer,
            host,
            port,
            compression=None,
            max_size=self._limits.message_mib * MIB,
            max_queue=1,  # messages that are read ahead of the one in work
            process_request=self._let_in,
            server_header=None,
        )

    def _let_in(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to who may not connect, or asks for the server's health only."""
        if request.path.partition("?")[0].rstrip("/") == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        refusal = self._access.refusal(request.headers)
        if refusal is None and self._full:
            refusal = http.HTTPStatus.SERVICE_UNAVAILABLE, self._full
        if refusal is None:
            return None
        status, reason = refusal
        self._log(connection, f"not let in: {reason}")
        return connection.respond(status, f"{reason}\n")

    @property
    def _full(self) -> str:
        """Why there is no room for another client; empty if there is."""
        limit = self._limits.clients
        return f"expected at most {limit} clients as --max-clients says" if len(self._clients) >= limit else ""

    async def _answer(self, connection: ServerConnection) -> None:
        """One client, until it leaves or sends what is no message."""
        if self._full:  # of several that came at once
            await connection.close(CloseCode.TRY_AGAIN_LATER, self._full)
            return
        self._clients.add(connection)
        try:
            await self._converse(connection, next(self._numbers))
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._log(connection, f"dropped: a message above --max-message-mib {self._limits.message_mib}")
        finally:
            self._clients.discard(connection)

    async def _converse(self, connection: ServerConnection, number: int) -> None:
        before: float | None = None
        await self._send(connection, pack(self.metadata))
        for count in itertools.count():
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    message = await connection.recv()
            except TimeoutError:
                reason = f"no request in {self._limits.idle_s:g} s, see --idle-timeout"
                self._log(connection, f"dropped: {reason}")
                await connection.close(CloseCode.GOING_AWAY, reason)
                return
            began = time.monotonic()
            try:
                reply = await self._infer(connection, message, (number, count))
            except ConnectionResetError:
                return
            except Exception as error:
                goes_on = await self._refuse(connection, error)
                if not goes_on:
                    return
                continue
            if before is not None:  # includes the sending, so it is known one request late
                reply["server_timing"]["prev_total_ms"] = before
            await self._send(connection, pack(reply))
            before = 1000 * (time.monotonic() - began)

    async def _refuse(self, connection: ServerConnection, error: Exception) -> bool:
        """Tells a client that there are no actions for what it sent; whether it may go on.

        A request that was understood and refused ends nothing: the next one is answered for itself. What is no message
        at all, and a failure of the server, end the connection.
        """
        if isinstance(error, RunError):
            text = str(error)[:LONGEST_ERROR]
            self._log(connection, f"request refused: {text}")
        else:
            number = next(self._failures)
            text = f"the server failed; its log says why (failure {number})"
            self._log(connection, f"failure {number}:")
            print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
        await self._send(connection, text)
        if isinstance(error, RunError) and not isinstance(error, MessageError):
            return True
        await connection.close(CloseCode.INTERNAL_ERROR, "The frame before says why.")
        return False

    async def _send(self, connection: ServerConnection, message: str | bytes) -> None:
        """Sends a frame, or drops a client that does not take it."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await connection.send(message)
        except TimeoutError:
            self._log(connection, f"dropped: it took no answer in {SEND_SECONDS:g} s")
            connection.transport.abort()

    async def _infer(self, connection: ServerConnection, message: str | bytes, draw: tuple[int, int]) -> dict[str, Any]:
        prepared = await asyncio.to_thread(self._prepare, message, draw)
        began = time.monotonic()
        chunk = await self._batcher.act(prepared, lambda: connection.state is State.OPEN)
        took = 1000 * (time.monotonic() - began)
        return self._policy.finish(prepared, chunk) | {"server_timing": {"infer_ms": took}}

    def _prepare(self, message: str | bytes, draw: tuple[int, int]) -> Prepared:
        """Reads and checks a request; in a thread, since images are resized."""
        if isinstance(message, str):
            raise MessageError("request: expected a binary frame, found text")
        observation = rename(unpack(message), self._names)
        options: dict[str, Any] = {}
        for name in self._policy.options:
            value = observation.pop(name, self._options.get(name))
            if not isinstance(value, float | int | np.number | None) or isinstance(value, bool):
                raise DataError(f"{name}: expected a number, found {value!r:.80}")
            options[name] = None if value is None else float(value)
        return self._policy.prepare(observation, draw=draw, max_rows=self._limits.rows, **options)

    def _log(self, connection: ServerConnection, text: str) -> None:
        """A line on the server's own log; what a client sent can't break or colour it."""
        line = f"{connection.remote_address}: {text}"
        print("".join(c if c.isprintable() else "?" for c in line), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the thread that computes."""
        self._batcher.close()
