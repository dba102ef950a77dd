"""The multi-camera encoder: masks hide everything, cameras are not confused, the padded future weighs nothing."""

import dataclasses
import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import OptimConfig, RematPolicy
from chunkwise.train import rngs
from chunkwise.train.optimizer import make_optimiser
from driving.config import ConvConfig, ModelConfig, VitConfig, WaypointConfig
from driving.model.encoders import SceneEncoder, grid
from driving.model.heads import WaypointModel, constant_turn

CONV = ModelConfig(conv=ConvConfig(channels=(8, 8), blocks=(1, 1)), camera_width=8, scene_width=16)
VIT = ModelConfig(
    vit=VitConfig(patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32), camera_width=8, scene_width=16
)


def make_images(dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 3, 16, 24, 3)).astype(dtype)


# Little is computed and much compiled.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def run(module: SceneEncoder, *arguments: Any) -> Any:
    return quick(module.apply)(*arguments)


def encoder(config: ModelConfig):
    module = SceneEncoder(config)
    valid = jnp.ones((2, 3), bool)
    return module, quick(module.init)(jax.random.key(0), jnp.asarray(make_images()), valid)


@pytest.mark.parametrize("config", [CONV, VIT], ids=["conv", "vit"])
def test_nothing_of_a_masked_image_reaches_any_output(config: ModelConfig):
    module, params = encoder(config)
    valid = jnp.array([[True, False, True], [True, True, True]])
    images = make_images(np.float32)
    changed = images.copy()
    changed[0, 1] = np.nan
    changed[0, 1, 3, 4, 1] = 7
    before, after = (run(module, params, jnp.asarray(x), valid) for x in (images, changed))
    for a, b in zip(before, after, strict=True):
        assert np.isfinite(np.asarray(b)).all()
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("config", [CONV, VIT], ids=["conv", "vit"])
def test_muon_takes_the_kernels_alone(config: ModelConfig):
    """It keeps one moment of a matrix; AdamW, by which learned embeddings go, two."""
    given = jnp.asarray(make_images()), jnp.ones((2, 3), bool)
    params = jax.eval_shape(SceneEncoder(config).init, jax.random.key(0), *given)
    state = jax.eval_shape(make_optimiser(OptimConfig(method="muon"), 1).init, params)
    kept = [[key.key for key in path if isinstance(key, jax.tree_util.DictKey)] for path, _ in _leaves(state)]
    weights = [[key.key for key in path] for path, _ in _leaves(params)]
    assert {path[-1] for path in weights} >= {"kernel", "camera", "missing", "mask_token"}
    assert any(path[-1] == "position" for path in weights) == (config is VIT)
    for path in weights:
        assert sum(one[-len(path) :] == path for one in kept) == (1 if path[-1] == "kernel" else 2), path


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


@pytest.mark.parametrize("config", [CONV, VIT], ids=["conv", "vit"])
def test_a_nan_in_a_masked_image_leaves_the_gradient_finite(config: ModelConfig):
    module, params = encoder(config)
    images = make_images(np.float32)
    images[0, 1] = np.nan
    valid = jnp.array([[True, False, True], [True, True, True]])
    apply: Any = module.apply
    gradient = quick(jax.grad(lambda p: apply(p, jnp.asarray(images), valid).scene.sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def vit(**changes: Any) -> ModelConfig:
    assert VIT.vit is not None
    return dataclasses.replace(VIT, vit=dataclasses.replace(VIT.vit, **changes))


@pytest.mark.long
@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=pytest.mark.long if i else ()) for i, name in enumerate(get_args(RematPolicy))]
)
def test_blocks_computed_again_give_the_same_gradient(policy: RematPolicy):
    """Same weights by the same names."""
    found = []
    for remat in (False, True):
        module, params = encoder(vit(remat=remat, remat_policy=policy if remat else "nothing"))
        images, valid = jnp.asarray(make_images()), jnp.ones((2, 3), bool)
        apply: Any = module.apply
        gradient = jax.grad(lambda p, apply=apply, x=images, v=valid: jnp.square(apply(p, x, v).scene).sum())
        text = str(jax.make_jaxpr(gradient)(params))
        assert ("checkpoint" in text or "remat" in text) == remat  # its name differs between versions of jax
        found.append((params, quick(gradient)(params)))
    assert jax.tree.structure(found[0]) == jax.tree.structure(found[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found)


def test_bfloat16_is_near_float32_and_its_weights_are_float32():
    (module, params), (half, half_params) = encoder(VIT), encoder(vit(dtype="bfloat16"))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), half_params)
    images, valid = jnp.asarray(make_images()), jnp.ones((2, 3), bool)
    text = str(jax.make_jaxpr(half.apply)(params, images, valid))
    assert "bf16" in text
    assert "bf16" not in str(jax.make_jaxpr(module.apply)(params, images, valid))
    one, other = (np.asarray(run(m, params, images, valid).scene) for m in (module, half))
    assert other.dtype == np.float32
    assert 0 < np.abs(one - other).max() < 5e-2 * np.abs(one).max()


@pytest.mark.parametrize("config", [CONV, VIT], ids=["conv", "vit"])
def test_the_scene_knows_which_camera_saw_what(config: ModelConfig):
    module, params = encoder(config)
    valid = jnp.ones((2, 3), bool)
    images = make_images()
    scene = run(module, params, jnp.asarray(images), valid).scene
    swapped = run(module, params, jnp.asarray(images[:, [1, 0, 2]]), valid).scene
    assert np.abs(np.asarray(scene - swapped)).max() > 1e-3


def test_a_missing_camera_is_not_a_black_one():
    module, params = encoder(CONV)
    black = np.zeros((2, 3, 16, 24, 3), np.uint8)
    there, gone = (run(module, params, jnp.asarray(black), jnp.full((2, 3), seen)).scene for seen in (True, False))
    assert np.abs(np.asarray(there - gone)).max() > 1e-3


@pytest.mark.parametrize("config", [CONV, VIT], ids=["conv", "vit"])
def test_hidden_tokens_hide_their_pixels(config: ModelConfig):
    module, params = encoder(config)
    gh, gw = grid(config, 16, 24)
    assert (gh, gw) == (2, 3)
    hidden = jnp.zeros((2, 3, gh, gw), bool).at[0, 0, 0, 1].set(True)
    images = make_images()
    changed = images.copy()
    changed[0, 0, :8, 8:16] = 255 - changed[0, 0, :8, 8:16]
    valid = jnp.ones((2, 3), bool)
    before, after = (run(module, params, jnp.asarray(x), valid, hidden).tokens for x in (images, changed))
    assert np.array_equal(before, after)
    shown = run(module, params, jnp.asarray(images), valid).tokens
    assert not np.array_equal(before, shown)


def test_a_convolution_is_one():
    from driving.model.encoders import Convolution

    x = np.random.default_rng(1).normal(size=(2, 5, 6, 3)).astype(np.float32)
    kernel = np.random.default_rng(2).normal(size=(3, 3, 3, 4)).astype(np.float32)
    bias = np.arange(4, dtype=np.float32)
    weights = {"params": {"kernel": jnp.asarray(kernel.reshape(27, 4)), "bias": jnp.asarray(bias)}}
    module: Any = Convolution(4)
    assert jax.tree.map(jnp.shape, module.init(jax.random.key(0), jnp.asarray(x))) == jax.tree.map(jnp.shape, weights)
    numbers = ("NHWC", "HWIO", "NHWC")
    theirs = jax.lax.conv_general_dilated(
        jnp.asarray(x), jnp.asarray(kernel), (1, 1), "SAME", dimension_numbers=numbers
    )
    np.testing.assert_allclose(module.apply(weights, jnp.asarray(x)), theirs + bias[None, None, None], atol=1e-5)


def test_images_that_are_no_whole_number_of_tokens_are_refused():
    with pytest.raises(ValueError, match="expected multiples of 8"):
        grid(CONV, 20, 24)


def test_a_constant_turn_is_a_circle():
    motion = jnp.array([[5.0, 0.5], [4.0, 0.0], [6.0, -1e-4], [5.0, -0.5]])
    path = np.asarray(constant_turn(motion, 20, 0.1))
    t = np.arange(1, 21) * 0.1
    np.testing.assert_allclose(path[0], np.stack([10 * np.sin(0.5 * t), 10 * (1 - np.cos(0.5 * t))], -1), atol=1e-5)
    np.testing.assert_allclose(path[1], np.stack([4 * t, 0 * t], -1), atol=1e-6)
    np.testing.assert_allclose(path[2][:, 0], 6 * t, atol=1e-5)
    np.testing.assert_allclose(path[3], path[0] * [1, -1], atol=1e-6)  # to the right


def test_an_untrained_waypoint_model_is_the_blind_formula():
    model = WaypointModel(CONV, WaypointConfig(hidden_sizes=(8,)), 20, 0.1)
    motion = jnp.array([[5.0, 0.5], [4.0, -0.2]])
    past, command, known = jnp.ones((2, 6)), jnp.array([1, 0], jnp.int32), jnp.ones((2, 8), bool)
    arguments = (jnp.asarray(make_images()), jnp.ones((2, 3), bool), motion, past, command, known)
    params = model.init(rngs.key(0, "init"), *arguments)
    predicted: Any = model.apply(params, *arguments)
    np.testing.assert_array_equal(predicted.most_probable(), constant_turn(motion, 20, 0.1))


@pytest.mark.parametrize(
    ("use", "width", "seen"),
    [
        ({}, 4 + 2 + 2 + 6 + 6, range(8)),
        ({"use_past": False}, 4 + 2 + 2, range(2)),
        ({"use_ego": False}, 4 + 6 + 6, range(2, 8)),
        ({"use_known": False}, 4 + 2 + 6, ()),  # as versions without it, whose weights still fit
    ],
)
def test_a_model_sees_what_is_known_of_the_motion_that_it_is_given(use: dict[str, Any], width: int, seen: range):
    model = WaypointModel(CONV, WaypointConfig(hidden_sizes=(8,), use_cameras=False, **use), 20, 0.1)
    images, motion = (jnp.zeros((1, 3, 4, 4, 3), jnp.uint8), jnp.ones((1, 3), bool)), jnp.zeros((1, 2))
    past, command, known = jnp.zeros((1, 6)), jnp.zeros(1, jnp.int32), np.ones((1, 8), bool)
    variables: Any = model.init(rngs.key(0, "init"), *images, motion, past, command, jnp.asarray(known))
    params = variables["params"]
    assert jax.tree.leaves(params["trunk"])[1].shape[0] == width
    params["out"]["kernel"] = jnp.ones_like(params["out"]["kernel"])

    def waypoints(known: np.ndarray) -> np.ndarray:
        predicted: Any = model.apply({"params": params}, *images, motion, past, command, jnp.asarray(known))
        return np.asarray(predicted.waypoints)

    changed = [i for i in range(8) if not np.array_equal(waypoints(known), waypoints(known & (np.arange(8) != i)))]
    assert changed == list(seen)
