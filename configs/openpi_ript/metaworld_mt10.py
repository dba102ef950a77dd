"""RIPT on ten tasks at once: Meta-World's MT10, one small policy that is told each task in words.

Meta-World's scripted experts show each task once; a pi0-style policy of 200,000 weights, state only, imitates them;
rounds of rollouts follow, more of the tasks that fail (RIPT, arXiv:2505.17016, by rejection), most of them led astray
for their first steps: successes are imitated, and failures as successes at the goals that they passed. Needs Meta-World
(make env). What came of it: docs/ript.md.

    python launch.py --config configs/openpi_ript/metaworld_mt10.py
    python launch.py --config configs/openpi_ript/metaworld_mt10.py --rollout.dataset-share 1          # the control
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import (
    DataConfig,
    DemonstrateConfig,
    EnvConfig,
    EvalConfig,
    ExplorationConfig,
    GemmaConfig,
    HindsightConfig,
    ModelConfig,
    OpenpiRiptConfig,
    RobotConfig,
    RolloutConfig,
    SiglipConfig,
)  # fmt: skip

PATH = "datasets/openpi_ript/metaworld-mt10-differences"
GEMMA = GemmaConfig(width=64, depth=2, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
VISION = SiglipConfig(width=16, depth=1, mlp_dim=16, num_heads=1)
ROBOT = RobotConfig(state_dim=14, target_state_dim=14, action_dim=4)
MODEL = ModelConfig(
    kind="pi0", vision=VISION, language=GEMMA, expert=GEMMA, vocab_size=512, image_size=14, action_dim=14,
    action_horizon=8, prompt_tokens=32, dtype="float32", remat=False)  # fmt: skip
ENV = EnvConfig(
    suite="metaworld", tasks=("MT10",), max_steps=200, num_envs=8, rows=4, state=("hand", "object", "goal"),
    state_function="differences")  # fmt: skip
HINDSIGHT = HindsightConfig(  # what comes to each goal that is a place, and how near Meta-World wants it (m)
    reached={"reach-v3": "hand", "push-v3": "object", "pick-place-v3": "object"},
    radius={"reach-v3": 0.05, "push-v3": 0.05, "pick-place-v3": 0.07}, places="passed")  # fmt: skip
EXPLORATION = ExplorationConfig(deviation=(0.5, 0.5, 0.5, 0.0), steps=30, share=0.75, below=0.7)
ROLLOUT = RolloutConfig(
    start=400, updates=300, groups=160, max_groups=160, size=4, tasks="need", replay_rounds=100, rows="need",
    dataset_share=0.25, objective="rejection", exploration=EXPLORATION, hindsight=HINDSIGHT)  # fmt: skip


def get_config() -> OpenpiRiptConfig:
    """State only: the ways between hand, object and goal, the fingers, the object's rotation; no place of its own."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=2800, batch_size=128, ema_decay=0.98, updates_per_call=50, eval_every=400),
        optim=OptimConfig(learning_rate=3e-3, warmup_steps=50, clip_norm=1.0),
        model=MODEL,
        data=DataConfig(path=PATH, robot=ROBOT, cameras={}, horizon=8, action_norm="mean_std"),
        tokenizer=f"{PATH}/tokenizer.model",
        demonstrate=DemonstrateConfig(episodes=10, noise=(0.0,), keep_failures=False),
        env=ENV,
        rollout=ROLLOUT,
        eval=EvalConfig(episodes=200, final_episodes=200, videos=10),
        checkpoint=CheckpointConfig(every=200, keep_period=1000),
    )
