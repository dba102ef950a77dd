"""Rollouts as layer 4 of the data specification, in memory and as files: an .npz an episode, without pickle.

observations/agentview_image            uint8 [n, h, w, 3]       the other camera and the robot's arrays alike
actions, action_is_pad                  float32 [n, t, a], bool [n, t]: the window that begins at each observation
task, success, optimality, total_reward                          of the episode
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.images import resize_with_pad
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.npz import read_npz
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import RolloutConfig
from openpi_ript.data.batch import EpisodeRecord, Observation
from openpi_ript.envs.layer_4 import IMAGES, LAYER_4
from openpi_ript.ript.rollout_data import labels_of

FOLDER = "layer_4"
"""Of such files, beside the LeRobot dataset of the same episodes."""
_SEEN = (*IMAGES, *LAYER_4)


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


def advantages_of(paths: Sequence[Path], config: RolloutConfig | None) -> list[tuple[float, int] | None]:
    """Returns the processed advantage of each rollout and its label; None for one of a group that is not there whole,
    as of a round that was cut off, or with a file that cannot be read: such a group is not trained on.

    The advantage is leave-one-out among the rollouts of the same round and initial state, and shaped over those groups
    of the round that hold both outcomes, as in training with rollout.replay_rounds 1; with the objective ppo it is left
    as it is. A group that ended alike has 0, and the label none.

    Args:
      paths: Files of a run's rollouts.
      config: The advantages' shaping.

    Raises:
      DataError: The run's config has no rounds.
    """
    if config is None:
        raise DataError("layer 4: expected a run with rollout in its config, whose groups tell the advantages")
    outcomes = {path: outcome for path in paths if (outcome := _outcome(path)) is not None}
    found: dict[Path, tuple[float, int]] = {}
    kind = "ppo" if config.objective == "ppo" else "guided"
    for folder in dict.fromkeys(path.parent for path in outcomes):
        groups: dict[str, list[Path]] = {}
        for path in outcomes:
            if path.parent == folder:
                groups.setdefault(path.stem.rpartition("-")[0], []).append(path)
        whole = [group for group in groups.values() if len(group) == config.size]
        mixed = [group for group in whole if len({outcomes[path] for path in group}) == 2]
        found |= {path: (0.0, int(Optimality.NONE)) for group in whole for path in group}
        if mixed:
            round_of = [path for group in mixed for path in group]
            success = np.array([outcomes[path] for path in round_of], np.float64)
            labels = labels_of(success, np.repeat(np.arange(len(mixed)), config.size), config, objective=kind)
            told = zip(round_of, labels.weight.tolist(), labels.optimality.tolist(), strict=True)
            found |= {path: (weight, optimality) for path, weight, optimality in told}
    return [found.get(path) for path in paths]


def _outcome(path: Path) -> bool | None:
    """Whether a rollout succeeded; None where its file is bad."""
    try:
        return load(path, outcome_only=True).success
    except DataError:
        return None


def save_layer_4(path: Path, episode: EpisodeRecord) -> None:
    """Writes an episode; the file appears under its name only when it is complete and on disk."""
    seen: list[Any] = list(episode["observations"])
    arrays: dict[str, Any] = {f"observations/{name}": np.stack([one[name] for one in seen]) for name in _SEEN}
    arrays |= {name: np.stack(episode[name]) for name in ("actions", "action_is_pad")}
    arrays |= {name: np.array(episode[name]) for name in ("task", "success", "optimality", "total_reward")}
    make_folders(path.parent)
    write_durably(path, lambda file: np.savez_compressed(file, **arrays))


def load_layer_4(path: Path) -> EpisodeRecord:
    """Reads an episode that `save_layer_4` wrote.

    Raises:
      DataError: The file is missing, damaged, or no such episode.
    """
    try:
        arrays = read_npz(path)
        rows = len(arrays["actions"])
        seen = {name: arrays[f"observations/{name}"] for name in _SEEN}
        lengths = {len(value) for value in (*seen.values(), arrays["action_is_pad"])}
        if lengths != {rows}:
            raise DataError(f"{path}: expected {rows} rows, a window's each, found {sorted(lengths)}")
        observations: list[Any] = [
            {name: value[t].tolist() if name == "robot0_eef_quat" else value[t] for name, value in seen.items()}
            for t in range(rows)
        ]
        return {
            "observations": observations,
            "actions": list(arrays["actions"]),
            "action_is_pad": list(arrays["action_is_pad"]),
            "task": str(arrays["task"]),
            "success": bool(arrays["success"]),
            "optimality": int(arrays["optimality"]),
            "total_reward": float(arrays["total_reward"]),
        }
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: expected an episode of layer 4, found {type(error).__name__}: {error}") from error
