"""Every setting of a Q-chunking run, as frozen dataclasses. No jax is imported here."""

from qchunk.config.agent import (
    AdjointConfig,
    AgentConfig,
    AugmentConfig,
    DecoupledConfig,
    EncoderConfig,
    GaussianConfig,
)
from qchunk.config.data import FORMATS, DataConfig, Normalization
from qchunk.config.experiment import (
    AlohaRecordConfig,
    DirectedPlayConfig,
    EvalConfig,
    OnlineConfig,
    QChunkConfig,
    RecordConfig,
)

__all__ = [
    "FORMATS",
    "AdjointConfig",
    "AgentConfig",
    "AlohaRecordConfig",
    "AugmentConfig",
    "DataConfig",
    "DecoupledConfig",
    "DirectedPlayConfig",
    "EncoderConfig",
    "EvalConfig",
    "GaussianConfig",
    "Normalization",
    "OnlineConfig",
    "QChunkConfig",
    "RecordConfig",
]
