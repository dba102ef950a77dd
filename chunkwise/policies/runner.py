"""Runs an exported policy; imports jax, numpy and safetensors alone. A copy of it lies in each export as policy.py.

    from policy import load
    act = load("folder of the export")
    actions = act({"state": state, "images": images}, seed=0)        # [t, a], in the robot's own units

Entries are spec.json's inputs without the seed: raw numbers, images uint8 at the size that the spec says. Where the
export has several rows, every entry has that many along a leading axis, and so have the actions.
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

    def act(observation, seed=0):
        """Returns a chunk [t, a], or with several rows [rows, t, a], in the robot's own units.

        Raises:
          ValueError: An entry is missing, or of another shape or dtype.
        """
        inputs = {}
        for name, entry in about["inputs"].items():
            shape, dtype = (rows, *entry["shape"]), np.dtype(entry["dtype"])
            if name == about["seed"]:
                inputs[name] = (np.uint32(seed) + np.arange(rows, dtype=np.uint32)).astype(dtype)
                continue
            if name not in observation:
                raise ValueError(f"{name}: expected it in the observation, found {sorted(observation)}")
            value = np.asarray(observation[name])
            value = value[None] if rows == 1 and value.ndim == len(entry["shape"]) else value
            if value.shape != shape or (dtype.kind in "ub" and value.dtype != dtype):
                raise ValueError(f"{name}: expected {dtype} {list(shape)}, found {value.dtype} {list(value.shape)}")
            if name in about["normalised"]:
                affine = {key: np.array(x) for key, x in about["normalised"][name].items()}
                value = (value.astype(np.float32).astype(np.float64) - affine["offset"]) / affine["scale"]
            inputs[name] = value.astype(dtype)
        chunk = np.asarray(program(weights, inputs))
        actions = (chunk.astype(np.float64) * numbers["scale"] + numbers["offset"]).astype(np.float32)
        return actions[0] if rows == 1 else actions

    return act


if __name__ == "__main__":
    print(json.dumps(json.loads((Path(__file__).parent / SPEC).read_text()), indent=1))
