"""The whole way with two cameras, in about a minute on a CPU: records four short episodes, trains, evaluates, renders.

Reaches nothing: for tests, and to see every file of such a run once. It has to render (MUJOCO_GL=egl or osmesa).

    python launch.py --config configs/qchunk/debug_images.py
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

CAMERAS, SIZE = ("top", "angle"), (64, 64)


def get_config() -> QChunkConfig:
    """The recordings are cut after 40 frames, so that all of them are failures."""
    return QChunkConfig(
        train=TrainConfig(steps=40, batch_size=8, log_every=10, updates_per_call=5),
        data=DataConfig(
            path="datasets/qchunk/debug-images",
            cameras=CAMERAS,
            image_size=SIZE,
            episodes_per_epoch=4,
            steps_per_epoch=20,
            positive_ratio=0.0,
            action_norm="quantile",
            observation_norm="quantile",
        ),
        agent=AgentConfig(
            horizon=25,
            hidden_sizes=(32, 32),
            flow_steps=2,
            encoder=EncoderConfig(
                widths=(8, 16),
                blocks=1,
                feature_size=16,
                share_cameras=True,
                augment=AugmentConfig(shift=3, brightness=0.2, contrast=0.2, saturation=0.2),
            ),
        ),
        eval=EvalConfig(
            env="aloha-transfer-cube", episodes=2, final_episodes=2, num_envs=2, rows=2, render_size=SIZE, videos=1
        ),
        record=RecordConfig(
            env="aloha-transfer-cube",
            episodes=4,
            episode_length=40,
            aloha=AlohaRecordConfig(cameras=CAMERAS, image_size=SIZE),
        ),
        optim=OptimConfig(warmup_steps=10),
        checkpoint=CheckpointConfig(every=20),
    )
