"""QC-FQL on OGBench cube-single, task 2 (move the cube to the middle): the quickstart, on two CPU cores.

Data: 150k transitions of play recorded with OGBench's oracles, relabelled for the task. Smaller than the paper's sizes
(cube_single_paper.py): 3 layers of 256, batch 128, 5 flow steps; the learning rate falls from 1e-3 to 0 along a cosine.

Takes 12 minutes in all on two cores (setting up 80 s, recording 200 s, 22,000 updates 250 s, evaluation 120 s) and
reached 69 % success (95 % interval 59 to 77) over 100 episodes, where behaviour cloning on the same data, the flow
alone, reached 8 % (4 to 15). Another seed with 200k transitions and 30,000 updates: 64 % (50 to 76) against 18 %.

    python launch.py --config configs/qchunk/cube_single.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """A pool of all 150 episodes: state-only episodes are small."""
    return QChunkConfig(
        train=TrainConfig(steps=22_000, batch_size=128, updates_per_call=20, log_every=500, eval_every=5500),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play",
            observation="state",
            task=TASK,
            episodes_per_epoch=150,
            steps_per_epoch=5500,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(256, 256, 256), alpha=300.0, flow_steps=5),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env=TASK, episodes=25, final_episodes=100, num_envs=10, videos=4),
        record=RecordConfig(env="cube-single-v0", episodes=150),
        checkpoint=CheckpointConfig(every=2500),
    )
