"""What happened while a policy drove a robot: kept step by step, and written as an episode that training reads."""

import concurrent.futures
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from jaxtyping import Float32

from chunkwise.data.images import encode_jpeg, require_uint8
from chunkwise.errors import DataError
from chunkwise.files.aloha_hdf5 import write_array, write_jpegs
from chunkwise.files.durable import make_folders, scratch_file
from chunkwise.policies.observations import channels_last

Ended = Literal["steps", "done", "watchdog", "interrupted", "error"]
JPEG_QUALITY = 95


@dataclasses.dataclass(kw_only=True)
class RobotEpisode:
    """One episode of a robot, step by step: what was seen, what was commanded, who commanded it."""

    rate_hz: float
    ended: Ended = "error"
    """steps: all were done. done: somebody said so. watchdog: actions stayed out, `reason` says why. interrupted: by
    Ctrl-C. error: the robot or the person's device raised, and so did the loop."""
    reason: str = ""
    missed: int = 0
    """Steps whose command went out after the step's time was over."""
    limited: int = 0
    """Steps whose action was beyond a limit, and was executed within it."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """Of inferences, in words: errors, NaN."""
    delays: list[int] = dataclasses.field(default_factory=list)
    """Steps that were executed while each chunk was computed."""
    actions: list[Float32[np.ndarray, " a"]] = dataclasses.field(default_factory=list)
    """As commanded."""
    interventions: list[bool] = dataclasses.field(default_factory=list)
    """Whether a person chose the action."""
    ticks: list[int] = dataclasses.field(default_factory=list)
    """Number of each step's place on the clock; the robot stood at those that are left out."""
    prompt: str | None = None
    _arrays: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    _images: list[dict[str, concurrent.futures.Future[bytes]]] = dataclasses.field(default_factory=list)
    _encoder: concurrent.futures.ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(1, "jpeg")
    )

    def __len__(self) -> int:
        return len(self.actions)

    def add(
        self, tick: int, observation: Mapping[str, Any], action: Float32[np.ndarray, " a"], *, person: bool
    ) -> None:
        """Keeps a step; images are encoded by another thread, so that they take little memory and no time here.

        Args:
          tick: Its place on the clock.
          observation: What was seen before the action. Vectors of numbers and images are kept, uint8 [h, w, 3] or
            [3, h, w], as a policy takes them.
          action: As commanded.
          person: Whether a person chose it.
        """
        arrays = {
            name: np.asarray(value) for name, value in observation.items() if not isinstance(value, str | Mapping)
        }
        self._arrays.append(
            {name: np.array(x, np.float32) for name, x in arrays.items() if x.ndim == 1 and x.dtype.kind in "fiu"}
        )
        given = {name: np.asarray(x) for name, x in observation.get("image", {}).items() if x is not None}
        images = {name: channels_last(image) for name, image in given.items()}
        for name, image in images.items():
            require_uint8(image, name)
        self._images.append(
            {name: self._encoder.submit(encode_jpeg, image, quality=JPEG_QUALITY) for name, image in images.items()}
        )
        self.prompt = observation.get("prompt", self.prompt)
        self.actions.append(action)
        self.interventions.append(person)
        self.ticks.append(tick)

    def save(self, path: str | Path, *, success: bool | None) -> Path:
        """Writes an HDF5 file in ALOHA's layout (docs/data_formats.md); it appears under its name when it is whole.

        Args:
          path: The file; episodes of one dataset lie in one folder.
          success: The episode's label: training takes it for the reward of the last frame. None: there is none.

        Raises:
          DataError: Nothing was executed, or steps saw different things.
        """
        path = Path(path)
        if not self.actions:
            raise DataError(f"{path}: the robot executed no action ({self.ended}: {self.reason}); there is no episode")
        names = {tuple(sorted(arrays)) for arrays in self._arrays}
        cameras = {tuple(sorted(images)) for images in self._images}
        if len(names) != 1 or len(cameras) != 1:
            raise DataError(f"{path}: expected the same arrays and cameras at every step, found {names} and {cameras}")
        arrays = {name: np.stack([step[name] for step in self._arrays]) for name in self._arrays[0]}
        alone = next((name for name in ("state", "qpos") if name in arrays), None)
        if alone is None:
            raise DataError(f"{path}: expected state or qpos in the robot's observations, found {sorted(arrays)}")
        make_folders(path.parent)
        with scratch_file(path) as part, h5py.File(part, "w") as h5:
            for name, x in arrays.items():
                write_array(h5, f"/observations/{name}", x)
            for name in {"state", "qpos"} - set(arrays):
                h5[f"/observations/{name}"] = h5[f"/observations/{alone}"]  # a hard link: no second copy
            write_array(h5, "/action", np.stack(self.actions))
            write_array(h5, "/intervention", np.array(self.interventions, bool))
            write_array(h5, "/step", np.array(self.ticks, np.int64))
            if self._images[0]:
                write_jpegs(h5, {name: [step[name].result() for step in self._images] for name in self._images[0]})
            h5.attrs.update(sim=False, fps=self.rate_hz, ended=self.ended, reason=self.reason, missed=self.missed)
            if self.prompt is not None:
                h5.attrs["prompt"] = self.prompt
            if success is not None:
                h5.attrs["success"] = success
        return path
