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
import sys
from collections.abc import Sequence

from core.cli import Parser
from core.config import load
from core.errors import ConfigError, RunError
from openpi_ript.config import OpenpiRiptConfig
from openpi_ript.policy import Policy
from openpi_ript.server import PolicyServer


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


if __name__ == "__main__":
    sys.exit(main())
