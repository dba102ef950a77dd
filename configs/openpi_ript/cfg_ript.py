"""CFG-RIPT, offline: post-trains a pi0 policy on its own rollouts, recorded as a LeRobot dataset with success flags.

Rollouts that start from the same state are a group (RIPT, arXiv:2505.17016: 8 of them); their leave-one-out advantages
say which actions were better than the policy's average. The loss is CFGRL's (arXiv:2505.23458): the positive branch
imitates those, the branch without condition all of them, with weight 0.1; groups that all succeed or all fail are not
drawn. Acting takes w = 3. Start from the weights that made the rollouts. Not trained to the end yet.

    python launch.py --config configs/openpi_ript/cfg_ript.py --data.path my_rollouts --weights pi0_base \
        --tokenizer paligemma_tokenizer.model
"""

import dataclasses

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import PANDA, AdvantageConfig, DataConfig, GuidanceConfig, OpenpiRiptConfig, full_lora


def get_config() -> OpenpiRiptConfig:
    """The dataset needs next.success or next.reward; name the columns in data.success_key, data.reward_key."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=10_000, batch_size=32),
        optim=OptimConfig(learning_rate=2.5e-5, warmup_steps=500, clip_norm=1.0, beta2=0.95),
        model=dataclasses.replace(full_lora("pi0"), optimality=True),
        data=DataConfig(
            path="datasets/openpi_ript/rollouts",
            robot=PANDA,
            action_norm="mean_std",
            advantage=AdvantageConfig(uniform_groups="drop"),
            read_threads=8,
        ),
        guidance=GuidanceConfig(),
        tokenizer="checkpoints/paligemma_tokenizer.model",
        weights="checkpoints/pi0_base",
        checkpoint=CheckpointConfig(every=1000, keep_period=5000),
    )
