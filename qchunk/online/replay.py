"""Online transitions: an append-only log in the run folder, and the same in memory, from which chunks are drawn.

<run>/replay/frames.bin     one record a frame, in the order of time
<run>/replay/layout.json    numpy's description of a record: `read(folder)` gives them all
<run>/replay/env_0001/      both, of each environment, where the run has several

A record is what the environment showed, and for every frame but an episode's first the step that led to it: action,
reward, ending. Values are as they were executed and seen; normalised is what lies in memory. An episode of L steps
has L + 1 records. The log only grows, except on resume, when it is cut back to the checkpoint's count. Images are in
it as bytes, so that what is drawn is what the policy saw. Of several processes one writes a log, the others follow.
"""

import contextlib
import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from chunkwise.data.episodes import chunk_returns, first_steps, steps_to_termination
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, sync_folder, write_json
from chunkwise.files.strict_json import read_json
from qchunk.config import QChunkConfig
from qchunk.data import Batch, Dataset, Observations

FOLDER, FRAMES, LAYOUT = "replay", "frames.bin", "layout.json"
STATES = ("qpos", "state")
"""State arrays that a record may have."""
_OTHERWISE = (
    "Restore the file; or move the newest save out of checkpoints/, and the run goes on from the one before, if its "
    "records are whole; or start anew in another folder"
)
Records = np.ndarray
"""One-dimensional structured array of the log's dtype."""


def folders(run: Path, num_envs: int) -> Iterator[Path]:
    """Names the folder of each environment's log in a run's folder."""
    if num_envs == 1:
        yield run / FOLDER
        return
    for number in range(num_envs):
        yield run / FOLDER / f"env_{number:04d}"


def record_dtype(widths: dict[str, int], action: int, image_shape: tuple[int, ...] | None) -> np.dtype:
    """Layout of a record.

    Args:
      widths: Width of each state array of an observation, by name.
      action: Numbers of an action.
      image_shape: Shape of `images`, (k, h, w, 3); None without.
    """
    step = [("action", "<f4", (action,)), ("reward", "<f8"), ("terminated", "?"), ("truncated", "?"), ("success", "?")]
    seen: list[Any] = [(name, "<f4", (width,)) for name, width in widths.items()]
    if image_shape is not None:
        seen.append(("images", "u1", image_shape))
    return np.dtype([("first", "?"), *step, *seen])


def _described(dtype: np.dtype) -> list[list[Any]]:
    """What layout.json holds."""
    return [[name, dtype[name].base.str, list(dtype[name].shape)] for name in dtype.names or ()]


def read_layout(folder: Path) -> np.dtype:
    """Returns the layout of the records in a log's folder, which may come from elsewhere.

    Raises:
      DataError: layout.json is missing, or describes no records of `record_dtype`.
    """
    path = folder / LAYOUT
    described = read_json(path)
    try:
        shapes = {name: tuple(shape) for name, _, shape in described}
        widths = {name: shapes[name][0] for name in STATES if name in shapes}
        images = shapes.get("images")
        dtype = record_dtype(widths, shapes["action"][0], images)
        if _described(dtype) == described and (images is None or (len(images) == 4 and images[3] == 3)):
            return dtype
    except (KeyError, TypeError, ValueError, IndexError):
        pass  # said below
    raise DataError(f"{path}: expected the layout of a replay's records, found {described!s:.200}")


def read(folder: Path) -> Records:
    """Every record of a log, for those who only look at it. Raises DataError as `read_layout`.

    Args:
      folder: `<run>/replay`, or of a run with several environments that of one, `<run>/replay/env_0001`.
    """
    dtype = read_layout(folder)
    count = (folder / FRAMES).stat().st_size // dtype.itemsize
    return np.fromfile(folder / FRAMES, dtype, count)


class Log:
    """The file. Records wait in memory until `sync` writes them and forces them to disk; a checksum runs along."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.path, self._dtype = folder / FRAMES, dtype
        self._waiting: list[bytes] = []
        self.rows = 0
        self.crc32 = 0

    def open(self, rows: int, crc32: int) -> Records:
        """Cuts the log to `rows` records, and returns them.

        Raises:
          DataError: There are fewer, or they are not those whose checksum is `crc32`.
        """
        make_folders(self.path.parent)
        write_json(self.path.parent / LAYOUT, _described(self._dtype), indent=None)
        self.rows = self.crc32 = 0
        records = self.follow(rows, crc32)
        with open(self.path, "ab") as file:
            file.truncate(rows * self._dtype.itemsize)
        sync_folder(self.path.parent)  # `sync` forces out what is in the file, not its name
        return records

    def follow(self, rows: int, crc32: int) -> Records:
        """Reads on to `rows` records, and returns those that are new here; writes nothing.

        Raises:
          DataError: As `open`.
        """
        size, found = rows * self._dtype.itemsize, 0
        records = np.empty(0, self._dtype)
        # Nobody looks for another's file before it is there, nor asks for its size without opening it: a network's file
        # system may go on saying what it said before.
        if rows > self.rows:
            with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
                found = os.fstat(file.fileno()).st_size
                records = np.fromfile(file, self._dtype, rows - self.rows, offset=self.rows * self._dtype.itemsize)
            if found < size:
                raise DataError(
                    f"{self.path}: expected {rows} records ({size} bytes), as when the checkpoint was made, found "
                    f"{found} bytes. {_OTHERWISE}"
                )
        in_bytes: Any = records.view(np.uint8)
        self.rows, self.crc32 = rows, zlib.crc32(in_bytes, self.crc32)
        if self.crc32 != crc32:
            raise DataError(
                f"{self.path}: the checksum of {rows} records is {self.crc32}, {crc32} when the checkpoint was made: "
                f"it is damaged. {_OTHERWISE}"
            )
        return records

    def append(self, records: Records) -> None:
        """Adds records at the end."""
        data = records.tobytes()
        self._waiting.append(data)
        self.rows += len(records)
        self.crc32 = zlib.crc32(data, self.crc32)

    def sync(self) -> None:
        """Writes what waits, and forces it to disk."""
        waiting = len(self._waiting)  # the main thread may append while the watching one forces these to disk
        if not waiting:
            return
        with open(self.path, "ab") as file:
            file.write(b"".join(self._waiting[:waiting]))
            file.flush()
            os.fsync(file.fileno())
        del self._waiting[:waiting]


class Replay:
    """Online transitions in memory. Every step whose chunk is known is a start, in the order of time.

    A chunk is known when its last step was taken, or when its episode is over; then it is cut and padded as a
    `qchunk.data.Pool` cuts it: past the end the last action repeats, rewards stop, `valid` is 0. So no chunk crosses
    from one episode into the next, nor reaches past what has happened. A time limit ends an episode and is no
    termination: its chunks bootstrap from the frame after the last step.
    """

    def __init__(self, config: QChunkConfig, dataset: Dataset, capacity: int) -> None:
        """Takes the memory, which the system hands over only as it is filled.

        Args:
          config: Of the run.
          dataset: Its normalisations are applied to what comes in, its widths are expected.
          capacity: Environment steps in all.
        """
        self._config, self._dataset, self.capacity = config, dataset, capacity
        widths = {name: dataset.source.dims[name] for name in STATES if name in dataset.source.dims}
        image_shape = None if dataset.image_size is None else (len(dataset.cameras), *dataset.image_size, 3)
        self.dtype = record_dtype(widths, dataset.source.dims["action"], image_shape)
        rows, horizon = 2 * capacity + 1, config.agent.horizon  # an episode has one frame more than steps
        # By frame: what is seen, and the step taken there.
        self._states = {name: np.empty((rows, width), np.float32) for name, width in widths.items()}
        self._images: list[UInt8[np.ndarray, "k h w 3"]] | None = None if image_shape is None else []
        self._actions = np.empty((rows, dataset.source.dims["action"]), np.float32)
        self._reward = np.empty(rows, np.float64)
        self._terminated, self._positive = np.zeros(rows, bool), np.zeros(rows, bool)
        # By frame too, where a chunk starts: as in the pool.
        self._returns = np.empty((rows, horizon), np.float32)
        self._real, self._alive, self._open = (np.empty(rows, np.int64) for _ in range(3))
        self._row_of_start = np.empty(capacity, np.int64)
        self._rows = self._episode_row = self._undrawn_row = 0
        self.steps = 0
        """Transitions so far."""
        self.starts = 0
        """Chunks that may be drawn: the first so many steps start one each."""
        self.episodes = 0
        """Episodes begun."""
        self.over = True
        """Whether the last episode has ended."""
        self._steps_f32 = first_steps(horizon).astype(np.float32)
        self._steps_after = ~first_steps(horizon)

    def extend(self, records: Records) -> None:
        """Takes in records, one or many: what lies in memory afterwards does not depend on how they were divided."""
        edges = {0, *np.flatnonzero(records["first"]).tolist(), len(records)}
        for begin, end in itertools.pairwise(sorted(edges)):
            self._extend_episode(records[begin:end])

    def _extend_episode(self, records: Records) -> None:
        """Records of one episode."""
        steps = records
        if records["first"][0]:
            assert self.over, "an episode begins before the last one ended"
            self._episode_row = self._undrawn_row = self._rows
            self.episodes += 1
            steps = records[1:]
        seen = self._config.data.observation
        rows = slice(self._rows, self._rows + len(records))
        for name, array in self._states.items():
            array[rows] = self._dataset.observation_norm.apply(records[name]) if name == seen else records[name]
        if self._images is not None:
            self._images.extend(records["images"])
        self._rows = rows.stop
        taken = slice(self._rows - 1 - len(steps), self._rows - 1)  # the frames at which these steps were taken
        self._actions[taken] = self._dataset.action_norm.apply(steps["action"])
        self._reward[taken], self._terminated[taken] = steps["reward"], steps["terminated"]
        self._positive[taken] = self._positive[self._episode_row] if taken.start > self._episode_row else False
        if steps["success"].any():
            self._positive[self._episode_row : taken.stop] = True
        self._row_of_start[self.steps : self.steps + len(steps)] = np.arange(taken.start, taken.stop)
        self.steps += len(steps)
        self.over = bool(len(steps)) and bool(steps["terminated"][-1] or steps["truncated"][-1])
        self._complete()

    def _complete(self) -> None:
        """Makes drawable every start of this episode whose chunk is known by now."""
        horizon, first, end = self._config.agent.horizon, self._undrawn_row, self._rows - 1
        last = end if self.over else max(first, end - horizon + 1)
        count = last - first
        if not count:
            return
        alive = steps_to_termination(self._terminated[first:end])
        returns = chunk_returns(self._reward[first:end], alive, horizon=horizon, discount=self._config.agent.discount)
        real, alive, ready = end - np.arange(first, last), alive[:count], slice(first, last)
        self._returns[ready] = returns[:count]
        self._real[ready] = np.minimum(real, horizon)
        self._alive[ready] = np.minimum(alive, horizon)
        # The last frame of an episode is not known before the episode is over.
        self._open[ready] = np.minimum(np.minimum(alive, real - 1) if self.over else alive, horizon)
        self._undrawn_row = last
        self.starts += count

    def gather(self, starts: Int64[np.ndarray, " b"]) -> Batch:
        """The chunks that begin at these steps, counted over all episodes; every array is new.

        Args:
          starts: In [0, self.starts).
        """
        rows = self._row_of_start.take(starts)
        real = self._real.take(rows)
        steps = np.minimum(np.arange(self._config.agent.horizon)[None, :], real[:, None] - 1)
        rewards = self._returns.take(rows, axis=0)
        return {
            "observations": self._observations(rows),
            "next_observations": self._observations(rows + real),
            "actions": self._actions.take(rows[:, None] + steps, axis=0),
            "rewards": rewards,
            "masks": self._steps_f32.take(self._alive.take(rows), axis=0),
            "valid": self._steps_f32.take(real, axis=0),
            "terminals": self._steps_after.take(self._open.take(rows), axis=0),
            "is_positive": self._positive.take(rows),
            "final_reward": rewards[:, -1].copy(),
        }

    def _observations(self, rows: Int64[np.ndarray, " b"]) -> Observations:
        def taken(name: str) -> Float32[np.ndarray, "b s"] | None:
            return self._states[name].take(rows, axis=0) if name in self._states else None

        qpos: Any = taken("qpos")
        images = None if self._images is None else np.stack([self._images[row] for row in rows])
        return {"qpos": qpos, "state": taken("state"), "images": images, "depth_images": None}

    def unfinished(self, records: Records) -> Records:
        """Those of all the log's records that belong to the episode under way; none if it is over."""
        return records[len(records) :] if self.over else records[self._episode_row :]


def gather(replays: Sequence[Replay], starts: Int64[np.ndarray, " b"]) -> Batch:
    """The chunks that begin at these steps, counted over one replay after the other.

    Args:
      replays: Of each environment.
      starts: In [0, sum of their starts).
    """
    ends = np.cumsum([replay.starts for replay in replays])
    whose = np.searchsorted(ends, starts, side="right")
    parts = {
        number: replays[number].gather(starts[whose == number] - (ends[number] - replays[number].starts))
        for number in np.unique(whose).tolist()
    }
    places = np.argsort(np.argsort(whose, kind="stable"))  # of each row among the parts
    return _rows_of(list(parts.values()), places)


def _rows_of(parts: Sequence[Any], places: Int64[np.ndarray, " b"]) -> Any:
    """Batches put together, key by key, and of that the rows at these places."""
    if isinstance(parts[0], dict):
        return {key: _rows_of([part[key] for part in parts], places) for key in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)[places]
