import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import RematPolicy
from openpi_ript.config.model import (
    GEMMA_2B,
    GemmaConfig,
    LoraConfig,
    ModelConfig,
    Optimality,
    dummy,
    full,
    full_lora,
    toy,
)
from openpi_ript.model.lora import count
from openpi_ript.model.pi0 import (
    Pi0,
    draw_noise_and_time,
    encode,
    flow_error,
    flow_loss,
    init_params,
    integrate,
    sample_actions,
    velocity,
)
from tests.openpi_ript.joint_pass import joint_velocity
from tests.openpi_ript.toy_policy import (
    assert_trees_close,
    compiled,
    make_actions,
    make_model,
    make_observation,
    random_params,
)

Kind = Literal["pi0", "pi05"]
KINDS: tuple[Kind, ...] = ("pi0", "pi05")
TIME = jnp.array([0.2, 0.999, 0.6], jnp.float32)


def shapes_of(config: ModelConfig) -> Any:
    return jax.eval_shape(lambda key: init_params(Pi0(config), key), jax.random.key(0))


@pytest.mark.parametrize(
    ("config", "weights", "leaves"),
    [(full("pi0"), 3_238_048_528, 50), (dummy("pi0"), 522_016, 50), (dummy("pi05"), 627_552, 51)],
    ids=["pi0", "dummy_pi0", "dummy_pi05"],
)
def test_number_of_weights_is_openpis(config: ModelConfig, weights: int, leaves: int) -> None:
    shapes = shapes_of(config)
    assert count(shapes) == weights
    assert len(jax.tree.leaves(shapes)) == leaves


def test_full_sizes_have_openpis_names_and_shapes() -> None:
    pi0, pi05 = shapes_of(full("pi0")), shapes_of(full("pi05"))
    assert pi0["PaliGemma"]["llm"]["embedder"]["input_embedding"].shape == (257_152, 2048)
    assert pi0["PaliGemma"]["llm"]["layers"]["mlp_1"]["gating_einsum"].shape == (18, 2, 1024, 4096)
    assert pi0["PaliGemma"]["img"]["pos_embedding"].shape == (1, 256, 1152)
    assert pi05["PaliGemma"]["llm"]["layers"]["pre_ffw_norm_1"]["Dense_0"]["kernel"].shape == (18, 1024, 3072)
    assert set(pi0) - set(pi05) == {"state_proj", "action_time_mlp_in", "action_time_mlp_out"}
    assert set(pi05) - set(pi0) == {"time_mlp_in", "time_mlp_out"}
    adapted = shapes_of(full_lora("pi0"))["PaliGemma"]["llm"]["layers"]["attn"]["q_einsum"]
    assert (adapted["lora_a"].shape, adapted["lora_b"].shape) == ((18, 8, 2048, 16), (18, 8, 16, 256))


@pytest.mark.parametrize("kind", ["pi0", pytest.param("pi05", marks=pytest.mark.long)])
def test_cached_prefix_equals_one_joint_pass_in_values_and_gradients(kind: Kind) -> None:
    model = make_model(kind)
    params, seen, x_t = random_params(model), make_observation(model.config), make_actions(model.config)
    weight = make_actions(model.config, seed=5)

    @compiled
    def cached(params: Any) -> tuple[Any, Any]:
        def total(params: Any) -> tuple[jax.Array, jax.Array]:
            v = velocity(model, params, encode(model, params, seen), x_t, TIME, None)
            return (v * weight).sum(), v

        return jax.value_and_grad(total, has_aux=True)(params)

    @compiled
    def joint(params: Any) -> tuple[Any, Any]:
        def total(params: Any) -> tuple[jax.Array, jax.Array]:
            v = joint_velocity(params, model.config, seen, x_t, TIME)
            return (v * weight).sum(), v

        return jax.value_and_grad(total, has_aux=True)(params)

    (_, v), gradient = cached(params)
    (_, expected_v), expected_gradient = joint(params)
    np.testing.assert_allclose(v, expected_v, rtol=0, atol=1e-5 * float(jnp.abs(expected_v).max()))
    assert_trees_close(gradient, expected_gradient, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("attention", "inputs_on_host") else ())
        for name in get_args(RematPolicy)
    ],
)
def test_remat_and_unrolling_change_nothing(policy: RematPolicy) -> None:
    plain, other = make_model("pi05"), make_model("pi05", remat=True, remat_policy=policy, scan_unroll=2)
    params, seen, actions = random_params(plain), make_observation(plain.config), make_actions(plain.config)

    def gradient(model: Pi0) -> Any:
        def loss(params: Any) -> jax.Array:
            return flow_error(model, params, encode(model, params, seen), actions, -actions, TIME, None).mean()

        return compiled(jax.grad(loss))(params)

    assert_trees_close(gradient(other), gradient(plain), 1e-6)


def test_what_is_masked_has_no_influence() -> None:
    model = make_model("pi0")
    params, x_t = random_params(model), make_actions(model.config)
    seen = make_observation(model.config, cameras=2)
    one = seen._replace(image_mask=seen.image_mask.at[:, 1].set(False))
    run = compiled(lambda o: velocity(model, params, encode(model, params, o), x_t, TIME, None))
    expected = run(one)
    without = one._replace(images=one.images[:, :1], image_mask=one.image_mask[:, :1])
    np.testing.assert_allclose(run(without), expected, rtol=0, atol=1e-5)  # a masked camera can be left out
    inverted = one._replace(
        images=one.images.at[:, 1].set(255 - one.images[:, 1]),
        tokens=jnp.where(one.token_mask, one.tokens, 511 - one.tokens),
    )
    np.testing.assert_array_equal(run(inverted), expected)
    assert np.abs(run(seen) - expected).max() > 1e-2  # where it is not masked, a camera matters


def test_bfloat16_keeps_weights_and_result_in_float32() -> None:
    model = make_model("pi05", dtype="bfloat16")
    shapes = shapes_of(model.config)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    seen, x_t = make_observation(model.config), make_actions(model.config)

    def run(params: Any) -> tuple[Any, jax.Array]:
        context = encode(model, params, seen)
        return context, velocity(model, params, context, x_t, TIME, None)

    context, v = jax.eval_shape(run, shapes)
    assert context.cache[0].dtype == jnp.bfloat16
    assert v.dtype == jnp.float32


@pytest.mark.parametrize("kind", ["pi0", pytest.param("pi05", marks=pytest.mark.long)])
def test_fresh_condition_leaves_the_pretrained_model_exactly_as_it_is(kind: Kind) -> None:
    plain, conditioned = make_model(kind), make_model(kind, optimality=True)
    fresh = compiled(lambda key: init_params(conditioned, key))(jax.random.key(3))["condition_embedding"]
    assert fresh["embedding"].shape == (3, 32)
    assert not fresh["embedding"].any()
    params, seen, x_t = random_params(plain), make_observation(plain.config), make_actions(plain.config)
    expected = compiled(lambda p: velocity(plain, p, encode(plain, p, seen), x_t, TIME, None))(params)
    run = compiled(lambda p, c: velocity(conditioned, p, encode(conditioned, p, seen), x_t, TIME, c))
    for condition in Optimality:
        got = run(params | {"condition_embedding": fresh}, jnp.full((3,), condition, jnp.int32))
        np.testing.assert_array_equal(got, expected)


def test_loss_is_the_mean_over_real_steps() -> None:
    model = make_model("pi0")
    params, seen, actions = random_params(model), make_observation(model.config), make_actions(model.config)
    is_pad = jnp.arange(8)[None] >= jnp.array([[3], [8], [0]])  # 3, 8 and 0 real steps
    key = jax.random.key(7)
    loss = compiled(jax.value_and_grad(lambda p, a: flow_loss(model, p, seen, a, is_pad, key)[0], argnums=(0, 1)))
    value, (by_params, by_actions) = loss(params, actions)

    noise, time = draw_noise_and_time(key, actions)
    t = np.asarray(time)[:, None, None]
    x_t = jnp.asarray(t * np.asarray(noise) + (1 - t) * np.asarray(actions), jnp.float32)
    run = compiled(lambda p: velocity(model, p, encode(model, p, seen), x_t, time, None))
    v = np.asarray(run(params))
    error = ((v - (np.asarray(noise) - np.asarray(actions))) ** 2).mean(-1)
    np.testing.assert_allclose(value, (error[0, :3].sum() + error[1].sum()) / 11, rtol=1e-5)

    # The third sample is all padding: another one in its place changes no gradient, and it gets none itself.
    other = actions.at[2].set(5.0)
    _, (by_params_other, by_actions_other) = loss(params, other)
    assert_trees_close(by_params_other, by_params, 1e-7)
    assert not by_actions[2].any()
    assert not by_actions_other[2].any()


def test_times_are_drawn_from_the_shifted_beta_distribution() -> None:
    noise, time = draw_noise_and_time(jax.random.key(0), jnp.zeros((20_000, 2, 3)))
    assert float(time.min()) >= 0.001
    assert float(time.max()) <= 1.0
    for x in (0.2, 0.5, 0.8):  # P(t <= 0.001 + 0.999 x) = x^1.5; three standard errors are 0.011
        assert abs(float((time <= 0.001 + 0.999 * x).mean()) - x**1.5) < 0.011
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 1) < 0.01


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_euler_runs_from_one_to_zero(steps: int) -> None:
    noise = make_actions(toy("pi0"))
    shrunk = integrate(lambda x, time: x, noise, steps)
    np.testing.assert_allclose(shrunk, noise * (1 - 1 / steps) ** steps, rtol=1e-5, atol=1e-6)
    by_time = compiled(lambda n: integrate(lambda x, time: jnp.broadcast_to(time[:, None, None], x.shape), noise, n))
    times = 1 - np.arange(steps) / steps
    np.testing.assert_allclose(by_time(steps), noise - times.mean(), atol=1e-5)  # and steps may be traced


def test_sampling_follows_the_velocity() -> None:
    model = make_model("pi0")
    params, seen, noise = random_params(model), make_observation(model.config), make_actions(model.config)
    context = compiled(lambda p: encode(model, p, seen))(params)
    run = compiled(lambda x, time: velocity(model, params, context, x, time, None))
    middle = noise - 0.5 * run(noise, jnp.ones(3))
    expected = middle - 0.5 * run(middle, jnp.full((3,), 0.5))
    got = compiled(sample_actions, static_argnums=0)(model, params, context, noise, 2)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_wrong_inputs_are_refused() -> None:
    plain, conditioned = make_model("pi0"), make_model("pi0", optimality=True)
    seen, x_t = make_observation(plain.config), make_actions(plain.config)
    shapes = shapes_of(conditioned.config)
    context = jax.eval_shape(lambda p: encode(plain, p, seen), shapes_of(plain.config))
    c = jnp.zeros(3, jnp.int32)
    larger = seen._replace(images=jnp.zeros((3, 2, 56, 56, 3), jnp.uint8))
    with pytest.raises(ValueError, match=r"uint8 \[56, 56, 3\]; expected uint8 \[28, 28, 3\]"):
        jax.eval_shape(lambda p: encode(plain, p, larger), shapes)
    with pytest.raises(ValueError, match=r"actions are \(7, 8\); expected .* = \(8, 8\)"):
        jax.eval_shape(lambda p, o: velocity(plain, p, o, x_t[:, :7], TIME, None), shapes, context)
    with pytest.raises(ValueError, match=r"model.optimality is True and the condition is None"):
        jax.eval_shape(lambda p, o: velocity(conditioned, p, o, x_t, TIME, None), shapes, context)
    with pytest.raises(ValueError, match=r"model\.optimality is False"):
        jax.eval_shape(lambda p, o: velocity(plain, p, o, x_t, TIME, c), shapes, context)


def test_configs_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"image_size 225 is not divisible by .* 14"):
        dataclasses.replace(full("pi0"), image_size=225)
    with pytest.raises(ValueError, match=r"language.depth is 18 and model.expert.depth is 2"):
        dataclasses.replace(full("pi0"), expert=dataclasses.replace(full("pi0").expert, depth=2))
    with pytest.raises(ValueError, match="several query heads"):
        dataclasses.replace(GEMMA_2B, num_kv_heads=8)
    with pytest.raises(ValueError, match=r"rank is 0; expected a number above 0"):
        LoraConfig(rank=0, alpha=1.0)
    narrow = GemmaConfig(width=31, depth=2, mlp_dim=64, num_heads=2, num_kv_heads=1, head_dim=16)
    with pytest.raises(ValueError, match="even number"):
        dataclasses.replace(toy("pi0"), expert=narrow)
