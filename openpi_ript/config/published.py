"""openpi's published policies by the names of its configs: `published("pi05_droid", tokenizer=...)`."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import TrainConfig
from openpi_ript.config.data import ALOHA, DROID, DROID_POSITION, LIBERO, DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import full, full_lora


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """What a config of openpi says of its policy."""

    kind: Literal["pi0", "pi05"]
    robot: RobotConfig
    horizon: int = 50
    default_prompt: str | None = None
    """In openpi all frames of training have it, whatever their task."""
    cameras: dict[str, str] | None = None
    """Names in the dataset that openpi trains it on, where those are not all of the robot's."""
    state_in_prompt: bool | None = None
    lora: bool = False


_ABSOLUTE_ALOHA = dataclasses.replace(ALOHA, relative_dims=())
_EXTRA_DELTA = dataclasses.replace(LIBERO, relative_dims=(0, 1, 2, 3, 4, 5))
_TUPPERWARE = "open the tupperware and put the food on the plate"
PUBLISHED: dict[str, Published] = {
    "pi0_aloha": Published(kind="pi0", robot=ALOHA),
    "pi05_aloha": Published(kind="pi05", robot=ALOHA),
    "pi0_aloha_towel": Published(kind="pi0", robot=ALOHA, default_prompt="fold the towel"),
    "pi0_aloha_tupperware": Published(kind="pi0", robot=ALOHA, default_prompt=_TUPPERWARE),
    "pi0_aloha_pen_uncap": Published(kind="pi0", robot=ALOHA, default_prompt="uncap the pen"),
    "pi05_aloha_pen_uncap": Published(kind="pi05", robot=ALOHA, default_prompt="uncap the pen"),
    "pi0_aloha_sim": Published(
        kind="pi0",
        robot=_ABSOLUTE_ALOHA,
        default_prompt="Transfer cube",
        cameras={"base_0_rgb": "observation.images.top"},
    ),
    "pi0_droid": Published(kind="pi0", robot=DROID, horizon=10),
    "pi05_droid": Published(kind="pi05", robot=DROID, horizon=15),
    "pi05_droid_finetune": Published(kind="pi05", robot=DROID, horizon=16),
    "pi05_full_droid_finetune": Published(kind="pi05", robot=DROID_POSITION, horizon=16),
    "pi0_libero": Published(kind="pi0", robot=_EXTRA_DELTA),
    "pi0_libero_low_mem_finetune": Published(kind="pi0", robot=_EXTRA_DELTA, lora=True),
    "pi05_libero": Published(kind="pi05", robot=LIBERO, horizon=10, state_in_prompt=False),
}
"""By openpi's name; its pi0_fast policies are not among them: they write actions as tokens."""

_WRIST = "left_wrist_0_rgb"
_KEYS = {
    "aloha": DataConfig(
        path="",
        robot=ALOHA,
        cameras={
            "base_0_rgb": "observation.images.cam_high",
            _WRIST: "observation.images.cam_left_wrist",
            "right_wrist_0_rgb": "observation.images.cam_right_wrist",
        },
    ),
    "droid": DataConfig(
        path="",
        robot=DROID,
        cameras={"base_0_rgb": "exterior_image_1_left", _WRIST: "wrist_image_left"},
        state_parts=("joint_position", "gripper_position"),
        action_key="actions",
    ),
    "libero": DataConfig(
        path="",
        robot=LIBERO,
        cameras={"base_0_rgb": "image", _WRIST: "wrist_image"},
        state_key="state",
        action_key="actions",
    ),
}
"""Names in the LeRobot datasets that openpi's own scripts write, by adapter."""


UNUSED = "unused"
"""Path of the dataset of a policy that only acts; it may have any of its robot's cameras."""


def published(name: str, *, tokenizer: str, path: str = UNUSED) -> OpenpiRiptConfig:
    """Returns the config of one of openpi's policies: to load its checkpoint with, or to train it on.

    Args:
      name: Of openpi's config.
      tokenizer: PaliGemma's tokenizer.model.
      path: A LeRobot dataset as openpi's scripts write it; a policy that acts needs none.

    Raises:
      ValueError: There is no policy of that name, or it is one that writes actions as tokens.
    """
    if name not in PUBLISHED:
        tokens = "; it writes actions as tokens, which is not supported" if "fast" in name else ""
        raise ValueError(f"published policy {name!r}: expected one of {', '.join(PUBLISHED)}{tokens}")
    policy = PUBLISHED[name]
    norm = "mean_std" if policy.kind == "pi0" else "quantile"
    model = full_lora(policy.kind) if policy.lora else full(policy.kind)
    own = _KEYS[policy.robot.adapter]
    cameras = own.cameras if policy.cameras is None or path == UNUSED else policy.cameras
    return OpenpiRiptConfig(
        train=TrainConfig(steps=30_000, batch_size=32),
        model=dataclasses.replace(model, action_horizon=policy.horizon, state_in_prompt=policy.state_in_prompt),
        data=dataclasses.replace(
            own,
            path=path,
            cameras=cameras,
            robot=policy.robot,
            horizon=policy.horizon,
            state_norm=norm,
            action_norm=norm,
            default_prompt=policy.default_prompt,
            prompt_from_task=policy.default_prompt is None,
        ),
        tokenizer=tokenizer,
    )
