"""A trained policy to call, whatever package trained it: an observation in, a chunk of actions out.

policy = chunkwise.load_policy("runs/qchunk-cube_single-...")
actions = policy.infer({"state": state})["actions"]      # [t, a], in the robot's own units; policy.spec has the names

`infer` is `prepare`, `act`, `finish`: a server prepares requests in any number of threads, and computes those that wait
in one call of `act`.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import jax
import numpy as np
from jaxtyping import Float32, UInt32

from chunkwise.checkpoint.weights import Which
from chunkwise.config.experiment import ExperimentConfig
from chunkwise.data.norm_stats import NormStats
from chunkwise.data.sampling import Purpose, generator, seed_of
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies import observations
from chunkwise.policies.bounds import Bounds, require_finite
from chunkwise.policies.execution import NOTHING
from chunkwise.policies.spec import Exportable, Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """An observation as a policy's program takes it, on the host."""

    inputs: Any
    """A tree of arrays, each with a leading axis of rows."""
    rows: int
    single: bool
    """Whether it came without the axis of rows."""


Request = TypeVar("Request", bound=Prepared)
Draws = tuple[int, ...] | list[tuple[int, ...] | None]
"""Numbers that seed what is drawn for an observation, its rows told apart by their place; or, as a list, for each row
its own, wherever it stands, None where nobody looks at the row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What `chunkwise.load_policy` was asked for; the `load` of each package's policies takes it."""

    folder: Path
    config: ExperimentConfig | None
    checkpoint: int | Which
    seed: int
    allow_code: str | None
    dtype: Literal["bfloat16", "int8"] | None

    def require_run(self, package: str) -> None:
        """Raises ConfigError for what a package has no choice of whose policies are those of its runs alone."""
        if self.dtype is not None:
            raise ConfigError(
                f"dtype is {self.dtype}, and policies of {package} are small and keep float32; leave it out"
            )
        if self.config is not None:
            raise ConfigError(
                f"{self.folder}: a policy of {package} is that of a run with its own config; expected no other"
            )


class Policy(abc.ABC, Generic[Request]):
    """Weights and all that surrounds them, ready to act. One call at a time; `prepare` from any number of threads."""

    options: tuple[str, ...] = ()
    """Numbers that a request may carry beside its observation, such as guidance_scale; clients may send them."""
    local_options: tuple[str, ...] = ()
    """What a call of `infer` may carry besides, and no client."""

    def __init__(self, *, step: int, seed: int) -> None:
        """Starts the count of calls.

        Args:
          step: Updates that made the weights; shown in `metadata`.
          seed: Of all that is drawn, 0 to 2^63 - 1.

        Raises:
          ConfigError: The seed is none.
        """
        self.step = step
        self.bounds: Bounds | None = None
        """What becomes of actions that are far from those that it was trained on; None: they are given as they are."""
        self._seed = _checked(seed)
        self._calls = 0
        self._sizes: tuple[int, ...] = ()

    @property
    @abc.abstractmethod
    def spec(self) -> Spec:
        """What goes in and comes out."""

    @property
    def entries(self) -> frozenset[str] | None:
        """Names of what an observation may bring, a/b for b inside of a; None where others may be read as well."""
        return frozenset(self.spec.observation)

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client should know, as plain values."""
        horizon, width = self.spec.actions.shape
        return {
            "step": self.step,
            "action_horizon": horizon,
            "action_dim": width,
            "bounds": None if self.bounds is None else self.bounds.metadata,
            "spec": self.spec.plain(),
        }

    def example(self) -> dict[str, Any]:
        """Returns an observation of the right names and shapes: black images, zeros."""
        return self.spec.example()

    def reset(self, seed: int | None = None) -> None:
        """Begins an episode: what is drawn from now on is a function of the seed and of the calls after this one.

        Args:
          seed: Takes the place of the seed so far, 0 to 2^63 - 1; None keeps it.

        Raises:
          ConfigError: The seed is none.
        """
        self._seed = self._seed if seed is None else _checked(seed)
        self._calls = 0

    def bound(self, mode: Literal["refuse", "clip"], *, margin: float) -> None:
        """Holds actions inside the range of the training data from now on (see bounds.Bounds.of).

        Raises:
          ConfigError: If the statistics have no quantiles of the actions, or the margin is none.
        """
        self.bounds = Bounds.of(self._action_stats(), mode, margin=margin, width=self.spec.actions.shape[1])

    def compile(self, sizes: Sequence[int], *, realtime: bool = False) -> None:
        """Compiles for batches of these numbers of rows. From then on nothing else is compiled: fewer rows are filled
        up to the next of them, more are answered part by part.

        Args:
          sizes: Numbers of rows.
          realtime: Whether `infer` is going to be told what is committed, which is a program of its own, and the only
            one that is compiled then.

        Raises:
          ConfigError: The policy completes no chunks from what is committed.
        """
        if realtime and "committed" not in self.local_options:
            raise ConfigError(
                f"realtime: the chunks of a {type(self).__name__} cannot be completed from what is committed; compile "
                "without it"
            )
        self._sizes = tuple(sorted(set(sizes)))
        options: dict[str, Any] = {"committed": NOTHING} if realtime else {}
        one = self.prepare(self.example(), draw=(0,), by_spec=True, **options)
        for size in self._sizes:
            self.act([one] * size)

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Returns a chunk of actions for what is seen; for a batch, a chunk for each.

        The first call with a new number of rows compiles, unless `compile` was called.

        Args:
          observation: As `spec` has it: one, or a batch with a leading axis in every entry and lists of texts.
          options: `draw` and `by_spec` of `prepare`, and those of the class.

        Returns:
          "actions": [t, a] float32, in the robot's own units. Where bounds clip also "clipped": how many of the values
          were.

        Raises:
          DataError: If an entry is missing, or of another type, shape or range than expected.
          ConfigError: If an option is not one of this policy's.
          NonFiniteError: If the model answers with NaN or Inf.
          OutOfBoundsError: If an action lies outside bounds that refuse.
        """
        prepared = self.prepare(observation, **options)
        return self.finish(prepared, self.act([prepared])[0])

    def prepare(
        self,
        observation: Mapping[str, Any],
        *,
        draw: Draws | None = None,
        max_rows: int | None = None,
        by_spec: bool = False,
        **options: Any,
    ) -> Request:
        """Returns what `act` takes of an observation.

        Args:
          observation: As `infer`.
          draw: Numbers that seed what is drawn for this call: each row's is a function of them, the policy's seed and
            the row's place in the observation. A list has the numbers of each row, whose place then does not matter.
            None: the number of calls since the last `reset`.
          max_rows: Rows that are taken; None: any number.
          by_spec: Whether the observation has the names of `spec` already, as `example` has, and not those of a robot's
            client, which an adapter reads.
          options: Those of the class; None leaves one as it is.

        Raises:
          DataError: As `infer`.
          ConfigError: As `infer`.
        """
        if not isinstance(observation, Mapping):
            raise DataError(f"observation: expected a dict of entries, found {type(observation).__name__}")
        if not isinstance(draw, tuple | list | None):
            raise ConfigError(
                f"draw is {draw!r}; expected a tuple of numbers, such as (episode, step), or a list of them"
            )
        given = {name: value for name, value in options.items() if value is not None}
        known = self.options + self.local_options
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(f"{', '.join(unknown)}: expected an option of this policy: {', '.join(known) or 'none'}")
        if entries := [name for name in self.options if name in observation]:
            raise DataError(
                f"observation: found {', '.join(entries)}, which a server takes from it, and a call as an option; "
                f"expected infer(observation, {entries[0]}=...)"
            )
        if draw is None:
            self._calls += 1
            draw = (self._calls,)
        seen = observation if by_spec else self._by_spec(observation)
        return self._prepare(seen, draw, max_rows, given)

    def act(self, requests: Sequence[Request]) -> list[Float32[np.ndarray, "_ t a"]]:
        """Returns the model's chunks of several observations, computed together: normalised, unchecked.

        No row has a part in another's chunk, wherever it stands. Batches of another size may round differently.
        """
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *(request.inputs for request in requests))
        rows = sum(request.rows for request in requests)
        at_once = self._sizes[-1] if self._sizes else rows
        chunks = []
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            size = next((size for size in self._sizes if size >= count), count)
            # The last row again fills what is left.
            chosen = np.minimum(np.arange(start, start + size), start + count - 1)
            inputs = jax.tree.map(lambda x, chosen=chosen: x[chosen], together)
            chunks.append(np.asarray(self._compute(inputs))[:count])
        ends = np.cumsum([request.rows for request in requests])
        return np.split(np.concatenate(chunks), ends[:-1])

    def finish(self, request: Request, chunk: Float32[np.ndarray, "b t a"]) -> dict[str, Any]:
        """Returns what `infer` does, from the model's chunk.

        Raises:
          NonFiniteError: As `infer`.
          OutOfBoundsError: As `infer`.
        """
        with np.errstate(over="ignore"):  # what is infinite afterwards is refused
            actions = self._denormalised(chunk)
        require_finite(actions)
        reply: dict[str, Any] = {}
        if self.bounds is not None:
            actions, clipped = self.bounds.apply(actions)
            if self.bounds.mode == "clip":
                reply["clipped"] = int(clipped[0]) if request.single else clipped
        with np.errstate(over="ignore"):
            actions = self._absolute(actions, request)
        require_finite(actions)
        return {"actions": actions[0] if request.single else actions} | reply

    @abc.abstractmethod
    def exportable(self) -> Exportable:
        """What `chunkwise.policies.export` writes."""

    @abc.abstractmethod
    def _prepare(
        self, observation: Mapping[str, Any], draw: Draws, max_rows: int | None, options: Mapping[str, Any]
    ) -> Request:
        """As `prepare`, of an observation by the names of `spec`; options are known ones, none of them None."""

    def _by_spec(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gives what a client sends the names of `spec`; it has them, unless a class says otherwise."""
        return observations.nested(observation, "image", "depth")

    @abc.abstractmethod
    def _compute(self, inputs: Any) -> Any:
        """Runs the compiled program: [b, t, a] or wider, from the inputs of b rows."""

    @abc.abstractmethod
    def _denormalised(self, chunk: Float32[np.ndarray, "b t d"]) -> Float32[np.ndarray, "b t a"]:
        """The model's chunk in the units of the data, which bounds are of."""

    def _absolute(self, actions: Float32[np.ndarray, "b t a"], request: Request) -> Float32[np.ndarray, "b t a"]:
        """Adds what actions of the data are relative to; nothing, unless a class says otherwise."""
        return actions

    def _action_stats(self) -> NormStats | None:
        """Statistics of the training data's actions; None where there are none."""
        return None

    def _row_generators(self, draw: Draws, rows: int) -> list[np.random.Generator]:
        """A generator a row, of (seed, draw, row). Of numpy: a number of rows that is new would have jax compile."""
        return [generator(Purpose.SERVED_ACTION, *name) for name in self._row_names(draw, rows)]

    def _row_seeds(self, draw: Draws, rows: int) -> UInt32[np.ndarray, " b"]:
        """A seed of 32 bits a row, of (seed, draw, row), for a program that makes jax keys of them."""
        return np.array([seed_of(Purpose.SERVED_ACTION, *name) for name in self._row_names(draw, rows)], np.uint32)

    def _row_names(self, draw: Draws, rows: int) -> list[tuple[int, ...]]:
        high, seed = divmod(self._seed, 2**32)
        rest = (high,) if high else ()  # at the end, where the number of those before it tells it from them
        if isinstance(draw, list):
            if len(draw) != rows:
                raise DataError(f"draw: expected the numbers of {rows} rows, found those of {len(draw)}")
            return [(seed, len(own or ()), *(own or ()), 0, *rest) for own in draw]
        return [(seed, len(draw), *draw, row, *rest) for row in range(rows)]


def _checked(seed: int) -> int:
    """The seed. Raises ConfigError for what is none."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed!r}; expected a whole number, 0 to 2^63 - 1")
    return int(seed)
