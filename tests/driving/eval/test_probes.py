"""Linear probes, by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.config import DataConfig
from driving.data.batches import open_data
from driving.eval import probes
from tests.driving.drives import SIZE, write_drive


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


def test_of_images_at_5_hz_a_retrieval_asks_for_those_nearest_to_half_a_second(tmp_path: Path):
    """Anchors are 0.2 s apart, with frames between them: 0.4 s after each there is one, and 0.6 s."""

    def every_second(tree: dict[str, Any]) -> None:
        for frame in tree["frames"][1::2]:
            frame["observations"]["cameras"] = {}

    write_drive(tmp_path, "a", frames=48, change=every_second)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
    candidates, later = probes._apart(data, 0)
    np.testing.assert_allclose(data.index.t[candidates], [0.0, 2.0, 4.0])
    np.testing.assert_allclose(data.index.t[later], [0.4, 2.4, 4.4])
