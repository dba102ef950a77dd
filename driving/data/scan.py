"""From the JSON files of a dataset to its index: each file parsed once, each image's header looked at."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from chunkwise.data.images import read_image_size, require_eight_bits, require_upright
from chunkwise.data.problems import Problem
from chunkwise.data.walking import crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError, RunError
from chunkwise.files import budget, cache
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.printable import printable
from driving.data.episodes import Episode, episode_names, examine, image_name, iter_images
from driving.data.history import COLUMNS, History
from driving.data.index import ABSENT, PRESENT, Index, concatenate, pack, unpack, without_empty_cameras
from driving.data.rater import Rated

CACHED, LAST = "driving-4", "driving-4-last"
"""In the cache: indexes by content, and which of them is a folder's newest. Earlier versions' know or refuse less."""
HEAD_BYTES = 1 << 16
"""Bytes of each image that its hash covers, beside its size: the whole of a JPEG at training size."""
TAIL_BYTES = 1 << 10
"""Where the end marker of an image must be; one that is cut short has none. Damage elsewhere is found on decoding."""
MAX_HEADER_BYTES = 1 << 24
WORKER_BYTES = 8_000_000
"""Of JSON that a process is started for: with its images over a second's work, which is twice what the start takes."""
END_MARKERS = (b"\xff\xd9", b"IEND")


def scan(root: Path, files: Files | None = None, hands: Hands | None = None) -> tuple[Index | None, list[Problem]]:
    """The index of a dataset's good episodes (None if there is none), and what is wrong with the others.

    Episodes that the cache knows, and none of whose files has another content than then, are not parsed again.

    Args:
      root: Folder of episodes, or the only one.
      files: Takes in the dataset's files: every JSON, and every image that one names.
      hands: By how many processes, at most, and where; what is found does not depend on it.

    Raises:
      DataError: If the folder is missing or holds no episode, or links lead out of it.
      RunError: As `walk`.
    """
    files, hands = Files(Bounds(root)) if files is None else files, hands or Hands()
    names = episode_names(root, files.bounds)
    files.require(names)
    contents = hashlib.sha256(repr([(name, files.hash(name)) for name in names]).encode()).hexdigest()
    known = _known(root, contents)
    same = _same(known, names, files)
    if known is not None and all(same) and len(names) == len(known.index.files):
        _point(root, contents[:32])
        return known.index, []
    parts: list[Index] = []
    shown: list[str] = []
    problems: list[Problem] = []
    drives = _Drives(names=[name for name, unchanged in zip(names, same, strict=True) if not unchanged], files=files)
    with files.saved_once(), contextlib.closing(walk(drives, drives.shared_by(hands))) as looked_at:
        for name, unchanged in zip(names, same, strict=True):
            if known is not None and unchanged:
                episode = known.index.files.index(name)
                parts.append(known.index.one(episode))
                shown.append(known.shown[episode])
                continue
            part, found, apart = next(looked_at)
            if apart is None or not files.join(apart):  # it cannot be told there, or not beside other drives
                part, found = scan_file(Path(files.bounds.path(name)), files.bounds.root, files=files)
            problems += found
            if part is not None:
                parts.append(part)
                shown.append(_shown(part, 0, files))
    if not parts:
        return None, problems
    index = concatenate(parts)
    _keep(root, contents, Known(index=index, shown=tuple(shown)))
    return index, problems


_LookedAt = tuple[Index | None, list[Problem], Files | None]
"""As of `scan_file`, and the files of the drive; without them, the process that asked has to look itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Drives:
    """Drives that are to be parsed."""

    names: Sequence[str]
    files: Files
    """That have all of them, but none of their images."""

    def __len__(self) -> int:
        return len(self.names)

    def shared_by(self, hands: Hands) -> Hands:
        """Hands of which each has enough to do."""
        if hands.is_alone:
            return hands
        worth = sum(self.files.size(name) for name in self.names) // WORKER_BYTES
        workers = worth if hands.workers is None else min(worth, hands.workers)
        return dataclasses.replace(hands, workers=workers) if worth > 1 else Hands()

    def open(self) -> Callable[[int], _LookedAt]:
        return self._look_at

    def _look_at(self, number: int) -> _LookedAt:
        name, files = self.names[number], self.files.apart()
        try:
            return *scan_file(Path(files.bounds.path(name)), files.bounds.root, files=files), files
        except RunError:  # raised by the process that asked, when it is this drive's turn
            return None, [], None

    def crashed(self, number: int, found: str) -> _LookedAt:
        return None, [crash(self.files.bounds.path(self.names[number]), found)], self.files.apart()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What the cache knows of a dataset."""

    index: Index
    shown: tuple[str, ...]
    """Of each episode the hash of its images' names and contents."""


def _same(known: Known | None, names: Sequence[str], files: Files) -> list[bool]:
    """Whether each episode is what it was when it was indexed: its JSON, and every image, those absent as well.

    The names of the images are looked at as if they were new: a cache is not asked where they lead.
    """
    if known is None:
        return [False] * len(names)
    index = known.index
    place = {name: episode for episode, name in enumerate(index.files)}
    candidates = {
        name: place[name] for name in names if name in place and index.content_hashes[place[name]] == files.hash(name)
    }
    images = [name for episode in candidates.values() for name in index.paths(episode)]
    refused = files.add(images)
    return [
        name in candidates
        and not any(path in refused for path in index.paths(candidates[name]))
        and known.shown[candidates[name]] == _shown(index, candidates[name], files)
        for name in names
    ]


def _shown(index: Index, episode: int, files: Files) -> str:
    """Hash of the names and contents of an episode's images."""
    digest = hashlib.sha256()
    for name in index.paths(episode):
        digest.update(f"{name} {files.hash(name)}\n".encode())
    return digest.hexdigest()


def _known(root: Path, contents: str) -> Known | None:
    """The index of exactly these JSON files, wherever they lie, or else the newest that was made of this folder."""
    last = cache.read(LAST, cache.key_of(root))
    for key in (contents[:32], None if last is None else last.decode(errors="replace")):
        content = None if key is None or not key.isalnum() else cache.read(CACHED, key)
        if content is None:
            continue
        with contextlib.suppress(DataError, ValueError, AttributeError, RecursionError):
            head, _, arrays = content.partition(b"\n")
            shown = tuple(json.loads(head))
            index = without_empty_cameras(unpack(arrays, source="the cache of indexes"))  # earlier versions kept them
            if len(shown) == len(index.files) and all(isinstance(one, str) for one in shown):
                return Known(index=index, shown=shown)
    return None


def _keep(root: Path, contents: str, known: Known) -> None:
    key = contents[:32]
    cache.write(CACHED, key, json.dumps(known.shown).encode() + b"\n" + pack(known.index))
    _point(root, key)


def _point(root: Path, key: str) -> None:
    """Notes which index is a folder's newest: where one episode changes, the others are taken from it."""
    if cache.read(LAST, cache.key_of(root)) != key.encode():
        cache.write(LAST, cache.key_of(root), key.encode())


def scan_file(file: Path, base: Path, *, files: Files | None = None) -> tuple[Index | None, list[Problem]]:
    """The index of one episode file, or the problems for which it is refused.

    Args:
      file: The JSON.
      base: The dataset's folder.
      files: Takes in the JSON and the images; by default they are read anew, and nothing is remembered of them.
    """
    files = Files(Bounds(base), remember=False) if files is None else files
    name = files.bounds.relative(file)
    refused = files.add([name])
    episode, problems = examine(file)
    if episode is None or refused:
        outside = [Problem(file=str(file), expected="a file of the dataset", found=why) for why in refused.values()]
        return None, problems + outside
    return of_episode(episode, name=name, files=files)


def of_episode(episode: Episode, *, name: str, files: Files) -> tuple[Index | None, list[Problem]]:
    """The index of one episode; looks at the header of every image, and takes it into `files`.

    Args:
      episode: As parsed.
      name: Of the episode's JSON file, which `files` has.
      files: Of the dataset; nothing outside it is read.

    Returns:
      The index, or the problems for which the episode is refused. A named image whose file is absent is none.
    """
    file = str(files.bounds.path(name))
    size = (len(episode.t), len(episode.cameras))
    image_status, sizes = np.zeros(size, np.uint8), np.zeros((*size, 2), np.int32)
    named = {(i, k): (path, *image_name(name, path)) for i, k, path in iter_images(episode)}
    refused = files.add([found for _, found, why in named.values() if not why])
    paths: dict[tuple[int, int], bytes] = {}
    digest = hashlib.sha256()
    problems: list[Problem] = []
    for (i, k), (path, found, why) in named.items():
        key = f"frames[{i}].observations.cameras.{episode.cameras[k]}.image_path"
        if why := why or refused.get(found, ""):
            problems.append(Problem(file=file, key=key, expected="a path inside the dataset", found=f"{why}: {path}"))
            continue
        paths[i, k] = found.encode()
        try:
            sizes[i, k], content = _look_at(files.bounds.path(found))
            digest.update(f"{i} {episode.cameras[k]} ".encode() + content)
            image_status[i, k] = PRESENT
            files.require_unchanged(files.place(found))
        except FileNotFoundError:
            image_status[i, k] = ABSENT
        except (OSError, DataError) as error:
            text = str(error).removeprefix(printable(f"{files.bounds.path(found)}: "))
            problems.append(Problem(file=file, key=key, expected="a readable image", found=f"{path}: {text}"))
    problems += size_problems(episode.cameras, sizes, file)
    if problems:
        return None, problems
    for array in (episode.t, episode.pose, episode.speed_mps):
        digest.update(array.tobytes())
    return _from_arrays(episode, name, files.hash(name) or "", image_status, sizes, paths, digest.hexdigest()), []


def _look_at(file: str) -> tuple[tuple[int, int], bytes]:
    """Height and width of an image, and bytes that stand for its content.

    Raises:
      OSError: If it cannot be read.
      DataError: If it is no regular file, no image, cut short, or stored in another orientation than it is shown in.
    """
    with budget.open_file(file) as handle:
        status = os.fstat(handle.fileno())
        budget.require("image_mib", status.st_size, file)
        head = tail = handle.read(HEAD_BYTES)
        if len(head) < status.st_size:
            handle.seek(max(status.st_size - TAIL_BYTES, 0))
            tail = handle.read()
        try:
            size = read_image_size(head, source=file)
        except DataError:  # perhaps a preview of more than HEAD_BYTES comes first
            handle.seek(0)
            size = read_image_size(handle.read(MAX_HEADER_BYTES), source=file)
    if not any(marker in tail[-TAIL_BYTES:] for marker in END_MARKERS):
        raise DataError(
            f"expected the end marker of an image in its last KiB, found none in {status.st_size} bytes: cut short"
        )
    require_upright(head, file)
    require_eight_bits(head, file)
    return size, f"{status.st_size}\n".encode() + head


def size_problems(cameras: Sequence[str], sizes: Int32[np.ndarray, "T k 2"], file: str) -> list[Problem]:
    """Cameras whose images differ in size inside one episode."""
    problems = []
    for k, camera in enumerate(cameras):
        seen, first = np.unique(sizes[:, k][sizes[:, k].any(1)], axis=0, return_index=True)
        if len(seen) > 1:
            found = " and ".join(f"{height} x {width}" for height, width in seen[np.argsort(first)].tolist())
            key = f"frames[*].observations.cameras.{camera}"
            problems.append(Problem(file=file, key=key, expected="images of one size (height x width)", found=found))
    return problems


def _from_arrays(
    episode: Episode,
    name: str,
    content: str,
    image_status: UInt8[np.ndarray, "T k"],
    sizes: Int32[np.ndarray, "T k 2"],
    paths: Mapping[tuple[int, int], bytes],
    drive_hash: str,
) -> Index:
    path_lengths = np.zeros(image_status.shape, np.int32)
    for place, path in paths.items():
        path_lengths[place] = len(path)
    both = np.concatenate([episode.intrinsics.reshape(-1, 9), episode.extrinsics.reshape(-1, 16)], axis=1)
    known = np.isfinite(both).all(1)
    unique, inverse = np.unique(both[known], axis=0, return_inverse=True)
    calibration = np.full(len(both), -1, np.int32)
    calibration[known] = inverse.reshape(-1)
    return Index(
        cameras=episode.cameras,
        files=(name,),
        ids=(episode.id,),
        recordings=(episode.recording,),
        content_hashes=(content,),
        drive_hashes=(drive_hash,),
        lengths=np.array([len(episode.t)], np.int64),
        t=episode.t,
        pose=episode.pose,
        speed_mps=episode.speed_mps,
        yaw_rate_radps=episode.yaw_rate_radps,
        route_command=episode.route_command,
        image_status=image_status,
        image_size=sizes,
        path_bytes=np.frombuffer(b"".join(paths[place] for place in sorted(paths)), np.uint8),
        path_lengths=path_lengths,
        t_offset_s=episode.t_offset_s.astype(np.float32),
        camera_pose=episode.camera_pose,
        calibration=calibration.reshape(image_status.shape),
        intrinsics=unique[:, :9].reshape(-1, 3, 3),
        extrinsics=unique[:, 9:].reshape(-1, 4, 4),
        waypoint_counts=np.array([episode.waypoints.shape[1]], np.int64),
        waypoint_dt_s=np.array([episode.waypoint_dt_s]),
        waypoints_driven=np.array([episode.waypoints_driven]),
        waypoints=episode.waypoints.reshape(-1, 2).astype(np.float32),
        rated_counts=np.array([len(rated) for rated in episode.rated], np.int32),
        splits=(episode.split,),
        **_history_arrays(episode.history),
        **_rated_arrays([one for rated in episode.rated for one in rated]),
    )


def _history_arrays(history: Sequence[History | None]) -> dict[str, np.ndarray]:
    states = [np.zeros((0, COLUMNS)), *(one.states for one in history if one is not None)]
    return {
        "history_counts": np.array([0 if one is None else len(one.states) for one in history], np.int32),
        "history_dt_s": np.array([0.0 if one is None or not len(one.states) else one.dt_s for one in history]),
        "history": np.concatenate(states).astype(np.float32),
    }


def _rated_arrays(rated: Sequence[Rated]) -> dict[str, np.ndarray]:
    return {
        "rated_scores": np.array([one.score for one in rated], np.float32),
        "rated_dt_s": np.array([one.dt_s for one in rated], np.float64),
        "rated_lengths": np.array([len(one.waypoints) for one in rated], np.int32),
        "rated_waypoints": np.concatenate([np.zeros((0, 2)), *(one.waypoints for one in rated)]).astype(np.float32),
    }
