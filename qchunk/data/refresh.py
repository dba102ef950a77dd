"""Which episodes the pool holds at which step, and loading the next pool behind the one in use.

refresh=epoch: the pool of epoch e is drawn from (seed, e, shard) and replaced whole. refresh=rolling: the draw of an
epoch is dealt out evenly by label, and comes in by `refresh_parts` equal parts, at equally spaced steps of the epoch;
a part replaces the same places of the epoch before. At the last part of an epoch the pool is that epoch's draw. Either
way the pool of a step follows from (seed, epoch, step, shard).
"""

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int64

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.sampling import EpisodeDraw, draw_episodes
from chunkwise.data.threads import step_back
from qchunk.config import QChunkConfig
from qchunk.data import mixture
from qchunk.data.holdout import held_out

Loaded = TypeVar("Loaded")


class Place(NamedTuple):
    """A step, and the pool that it draws from."""

    epoch: int
    step: int
    """Inside the epoch."""
    part: int
    """Of the epoch's refresh, the newest that has come in; 0 where the pool is replaced whole."""
    step_in_part: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """When pools change. Pools are numbered on: pool `epoch * parts + part`."""

    steps_per_epoch: int
    parts: int

    @property
    def shortest(self) -> int:
        """Steps of the shortest-lived pool."""
        return self.steps_per_epoch // self.parts

    def place(self, step: int) -> Place:
        """Where a global step lies."""
        epoch, step = divmod(step, self.steps_per_epoch)
        part = step * self.parts // self.steps_per_epoch
        first = -(-part * self.steps_per_epoch // self.parts)
        return Place(epoch=epoch, step=step, part=part, step_in_part=step - first)

    def end(self, epoch: int, part: int) -> Place:
        """The last step that draws from a pool."""
        step = -(-(part + 1) * self.steps_per_epoch // self.parts) - 1
        return self.place(epoch * self.steps_per_epoch + step)

    def number(self, place: Place) -> int:
        """Of the pool that a place draws from."""
        return place.epoch * self.parts + place.part


def schedule(config: QChunkConfig) -> Schedule:
    """The schedule that the config asks for."""
    parts = config.data.refresh_parts if config.data.refresh == "rolling" else 1
    return Schedule(steps_per_epoch=config.data.steps_per_epoch, parts=parts)


def episodes_of_pool(config: QChunkConfig, source: EpisodeSource, epoch: int, part: int, shard: int) -> EpisodeDraw:
    """Episodes of a pool, as positions in the source.

    Args:
      config: Of the run.
      source: The dataset.
      epoch: 0 or above.
      part: Newest part of the epoch's refresh that has come in, in [0, data.refresh_parts); 0 if refresh is "epoch".
      shard: Virtual shard.
    """

    drawn = ~held_out(config.data, source)

    def draw(epoch: int) -> EpisodeDraw:
        if config.data.mixture:
            return mixture.draw(config.data, source, drawn, seed=config.run.seed, epoch=epoch, shard=shard)
        return draw_episodes(
            np.flatnonzero(source.positives & drawn),
            np.flatnonzero(~source.positives & drawn),
            count=config.data.episodes_per_epoch,
            positive_ratio=config.data.positive_ratio,
            seed=config.run.seed,
            epoch=epoch,
            shard=shard,
        )

    new = draw(epoch)
    if config.data.refresh == "epoch":
        return new
    dealt = new.indices[_dealt(source.positives[new.indices])]
    if epoch == 0:
        return EpisodeDraw(indices=dealt, notes=new.notes)
    old = draw(epoch - 1)
    places = np.arange(len(dealt))
    come_in = places < (part + 1) * len(dealt) // config.data.refresh_parts
    indices = np.where(come_in, dealt, old.indices[_dealt(source.positives[old.indices])])
    return EpisodeDraw(indices=indices, notes=tuple(dict.fromkeys((*old.notes, *new.notes))))


def _dealt(positive: np.ndarray) -> Int64[np.ndarray, " n"]:
    """An order in which both labels come at their even share, so that every part has about the pool's ratio."""
    share = np.empty(len(positive))
    for label in (False, True):
        members = np.flatnonzero(positive == label)
        share[members] = (np.arange(len(members)) + 0.5) / max(len(members), 1)
    return np.argsort(share, kind="stable")


class Refreshes:
    """What the refreshes of an epoch cost: the wait for pools after the first, beside the epoch's own duration."""

    SECONDS_BETWEEN_LINES = 30.0

    def __init__(self) -> None:
        self._epoch: int | None = None  # with which the last line began
        self._lines = 0
        self._began = 0.0
        self._before = 0.0  # waited at the first pool, then at the last line

    def note(self, place: Place, waited: float) -> str | None:
        """A line for the first batch of a run, for the first new epoch, and then for one every 30 s at most; call it
        when the pool changes.

        Args:
          place: Of the batch at hand.
          waited: Seconds waited for pools so far, the first included.
        """
        if self._epoch is None:
            self._epoch, self._began, self._before = place.epoch, time.perf_counter(), waited
            return f"the first pool was waited for {waited:.1f} s"
        if place.epoch <= self._epoch:
            return None
        now = time.perf_counter()
        lasted, lost, many = now - self._began, waited - self._before, place.epoch - self._epoch
        if self._lines and lasted < self.SECONDS_BETWEEN_LINES:
            return None
        self._lines += 1
        line = (
            f"epoch {place.epoch} begins; the {'one' if many == 1 else many} before took {lasted:.1f} s, {lost:.3f} s "
            f"of it waiting for refreshes ({100 * lost / max(lasted, 1e-9):.2f} %)"
        )
        self._epoch, self._began, self._before = place.epoch, now, waited
        return line


class PoolLoader(Generic[Loaded]):
    """The pools in use, and the next, which load in a thread: never more than two are kept.

    Only a jump (a restored position) can find a third under way; it is finished, and dropped.
    """

    def __init__(self, load: Callable[[int, Loaded | None, threading.Event], Loaded]) -> None:
        """Loads nothing yet.

        Args:
          load: Makes the pools of a number, given those of the number before where they are there; stops early when
            the event is set.
        """
        self._load = load
        self._lock = threading.Lock()
        self._ready: tuple[int, Loaded] | None = None  # what the last call returned: most calls take no lock
        self._loading: dict[int, Future[Loaded]] = {}
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self.waited = 0.0
        """Seconds during which any call of `get` waited for a pool, the first pool included."""
        self._waited_until = 0.0
        weakref.finalize(self, _stop, self._closing, self._threads)

    def start(self, number: int) -> Future[Loaded]:
        """Begins to load a pool if it is not there, and drops all but it and the one before."""
        with self._lock:
            if number not in self._loading:
                for other in set(self._loading) - {number - 1}:
                    del self._loading[other]
                before = self._loading.get(number - 1)
                future: Future[Loaded] = Future()
                self._loading[number] = future
                self._threads -= {thread for thread in self._threads if not thread.is_alive()}
                run = threading.Thread(
                    target=_run,
                    args=(self._load, number, before, self._closing, future),
                    name=f"pool-{number}",
                    daemon=True,
                )
                self._threads.add(run)
                run.start()
            return self._loading[number]

    def get(self, number: int, *, go_on: bool) -> Loaded:
        """The pools of a number, waiting for them if need be.

        Args:
          number: As the schedule counts.
          go_on: Whether it is time to drop those before them, and to load the next.

        Raises:
          Exception: Whatever loading raised, here and not in the thread.
        """
        ready = self._ready
        if ready is None or ready[0] != number:
            began = time.perf_counter()
            ready = self._ready = (number, self.start(number).result())
            with self._lock:  # threads wait together: what one has counted the others leave out
                now = time.perf_counter()
                self.waited += now - max(began, self._waited_until)
                self._waited_until = now
        if go_on and number + 1 not in self._loading:
            self.start(number + 1)
        return ready[1]


def _run(
    load: Callable[[int, Loaded | None, threading.Event], Loaded],
    number: int,
    before: Future[Loaded] | None,
    closing: threading.Event,
    future: Future[Loaded],
) -> None:
    try:
        step_back()  # where cores are short, training comes first
        ready = before is not None and before.done() and before.exception() is None
        future.set_result(load(number, before.result() if before is not None and ready else None, closing))
    except BaseException as error:  # raised where the pools are asked for
        future.set_exception(error)


def _stop(closing: threading.Event, threads: set[threading.Thread]) -> None:
    """Ends loading after the episode at hand; at exit, so that no thread reads while HDF5 is torn down.

    The garbage collector calls it anywhere. Of a set beartype checks the first item, of a list a random one, which
    hypothesis takes for randomness in whatever test that happens in.
    """
    closing.set()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
