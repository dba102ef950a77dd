"""Renders recorded rollouts into an mp4; qchunk.evaluate.film runs it in a process of its own.

    python -m qchunk.envs.film ENVIRONMENT ROLLOUTS.npz FILM.mp4 EVERY

ROLLOUTS.npz holds `seeds`, `successes` and `lengths`, one a rollout, and `actions`, all of them in one array (T, a).
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.video import write_mp4
from chunkwise.envs.environment import Environment
from qchunk.envs import aloha, simulators

SIZE = 200  # pixels a side, OGBench's own
ALOHA_SIZE = (240, 320)
BORDER = 6  # pixels
SUCCESS, FAILURE = (67, 160, 71), (229, 57, 53)  # green, red
HOLD = 0.5  # seconds for which the last image of a rollout stays


def frames(
    env: Environment, replay: dict[str, np.ndarray], *, size: tuple[int, int], every: int, fps: int
) -> Iterator[UInt8[np.ndarray, "h w c"]]:
    """Replays each rollout and yields every `every`-th frame, its border green or red."""
    ends = np.cumsum(replay["lengths"])
    for seed, success, actions in zip(
        replay["seeds"], replay["successes"], np.split(replay["actions"], ends[:-1]), strict=True
    ):
        env.reset(int(seed))
        for t, action in enumerate(actions, start=1):
            env.step(action)
            if t % every and t != len(actions):
                continue
            image = _framed(env.render(*size), SUCCESS if success else FAILURE)
            yield from [image] * (1 if t < len(actions) else 1 + round(HOLD * fps))


def _framed(image: UInt8[np.ndarray, "h w c"], colour: tuple[int, int, int]) -> UInt8[np.ndarray, "h w c"]:
    framed = np.empty_like(image)
    framed[:] = colour
    inner = slice(BORDER, -BORDER)
    framed[inner, inner] = image[inner, inner]
    return framed


def main(env_id: str, replay: str, path: str, every: str) -> None:
    with np.load(Path(replay)) as arrays:
        rollouts = dict(arrays)
    env = simulators.make(env_id)
    fps = round(env.fps / int(every))
    size = ALOHA_SIZE if env_id == aloha.NAME else (SIZE, SIZE)
    write_mp4(path, frames(env, rollouts, size=size, every=int(every), fps=fps), fps=fps)


if __name__ == "__main__":
    main(*sys.argv[1:])
