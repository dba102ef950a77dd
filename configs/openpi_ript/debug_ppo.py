"""RIPT with PPO on the flow's own likelihood, in a minute on a CPU: demonstrations, imitation, rounds, evaluation.

Reaches nothing worth a figure: it exists for tests, and to see every file of a run folder once. The demonstrations and
the environment are those of debug_ript.py; the policy acts without guidance.

    python launch.py --config configs/openpi_ript/debug_ppo.py
"""

import dataclasses

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    DataConfig,
    EnvConfig,
    EvalConfig,
    OpenpiRiptConfig,
    PpoConfig,
    RecordConfig,
    RobotConfig,
    RolloutConfig,
    toy,
)

PATH = "datasets/openpi_ript/debug_ript"


def get_config() -> OpenpiRiptConfig:
    """State only: 60,000 weights beside an image encoder that sees nothing, chunks of 8, groups of 4; four passes over
    the chunks of a round."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=400, batch_size=32, log_every=20, updates_per_call=10, eval_every=300),
        optim=OptimConfig(learning_rate=2e-3, warmup_steps=10, clip_norm=1.0),
        model=dataclasses.replace(toy("pi0"), image_size=14),
        data=DataConfig(
            path=PATH,
            robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3),
            cameras={},
            horizon=8,
            action_norm="mean_std",
        ),
        tokenizer=f"{PATH}/tokenizer.model",
        record=RecordConfig(groups=16, rollouts=4, prompted=("red",)),
        env=EnvConfig(
            suite="point",
            task="red",
            prompt="move to the red disc",
            max_steps=24,
            state=("position",),
            execute=4,
            num_envs=2, rows=1,
        ),
        rollout=RolloutConfig(
            start=300, updates=20, groups=4, max_groups=8, size=4, initial_states=40, retry_after=40,
            objective="ppo", ppo=PpoConfig(learning_rate_scale=0.05),
        ),
        eval=EvalConfig(episodes=20, final_episodes=40),
        checkpoint=CheckpointConfig(every=50),
    )  # fmt: skip
