"""OGBench .npz as a Reader: what qchunk/data/readers/ogbench.py trains on directly, as one HDF5 file an episode.

The source keeps the state after the last action as one more observation, which the HDF5 layout has no row for: there
the next observation of an episode's last frames is the last frame itself. Train on the .npz where that matters.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.files.identity import content_hash
from chunkwise.files.npz import read_npz
from qchunk.converters.recording import ConvertSettings, Reading, Recording, as_float32
from qchunk.data.readers import ogbench


class OgbenchReader:
    """Reads one .npz file whole; a Reader."""

    def __init__(self, path: Path, settings: ConvertSettings) -> None:
        """Reads and judges the file; what is wrong with an episode is said by `read`."""
        del settings  # none of them concerns this format
        self._name = path.name
        self._reports = ogbench.examine(path, digest=content_hash(path))
        self._arrays: dict[str, np.ndarray] = {}
        self._ends = [0]
        if [report.id for report in self._reports] != [path.name]:  # else it could not be cut into episodes
            self._arrays = read_npz(path, ogbench.KEYS.values())
            ends = np.flatnonzero(self._arrays["terminals"].reshape(-1)) + 1
            self._ends += ends.tolist()

    def __len__(self) -> int:
        return len(self._reports)

    def describe(self) -> Mapping[str, Any]:
        return {"arrays": sorted(self._arrays)}

    def close(self) -> None:
        self._arrays.clear()

    def read(self, index: int) -> Reading:
        report = self._reports[index]
        if report.problems:
            return Reading(recording=None, problems=report.problems)
        first = self._ends[index]
        rows = {key: x[first : first + report.length] for key, x in self._arrays.items()}
        mask = rows["masks"].reshape(-1) if "masks" in rows else None
        extra = {}
        if "qpos" in rows:
            extra["/sim/qpos"] = rows["qpos"].astype(np.float64)
        if "button_states" in rows:
            extra["/sim/button_states"] = rows["button_states"].astype(np.int64)
        recording = Recording(
            id=report.id,
            observation=as_float32(rows["observations"]),
            action=as_float32(rows["actions"]),
            reward=rows["rewards"].reshape(-1).astype(np.float64) if "rewards" in rows else None,
            terminated=None if mask is None or "rewards" not in rows else mask == 0,
            extra=extra,
            attributes={"observation_keys": ["observations"]},
        )
        return Reading(recording=recording)
