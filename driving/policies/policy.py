"""A run's waypoint model as a policy: what evaluation measures and what is served are this one object.

policy = chunkwise.load_policy("runs/driving-waypoints-...")
waypoints = policy.infer({"image": images, "speed_mps": 8.1, "yaw_rate_radps": 0.0, "past_speed_mps": [8.0, 7.9, None],
                          "past_yaw_rate_radps": [0.0, 0.0, None], "route_command": "left"})["actions"]
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int64, UInt8

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.checkpoint.weights import read_weights
from chunkwise.config.saved import read_config
from chunkwise.data.images import Size, resized, shrink_into
from chunkwise.data.norm_stats import identity
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies import observations, policy
from chunkwise.policies.observations import MAX_STATE
from chunkwise.policies.policy import Asked, Draws, Prepared
from chunkwise.policies.recorded_images import RecordedSizes, read_shrunk, read_sizes
from chunkwise.policies.spec import TEXT, Entry, Exportable, Spec, image_entry
from chunkwise.train import rngs
from driving.config import DrivingConfig
from driving.data.episodes import CALIBRATION_EXPECTED, ROUTE_COMMANDS, extrinsics_of, intrinsics_of
from driving.data.images import FILTER
from driving.data.tables import PAST_S
from driving.model.heads import Modes, WaypointModel
from driving.tasks import waypoints


class WaypointPolicy(policy.Policy[Prepared]):
    """Waypoints from what the car sees, how it moves and where the route goes; nothing is drawn."""

    def __init__(
        self,
        config: DrivingConfig,
        params: PyTree,
        *,
        step: int = 0,
        seed: int = 0,
        shrunk: tuple[str, ...] = (),
        recorded: Mapping[str, Size] | None = None,
    ) -> None:
        """Compiles nothing yet.

        Args:
          config: Of the run.
          params: Its weights, of the moving average where one is kept.
          step: Updates that made the weights.
          seed: Seeds nothing here.
          shrunk: Cameras whose images are shrunk as their recorded JPEGs were (chunkwise/policies/recorded_images.py).
          recorded: Height and width at which cameras were recorded, as far as they are known.

        Raises:
          ConfigError: If the run is a pretraining, which has no policy.
        """
        super().__init__(step=step, seed=seed)
        if config.waypoints is None:
            raise ConfigError("objective is set: this run is a pretraining; expected one that learnt waypoints")
        self.config = config
        self._settings = config.waypoints
        self._params, cameras = params, config.data.cameras
        by_view = {view: cameras[k % len(cameras)] for k, view in enumerate(config.views)}
        self._shrunk = {view for view, camera in by_view.items() if camera in shrunk}
        sizes = recorded or {}
        self._recorded = RecordedSizes({view: sizes[name] for view, name in by_view.items() if name in sizes})
        model: Any = waypoints.make_model(config)  # Any: flax's modules hash, and their types do not say so
        self._program = _program(model)
        self._modes_program = _modes_program(model)

    @property
    def spec(self) -> Spec:
        """What the run's model uses: entries that waypoints.use_* switch off are not asked for."""
        settings, data = self._settings, self.config.data
        views = self.config.views
        seen = {
            f"image/{name}": image_entry(
                name,
                data.image_size,
                may_be_none=True,
                shrunk=name in self._shrunk,
                recorded=self._recorded[name],
            )
            for name in views
        }
        for name in data.cameras if settings.use_calibration else ():
            for matrix, (shape, meaning) in _MATRICES.items():
                seen[f"{matrix}/{name}"] = Entry(
                    shape=shape, dtype="float64", unit="", meaning=f"camera {name}: {meaning}", may_be_none=True
                )

        def number(unit: str, meaning: str, *shape: int) -> Entry:
            return Entry(shape=shape, dtype="float64", unit=unit, meaning=meaning, may_be_none=True)

        moments = ", ".join(f"{seconds:g}" for seconds in PAST_S)
        for name, unit, what in _MOTION:
            if settings.use_ego or settings.use_past:
                seen[name] = number(unit, f"{what} now")
            if settings.use_past:
                before = f"{what} at {moments} s before; None in the place of one that is not known"
                seen[f"past_{name}"] = number(unit, before, len(PAST_S))
        if settings.use_command:
            seen["route_command"] = Entry(
                shape=(), dtype=TEXT, unit="words", meaning="where the route goes", choices=ROUTE_COMMANDS
            )
        steps, dt_s = data.waypoint_steps, data.waypoint_dt_s
        return Spec(
            observation=seen,
            actions=Entry(
                shape=(steps, 2),
                dtype="float32",
                unit="m in the vehicle frame of the observation: x forward, y left",
                meaning=f"waypoints: where the car is after {dt_s:g}, {2 * dt_s:g}, ... {steps * dt_s:g} s",
            ),
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client should know, as plain values."""
        return super().metadata | {"model": "waypoints", "cameras": list(self.config.views)}

    def example(self) -> dict[str, Any]:
        """Returns an observation of the right names and shapes: black images, zeros, matrices of the identity."""
        made = super().example()
        for matrix, (shape, _) in _MATRICES.items():
            for name in made.get(matrix, {}):
                made[matrix][name] = np.eye(shape[0])  # zeros would be no camera's
        return made

    def digest(self) -> str:
        """Returns a SHA-256 of the weights."""
        return tree_digest(self._params)

    def predict(self, batch: Mapping[str, Any]) -> Float32[np.ndarray, "b t 2"]:
        """Returns the waypoints of a batch of `tasks.waypoints.inputs`, as `infer` does of an observation."""
        return np.asarray(self._compute({name: batch[name] for name in waypoints.input_names(self._settings)}))

    def modes(self, batch: Mapping[str, Any]) -> tuple[Float32[np.ndarray, "b m t 2"], Float32[np.ndarray, "b m"]]:
        """Returns all trajectories of a batch of `tasks.waypoints.inputs`, and their logits."""
        found = self._modes_program(self._params, {name: batch[name] for name in waypoints.input_names(self._settings)})
        return np.asarray(found.waypoints), np.asarray(found.logits)

    def _prepare(
        self, observation: Mapping[str, Any], draw: Draws, max_rows: int | None, options: Mapping[str, Any]
    ) -> Prepared:
        rows, single = self._rows(observation)
        observations.require_rows("observation", rows, max_rows)
        images, valid, sizes = self._images(observation, rows, single)
        now, past, known, past_known = [], [], [], []
        for name, _, _ in _MOTION:
            value, there, change, change_there = self._motion(observation, name, rows, single)
            now.append(value)
            known.append(there[:, None])
            past.append(change)
            past_known.append(change_there)
        inputs = {
            "images": images,
            "image_valid": valid,
            **self._calibration(observation, sizes, rows, single),
            "motion": np.stack(now, axis=-1).astype(np.float32),
            "past_motion": np.concatenate(past, axis=-1).astype(np.float32),
            "route_command": self._command(observation, rows, single),
            "known_motion": np.concatenate([*known, *past_known], axis=-1),
        }
        return Prepared(inputs=inputs, rows=rows, single=single)

    def _by_spec(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        return observations.nested(observation, "image", *_MATRICES)

    def _rows(self, observation: Mapping[str, Any]) -> tuple[int, bool]:
        """Rows, and whether the observation has no axis of them; by the first entry that is not None.

        Raises:
          DataError: There are none.
        """
        images = observation.get("image")
        given = {"speed_mps": 0, "yaw_rate_radps": 0, "route_command": 0}
        values = [(name, observation.get(name), ndim) for name, ndim in given.items() if name in self.spec.observation]
        values += [(f"image {name}", value, 3) for name, value in images.items()] if isinstance(images, Mapping) else []
        for name, value, ndim in values:
            if value is not None:
                if isinstance(value, str) or observations.as_array(value, name).ndim <= ndim:
                    return 1, True
                if not len(value):
                    raise DataError(f"{name}: expected at least one row, found none")
                return len(value), False
        return 1, True

    def _images(
        self, observation: Mapping[str, Any], rows: int, single: bool
    ) -> tuple[np.ndarray, np.ndarray, Int64[np.ndarray, "k 2"]]:
        """Images of the views at training size, which are there, and height and width of those that were sent."""
        data = self.config.data
        views = self.config.views or data.cameras
        images = np.zeros((rows, len(views), *data.image_size, 3), np.uint8)
        valid, sizes = np.zeros((rows, len(views)), bool), np.tile(np.array(data.image_size, np.int64), (len(views), 1))
        if not self._settings.use_cameras:
            return images, valid, sizes
        found = observations.images(
            observation,
            views,
            self._resized,
            rows=rows,
            single=single,
            may_be_off=True,
        )
        for k, (name, stack) in enumerate(found.items()):
            if stack is not None:
                images[:, k], valid[:, k] = stack, True
                sizes[k] = observations.channels_last(np.asarray(observation["image"][name])).shape[-3:-1]
        now = valid[:, -len(data.cameras) :]
        if now[0].sum() < data.min_cameras:
            raise DataError(
                f"image: expected at least {data.min_cameras} cameras that are on, as in training "
                f"(data.min_cameras), found {now[0].sum()}"
            )
        return images, valid, sizes

    def _resized(self, view: str, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
        """An image of a view at training size, resized as training resized its camera's."""
        height, width = self.config.data.image_size
        self._recorded.compare(view, image.shape[:2], (height, width))
        if view not in self._shrunk:
            return resized(image, height, width, filter=FILTER)
        out = np.empty((height, width, 3), np.uint8)
        shrink_into(image, out, filter=FILTER)
        return out

    def _calibration(
        self, observation: Mapping[str, Any], sizes: Int64[np.ndarray, "k 2"], rows: int, single: bool
    ) -> dict[str, np.ndarray]:
        """Matrices of the views' cameras, of which a camera's are the same at all moments; {} where they are not read.

        Intrinsics are of the images that were sent, by `sizes`, and become those of the images that the model sees, as
        in driving/data/calibration.py. The identity, and not known, where a number of either is None.
        """
        if not self._settings.use_calibration:
            return {}
        cameras, moments = self.config.data.cameras, len(self.config.views) // len(self.config.data.cameras)
        matrices: dict[str, list[np.ndarray]] = {}
        for matrix, (shape, _) in _MATRICES.items():
            sent = observations.entry(observation, matrix)
            if not isinstance(sent, Mapping) or not set(cameras) <= set(sent):
                got = sorted(map(str, sent)) if isinstance(sent, Mapping) else type(sent).__name__
                raise DataError(f"{matrix}: expected a dict with {list(cameras)}, found {got}")
            for name in cameras:
                key = f"{matrix}/{name}"
                found, there = observations.known_numbers({key: sent[name]}, key, shape, rows=rows, single=single)
                whole = np.asarray(there.reshape(rows, -1).all(axis=1)).reshape(rows)
                make = intrinsics_of if matrix == "intrinsics" else extrinsics_of
                for one in found[whole]:
                    if make(one.ravel().tolist()) is None:
                        raise DataError(
                            f"{key}: expected {CALIBRATION_EXPECTED[matrix]}, as in the dataset, found {one.tolist()}"
                        )
                matrices.setdefault(matrix, []).append(np.where(whole[:, None, None], found, np.eye(shape[0])))
                matrices.setdefault(f"{matrix} known", []).append(whole)
        known = np.logical_and(*(np.stack(matrices[f"{matrix} known"], axis=1) for matrix in _MATRICES))

        def at_moments(one: np.ndarray) -> np.ndarray:
            return np.concatenate([one] * moments, axis=1)

        given = {name: at_moments(np.stack(matrices[name], axis=1)) for name in _MATRICES}
        valid, (height, width) = at_moments(known), self.config.data.image_size
        stretch = np.stack([width / sizes[:, 1], height / sizes[:, 0], np.ones(len(sizes))], axis=-1)[..., None]
        given["intrinsics"] = np.where(valid[..., None, None], stretch * given["intrinsics"], given["intrinsics"])
        return {**{name: value.astype(np.float32) for name, value in given.items()}, "calibration_valid": valid}

    def _motion(
        self, observation: Mapping[str, Any], name: str, rows: int, single: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A quantity now, and by how much it differed at each of PAST_S, as `tables` has it, each with what is known.

        Both are 0 where they are not.
        """
        wanted = self.spec.observation
        value, known = np.zeros(rows), np.zeros(rows, bool)
        if name in wanted:
            value, known = observations.known_numbers(observation, name, (), rows=rows, single=single)
        change, changes_known = np.zeros((rows, len(PAST_S))), np.zeros((rows, len(PAST_S)), bool)
        if f"past_{name}" in wanted:
            before, there = observations.known_numbers(
                observation, f"past_{name}", (len(PAST_S),), rows=rows, single=single
            )
            changes_known = there & known[:, None]
            change = np.where(changes_known, value[:, None] - before, 0.0)
        return value, known, change, changes_known

    def _command(self, observation: Mapping[str, Any], rows: int, single: bool) -> np.ndarray:
        if not self._settings.use_command:
            return np.zeros(rows, np.int32)
        if observations.entry(observation, "route_command") is None:
            raise DataError("route_command: expected text, found NoneType None; where it is not known, send 'unknown'")
        words = observations.texts(observation, "route_command", rows=rows, single=single)
        if wrong := sorted(set(words) - set(ROUTE_COMMANDS)):
            raise DataError(f"route_command: expected one of {', '.join(ROUTE_COMMANDS)}, found {wrong[0]!r:.80}")
        return np.array([ROUTE_COMMANDS.index(word) for word in words], np.int32)

    def exportable(self) -> Exportable:
        """Inputs: as the model sees them, `tasks.waypoints.inputs`; nothing is drawn."""
        data, past = self.config.data, len(_MOTION) * len(PAST_S)
        seen = self.config.views or data.cameras
        views = len(seen)
        calibration: dict[str, tuple[tuple[int, ...], str]] = {
            "intrinsics": ((views, 3, 3), "float32"),
            "extrinsics": ((views, 4, 4), "float32"),
            "calibration_valid": ((views,), "bool"),
        }
        return Exportable(
            program=self._program,
            params=self._params,
            inputs={
                "images": ((views, *data.image_size, 3), "uint8"),
                "image_valid": ((views,), "bool"),
                **(calibration if self._settings.use_calibration else {}),
                "motion": ((len(_MOTION),), "float32"),
                "past_motion": ((past,), "float32"),
                "route_command": ((), "int32"),
                "known_motion": ((len(_MOTION) + past,), "bool"),
            },
            normalised={},
            order={"images": seen, "image_valid": seen},
            actions=identity(2),
            seed=None,
            ranges={
                "route_command": (0, len(ROUTE_COMMANDS) - 1),
                "motion": (-MAX_STATE, MAX_STATE),
                "past_motion": (-MAX_STATE, MAX_STATE),
            },
            at_least={"image_valid": (len(data.cameras), data.min_cameras)} if self._settings.use_cameras else {},
            spec=self.spec,
        )

    def _compute(self, inputs: Any) -> Any:
        return self._program(self._params, inputs)

    def _denormalised(self, chunk: Float32[np.ndarray, "b t d"]) -> Float32[np.ndarray, "b t a"]:
        return chunk


_MOTION = (("speed_mps", "m/s", "speed"), ("yaw_rate_radps", "rad/s, to the left", "yaw rate"))
"""Entries of an observation that say how the car moves: name, unit, what it is."""


_MATRICES = {
    "intrinsics": ((3, 3), "pixels of the image that is sent, whatever its size, its upper left corner (0, 0)"),
    "extrinsics": ((4, 4), "camera (x right, y down, z ahead) to the vehicle (x forward, y left, z up), metres"),
}
"""Entries of an observation that say how a camera looks: shape and meaning."""


def _unknown_as_0(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Motion that is not known counts as 0, as an observation's None does, whatever number stands there."""
    motion = jnp.concatenate([inputs["motion"], inputs["past_motion"]], axis=-1)
    known = jnp.where(inputs["known_motion"], motion, 0.0)
    return {**inputs, "motion": known[..., : len(_MOTION)], "past_motion": known[..., len(_MOTION) :]}


@functools.cache
def _program(model: WaypointModel) -> Callable[[PyTree, Any], jax.Array]:
    """The compiled model: one for all policies and evaluations of a run, and for exports, whose bits are these."""
    return jax.jit(lambda params, batch: waypoints.predict(model, params, _unknown_as_0(batch)))


@functools.cache
def _modes_program(model: WaypointModel) -> Callable[[PyTree, Any], Modes]:
    """As `_program`, of all modes."""
    return jax.jit(lambda params, batch: waypoints.predict_modes(model, params, batch))


def load(asked: Asked) -> WaypointPolicy:
    """Loads the policy of a run; nothing but its folder is needed. See `chunkwise.load_policy`."""
    asked.require_run("driving")
    folder = asked.folder
    own = read_config(folder, DrivingConfig)
    if own.waypoints is None:
        raise ConfigError(
            f"{folder}: a pretraining, which has no policy; expected a run that learnt waypoints, such as one with "
            f"--waypoints.weights {folder}"
        )
    step, params = read_weights(
        folder, own, lambda: waypoints.init_params(own, rngs.key(0, "init")), checkpoint=asked.checkpoint
    )
    shrunk, recorded = read_shrunk(folder), read_sizes(folder)
    return WaypointPolicy(own, params, step=step, seed=asked.seed, shrunk=shrunk, recorded=recorded)
