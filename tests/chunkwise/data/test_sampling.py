import numpy as np
import pytest
from scipy import stats

from chunkwise.data import sampling
from chunkwise.errors import ConfigError

PLACE = {"seed": 3, "epoch": 5, "shard": 7, "block": 11}


def starts(**changed: int) -> np.ndarray:
    return sampling.block_of_starts(1000, 32, **(PLACE | changed))


def test_a_block_is_a_function_of_its_place():
    np.testing.assert_array_equal(starts(), starts())
    assert starts().shape == (sampling.STEPS_PER_BLOCK, 32)
    assert starts().min() >= 0
    assert starts().max() < 1000


def philox(seed: int, epoch: int, purpose: int, shard: int, step: int) -> np.random.Generator:
    """The documented law: key (seed, epoch), counter (0, step, shard, purpose) from the lowest word up."""
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, step, shard, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@pytest.mark.parametrize("place", [PLACE, {"seed": 0, "epoch": 0, "shard": 0, "block": 0}, PLACE | {"seed": 1 << 62}])
def test_starts_follow_the_documented_law(place: dict[str, int]):
    """Runs of earlier versions go on from what it gave."""
    for total, size in ((1000, 32), (7, 3)):
        found = sampling.block_of_starts(total, size, **place)
        rng = philox(place["seed"], place["epoch"], 1, place["shard"], place["block"])
        np.testing.assert_array_equal(found, rng.integers(0, total, (64, size)))


def test_episodes_follow_the_documented_law():
    positives, negatives = np.arange(10, 30), np.arange(50, 60)
    for seed, epoch, shard in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        found = sampling.draw_episodes(
            positives, negatives, count=9, positive_ratio=0.6, seed=seed, epoch=epoch, shard=shard
        )
        rng = philox(seed, epoch, 0, shard, 0)
        expected = [rng.choice(positives, 5, replace=False), rng.choice(negatives, 4, replace=False)]
        np.testing.assert_array_equal(found.indices, np.concatenate(expected))


def test_every_coordinate_gives_other_starts():
    blocks = [starts()] + [starts(**{name: value + 1}) for name, value in PLACE.items()]
    # Two unrelated draws of 1 in 1000 agree in about 2 of 2048 places.
    for i, one in enumerate(blocks):
        assert len(np.unique(one, axis=0)) == len(one), "no step has the starts of another one"
        for other in blocks[:i]:
            assert (one == other).sum() < 20


def test_epoch_and_shard_do_not_stand_in_for_each_other():
    # `epoch_seed + rank * 1000`, as the specification has it, gives epoch 1000 of rank 0 and epoch 0 of rank 1 the
    # same seed.
    assert (starts(epoch=1000, shard=0) == starts(epoch=0, shard=1)).sum() < 20
    assert (starts(epoch=1, shard=0) == starts(epoch=0, shard=1)).sum() < 20


def test_starts_are_uniform():
    drawn = np.concatenate([sampling.block_of_starts(50, 32, seed=0, epoch=0, shard=0, block=i) for i in range(50)])
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=50)).pvalue > 1e-3


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_out_of_range_is_refused(seed: int):
    with pytest.raises(ConfigError, match=r"run\.seed"):
        starts(seed=seed)


def draw(positives: int, negatives: int, count: int, ratio: float, epoch: int = 0) -> sampling.EpisodeDraw:
    return sampling.draw_episodes(
        np.arange(positives),
        np.arange(100, 100 + negatives),
        count=count,
        positive_ratio=ratio,
        seed=0,
        epoch=epoch,
        shard=0,
    )


def test_draws_the_ratio_without_replacement():
    found = draw(50, 50, 32, 0.6)
    assert len(found.indices) == len(set(found.indices)) == 32
    assert (found.indices < 100).sum() == 19  # round(0.6 * 32)
    assert found.notes == ()
    assert set(found.indices) != set(draw(50, 50, 32, 0.6, epoch=1).indices)


def test_a_small_class_is_taken_whole_before_any_is_repeated():
    found = draw(3, 50, 10, 0.8)
    positives = found.indices[found.indices < 100]
    assert len(positives) == 8
    assert set(positives) == {0, 1, 2}
    assert len(set(found.indices[found.indices >= 100])) == 2
    assert found.notes == ("3 positive episodes for 8 places: some are drawn more than once",)


def test_a_missing_class_is_filled_with_the_other():
    found = draw(0, 20, 10, 0.6)
    assert len(set(found.indices)) == 10
    assert found.indices.min() >= 100
    assert found.notes == ("no positive episode: its 6 places of 10 are filled with negative ones",)
    found = draw(4, 0, 10, 0.6)
    assert len(found.indices) == 10
    assert set(found.indices) == {0, 1, 2, 3}
    assert len(found.notes) == 2


def test_no_note_where_a_class_is_not_asked_for():
    assert draw(10, 0, 10, 1.0).notes == ()
    assert draw(0, 10, 10, 0.0).notes == ()


def test_no_episode_at_all_is_an_error():
    with pytest.raises(ValueError, match="no episodes"):
        draw(0, 0, 1, 0.5)


def test_episodes_are_drawn_equally_often_over_epochs():
    counts = np.zeros(20)
    for epoch in range(500):
        counts[draw(20, 0, 5, 1.0, epoch=epoch).indices] += 1
    assert stats.chisquare(counts).pvalue > 1e-3
