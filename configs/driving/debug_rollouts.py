"""Reinforcement in closed loop in seconds on a CPU: imitates the drives of debug.py, then drives between updates.

Reaches nothing, and sees nothing, so that no image is rendered: for tests, for the kill harness, and to see every file
of such a run folder once.

    python launch.py --config configs/driving/debug_rollouts.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import DataConfig, DrivingConfig, EvalConfig, RecordConfig, RolloutConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """Two rounds of two routes, two drives of 1.5 s from each: within 3 s all leave the road, which teaches nothing."""
    return DrivingConfig(
        train=TrainConfig(steps=40, batch_size=8, log_every=10, updates_per_call=5),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=10, clip_norm=1.0),
        data=DataConfig(path="datasets/driving/debug", image_size=(32, 48), val_fraction=0.25, test_fraction=0.25),
        waypoints=WaypointConfig(use_cameras=False, hidden_sizes=(32,), modes=3),
        rollout=RolloutConfig(start=20, updates=10, routes=4, groups=2, size=2, seconds=1.5),
        eval=EvalConfig(split="test", every=5, blind_updates=100, plotted_moments=1),
        record=RecordConfig(episodes=4, seconds=4.0, image_size=(32, 48), processes=1),
        checkpoint=CheckpointConfig(every=5),
    )
