"""Cameras as a residual through a narrow place, several moments, and rays of tokens: by formulas and properties."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.train import rngs
from driving.config import ConvConfig, DataConfig, DrivingConfig, ModelConfig, ResidualConfig, WaypointConfig
from driving.eval.plot import project
from driving.model.encoders import Features
from driving.model.heads import Calibration, Predictor, WaypointModel, constant_turn
from driving.model.rays import rays
from driving.sim.scene import camera_to_vehicle, intrinsics
from driving.tasks import waypoints

MODEL = ModelConfig(conv=ConvConfig(channels=(8, 8), blocks=(0, 0)), camera_width=8, scene_width=16)
RESIDUAL = WaypointConfig(hidden_sizes=(12,), residual=ResidualConfig(width=2, dropout=0.5), modes=2)
SIZE = (16, 24)


def mounted(yaw: float, height: float) -> np.ndarray:
    """Camera to vehicle of one that looks to the left by `yaw`, a little down, from a height."""
    turn = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    matrix = np.eye(4)
    matrix[:3, :3] = turn @ camera_to_vehicle("front")[:3, :3]
    matrix[:3, 3] = [1.5, 0.3, height]
    return matrix


def test_a_ray_is_where_a_token_looks_however_the_camera_is_mounted():
    """It meets the ground where the camera shows that place: `project` is the other way, written for figures."""
    fx, fy, cx, cy = intrinsics(*SIZE)
    matrix = np.array([[fx, 0, cx], [0, fy * 1.2, cy + 2], [0, 0, 1]])
    for yaw, height in ((0.0, 1.5), (0.7, 1.5), (-0.4, 2.2)):
        extrinsics = mounted(yaw, height)
        known = jnp.ones((1, 1), bool)
        inner, outer = (jnp.asarray(x, jnp.float32)[None, None] for x in (matrix, extrinsics))
        found = np.asarray(rays(inner, outer, known, SIZE, (4, 6)), np.float64)[0, 0]
        np.testing.assert_allclose(np.linalg.norm(found[..., :3], axis=-1), 1, atol=1e-6)
        np.testing.assert_allclose(found[..., 3:], np.broadcast_to([1.5, 0.3, height], (4, 6, 3)), atol=1e-6)
        down = found[..., 2] < -0.05
        assert down.sum() >= 6
        reach = height / -found[down][:, 2:3]
        ground = found[down][:, 3:5] + reach * found[down][:, :2]
        v, u = np.mgrid[0:4, 0:6] * 4.0 + 2.0
        pixels = np.stack([u, v], axis=-1)[down]
        np.testing.assert_allclose(project(ground, matrix, extrinsics), pixels, atol=1e-3)


def test_the_ray_of_an_unknown_camera_is_zero_whatever_its_matrices():
    bad = jnp.zeros((1, 2, 3, 3)).at[0, 1].set(jnp.eye(3))
    found = rays(
        bad, jnp.full((1, 2, 4, 4), jnp.nan).at[0, 1].set(jnp.eye(4)), jnp.array([[False, True]]), SIZE, (2, 3)
    )
    assert not np.asarray(found[0, 0]).any()
    assert np.isfinite(np.asarray(found)).all()


def model_of(settings: WaypointConfig, moments: int = 1) -> WaypointModel:
    return WaypointModel(MODEL, settings, 5, 0.1, moments)


def given(views: int, rows: int = 3, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    extrinsics = np.broadcast_to(np.stack([mounted(0.5 * i, 1.5) for i in range(views)]), (rows, views, 4, 4))
    matrix = np.array([[20.0, 0, 12], [0, 20, 8], [0, 0, 1]])
    numbers = {
        "images": rng.integers(0, 256, (rows, views, *SIZE, 3), dtype=np.uint8),
        "image_valid": np.ones((rows, views), bool),
        "motion": rng.normal(size=(rows, 2)).astype(np.float32),
        "past_motion": rng.normal(size=(rows, 6)).astype(np.float32),
        "route_command": rng.integers(0, 4, rows).astype(np.int32),
        "known_motion": np.ones((rows, 8), bool),
        "intrinsics": np.broadcast_to(matrix, (rows, views, 3, 3)).astype(np.float32),
        "extrinsics": extrinsics.astype(np.float32),
        "calibration_valid": np.ones((rows, views), bool),
    }
    return {name: jnp.asarray(value) for name, value in numbers.items()}


def init(model: WaypointModel, batch: Any, *, shaken: bool = True) -> Any:
    """Weights of a model: as they begin, or with all of them, those that begin at zero too, drawn at random."""
    mounts = Calibration(*(batch[name] for name in waypoints.CALIBRATION)) if model.waypoints.use_calibration else None
    arguments = [batch[name] for name in waypoints.INPUTS]
    params: Any = jax.jit(model.init)(rngs.key(0, "init"), *arguments, mounts)["params"]
    if not shaken:
        return params
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(1)
    return jax.tree.unflatten(tree, [x + jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32) for x in leaves])


def places(model: WaypointModel, params: Any, batch: Any, key: Any = None) -> np.ndarray:
    found = waypoints.predict_modes(model, params, batch, key)
    return np.concatenate([np.asarray(found.waypoints).reshape(3, -1), np.asarray(found.logits)], axis=1)


@pytest.mark.long
def test_what_cameras_add_is_nothing_at_the_start_and_is_added_to_what_is_known_without_them():
    model, batch = model_of(RESIDUAL), given(2)
    fresh = waypoints.predict_modes(model, init(model, batch, shaken=False), batch)
    start = constant_turn(batch["motion"], 5, 0.1)
    np.testing.assert_array_equal(fresh.waypoints, np.stack([start] * 2, axis=1))
    params = init(model, batch)
    blind = model_of(dataclasses.replace(RESIDUAL, use_cameras=False, residual=None))
    without = {name: params[name] for name in ("trunk", "out", "logits")}
    for name in ("seen_out", "seen_logits"):
        params[name] = jax.tree.map(jnp.zeros_like, params[name])
    np.testing.assert_allclose(places(model, params, batch), places(blind, without, batch), atol=1e-5)


def test_all_that_cameras_say_goes_through_the_narrow_place():
    """Two numbers wide: what any image changes of the outputs lies in a plane, to first order."""
    model, batch = model_of(RESIDUAL), given(2)
    params = init(model, batch)
    images = batch["images"].astype(jnp.float32)[:1]
    one = {name: value[:1] for name, value in batch.items()}

    def outputs(images: Any) -> Any:
        found = waypoints.predict_modes(model, params, one | {"images": images})
        return jnp.concatenate([found.waypoints.reshape(-1), found.logits.reshape(-1)])

    jacobian = np.asarray(jax.jit(jax.jacrev(outputs))(images)).reshape(22, -1)
    size = np.linalg.svd(jacobian, compute_uv=False)
    assert size[1] > 1e-4 * size[0]
    assert size[2] < 1e-4 * size[0]


def test_numbers_are_dropped_in_training_alone_and_by_the_key():
    model, batch = model_of(RESIDUAL), given(2)
    params = init(model, batch)
    whole = places(model, params, batch)
    np.testing.assert_array_equal(whole, places(model, params, batch))
    first, second = (places(model, params, batch, rngs.key(0, "loss", i)) for i in range(2))
    np.testing.assert_array_equal(first, places(model, params, batch, rngs.key(0, "loss", 0)))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, whole)


def test_the_model_sees_earlier_moments_and_tells_them_apart():
    model, batch = model_of(dataclasses.replace(RESIDUAL, use_moments=True), moments=2), given(4)
    params = init(model, batch)
    now = places(model, params, batch)
    earlier = batch["images"].at[:, :2].set(255 - batch["images"][:, :2])
    assert not np.array_equal(now, places(model, params, batch | {"images": earlier}))
    swapped = jnp.concatenate([batch["images"][:, 2:], batch["images"][:, :2]], axis=1)
    assert not np.array_equal(now, places(model, params, batch | {"images": swapped}))
    lost = batch | {"image_valid": batch["image_valid"].at[:, 0].set(False)}
    hidden = lost | {"images": batch["images"].at[:, 0].set(7)}
    np.testing.assert_array_equal(places(model, params, lost), places(model, params, hidden))


def test_a_moved_camera_changes_what_is_predicted_and_an_unknown_one_is_not_read():
    model, batch = model_of(dataclasses.replace(RESIDUAL, use_calibration=True)), given(2)
    params = init(model, batch)
    now = places(model, params, batch)
    turned = jnp.asarray(mounted(-0.6, 1.5), jnp.float32)
    moved = batch | {"extrinsics": batch["extrinsics"].at[1, 1].set(turned)}
    after = places(model, params, moved)
    assert [np.array_equal(*rows) for rows in zip(now, after, strict=True)] == [True, False, True]
    zoomed = batch | {"intrinsics": batch["intrinsics"].at[2, 0, 0, 0].mul(1.5)}
    rows = zip(now, places(model, params, zoomed), strict=True)
    assert [np.array_equal(*row) for row in rows] == [True, True, False]
    unknown = {"calibration_valid": batch["calibration_valid"].at[1, 1].set(False)}
    np.testing.assert_array_equal(places(model, params, batch | unknown), places(model, params, moved | unknown))
    assert not np.array_equal(places(model, params, batch | unknown), now)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_moments": True, "use_cameras": False}, "use_moments is true and use_cameras false"),
        ({"use_calibration": True, "use_cameras": False}, "use_calibration is true and use_cameras false"),
        ({"use_calibration": True, "freeze": True}, "would never be trained"),
        ({"residual": ResidualConfig(), "use_cameras": False}, "residual is what cameras add"),
        ({"freeze": True, "use_cameras": False}, "freeze is true and use_cameras false: there is no encoder"),
        (
            {"residual": ResidualConfig(), "use_ego": False, "use_past": False, "use_command": False},
            "residual is what cameras add",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        WaypointConfig(**settings)


def test_hidden_tokens_are_filled_in_from_their_grid_and_the_scene_by_a_layer_twice_as_wide():
    rng = np.random.default_rng(0)
    tokens, scene = rng.normal(size=(2, 3, 1, 2, 4)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)
    features = Features(tokens=jnp.asarray(tokens), cameras=jnp.zeros((2, 3, 1)), scene=jnp.asarray(scene))
    params: Any = Predictor().init(jax.random.key(0), features)["params"]
    shapes = {name: layer["kernel"].shape for name, layer in params.items()}
    assert shapes == {"scene": (5, 4), "up": (4, 8), "down": (8, 4)}
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)

    def layer(name: str, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])

    def gelu(x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    expected = layer("down", gelu(layer("up", tokens + layer("scene", gelu(scene))[:, None, None, None])))
    found: Any = Predictor().apply({"params": params}, features)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offsets", [(0.0,), (-0.4, 0.0, 0.4)])
def test_moments_are_several_and_none_of_them_is_in_the_future(offsets: tuple[float, ...]):
    from chunkwise.config.experiment import TrainConfig

    with pytest.raises(ValueError, match="expected moments before the anchor"):
        DrivingConfig(
            train=TrainConfig(steps=1, batch_size=1),
            data=DataConfig(path="x", offsets_s=offsets),
            waypoints=WaypointConfig(use_moments=True),
        )
    with pytest.raises(ValueError, match="dropout is 1; expected below 1"):
        ResidualConfig(dropout=1.0)
