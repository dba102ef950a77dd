"""One play episode: OGBench's scripted oracles chase random targets, as in OGBench's `play` datasets.

With record.directed a share of the targets is not random (directed_play.py).

The sequence of steps, the noise and the chances are those of OGBench's data_gen_scripts/generate_manipspace.py with
--dataset_type=play; the draws differ, since here each episode is a function of (seed, episode).

The file is in the ALOHA layout; frame T of each array:

  /observations/qpos   float32  joint angles of the arm (rad), then the gripper's opening (0 open, 1 closed)
  /observations/state  float32  OGBench's observation vector, as its single-task datasets hold it
  /action              float32  the action executed in that frame, noise included, in [-1, 1]
  /sim/qpos            float64  MuJoCo's full positions, from which any task's reward can be computed
  /sim/qvel            float64  MuJoCo's full velocities
  /sim/button_states   int64    states of the buttons, where the scene has some

Root attributes: env, fps, seed, source. There is no /reward: that of any task can be computed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from chunkwise.data.sampling import Purpose, words
from chunkwise.envs.suites import ogbench
from chunkwise.envs.suites.ogbench import OgbenchEnv
from chunkwise.files.durable import scratch_file
from qchunk.config import RecordConfig
from qchunk.envs.directed_play import DirectedPlay

NOISE_SMOOTHING = 0.5  # frames; OGBench's --noise_smoothing, the same in all its play datasets
# Probability of stacking the next cube on another one, drawn once an episode from these bounds (OGBench's).
STACKING = {
    "single": (0.0, 0.0),
    "double": (0.0, 0.25),
    "triple": (0.05, 0.35),
    "quadruple": (0.1, 0.5),
    "octuple": (0.0, 0.35),
}


def open_recorder(config: RecordConfig) -> Callable[[int, Path], None]:
    """Makes the environment, and returns what plays an episode into a file.

    Raises:
      ConfigError: If the environment cannot be played in, or OGBench is not installed.
    """
    env = ogbench.make_play(config.env, config.episode_length)
    if config.directed.task:
        DirectedPlay(env.gym, config.directed.task)  # a wrong name fails before a folder is made

    def record(episode: int, path: Path) -> None:
        frames = play_episode(env, config, episode)
        with scratch_file(path) as part, h5py.File(part, "w") as file:
            for name, values in frames.items():
                file.create_dataset(name, data=values, chunks=values.shape, fletcher32=True)
            source = "ogbench oracle play" + (f" directed at {config.directed.task}" if config.directed.task else "")
            file.attrs.update(env=config.env, fps=env.fps, seed=config.seed, source=source)

    return record


def play_episode(env: OgbenchEnv, config: RecordConfig, episode: int) -> dict[str, np.ndarray]:
    """Plays one episode and returns its arrays under their HDF5 names; a function of (config.seed, episode).

    Seeds numpy's global generator, from which OGBench's oracles draw.
    """
    attempt = 0
    while True:
        frames = _play(env, config, np.random.SeedSequence(words(Purpose.PLAY, config.seed, episode, attempt)))
        if frames is not None and (not config.env.startswith("scene") or _cube_stays_in_sight(frames["/sim/qpos"])):
            return frames
        attempt += 1


def _play(env: OgbenchEnv, config: RecordConfig, seeds: np.random.SeedSequence) -> dict[str, np.ndarray] | None:
    """One attempt at an episode; None if the task that it is directed at cannot be solved from its first scene."""
    words = seeds.generate_state(6)
    rng = np.random.default_rng(words[:4])
    np.random.seed(words[4])  # noqa: NPY002  (OGBench's oracles draw from numpy's global generator)
    observed = env.reset(int(words[5]))
    oracles = _oracles(env.gym, config)
    directed = DirectedPlay(env.gym, config.directed.task) if config.directed.task else None
    if directed is not None and not directed.solvable(env.info):
        return None
    bounds = [STACKING[word] for word in config.env.split("-") if word in STACKING]
    p_stack = rng.uniform(*bounds[0]) if bounds else 0.5
    oracle = oracles[env.info["privileged/target_task"]]
    oracle.reset(observed["state"], env.info)
    frames: list[dict[str, Any]] = []
    done = False
    while not done:
        if rng.uniform() < config.random_action:
            action = rng.uniform(-1, 1, env.action_dim)
        else:
            action = np.clip(oracle.select_action(observed["state"], env.info), -1, 1)
        action = action.astype(np.float32)  # before it is executed, so that the file holds what the scene got
        frame = {"/observations/qpos": observed["qpos"], "/observations/state": observed["state"], "/action": action}
        step = env.step(action)
        frame |= {"/sim/qpos": env.info["prev_qpos"], "/sim/qvel": env.info["prev_qvel"]}
        if "prev_button_states" in env.info:
            frame["/sim/button_states"] = env.info["prev_button_states"].astype(np.int64)
        frames.append(frame)
        observed = step.observation
        done = step.terminated or step.truncated
        if oracle.done and not done:
            if directed is not None and rng.uniform() < (config.directed.share or 0.0):
                target_state, target_info = directed.set_target(rng, p_stack)
            else:
                target_state, target_info = env.gym.unwrapped.set_new_target(p_stack=p_stack)
            oracle = oracles[target_info["privileged/target_task"]]
            oracle.reset(target_state, target_info)
    return {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}


def _oracles(env: Any, config: RecordConfig) -> dict[str, Any]:
    """A scripted oracle for each kind of target that the environment sets."""
    from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
    from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
    from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle

    settings = {"env": env, "noise": config.noise, "noise_smoothing": NOISE_SMOOTHING}
    if config.env.startswith("cube"):
        return {"cube": CubePlanOracle(**settings)}
    if config.env.startswith("puzzle"):
        return {"button": ButtonPlanOracle(**settings, gripper_always_closed=True)}
    return {
        "cube": CubePlanOracle(**settings),
        "button": ButtonPlanOracle(**settings),
        "drawer": DrawerPlanOracle(**settings),
        "window": WindowPlanOracle(**settings),
    }


def _cube_stays_in_sight(qpos: np.ndarray) -> bool:
    """OGBench's check of scene episodes: the cube never leaves the table, and is far left only in the drawer."""
    y, z = qpos[:, 15], qpos[:, 16]
    in_drawer = (z >= 0.06) & (z <= 0.08)
    return bool((y < 0.29).all() and ((y > -0.3) | in_drawer).all())
