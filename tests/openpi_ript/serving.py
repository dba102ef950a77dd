"""A toy policy to serve, and a request to it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from openpi_ript.data.dataset import open_data
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policies.policy import Policy
from tests.chunkwise.policies.serving import wire
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config
from tests.openpi_ript.toy_policy import random_params

TOKEN = "a-token-of-enough-letters"


@contextlib.contextmanager
def toy_policy(folder: Path) -> Iterator[Policy]:
    """A policy with random weights; programs are compiled quickly meanwhile."""
    root = make_dataset(folder)
    config = small_config(root, root)
    with quick_compiling(folder / "cache"):
        yield Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats, step=7)


def request(policy: Policy, **changes: Any) -> bytes:
    example = policy.example()
    image = {name: wire(one) for name, one in example["image"].items()}
    return msgpack.packb({"image": image, "state": wire(example["state"]), "prompt": "move"} | changes)  # pyright: ignore[reportReturnType]
