"""Whether a policy can act in its environment, which is asked before anything is trained."""

from chunkwise.envs.environment import Environment
from chunkwise.envs.failures import require_rgb
from chunkwise.envs.workers import Reset, Start, answer
from chunkwise.errors import ConfigError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import make, names_of
from openpi_ript.robots.adapter import Adapter

MOST = 12
"""Tasks that are looked at one by one: a simulator takes a second or two to make, and of MT50 a start would wait for
minutes. Of more tasks the first stands for all; the others are compared when they are played."""


def require_fit(config: EnvConfig, robot: RobotConfig, adapter: Adapter) -> float:
    """Makes the environment of each task, begins an episode, and compares it with the policy's robot. Of more than
    MOST tasks it is the first one's alone.

    The config is the user's own: an environment that it names by `module:factory` is imported.

    Args:
      config: Of the environment.
      robot: Whose state and actions the policy has.
      adapter: The robot's.

    Returns:
      Steps a second of the first.

    Raises:
      ConfigError: The environment cannot be made, as its task or a camera is unknown, or its state or actions are of
        another width.
      DataError: The adapter takes no state of this width, or a camera is not shown, or not as RGB.
      RunError: A camera gives no image.
    """
    names, rates = names_of(config), []
    for name in names if len(names) <= MOST else names[:1]:
        world = make(config, name, allow_code=True)
        try:
            _compare(world, f"{config.suite} {name}".strip(), config, robot, adapter)
            rates.append(float(world.fps))
        finally:
            world.close()
    return rates[0]


def _compare(world: Environment, where: str, config: EnvConfig, robot: RobotConfig, adapter: Adapter) -> None:
    start = answer(world, Reset(0), every_frame=False, images=bool(config.cameras))
    assert isinstance(start, Start)
    require_rgb(f"env {where}", start.observation, config.cameras.values())
    width = adapter.simulated_state(policy_state(start.observation, config.state, config.state_function)).shape[-1]
    if width != robot.state_dim:
        raise ConfigError(
            f"env.state {', '.join(config.state)}: expected {robot.state_dim} numbers as data.robot.state_dim says, "
            f"found {width} in {where}; name other arrays, or change data.robot"
        )
    if world.action_dim != robot.action_dim:
        raise ConfigError(
            f"env {where}: expected actions of {robot.action_dim} numbers as data.robot.action_dim says, found "
            f"{world.action_dim}; choose another environment, or data of its robot"
        )
