"""The whole way in seconds on a CPU: records six short episodes if they are missing, trains, evaluates, saves.

Reaches nothing: it exists for tests, for the kill harness, and to see every file of a run folder once.

    python launch.py --config configs/qchunk/debug.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig


def get_config() -> QChunkConfig:
    """Settings small enough for one CPU core."""
    return QChunkConfig(
        train=TrainConfig(steps=200, batch_size=32, log_every=10, eval_every=100, updates_per_call=5),
        data=DataConfig(
            path="datasets/qchunk/debug",
            observation="state",
            task="cube-single-play-singletask-task2-v0",
            episodes_per_epoch=4,
            steps_per_epoch=40,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(32, 32), alpha=300.0, flow_steps=4),
        eval=EvalConfig(
            env="cube-single-play-singletask-task2-v0", episodes=2, final_episodes=2, num_envs=2, rows=2, videos=1
        ),
        record=RecordConfig(env="cube-single-v0", episodes=6, episode_length=150),
        checkpoint=CheckpointConfig(every=100),
    )
