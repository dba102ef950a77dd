"""ALOHA's transfer cube as Q-chunking has it: what is observed, the reward, and the length of an episode."""

import numpy as np
from jaxtyping import Float, Float64

from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites import aloha

NAME = "aloha-transfer-cube"
EPISODE_LENGTH = 400  # steps until an episode is cut, ALOHA's own
(BOX_LOW,), (BOX_HIGH,) = aloha.TASKS["AlohaTransferCube"].low, aloha.TASKS["AlohaTransferCube"].high


def draw_box(rng: np.random.Generator) -> Float64[np.ndarray, "3"]:
    """Draws where the cube starts (m), uniform over ALOHA's 20 x 20 cm."""
    return rng.uniform(BOX_LOW, BOX_HIGH)


class TransferCube(aloha.AlohaEnv):
    """The right arm picks up a cube and hands it to the left arm.

    `qpos` and `qvel` are the 14 joints as ALOHA records them, `state` the joints and the cube's position (m) and
    quaternion, 14 + 7 numbers. No velocities are in it, as in ALOHA's own policies: those that a policy's unsteady
    commands cause are none of the data's. The reward is stage / 4 - 1, within -1 .. 0, so that nothing is gained by
    staying at a lower one.
    """

    def __init__(self, spec: EnvSpec | None = None) -> None:
        """Loads the model (0.1 s, once a process); without a spec there are no images. Errors as AlohaEnv's."""
        given = EnvSpec(suite="aloha") if spec is None else spec
        super().__init__(
            EnvSpec(
                suite="aloha",
                task="AlohaTransferCube",
                cameras=given.cameras,
                image_size=given.image_size,
                render_size=given.render_size,
                shrunk=given.shrunk,
            )
        )
        self._steps = 0

    def reset(self, seed: int) -> Observation:
        return self.reset_to_box(draw_box(np.random.default_rng(seed)))

    def reset_to_box(self, box: Float64[np.ndarray, "3"]) -> Observation:
        """Starts an episode with the cube at a position (m)."""
        return self.reset_to(np.array([*box, *aloha.UPRIGHT]))

    def reset_to(self, objects: Float64[np.ndarray, " p"]) -> Observation:
        self._steps = 0
        return _seen(super().reset_to(objects))

    def step(self, action: Float[np.ndarray, " a"]) -> Step:
        step = super().step(action)
        self._steps += 1
        return Step(
            _seen(step.observation),
            step.reward / aloha.GOAL - 1,
            step.success,
            terminated=step.terminated,
            truncated=self._steps >= EPISODE_LENGTH,
        )


def _seen(observation: Observation) -> Observation:
    state = np.concatenate([observation["qpos"], observation["object-state"]])
    return {"qpos": observation["qpos"], "qvel": observation["qvel"], "state": state}
