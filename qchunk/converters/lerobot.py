"""LeRobot datasets v2.1 and v3.0 as a Reader, with images; qchunk/data/readers/lerobot.py has the conventions.

Every image or video in colour is a camera, by the last part of its key.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.lerobot.meta import LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import iter_tables
from chunkwise.data.lerobot.video import LeRobotImages, file_names
from chunkwise.errors import ConfigError
from chunkwise.files.links import Bounds
from qchunk.converters.recording import ConvertSettings, Images, Reading, Recording, wrong_names
from qchunk.data.conventions import ends_by_rewards
from qchunk.data.readers.lerobot import DEFAULT_KEYS, KEYS, OUTCOME, arrays_of, problems_of


class LeRobotReader:
    """Reads one dataset's tables whole, its images frame by frame; a Reader."""

    def __init__(self, path: Path, settings: ConvertSettings) -> None:
        """Opens the dataset and checks every episode; what is wrong with one is said by `read`.

        Raises:
          DataError: With every problem in meta/.
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
        present = [key for key in OUTCOME if key in meta.features]
        self._tables = list(iter_tables(meta, (*self._keys, "action", *present)))
        self._problems = [
            (*problems_of(table), *(self._images.check(table.meta.index) if table.columns else ()))
            for table in self._tables
        ]
        self._by_rewards = ends_by_rewards(
            table.columns[KEYS["reward"]].astype(np.float64)
            for table in self._tables
            if KEYS["reward"] in table.columns and not problems_of(table)
        )

    def __len__(self) -> int:
        return len(self._meta.episodes)

    def describe(self) -> Mapping[str, Any]:
        return {
            "codebase_version": self._meta.version,
            "robot_type": self._meta.robot_type,
            "fps": self._meta.fps,
            "observation_keys": list(self._keys),
            "cameras": self._cameras,
            "cameras_left_out": sorted(set(self._meta.cameras) - set(self._cameras)),
        }

    @property
    def files(self) -> list[Path]:
        """All that is read: meta/, tables, and films or images of the cameras that are kept."""
        return [self._meta.root / name for name in dict.fromkeys(file_names(self._meta, tuple(self._cameras)))]

    def close(self) -> None:
        """The images' files are closed when they are no longer referenced."""

    def read(self, index: int) -> Reading:
        table = self._tables[index]
        rows, length = table.columns, table.meta.length
        if self._problems[index]:
            return Reading(recording=None, problems=self._problems[index])
        arrays = arrays_of(rows, keys=self._keys, final_done=self._settings.final_done, by_rewards=self._by_rewards)
        attributes = {"observation_keys": list(self._keys), "fps": self._meta.fps}
        attributes |= {"instruction": self._meta.tasks[int(rows["task_index"][0])]}
        recording = Recording(
            id=f"{self._name} episode {index}",
            observation=arrays.observation,
            action=arrays.action,
            reward=arrays.reward,
            terminated=arrays.terminated,
            success=arrays.success,
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


def _cameras(meta: LeRobotMeta, settings: ConvertSettings) -> dict[str, str]:
    """Camera key to its name in the output: those that the user names, or all but depth."""
    unknown = sorted(set(settings.cameras) - set(meta.cameras))
    if unknown:
        raise ConfigError(f"{meta.root}: there are no cameras {unknown}; it has {sorted(meta.cameras)}")
    if settings.images == "none":
        return {}
    if settings.cameras:
        return dict(settings.cameras)
    names = {key: key.rpartition(".")[2] for key in meta.cameras if not meta.features[key].is_depth}
    if len(set(names.values())) < len(names):
        raise ConfigError(f"{meta.root}: several cameras end alike, {sorted(names)}; name them by --camera KEY=NAME")
    if wrong := wrong_names(names.values()):
        raise ConfigError(
            f"{meta.root}: the ends {wrong} of its cameras {sorted(names)} cannot name a camera of the output; give "
            "names without '/' by --camera KEY=NAME"
        )
    return names
