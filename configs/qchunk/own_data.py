"""QC-FQL on your own ALOHA-layout HDF5 folder, from joints alone: two arms, 14 joints, chunks of 20 actions.

Actions are absolute joint angles, which the policy gives out in -1 .. 1: min_max reaches every action of your data
(statistics are kept in the run folder as norm_stats.json). The flow predicts chunks, alpha is 5000 and layers are 512
wide, as in aloha_sim.py. In simulation 60 episodes are enough: after 9,200 updates the policy solved 92 of 100 from
joints and the cube's pose (docs/own_recordings.md); a flow that predicts the velocity 1 of 100 (docs/aloha_sim.md).
There is no simulator of your robot: every 5,000 updates policy and critic are measured on a tenth of the episodes,
which training never sees (docs/qchunk.md, "Without a simulator").

    python -m qchunk.inspect path/to/episodes
    python launch.py --config configs/qchunk/own_data.py --data.path path/to/episodes
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, QChunkConfig


def get_config() -> QChunkConfig:
    """The pool loader's own settings: 32 episodes, 60 % of them positive, refreshed every 5000 updates."""
    return QChunkConfig(
        train=TrainConfig(steps=100_000, batch_size=128, updates_per_call=10, log_every=500, eval_every=5000),
        data=DataConfig(path="episodes", action_norm="min_max", observation_norm="quantile", holdout=0.1),
        agent=AgentConfig(horizon=20, hidden_sizes=(512, 512, 512), alpha=5000.0, flow_steps=5, flow_predicts="chunk"),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        checkpoint=CheckpointConfig(every=5000),
    )
