"""A town as MuJoCo sees it: painted ground, houses, trees, lights, cars, five cameras on the roof of one of them.

The ground is one textured plane and everything else is boxes and a few balls, without shadows or reflections, so that
an image of 64 x 96 pixels takes about 8 ms on one core without a graphics card.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from chunkwise.envs.suites.offscreen import Renderer, import_mujoco
from driving.sim.painting import Ground, make_palette, paint
from driving.sim.roads import JUNCTION_HALF, LANE, Junction, Road, direction
from driving.sim.traffic import Moment, Signal

mujoco = import_mujoco()

OVERSAMPLING = 2
"""Images are rendered this many times larger and averaged: no jagged edges, and far lines survive."""
MOST_GEOMS = 10_000
"""Of a scene that MuJoCo renders."""
FIELD_OF_VIEW = 72.0
"""Of every camera, horizontally, degrees."""
PITCH = 5.0
"""Degrees by which the cameras look down."""
MOUNTS: dict[str, tuple[tuple[float, float, float], float]] = {
    "front": ((1.1, 0.0, 1.7), 0.0),
    "front_left": ((1.0, 0.35, 1.7), 48.0),
    "front_right": ((1.0, -0.35, 1.7), -48.0),
    "side_left": ((0.4, 0.6, 1.7), 96.0),
    "side_right": ((0.4, -0.6, 1.7), -96.0),
}
"""Place in the vehicle frame (x forward, y left, z up; its origin is on the ground below the car's middle), metres, and
direction, degrees to the left of straight ahead, of each camera."""

ABOVE = "above"
"""Camera over the car that moves and turns with it; ahead is up."""
ABOVE_PLACE = (12.0, 0.0, 45.0)
"""Where it is in the vehicle frame, m."""
ABOVE_HALF = 30.0
"""Half of what it shows of the ground from the lower edge of its image to the upper one, m."""

_LIT = {"red": (1.0, 0.04, 0.04, 1.0), "yellow": (1.0, 0.75, 0.0, 1.0), "green": (0.05, 1.0, 0.25, 1.0)}
_BRAKE = {True: (1.0, 0.05, 0.05, 1.0), False: (0.3, 0.02, 0.02, 1.0)}
_DARK = (0.06, 0.06, 0.07, 1.0)


def camera_to_vehicle(name: str) -> Float64[np.ndarray, "4 4"]:
    """Takes camera coordinates (x right, y down, z along the view) to the vehicle frame."""
    place, yaw = MOUNTS[name]
    yaw, pitch = np.deg2rad(yaw), np.deg2rad(PITCH)
    view = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), -np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    matrix = np.eye(4)
    matrix[:3] = np.stack([right, np.cross(view, right), view, np.array(place)], axis=1)
    return matrix


def intrinsics(height: int, width: int) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy in pixels; (0, 0) is the upper left corner of the image."""
    focal = width / 2 / np.tan(np.deg2rad(FIELD_OF_VIEW / 2))
    return float(focal), float(focal), width / 2, height / 2


@dataclasses.dataclass
class Scene:
    """A town, ready to be rendered moment by moment. Close it, or EGL complains at exit."""

    model: Any
    data: Any
    renderer: Any
    _large: Any = None
    """Renderer of `show`."""

    def render(self, moment: Moment, cameras: tuple[str, ...]) -> dict[str, UInt8[np.ndarray, "h w 3"]]:
        """Images of one moment by camera."""
        self._place(moment)
        return {name: self._shoot(name) for name in cameras}

    def show(self, moment: Moment, camera: str, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        """An image of one moment for people: of any camera, ABOVE too, and of any size, one for all calls."""
        if self._large is None:
            self._large = _renderer(self.model, height, width)
        self._place(moment)
        return self._large.render(self.data, camera)

    def close(self) -> None:
        """Frees the renderers."""
        self.renderer.close()
        if self._large is not None:
            self._large.close()

    def _shoot(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        large = self.renderer.render(self.data, camera)
        n = OVERSAMPLING
        total = np.full((large.shape[0] // n, large.shape[1] // n, 3), n * n // 2, np.uint16)
        for i in range(n):
            for j in range(n):
                total += large[i::n, j::n]
        return (total // (n * n)).astype(np.uint8)

    def _place(self, moment: Moment) -> None:
        """Moves cars and camera, and lights lamps."""
        poses = np.concatenate([moment.pose[None], moment.cars])
        gone = np.isnan(poses[:, 2])
        yaw = np.where(gone, 0.0, poses[:, 2])
        zero = np.zeros_like(yaw)
        self.data.mocap_pos[:] = np.stack([poses[:, 0], poses[:, 1], np.where(gone, -20.0, 0.0)], axis=-1)
        self.data.mocap_quat[:] = np.stack([np.cos(yaw / 2), zero, zero, np.sin(yaw / 2)], axis=-1)
        for i, lit in enumerate(moment.braking):
            self.model.geom(f"brake {i}").rgba = _BRAKE[bool(lit)]
        for i, light in enumerate(moment.lights):
            for side in ("near", "far"):
                self.model.geom(f"lamp {i} {side}").rgba = _LIT[light]
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)


def build(
    road: Road, signals: Sequence[Signal], cars: int, rng: np.random.Generator, *, height: int, width: int
) -> Scene:
    """The town around a road.

    Args:
      road: Its route.
      signals: At the route's junctions.
      cars: That move, beside the one with the cameras.
      rng: For colours, houses, light: all that the others do not say.
      height: Of the images.
      width: Of the images.
    """
    spec = mujoco.MjSpec()
    _set_quality(spec, height, width)
    _light(spec, rng)
    ground = paint(road, make_palette(rng), rng)
    _add_ground(spec, ground)
    _Builder(spec, road, signals, rng).build(ground, cars)
    model = spec.compile()
    renderer = _renderer(model, height * OVERSAMPLING, width * OVERSAMPLING)
    return Scene(model, mujoco.MjData(model), renderer)


def _renderer(model: Any, height: int, width: int) -> Any:
    """A renderer without shadows or reflections."""
    renderer = Renderer(model, height, width, most_geoms=MOST_GEOMS)
    renderer.scene.flags[:] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = 1
    return renderer


def _set_quality(spec: Any, height: int, width: int) -> None:
    """Small buffers, coarse balls, no multisampling: it triples the time of an image, oversampling adds a quarter."""
    spec.visual.quality.offsamples = 0
    spec.visual.quality.shadowsize = 0
    spec.visual.quality.numslices = 8
    spec.visual.quality.numstacks = 6
    spec.visual.global_.offheight = height * OVERSAMPLING
    spec.visual.global_.offwidth = width * OVERSAMPLING
    # Near and far plane are given in units of the extent.
    spec.stat.extent, spec.visual.map.znear, spec.visual.map.zfar = 100.0, 0.003, 4.0


def _light(spec: Any, rng: np.random.Generator) -> None:
    """Sun and sky, from a bright noon to a dull evening."""
    brightness = rng.uniform(0.55, 1.0)
    warmth = rng.uniform(-0.06, 0.12)
    tint = np.array([1 + warmth, 1.0, 1 - warmth])
    elevation, azimuth = rng.uniform(0.5, 1.2), rng.uniform(0, 2 * np.pi)
    down = [*(np.cos(elevation) * direction(azimuth)), -np.sin(elevation)]
    share = rng.uniform(0.35, 0.6)
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        castshadow=False,
        pos=[0, 0, 100],
        dir=down,
        diffuse=brightness * share * tint,
        ambient=np.zeros(3),
        specular=np.zeros(3),
    )
    spec.visual.headlight.ambient = brightness * (1.05 - share) * np.ones(3)
    spec.visual.headlight.diffuse = np.zeros(3)
    spec.visual.headlight.specular = np.zeros(3)
    high = np.clip(brightness * np.array([0.45, 0.65, 0.95]) * tint, 0, 1)
    low = np.clip(brightness * np.array([0.85, 0.9, 0.97]) * tint, 0, 1)
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=high,
        rgb2=low,
        width=64,
        height=384,
    )


def _add_ground(spec: Any, ground: Ground) -> None:
    height, width = ground.image.shape[:2]
    texture = spec.add_texture(
        name="ground", type=mujoco.mjtTexture.mjTEXTURE_2D, width=width, height=height, nchannel=3
    )
    texture.data = ground.image.tobytes()
    material = spec.add_material(name="ground", texrepeat=[1, 1], specular=0.0, reflectance=0.0)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "ground"
    half, middle = (ground.high - ground.low) / 2, (ground.high + ground.low) / 2
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[*half, 1.0],
        pos=[*middle, 0.0],
        material="ground",
        contype=0,
        conaffinity=0,
    )


class _Builder:
    """Puts things on the ground."""

    def __init__(self, spec: Any, road: Road, signals: Sequence[Signal], rng: np.random.Generator) -> None:
        self.spec, self.road, self.signals, self.rng = spec, road, signals, rng
        self.lines = np.concatenate([road.points[::4], *road.branch_lines])
        # What shines does not depend on the sun: the lamps of signals and cars.
        spec.add_material(name="lamp", emission=1.0, specular=0.0)

    def build(self, ground: Ground, cars: int) -> None:
        """Everything."""
        ego = self.spec.worldbody.add_body(name="ego", mocap=True)
        for name in MOUNTS:
            matrix = camera_to_vehicle(name)
            # MuJoCo's cameras look along -z with y up.
            quaternion = np.zeros(4)
            mujoco.mju_mat2Quat(quaternion, (matrix[:3, :3] * np.array([1.0, -1.0, -1.0])).ravel())
            vertical = 2 * np.rad2deg(np.arctan(np.tan(np.deg2rad(FIELD_OF_VIEW / 2)) * self._aspect))
            ego.add_camera(name=name, pos=matrix[:3, 3], quat=quaternion, fovy=vertical)
        vertical = 2 * np.rad2deg(np.arctan(ABOVE_HALF / ABOVE_PLACE[2]))
        ego.add_camera(name=ABOVE, pos=ABOVE_PLACE, quat=[np.sqrt(0.5), 0, 0, -np.sqrt(0.5)], fovy=vertical)
        for i in range(cars):
            self._car(self.spec.worldbody.add_body(name=f"car {i}", mocap=True), f"brake {i}")
        for i, signal in enumerate(self.signals):
            self._signal(i, signal.junction)
        self._parked()
        self._houses(ground)

    @property
    def _aspect(self) -> float:
        return self.spec.visual.global_.offheight / self.spec.visual.global_.offwidth

    def _box(self, body: Any, half: list[float], place: list[float], colour: Any, **more: Any) -> None:
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, size=half, pos=place, rgba=[*colour][:4], contype=0, conaffinity=0, **more
        )

    def _car(self, body: Any, brake: str) -> None:
        """Body, dark windows, rear lamps over the whole width."""
        colour = [*_CAR_COLOURS[int(self.rng.integers(len(_CAR_COLOURS)))], 1.0]
        self._box(body, [2.2, 0.95, 0.42], [0, 0, 0.62], colour)
        self._box(body, [1.15, 0.85, 0.33], [-0.2, 0, 1.35], _DARK)
        self._box(body, [2.15, 0.9, 0.1], [0, 0, 0.16], _DARK)
        self._box(body, [0.04, 0.9, 0.17], [-2.22, 0, 0.82], _BRAKE[False], name=brake, material="lamp")
        self._box(body, [0.04, 0.8, 0.1], [2.22, 0, 0.75], (1.0, 1.0, 0.8, 1.0), material="lamp")

    def _signal(self, index: int, junction: Junction) -> None:
        """Two lamps for those who come along the route: on a mast at the stop line and above the far side."""
        ahead, right = direction(junction.heading), direction(junction.heading - np.pi / 2)
        near = junction.centre - (JUNCTION_HALF - 1.5) * ahead + (LANE + 1.2) * right
        far = junction.centre + JUNCTION_HALF * ahead + 0.5 * LANE * right
        mast = junction.centre + JUNCTION_HALF * ahead + (LANE + 1.2) * right
        for name, place, z, size in (("near", near, 3.4, 0.55), ("far", far, 5.4, 0.85)):
            back = place + 0.3 * ahead
            body = self.spec.worldbody.add_body(
                pos=[*back, z], quat=[np.cos(junction.heading / 2), 0, 0, np.sin(junction.heading / 2)]
            )
            self._box(body, [0.15, 1.45 * size, 1.45 * size], [0, 0, 0], _DARK)
            body.add_geom(
                type=mujoco.mjtGeom.mjGEOM_SPHERE,
                name=f"lamp {index} {name}",
                material="lamp",
                size=[size, 0, 0],
                pos=[-0.3, 0, 0],
                rgba=_LIT["red"],
                contype=0,
                conaffinity=0,
            )
        self._box(self.spec.worldbody, [0.12, 0.12, 1.5], [*(near + 0.3 * ahead), 1.5], (0.3, 0.3, 0.3, 1))
        self._box(self.spec.worldbody, [0.12, 0.12, 3.0], [*(mast + 0.3 * ahead), 3.0], (0.3, 0.3, 0.3, 1))

    def _parked(self) -> None:
        """Cars beside the road, which mean nothing."""
        road = self.road
        for count, s in enumerate(np.arange(15.0, road.length - 15, 9.0)):
            near = any(junction.enter - 18 < s < junction.leave + 12 for junction in road.junctions)
            if self.rng.random() < 0.75 or near:
                continue
            side = self.rng.choice([-1.0, 1.0])
            x, y, yaw = road.pose(float(s), side * (LANE + 1.9))
            yaw += np.pi * (side > 0)
            body = self.spec.worldbody.add_body(pos=[x, y, 0], quat=[np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)])
            self._car(body, f"parked {count}")

    def _houses(self, ground: Ground) -> None:
        """Houses and trees along the roads, none closer than they may be."""
        taken: list[Float64[np.ndarray, 3]] = []
        for _ in range(900):
            beside = self.lines[int(self.rng.integers(len(self.lines)))]
            place = beside + self.rng.normal(size=2) * 16
            tree = self.rng.random() < 0.45
            radius = 1.6 if tree else self.rng.uniform(4.5, 8.5)
            free = np.linalg.norm(self.lines - place, axis=-1).min() > LANE + 3.2 + radius
            if not free or any(np.linalg.norm(place - other[:2]) < radius + other[2] for other in taken):
                continue
            taken.append(np.array([*place, radius]))
            if tree:
                self._tree(place)
            else:
                self._house(place, radius / np.sqrt(2))
            if len(taken) == 130:
                return

    def _tree(self, place: Float64[np.ndarray, "2"]) -> None:
        height = self.rng.uniform(2.0, 3.2)
        self._box(self.spec.worldbody, [0.2, 0.2, height / 2], [*place, height / 2], (0.35, 0.22, 0.12, 1))
        green = (self.rng.uniform(0.08, 0.25), self.rng.uniform(0.35, 0.5), self.rng.uniform(0.08, 0.2), 1.0)
        self.spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_ELLIPSOID,
            size=[1.6, 1.6, self.rng.uniform(1.6, 2.6)],
            pos=[*place, height + 1.2],
            rgba=green,
            contype=0,
            conaffinity=0,
        )

    def _house(self, place: Float64[np.ndarray, "2"], half: float) -> None:
        """A box with a roof of another colour and two rows of windows' worth of dark bands."""
        height = self.rng.uniform(3.0, 8.0)
        yaw = self.rng.uniform(0, np.pi / 2)
        body = self.spec.worldbody.add_body(pos=[*place, 0], quat=[np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)])
        walls = self.rng.uniform(0.35, 0.85, 3) * np.array([1.0, 0.92, 0.85])
        depth = half * self.rng.uniform(0.7, 1.0)
        self._box(body, [half, depth, height / 2], [0, 0, height / 2], [*walls, 1.0])
        for level in np.arange(1.8, height - 0.8, 2.8):
            self._box(body, [half * 0.8, depth + 0.05, 0.55], [0, 0, float(level)], (0.2, 0.24, 0.3, 1))
        self._box(body, [half + 0.3, depth + 0.3, 0.25], [0, 0, height], [*(0.5 * walls), 1.0])


_CAR_COLOURS = (
    (0.92, 0.92, 0.92),
    (0.15, 0.25, 0.75),
    (0.95, 0.75, 0.1),
    (0.75, 0.78, 0.8),
    (0.1, 0.55, 0.6),
    (0.9, 0.45, 0.1),
)
"""None is red: red are lamps."""
