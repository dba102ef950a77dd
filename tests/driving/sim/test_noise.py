"""Errors in the plan of a recorded drive: how large, how long they last, and that they are a function of the seed."""

import numpy as np

from driving.config import NoiseConfig
from driving.sim.noise import Noise

PLAN = np.stack([0.8 * np.arange(1, 21), np.zeros(20)], axis=-1)


def errors(config: NoiseConfig, seed: int, steps: int) -> np.ndarray:
    """Angle and logarithm of the factor, read off what becomes of a straight plan."""
    noise = Noise(config, np.random.default_rng(seed))
    plans = np.array([noise.disturbed(PLAN) for _ in range(steps)])
    last = plans[:, -1]
    return np.stack([np.arctan2(last[:, 1], last[:, 0]), np.log(np.linalg.norm(last, axis=-1) / 16)], axis=-1)


def test_a_plan_is_turned_to_the_left_and_stretched_as_a_whole():
    noise = Noise(NoiseConfig(turn_rad=0.5, stretch=0.5), np.random.default_rng(0))
    noise._size, noise._now = np.array([0.5, 0.5]), np.array([0.4, -0.6])
    bent = np.array([[1.0, 0.0], [2.0, 1.0]])
    turned = np.exp(-0.3) * np.array(
        [[np.cos(0.2), np.sin(0.2)], [2 * np.cos(0.2) - np.sin(0.2), 2 * np.sin(0.2) + np.cos(0.2)]]
    )
    np.testing.assert_allclose(noise.disturbed(bent), turned)


def test_errors_have_the_size_and_the_memory_that_are_asked_for():
    config = NoiseConfig(turn_rad=0.1, stretch=0.2, seconds=0.5)
    drives = np.array([errors(config, seed, 200) for seed in range(300)])
    # The mean square of a size that is uniform from 0 to 2 is 4/3.
    np.testing.assert_allclose(drives.std((0, 1)), np.array([0.1, 0.2]) * np.sqrt(4 / 3), rtol=0.12)
    np.testing.assert_allclose(drives[:, 0].std(0), np.array([0.1, 0.2]) * np.sqrt(4 / 3), rtol=0.15)  # from the start
    for column in range(2):
        now, later = drives[:, :-5, column].ravel(), drives[:, 5:, column].ravel()
        assert abs((now * later).mean() / (now * now).mean() - np.exp(-1)) < 0.05  # 0.5 s
    assert abs(np.corrcoef(drives[..., 0].ravel(), drives[..., 1].ravel())[0, 1]) < 0.05
    sizes = drives.std(1)[:, 0]
    assert sizes.min() < 0.03
    assert sizes.max() > 0.15


def test_the_errors_of_a_drive_are_its_own():
    config = NoiseConfig()
    np.testing.assert_array_equal(errors(config, 4, 20), errors(config, 4, 20))
    assert not np.allclose(errors(config, 4, 20), errors(config, 5, 20))
    assert not errors(NoiseConfig(turn_rad=0.0, stretch=0.0), 4, 20)[:, 0].any()
