"""Offline, then online, in half a minute on a CPU: for tests, the kill harness, and to see a run's `replay` once.

120 updates on the dataset of debug.py, then 800 environment steps with an update each. Three steps between two returns
to training and chunks of five leave a chunk half executed at most saves. Reaches nothing.

    python launch.py --config configs/qchunk/debug_online.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, OnlineConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """Settings small enough for one CPU core; episodes last 200 steps."""
    return QChunkConfig(
        train=TrainConfig(steps=900, batch_size=32, log_every=30, eval_every=120, updates_per_call=5),
        data=DataConfig(
            path="datasets/qchunk/debug",
            observation="state",
            task=TASK,
            episodes_per_epoch=4,
            steps_per_epoch=100,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(32, 32), alpha=300.0, flow_steps=4),
        online=OnlineConfig(env=TASK, start=120, steps=800, warmup=20, interval=3),
        eval=EvalConfig(env=TASK, episodes=2, final_episodes=2, num_envs=2, rows=2, videos=0),
        record=RecordConfig(env="cube-single-v0", episodes=6, episode_length=150),
        checkpoint=CheckpointConfig(every=50),
    )
