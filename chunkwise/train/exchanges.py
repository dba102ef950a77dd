"""What a compiled program sends between devices, read from its text, loops counted."""

import collections
import functools
import math
import re
from collections.abc import Iterator

BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "s32": 4, "u32": 4, "s16": 2, "u16": 2}
"""Of a number by XLA's name; any other takes one."""
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")


def bytes_sent(program: str) -> dict[str, float]:
    """Returns the bytes that a device sends in one run of a program, by kind of exchange.

    Of an array of S bytes among g devices a gather sends (g - 1) / g S, a sum twice that, a sum of which each device
    keeps a part (g - 1) / g of what went in.

    Args:
      program: The compiled program as text.
    """
    sent: dict[str, float] = collections.defaultdict(float)
    for kind, _, size in exchanges(program):
        sent[kind] += size
    return dict(sent)


def exchanges(program: str) -> Iterator[tuple[str, int, float]]:
    """Yields for each array of each exchange its kind, its numbers, and the bytes that a device sends for it."""
    lines = computations(program)
    times = rounds(lines)
    for name, body in lines.items():
        for line in body:
            kind = re.search(rf" = (.*?) ({'|'.join(KINDS)})(?:-start)?\(", line)
            if not kind:
                continue
            share = share_sent(kind[2], line)
            arrays = re.findall(r"(\w+)\[([\d,]*)\]", kind[1])
            if f"{kind[2]}-start(" in line and kind[2] != "all-reduce":
                arrays = [one for one in arrays if one != ("u32", "")]  # flags of a TPU's exchange come last
                arrays = arrays[len(arrays) // 2 :]  # what goes in stands before what comes out
            for dtype, shape in arrays:
                elements = math.prod(int(axis) for axis in shape.split(",") if axis)
                yield kind[2], elements, times[name] * share * elements * BYTES.get(dtype, 1)


def computations(program: str) -> dict[str, list[str]]:
    """Lines of each computation of an HLO text."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            name = head[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def trips(line: str, lines: dict[str, list[str]]) -> int | None:
    """How often a loop runs its body, None if that is not known before it runs.

    XLA for CPUs and GPUs notes it at the loop. Its compiler for TPUs does not: there it is the constant that the loop's
    condition compares the counter with, over what the body adds to it. It begins at 0 and goes up by 1 in loops of jax,
    by 2 in some that the compiler makes of a product and the exchange of its operand.
    """
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
        return int(noted[1])
    called = re.search(r"condition=%([\w.\-]+), body=%([\w.\-]+)", line)
    condition, body = ("\n".join(lines.get(name, [])) for name in called.groups()) if called else ("", "")
    compared = re.search(r"ROOT .* compare\(%([\w.\-]+), %([\w.\-]+)\), direction=LT", condition)
    bound = compared and _constant(compared[2], condition)
    if compared is None or bound is None:
        return None
    place = re.search(rf"%{re.escape(compared[1])} = .*get-tuple-element\(.*\), index=(\d+)", condition)
    return math.ceil(bound / _step(place[1], body)) if place else bound


def _step(place: str, body: str) -> int:
    """What a loop's body adds to the number at a place of its state; 1 where it does not say so in plain words."""
    results = body[body.rfind("ROOT ") :]
    for counter in re.findall(rf"%([\w.\-]+) = .*get-tuple-element\(.*\), index={place}\b", body):
        for after, by in re.findall(rf"%([\w.\-]+) = .* add\(%{re.escape(counter)}, %([\w.\-]+)\)", body):
            if (step := _constant(by, body)) and re.search(rf"%{re.escape(after)}\b(?![\w.\-])", results):
                return step
    return 1


def _constant(name: str, body: str) -> int | None:
    """A whole number of 32 bits by its name, None where it is none."""
    found = re.search(rf"%{re.escape(name)} = [su]32\[\]\S* constant\((\d+)\)", body)
    return int(found[1]) if found else None


def rounds(lines: dict[str, list[str]]) -> dict[str, int]:
    """How often a computation runs in one update; the loop over updates counts once."""
    called: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    unknown = 0
    for caller, body in lines.items():
        for line in body:
            times = trips(line, lines) if " while(" in line else 1
            unknown += times is None
            for name in re.findall(r"(?:body|to_apply|calls)=%([\w.\-]+)", line):
                called[name].append((caller, times or 1))

    if unknown > 1:
        raise ValueError(f"expected to know the length of all loops but that over updates, found {unknown} unknown")

    @functools.cache
    def of(name: str) -> int:
        return sum(times * of(caller) for caller, times in called[name]) if called[name] else 1

    return {name: of(name) for name in lines}


def share_sent(kind: str, line: str) -> float:
    """Times that a device sends the bytes of an exchange's result."""
    if kind == "collective-permute":
        return 1
    if over := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}", line):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", over[1]))
        g = math.prod(int(axes[axis]) for axis in re.findall(r"'(\w+)'", over[2]))
    elif groups := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        g = int(groups[1])
    elif listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        g = listed[1].count(",") + 1
    else:
        raise ValueError(f"expected replica_groups in one of XLA's notations, found {line}")
    return {"all-reduce": 2 / g, "reduce-scatter": 1}.get(kind, 1 / g) * (g - 1)
