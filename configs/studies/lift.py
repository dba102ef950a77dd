"""robosuite's Lift by guidance, rejection, PPO, labels by a value, and imitation alone, three seeds.

    chunkwise study lift --out studies/lift

15 runs of configs/openpi_ript/ript_lift.py from the same demonstrations, with as many rounds and updates and the same
100 held-out initial states. docs/ript.md has figures of most of these cells, of an earlier version; as a study they
were not run whole.
"""

from chunkwise.config.study import StudyConfig

ALONE = "--guidance None --model.no-optimality"
METHODS = {
    "guidance": "",
    "rejection": "--guidance.scale 1 --rollout.objective rejection",
    "ppo": f"{ALONE} --rollout.objective ppo --rollout.replay-rounds 1 --rollout.ppo.learning-rate-scale 0.03",
    "value": "--guidance.labels value",
    "control": "--rollout.dataset-share 1",
}


def get_study() -> StudyConfig:
    """The control comes last; the others are tested against guidance."""
    return StudyConfig(
        config="openpi_ript/ript_lift", seeds=(0, 1, 2), grid={"method": METHODS}, flags=("--eval.videos", "0")
    )
