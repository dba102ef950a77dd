"""robomimic's tasks in robosuite: what its low-dimensional datasets hold, one array of all that a policy sees.

Lift, PickPlaceCan and NutAssemblySquare of one Panda moved by OSC_POSE, as robomimic's files of version 1.5 name them
in their env_args; `lift`, `can` and `square` are the names of its datasets. As Q-chunking's code has it
(arXiv:2507.07969): an episode ends at its first success, or is cut after 300 steps, of square after 400. The reward is
1 at a success and 0 before, as in the files; that code takes 1 off both.
"""

from typing import Any

import numpy as np
from jaxtyping import Float32, Float64

from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.robosuite import RobosuiteEnv
from chunkwise.errors import ConfigError

TASKS = {"lift": ("Lift", 300), "can": ("PickPlaceCan", 300), "square": ("NutAssemblySquare", 400)}
"""robosuite's name of each, and steps until an episode is cut."""
KEYS = ("object-state", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""What a state is made of, in the order of qchunk/converters/robomimic.py; robomimic calls the first `object`."""


class RobomimicEnv(RobosuiteEnv):
    """One of robomimic's tasks. An observation has the arrays `state` and `qpos`, which are the same."""

    def __init__(self, spec: EnvSpec) -> None:
        """Loads the task. Raises ConfigError as RobosuiteEnv, or if robomimic has no such task here."""
        if spec.task not in TASKS:
            raise ConfigError(f"robomimic/{spec.task}: expected one of {', '.join(TASKS)}")
        if spec.cameras:
            raise ConfigError(
                f"robomimic/{spec.task} shows no images here, and {', '.join(spec.cameras)} are asked for"
            )
        name, self._most = TASKS[spec.task]
        super().__init__(EnvSpec(suite="robosuite", task=name, video=spec.video, rendering=spec.rendering))
        self._steps = 0

    def reset(self, seed: int) -> Observation:
        self._steps = 0
        return super().reset(seed)

    def reset_to(self, state: Float64[np.ndarray, " d"]) -> Observation:
        """Starts an episode in a row of a file's `states`, as RobosuiteEnv."""
        self._steps = 0
        return super().reset_to(state)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        step = super().step(action)
        self._steps += 1
        return Step(
            step.observation,
            float(step.success),
            step.success,
            terminated=step.success,
            truncated=self._steps >= self._most,
        )

    def _observe(self, shown: dict[str, Any]) -> Observation:
        seen = super()._observe(shown)
        state = np.concatenate([seen[key] for key in KEYS])
        return {"qpos": state, "state": state}
