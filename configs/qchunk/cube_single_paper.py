"""QC-FQL at the paper's sizes on OGBench cube-single, task 2: 1M offline updates, for a GPU.

Sizes of Q-chunking (arXiv:2507.07969, appendix): 4 layers of 512, batch 256, chunks of 5, Adam 3e-4, discount 0.99,
target rate 0.005, 10 flow steps. alpha 300 is FQL's (arXiv:2502.02538) for cube-single. The data are 1M transitions of
play recorded with OGBench's oracles: about 12 minutes on two cores, 260 MB, once.

Not trained to the end yet: no figure is promised. On two CPU cores an update takes about 50 ms, so 1M take 14 hours.

    python launch.py --config configs/qchunk/cube_single_paper.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """The paper's sizes; the agent's other settings are the defaults, which are the paper's too."""
    return QChunkConfig(
        train=TrainConfig(steps=1_000_000, batch_size=256, updates_per_call=50, log_every=5000, eval_every=100_000),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play-1m",
            observation="state",
            task=TASK,
            episodes_per_epoch=500,
            steps_per_epoch=25_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(alpha=300.0),
        eval=EvalConfig(env=TASK, episodes=50, final_episodes=200),
        record=RecordConfig(env="cube-single-v0", episodes=1000),
        checkpoint=CheckpointConfig(every=50_000, keep_period=250_000),
    )
