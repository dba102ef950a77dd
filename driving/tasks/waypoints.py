"""Behaviour cloning of waypoints, as the train loop sees it: with a pretrained encoder, frozen or not, or without."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Key

from chunkwise.arrays import NumpyTree, PyTree
from chunkwise.checkpoint.reader import list_saves, read_fingerprint
from chunkwise.checkpoint.weights import read_weights
from chunkwise.config.saved import read_config
from chunkwise.data.stream import batches_of_run
from chunkwise.errors import ConfigError, DataError
from chunkwise.printable import say
from chunkwise.state import TrainState
from chunkwise.train import gradients, rngs
from chunkwise.train.clipped_ratio import clipped_loss
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.optimizer import make_optimiser
from chunkwise.train.sharding import all_gather_params
from driving.config import DrivingConfig, WaypointConfig
from driving.data.batch import Batch
from driving.data.batches import DrivingData
from driving.data.tables import PAST_S
from driving.model.encoders import SceneEncoder
from driving.model.heads import Calibration, Modes, WaypointModel
from driving.model.images import changed, changes_pixels
from driving.tasks import modes, objectives, pretrain
from driving.tasks.modes import distance, waypoint_loss

INPUTS = ("images", "image_valid", "motion", "past_motion", "route_command", "known_motion")
"""What the model is given of a batch, in the order of its arguments."""
LATER = ("later_images", "later_valid", "later_colour")
"""What the world model is taught by: the images at the last of data.offsets_s, and how their colours change."""
CALIBRATION = ("intrinsics", "extrinsics", "calibration_valid")
"""What the model is given of a batch too, where waypoints.use_calibration is on: where its cameras are."""


class WaypointTask:
    """Trains a WaypointModel."""

    def __init__(self, config: DrivingConfig, data: DrivingData) -> None:
        assert config.waypoints is not None
        self.config, self.data = config, data
        self.settings: WaypointConfig = config.waypoints
        self.model = make_model(config)
        self._optimiser = make_optimiser(config.optim, config.train.steps)

    def init(self, key: Key[Array, ""]) -> TrainState:
        """Fresh weights; the encoder's are replaced by `load` where a pretraining is given."""
        params = init_params(self.config, key)
        return TrainState.create(params, self._optimiser, ema=None if self.config.train.ema_decay is None else params)

    @property
    def loads(self) -> bool:
        """Whether `load` has anything to put into a fresh state."""
        return self.settings.weights is not None or self.settings.modes > 1

    def load(self, state: TrainState) -> TrainState:
        """Puts into a fresh state what the run `waypoints.weights` learnt: the encoder of a pretraining, or all weights
        of the same model. Sets several fresh modes apart.

        Raises:
          ConfigError: If its model is another, on other cameras or of another image size, or the training split does
            not have as many different futures as modes.
          DataError: If it has no whole checkpoint.
        """
        parts: dict[str, Any] = {}
        if self.settings.weights is not None:
            parts = read_start(Path(self.settings.weights), self.config)
            if "encoder" in parts:  # what reads the rays was no part of a pretraining
                parts["encoder"] = {**state.params["encoder"], **parts["encoder"]}
        if self.settings.modes > 1 and "out" not in parts:
            bias = modes.anchors(self.data, self.config).reshape(-1)
            parts["out"] = {**state.params["out"], "bias": bias}
        return _with_parts(state, parts)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update."""
        key = rngs.key(self.config.run.seed, "loss", state.step)
        weights = training_weights(self.settings)
        if "decisions" in batch:
            assert self.config.rollout is not None
            weights |= {"ppo_loss": self.config.rollout.weight}
        gradient, metrics = gradients.gradient(
            self._loss, weights, state.params, batch, key, self.config.train.grad_accum_steps
        )
        if "loss" not in metrics:
            metrics["loss"] = mean_of(gradients.weighted(metrics, weights))
        metrics["gradient_norm"] = mean_of(optax.tree.norm(gradient))
        frozen = ["encoder"] if self.settings.freeze and self.settings.use_cameras else []
        return state.apply_gradients(gradient, self._optimiser, frozen=frozen), metrics

    def _loss(self, params: PyTree, batch: Any, key: Key[Array, ""]) -> tuple[Float[Array, ""], dict[str, Mean]]:
        params = all_gather_params(params)
        if self.settings.freeze and self.settings.use_cameras:
            params = {**params, "encoder": jax.lax.stop_gradient(params["encoder"])}
        augment, cameras = self.config.data.augment, self.config.data.cameras
        later = {name: batch[name] for name in LATER if name in batch}
        if later:
            at_the_end = batch | {"images": later["later_images"], "colour": later.get("later_colour")}
            later["later_images"] = changed(at_the_end, augment, cameras)["images"]
        batch = changed(batch, augment, cameras) | later
        if self.settings.world is None:
            predicted = predict_modes(self.model, params, batch, key)
            losses = losses_of(predicted, batch["waypoints"], batch["waypoint_valid"])
        else:
            predicted, imagined = imagine(self.model, params, batch, key)
            losses = losses_of(predicted, batch["waypoints"], batch["waypoint_valid"])
            losses = _as_parts(losses) | {"world": world_loss(self.model, params, imagined, batch)}
        errors = {"ade": mean_of(distance(predicted.most_probable(), batch["waypoints"]), batch["waypoint_valid"])}
        loss = gradients.weighted(losses, training_weights(self.settings))
        if "decisions" not in batch:
            return loss, losses | errors
        assert self.config.rollout is not None
        chosen = decision_loss(self.model, params, batch["decisions"], self.config.rollout.clip)
        return loss + self.config.rollout.weight * chosen["ppo_loss"].value(), losses | errors | chosen

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """What the model sees of the batches, from update `start_step` on."""
        changes = changes_pixels(self.config.data.augment)
        data = dataclasses.replace(self.data, on_device=True) if changes else self.data
        batches = batches_of_run(data, self.config, start_step=start_step, shard=shard, num_shards=num_shards)
        later = self.settings.world is not None
        return (
            inputs(batch, self.config.data.anchor, self.settings) | (later_of(batch) if later else {})
            for batch in batches
        )

    def data_fingerprint(self) -> dict[str, Any]:
        """Of the training split, with how the motion that the model is given was derived."""
        return self.data.fingerprint() | self.data.derived()


def make_model(config: DrivingConfig) -> WaypointModel:
    """The model that a config describes."""
    assert config.waypoints is not None
    data, settings = config.data, config.waypoints
    moments = len(data.offsets_s) if settings.use_moments else 1
    cameras = len(data.cameras) if settings.world is not None else 0
    return WaypointModel(config.model, settings, data.waypoint_steps, data.waypoint_dt_s, moments, cameras)


def input_names(settings: WaypointConfig) -> tuple[str, ...]:
    """What a model is given of a batch."""
    return (*INPUTS, *CALIBRATION) if settings.use_calibration else INPUTS


def init_params(config: DrivingConfig, key: Key[Array, ""]) -> PyTree:
    """Fresh weights of the model that a config describes."""
    assert config.waypoints is not None
    (height, width), moments = config.data.image_size, len(config.data.offsets_s)
    k = len(config.data.cameras) * (moments if config.waypoints.use_moments else 1)
    images = jnp.zeros((1, k, height, width, 3), jnp.uint8)
    mounted = None
    if config.waypoints.use_calibration:
        rotation, pose = (jnp.broadcast_to(jnp.eye(n)[None, None], (1, k, n, n)) for n in (3, 4))
        mounted = Calibration(rotation, pose, jnp.ones((1, k), bool))
    motion, past, command = jnp.zeros((1, 2)), jnp.zeros((1, 2 * len(PAST_S))), jnp.zeros(1, jnp.int32)
    known = jnp.ones((1, 2 + 2 * len(PAST_S)), bool)
    seen, model = (images, jnp.ones((1, k), bool), motion, past, command, known), make_model(config)
    if config.waypoints.world is not None:
        return model.init(key, *seen, method=model.imagine)["params"]
    return model.init(key, *seen, mounted)["params"]


def inputs(batch: Batch, anchor: int, settings: WaypointConfig | None = None) -> dict[str, np.ndarray]:
    """What a waypoint model sees of a batch: its anchor moment, and the images of others where waypoints.use_moments
    says so. Motion is 0 where `known_motion` says it is unknown."""
    settings = settings or WaypointConfig()
    seen = slice(None) if settings.use_moments else slice(anchor, anchor + 1)

    def views(name: Literal["images", "image_valid", "intrinsics", "extrinsics", "calibration_valid"]) -> np.ndarray:
        shown = batch[name][:, seen]
        return shown.reshape(shown.shape[0], -1, *shown.shape[3:])

    changes = {}
    if "crop" in batch:  # the train step changes the images
        colour = batch["colour"][:, seen]
        changes = {"crop": batch["crop"], "colour": colour.reshape(len(colour), -1, 3), "flipped": batch["flipped"]}
    calibration = {name: views(name) for name in CALIBRATION} if settings.use_calibration else {}
    known = (batch["speed_valid"][:, anchor], batch["yaw_rate_valid"][:, anchor])
    return {
        "images": views("images"),
        "image_valid": views("image_valid"),
        **changes,
        **calibration,
        "motion": np.stack([batch["speed_mps"][:, anchor], batch["yaw_rate_radps"][:, anchor]], axis=-1),
        "past_motion": batch["past_motion"],
        "route_command": batch["route_command"],
        "known_motion": np.concatenate([np.stack(known, axis=-1), batch["past_motion_valid"]], axis=-1),
        "waypoints": batch["waypoints"],
        "waypoint_valid": batch["waypoint_valid"],
    }


def later_of(batch: Batch) -> dict[str, np.ndarray]:
    """What a world model is taught by: the last moment of a batch, as LATER names it."""
    found = {"later_images": batch["images"][:, -1], "later_valid": batch["image_valid"][:, -1]}
    return found | ({"later_colour": batch["colour"][:, -1]} if "crop" in batch else {})


def predict(model: WaypointModel, params: PyTree, batch: Any) -> Float[Array, "b t 2"]:
    """Waypoints of a batch from `inputs`: those of the most probable mode."""
    return predict_modes(model, params, batch).most_probable()


def predict_modes(model: WaypointModel, params: PyTree, batch: Any, key: Key[Array, ""] | None = None) -> Modes:
    """All modes of a batch from `inputs`; with a key as in training, where numbers are dropped."""
    given: list[Any] = [batch[name] for name in INPUTS]
    if model.waypoints.use_calibration:
        given.append(Calibration(*(batch[name] for name in CALIBRATION)))
    training = key is not None and model.waypoints.residual is not None
    keys: Any = {"dropout": key} if training else None
    predicted: Any = model.apply({"params": params}, *given, training=training, rngs=keys)
    return predicted


def imagine(
    model: WaypointModel, params: PyTree, batch: Any, key: Key[Array, ""]
) -> tuple[Modes, Float[Array, "b k d"]]:
    """All modes of a batch from `inputs`, and what its cameras' vectors will be; as in training."""
    given: list[Any] = [batch[name] for name in INPUTS]
    keys: Any = {"dropout": key} if model.waypoints.residual is not None else None
    found: Any = model.apply({"params": params}, *given, training=True, rngs=keys, method=model.imagine)
    return found


def world_loss(model: WaypointModel, params: PyTree, imagined: Float[Array, "b k d"], batch: Any) -> Mean:
    """Squared error of the imagined vectors against those that the encoder makes later, over cameras seen then.

    LAW (arXiv:2406.08481) takes the same error of its features as they are. Here each is standardised, as hidden
    tokens are, and carries no gradient: features that shrink gain nothing.
    """
    encoder = SceneEncoder(model.config)
    features: Any = encoder.apply({"params": params["encoder"]}, batch["later_images"], batch["later_valid"])
    target = objectives.standardised(jax.lax.stop_gradient(features.cameras))
    return mean_of(jnp.square(imagined - target).mean(-1), batch["later_valid"])


def losses_of(predicted: Modes, waypoints: Float[Array, "b t 2"], valid: Bool[Array, "b t"]) -> dict[str, Mean]:
    """Means that the loss consists of, as `loss_weights` weighs them."""
    if predicted.logits.shape[1] == 1:
        return {"loss": waypoint_loss(predicted.waypoints[:, 0], waypoints, valid)}
    return modes.losses(predicted, waypoints, valid)


def decision_loss(model: WaypointModel, params: PyTree, decisions: Any, clip: float) -> dict[str, Mean]:
    """The clipped ratio of the probabilities of modes that were drawn while driving, and means of it.

    Args:
      model: Of several modes.
      params: Its weights; nothing is dropped, as nothing was when the mode was drawn.
      decisions: From driving.online.decisions.
      clip: How far from 1 a ratio still counts.

    Returns:
      "ppo_loss" and the others of chunkwise/train/clipped_ratio.py, and "entropy" of the modes, nats.
    """
    log_probability = jax.nn.log_softmax(predict_modes(model, params, decisions).logits)
    mine = jnp.take_along_axis(log_probability, decisions["mode"][:, None], axis=1)[..., None]
    known = jnp.ones((mine.shape[0], 1), bool)
    _, means = clipped_loss(mine, decisions["log_prob"][:, None, None], decisions["advantage"], known, clip)
    return means | {"entropy": mean_of(-(jnp.exp(log_probability) * log_probability).sum(-1))}


def loss_weights(settings: WaypointConfig) -> dict[str, float]:
    """Weights of the means of `losses_of`."""
    return {"loss": 1.0} if settings.modes == 1 else {"trajectory": 1.0, "mode": settings.mode_weight}


def training_weights(settings: WaypointConfig) -> dict[str, float]:
    """Weights of the means that an update minimises: those of `loss_weights`, and that of the world model."""
    weights = loss_weights(settings)
    return weights if settings.world is None else _as_parts(weights) | {"world": settings.world.weight}


def _as_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by mean, where the only one of the waypoints, "loss", is a part of the loss, named as of several modes."""
    return {"trajectory" if name == "loss" else name: value for name, value in values.items()}


def _with_parts(state: TrainState, parts: dict[str, Any]) -> TrainState:
    """A fresh state with parts of its weights, and of their average, replaced, by the first name of each."""

    def put(new: Any, old: Any) -> Any:
        # From the host: another process has no part in an array on this one's device. Copied: on the CPU device_put
        # shares memory, and the state is going to be donated.
        return jnp.copy(jax.device_put(np.asarray(new), old.sharding))

    fresh = {name: jax.tree.map(put, part, state.params[name]) for name, part in parts.items()}
    ema = {**state.ema, **jax.tree.map(jnp.copy, fresh)} if state.ema else {}
    return state.starting_from({**state.params, **fresh}, ema=ema)


def read_start(run: Path, config: DrivingConfig) -> dict[str, PyTree]:
    """Weights with which a run begins, by their first name: those of another run's newest whole checkpoint.

    The encoder of a pretraining, or all of a run that learnt waypoints with the same model.

    Raises:
      ConfigError: Its model is another, on other cameras or of another image size.
      DataError: It has no whole checkpoint.
    """
    theirs = read_config(run, DrivingConfig)
    if theirs.waypoints is None and config.waypoints is not None and not config.waypoints.use_cameras:
        raise ConfigError(
            f"waypoints.weights {run}: a pretraining, whose encoder has no place in a model without cameras; leave it "
            "out, or set --waypoints.use-cameras"
        )
    if theirs.waypoints is None:
        return {"encoder": read_encoder(run, config)}
    assert config.waypoints is not None
    # How it is trained, not what it is; a world model is part of training alone.
    asked = {"weights": None, "freeze": False, "mode_weight": 1.0, "world": None}
    mine, other = (dataclasses.replace(settings, **asked) for settings in (config.waypoints, theirs.waypoints))
    _require_same(run, config, theirs, {"waypoints": (mine, other)})
    _, params = read_weights(run, theirs, lambda: init_params(theirs, rngs.key(0, "init")))
    worlds = [settings.world for settings in (config.waypoints, theirs.waypoints)]
    same = all(worlds) and len({(world.width, len(theirs.data.cameras)) for world in worlds if world}) == 1
    return params if same else {name: part for name, part in params.items() if name != "world"}


def tell_of_other_drives(run: Path, manifest: str) -> None:
    """Says where a start learnt from other drives than are for training here: what is held out may be among them."""
    learnt = None
    for save in reversed(list_saves(run)):
        with contextlib.suppress(DataError):  # it begins from a whole one, which names the same drives
            learnt = read_fingerprint(run, save.step).get("dataset.manifest")
    if learnt not in (None, manifest):
        say(
            f"data: waypoints.weights {run} learnt from other drives than are for training here; a drive that is held "
            "out here may be one of them, and val/* and evaluation.json would measure what the start has seen of it"
        )


def _require_same(run: Path, config: DrivingConfig, theirs: DrivingConfig, more: dict[str, tuple[Any, Any]]) -> None:
    """Raises ConfigError where another run's model is another than this one's."""
    same = {
        "model": (config.model, theirs.model),
        "data.cameras": (config.data.cameras, theirs.data.cameras),
        "data.image_size": (config.data.image_size, theirs.data.image_size),
        **more,
    }
    if more:
        assert config.waypoints is not None
        names = ("waypoint_steps", "waypoint_dt_s", *(("offsets_s",) if config.waypoints.use_moments else ()))
        same |= {f"data.{name}": (getattr(config.data, name), getattr(theirs.data, name)) for name in names}
    for name, (mine, other) in same.items():
        if mine != other:
            raise ConfigError(f"waypoints.weights {run}: its {name} is {other}, this run's {mine}; make them equal")


def read_encoder(run: Path, config: DrivingConfig) -> PyTree:
    """Weights of the encoder of a pretraining's newest whole checkpoint.

    Raises:
      ConfigError: If the folder is no pretraining of the same model on the same cameras and image size.
      DataError: If it has no whole checkpoint.
    """
    theirs = read_config(run, DrivingConfig)
    if theirs.objective is None:
        raise ConfigError(f"waypoints.weights {run}: expected a pretraining, found a run that learnt waypoints")
    _require_same(run, config, theirs, {})
    _, params = read_weights(run, theirs, lambda: pretrain.init_params(theirs, rngs.key(0, "init")))
    return params["encoder"]
