"""Waypoints from three cameras, speed, yaw rate and route command, from scratch or from a pretrained encoder, on a CPU.

python launch.py --config configs/driving/waypoints.py
python launch.py --config configs/driving/waypoints.py --waypoints.weights runs/driving-pretrain
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import AHEAD, AugmentConfig, DataConfig, DrivingConfig, EvalConfig, RecordConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """240 drives of 20 s, 204 of them for training and 24 for the table.

    How the last second went is no input: who knows it goes on with what it did, its own errors too (arXiv:1905.11979).

    After 100 updates of warm-up the first full steps of one seed in four drove the encoder's scene, for every image
    alike, to where GELU is flat, and it never learnt to see; after 500 all of five seeds tried did.
    """
    return DrivingConfig(
        train=TrainConfig(steps=6000, batch_size=16, log_every=100),
        data=DataConfig(
            path="datasets/driving/town",
            cameras=AHEAD,
            waypoint_steps=30,
            val_fraction=0.05,
            test_fraction=0.1,
            augment=AugmentConfig(brightness=0.2, contrast=0.2, saturation=0.2, camera_dropout=0.05, flip=0.5),
            read_threads=2,
            index_processes=0,
        ),
        waypoints=WaypointConfig(use_past=False),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=500, clip_norm=1.0),
        eval=EvalConfig(every=3),
        record=RecordConfig(cameras=AHEAD, episodes=240),
        checkpoint=CheckpointConfig(every=2000),
    )
