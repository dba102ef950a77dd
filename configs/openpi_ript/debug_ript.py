"""RIPT's whole loop in seconds on a CPU: demonstrations, supervised updates, rounds of rollouts, evaluation.

Reaches nothing worth a figure: it exists for tests, for the kill harness, and to see every file of a run folder once.
The environment is the simulated point of openpi_ript/data/point.py, in two worker processes; half of its demonstrations
go to the wrong disc, so that the policy that imitates them succeeds about half of the time.

    python launch.py --config configs/openpi_ript/debug_ript.py
"""

import dataclasses

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    DataConfig,
    EnvConfig,
    EvalConfig,
    GuidanceConfig,
    OpenpiRiptConfig,
    RecordConfig,
    RobotConfig,
    RolloutConfig,
    toy,
)

PATH = "datasets/openpi_ript/debug_ript"


def get_config() -> OpenpiRiptConfig:
    """State only: 60,000 weights beside an image encoder that sees nothing, chunks of 8, groups of 4."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=400, batch_size=32, log_every=20, updates_per_call=10, eval_every=300),
        optim=OptimConfig(learning_rate=2e-3, warmup_steps=10, clip_norm=1.0),
        model=dataclasses.replace(toy("pi0"), optimality=True, image_size=14),
        data=DataConfig(
            path=PATH,
            robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3),
            cameras={},
            horizon=8,
            action_norm="mean_std",
        ),
        guidance=GuidanceConfig(sample_steps=5),
        tokenizer=f"{PATH}/tokenizer.model",
        record=RecordConfig(groups=16, rollouts=4, prompted=("red",)),
        env=EnvConfig(
            suite="point",
            task="red",
            prompt="move to the red disc",
            max_steps=24,
            state=("position",),
            execute=4,
            num_envs=2,
            rows=1,
        ),
        rollout=RolloutConfig(start=300, updates=20, groups=4, max_groups=8, size=4, initial_states=40, retry_after=40),
        eval=EvalConfig(episodes=20, final_episodes=40),
        checkpoint=CheckpointConfig(every=50),
    )
