"""One name for an environment, on every command line: `suite/task`, a Gymnasium id, or `module:factory` of one's own.

metaworld/reach-v3   robosuite/Lift   robomimic/can   libero_spatial/0   aloha/AlohaTransferCube   point/red
town/drive
ogbench/cube-single-singletask-task2-v0, or without `ogbench/`
gymnasium/Pendulum-v1 or gymnasium/my_module:MyEnv-v0, or without `gymnasium/`
my_module:make_env   my_module:make_env:task
"""

import importlib
import re

from chunkwise.envs.environment import SUITES, EnvSpec, task_sets
from chunkwise.errors import ConfigError

OGBENCH = ("cube", "scene", "puzzle", "visual")
"""First words of OGBench's manipulation environments, whose names need no suite."""
FORMS = "suite/task (chunkwise list envs), a Gymnasium id, or module:factory of your own"


def split_name(name: str) -> tuple[str, str]:
    """Returns suite and task of an environment's name.

    Raises:
      ConfigError: It has none of the forms.
    """
    head, slash, rest = name.partition("/")
    if slash and head in SUITES and rest:
        return head, rest
    if head in task_sets("libero") and rest:
        return "libero", name
    if re.fullmatch(r"[\w.]+:([\w.-]+/)?[\w.-]+-v\d+", name):  # no attribute of a module has a "-" in its name
        return "gymnasium", name
    module, colon, attribute = name.partition(":")
    if colon and not slash:
        factory, _, task = attribute.partition(":")
        if module and factory:
            return f"{module}:{factory}", task
    if name.split("-")[0] in OGBENCH:
        return "ogbench", name
    if re.fullmatch(r"([\w.-]+/)?[\w.-]+-v\d+", name):
        return "gymnasium", name
    raise ConfigError(f"environment {name!r}: expected {FORMS}")


def spec_named(name: str) -> EnvSpec:
    """Returns what to make of a name that the user gave; a name that a folder brought is not to come here.

    Raises:
      ConfigError: It has none of the forms.
    """
    suite, task = split_name(name)
    return EnvSpec(suite=suite, task=task, allow_code=True)


def known() -> dict[str, str]:
    """Returns names that can be given, each with what it is; nothing is imported that takes long."""
    prompts: dict[str, str] = importlib.import_module("chunkwise.envs.suites.metaworld").PROMPTS
    found = {f"metaworld/{task}": prompt for task, prompt in prompts.items()}
    for suite in ("metaworld", "libero"):
        for name, tasks in task_sets(suite).items():
            found[f"{suite}/{name}"] = f"a set of {len(tasks)} tasks, for env.tasks: {tasks[0]} ... {tasks[-1]}"
    found |= {
        "libero_spatial/0": "LIBERO, by set and number; its package and assets are yours to install",
        "robosuite/Lift": "or Stack, Door, NutAssemblySquare, PickPlaceCan, ...: robosuite's own",
        "robomimic/lift": "or can, square: robosuite's tasks with the state of robomimic's low-dimensional datasets",
        "aloha/AlohaTransferCube": "two arms hand over a cube",
        "aloha/AlohaInsertion": "two arms put a peg into a socket",
        "ogbench/cube-single-singletask-task2-v0": "or scene-, puzzle-3x3-, cube-double-...: OGBench's single tasks",
        "point/red": "a point that is to move to a disc, or point/blue: needs no simulator",
        "town/drive": "a car drives through a town by waypoints: for inspect; driving evaluates --closed-loop",
        "gymnasium/ID": "any of Gymnasium's with continuous actions, by its id, or module:id",
        "module:factory": "your own (docs/extend.md)",
    }
    return found
