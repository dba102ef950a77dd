"""Paths and Euler steps against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.models.flow_matching import euler, inpainting, straight_path


def test_path_and_velocity_by_hand():
    start, end = jnp.array([[0.0, 2.0], [1.0, 1.0]]), jnp.array([[4.0, 0.0], [1.0, -1.0]])
    x, u = straight_path(start, end, jnp.array([[0.25], [1.0]]))
    np.testing.assert_array_equal(x, [[1.0, 1.5], [1.0, -1.0]])
    np.testing.assert_array_equal(u, [[4.0, -2.0], [0.0, -2.0]])


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_straight_field_is_followed_exactly(steps):
    start, end = jnp.array([1.0, -1.0]), jnp.array([0.5, 3.0])
    np.testing.assert_allclose(euler(lambda x, t: end - start, start, steps=steps), end, rtol=1e-6)


def test_steps_of_a_linear_field():
    """dx/dt = x in n Euler steps multiplies by (1 + 1/n)^n."""
    found = euler(lambda x, t: x, jnp.array([2.0]), steps=4)
    np.testing.assert_allclose(found, [2 * 1.25**4], rtol=1e-6)


def test_times_are_those_at_the_start_of_each_step():
    """dx/dt = t: the sum of i / n / n for i below n."""
    np.testing.assert_allclose(euler(lambda x, t: t, jnp.zeros(()), steps=5), 0.4, rtol=1e-6)


def inpainted_by_hand(
    matrix: np.ndarray, x: np.ndarray, known: np.ndarray, weights: np.ndarray, *, steps: int, most: float
) -> np.ndarray:
    """numpy, a row at a time: Euler steps of v = A x (1 + t) + t, e is linear, so de/dx = I + (1 - t)(1 + t) A."""
    rows = []
    for row, goal, weight in zip(x.astype(np.float64), known, weights, strict=True):
        for i in range(steps):
            t = i / steps
            v = (1 + t) * matrix @ row + t
            jacobian = np.eye(len(row)) + (1 - t) * (1 + t) * matrix
            scale = most if t == 0 else min(most, (t**2 + (1 - t) ** 2) / (t * (1 - t)))
            row = row + (v + scale * jacobian.T @ np.diag(weight) @ (goal - (row + (1 - t) * v))) / steps
        rows.append(row)
    return np.stack(rows)


@pytest.mark.parametrize("most", [1.5, 5.0])
@pytest.mark.parametrize("steps", [1, 4, 10])
def test_inpainting_on_a_linear_field(steps, most):
    rng = np.random.default_rng(0)
    matrix, x, known = rng.normal(size=(3, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    weights = np.array([[1.0, 0.3, 0.0], [0.0, 0.0, 0.0]])

    def velocity(x, t):
        return (1 + t) * x @ jnp.asarray(matrix.T, jnp.float32) + t

    def found(field):
        return euler(field, jnp.asarray(x, jnp.float32), steps=steps)

    guided = inpainting(velocity, jnp.asarray(known, jnp.float32), jnp.asarray(weights, jnp.float32), max_guidance=most)
    expected = inpainted_by_hand(matrix, x, known, weights, steps=steps, most=most)
    np.testing.assert_allclose(found(guided), expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found(guided)[1], found(velocity)[1], rtol=1e-6)  # of weight 0: the field itself


def test_inpainting_takes_a_time_for_each_row():
    """As a batch whose rows are at different times gives: each row is what it is alone."""
    x, known = jnp.array([[[1.0], [2.0]], [[-1.0], [0.5]]]), jnp.zeros((2, 2, 1))
    weights = jnp.array([[[1.0], [0.5]], [[1.0], [0.5]]])

    def velocity(x, t):
        return -x * (1 + jnp.reshape(t, (-1, 1, 1)))

    together = inpainting(velocity, known, weights)(x, jnp.array([0.0, 0.75]))
    for row, t in enumerate([0.0, 0.75]):
        alone = inpainting(velocity, known[row : row + 1], weights[row : row + 1])(x[row : row + 1], jnp.array([t]))
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-6)
    # By hand, row 0 at t = 0: e = x - x = 0 arrives at what is known, so nothing is corrected.
    np.testing.assert_allclose(together[0], [[-1.0], [-2.0]], rtol=1e-6)
    # Row 1, t = 0.75: v = -1.75 x, e = x - 0.25 1.75 x = 0.5625 x, de/dx = 0.5625, scale 0.625 / 0.1875.
    expected = np.array([[-1.0], [0.5]]) * (-1.75 - 0.625 / 0.1875 * 0.5625**2 * np.array([[1.0], [0.5]]))
    np.testing.assert_allclose(together[1], expected, rtol=1e-6)


@pytest.mark.parametrize(("steps", "bound"), [(5, 1e-6), (10, 0.045), (20, 0.055)])
def test_what_is_known_is_kept_to_a_bound(steps, bound):
    """For standard normal data, whose velocity is (2 t - 1) x / (t^2 + (1 - t)^2): of the distance between a free
    sample and what is known, `bound` is left where the weight is 1, and all of it where the weight is 0."""
    rng = np.random.default_rng(1)
    noise, known = (jnp.asarray(rng.normal(size=(64, 8)), jnp.float32) for _ in range(2))
    weights = jnp.asarray([[1.0] * 4 + [0.0] * 4])

    def velocity(x, t):
        return (2 * t - 1) / (t**2 + (1 - t) ** 2) * x

    free, kept = (euler(f, noise, steps=steps) for f in (velocity, inpainting(velocity, known, weights)))
    before, after = (np.sqrt(np.mean((np.asarray(x - known)) ** 2, axis=0)) for x in (free, kept))
    assert (after[:4] <= bound * before[:4]).all()
    np.testing.assert_allclose(after[4:], before[4:], rtol=1e-5)
