"""Serves a policy over openpi's websocket protocol, so that its own client, `openpi-client`, drives a robot with it.

    python -m openpi_ript.serve runs/openpi_ript-cfg_ript-... --port 8000
    python -m openpi_ript.serve checkpoints/pi0_base --config configs/openpi_ript/sft.py -- --data.robot.state-dim 8

The protocol: when a client connects, the server sends one binary frame, a msgpack map of metadata. Then for each
binary frame with an observation it answers with one frame: a map with "actions", and the times it took. Arrays travel
as maps with the byte-string keys __ndarray__ (true), data, dtype (numpy's string), shape; numpy scalars as
__npgeneric__, data, dtype. A text frame is an error message, after which the connection ends. GET /healthz answers OK.

An observation is what `policy.Policy.infer` takes. With `--rename observation/image=image/base_0_rgb` clients written
for a robot of openpi's work unchanged. A number under "guidance_scale" replaces the policy's own for that request.
"""

import argparse
import asyncio
import contextlib
import functools
import http
import math
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from core.cli import Parser
from core.config import load
from core.errors import ConfigError, DataError, RunError
from openpi_ript.config import OpenpiRiptConfig
from openpi_ript.policy import Policy

MAX_BYTES = 1 << 28
"""Largest frame that is taken, 256 MiB: three 4K pictures are 75."""
KINDS = "biuf"
"""Kinds of numpy dtypes that travel; no objects, so nothing that is received can run code."""


def pack(value: Any) -> bytes:
    """Msgpack with numpy arrays and scalars, as openpi-client writes it. Raises DataError for other dtypes."""
    return msgpack.packb(value, default=_encode)  # pyright: ignore[reportReturnType]


def unpack(data: bytes) -> Any:
    """Undoes `pack`; arrays are read-only views of `data`.

    Raises:
      DataError: If it is no such message.
    """
    try:
        return msgpack.unpackb(data, object_hook=_decode)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise DataError(f"request: expected msgpack as openpi-client writes it, found {error}") from error


def rename(observation: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An observation with some entries under other names; "/" in a name leads into a nested dict.

    Args:
      observation: As the client sent it; not changed. Entries that are not named stay.
      names: Client's key to the policy's, e.g. {"observation/image": "image/base_0_rgb"}. A client's key with "/" in it
        is found as it is, as openpi's LIBERO client sends it, or nested, as its ALOHA client does.

    Raises:
      DataError: If an entry is missing, or a new name leads into what is no dict.
    """
    renamed = _copy(observation)
    missing = object()
    taken = {old: _take(renamed, old, missing) for old in names}
    lost = sorted(old for old, value in taken.items() if value is missing)
    if lost:
        raise DataError(f"request: expected the entries {lost} as --rename says, found {sorted(map(str, observation))}")
    for old, new in names.items():
        *parents, last = new.split("/")
        inner = renamed
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                found = f"{type(inner).__name__} at {parent!r}"
                raise DataError(f"request: expected a dict to put {old!r} into as --rename says, found {found}")
        inner[last] = taken[old]
    return renamed


def _copy(value: Any) -> Any:
    """Nested dicts copied, their arrays shared."""
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _take(observation: dict[str, Any], name: str, missing: object) -> Any:
    """Removes an entry, by its whole name or along its parts, and returns it; `missing` where there is none."""
    if name in observation:
        return observation.pop(name)
    *parents, last = name.split("/")
    inner: Any = observation
    for parent in parents:
        inner = inner.get(parent) if isinstance(inner, dict) else None
    return inner.pop(last, missing) if isinstance(inner, dict) else missing


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


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: loads, compiles, serves until it is stopped."""
    arguments = _parser().parse_args(argv)
    try:
        names = dict(_pair(text) for text in arguments.rename)
        config = None if arguments.config is None else load(["--config", arguments.config, *arguments.options])[0]
        if not isinstance(config, OpenpiRiptConfig | None):
            raise ConfigError(f"{arguments.config}: expected a config of openpi_ript, found {type(config).__name__}")
        policy = Policy.from_checkpoint(arguments.folder, config=config, seed=arguments.seed)
        print("compiling", flush=True)
        policy.infer(policy.example(), guidance_scale=arguments.guidance_scale)
        server = PolicyServer(policy, guidance_scale=arguments.guidance_scale, names=names)
        asyncio.run(_serve_forever(server, arguments.host, arguments.port))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, OverflowError) as error:  # the second for a port beyond 65535
        print(f"error: cannot listen at --host {arguments.host} --port {arguments.port}: {error}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve_forever(server: PolicyServer, host: str, port: int) -> None:
    async with await server.start(host, port) as listening:
        where = listening.sockets[0].getsockname()
        print(f"serving on ws://{where[0]}:{where[1]}; Ctrl-C stops", flush=True)
        await listening.serve_forever()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m openpi_ript.serve", description="Serves a policy to openpi-client.")
    parser.add_argument("folder", help="a run's folder, an openpi checkpoint, or a .safetensors file")
    parser.add_argument("--config", help="config file (executed), for weights that are not a run of this project")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 listens to other machines; nothing asks who calls")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--guidance-scale", type=float, help="by default that of the run's config")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="CLIENT=POLICY",
        help="the client's key of an entry, and the policy's, such as observation/image=image/base_0_rgb; repeatable",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("options", nargs="*", help="fields of the config, after --: -- --tokenizer FILE")
    return parser


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigError(f"--rename {text}: expected CLIENT=POLICY, such as observation/image=image/base_0_rgb")
    return old, new


def _healthy(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise DataError(f"message: expected plain values and numpy arrays, found {type(value).__name__}")
    if value.dtype.kind not in KINDS:
        raise DataError(f"message: expected numbers, found an array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        dtype, shape, data = np.dtype(value[b"dtype"]), tuple(value[b"shape"]), value[b"data"]
        if dtype.kind not in KINDS or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {dtype} {list(shape)} in {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
    if b"__npgeneric__" in value:
        dtype, data = np.dtype(value[b"dtype"]), value[b"data"]
        if dtype.kind not in KINDS or not isinstance(data, bool | int | float):
            raise ValueError(f"a scalar of {dtype} from {type(data).__name__}")
        return dtype.type(data)
    return value


if __name__ == "__main__":
    sys.exit(main())
