"""QC-FQL on OGBench cube-double, task 2, offline then online, on two CPU cores: the base of studies/qchunk_table.

250,000 transitions of play, recorded with OGBench's oracles; 15,000 updates on them, then 15,000 environment steps with
an update each after the first 1,000. Q-chunking's settings (arXiv:2507.07969) but for sizes: 3 layers of 256, batch
128, 5 flow steps, where it has 4 of 512, 256 and 10, and a million of each.

Not trained to the end yet: no figure is promised. The paper's QC-FQL reaches 42 % offline and 100 % online.

    python launch.py --config configs/qchunk/cube_double.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, OnlineConfig, QChunkConfig, RecordConfig

TASK = "cube-double-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """A pool of all 250 episodes, which no update replaces: state-only episodes are small."""
    return QChunkConfig(
        train=TrainConfig(steps=29_000, batch_size=128, updates_per_call=20, log_every=500, eval_every=7_500),
        data=DataConfig(
            path="datasets/qchunk/cube-double-play-250k",
            observation="state",
            task=TASK,
            success_timing="post",
            episodes_per_epoch=250,
            steps_per_epoch=29_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(256, 256, 256), alpha=300.0, flow_steps=5),
        online=OnlineConfig(env=TASK, start=15_000, steps=15_000, warmup=1000),
        eval=EvalConfig(env=TASK, episodes=25, final_episodes=50, num_envs=5, videos=2),
        record=RecordConfig(env="cube-double-v0", episodes=250),
        checkpoint=CheckpointConfig(every=5000),
    )
