"""A policy behind openpi's websocket protocol; `serve` is the command."""

import asyncio
import contextlib
import functools
import http
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from core.errors import DataError, RunError
from openpi_ript.policy import Policy
from openpi_ript.wire import pack, rename, unpack

MAX_BYTES = 1 << 28
"""Largest frame that is taken, 256 MiB: three 4K pictures are 75."""


class PolicyServer:
    """Answers any number of clients, one inference at a time."""

    def __init__(
        self, policy: Policy, *, guidance_scale: float | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        """Does not listen yet; `start` does.

        Args:
          policy: Who acts.
          guidance_scale: For requests without one of their own; None takes the policy's.
          names: See `rename`.
        """
        self._policy = policy
        self._scale = guidance_scale
        self._names = names or {}
        self._one_at_a_time = asyncio.Lock()

    async def start(self, host: str, port: int) -> Server:
        """Listens; closing the returned server ends it. Port 0 takes a free one."""
        return await serve(self._answer, host, port, compression=None, max_size=MAX_BYTES, process_request=_healthy)

    async def _answer(self, connection: ServerConnection) -> None:
        """One client, until it leaves or sends what can't be answered."""
        before: float | None = None
        try:
            await connection.send(pack(self._policy.metadata))
            async for message in connection:
                began = time.monotonic()
                reply = await self._infer(message)
                if before is not None:  # includes the sending, so it is known one request late
                    reply["server_timing"]["prev_total_ms"] = before
                await connection.send(pack(reply))
                before = 1000 * (time.monotonic() - began)
        except ConnectionClosed:
            pass
        except Exception as error:  # whatever one request breaks ends its own connection, and its client is told
            refused = isinstance(error, RunError)
            print(f"request refused: {error}" if refused else traceback.format_exc(), file=sys.stderr, flush=True)
            with contextlib.suppress(ConnectionClosed):
                await connection.send(str(error) if refused else f"the server failed: {type(error).__name__}: {error}")
                await connection.close(CloseCode.INTERNAL_ERROR, "The frame before says why.")

    async def _infer(self, message: str | bytes) -> dict[str, Any]:
        if isinstance(message, str):
            raise DataError("request: expected a binary frame, found text")
        request = unpack(message)
        if not isinstance(request, dict):
            raise DataError(f"request: expected a map, found {type(request).__name__}")
        observation = rename(request, self._names)
        scale = observation.pop("guidance_scale", self._scale)
        if not isinstance(scale, float | int | np.number | None):
            raise DataError(f"guidance_scale: expected a number, found {scale!r}")
        async with self._one_at_a_time:
            began = time.monotonic()
            # In a thread, so that pings are answered while the first call compiles.
            guidance = None if scale is None else float(scale)
            call = functools.partial(self._policy.infer, observation, guidance_scale=guidance)
            reply: dict[str, Any] = await asyncio.to_thread(call)
        return reply | {"server_timing": {"infer_ms": 1000 * (time.monotonic() - began)}}


def _healthy(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None
