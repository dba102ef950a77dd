"""openpi_ript/data/advantage.py: leave-one-out advantages and every step of the processor, by hand and by property."""

from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkwise.data.groups import rloo, uniform_groups
from chunkwise.errors import DataError
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.data.advantage import EXTREME, label, process

PLAIN = {"normalization": "none", "clipping": "none", "negative_handling": "none"}
HINTS = get_type_hints(AdvantageConfig)


def shape(values: list[float], **options: object) -> tuple[np.ndarray, dict[str, int]]:
    return process(np.array(values), AdvantageConfig(**{**PLAIN, **options}))  # pyright: ignore[reportArgumentType]


def test_weights_at_their_limit_are_counted_by_what_they_would_be() -> None:
    """With a temperature of 2, an advantage of 3 becomes exp(1.5), below the limit of exp(2); 5 becomes exp(2.5)."""
    options = {"negative_handling": "exponential", "temperature": 2.0, "max_weight": float(np.exp(2))}
    weights, counts = shape([3.0, 5.0], **options)
    np.testing.assert_allclose(weights, np.exp([1.5, 2.0]), rtol=1e-6)
    assert counts["capped"] == 1


def test_two_values_have_a_deviation() -> None:
    """0 and 4: mean 2, deviation 2, so half of it reaches from 1 to 3."""
    assert shape([0.0, 4.0], clipping="sigma", clip_value=0.5)[0].tolist() == [1.0, 3.0]


def test_rloo_is_the_reward_minus_the_mean_of_the_others() -> None:
    rewards = np.array([1.0, 0.0, 5.0, 1.0, 2.0, 0.0])
    groups = np.array([7, 7, 3, 7, 3, 7])
    # group 7 holds 1, 0, 1, 0: others' means are 1/3 and 2/3; group 3 holds 5, 2.
    expected = [2 / 3, -2 / 3, 3.0, 2 / 3, -3.0, -2 / 3]
    np.testing.assert_allclose(rloo(rewards, groups), expected, rtol=1e-15)


def test_a_group_of_one_and_equal_rewards_give_exactly_zero() -> None:
    # 0.1 three times: a sum-based mean of the others is 0.1 + 1.4e-17, and its sign would label two of them.
    rewards = np.array([5.0, 0.1, 0.1, 0.1, 0.0, 0.0, 1.0, 1.0])
    groups = np.array([0, 1, 1, 1, 2, 2, 3, 3])
    assert rloo(rewards, groups).tolist() == [0.0] * 8
    assert uniform_groups(rewards, groups).all()
    assert not (rloo(rewards, groups) > 0).any()  # all failed is not positive, nor is all succeeded


def test_a_reward_that_is_not_finite_takes_no_part() -> None:
    rewards = np.array([1.0, np.nan, 0.0, np.inf, -np.inf, 3.0])
    groups = np.array([0, 0, 0, 1, 1, 1])
    assert rloo(rewards, groups).tolist() == [1.0, 0.0, -1.0, 0.0, 0.0, 0.0]


def test_the_label_is_the_sign_of_the_raw_advantage() -> None:
    raw = np.array([0.5, -0.5, 0.0, -0.0, 1e-30, -3.0], np.float32)
    assert label(raw).tolist() == [1, 0, 2, 2, 1, 0]


def test_rounding_gives_no_label() -> None:
    """0.1, 0.2, 0.3: 0.2 is the mean of the others, but 0.2 - (0.6 - 0.2) / 2 is -5.6e-17 in floating point."""
    rewards = np.array([0.1, 0.2, 0.3, 0.3, 0.1 + 0.2])
    groups = np.array([0, 0, 0, 1, 1])
    assert rewards[1] - (rewards[:3].sum() - rewards[1]) / 2 < 0
    assert label(rloo(rewards, groups)).tolist() == [0, 2, 1, 2, 2]
    assert uniform_groups(rewards, groups).tolist() == [False, False, False, True, True]
    # A difference that is none of rounding's counts, however small beside the rewards.
    assert label(rloo(np.array([1.0, 1.0 + 1e-12]), np.zeros(2, int))).tolist() == [0, 1]


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 3)), min_size=1, max_size=30))
@settings(deadline=None)
def test_rloo_agrees_with_its_definition_and_sums_to_zero(pairs: list[tuple[float, int]]) -> None:
    rewards, groups = np.array([r for r, _ in pairs]), np.array([g for _, g in pairs])
    found = rloo(rewards, groups)
    for i, (reward, group) in enumerate(pairs):
        others = [r for j, (r, g) in enumerate(pairs) if g == group and j != i]
        expected = reward - np.mean(others) if others else 0.0
        assert found[i] == pytest.approx(expected, abs=1e-9)
    for group in set(groups):
        assert found[groups == group].sum() == pytest.approx(0, abs=1e-8)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, -2.5]), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(-200, 200),
)
@settings(deadline=None)
def test_the_unit_of_rewards_changes_no_label(pairs: list[tuple[float, int]], power: int) -> None:
    """What counts as rounding goes by the group's own rewards: powers of two are exact, so all bits are the same."""
    rewards, groups = np.array([r for r, _ in pairs]), np.array([g for _, g in pairs])
    scaled = np.ldexp(rewards, power)
    np.testing.assert_array_equal(rloo(scaled, groups), np.ldexp(rloo(rewards, groups), power))
    np.testing.assert_array_equal(uniform_groups(scaled, groups), uniform_groups(rewards, groups))


def test_a_group_of_large_rewards_hides_no_difference_of_small_ones() -> None:
    rewards, groups = np.array([1e18, -1e18, 1e-18, 2e-18]), np.array([0, 0, 1, 1])
    np.testing.assert_allclose(rloo(rewards, groups), [2e18, -2e18, -1e-18, 1e-18], rtol=1e-12)
    assert not uniform_groups(rewards, groups).any()


def test_each_normalization() -> None:
    values = [1.0, 2.0, 3.0, 10.0]  # mean 4, variance 12.5, median 2.5, median deviation 1
    np.testing.assert_allclose(shape(values, normalization="standard")[0], (np.array(values) - 4) / np.sqrt(12.5), 1e-6)
    np.testing.assert_allclose(shape(values, normalization="min_max")[0], [0, 1 / 9, 2 / 9, 1], 1e-6)
    np.testing.assert_allclose(shape(values, normalization="robust")[0], (np.array(values) - 2.5) / 1.4826, 1e-6)
    rare = [0.0, 0.0, 0.0, 0.0, 1.0]  # the median deviation is 0: the standard deviation, 0.4, takes its place
    np.testing.assert_allclose(shape(rare, normalization="robust")[0], [0, 0, 0, 0, 2.5], 1e-6)


@pytest.mark.parametrize("normalization", ["zero_mean", "standard", "min_max", "robust"])
def test_a_constant_input_is_normalised_to_zero(normalization: str) -> None:
    assert shape([0.7] * 5, normalization=normalization)[0].tolist() == [0.0] * 5
    assert shape([3.0], normalization=normalization)[0].tolist() == [0.0]


def test_each_clipping() -> None:
    values = [-5.0, -1.0, 0.0, 1.0, 9.0]
    clipped, counts = shape(values, clipping="symmetric", clip_value=3.0)
    assert clipped.tolist() == [-3.0, -1.0, 0.0, 1.0, 3.0]
    assert counts["clipped"] == 2
    clipped, counts = shape(values, clipping="quantile", clip_quantile=0.25)
    assert clipped.tolist() == [-1.0, -1.0, 0.0, 1.0, 1.0]
    assert counts["clipped"] == 2


def test_each_handling_of_negatives() -> None:
    values = [-2.0, 0.0, 1.0]
    np.testing.assert_allclose(shape(values, negative_handling="softplus")[0], np.log1p(np.exp(values)), 1e-6)
    assert shape(values, negative_handling="relu")[0].tolist() == [0.0, 0.0, 1.0]
    assert shape(values, negative_handling="shift")[0].tolist() == [0.0, 2.0, 3.0]
    assert shape([1.0, 2.0], negative_handling="shift")[0].tolist() == [1.0, 2.0]
    weights, counts = shape([*values, 50.0], negative_handling="exponential", temperature=2.0, max_weight=20.0)
    np.testing.assert_allclose(weights, [np.exp(-1), 1, np.exp(0.5), 20], 1e-6)
    assert counts["capped"] == 1
    assert counts["negative"] == 1


def test_the_steps_come_in_order() -> None:
    """The specification's example: standard, then symmetric at 3, then softplus."""
    values = np.array([0.0] * 19 + [1.0])
    found, counts = process(values, AdvantageConfig())
    z = (values - values.mean()) / values.std()  # the success is at 4.36 and is clipped to 3
    np.testing.assert_allclose(found, np.log1p(np.exp(np.minimum(z, 3))), 1e-6)
    assert counts == {"nan": 0, "extreme": 0, "clipped": 1, "negative": 19, "capped": 0}


def test_what_is_replaced_is_counted() -> None:
    values, counts = shape([np.nan, -1e9, 1e9, EXTREME, 2.0, np.nan])
    assert values.tolist() == [0.0, -EXTREME, EXTREME, EXTREME, 2.0, 0.0]
    assert counts == {"nan": 2, "extreme": 2, "clipped": 0, "negative": 0, "capped": 0}


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_advantage_is_refused_by_its_row(infinite: float) -> None:
    """It would make all others equal: of [0, 1, 1e6] the first two lie 2e-6 deviations apart."""
    message = rf"advantages: expected finite numbers, found {infinite} in row 2 \(2 of 5 rows\)"
    with pytest.raises(DataError, match=message):
        shape([0.0, 1.0, infinite, np.nan, -infinite], normalization="standard")


def test_deviations_of_samples_and_of_populations() -> None:
    """1, 2, 3, 6: mean 3, sum of squares 14, so the variance is 3.5, or 14 / 3 by n - 1."""
    values = [1.0, 2.0, 3.0, 6.0]
    centred = np.array([-2.0, -1.0, 0.0, 3.0])
    assert shape(values, normalization="zero_mean")[0].tolist() == centred.tolist()
    np.testing.assert_allclose(shape(values, normalization="standard")[0], centred / np.sqrt(3.5), 1e-6)
    np.testing.assert_allclose(shape(values, normalization="standard", ddof=1)[0], centred / np.sqrt(14 / 3), 1e-6)
    # One and a half deviations above the mean of 3: 5.81 for the population, 6.24 by n - 1, which 6 does not reach.
    clipped, counts = shape(values, clipping="sigma", clip_value=1.5)
    np.testing.assert_allclose(clipped, [1, 2, 3, 3 + 1.5 * np.sqrt(3.5)], 1e-6)
    assert counts["clipped"] == 1
    assert shape(values, clipping="sigma", clip_value=1.5, ddof=1)[0].tolist() == values
    low = shape([-x for x in values], clipping="sigma", clip_value=1.5)[0]
    np.testing.assert_allclose(low, [-1, -2, -3, -3 - 1.5 * np.sqrt(3.5)], 1e-6)
    assert shape([4.0], clipping="sigma", ddof=1)[0].tolist() == [4.0]


def test_a_divisor_without_a_deviation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"advantage\.ddof is 1, and neither .* has a standard deviation; expected 0"):
        AdvantageConfig(normalization="zero_mean", clipping="symmetric", ddof=1)
    AdvantageConfig(normalization="robust", ddof=1)
    AdvantageConfig(normalization="none", clipping="sigma", ddof=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"clipping": "none", "clip_value": 1.5},
            r"advantage\.clip_value is 1\.5, which advantage\.clipping 'none' does",
        ),
        ({"clipping": "quantile", "clip_value": 1.5}, "clip_value is .* 'quantile' does not read"),
        ({"clip_quantile": 0.2}, r"clip_quantile is 0\.2, .* 'symmetric' does not read; expected 0\.05, its default"),
        ({"clipping": "sigma", "clip_quantile": 0.2}, "clip_quantile is .* 'sigma'"),
        ({"temperature": 5.0}, r"temperature is 5\.0, which advantage\.negative_handling 'softplus' does not read"),
        ({"negative_handling": "relu", "max_weight": 2.0}, "max_weight is .* 'relu'"),
    ],
)
def test_numbers_of_a_step_that_is_not_taken_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdvantageConfig(**settings)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=False), max_size=20),
    *(st.sampled_from(get_args(HINTS[name])) for name in ("normalization", "clipping", "negative_handling")),
)
@settings(deadline=None, max_examples=300)
def test_whatever_comes_in_what_goes_out_is_finite(
    values: list[float], normalization: str, clipping: str, negative: str
) -> None:
    found, _ = shape(values, normalization=normalization, clipping=clipping, negative_handling=negative)
    assert found.dtype == np.float32
    assert found.shape == (len(values),)
    assert np.isfinite(found).all()
    if negative != "none":
        assert (found >= 0).all()
