"""A scripted transfer of the cube, and the episode that comes of it.

Waypoints of both grippers, disturbed by the episode's noise, move the arms of gym-aloha's end-effector model; the joint
positions that they pass are then the actions of an episode of the joint-controlled task (aloha.TransferCube).
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.suites import aloha
from qchunk.config import RecordConfig
from qchunk.envs.aloha import TransferCube, draw_box

Quaternion = Float64[np.ndarray, "4"]

GRIPPER_START = ((-0.31718881, 0.5, 0.29525084), (0.31718881, 0.49999888, 0.29525084))  # m, left and right, at START
MEETING = np.array([0.0, 0.5, 0.25])  # m; where the right gripper offers the cube
MODEL = "bimanual_viperx_end_effector_transfer_cube"
# gym-aloha's welds of gripper to target are soft: with MuJoCo 3 the arms sag and miss. These hold.
WELD_STIFFNESS = (0.9, 0.95)
PACE = (0.9, 1.1)  # bounds of an episode's speed


@dataclasses.dataclass(frozen=True)
class Waypoint:
    """Where a gripper is at a step; between two waypoints it moves in a straight line."""

    step: float
    position: Float64[np.ndarray, "3"]
    turn: Quaternion
    opening: float
    """Gripper value, 0 closed to 1 open."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """One recorded episode of T frames; a frame holds what was before its action."""

    arrays: dict[str, np.ndarray]
    """By HDF5 name."""
    images: dict[str, list[UInt8[np.ndarray, "h w 3"]]]
    """By camera."""
    success: bool
    noise: float
    """Noise level that was drawn."""


def transfer(env: TransferCube, config: RecordConfig, episode: int) -> Transfer:
    """Plays one episode: a function of (config.seed, episode). It ends at success, or after config.episode_length.

    Raises:
      ConfigError: If the machine cannot render, and cameras are asked for.
    """
    rng = generator(Purpose.TRANSFER, config.seed, episode)
    box = draw_box(rng)
    noise = float(rng.choice(config.aloha.noise_levels))
    actions = joint_actions(box, *waypoints(box, noise, rng), steps=config.episode_length)
    return _play(env, box, np.stack([env.clip(action) for action in actions]), noise)


def waypoints(
    box: Float64[np.ndarray, "3"], noise: float, rng: np.random.Generator
) -> tuple[list[Waypoint], list[Waypoint]]:
    """Plans of the left and the right gripper.

    Args:
      box: Where the cube starts (m).
      noise: Standard deviation (m) by which every waypoint after the first misses its place, on each axis.
      rng: Draws the noise and the pace.
    """
    pace = rng.uniform(*PACE)
    level, rolled = turn((1, 0, 0), 0), turn((1, 0, 0), 90)
    # The right gripper points down, the left one up, before they move: a wrist that passes 0 on its way leaves the two
    # joints about the forearm's axis undetermined, and noise sends them far apart.
    tilted, raised = turn((0, 1, 0), -60), turn((0, 1, 0), -30)
    above, at = beside(box, z=0.08), beside(box, z=-0.015)
    aside, ready, grasp = (beside(MEETING, x=x, z=-0.02) for x in (-0.12, -0.1, 0.02))
    right = [
        (0, np.array(GRIPPER_START[1]), level, 0.0),
        (25, np.array(GRIPPER_START[1]), tilted, 0.5),
        (60, above, tilted, 1.0),
        (85, at, tilted, 1.0),
        (105, at, tilted, 0.0),
        (145, beside(MEETING, x=0.05), tilted, 0.0),
        (165, MEETING, tilted, 0.0),
        (230, MEETING, tilted, 0.0),
        (245, MEETING, tilted, 1.0),
        (275, beside(MEETING, x=0.1), tilted, 1.0),
    ]
    left = [
        (0, np.array(GRIPPER_START[0]), level, 0.0),
        (40, np.array(GRIPPER_START[0]), raised, 0.0),
        (90, aside, raised, 0.5),
        (130, aside, rolled, 1.0),
        (165, ready, rolled, 1.0),
        (200, grasp, rolled, 1.0),
        (225, grasp, rolled, 0.0),
        (245, grasp, rolled, 0.0),
        (275, ready, rolled, 0.0),
    ]
    return _disturb(left, noise, pace, rng), _disturb(right, noise, pace, rng)


def beside(position: Float64[np.ndarray, "3"], *, x: float = 0.0, z: float = 0.0) -> Float64[np.ndarray, "3"]:
    """A position so far (m) to the right of, and above, another one."""
    return position + np.array([x, 0.0, z])


def _disturb(plan: list[tuple[Any, ...]], noise: float, pace: float, rng: np.random.Generator) -> list[Waypoint]:
    """Waypoints at the episode's pace; one that stands still keeps its error, so that a gripper closes where it is."""
    points: list[Waypoint] = []
    error = np.zeros(3)
    for i, (step, position, orientation, opening) in enumerate(plan):
        if i and not np.array_equal(position, plan[i - 1][1]):
            error = rng.normal(0, noise, 3)
        points.append(Waypoint(step / pace, position + error, orientation, opening))
    return points


def turn(axis: tuple[int, int, int], degrees: int) -> Quaternion:
    """Rotation about an axis of length 1."""
    half = np.deg2rad(degrees) / 2
    return np.array([np.cos(half), *(np.sin(half) * np.asarray(axis))])


def place(plan: list[Waypoint], step: int) -> tuple[Float64[np.ndarray, "3"], Quaternion, float]:
    """Position, rotation and opening at a step; after the last waypoint those of the last."""
    after = next((i for i, point in enumerate(plan) if point.step > step), len(plan) - 1)
    one, other = plan[max(after - 1, 0)], plan[after]
    share = min(max((step - one.step) / (other.step - one.step), 0.0), 1.0)
    rotation = (1 - share) * one.turn + share * other.turn
    return (
        (1 - share) * one.position + share * other.position,
        rotation / np.linalg.norm(rotation),
        (1 - share) * one.opening + share * other.opening,
    )


@functools.cache
def _stiff_model(*, actuated: bool) -> Any:
    """The end-effector model, one a process, with welds that follow; changed before anything is simulated with it."""
    model = aloha.load_model(MODEL, actuated=actuated)
    model.eq_solimp[:, :2] = WELD_STIFFNESS
    return model


def joint_actions(
    box: Float64[np.ndarray, "3"], left: list[Waypoint], right: list[Waypoint], *, steps: int
) -> Float64[np.ndarray, "T a"]:
    """Joint positions of both arms, and commands of the grippers, while they follow their plans."""
    mujoco = aloha.mujoco()
    model = _stiff_model(actuated=True)
    _stiff_model(actuated=False)  # which aloha.settle computes with
    data = mujoco.MjData(model)
    aloha.start(model, data, np.array([*box, *aloha.UPRIGHT]))
    data.mocap_pos[:] = GRIPPER_START
    data.mocap_quat[:] = turn((1, 0, 0), 0)
    data.ctrl[:] = fingers(0.0, 0.0)
    aloha.settle(MODEL, data)
    actions = []
    for step in range(steps):
        openings = []
        for arm, plan in enumerate((left, right)):
            data.mocap_pos[arm], data.mocap_quat[arm], opening = place(plan, step)
            openings.append(opening)
        data.ctrl[:] = fingers(*openings)
        aloha.advance(model, data)
        reached = aloha.joints(data.qpos)
        reached[[6, 13]] = openings
        actions.append(reached)
    return np.stack(actions)


def fingers(left: float, right: float) -> Float64[np.ndarray, "4"]:
    """Positions of the four fingers (m) from gripper values."""
    return aloha.controls(np.insert(np.zeros(12), [6, 12], [left, right]))[[6, 7, 14, 15]]


def _play(
    env: TransferCube,
    box: Float64[np.ndarray, "3"],
    actions: Float32[np.ndarray, "T a"],
    noise: float,
) -> Transfer:
    """Executes joint actions until success or their end."""
    frames: list[dict[str, Any]] = []
    images: dict[str, list[np.ndarray]] = {}
    observed = env.reset_to_box(box)
    for action in actions:
        for camera, image in env.images().items():
            images.setdefault(camera, []).append(image)
        frame = {f"/observations/{name}": observed[name] for name in ("qpos", "qvel", "state")} | {"/action": action}
        step = env.step(action)
        frames.append(frame | {"/reward": step.reward, "/terminated": step.terminated})
        observed = step.observation
        if step.terminated:
            break
    arrays = {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}
    arrays = {name: x if x.dtype == bool else x.astype(np.float32) for name, x in arrays.items()}
    return Transfer(arrays=arrays, images=images, success=bool(arrays["/terminated"][-1]), noise=noise)
