"""The largest batch that fits a machine, and the fastest update of a run's own batch, by compiling.

Over the numbers of devices that share a copy of the state, and over what is kept of layers and what is computed again:
each policy of `remat_policy`, and everything. How many rows fit at a time is foretold from those compiled before (what
a device keeps grows with its rows) and then compiled; what an update has beyond them goes by train.grad_accum_steps.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, get_args

from chunkwise.config.experiment import ExperimentConfig, RematPolicy
from chunkwise.errors import ConfigError, MismatchError, one_line
from chunkwise.train.targets import GB


class Measured(Protocol):
    """What a compilation tells."""

    @property
    def total(self) -> int:
        """Bytes of a device."""
        ...

    @property
    def fits(self) -> bool:
        """Whether it has them."""
        ...

    @property
    def capacity(self) -> float | None:
        """Bytes that it has."""
        ...

    @property
    def bounds(self) -> Mapping[str, float]:
        """Seconds that each part of the program takes at least."""
        ...


MOST = 64
"""Times the rows of the config's own batch at which the search for more ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What one way to lay out a run can do."""

    flags: str
    """That choose it."""
    rows: int
    """At a time, of all devices, the most that fit among those tried."""
    total: int
    """Bytes of a device with them."""
    parts: int | None
    """train.grad_accum_steps of the config's own batch, the least that fits; None where none does."""
    seconds: float | None
    """No update of that batch is faster; None where it does not fit, or the chip's figures are not known."""

    def __str__(self) -> str:
        bound = "" if self.seconds is None else f", no faster than {self.seconds * 1e3:.3g} ms an update"
        own = "does not fit in any number of parts" if self.parts is None else f"--train.grad-accum-steps {self.parts}"
        return f"{self.flags}: {self.rows} rows at a time in {self.total / GB:.2f} GB; own batch: {own}{bound}"


def search(
    config: ExperimentConfig, devices: int, measure: Callable[[ExperimentConfig], Measured], say: Callable[[str], None]
) -> list[Found]:
    """Tries each way, and returns those that fit, the fastest first, by name where none is known.

    Args:
      config: Of the run; what it says of mesh, batch and recomputation is replaced, but for the batch's size.
      devices: Of the machine.
      measure: Compiles an update; raises MismatchError where the compiler finds no room.
      say: Takes a line for each compilation, which may take minutes.

    Raises:
      MismatchError: Nothing fits.
      ConfigError: The batch is no multiple of the devices.
    """
    if config.train.batch_size % devices:
        raise ConfigError(f"train.batch_size is {config.train.batch_size}; expected a multiple of {devices} devices")
    found = [one for flags, way in _ways(config, devices) if (one := _of(flags, way, devices, measure, say))]
    if not found:
        raise MismatchError(f"no way fits: not even {devices} rows at a time; more devices, or more memory on each")
    return sorted(found, key=lambda one: (math.inf if one.seconds is None else one.seconds, one.flags))


def _ways(config: ExperimentConfig, devices: int) -> Iterator[tuple[str, ExperimentConfig]]:
    """Flags and config of each way: each divisor of the devices, and each policy of recomputation where it is known."""
    places = [place[:-1] for place in _places(config, "remat")]
    policies: list[dict[str, Any]] = [{"remat": True, "remat_policy": name} for name in get_args(RematPolicy)]
    policies.append({"remat": False, "remat_policy": "nothing"})
    for fsdp in (n for n in range(1, devices + 1) if devices % n == 0):
        mesh = dataclasses.replace(config.mesh, data=-1, fsdp=fsdp)
        for policy in policies if places else [{}]:
            changed: Any = dataclasses.replace(config, mesh=mesh)
            flags = [f"--mesh.fsdp {fsdp}"]
            for place in places:
                changed = _with(changed, place, policy)
                chosen = "--{0}.remat --{0}.remat-policy {1}" if policy["remat"] else "--{0}.no-remat"
                flags.append(chosen.format(".".join(place), policy["remat_policy"]))
            yield " ".join(flags), changed


def _of(
    flags: str,
    way: ExperimentConfig,
    devices: int,
    measure: Callable[[ExperimentConfig], Measured],
    say: Callable[[str], None],
) -> Found | None:
    """What one way can do; None where nothing fits."""
    batch = way.train.batch_size

    def asked(rows: int, parts: int) -> ExperimentConfig:
        """The run with such a batch. Raises ValueError where another setting refuses it."""
        train = dataclasses.replace(way.train, batch_size=rows, grad_accum_steps=parts)
        return dataclasses.replace(way, train=train)

    @functools.cache  # the run's own batch is asked for twice
    def at(rows: int, parts: int) -> Measured | None:
        """An update of so many rows in so many parts; None where the compiler finds no room, or it is refused."""
        report, held = None, "no room"
        try:
            report = measure(asked(rows, parts))
            held = f"{report.total / GB:.2f} GB{'' if report.fits else ', too much'}"
        except MismatchError:
            pass
        except ValueError as error:
            held = f"refused: {one_line(error)}"
        say(f"{flags}: {rows} rows in {parts} part{'s' if parts > 1 else ''}: {held}")
        return report

    grid = []
    for rows in (devices * 2**k for k in range(1 + int(math.log2(MOST * batch / devices)))):
        try:
            asked(rows, 1)
        except ValueError as error:
            say(f"{flags}: {rows} rows: refused: {one_line(error)}")
        else:
            grid.append(rows)
    if not grid:
        raise ConfigError(
            f"--find: no number of rows is allowed by the other settings, from {devices} to {MOST * batch}"
        )
    if (found := _most(grid, batch, lambda rows: at(rows, 1))) is None:
        return None
    rows, most = found
    # Perhaps in more than its rows alone ask for: the sum of the parts' gradients has to fit, too.
    ways = [n for n in range(1, batch + 1) if batch % (n * devices) == 0 and batch // n <= rows]
    fitting = ((n, report) for n in ways if (report := at(batch, n)) is not None and report.fits)
    parts, own = next(fitting, (None, None))
    seconds = None if own is None else max(own.bounds.values(), default=None)
    return Found(flags=flags, rows=rows, total=most.total, parts=parts, seconds=seconds)


def _most(grid: Sequence[int], batch: int, at: Callable[[int], Measured | None]) -> tuple[int, Measured] | None:
    """The largest of the rows in `grid`, ascending, that fits, and its update; None where not even the least does.

    A row adds at least what rows before it added, as far as was seen: little while gradients are the most that is held,
    then ever the same. So a line through two sizes that fit meets the memory where, or behind where, the largest lies;
    one through the largest that fits and one that does not meets it before, and there the next is tried.
    """
    best = at(grid[0])
    if best is None or not best.fits:
        return None
    capacity = math.inf if best.capacity is None else best.capacity
    totals = {0: best.total}

    def meets(first: int, second: int) -> int:
        """Place of the largest size up to where the line through two of them meets the memory."""
        growth = max(totals[second] - totals[first], 1) / (grid[second] - grid[first])
        return sum(rows <= grid[first] + (capacity - totals[first]) / growth for rows in grid) - 1

    lower, upper = 0, len(grid)  # the one fits; the other does not, or lies beyond the end
    guess = max(1, sum(rows <= batch for rows in grid) - 1)  # the run's own batch, which is asked for in any case
    while upper - lower > 1:
        report = at(grid[guess])
        if report is not None:
            totals[guess] = report.total
        if report is not None and report.fits:
            upper = min(upper, meets(lower, guess) + 1)
            lower, best = guess, report
        else:
            upper = guess
        guess = meets(lower, upper) if upper in totals else (lower + upper) // 2 if upper == guess else upper - 1
        guess = min(max(guess, lower + 1), upper - 1)
    return grid[lower], best


def _places(config: Any, name: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the fields of a name in nested dataclasses."""
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), (*above, field.name)
        if field.name == name:
            yield path
        elif dataclasses.is_dataclass(value):
            yield from _places(value, name, path)


def _with(config: Any, path: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """The same with other values of fields of the config at a path."""
    if not path:
        return dataclasses.replace(config, **values)
    return dataclasses.replace(config, **{path[0]: _with(getattr(config, path[0]), path[1:], values)})
