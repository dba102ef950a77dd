"""The quickstart three times over: Q-chunking beside behaviour cloning on the same data, three seeds.

chunkwise study quickstart --out studies/quickstart

23 November 2026, by this command, on two cores beside other programs: 36 min 35 s, 10 to 12 minutes a seed, the
recording of the data in the first:

| | succeeded | 95 % over episodes | by seed |
|---|---|---|---|
| policy | 265 of 300, 88.3 % | 84.2 to 91.5 % | 87, 92, 86 |
| behaviour cloning | 19 of 300, 6.3 % | 4.1 to 9.7 % | 10, 9, 0 |
"""

from chunkwise.config.study import StudyConfig


def get_study() -> StudyConfig:
    """Each run evaluates its policy and the twin that only imitates, on 100 episodes each."""
    return StudyConfig(config="qchunk/cube_single", seeds=(0, 1, 2), policies=("behaviour_cloning", "policy"))
