"""Pretraining of a multi-camera encoder, as the train loop sees it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from chunkwise.arrays import NumpyTree, PyTree
from chunkwise.data.stream import batches_of_run
from chunkwise.state import TrainState
from chunkwise.train import gradients, rngs
from chunkwise.train.gradients import weighted
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.optimizer import make_optimiser
from chunkwise.train.sharding import all_gather_params
from driving.config import DrivingConfig, ObjectiveConfig
from driving.data.augment import CHANGES
from driving.data.batch import Batch
from driving.data.batches import DrivingData
from driving.model.encoders import SceneEncoder, grid
from driving.model.heads import Pretrainer, PrototypeHead
from driving.model.images import changed, changes_pixels
from driving.tasks import objectives


class PretrainTask:
    """Trains a Pretrainer."""

    def __init__(self, config: DrivingConfig, data: DrivingData) -> None:
        assert config.objective is not None
        self.config, self.data = config, data
        self.settings: ObjectiveConfig = config.objective
        self.model = Pretrainer(config.model, self.settings)
        self._optimiser = make_optimiser(config.optim, config.train.steps)

    @property
    def _follows(self) -> bool:
        """Whether an objective compares with a slow copy of the weights."""
        return self.settings.masked + self.settings.distilled > 0

    def init(self, key: Key[Array, ""]) -> TrainState:
        """Fresh weights; the target is a copy of what is followed slowly, where anything is."""
        params = init_params(self.config, key)
        target = self.followed(params) if self._follows else None
        ema = None if self.config.train.ema_decay is None else params
        return TrainState.create(params, self._optimiser, target, ema=ema)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update of the weights, and of the slowly moving encoder."""
        key = rngs.key(self.config.run.seed, "hidden tokens", state.step)

        def loss(params: PyTree, batch: Any, key: Key[Array, ""]) -> tuple[Array, dict[str, Mean]]:
            batch = _changed(batch, self.config)
            whole, target = all_gather_params((params, state.target))
            return self.loss(whole, target, batch, key)

        weights = objectives.weights(self.settings)
        gradient, metrics = gradients.gradient(
            loss, weights, state.params, batch, key, self.config.train.grad_accum_steps
        )
        metrics["loss"] = mean_of(weighted(metrics, weights))
        metrics["gradient_norm"] = mean_of(optax.tree.norm(gradient))
        new = state.apply_gradients(gradient, self._optimiser)
        if self._follows:
            decay, followed = self.settings.target_decay, self.followed(new.params)
            target = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.target, followed)
            new = new.replace(target=target)
        return new, metrics

    def followed(self, params: PyTree) -> PyTree:
        """What of the weights the target is a slow copy of: the encoder, and the head of self-distillation if there is
        one; the encoder alone is not put into a dict, as saves of versions without the other have it."""
        if not self.settings.distilled:
            return params["encoder"]
        return {name: params[name] for name in ("encoder", "distilled_head")}

    def loss(
        self, params: PyTree, target: PyTree, batch: Any, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Mean]]:
        """Returns the loss of a batch, and means, each objective among them.

        Args:
          params: Of encoder and heads, whole.
          target: As `followed` gives it; not read where nothing is masked or distilled.
          batch: From `inputs`.
          key: Of the tokens that are hidden, and of crops.
        """
        images, valid = batch["images"], batch["image_valid"]
        hidden = crops = tokens = None
        teacher: Any = None
        b, n, k, h, w, _ = images.shape
        if self.settings.masked:
            gh, gw = grid(self.config.model, h, w)
            hidden = objectives.draw_hidden(key, (b, n, k, gh, gw), self.settings.hidden_share)
        if self.settings.distilled:
            flat = images.astype(jnp.float32).reshape(-1, h, w, 3)
            crops = objectives.draw_crops(jax.random.fold_in(key, 1), flat, self.settings.distilled_crop)
            crops = crops.reshape(images.shape)
        if self._follows:
            encoder = target["encoder"] if self.settings.distilled else target
            whole = (images.reshape(b * n, k, h, w, 3), valid.reshape(b * n, k))
            features: Any = SceneEncoder(self.config.model).apply({"params": encoder}, *whole)
            tokens = features.tokens
            if self.settings.distilled:
                head = PrototypeHead(self.settings)
                teacher = head.apply({"params": target["distilled_head"]}, features.cameras)
        out: Any = self.model.apply({"params": params}, images, valid, hidden, crops)
        return objectives.total(out, tokens, hidden, batch, self.settings, teacher)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """What the objectives see of the batches, from update `start_step` on."""
        changes = changes_pixels(self.config.data.augment)
        data = dataclasses.replace(self.data, on_device=True) if changes else self.data
        batches = batches_of_run(data, self.config, start_step=start_step, shard=shard, num_shards=num_shards)
        return (inputs(batch, self.data) for batch in batches)

    def data_fingerprint(self) -> dict[str, Any]:
        """Of the training split, with how the motion to be predicted, and what is braking, were derived."""
        moves = self.data.headed("poses") if self.settings.ego_motion else {}
        brakes = self.data.headed("waypoints") if self.config.data.braking_repeats > 1 else {}
        return self.data.fingerprint() | moves | brakes


def init_params(config: DrivingConfig, key: Key[Array, ""]) -> PyTree:
    """Fresh weights of the encoder and of the heads that a config asks for."""
    assert config.objective is not None
    (height, width), k, n = config.data.image_size, len(config.data.cameras), len(config.data.offsets_s)
    images = jnp.zeros((1, n, k, height, width, 3), jnp.uint8)
    hidden = jnp.zeros((1, n, k, *grid(config.model, height, width)), bool) if config.objective.masked else None
    crops = images if config.objective.distilled else None
    model = Pretrainer(config.model, config.objective)
    return model.init(key, images, jnp.ones((1, n, k), bool), hidden, crops)["params"]


def _changed(batch: Any, config: DrivingConfig) -> Any:
    """A batch whose images of all moments are changed as it says."""
    b, n, k, *rest = batch["images"].shape
    flat = batch | {"images": batch["images"].reshape(b, n * k, *rest)}
    if "colour" in batch:
        flat |= {"colour": batch["colour"].reshape(b, n * k, 3)}
    found = changed(flat, config.data.augment, config.data.cameras)
    return found | {"images": found["images"].reshape(b, n, k, *rest)}


def inputs(batch: Batch, data: DrivingData) -> dict[str, np.ndarray]:
    """What the objectives see of a batch.

    Times are counted from the beginning of their drive: as float32 those of a clock that began in 1970 lie 128 s apart.
    """
    began = data.index.t[data.index.starts[batch["episode"]]]
    changes: dict[str, Any] = {name: value for name, value in batch.items() if name in CHANGES}
    return {
        "images": batch["images"],
        "image_valid": batch["image_valid"],
        "t": np.where(batch["time_valid"], batch["t"] - began[:, None], 0.0).astype(np.float32),
        "episode": batch["episode"],
        "relative_pose": batch["relative_pose"],
        "relative_pose_valid": batch["relative_pose_valid"],
        **changes,
    }
