"""Every measure of closed loop on trajectories made by hand, with values by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from driving.eval import closed_loop
from driving.eval.closed_loop import Result, Trace, measure
from driving.sim.roads import LANE, SPACING, Junction, Road
from driving.sim.traffic import Light, Signal

LENGTH = 200.0
MIDDLE = -LANE / 2
"""y of the own lane's middle; the road runs along x."""
PERFECT = Result(
    no_fault_collision=1.0,
    drivable_area=1.0,
    driving_direction=1.0,
    traffic_light=1.0,
    ttc=1.0,
    comfort=1.0,
    metres=50.0,
)


def straight_road(*, junction: bool = False) -> Road:
    x = np.arange(0, LENGTH + SPACING, SPACING)
    crossing = Junction(
        enter=100.0,
        leave=122.0,
        turn="straight",
        centre=np.array([111.0, 0.0]),
        heading=0.0,
        branches=("straight",),
        signal=True,
    )
    return Road(
        points=np.stack([x, 0 * x], axis=-1),
        heading=0 * x,
        curvature=0 * x,
        junctions=(crossing,) if junction else (),
    )


def trace(
    x: Any, y: Any = MIDDLE, heading: Any = 0.0, *, cars: Any = (), junction: bool = False, light: Light = "green"
) -> Trace:
    """A drive through these places at 10 Hz; each of `cars` has x, y, heading of every frame."""
    x, y, heading = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float), np.asarray(heading, float))
    pose = np.stack([x, y, heading], axis=-1)
    others = np.zeros((len(x), len(cars), 3))
    for i, car in enumerate(cars):
        for axis in range(3):
            others[:, i, axis] = car[axis]
    road = straight_road(junction=junction)

    def speed(places: np.ndarray) -> np.ndarray:
        return np.linalg.norm(np.gradient(places[..., :2], 0.1, axis=0), axis=-1)

    signal = [Signal(junction=one, green=1, yellow=1, red=1, phase=0) for one in road.junctions]
    shown: tuple[Light, ...] = (light,) * len(signal)
    return Trace(
        road=road,
        signals=tuple(signal),
        dt_s=0.1,
        pose=pose,
        speed=speed(pose),
        acceleration=np.gradient(speed(pose), 0.1),
        yaw_rate=np.gradient(heading, 0.1),
        cars=others,
        car_speed=speed(others),
        lights=(shown,) * len(x),
    )


def drive(start: float, speed: float, frames: int = 31) -> np.ndarray:
    return start + speed * 0.1 * np.arange(frames)


def test_a_drive_without_fault_has_the_whole_score():
    result = measure(trace(drive(10, 8), junction=True))
    assert result == dataclasses.replace(PERFECT, metres=pytest.approx(24.0))
    assert result.infractions == ()
    assert result.score(24.0) == pytest.approx(1.0)
    assert result.score(48.0) == pytest.approx((5 * 1 + 5 * 0.5 + 2 * 1) / 12)
    assert result.score(12.0) == pytest.approx(1.0)  # farther than the expert is no more than as far


def test_the_score_is_the_formula():
    result = dataclasses.replace(PERFECT, ttc=0.0, driving_direction=0.5)
    assert result.score(100.0) == pytest.approx(0.5 * (5 * 0 + 5 * 0.5 + 2 * 1) / 12)
    assert result.infractions == ("driving_direction",)
    for name in closed_loop.MULTIPLIERS:
        assert dataclasses.replace(PERFECT, **{name: 0.0}).score(50.0) == 0.0
    stands = dataclasses.replace(PERFECT, metres=0.0)
    assert stands.progress(50.0) == pytest.approx(0.1 / 50)
    assert stands.progress(0.0) == 1.0  # where the expert stands as well
    assert stands.score(50.0) == 0.0
    assert PERFECT.score(251.0) == 0.0  # less than a fifth of the expert's way
    assert PERFECT.score(250.0) == pytest.approx((5 + 5 * 0.2 + 2) / 12)


@pytest.mark.parametrize(
    ("x", "y", "heading", "car", "expected"),
    [
        # Ahead and standing: bumpers meet when the middles are 4.4 m apart, after 20 m, 2 s.
        (drive(10, 10), MIDDLE, 0.0, (34.5, MIDDLE, 0.0), (21, "stopped other", True)),
        (drive(10, 10), MIDDLE, 0.0, (drive(20, 5), MIDDLE, 0.0), (12, "front", True)),
        # From behind, at 12 m/s against 8: 10 m less 4.4 m at 4 m/s.
        (drive(30, 8), MIDDLE, 0.0, (drive(20, 12), MIDDLE, 0.0), (15, "rear", False)),
        (np.full(31, 50.0), MIDDLE, 0.0, (drive(30, 8), MIDDLE, 0.0), (20, "stopped ego", False)),
        # Beside, drifting over from the other lane while the own car keeps its own.
        (drive(10, 8), MIDDLE, 0.0, (drive(9, 8.01), -MIDDLE - 1.0 * np.arange(31) * 0.1, 0.0), (17, "side", False)),
        # The own car drifts over.
        (drive(10, 8), MIDDLE + 0.1 * np.arange(31), 0.0, (drive(9, 8.01), -MIDDLE, 0.0), (17, "side", True)),
    ],
)
def test_collisions_and_whose_fault_they_are(x: Any, y: Any, heading: Any, car: Any, expected: Any):
    driven = trace(x, y, heading, cars=[car])
    (found,) = closed_loop.collisions(driven)
    assert abs(found[0] - expected[0]) <= 1
    assert found[1:] == expected[1:]
    assert measure(driven).no_fault_collision == (0.0 if expected[2] else 1.0)


def test_cars_that_have_gone_or_pass_by_are_no_collisions():
    gone = (drive(10, 10), MIDDLE, np.nan)
    beside = (drive(60, -8), -MIDDLE, np.pi)
    driven = trace(drive(10, 10), cars=[gone, beside])
    assert closed_loop.collisions(driven) == []
    assert measure(driven).no_fault_collision == 1.0
    assert measure(driven).ttc == 1.0


def test_a_turned_car_is_as_long_as_it_is():
    across = (30.0, MIDDLE, np.pi / 2)  # 1.9 m long this way: bumpers meet at 2.2 + 0.95 m
    assert not closed_loop.collisions(trace([26.7, 26.8], cars=[across]))
    assert closed_loop.collisions(trace([26.7, 26.9], cars=[across]))[0][0] == 1


@pytest.mark.parametrize(("y", "expected"), [(-3.3, 1.0), (-3.4, 0.0), (3.3, 1.0), (3.4, 0.0)])
def test_the_road_ends_beside_the_lane(y: float, expected: float):
    """Asphalt up to 4.0 m, 0.3 m over it are allowed, the car is 0.95 m wide on each side: 3.35 m."""
    assert measure(trace(drive(20, 8), y)).drivable_area == expected


def test_corners_count_and_junctions_are_road():
    # Turned by 90 degrees its nose is 2.2 m from its middle.
    assert trace([50.0, 50.1], -2.5, -np.pi / 2).outside[0] == pytest.approx(0.7, abs=0.01)
    assert trace([111.0, 111.1], -2.5, -np.pi / 2, junction=True).outside[0] == 0.0
    np.testing.assert_allclose(
        closed_loop.corners(np.array([1.0, 2.0, np.pi / 2])), [[0.05, 4.2], [1.95, 4.2], [1.95, -0.2], [0.05, -0.2]]
    )


@pytest.mark.parametrize(("frames", "expected"), [(0, 1.0), (2, 1.0), (3, 0.5), (7, 0.5), (8, 0.0), (30, 0.0)])
def test_metres_in_the_oncoming_lane(frames: int, expected: float):
    """8 m/s: 0.8 m a frame; 2.4 m in three, 5.6 in seven, 6.4 in eight."""
    # The step back across the middle is 3.7 m long: it ends in the own lane and counts there.
    first = 1 if frames else 0  # nothing has been driven at the first frame
    y = np.where((np.arange(31) < frames + first), -MIDDLE, MIDDLE)
    assert measure(trace(drive(20, 8), y)).driving_direction == expected


def test_within_a_junction_the_lane_is_wider_and_a_second_is_the_window():
    inside = trace(drive(102, 5), 1.0, junction=True)
    assert measure(inside).driving_direction == 1.0
    assert measure(trace(drive(20, 5), 1.0)).driving_direction == 0.5  # 5 m a second, for three
    assert measure(trace(drive(102, 5), 2.0, junction=True)).driving_direction == 0.5
    slow = trace(drive(20, 1.5), 1.0)
    assert measure(slow).driving_direction == 1.0  # 4.5 m, but never 2 within a second


def test_red_lights():
    """The front is 2.2 m ahead of the middle, the stop line at 100 m."""
    passing: dict[str, Any] = {"junction": True, "light": "red"}
    assert measure(trace(drive(79, 6), **passing)).traffic_light == 1.0  # its front comes to 99.2 m
    assert measure(trace(drive(80, 6), **passing)).traffic_light == 0.0  # 100.2 m
    assert measure(trace(drive(90, 6), junction=True, light="green")).traffic_light == 1.0
    assert measure(trace(drive(90, 6), junction=True, light="yellow")).traffic_light == 1.0
    inside = trace(drive(99, 6), **passing)  # its front is over the line when it turns red
    assert measure(inside).traffic_light == 1.0
    late = trace(drive(90, 6), **passing)

    def changing(frame: int) -> Trace:
        return dataclasses.replace(late, lights=tuple(("green",) if k < frame else ("red",) for k in range(31)))

    # The front is at 92.2 m + 0.6 m a frame: over the line at frame 13 + 1.
    assert closed_loop.passes_red(changing(13))
    assert not closed_loop.passes_red(changing(15))


@pytest.mark.parametrize(("gap", "expected"), [(9.5, 1.0), (8.5, 0.0)])
def test_the_time_to_a_collision(gap: float, expected: float):
    """At 10 m/s towards what stands, 9 m are driven in the last tenth of a second that counts, 0.9 s."""
    x = drive(10, 10, 11)
    assert measure(trace(x, cars=[(x[-1] + 4.4 + gap, MIDDLE, 0.0)])).ttc == expected


def test_time_to_collision_knows_where_the_others_go_and_counts_none_behind_or_beside():
    x = drive(10, 10, 11)
    assert measure(trace(x, cars=[(x + 8.0, MIDDLE, 0.0)])).ttc == 1.0  # as fast as the own car
    behind = trace(x, cars=[(drive(0, 14, 11) + 4, MIDDLE, 0.0)])
    assert measure(behind).ttc == 1.0
    # It drifts over, 3 m farther on, and stops at 1.85 m beside: seen at more than 30 degrees.
    beside = (drive(13, 10, 31), np.maximum(-MIDDLE - 0.1 * np.arange(31), MIDDLE + 1.85), 0.0)
    assert measure(trace(drive(10, 10, 31), cars=[beside])).ttc == 1.0
    drifting = trace(drive(10, 10, 31), MIDDLE + 0.06 * np.arange(31), cars=[(drive(11, 10, 31), -MIDDLE, 0.0)])
    assert measure(drifting).ttc == 0.0
    stands = trace(np.full(31, 50.0), cars=[(54.5, MIDDLE, 0.0)])
    assert measure(stands).ttc == 1.0


def test_time_to_collision_follows_the_bend():
    """On a circle of 10 m radius at 5 m/s, a car that stands straight ahead by 7 m is not met, one on the arc is."""
    angle = 0.5 * 0.1 * np.arange(11)
    x, y = 50 + 10 * np.sin(angle), -1.8 + 10 * (1 - np.cos(angle))
    last = np.array([x[-1], y[-1]])
    ahead = last + 8.5 * np.array([np.cos(angle[-1]), np.sin(angle[-1])])
    bent = 0.5 + 0.84
    on_arc = np.array([50 + 10 * np.sin(bent), -1.8 + 10 * (1 - np.cos(bent))])
    aside = np.array([-np.sin(0.5), np.cos(0.5)]) * -1.2
    assert measure(trace(x, y, angle, cars=[(*(ahead + aside), 0.5)])).ttc == 1.0
    assert measure(trace(x, y, angle, cars=[(*on_arc, bent)])).ttc == 0.0


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"acceleration": 2.3}, set()),
        ({"acceleration": 2.5}, {"longitudinal acceleration"}),
        ({"acceleration": -4.0}, set()),
        ({"acceleration": -4.1}, {"longitudinal acceleration"}),
        ({"yaw_rate": 0.6}, set()),  # 8 m/s: 4.8 m/s^2 across
        ({"yaw_rate": 0.62}, {"lateral acceleration"}),
        ({"yaw_rate": -0.62}, {"lateral acceleration"}),
        ({"turning": 0.9}, set()),
        ({"turning": 1.0}, {"yaw rate"}),
        ({"winding": 1.9}, {"yaw rate"}),
        ({"winding": 2.0}, {"yaw rate", "yaw acceleration"}),
        ({"jerk": 3.5}, {"longitudinal acceleration"}),
        ({"jerk": -4.3}, {"longitudinal acceleration", "longitudinal jerk"}),
        ({"jerk": 8.5}, {"longitudinal acceleration", "longitudinal jerk", "jerk"}),
    ],
)
def test_comfort_has_the_bounds_of_nuplan(change: dict[str, float], broken: set[str]):
    """Constant values, and their slopes, come through the filters as they are."""
    t = 0.1 * np.arange(31)
    one = trace(drive(10, 8))
    values: dict[str, np.ndarray] = {"acceleration": 0 * t, "yaw_rate": 0 * t}
    (name, value), pose = next(iter(change.items())), one.pose.copy()
    if name in values:
        values[name] = np.full(31, value)
    elif name == "turning":
        pose[:, 2] = value * t
    elif name == "winding":
        pose[:, 2] = value * t**2 / 2
    else:
        values["acceleration"] = value * t
    found = closed_loop.within_bounds(dataclasses.replace(one, pose=pose, **values))
    assert {name for name, kept in found.items() if not kept} == broken
    assert list(found) == list(closed_loop.BOUNDS)


def test_comfort_of_a_drive_that_is_hardly_one():
    assert measure(trace(drive(10, 8, 4))).comfort == 1.0
    short = trace(drive(10, 8, 6))
    assert all(closed_loop.within_bounds(short).values())
    assert not all(closed_loop.within_bounds(dataclasses.replace(short, acceleration=np.full(6, 3.0))).values())


def test_driving_back_is_no_progress():
    assert measure(trace(drive(50, -3))).metres == 0.0
    assert measure(trace(drive(50, 3))).metres == pytest.approx(9.0)


def test_a_part_of_a_drive_is_worth_what_a_drive_through_its_places_is():
    x = np.concatenate([drive(60, 9), drive(87.9, 4)])
    y = MIDDLE - 2.6 * np.sin(np.arange(len(x)) / 9)
    whole = trace(x, y, 0.1 * np.cos(np.arange(len(x)) / 9), cars=[(drive(70, 6, len(x)), MIDDLE, 0.0)], junction=True)
    measure(whole)  # what is known of each frame is not computed again for a part
    for first, last in ((0, 62), (5, 40), (20, 61), (61, 62)):
        names = ("pose", "speed", "acceleration", "yaw_rate", "cars", "car_speed", "lights")
        alone = dataclasses.replace(whole, **{name: getattr(whole, name)[first:last] for name in names})
        assert measure(whole.part(first, last)) == measure(alone)
    assert {measure(whole.part(i, i + 20)).drivable_area for i in range(40)} == {0.0, 1.0}
