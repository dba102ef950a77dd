"""Encoders and augmentation against numpy; which loss reaches which encoder; best of N encodes once."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.train import rngs
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from qchunk.config import AgentConfig, AugmentConfig, DataConfig, EncoderConfig, QChunkConfig
from qchunk.data import Dims
from qchunk.models import vision
from tests.qchunk.agents.test_qc import KEY, A, H, S, batch_of, quick

CAMERAS = ("top", "wrist")
SIZE = (12, 16)
TINY = EncoderConfig(widths=(4,), blocks=1, feature_size=5, augment=AugmentConfig(shift=2, contrast=0.2))


def images_of(b: int, seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (b, len(CAMERAS), *size, 3), np.uint8)


def agent_of(encoder: EncoderConfig = TINY, seed: int = 0, **settings: Any) -> QCAgent:
    base = AgentConfig(horizon=H, discount=0.9, hidden_sizes=(8,), flow_steps=2, encoder=encoder)
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=6),
        data=DataConfig(path="none", cameras=CAMERAS, image_size=SIZE),
        agent=dataclasses.replace(base, **settings),
    )
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))
    agent = make_agent(config, Dims(observation=S, action=A, cameras=CAMERAS, image_size=SIZE))
    assert isinstance(agent, QCAgent)
    return agent


def seen_batch() -> dict[str, Any]:
    """The rows of the agent's tests, with images."""
    batch = batch_of()
    for i, moment in enumerate(("observations", "next_observations")):
        batch[moment] |= {"images": jnp.asarray(images_of(len(batch["actions"]), seed=i))}
    return batch


def numpy_conv(x: np.ndarray, weights: Any) -> np.ndarray:
    """3 x 3, stride 1, zeros around the image."""
    kernel, bias = np.asarray(weights["kernel"], np.float64), np.asarray(weights["bias"], np.float64)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, w = x.shape[1:3]
    return bias + sum(
        np.einsum("bhwi,io->bhwo", padded[:, i : i + h, j : j + w], kernel[i, j]) for i in range(3) for j in range(3)
    )


def numpy_pool(x: np.ndarray) -> np.ndarray:
    """Maximum over 3 x 3 at stride 2; even sizes, whose padding is one row below and one column to the right."""
    b, h, w, c = x.shape
    padded = np.full((b, h + 1, w + 1, c), -np.inf)
    padded[:, :h, :w] = x
    return np.stack(
        [
            np.stack([padded[:, i : i + 3, j : j + 3].max(axis=(1, 2)) for j in range(0, w, 2)], axis=1)
            for i in range(0, h, 2)
        ],
        axis=1,
    )


def numpy_encoder(weights: Any, images: np.ndarray) -> np.ndarray:
    """One stage with one block, flattened."""
    trunk, relu = weights["trunk"], lambda x: np.maximum(x, 0)
    x = numpy_pool(numpy_conv(images / 127.5 - 1, trunk["stage_0"]))
    y = numpy_conv(relu(x), trunk["stage_0_block_0_0"])
    x = relu(x + numpy_conv(relu(y), trunk["stage_0_block_0_1"])).reshape(len(images), -1)
    x = x @ np.asarray(weights["feature"]["kernel"], np.float64) + np.asarray(weights["feature"]["bias"])
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return np.tanh(x * np.asarray(weights["feature_norm"]["scale"]) + np.asarray(weights["feature_norm"]["bias"]))


@pytest.mark.parametrize("shared", [False, True])
def test_impala_is_numpys_camera_by_camera(shared):
    encoder = vision.ImageEncoder(dataclasses.replace(TINY, share_cameras=shared), CAMERAS)
    images = images_of(3)
    weights = quick(encoder.init)(KEY, images)["params"]
    weights = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(KEY, x.shape), weights)
    names = ["cameras", "cameras"] if shared else ["camera_top", "camera_wrist"]
    assert sorted(weights) == sorted(set(names))
    expected = [numpy_encoder(weights[name], images[:, i]) for i, name in enumerate(names)]
    found: Any = quick(encoder.apply)({"params": weights}, images)
    np.testing.assert_allclose(found, np.concatenate(expected, axis=-1), atol=2e-5)
    assert found.shape[-1] == encoder.size == 10


@pytest.mark.parametrize(("blocks", "convolutions"), [(1, 9), (2, 17)])
def test_resnet_has_the_published_layers(blocks, convolutions):
    """ResNet-10 and -18: so many convolutions and a dense layer, and three more on the shortcuts."""
    config = EncoderConfig(kind="resnet", widths=(64, 128, 256, 512), blocks=blocks, pooling="mean")
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    weights: Any = jax.eval_shape(vision.ResNetTrunk(config).init, KEY, images)["params"]
    kernels = {name: leaf["kernel"].shape for name, leaf in weights.items() if "kernel" in leaf}
    assert len(kernels) == convolutions + 3
    assert sum("skip" in name for name in kernels) == 3
    # 11.2 million weights of ResNet-18 without its classifier (He et al. 2015), and its map is 1/32 of the image.
    if blocks == 2:
        assert abs(sum(x.size for x in jax.tree.leaves(weights)) - 11.18e6) < 0.02e6
    shape = jax.eval_shape(vision.ResNetTrunk(config).apply, {"params": weights}, images)
    assert shape.shape == (1, 2, 2, 512)


def test_group_norm_leaves_groups_of_unit_variance():
    config = EncoderConfig(kind="resnet", widths=(32,), blocks=1)
    trunk = vision.ResNetTrunk(config)
    images = jnp.asarray(images_of(2)[:, 0], jnp.float32)
    weights = trunk.init(KEY, images)["params"]
    captured: Any = trunk.apply({"params": weights}, images, capture_intermediates=True)[1]
    normed = np.asarray(captured["intermediates"]["stem_norm"]["__call__"][0])
    grouped = normed.reshape(2, *normed.shape[1:3], 2, 16)
    np.testing.assert_allclose(grouped.mean(axis=(1, 2, 4)), 0, atol=1e-5)
    np.testing.assert_allclose(grouped.var(axis=(1, 2, 4)), 1, atol=1e-3)


def test_spatial_softmax_finds_the_position():
    x = np.zeros((1, 5, 9, 2), np.float32)
    x[0, 1, 8, 0] = 100  # second row of five, last column
    found = vision.spatial_softmax(jnp.asarray(x))
    np.testing.assert_allclose(found, [[1, 0, -0.5, 0]], atol=1e-5)  # the flat channel is everywhere: the middle


def test_bfloat16_is_close():
    images = jnp.asarray(images_of(4))
    encoder = vision.ImageEncoder(TINY, CAMERAS)
    params = quick(encoder.init)(KEY, images)
    half = vision.ImageEncoder(dataclasses.replace(TINY, compute_dtype="bfloat16"), CAMERAS)
    exact, rough = (quick(module.apply)(params, images) for module in (encoder, half))
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, atol=0.05)
    assert not np.array_equal(rough, exact)


@pytest.mark.parametrize("offset", [(0, 0), (2, -1), (-3, 3)])
def test_shift_is_pad_and_crop(offset):
    image = images_of(1)[0, 0]
    padded = np.pad(image, ((3, 3), (3, 3), (0, 0)), mode="edge")
    y, x = 3 + offset[0], 3 + offset[1]
    expected = padded[y : y + SIZE[0], x : x + SIZE[1]]
    np.testing.assert_array_equal(vision.shift(jnp.asarray(image), jnp.array(offset)), expected)


def test_every_shift_is_drawn_equally_often():
    config = AugmentConfig(shift=1)
    image = np.arange(25, dtype=np.uint8).reshape(5, 5)
    images = np.broadcast_to(image[None, None, ..., None], (900, 1, 5, 5, 3))
    shifted = np.asarray(vision.augment(jnp.asarray(images), KEY, config))
    centres, counts = np.unique(shifted[:, 0, 2, 2, 0], return_counts=True)
    np.testing.assert_array_equal(centres, [6, 7, 8, 11, 12, 13, 16, 17, 18])
    assert np.abs(counts - 100).max() < 40  # standard deviation 9.4


@pytest.mark.parametrize("same", [False, True])
def test_one_draw_an_image_or_a_row(same):
    config = AugmentConfig(shift=2, brightness=0.5, same_for_cameras=same)
    one = images_of(8)[:, :1]
    images = jnp.asarray(np.concatenate([one, one], axis=1))
    found = np.asarray(vision.augment(images, KEY, config))
    equal = [np.array_equal(row[0], row[1]) for row in found]
    assert all(equal) if same else not any(equal)
    np.testing.assert_array_equal(found, vision.augment(images, KEY, config))
    assert not np.array_equal(found, vision.augment(images, jax.random.key(8), config))


def test_recolour_is_numpys():
    image = images_of(1)[0, 0]
    grey = np.array([0.299, 0.587, 0.114])
    x = 1.2 * image.astype(np.float64)
    x = (x @ grey).mean() + 0.7 * (x - (x @ grey).mean())
    x = (x @ grey)[..., None] + 1.4 * (x - (x @ grey)[..., None])
    found = np.asarray(vision.recolour(jnp.asarray(image), jnp.array([1.2, 0.7, 1.4])))
    np.testing.assert_allclose(found, np.clip(x, 0, 255), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(vision.recolour(jnp.asarray(image), jnp.ones(3)), image, rtol=1e-5, atol=1e-4)


def reached(gradient: Any) -> set[str]:
    """Parts of the weights that a gradient is not zero in: a network's own layers by its name, encoders beside."""
    return {
        network if part == "mlp" else f"{network}.{part}"
        for network, parts in gradient.items()
        for part, leaves in parts.items()
        if any(np.any(x) for x in jax.tree.leaves(leaves))
    }


@pytest.mark.parametrize("policy", ["distill", pytest.param("best_of_n", marks=pytest.mark.long)])
@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.long), True])
def test_gradients_reach_the_encoders_that_the_config_says(policy, shared):
    agent = agent_of(dataclasses.replace(TINY, share_actor_critic=shared), policy=policy, num_samples=3)
    batch = seen_batch()
    state = quick(agent.init)(KEY)
    owners = {network for network, parts in state.params.items() if "encoder" in parts}
    networks = {"critic", "flow", "onestep"} if policy == "distill" else {"critic", "flow"}
    assert owners == ({"critic"} if shared else networks)
    assert "encoder" in state.target["critic"]

    @quick
    def gradients(params: Any, target: Any) -> list[Any]:
        losses: list[Any] = [
            lambda p: agent.critic_loss(p, target, batch, KEY),
            lambda p: agent.flow_loss(p, batch, KEY),
        ]
        if policy == "distill":
            losses.append(lambda p: agent.distill_loss(p, batch, KEY))
        found = [jax.grad(lambda p, loss=loss: loss(p)[0])(params) for loss in losses]
        return [*found, jax.grad(lambda t: agent.critic_loss(params, t, batch, KEY)[0])(target)]

    found = gradients(state.params, state.target)
    assert reached(found[0]) == {"critic", "critic.encoder"}
    assert reached(found[1]) == ({"flow"} if shared else {"flow", "flow.encoder"})
    if policy == "distill":
        assert reached(found[2]) == ({"onestep"} if shared else {"onestep", "onestep.encoder"})
    assert reached(found[-1]) == set()


def test_the_target_is_judged_through_the_targets_encoder():
    agent, batch = agent_of(), seen_batch()
    state = quick(agent.init)(KEY)
    critic_loss = quick(agent.critic_loss)
    blind = jax.tree.map(jnp.zeros_like, state.target["critic"]["encoder"])
    losses = [
        float(critic_loss(state.params, {"critic": {**state.target["critic"], "encoder": encoder}}, batch, KEY)[0])
        for encoder in (state.target["critic"]["encoder"], blind)
    ]
    assert abs(losses[0] - losses[1]) > 1e-4


def convolutions(agent: QCAgent, batch: Any) -> int:
    """Convolutions of a chunk's choice, as compiled: XLA has merged what is computed twice."""
    params = jax.eval_shape(agent.init, KEY).params
    compiled: Any = jax.jit(agent.act).lower(params, batch["observations"], KEY).compile()
    return compiled.as_text().count(" convolution(")


def test_best_of_n_encodes_an_observation_once_a_network(monkeypatch: pytest.MonkeyPatch):
    # On a CPU a convolution is compiled as a product.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, cpu, default: default(*operands))
    batch = seen_batch()
    counts = [convolutions(agent_of(policy="best_of_n", num_samples=n), batch) for n in (2, 8)]
    assert counts[0] == counts[1] == 2 * len(CAMERAS) * 3  # two networks, three convolutions a camera
    shared = agent_of(dataclasses.replace(TINY, share_actor_critic=True), policy="best_of_n", num_samples=8)
    assert convolutions(shared, batch) == len(CAMERAS) * 3


def test_features_come_before_the_array():
    agent, batch = agent_of(), seen_batch()
    state = quick(agent.init)(KEY)
    seen = agent.encode(state.params, "flow", batch["observations"])
    np.testing.assert_array_equal(seen[:, 10:], batch["observations"]["qpos"])
    expected = [
        numpy_encoder(
            state.params["flow"]["encoder"][f"camera_{name}"], np.asarray(batch["observations"]["images"])[:, i]
        )
        for i, name in enumerate(CAMERAS)
    ]
    np.testing.assert_allclose(seen[:, :10], np.concatenate(expected, axis=1), atol=2e-5)


@pytest.mark.long
def test_a_step_augments_by_seed_and_step_and_acting_does_not():
    batch = seen_batch()
    same = batch | {"next_observations": batch["observations"]}

    def augmented(seed: int, step: int) -> list[np.ndarray]:
        found = agent_of(seed=seed)._augmented(same, jnp.int32(step))
        return [np.asarray(found[moment]["images"]) for moment in ("observations", "next_observations")]

    now, after = augmented(0, 5)
    assert not np.array_equal(now, after)  # the same image, drawn apart
    np.testing.assert_array_equal(now, augmented(0, 5)[0])
    assert not np.array_equal(now, augmented(0, 6)[0])
    assert not np.array_equal(now, augmented(1, 5)[0])
    # A step is the step of an agent that does not augment, on images augmented before.
    agent, plain = agent_of(), agent_of(dataclasses.replace(TINY, augment=AugmentConfig(shift=0)))
    state = quick(agent.init)(KEY)
    key = rngs.key(0, "agent", 0)
    changed = agent._augmented(batch, state.step)
    loss, metrics = quick(plain.loss)(state.params, state.target, changed, key)
    _, found = quick(agent.step)(state, batch)
    for name, mean in metrics.items():
        np.testing.assert_allclose(found[name].value(), mean.value(), rtol=1e-4, atol=1e-6)
    assert np.isfinite(float(loss))


def test_an_encoder_without_images_is_refused():
    with pytest.raises(ValueError, match=r"agent\.encoder is set, but data\.cameras is empty"):
        QChunkConfig(
            train=TrainConfig(steps=1, batch_size=1), data=DataConfig(path="x"), agent=AgentConfig(encoder=TINY)
        )
    with pytest.raises(ValueError, match="the batch has no images"):
        jax.eval_shape(agent_of().step, jax.eval_shape(agent_of().init, KEY), batch_of())
    with pytest.raises(ValueError, match="group norm needs multiples of 16"):
        EncoderConfig(kind="resnet", widths=(24,))
