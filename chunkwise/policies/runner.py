"""Runs an exported policy; imports jax, numpy and safetensors alone. A copy of it lies in each export as policy.py.

    from policy import load
    act = load("folder of the export")
    actions = act({"state": state, "images": images}, seed=0)        # [t, a], in the robot's own units

Entries are spec.json's inputs without the seed, and no others: raw numbers, images uint8 at the size that the spec
says. Those under `defaults` may be left out, and so may the noise, which is then drawn from the seed. Token ids may be
shorter than their shape when their mask is left out. Where the export has several rows, every entry has that many along
a leading axis, and so have the actions.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jax import export as jax_export
from safetensors.numpy import load_file

FORMAT = "chunkwise-policy-1"
PROGRAM, WEIGHTS, SPEC = "policy.stablehlo", "weights.safetensors", "spec.json"
LARGEST = 1e6  # of a normalised number: above it is a broken sensor or another unit


def flat(tree, prefix=""):
    """Returns the arrays of nested dicts by names joined with slashes."""
    found = {}
    for name, value in tree.items():
        found.update(flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found


def nested(arrays):
    """Undoes `flat`."""
    tree = {}
    for name, value in arrays.items():
        *parents, last = name.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return tree


def draw_noise(seed, shape):
    """Returns normal noise of a seed, float32: where a flow begins."""
    return np.random.default_rng(int(seed)).standard_normal(shape, np.float32)


def load(folder):
    """Returns a function (observation, seed) -> actions of the export in a folder.

    Raises:
      ValueError: The folder holds another format.
    """
    folder = Path(folder)
    about = json.loads((folder / SPEC).read_text())
    if about["format"] != FORMAT:
        raise ValueError(f"{folder}: expected the format {FORMAT}, found {about['format']}")
    program = jax.jit(jax_export.deserialize(bytearray((folder / PROGRAM).read_bytes())).call)
    weights = jax.device_put(nested(load_file(folder / WEIGHTS)))
    rows, numbers = about["rows"], {name: np.array(about["actions"][name]) for name in ("offset", "scale")}
    masks, ranges = about["masks"], about.get("ranges", {})
    taken = set(about["inputs"]) - {about["seed"]}

    def complete(observation, seeds):
        """Returns all inputs by name: as given, and what may be left out."""
        given = dict(observation)
        for name, mask in masks.items():
            if name in given and mask not in given:
                given[name], given[mask] = _filled(name, given[name], rows, *about["inputs"][name]["shape"])
        for name, entry in about["inputs"].items():
            if name == about["seed"]:
                given[name] = seeds
            elif name == about["noise"] and name not in given:
                given[name] = np.stack([draw_noise(seed, entry["shape"]) for seed in seeds])
            elif name in about["defaults"] and name not in given:
                given[name] = np.full((rows, *entry["shape"]), about["defaults"][name], entry["dtype"])
        return given

    def act(observation, seed=0):
        """Returns a chunk [t, a], or with several rows [rows, t, a], in the robot's own units.

        Raises:
          ValueError: An entry is missing or unknown, of another shape or dtype, not finite, or out of its range; the
            seed is no whole number of 32 bits; or the model's actions are not finite.
        """
        if not isinstance(observation, Mapping):
            raise ValueError(f"expected a dict of entries, found {type(observation).__name__}")
        if unknown := sorted(set(map(str, observation)) - taken):
            raise ValueError(f"{', '.join(unknown)}: expected entries among {sorted(taken)}")
        given, inputs, relative = complete(observation, _seeds(seed, rows)), {}, 0.0
        for name, entry in about["inputs"].items():
            shape, dtype = (rows, *entry["shape"]), np.dtype(entry["dtype"])
            if name not in given:
                raise ValueError(f"{name}: expected it in the observation, found {sorted(observation)}")
            value = _checked(name, given[name], shape, dtype, *ranges.get(name, (None, None)))
            if name in about["relative"]:
                dims = about["relative"][name]
                relative = np.zeros((rows, 1, len(numbers["scale"])), np.float32)
                relative[:, 0, dims] = value.astype(np.float32)[:, dims]
            if name in about["normalised"]:
                affine = {key: np.array(x) for key, x in about["normalised"][name].items()}
                value = (value.astype(np.float32).astype(np.float64) - affine["offset"]) / affine["scale"]
                if not (np.abs(value) <= LARGEST).all():
                    raise ValueError(f"{name}: expected at most {LARGEST:g} normalised, found {np.abs(value).max():g}")
            inputs[name] = value.astype(dtype)
        for name, (last, least) in about.get("at_least", {}).items():
            fewest = inputs[name][:, -last:].sum(axis=-1).min()
            if fewest < least:
                raise ValueError(f"{name}: expected at least {least} of the last {last} true, found {fewest}")
        for name, mask in masks.items():
            if not inputs[mask].any(axis=-1).all():
                raise ValueError(f"{mask}: expected at least one of {name} in each row, found none")
        chunk = np.asarray(program(weights, inputs))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            actions = (chunk.astype(np.float64) * numbers["scale"] + numbers["offset"]).astype(np.float32) + relative
        if not np.isfinite(actions).all():
            raise ValueError(f"actions: expected finite numbers, found {actions[~np.isfinite(actions)][0]}")
        return actions[0] if rows == 1 else actions

    return act


def _seeds(seed, rows):
    """Returns the seed of each row; they follow one another."""
    number = np.asarray(seed)
    known = number.ndim == 0 and number.dtype.kind in "iuf"
    if not (known and 0 <= number <= 2**32 - rows and number % 1 == 0):
        raise ValueError(f"seed: expected a whole number of 0 to {2**32 - rows}, found {seed!r}")
    return np.uint32(number) + np.arange(rows, dtype=np.uint32)


def _checked(name, value, shape, dtype, low, high):
    """Returns an input with its axis of rows, once its shape, its kind and each of its numbers were found good."""
    try:
        value = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected {dtype} {list(shape)}, found no array: {error}") from error
    value = value[None] if shape[0] == 1 and value.ndim == len(shape) - 1 else value
    same = value.dtype == dtype if dtype.kind in "ub" else value.dtype.kind in "fiu"
    if value.shape != shape or not same:
        raise ValueError(f"{name}: expected {dtype} {list(shape)}, found {value.dtype} {list(value.shape)}")
    if dtype.kind in "ub":
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = value.astype(np.float32 if dtype.kind == "f" else np.float64)
        good = np.isfinite(numbers) & ((dtype.kind == "f") | (numbers % 1 == 0))
    ends = (np.finfo if dtype.kind == "f" else np.iinfo)(dtype)
    low, high = ends.min if low is None else low, ends.max if high is None else high
    good &= (low <= numbers) & (numbers <= high)
    if not good.all():
        kind = "whole" if dtype.kind == "i" else "finite"
        raise ValueError(f"{name}: expected {kind} numbers of {low:g} to {high:g}, found {value[~good][0]:g}")
    return value


def _filled(name, ids, rows, width):
    """Returns token ids filled up with 0, and the mask that is true at those given."""
    if isinstance(ids, Mapping):
        raise ValueError(f"{name}: expected a list of ids, found {ids!r:.80}")
    try:
        ragged = [list(ids)] if rows == 1 and all(np.ndim(one) == 0 for one in ids) else [list(row) for row in ids]
    except TypeError as error:
        expected = "a list of ids" if rows == 1 else f"{rows} lists of ids"
        raise ValueError(f"{name}: expected {expected}, found {ids!r:.80}") from error
    if len(ragged) != rows or not all(0 < len(row) <= width for row in ragged):
        found = [len(row) for row in ragged]
        raise ValueError(f"{name}: expected {rows} lists of 1 to {width} ids, found those of {found}")
    if any(isinstance(one, (bool, np.bool_)) for row in ragged for one in row):
        raise ValueError(f"{name}: expected a list of ids, found {ids!r:.80}")
    filled = np.array([row + [0] * (width - len(row)) for row in ragged])
    return filled, np.array([[i < len(row) for i in range(width)] for row in ragged])


if __name__ == "__main__":
    print(json.dumps(json.loads((Path(__file__).parent / SPEC).read_text()), indent=1))
