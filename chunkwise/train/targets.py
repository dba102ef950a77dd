"""Machines to compile for, by the names of `chunkwise compile --topology`, and what their makers say they can do."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError

GB = 1e9
GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A device. Figures are its data sheet's, dense, without sparsity."""

    platform: Literal["tpu", "cuda", "cpu"]
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second, of its memory."""
    flops: float
    """A second, of products of bfloat16 with sums in float32."""
    flops_float32: float
    """A second, of products of float32 by jax's default precision: TPUs round them to bfloat16, GPUs to TF32."""
    link: float
    """Bytes a second that a device sends to the others of its machine or slice, in all directions together."""
    gpu: str = ""
    """What XLA is told of a GPU (stream_executor's GpuTargetConfigProto)."""


JAX_SHARE = 0.75
"""Of a GPU's memory, that jax takes by itself; a program has no more than what it took."""


def share_needed(chip: Chip | None, total: float) -> float | None:
    """Returns the share of a GPU's memory that jax must be told to take for a program, in whole hundredths, rounded up.

    Args:
      chip: The device; None: not known.
      total: Bytes of the program at its fullest.

    Returns:
      The value of XLA_PYTHON_CLIENT_MEM_FRACTION. None where jax needs not be told, and where the program does not fit.
    """
    if chip is None or chip.platform != "cuda" or not JAX_SHARE * chip.memory < total <= chip.memory:
        return None
    return math.ceil(100 * total / chip.memory) / 100


L2_AND_CLOCK = {"NVIDIA H100 80GB HBM3": (50, 1.98), "NVIDIA H200": (50, 1.98), "NVIDIA L4": (48, 2.04)}
"""MiB of a GPU's second cache, and GHz; any other here has those of an RTX 4090."""


def _tpu(*, memory: float, bandwidth: float, teraflops: float, link: float) -> Chip:
    """A TPU of so many GiB, GB/s and 10^12 operations a second."""
    rate = teraflops * 1e12
    return Chip(
        platform="tpu",
        memory=memory * GIB,
        bandwidth=bandwidth * GB,
        flops=rate,
        flops_float32=rate,
        link=link * GB,
    )


def _gpu(
    name: str,
    memory: float,
    capability: tuple[int, int],
    *,
    cores: int,
    bandwidth: float,
    teraflops: tuple[float, float],
    link: float,
) -> Chip:
    """A GPU of so many bytes, multiprocessors, GB/s and 10^12 operations a second, of bfloat16 and of float32."""
    major, minor = capability
    shared = {8: 102400, 9: 233472}[major]
    cache, clock = L2_AND_CLOCK.get(name, (72, 2.52))
    told = f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared - 1024}
  threads_per_core_limit: {1536 if major == 8 else 2048}
  core_count: {cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(bandwidth * GB)}
  l2_cache_size: {cache << 20}
  clock_rate_ghz: {clock}
  device_memory_size: {int(memory)}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{name}"
"""
    return Chip(
        platform="cuda",
        memory=memory,
        bandwidth=bandwidth * GB,
        flops=teraflops[0] * 1e12,
        flops_float32=teraflops[1] * 1e12,
        link=link * GB,
        gpu=told,
    )


CHIPS = {
    # cloud.google.com/tpu/docs: v5p 459 TFLOP/s, 95 GB at 2765 GB/s, 4800 Gbit/s between chips
    "v5p": _tpu(memory=95, bandwidth=2765, teraflops=459, link=600),
    # v5e 197 TFLOP/s, 16 GB at 819 GB/s, 1600 Gbit/s
    "v5e": _tpu(memory=16, bandwidth=819, teraflops=197, link=200),
    # v6e 918 TFLOP/s, 32 GB at 1640 GB/s, 3584 Gbit/s
    "v6e": _tpu(memory=32, bandwidth=1640, teraflops=918, link=448),
    # NVIDIA H100 SXM5: 989 TFLOP/s, TF32 495, 80 GB at 3.35 TB/s, NVLink 900 GB/s of both directions
    "h100": _gpu("NVIDIA H100 80GB HBM3", 80 * GB, (9, 0), cores=132, bandwidth=3350, teraflops=(989, 495), link=450),
    # NVIDIA H200 SXM: as H100, 141 GB at 4.8 TB/s
    "h200": _gpu("NVIDIA H200", 141 * GB, (9, 0), cores=132, bandwidth=4800, teraflops=(989, 495), link=450),
    # NVIDIA Ada, GeForce RTX 4090: 165 TFLOP/s with sums in float32, TF32 83, 24 GB at 1008 GB/s, PCIe 4.0 x 16
    "rtx4090": _gpu(
        "NVIDIA GeForce RTX 4090", 24 * GIB, (8, 9), cores=128, bandwidth=1008, teraflops=(165, 83), link=32
    ),
    # NVIDIA L4: 121 TFLOP/s, TF32 60, 24 GB at 300 GB/s, PCIe 4.0 x 16
    "l4": _gpu("NVIDIA L4", 24 * GB, (8, 9), cores=58, bandwidth=300, teraflops=(121, 60), link=32),
}
KINDS = {
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
"""What jax calls a TPU."""
EXAMPLES = ("v5p:2x2x2", "v5e:2x4", "v6e:4x4", "h100:8", "h200:8", "rtx4090:1", "l4:1", "cpu:8")


def chip_of(kind: str) -> Chip | None:
    """Returns the figures of a device that is here by what jax calls its kind; None where they are not listed."""
    told = f'device_description_str: "{kind}"'
    named = [chip for chip in CHIPS.values() if told in chip.gpu]
    return named[0] if named else CHIPS.get(KINDS.get(kind, ""))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """So many devices of a kind."""

    name: str
    shape: tuple[int, ...]
    chip: Chip | None
    """None: this machine's CPU, whose figures nobody knows."""

    @property
    def count(self) -> int:
        """Devices."""
        return math.prod(self.shape)


def target_named(text: str) -> Target:
    """Reads a name such as v5p:2x2x2 or h100:8; raises ConfigError, which says what there is."""
    found = re.fullmatch(r"([\w]+):(\d+(?:x\d+){0,2})", text)
    shape = tuple(int(axis) for axis in found[2].split("x")) if found else ()
    if found is None or found[1] not in (*CHIPS, "cpu") or not all(shape):
        raise ConfigError(f"--topology {text}: expected a kind and its number, such as {', '.join(EXAMPLES)}")
    chip = CHIPS.get(found[1])
    if chip is not None and chip.platform == "tpu" and len(shape) != (axes := 3 if found[1] == "v5p" else 2):
        raise ConfigError(f"--topology {text}: a slice of {found[1]} has {axes} axes, such as {_example(found[1])}")
    if (chip is None or chip.platform == "cuda") and len(shape) != 1:
        raise ConfigError(f"--topology {text}: expected one number of devices, such as {_example(found[1])}")
    return Target(name=found[1], shape=shape, chip=chip)


def _example(name: str) -> str:
    return next(text for text in EXAMPLES if text.startswith(f"{name}:"))


def prepare(target: Target) -> None:
    """Sets the environment in which jax must be imported to compile for a target: jax itself uses the CPU."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or libtpu asks the network which TPU this host has
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")  # these two, or it complains that they are unknown
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5p-16")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # its lock is for chips, of which none is used
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # no driver is here whose version could be asked
    if target.chip is None:
        flags.append(f"--xla_force_host_platform_device_count={target.count}")
    elif target.chip.platform == "cuda":
        # Without a card nothing can be tried out: the compiler's first choice of each kernel is taken.
        flags += ["--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"]
    os.environ["XLA_FLAGS"] = " ".join(flags)


@contextlib.contextmanager
def opened(target: Target) -> Iterator[Sequence[Any]]:
    """Gives the target's devices, for which programs are compiled inside the block.

    Raises:
      ConfigError: The compiler for it is not installed, or knows no such topology.
    """
    import jax
    from jax.experimental import topologies

    if target.chip is None:
        yield jax.devices("cpu")
        return
    shape = "x".join(map(str, target.shape))
    needed = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}[target.chip.platform]
    if importlib.util.find_spec(needed) is None:
        raise ConfigError(
            f"--topology {target.name}:{shape}: its compiler is not installed ({needed}): "
            f"{pip_install(target.chip.platform)}; no such device is needed to compile for it"
        )
    with _gpu_means_cuda() if target.chip.platform == "cuda" else contextlib.nullcontext():
        try:
            if target.chip.platform == "tpu":
                devices = topologies.get_topology_desc(platform="tpu", topology_name=f"{target.name}:{shape}").devices
            else:
                settings = {"target_config": target.chip.gpu, "topology": f"1x1x{target.count}"}
                devices = topologies.get_topology_desc(platform="cuda", **settings).devices
        except RuntimeError as error:
            raise ConfigError(f"--topology {target.name}:{shape}: {str(error).splitlines()[0][:300]}") from error
        yield devices


@contextlib.contextmanager
def _gpu_means_cuda() -> Iterator[None]:
    """jax asks the cards that are there whether "gpu" means CUDA, and fails where none is (jax-ml/jax issue 23971)."""
    from jax._src import xla_bridge

    asked = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name == "gpu" else asked(name)
    try:
        yield
    finally:
        xla_bridge.canonicalize_platform = asked
