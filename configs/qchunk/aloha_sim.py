"""ALOHA's simulated cube transfer from states: two arms, 14 joints, chunks of 20 actions, on two CPU cores.

400 scripted episodes are recorded first (4 minutes), of which 210 succeed. Layers of 384 let a chunk's 280 numbers
through. 10,000 updates took 14 minutes on one shared core. No figure is promised: with velocities in the state, which
they no longer are, 2 of 100 episodes succeeded, and 2 of 100 by behaviour cloning (docs/aloha_sim.md).

python launch.py --config configs/qchunk/aloha_sim.py
"""

from core.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, AlohaRecordConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig


def get_config() -> QChunkConfig:
    """A pool of all 400 episodes; joints and the cube's pose are seen."""
    return QChunkConfig(
        train=TrainConfig(steps=10_000, batch_size=128, updates_per_call=20, log_every=500, eval_every=5000),
        data=DataConfig(
            path="datasets/qchunk/aloha-transfer-cube",
            observation="state",
            episodes_per_epoch=400,
            steps_per_epoch=5000,
            positive_ratio=0.5,
            action_norm="quantile",
            observation_norm="quantile",
        ),
        agent=AgentConfig(horizon=20, hidden_sizes=(384, 384, 384), alpha=5000.0, flow_steps=5),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env="aloha-transfer-cube", episodes=25, final_episodes=100, num_envs=10, videos=4),
        record=RecordConfig(
            env="aloha-transfer-cube",
            episodes=400,
            episode_length=300,
            aloha=AlohaRecordConfig(noise_levels=(0.01, 0.02)),
        ),
        checkpoint=CheckpointConfig(every=5000),
    )
