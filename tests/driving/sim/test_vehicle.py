"""The bicycle against circles and lines by hand, the controller against its formulas."""

import dataclasses

import numpy as np
import pytest

from driving.sim.vehicle import Controller, Vehicle

CAR = Vehicle(x=0.0, y=0.0, heading=0.0, speed=5.0)


def ring(radius: float, speed: float) -> np.ndarray:
    """Waypoints along a circle to the left, or to the right for a negative radius."""
    angle = speed * 0.1 * np.arange(1, 21) / radius
    return np.stack([radius * np.sin(angle), radius * (1 - np.cos(angle))], axis=-1)


def test_a_quarter_of_a_circle():
    steered = dataclasses.replace(CAR, steering=float(np.arctan(2.8 / 10)))
    assert steered.curvature == pytest.approx(0.1)
    assert steered.yaw_rate == pytest.approx(0.5)
    quarter = steered.moved(np.pi)  # 5 m/s for pi seconds: a quarter of 2 pi 10 m
    np.testing.assert_allclose(quarter.pose, [10, 10, np.pi / 2], atol=1e-12)
    for _ in range(10):
        steered = steered.moved(np.pi / 10)
    np.testing.assert_allclose(steered.pose, quarter.pose, atol=1e-12)  # however many steps


def test_speeding_up_and_stopping():
    faster = dataclasses.replace(CAR, speed=2.0, acceleration=1.0).moved(1.0)
    assert (faster.x, faster.speed) == (2.5, 3.0)
    stopped = dataclasses.replace(CAR, speed=2.0, acceleration=-4.0).moved(1.0)
    assert (stopped.x, stopped.speed) == (0.5, 0.0)  # v^2 / 2a, and it does not go backwards
    assert stopped.moved(1.0).x == 0.5


def test_commands_are_followed_with_the_lag_of_nuplan():
    told = CAR.commanded(3.0, 0.3)
    assert told.acceleration == pytest.approx(3.0 * 0.1 / 0.3)
    assert told.steering == pytest.approx(0.3 * 0.1 / 0.15)
    assert CAR.commanded(0.0, 5.0).steering == pytest.approx(np.pi / 3 * 2 / 3)


def test_the_speed_that_is_wanted_is_that_of_the_next_half_second():
    straight = np.stack([np.arange(1, 21) * 0.5, np.zeros(20)], axis=-1)
    assert Controller().command(CAR, straight, 0.1) == (0.0, 0.0)
    faster, controller = straight * 1.1, Controller()  # 5.5 m/s
    assert controller.command(CAR, faster, 0.1)[0] == pytest.approx(4.0 * 0.5 + 0.5 * 0.05)
    assert controller.command(CAR, faster, 0.1)[0] == pytest.approx(4.0 * 0.5 + 0.5 * 0.10)
    assert Controller().command(CAR, straight * 3, 0.1)[0] == 3.0
    assert Controller().command(CAR, straight * 0, 0.1)[0] == -8.0
    late = straight.copy()
    late[6:] = late[5]  # stops after 0.6 s: not yet
    assert Controller().command(CAR, late, 0.1)[0] == 0.0
    assert Controller().command(CAR, straight[4::5], 0.5)[0] == pytest.approx(0.0)


def test_what_cannot_be_followed_does_not_add_up():
    controller, away = Controller(), np.stack([np.arange(1, 21) * 0.5, np.zeros(20)], axis=-1)
    parked = dataclasses.replace(CAR, speed=0.0)
    for _ in range(100):
        controller.command(parked, away, 0.1)
    assert controller.command(CAR, away, 0.1)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("radius", [12.0, -12.0, 40.0])
def test_pure_pursuit_of_a_circle_is_its_own_arc(radius: float):
    _, steering = Controller().command(CAR, ring(radius, 5.0), 0.1)
    assert steering == pytest.approx(np.arctan(2.8 / radius), rel=0.01)


def test_the_point_that_is_aimed_at_lies_half_a_second_ahead():
    bent = np.stack([np.arange(1, 21) * 1.0, np.zeros(20)], axis=-1)
    bent[5:, 1] = np.arange(1, 16) * 0.5
    quick = dataclasses.replace(CAR, speed=10.0)  # looks 5 m ahead, where the path is straight
    assert Controller().command(quick, bent, 0.1)[1] == 0.0
    assert Controller().command(dataclasses.replace(CAR, speed=14.0), bent, 0.1)[1] > 0.05


def test_a_plan_to_stand_leaves_the_wheel_as_it_is():
    turned = dataclasses.replace(CAR, speed=0.0, steering=0.2)
    assert Controller().command(turned, np.full((20, 2), 0.01), 0.1)[1] == 0.2


def test_a_car_follows_a_circle():
    car, controller = dataclasses.replace(CAR, steering=float(np.arctan(2.8 / 15))), Controller()
    for _ in range(60):
        away = np.array([0.0, 15.0]) - np.array([car.x, car.y])  # from the car to the circle's middle
        angle = np.arctan2(-away[1], -away[0]) + 5.0 * 0.1 * np.arange(1, 21) / 15
        points = np.stack([15 * np.cos(angle), 15 + 15 * np.sin(angle)], axis=-1) - [car.x, car.y]
        cos, sin = np.cos(car.heading), np.sin(car.heading)
        plan = points @ np.array([[cos, -sin], [sin, cos]])
        car = car.commanded(*controller.command(car, plan, 0.1)).moved(0.1)
        assert abs(np.hypot(car.x, car.y - 15) - 15) < 0.15
    assert car.speed == pytest.approx(5.0, abs=0.1)
    assert car.heading > 1.9  # 30 m of a radius of 15
