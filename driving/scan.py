"""From the JSON files of a dataset to its index: each file parsed once, each picture's header looked at."""

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from core import budget
from core.errors import DataError
from core.identity import content_hash
from core.images import picture_size
from driving.episodes import Episode, episode_files, examine, iter_pictures, picture_file
from driving.index import ABSENT, INDEX_FILE, PRESENT, Index, concatenate, load, save
from driving.rater import Rated
from driving.schema import Problem

HEAD_BYTES = 1 << 16
"""Bytes of each picture that its hash covers, beside its size: the whole of a JPEG at training size."""
TAIL_BYTES = 1 << 10
"""Where the end marker of a picture must be; one that is cut short has none. Damage elsewhere is found on decoding."""
MAX_HEADER_BYTES = 1 << 24
END_MARKERS = (b"\xff\xd9", b"IEND")


def scan(root: Path) -> tuple[Index | None, list[Problem]]:
    """The index of a dataset's good episodes (None if there is none), and what is wrong with the others.

    Files whose content the index beside them knows are not parsed again. The index is written back if something
    changed; a folder that cannot be written costs time only.

    Raises:
      DataError: If the folder is missing or holds no episode.
    """
    files = episode_files(root)
    base = (root.parent if root.is_file() else root).resolve()
    before = _known(base)
    known = {} if before is None else dict(zip(before.files, range(len(before.files)), strict=True))
    names = [file.resolve().relative_to(base).as_posix() for file in files]
    same = [
        before is not None and n in known and _same(before, known[n], f, base)
        for n, f in zip(names, files, strict=True)
    ]
    if before is not None and all(same) and len(files) == len(before.files):
        return before, []
    parts: list[Index] = []
    problems: list[Problem] = []
    for name, file, unchanged in zip(names, files, same, strict=True):
        if before is not None and unchanged:
            parts.append(before.one(known[name]))
            continue
        part, found = scan_file(file, base)
        problems += found
        if part is not None:
            parts.append(part)
    if not parts:
        return None, problems
    index = concatenate(parts)
    if not root.is_file():
        with contextlib.suppress(OSError):
            save(index, base / INDEX_FILE)
    return index, problems


def _same(before: Index, episode: int, file: Path, base: Path) -> bool:
    """Whether an indexed file is what it was, and the pictures that it lacked are lacking still."""
    if before.content_hashes[episode] != content_hash(file):
        return False
    first = before.rows(episode).start
    absent = np.argwhere(before.picture[before.rows(episode)] == ABSENT).tolist()
    return not any((base / (before.path(first + i, k) or "")).exists() for i, k in absent)


def scan_file(file: Path, base: Path) -> tuple[Index | None, list[Problem]]:
    """The index of one episode file, or the problems for which it is refused."""
    episode, problems = examine(file)
    return (None, problems) if episode is None else of_episode(episode, root=base, file=file)


def _known(base: Path) -> Index | None:
    try:
        return load(base / INDEX_FILE)
    except DataError:  # none yet, damaged, or of an older format: the files are parsed again
        return None


def of_episode(episode: Episode, *, root: Path, file: Path) -> tuple[Index | None, list[Problem]]:
    """The index of one episode; looks at the header of every picture.

    Args:
      episode: As parsed.
      root: Dataset, resolved; nothing outside it is read.
      file: The episode's JSON file.

    Returns:
      The index, or the problems for which the episode is refused. A named picture whose file is absent is none.
    """
    size = (len(episode.t), len(episode.cameras))
    picture, sizes = np.zeros(size, np.uint8), np.zeros((*size, 2), np.int32)
    paths: dict[tuple[int, int], bytes] = {}
    digest = hashlib.sha256()
    problems: list[Problem] = []
    for i, k, named in iter_pictures(episode):
        key = f"frames[{i}].observations.cameras.{episode.cameras[k]}.image_path"
        found = picture_file(root, file, named)
        if isinstance(found, str):
            problems.append(
                Problem(file=str(file), key=key, expected="a path inside the dataset", found=f"{found}: {named}")
            )
            continue
        paths[i, k] = found.relative_to(root).as_posix().encode()
        try:
            sizes[i, k], content = _look_at(found)
            digest.update(f"{i} {episode.cameras[k]} ".encode() + content)
            picture[i, k] = PRESENT
        except FileNotFoundError:
            picture[i, k] = ABSENT
        except (OSError, DataError) as error:
            text = str(error).removeprefix(f"{found}: ")
            problems.append(Problem(file=str(file), key=key, expected="a readable picture", found=f"{named}: {text}"))
    problems += size_problems(episode.cameras, sizes, str(file))
    if problems:
        return None, problems
    for array in (episode.t, episode.pose, episode.speed_mps):
        digest.update(array.tobytes())
    return _from_arrays(episode, root, file, picture, sizes, paths, digest.hexdigest()), []


def _look_at(file: Path) -> tuple[tuple[int, int], bytes]:
    """Height and width of a picture, and bytes that stand for its content.

    Raises:
      OSError: If it cannot be read.
      DataError: If it is no regular file, no picture, or cut short.
    """
    with budget.open_file(file) as handle:
        status = os.fstat(handle.fileno())
        budget.require("image_mib", status.st_size, str(file))
        head = handle.read(HEAD_BYTES)
        handle.seek(max(status.st_size - TAIL_BYTES, 0))
        tail = handle.read()
        try:
            size = picture_size(head, source=str(file))
        except DataError:  # perhaps a preview of more than HEAD_BYTES comes first
            handle.seek(0)
            size = picture_size(handle.read(MAX_HEADER_BYTES), source=str(file))
    if not any(marker in tail for marker in END_MARKERS):
        raise DataError(
            f"expected the end marker of a picture in its last KiB, found none in {status.st_size} bytes: cut short"
        )
    return size, f"{status.st_size}\n".encode() + head


def size_problems(cameras: Sequence[str], sizes: Int32[np.ndarray, "T k 2"], file: str) -> list[Problem]:
    """Cameras whose pictures differ in size inside one episode."""
    problems = []
    for k, camera in enumerate(cameras):
        seen, first = np.unique(sizes[:, k][sizes[:, k].any(1)], axis=0, return_index=True)
        if len(seen) > 1:
            found = " and ".join(f"{height} x {width}" for height, width in seen[np.argsort(first)].tolist())
            key = f"frames[*].observations.cameras.{camera}"
            problems.append(Problem(file=file, key=key, expected="pictures of one size (height x width)", found=found))
    return problems


def _from_arrays(
    episode: Episode,
    root: Path,
    file: Path,
    picture: UInt8[np.ndarray, "T k"],
    sizes: Int32[np.ndarray, "T k 2"],
    paths: Mapping[tuple[int, int], bytes],
    drive_hash: str,
) -> Index:
    path_lengths = np.zeros(picture.shape, np.int32)
    for place, path in paths.items():
        path_lengths[place] = len(path)
    both = np.concatenate([episode.intrinsics.reshape(-1, 9), episode.extrinsics.reshape(-1, 16)], axis=1)
    known = np.isfinite(both).all(1)
    unique, inverse = np.unique(both[known], axis=0, return_inverse=True)
    calibration = np.full(len(both), -1, np.int32)
    calibration[known] = inverse.reshape(-1)
    return Index(
        cameras=episode.cameras,
        files=(file.resolve().relative_to(root).as_posix(),),
        ids=(episode.id,),
        recordings=(episode.recording,),
        content_hashes=(content_hash(file),),
        drive_hashes=(drive_hash,),
        lengths=np.array([len(episode.t)], np.int64),
        t=episode.t,
        pose=episode.pose,
        speed_mps=episode.speed_mps,
        yaw_rate_radps=episode.yaw_rate_radps,
        route_command=episode.route_command,
        picture=picture,
        picture_size=sizes,
        path_bytes=np.frombuffer(b"".join(paths[place] for place in sorted(paths)), np.uint8),
        path_lengths=path_lengths,
        t_offset_s=episode.t_offset_s.astype(np.float32),
        camera_pose=episode.camera_pose,
        calibration=calibration.reshape(picture.shape),
        intrinsics=unique[:, :9].reshape(-1, 3, 3),
        extrinsics=unique[:, 9:].reshape(-1, 4, 4),
        waypoint_counts=np.array([episode.waypoints.shape[1]], np.int64),
        waypoint_dt_s=np.array([episode.waypoint_dt_s]),
        waypoints=episode.waypoints.reshape(-1, 2).astype(np.float32),
        rated_counts=np.array([len(rated) for rated in episode.rated], np.int32),
        **_rated_arrays([one for rated in episode.rated for one in rated]),
    )


def _rated_arrays(rated: Sequence[Rated]) -> dict[str, np.ndarray]:
    return {
        "rated_scores": np.array([one.score for one in rated], np.float32),
        "rated_dt_s": np.array([one.dt_s for one in rated], np.float64),
        "rated_lengths": np.array([len(one.waypoints) for one in rated], np.int32),
        "rated_waypoints": np.concatenate([np.zeros((0, 2)), *(one.waypoints for one in rated)]).astype(np.float32),
    }
