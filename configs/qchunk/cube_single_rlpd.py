"""QC-RLPD on OGBench cube-single, task 2: soft actor-critic on chunks of 5, half of each batch online, for a GPU.

Settings of Q-chunking's code (arXiv:2507.07969) for RLPD (arXiv:2302.02948): no offline phase, 5,000 environment steps
before the first update, 1M in all, an update each, 10 critics with layer norm whose mean is the target, target entropy
-0.5 a number of the chunk, behaviour cloning with weight 0.01 (0: RLPD-AC; and --agent.horizon 1: RLPD).

Not trained to the end yet: no figure is promised.

    python launch.py --config configs/qchunk/cube_single_rlpd.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, GaussianConfig, OnlineConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """The agent's other settings are the defaults, which are the paper's too."""
    return QChunkConfig(
        train=TrainConfig(steps=995_000, batch_size=256, updates_per_call=50, log_every=5000, eval_every=100_000),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play",
            observation="state",
            task=TASK,
            episodes_per_epoch=150,
            steps_per_epoch=100_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(policy="gaussian", num_critics=10, gaussian=GaussianConfig(bc_weight=0.01)),
        online=OnlineConfig(env=TASK, start=0, steps=1_000_000, warmup=5000, online_ratio=0.5),
        eval=EvalConfig(env=TASK, episodes=50, final_episodes=200),
        record=RecordConfig(env="cube-single-v0", episodes=150),
        checkpoint=CheckpointConfig(every=50_000, keep_period=250_000),
    )
