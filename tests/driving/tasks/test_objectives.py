"""Objectives against plain numpy, and what no gradient may pass."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.state import TrainState
from chunkwise.train import rngs
from driving.config import ObjectiveConfig
from driving.model.encoders import Features
from driving.model.heads import Pretrained
from driving.tasks import objectives, waypoints
from driving.tasks.waypoints import waypoint_loss


def nce(query: np.ndarray, key: np.ndarray, rows: list[int], allowed: np.ndarray, temperature: float) -> float:
    """Mean of -log softmax over the allowed keys, by loops."""
    losses = []
    for i in rows:
        cosines = {
            j: query[i] @ key[j] / np.linalg.norm(query[i]) / np.linalg.norm(key[j])
            for j in range(len(key))
            if j == i or allowed[i, j]
        }
        whole = sum(np.exp(c / temperature) for c in cosines.values())
        losses.append(-np.log(np.exp(cosines[i] / temperature) / whole))
    return float(np.mean(losses))


def test_info_nce_by_hand():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 5, 4)).astype(np.float32)
    query_valid = np.array([1, 1, 0, 1, 1], bool)
    key_valid = np.array([1, 1, 1, 0, 1], bool)
    negative = rng.random((5, 5)) < 0.6
    arrays = [jnp.asarray(x) for x in (query, key, query_valid, key_valid, negative)]
    found = objectives.info_nce(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], 0.2)
    expected = nce(query, key, [0, 1, 4], negative & key_valid[None], 0.2)
    assert float(found.count) == 3
    assert float(found.value()) == pytest.approx(expected, rel=1e-4)


def test_near_frames_of_one_drive_are_no_negatives():
    t = jnp.array([0.0, 1.5, 2.0, 0.0])
    found = objectives.may_contrast(jnp.array([0, 0, 0, 1]), t, t, 2.0)
    expected = [[0, 0, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]]  # on the diagonal is the positive
    assert np.asarray(found).astype(int).tolist() == expected


def test_moments_as_far_apart_as_asked_are_negatives_whatever_float32_makes_of_their_times():
    """In float32 2.6 - 0.6 is 2 - 1e-7, and 2049.4 - 2047.4 is 2 - 1e-4; 1.998 is nearer than 2."""
    t = jnp.array([0.6, 2.6, 2047.4, 2049.4, 2.598], jnp.float32)
    found = np.asarray(objectives.may_contrast(jnp.zeros(5, jnp.int32), t, t, 2.0))
    assert found[0, 1]
    assert found[2, 3]
    assert not found[0, 4]
    every = jnp.asarray(np.round(np.arange(400) * 0.2, 3), jnp.float32)
    found = np.asarray(objectives.may_contrast(jnp.zeros(400, jnp.int32), every, every, 2.0))
    apart = np.abs(np.subtract.outer(np.arange(400), np.arange(400)))
    np.testing.assert_array_equal(found, apart >= 10)


def test_a_moment_is_no_negative_of_a_near_one_in_another_place_of_its_sample():
    """Of one drive: sample 0 is of 2 and 4 s, sample 1 of 0 and 2 s, sample 2 of an unknown moment and 2.5 s.

    The first moment of 0 and the last of 1 are the same frame, that of 2 is half a second from it; so 0 has no negative
    there. The first moment of 1 has the last of 0 (4 s), of 2 (2.5 s). Back, the last of 0 has the first of 1 (0 s),
    that of 1 has none. What is unknown has t 0, and is no query and no key.
    """
    rng = np.random.default_rng(2)
    z = rng.normal(size=(3, 2, 4)).astype(np.float32)
    valid = np.array([[1, 1], [1, 1], [0, 1]], bool)
    t = np.array([[2.0, 4.0], [0.0, 2.0], [0.0, 2.5]], np.float32)
    features = Features(jnp.zeros((6, 1, 1, 1, 1)), jnp.zeros((6, 1, 1)), jnp.asarray(z.reshape(6, 4)))
    out = Pretrained(features, None, jnp.asarray(z), None, None)
    batch = {"image_valid": valid[:, :, None], "episode": np.zeros(3, np.int32), "t": t}
    settings = ObjectiveConfig(temporal=1.0, near_s=2.0, temperature=0.3)
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    loss, metrics = objectives.total(out, None, None, batch, settings)
    there = np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0]], bool)
    back = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
    expected = nce(z[:, 0], z[:, 1], [0, 1], there, 0.3) + nce(z[:, 1], z[:, 0], [0, 1], back, 0.3)
    assert float(metrics["temporal"].count) == 4
    assert float(loss) == pytest.approx(expected / 2, rel=1e-4)


def test_cross_camera_is_the_mean_over_ordered_pairs():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(4, 3, 5)).astype(np.float32)
    valid = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
    negative = ~np.eye(4, dtype=bool)
    found = objectives.cross_camera(jnp.asarray(z), jnp.asarray(valid), jnp.asarray(negative), 0.3)
    total = count = 0.0
    for i in range(3):
        for j in range(3):
            if i != j:
                rows = np.flatnonzero(valid[:, i] & valid[:, j]).tolist()
                total += len(rows) * nce(z[:, i], z[:, j], rows, negative & valid[None, :, j], 0.3)
                count += len(rows)
    assert float(found.count) == count
    assert float(found.value()) == pytest.approx(total / count, rel=1e-4)


def test_the_masked_objective_counts_hidden_tokens_and_moves_no_target():
    rng = np.random.default_rng(2)
    predicted, target = rng.normal(size=(2, 2, 2, 1, 3, 4)).astype(np.float32)
    hidden = rng.random((2, 2, 1, 3)) < 0.5
    valid = np.array([[True, False], [True, True]])
    arguments = [jnp.asarray(x) for x in (predicted, target, hidden, valid)]
    found = objectives.masked_latent(*arguments)
    centred = target - target.mean(-1, keepdims=True)
    error = np.abs(predicted - centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6))
    smooth = np.where(error < 1, error**2 / 2, error - 0.5).mean(-1)
    chosen = hidden & valid[:, :, None, None]
    assert float(found.value()) == pytest.approx(float(smooth[chosen].mean()), rel=1e-5)
    gradient = jax.grad(lambda t: objectives.masked_latent(arguments[0], t, *arguments[2:]).value())(arguments[1])
    assert not np.asarray(gradient).any()


def test_hidden_tokens_are_as_many_as_asked_for():
    hidden = objectives.draw_hidden(rngs.key(0, "x"), (2, 2, 5, 4, 6), 0.5)
    assert np.asarray(hidden).sum((-1, -2)).tolist() == np.full((2, 2, 5), 12).tolist()
    assert len({row.tobytes() for row in np.asarray(hidden).reshape(20, -1)}) > 15


def sinkhorn(cosines: np.ndarray) -> np.ndarray:
    """Shares of rows in prototypes by three steps of Sinkhorn and Knopp at temperature 0.05, by loops."""
    shares = np.exp(cosines.astype(np.float64) / 0.05)
    for _ in range(3):
        for column in range(shares.shape[1]):
            shares[:, column] /= shares[:, column].sum()
        for row in range(len(shares)):
            shares[row] /= shares[row].sum()
    return shares


def test_self_distillation_is_the_cross_entropy_of_crops_against_an_even_assignment():
    rng = np.random.default_rng(5)
    student, teacher = rng.uniform(-1, 1, size=(2, 3, 2, 4)).astype(np.float32)
    valid = np.array([[True, False], [True, True], [True, True]])
    rows = valid.reshape(-1)
    target = sinkhorn(teacher.reshape(6, 4)[rows])
    logits = student.reshape(6, 4)[rows].astype(np.float64) / 0.1
    log_share = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    arguments = [jnp.asarray(x) for x in (student, teacher, valid)]
    found = objectives.distilled(*arguments)
    assert float(found.count) == 5
    assert float(found.value()) == pytest.approx(-(target * log_share).sum(-1).mean(), rel=1e-4)
    moved = objectives.distilled(arguments[0], arguments[1].at[0, 1].set(9.0), arguments[2])
    assert float(moved.value()) == float(found.value()), "a camera without an image is no row"
    gradient = jax.grad(lambda t: objectives.distilled(arguments[0], t, arguments[2]).value())(arguments[1])
    assert not np.asarray(gradient).any()


def test_an_assignment_is_spread_over_all_prototypes():
    """Where all rows prefer one prototype each still gets its share, so that a teacher cannot always say the same."""
    cosines = np.random.default_rng(6).uniform(-0.2, 0.2, size=(40, 4)) + np.array([0.8, 0.0, 0.0, 0.0])
    found = np.asarray(objectives.assignment(jnp.asarray(cosines, jnp.float32), jnp.ones(40, bool)))
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert np.ptp(found.sum(0)) < 4
    unknown = np.asarray(objectives.assignment(jnp.asarray(cosines, jnp.float32), jnp.arange(40) < 30))
    assert not unknown[30:].any()
    np.testing.assert_allclose(unknown[:30], sinkhorn(cosines[:30]), atol=1e-4)


def test_crops_are_windows_of_their_image():
    """Of a ramp a window is a ramp, no steeper, within its ends."""
    ramp = jnp.broadcast_to(jnp.arange(32.0)[None, None, :, None], (50, 16, 32, 3))
    found = np.asarray(objectives.draw_crops(rngs.key(1, "x"), ramp, 0.6))
    slope = np.diff(found[:, 8, :, 0], axis=-1)[:, 8:-8].mean(-1)
    assert found.shape == ramp.shape
    assert (slope > 0.39).all()
    assert (slope < 1.001).all()
    assert np.ptp(slope) > 0.4
    starts = found[:, 8, 0, 0]
    assert (starts >= 0).all()
    assert len(np.unique(starts.round(2))) > 30


def test_ego_motion_is_seen_from_the_first_moment():
    # The car drives 2 m along a heading of 90 degrees, and turns by 0.1: from the first moment that is straight ahead.
    relative = jnp.array([[[1.0, 1.0, np.pi / 2], [1.0, 3.0, np.pi / 2 + 0.1]]], jnp.float32)
    target = np.array([2.0, 0.0, 0.1]) / np.array(objectives.MOTION_SCALE)
    valid = jnp.ones((1, 2), bool)
    right = objectives.ego_motion(jnp.asarray(target[None], jnp.float32), relative, valid)
    assert float(right.value()) == pytest.approx(0, abs=1e-9)
    assert float(objectives.ego_motion(jnp.zeros((1, 3)), relative, valid.at[0, 1].set(False)).count) == 0


def test_a_turn_through_pi_is_a_small_one():
    relative = jnp.array([[[0.0, 0.0, 3.1], [0.0, 0.0, -3.1]]], jnp.float32)
    target = np.array([0.0, 0.0, 2 * np.pi - 6.2]) / np.array(objectives.MOTION_SCALE)
    right = objectives.ego_motion(jnp.asarray(target[None], jnp.float32), relative, jnp.ones((1, 2), bool))
    assert float(right.value()) == pytest.approx(0, abs=1e-9)


def test_collapse_shows():
    rng = np.random.default_rng(3)
    spread = objectives.spread(jnp.asarray(rng.normal(size=(64, 256)), jnp.float32))
    line = objectives.spread(jnp.asarray(rng.normal(size=(64, 1)) * np.ones((1, 256)), jnp.float32))
    point = objectives.spread(jnp.ones((64, 256)))
    assert float(spread["effective_rank"].value()) > 50
    assert float(line["effective_rank"].value()) == pytest.approx(1, abs=0.3)
    assert float(spread["feature_std"].value()) == pytest.approx(1, abs=0.05)
    assert float(point["feature_std"].value()) == 0


def test_padded_waypoints_have_no_gradient():
    rng = np.random.default_rng(4)
    predicted, truth = rng.normal(size=(2, 3, 20, 2)).astype(np.float32)
    valid = rng.random((3, 20)) < 0.5
    truth[~valid] = np.nan
    gradient = jax.grad(lambda p: waypoint_loss(p, jnp.asarray(truth), jnp.asarray(valid)).value())(
        jnp.asarray(predicted)
    )
    assert not np.asarray(gradient)[~valid].any()
    assert (np.abs(np.asarray(gradient)[valid]).max(-1) > 0).all()
    found = waypoint_loss(*map(jnp.asarray, (predicted, truth, valid)))
    expected = (np.sqrt(((predicted - truth) ** 2).sum(-1) + 0.01) - 0.1)[valid].mean()
    assert float(found.value()) == pytest.approx(float(expected), rel=1e-5)
    assert float(found.count) == valid.sum()


def test_weights_and_their_average_begin_at_the_loaded_encoder(monkeypatch: pytest.MonkeyPatch):
    learnt = {"w": np.ones(3, np.float32)}
    monkeypatch.setattr(waypoints, "read_start", lambda folder, config: {"encoder": learnt})
    task = waypoints.WaypointTask.__new__(waypoints.WaypointTask)
    vars(task).update(settings=SimpleNamespace(weights="pretraining", modes=1), config=None)

    def fresh() -> dict[str, Any]:
        return {"encoder": {"w": jnp.zeros(3)}, "out": {"w": jnp.full(2, 5.0)}}

    state = TrainState(step=jnp.int32(0), params=fresh(), opt_state={}, target={}, ema=fresh())
    found = task.load(state)
    for part in (found.params, found.ema):
        assert part["encoder"]["w"].tolist() == [1, 1, 1]
        assert part["out"]["w"].tolist() == [5, 5]
    places = {part["encoder"]["w"].unsafe_buffer_pointer() for part in (found.params, found.ema)}
    assert len(places) == 2  # the state is donated
    assert task.load(state.replace(ema={})).ema == {}
