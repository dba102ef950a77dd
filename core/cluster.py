"""Starts jax for this run, and says what it found."""

import os

import jax

from core.errors import ConfigError


def initialise() -> None:
    """Settles the number of processes (one) and prints the devices.

    Raises:
      ConfigError: The environment announces several processes, or JAX cannot start on the platform asked for.
    """
    announced = {name: os.environ[name] for name in ("JAX_NUM_PROCESSES", "NNODES") if name in os.environ}
    for name, count in announced.items():
        if count != "1":
            raise ConfigError(
                f"{name}={count} asks for several processes; this version trains in one process on all its devices. "
                f"Unset {name}"
            )
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise ConfigError(f"jax cannot start: {error}") from error
    print(f"one process, {len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}", flush=True)
