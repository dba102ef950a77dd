"""The town as an environment: a car with five cameras drives a route among others, by waypoints that a policy gives.

An action is the waypoints of one plan, flattened: where the car is to be after dt, 2 dt, ... seconds, in the vehicle
frame as it is now, x forward and y left. A step is 0.1 s, or some: a controller follows the plan until the next one.

Observations have the names of driving's policies: speed_mps, yaw_rate_radps, how both were at PAST_S before, and
route_command as its number in ROUTE_COMMANDS; images by camera. A camera may be asked for as it was some tenths of a
second before, by a name such as front@-0.4; where cameras are asked for, their matrices are there as intrinsics/front
and extrinsics/front.
"""

import atexit
import copy
import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.errors import ConfigError
from driving.config import CAMERAS, TOWN_PAST_S
from driving.data.episodes import ROUTE_COMMANDS
from driving.data.tables import PAST_S, PAST_TOLERANCE_S
from driving.data.targets import nearest_frames
from driving.eval.closed_loop import OUTSIDE_M, Result, Trace, collisions, measure
from driving.sim.town import Town
from driving.sim.traffic import CAR_LENGTH, CAR_WIDTH, STEP, Light, Moment
from driving.sim.vehicle import CONTROL_S, Controller

SECONDS = 15.0
"""Of a drive, as long as nuPlan's scenarios, behind a first second that the town's own driver drives: every input of
a policy has a past."""
_WARM_UP = round(TOWN_PAST_S / CONTROL_S)
TASK = "drive"
WAYPOINT_STEPS, WAYPOINT_DT_S = 20, 0.1
"""Of a plan, where nothing else is asked for."""
_FARTHEST = 100.0
"""Waypoints are kept within so many metres of the car."""


class TownEnv:
    """A drive through a town of its own, which is a function of the seed.

    It ends after SECONDS, or for good with a collision, or once the whole car has left the road. It succeeds if it
    lasts and nothing was violated that multiplies the score.
    """

    video_size = (240, 720)

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seconds: float = SECONDS,
        waypoint_steps: int = WAYPOINT_STEPS,
        waypoint_dt_s: float = WAYPOINT_DT_S,
        hold: int = 1,
        expert: bool = False,
        measured: bool = False,
        horizon_s: float | None = None,
        lead_s: float = 0.0,
    ) -> None:
        """Makes no town yet.

        Args:
          spec: Its task is "drive"; its cameras are of driving.config.CAMERAS.
          seconds: Of a drive.
          waypoint_steps: Waypoints of a plan.
          waypoint_dt_s: Seconds between two of them.
          hold: Tenths of a second that a plan is followed: a step of so many.
          expert: Whether observations hold `expert_waypoints`, those of the town's driver, who knows what no camera
            shows.
          measured: Whether observations hold `result`, the numbers of closed_loop.Result, 0 until the drive has ended.
          horizon_s: Where it is given, observations hold `results` too: a row for each step that there can be, the
            numbers of closed_loop.Result for so many seconds from it on, or to the drive's end; 0 until then.
          lead_s: At most so many seconds more the town's own driver drives first, uniformly drawn, a function of the
            reset's seed.

        Raises:
          ConfigError: The task or a camera is unknown.
        """
        if spec.task != TASK:
            raise ConfigError(f"env.task is {spec.task!r}; expected {TASK!r}: town/{TASK}")
        self._views = {name: _view(name) for name in spec.cameras}
        self.action_dim = 2 * waypoint_steps
        self._spec, self._seconds = spec, seconds
        self._expert, self._measured, self._horizon_s = expert, measured, horizon_s
        self._steps, self._dt_s, self._hold, self._lead_s = waypoint_steps, waypoint_dt_s, hold, lead_s
        self.fps = 1 / (CONTROL_S * hold)
        self._scene: Any = None
        self._seed = 0
        self._begun: tuple[Any, ...] | None = None
        """What a drive from self._seed begins with."""

    def reset(self, seed: int) -> Observation:
        """Begins a drive. The town of the one before is kept for another drive from the same start."""
        if self._begun is None or seed != self._seed:
            self._close_scene()
            self._begin(seed)
            self._begun = (self._town, self._car, self._controller, self._past, self._frames, self._moments, self._plan)
        # One copy of all: what they share, such as the cars that the town has in several lists, stays shared.
        begun = copy.deepcopy(self._begun)
        self._town, self._car, self._controller, self._past, self._frames, self._moments, self._plan = begun
        self._shown: dict[tuple[str, int], UInt8[np.ndarray, "h w 3"]] = {}
        return self._observe()

    def _begin(self, seed: int) -> None:
        """Makes a town, and drives to where the policy takes over."""
        self._begun, self._seed = None, seed
        self._town = Town(seed, self._seconds + self._lead_s + _WARM_UP * CONTROL_S)
        self._car, self._controller = self._town.start(), Controller()
        self._past: list[tuple[float, float]] = []
        self._frames: list[dict[str, Any]] = []
        self._moments: list[Moment] = []
        self._plan = np.zeros((self._steps, 2))
        self._note()
        lead_s = generator(Purpose.ROUTE_LEAD, seed).uniform(0.0, self._lead_s)
        for _ in range(_WARM_UP + round(lead_s / CONTROL_S)):
            self._drive(self.expert_waypoints())
        self._frames = self._frames[-1:]

    def state(self) -> Float64[np.ndarray, " q"]:
        car = self._car
        mine = [car.x, car.y, car.heading, car.speed, car.acceleration, car.steering]
        return np.concatenate([mine, self._town.state()])

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, -_FARTHEST, _FARTHEST).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        before = self._town.road.project(self._car.pose[:2])[0]
        plan, begun, lost, late = action.reshape(self._steps, 2).astype(np.float64), self._car.pose, False, False
        for i in range(self._hold):
            self._drive(plan if i == 0 else rest_of(plan, self._dt_s, i * CONTROL_S, begun, self._car.pose))
            lost = self._has_ended()
            late = len(self._frames) > round(self._seconds / CONTROL_S)
            if lost or late:
                break
        reward = self._town.road.project(self._car.pose[:2])[0] - before
        ended = self.trace() if late or lost else None
        result = measure(ended) if ended else None
        success = late and not lost and result is not None and not result.infractions
        return Step(self._observe(ended, result), reward=reward, success=success, terminated=lost, truncated=late)

    def images(self) -> Observation:
        if not self._views:
            return {}
        now = len(self._moments) - 1
        wanted = {name: (camera, now - back) for name, (camera, back) in self._views.items()}
        for frame in sorted({frame for _, frame in wanted.values()}):
            cameras = [camera for camera, at in wanted.values() if at == frame and (camera, at) not in self._shown]
            if cameras:
                images = self._town_seen().render(self._moments[frame], tuple(cameras))
                self._shown |= {(camera, frame): image for camera, image in images.items()}
        found = {name: self._shown[place] for name, place in wanted.items()}
        oldest = now - max(back for _, back in self._views.values())
        self._shown = {(camera, at): image for (camera, at), image in self._shown.items() if at >= oldest}
        return found

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        """Renders the town from above, ahead up, with the car and its plan, beside the front camera's view."""
        from driving.sim import scene

        town, moment, half = self._town_seen(), self._town.moment(self._car), width // 2
        above, front = (town.show(moment, camera, height, half).copy() for camera in (scene.ABOVE, "front"))
        pixels = height / 2 / scene.ABOVE_HALF

        def fill(x: float, y: float, half_length: float, half_width: float, colour: tuple[int, int, int]) -> None:
            row, column = height / 2 - (x - scene.ABOVE_PLACE[0]) * pixels, half / 2 - y * pixels
            rows, columns = (max(1.0, side * pixels) for side in (half_length, half_width))
            top, left = max(round(row - rows), 0), max(round(column - columns), 0)
            above[top : max(round(row + rows), 0), left : max(round(column + columns), 0)] = colour

        fill(0.0, 0.0, CAR_LENGTH / 2, CAR_WIDTH / 2, (30, 90, 230))
        for x, y in self._plan.tolist():
            fill(x, y, 0.3, 0.3, (255, 80, 220))
        return np.concatenate([above, front], axis=1)

    def close(self) -> None:
        self._close_scene()

    def expert_waypoints(self) -> Float64[np.ndarray, "t 2"]:
        """Returns the plan of the town's own driver."""
        return self._town.plan(self._car, self._steps, self._dt_s)

    def surroundings(self) -> tuple[float | None, Light | None]:
        """Returns the metres to the next car in the lane and what the next light shows; None: none is in sight."""
        return self._town.vehicle_ahead(self._car), self._town.light_ahead(self._car)

    def trace(self, frames: list[dict[str, Any]] | None = None) -> Trace:
        """Returns what happened since the reset, or of these frames of it."""
        rows = self._frames if frames is None else frames
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return Trace(
            road=self._town.road,
            signals=self._town.signals,
            dt_s=CONTROL_S,
            lights=tuple(columns.pop("lights")),
            **{name: np.array(values) for name, values in columns.items()},
        )

    def result(self) -> Result:
        """Returns what the drive so far is worth."""
        return measure(self.trace())

    @property
    def _most_steps(self) -> int:
        """Steps of a drive that lasts."""
        return -(-round(self._seconds / CONTROL_S) // self._hold)

    def _results(self, trace: Trace, horizon_s: float) -> list[Result]:
        """What followed each step was worth, for so many seconds.

        Behind these the others count as going straight on, as they do behind the end of a drive.
        """
        starts, long = range(0, len(self._frames) - 1, self._hold), round(horizon_s / CONTROL_S)
        return [measure(trace.part(start, start + long + 1)) for start in starts]

    def _drive(self, plan: Float64[np.ndarray, "t 2"]) -> None:
        """Follows a plan for CONTROL_S."""
        self._plan = plan
        self._car = self._car.commanded(*self._controller.command(self._car, plan, self._dt_s))
        for _ in range(round(CONTROL_S / STEP)):
            self._town.advance(self._car)
            self._car = self._car.moved(STEP)
        self._note()

    def _note(self) -> None:
        car, moment = self._car, self._town.moment(self._car)
        self._moments.append(moment)
        self._past.append((car.speed, car.yaw_rate))
        self._frames.append(
            {
                "pose": car.pose,
                "speed": car.speed,
                "acceleration": car.acceleration if car.speed > 0 else 0.0,
                "yaw_rate": car.yaw_rate,
                "cars": moment.cars,
                "car_speed": self._town.speeds,
                "lights": moment.lights,
            }
        )

    def _has_ended(self) -> bool:
        """Whether the car has hit another, or is off the road as a whole."""
        last = self.trace(self._frames[-1:])
        return bool(collisions(last)) or bool(last.outside[0] > OUTSIDE_M + CAR_LENGTH)

    def _observe(self, ended: Trace | None = None, result: Result | None = None) -> Observation:
        kept = self._past[-_WARM_UP - 1 :]
        times = np.arange(len(kept)) * CONTROL_S
        near, found = nearest_frames(times, -np.array(PAST_S), tolerance_s=PAST_TOLERANCE_S)
        assert found[-1].all()  # the first second is driven before anybody is asked
        past = np.array(kept, np.float32)
        turn = self._town.command(self._car)
        seen: dict[str, Any] = {
            "speed_mps": past[-1, 0],
            "yaw_rate_radps": past[-1, 1],
            "past_speed_mps": past[near[-1], 0],
            "past_yaw_rate_radps": past[near[-1], 1],
            "route_command": np.float32(ROUTE_COMMANDS.index(turn or "unknown")),
        }
        seen |= self._matrices
        if self._expert:
            seen["expert_waypoints"] = self.expert_waypoints().astype(np.float32)
        if self._measured:
            count = len(dataclasses.fields(Result))
            seen["result"] = np.zeros(count) if result is None else dataclasses.astuple(result)
            if self._horizon_s is not None:
                seen["results"] = np.zeros((self._most_steps, count))
                for i, one in enumerate(self._results(ended, self._horizon_s) if ended else []):
                    seen["results"][i] = dataclasses.astuple(one)
        return {name: np.asarray(value, np.float32) for name, value in seen.items()}

    @functools.cached_property
    def _matrices(self) -> dict[str, np.ndarray]:
        """How the cameras look that are asked for."""
        from driving.sim import scene

        (fx, fy, cx, cy), found = scene.intrinsics(*self._spec.image_size), {}
        for camera in dict.fromkeys(camera for camera, _ in self._views.values()):
            found[f"intrinsics/{camera}"] = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
            found[f"extrinsics/{camera}"] = scene.camera_to_vehicle(camera)
        return found

    def _town_seen(self) -> Any:
        """The town's scene, made when the first image is asked for."""
        if self._scene is None:
            try:
                from driving.sim import scene

                height, width = self._spec.image_size
                colours = generator(Purpose.ROUTE_COLOURS, self._seed)
                town = self._town
                self._scene = scene.build(town.road, town.signals, town.count, colours, height=height, width=width)
                atexit.register(self._close_scene)  # or EGL complains when the process ends
            except Exception as error:  # whatever the GL driver raises
                raise ConfigError(f"this machine cannot render the town: {type(error).__name__}: {error}") from error
        return self._scene

    def _close_scene(self) -> None:
        if self._scene is not None:
            atexit.unregister(self._close_scene)
            self._scene.close()
            self._scene = None


def rest_of(
    plan: Float64[np.ndarray, "t 2"],
    dt_s: float,
    past_s: float,
    begun: Float64[np.ndarray, "3"],
    pose: Float64[np.ndarray, "3"],
) -> Float64[np.ndarray, "t 2"]:
    """Returns what is left of a plan after some time, as seen from where the car has come, and as long as it was.

    Beyond its end it goes on as its last step did.

    Args:
      plan: Where to be after dt_s, 2 dt_s, ..., in the vehicle frame as it was.
      dt_s: Seconds between two waypoints.
      past_s: Seconds since then.
      begun: The car's pose then, and
      pose: now, both in the world.
    """
    path = np.concatenate([np.zeros((1, 2)), plan])
    at = past_s / dt_s + np.arange(1, len(plan) + 1)
    inside = np.stack([np.interp(at, np.arange(len(path)), path[:, axis]) for axis in (0, 1)], axis=-1)
    inside += np.maximum(at - len(plan), 0.0)[:, None] * (path[-1] - path[-2])
    turned = pose[2] - begun[2]
    away = pose[:2] - begun[:2]
    ahead = np.array([np.cos(begun[2]), np.sin(begun[2])])
    moved = np.array([ahead @ away, ahead[0] * away[1] - ahead[1] * away[0]])
    cos, sin = np.cos(turned), np.sin(turned)
    return (inside - moved) @ np.array([[cos, -sin], [sin, cos]])


def _view(name: str) -> tuple[str, int]:
    """Camera of a view's name, and steps by which it lies back. Raises ConfigError where there is no such view."""
    camera, at, text = name.partition("@")
    try:
        steps = -float(text) / CONTROL_S if at else 0.0
    except ValueError:
        steps = np.nan
    if camera not in CAMERAS or not 0 <= steps <= _WARM_UP or abs(steps - round(steps)) > 1e-6:
        raise ConfigError(
            f"env.cameras has {name}; the town has {', '.join(CAMERAS)}, also as they were some tenths of a second "
            f"before, up to {_WARM_UP * CONTROL_S:g} s: front@-0.4"
        )
    return camera, round(steps)
