"""ALOHA's simulated cube transfer from one small image and the joints, on a CPU in an hour or so.

The camera above the table at 30 x 40 says where the cube lies to 2 or 3 mm; the cube's pose is not in what the networks
see. The best of four samples of the flow acts, as the critic judges. Recording 60 episodes with two cameras takes 13
minutes on two cores, once; they are those of docs/own_recordings.md. 56 of 100 episodes succeeded (95 % interval 46 to
65), and 6 (3 to 13) of a twin that was trained and evaluated on black images (benchmarks/seeing.py).

    python launch.py --config configs/qchunk/aloha_sim_images_small.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import (
    AgentConfig,
    AlohaRecordConfig,
    AugmentConfig,
    DataConfig,
    EncoderConfig,
    EvalConfig,
    QChunkConfig,
    RecordConfig,
)


def get_config() -> QChunkConfig:
    """Chunks of 20; successes alone, six of the episodes are held out."""
    return QChunkConfig(
        train=TrainConfig(steps=10_000, batch_size=64, updates_per_call=5, log_every=500, eval_every=5000),
        data=DataConfig(
            path="datasets/qchunk/aloha-transfer-cube-60",
            cameras=("top",),
            image_size=(30, 40),
            action_norm="min_max",
            observation_norm="quantile",
            positive_ratio=1.0,
            holdout=0.1,
        ),
        agent=AgentConfig(
            policy="best_of_n",
            num_samples=4,
            horizon=20,
            hidden_sizes=(512, 512, 512),
            flow_steps=5,
            flow_predicts="chunk",
            encoder=EncoderConfig(widths=(8, 16), blocks=1, augment=AugmentConfig(shift=0)),
        ),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env="aloha-transfer-cube", episodes=10, final_episodes=100, num_envs=10, rows=10, videos=4),
        record=RecordConfig(
            env="aloha-transfer-cube",
            episodes=60,
            episode_length=300,
            aloha=AlohaRecordConfig(noise_levels=(0.0, 0.01), cameras=("top", "angle")),
        ),
        checkpoint=CheckpointConfig(every=2500),
    )
