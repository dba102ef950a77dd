"""The latent world model beside the waypoints: its loss by hand, what it moves, and that no policy sees the future."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.reader import read_newest
from chunkwise.config.experiment import RunConfig
from chunkwise.errors import DataError
from chunkwise.policies.load import load_policy
from chunkwise.train import rngs
from driving.config import AugmentConfig, DrivingConfig, WaypointConfig, WorldConfig
from driving.data.batches import open_data
from driving.model.encoders import SceneEncoder
from driving.policies.policy import WaypointPolicy
from driving.tasks import waypoints
from driving.train import main
from tests.driving.drives import write_drive
from tests.driving.tasks.test_modes import at_speed
from tests.driving.test_train import config

quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(6):
        write_drive(folder, f"drive_{i}", frames=30, start_yaw=float(i), change=at_speed(4.0 + 2 * i))
    return folder


def imagining(folder: Path, drives: Path, *, modes: int = 1, augment: AugmentConfig | None = None) -> DrivingConfig:
    base = config(folder, drives)
    data = dataclasses.replace(base.data, offsets_s=(0.0, 0.5), augment=augment or AugmentConfig())
    assert base.waypoints is not None
    settings = dataclasses.replace(base.waypoints, world=WorldConfig(weight=0.3, width=16), modes=modes)
    return dataclasses.replace(base, data=data, waypoints=settings)


def given(task: waypoints.WaypointTask) -> Any:
    return jax.tree.map(jnp.asarray, next(iter(task.batches(0))))


def test_the_loss_is_the_error_of_vectors_half_a_second_later(tmp_path: Path, drives: Path):
    settings = imagining(tmp_path, drives)
    task = waypoints.WaypointTask(settings, open_data(settings.data))
    state = quick(task.init)(rngs.key(0, "init"))
    batch = given(task)
    batch["later_valid"] = batch["later_valid"].at[0, 0].set(False)
    _, metrics = quick(task.step)(state, batch)
    seen: Any = quick(SceneEncoder(settings.model).apply)
    features = seen({"params": state.params["encoder"]}, batch["later_images"], batch["later_valid"])
    vectors = np.asarray(features.cameras, np.float64)
    centred = vectors - vectors.mean(-1, keepdims=True)
    target = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-6)
    _, imagined = quick(functools.partial(waypoints.imagine, task.model))(state.params, batch, rngs.key(0, "loss", 0))
    error = np.square(np.asarray(imagined) - target).mean(-1)[np.asarray(batch["later_valid"])]
    assert float(metrics["world"].count) == int(batch["later_valid"].sum())
    assert float(metrics["world"].value()) == pytest.approx(error.mean(), rel=1e-3)
    whole = float(metrics["trajectory"].value()) + 0.3 * error.mean()
    assert float(metrics["loss"].value()) == pytest.approx(whole, rel=1e-3)


def test_it_moves_the_encoder_and_the_waypoints_and_not_what_it_aims_at(tmp_path: Path, drives: Path):
    settings = imagining(tmp_path, drives)
    task = waypoints.WaypointTask(settings, open_data(settings.data))
    params = quick(task.init)(rngs.key(0, "init")).params
    params["out"]["kernel"] = jnp.full_like(params["out"]["kernel"], 0.01)
    batch = given(task)

    def loss(params: Any, aimed: Any) -> Any:
        _, imagined = waypoints.imagine(task.model, params, batch, rngs.key(0, "x"))
        return waypoints.world_loss(task.model, {**params, "encoder": aimed}, imagined, batch).value()

    moved, aimed = quick(jax.grad(loss, argnums=(0, 1)))(params, params["encoder"])
    assert all(
        np.abs(np.asarray(one)).max() > 0 for one in (moved["out"]["kernel"], moved["encoder"]["fuse"]["kernel"])
    )
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(aimed))


@pytest.mark.long
@pytest.mark.parametrize("modes", [1, 2])
def test_a_run_with_it_trains_is_measured_and_sees_no_later_image(tmp_path: Path, drives: Path, modes: int):
    augment = AugmentConfig(brightness=0.3, flip=0.5, crop=0.1)
    settings = imagining(tmp_path, drives, modes=modes, augment=augment)
    main(settings, "world")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["world"] > 0
    assert np.isfinite(lines[-1]["model/ade_1s"])
    policy = load_policy(str(tmp_path))
    assert isinstance(policy, WaypointPolicy)
    assert {name for name in policy.spec.observation if name.startswith("image/")} == {
        f"image/{camera}" for camera in settings.data.cameras
    }
    assert not set(waypoints.LATER) & set(waypoints.input_names(waypoints_of(settings)))


def test_the_later_images_are_mirrored_with_the_others(tmp_path: Path, drives: Path):
    """With every row mirrored the loss is that of the mirrored images: left and right cameras and columns exchanged."""
    settings = imagining(tmp_path, drives, augment=AugmentConfig(flip=1.0))
    task = waypoints.WaypointTask(settings, open_data(settings.data))
    plain = imagining(tmp_path, drives)
    unchanged = waypoints.WaypointTask(plain, open_data(plain.data))
    state = quick(task.init)(rngs.key(0, "init"))
    batch, other = given(task), given(unchanged)
    assert bool(batch["flipped"].all())
    order = jnp.array([settings.data.cameras.index(name) for name in mirrored(settings.data.cameras)])
    other |= {name: batch[name] for name in ("motion", "past_motion", "route_command", "known_motion")}
    other |= {name: batch[name] for name in ("waypoints", "waypoint_valid", "image_valid", "later_valid")}
    other |= {name: batch[name][:, order, :, ::-1] for name in ("images", "later_images")}
    losses = [quick(one.step)(state, each)[1] for one, each in ((task, batch), (unchanged, other))]
    assert float(losses[0]["world"].value()) == pytest.approx(float(losses[1]["world"].value()), rel=1e-4)


def mirrored(cameras: tuple[str, ...]) -> list[str]:
    sides = {"left": "right", "right": "left"}
    return ["_".join(sides.get(word, word) for word in name.split("_")) for name in cameras]


def waypoints_of(settings: DrivingConfig) -> WaypointConfig:
    assert settings.waypoints is not None
    return settings.waypoints


def test_moments_without_images_are_refused(tmp_path: Path):
    """A town has images at every second frame, and none 0.5 s after one: nothing would be learnt."""

    def every_second(tree: dict[str, Any]) -> None:
        for frame in tree["frames"][1::2]:
            frame["observations"]["cameras"] = {}

    for i in range(6):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=40, start_yaw=float(i), change=every_second)
    settings = imagining(tmp_path / "run", tmp_path / "drives")
    with pytest.raises(DataError, match=r"found 0\.0% at \+0\.5 s, .*images are 0\.2 s apart, so expected for example"):
        main(settings, "world")
    data = dataclasses.replace(settings.data, offsets_s=(0.0, 0.4))
    task = waypoints.WaypointTask(dataclasses.replace(settings, data=data), open_data(data))
    assert given(task)["later_valid"].any()


@pytest.mark.long
def test_a_run_begins_with_what_drives_of_another_and_with_its_world_if_it_is_alike(tmp_path: Path, drives: Path):
    imagined, plain = imagining(tmp_path / "world", drives), config(tmp_path / "plain", drives)
    for settings in (imagined, plain):
        main(settings, "first")
    worlds = WorldConfig(weight=0.9, width=16), WorldConfig(width=8), None

    def begun(start: str, base: DrivingConfig, world: WorldConfig | None) -> Any:
        settings = dataclasses.replace(waypoints_of(base), weights=str(tmp_path / start), world=world)
        changed = dataclasses.replace(base, waypoints=settings, run=RunConfig(dir=str(tmp_path / "second")))
        task = waypoints.WaypointTask(changed, open_data(changed.data))
        return quick(task.init)(rngs.key(5, "init")).params, task.load(quick(task.init)(rngs.key(5, "init"))).params

    learnt = {name: read_newest(tmp_path / name, {}, plain=("params",))[1]["params"] for name in ("world", "plain")}
    for world, kept in zip(worlds, (True, False, False), strict=True):
        fresh, found = begun("world", imagined, world)
        assert set(found) == set(fresh)
        for name in ("encoder", "trunk", "out"):
            jax.tree.map(np.testing.assert_array_equal, found[name], learnt["world"][name])
        if world is not None:
            expected = learnt["world"]["world"] if kept else fresh["world"]
            jax.tree.map(np.testing.assert_array_equal, found["world"], expected)
    fresh, found = begun("plain", imagined, WorldConfig(width=16))
    jax.tree.map(np.testing.assert_array_equal, found["out"], learnt["plain"]["out"])
    jax.tree.map(np.testing.assert_array_equal, found["world"], fresh["world"])


def test_a_world_that_could_teach_nothing_is_refused(tmp_path: Path, drives: Path):
    base = imagining(tmp_path, drives)
    with pytest.raises(
        ValueError, match=r"waypoints\.world predicts what is seen later, and data\.offsets_s is \(0\.0,\)"
    ):
        dataclasses.replace(base, data=dataclasses.replace(base.data, offsets_s=(0.0,)))
    for name in ("freeze", "use_calibration"):
        with pytest.raises(ValueError, match=rf"waypoints\.world is set and waypoints\.{name} is true"):
            WaypointConfig(world=WorldConfig(), **{name: True})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"waypoints\.world is set and use_cameras false"):
        WaypointConfig(world=WorldConfig(), use_cameras=False)
