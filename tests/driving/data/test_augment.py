"""Augmentation keeps geometry: a point of the world is drawn where the changed image shows it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from driving.config import CAMERAS, AugmentConfig, DataConfig
from driving.data.augment import draw, kept_cameras, mirror_order, sideless_note
from driving.data.batch import Batch
from driving.data.batches import DrivingData, open_data
from tests.driving.drives import SIZE, SPEED, TURN, write_drive

HEIGHT, WIDTH = SIZE
POINTS = np.array([[12.0, 1.0, 0.5, 1.0], [15.0, -3.0, 2.0, 1.0], [6.0, 8.0, 1.0, 1.0], [7.0, -6.0, 0.2, 1.0]])
"""In the vehicle frame."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("augment")

    def change(tree: dict) -> None:
        """Nothing is the same from frame to frame, or on both sides, which a mirror could leave as it is unnoticed."""
        for i, frame in enumerate(tree["frames"]):
            seen = frame["observations"]
            seen["route_command"] = ("left", "right", "straight", None)[i % 4]
            seen["state"] |= {"speed_mps": SPEED + 2 * frame["t"], "yaw_rate_radps": TURN + 0.3 * frame["t"]}
            for k, camera in enumerate(seen["cameras"].values()):
                camera["t_offset_s"] = 0.004 * k

    write_drive(folder, "a", frames=30, change=change)
    return folder


def opened(root: Path, augment: AugmentConfig) -> DrivingData:
    return open_data(DataConfig(path=str(root), image_size=SIZE, offsets_s=(0.0, 0.5), augment=augment), "all")


def both(root: Path, augment: AugmentConfig, seed: int = 0) -> tuple[Batch, Batch]:
    """The same samples as stored and changed."""
    data = opened(root, augment)
    rows = data.anchors[:12]
    places = [(0, i) for i in range(12)]
    draws = draw(places, seed=seed, times=2, cameras=5)
    return data.batch(rows), data.batch(rows, draws)


def pixels(batch: Batch, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(u, v) of points (b, p, 4) of the vehicle frame in every image, and depth."""
    camera = np.linalg.inv(batch["extrinsics"].astype(np.float64))[:, :, :, None] @ points[:, None, None, :, :, None]
    ray = batch["intrinsics"].astype(np.float64)[:, :, :, None] @ camera[..., :3, :]
    return ray[..., :2, 0] / ray[..., 2:, 0], camera[..., 2, 0]


def test_nothing_is_changed_by_default(root: Path):
    plain, changed = both(root, AugmentConfig())
    for key in plain:
        np.testing.assert_array_equal(plain[key], changed[key])


def test_crop_moves_points_with_the_image(root: Path):
    plain, changed = both(root, AugmentConfig(crop=0.4))
    points = np.broadcast_to(POINTS, (12, *POINTS.shape))
    before, depth = pixels(plain, points)
    after, _ = pixels(changed, points)
    # The images are red from left to right, green from top to bottom: colour says where a pixel was.
    checked = 0
    for b, n, k, p in np.argwhere(depth > 0.5).tolist():
        (u, v), (u2, v2) = before[b, n, k, p], after[b, n, k, p]
        if not (2 < u2 < WIDTH - 2 and 2 < v2 < HEIGHT - 2):
            continue
        assert 0 < u < WIDTH
        was = plain["images"][b, n, k, int(v), int(u), :2].astype(float)
        now = changed["images"][b, n, k, int(v2), int(u2), :2].astype(float)
        np.testing.assert_allclose(now, was, atol=8)
        checked += 1
    assert checked > 50
    assert np.abs(after - before)[depth > 0.5].max() > 3


def test_one_crop_over_time_and_another_for_each_camera(root: Path):
    _, changed = both(root, AugmentConfig(crop=0.4))
    intrinsics = changed["intrinsics"]
    np.testing.assert_array_equal(intrinsics[:, 0], intrinsics[:, 1])
    assert len(np.unique(intrinsics[:, 0, :, 0, 0])) == 60
    np.testing.assert_allclose(intrinsics[..., 1, 1] / intrinsics[..., 0, 0], 42 / 40, rtol=1e-6)


def test_flip_mirrors_the_world(root: Path):
    plain, changed = both(root, AugmentConfig(flip=1.0))
    points = np.broadcast_to(POINTS, (12, *POINTS.shape))
    mirrored = points * np.array([1.0, -1.0, 1.0, 1.0])
    before, depth = pixels(plain, points)
    after, mirrored_depth = pixels(changed, mirrored)
    order = [0, 2, 1, 4, 3]
    np.testing.assert_allclose(mirrored_depth, depth[:, :, order], atol=1e-5)
    front = depth[:, :, order] > 0.5
    np.testing.assert_allclose(after[..., 0][front], WIDTH - before[:, :, order][..., 0][front], atol=1e-2)
    np.testing.assert_allclose(after[..., 1][front], before[:, :, order][..., 1][front], atol=1e-2)
    np.testing.assert_array_equal(changed["images"], plain["images"][:, :, order, :, ::-1])
    np.testing.assert_array_equal(changed["waypoints"], plain["waypoints"] * np.array([1, -1], np.float32))
    np.testing.assert_array_equal(changed["relative_pose"][..., 0], plain["relative_pose"][..., 0])
    np.testing.assert_allclose(changed["relative_pose"][..., 1:], -plain["relative_pose"][..., 1:], atol=1e-6)
    np.testing.assert_allclose(changed["yaw_rad"], -plain["yaw_rad"], atol=1e-6)
    np.testing.assert_array_equal(changed["yaw_rate_radps"], -plain["yaw_rate_radps"])
    np.testing.assert_array_equal(changed["speed_mps"], plain["speed_mps"])
    assert (plain["past_motion"][10:] != 0).all(), "after the first second"
    np.testing.assert_array_equal(changed["past_motion"][:, :3], plain["past_motion"][:, :3])
    np.testing.assert_array_equal(changed["past_motion"][:, 3:], -plain["past_motion"][:, 3:])
    assert len(np.unique(plain["camera_t"][0, 0])) == 5
    np.testing.assert_array_equal(changed["camera_t"], plain["camera_t"][:, :, order])
    np.testing.assert_array_equal(plain["route_command"], [1, 3, 2, 0] * 3)
    np.testing.assert_array_equal(changed["route_command"], [3, 1, 2, 0] * 3)


def test_extrinsics_stay_rotations(root: Path):
    _, changed = both(root, AugmentConfig(flip=1.0, crop=0.3))
    rotation = changed["extrinsics"][..., :3, :3]
    np.testing.assert_allclose(np.linalg.det(rotation), 1.0, atol=1e-5)


def test_flip_is_drawn_for_each_sample(root: Path):
    plain, changed = both(root, AugmentConfig(flip=0.5))
    flipped = (changed["yaw_rate_radps"][:, 0] != plain["yaw_rate_radps"][:, 0]).tolist()
    assert 0 < sum(flipped) < 12
    for row, turned in enumerate(flipped):
        np.testing.assert_array_equal(changed["images"][row, 0, 0] == plain["images"][row, 0, 0, :, ::-1], turned or
                                      (plain["images"][row, 0, 0] == plain["images"][row, 0, 0, :, ::-1]))  # fmt: skip


def test_what_is_switched_off_never_happens_and_what_is_certain_always_does(root: Path):
    """Draws reach from 0, which can come, to just below 1."""
    plain, _ = both(root, AugmentConfig())
    for value in (0.0, float(np.nextafter(1.0, 0.0))):
        draws = draw([(0, i) for i in range(12)], seed=0, times=2, cameras=5)
        extreme = dataclasses.replace(
            draws, flip=np.full_like(draws.flip, value), dropout=np.full_like(draws.dropout, value)
        )
        data = opened(root, AugmentConfig())
        for key, found in data.batch(data.anchors[:12], extreme).items():
            np.testing.assert_array_equal(found, plain[key])
        data = opened(root, AugmentConfig(flip=1.0))
        found = data.batch(data.anchors[:12], extreme)
        np.testing.assert_array_equal(found["yaw_rate_radps"], -plain["yaw_rate_radps"])
        assert kept_cameras(extreme, np.ones((12, 5), bool), 0.0).all()
        assert (kept_cameras(extreme, np.ones((12, 5), bool), 1.0).sum(1) == 1).all()


def test_a_draw_below_the_probability_flips_and_drops(root: Path):
    data = opened(root, AugmentConfig(flip=0.25))
    draws = draw([(0, i) for i in range(3)], seed=0, times=2, cameras=5)
    draws = dataclasses.replace(draws, flip=np.array([0.24, 0.25, 0.26]))
    plain, found = data.batch(data.anchors[:3]), data.batch(data.anchors[:3], draws)
    np.testing.assert_array_equal(found["yaw_rate_radps"][:, 0] / plain["yaw_rate_radps"][:, 0], [-1, 1, 1])
    dropout = np.array([[0.24, 0.25, 0.26, 0.24, 0.9]] * 3)
    kept = kept_cameras(dataclasses.replace(draws, dropout=dropout), np.ones((3, 5), bool), 0.25)
    assert kept.tolist() == [[False, True, True, False, True]] * 3


def test_flip_needs_both_sides():
    with pytest.raises(ConfigError, match="front_left"):
        mirror_order(("front", "front_left"))
    assert mirror_order(CAMERAS) == [0, 2, 1, 4, 3]
    assert mirror_order(("side_right", "rear", "side_left")) == [2, 1, 0]


@pytest.mark.parametrize(
    "cameras",
    [
        ("CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT"),
        ("front", "frontLeft", "frontRight"),
        ("f", "left_0", "right_0"),
    ],
)
def test_sides_are_found_in_any_case(cameras: tuple[str, ...]):
    assert mirror_order(cameras) == [0, 2, 1]


def test_a_side_that_no_name_tells_is_refused_where_it_is_calibrated(tmp_path: Path):
    def renamed(tree: dict) -> None:
        for frame in tree["frames"]:
            seen = frame["observations"]["cameras"]
            frame["observations"]["cameras"] = {"front": seen["front"], "fl": seen["front_left"]}

    write_drive(tmp_path, "a", frames=3, change=renamed)
    config = DataConfig(path=str(tmp_path), image_size=SIZE, cameras=("front", "fl"), augment=AugmentConfig(flip=0.5))
    with pytest.raises(ConfigError, match=r"'fl' has none.* 0\.72 m off it that look 46 degrees away.*flip 0"):
        open_data(config, "all")
    there = open_data(dataclasses.replace(config, cameras=("front",)), "all")
    assert not [note for note in there.notes if "without a side" in note], "it looks straight ahead"
    open_data(dataclasses.replace(config, augment=AugmentConfig()), "all")
    with pytest.raises(ConfigError, match="split is 'nope'; expected one of train, val, test, all"):
        open_data(dataclasses.replace(config, augment=AugmentConfig()), "nope")  # pyright: ignore[reportArgumentType]


def test_cameras_whose_side_nothing_tells_are_named(tmp_path: Path):
    def uncalibrated(tree: dict) -> None:
        for frame in tree["frames"]:
            for camera in frame["observations"]["cameras"].values():
                del camera["extrinsics"]

    write_drive(tmp_path, "a", frames=3, change=uncalibrated)
    config = DataConfig(path=str(tmp_path), image_size=SIZE, augment=AugmentConfig(flip=0.5))
    (note,) = (note for note in open_data(config, "all").notes if "without a side" in note)
    assert "['front']" in note
    plain = open_data(dataclasses.replace(config, augment=AugmentConfig()), "all")
    assert not [note for note in plain.notes if "without a side" in note]


@pytest.mark.parametrize(
    ("lateral", "view", "fits"), [(0.3, 0.1, True), (-0.31, 0.0, False), (0.0, -0.11, False), (0.0, 0.0, True)]
)
def test_how_far_off_the_axis_a_camera_may_be(lateral: float, view: float, fits: bool):
    extrinsics = np.eye(4)[None].copy()
    extrinsics[0, 1, 3], extrinsics[0, 1, 2] = lateral, view
    row = np.array([[-1], [0]], np.int32)
    if fits:
        assert sideless_note(("front",), (0,), row, extrinsics) == ""
    else:
        with pytest.raises(ConfigError, match="'front'"):
            sideless_note(("front",), (0,), row, extrinsics)


def test_colour_changes_images_only(root: Path):
    plain, changed = both(root, AugmentConfig(brightness=0.3, contrast=0.3, saturation=0.5))
    for key in plain:
        if key != "images":
            np.testing.assert_array_equal(plain[key], changed[key])
    off = np.abs(plain["images"].astype(int) - changed["images"])
    assert 1 < off.mean() < 60


def test_brightness_and_contrast_are_what_they_say(root: Path):
    data = opened(root, AugmentConfig(brightness=0.5))
    draws = draw([(0, 0)], seed=3, times=2, cameras=5)
    plain, changed = data.batch(data.anchors[:1]), data.batch(data.anchors[:1], draws)
    factor = 1 + (2 * draws.colour[0, 0, 0, 0] - 1) * 0.5
    expected = np.clip(np.round(plain["images"][0, 0, 0] * factor), 0, 255)
    np.testing.assert_allclose(changed["images"][0, 0, 0], expected, atol=1)


def test_contrast_is_around_the_middle_grey(root: Path):
    data = opened(root, AugmentConfig(contrast=0.5))
    draws = draw([(0, 0)], seed=3, times=2, cameras=5)
    plain, changed = data.batch(data.anchors[:1]), data.batch(data.anchors[:1], draws)
    factor = 1 + (2 * draws.colour[0, 0, 0, 1] - 1) * 0.5
    assert abs(factor - 1) > 0.1
    expected = np.clip(np.round((plain["images"][0, 0, 0] - 127.5) * factor + 127.5), 0, 255)
    np.testing.assert_allclose(changed["images"][0, 0, 0], expected, atol=1)


def test_what_is_mirrored_was_cropped_before(root: Path):
    """A camera takes its own crop with it to the other side."""
    _, cropped = both(root, AugmentConfig(crop=0.3))
    _, changed = both(root, AugmentConfig(crop=0.3, flip=1.0))
    order = [0, 2, 1, 4, 3]
    np.testing.assert_array_equal(changed["images"], cropped["images"][:, :, order, :, ::-1])
    expected = cropped["intrinsics"][:, :, order].copy()
    expected[..., 0, 1] *= -1
    expected[..., 0, 2] = WIDTH - expected[..., 0, 2]
    np.testing.assert_allclose(changed["intrinsics"], expected, rtol=1e-6)


def test_dropout_masks_a_camera_at_all_times_and_never_the_last(root: Path):
    plain, changed = both(root, AugmentConfig(camera_dropout=0.5))
    valid = changed["image_valid"]
    np.testing.assert_array_equal(valid[:, 0], valid[:, 1])
    assert valid[:, 0].any(1).all()
    assert 10 < valid[:, 0].sum() < 50
    assert (changed["images"][~valid] == 0).all()
    np.testing.assert_array_equal(changed["images"][valid], plain["images"][valid])
    assert both(root, AugmentConfig(camera_dropout=1.0))[1]["image_valid"][:, 0].sum(1).tolist() == [1] * 12


def test_the_camera_that_stays_is_one_that_saw_something():
    draws = draw([(0, i) for i in range(50)], seed=0, times=1, cameras=5)
    seen = np.zeros((50, 5), bool)
    seen[:, 3] = True
    seen[7] = False
    keep = kept_cameras(draws, seen, 1.0)
    np.testing.assert_array_equal(keep.sum(1), (np.arange(50) != 7).astype(int))
    assert keep[np.arange(50) != 7, 3].all()


def test_a_camera_comes_back_only_where_none_is_left():
    draws = draw([(0, i) for i in range(50)], seed=0, times=1, cameras=5)
    keep = kept_cameras(draws, np.ones((50, 5), bool), 0.3)
    drawn = draws.dropout >= 0.3
    some = drawn.any(1)
    assert some.sum() > 40
    np.testing.assert_array_equal(keep[some], drawn[some])


def test_draws_are_a_function_of_seed_epoch_and_index():
    one = draw([(2, 5), (2, 6)], seed=1, times=2, cameras=3)
    other = draw([(0, 0), (2, 6)], seed=1, times=2, cameras=3)
    np.testing.assert_array_equal(one.colour[1], other.colour[1])
    np.testing.assert_array_equal(one.crop[1], other.crop[1])
    values = [
        draw([place], seed=seed, times=2, cameras=3).flip[0]
        for seed, place in ((1, (2, 5)), (1, (3, 5)), (1, (2, 6)), (2, (2, 5)))
    ]
    assert len(set(values)) == 4


def test_masked_cameras_stay_black_and_uncalibrated(tmp_path: Path):
    write_drive(
        tmp_path, "a", frames=12, change=lambda t: [f["observations"]["cameras"].pop("front_left") for f in t["frames"]]
    )
    _, changed = both(tmp_path, AugmentConfig(flip=1.0, crop=0.3, brightness=0.5))
    lost = list(CAMERAS).index("front_right")  # the mirror image of front_left
    assert not changed["image_valid"][:, :, lost].any()
    assert not changed["calibration_valid"][:, :, lost].any()
    assert (changed["images"][:, :, lost] == 0).all()
    np.testing.assert_array_equal(changed["intrinsics"][:, :, lost], np.broadcast_to(np.eye(3), (12, 2, 3, 3)))
    np.testing.assert_array_equal(changed["extrinsics"][:, :, lost], np.broadcast_to(np.eye(4), (12, 2, 4, 4)))
