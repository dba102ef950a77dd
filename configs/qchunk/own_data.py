"""QC-FQL on your own ALOHA-layout HDF5 folder: two arms, 14 joints, chunks of 50 actions.

Actions are absolute joint angles, which the flow needs in about -1 .. 1: both actions and observations are normalised
by the quantiles of your data (kept in the run folder as norm_stats.json). There is no simulator of your robot, so
there is no evaluation; watch `q` and the losses in metrics.jsonl.

    python -m qchunk.inspect path/to/episodes
    python launch.py --config configs/qchunk/own_data.py --data.path path/to/episodes
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, QChunkConfig


def get_config() -> QChunkConfig:
    """The pool loader's own settings: 32 episodes, 60 % of them positive, refreshed every 5000 updates."""
    return QChunkConfig(
        train=TrainConfig(steps=100_000, batch_size=128, updates_per_call=10, log_every=500),
        data=DataConfig(path="episodes", action_norm="quantile", observation_norm="quantile"),
        agent=AgentConfig(horizon=50, discount=0.99),
        checkpoint=CheckpointConfig(every=5000),
    )
