"""Compiles a run's programs for machines that are not here: whether they fit, what they send, how fast they can be.

    chunkwise compile openpi_ript/pi0_full --topology v5p:2x2x2
    chunkwise compile openpi_ript/sft --topology rtx4090:1 --train.batch-size 8
    chunkwise compile qchunk/cube_single --topology h100:1 --size observation=28 --size action=5
    chunkwise compile openpi_ript/sft --topology l4:1 --what serve --dtype bfloat16
    chunkwise compile driving/pretrain --topology cpu:8 --json

Neither data, weights nor the devices are needed, but the compiler: the extra tpu or cuda. What is
compiled is the loop's own update from shapes alone; or the fresh weights (--what init), the chunks of a served policy
for --rows rows (--what serve, weights in --dtype), or what an evaluation computes at once (--what evaluate). For the
first two `mesh.data` and `mesh.fsdp` of the config must cover the devices, the others run on one. Ends with 78 where
the program does not fit into a device's memory.

--find compiles updates over meshes and over what is kept of layers that are computed again, and prints for each the
most rows that fit at a time and how the config's own batch goes through, the fastest first. It takes dozens of
compilations.

The fastest time is a bound and no forecast: the longest of products at the chip's full rate, of memory passing once
(arguments and results once, temporary arrays twice), and of exchanges at the full rate of the links.
"""

import argparse
import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chunkwise.cli import command
from chunkwise.cli.train import with_name
from chunkwise.config.load import load
from chunkwise.errors import ConfigError, MismatchError
from chunkwise.train.targets import (
    EXAMPLES,
    GB,
    JAX_SHARE,
    Chip,
    Target,
    opened,
    prepare,
    share_needed,
    target_named,
)

if TYPE_CHECKING:
    from chunkwise.train.ahead import Program, WithoutData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a compiled program takes; bytes are those of one device."""

    config: str
    topology: str
    what: str
    devices: int
    state: Mapping[str, int]
    """Bytes of the parts of the state."""
    batch: int
    arguments: int
    """As the compiler lays them out: state and batch, padded to its tiles."""
    results: int
    """That do not lie where an argument did."""
    temporary: int
    code: int
    capacity: float | None
    """Of a device; None where it is not known."""
    sent: Mapping[str, float] | None
    """Bytes that a device sends in one run, by kind of exchange; None where the program cannot be read back."""
    flops: Mapping[str, float]
    """Of products, of all devices together, by what is multiplied."""
    bounds: Mapping[str, float]
    """Seconds that products, memory and exchanges take at least; empty where the chip's figures are not known."""
    seconds: float
    """That compiling took."""
    share: float | None = None
    """Of a GPU's memory that jax must be told to take for it; None where what jax takes by itself is enough."""

    @property
    def total(self) -> int:
        """Bytes that the program keeps at its fullest."""
        return self.arguments + self.results + self.temporary + self.code

    @property
    def fits(self) -> bool:
        """Whether they are less than there is."""
        return self.capacity is None or self.total <= self.capacity

    def __str__(self) -> str:
        parts = [f"{name} {_bytes(size)}" for name, size in self.state.items() if size > self.arguments / 1000]
        parts += [f"batch {_bytes(self.batch)}"] if self.batch else []
        room = "" if self.capacity is None else f" of {_bytes(self.capacity)}"
        many = f", {self.devices} devices; what follows is of one of them" if self.devices > 1 else ""
        lines = [
            f"{self.config}: {self.what} for {self.topology}{many}",
            f"memory {_bytes(self.total)}{room}: arguments {_bytes(self.arguments)}, results that are not in their "
            f"place {_bytes(self.results)}, in between {_bytes(self.temporary)}, code {_bytes(self.code)}",
            f"of the arguments: {', '.join(parts) or 'none'}",
        ]
        lines.append(f"sent in one run: {self._sent()}")
        if self.flops:
            counts = ", ".join(f"{count / 1e12:.3g} of {dtype}" for dtype, count in sorted(self.flops.items()))
            lines.append(f"products of all devices, 10^12 operations: {counts}")
        if self.bounds:
            each = ", ".join(f"{name} {seconds * 1e3:.3g}" for name, seconds in self.bounds.items())
            longest = max(self.bounds, key=lambda name: self.bounds[name])
            lines.append(f"no faster than {self.bounds[longest] * 1e3:.3g} ms, by {longest} ({each})")
        if self.share is not None:
            lines.append(
                f"jax takes {JAX_SHARE:g} of a GPU's memory by itself, in which this does not fit; run it with "
                f"XLA_PYTHON_CLIENT_MEM_FRACTION={self.share:.2f} or more"
            )
        return "\n".join([*lines, f"compiled in {self.seconds:.0f} s"])

    def _sent(self) -> str:
        if self.sent is None:
            return "not known, the compiler's program cannot be read back; --topology cpu:N tells about as much"
        return ", ".join(f"{kind} {_bytes(size)}" for kind, size in sorted(self.sent.items())) or "nothing"


def _bytes(size: float) -> str:
    """A size in GB of 10^9 bytes, or in MB."""
    return f"{size / GB:.2f} GB" if size >= 0.1 * GB else f"{size / 1e6:.2f} MB"


def report_of(program: "Program", *, config: str, topology: str, what: str, target: Target) -> Report:
    """Reads off a compiled program what it takes."""
    from chunkwise.train.exchanges import bytes_sent

    memory = program.compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    try:
        sent = bytes_sent(program.compiled.as_text())
    except (RuntimeError, ValueError):  # libtpu starts some exchanges, and ends some loops, in ways not known here
        sent = None
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes + 2 * memory.temp_size_in_bytes
    report = Report(
        config=config,
        topology=topology,
        what=what,
        devices=target.count,
        state=program.state,
        batch=program.batch,
        arguments=memory.argument_size_in_bytes,
        results=results,
        temporary=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        capacity=None if target.chip is None else target.chip.memory,
        sent=sent,
        flops=program.flops,
        bounds={} if target.chip is None else bounds(target.chip, target.count, program.flops, moved, sent),
        seconds=program.seconds,
    )
    return dataclasses.replace(report, share=share_needed(target.chip, report.total))


def bounds(
    chip: Chip, devices: int, flops: Mapping[str, float], moved: float, sent: Mapping[str, float] | None
) -> dict[str, float]:
    """Returns the seconds that each part of a program takes at least.

    Args:
      chip: Of each device.
      devices: Among which the products are divided evenly.
      flops: Of products, of all devices, by type; float32 at the rate of jax's default precision.
      moved: Bytes that pass between a device and its memory.
      sent: Bytes that a device sends; None: not known.
    """
    slow = sum(count for dtype, count in flops.items() if dtype == "float32")
    fast = sum(flops.values()) - slow
    known = {
        "products": (fast / chip.flops + slow / chip.flops_float32) / devices,
        "memory": moved / chip.bandwidth,
    }
    return known if sent is None else known | {"exchanges": sum(sent.values()) / chip.link}


def sizes_of(words: Sequence[str]) -> dict[str, int]:
    """Reads name=N; raises ConfigError for anything else."""
    sizes = {}
    for word in words:
        name, _, number = word.partition("=")
        if not number.isdecimal() or not int(number):
            raise ConfigError(f"--size {word}: expected a name and a number of 1 or above, such as observation=28")
        sizes[name] = int(number)
    return sizes


def require_of_use(what: str, target: Target, *, rows: int | None, dtype: str | None) -> None:
    """Raises ConfigError for what has no effect on a program, and for devices that it does not use."""
    for flag, value in (("rows", rows), ("dtype", dtype)):
        if value is not None and what != "serve":
            raise ConfigError(f"--{flag} {value}: of --what serve alone, found --what {what}")
    if rows is not None and rows < 1:
        raise ConfigError(f"--rows {rows}: expected 1 or above")
    if what in ("serve", "evaluate") and target.count > 1:
        raise ConfigError(f"--what {what} runs on one device, and --topology has {target.count}; expected one")


def advice(report: Report, config: Any) -> str:
    """Says what takes less memory."""
    state, rest = sum(report.state.values()), report.temporary + report.batch
    ways = []
    if rest > state / 4:
        rows = [f"--{place}.rows" for place in ("env", "eval") if hasattr(getattr(config, place, None), "rows")]
        if report.what == "serve":
            ways.append("--dtype bfloat16 or int8, fewer --rows")
        elif report.what == "evaluate" and rows:
            ways.append(f"fewer {rows[0]}")
        elif report.what != "init":
            ways.append(f"a smaller --train.batch-size than {config.train.batch_size}, or --train.grad-accum-steps")
    if report.devices > 1 and config.mesh.fsdp < report.devices:
        ways.append(f"--mesh.fsdp {report.devices}, so that the devices share one copy of the state")
    ways.append("more devices" if report.devices > 1 else "a device with more memory")
    return "; ".join(ways)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise compile",
        description=__doc__,
        usage="chunkwise compile NAME_OR_FILE --topology KIND:NUMBER [--field value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="NAME_OR_FILE", help="as for chunkwise train; any field may follow")
    parser.add_argument("--topology", required=True, help=f"kind and number of devices: {', '.join(EXAMPLES)}")
    parser.add_argument(
        "--what",
        choices=("update", "init", "serve", "evaluate"),
        default="update",
        help="which program; default: update",
    )
    parser.add_argument("--rows", type=int, help="of --what serve, one of its --batch-sizes; default: 4, its largest")
    parser.add_argument("--dtype", choices=("bfloat16", "int8"), help="of --what serve: as that of chunkwise serve")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="what the dataset would tell")
    parser.add_argument("--find", action="store_true", help="the largest batch that fits, and the fastest update")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments, rest = parser.parse_known_args(argv)
    target, sizes, what = target_named(arguments.topology), sizes_of(arguments.size), arguments.what
    require_of_use(what, target, rows=arguments.rows, dtype=arguments.dtype)
    if arguments.find and (what != "update" or target.chip is None):
        raise ConfigError("--find: of updates, for devices whose memory is known; expected no --what, and no cpu")
    prepare(target)
    config, path = load(with_name([arguments.config, *rest]), program="chunkwise compile NAME_OR_FILE")
    name, package = f"{config.package}/{path.stem}", importlib.import_module(f"{config.package}.train")
    with opened(target) as devices:

        def measure(config: Any) -> Report:
            program = _compiled(config, package.without_data(config, sizes), devices, arguments)
            return report_of(program, config=name, topology=arguments.topology, what=what, target=target)

        if arguments.find:
            from chunkwise.train.find import search

            said = functools.partial(print, file=sys.stderr, flush=True)
            ways = search(config, target.count, measure, said)
            listed = [*ways, *told_of_share(target.chip, [way.total for way in ways])]
            print(json.dumps([dataclasses.asdict(way) for way in ways], indent=1) if arguments.json else _lines(listed))
            return 0
        try:
            report = measure(config)
        except MismatchError as error:
            raise MismatchError(f"{name} does not fit {arguments.topology}: {error}") from error
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report) | {"total": report.total, "fits": report.fits}, indent=1))
    else:
        print(report)
    if not report.fits:
        raise MismatchError(f"{name} does not fit {arguments.topology}; try {advice(report, config)}")
    return 0


def told_of_share(chip: Chip | None, totals: Sequence[int]) -> list[str]:
    """Returns a line that says which programs, by their bytes, jax must be told to take more of a GPU for, if any."""
    if chip is None or (share := share_needed(chip, max(totals))) is None:
        return []
    return [
        f"jax takes {JAX_SHARE:g} of a GPU's memory by itself, {_bytes(JAX_SHARE * chip.memory)}; for what is above, "
        f"XLA_PYTHON_CLIENT_MEM_FRACTION of up to {share:.2f}"
    ]


def _lines(found: Sequence[Any]) -> str:
    return "\n".join(str(one) for one in found)


def _compiled(config: Any, known: "WithoutData", devices: Sequence[Any], arguments: argparse.Namespace) -> "Program":
    """Compiles what was asked for; raises MismatchError where the compiler finds no room."""
    from chunkwise.train import ahead

    try:
        if arguments.what == "serve":
            dtype = arguments.dtype or "float32"
            return ahead.compiled_call(config, known, known.served(arguments.rows or 4, dtype), devices[0])
        if arguments.what == "evaluate":
            return ahead.compiled_call(config, known, known.evaluated(), devices[0])
        return ahead.compiled(config, known, devices, arguments.what)
    except Exception as error:  # jax's class of runtime errors is its own
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MismatchError(" ".join(str(error).split())[:400]) from error


if __name__ == "__main__":
    command.run(main)
