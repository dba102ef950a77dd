"""Meta-World's MT10 by rejection with hindsight, guidance, labels by a value, PPO, and imitation alone, three seeds.

    chunkwise study metaworld_mt10 --out studies/metaworld_mt10

15 runs of configs/openpi_ript/metaworld_mt10.py from the same demonstrations, with as many updates, as many groups a
round and the same 200 held-out initial states, 20 of each task. Failures are imitated in hindsight by rejection alone,
and PPO explores by its own noise; so what differs is the whole method. Not run whole: no figure is promised.
"""

from chunkwise.config.study import StudyConfig

GUIDED = (
    "--model.optimality --guidance.scale 2 --guidance.sample-steps 5 --rollout.objective guided "
    "--rollout.hindsight None"
)
PPO = (
    "--rollout.objective ppo --rollout.hindsight None --rollout.exploration None --rollout.rows frames "
    "--rollout.replay-rounds 1 --rollout.dataset-share 0 --rollout.ppo.learning-rate-scale 0.007"
)
METHODS = {
    "rejection": "",
    "guidance": GUIDED,
    "value": f"{GUIDED} --guidance.labels value",
    "ppo": PPO,
    "control": "--rollout.dataset-share 1",
}


def get_study() -> StudyConfig:
    """Others are tested against rejection."""
    return StudyConfig(
        config="openpi_ript/metaworld_mt10", seeds=(0, 1, 2), grid={"method": METHODS}, flags=("--eval.videos", "0")
    )
