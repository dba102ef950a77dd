"""RIPT whose rounds are played beside the updates, with the weights of the round before, against rounds that wait.

chunkwise study ript_staleness --out studies/ript_staleness

On the simulated point, three seeds, in minutes: it shows what staleness costs there and that both repeat, not what it
saves, for which the simulator has to be slow and to have cores of its own. A copy of this file with the config
openpi_ript/ript_lift asks the same of robosuite's Lift.
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Six runs of openpi_ript/debug_ript: 300 updates that imitate, then ten rounds of 20."""
    flags = ("--train.steps", "500", "--train.eval-every", "0", "--eval.final-episodes", "100")
    return StudyConfig(
        config="openpi_ript/debug_ript", seeds=(0, 1, 2), grid={"rollout.staleness": ("0", "1")}, flags=flags
    )
