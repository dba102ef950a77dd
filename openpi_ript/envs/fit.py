"""Whether a policy can act in its environment, which is asked before anything is trained."""

from chunkwise.envs.environment import Environment
from chunkwise.envs.workers import Reset, Start, answer
from chunkwise.errors import ConfigError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import make
from openpi_ript.robots.adapter import Adapter


def require_fit(config: EnvConfig, robot: RobotConfig, adapter: Adapter) -> None:
    """Makes the environment of the first task, begins an episode, and compares it with the policy's robot.

    The config is the user's own: an environment that it names by `module:factory` is imported.

    Args:
      config: Of the environment.
      robot: Whose state and actions the policy has.
      adapter: The robot's.

    Raises:
      ConfigError: The environment cannot be made, as its task or a camera is unknown, or its state or actions are of
        another width.
      DataError: The adapter takes no state of this width.
    """
    world = make(config, allow_code=True)
    try:
        _compare(world, config, robot, adapter)
    finally:
        world.close()


def _compare(world: Environment, config: EnvConfig, robot: RobotConfig, adapter: Adapter) -> None:
    start = answer(world, Reset(0), every_frame=False, images=False)
    assert isinstance(start, Start)
    width = adapter.simulated_state(policy_state(start.observation, config.state, config.state_function)).shape[-1]
    if width != robot.state_dim:
        raise ConfigError(
            f"env.state {', '.join(config.state)}: expected {robot.state_dim} numbers as data.robot.state_dim says, "
            f"found {width} in {config.suite}; name other arrays, or change data.robot"
        )
    if world.action_dim != robot.action_dim:
        raise ConfigError(
            f"env {config.suite}: expected actions of {robot.action_dim} numbers as data.robot.action_dim says, found "
            f"{world.action_dim}; choose another environment, or data of its robot"
        )
