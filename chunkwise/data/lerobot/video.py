"""The images of a LeRobot dataset: frames of mp4 files by time, and images kept in the tables or beside them."""

import bisect
import collections
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import UInt8

from chunkwise.data.images import decode, orientation, require_pixels, require_upright
from chunkwise.data.lerobot.meta import DEFAULT_IMAGE_PATH, EpisodeMeta, LeRobotMeta, meta_files
from chunkwise.data.problems import Problem
from chunkwise.errors import DataError, one_line
from chunkwise.files import budget
from chunkwise.files.identity import Files
from chunkwise.files.mp4 import require_plain_tables
from chunkwise.files.parquet import iter_batches, open_parquet, read_columns
from chunkwise.files.trouble import TRIES, is_system_error, retried

OPEN_FILES = 16
"""Video files kept open, each with its decoder (about 10 MB at 480 x 640)."""
HEAD = 1 << 16
"""Bytes of an image in which its EXIF data begin: the largest segment of a JPEG."""
TABLES = 65_536
"""Tables whose layout is remembered; LeRobot 2.1 writes one an episode."""
IMAGE_BYTES = 1 << 29
"""Encoded images that are kept in memory, by whole row groups. Rows are drawn at random: where a dataset is larger, a
row group is read and thrown away for nearly every image, and a pack is many times faster."""
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
"""Containers that are videos themselves. Others, such as playlists, name further files, and those would be read."""

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


class _Cache(Generic[_Key, _Item]):
    """The items used last, made on demand; an item that is dropped lives on while a thread still uses it."""

    def __init__(self, room: int, make: Callable[[_Key], _Item], size: Callable[[_Item], int] = lambda _: 1) -> None:
        """Keeps items whose sizes sum to no more than `room`, and the newest in any case."""
        self._room = room
        self._make = make
        self._size = size
        self._used = 0
        self._items: collections.OrderedDict[_Key, _Item] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Item:
        with self._lock:
            if key not in self._items:
                self._items[key] = self._make(key)
                self._used += self._size(self._items[key])
                while self._used > self._room and len(self._items) > 1:
                    self._used -= self._size(self._items.popitem(last=False)[1])
            self._items.move_to_end(key)
            return self._items[key]


class VideoFile:
    """One mp4: frames by time, exact to the frame. Reading forwards decodes on; a jump seeks to the keyframe before.

    Raises:
      DataError: If the file is missing, is no video, or costs more than a limit.
    """

    def __init__(self, path: Path) -> None:
        import av  # 0.15 s, and a pack never needs it

        self.path = path
        self._lock = threading.Lock()
        try:
            require_plain_tables(path)
            self._container = av.open(str(path), container_options={"format_whitelist": _FORMATS})
            self._stream = self._container.streams.video[0]
            codec = self._stream.codec_context
            if codec is None:
                raise ValueError("a codec that there is no decoder for")
            self.size = codec.height, codec.width
            require_pixels(*self.size, str(path))
            # A stream may change its size on the way: the decoder itself is told the limit.
            codec.options = {"max_pixels": str(budget.current().image_pixels)}
            packets = self._packets()
        except FileNotFoundError as error:
            raise DataError(f"{path}: expected a video, found no such file") from error
        except (OSError, IndexError, ValueError, EOFError) as error:  # av's errors are one of them
            raise DataError(f"{path}: expected a video, found {error}") from error
        self._stream.thread_type = "AUTO"
        self._pts = sorted(pts for pts, _ in packets)
        self._keys = sorted(pts for pts, key in packets if key)
        self._frames: Iterator[Any] = iter(())
        self._position = -1  # index of the frame decoded last
        self._seconds = np.array(self._pts, np.float64) * float(self._stream.time_base or 0)

    def __len__(self) -> int:
        return len(self._pts)

    def _packets(self) -> list[tuple[int, bool]]:
        """Time stamp of each packet, and whether it is a key frame."""
        clock, packets = budget.Clock(str(self.path)), []
        for packet in self._container.demux(self._stream):
            if packet.pts is not None:
                packets.append((packet.pts, packet.is_keyframe))
            if not len(packets) % 1024:
                clock.check()
                budget.require("video_frames", len(packets), str(self.path))
        budget.require("video_frames", len(packets), str(self.path))
        return packets

    def require_size(self, shape: Sequence[int]) -> None:
        """Compares the size with that of info.json, before any frame is decoded.

        Args:
          shape: Of the feature: [height, width, channels] or [channels, height, width]; others are not compared.

        Raises:
          DataError: They differ.
        """
        if len(shape) == 3 and self.size not in (tuple(shape[:2]), tuple(shape[1:])):
            raise DataError(
                f"{self.path}: expected frames of shape {list(shape)} as info.json says, found {self.size[0]} x "
                f"{self.size[1]}"
            )

    def nearest(self, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Index of the frame nearest to each time, and its distance in seconds (infinite in an empty video)."""
        if not self._pts:
            return np.zeros(len(seconds), np.int64), np.full(len(seconds), np.inf)
        after = np.clip(np.searchsorted(self._seconds, seconds), 1 if len(self) > 1 else 0, len(self) - 1)
        before = np.maximum(after - 1, 0)
        closer = np.where(seconds - self._seconds[before] < self._seconds[after] - seconds, before, after)
        return closer, np.abs(self._seconds[closer] - seconds)

    def frame_at(self, seconds: float, tolerance_s: float) -> UInt8[np.ndarray, "h w 3"]:
        """The frame shown at a time.

        Raises:
          DataError: If no frame lies within `tolerance_s`, or the data are damaged there.
        """
        index, distance = (values[0] for values in self.nearest(np.array([seconds])))
        if distance > tolerance_s:
            raise DataError(
                f"{self.path}: expected a frame at {seconds:.4f} s within {tolerance_s:g} s, found the nearest "
                f"{distance:.4f} s away among {len(self)} frames"
            )
        with self._lock:
            return self._decode(int(index))

    def _decode(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        import av.error

        key = bisect.bisect_right(self._keys, self._pts[index]) - 1
        key_index = bisect.bisect_left(self._pts, self._keys[key]) if key >= 0 else 0
        words = f"{self.size[0]} x {self.size[1]}"
        seeks = [None] if self._position < index and key_index <= self._position + 1 else []
        seeks += [self._pts[key_index], self._pts[0]]  # an index that misleads is read from the start
        try:
            for seek in seeks:
                if seek is not None:
                    self._container.seek(seek, stream=self._stream, backward=True)
                    self._frames = self._container.decode(self._stream)
                for frame in self._frames:
                    if (frame.height, frame.width) != self.size:
                        raise ValueError(f"a frame of {frame.height} x {frame.width} in a video of {words}")
                    if frame.pts is None or frame.pts < self._pts[index]:
                        continue
                    if frame.pts == self._pts[index]:
                        self._position = index
                        return frame.to_ndarray(format="rgb24")
                    break
        except (av.error.FFmpegError, OSError, ValueError, EOFError) as error:
            self._position = -1
            self._frames = iter(())
            raise DataError(f"{self.path}: expected a whole frame {index}, found damaged data: {error}") from error
        self._position = -1
        raise DataError(f"{self.path}: expected to decode frame {index} of {len(self)}, found none at its time stamp")


class _Table(NamedTuple):
    """What a parquet file holds, and the row at which each of its row groups begins."""

    columns: frozenset[str]
    starts: list[int]


def _read_layout(path: Path) -> _Table:
    with open_parquet(path) as file:
        rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return _Table(frozenset(file.schema_arrow.names), [0, *itertools.accumulate(rows)])


class LeRobotImages:
    """Reads the cameras of any frame of a dataset; safe to call from several threads.

    Args:
      meta: The opened dataset.
      cameras: Camera keys to read.
      files: The dataset's, as it was opened; one that changed since is an error when it is read. None: not compared.
    """

    def __init__(
        self, meta: LeRobotMeta, cameras: Sequence[str], *, files: Files | None = None, upright: bool = True
    ) -> None:
        """Opens nothing yet.

        Args:
          meta: Of the dataset.
          cameras: Whose images are read.
          files: As they were when the dataset was opened; None: they are not compared.
          upright: Refuses images that their EXIF tag turns, which LeRobot's own reader does; else `turned` names them.

        Raises:
          DataError: The dataset has no such camera.
        """
        self._upright = upright
        self.turned: dict[str, str] = {}
        """Of each camera the first such image that was read, in words."""
        self.meta = meta
        self._files = files
        self.cameras = tuple(cameras)
        self._tolerance_s = meta.tolerance_s
        self._videos: _Cache[Path, VideoFile] = _Cache(OPEN_FILES, VideoFile)
        self._tables: _Cache[str, _Table] = _Cache(TABLES, lambda file: _read_layout(meta.bounds.require(file)))
        self._groups: _Cache[tuple[str, str, int], pa.Array] = _Cache(
            IMAGE_BYTES, self._read_group, lambda images: images.nbytes
        )
        self._first_row: dict[int, int] = {}
        for _, group in itertools.groupby(meta.episodes, key=lambda episode: episode.file):
            row = 0
            for episode in group:
                self._first_row[episode.index] = row
                row += episode.length
        for camera in self.cameras:
            if meta.feature(camera).dtype not in ("image", "video"):
                found = f"dtype {meta.feature(camera).dtype}; its cameras are {list(meta.cameras)}"
                raise DataError(f"{meta.root}: expected {camera!r} to be a camera, found {found}")

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """All cameras of one frame, at the size they were recorded.

        Raises:
          DataError: If an image is missing or damaged; names episode, camera and frame.
        """
        file = self.meta.episodes[episode]

        def read() -> dict[str, UInt8[np.ndarray, "h w 3"]]:
            return {camera: self._read_camera(file, frame, camera) for camera in self.cameras}

        try:
            return retried(read, again=is_system_error)
        except (OSError, pa.ArrowException) as error:  # pyarrow's damaged page is both
            where = f"{self.meta.root}: episode {episode}, {file.file}, row {frame}"
            found = f"{one_line(error)} in up to {TRIES} tries"
            raise DataError(f"{where}: expected images of {list(self.cameras)}, found {found}") from error

    def check(self, episode: int, *, last: bool = False) -> list[Problem]:
        """What is wrong with an episode's images, as far as it shows without decoding them.

        Of a video: the file, and a frame at the time of every row. Of images: the first and the last one. With `last`
        the last frame of each video is decoded as well.
        """
        meta = self.meta.episodes[episode]
        problems = []
        for camera in self.cameras:
            try:
                problems.extend(self._check_camera(meta, camera))
                if last and not problems and camera in meta.videos:
                    self._read_camera(meta, meta.length - 1, camera)
            except (DataError, OSError, pa.ArrowException) as error:
                file = meta.videos[camera].file if camera in meta.videos else meta.file
                found = one_line(error)
                problems.append(Problem(file=file, episode=episode, key=camera, expected="images", found=found))
        return problems

    def _check_camera(self, episode: EpisodeMeta, camera: str) -> list[Problem]:
        where = {"episode": episode.index, "key": camera}
        if camera in episode.videos:
            span = episode.videos[camera]
            video = self._video(span.file, camera)
            index, distance = video.nearest(span.start_s + np.arange(episode.length) / self.meta.fps)
            good = distance <= self._tolerance_s
            if good.all() and len(np.unique(index)) == episode.length:
                return []
            expected = f"{episode.length} frames from {span.start_s:.3f} s on at {self.meta.fps:g} fps"
            found = f"{int(good.sum())} of them among the {len(video)} frames of the video"
            return [Problem(file=span.file, expected=expected, found=found, row=int(np.argmin(good)), **where)]
        for frame in (0, episode.length - 1):
            try:
                self._image_bytes(episode, frame, camera)
            except DataError as error:
                return [Problem(file=episode.file, expected="an image", found=str(error), row=frame, **where)]
        return []

    def _read_camera(self, episode: EpisodeMeta, frame: int, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        source = f"episode {episode.index}, {camera}, row {frame}"
        if camera not in episode.videos:
            return decode(self._image_bytes(episode, frame, camera), source=f"{self.meta.root}: {source}")
        span = episode.videos[camera]
        try:
            video = self._video(span.file, camera)
            shown = video.frame_at(span.start_s + frame / self.meta.fps, self._tolerance_s)
            self._require_unchanged(span.file)
            return shown
        except DataError as error:
            self._require_unchanged(span.file)  # what was changed is named as that, and not as damaged
            raise DataError(f"{source}: {error}") from error

    def _video(self, file: str, camera: str) -> VideoFile:
        video = self._videos.get(self.meta.bounds.require(file))
        video.require_size(self.meta.feature(camera).shape)
        return video

    def _image_bytes(self, episode: EpisodeMeta, frame: int, camera: str) -> bytes:
        """The encoded image; its pixels lie upright where that is asked for."""
        data = self._stored_bytes(episode, frame, camera)
        where = f"episode {episode.index}, {camera}, row {frame}"
        if self._upright:
            require_upright(data[:HEAD], where)
        elif (found := orientation(data[:HEAD])) > 1:
            self.turned.setdefault(camera, f"{where}: EXIF orientation {found}")
        return data

    def _stored_bytes(self, episode: EpisodeMeta, frame: int, camera: str) -> bytes:
        """The encoded image: inside the table's row, or in the file that the row or the v2.1 layout names."""
        table = self._tables.get(episode.file)
        name = DEFAULT_IMAGE_PATH.format(image_key=camera, episode_index=episode.index, frame_index=frame)
        if camera in table.columns:
            row = self._first_row[episode.index] + frame
            group = bisect.bisect_right(table.starts, row) - 1
            value = self._groups.get((episode.file, camera, group))[row - table.starts[group]].as_py()
            if not isinstance(value, Mapping) or not {"bytes", "path"} <= set(value):
                raise DataError(f"episode {episode.index}, row {frame}: expected bytes or a path, found {value!r:.80}")
            if value["bytes"] is not None:
                return value["bytes"]
            name = value["path"] or name
        path = self.meta.bounds.require(name)
        if not path.exists():
            raise DataError(f"episode {episode.index}, {camera}, row {frame}: expected the image {name}, found no file")
        data = budget.read_bytes(path, "image_mib")
        self._require_unchanged(name)
        return data

    def _require_unchanged(self, name: str) -> None:
        """Raises DataError if a file is not what it was when the dataset was opened."""
        if self._files is not None and name in self._files:
            self._files.require_unchanged(self._files.place(name))

    def _read_group(self, key: tuple[str, str, int]) -> pa.Array:
        file, camera, group = key
        path = self.meta.bounds.require(file)
        with open_parquet(path) as table:
            images = read_columns(path, table, [camera], groups=[group])[camera].combine_chunks()
            self._require_unchanged(file)
            return images.chunk(0) if isinstance(images, pa.ChunkedArray) else images


def file_names(meta: LeRobotMeta, cameras: Sequence[str]) -> Iterator[str]:
    """Names of all files that a dataset is read from: meta/, tables, and the videos and images of some cameras.

    A table or a video that cannot be read is named; what is in it is not.
    """
    yield from meta_files(meta)
    yield from dict.fromkeys(episode.file for episode in meta.episodes)
    for camera in cameras:
        yield from (episode.videos[camera].file for episode in meta.episodes if camera in episode.videos)
    images = [camera for camera in cameras if camera in meta.features and meta.features[camera].dtype == "image"]
    layouts: dict[str, frozenset[str]] = {}
    for episode in meta.episodes if images else ():
        if episode.file not in layouts:
            try:
                layouts[episode.file] = _read_layout(meta.bounds.require(episode.file)).columns
            except (DataError, OSError, pa.ArrowException):  # a reader says more of it
                layouts[episode.file] = frozenset(images)
            yield from _named_in_table(meta, episode.file, [c for c in images if c in layouts[episode.file]])
        for camera in images:
            if camera not in layouts[episode.file]:
                for frame in range(episode.length):
                    yield DEFAULT_IMAGE_PATH.format(image_key=camera, episode_index=episode.index, frame_index=frame)


def _named_in_table(meta: LeRobotMeta, file: str, cameras: Sequence[str]) -> Iterator[str]:
    """Images that a table names and does not hold, as far as their files exist inside the dataset."""
    for camera in cameras:
        named: list[Any] = []
        try:
            path = meta.bounds.require(file)
            with open_parquet(path) as table:
                for batch in iter_batches(path, table, [f"{camera}.path"]):  # without the images that are in the table
                    named += [value for column in batch.columns for value in column.to_pylist()]
        except (DataError, OSError, pa.ArrowException):
            continue
        for value in named:
            name = value.get("path") if isinstance(value, Mapping) else None
            if isinstance(name, str) and meta.bounds.refusal(name) is None and (meta.root / name).is_file():
                yield name
