"""Runs an exported policy; imports jax, numpy and safetensors alone. A copy of it lies in each export as policy.py.

    from policy import load
    act = load("folder of the export")
    actions = act({"state": state, "images": images}, seed=0)        # [t, a], in the robot's own units

Entries are spec.json's inputs without the seed: raw numbers, images uint8 at the size that the spec says. Those under
`defaults` may be left out, and so may the noise, which is then drawn from the seed. Token ids may be shorter than their
shape when their mask is left out. Where the export has several rows, every entry has that many along a leading axis,
and so have the actions.
"""

import json
from pathlib import Path

import jax
import numpy as np
from jax import export as jax_export
from safetensors.numpy import load_file

FORMAT = "chunkwise-policy-1"
PROGRAM, WEIGHTS, SPEC = "policy.stablehlo", "weights.safetensors", "spec.json"


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
    masks = about["masks"]

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
          ValueError: An entry is missing, or of another shape or dtype.
        """
        given, inputs, relative = complete(observation, np.uint32(seed) + np.arange(rows, dtype=np.uint32)), {}, 0.0
        for name, entry in about["inputs"].items():
            shape, dtype = (rows, *entry["shape"]), np.dtype(entry["dtype"])
            if name not in given:
                raise ValueError(f"{name}: expected it in the observation, found {sorted(observation)}")
            value = np.asarray(given[name])
            value = value[None] if rows == 1 and value.ndim == len(entry["shape"]) else value
            if value.shape != shape or (dtype.kind in "ub" and value.dtype != dtype):
                raise ValueError(f"{name}: expected {dtype} {list(shape)}, found {value.dtype} {list(value.shape)}")
            if name in about["relative"]:
                dims = about["relative"][name]
                relative = np.zeros((rows, 1, len(numbers["scale"])), np.float32)
                relative[:, 0, dims] = value.astype(np.float32)[:, dims]
            if name in about["normalised"]:
                affine = {key: np.array(x) for key, x in about["normalised"][name].items()}
                value = (value.astype(np.float32).astype(np.float64) - affine["offset"]) / affine["scale"]
            inputs[name] = value.astype(dtype)
        chunk = np.asarray(program(weights, inputs))
        actions = (chunk.astype(np.float64) * numbers["scale"] + numbers["offset"]).astype(np.float32) + relative
        return actions[0] if rows == 1 else actions

    return act


def _filled(name, ids, rows, width):
    """Returns token ids filled up with 0, and the mask that is true at those given."""
    ragged = [list(ids)] if rows == 1 and np.ndim(ids[0]) == 0 else [list(row) for row in ids]
    if len(ragged) != rows or max(map(len, ragged)) > width:
        raise ValueError(f"{name}: expected {rows} lists of at most {width}, found those of {[len(r) for r in ragged]}")
    filled = np.array([row + [0] * (width - len(row)) for row in ragged], np.int32)
    return filled, np.array([[i < len(row) for i in range(width)] for row in ragged])


if __name__ == "__main__":
    print(json.dumps(json.loads((Path(__file__).parent / SPEC).read_text()), indent=1))
