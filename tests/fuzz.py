"""Seeded damage for readers: bytes changed and files cut, and values of JSON exchanged for others of any type."""

import contextlib
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunkwise.errors import RunError

ODD: tuple[Any, ...] = (None, True, -1, 0, 2**70, 1e300, -0.5, "", "x", "../x", "\u2028", [], [[]], {}, [None])
"""Values that a reader may not expect; infinite and undefined numbers are no JSON."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut short, or with up to eight bytes changed, more often at the begin and at the end."""
    if rng.random() < 0.25:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(min(len(data), rng.choice((64, 512, len(data)))))
        place = place if rng.random() < 0.7 else len(data) - 1 - place
        changed[place] = rng.choice((0, 255, changed[place] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    return bytes(changed)


def exchanged(tree: Any, rng: random.Random) -> Any:
    """A tree of JSON with one value at a random place exchanged, removed, or given twice."""
    tree = copy.deepcopy(tree)
    parent: Any = None
    key: Any = None
    node: Any = tree
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.8):
        parent, key = node, rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
    if parent is None:
        return rng.choice(ODD)
    kind = rng.random()
    if kind < 0.15:
        del parent[key]
    elif kind < 0.25 and isinstance(parent, list):
        parent.append(copy.deepcopy(node))
    else:
        parent[key] = rng.choice(ODD)
    return tree


def damaged_file(file: Path, rng: random.Random) -> bytes:
    """What a file may be after damage; one of JSON more often has another value than bytes that are no JSON."""
    data = file.read_bytes()
    if file.suffix == ".json" and rng.random() < 0.8:
        return json.dumps(exchanged(json.loads(data), rng)).encode()
    return damaged(data, rng)


def attempt(read: Callable[[], object]) -> None:
    """Reads; an error of the project is as good as none."""
    with contextlib.suppress(RunError):
        read()


def attack(root: Path, read: Callable[[], object], tries: int, *, seed: int = 0) -> None:
    """Damages one file below a folder at a time, reads, and puts it back."""
    rng = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for _ in range(tries):
        file = rng.choice(files)
        good = file.read_bytes()
        file.write_bytes(damaged_file(file, rng))
        attempt(read)
        file.write_bytes(good)
