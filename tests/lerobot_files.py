"""Writes small LeRobot datasets, v2.1 and v3.0, file for file as LeRobot does, and bad ones."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FPS = 10
CAMERAS = ("observation.images.base", "observation.images.wrist")
TASKS = ("pick the cube", "open the drawer")

Storage = Literal["video", "image", "image_file"]


@dataclasses.dataclass
class Recorded:
    """One episode before it is written; tests change fields to make a dataset bad."""

    state: np.ndarray
    action: np.ndarray
    task: np.ndarray
    images: dict[str, np.ndarray]
    success: np.ndarray
    reward: np.ndarray
    timestamp: np.ndarray


def record(lengths: Sequence[int] = (7, 5, 9), *, seed: int = 0, state_dim: int = 6, size=(24, 32)) -> list[Recorded]:
    """Episodes with smooth images whose brightness tells episode and frame."""
    rng = np.random.default_rng(seed)
    episodes = []
    for episode, length in enumerate(lengths):
        state = rng.normal(size=(length, state_dim)).cumsum(0).astype(np.float32)
        target = np.concatenate([state[:, :6] + 0.1, rng.integers(0, 2, (length, 1))], axis=1).astype(np.float32)
        success = np.zeros(length, bool)
        success[-1] = episode % 2 == 0
        episodes.append(
            Recorded(
                state=state,
                action=target,
                task=np.full(length, episode % 2, np.int64),
                images={key: _images(length, episode, camera, size) for camera, key in enumerate(CAMERAS)},
                success=success,
                reward=success.astype(np.float32),
                timestamp=(np.arange(length) / FPS).astype(np.float32),
            )
        )
    return episodes


def _images(length: int, episode: int, camera: int, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    y, x = np.mgrid[:height, :width]
    plane = 2 * y + x + 40 * camera
    frames = [plane + 9 * frame + 25 * episode for frame in range(length)]
    return np.stack([np.stack([f, 255 - f, f // 2], axis=-1).clip(0, 255).astype(np.uint8) for f in frames])


def write_v21(root: Path, episodes: Sequence[Recorded], storage: Storage = "video") -> Path:
    """One parquet and one mp4 a camera for each episode."""
    info = _info("v2.1", episodes, storage)
    info |= {
        "chunks_size": 1000,
        "total_chunks": 1,
        "total_videos": len(episodes) * len(CAMERAS) if storage == "video" else 0,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    _write_json(root / "meta/info.json", info)
    _write_lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(TASKS)])
    rows = [
        {"episode_index": i, "tasks": [TASKS[int(e.task[0])]], "length": len(e.state)} for i, e in enumerate(episodes)
    ]
    _write_lines(root / "meta/episodes.jsonl", rows)
    start = 0
    for index, episode in enumerate(episodes):
        table = _table(root, episode, index, start, storage)
        _write_parquet(root / f"data/chunk-000/episode_{index:06d}.parquet", [table])
        start += len(episode.state)
        for key, frames in episode.images.items() if storage == "video" else ():
            write_video(root / f"videos/chunk-000/{key}/episode_{index:06d}.mp4", frames)
    return root


def write_v30(root: Path, episodes: Sequence[Recorded], storage: Storage = "video") -> Path:
    """Episodes 0 and 1 share a parquet file, the others another; episode 0 has its own mp4, the others share one."""
    info = _info("v3.0", episodes, storage)
    info |= {
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    _write_json(root / "meta/info.json", info)
    tasks = pa.table({"task_index": pa.array(range(len(TASKS)), pa.int64()), "task": list(TASKS)})
    _write_parquet(root / "meta/tasks.parquet", [tasks])
    rows, tables, start, shown = [], [], 0, {0: 0.0, 1: 0.0}
    for index, episode in enumerate(episodes):
        length, video = len(episode.state), min(index, 1)
        row: dict[str, Any] = {"episode_index": index, "tasks": [TASKS[int(episode.task[0])]], "length": length}
        row |= {"data/chunk_index": 0, "data/file_index": index // 2}
        row |= {"dataset_from_index": start, "dataset_to_index": start + length}
        for key in CAMERAS if storage == "video" else ():
            row |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": video}
            row |= {f"videos/{key}/from_timestamp": shown[video]}
            row |= {f"videos/{key}/to_timestamp": shown[video] + length / FPS}
        rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        tables.append(_table(root, episode, index, start, storage))
        start += length
        shown[video] += length / FPS
    for number in range((len(tables) + 1) // 2):
        _write_parquet(root / f"data/chunk-000/file-{number:03d}.parquet", tables[2 * number : 2 * number + 2])
    _write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", [pa.Table.from_pylist(rows)])
    for key in CAMERAS if storage == "video" else ():
        films = [episodes[0].images[key], np.concatenate([e.images[key] for e in episodes[1:]])]
        for number, frames in enumerate(films):
            write_video(root / f"videos/{key}/chunk-000/file-{number:03d}.mp4", frames)
    return root


def write_video(path: Path, frames: np.ndarray) -> None:
    """H.264 with a key frame every 4th frame and B frames between, nearly without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"g": "4", "bf": "2", "crf": "4"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode(None))


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _info(version: str, episodes: Sequence[Recorded], storage: Storage) -> dict[str, Any]:
    height, width = episodes[0].images[CAMERAS[0]].shape[1:3]
    names = ["height", "width", "channels"]
    dtype = "video" if storage == "video" else "image"
    features: dict[str, Any] = {key: {"dtype": dtype, "shape": [height, width, 3], "names": names} for key in CAMERAS}
    features |= {
        "observation.state": {"dtype": "float32", "shape": [episodes[0].state.shape[1]], "names": None},
        "action": {"dtype": "float32", "shape": [episodes[0].action.shape[1]], "names": None},
        "next.success": {"dtype": "bool", "shape": [1], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    features |= {
        key: {"dtype": "int64", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index")
    }
    return {
        "codebase_version": version,
        "robot_type": "ur5e",
        "total_episodes": len(episodes),
        "total_frames": sum(len(e.state) for e in episodes),
        "total_tasks": len(TASKS),
        "fps": FPS,
        "splits": {"train": f"0:{len(episodes)}"},
        "features": features,
    }


def _table(root: Path, episode: Recorded, index: int, start: int, storage: Storage) -> pa.Table:
    length = len(episode.state)
    frames = np.arange(length)
    columns: dict[str, Any] = {
        "observation.state": _vectors(episode.state),
        "action": _vectors(episode.action),
        "next.success": pa.array(episode.success),
        "next.reward": pa.array(episode.reward),
        "timestamp": pa.array(episode.timestamp),
        "frame_index": pa.array(frames),
        "episode_index": pa.array(np.full(length, index)),
        "index": pa.array(start + frames),
        "task_index": pa.array(episode.task),
    }
    for key in CAMERAS if storage != "video" else ():
        cells = []
        for frame, image in enumerate(episode.images[key]):
            name = f"images/{key}/episode_{index:06d}/frame_{frame:06d}.png"
            if storage == "image_file":
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(png(image))
            cells.append({"bytes": png(image) if storage == "image" else None, "path": name})
        columns[key] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    return pa.table(columns)


def _vectors(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.astype(np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _write_parquet(path: Path, tables: Sequence[pa.Table]) -> None:
    """A row group for each episode, as LeRobot's writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, tables[0].schema, compression="snappy") as writer:
        for table in tables:
            writer.write_table(table)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4))


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
