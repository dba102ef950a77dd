"""No model is given anything of what comes later: the same drives with another future have the same inputs.

Of every reader: episodes of any make, and each format that is converted, with motion recorded and with it derived.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driving.config import DataConfig
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.data.batches import open_data
from driving.data.calibration import make_calibration
from driving.data.index import Index
from driving.data.scan import scan_file
from driving.data.tables import make_tables
from tests.driving.converters import test_lerobot, test_nuscenes, test_waymo_e2e, waymo_files

TARGETS = ("waypoints", "waypoint_valid", "relative_pose", "relative_pose_valid")
"""Of a batch, what a model is compared with; all else is an input, or says which sample it is."""

NUMBERS = st.one_of(st.none(), st.floats(-30, 30))
STATES = st.fixed_dictionaries(dict.fromkeys(("x_m", "y_m", "yaw_rad", "speed_mps", "yaw_rate_radps"), NUMBERS))
POSES = st.one_of(st.none(), st.fixed_dictionaries({key: st.floats(-30, 30) for key in ("x_m", "y_m", "yaw_rad")}))
MOMENTS = st.tuples(st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.65, 1.1]), STATES, POSES)


def moved(t: float, cut: float) -> float:
    """How far another future leads away."""
    return 3.0 * max(t - cut, 0.0) + 40.0 * max(t - cut, 0.0) ** 2


def tree_of(moments: list[tuple[float, dict[str, Any], dict[str, Any] | None]]) -> dict[str, Any]:
    frames, t = [], 0.0
    for step, state, pose in moments:
        camera = {"image_path": None, "t_offset_s": 0.02, "pose": pose}
        frames.append({"t": round(t, 6), "observations": {"cameras": {"front": camera}, "state": state}})
        t += step
    return {"episode_id": "a", "domain": "driving", "frames": frames}


def inputs_of(index: Index) -> dict[str, np.ndarray]:
    config = DataConfig(path="", cameras=("front",))
    tables = make_tables(index, config)
    names = ("yaw_rad", "yaw_valid", "speed_mps", "speed_valid", "yaw_rate_radps", "yaw_rate_valid", "past_motion")
    return {name: getattr(tables, name) for name in names} | {"motion": make_calibration(index, tables, config).motion}


@settings(max_examples=60, deadline=None)
@given(st.lists(MOMENTS, min_size=2, max_size=9), st.lists(MOMENTS, min_size=1, max_size=9), st.data())
def test_of_any_episode(tmp_path_factory: pytest.TempPathFactory, moments: Any, others: Any, data: st.DataObject):
    """What is recorded and what is missing is drawn, before the cut and after it, and how far apart the frames are."""
    kept = data.draw(st.integers(1, len(moments) - 1))
    folder, found = tmp_path_factory.mktemp("episode"), []
    for name, drawn in (("one", moments), ("other", moments[:kept] + others)):
        file = folder / f"{name}.json"
        file.write_text(json.dumps(tree_of(drawn)))
        index, problems = scan_file(file, folder)
        assert index is not None, problems
        found.append(inputs_of(index))
    for key, value in found[0].items():
        np.testing.assert_array_equal(value[:kept], found[1][key][:kept], err_msg=key)


def waymo_v2(root: Path, recorded: bool) -> Any:
    column = "[CameraImageComponent].velocity.linear_velocity.x"
    waymo_files.write_v2(root, frames=16, changes={} if recorded else {column: None})
    return "waymo_v2"


def waymo_v1(root: Path, recorded: bool) -> Any:
    frames = [waymo_files.v1_frame(frame, moving=recorded) for frame in range(16)]
    waymo_files.write_v1(root / "a.tfrecord", frames=frames)
    return "waymo_v1"


def nuscenes(root: Path, recorded: bool) -> Any:
    test_nuscenes.write(root)
    return "nuscenes"


def l2d(root: Path, recorded: bool) -> Any:
    test_lerobot.write_l2d(root, rename="observation.state.vehicle" if recorded else "observation.state")
    return "lerobot"


def waymo_e2e(root: Path, recorded: bool) -> Any:
    names = () if recorded else ("vel_x", "vel_y", "accel_x", "accel_y")
    nothing: dict[str, Any] = {name: [] for name in names}
    test_waymo_e2e.write(root / "a.tfrecord", *(test_waymo_e2e.record(frame, **nothing) for frame in range(16)))
    return "waymo_e2e"


WRITERS: Mapping[str, tuple[Callable[[Path, bool], Any], Any, float, ConvertSettings]] = {
    "waymo_v2": (waymo_v2, waymo_files, 0.68, ConvertSettings()),
    "waymo_v1": (waymo_v1, waymo_files, 0.68, ConvertSettings()),
    "waymo_e2e": (waymo_e2e, test_waymo_e2e, 0.68, ConvertSettings()),
    "nuscenes": (nuscenes, test_nuscenes, 1.05, ConvertSettings()),
    "nuscenes, sweeps": (nuscenes, test_nuscenes, 1.05, ConvertSettings(sweeps=True)),
    "lerobot": (l2d, test_lerobot, 0.35, ConvertSettings()),
}
"""How a set is written, the module whose car it is of, and a time between the images of two frames."""
PLACES = {"x_m": "observation.state:3:100000", "y_m": "observation.state:4:100000"}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", list(WRITERS))
def test_of_every_format(name: str, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write, module, cut, options = WRITERS[name]
    if name == "lerobot" and not recorded:
        options = ConvertSettings(state=PLACES, cameras={"observation.images.front_left": "front"})
    batches = []
    pose_at, velocity = module.pose_at, waymo_files.velocity
    for changed in (False, True):
        if changed:

            def elsewhere(t: float) -> tuple[float, float, float]:
                x, y, yaw = pose_at(t)
                return x + moved(t, cut), y - moved(t, cut), yaw + 0.1 * moved(t, cut)

            monkeypatch.setattr(module, "pose_at", elsewhere)
            monkeypatch.setattr(waymo_files, "velocity", lambda t: tuple(v + 5.0 * (t > cut) for v in velocity(t)))
        source, out = tmp_path / f"set{changed}" / "set", tmp_path / f"out{changed}"
        convert(source, out, format=write(source, recorded), settings=options, report=lambda _: None)
        size = (24, 32)
        data = open_data(DataConfig(path=str(out), image_size=size, waypoint_steps=4, missing_files="mask"), "all")
        first = data.index.rows(0)
        rows = np.arange(first.start, first.stop)
        batches.append((data.index.t[rows], data.batch(rows)))
    (t, one), (_, other) = batches
    known = t - t[0] + 0.01 < cut  # a frame's time begins with its front image
    assert 2 < known.sum() < len(t)
    for key, value in one.items():
        if key not in TARGETS:
            np.testing.assert_array_equal(value[known], other[key][known], err_msg=key)  # pyright: ignore
    if recorded or name not in ("lerobot", "waymo_e2e"):
        assert one["speed_valid"][known][1:].all(), "there is something to compare"
    assert not np.array_equal(one["waypoints"], other["waypoints"]), "the future has changed"
