"""What a simulator offers to whoever acts in it, and how one is made. No jax here: it lives in worker processes.

A simulator of your own needs no change here: name a factory, `module:factory`, where a suite is named, and
it is called with the EnvSpec. What it returns must offer what `Environment` lists, by inheritance or not.
"""

import dataclasses
import hashlib
import importlib
import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.envs.failures import failure
from chunkwise.errors import ConfigError, RunError
from chunkwise.files import trust

Observation = dict[str, np.ndarray]
"""What is seen at one moment, arrays by name: float32 vectors, and images of cameras, uint8 [h, w, 3], upright."""

SUITES = {
    "aloha": "chunkwise.envs.suites.aloha:AlohaEnv",
    "gymnasium": "chunkwise.envs.suites.gymnasium:GymnasiumEnv",
    "libero": "chunkwise.envs.suites.robosuite:RobosuiteEnv",
    "metaworld": "chunkwise.envs.suites.metaworld:MetaworldEnv",
    "ogbench": "chunkwise.envs.suites.ogbench:make",
    "point": "openpi_ript.envs.point:PointEnv",
    "robomimic": "chunkwise.envs.suites.robomimic:RobomimicEnv",
    "robosuite": "chunkwise.envs.suites.robosuite:RobosuiteEnv",
    "town": "driving.sim.environment:TownEnv",
}
"""Suites by name, and the factory of each; its packages are imported when it is called."""
OTHER_PYTHON = "chunkwise.envs.other_python:OtherPythonEnv"
"""In place of the factory where an environment has a Python of its own."""
BEGINNING_IN = "chunkwise.envs.initial_states:beginning_in"
"""What has an environment begin in published states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Which environment, and what of it is to be seen: all that a factory is told."""

    suite: str
    """One of SUITES, or `module:factory` of your own."""
    task: str = ""
    """By the suite's own name."""
    cameras: tuple[str, ...] = ()
    """Images that `images` gives, by the suite's names."""
    image_size: tuple[int, int] = (84, 84)
    """Height and width of those."""
    render_size: tuple[int, int] | None = None
    """Height and width at which they are rendered before they are resized; None: at `image_size`."""
    shrunk: tuple[str, ...] = ()
    """Those of `cameras` that are resized as a JPEG of them is (chunkwise/data/images.py: shrink_into)."""
    rendering: Literal["full", "fast"] = "full"
    """full: as the suite renders. fast (robosuite, LIBERO): cheaper, and nearly the same."""
    video: bool = False
    """Whether `render` is going to be called."""
    sparse: bool = False
    """Whether the reward is -1 until the whole task is done, then 0, in place of the suite's own (OGBench alone)."""
    success_timing: Literal["pre", "post"] = "pre"
    """Whether reward and success are judged before an action or after it (OGBench alone; pre: as it does itself)."""
    initial_states: str = ""
    """An .npz file of published states in which episodes begin (chunkwise/envs/initial_states.py); empty: the suite
    draws them."""
    python: str = ""
    """Interpreter that runs `module:factory`, where its simulator needs other versions; empty: this one."""
    allow_code: bool = False
    """Whether `module:factory` may be imported: true where the user named it, never for what a folder brought."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What an action led to."""

    observation: Observation
    """Without images: they cost more than the step, so `images` gives them to whoever looks."""
    reward: float
    success: bool
    """Whether the task is done now."""
    terminated: bool = False
    """Whether the episode has ended for good: nothing can be earned after it."""
    truncated: bool = False
    """Whether a time limit of the environment's own cuts the episode here."""


@runtime_checkable
class Environment(Protocol):
    """One simulated task."""

    @property
    def fps(self) -> float:
        """Steps a second of simulated time."""
        ...

    @property
    def action_dim(self) -> int:
        """Numbers of one action."""
        ...

    def reset(self, seed: int) -> Observation:
        """Starts an episode that is a function of `seed` alone, to the bit, whatever happened before."""
        ...

    def state(self) -> Float64[np.ndarray, " q"]:
        """Returns positions and velocities of everything that moves: what makes two initial states the same."""
        ...

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        """Returns the action as it is executed."""
        ...

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        """Executes one action."""
        ...

    def images(self) -> Observation:
        """Renders the cameras that were asked for, by name, as the scene is now; {} without cameras.

        Raises:
          ConfigError: If the machine cannot render.
        """
        ...

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        """Renders the scene for a person to look at.

        Raises:
          ConfigError: If the machine cannot render.
        """
        ...

    def close(self) -> None:
        """Lets go of what is held."""
        ...


def executed(env: Environment, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
    """Returns an action as it is executed and kept: within what the environment takes, in 32 bits.

    Bounds in 64 bits give 64 bits, which played again from a file would be other numbers.

    Raises:
      RunError: The environment's clip gives another shape, which numpy might spread over the action that is kept.
    """
    clipped = np.asarray(env.clip(action), np.float32)
    if clipped.shape != np.shape(action):
        raise RunError(f"clip() gave shape {clipped.shape} of an action of shape {np.shape(action)}; expected the same")
    return clipped


def make(spec: EnvSpec, task: str = "") -> Environment:
    """Makes an environment; its packages are imported only here.

    Args:
      spec: What it is to be.
      task: In place of the spec's; empty: the spec's own.

    Raises:
      ConfigError: If the suite, its task or a camera is unknown, a package or its assets are missing, the machine
        cannot render, or code is named by somebody else than the user.
      RunError: The factory raised something else.
    """
    spec = dataclasses.replace(spec, task=task or spec.task)
    require_allowed(spec)
    if spec.suite != "ogbench" and (spec.sparse or spec.success_timing != "pre"):
        raise ConfigError(
            f"{spec.suite} {spec.task}: sparse rewards and success_timing are choices of OGBench's tasks; expected "
            f"sparse False and success_timing pre, found {spec.sparse} and {spec.success_timing}"
        )
    factory = find_factory(OTHER_PYTHON if spec.python else SUITES.get(spec.suite, spec.suite))
    try:
        env = factory(spec)
    except RunError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises is the user's to mend
        raise failure(f"{spec.suite} could not be made", error) from error
    if not isinstance(env, Environment):
        offered = [name for name in dir(Environment) if not name.startswith("_")]
        missing = [name for name in offered if not hasattr(env, name)]
        raise ConfigError(
            f"{spec.suite}: expected an environment, found {type(env).__name__} without {', '.join(missing)}; "
            "chunkwise/envs/environment.py says what each is"
        )
    if not 0 < env.fps < math.inf:
        raise ConfigError(
            f"{spec.suite} {spec.task}: its fps is {env.fps}; expected a number of steps a second above 0 (of "
            "Gymnasium's environments the metadata's render_fps)"
        )
    if not spec.initial_states:
        return env
    beginning_in = trust.import_named(BEGINNING_IN, what="a function of an environment, a file and a task")
    return beginning_in(env, spec.initial_states, spec.task)


def task_sets(suite: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of a suite's tasks by the name of each set of them; {} where it has no sets."""
    return getattr(_module_of(suite), "TASK_SETS", {})


def prompt_of(suite: str, task: str) -> str:
    """Returns a task in the words of its suite.

    Raises:
      ConfigError: The suite has no words for it.
    """
    prompts: Callable[[str], str | None] = getattr(_module_of(suite), "prompt_of", lambda task: None)
    words = prompts(task)
    if words is None:
        raise ConfigError(
            f"{suite} {task}: its suite does not say it in words; expected env.prompt, env.prompts or --prompt"
        )
    return words


def _module_of(suite: str) -> Any:
    """The module of one of SUITES; None of the user's own, which is not imported to ask for names."""
    return importlib.import_module(SUITES[suite].partition(":")[0]) if suite in SUITES else None


def require_allowed(spec: EnvSpec) -> None:
    """Raises ConfigError if the suite is unknown, or is code that the user did not name."""
    if spec.python and ":" not in spec.suite:
        raise ConfigError(
            f"env.python is {spec.python!r} and env.suite {spec.suite!r}; expected module:factory of your own, the "
            "environment that this interpreter runs"
        )
    if spec.suite in SUITES:
        return
    if ":" not in spec.suite:
        raise ConfigError(
            f"env.suite is {spec.suite!r}; expected one of {', '.join(SUITES)}, or module:factory of your own"
        )
    if not spec.allow_code:
        trust.refuse_code(f"env.suite is {spec.suite!r}, which would import Python code")


def find_factory(name: str) -> Callable[[EnvSpec], Any]:
    """Imports a factory by its `module:factory`. Raises ConfigError where there is none."""
    return trust.import_named(name, what="a factory of environments")


def copies(observation: Observation) -> Observation:
    """Returns what is observed in arrays of its own: a simulator may show one that its next step writes over."""
    return {name: np.array(value) for name, value in observation.items()}


def state_hash(state: Float64[np.ndarray, " q"]) -> str:
    """Returns 16 hex digits of the SHA-256 of a state's bytes: the `init_hash` of the rollouts that begin there."""
    return hashlib.sha256(np.ascontiguousarray(state, np.float64).tobytes()).hexdigest()[:16]
