"""Pretrains the encoder of three cameras on drives without labels: contrast over cameras and time, and ego-motion.

python launch.py --config configs/driving/pretrain.py --run.dir runs/driving-pretrain
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import AHEAD, AugmentConfig, DataConfig, DrivingConfig, EvalConfig, ObjectiveConfig, RecordConfig


def get_config() -> DrivingConfig:
    """Pairs of moments a second apart. The masked objective is off: it would triple the time of an update."""
    return DrivingConfig(
        train=TrainConfig(steps=1000, batch_size=16, log_every=50),
        data=DataConfig(
            path="datasets/driving/town",
            cameras=AHEAD,
            offsets_s=(0.0, 1.0),
            incomplete="drop",
            val_fraction=0.05,
            test_fraction=0.1,
            augment=AugmentConfig(brightness=0.3, contrast=0.3, saturation=0.3, camera_dropout=0.05, flip=0.5),
            read_threads=2,
            index_processes=0,
        ),
        objective=ObjectiveConfig(cross_camera=0.2, temporal=0.2, ego_motion=1.0),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=50, clip_norm=1.0),
        eval=EvalConfig(every=3),
        record=RecordConfig(cameras=AHEAD, episodes=240),
        checkpoint=CheckpointConfig(every=500),
    )
