"""Rollouts as a video: played again from seeds and actions, side by side, framed green or red once they are over."""

import dataclasses
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.video import write_mp4
from chunkwise.distributed import children
from chunkwise.envs.environment import Environment, state_hash
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.workers import Opener
from chunkwise.errors import ConfigError, DataError, one_line
from chunkwise.reports.run_record import clip_of

SIZE = (200, 200)
"""Pixels of a rollout, height and width, where its environment has no `video_size`."""
BORDER = 5  # pixels
SUCCESS, FAILURE, UNDECIDED = (67, 160, 71), (229, 57, 53), (90, 90, 90)  # green, red, grey until an episode is over
HOLD = 1.0  # seconds for which the last frame stays
FPS = 7  # frames a second, about: one takes 50 ms in software, so that a second of a rollout takes 0.35 s
SECONDS = 600  # a GL driver that hangs must not stop a run

_Film = tuple[Path, tuple[int, ...]]
"""A file, and the places of the rollouts that it shows."""


def write_some(
    opener: Opener,
    rollouts: Sequence[Rollout],
    path: Path,
    count: int,
    *,
    clips: Path,
    report: Callable[[str], None] = print,
) -> Path | None:
    """Renders some of an evaluation's rollouts side by side, successes and failures, and each into a file of its own.

    The first `count` have a file too, whatever came of them, so that evaluations of two policies on the same initial
    states have files of the same states.

    Args:
      opener: As of `write_video`.
      rollouts: Of all episodes of the evaluation, in their order.
      path: File to write.
      count: How many it shows.
      clips: Folder of those of one episode each, `clip_of(clips, number)`.
      report: Takes one line if there is no video.

    Returns:
      The path, or None as `write_video`.
    """
    chosen = some_of_both([rollout.success for rollout in rollouts], count)
    shown = sorted({*chosen, *range(min(count, len(rollouts)))})
    files = {place: clip_of(clips, number) for place, number in enumerate(shown)}
    tiles = [shown.index(number) for number in chosen]
    return write_video(opener, [rollouts[i] for i in shown], path, tiles=tiles, clips=files, report=report)


def write_video(
    opener: Opener,
    rollouts: Sequence[Rollout],
    path: Path,
    *,
    tiles: Sequence[int] | None = None,
    clips: Mapping[int, Path] | None = None,
    report: Callable[[str], None] = print,
) -> Path | None:
    """Renders rollouts into an mp4, in real time; and some into one each.

    A process of its own renders, because a broken GL driver can abort the process that uses it, and because MuJoCo
    reads MUJOCO_GL when it is imported.

    Args:
      opener: Makes the environment of a rollout, whose task it is given if it has one; pickled.
      rollouts: At least one; their observations are not needed.
      path: File to write, of rollouts side by side; its folder is made.
      tiles: Which of them it shows; None: all.
      clips: Files to write of one rollout alone, by its place among `rollouts`; None: none.
      report: Takes one line if there is no video.

    Returns:
      The path, or None if the machine cannot render, or the simulator does not repeat a rollout.
    """
    bare = [dataclasses.replace(rollout, observations={}) for rollout in rollouts]
    backends = ["egl", "osmesa"] if sys.platform == "linux" else ["glfw"]
    films = [(path, tuple(range(len(bare)) if tiles is None else tiles))]
    films += [(file, (i,)) for i, file in (clips or {}).items()]
    reasons = []
    for backend in [os.environ["MUJOCO_GL"]] if "MUJOCO_GL" in os.environ else backends:
        reason = _try(backend, opener, bare, films)
        if reason is None:
            return path
        reasons.append(f"MUJOCO_GL={backend}: {reason}")
    report(f"no video: {'; '.join(reasons)}")
    return None


def _try(backend: str, opener: Opener, rollouts: list[Rollout], films: list[_Film]) -> str | None:
    """Renders in one way; None if there are videos, else the reason in a few words."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "stderr"
        arguments = (backend, str(said), opener, rollouts, films)
        try:
            process = children.start(_child, *arguments)
        except ConfigError as error:
            return str(error)
        try:
            process.join(SECONDS)
            if process.is_alive():
                return f"not done after {SECONDS} s"
        finally:
            process.kill()
            process.join()
        if process.exitcode == 0:
            return None
        told = [path.read_text(errors="replace").strip().splitlines() for path in (_why(said), said) if path.exists()]
        return next((lines[-1] for lines in told if lines), f"exit code {process.exitcode}")[:200]


def _child(backend: str, said: str, opener: Opener, rollouts: list[Rollout], films: list[_Film]) -> None:
    """Body of the process: what it and its libraries say goes to a file."""
    os.environ["MUJOCO_GL"] = backend
    with open(said, "wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        shown, fps = replayed(opener, rollouts)
        for path, tiles in films:
            successes = [rollouts[i].success for i in tiles]
            write_mp4(path, grid([shown[i] for i in tiles], successes, hold=round(HOLD * fps)), fps=fps)
    except Exception as error:  # first of all that is said: a renderer that ends complains too
        _why(Path(said)).write_text(f"{type(error).__name__}: {one_line(error)}")
        raise


def _why(said: Path) -> Path:
    """File of what ended the process, beside that of all that it said."""
    return said.with_name("why")


def replayed(opener: Opener, rollouts: Sequence[Rollout]) -> tuple[list[list[UInt8[np.ndarray, "h w 3"]]], float]:
    """Plays rollouts again, each in the environment of its task; returns their images, and images a second.

    Raises:
      DataError: The simulator does not repeat one of them.
    """
    envs: dict[str, Environment] = {}
    for rollout in rollouts:
        if rollout.task not in envs:
            envs[rollout.task] = opener(rollout.task) if rollout.task else opener()
    rate = next(iter(envs.values())).fps  # of one suite, and so of all
    every = max(round(rate / FPS), 1)
    shown = [replay(envs[rollout.task], rollout, every=every) for rollout in rollouts]
    for env in envs.values():
        env.close()
    return shown, rate / every


def replay(env: Environment, rollout: Rollout, *, every: int) -> list[UInt8[np.ndarray, "h w 3"]]:
    """Plays a rollout again, and returns images of its begin, of each `every`-th step, and of its end.

    Raises:
      DataError: The simulator does not repeat it: it begins in another state, or ends with another outcome.
    """
    env.reset(rollout.seed)
    found = state_hash(env.state())
    if found != rollout.init_hash:
        raise DataError(f"replay: expected the initial state {rollout.init_hash}, found {found}")
    size = getattr(env, "video_size", SIZE)
    images, success = [env.render(*size)], False
    for t, action in enumerate(rollout.actions, start=1):
        success = env.step(action.copy()).success
        if t % every == 0 or t == rollout.length:
            images.append(env.render(*size))
    if success != rollout.success:
        raise DataError(f"replay of seed {rollout.seed}: expected success {rollout.success}, found {success}")
    return images


def grid(
    shown: Sequence[Sequence[UInt8[np.ndarray, "h w 3"]]], successes: Sequence[bool], *, hold: int
) -> Iterator[UInt8[np.ndarray, "h2 w2 3"]]:
    """Yields frames of all rollouts side by side; the frame of one that is over has the colour of its outcome.

    Args:
      shown: Images of each rollout, all of one size.
      successes: Of each rollout.
      hold: Frames for which the last one stays.
    """
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    height, width = shown[0][0].shape[:2]
    longest = max(len(images) for images in shown)
    for t in itertools.chain(range(longest), [longest] * hold):
        canvas = np.zeros((rows * height, columns * width, 3), np.uint8)
        for i, (images, success) in enumerate(zip(shown, successes, strict=True)):
            y, x = divmod(i, columns)
            tile = canvas[y * height : (y + 1) * height, x * width : (x + 1) * width]
            over = t >= len(images) - 1
            tile[:] = UNDECIDED if not over else SUCCESS if success else FAILURE
            inner = slice(BORDER, -BORDER)
            tile[inner, inner] = images[min(t, len(images) - 1)][inner, inner]
        yield canvas


def some_of_both(successes: Sequence[bool], count: int) -> list[int]:
    """Picks so many rollouts to be shown, in their order: half of them successes, the others failures, if there are."""
    won, lost = ([i for i, one in enumerate(successes) if one is kind] for kind in (True, False))
    won = won[: max(count - count // 2, count - len(lost))]
    return sorted(won + lost[: count - len(won)])
