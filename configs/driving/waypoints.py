"""Waypoints from five cameras, ego state and route command, from scratch or from a pretrained encoder, on a CPU.

python launch.py --config configs/driving/waypoints.py
python launch.py --config configs/driving/waypoints.py --waypoints.weights runs/driving-pretrain
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import AugmentConfig, DataConfig, DrivingConfig, EvalConfig, RecordConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """44 drives of 30 s, 29 of them for training and 11 for the table."""
    return DrivingConfig(
        train=TrainConfig(steps=3000, batch_size=16, log_every=100),
        data=DataConfig(
            path="datasets/driving/town",
            val_fraction=0.1,
            test_fraction=0.25,
            augment=AugmentConfig(brightness=0.2, contrast=0.2, saturation=0.2, camera_dropout=0.05, flip=0.5),
            read_threads=2,
        ),
        waypoints=WaypointConfig(),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=100, clip_norm=1.0),
        eval=EvalConfig(every=3),
        record=RecordConfig(),
        checkpoint=CheckpointConfig(every=1000),
    )
