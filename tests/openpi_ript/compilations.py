"""Counts what jax compiles."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Gets an entry for each program that XLA compiles, or that jax traces, meanwhile."""
    counted: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if "/jax/core/compile/" in event:
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
