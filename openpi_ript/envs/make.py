"""The environment that a config names."""

from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.protocol import Environment


def make(config: EnvConfig, *, film: bool = False) -> Environment:
    """The environment of a config; its packages are imported only here.

    Args:
      config: Which task, and what is observed.
      film: Whether `picture` is going to be called.

    Raises:
      ConfigError: If a package or its assets are missing, the task is unknown, or the machine cannot render.
    """
    if config.suite == "point":
        from openpi_ript.envs.point import PointEnv

        return PointEnv(config)
    if config.suite == "aloha":
        from openpi_ript.envs.aloha import AlohaEnv

        return AlohaEnv(config)
    from openpi_ript.envs import robosuite

    return robosuite.RobosuiteEnv(config, film=film)
