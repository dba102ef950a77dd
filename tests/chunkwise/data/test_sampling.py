import ast
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from chunkwise.data import sampling
from chunkwise.data.sampling import Purpose, generator, seed_of, seed_of_draw, uniform_rows, words
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
    assert (draw(50, 50, 3, 0.55).indices < 100).sum() == 2  # round(1.65)
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


def families() -> dict[str, list[Purpose]]:
    """Purposes that may be drawn from one seed in one program."""
    found: dict[str, list[Purpose]] = {}
    for purpose in Purpose:
        found.setdefault(purpose.value[0], []).append(purpose)
    return found


def test_purposes_of_one_program_are_distinct_and_so_are_their_streams():
    """numpy takes [a, b] and [a, b, 0] for the same, so no word is as 0."""
    assert len(families()["qchunk"]) == 5
    assert len(families()["openpi_ript"]) == 9
    for name, purposes in families().items():
        drawn = set()
        for purpose in purposes:
            assert [one.word or 0 for one in purposes].count(purpose.word or 0) == 1, purpose
            if "Philox" in name:
                drawn.add(tuple(sampling.philox(purpose, 3, 1, shard=2, step=5).integers(0, 1 << 62, 2).tolist()))
            else:
                drawn.add(tuple(generator(purpose, 3, 1, 5).integers(0, 1 << 62, 2).tolist()))
        assert len(drawn) == len(purposes)


def test_what_is_drawn_online_and_in_an_evaluation_never_coincides():
    """Whatever the numbers are: at first the third call of an evaluation drew what the policy drew online."""
    numbers = [(step, episode) for step in range(6) for episode in range(6)]
    draws = [[*words(Purpose.QCHUNK_EVALUATION_ACTION, 0, *one), chunk] for one in numbers for chunk in range(6)]
    seeds = [seed_of_draw(draw) for draw in draws]
    for purpose in (Purpose.ONLINE_SCENE, Purpose.ONLINE_ACTION, Purpose.ONLINE_ROWS, Purpose.QCHUNK_EVALUATION_SCENE):
        seeds += [seed_of(purpose, 0, number) for number in range(6)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(
    ("purpose", "numbers", "seeds"),
    [
        (Purpose.QCHUNK_EVALUATION_SCENE, (7,), [3, 7]),
        (Purpose.ONLINE_SCENE, (7,), [3, 7, 1]),
        (Purpose.ONLINE_ACTION, (7,), [3, 7, 2]),
        (Purpose.ONLINE_ROWS, (7,), [3, 7, 3]),
        (Purpose.QCHUNK_EVALUATION_ACTION, (7, 2), [3, 7, 2, 4]),
        (Purpose.RIPT_ORDER, (7,), [3, 7]),
        (Purpose.ROLLOUT_SCENE, (7,), [3, 7, 1]),
        (Purpose.ROLLOUT_ACTION, (7, 8, 9), [3, 7, 8, 9, 2]),
        (Purpose.RIPT_EVALUATION, (7,), [3, 7, 3]),
        (Purpose.ROLLOUT_ROWS, (7,), [3, 7, 4]),
        (Purpose.CANDIDATES, (7,), [3, 7, 5]),
        (Purpose.CHUNK_ORDER, (7, 2), [3, 7, 2, 6]),
        (Purpose.SERVED_ACTION, (1, 7, 0), [3, 1, 7, 0]),
        (Purpose.DRIVING_ORDER, (7,), [3, 7]),
        (Purpose.PLAY, (7, 1), [3, 7, 1]),
        (Purpose.TRANSFER, (7,), [3, 7]),
        (Purpose.DEMONSTRATION, (7,), [3, 7]),
        (Purpose.POINT, (7, 1), [3, 7, 1]),
        (Purpose.DRIVE, (7,), [3, 7, 0]),
        (Purpose.PLAN_NOISE, (7,), [3, 7, 1]),
        (Purpose.LOST_IMAGES, (7,), [3, 7, 2]),
    ],
)
def test_runs_and_recordings_of_earlier_versions_go_on_with_the_same_numbers(
    purpose: Purpose, numbers: tuple[int, ...], seeds: list[int]
):
    expected = np.random.default_rng(seeds)
    assert generator(purpose, 3, *numbers).random() == expected.random()
    assert seed_of(purpose, 3, *numbers) == np.random.SeedSequence(seeds).generate_state(1)[0]


def test_philox_counts_purpose_shard_and_step():
    for purpose, word in ((Purpose.POOL_EPISODES, 0), (Purpose.POOL_STARTS, 1), (Purpose.AUGMENTATION, 0)):
        assert sampling.philox(purpose, 3, 4, shard=5, step=6).random() == philox(3, 4, word, 5, 6).random()


def test_seeds_are_made_of_purposes_alone():
    """No other file puts the words of a seed together, and no two names of jax keys coincide."""
    root, names = Path(__file__).parents[3], set()
    for folder in ("chunkwise", "qchunk", "openpi_ript", "driving"):
        for path in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                if called == "rngs.key":
                    assert isinstance(node.args[1], ast.Constant), path
                    names.add(node.args[1].value)
                if path.name != "sampling.py" and called.endswith(("SeedSequence", "default_rng", "Philox")):
                    for argument in node.args:
                        where = f"{path}:{node.lineno}"
                        assert not isinstance(argument, ast.List) or "draw" in ast.unparse(argument), where
    assert len(names) >= 8
    assert len({zlib.crc32(name.encode()) for name in names}) == len(names)


def test_rows_of_numbers_are_those_of_a_generator_each() -> None:
    places = [(0, 3), (2, 3), (2, 4), (0, 3)]
    rows = uniform_rows(Purpose.AUGMENTATION, 9, places, 7)
    for row, (epoch, step) in zip(rows, places, strict=True):
        counter = np.array([0, step, 0, Purpose.AUGMENTATION.word], np.uint64)
        alone = np.random.Philox(key=np.array([9, epoch], np.uint64), counter=counter)
        np.testing.assert_array_equal(row, np.random.Generator(alone).random(7))
    with pytest.raises(ConfigError, match=r"run.seed is -1; expected 0 to 2\^63 - 1"):
        uniform_rows(Purpose.AUGMENTATION, -1, places, 7)
