"""RIPT on ten tasks at once: Meta-World's MT10, one small policy that is told each task in words.

Meta-World's scripted experts show each task once; a pi0-style policy of 205,000 weights, state only, imitates them;
rounds of rollouts follow, of each task equally many (arXiv:2505.17016 with the guided loss of arXiv:2505.23458). Needs
Meta-World (make env). One seed: 41.5 % after the 300 supervised updates, 63.5 % after 9 rounds, 62.0 % by imitation
alone for as long: here the rounds do not beat it yet (docs/ript.md). About 25 s a round on two cores.

    python launch.py --config configs/openpi_ript/metaworld_mt10.py
    python launch.py --config configs/openpi_ript/metaworld_mt10.py --guidance.scale 1 --rollout.objective rejection
    python launch.py --config configs/openpi_ript/metaworld_mt10.py --rollout.dataset_share 1          # the control
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    DataConfig,
    DemonstrateConfig,
    EnvConfig,
    EvalConfig,
    GemmaConfig,
    GuidanceConfig,
    ModelConfig,
    OpenpiRiptConfig,
    RobotConfig,
    RolloutConfig,
    SiglipConfig,
)

PATH = "datasets/openpi_ript/metaworld-mt10"
GEMMA = GemmaConfig(width=64, depth=2, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
VISION = SiglipConfig(width=16, depth=1, mlp_dim=16, num_heads=1)

ROBOT = RobotConfig(state_dim=39, target_state_dim=39, action_dim=4)
MODEL = ModelConfig(
    kind="pi0", vision=VISION, language=GEMMA, expert=GEMMA, vocab_size=512, image_size=14, action_dim=39,
    action_horizon=8, prompt_tokens=32, optimality=True, dtype="float32", remat=False,
)  # fmt: skip


def get_config() -> OpenpiRiptConfig:
    """State only: Meta-World's own 39 numbers, the goal among them."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=3000, batch_size=64, ema_decay=0.98, log_every=50, updates_per_call=50, eval_every=600),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=50, clip_norm=1.0),
        model=MODEL,
        data=DataConfig(path=PATH, robot=ROBOT, cameras={}, horizon=8, action_norm="mean_std"),
        guidance=GuidanceConfig(sample_steps=5, scale=2.0),
        tokenizer=f"{PATH}/tokenizer.model",
        demonstrate=DemonstrateConfig(episodes=10, noise=(0.0,), keep_failures=False),
        env=EnvConfig(
            suite="metaworld", tasks=("MT10",), max_steps=200, state=("state",), execute=8, num_envs=8, rows=4
        ),
        rollout=RolloutConfig(start=300, updates=100, groups=40, max_groups=40, replay_rounds=5, dataset_share=0.5),
        eval=EvalConfig(episodes=200, final_episodes=200, videos=10),
        checkpoint=CheckpointConfig(every=200, keep_period=1000),
    )
