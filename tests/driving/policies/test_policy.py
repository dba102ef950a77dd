"""A run's waypoints as a policy: what evaluation computes is what is loaded and served; what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import simplejpeg

from chunkwise.config.experiment import CheckpointConfig, OptimConfig, RunConfig, TrainConfig
from chunkwise.config.saved import flatten
from chunkwise.data.images import decode, encode_png
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies import export, runner
from chunkwise.policies.load import load_policy
from chunkwise.policies.policy import Policy
from chunkwise.train.rngs import key
from driving import evaluate, train
from driving.config import (
    CAMERAS,
    ConvConfig,
    DataConfig,
    DrivingConfig,
    EvalConfig,
    ModelConfig,
    ObjectiveConfig,
    ResidualConfig,
    WaypointConfig,
)
from driving.data.batches import open_data
from driving.data.episodes import ROUTE_COMMANDS
from driving.policies.policy import WaypointPolicy
from driving.tasks import waypoints
from driving.tasks.waypoints import init_params
from tests.chunkwise.policies.serving import ask, client, read, running
from tests.driving.drives import SIZE, write_drive

FRAMES, DT = 12, 0.25


def change(tree: dict[str, Any]) -> None:
    """Speeds and turns that differ from frame to frame, some unknown, and an image that is missing."""
    for i, frame in enumerate(tree["frames"]):
        state = frame["observations"]["state"]
        state["speed_mps"], state["yaw_rate_radps"] = 5.0 + 0.3 * i * i, 0.02 * i
        frame["observations"]["route_command"] = ("left", "straight", "right")[i % 3]
    for camera in ("front_left", "side_right"):
        tree["frames"][7]["observations"]["cameras"][camera]["image_path"] = None


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(6):
        write_drive(folder, f"drive_{i}", frames=FRAMES, dt=DT, start_yaw=float(i), change=change)
    return folder


def config_of(drives: Path, run: Path, **settings: Any) -> DrivingConfig:
    return DrivingConfig(
        run=RunConfig(dir=str(run)),
        train=TrainConfig(steps=4, batch_size=4, ema_decay=0.5),
        data=DataConfig(path=str(drives), image_size=SIZE, val_fraction=0.2, test_fraction=0.2),
        model=ModelConfig(conv=ConvConfig(channels=(8, 8), blocks=(0, 1)), camera_width=8, scene_width=16),
        optim=OptimConfig(learning_rate=1e-2),
        waypoints=WaypointConfig(hidden_sizes=(16,), **settings),
        eval=EvalConfig(batch_size=4, blind_updates=5, plotted_moments=0),
        checkpoint=CheckpointConfig(every=2),
    )


@pytest.fixture(scope="module")
def run(drives: Path) -> Path:
    folder = drives.parent / f"{drives.name}-run"
    train.main(config_of(drives, folder), "test")
    return folder


@pytest.fixture(scope="module")
def loaded(run: Path) -> WaypointPolicy:
    policy = load_policy(run)
    assert isinstance(policy, WaypointPolicy)
    return policy


def observation(drives: Path, frame: int) -> dict[str, Any]:
    """Of drive_0, from its files alone: the moments before are 1, 2 and 4 frames away."""
    frames = json.loads((drives / "drive_0.json").read_text())["frames"]
    images: dict[str, Any] = {}
    for camera, seen in frames[frame]["observations"]["cameras"].items():
        path = seen["image_path"]
        images[camera] = None if path is None else decode((drives / path).read_bytes(), source=path)
    found: dict[str, Any] = {"image": images, "route_command": frames[frame]["observations"]["route_command"]}
    for name in ("speed_mps", "yaw_rate_radps"):
        values = [one["observations"]["state"][name] for one in frames]
        found[name] = values[frame]
        found[f"past_{name}"] = [values[frame - k] if frame >= k else None for k in (1, 2, 4)]
    return found


def batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    images = {camera: np.stack([row["image"][camera] for row in rows]) for camera in CAMERAS}
    return {name: images if name == "image" else [row[name] for row in rows] for name in rows[0]}


def test_what_evaluation_computes_is_what_is_loaded_and_served(drives: Path, run: Path, loaded: WaypointPolicy):
    data = open_data(loaded.config.data, "all")
    episode = data.index.ids.index("drive_0")
    start = int(data.index.starts[episode])
    frames = [0, 3, 5, 11]
    params = loaded._params
    expected = evaluate.predict(loaded.config, params, data, np.array([start + frame for frame in frames]))
    rows = [observation(drives, frame) for frame in frames]
    actions = loaded.infer(batch(rows))["actions"]
    assert (actions.shape, actions.dtype) == ((4, 20, 2), np.dtype(np.float32))
    np.testing.assert_array_equal(actions, expected)
    assert np.abs(expected - expected[:1]).max() > 0.1

    masked = observation(drives, 7)
    assert [name for name, image in masked["image"].items() if image is None] == ["front_left", "side_right"]
    alone = evaluate.predict(
        dataclasses.replace(loaded.config, eval=dataclasses.replace(loaded.config.eval, batch_size=1)),
        params,
        data,
        np.array([start + 7]),
    )
    np.testing.assert_array_equal(loaded.infer(masked)["actions"], alone[0])
    black = {
        name: np.zeros((*SIZE, 3), np.uint8) if image is None else image for name, image in masked["image"].items()
    }
    assert np.abs(loaded.infer(masked | {"image": black})["actions"] - alone[0]).max() > 1e-5, "black is not absent"

    served = load_policy(run)
    with running(served) as port, client(port) as connection:
        assert read(connection.recv())["spec"] == loaded.spec.plain()
        for one in (rows[0], masked):
            np.testing.assert_array_equal(ask(connection, one)["actions"], loaded.infer(one)["actions"])
        assert ask(connection, rows[0] | {"speed_mps": "fast"}).startswith("speed_mps: expected a number")


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("speed_mps", float("nan"), r"speed_mps: expected numbers of at most 1e\+06, found nan"),
        ("speed_mps", True, "speed_mps: expected a number, None where it is not known, found True"),
        ("speed_mps", 1e9, r"speed_mps: expected numbers of at most 1e\+06, found 1e\+09"),
        ("past_speed_mps", [1.0, None], r"past_speed_mps: expected numbers \[3\], None where .* found object \[2\]"),
        ("past_yaw_rate_radps", [0.0, np.inf, None], r"past_yaw_rate_radps: .* found inf at \[1\]"),
        ("past_speed_mps", [[1.0], [1.0, 2.0]], "past_speed_mps: expected an array"),
        ("route_command", "back", "route_command: expected one of unknown, left, straight, right, found 'back'"),
        (
            "route_command",
            None,
            "route_command: expected text, found NoneType None; where it is not known, send 'unknown'",
        ),
        ("image", {"front": None}, "image: expected a dict with"),
        ("image", dict.fromkeys(CAMERAS), r"image: expected at least 1 cameras that are on, .* found 0"),
        ("image", dict.fromkeys(CAMERAS, np.zeros((4, 4, 3))), "image front: expected uint8"),
    ],
)
def test_a_bad_observation_is_refused_by_name(
    drives: Path, loaded: WaypointPolicy, entry: str, value: Any, message: str
):
    seen = observation(drives, 5)
    with pytest.raises(DataError, match=message):
        loaded.infer(seen | {entry: value})
    del seen[entry]
    with pytest.raises(DataError, match=f"{entry}: expected it in the observation, found"):
        loaded.infer(seen)


@pytest.mark.parametrize(
    ("entry", "empty", "name"),
    [
        ("speed_mps", np.zeros(0), "speed_mps"),
        ("route_command", [], "route_command"),
        ("image", {"front_left": np.zeros((0, 8, 8, 3), np.uint8)}, "image front_left"),
    ],
)
def test_a_batch_of_no_rows_is_refused_by_name(loaded: WaypointPolicy, entry: str, empty: Any, name: str):
    """Kills: a failure of the server, which ends the connection, where a client sent nothing."""
    unknown = {"speed_mps": None, "yaw_rate_radps": None, "route_command": None}
    with pytest.raises(DataError, match=f"{name}: expected at least one row, found none"):
        loaded.prepare({**loaded.example(), **unknown, entry: empty})


def test_a_cars_images_are_shrunk_as_the_recorded_jpegs_were(tmp_path: Path):
    """At 16 x 24 of 36 x 54, four eighths and the rest: libjpeg leaves out what a triangle has. Images of a camera that
    was recorded as PNG, mostly, are resized whole; so are all of a run of an earlier version."""

    def lossless(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            camera = frame["observations"]["cameras"]["side_left"]
            if i % 3:
                camera["image_path"] = camera["image_path"].replace(".jpg", ".png")
        change(tree)

    drives, size = tmp_path / "drives", (36, 54)
    y, x = np.mgrid[: size[0], : size[1]]
    striped = (90 + 60 * ((x + y) // 2 % 2)[..., None] + np.stack([x, y, x + y], -1)).astype(np.uint8)
    for i in range(6):
        name = f"drive_{i}"
        write_drive(drives, name, frames=FRAMES, dt=DT, start_yaw=float(i), change=lossless, size=size)
        for k in range(FRAMES):
            shown = np.roll(striped, (i, k), (0, 1))
            for camera in CAMERAS:
                jpeg = simplejpeg.encode_jpeg(shown, quality=90, colorspace="RGB")
                (drives / f"{name}_images/{k:04d}_{camera}.jpg").write_bytes(jpeg)
            (drives / f"{name}_images/{k:04d}_side_left.png").write_bytes(encode_png(shown))
    settings = config_of(drives, tmp_path / "run")
    settings = dataclasses.replace(settings, data=dataclasses.replace(settings.data, image_size=(16, 24)))
    train.main(settings, "test")
    seen = [camera for camera in CAMERAS if camera != "side_left"]
    sizes = {camera: list(size) for camera in CAMERAS}
    assert json.loads((tmp_path / "run/images.json").read_text()) == {"shrunk_jpegs": seen, "recorded_sizes": sizes}
    policy = load_policy(tmp_path / "run")
    assert isinstance(policy, WaypointPolicy)
    assert "; recorded at 36 x 54, height x width" in policy.spec.observation["image/side_left"].meaning
    data = open_data(settings.data, "all")
    taught = data.batch(data.anchors[4:5])["images"][0, 0].astype(int)
    assert data.index.ids[0] == "drive_0"
    sent = observation(drives, int(data.anchors[4]))
    found = policy.prepare(sent).inputs["images"][0].astype(int)
    whole = WaypointPolicy(settings, {}).prepare(sent).inputs["images"][0].astype(int)
    for k, camera in enumerate(CAMERAS):
        near, far = np.abs(found[k] - taught[k]).mean(), np.abs(whole[k] - taught[k]).mean()
        if camera in seen:
            assert near < 1
            assert 3 * near < far, camera
        else:
            np.testing.assert_array_equal(found[k], whole[k])


def test_what_is_unknown_counts_as_in_training(drives: Path, loaded: WaypointPolicy):
    """0 where speed or yaw rate is not known, and no change where either end of it is not."""
    seen = observation(drives, 5)
    unknown = seen | {"speed_mps": None}
    prepared = loaded.prepare(unknown).inputs
    np.testing.assert_allclose(prepared["motion"], [[0.0, 0.1]], rtol=1e-6)
    np.testing.assert_allclose(prepared["past_motion"], [[0, 0, 0, 0.02, 0.04, 0.08]], rtol=1e-5)
    assert prepared["known_motion"].tolist() == [[False, True, False, False, False, True, True, True]]
    first = loaded.prepare(seen | {"past_speed_mps": [None, 11.0, None], "past_yaw_rate_radps": None}).inputs
    np.testing.assert_allclose(first["past_motion"], [[0, 1.5, 0, 0, 0, 0]], rtol=1e-5)
    assert first["known_motion"].tolist() == [[True, True, False, True, False, False, False, False]]
    assert loaded.prepare(seen).inputs["route_command"].tolist() == [3]


def test_only_what_the_model_uses_is_asked_for(drives: Path, tmp_path: Path):
    blind = config_of(drives, tmp_path / "run", use_cameras=False, use_past=False)
    train.main(dataclasses.replace(blind, train=dataclasses.replace(blind.train, steps=2, ema_decay=None)), "test")
    policy = load_policy(tmp_path / "run")
    optional = {name: entry.may_be_none for name, entry in policy.spec.observation.items()}
    assert optional == {"speed_mps": True, "yaw_rate_radps": True, "route_command": False}
    assert list(optional) == ["speed_mps", "yaw_rate_radps", "route_command"]
    assert policy.infer(policy.example())["actions"].shape == (20, 2)
    rows = {"speed_mps": [None, 3.0], "yaw_rate_radps": [0.0, None], "route_command": "left"}
    assert policy.infer(rows)["actions"].shape == (2, 20, 2)
    assert isinstance(policy, Policy)


def test_a_policy_without_images_learns_from_drives_without(tmp_path: Path):
    """As driving.convert --no-images writes them; one that looks is refused by name."""

    def without(tree: dict[str, Any]) -> None:
        change(tree)
        for frame in tree["frames"]:
            frame["observations"]["cameras"] = {}

    for i in range(6):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=FRAMES, dt=DT, start_yaw=float(i), change=without)
    blind = config_of(tmp_path / "drives", tmp_path / "run", use_cameras=False)
    train_config = dataclasses.replace(blind.train, steps=2, ema_decay=None)
    with pytest.raises(DataError, match=r"found cameras \[\]\. .* set data\.min_cameras 0$"):
        train.main(dataclasses.replace(blind, train=train_config), "test")
    data = dataclasses.replace(blind.data, min_cameras=0)
    seeing = config_of(tmp_path / "drives", tmp_path / "seeing")
    with pytest.raises(DataError, match=r"expected images of one of data\.cameras .* waypoints\.use_cameras false"):
        train.main(dataclasses.replace(seeing, data=data), "test")
    run = dataclasses.replace(blind.run, dir=str(tmp_path / "blind"))
    train.main(dataclasses.replace(blind, train=train_config, data=data, run=run), "test")
    policy = load_policy(tmp_path / "blind")
    assert policy.infer(policy.example())["actions"].shape == (20, 2)


@pytest.mark.long
def test_a_camera_whose_name_has_folders_is_shown_as_one(tmp_path: Path):
    """As a topic of a robot's; `rig` beside `rig/left` was a traceback, and one alone a dict of its own."""
    names = {"front": "rig", "front_left": "rig/left"}

    def renamed(tree: dict[str, Any]) -> None:
        change(tree)
        for frame in tree["frames"]:
            cameras = frame["observations"]["cameras"]
            frame["observations"]["cameras"] = {name: cameras[old] for old, name in names.items() if old in cameras}

    for i in range(6):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=FRAMES, dt=DT, start_yaw=float(i), change=renamed)
    config = config_of(tmp_path / "drives", tmp_path / "run")
    augment = dataclasses.replace(config.data.augment, flip=0.0)
    data = dataclasses.replace(config.data, cameras=("rig", "rig/left"), min_cameras=0, augment=augment)
    train.main(dataclasses.replace(config, data=data), "test")
    policy = load_policy(tmp_path / "run")
    example = policy.example()
    assert list(example["image"]) == ["rig", "rig/left"]
    assert policy.infer(example)["actions"].shape == (20, 2)
    policy.compile([1])


def test_a_pretraining_has_no_policy(drives: Path, tmp_path: Path):
    first = dataclasses.replace(
        config_of(drives, tmp_path), waypoints=None, objective=ObjectiveConfig(cross_camera=1.0)
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(first)))
    with pytest.raises(ConfigError, match="a pretraining, which has no policy; expected a run that learnt waypoints"):
        load_policy(tmp_path)


def test_an_export_predicts_alike(drives: Path, run: Path, loaded: WaypointPolicy, tmp_path: Path):
    assert export.main([str(run), str(tmp_path / "out"), "--platforms", "cpu"]) == 0
    prepared = loaded.prepare(observation(drives, 3))
    act = runner.load(tmp_path / "out")
    one = {name: value[0] for name, value in prepared.inputs.items()}
    np.testing.assert_array_equal(act(one), loaded.infer(observation(drives, 3))["actions"])
    with pytest.raises(ValueError, match="route_command: expected whole numbers of 0 to 3, found 4"):
        act({**one, "route_command": 4})
    with pytest.raises(ValueError, match="motion: expected finite numbers of -1e\\+06 to 1e\\+06, found 1e\\+30"):
        act({**one, "motion": np.array([1e30, 0.0])})
    with pytest.raises(ValueError, match="image_valid: expected at least 1 of the last 5 true, found 0"):
        act({**one, "image_valid": np.zeros_like(one["image_valid"])})
    unknown = {**one, "known_motion": np.zeros_like(one["known_motion"])}
    zeros = {name: np.zeros_like(one[name]) for name in ("motion", "past_motion")}
    np.testing.assert_array_equal(act(unknown), act({**unknown, **zeros}), err_msg="what is unknown counts as 0")
    assert not np.array_equal(act(unknown), act(one))


@pytest.mark.long
def test_moments_and_calibration_are_read_as_in_training(drives: Path, tmp_path: Path):
    """What `infer` makes of an observation is what the model predicts of the dataset's own batch."""
    seen: dict[str, Any] = {"use_moments": True, "use_calibration": True, "residual": ResidualConfig(width=4)}
    settings = config_of(drives, tmp_path / "run")
    data = dataclasses.replace(settings.data, offsets_s=(-0.25, 0.0))
    settings = dataclasses.replace(settings, data=data, waypoints=WaypointConfig(hidden_sizes=(16,), **seen))
    params: Any = jax.tree.map(np.asarray, init_params(settings, key(0, "init")))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: (x + 0.2 * rng.normal(size=x.shape)).astype(np.float32), params)
    policy = WaypointPolicy(settings, params)
    data = open_data(settings.data, "all")
    row = int(data.anchors[3])
    batch = data.batch(np.array([row]))
    images = {}
    for n, at in enumerate(("@-0.25", "")):
        for k, name in enumerate(CAMERAS):
            there = batch["image_valid"][0, n, k]
            images[f"{name}{at}"] = batch["images"][0, n, k] if there else None
    assert [name.removeprefix("image/") for name in policy.spec.observation if name.startswith("image/")] == [*images]
    matrices = {
        name: {camera: batch[name][0, 1, k] for k, camera in enumerate(CAMERAS)}
        for name in ("intrinsics", "extrinsics")
    }
    past = batch["past_motion"][0].reshape(2, 3)
    speed, rate = batch["speed_mps"][0, 1], batch["yaw_rate_radps"][0, 1]
    known = batch["past_motion_valid"][0].reshape(2, 3)
    before = [
        [float(now - change) if there else None for change, there in zip(changes, knows, strict=True)]
        for now, changes, knows in zip((speed, rate), past, known, strict=True)
    ]
    observation = {
        "image": images,
        **matrices,
        "speed_mps": float(speed),
        "yaw_rate_radps": float(rate),
        "past_speed_mps": before[0],
        "past_yaw_rate_radps": before[1],
        "route_command": ROUTE_COMMANDS[int(batch["route_command"][0])],
    }
    expected = policy.predict(waypoints.inputs(batch, 1, settings.waypoints))[0]
    np.testing.assert_allclose(policy.infer(observation)["actions"], expected, atol=1e-3)
    policy.compile([1])  # as a server does before the first observation
    flat = {name: value for name, value in observation.items() if name not in ("image", "intrinsics", "extrinsics")}
    for entry in ("image", "intrinsics", "extrinsics"):
        flat |= {f"{entry}/{name}": value for name, value in observation[entry].items()}
    np.testing.assert_array_equal(policy.infer(flat)["actions"], policy.infer(observation)["actions"])
    # A larger image is sent with its own matrix: [fx, 0, cx] of three times the width, [0, fy, cy] of twice the height.
    height, width = SIZE
    larger = {name: None if image is None else image.repeat(2, 0).repeat(3, 1) for name, image in images.items()}
    own = np.array([[3.0], [2.0], [1.0]])
    sent = {"image": larger, "intrinsics": {name: own * one for name, one in matrices["intrinsics"].items()}}
    prepared, plain = (policy.prepare(observation | more).inputs for more in (sent, {}))
    assert larger["front"] is not None
    assert larger["front"].shape == (2 * height, 3 * width, 3)
    np.testing.assert_allclose(prepared["intrinsics"], plain["intrinsics"], rtol=1e-6)
    np.testing.assert_allclose(plain["intrinsics"][0, 5], matrices["intrinsics"]["front"], rtol=1e-6)
    # A car may have cameras that this policy does not see: their matrices are ignored as their images are.
    rig: dict[str, Any] = {name: {**one, "roof": None, "rear": np.eye(2)} for name, one in matrices.items()}
    with_others = policy.prepare(observation | rig | {"image": {**images, "roof": None}}).inputs
    for name in matrices:
        np.testing.assert_array_equal(with_others[name], plain[name])
    moved = {**matrices["extrinsics"], "front": matrices["extrinsics"]["side_left"]}
    assert np.abs(policy.infer(observation | {"extrinsics": moved})["actions"] - expected).max() > 0.01
    unknown = {**matrices["extrinsics"], "front": None}
    assert np.abs(policy.infer(observation | {"extrinsics": unknown})["actions"] - expected).max() > 0.01
    for wrong, message in (
        ({"extrinsics": {"front": np.eye(4)}}, "extrinsics: expected a dict with"),
        ({"intrinsics": {**matrices["intrinsics"], "front": np.zeros((3, 3))}}, "intrinsics/front: expected fx, fy"),
        ({"intrinsics": {**matrices["intrinsics"], "front": np.diag([-9.0, 9, 1])}}, "with focal lengths above 0"),
        (
            {"intrinsics": {**matrices["intrinsics"], "front": np.eye(4)}},
            r"intrinsics/front: expected numbers \[3, 3\]",
        ),
        (
            {"extrinsics": {**matrices["extrinsics"], "front": np.zeros((4, 4))}},
            "extrinsics/front: expected a rotation",
        ),
        ({"extrinsics": {**matrices["extrinsics"], "front": 2 * np.eye(4)}}, "a rotation and a translation row by row"),
        (
            {"extrinsics": {**matrices["extrinsics"], "front": matrices["extrinsics"]["front"].T}},
            "the last row 0, 0, 0",
        ),
    ):
        with pytest.raises(DataError, match=message):
            policy.infer(observation | wrong)
