"""Config dataclasses that every package shares, and their way from files and flags. No jax is imported here."""

from chunkwise.config.experiment import (
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
from chunkwise.config.saved import YOUNGER, FreeFields, comparable, fingerprint, flatten, free_fields

__all__ = [
    "FREE_AT_A_CONSTANT_RATE",
    "FREE_ON_RESUME",
    "YOUNGER",
    "CheckpointConfig",
    "ExperimentConfig",
    "FilesConfig",
    "FreeFields",
    "MeshConfig",
    "OptimConfig",
    "RunConfig",
    "TrainConfig",
    "comparable",
    "fingerprint",
    "flatten",
    "free_fields",
    "load",
    "require_fraction",
    "require_non_negative",
    "require_positive",
]
