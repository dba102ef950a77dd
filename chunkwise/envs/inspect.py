"""What an environment is, how fast it steps, and whether its resets and replays are exact.

    chunkwise inspect --env metaworld/reach-v3
    chunkwise inspect --env robosuite/Lift --camera agentview_image --image lift.png
    chunkwise inspect --env my_sim:make --steps 1000 --json
    chunkwise inspect --env my_sim:make --python ../libero/bin/python

Random actions are played from a seed. The same seed and actions must give the same observations, images, rewards and
outcomes to the bit: after another episode, and in an environment that is made anew. Where they do not, it says in what
and from which step on, and ends with 65: such an environment's rollouts cannot be compared, nor repeated.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from chunkwise.cli import command
from chunkwise.envs import environment
from chunkwise.envs.environment import Environment, EnvSpec, Observation, copies, executed, prompt_of
from chunkwise.envs.failures import Shapes, require_finite, require_observed, require_rgb
from chunkwise.envs.names import FORMS, spec_named
from chunkwise.envs.workers import require_step, told
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.durable import write_durably
from chunkwise.files.place import prepare_place, told_place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was found."""

    env: str
    observation: dict[str, str]
    """Of each array its type and shape."""
    action_dim: int
    fps: float
    prompt: str | None
    """As the suite says the task; None where it does not."""
    steps: int
    """That were played, episode after episode."""
    episodes: int
    successes: int
    steps_per_second: float
    """With images, where cameras are asked for."""
    reset_ms: float
    differences: tuple[str, ...]
    """Where the same seed and actions gave something else; empty: nowhere."""

    def __str__(self) -> str:
        arrays = ", ".join(f"{name} {what}" for name, what in self.observation.items())
        exact = "resets and replays are exact" if not self.differences else "\n".join(self.differences)
        return (
            f"{self.env}: {self.prompt or 'its suite does not say it in words (env.prompt)'}\n"
            f"observation: {arrays}\n"
            f"actions: {self.action_dim} numbers; {self.fps:g} steps a second of simulated time\n"
            f"{self.steps} random steps, {self.episodes} episodes, {self.successes} of which succeeded: "
            f"{self.steps_per_second:.0f} steps a second, {self.reset_ms:.1f} ms a reset\n{exact}"
        )


def played(name: str, env: Environment, seed: int, steps: int) -> Iterator[tuple[str, Observation, dict[str, Any]]]:
    """Yields what was done, what was observed and what came of it: episodes of random actions, so many steps in all.

    Raises:
      DataError: It shows or rewards something that is not finite, or a step is none; the message begins with `name`.
    """
    rng = np.random.default_rng(seed)
    left, episode = steps, 0
    while left:
        moment, observed = f"reset with seed {seed + episode}", env.reset(seed + episode)
        shown = Shapes()
        with _as_data():
            require_observed(f"{name}, {moment}", observed)
            images = env.images()
            shown.require_images(f"{name}, {moment}: images()", images)
            seen = observed | images
            require_finite(f"{name}, {moment}", seen)
        state = {"state()": np.array(env.state())}
        yield moment, copies(seen), state
        over = False
        while left and not over:
            action = executed(env, rng.uniform(-1, 1, env.action_dim).astype(np.float32))
            step = env.step(action)
            left -= 1
            with _as_data():
                require_step(f"{name}, step {steps - left}", step)
                images = env.images()
                shown.require_images(f"{name}, step {steps - left}: images()", images)
                require_finite(f"{name}, step {steps - left}", images)
            over = step.success or step.terminated or step.truncated
            outcome = {"reward": step.reward, "success": step.success, "end": over, "state()": np.array(env.state())}
            yield f"step {steps - left}", copies(step.observation | images), outcome
        episode += 1


@contextlib.contextmanager
def _as_data() -> Iterator[None]:
    """Raises what is wrong with something that an environment gave as a DataError."""
    try:
        yield
    except RunError as error:
        raise DataError(*error.args) from error


def difference(first: tuple[str, Observation, dict[str, Any]], again: tuple[str, Observation, dict[str, Any]]) -> str:
    """Returns in words what two plays differ in at one moment; empty where they agree to the bit."""
    (moment, *one), (_, *other) = first, again
    a, b = one[0] | one[1], other[0] | other[1]
    odd = [name for name in a | b if name not in a or name not in b or not _same(a[name], b[name])]
    return f"{moment}: {', '.join(odd)}" if odd else ""


def inspect(name: str, spec: EnvSpec, *, seed: int, steps: int) -> tuple[Report, Observation]:
    """Plays random actions, three times the same.

    Args:
      name: As the user gave it.
      spec: What it means, with cameras.
      seed: Of the first reset and of the actions.
      steps: Of one play.

    Returns:
      What was found, and the cameras' images at the end of the first play.

    Raises:
      ConfigError: It cannot be made.
      DataError: As `played`, or a camera that was asked for is not shown.
    """
    env = environment.make(spec)
    began = time.perf_counter()
    first = list(played(name, env, seed, steps))
    seconds = time.perf_counter() - began
    images = env.images()
    require_rgb(name, images, spec.cameras)
    began = time.perf_counter()
    for one in range(5):
        env.reset(seed + 1000 + one)
    reset = (time.perf_counter() - began) / 5
    differences = []
    other = environment.make(spec)
    for where, again in (("after other episodes", env), ("in an environment made anew", other)):
        found = (difference(a, b) for a, b in zip(first, played(name, again, seed, steps), strict=True))
        if odd := next(filter(None, found), ""):
            differences.append(f"not exact, {where}: from {odd}")
    fps, action_dim = env.fps, env.action_dim
    env.close()
    other.close()
    resets = [entry for entry in first if entry[0].startswith("reset")]
    return Report(
        env=name,
        observation={key: f"{value.dtype} {list(value.shape)}" for key, value in resets[0][1].items()},
        action_dim=action_dim,
        fps=fps,
        prompt=_prompt(spec),
        steps=steps,
        episodes=len(resets),
        successes=sum(bool(entry[2].get("success")) for entry in first),
        steps_per_second=steps / max(seconds - reset * len(resets), 1e-9),
        reset_ms=1000 * reset,
        differences=tuple(differences),
    ), images


def write_image(path: Path, images: Observation) -> None:
    """Writes the cameras' images side by side, as PNG."""
    shown = np.concatenate(list(images.values()), axis=1)
    done, encoded = cv2.imencode(".png", cv2.cvtColor(shown, cv2.COLOR_RGB2BGR))
    assert done
    write_durably(path, lambda file: file.write(encoded.tobytes()))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", required=True, metavar="NAME", help=FORMS)
    parser.add_argument("--python", default="", metavar="PATH", help="interpreter that runs module:factory")
    parser.add_argument("--initial-states", default="", metavar="FILE.npz", help="published states to begin in")
    parser.add_argument("--steps", type=int, default=200, help="random steps; default: 200")
    parser.add_argument("--seed", type=command.seed, default=0, help="of the first reset and of the actions")
    parser.add_argument("--camera", nargs="+", default=[], metavar="NAME", help="images, by the suite's names")
    parser.add_argument("--image-size", type=int, nargs=2, default=(240, 320), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--image", type=Path, metavar="FILE.png", help="where the cameras' last images are written")
    parser.add_argument("--json", action="store_true", help="as JSON")
    found = parser.parse_args(argv)
    try:
        if found.steps < 1:
            raise ConfigError(f"--steps is {found.steps}; expected at least 1")
        if found.image and not found.camera:
            raise ConfigError("--image needs --camera, the names of what it shows")
        if found.image:
            prepare_place(found.image, "--image")
        size = (found.image_size[0], found.image_size[1])
        spec = dataclasses.replace(
            spec_named(found.env),
            cameras=tuple(found.camera),
            image_size=size,
            python=found.python,
            initial_states=found.initial_states,
        )
        with told(f"the environment {found.env} failed"):
            report, images = inspect(found.env, spec, seed=found.seed, steps=found.steps)
        if found.image:
            with told_place(found.image, "--image"):
                write_image(found.image, images)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if found.json:
        print(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        print(report)
        page = "driving.md" if spec.suite == "town" else "ript.md"
        print(f"image: {found.image}" if found.image else f"next: docs/{page} has the config of a run in it")
    return DataError.exit_code if report.differences else 0


def _prompt(spec: EnvSpec) -> str | None:
    try:
        return prompt_of(spec.suite, spec.task)
    except ConfigError:
        return None


def _same(a: Any, b: Any) -> bool:
    return np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b, equal_nan=True)


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
