"""The town in closed loop: exact per seed, traffic that reacts to the car, observations as policies were trained on."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec, make
from chunkwise.errors import ConfigError
from driving.config import CAMERAS
from driving.data.episodes import ROUTE_COMMANDS
from driving.eval.closed_loop import Result, overlap
from driving.sim import scene
from driving.sim.environment import TownEnv, rest_of
from driving.sim.roads import LANE
from driving.sim.scene import camera_to_vehicle
from driving.sim.town import START, Town, way_back
from driving.sim.traffic import CAR_LENGTH, STEP
from driving.sim.vehicle import Vehicle

SPEC = EnvSpec(suite="town", task="drive")
STAND = np.zeros(40, np.float32)


def straight(speed: float) -> np.ndarray:
    """A plan to go on at a speed."""
    return np.stack([speed * 0.1 * np.arange(1, 21), np.zeros(20)], axis=-1).astype(np.float32).ravel()


def turned(speed: float, angle: float) -> np.ndarray:
    """The same to the left of straight ahead."""
    ahead = straight(speed).reshape(20, 2)[:, :1]
    return (ahead * np.array([[np.cos(angle), np.sin(angle)]], np.float32)).ravel()


def parked(town: Town, s: float, offset: float) -> Vehicle:
    x, y, heading = town.road.pose(s, offset).tolist()
    return Vehicle(x=x, y=y, heading=heading, speed=0.0)


def pass_time(town: Town, ego: Vehicle, seconds: float, seen: Callable[[], None] = lambda: None) -> None:
    for _ in range(round(seconds / STEP)):
        town.advance(ego)
        seen()


def test_a_drive_is_a_function_of_its_seed():
    env, other = TownEnv(SPEC), TownEnv(SPEC)
    first = env.reset(5)
    seen = [env.step(straight(6.0)) for _ in range(8)]
    env.reset(6)
    env.step(STAND)
    again = env.reset(5)
    other.reset(5)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for before in seen:
        after, beside = env.step(straight(6.0)), other.step(straight(6.0))
        assert after.reward == before.reward == beside.reward
        assert all(np.array_equal(after.observation[name], before.observation[name]) for name in after.observation)
        np.testing.assert_array_equal(env.state(), other.state())
    other.reset(6)
    assert not np.array_equal(env.state()[:6], other.state()[:6])


def test_observations_are_those_of_a_recorded_drive():
    env = TownEnv(SPEC)
    observed = env.reset(3)
    speeds: list[float] = []
    rates: list[float] = []
    for _ in range(12):
        observed = env.step(straight(4.0)).observation
        speeds.append(float(env.state()[3]))
        rates.append(float(observed["yaw_rate_radps"]))
    assert {name: value.dtype for name, value in observed.items()} == dict.fromkeys(observed, np.dtype(np.float32))
    assert observed["speed_mps"] == np.float32(speeds[-1])
    # 0.25 s before is between two frames; the earlier is taken, as in training tables.
    np.testing.assert_array_equal(
        observed["past_speed_mps"], np.array([speeds[-4], speeds[-6], speeds[-11]], np.float32)
    )
    np.testing.assert_array_equal(
        observed["past_yaw_rate_radps"], np.array([rates[-4], rates[-6], rates[-11]], np.float32)
    )
    moved = np.diff(env.trace().pose, axis=0)
    np.testing.assert_allclose(np.linalg.norm(moved[-1, :2]) * 10, np.mean(speeds[-2:]), atol=1e-6)
    np.testing.assert_allclose(moved[-1, 2] * 10, env.trace().speed[-2:].mean() * rates[-1] / speeds[-1], rtol=1e-6)


def test_the_route_says_where_to_turn():
    env = TownEnv(SPEC, expert=True)
    observed, said = env.reset(1), set()
    junction = env.trace().road.junctions[0]
    for _ in range(150):
        observed = env.step(env.clip(observed["expert_waypoints"].ravel())).observation
        s, _ = env.trace().road.project(env.trace().pose[-1, :2])
        if junction.enter - 40 <= s < junction.leave:
            said.add(ROUTE_COMMANDS[int(observed["route_command"])])
        elif s < junction.enter - 41:
            assert observed["route_command"] == 0
    assert said == {junction.turn}


def test_rewards_are_metres_and_the_drive_ends_in_time():
    env = TownEnv(SPEC, seconds=2.0, expert=True)
    observed, rewards, step = env.reset(2), 0.0, None
    for k in range(20):
        step = env.step(env.clip(observed["expert_waypoints"].ravel()))
        observed, rewards = step.observation, rewards + step.reward
        assert step.truncated == (k == 19)
    assert step is not None
    assert step.success
    assert not step.terminated
    assert rewards == pytest.approx(env.result().metres, abs=0.3)
    assert rewards > 8


def test_whoever_leaves_the_road_is_out():
    env = TownEnv(SPEC)
    env.reset(0)
    steps = [env.step(straight(10.0))]
    while not steps[-1].terminated and len(steps) < 100:
        steps.append(env.step(straight(10.0)))
    assert steps[-1].terminated
    assert not steps[-1].success
    assert {"drivable_area"} <= set(env.result().infractions)


@pytest.mark.long
def test_the_towns_own_driver_violates_nothing():
    for seed in range(4):
        env = TownEnv(SPEC, expert=True)
        observed, step = env.reset(seed), None
        for _ in range(150):
            step = env.step(env.clip(observed["expert_waypoints"].ravel()))
            observed = step.observation
        assert step is not None
        assert step.success
        assert step.truncated
        assert env.result().metres > 50


def test_plans_of_other_steps_reach_the_same_places():
    fine, coarse = (TownEnv(SPEC, waypoint_steps=n, waypoint_dt_s=2 / n, expert=True) for n in (20, 8))
    often, seldom = (env.reset(4)["expert_waypoints"] for env in (fine, coarse))
    assert seldom.shape == (8, 2)
    assert coarse.action_dim == 16
    # The speed model is integrated by 0.1 and by 0.083 s.
    np.testing.assert_allclose(seldom[1::2], often[4::5], atol=0.15)


def test_the_way_back_to_the_lane_begins_where_the_car_is_and_ends_in_the_middle():
    ahead = np.array([0.0, 1e-6, 2.5, 25.0])
    left = way_back(1.2, -0.3, ahead)
    assert left[0] == 1.2
    assert (left[1] - left[0]) / 1e-6 == pytest.approx(-0.3, abs=1e-4)
    assert left[2] == pytest.approx((1.2 + (-0.3 + 1.2 / 2.5) * 2.5) * np.exp(-1))  # by hand, at one r
    assert abs(left[3]) < 1e-3
    # It crosses the middle only where it is driven across it.
    assert (way_back(1.0, 0.0, np.linspace(0, 30, 300)) > 0).all()


@pytest.mark.parametrize(("left", "angle"), [(0.0, 0.0), (0.9, 0.1), (-0.9, -0.2), (0.4, -0.3)])
def test_whoever_is_off_the_lane_is_led_back_to_it(left: float, angle: float):
    town = Town(3, 15.0)
    x, y, heading = town.road.pose(START, left - LANE / 2).tolist()
    car = Vehicle(x=x, y=y, heading=heading + angle, speed=8.0)
    plan = town.plan(car, 20, 0.1)
    cos, sin = np.cos(car.heading), np.sin(car.heading)
    places = plan @ np.array([[cos, sin], [-sin, cos]]) + car.pose[:2]
    away = [town.road.project(place)[1] + LANE / 2 for place in places]
    assert abs(np.arctan2(plan[0, 1], plan[0, 0])) < 0.12  # it begins in the direction in which the car points
    # No detour, and no jump: a controller would take it for speed.
    assert np.linalg.norm(plan[0]) == pytest.approx(0.8, abs=0.1)
    assert abs(away[-1]) < 0.05
    straight = abs(town.road.curvature_at(np.linspace(START, START + 2))).max() < 1e-3
    if straight:
        ahead = np.array([town.road.project(place)[0] for place in places[:2]]) - START
        np.testing.assert_allclose(away[:2], way_back(left, np.tan(angle), ahead), atol=0.02)


def find(what: Callable[[Town], bool]) -> Town:
    return next(town for town in (Town(seed, 15.0) for seed in range(60)) if what(town))


def test_whoever_follows_stops_behind_the_car():
    town = find(lambda town: bool(town._behind))
    (behind,) = town._behind
    assert 10 <= START - behind.s <= 25
    pass_time(town, parked(town, START, -LANE / 2), 8.0)
    assert behind.speed < 0.3
    assert 0.5 < START - behind.s - CAR_LENGTH < 4
    away = parked(town, START, -3 * LANE)  # off the road: the lane is free
    pass_time(town, away, 8.0)
    assert behind.s > START + 5


def test_oncoming_cars_stop_for_what_is_in_their_lane():
    town = Town(1, 15.0)
    place = next(car.s for car in town._oncoming if car.s > 90) - 30
    ego, near = parked(town, place, LANE / 2), []
    pass_time(town, ego, 8.0, lambda: near.extend(abs(car.s - place) for car in town._oncoming))
    assert min(near) > CAR_LENGTH
    assert min(car.speed for car in town._oncoming if car.s > place) < 0.3
    free = Town(1, 15.0)
    pass_time(free, parked(free, place, -LANE / 2), 8.0)
    assert sum(car.s < place for car in free._oncoming) > sum(car.s < place for car in town._oncoming)


@pytest.mark.long
def test_crossing_cars_wait_for_red_and_for_who_is_in_the_junction():
    town = find(lambda town: any(one.signal is not None for one in town._crossing))
    crossing = next(one for one in town._crossing if one.signal is not None)
    aside, lights = parked(town, 0.0, -3 * LANE), []

    def note() -> None:
        if not lights and crossing.going:
            assert crossing.signal is not None
            lights.append(crossing.signal.state(town.t))

    within = parked(town, (crossing.junction.enter + crossing.junction.leave) / 2, -LANE / 2)
    pass_time(town, within, 40.0, note)
    assert not lights
    assert crossing.car.s < 0
    pass_time(town, aside, 60.0, note)
    assert lights == ["red"]
    assert crossing.merged or crossing.car.s > CAR_LENGTH


def test_crossing_cars_give_way_where_there_is_no_light_and_brake_for_what_is_in_their_way():
    town = find(lambda town: any(one.signal is None for one in town._crossing))
    crossing = next(one for one in town._crossing if one.signal is None)
    town._others.clear()
    near = parked(town, crossing.junction.enter - 50, -LANE / 2)
    pass_time(town, near, 15.0)
    assert crossing.car.s < 0
    far = parked(town, max(crossing.junction.enter - 90, 0.0), -3 * LANE)
    while not crossing.going or crossing.car.s < 1:
        town.advance(far)
    x, y, heading = crossing.pose(10.0).tolist()
    barrier = Vehicle(x=x, y=y, heading=heading + np.pi / 2, speed=0.0)
    pass_time(town, barrier, 6.0)
    assert not overlap(barrier.pose, crossing.pose())
    assert crossing.car.speed < 0.3


def test_images_are_exact_and_of_the_cameras_that_were_asked_for():
    spec = dataclasses.replace(SPEC, cameras=("front", "side_left"), image_size=(32, 48), video=True)
    env, other = TownEnv(spec), TownEnv(spec)
    env.reset(9)
    env.step(straight(5.0))
    first = env.images()
    env.reset(8)
    assert not np.array_equal(env.images()["front"], first["front"])
    for one in (env, other):
        one.reset(9)
        one.step(straight(5.0))
        again = one.images()
        assert {name: image.shape for name, image in again.items()} == dict.fromkeys(spec.cameras, (32, 48, 3))
        assert all(np.array_equal(first[name], again[name]) for name in first)
    shown = env.render(120, 360)
    assert shown.shape == (120, 360, 3)
    # From above ahead is up: the car is 12 m below the middle of 60 m.
    assert tuple(shown[60 + 24, 90]) == (30, 90, 230) or tuple(shown[60 + 24, 90]) == (255, 80, 220)
    np.testing.assert_array_equal(env.images()["front"], first["front"])
    env.close()
    other.close()


def test_what_is_unknown_is_refused():
    with pytest.raises(ConfigError, match=r"env.task is 'park'; expected 'drive'"):
        make(dataclasses.replace(SPEC, task="park"))
    with pytest.raises(ConfigError, match=r"has rear; the town has front, front_left"):
        make(dataclasses.replace(SPEC, cameras=("front", "rear")))
    assert isinstance(make(dataclasses.replace(SPEC, cameras=CAMERAS)), TownEnv)


@pytest.mark.usefixtures("can_render")
def test_a_camera_as_it_was_before(monkeypatch: pytest.MonkeyPatch):
    """Whether anybody looked then or not; what was rendered is not rendered again."""
    spec = dataclasses.replace(SPEC, cameras=("front@-0.4", "front"), image_size=(16, 24))
    env, beside = TownEnv(spec), TownEnv(spec)
    plan = straight(6.0)
    env.reset(5)
    seen = [env.images()["front"]]
    rendered: list[tuple[str, ...]] = []
    town = env._town_seen()
    show = town.render
    monkeypatch.setattr(town, "render", lambda moment, cameras: rendered.append(cameras) or show(moment, cameras))
    for _ in range(5):
        env.step(plan)
        seen.append(env.images()["front"])
    np.testing.assert_array_equal(env.images()["front@-0.4"], seen[1])
    assert rendered == [("front",)] * 8  # three of them of the second that the town's driver drives
    assert not np.array_equal(seen[1], seen[5])
    beside.reset(5)
    for _ in range(5):
        beside.step(plan)
    late = beside.images()
    np.testing.assert_array_equal(late["front"], seen[5])
    np.testing.assert_array_equal(late["front@-0.4"], seen[1])
    env.reset(6)
    assert not np.array_equal(env.images()["front@-0.4"], seen[1])


def test_matrices_of_the_cameras_that_are_asked_for_are_those_of_recorded_drives():
    observed = TownEnv(dataclasses.replace(SPEC, cameras=("side_left", "side_left@-0.1"), image_size=(16, 24))).reset(1)
    assert {name for name in observed if "/" in name} == {"intrinsics/side_left", "extrinsics/side_left"}
    focal = 12 / np.tan(np.deg2rad(36))
    np.testing.assert_allclose(observed["intrinsics/side_left"], [[focal, 0, 12], [0, focal, 8], [0, 0, 1]], rtol=1e-6)
    np.testing.assert_allclose(observed["extrinsics/side_left"], camera_to_vehicle("side_left"), atol=1e-6)


@pytest.mark.parametrize("view", ["rear", "front@0.1", "front@-0.05", "front@-1.5", "front@x", "front@"])
def test_a_view_that_the_town_does_not_have_is_refused(view: str):
    with pytest.raises(ConfigError, match=r"env\.cameras has .*; the town has front"):
        TownEnv(dataclasses.replace(SPEC, cameras=(view,)))


def test_a_plan_is_followed_for_some_steps_as_it_was_meant():
    """Held for half a second, a plan to go on leads where new plans each tenth lead, and ends a drive as they do."""
    held, anew = TownEnv(SPEC, hold=5, seconds=3.0), TownEnv(SPEC, seconds=3.0)
    speed = float(held.reset(5)["speed_mps"])
    anew.reset(5)
    assert (held.fps, anew.fps) == (2, 10)
    assert TownEnv(SPEC, hold=4, seconds=3.0).fps == 2.5
    for i in range(6):
        one = held.step(straight(speed))
        rewards = [anew.step(straight(speed)) for _ in range(5)]
        speed = float(one.observation["speed_mps"])
        assert one.reward == pytest.approx(sum(step.reward for step in rewards), abs=0.05)
        assert (one.terminated, one.truncated) == (rewards[-1].terminated, rewards[-1].truncated) == (False, i == 5)
    np.testing.assert_allclose(held.state()[:4], anew.state()[:4], atol=0.1)
    assert held.trace().pose.shape == anew.trace().pose.shape


def test_what_followed_each_step_is_told_once_the_drive_has_ended():
    env = TownEnv(SPEC, hold=5, seconds=6.0, measured=True, horizon_s=1.0)
    names = [field.name for field in dataclasses.fields(Result)]
    observation = env.reset(5)
    assert observation["results"].shape == (12, len(names))
    rewards, step = [], None
    while step is None or not (step.terminated or step.truncated):
        assert not observation["results"].any()
        # Goes on, brakes at once in the fourth step, and leaves the road for good by a turn.
        speed = float(observation["speed_mps"]) if len(rewards) != 3 else 0.0
        plan = straight(speed) if len(rewards) < 5 else turned(6.0, 1.2)
        step = env.step(plan)
        rewards.append(step.reward)
        observation = step.observation
    count = len(rewards)
    assert step.terminated
    assert 6 < count < 12, "it left the road"
    found = dict(zip(names, observation["results"].T, strict=True))
    assert not observation["results"][count:].any()
    # A second is two steps: metres along the route are those of both, which the rewards say.
    along = [max(0.0, sum(rewards[i : i + 2])) for i in range(count)]
    np.testing.assert_allclose(found["metres"][:count], along, atol=1e-4)
    assert found["comfort"][:4].tolist() == [1, 1, 0, 0]
    assert found["drivable_area"][:5].tolist() == [1, 1, 1, 1, 0]  # the turn is the sixth step
    assert found["traffic_light"][:count].all()
    assert "results" not in TownEnv(SPEC, measured=True).reset(5)


def test_the_towns_driver_leads_for_a_time_of_its_own_for_each_seed():
    led, later = TownEnv(SPEC, seconds=2.0, lead_s=4.0), TownEnv(SPEC, seconds=6.0)  # the same towns
    leads = []
    for seed in range(4):
        led.reset(seed)
        later.reset(seed)
        expected, count = led.state(), 0
        while not np.allclose(later.state(), expected, atol=1e-3):  # plans are float32 where they are actions
            later.step(later.expert_waypoints().astype(np.float32).ravel())
            count += 1
            assert count <= 40
        leads.append(count)
        assert len(led.trace().pose) == 1  # what was driven before is no part of the drive
        steps = 0
        while not led.step(led.expert_waypoints().astype(np.float32).ravel()).truncated:
            steps += 1
        assert steps + 1 == 20
    assert len(set(leads)) > 2


@pytest.mark.long
def test_drives_from_one_start_share_its_town_and_nothing_that_moves(monkeypatch: pytest.MonkeyPatch):
    """As of environments of their own: observations, images, states and results. One scene is built for a start."""
    spec, built = dataclasses.replace(SPEC, cameras=("front", "front@-0.4"), image_size=(32, 48)), []
    real = scene.build
    monkeypatch.setattr(scene, "build", lambda *args, **kwargs: built.append(1) or real(*args, **kwargs))

    def drive(env: TownEnv, seed: int, speed: float) -> list[np.ndarray]:
        seen = [*env.reset(seed).values(), *env.images().values(), env.state()]
        for _ in range(4):
            step = env.step(straight(speed))
            seen += [*step.observation.values(), *env.images().values(), env.state(), np.array(step.reward)]
        return [*seen, np.array(dataclasses.astuple(env.result())[:-1], float)]

    def alone(seed: int, speed: float) -> list[np.ndarray]:
        env = TownEnv(spec, hold=5, lead_s=3.0)
        try:
            return drive(env, seed, speed)
        finally:
            env.close()

    shared = TownEnv(spec, hold=5, lead_s=3.0)
    order = [(9, 5.0), (9, 8.0), (9, 5.0), (8, 5.0), (9, 5.0)]
    found = [drive(shared, *one) for one in order]
    shared.close()
    assert len(built) == 3
    expected = {one: alone(*one) for one in set(order)}
    for one, seen in zip(order, found, strict=True):
        assert len(seen) == len(expected[one])
        for value, other in zip(seen, expected[one], strict=True):
            np.testing.assert_array_equal(value, other)
    assert not np.array_equal(found[0][-2], found[1][-2]), "the second was driven faster"


def test_the_rest_of_a_plan_leads_to_the_same_places():
    rng = np.random.default_rng(0)
    plan = np.cumsum(rng.uniform(0.3, 1.0, (20, 2)), axis=0)
    begun, pose = np.array([3.0, -2.0, 0.7]), np.array([3.6, -1.1, 1.3])

    def in_world(places: np.ndarray, origin: np.ndarray) -> np.ndarray:
        cos, sin = np.cos(origin[2]), np.sin(origin[2])
        return places @ np.array([[cos, sin], [-sin, cos]]) + origin[:2]

    rest = rest_of(plan, 0.1, 0.3, begun, pose)
    assert rest.shape == plan.shape
    np.testing.assert_allclose(in_world(rest, pose)[:17], in_world(plan, begun)[3:], atol=1e-9)
    last = plan[-1] - plan[-2]
    np.testing.assert_allclose(in_world(rest, pose)[17:], in_world(plan[-1] + np.outer([1, 2, 3], last), begun))
    between = rest_of(plan, 0.2, 0.1, begun, begun)
    np.testing.assert_allclose(between[0], (plan[0] + plan[1]) / 2)
