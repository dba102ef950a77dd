"""Trains the same updates on one device, on eight, and with weights split over them, and compares the ends.

    python -m tests.devices                                     # every training step of the project
    python -m tests.devices --step QC-FQL --step waypoints
    python -m tests.devices --steps 1                           # the gradients of the first update
    python -m tests.devices --float64                           # the same programs, with numbers of 64 bits
    python -m tests.devices --step waypoints -- --optim.warmup-steps 0    # Adam's first updates at the full rate

Eight devices are simulated on the CPU. For each step, at the size of a debug config, and each mesh: the largest
difference of any weight after `--steps` updates from that of one device; the largest relative to its array's largest
number, which must be at most 1e-5, and how many weights are beyond; and the bytes of arguments that the compiled
updates hold on each device, as XLA reports them. The end counts the steps within that bound, and those of which every
weight is within 1e-5 as numpy's `allclose` has it. After one update gradients are compared instead of weights, before
Adam has divided each by its own size, rounding included. With --float64 rounding is a billion times smaller: what then
still differs would be another computation.
"""

import argparse
import dataclasses
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.compare import BOUND, difference

ROOT = Path(__file__).parent.parent
MESHES = {"1 device": (1, 1), "8 devices": (8, 1), "8 devices, fsdp 8": (8, 8), "8 devices, fsdp 2": (8, 2)}
"""Devices, and those of them that share one copy of the weights."""


def changed(config: Any, **parts: Mapping[str, Any] | Any) -> Any:
    """A config with fields replaced; a mapping replaces fields of the part of that name."""
    new = {
        name: dataclasses.replace(getattr(config, name), **value) if isinstance(value, Mapping) else value
        for name, value in parts.items()
    }
    return dataclasses.replace(config, **new)


def decoupled(config: Any) -> Any:
    """DQC: chunks of two for the policy, of four for the critic."""
    from qchunk.config import DecoupledConfig

    return changed(config, agent={"policy": "best_of_n", "horizon": 4, "decoupled": DecoupledConfig(policy_horizon=2)})


def gaussian(config: Any) -> Any:
    """QC-RLPD, with a target of two critics drawn anew of four."""
    from qchunk.config import GaussianConfig

    own = GaussianConfig(bc_weight=0.01, target_critics=2)
    return changed(config, agent={"policy": "gaussian", "num_critics": 4, "gaussian": own})


def adapters(config: Any) -> Any:
    """Supervised pi0.5, the language model frozen but for adapters."""
    from openpi_ript.config.model import LoraConfig, toy

    model = toy("pi05")
    language = dataclasses.replace(model.language, lora=LoraConfig(rank=4, alpha=4.0))
    return changed(
        config,
        model=dataclasses.replace(model, language=language),
        guidance=None,
        data={"advantage": None},
    )


def pretraining(config: Any, **model: Any) -> Any:
    """Every objective of driving at once."""
    from driving.config import ObjectiveConfig

    objective = ObjectiveConfig(cross_camera=0.2, temporal=0.2, masked=0.5, ego_motion=1.0)
    data = {"offsets_s": (0.0, 1.0), "incomplete": "drop"}
    return changed(config, objective=objective, waypoints=None, data=data, model=model)


def transformer(config: Any) -> Any:
    """Pretraining with a vision transformer."""
    from driving.config import VitConfig

    return pretraining(config, vit=VitConfig(patch_size=8, width=32, depth=2, num_heads=2, mlp_dim=64))


QCHUNK, RIPT, DRIVING = "configs/qchunk/debug.py", "configs/openpi_ript/debug.py", "configs/driving/debug.py"
STEPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "QC-FQL": (QCHUNK, changed),
    "QC": (QCHUNK, functools.partial(changed, agent={"policy": "best_of_n", "num_samples": 4})),
    "QC-FQL accumulated": (QCHUNK, functools.partial(changed, train={"grad_accum_steps": 2})),
    "FQL": (QCHUNK, functools.partial(changed, agent={"horizon": 1})),
    "n-step FQL": (QCHUNK, functools.partial(changed, agent={"action_chunking": False})),
    "QC-FQL predicting chunks": (QCHUNK, functools.partial(changed, agent={"flow_predicts": "chunk"})),
    "QC-RLPD": (QCHUNK, gaussian),
    "DQC": (QCHUNK, decoupled),
    "QC-FQL with cameras": ("configs/qchunk/debug_images.py", changed),
    "CFG-RIPT": (RIPT, changed),
    "CFG by dropout of labels": (RIPT, functools.partial(changed, guidance={"loss": "label_dropout"})),
    "supervised pi0.5 with adapters": (RIPT, adapters),
    "waypoints": (DRIVING, changed),
    "pretraining": (DRIVING, pretraining),
    "pretraining of a transformer": (DRIVING, transformer),
}
"""Each training step: a config file, and what is changed in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """What a training ends with."""

    arrays: dict[str, np.ndarray]
    """Weights by path; of a single update its gradients."""
    argument_bytes: int
    """Of the compiled updates, on one device."""


def train(step: str, devices: int, fsdp: int, steps: int, folder: Path, own: Sequence[str], bits: int) -> End:
    """Runs launch.py's `train` in a process of its own, with as many simulated devices."""
    config = STEPS[step][0]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    options = ["--train.steps", str(steps), "--train.eval-every", "0", "--mesh.fsdp", str(fsdp)]
    options += ["--mesh.replicate-below", "0", "--run.dir", str(folder / "run")]
    if "qchunk" in config:
        options += ["--eval.env", "None"]
    if "driving" in config:
        options += ["--eval.blind-updates", "20", "--eval.plotted-moments", "0"]
    command = [sys.executable, "-m", "tests.devices", "--child", str(folder), step, str(bits), "--config", config]
    command += [*options, *own]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    folder.mkdir()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{step} on {devices} devices ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with np.load(folder / "arrays.npz") as file:
        arrays = dict(file)
    return End(arrays=arrays, argument_bytes=json.loads((folder / "bytes.json").read_text()))


def with_64_bits(config: Any) -> Any:
    """The config with every dtype of arithmetic float64."""
    if config == "float32":
        return "float64"
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    fields = {field.name: with_64_bits(getattr(config, field.name)) for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **fields)


def use_64_bits() -> None:
    """Makes float64 of what the project and flax name float32; before flax is imported, whose defaults name it."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64


def child(folder: Path, step: str, bits: int, arguments: list[str]) -> int:
    """Trains, and leaves weights and sizes in `folder`."""
    if bits == 64:
        use_64_bits()
    from chunkwise.checkpoint.reader import read_arrays
    from chunkwise.config.load import load
    from chunkwise.distributed import cluster
    from chunkwise.train import loop

    launch = importlib.import_module("launch")
    config = STEPS[step][1](load(arguments)[0])
    if bits == 64:
        config = with_64_bits(config)
    make = loop._Run.__init__

    class Measured:
        def __init__(self, jitted: Any) -> None:
            self.jitted = jitted

        def lower(self, *inputs: Any) -> Any:
            lowered = self.jitted.lower(*inputs)
            analysis = lowered.compile().memory_analysis()
            (folder / "bytes.json").write_text(json.dumps(analysis.argument_size_in_bytes))
            return lowered

        def __call__(self, *inputs: Any) -> Any:
            return self.jitted(*inputs)

    def make_and_measure(self: Any, *args: Any) -> None:
        make(self, *args)
        self.jit_updates = Measured(self.jit_updates)

    patched: Any = loop._Run
    patched.__init__ = make_and_measure
    cluster.initialise()
    code = launch.train(config, "devices")
    if code == 0:
        newest = max((folder / "run/checkpoints").iterdir(), key=lambda path: int(path.name))
        saved = read_arrays(newest)
        kept: Any = {name: np.asarray(x, f"float{bits}") for name, x in saved.items() if name.startswith("params/")}
        if newest.name == "1":  # a tenth of the gradient is Adam's moment
            kept = {name: np.asarray(x, f"float{bits}") for name, x in saved.items() if "/mu/" in name}
        np.savez(folder / "arrays.npz", **kept)
    return code


def run(
    step: str,
    steps: int,
    folder: Path,
    meshes: dict[str, tuple[int, int]],
    own: Sequence[str] = (),
    *,
    bits: Literal[32, 64] = 32,
) -> tuple[bool, bool]:
    """Prints a line a mesh; whether all are within the bound relative to each array's largest, and by `allclose`."""
    ends = {
        name: train(step, *mesh, steps, folder / name.replace(" ", "-"), own, bits) for name, mesh in meshes.items()
    }
    first = next(iter(ends.values()))
    agree = close = True
    print(f"{step}, {steps} updates, {sum(x.size for x in first.arrays.values()):,} weights")
    for name, end in ends.items():
        found = difference(end.arrays, first.arrays)
        agree &= found.relative <= BOUND
        close &= found.close <= BOUND
        print(
            f"  {name:<18} {found.absolute:.1e}; {found.relative:.1e} of the largest of {found.where}, "
            f"{found.beyond} weights beyond {BOUND:g} of that; {end.argument_bytes / 2**20:.2f} MiB a device",
            flush=True,
        )
    return agree, close


def main() -> int:
    """Command line."""
    if sys.argv[1:2] == ["--child"]:
        return child(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="append", choices=list(STEPS), help="repeatable; default all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--float64", action="store_true", help="weights and arithmetic of 64 bits")
    parser.add_argument("options", nargs="*", help="for launch.py, after --")
    arguments = parser.parse_args()
    bits = 64 if arguments.float64 else 32
    found: list[tuple[bool, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        for i, step in enumerate(arguments.step or STEPS):
            (own := Path(folder) / str(i)).mkdir()
            found.append(run(step, arguments.steps, own, MESHES, arguments.options, bits=bits))
    agree, close = (sum(verdicts) for verdicts in zip(*found, strict=True))
    print(
        f"{agree} of {len(found)} steps are within {BOUND:g} of each array's largest number, {close} of {len(found)} "
        f"within {BOUND:g} by allclose"
    )
    return 0 if agree == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
