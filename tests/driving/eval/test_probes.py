"""Linear probes, by hand."""

import numpy as np
import pytest

from driving.eval import probes


def test_ridge_regression_by_hand():
    """One feature: standardised x is -1, 0, 1 times sqrt(3/2); w = a.y / (a.a + 10) = 2 sqrt(1.5) / 13."""
    x, y = np.array([[1.0], [2.0], [3.0]]), np.array([10.0, 11.0, 12.0])
    weight = 2 * np.sqrt(1.5) / 13
    x_test, y_test = np.array([[1.0], [5.0]]), np.array([9.0, 15.0])
    predicted = 11 + weight * np.array([-1.0, 3.0]) * np.sqrt(1.5)
    expected = 1 - np.mean((y_test - predicted) ** 2) / 9.0
    assert probes.r_squared(x, y, x_test, y_test) == pytest.approx(expected, rel=1e-4)
    assert probes.r_squared(x, y, x_test, np.full(2, 9.0)) == 0.0
    noise = np.random.default_rng(0).normal(size=(50, 1))
    assert probes.r_squared(noise, noise[:, 0], noise[:20], -noise[:20, 0]) < -1, "worse than the mean is below 0"
