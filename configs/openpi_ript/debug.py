"""The whole way in seconds on a CPU: writes a small synthetic dataset if it is missing, trains CFG-RIPT on it, saves.

Reaches nothing: it exists for tests, for the kill harness, and to see every file of a run folder once. Its data are a
simulated point that moves to one of two discs, half of the episodes to the wrong one (openpi_ript/data/point.py).

    python launch.py --config configs/openpi_ript/debug.py --train.steps 20
"""

import dataclasses

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    AdvantageConfig,
    DataConfig,
    GuidanceConfig,
    OpenpiRiptConfig,
    RecordConfig,
    RobotConfig,
    toy,
)

PATH = "datasets/openpi_ript/debug"


def get_config() -> OpenpiRiptConfig:
    """Settings small enough for one CPU core: 86,000 weights, images of 28 x 28, chunks of 8."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=200, batch_size=16, ema_decay=0.99, log_every=10, updates_per_call=5),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=10, clip_norm=1.0),
        model=dataclasses.replace(toy("pi0"), optimality=True),
        data=DataConfig(
            path=PATH,
            robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3, relative_dims=(0, 1)),
            horizon=8,
            image_size=(28, 28),
            action_norm="mean_std",
            advantage=AdvantageConfig(),
        ),
        guidance=GuidanceConfig(),
        tokenizer=f"{PATH}/tokenizer.model",
        record=RecordConfig(),
        checkpoint=CheckpointConfig(every=50),
    )
