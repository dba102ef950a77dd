"""QC-FQL at the paper's sizes on OGBench cube-single, task 2: 1M offline updates, then 1M online steps, for a GPU.

Sizes and schedule of Q-chunking (arXiv:2507.07969, appendix, and its code): 4 layers of 512, batch 256, chunks of 5,
Adam 3e-4, discount 0.99, target rate 0.005, 10 flow steps; one update for each environment step after the first 5,000,
batches drawn from dataset and online transitions together. alpha 300 is FQL's (arXiv:2502.02538) for cube-single.

Not trained to the end yet: no figure is promised. On two CPU cores an update takes about 50 ms, so 2M take 28 hours.

    python launch.py --config configs/qchunk/cube_single_online_paper.py
    python launch.py --config configs/qchunk/cube_single_online_paper.py --agent.policy best_of_n      # QC
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, OnlineConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """The paper's sizes; the agent's other settings are the defaults, which are the paper's too."""
    return QChunkConfig(
        train=TrainConfig(steps=1_995_000, batch_size=256, updates_per_call=50, log_every=5000, eval_every=100_000),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play-1m",
            observation="state",
            task=TASK,
            episodes_per_epoch=1000,
            steps_per_epoch=100_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(alpha=300.0),
        online=OnlineConfig(env=TASK, start=1_000_000, steps=1_000_000, warmup=5000),
        eval=EvalConfig(env=TASK, episodes=50, final_episodes=200),
        record=RecordConfig(env="cube-single-v0", episodes=1000),
        checkpoint=CheckpointConfig(every=50_000, keep_period=250_000),
    )
