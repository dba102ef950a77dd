"""QC-FQL on your own ALOHA-layout HDF5 folder, from cameras and joints: chunks of 50 actions, for a GPU.

Chunks of 50 and the sizes are those of aloha_sim_images.py, which has not been trained yet: no figure is promised. From
states and with layers of 512, alpha 5000 and about as many updates, chunks of 20 reached 35 % and chunks of 50 38 %
(docs/aloha_sim.md).

Name your cameras: those of /observations/images that `python -m qchunk.inspect path/to/episodes` lists. Critic, flow
and one-step policy have encoders of their own, a residual network a camera. Recorders that hand RGB to OpenCV, as
ALOHA's do, need --data.jpeg-channels bgr.

    python launch.py --config configs/qchunk/own_data_images.py --data.path path/to/episodes \
        --data.cameras cam_high cam_left_wrist cam_right_wrist
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from qchunk.config import AgentConfig, AugmentConfig, DataConfig, EncoderConfig, QChunkConfig


def get_config() -> QChunkConfig:
    """Three cameras at 120 x 160 take 173 kB a frame: two pools of 32 episodes of 400 frames 4.4 GB."""
    return QChunkConfig(
        train=TrainConfig(steps=200_000, batch_size=256, updates_per_call=10, log_every=1000, eval_every=10_000),
        data=DataConfig(
            path="episodes",
            cameras=("cam_high", "cam_left_wrist", "cam_right_wrist"),
            image_size=(120, 160),
            action_norm="min_max",
            observation_norm="quantile",
            holdout=0.1,
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
        checkpoint=CheckpointConfig(every=10_000),
    )
