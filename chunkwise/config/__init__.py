"""Config dataclasses that every package shares, and their way from files and flags. No jax is imported here."""

from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_AT_A_CONSTANT_RATE,
    FREE_ON_RESUME,
    CheckpointConfig,
    ExperimentConfig,
    FilesConfig,
    MeshConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    require_fraction,
    require_non_negative,
    require_positive,
)
from chunkwise.config.load import load
from chunkwise.config.saved import YOUNGER, ResumeRules, comparable, fingerprint, flatten, resume_rules

__all__ = [
    "FREE_AS_A_PLACE",
    "FREE_AT_A_CONSTANT_RATE",
    "FREE_ON_RESUME",
    "YOUNGER",
    "CheckpointConfig",
    "ExperimentConfig",
    "FilesConfig",
    "MeshConfig",
    "OptimConfig",
    "ResumeRules",
    "RunConfig",
    "TrainConfig",
    "comparable",
    "fingerprint",
    "flatten",
    "load",
    "require_fraction",
    "require_non_negative",
    "require_positive",
    "resume_rules",
]
