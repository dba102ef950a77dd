"""ALOHA's simulated cube transfer from states: two arms, 14 joints, chunks of 20 actions, on two CPU cores.

400 scripted episodes are recorded first (4 minutes), of which 268 succeed; the others drop the cube or miss it. The
flow predicts chunks: a velocity of 280 numbers would have to carry the noise through the layers, and 1 of 100 episodes
succeeded. With seed 0 QC-FQL reached 78 % of 100 episodes (95 % interval 69 to 85), its behaviour flow alone 46 % (37
to 56), in 37 minutes beside other programs on two cores (docs/aloha_sim.md).

python launch.py --config configs/qchunk/aloha_sim.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, AlohaRecordConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig


def get_config() -> QChunkConfig:
    """A pool of all 400 episodes; joints and the cube's pose are seen."""
    return QChunkConfig(
        train=TrainConfig(steps=15_000, batch_size=128, updates_per_call=20, log_every=500, eval_every=7500),
        data=DataConfig(
            path="datasets/qchunk/aloha-transfer-cube",
            observation="state",
            episodes_per_epoch=400,
            steps_per_epoch=5000,
            positive_ratio=0.5,
            action_norm="quantile",
            observation_norm="quantile",
        ),
        agent=AgentConfig(horizon=20, hidden_sizes=(512, 512, 512), alpha=5000.0, flow_steps=5, flow_predicts="chunk"),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env="aloha-transfer-cube", episodes=25, final_episodes=100, num_envs=10, rows=10, videos=4),
        record=RecordConfig(
            env="aloha-transfer-cube",
            episodes=400,
            episode_length=300,
            aloha=AlohaRecordConfig(noise_levels=(0.0, 0.01, 0.02)),
        ),
        checkpoint=CheckpointConfig(every=5000),
    )
