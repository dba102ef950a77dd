"""Serves a policy over openpi's websocket protocol, so that its own client, `openpi-client`, drives a robot with it.

    chunkwise serve runs/qchunk-cube_single-... --port 8000
    chunkwise serve checkpoints/pi0_base --config configs/openpi_ript/sft.py -- --data.robot.state-dim 8

The protocol: when a client connects, the server sends one binary frame, a msgpack map of metadata. Then for each
binary frame with an observation it answers with one frame: a map with "actions", and the times it took. Arrays travel
as maps with the byte-string keys __ndarray__ (true), data, dtype (numpy's string), shape; numpy scalars as
__npgeneric__, data, dtype. A text frame is an error message, and means that there are no actions for that request: NaN
and Inf are never sent, nor an older chunk in their place. After a request that was refused the client may send
another; after what was no message the connection ends. GET /healthz answers OK.

An observation is what `infer` takes; its names, shapes and units are in the metadata under "spec", and `--spec` prints
them. With `--rename observation/image=image/base_0_rgb` clients written for another robot work unchanged. A number
under the name of one of the policy's options, such as "guidance_scale", replaces the policy's own for that request.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from chunkwise.checkpoint.weights import which
from chunkwise.cli.command import Parser, seed
from chunkwise.cli.named_paths import require_reachable
from chunkwise.config.load import load
from chunkwise.distributed import processes
from chunkwise.distributed.repeatable import ask_for_repeatable_kernels
from chunkwise.errors import ConfigError, RunError
from chunkwise.policies.access import THIS_MACHINE, TOKEN_VARIABLE, Access, is_loopback, read_token
from chunkwise.policies.load import load_policy
from chunkwise.policies.server import Limits, PolicyServer

BOUNDS_MARGIN = 0.5
"""Of --bounds where no --bounds-margin is given."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: loads, compiles, serves until Ctrl-C or SIGTERM stops it."""
    try:
        with _sigterm_as_ctrl_c():
            return _main(argv)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    own = words.index("--") if "--" in words else len(words)
    ask_for_repeatable_kernels()  # an evaluation in training and one over the wire are the same to the bit
    arguments = _parser().parse_args(words[:own])
    try:
        names = _names(arguments.rename)
        access = _access(arguments)
        limits = _limits(arguments)
        if arguments.bounds == "off" and arguments.bounds_margin is not None:
            raise ConfigError(
                f"--bounds-margin is {arguments.bounds_margin}, and nothing is bounded; expected --bounds refuse or "
                "--bounds clip beside it"
            )
        if min(arguments.batch_sizes) < 1:
            raise ConfigError(f"--batch-sizes is {arguments.batch_sizes}; expected numbers of 1 or above")
        require_reachable({"folder": arguments.folder, "--config": arguments.config})
        if arguments.config is None and words[own + 1 :]:
            raise ConfigError(
                f"{' '.join(words[own:])}: expected --config FILE, whose fields these are; a run has its own"
            )
        config = None if arguments.config is None else load(["--config", arguments.config, *words[own + 1 :]])[0]
        policy = load_policy(
            arguments.folder,
            config=config,
            checkpoint=which(arguments.checkpoint),
            seed=arguments.seed,
            allow_code=arguments.allow_code,
            dtype=arguments.dtype,
        )
        if arguments.bounds != "off":
            given = arguments.bounds_margin
            policy.bound(arguments.bounds, margin=BOUNDS_MARGIN if given is None else given)
        if arguments.spec:
            print(json.dumps(policy.spec.plain(), indent=1))
            return 0
        sizes = sorted(set(arguments.batch_sizes))
        print(f"compiling for {', '.join(map(str, sizes))} rows", flush=True)
        began = time.monotonic()
        server = PolicyServer(
            policy,
            options={"guidance_scale": arguments.guidance_scale},
            names=names,
            batch_sizes=sizes,
            limits=limits,
            access=access,
        )
        print(f"compiled in {time.monotonic() - began:.1f} s", flush=True)
        try:
            asyncio.run(_serve_forever(server, arguments.host, arguments.port))
        except (OSError, OverflowError) as error:  # the second for a port beyond 65535
            raise ConfigError(f"cannot listen at --host {arguments.host} --port {arguments.port}: {error}") from error
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a pipe that nobody reads, for example
        return processes.report(error)
    return 0


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Lets SIGTERM do what Ctrl-C does: clients are told, and as process 1 of a container it would be ignored."""
    if not _takes_signals():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _takes_signals() -> bool:
    return threading.current_thread() is threading.main_thread()  # only that may set handlers


def _access(arguments: argparse.Namespace) -> Access:
    """Who may connect. Raises ConfigError where other machines could and no token is asked for."""
    token = read_token(arguments.token, arguments.token_file)
    loopback = is_loopback(arguments.host)
    if token is not None and arguments.no_token:
        raise ConfigError("--no-token: expected no token, found one")
    if not loopback and token is None and not arguments.no_token:
        raise ConfigError(
            f"--host {arguments.host} listens to other machines: expected a token in --token-file FILE or in the "
            f"variable {TOKEN_VARIABLE} (openpi-client sends it as api_key), or --no-token where the network is "
            "trusted, found none"
        )
    hosts = frozenset({*THIS_MACHINE, arguments.host.lower()})
    return Access(token=token, origins=frozenset(arguments.allow_origin), hosts=hosts, loopback=loopback)


def _limits(arguments: argparse.Namespace) -> Limits:
    limits = Limits(
        clients=arguments.max_clients,
        message_mib=arguments.max_message_mib,
        rows=arguments.max_rows,
        idle_s=arguments.idle_timeout,
    )
    for flag, value in zip(
        ("--max-clients", "--max-message-mib", "--max-rows", "--idle-timeout"), dataclasses.astuple(limits), strict=True
    ):
        if not value > 0:
            raise ConfigError(f"{flag} is {value}; expected a number above 0")
    return limits


async def _serve_forever(server: PolicyServer, host: str, port: int) -> None:
    serving = asyncio.current_task()
    if serving is not None and _takes_signals():  # within the loop, as asyncio does for Ctrl-C
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    try:
        async with await server.start(host, port) as listening:
            where = listening.sockets[0].getsockname()
            print(f"serving on ws://{where[0]}:{where[1]}; Ctrl-C or SIGTERM stops", flush=True)
            await listening.serve_forever()
    finally:
        server.close()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="chunkwise serve",
        description="Serves a trained policy to openpi-client; example: chunkwise serve runs/qchunk-debug-...",
        epilog="Fields of --config come at the end, after --, such as: -- --tokenizer FILE. Exit codes: 0 stopped, 64 "
        "usage, 65 no whole checkpoint, 78 weights of another model.",
    )
    parser.add_argument("folder", metavar="RUN", help="a run's folder, an openpi checkpoint, or a .safetensors file")
    parser.add_argument("--spec", action="store_true", help="print what goes in and comes out, as JSON, and end")
    parser.add_argument(
        "--checkpoint",
        default="newest",
        metavar="WHICH",
        help="newest, best (by checkpoint.keep_best), or the number of a step",
    )
    parser.add_argument("--config", help="config file (executed), for weights that are not a run of this project")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 listens to other machines, and wants a token")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--token", help="what clients must send, openpi-client as its api_key; everybody here sees it")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token (or put it in the variable {TOKEN_VARIABLE})"
    )
    parser.add_argument("--no-token", action="store_true", help="listen to other machines without asking who calls")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let scripts of this page connect, such as http://localhost:3000; repeatable",
    )
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[1, 2, 4],
        metavar="ROWS",
        help="rows for which programs are compiled at the start; requests that wait are computed together",
    )
    parser.add_argument(
        "--bounds",
        choices=("off", "refuse", "clip"),
        default="off",
        help="what becomes of actions that are far from those of the training data",
    )
    parser.add_argument(
        "--bounds-margin",
        type=float,
        metavar="SHARE",
        help="how far beyond q01 and q99 of norm_stats.json an action may be, as a share of the range between them; "
        f"default: {BOUNDS_MARGIN:g}",
    )
    limits = Limits()
    parser.add_argument("--max-clients", type=int, default=limits.clients, help="connected at once")
    parser.add_argument("--max-message-mib", type=int, default=limits.message_mib, help="largest message")
    parser.add_argument("--max-rows", type=int, default=limits.rows, help="of one request")
    parser.add_argument(
        "--idle-timeout", type=float, default=limits.idle_s, metavar="SECONDS", help="a client without a request stays"
    )
    parser.add_argument("--guidance-scale", type=float, help="by default that of the run's config")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="CLIENT=POLICY",
        help="the client's key of an entry, and the policy's, such as observation/image=image/base_0_rgb; repeatable",
    )
    parser.add_argument(
        "--allow-code", metavar="MODULE:FUNCTION", help="code that the run names (agent.factory, data.robot.adapter)"
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "int8"),
        help="keep the weights of a large model in a half or a quarter of the memory; by default float32, as trained",
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the noise")
    return parser


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Client's names to the policy's.

    Raises:
      ConfigError: One stands on its side twice, or one of the policy's leads into another, which is no dict then.
    """
    pairs = [_pair(text) for text in texts]
    for side, names in zip(("client's", "policy's"), zip(*pairs, strict=True), strict=False):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"--rename: expected each of the {side} names once, found {twice[0]} twice")
    new = {name for _, name in pairs}
    for name in sorted(new):
        if inside := [whole for whole in sorted(new) if whole.startswith(f"{name}/")]:
            raise ConfigError(f"--rename: expected an entry or what is inside of it, found {name} and {inside[0]}")
    return dict(pairs)


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigError(f"--rename {text}: expected CLIENT=POLICY, such as observation/image=image/base_0_rgb")
    return old, new


if __name__ == "__main__":
    processes.leave(main(), together=False)  # Python's own end fails at a pipe that nobody reads
