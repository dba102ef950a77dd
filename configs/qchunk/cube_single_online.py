"""QC-FQL offline, then online, on OGBench cube-single, task 2 (move the cube to the middle): minutes on one CPU core.

10,000 updates on 150k transitions of recorded play, then 10,000 environment steps with an update each. A batch draws
from dataset and online transitions alike (Q-chunking, arXiv:2507.07969). Smaller than the paper's sizes
(cube_single_online_paper.py): 3 layers of 256, batch 128, 5 flow steps. metrics.jsonl holds the policy's success after
the offline phase (step 10,000) and after the online phase (step 20,000). Three seeds, 300 episodes: 7 % (95 % interval
5 to 11), then 43 % (38 to 49); with horizon 1, which is FQL, 2 % (1 to 4), then 16 % (12 to 20).

    python launch.py --config configs/qchunk/cube_single_online.py
    python launch.py --config configs/qchunk/cube_single_online.py --agent.horizon 1     # FQL: no chunks, same budget
"""

from chunkwise.config import CheckpointConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, OnlineConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """A pool of all 150 episodes, as in cube_single.py; play at the usual noise, OGBench's."""
    return QChunkConfig(
        train=TrainConfig(steps=20_000, batch_size=128, updates_per_call=5, log_every=500, eval_every=10_000),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play",
            observation="state",
            task=TASK,
            episodes_per_epoch=150,
            steps_per_epoch=10_000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(256, 256, 256), alpha=300.0, flow_steps=5),
        online=OnlineConfig(env=TASK, start=10_000, steps=10_000),
        eval=EvalConfig(env=TASK, episodes=50, final_episodes=50, num_envs=10, rows=10, videos=0),
        record=RecordConfig(env="cube-single-v0", episodes=150),
        checkpoint=CheckpointConfig(every=2500),
    )
