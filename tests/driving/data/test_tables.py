"""What frames ask to predict, of a whole recording."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from driving.config import DataConfig, DrivingConfig, ObjectiveConfig
from driving.data.batches import BETWEEN, HEADED, open_data
from driving.tasks.pretrain import PretrainTask
from tests.driving.drives import SIZE, write_drive


@pytest.mark.parametrize(("driven", "known"), [(True, [10, 9, 8, 7, 6, 5]), (False, [20] * 6)])
def test_a_plan_that_ends_in_a_stand_is_no_padding_where_it_was_not_driven(
    tmp_path: Path, driven: bool, known: list[int]
):
    """The plan moves for 0.5 s, then stands; the recording ends after 1 s, at 8 m/s."""

    def change(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": driven}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[min(float(j), 5.0), 0.0] for j in range(1, 21)]}

    write_drive(tmp_path, "a", frames=11, change=change)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
    assert data.batch(np.arange(6))["waypoint_valid"].sum(axis=1).tolist() == known
    # A run says so, so that one of an earlier version, which masked them, does not go on with other waypoints.
    said = {"plans_that_were_not_driven": "believed where they end in a stand"}
    assert data.derived() == ({} if driven else said)
    assert not open_data(dataclasses.replace(data.config, waypoint_source="poses"), "all").derived()


def test_plans_that_go_on_are_no_news(tmp_path: Path):
    """Not driven, and no place repeats; or the car stands at the end, where plans to stand were believed before."""

    def moving(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": False}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[float(j), 0.0] for j in range(1, 21)]}

    def standing(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": False}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[0.0, 0.0]] * 20}
            frame["observations"]["state"]["speed_mps"] = 0.0

    for change in (moving, standing):
        folder = tmp_path / change.__name__
        write_drive(folder, "a", frames=11, change=change)
        assert not open_data(DataConfig(path=str(folder), image_size=SIZE), "all").derived()


def without_yaw(kept: int) -> Callable[[dict[str, Any]], None]:
    """Forgets the yaw but in every so many frames; all for 0."""

    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            if not kept or i % kept:
                del frame["observations"]["state"]["yaw_rad"]

    return change


def test_a_yaw_that_is_rare_loses_no_waypoints(tmp_path: Path):
    """On its circle the heading lies on the line between two that are recorded: targets are the whole drive's."""
    write_drive(tmp_path / "all", "a")
    write_drive(tmp_path / "rare", "a", change=without_yaw(7))
    whole, rare = (open_data(DataConfig(path=str(tmp_path / name), image_size=SIZE), "all") for name in ("all", "rare"))
    ours, theirs = rare.batch(np.arange(30)), whole.batch(np.arange(30))
    for mask in ("waypoint_valid", "relative_pose_valid"):
        np.testing.assert_array_equal(ours[mask], theirs[mask])
    np.testing.assert_allclose(ours["waypoints"][:29], theirs["waypoints"][:29], atol=1e-5)  # frame 28 is the last
    assert ours["yaw_valid"][:, 0].nonzero()[0].tolist() == [0, 7, 14, 21, 28], "an input says what is recorded"
    told = {HEADED: "read, with the heading of those around"}
    for what in ("waypoints", "poses"):
        assert (whole.headed(what), rare.headed(what)) == ({}, told)
    assert (whole.derived(), rare.derived()) == ({}, told)


def without_place(kept: int, *, yaw: bool) -> Callable[[dict[str, Any]], None]:
    """Forgets the place but in every so many frames, as of GPS slower than the cameras; and all else but the yaw."""

    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            state = frame["observations"]["state"]
            keep = (("x_m", "y_m") if i % kept == 0 else ()) + (("yaw_rad",) if yaw else ())
            frame["observations"]["state"] = {name: state[name] for name in keep}

    return change


@pytest.mark.parametrize("yaw", [True, False])
@pytest.mark.parametrize(("kept", "apart"), [(2, 0.03), (5, 0.2)])
def test_places_that_are_rarer_than_images_lose_no_waypoints(tmp_path: Path, kept: int, apart: float, yaw: bool):
    """On its circle a place lies on the line between two that are recorded, which are up to 0.5 s apart."""
    write_drive(tmp_path / "all", "a", frames=31)
    write_drive(tmp_path / "rare", "a", frames=31, change=without_place(kept, yaw=yaw))
    config = DataConfig(path=str(tmp_path / "all"), image_size=SIZE)
    whole = open_data(config, "all")
    rare = open_data(dataclasses.replace(config, path=str(tmp_path / "rare")), "all")
    ours, theirs = rare.batch(np.arange(31)), whole.batch(np.arange(31))
    for mask in ("waypoint_valid", "relative_pose_valid"):
        np.testing.assert_array_equal(ours[mask], theirs[mask])
    # At the ends a direction of travel is that of one side; where yaws are recorded they are as good there.
    frames = slice(0 if yaw else kept, 29 - kept)
    assert np.abs(ours["waypoints"] - theirs["waypoints"])[frames].max() < apart
    tables, known = rare.tables, (np.arange(31) % kept == 0) & (np.arange(31) > 0)
    np.testing.assert_array_equal(tables.speed_valid, known)  # an input is not taken from later places
    travelled = np.linalg.norm(np.diff(whole.index.pose[::kept, :2], axis=0), axis=-1)
    np.testing.assert_allclose(tables.speed_mps[known], travelled / (0.1 * kept), rtol=1e-5)
    told = {BETWEEN: "have the place between them, and motion is taken over them"}
    assert (whole.headed("poses"), rare.headed("poses")) == ({}, told)
    assert rare.derived().items() >= told.items()


@pytest.mark.parametrize(("lost", "told"), [((10, 11), True), ((30,), True), (range(31), False), ((), False)])
def test_a_run_s_fingerprint_names_frames_that_are_bridged(tmp_path: Path, lost: Sequence[int], told: bool):
    """Of a version that knew no motion across such frames; where none has a place, nothing has changed."""

    def change(tree: dict[str, Any]) -> None:
        for i in lost:
            tree["frames"][i]["observations"]["state"] = {}

    write_drive(tmp_path, "a", frames=31, change=change)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
    assert (BETWEEN in data.headed("poses"), BETWEEN in data.derived()) == (told, told)


def test_places_too_far_apart_are_not_bridged(tmp_path: Path):
    write_drive(tmp_path, "a", frames=31, change=without_place(11, yaw=True))
    tables = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all").tables
    assert tables.pose_valid.nonzero()[0].tolist() == [0, 11, 22]
    assert not tables.speed_valid.any()


def creeping(tree: dict[str, Any]) -> None:
    """0.01 m a frame, so that neighbours give no direction, between two stretches at 10 m/s; no yaw."""
    steps = np.concatenate([np.full(10, 1.0), np.full(100, 0.01), np.full(10, 1.0)])
    for x, frame in zip(np.cumsum(steps).tolist(), tree["frames"], strict=True):
        frame["observations"]["state"] = {"x_m": x, "y_m": float(tree["episode_id"][1:]), "speed_mps": 5.0}


def listed(tree: dict[str, Any]) -> None:
    without_yaw(7)(tree)
    tree["waypoint_spec"] = {"dt": 0.1}
    for frame in tree["frames"]:
        frame["expert"] = {"waypoints": [[float(j), 0.0] for j in range(1, 21)]}


@pytest.mark.parametrize(
    ("change", "frames", "waypoints", "poses"),
    [
        (without_yaw(7), 30, True, True),
        (without_yaw(0), 30, False, False),
        (creeping, 120, True, False),
        (listed, 30, False, True),
    ],
)
def test_a_run_s_fingerprint_names_frames_without_yaw_where_its_targets_need_them(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], frames: int, waypoints: bool, poses: bool
):
    for i in range(3):
        write_drive(tmp_path, f"d{i}", frames=frames, start_yaw=float(i), change=change, images=False)
    data = DataConfig(
        path=str(tmp_path), image_size=(16, 32), offsets_s=(0.0, 0.5), min_cameras=0, missing_files="mask"
    )
    assert (HEADED in open_data(data).derived()) == waypoints
    for moves, repeats in ((1.0, 1), (0.0, 1), (0.0, 4)):
        config = DrivingConfig(
            train=TrainConfig(steps=1, batch_size=2),
            data=dataclasses.replace(data, braking_repeats=repeats),
            objective=ObjectiveConfig(temporal=1.0, ego_motion=moves),
            waypoints=None,
        )
        told = HEADED in PretrainTask(config, open_data(config.data)).data_fingerprint()
        assert told == (waypoints if repeats > 1 else poses and moves > 0)
