"""Doubts about statistics: what a dataset's own numbers become once they are normalised."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Float32

from chunkwise.data.lerobot.tables import FrameTable, window
from chunkwise.data.norm_stats import Affine, NormStats
from chunkwise.policies.observations import MAX_STATE
from openpi_ript.config.data import DataConfig
from openpi_ript.data import norm
from openpi_ript.robots.adapter import OWN, Adapter

FAR_OFF = 10.0
"""Size of a normalised number, in deviations, from which on it is noted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubts:
    """What is remarkable about a dataset's normalised numbers, a line a dimension."""

    notes: tuple[str, ...]
    refused: tuple[str, ...]
    """Those of `notes` on numbers above MAX_STATE, which a policy refuses to act on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Numbers:
    """State or actions of a dataset, and how they are normalised."""

    name: str
    field: str
    """Of the config, that says how."""
    rows: str
    """What one row is, in words."""
    affine: Affine
    rare: np.ndarray
    """Dimensions that `norm.rarely_moves`."""
    largest: Float[np.ndarray, " d"]
    """No number of a dimension is larger before it is normalised."""
    steps: Callable[[Sequence[int]], Iterator[Float[np.ndarray, "rows d2"]]]
    """Numbers of some dimensions: of every row one step after another."""


def doubts(table: FrameTable, config: DataConfig, stats: Mapping[str, NormStats], adapter: Adapter = OWN) -> Doubts:
    """Looks at a dataset's numbers as its config normalises them.

    Args:
      table: All frames.
      config: How they are normalised.
      stats: By what.
      adapter: Gives the numbers that the policy sees of the table's.

    Raises:
      DataError: As `norm.affines`.
    """
    (state, state_notes), (action, action_notes) = norm.affines(config, stats)
    notes, refused = [*state_notes, *action_notes], list[str]()
    for numbers in _both(table, config, stats, adapter, state, action):
        if getattr(config, numbers.field) == "none":
            continue
        reached = _reached(numbers, config)
        notes += reached.values()
        refused += [line for (_, most), line in reached.items() if most > MAX_STATE]
        first = numbers.affine.apply(next(numbers.steps(range(len(numbers.largest)))))
        told = {dimension for dimension, _ in reached}
        notes += plausible(first, numbers.name, own=config.norm_stats is None, told=told)
    return Doubts(notes=tuple(notes), refused=tuple(refused))


def _both(
    table: FrameTable,
    config: DataConfig,
    stats: Mapping[str, NormStats],
    adapter: Adapter,
    state: Affine,
    action: Affine,
) -> Iterator[_Numbers]:
    robot, relative = config.robot, list(config.robot.relative_dims)
    seen, acts = adapter.state(table.columns[config.state_key]), adapter.action(table.columns[config.action_key])
    largest = np.abs(acts).max(0)
    largest[relative] += np.abs(seen).max(0)[relative]

    def steps(dims: Sequence[int]) -> Iterator[np.ndarray]:
        """The numbers of each frame's window of actions, relative as in training."""
        start, length = np.repeat(table.starts, table.lengths), np.repeat(table.lengths, table.lengths)
        places = [(place, dim) for place, dim in enumerate(dims) if dim in relative]
        for step in range(config.horizon):
            inside, _ = window(np.arange(table.frames) - start, length, np.array([step]))
            numbers = acts[start + inside[:, 0]][:, list(dims)]
            for place, dim in places:
                numbers[:, place] -= seen[:, dim]
            yield numbers

    yield _Numbers(
        name="state",
        field="state_norm",
        rows="frames",
        affine=state,
        rare=norm.rarely_moves(stats.get("state"), config.state_norm, robot.state_dim),
        largest=np.abs(seen).max(0),
        steps=lambda dims: iter([seen[:, list(dims)]]),
    )
    yield _Numbers(
        name="actions",
        field="action_norm",
        rows="windows",
        affine=action,
        rare=norm.rarely_moves(stats.get("actions"), config.action_norm, robot.action_dim),
        largest=largest,
        steps=steps,
    )


def _reached(numbers: _Numbers, config: DataConfig) -> dict[tuple[int, float], str]:
    """A line for each dimension that moves rarely, or of which a number is above MAX_STATE; by it and that number."""
    affine, field = numbers.affine, numbers.field
    far = (numbers.largest + np.abs(affine.offset)) / affine.scale > MAX_STATE
    dims = np.flatnonzero(numbers.rare | far).tolist()
    if not dims:
        return {}
    part = Affine(offset=affine.offset[dims], scale=affine.scale[dims])
    most, off = np.zeros(len(dims)), np.zeros((0, len(dims)), bool)
    for step in numbers.steps(dims):
        size = np.abs(part.apply(step))
        most = np.maximum(most, size.max(0))
        off = (size > FAR_OFF) | (off if len(off) else False)
    lines = {}
    for i, dimension in enumerate(dims):
        rare = numbers.rare[dimension]
        if most[i] <= (FAR_OFF if rare else MAX_STATE):
            continue
        why = "it moves so rarely that its q01 and q99 are the same; " if rare else ""
        above = f", above the {MAX_STATE:g} that new trainings and policies take" if most[i] > MAX_STATE else ""
        what = "are these another dataset's statistics?"
        if rare:
            what = f"set data.{field} mean_std, or name a file in data.norm_stats whose q01 and q99 differ there"
        elif config.norm_stats is None:
            what = "it hardly moves in the episodes that the statistics are of"
        lines[dimension, float(most[i])] = (
            f"{numbers.name}, dimension {dimension}: {why}{off[:, i].sum()} of {len(off)} {numbers.rows} reach up to "
            f"{most[i]:.3g} with data.{field} {getattr(config, field)}{above}; {what}"
        )
    return lines


def plausible(
    x: Float32[np.ndarray, "rows d"], name: str, *, own: bool = False, told: set[int] | None = None
) -> Sequence[str]:
    """Notes on normalised dimensions whose values lie far out: a sign of statistics from another dataset.

    Args:
      x: State, or the first action of each window.
      name: Of the array.
      own: Whether the statistics are the dataset's own.
      told: Dimensions that were noted before.
    """
    centre = np.abs(x.mean(0, dtype=np.float64))
    doubt = ", far from its quantiles" if own else "; are these another dataset's statistics?"
    return [
        f"{name}, dimension {d}: normalised values average {centre[d]:.1f}{doubt}"
        for d in np.flatnonzero(centre > FAR_OFF)
        if d not in (told or set())
    ]
