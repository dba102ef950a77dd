"""Decoupled Q-chunking on OGBench cube-quadruple, task 2: critic's chunks of 25 actions, policy's of 5, for a GPU.

Levels, horizons and aggregation of arXiv:2512.10926 for cube-quadruple (kappa_b 0.93 by quantile, kappa_d 0.8 by
expectile, the least of two critics, best of 32); its code has layers of 1024 and batches of 4096, and is conditioned on
goals. Here one task with its reward, and the sizes of Q-chunking. The data are 1M transitions of recorded play.

Not trained to the end yet: no figure is promised. Missing is what keeps the paper's values in [0, 1], its sigmoid and
cross-entropy: here they are returns, to -4,000 with this reward and discount (docs/qchunk.md has a small run).

    python launch.py --config configs/qchunk/cube_quadruple_dqc.py
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, DecoupledConfig, EvalConfig, QChunkConfig, RecordConfig

TASK = "cube-quadruple-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """Discount 0.999 as in the paper, whose horizon it fits."""
    return QChunkConfig(
        train=TrainConfig(steps=1_000_000, batch_size=256, updates_per_call=50, log_every=5000, eval_every=250_000),
        data=DataConfig(
            path="datasets/qchunk/cube-quadruple-play-1m",
            observation="state",
            task=TASK,
            episodes_per_epoch=500,
            steps_per_epoch=25_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(
            policy="best_of_n",
            horizon=25,
            discount=0.999,
            q_aggregation="min",
            actor_layer_norm=True,
            decoupled=DecoupledConfig(policy_horizon=5, kappa_b=0.93, kappa_d=0.8),
        ),
        eval=EvalConfig(env=TASK, episodes=50, final_episodes=200),
        record=RecordConfig(env="cube-quadruple-v0", episodes=1000),
        checkpoint=CheckpointConfig(every=50_000, keep_period=250_000),
    )
