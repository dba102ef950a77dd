"""Meta-World's MT10 from one camera of 84 x 84 and the hand's place: object and goal are only seen.

The tasks and demonstrations of metaworld_mt10.py. The images' encoder starts from nothing. Failures are not imitated
in hindsight, which would have to show another goal in images that are recorded, and rollouts do not explore. Needs
Meta-World (make env). As far as it was run: docs/ript.md.

    python launch.py --config configs/openpi_ript/metaworld_mt10_images.py
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    DataConfig,
    DemonstrateConfig,
    EnvConfig,
    EvalConfig,
    GemmaConfig,
    ModelConfig,
    OpenpiRiptConfig,
    RobotConfig,
    RolloutConfig,
    SiglipConfig,
)

PATH = "datasets/openpi_ript/metaworld-mt10-images"
GEMMA = GemmaConfig(width=64, depth=2, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
VISION = SiglipConfig(width=64, depth=2, mlp_dim=128, num_heads=4)
ROBOT = RobotConfig(state_dim=4, target_state_dim=4, action_dim=4)
MODEL = ModelConfig(
    kind="pi0", vision=VISION, language=GEMMA, expert=GEMMA, vocab_size=512, image_size=84, action_dim=4,
    action_horizon=8, prompt_tokens=32, dtype="float32", remat=False,
)  # fmt: skip
ENV = EnvConfig(
    suite="metaworld", tasks=("MT10",), max_steps=200, state=("hand",), cameras={"base_0_rgb": "corner2"},
    num_envs=8, rows=4,
)  # fmt: skip
ROLLOUT = RolloutConfig(
    start=400, updates=160, groups=80, max_groups=80, size=4, tasks="need", replay_rounds=100, rows="tasks",
    dataset_share=0.25, objective="rejection",
)  # fmt: skip


def get_config() -> OpenpiRiptConfig:
    """corner2 is also the camera of LeRobot's recordings of Meta-World."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=1200, batch_size=64, ema_decay=0.98, log_every=50, updates_per_call=10, eval_every=400),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=50, clip_norm=1.0),
        model=MODEL,
        data=DataConfig(
            path=PATH, robot=ROBOT, cameras={"base_0_rgb": "observation.images.base"}, image_size=(84, 84), horizon=8,
            action_norm="mean_std",
        ),
        tokenizer=f"{PATH}/tokenizer.model",
        demonstrate=DemonstrateConfig(episodes=10, noise=(0.0,), keep_failures=False),
        env=ENV,
        rollout=ROLLOUT,
        eval=EvalConfig(episodes=200, final_episodes=200, videos=10),
        checkpoint=CheckpointConfig(every=200, keep_period=400),
    )  # fmt: skip
