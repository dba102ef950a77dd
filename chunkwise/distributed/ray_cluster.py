"""Connects to a Ray cluster that listens on the loopback alone, or asks for its token.

Ray unpickles what its nodes send one another, so only the cluster may speak: `local` listens on the loopback alone, and
every other cluster must have Ray's token authentication, unless all of it lies on the loopback.
"""

import argparse
import contextlib
import functools
import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from chunkwise.config.experiment import FleetConfig
from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError, StopRequested, one_line

ANSWER_SECONDS = 30.0
"""That a cluster has to listen at the address that is named: it may be started beside the run."""
SECONDS_TO_END = 30.0
"""That a cluster of a run's own may take to end."""
_QUIET: dict[str, Any] = {"logging_level": "error"}
_HEAD = """
import ray, sys
found = ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
print(found.address_info["address"], flush=True)
sys.stdin.read()
"""
"""Program of the child that has a cluster of a run's own; it ends when its standard input is closed."""


def add_flag(parser: argparse.ArgumentParser, what: str = "environments") -> None:
    """Adds --fleet, whose value is a FleetConfig; `what` is what goes on the cluster."""

    def config(address: str) -> FleetConfig:
        try:
            return FleetConfig(address=address)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parser.add_argument(
        "--fleet",
        type=config,
        metavar="ADDRESS",
        help=f"{what} on a Ray cluster: local, auto, ray://host:port ({pip_install('fleet')})",
    )


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects this process to a Ray cluster for the block, or takes the connection that is there.

    Args:
      address: local: a cluster of this process's own, which listens on the loopback alone. auto: the one that this
        machine is a node of. ray://host:port or host:port: that one.

    Raises:
      ConfigError: Ray is not installed, there is no such cluster, or it would take calls from anybody.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_changed_environment(address))
        try:
            import ray
            from ray.exceptions import RayError
        except ModuleNotFoundError as error:
            raise ConfigError(f"fleet.address is {address}, which needs Ray: {pip_install('fleet')}") from error
        if not ray.is_initialized():
            require_answers(address)
            handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
            found = stack.enter_context(_own_cluster()) if address == "local" else address
            try:
                ray.init(address=found, log_to_driver=False, **_QUIET)
            except (RayError, ConnectionError, ValueError, RuntimeError, OSError) as error:
                raise ConfigError(
                    f"fleet.address is {address}: Ray cannot connect to a cluster there: {one_line(error)}"
                ) from error
            finally:
                if threading.current_thread() is threading.main_thread():
                    for number, handler in handlers.items():  # a run that is asked to stop saves; Ray would not
                        signal.signal(number, handler)
            stack.callback(ray.shutdown)
        require_closed(address, [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
        try:
            yield
        except SystemError as error:  # what a signal's handler raised within Ray's compiled code
            if isinstance(error.__cause__, StopRequested | KeyboardInterrupt):
                raise error.__cause__ from None
            raise


def require_answers(address: str | None) -> None:
    """Raises ConfigError where a cluster is named by host and port, and nothing listens there.

    Ray itself tries for many minutes, and a run connects only when its first rollouts are due.
    """
    if address is None or address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, ValueError, OverflowError) as error:  # ValueError: no number, or a name that is none
            if time.monotonic() >= until or not isinstance(error, OSError):
                raise ConfigError(
                    f"fleet.address is {address}: expected a Ray cluster there, found nothing that listens: {error}"
                ) from error
        time.sleep(0.5)


@contextlib.contextmanager
def _own_cluster() -> Iterator[str]:
    """Starts a cluster of one node, which ends with this process in whatever way; yields its address.

    It is a child's: Ray forks, which a process with jax's threads must not.
    """
    command = [sys.executable, "-c", _HEAD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise ConfigError("fleet.address is local: expected Ray to start here, found what it says above")
            yield address
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
            process.kill()


@contextlib.contextmanager
def _changed_environment(address: str) -> Iterator[None]:
    """Sets for the block what Ray reads when it is imported, starts and connects."""
    wanted = {"RAY_USAGE_STATS_ENABLED": "0"}
    if address == "local":
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as on those systems: the node's address is 127.0.0.1
        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    else:
        wanted["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE", "token")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@functools.cache
def _token() -> str:
    """What the clusters of this process's own ask for: one for all, since Ray reads it once in a process."""
    return secrets.token_hex(32)


def require_closed(address: str, nodes: list[str]) -> None:
    """Raises ConfigError for a cluster that others can reach and that asks nobody for a token."""
    open_ones = [node for node in nodes if not ipaddress.ip_address(node).is_loopback]
    if address == "local" and open_ones:
        raise ConfigError(
            f"fleet.address is local: expected a Ray that listens on the loopback alone, found {open_ones[0]}; "
            "Ray was imported before, import nothing of it"
        )
    if open_ones and os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        raise ConfigError(
            f"fleet.address is {address}, a cluster on {open_ones[0]} with RAY_AUTH_MODE="
            f"{os.environ['RAY_AUTH_MODE']}: whoever reaches it could run code here. Start its nodes with "
            "RAY_AUTH_MODE=token, and this run too (`ray get-auth-token --generate` makes a token)"
        )
