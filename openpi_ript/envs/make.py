"""The environment that a config names: one of the suites, or the user's own; and its tasks."""

import shlex

from chunkwise.envs import environment
from chunkwise.envs.collect import Task
from chunkwise.envs.environment import Environment, EnvSpec
from chunkwise.errors import ConfigError
from chunkwise.files import trust
from openpi_ript.config.rollouts import EnvConfig

ALLOWED = "env.suite (env.suite@env.python, modules of env.tasks, env.state_function, joined by commas)"
"""What `code_of` is, for the help of a command line."""


def spec_of(config: EnvConfig, *, allow_code: bool = False) -> EnvSpec:
    """Returns what a config asks of an environment; of several tasks, of the first one's.

    Args:
      config: Which task, and what is observed.
      allow_code: Whether the user named `module:factory`, if that is what env.suite is.

    Raises:
      ConfigError: env.suite is unknown; it or env.state_function is code that the user did not name.
    """
    require_own_code(config, allow_code=allow_code)
    spec = EnvSpec(
        suite=config.suite,
        task=names_of(config)[0],
        cameras=tuple(sorted(set(config.cameras.values()))),
        image_size=config.image_size,
        rendering=config.rendering,
        initial_states=config.initial_states,
        python=config.python,
        allow_code=allow_code,
    )
    environment.require_allowed(spec)
    return spec


def code_of(config: EnvConfig) -> str:
    """Returns what a config would run, joined by commas: env.suite, with `@` and its interpreter where it has one of
    its own; the tasks of Gymnasium's that name a module; env.state_function."""
    suite = f"{config.suite}@{config.python}" if config.python else config.suite
    return ",".join([suite, *(value for name, value in _code(config) if name != "suite")])


def require_own_code(config: EnvConfig, *, allow_code: bool) -> None:
    """Raises ConfigError if a config names somebody else's code, with what allows it; `allow_code` as in `spec_of`."""
    code = _code(config)
    if code and not allow_code:
        name, value = code[0]
        message = f"env.{name} is {value!r}, which would import Python code"
        trust.refuse_code(message, f"--allow-env {shlex.quote(code_of(config))}")


def require_own_function(config: EnvConfig, *, allow_code: bool) -> None:
    """Raises ConfigError for a state function of somebody else's where the user named the environment alone."""
    if ":" in config.state_function and not allow_code:
        message = f"env.state_function of the run is {config.state_function!r}, which would import Python code"
        trust.refuse_code(message, f"--allow-env {shlex.quote(config.state_function)}")


def _code(config: EnvConfig) -> list[tuple[str, str]]:
    """The fields that name Python code, with what they name."""
    named = [("suite", config.suite)]
    if config.suite == "gymnasium":
        named += [("task", config.task), *(("tasks", task) for task in config.tasks)]
    return [(name, value) for name, value in [*named, ("state_function", config.state_function)] if ":" in value]


def names_of(config: EnvConfig) -> tuple[str, ...]:
    """Returns the names of a config's tasks, those of a suite's sets in the place of its name.

    Raises:
      ConfigError: A task is named twice.
    """
    if not config.tasks:
        return (config.task,)
    sets = environment.task_sets(config.suite)
    names = [name for given in config.tasks for name in sets.get(given, (given,))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"env.tasks is {config.tasks}, which names {', '.join(twice)} twice; expected each once")
    return tuple(names)


def tasks_of(config: EnvConfig) -> tuple[Task, ...]:
    """Returns the tasks of a config with their prompts and limits, in their order.

    Raises:
      ConfigError: A task has no prompt and its suite knows none, or env.prompts or env.steps name another task.
    """
    names = names_of(config)
    for field in ("prompts", "steps"):
        unknown = sorted(set(getattr(config, field)) - set(names))
        if unknown:
            raise ConfigError(f"env.{field} names {', '.join(unknown)}; env has the tasks {', '.join(names)}")
    return tuple(
        Task(
            name=name,
            prompt=config.prompt or config.prompts.get(name) or environment.prompt_of(config.suite, name),
            max_steps=config.steps.get(name, config.max_steps),
        )
        for name in names
    )


def make(config: EnvConfig, task: str = "", *, allow_code: bool = False) -> Environment:
    """Makes the environment of a config's task, empty for its first one, with the arguments and errors of `spec_of` and
    `environment.make`."""
    return environment.make(spec_of(config, allow_code=allow_code), task)
