"""The environment that a config names: one of the suites, the simulated point, or the user's own."""

from chunkwise.envs import environment
from chunkwise.envs.environment import Environment, EnvSpec
from openpi_ript.config.rollouts import EnvConfig

POINT = "openpi_ript.envs.point:PointEnv"


def spec_of(config: EnvConfig, *, allow_code: bool = False) -> EnvSpec:
    """Returns what a config asks of an environment.

    Args:
      config: Which task, and what is observed.
      allow_code: Whether the user named `module:factory`, if that is what env.suite is.

    Raises:
      ConfigError: env.suite is unknown, or code that the user did not name.
    """
    spec = EnvSpec(
        suite=POINT if config.suite == "point" else config.suite,
        task=config.task,
        cameras=tuple(sorted(set(config.cameras.values()))),
        image_size=config.image_size,
        rendering=config.rendering,
        allow_code=allow_code or config.suite == "point",
    )
    environment.require_allowed(spec)
    return spec


def make(config: EnvConfig, *, allow_code: bool = False) -> Environment:
    """Makes the environment of a config, with the arguments and errors of `spec_of` and `environment.make`."""
    return environment.make(spec_of(config, allow_code=allow_code))
