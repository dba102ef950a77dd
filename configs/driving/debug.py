"""The whole way in seconds on a CPU: records four short drives if they are missing, learns waypoints, evaluates, saves.

Reaches nothing: it exists for tests, for the kill harness, and to see every file of a run folder once.

    python launch.py --config configs/driving/debug.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import ConvConfig, DataConfig, DrivingConfig, EvalConfig, ModelConfig, RecordConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """Settings small enough for one CPU core: images of 32 x 48, drives of 4 s."""
    return DrivingConfig(
        train=TrainConfig(steps=100, batch_size=8, log_every=10, eval_every=50, updates_per_call=5),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=10, clip_norm=1.0),
        data=DataConfig(path="datasets/driving/debug", image_size=(32, 48), val_fraction=0.25, test_fraction=0.25),
        model=ModelConfig(conv=ConvConfig(channels=(8, 16, 16)), camera_width=16, scene_width=32),
        waypoints=WaypointConfig(hidden_sizes=(32,)),
        eval=EvalConfig(split="test", every=5, blind_updates=100, plotted_moments=1),
        record=RecordConfig(episodes=4, seconds=4.0, image_size=(32, 48), processes=1),
        checkpoint=CheckpointConfig(every=50),
    )
