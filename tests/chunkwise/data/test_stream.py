import numpy as np

from chunkwise.data.sampling import Purpose
from chunkwise.data.stream import EpochOrder


def test_every_row_is_drawn_once_an_epoch_far_into_the_stream() -> None:
    order = EpochOrder(np.arange(10, 21), Purpose.RIPT_ORDER, seed=0)
    far = 11 * 123_456_789
    assert sorted(order[far + k] for k in range(11)) == list(range(10, 21))
    assert [order[far + k] for k in range(11)] != [order[k] for k in range(11)]
    assert order.place(far + 3) == (123_456_789, 3)


def test_the_order_is_that_of_the_purpose_and_the_seed() -> None:
    """numpy's own permutation, seeded as `Purpose` says: (seed, epoch) for RIPT_ORDER, whatever was asked before."""
    rows = np.array([4, 9, 2, 7])
    order = EpochOrder(rows, Purpose.RIPT_ORDER, seed=3)
    for epoch in (5, 0, 2, 5):
        expected = rows[np.random.default_rng([3, epoch]).permutation(4)]
        assert [order[4 * epoch + k] for k in range(4)] == expected.tolist()
