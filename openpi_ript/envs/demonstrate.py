"""Demonstrations by a script with noisy hands, written as a LeRobot dataset.

An environment that has `expert()` brings its script, as every task of Meta-World does; those of robosuite's tasks are
in scripts.py. What is recorded is what was executed, noise included.

Lift's script sees where the cube is: it goes above it with open fingers, down to it, closes them, and lifts. Without
noise every episode succeeds, in about 35 steps; with 0.2 (1 cm, 0.1 rad a step) 43 of 50 did within 60 steps, with 0.3
3 of 6 within 100. docs/ript.md has the figures of the others.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from chunkwise.cli.progress import follow
from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.collect import Task
from chunkwise.envs.environment import Environment, Observation, copies
from chunkwise.envs.failures import Shapes, require_rgb
from chunkwise.envs.recorder import record_whole
from chunkwise.envs.workers import Reset, Run, Start, Stretch, answer, looked
from chunkwise.errors import ConfigError
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.rollouts import DemonstrateConfig
from openpi_ript.data.lerobot_writer import (
    OWN_DATA,
    Recorded,
    outcome_columns,
    require_one_rate,
    settings_of,
    train_tokenizer,
    write_lerobot,
)
from openpi_ript.data.point import TOKENIZER
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import make, tasks_of
from openpi_ript.envs.scripts import SCRIPTS, Script
from openpi_ript.robots.adapter import Adapter, find_adapter

ROBOSUITE = "robosuite"
MADE_BY = "openpi_ript.envs.demonstrate: a script in "


def demonstrate(config: OpenpiRiptConfig, *, begun: bool = False) -> None:
    """Writes config.data.path if it is missing; one that is there must have been made with the same settings.

    State and images are written as data.robot.adapter has them of what the environment shows, as the policy of a
    rollout is shown them. The config is the user's own: an environment that it names by `module:factory` is imported.

    Args:
      config: Of the run; `demonstrate` and `env` are set.
      begun: Whether the run goes on: it keeps a recording whose noises an earlier version dealt out otherwise.

    Raises:
      ConfigError: If there is no script for the environment, the folder holds anything else, or none of the episodes
        succeeded and failures are not kept.
    """
    settings, env = config.demonstrate, config.env
    assert settings is not None
    assert env is not None
    tasks = tasks_of(env)
    names = ", ".join(task.name for task in tasks if task.name) or env.suite
    panda = env.suite == ROBOSUITE
    of = "robosuite's Lift" if panda and names == "Lift" else f"{env.suite} {names}"
    shown = {key: env.cameras[name] for name, key in config.data.cameras.items()}
    adapter = find_adapter(config.data.robot.adapter, allow_code=True)
    provenance: dict[str, Any] = {"made_by": f"{MADE_BY}{of}"}
    provenance |= dataclasses.asdict(settings)
    provenance |= {"steps": env.steps} if env.steps else {}
    provenance |= {"max_steps": env.max_steps, "state": env.state, "image_size": env.image_size, "cameras": shown}
    provenance |= {"rendering": env.rendering} if shown else {}
    provenance |= {"state_function": env.state_function, "prompts": {task.name: task.prompt for task in tasks}}
    provenance |= {"adapter": "none" if adapter.same_simulation else config.data.robot.adapter}
    noises, before = (noises_of(settings, count) for count in (len(tasks), 1))
    # Written down only where it matters, so that recordings of before are the same in all other cases.
    same = all(sorted(noises[i :: len(tasks)]) == sorted(before[i :: len(tasks)]) for i in range(len(tasks)))
    provenance |= {} if same else {"noise_by": "task"}

    def made(root: Path) -> Mapping[str, Any] | None:
        """What made a dataset; of before these settings were written down, what can be told of them."""
        found = settings_of(root)
        if found is None or not str(found.get("made_by")).startswith(MADE_BY):
            return found
        then = {name: provenance[name] for name in ("state_function", "prompts") if name not in found}
        if "prompts" in then and not {*(told := read_meta(root).tasks.values())} <= {*then["prompts"].values()}:
            then["prompts"] = sorted(told)
        if "state_function" in then:
            print(
                f"{root}: recorded by an earlier version, which did not write down env.state_function: whether it was "
                f"{env.state_function} cannot be told; if not, choose another path",
                flush=True,
            )
        if "noise_by" in provenance and "noise_by" not in found:
            _require_begun(root, begun)
            then["noise_by"] = provenance["noise_by"]
        return {"adapter": "none", **then, **found}

    def write(root: Path) -> str:
        drawn = dataclasses.replace(env, initial_states="")  # the published ones are for groups and evaluations
        worlds = [make(drawn, task.name, allow_code=True) for task in tasks]
        successes: list[bool] = []
        kept: set[str] = set()

        def episodes() -> Iterator[Recorded]:
            count, done = settings.episodes, "demonstrated {count} of {total} episodes"
            for number in follow(range(count), count, "demonstrating", done, rate=None, say=print):
                rng = generator(Purpose.DEMONSTRATION, settings.seed, number)
                task = number % len(tasks)
                frames, actions, success = play(worlds[task], env.suite, tasks[task], noises[number], rng)
                successes.append(success)
                if success or settings.keep_failures:
                    kept.add(tasks[task].name)
                    yield _recorded(frames, actions, success, config, tasks[task], shown, adapter)

        for world, task in zip(worlds, tasks, strict=True):
            require_script(world, env.suite, task)
        require_one_rate({task.name: world.fps for world, task in zip(worlds, tasks, strict=True)})
        parts = {"action": ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]} if panda else {}
        robot = "panda" if panda else env.suite
        write_lerobot(root, episodes(), fps=worlds[0].fps, robot=robot, provenance=provenance, names=parts)
        for world in worlds:
            world.close()
        if not (any(successes) or settings.keep_failures):
            raise ConfigError(
                f"demonstrate: expected an episode that succeeds, found none among {len(successes)} of {names}; allow "
                "more steps (env.max_steps) or episodes, lower demonstrate.noise, or keep_failures"
            )
        if without := [task.name for task in tasks if task.name not in kept]:
            print(
                f"demonstrate: the dataset has no episode of {len(without)} of {len(tasks)} tasks, "
                f"{', '.join(without)}: none of theirs succeeded, or was played; allow them more steps (env.max_steps, "
                "or env.steps by name) or more demonstrate.episodes, in another data.path",
                flush=True,
            )
        (root / TOKENIZER).write_bytes(train_tokenizer([*(task.prompt for task in tasks), "State: -0123456789;"]))
        return f"demonstrated {len(successes)} episodes of {names}, {sum(successes)} of which succeeded"

    record_whole(Path(config.data.path), provenance, write, made, hint=OWN_DATA)


def noises_of(settings: DemonstrateConfig, tasks: int) -> list[float]:
    """Returns the noise of each episode of so many tasks in turn: each task has all of them, one after another."""
    return [settings.noise[number // tasks % len(settings.noise)] for number in range(settings.episodes)]


def _require_begun(root: Path, begun: bool) -> None:
    """Tells a run that goes on, and a new one by a ConfigError, that each task has only some of the noises there."""
    told = (
        f"{root}: recorded by an earlier version, which took demonstrate.noise one after another over all episodes, so "
        "that a task may have had some of the noises alone"
    )
    if not begun:
        raise ConfigError(
            f"{told}; expected all of them in turn for each task. Choose another data.path, or set demonstrate to None "
            "to train on it as it is"
        )
    print(f"{told}; this run goes on with it", flush=True)


def require_script(world: Environment, suite: str, task: Task) -> Callable[[], Script]:
    """Returns what makes the script of one episode. Raises ConfigError if there is none for the environment."""
    if suite == ROBOSUITE and task.name in SCRIPTS:
        return SCRIPTS[task.name]
    expert = getattr(world, "expert", None)
    if expert is None:
        raise ConfigError(
            f"demonstrate: there is no script for {suite} {task.name}; expected robosuite's {', '.join(SCRIPTS)}, a "
            "task of metaworld, or an environment with a method expert(), which returns a function from observation to "
            "action"
        )
    return expert


def play(
    world: Environment, suite: str, task: Task, noise: float, rng: np.random.Generator
) -> tuple[list[Observation], list[Float32[np.ndarray, " a"]], bool]:
    """One episode of the script, up to its success, its limit, or where the environment ends it: frames before each
    action, actions as executed, success.

    Args:
      world: The environment.
      suite: Its suite.
      task: What is to be done, and in how many steps.
      noise: Standard deviation of what is added to each number of an action but the last, the gripper's, and to the
        one number of an action of one; in robosuite in units of 5 cm and 0.5 rad, in Meta-World of 1 cm.
      rng: Draws initial state and noise.
    """
    start = answer(world, Reset(int(rng.integers(1 << 32))), every_frame=False, images=False)
    assert isinstance(start, Start)
    observed, over = start.observation, False
    script, shown = require_script(world, suite, task)(), Shapes()
    frames: list[Observation] = []
    actions: list[np.ndarray] = []
    success = False
    while not over and (task.max_steps is None or len(actions) < task.max_steps):
        asked = np.asarray(script(observed))
        action = asked.astype(np.result_type(asked, np.float32))  # a copy: a script may give the same array again
        moved = max(1, len(action) - 1)
        action[:moved] += rng.normal(0, noise, moved)
        frames.append(observed | copies(looked(world, shown)))
        came = answer(world, Run(action.astype(np.float32)[None]), every_frame=False, images=False)
        assert isinstance(came, Stretch)
        actions.append(came.actions[0])
        observed, over = {name: array[0] for name, array in came.observations.items()}, came.over
        success = bool(came.success[0])
    return frames, actions, success


def _recorded(
    frames: list[Observation],
    actions: list[np.ndarray],
    success: bool,
    config: OpenpiRiptConfig,
    task: Task,
    shown: dict[str, str],
    adapter: Adapter,
) -> Recorded:
    env = config.env
    assert env is not None
    require_rgb(f"{env.suite} {task.name}".strip(), frames[0], shown.values())
    state = np.stack([policy_state(frame, env.state, env.state_function) for frame in frames])
    columns = {
        config.data.state_key: adapter.simulated_state(state).astype(np.float32),
        config.data.action_key: np.stack(actions),
        **outcome_columns(success, len(frames), config.data),
    }
    images = {key: [adapter.simulated_image(frame[name]) for frame in frames] for key, name in shown.items()}
    return Recorded(columns=columns, images=images, task=task.prompt)
