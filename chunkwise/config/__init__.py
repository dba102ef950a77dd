"""Config dataclasses that every package shares, and their way from files and flags. No jax is imported here."""

from chunkwise.config.experiment import (
    FREE_ON_RESUME,
    YOUNGER,
    CheckpointConfig,
    ExperimentConfig,
    FilesConfig,
    MeshConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    comparable,
    fingerprint,
    flatten,
    load,
    require_fraction,
    require_non_negative,
    require_positive,
)

__all__ = [
    "FREE_ON_RESUME",
    "YOUNGER",
    "CheckpointConfig",
    "ExperimentConfig",
    "FilesConfig",
    "MeshConfig",
    "OptimConfig",
    "RunConfig",
    "TrainConfig",
    "comparable",
    "fingerprint",
    "flatten",
    "load",
    "require_fraction",
    "require_non_negative",
    "require_positive",
]
