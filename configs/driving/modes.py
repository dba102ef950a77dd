"""Three trajectories with probabilities: what reinforcement in closed loop begins with, on a CPU.

python launch.py --config configs/driving/modes.py --run.dir RUN
python launch.py --config configs/driving/modes.py --waypoints.weights RUN --rollout.start 0 --rollout.weight 3 \
    --train.steps 800 --optim.learning-rate 1e-4 --optim.warmup-steps 100
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from driving.config import AHEAD, AugmentConfig, DataConfig, DrivingConfig, EvalConfig, RecordConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """configs/driving/waypoints.py with three modes and a third more updates; docs/driving_results.md has both."""
    return DrivingConfig(
        train=TrainConfig(steps=8000, batch_size=16, log_every=100),
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
        waypoints=WaypointConfig(use_past=False, modes=3),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=500, clip_norm=1.0),
        eval=EvalConfig(every=3),
        record=RecordConfig(cameras=AHEAD, episodes=240),
        checkpoint=CheckpointConfig(every=2000),
    )
