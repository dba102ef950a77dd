"""Reward and termination of episodes that were recorded without: from a label, or from an OGBench task.

For a task the reward is OGBench's own function: minus the number of objects that are not at their goal, in
-objects .. 0, or with data.sparse 0 where none is missing and -1 elsewhere. A frame at which all are there terminates.
Both are timed by the state *before* the action, as OGBench
1.2 times its single-task environments (success_timing='pre'), so training and evaluation agree. OGBench,
arXiv:2410.20092.
"""

import functools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64

from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites import ogbench
from chunkwise.errors import ConfigError, DataError


def labelled_outcome(
    reward: Float64[np.ndarray, " T"] | None,
    terminated: Bool[np.ndarray, " T"] | None,
    length: int,
    positive: bool,
    success_reward: float | None = None,
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Completes what a file holds of reward and termination.

    Without a reward, a positive episode earns 1 at its last frame, a negative one nothing, and both end terminated.
    With a reward but no termination the episode ends terminated if its last reward is that of success; else it counts
    as cut off by time, and nothing in it is terminated.

    Args:
      reward: Of the file, or None.
      terminated: Of the file, or None.
      length: T, at least 1.
      positive: The episode's label.
      success_reward: That ends an episode; None: none does.
    """
    if terminated is None:
        terminated = np.zeros(length, bool)
        terminated[-1] = reward is None or reward[-1] == success_reward
    if reward is None:
        reward = np.zeros(length, np.float64)
        reward[-1] = float(positive)
    return reward, terminated


def base_env(task: str) -> str:
    """Environment without a task, e.g. cube-single-v0 for cube-single-play-singletask-task2-v0.

    Raises:
      ConfigError: The name is not that of a single-task environment.
    """
    words = task.split("-")
    if "singletask" not in words[1:-1]:
        raise ConfigError(f"data.task is {task!r}; expected an OGBench task like cube-single-play-singletask-task2-v0")
    scene = [word for word in words[: words.index("singletask")] if word not in ("play", "noisy")]
    return "-".join([*scene, words[-1]])


def needs_buttons(task: str) -> bool:
    """Whether the task's success depends on buttons, whose states must be in the file beside the joints."""
    return "scene" in task or "puzzle" in task


@functools.cache
def single_task(task: str, *, sparse: bool = False) -> "SingleTask":
    """The task of this name; made once a process. `sparse` as in SingleTask.

    Raises:
      ConfigError: The simulator is not installed, or has no such task.
    """
    return SingleTask(task, sparse=sparse)


class SingleTask:
    """One task's reward for recorded simulator states. Makes the environment once (about 1 s)."""

    def __init__(self, task: str, *, sparse: bool = False) -> None:
        """Makes and resets the environment, which fixes the goal.

        Args:
          task: By OGBench's name of it, or of a dataset for it.
          sparse: Whether the reward is 0 where the task is done and -1 elsewhere.

        Raises:
          ConfigError: The simulator is not installed, or has no such task.
        """
        env = ogbench.make(EnvSpec(suite="ogbench", task=task))
        env.reset(0)
        self._name, self._sparse = env.gym.spec.id, sparse
        self._goal = _ResetEnv(env.gym.unwrapped)

    def relabel(
        self, sim_qpos: Float[np.ndarray, "T q"], button_states: np.ndarray | None
    ) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
        """Reward and termination of each frame.

        Args:
          sim_qpos: MuJoCo's qpos before each action, of the whole scene.
          button_states: [T, buttons], for scene and puzzle tasks.

        Raises:
          DataError: The states are not of this task's scene.
        """
        expected = self._goal.unwrapped.model.nq
        if sim_qpos.shape[1] != expected:
            raise DataError(
                f"simulator state of {sim_qpos.shape[1]} numbers; {self._name} has {expected}: "
                "data.task must name a task of the recorded environment"
            )
        from ogbench.relabel_utils import relabel_dataset

        frames: dict[str, Any] = {"qpos": sim_qpos}
        if button_states is not None:
            frames["button_states"] = button_states
        relabel_dataset(self._name, self._goal, frames)
        reward = ogbench.sparse_reward(frames["rewards"]) if self._sparse else frames["rewards"]
        return reward.astype(np.float64), frames["masks"] == 0


class _ResetEnv:
    """An environment after its reset. OGBench resets at every call, which takes 10 ms and changes nothing: a single
    task has one goal."""

    def __init__(self, unwrapped: Any) -> None:
        self.unwrapped = unwrapped

    def reset(self) -> None:
        pass
