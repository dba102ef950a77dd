"""A study in a minute or two: chunks of 1 and of 5 steps, two seeds; it says nothing but that studies work.

chunkwise study debug --out studies/debug
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Four runs of qchunk/debug."""
    flags = ("--train.steps", "40", "--train.eval-every", "20", "--eval.videos", "0")
    return StudyConfig(config="qchunk/debug", seeds=(0, 1), grid={"agent.horizon": ("1", "5")}, flags=flags)
