"""RIPT whose rounds are played beside the updates, with the weights of the round before, against rounds that wait.

chunkwise study ript_staleness --out studies/ript_staleness

On the simulated point, three seeds, in minutes: it shows what staleness costs there and that both repeat, not what it
saves, for which the simulator has to be slow and to have cores of its own. A copy of this file with the config
openpi_ript/ript_lift asks the same of robosuite's Lift.

24 November 2026, on two cores that eight other programs kept busy (load about 20), so that their times say nothing:

| | succeeded | 95 % over episodes | by seed | waited for rounds, s |
|---|---|---|---|---|
| rollout.staleness 0 | 185 of 300, 61.7 % | 56.1 to 67.0 % | 56, 35, 94 | 40, 27, 24 |
| rollout.staleness 1 | 227 of 300, 75.7 % | 70.5 to 80.2 % | 74, 53, 100 | 30, 24, 26 |

Seeds differ by more than the two do (p 0.25), so no loss was seen, and no gain is shown.
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Six runs of openpi_ript/debug_ript: 300 updates that imitate, then ten rounds of 20."""
    flags = ("--train.steps", "500", "--train.eval-every", "0", "--eval.final-episodes", "100")
    return StudyConfig(
        config="openpi_ript/debug_ript", seeds=(0, 1, 2), grid={"rollout.staleness": ("0", "1")}, flags=flags
    )
