"""Writes a policy as files that run without this project: StableHLO, weights, a spec, and a program that calls them.

chunkwise export RUN OUT [--rows 1] [--platforms cpu cuda tpu]

OUT/policy.stablehlo     the compiled network's program, weights as arguments (jax.export)
OUT/weights.safetensors  what acts: the moving average where one is kept
OUT/spec.json            what goes in and comes out, and the normalisation around the program
OUT/tokenizer.model      of a policy that reads a prompt
OUT/policy.py            imports jax, numpy and safetensors alone; `load(OUT)(observation, seed)` acts
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax import export as jax_export
from safetensors.numpy import save_file

from chunkwise.checkpoint.weights import which
from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.data.norm_stats import Affine
from chunkwise.errors import ConfigError, RunError
from chunkwise.files.new_folder import new_folder
from chunkwise.policies import runner
from chunkwise.policies.load import load_policy
from chunkwise.policies.spec import Exportable

PLATFORMS = ("cpu", "cuda", "tpu")


def export(parts: Exportable, out: Path, *, rows: int = 1, platforms: Sequence[str] = PLATFORMS) -> None:
    """Writes the files.

    Args:
      parts: Of the policy.
      out: Folder to make; it must not exist.
      rows: Observations of one call; the program has this one size.
      platforms: On which it is to run.

    Raises:
      ConfigError: The folder exists, a platform is unknown, or the weights are no nested dicts of arrays.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; export into a folder that does not exist yet")
    if wrong := sorted(set(platforms) - set(PLATFORMS)):
        raise ConfigError(f"--platforms: expected some of {', '.join(PLATFORMS)}, found {wrong[0]}")
    params = jax.tree.map(np.asarray, jax.device_get(dict(parts.params)))
    weights = runner.flat(params)
    arrays = all(isinstance(leaf, np.ndarray) for leaf in weights.values())
    if not arrays or jax.tree.structure(runner.nested(weights)) != jax.tree.structure(params):
        raise ConfigError(
            "weights: expected nested dicts of arrays, none empty and no name with '/', as the exported policy reads "
            f"them, found {str(jax.tree.structure(params))[:300]}"
        )
    shapes = {name: jax.ShapeDtypeStruct((rows, *shape), dtype) for name, (shape, dtype) in parts.inputs.items()}
    exported = jax_export.export(jax.jit(parts.program), platforms=tuple(platforms))(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params), shapes
    )
    about = {
        "format": runner.FORMAT,
        "rows": rows,
        "platforms": list(platforms),
        "inputs": {name: {"shape": list(shape), "dtype": dtype} for name, (shape, dtype) in parts.inputs.items()},
        "order": {name: list(cameras) for name, cameras in parts.order.items()},
        "normalised": {name: _numbers(affine) for name, affine in parts.normalised.items()},
        "actions": _numbers(parts.actions),
        "seed": parts.seed,
        "noise": parts.noise,
        "defaults": dict(parts.defaults),
        "ranges": {name: list(ends) for name, ends in parts.ranges.items()},
        "at_least": {name: list(ends) for name, ends in parts.at_least.items()},
        "masks": dict(parts.masks),
        "relative": {name: list(dims) for name, dims in parts.relative.items()},
        "spec": parts.spec.plain(),
    }
    with new_folder(out) as scratch:
        (scratch / runner.PROGRAM).write_bytes(exported.serialize())
        save_file({name: np.asarray(leaf, order="C") for name, leaf in weights.items()}, scratch / runner.WEIGHTS)
        (scratch / runner.SPEC).write_text(json.dumps(about, indent=1) + "\n")
        shutil.copymode(scratch / runner.SPEC, scratch / runner.WEIGHTS)  # safetensors lets nobody else read it
        shutil.copyfile(runner.__file__, scratch / "policy.py")
        for name, file in parts.files.items():
            shutil.copyfile(file, scratch / name)


def _numbers(affine: Affine) -> dict[str, list[float]]:
    return {"offset": affine.offset.tolist(), "scale": affine.scale.tolist()}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(prog="chunkwise export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="observations of one call; default: 1")
    parser.add_argument("--platforms", nargs="+", default=list(PLATFORMS), metavar="P", help="default: cpu cuda tpu")
    parser.add_argument("--checkpoint", default="newest", metavar="WHICH", help="newest, best, or a step")
    parser.add_argument("--allow-code", metavar="MODULE:FUNCTION", help="agent.factory of the run, where you trust it")
    found = parser.parse_args(argv)
    try:
        if found.rows < 1:
            raise ConfigError(f"--rows is {found.rows}; expected at least 1")
        policy = load_policy(found.run, checkpoint=which(found.checkpoint), allow_code=found.allow_code)
        export(policy.exportable(), found.out, rows=found.rows, platforms=found.platforms)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"exported step {policy.step} of {found.run} to {found.out}\nnext: python "
        f"{shlex.quote(str(found.out / 'policy.py'))} prints its spec"
    )
    return 0


if __name__ == "__main__":
    command.run(main)
