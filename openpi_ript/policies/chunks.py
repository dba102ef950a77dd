"""What a pi0 policy would do in recordings or rollouts, for a page that shows it (chunkwise/view)."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from chunkwise.errors import ConfigError, DataError
from chunkwise.files import trust
from chunkwise.view.chunks import PolicyChunks, Sight
from openpi_ript.data.recordings import LeRobotRecordings
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.policies.policy import Policy
from openpi_ript.ript.recordings import RolloutRecordings
from openpi_ript.robots.adapter import find_adapter


def policy_chunks(
    policy: Any, name: str, recordings: LeRobotRecordings | RolloutRecordings, *, allow_code: str | None
) -> PolicyChunks:
    """Makes what a page asks.

    Args:
      policy: Of --policy.
      name: Of its run.
      recordings: In which it is asked.
      allow_code: `module:function` that the policy's run names, and that the user trusts.

    Raises:
      ConfigError: The policy is another package's, or the rollouts' run names code for its state.
    """
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"--policy is {name}, a {type(policy).__name__}; expected a run of openpi_ript for these data. A run of "
            "qchunk is shown on HDF5 episodes: python -m qchunk.convert makes them of a LeRobot dataset"
        )
    make = _in_dataset if isinstance(recordings, LeRobotRecordings) else functools.partial(_in_rollouts, allow_code)
    return PolicyChunks(policy, name, make(policy, recordings))  # pyright: ignore[reportArgumentType]


def _in_dataset(policy: Policy, recordings: LeRobotRecordings) -> Callable[[int, int], Sight]:
    """As the policy's config reads a dataset."""
    data = policy.config.data
    content = functools.lru_cache(2)(recordings.open)
    parts = data.state_parts or (data.state_key,)

    def sight(episode: int, frame: int) -> Sight:
        columns = content(episode).columns
        if missing := [key for key in (*parts, data.action_key) if key not in columns]:
            raise DataError(
                f"{recordings.names[episode]}: expected the columns {missing}, as data.state_key, data.state_parts and "
                f"data.action_key of the policy say, found {sorted(columns)}"
            )
        if frame >= len(columns[data.action_key]):
            raise DataError(f"{recordings.names[episode]}: expected one of its frames, found {frame}")
        images = {name: recordings.pixels(episode, key, frame) for name, key in data.cameras.items()}
        state = np.concatenate([np.ravel(columns[key][frame]).astype(np.float32) for key in parts])
        done = columns[data.action_key][frame:]
        return Sight(
            observation={"image": images, "state": state, "prompt": recordings.task(episode, frame)},
            over=data.action_key,
            recorded=done.reshape(len(done), -1).astype(np.float32),
        )

    return sight


def _in_rollouts(allow_code: str | None, policy: Policy, recordings: RolloutRecordings) -> Callable[[int, int], Sight]:
    """As the collector of the rollouts' run shows the environment to its policy."""
    env, name = recordings.config.env, policy.config.data.robot.adapter
    if env is None:
        raise ConfigError(f"{recordings.title}: expected env in the run's config, which says what is seen, found none")
    if ":" in env.state_function:
        trust.refuse_code(f"{recordings.title}: env.state_function is {env.state_function!r}; --policy cannot be asked")
    adapter = find_adapter(name, allow_code=name == allow_code)

    def sight(episode: int, frame: int) -> Sight:
        rollout = recordings.read(episode)
        if frame > rollout.length:
            raise DataError(f"{recordings.names[episode]}: expected a frame below {rollout.length + 1}, found {frame}")
        shown = {key: x[frame] for key, x in rollout.observations.items()}
        if missing := sorted(set(env.cameras.values()) - set(shown)):
            raise DataError(
                f"{recordings.names[episode]}: expected {missing} as env.cameras says, found {sorted(shown)}"
            )
        images = {name: adapter.simulated_image(shown[key]) for name, key in env.cameras.items()}
        state = adapter.simulated_state(policy_state(shown, env.state, env.state_function))
        return Sight(
            observation={"image": images, "state": state, "prompt": rollout.prompt},
            over="action",
            recorded=rollout.actions[frame:],
        )

    return sight
