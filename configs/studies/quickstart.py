"""The quickstart three times over: Q-chunking beside behaviour cloning on the same data, three seeds.

chunkwise study quickstart --out studies/quickstart

23 November 2026, the config's command with each seed, on one core beside other programs, the data recorded once:

| | succeeded | 95 % over episodes | by seed |
|---|---|---|---|
| policy | 268 of 300, 89.3 % | 85.3 to 92.3 % | 87, 93, 88 |
| behaviour cloning | 21 of 300, 7.0 % | 4.6 to 10.5 % | 10, 10, 1 |
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Each run evaluates its policy and the twin that only imitates, on 100 episodes each."""
    return StudyConfig(config="qchunk/cube_single", seeds=(0, 1, 2), policies=("behaviour_cloning", "policy"))
