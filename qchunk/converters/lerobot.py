"""LeRobot datasets v2.1 and v3.0 as a Reader, by chunkwise/data/lerobot/meta.py.

observation.state, ...   the observation            next.reward    reward
action                   the action                 next.done      also true where an episode is merely over
every image or video     a camera, by the last part of its key      next.success   the task is solved
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.lerobot.meta import LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import load_table
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.errors import ConfigError
from chunkwise.files.links import Bounds
from qchunk.converters.recording import (
    SUCCESS_REWARD,
    ConvertSettings,
    Images,
    Reading,
    Recording,
    as_float32,
    concatenate,
    terminations,
)

DEFAULT_KEYS = ("observation.state",)
_OUTCOME = ("next.reward", "next.done", "next.success")


class LeRobotReader:
    """Reads one dataset's tables whole, its images frame by frame; a Reader."""

    def __init__(self, path: Path, settings: ConvertSettings) -> None:
        """Opens the dataset and checks every episode.

        Raises:
          DataError: With every problem in meta/, the tables and the images, as far as it shows without decoding.
          ConfigError: A key or camera is not in the dataset.
        """
        meta = read_meta(path, bounds=Bounds(path, settings.allow_links_to))
        self._meta, self._settings, self._name = meta, settings, path.resolve().name
        self._keys = settings.observation_keys or DEFAULT_KEYS
        missing = [key for key in (*self._keys, "action") if key not in meta.features]
        if missing:
            vectors = [key for key, feature in meta.features.items() if len(feature.shape) == 1]
            raise ConfigError(f"{path}: there are no features {missing}; the dataset has {sorted(vectors)}")
        self._cameras = _cameras(meta, settings)
        self._images = LeRobotImages(meta, tuple(self._cameras))
        present = [key for key in _OUTCOME if key in meta.features]
        self._table, _ = load_table(meta, (*self._keys, "action", *present), on_bad="refuse", check=self._images.check)

    def __len__(self) -> int:
        return len(self._meta.episodes)

    def describe(self) -> Mapping[str, Any]:
        return {
            "codebase_version": self._meta.version,
            "robot_type": self._meta.robot_type,
            "fps": self._meta.fps,
            "observation_keys": list(self._keys),
            "cameras": self._cameras,
        }

    def close(self) -> None:
        """The images' files are closed when they are no longer referenced."""

    def read(self, index: int) -> Reading:
        first, length = int(self._table.starts[index]), int(self._table.lengths[index])
        rows = {key: x[first : first + length] for key, x in self._table.columns.items()}
        reward = rows["next.reward"].reshape(-1).astype(np.float64) if "next.reward" in rows else None
        success = rows["next.success"].reshape(-1).astype(bool) if "next.success" in rows else None
        done = rows["next.done"].reshape(-1).astype(bool) if "next.done" in rows else success
        terminated = None
        if reward is not None and done is not None:
            solved = bool(success[-1]) if success is not None else bool(reward[-1] >= SUCCESS_REWARD)
            terminated = terminations(done, solved=solved, final_done=self._settings.final_done)
        attributes = {"observation_keys": list(self._keys), "fps": self._meta.fps}
        attributes |= {"instruction": self._meta.tasks[int(rows["task_index"][0])]}
        recording = Recording(
            id=f"{self._name} episode {index}",
            observation=concatenate([_columns(rows[key]) for key in self._keys]),
            action=as_float32(_columns(rows["action"])),
            reward=reward,
            terminated=terminated,
            success=None if success is None else bool(success.any()),
            attributes=attributes,
            images=self._frames(index, length) if self._cameras else None,
        )
        return Reading(recording=recording)

    def _frames(self, episode: int, length: int) -> Images:
        def frames() -> Iterator[Mapping[str, UInt8[np.ndarray, "h w 3"]]]:
            for frame in range(length):
                images = self._images.read(episode, frame)
                yield {name: images[key] for key, name in self._cameras.items()}

        return frames


def _columns(x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 1 else x


def _cameras(meta: LeRobotMeta, settings: ConvertSettings) -> dict[str, str]:
    """Camera key to its name in the output."""
    unknown = sorted(set(settings.cameras) - set(meta.cameras))
    if unknown:
        raise ConfigError(f"{meta.root}: there are no cameras {unknown}; it has {sorted(meta.cameras)}")
    if settings.images == "none":
        return {}
    if settings.cameras:
        return dict(settings.cameras)
    names = {key: key.rpartition(".")[2] for key in meta.cameras}
    if len(set(names.values())) < len(names):
        raise ConfigError(f"{meta.root}: several cameras end alike, {sorted(names)}; name them by --camera KEY=NAME")
    return names
