"""How a car follows waypoints: pure pursuit steers, PI control keeps the speed, a kinematic bicycle moves.

The bicycle is nuPlan's (nuplan-devkit, kinematic_bicycle.py): acceleration and steering angle follow what is asked with
time constants of 0.2 and 0.05 s, and the reference point moves along the car's heading. That point is the origin of
the vehicle frame here, the car's middle, as in recorded drives, where nuPlan has the rear axle.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Float64

from driving.config import MOTION_HZ

CONTROL_S = 1 / MOTION_HZ
"""Seconds between two commands."""
WHEELBASE = 2.8
"""m."""
MAX_STEERING = np.pi / 3
"""rad, either way; nuPlan's."""
_ACCELERATION_S, _STEERING_S = 0.2, 0.05
"""Time constants with which the car follows a command; nuPlan's."""
MAX_ACCELERATION, MAX_BRAKING = 3.0, 8.0
"""m/s^2, of what is commanded: a brisk start, and a full stop on dry road."""
_LOOKAHEAD_S, _LOOKAHEAD = 0.5, (3.0, 8.0)
"""Pure pursuit aims at a point so many seconds ahead at the present speed, within these distances, m."""
_PROPORTIONAL, _INTEGRAL = 4.0, 0.5
"""Gains of the speed, 1/s and 1/s^2."""
_MOST_INTEGRAL = 1.0
"""Speed error that may add up, m: what is not followed while the car cannot is forgotten."""
_PREVIEW_S = 0.5
"""The speed that is wanted is the mean over so many seconds: that of 0.25 s ahead, reached then by a gain of 4 / s."""
_STILL = 0.3
"""Waypoints that end closer than this, m, say to stand; the wheel stays as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vehicle:
    """State of the car."""

    x: float
    y: float
    heading: float
    """rad, unwrapped."""
    speed: float
    """m/s, never below 0."""
    acceleration: float = 0.0
    """m/s^2."""
    steering: float = 0.0
    """Angle of the front wheel, rad, positive to the left."""

    @property
    def pose(self) -> Float64[np.ndarray, "3"]:
        """x, y, heading."""
        return np.array([self.x, self.y, self.heading])

    @property
    def curvature(self) -> float:
        """Of the path that it drives now, 1/m."""
        return float(np.tan(self.steering) / WHEELBASE)

    @property
    def yaw_rate(self) -> float:
        """rad/s."""
        return self.speed * self.curvature

    def commanded(self, acceleration: float, steering: float) -> "Vehicle":
        """Returns the car with the acceleration and steering angle that follow a command within CONTROL_S."""
        share = [CONTROL_S / (CONTROL_S + constant) for constant in (_ACCELERATION_S, _STEERING_S)]
        wanted = np.clip(steering, -MAX_STEERING, MAX_STEERING)
        return dataclasses.replace(
            self,
            acceleration=self.acceleration + share[0] * (acceleration - self.acceleration),
            steering=float(self.steering + share[1] * (wanted - self.steering)),
        )

    def moved(self, seconds: float) -> "Vehicle":
        """Returns the car after so many seconds at constant acceleration and steering angle: exactly along an arc."""
        speed = max(0.0, self.speed + seconds * self.acceleration)
        braked = self.acceleration < 0 and speed == 0.0
        distance = self.speed**2 / (-2 * self.acceleration) if braked else seconds * (self.speed + speed) / 2
        turned = distance * self.curvature
        chord = distance * float(np.sinc(turned / 2 / np.pi))
        return dataclasses.replace(
            self,
            x=self.x + chord * float(np.cos(self.heading + turned / 2)),
            y=self.y + chord * float(np.sin(self.heading + turned / 2)),
            heading=self.heading + turned,
            speed=speed,
        )


class Controller:
    """Follows waypoints in the vehicle frame, given anew every CONTROL_S."""

    def __init__(self) -> None:
        """Nothing has been asked for yet."""
        self._integral = 0.0

    def command(self, car: Vehicle, waypoints: Float[np.ndarray, "t 2"], dt_s: float) -> tuple[float, float]:
        """Returns acceleration, m/s^2, and steering angle, rad.

        Steering by pure pursuit (Coulter, CMU-RI-TR-92-01): with (x, y) the point of the path at the lookahead
        distance L, the arc through it has the curvature 2 y / L^2. Acceleration is k_p e + k_i sum(e dt) of the error e
        of the speed, the speed that is wanted being that of the waypoints over the next 0.5 s.

        Args:
          car: As it is now.
          waypoints: Where to be after dt_s, 2 dt_s, ..., metres, x forward and y left.
          dt_s: Seconds between two of them.
        """
        path = np.concatenate([np.zeros((1, 2)), np.asarray(waypoints, np.float64)])
        times = np.arange(len(path)) * dt_s
        distance = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
        ahead = min(_PREVIEW_S, float(times[-1]))
        error = float(np.interp(ahead, times, distance)) / ahead - car.speed
        self._integral = float(np.clip(self._integral + CONTROL_S * error, -_MOST_INTEGRAL, _MOST_INTEGRAL))
        wanted = _PROPORTIONAL * error + _INTEGRAL * self._integral
        return float(np.clip(wanted, -MAX_BRAKING, MAX_ACCELERATION)), self._steering(car, path, distance)

    def _steering(self, car: Vehicle, path: Float64[np.ndarray, "n 2"], distance: Float64[np.ndarray, " n"]) -> float:
        if distance[-1] < _STILL:
            return car.steering
        wanted = float(np.clip(_LOOKAHEAD_S * car.speed, *_LOOKAHEAD))
        at = min(wanted, float(distance[-1]))
        x, y = (float(np.interp(at, distance, path[:, axis])) for axis in (0, 1))
        return float(np.arctan(WHEELBASE * 2 * y / max(x * x + y * y, _STILL**2)))
