"""Every setting of a driving run, as frozen dataclasses. No jax is imported here."""

from driving.config.data import (
    AHEAD,
    BRAKING_M,
    BRAKING_S,
    CAMERAS,
    MOTION_HZ,
    AugmentConfig,
    DataConfig,
    NoiseConfig,
    RecordConfig,
    Split,
)
from driving.config.experiment import TOWN_PAST_S, DrivingConfig, EvalConfig, RolloutConfig
from driving.config.model import (
    STEM,
    ConvConfig,
    ModelConfig,
    ObjectiveConfig,
    ResidualConfig,
    VitConfig,
    WaypointConfig,
    WorldConfig,
)

__all__ = [
    "AHEAD",
    "BRAKING_M",
    "BRAKING_S",
    "CAMERAS",
    "MOTION_HZ",
    "STEM",
    "TOWN_PAST_S",
    "AugmentConfig",
    "ConvConfig",
    "DataConfig",
    "DrivingConfig",
    "EvalConfig",
    "ModelConfig",
    "NoiseConfig",
    "ObjectiveConfig",
    "RecordConfig",
    "ResidualConfig",
    "RolloutConfig",
    "Split",
    "VitConfig",
    "WaypointConfig",
    "WorldConfig",
]
