"""Processes that a program of this machine starts, and what a program must be to start some."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from chunkwise.errors import ConfigError


def start(body: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Starts a process that calls `body`, and ends with this one; both are pickled.

    It is a fresh Python: forking a process that runs jax's threads can deadlock.

    Raises:
      ConfigError: This process may start none.
    """
    require_first_import()
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "this process may start no others, as a worker of multiprocessing.Pool may not. Take "
            "concurrent.futures.ProcessPoolExecutor, or a process of your own with daemon=False"
        )
    process = multiprocessing.get_context("spawn").Process(target=body, args=arguments, daemon=True)
    process.start()
    return process


def require_first_import() -> None:
    """Raises ConfigError while a started process imports the user's script, which then does again what it does."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python's own check, at a process's start
        raise ConfigError(
            "this script is imported by a process that it started itself, and begins anew in it: put what it does "
            'under `if __name__ == "__main__":`'
        )
