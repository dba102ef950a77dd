"""Rollouts as layer 4 of the data specification."""

import numpy as np

from chunkwise.data.images import resize_with_pad
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from openpi_ript.data.batch import EpisodeRecord, Observation
from openpi_ript.envs.layer_4 import IMAGES


def layer_4(
    rollout: Rollout, *, horizon: int, advantage: float, optimality: int, image_size: tuple[int, int]
) -> EpisodeRecord:
    """Returns a rollout with a window at every frame, and that frame's own observation.

    Args:
      rollout: With the images of both cameras.
      horizon: Steps of a window; past the end the last action is repeated and marked.
      advantage: Processed.
      optimality: Value of `Optimality`, the label by the raw advantage.
      image_size: Height and width that images are resized to, with padding.

    Raises:
      DataError: If a camera of layer 4 was not recorded.
    """
    seen = rollout.observations
    missing = [name for name in IMAGES if name not in seen]
    if missing:
        raise DataError(f"layer 4: expected images {list(IMAGES)} in the rollout, found no {missing}")
    observations: list[Observation] = [
        {
            "agentview_image": resize_with_pad(seen["agentview_image"][t], *image_size),
            "robot0_eye_in_hand_image": resize_with_pad(seen["robot0_eye_in_hand_image"][t], *image_size),
            "robot0_eef_pos": seen["robot0_eef_pos"][t],
            "robot0_eef_quat": seen["robot0_eef_quat"][t].tolist(),
            "robot0_gripper_qpos": seen["robot0_gripper_qpos"][t],
        }
        for t in range(rollout.length)
    ]
    frames = np.arange(rollout.length)[:, None] + np.arange(horizon)
    return {
        "observations": observations,
        "actions": list(rollout.actions[np.minimum(frames, rollout.length - 1)]),
        "action_is_pad": list(frames >= rollout.length),
        "task": rollout.prompt,
        "success": rollout.success,
        "optimality": optimality,
        "total_reward": advantage,
    }
