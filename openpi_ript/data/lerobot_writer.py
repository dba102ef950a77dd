"""Writes LeRobot v2.1 datasets that are recorded here: one parquet file an episode, images as PNG in the tables."""

import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import UInt8
from PIL import Image

from chunkwise.errors import ConfigError, DataError
from chunkwise.files.strict_json import read_json
from openpi_ript.config.data import DataConfig

OWN_DATA = ". Set record to None (demonstrate too) to train on your own data"
"""What else to do where a folder holds other data than was to be recorded."""
EPISODES_A_CHUNK = 1000
"""Files of one folder of a dataset; LeRobot's own number."""
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
"""Where LeRobot v2.1 has an episode's table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """One episode of T frames."""

    columns: Mapping[str, np.ndarray]
    """By LeRobot's key: [T] or [T, width]; float32 or bool."""
    images: Mapping[str, Sequence[np.ndarray]]
    """By LeRobot's key: T images of one size, uint8 [h, w, 3]."""
    task: str
    """In words."""


def outcome_columns(success: bool, length: int, config: DataConfig) -> dict[str, np.ndarray]:
    """Returns the columns of an episode's outcome, which lies in its last frame; those that the config has, "none" is
    none."""
    outcome = np.zeros(length, bool)
    outcome[-1] = success
    columns = {config.success_key: outcome, config.reward_key: outcome.astype(np.float32)}
    return {key: values for key, values in columns.items() if key != "none"}


def settings_of(root: Path) -> Mapping[str, Any] | None:
    """What made a dataset that `write_lerobot` wrote, and with which settings; None for other folders."""
    info = root / "meta" / "info.json"
    tree = read_json(info) if info.is_file() else None
    made = tree.get("synthetic") if isinstance(tree, dict) else None
    return made if isinstance(made, dict) else None


def write_lerobot(
    root: Path,
    episodes: Iterable[Recorded],
    *,
    fps: float,
    robot: str,
    provenance: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
) -> None:
    """Writes all files of a dataset.

    Args:
      root: Folder, which may exist.
      episodes: With the same columns and cameras; at least one.
      fps: Frames a second.
      robot: robot_type of info.json.
      provenance: For info.json.
      names: Of the dimensions of columns that are vectors.
    """
    rows: list[dict[str, Any]] = []
    stats: list[Mapping[str, Any]] = []
    tasks: list[str] = []
    features: dict[str, Any] = {}
    start = 0
    for index, episode in enumerate(episodes):
        length = len(next(iter(episode.columns.values())))
        features = features or features_of(episode, names)
        tasks += [episode.task] * (episode.task not in tasks)
        task = tasks.index(episode.task)
        stats.append(write_episode(root, episode, features, fps=fps, index=index, start=start, task=task))
        rows.append({"episode_index": index, "tasks": [episode.task], "length": length})
        start += length
    write_meta(root, rows, stats, tasks, features, fps=fps, robot=robot, provenance=provenance)


def write_episode(
    root: Path, episode: Recorded, features: Mapping[str, Any], *, fps: float, index: int, start: int, task: int
) -> dict[str, Any]:
    """Writes the table of one episode.

    Args:
      root: Folder of the dataset.
      episode: What it holds.
      features: Of the dataset.
      fps: Frames a second.
      index: Of the episode, from 0.
      start: Frames of all episodes before it.
      task: Number of its task.

    Returns:
      Its line of episodes_stats.jsonl: of each feature min, max, mean, std and count. They are over all frames; of
      LeRobot's own files those of images are over some of them.
    """
    file = root / DATA_PATH.format(episode_chunk=index // EPISODES_A_CHUNK, episode_index=index)
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = _numbers(episode, fps=fps, index=index, start=start, task=task)
    pq.write_table(_table(episode.images, numbers, features), file)
    stats = {camera: _image_stats(images) for camera, images in episode.images.items()}
    return {"episode_index": index, "stats": stats | {key: _stats(values) for key, values in numbers.items()}}


def write_meta(
    root: Path,
    rows: Sequence[Mapping[str, Any]],
    stats: Sequence[Mapping[str, Any]],
    tasks: Sequence[str],
    features: Mapping[str, Any],
    *,
    fps: float,
    robot: str,
    provenance: Mapping[str, Any],
) -> None:
    """Writes the files of a dataset besides its tables.

    Args:
      root: Folder of the dataset.
      rows: Of episodes.jsonl: episode_index, tasks and length of each.
      stats: Of episodes_stats.jsonl, without which LeRobot opens no dataset: what `write_episode` gave of each.
      tasks: In the order of their numbers.
      features: Of the dataset.
      fps, robot, provenance: As of `write_lerobot`.
    """
    info = {
        "codebase_version": "v2.1",
        "robot_type": robot,
        "synthetic": json.loads(json.dumps(provenance)),
        "total_episodes": len(rows),
        "total_frames": sum(row["length"] for row in rows),
        "total_tasks": len(tasks),
        "total_videos": 0,
        "total_chunks": -(-len(rows) // EPISODES_A_CHUNK),
        "chunks_size": EPISODES_A_CHUNK,
        "fps": int(fps) if float(fps).is_integer() else float(fps),  # whole wherever it can be, as LeRobot declares it
        "splits": {"train": f"0:{len(rows)}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }
    meta = root / "meta"
    meta.mkdir()
    (meta / "info.json").write_text(json.dumps(info, indent=4) + "\n")
    _write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(tasks)])
    _write_lines(meta / "episodes.jsonl", rows)
    _write_lines(meta / "episodes_stats.jsonl", stats)


def require_one_rate(rates: Mapping[str, float]) -> None:
    """Raises ConfigError unless all tasks, by name, make equally many steps a second: a dataset has one rate."""
    if len(set(rates.values())) > 1:
        told = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        raise ConfigError(f"the tasks make {told} steps a second; expected one rate, which a dataset has: choose tasks")


def train_tokenizer(sentences: Sequence[str]) -> bytes:
    """Some 300 sentencepiece pieces, with PaliGemma's traits: a piece for the line break, bytes for the rest.

    It stands in for PaliGemma's tokenizer where a small model is trained from nothing.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences, "Action: "] * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def features_of(episode: Recorded, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the features of info.json, those that every dataset has included."""
    channels = ["height", "width", "channels"]
    features: dict[str, Any] = {
        camera: {"dtype": "image", "shape": list(images[0].shape), "names": channels}
        for camera, images in episode.images.items()
    }
    for key, values in episode.columns.items():
        shape = list(values.shape[1:]) or [1]
        features[key] = {"dtype": str(values.dtype), "shape": shape, "names": names[key] if key in names else None}  # noqa: SIM401  (no default is meant)
    types = {"timestamp": "float32"} | dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    return features | {key: {"dtype": dtype, "shape": [1], "names": None} for key, dtype in types.items()}


def _numbers(episode: Recorded, *, fps: float, index: int, start: int, task: int) -> dict[str, np.ndarray]:
    """All columns of an episode that are no images."""
    length = len(next(iter(episode.columns.values())))
    frames = np.arange(length)
    return {
        **episode.columns,
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(length, index),
        "index": start + frames,
        "task_index": np.full(length, task),
    }


def _table(
    images: Mapping[str, Sequence[np.ndarray]], numbers: Mapping[str, np.ndarray], features: Mapping[str, Any]
) -> pa.Table:
    """One episode as LeRobot writes it, with the metadata from which Hugging Face datasets knows the images."""
    arrays: dict[str, Any] = {}
    for camera, frames in images.items():
        expected = tuple(features[camera]["shape"])
        for frame, one in enumerate(frames):
            if one.shape != expected:
                found = list(one.shape)
                raise DataError(
                    f"{camera}, frame {frame}: expected {list(expected)}, as the first image, found {found}"
                )
        cells = [{"bytes": _png(one), "path": f"frame_{frame:06d}.png"} for frame, one in enumerate(frames)]
        arrays[camera] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    for key, values in numbers.items():
        flat = pa.array(values.ravel())
        arrays[key] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    metadata = {"info": {"features": {key: _hf_feature(feature) for key, feature in features.items()}}}
    return pa.table(arrays).replace_schema_metadata({"huggingface": json.dumps(metadata)})


def _stats(values: np.ndarray) -> dict[str, Any]:
    """Statistics of a column over its frames, a list with a number for each dimension."""
    rows = values.reshape(len(values), -1)
    wide = rows.astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": wide.mean(0), "std": wide.std(0)}
    return {name: array.tolist() for name, array in found.items()} | {"count": [len(rows)]}


def _image_stats(images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> dict[str, Any]:
    """Statistics of a camera's pixels, 0 to 1, in lists of shape (3, 1, 1), as LeRobot has them."""
    # How often each byte occurs is all that is kept of an episode, and tells them exactly.
    often = np.zeros((3, 256), np.int64)
    for image in images:
        for channel in range(3):
            often[channel] += np.bincount(image[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = np.average(np.broadcast_to(values, often.shape), axis=1, weights=often)
    variance = [np.average((values - middle) ** 2, weights=row) for middle, row in zip(mean, often, strict=True)]
    found = {"min": [values[row > 0].min() for row in often], "max": [values[row > 0].max() for row in often]}
    found |= {"mean": mean, "std": np.sqrt(variance)}
    return {name: np.reshape(x, (3, 1, 1)).tolist() for name, x in found.items()} | {"count": [len(images)]}


def _hf_feature(feature: Mapping[str, Any]) -> dict[str, Any]:
    """A feature in the words of Hugging Face datasets."""
    if feature["dtype"] == "image":
        return {"_type": "Image"}
    value = {"dtype": feature["dtype"], "_type": "Value"}
    return value if feature["shape"] == [1] else {"feature": value, "length": feature["shape"][0], "_type": "Sequence"}


def _png(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
