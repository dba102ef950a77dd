"""Predictors of waypoints that see no picture: what a camera model has to beat to have seen anything."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Int64

from core import prng
from core.config import OptimConfig
from core.layers import MLP
from core.optim import make_optimiser
from driving import targets
from driving.config import DrivingConfig
from driving.data import DrivingData
from driving.model.heads import COMMANDS, SPEED_SCALE, YAW_RATE_SCALE, constant_turn
from driving.waypoints import waypoint_loss

PAST_S = (0.25, 0.5, 1.0)
"""Moments before a frame that the history's MLP knows."""
PAST_TOLERANCE_S = 0.1
BATCH = 256
HIDDEN = (128, 128)
MIRRORED_COMMAND = np.array([0, 3, 2, 1])
"""unknown, right, straight, left."""


class EgoStates:
    """Ego states and targets of frames (rows of the index; by default all anchors), without reading a picture."""

    def __init__(self, data: DrivingData, rows: Int64[np.ndarray, " b"] | None = None) -> None:
        rows = data.anchors if rows is None else rows
        tables = data.tables
        speed = np.where(tables.speed_valid, tables.speed_mps, 0)[rows]
        yaw_rate = np.where(tables.yaw_rate_valid, tables.yaw_rate_radps, 0)[rows]
        self.rows = rows
        self.motion: Float32[np.ndarray, "b 2"] = np.stack([speed, yaw_rate], axis=-1).astype(np.float32)
        self.past: Float32[np.ndarray, "b p"] = _past(data, rows, speed, yaw_rate)
        """By how much speed and yaw rate differed at each of PAST_S before, 0 where unknown; speeds first."""
        self.command: Int32[np.ndarray, " b"] = data.index.route_command[rows].astype(np.int32)
        self.waypoints: Float32[np.ndarray, "b t 2"] = tables.waypoints[rows]
        self.valid: Bool[np.ndarray, "b t"] = tables.waypoint_valid[rows]
        self.drive = data.index.episode_of(rows)


def blind_predictions(
    config: DrivingConfig, train: EgoStates, held_out: EgoStates
) -> dict[str, Float32[np.ndarray, "b t 2"]]:
    """Waypoints of the held-out samples by each blind predictor.

    mean_trajectory    the mean of the training waypoints, whatever happens
    constant_velocity  straight on at the present speed
    constant_turn      at the present speed and yaw rate
    ego_mlp            an MLP on speed, yaw rate and route command, on top of constant_turn, trained here on the
                       training split, mirrored half of the time
    history_mlp        the same, which also knows speed and yaw rate at PAST_S before: acceleration says that a car is
                       braking, and for what it brakes is often still ahead
    """
    steps, dt_s = config.data.waypoint_steps, config.data.waypoint_dt_s
    count = np.maximum(train.valid.sum(axis=0), 1)[:, None]
    mean = np.where(train.valid[..., None], train.waypoints, 0).sum(axis=0) / count
    straight = held_out.motion * np.array([[1, 0]], np.float32)
    return {
        "mean_trajectory": np.broadcast_to(mean, held_out.waypoints.shape).astype(np.float32),
        "constant_velocity": np.asarray(constant_turn(jnp.asarray(straight), steps, dt_s)),
        "constant_turn": np.asarray(constant_turn(jnp.asarray(held_out.motion), steps, dt_s)),
        "ego_mlp": _mlp(config, train, held_out, knows_past=False),
        "history_mlp": _mlp(config, train, held_out, knows_past=True),
    }


def _past(
    data: DrivingData,
    rows: Int64[np.ndarray, " b"],
    speed: Float32[np.ndarray, " b"],
    yaw_rate: Float32[np.ndarray, " b"],
) -> Float32[np.ndarray, "b p"]:
    """EgoStates.past, by time and within a drive."""
    index, tables = data.index, data.tables
    changes = np.zeros((2, len(rows), len(PAST_S)), np.float32)
    drives = index.episode_of(rows)
    for drive in np.unique(drives):
        of_drive, frames = drives == drive, index.rows(int(drive))
        moments = -np.array(PAST_S)
        near, known = targets.nearest_frames(index.t[frames], moments, tolerance_s=PAST_TOLERANCE_S)
        before, known = near[rows[of_drive] - frames.start] + frames.start, known[rows[of_drive] - frames.start]
        for kind, (now, every, valid) in enumerate(
            ((speed, tables.speed_mps, tables.speed_valid), (yaw_rate, tables.yaw_rate_radps, tables.yaw_rate_valid))
        ):
            change = now[of_drive, None] - every[before]
            changes[kind, of_drive] = np.where(known & valid[before], change, 0)
    return np.concatenate(list(changes), axis=1)


class EgoModel(nn.Module):
    """Constant turn rate and velocity, plus an MLP on what is known without looking; zero at first."""

    steps: int
    dt_s: float

    @nn.compact
    def __call__(
        self, motion: Float[Array, "b 2"], past: Float[Array, "b p"], command: Int[Array, " b"]
    ) -> Float[Array, "b t 2"]:
        """Waypoints, metres.

        Args:
          motion: Speed in m/s and yaw rate in rad/s.
          past: Earlier ones against them, speeds first; may have no columns.
          command: Position in driving.episodes.ROUTE_COMMANDS.
        """
        scales = jnp.array([SPEED_SCALE, YAW_RATE_SCALE], jnp.float32)
        per_kind = past.shape[1] // 2
        known = [motion / scales[None], past / jnp.repeat(scales, per_kind)[None], nn.one_hot(command, COMMANDS)]
        trunk = nn.gelu(MLP(HIDDEN[:-1], HIDDEN[-1], name="trunk")(jnp.concatenate(known, axis=-1)))
        change = nn.Dense(2 * self.steps, kernel_init=nn.initializers.zeros_init(), name="out")(trunk)
        return constant_turn(motion, self.steps, self.dt_s) + change.reshape(-1, self.steps, 2)


def _mlp(
    config: DrivingConfig, train: EgoStates, held_out: EgoStates, *, knows_past: bool
) -> Float32[np.ndarray, "b t 2"]:
    """Trains an EgoModel for eval.blind_updates updates and predicts with it."""
    updates = config.eval.blind_updates
    model = EgoModel(config.data.waypoint_steps, config.data.waypoint_dt_s)
    optimiser = make_optimiser(OptimConfig(learning_rate=3e-3, schedule="cosine"), updates)

    def known(states: EgoStates) -> dict[str, Array]:
        past = states.past if knows_past else states.past[:, :0]
        return {
            name: jnp.asarray(x) for name, x in (("motion", states.motion), ("past", past), ("command", states.command))
        }

    arrays = known(train) | {"waypoints": jnp.asarray(train.waypoints), "valid": jnp.asarray(train.valid)}
    side = {"motion": jnp.array([0.0, 1.0]), "past": jnp.repeat(jnp.array([0.0, 1.0]), arrays["past"].shape[1] // 2)}

    def predict(params: Any, inputs: dict[str, Array]) -> Array:
        out: Any = model.apply({"params": params}, inputs["motion"], inputs["past"], inputs["command"])
        return out

    def loss(params: Any, key: Array) -> Array:
        pick, mirror = jax.random.split(key)
        rows = jax.random.randint(pick, (BATCH,), 0, len(arrays["motion"]))
        mirrored = jax.random.bernoulli(mirror, 0.5, (BATCH,))
        inputs = {name: arrays[name][rows] * _signs(mirrored, turning) for name, turning in side.items()}
        command = arrays["command"][rows]
        inputs["command"] = jnp.where(mirrored, jnp.asarray(MIRRORED_COMMAND, jnp.int32)[command], command)
        waypoints = arrays["waypoints"][rows] * _signs(mirrored, jnp.array([0.0, 1.0]))[:, None]
        return waypoint_loss(predict(params, inputs), waypoints, arrays["valid"][rows]).value()

    def update(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, opt_state = carry
        gradient = jax.grad(loss)(params, prng.key(config.run.seed, "blind MLP", i))
        changes, opt_state = optimiser.update(gradient, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    @jax.jit
    def train_and_predict(inputs: dict[str, Array]) -> Array:
        first = jax.tree.map(lambda x: x[:1], inputs)
        key = prng.key(config.run.seed, "blind MLP init")
        params = model.init(key, first["motion"], first["past"], first["command"])["params"]
        params, _ = jax.lax.fori_loop(0, updates, update, (params, optimiser.init(params)))
        return predict(params, inputs)

    return np.asarray(train_and_predict(known(held_out)))


def _signs(mirrored: Bool[Array, " b"], turning: Float[Array, " d"]) -> Float[Array, "b d"]:
    """-1 in the columns that change sign when left and right are swapped, in the rows that are."""
    return 1 - 2 * mirrored[:, None].astype(jnp.float32) * turning[None]
