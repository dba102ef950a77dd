"""What training draws at a frame of a dataset, for a page that shows it (chunkwise/view): by the dataset itself."""

import functools
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from chunkwise.errors import DataError, RunError
from chunkwise.view.source import Window
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data.batch import to_training_batch
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.data.inputs import ModelBatch, ToModel, make_inputs
from openpi_ript.data.recordings import LeRobotRecordings
from openpi_ript.tasks.supervised import augmented_images


class TrainingWindows:
    """What a config makes of the episodes. The dataset is opened as for training when the first window is asked for."""

    def __init__(self, config: OpenpiRiptConfig, name: str, recordings: LeRobotRecordings) -> None:
        """Takes a config whose data.path is that of the recordings; reads nothing yet."""
        self._config, self.name, self._recordings = config, name, recordings
        self._lock = threading.Lock()
        self._augmented = jax.jit(functools.partial(augmented_images, config))

    def window(self, episode: int, frame: int) -> Window:
        with self._lock:
            data, to_model = self._opened
        row = self._row(data, episode, frame)
        raw = data.raw(row)
        sample = data.to_ript(data.to_openpi(raw))
        batch = to_model(to_training_batch([sample]))
        seen = batch["observation"]
        notes = [
            f"Prompt: {sample['prompt']}. {int(seen['token_mask'].sum())} of {seen['token_mask'].size} tokens are its.",
            *self._drawn(data, row),
        ]
        images = dict(zip(to_model.cameras, seen["images"][0], strict=True)) if to_model.cameras else {}
        if self._config.augment is not None and images:
            notes.append(
                f"Augmented: one draw of data such as update {frame} makes; each update draws anew, on the device."
            )
            images |= self._changed(to_model, batch, frame)
        return Window(
            recorded=raw["action"],
            over=self._config.data.action_key,
            valid=~sample["action_is_pad"],
            arrays=_arrays(batch, to_model.cameras, self._config.data.robot.action_dim),
            per_step=("action_is_pad", "actions"),
            images=images,
            notes=tuple(notes),
        )

    def _changed(self, to_model: ToModel, batch: ModelBatch, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """The images after the augmentation, rounded to be shown."""
        found = np.asarray(self._augmented(batch["observation"]["images"], np.int32(frame)))[0]
        shown = np.clip(np.rint(found), 0, 255).astype(np.uint8)
        return {f"{name}, augmented": image for name, image in zip(to_model.cameras, shown, strict=True)}

    @functools.cached_property
    def _opened(self) -> tuple[TrainingData, ToModel]:
        config = self._config
        try:
            data = open_data(config.data, allow_code=True)
            return data, make_inputs(config.model, config.data.robot, tuple(config.data.cameras), config.tokenizer)
        except RunError as error:
            raise DataError("Training would not begin:", *str(error).splitlines()) from error

    def _row(self, data: TrainingData, episode: int, frame: int) -> int:
        """The row of the table. Raises DataError where the episode is left out, or has no such frame."""
        (found,) = np.nonzero(data.table.episodes == self._recordings.index(episode))
        if not len(found):
            raise DataError("Training leaves this episode out: it has a problem.")
        length = int(data.table.lengths[found[0]])
        if frame >= length:
            raise DataError(f"training draws starts below {length} in this episode, found frame {frame}")
        return int(data.table.starts[found[0]]) + frame

    def _drawn(self, data: TrainingData, row: int) -> list[str]:
        """Whether training draws this start, and by what it is labelled."""
        notes = []
        if row in data.held_rows:
            notes.append("This episode is held out (data.holdout): training never draws it.")
        elif row not in data.rows:
            notes.append("Training does not draw this start: nothing in its group differs (advantage.uniform_groups).")
        guidance = self._config.guidance
        if guidance is not None and guidance.labels == "value":
            corrected = " (a correction is positive)" if self._config.data.correction_key is not None else ""
            notes.append(
                "Training takes this chunk as positive, whatever its value function says: it was demonstrated."
                if self._config.data.advantage is None
                else f"Training labels this chunk by its value function{corrected}, not by the optimality below."
            )
        return notes


def _arrays(batch: ModelBatch, cameras: tuple[str, ...], dims: int) -> dict[str, np.ndarray]:
    """Entries of the batch's only row; of actions the robot's own dimensions, behind which the model has zeros."""
    seen: Mapping[str, Any] = batch["observation"]
    tokens = seen["tokens"][0][seen["token_mask"][0]]
    found = {
        "action_is_pad": batch["action_is_pad"][0],
        "actions": batch["actions"][0][:, :dims],
        "state": seen["state"][0],
        "tokens": tokens,
        "advantage": batch["advantages"][0],
        f"optimality ({Optimality(int(batch['optimality'][0])).name.lower()})": batch["optimality"][0],
    }
    return found | {f"image_mask {name}": seen["image_mask"][0, k] for k, name in enumerate(cameras)}
