from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.data.groups import rloo
from openpi_ript.config.experiment import GuidanceConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data.advantage import label
from openpi_ript.model.guidance import guided_loss, guided_sample, make_branches
from openpi_ript.model.pi0 import Pi0, draw_noise_and_time, encode, flow_error, velocity
from tests.openpi_ript.toy_policy import (
    assert_trees_close,
    compiled,
    make_actions,
    make_model,
    make_observation,
    random_params,
)

NEGATIVE, POSITIVE, NONE = Optimality.NEGATIVE, Optimality.POSITIVE, Optimality.NONE
LABEL = jnp.array([POSITIVE, NEGATIVE, NONE], jnp.int32)
ADVANTAGE = jnp.array([1.5, -0.5, 0.25])
IS_PAD = jnp.arange(8)[None] >= jnp.array([[8], [5], [2]])
KEY = jax.random.key(11)


def same(condition: Optimality, batch: int = 3) -> jax.Array:
    return jnp.full((batch,), condition, jnp.int32)


@pytest.fixture(scope="module")
def policy() -> tuple[Pi0, Any]:
    model = make_model("pi0", optimality=True)
    return model, random_params(model)


def loss_and_gradient(model: Pi0, params: Any, config: GuidanceConfig, is_pad: jax.Array = IS_PAD) -> Any:
    seen, actions = make_observation(model.config), make_actions(model.config)

    def loss(params: Any) -> Any:
        return guided_loss(model, params, seen, actions, is_pad, LABEL, ADVANTAGE, config, KEY)

    return compiled(jax.value_and_grad(loss, has_aux=True))(params)


def errors_of_separate_branches(model: Pi0, params: Any) -> Any:
    """|v - u|^2 under positive and under none, each with its own pass over the prefix."""
    seen, actions = make_observation(model.config), make_actions(model.config)
    noise, time = draw_noise_and_time(jax.random.split(KEY)[0], actions)
    return [
        flow_error(model, params, encode(model, params, seen), actions, noise, time, same(condition))
        for condition in (POSITIVE, NONE)
    ]


def test_groups_without_differences_are_neither_positive_nor_negative() -> None:
    rewards = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0])  # all fail, all succeed, mixed
    labels = jnp.asarray(label(rloo(rewards, np.repeat([0, 1, 2], 3))))
    assert labels.tolist() == [NONE] * 6 + [NEGATIVE, POSITIVE, POSITIVE]
    branches = make_branches(GuidanceConfig(), labels, jnp.ones(9), KEY)
    np.testing.assert_array_equal(branches.weights[0], [0, 0, 0, 0, 0, 0, 0, 1, 1])


def test_two_branches_are_cfgrls_loss_or_weighted_by_the_advantage() -> None:
    by_sign = make_branches(GuidanceConfig(), LABEL, ADVANTAGE, KEY)
    assert by_sign.conditions.tolist() == [[POSITIVE] * 3, [NONE] * 3]
    np.testing.assert_allclose(by_sign.weights, [[1, 0, 0], [0.1, 0.1, 0.1]])
    config = GuidanceConfig(positive_weight="advantage", unconditional_weight=1.0)
    by_advantage = make_branches(config, LABEL, ADVANTAGE, KEY)
    assert by_advantage.conditions.tolist() == [[POSITIVE] * 3, [NONE] * 3]
    np.testing.assert_allclose(by_advantage.weights, [[1.5, 0, 0.25], [1, 1, 1]])  # a weight below 0 counts as 0


def test_label_dropout_replaces_a_tenth_of_the_labels_by_none() -> None:
    label = jnp.tile(jnp.array([POSITIVE, NEGATIVE], jnp.int32), 5000)
    branches = make_branches(GuidanceConfig(loss="label_dropout"), label, jnp.zeros(10_000), KEY)
    conditions = np.asarray(branches.conditions)
    assert conditions.shape == (1, 10_000)
    dropped = conditions[0] == NONE
    assert abs(dropped.mean() - 0.1) < 0.009  # three standard errors
    np.testing.assert_array_equal(conditions[0][~dropped], np.asarray(label)[~dropped])
    assert (np.asarray(branches.weights) == 1).all()


@pytest.mark.parametrize("positive_weight", ["advantage", pytest.param("indicator", marks=pytest.mark.long)])
def test_one_prefix_for_both_branches_equals_two_separate_passes(policy: Any, positive_weight: Any) -> None:
    model, params = policy
    weight = jnp.array([1.0, 0, 0]) if positive_weight == "indicator" else jnp.array([1.5, 0, 0.25])

    def separate(params: Any) -> jax.Array:
        positive, none = errors_of_separate_branches(model, params)
        return jnp.where(IS_PAD, 0, weight[:, None] * positive + 0.1 * none).sum() / (8 + 5 + 2)

    expected, expected_gradient = compiled(jax.value_and_grad(separate))(params)
    (loss, _), gradient = loss_and_gradient(model, params, GuidanceConfig(positive_weight=positive_weight))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_trees_close(gradient, expected_gradient, 1e-5)


def test_metrics_are_the_error_under_each_condition(policy: Any) -> None:
    model, params = policy
    positive, none = (np.asarray(e) for e in compiled(lambda p: errors_of_separate_branches(model, p))(params))
    (loss, metrics), _ = loss_and_gradient(model, params, GuidanceConfig())
    real = ~np.asarray(IS_PAD)
    np.testing.assert_allclose(metrics["flow_loss_positive"].value(), positive[0].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["flow_loss_none"].value(), none[real].mean(), rtol=1e-5)
    assert float(metrics["flow_loss_negative"].count) == 0
    np.testing.assert_allclose(metrics["guided_loss"].value(), loss)


def test_neither_branch_changes_the_other(policy: Any) -> None:
    """Another positive condition leaves the unconditional branch's error as it is to the bit, and the reverse."""
    model, params = policy
    table = params["condition_embedding"]["embedding"]
    seen, actions = make_observation(model.config), make_actions(model.config)
    run = compiled(lambda p: guided_loss(model, p, seen, actions, IS_PAD, LABEL, ADVANTAGE, GuidanceConfig(), KEY)[1])
    before = run(params)
    for changed, kept in ((POSITIVE, "none"), (NONE, "positive")):
        other = params | {"condition_embedding": {"embedding": table.at[changed].add(1.0)}}
        after = run(other)
        assert float(after[f"flow_loss_{kept}"].sum) == float(before[f"flow_loss_{kept}"].sum)
        moved = f"flow_loss_{changed.name.lower()}"
        assert abs(float(after[moved].value()) - float(before[moved].value())) > 1e-3


@pytest.mark.long
def test_unconditional_branch_is_the_none_label_and_never_the_negative_one(policy: Any) -> None:
    model, params = policy
    _, gradient = loss_and_gradient(model, params, GuidanceConfig())
    rows = np.abs(gradient["condition_embedding"]["embedding"]).max(axis=1)
    assert rows[NEGATIVE] == 0
    assert rows[POSITIVE] > 1e-4
    assert rows[NONE] > 1e-4
    wild = params["condition_embedding"]["embedding"].at[NEGATIVE].set(100.0)
    noise = make_actions(model.config)
    run = sampler(model)
    for scale in (0.0, 3.0):
        got = run(params | {"condition_embedding": {"embedding": wild}}, noise, scale, 1)
        np.testing.assert_array_equal(got, run(params, noise, scale, 1))


def test_padded_steps_have_no_part(policy: Any) -> None:
    model, params = policy
    seen, actions = make_observation(model.config), make_actions(model.config)
    is_pad = IS_PAD.at[2].set(True)  # the third sample is padding alone

    def loss(params: Any, actions: jax.Array) -> jax.Array:
        return guided_loss(model, params, seen, actions, is_pad, LABEL, ADVANTAGE, GuidanceConfig(), KEY)[0]

    run = compiled(jax.value_and_grad(loss, argnums=(0, 1)))
    value, (gradient, by_actions) = run(params, actions)
    other_value, (other_gradient, _) = run(params, actions.at[2].set(-4.0))
    assert float(other_value) == float(value)
    assert_trees_close(other_gradient, gradient, 1e-7)
    assert not by_actions[2].any()
    assert by_actions[0].any()


def sampler(model: Pi0) -> Any:
    seen = make_observation(model.config)
    return compiled(
        lambda params, noise, scale, steps: guided_sample(
            model, params, encode(model, params, seen), noise, scale=scale, steps=steps
        )
    )


def test_guided_sampling_steers_from_none_to_positive(policy: Any) -> None:
    model, params = policy
    seen, noise = make_observation(model.config), make_actions(model.config)
    run = compiled(lambda p, c, x, t: velocity(model, p, encode(model, p, seen), x, t, c))

    def v(condition: Optimality, x: jax.Array, time: float) -> np.ndarray:
        return np.asarray(run(params, same(condition), x, jnp.full((3,), time)))

    none, positive = v(NONE, noise, 1.0), v(POSITIVE, noise, 1.0)
    assert np.abs(none - positive).max() > 0.1
    sample = sampler(model)
    for scale in (0.0, 1.0, 3.0):
        expected = noise - (none + scale * (positive - none))
        np.testing.assert_allclose(sample(params, noise, scale, 1), expected, rtol=0, atol=2e-5)
    # Several steps: w = 1 is the conditional policy, w = 0 the unconditional one, all the way.
    for scale, condition in ((1.0, POSITIVE), (0.0, NONE)):
        middle = noise - 0.5 * v(condition, noise, 1.0)
        expected = middle - 0.5 * v(condition, middle, 0.5)
        np.testing.assert_allclose(sample(params, noise, scale, 2), expected, rtol=0, atol=2e-5)


def test_guidance_of_a_fresh_condition_changes_nothing() -> None:
    model = make_model("pi05", optimality=True)
    params = random_params(model)
    params["condition_embedding"] = {"embedding": jnp.zeros((3, 32))}
    noise, run = make_actions(model.config), sampler(model)
    np.testing.assert_allclose(run(params, noise, 3.0, 4), run(params, noise, 0.0, 4), rtol=0, atol=1e-5)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dropout is 1\.5; expected 0 to 1"):
        GuidanceConfig(dropout=1.5)
    with pytest.raises(ValueError, match=r"scale is -1\.0; expected 0 or above"):
        GuidanceConfig(scale=-1.0)
    with pytest.raises(ValueError, match="sample_steps is 0"):
        GuidanceConfig(sample_steps=0)


def test_what_the_chosen_loss_does_not_use_is_refused() -> None:
    """The defaults of both losses are there together, so these can't be told from settings."""
    with pytest.raises(ValueError, match=r"dropout is 0\.2, which guidance\.loss 'two_branch' does.*; expected 0\.1"):
        GuidanceConfig(dropout=0.2)
    with pytest.raises(ValueError, match=r"unconditional_weight is 0\.3, which guidance\.loss 'label_dropout'"):
        GuidanceConfig(loss="label_dropout", unconditional_weight=0.3)
    with pytest.raises(ValueError, match=r"positive_weight is 'advantage', which guidance\.loss 'label_dropout'"):
        GuidanceConfig(loss="label_dropout", positive_weight="advantage")
    GuidanceConfig(loss="label_dropout", dropout=0.2)
    GuidanceConfig(positive_weight="advantage", unconditional_weight=0.3)
