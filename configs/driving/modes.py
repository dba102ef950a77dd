"""Three trajectories with probabilities: what reinforcement in closed loop begins with, on a CPU.

python launch.py --config configs/driving/modes.py --run.dir RUN
python launch.py --config configs/driving/modes.py --waypoints.weights RUN --rollout.start 0 --rollout.weight 3 \
    --train.steps 800 --optim.learning-rate 1e-4
"""

import dataclasses

from configs.driving import waypoints
from driving.config import DrivingConfig, WaypointConfig


def get_config() -> DrivingConfig:
    """configs/driving/waypoints.py with three modes; what both commands came to is in docs/driving.md."""
    return dataclasses.replace(waypoints.get_config(), waypoints=WaypointConfig(use_past=False, modes=3))
