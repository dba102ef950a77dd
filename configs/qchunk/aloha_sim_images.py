"""ALOHA's simulated cube transfer from two cameras and the joints alone: QC-FQL with chunks of 50, for a GPU.

The cube's pose is not in what the networks see: they find it in the images, rendered at 240 x 320, seen at 120 x 160.
Critic, flow and one-step policy have encoders of their own, a residual network a camera. 132 of 400 episodes fail.
Recording renders 190,000 images at 35 ms: an hour on two cores, once. Not trained yet: no figure is promised.

    MUJOCO_GL=egl python launch.py --config configs/qchunk/aloha_sim_images.py
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

CAMERAS, RENDERED = ("top", "angle"), (240, 320)
SCRIPT = AlohaRecordConfig(noise_levels=(0.0, 0.01, 0.02), cameras=CAMERAS, image_size=RENDERED)


def get_config() -> QChunkConfig:
    """As aloha_sim.py, with longer chunks and wider layers."""
    return QChunkConfig(
        train=TrainConfig(steps=200_000, batch_size=256, updates_per_call=10, log_every=1000, eval_every=25_000),
        data=DataConfig(
            path="datasets/qchunk/aloha-transfer-cube-images",
            cameras=CAMERAS,
            image_size=(120, 160),
            episodes_per_epoch=400,
            steps_per_epoch=25_000,
            memory_gib=24.0,  # two pools of 10.5 GB, decoded: one in use, one that loads
            positive_ratio=0.5,
            action_norm="quantile",
            observation_norm="quantile",
        ),
        agent=AgentConfig(
            horizon=50,
            hidden_sizes=(1024, 1024, 1024),
            alpha=10_000.0,
            flow_predicts="chunk",
            encoder=EncoderConfig(
                widths=(32, 64, 64),
                compute_dtype="bfloat16",
                augment=AugmentConfig(shift=6, brightness=0.2, contrast=0.2, saturation=0.2),
            ),
        ),
        optim=OptimConfig(schedule="cosine", warmup_steps=1000),
        eval=EvalConfig(
            env="aloha-transfer-cube", final_episodes=100, num_envs=10, rows=10, render_size=RENDERED, videos=4
        ),
        record=RecordConfig(env="aloha-transfer-cube", episodes=400, episode_length=300, aloha=SCRIPT),
        checkpoint=CheckpointConfig(every=10_000),
    )
