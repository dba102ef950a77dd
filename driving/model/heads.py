"""What is put on an encoder: heads of the pretraining objectives, and waypoints."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from chunkwise.models.layers import KERNEL_INIT, MLP
from driving.config import ModelConfig, ObjectiveConfig, WaypointConfig
from driving.model.encoders import Features, SceneEncoder, grid
from driving.model.rays import rays

SPEED_SCALE, YAW_RATE_SCALE = 10.0, 0.5
"""m/s and rad/s that become 1 at the input of the waypoint head."""
WAY_SCALE = 10.0
"""Metres of a waypoint that become 1 at the input of the world model."""
COMMANDS = 4
"""unknown, left, straight, right."""
STANDS_TURNING = 1e-3
"""Below this yaw rate, rad/s, a constant turn is a straight line: the exact formula divides by it."""


class Pretrained(NamedTuple):
    """Outputs of the heads, for b samples of n moments; None where an objective is off."""

    features: Features
    """Leading axis b n."""
    cameras: Float[Array, "b n k p"] | None
    scene: Float[Array, "b n p"] | None
    motion: Float[Array, "b 3"] | None
    predicted: Float[Array, "m k gh gw d"] | None
    """What the encoder's target would make of hidden tokens; m = b n."""
    distilled: Float[Array, "m k q"] | None = None
    """Cosines of crops of the images with prototypes."""


class Pretrainer(nn.Module):
    """An encoder, and a head for each objective whose weight is not 0."""

    config: ModelConfig
    objective: ObjectiveConfig

    def setup(self) -> None:
        self.encoder = SceneEncoder(self.config)
        o, hidden = self.objective, (self.config.scene_width,)
        if o.cross_camera:
            self.camera_head = MLP(hidden, o.projection)
        if o.temporal:
            self.scene_head = MLP(hidden, o.projection)
        if o.ego_motion:
            self.motion_head = MLP(hidden, 3)
        if o.masked:
            self.predictor = Predictor()
        if o.distilled:
            self.distilled_head = PrototypeHead(o)

    def __call__(
        self,
        images: UInt8[Array, "b n k h w 3"] | Float[Array, "b n k h w 3"],
        valid: Bool[Array, "b n k"],
        hidden: Bool[Array, "b n k gh gw"] | None,
        crops: UInt8[Array, "b n k h w 3"] | Float[Array, "b n k h w 3"] | None = None,
    ) -> Pretrained:
        """One pass of the encoder over all images, a second one with tokens hidden where `hidden` says so, a third one
        over crops of them."""
        b, n = images.shape[:2]
        flat, flat_valid = images.reshape(b * n, *images.shape[2:]), valid.reshape(b * n, -1)
        features = self.encoder(flat, flat_valid)
        scene = features.scene.reshape(b, n, -1)
        o, predicted, distilled = self.objective, None, None
        if o.masked:
            assert hidden is not None
            predicted = self.predictor(self.encoder(flat, flat_valid, hidden.reshape(b * n, *hidden.shape[2:])))
        if o.distilled:
            assert crops is not None
            cropped: Features = self.encoder(crops.reshape(flat.shape), flat_valid)
            distilled = self.distilled_head(cropped.cameras)
        return Pretrained(
            features=features,
            cameras=self.camera_head(features.cameras).reshape(b, n, -1, o.projection) if o.cross_camera else None,
            scene=self.scene_head(scene) if o.temporal else None,
            motion=self.motion_head(jnp.concatenate([scene[:, 0], scene[:, -1]], -1)) if o.ego_motion else None,
            predicted=predicted,
            distilled=distilled,
        )


class PrototypeHead(nn.Module):
    """Cosines of a camera's vector, projected, with learned directions (arXiv:2006.09882, arXiv:2104.14294)."""

    objective: ObjectiveConfig

    @nn.compact
    def __call__(self, cameras: Float[Array, "m k v"]) -> Float[Array, "m k q"]:
        o = self.objective
        z = MLP((2 * o.projection,), o.projection, name="project")(cameras)
        directions = self.param("prototypes", nn.initializers.normal(1.0), (o.prototypes, o.projection))
        return unit(z) @ unit(directions).T


def unit(z: Float[Array, "*any p"]) -> Float[Array, "*any p"]:
    """Vectors of length 1, with a gradient that stays finite at 0."""
    return z / jnp.sqrt(jnp.square(z).sum(-1, keepdims=True) + 1e-8)


class Predictor(nn.Module):
    """Fills in hidden tokens from what is left of their own grid and from the whole scene."""

    @nn.compact
    def __call__(self, features: Features) -> Float[Array, "m k gh gw d"]:
        d = features.tokens.shape[-1]
        scene = nn.Dense(d, kernel_init=KERNEL_INIT, name="scene")(nn.gelu(features.scene))
        x = nn.Dense(2 * d, kernel_init=KERNEL_INIT, name="up")(features.tokens + scene[:, None, None, None])
        return nn.Dense(d, kernel_init=KERNEL_INIT, name="down")(nn.gelu(x))


class Modes(NamedTuple):
    """Trajectories that the car may take, m of them."""

    waypoints: Float[Array, "b m t 2"]
    """In the vehicle frame, metres."""
    logits: Float[Array, "b m"]
    """Of their probabilities, by a softmax."""

    def most_probable(self) -> Float[Array, "b t 2"]:
        """Returns the trajectory that drives; of equally probable ones the first."""
        if self.logits.shape[1] == 1:
            return self.waypoints[:, 0]
        return self.taken(jnp.argmax(self.logits, axis=-1))

    def taken(self, mode: Int[Array, " b"]) -> Float[Array, "b t 2"]:
        """Returns the trajectory of one mode a row."""
        return jnp.take_along_axis(self.waypoints, mode[:, None, None, None], axis=1)[:, 0]


class Calibration(NamedTuple):
    """Of the cameras of a sample's images."""

    intrinsics: Float[Array, "b v 3 3"]
    """In pixels of the images."""
    extrinsics: Float[Array, "b v 4 4"]
    """Camera to vehicle."""
    known: Bool[Array, "b v"]


class WaypointModel(nn.Module):
    """Future places of the car from what it sees, how it moves, and where the route goes.

    waypoints = constant turn rate and velocity + MLP(scene, speed, yaw rate, their changes, which are known, command)

    The MLP's last layer is zero at the start, so an untrained model is the blind formula and cameras only add to it.
    With `waypoints.residual` there are two, and cameras only add to what is known without them:

    waypoints = constant turn rate and velocity + MLP(what is known) + MLP(dropout(narrow(scene)), what is known)

    whose last layers are zero at the start. With `waypoints.world` one more MLP says from the scene and the waypoints
    what the cameras will show. Several modes have a last layer with an output for each, whose bias a run
    sets apart (driving/tasks/modes.py), and one for their logits.
    """

    config: ModelConfig
    waypoints: WaypointConfig
    steps: int
    dt_s: float
    moments: int = 1
    """Whose images are given, the anchor last."""
    cameras: int = 0
    """Whose later vectors `imagine` predicts."""

    def setup(self) -> None:
        if self.waypoints.use_cameras:
            self.encoder = SceneEncoder(self.config)
        self.trunk = MLP(self.waypoints.hidden_sizes[:-1], self.waypoints.hidden_sizes[-1])
        zeros, modes, residual = nn.initializers.zeros_init(), self.waypoints.modes, self.waypoints.residual
        self.out = nn.Dense(2 * self.steps * modes, kernel_init=zeros)
        if modes > 1:
            self.logits = nn.Dense(modes, kernel_init=zeros)
        if self.waypoints.world is not None:
            self.world = MLP((self.waypoints.world.width,), self.cameras * self.config.camera_width)
        if residual is not None:
            self.narrow = nn.Dense(residual.width, kernel_init=KERNEL_INIT)
            self.dropout = nn.Dropout(residual.dropout)
            self.seeing = MLP(self.waypoints.hidden_sizes[:-1], self.waypoints.hidden_sizes[-1])
            self.seen_out = nn.Dense(2 * self.steps * modes, kernel_init=zeros)
            if modes > 1:
                self.seen_logits = nn.Dense(modes, kernel_init=zeros)

    def __call__(
        self,
        images: UInt8[Array, "b v h w 3"] | Float[Array, "b v h w 3"],
        valid: Bool[Array, "b v"],
        motion: Float[Array, "b 2"],
        past: Float[Array, "b p"],
        command: Int[Array, " b"],
        known_motion: Bool[Array, "b q"],
        calibration: Calibration | None = None,
        *,
        training: bool = False,
    ) -> Modes:
        """Predicts.

        Args:
          images: Of the k cameras at each of the moments, v = moments k, as DrivingConfig.views names them.
          valid: Which of them there are.
          motion: Speed in m/s and yaw rate in rad/s; 0 where unknown.
          past: By how much speed, then yaw rate, differed at each of some moments before; 0 where unknown.
          command: Position in driving.data.episodes.ROUTE_COMMANDS.
          known_motion: Which numbers of `motion`, then of `past`, are known; q = 2 + p.
          calibration: Of the images' cameras; None where the model does not read it.
          training: Whether numbers are dropped, by the key "dropout".
        """
        scenes = self._scenes(images, valid, calibration) if self.waypoints.use_cameras else None
        return self._modes(scenes, motion, past, command, known_motion, training=training)

    def imagine(
        self, images: Array, valid: Bool[Array, "b v"], *known: Array, training: bool = False
    ) -> tuple[Modes, Float[Array, "b k d"]]:
        """Predicts, and says what the cameras' vectors will be later if the car goes where the most probable mode does.

        Arguments as of a call, `known` from `motion` to `known_motion`; the model reads no calibration. The gradient of
        the vectors reaches the waypoints.
        """
        scenes = self._scenes(images, valid, None)
        modes = self._modes(scenes, *known, training=training)
        rows = scenes.shape[0]
        later = self.world(scenes.reshape(rows, -1), modes.most_probable().reshape(rows, -1) / WAY_SCALE)
        return modes, later.reshape(rows, self.cameras, -1)

    def _modes(
        self,
        scenes: Float[Array, "b n s"] | None,
        motion: Float[Array, "b 2"],
        past: Float[Array, "b p"],
        command: Int[Array, " b"],
        known_motion: Bool[Array, "b q"],
        *,
        training: bool,
    ) -> Modes:
        known: list[Array] = []
        if scenes is not None and self.waypoints.residual is None:
            known.append(scenes.reshape(scenes.shape[0], -1))
        start = jnp.zeros((motion.shape[0], self.steps, 2))
        if self.waypoints.use_ego:
            known.append(motion / jnp.array([[SPEED_SCALE, YAW_RATE_SCALE]], jnp.float32))
            start = constant_turn(motion, self.steps, self.dt_s)
            if self.waypoints.use_known:
                known.append(known_motion[:, : motion.shape[1]].astype(jnp.float32))
        if self.waypoints.use_past:
            scales = jnp.repeat(jnp.array([SPEED_SCALE, YAW_RATE_SCALE], jnp.float32), past.shape[1] // 2)
            known.append(past / scales[None])
            if self.waypoints.use_known:
                known.append(known_motion[:, motion.shape[1] :].astype(jnp.float32))
        if self.waypoints.use_command:
            known.append(nn.one_hot(command, COMMANDS))
        hidden = nn.gelu(self.trunk(jnp.concatenate(known, axis=-1)))
        change = self.out(hidden)
        logits = self.logits(hidden) if self.waypoints.modes > 1 else jnp.zeros((motion.shape[0], 1))
        if self.waypoints.residual is not None:
            assert scenes is not None
            narrow = self.dropout(nn.gelu(self.narrow(scenes)), deterministic=not training)
            seen = nn.gelu(self.seeing(jnp.concatenate([narrow.reshape(narrow.shape[0], -1), *known], axis=-1)))
            change = change + self.seen_out(seen)
            logits = logits + self.seen_logits(seen) if self.waypoints.modes > 1 else logits
        change = change.reshape(-1, self.waypoints.modes, self.steps, 2)
        return Modes(start[:, None] + change, logits)

    def _scenes(
        self, images: Array, valid: Bool[Array, "b v"], calibration: Calibration | None
    ) -> Float[Array, "b n s"]:
        """What is seen at each moment."""
        b, n = images.shape[0], self.moments

        def by_moment(x: Array) -> Array:
            return x.reshape(b * n, x.shape[1] // n, *x.shape[2:])

        looks = None
        if self.waypoints.use_calibration:
            assert calibration is not None
            size = (images.shape[2], images.shape[3])
            looks = by_moment(rays(*calibration, size, grid(self.config, *size)))
        return nn.gelu(self.encoder(by_moment(images), by_moment(valid), None, looks).scene).reshape(b, n, -1)


def constant_turn(motion: Float[Array, "b 2"], steps: int, dt_s: float) -> Float[Array, "b t 2"]:
    """Places at dt_s, 2 dt_s, ... of a car that keeps its speed v and its yaw rate w.

    x = v / w sin(w t), y = v / w (1 - cos(w t)), and a straight line where |w| is below STANDS_TURNING.

    Args:
      motion: v in m/s and w in rad/s.
      steps: t.
      dt_s: Seconds between two places.
    """
    t = jnp.arange(1, steps + 1, dtype=jnp.float32)[None] * dt_s
    v, w = motion[:, :1], motion[:, 1:]
    straight = jnp.abs(w) < STANDS_TURNING
    safe = jnp.where(straight, 1.0, w)
    x = jnp.where(straight, v * t, v / safe * jnp.sin(w * t))
    y = jnp.where(straight, 0.0 * t, v / safe * (1 - jnp.cos(w * t)))
    return jnp.stack([x, y], axis=-1)
