import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunkwise.data import episodes


def plain_returns(reward: np.ndarray, terminated: np.ndarray, horizon: int, discount: float) -> np.ndarray:
    """The definition, one chunk and one step at a time."""
    out = np.zeros((len(reward), horizon), np.float32)
    for s in range(len(reward)):
        total, over = 0.0, False
        for i in range(horizon):
            if s + i < len(reward) and not over:
                total += discount**i * float(reward[s + i])
                over = bool(terminated[s + i])
            out[s, i] = total
    return out


def test_steps_to_termination_by_hand():
    terminated = np.array([0, 1, 0, 0, 1, 0], bool)
    never = episodes.NEVER
    assert episodes.steps_to_termination(terminated).tolist() == [1, 0, 2, 1, 0, never]
    assert episodes.steps_to_termination(np.zeros(2, bool)).tolist() == [never, never]


def test_chunk_returns_by_hand():
    reward = np.array([1.0, 2.0, 4.0, 8.0])
    steps = episodes.steps_to_termination(np.array([0, 0, 1, 0], bool))
    found = episodes.chunk_returns(reward, steps, horizon=3, discount=0.5)
    expected = [[1, 2, 3], [2, 4, 4], [4, 4, 4], [8, 8, 8]]  # frame 2 terminates: frame 3 counts for nobody before it
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


@given(
    frames=st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=1, max_size=12),
    horizon=st.integers(1, 16),
    discount=st.floats(0.01, 1.0),
)
def test_chunk_returns_have_the_bits_of_a_plain_loop(frames, horizon, discount):
    reward = np.array([r for r, _ in frames])
    terminated = np.array([t for _, t in frames])
    steps = episodes.steps_to_termination(terminated)
    found = episodes.chunk_returns(reward, steps, horizon=horizon, discount=discount)
    np.testing.assert_array_equal(found, plain_returns(reward, terminated, horizon, discount))


def test_pad_with_last_repeats_the_last_row():
    out = np.zeros((4, 2), np.float32)
    episodes.pad_with_last(out, np.array([[1, 2], [3, 4]], np.float32))
    assert out.tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]


def test_chunk_view_is_every_stretch_and_can_not_be_written():
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    view = episodes.chunk_view(x, 3)
    np.testing.assert_array_equal(view, np.stack([x[i : i + 3] for i in range(3)]))
    assert np.shares_memory(view, x)
    assert not view.flags.writeable


def test_first_steps_by_hand():
    assert episodes.first_steps(2).tolist() == [[False, False], [True, False], [True, True]]


def test_episode_of_meets_the_boundaries():
    cumulative = episodes.cumulative_lengths(np.array([3, 1, 2]))
    assert cumulative.tolist() == [3, 4, 6]
    assert episodes.episode_of(cumulative, np.arange(6)).tolist() == [0, 0, 0, 1, 2, 2]


def test_manifest_hash_sees_every_value_and_the_order():
    rows = [("a", 1, {"x": 2}), ("b", 1, {"x": 2})]
    same = episodes.manifest_hash(rows)
    assert episodes.manifest_hash(list(rows)) == same
    assert episodes.manifest_hash(rows[::-1]) != same
    assert episodes.manifest_hash([("a", 1, {"x": 3}), rows[1]]) != same
