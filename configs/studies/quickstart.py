"""The quickstart three times over: Q-chunking beside behaviour cloning on the same data, three seeds.

chunkwise study quickstart --out studies/quickstart
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Each run evaluates its policy and the twin that only imitates, on 100 episodes each."""
    return StudyConfig(config="qchunk/cube_single", seeds=(0, 1, 2), policies=("behaviour_cloning", "policy"))
