"""RIPT on robosuite's Lift from images: two cameras of 84 x 84 and the arm's own state, the cube is only seen.

The images' encoder starts from nothing. One seed, 100 held-out initial states: 36 % (27 to 46) after 500 supervised
updates on 150 demonstrations, 62 % (52 to 71) after 6 rounds. 36 minutes on two busy CPU cores, of which 8 recorded the
demonstrations; most of the rest is rendering.

    python launch.py --config configs/openpi_ript/ript_lift_images.py
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

PATH = "datasets/openpi_ript/lift-images"
GEMMA = GemmaConfig(width=64, depth=2, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
VISION = SiglipConfig(width=64, depth=2, mlp_dim=128, num_heads=4)
CAMERAS = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")

ROBOT = RobotConfig(state_dim=9, target_state_dim=9)
MODEL = ModelConfig(
    kind="pi0", vision=VISION, language=GEMMA, expert=GEMMA, vocab_size=512, image_size=84, action_dim=9,
    action_horizon=8, prompt_tokens=16, optimality=True, dtype="float32", remat=False,
)  # fmt: skip
ENV = EnvConfig(
    suite="robosuite", task="Lift", prompt="lift the red cube", max_steps=60, execute=4, state=STATE,
    cameras={"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}, rendering="fast",
)  # fmt: skip


def get_config() -> OpenpiRiptConfig:
    """Both cameras of the specification's layer 4."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=1400, batch_size=64, ema_decay=0.98, log_every=50, updates_per_call=10, eval_every=500),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=100, clip_norm=1.0),
        model=MODEL,
        data=DataConfig(
            path=PATH, robot=ROBOT, cameras=CAMERAS, image_size=(84, 84), horizon=8, action_norm="mean_std"
        ),
        guidance=GuidanceConfig(sample_steps=5, scale=2.0),
        tokenizer=f"{PATH}/tokenizer.model",
        demonstrate=DemonstrateConfig(episodes=150, noise=(0.2,)),
        env=ENV,
        rollout=RolloutConfig(start=500, updates=150, groups=6, max_groups=8, retry_after=300, replay_rounds=2),
        eval=EvalConfig(episodes=100, final_episodes=100, videos=9),
        checkpoint=CheckpointConfig(every=100, keep_period=500),
    )
