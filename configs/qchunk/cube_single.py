"""QC-FQL on OGBench cube-single, task 2 (move the cube to the middle): the quickstart, on two CPU cores.

Data: 150k transitions of play recorded with OGBench's oracles at three times their usual noise, relabelled for the
task. Smaller than the paper's sizes (cube_single_paper.py): 3 layers of 256, batch 128, 5 flow steps; the learning rate
falls from 1e-3 to 0 along a cosine.

With the usual noise the oracle never misses the cube, and a policy that does closes its gripper on nothing and carries
that to the goal: of 100 starts the same 33 failed for three policies, and 55 to 66 % succeeded. With 0.3 the data shows
what to do after a miss (0.5 is too much: 46 % after 22,000 updates). The target critic follows at 0.01.

Takes 12 minutes in all on two cores. Three seeds: 88 % of 300 episodes succeeded (95 % interval 84 to 92; by seed 87,
92 and 86), where behaviour cloning on the same data, the flow alone, reached 6 % (4 to 10). Again, with all three:
chunkwise study quickstart

    python launch.py --config configs/qchunk/cube_single.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig, RecordConfig

TASK = "cube-single-play-singletask-task2-v0"


def get_config() -> QChunkConfig:
    """A pool of all 150 episodes: state-only episodes are small."""
    return QChunkConfig(
        train=TrainConfig(steps=28_000, batch_size=128, updates_per_call=20, log_every=500, eval_every=14_000),
        data=DataConfig(
            path="datasets/qchunk/cube-single-play-noise-0.3",
            observation="state",
            task=TASK,
            episodes_per_epoch=150,
            steps_per_epoch=7000,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(hidden_sizes=(256, 256, 256), alpha=300.0, tau=0.01, flow_steps=5),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env=TASK, episodes=25, final_episodes=100, num_envs=10, rows=10, videos=4),
        record=RecordConfig(env="cube-single-v0", episodes=150, noise=0.3),
        checkpoint=CheckpointConfig(every=2500),
    )
