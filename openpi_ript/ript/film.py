"""A grid video of rollouts, each replayed in the simulator from its seed and actions: green succeeded, red failed.

python -m openpi_ript.ript.film ENV.json FOLDER FILM.mp4 EPISODES        (called by `film`, in a process of its own)
"""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.video import write_mp4
from chunkwise.envs.environment import Environment, make, state_hash
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import DataError
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import spec_of

SIZE = 128  # pixels a side of one tile
BORDER = 4  # pixels
SUCCESS, FAILURE, UNDECIDED = (67, 160, 71), (229, 57, 53), (90, 90, 90)  # green, red, grey until an episode is over
HOLD = 1.0  # seconds for which the last frame stays
EVERY = 2  # environment steps per frame; a frame takes about 50 ms in software
SECONDS = 600  # a GL driver that hangs must not stop a run


def film(
    config: EnvConfig, folder: Path, path: Path, *, episodes: int, report: Callable[[str], None] = print
) -> Path | None:
    """Films the rollouts episode_0000.npz to episode_<episodes - 1>.npz of a folder.

    A process of its own renders, because a broken GL driver can abort the process that uses it, and because MuJoCo
    reads MUJOCO_GL when it is imported.

    Returns:
      The path, or None if the machine cannot render; `report` then gets one line that says why.
    """
    settings = folder / "env.json"
    settings.write_text(json.dumps(dataclasses.asdict(config)))
    command = [sys.executable, "-m", "openpi_ript.ript.film", *map(str, (settings, folder, path.resolve(), episodes))]
    backends = ["egl", "osmesa"] if sys.platform == "linux" else ["glfw"]
    reasons = []
    for backend in [os.environ["MUJOCO_GL"]] if "MUJOCO_GL" in os.environ else backends:
        try:
            child = subprocess.run(
                command,
                cwd=Path(__file__).resolve().parents[2],
                env=os.environ | {"MUJOCO_GL": backend},
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            reasons.append(f"MUJOCO_GL={backend}: not done after {SECONDS} s")
            continue
        if child.returncode == 0:
            return path
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        reasons.append(f"MUJOCO_GL={backend}: {lines[-1][:200]}")
    report(f"no film: {'; '.join(reasons)}")
    return None


def replay(env: Environment, rollout: Rollout) -> list[UInt8[np.ndarray, "h w 3"]]:
    """Pictures of a rollout, played again.

    Raises:
      DataError: The simulator does not repeat it: it begins in another state, or ends with another outcome.
    """
    env.reset(rollout.seed)
    found = state_hash(env.state())
    if found != rollout.init_hash:
        raise DataError(f"replay: expected the initial state {rollout.init_hash}, found {found}")
    pictures, success = [env.render(SIZE, SIZE)], False
    for t, action in enumerate(rollout.actions, start=1):
        success = env.step(action).success
        if t % EVERY == 0 or t == rollout.length:
            pictures.append(env.render(SIZE, SIZE))
    if success != rollout.success:
        raise DataError(f"replay of seed {rollout.seed}: expected success {rollout.success}, found {success}")
    return pictures


def grid(
    films: Sequence[Sequence[UInt8[np.ndarray, "h w 3"]]], successes: Sequence[bool], *, hold: int
) -> Iterator[UInt8[np.ndarray, "h2 w2 3"]]:
    """Frames of all rollouts side by side; the frame of one that is over has the colour of its outcome."""
    columns = math.ceil(math.sqrt(len(films)))
    rows = math.ceil(len(films) / columns)
    longest = max(len(pictures) for pictures in films)
    for t in itertools.chain(range(longest), [longest] * hold):
        canvas = np.zeros((rows * SIZE, columns * SIZE, 3), np.uint8)
        for i, (pictures, success) in enumerate(zip(films, successes, strict=True)):
            over = t >= len(pictures) - 1
            colour = UNDECIDED if not over else SUCCESS if success else FAILURE
            tile = np.empty((SIZE, SIZE, 3), np.uint8)
            tile[:] = colour
            inner = slice(BORDER, -BORDER)
            tile[inner, inner] = pictures[min(t, len(pictures) - 1)][inner, inner]
            y, x = divmod(i, columns)
            canvas[y * SIZE : (y + 1) * SIZE, x * SIZE : (x + 1) * SIZE] = tile
        yield canvas


def main(settings: str, folder: str, path: str, episodes: str) -> None:
    tree = json.loads(Path(settings).read_text())
    lists = {name: tuple(value) for name, value in tree.items() if isinstance(value, list)}
    config = dataclasses.replace(EnvConfig(**(tree | lists)), cameras={})
    rollouts = [load(Path(folder) / f"episode_{number:04d}.npz") for number in range(int(episodes))]
    env = make(dataclasses.replace(spec_of(config), video=True))
    fps = max(env.fps // EVERY, 1)
    films = [replay(env, rollout) for rollout in rollouts]
    write_mp4(path, grid(films, [rollout.success for rollout in rollouts], hold=round(HOLD * fps)), fps=fps)
    env.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
