"""Renders recorded rollouts into an mp4; qchunk.evaluate.film runs it in a process of its own.

    python -m qchunk.envs.film ENVIRONMENT ROLLOUTS.npz FILM.mp4 EVERY

ROLLOUTS.npz holds `seeds`, `successes` and `lengths`, one a rollout, and `actions`, all of them in one array (T, a).
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.video import write_mp4
from qchunk.envs import simulators
from qchunk.envs.aloha_sim import TransferCube

SIZE = 200  # pixels a side, OGBench's own
ALOHA_SIZE = (240, 320)
BORDER = 6  # pixels
SUCCESS, FAILURE = (67, 160, 71), (229, 57, 53)  # green, red
HOLD = 0.5  # seconds for which the last image of a rollout stays


def frames(env_id: str, replay: dict[str, np.ndarray], *, every: int, fps: int) -> Iterator[UInt8[np.ndarray, "h w c"]]:
    """Replays each rollout and yields every `every`-th frame, its border green or red.

    Without multisampling and with shadow maps of 512 a frame takes 48 ms in software instead of 122, at 64 x 64
    pixels, and looks nearly the same.
    """
    env = simulators.make_task(env_id)
    ends = np.cumsum(replay["lengths"])
    for seed, success, actions in zip(
        replay["seeds"], replay["successes"], np.split(replay["actions"], ends[:-1]), strict=True
    ):
        simulators.reset(env, int(seed))
        with _camera(env) as picture:
            for t, action in enumerate(actions, start=1):
                env.step(action)
                if t % every and t != len(actions):
                    continue
                image = _framed(picture(), SUCCESS if success else FAILURE)
                yield from [image] * (1 if t < len(actions) else 1 + round(HOLD * fps))


@contextlib.contextmanager
def _camera(env: Any) -> Iterator[Callable[[], UInt8[np.ndarray, "h w c"]]]:
    """Takes pictures of an environment that has just been reset."""
    if isinstance(env, TransferCube):
        yield lambda: env.render("angle", *ALOHA_SIZE)
        return
    mujoco: Any = importlib.import_module("mujoco")
    model, data = env.unwrapped.model, env.unwrapped.data
    model.vis.quality.shadowsize, model.vis.quality.offsamples = 512, 0
    model.vis.global_.offwidth = model.vis.global_.offheight = SIZE
    with mujoco.Renderer(model, SIZE, SIZE) as renderer:

        def picture() -> np.ndarray:
            renderer.update_scene(data, camera="front")
            return renderer.render()

        yield picture


def _framed(image: UInt8[np.ndarray, "h w c"], colour: tuple[int, int, int]) -> UInt8[np.ndarray, "h w c"]:
    framed = np.empty_like(image)
    framed[:] = colour
    inner = slice(BORDER, -BORDER)
    framed[inner, inner] = image[inner, inner]
    return framed


def main(env_id: str, replay: str, path: str, every: str) -> None:
    with np.load(Path(replay)) as arrays:
        rollouts = dict(arrays)
    fps = round(simulators.fps(env_id) / int(every))
    write_mp4(path, frames(env_id, rollouts, every=int(every), fps=fps), fps=fps)


if __name__ == "__main__":
    main(*sys.argv[1:])
