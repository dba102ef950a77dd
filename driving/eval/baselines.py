"""Predictors of waypoints that see no image: what a camera model has to beat to have seen anything."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float32, Int32, Int64

from chunkwise.config.experiment import OptimConfig
from chunkwise.train import rngs
from chunkwise.train.optimizer import make_optimiser
from driving.config import DrivingConfig, ModelConfig, WaypointConfig
from driving.data.batches import DrivingData
from driving.data.tables import PAST_S
from driving.model.heads import constant_turn
from driving.tasks.waypoints import make_model, waypoint_loss

BATCH = 256
HIDDEN = (128, 128)
MIRRORED_COMMAND = np.array([0, 3, 2, 1])
"""unknown, right, straight, left."""


class EgoStates:
    """Ego states and targets of frames (rows of the index; by default all anchors), without reading an image."""

    def __init__(self, data: DrivingData, rows: Int64[np.ndarray, " b"] | None = None) -> None:
        rows = data.anchors if rows is None else rows
        tables = data.tables
        speed = np.where(tables.speed_valid, tables.speed_mps, 0)[rows]
        yaw_rate = np.where(tables.yaw_rate_valid, tables.yaw_rate_radps, 0)[rows]
        known = np.stack([tables.speed_valid, tables.yaw_rate_valid], axis=-1)
        self.rows = rows
        self.known: Bool[np.ndarray, "b q"] = np.concatenate([known, tables.past_motion_valid], axis=-1)[rows]
        self.motion: Float32[np.ndarray, "b 2"] = np.stack([speed, yaw_rate], axis=-1).astype(np.float32)
        self.past: Float32[np.ndarray, "b p"] = tables.past_motion[rows]
        self.command: Int32[np.ndarray, " b"] = data.index.route_command[rows].astype(np.int32)
        self.waypoints: Float32[np.ndarray, "b t 2"] = tables.waypoints[rows]
        self.valid: Bool[np.ndarray, "b t"] = tables.waypoint_valid[rows]
        self.drive = data.index.recording_of(rows)  # what intervals are over: cuts of one recording are all but equal


def blind_predictions(
    config: DrivingConfig, train: EgoStates, held_out: EgoStates
) -> dict[str, Float32[np.ndarray, "b t 2"]]:
    """Waypoints of the held-out samples by each blind predictor.

    mean_trajectory    the mean of the training waypoints, whatever happens
    constant_velocity  straight on at the present speed
    constant_turn      at the present speed and yaw rate (an unknown one counts as 0 here, see `knows_enough`)
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
        "ego_mlp": _mlp(config, train, held_out, use_past=False),
        "history_mlp": _mlp(config, train, held_out, use_past=True),
    }


def knows_enough(states: EgoStates) -> dict[str, Bool[np.ndarray, " b"]]:
    """Samples at which a formula of `blind_predictions` knows what it goes by, for those that go by something."""
    return {"constant_velocity": states.known[:, 0], "constant_turn": np.all(states.known[:, :2], axis=1)}


def blind_config(config: DrivingConfig, *, use_past: bool) -> DrivingConfig:
    """Returns the config of a run's blind MLP, which a WaypointPolicy takes with what `train_blind` returns."""
    settings = WaypointConfig(use_cameras=False, use_past=use_past, hidden_sizes=HIDDEN)
    return dataclasses.replace(config, model=ModelConfig(), waypoints=settings, rollout=None)


def train_blind(config: DrivingConfig, train: EgoStates, *, use_past: bool) -> Any:
    """Trains a blind MLP for eval.blind_updates updates; returns its params."""
    updates = config.eval.blind_updates
    model: Any = make_model(blind_config(config, use_past=use_past))
    optimiser = make_optimiser(OptimConfig(learning_rate=3e-3, schedule="cosine"), updates)
    drawn = {"motion": train.motion, "past": train.past, "command": train.command, "known": train.known}
    drawn |= {"waypoints": train.waypoints, "valid": train.valid}
    arrays = {name: jnp.asarray(value) for name, value in drawn.items()}

    def predict(params: Any, motion: Array, past: Array, command: Array, known: Array) -> Array:
        out: Any = model.apply({"params": params}, *_nothing(len(motion)), motion, past, command, known)
        return out.most_probable()

    def loss(params: Any, key: Array) -> Array:
        pick, mirror = jax.random.split(key)
        rows = jax.random.randint(pick, (BATCH,), 0, len(arrays["motion"]))
        sign = jnp.where(jax.random.bernoulli(mirror, 0.5, (BATCH,)), -1.0, 1.0)
        signs = jnp.stack([jnp.ones(BATCH), sign], axis=-1)  # of what goes ahead, and of what turns
        motion = arrays["motion"][rows] * signs
        past = arrays["past"][rows] * jnp.repeat(signs, len(PAST_S), axis=1)
        command = arrays["command"][rows]
        command = jnp.where(sign < 0, jnp.asarray(MIRRORED_COMMAND, jnp.int32)[command], command)
        waypoints = arrays["waypoints"][rows] * signs[:, None]
        predicted = predict(params, motion, past, command, arrays["known"][rows])
        return waypoint_loss(predicted, waypoints, arrays["valid"][rows]).value()

    def update(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, opt_state = carry
        gradient = jax.grad(loss)(params, rngs.key(config.run.seed, "blind MLP", i))
        changes, opt_state = optimiser.update(gradient, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    @jax.jit
    def trained(*first: Array) -> Any:
        params = model.init(rngs.key(config.run.seed, "blind MLP init"), *_nothing(1), *first)["params"]
        return jax.lax.fori_loop(0, updates, update, (params, optimiser.init(params)))[0]

    return trained(*(arrays[name][:1] for name in ("motion", "past", "command", "known")))


def _mlp(
    config: DrivingConfig, train: EgoStates, held_out: EgoStates, *, use_past: bool
) -> Float32[np.ndarray, "b t 2"]:
    """Trains a blind MLP and predicts with it."""
    model: Any = make_model(blind_config(config, use_past=use_past))
    params = train_blind(config, train, use_past=use_past)
    seen = tuple(map(jnp.asarray, (held_out.motion, held_out.past, held_out.command, held_out.known)))

    def predict(params: Any, *seen: Array) -> Array:
        out: Any = model.apply({"params": params}, *_nothing(len(seen[0])), *seen)
        return out.most_probable()

    return np.asarray(jax.jit(predict)(params, *seen))


def _nothing(b: int) -> tuple[Array, Array]:
    """Images, and which are there, for a model that looks at none."""
    return jnp.zeros((b, 1, 1, 1, 3), jnp.uint8), jnp.zeros((b, 1), bool)
