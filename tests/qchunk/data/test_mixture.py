"""qchunk/data/mixture.py: folders of a dataset by their weights, in shares of the frames that are drawn."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkwise.errors import DataError
from qchunk.config import QChunkConfig
from qchunk.data import Dataset, compute_norm_stats, make_batches, mixture, open_dataset
from qchunk.data.dataset import load_episode
from qchunk.data.holdout import held_out
from qchunk.data.mixture import _rounded
from qchunk.data.refresh import episodes_of_pool
from tests.qchunk.recordings import STATE, arrays, config, write

WEIGHTS = {"near": 0.75, "out/away": 0.25}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def folders(root: Path) -> Path:
    """Near: 4 successes of 10 frames and 4 failures of 20; out/away: 3 successes of 6 frames; and one beside them."""
    for number in range(8):
        length = 10 if number % 2 else 20
        write(root / f"near/episode_{number}.hdf5", arrays(length, number), success=bool(number % 2))
    for number in range(3):
        write(root / f"out/away/episode_{number}.hdf5", arrays(6, 10 + number), success=True)
    write(root / "other/episode_0.hdf5", arrays(50, 20), success=True)
    return root


def mixed(root: Path, **data: Any) -> QChunkConfig:
    defaults = {"mixture": WEIGHTS, "episodes_per_epoch": 20, "positive_ratio": 0.6, "refresh_parts": 5}
    return config(root, **(defaults | data))


def folder_counts(run: QChunkConfig, found: Dataset, indices: np.ndarray) -> list[int]:
    return np.bincount(mixture.folders_of(run.data, found.source)[indices], minlength=2).tolist()


def test_places_by_hand(tmp_path: Path):
    """Near: 0.6 x 10 + 0.4 x 20 = 14 frames an episode; away: successes alone, of 6. 0.75 / 14 to 0.25 / 6: 9 to 7."""
    run = mixed(folders(tmp_path))
    found = open_dataset(run)
    drawn = np.ones(len(found.source), bool)
    np.testing.assert_allclose(mixture.places(run.data, found.source, drawn), [20 * 9 / 16, 20 * 7 / 16])
    expected = "weight 0.75, 0.75 of the rows drawn; 8 episodes, 120 frames, 11.2 of 20 places of a pool on average"
    assert f"mixture: near: {expected}" in found.notes
    assert not any("are off the weight" in note for note in found.notes)
    assert not any(name.startswith("other/") for name in (*found.source.ids, *found.files.names))
    for other in ({"near": 6.0, "out/away": 2.0}, {"out/away": 0.25, "near": 0.75}):  # the order is no part of it
        same = mixed(tmp_path, mixture=other)
        assert mixture.shares(same.data).tolist() == [0.75, 0.25]
        for epoch in range(5):
            one, two = (episodes_of_pool(of, found.source, epoch, 0, 0).indices for of in (run, same))
            np.testing.assert_array_equal(one, two)


def test_the_frames_of_pools_have_the_weights_shares(tmp_path: Path):
    """Over 300 pools of 20; a share of the frames is off by 0.003 (one standard error) with these lengths."""
    run = mixed(folders(tmp_path))
    found = open_dataset(run)
    frames, counts = np.zeros(2), []
    for epoch in range(300):
        indices = episodes_of_pool(run, found.source, epoch, 0, 0).indices
        assert len(indices) == 20
        counts.append(folder_counts(run, found, indices))
        frames += np.bincount(mixture.folders_of(run.data, found.source)[indices], found.source.lengths[indices])
    assert {tuple(one) for one in counts} == {(11, 9), (12, 8)}, "11.25 and 8.75 places, rounded"
    assert frames[0] / frames.sum() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("places", [8, 32])
def test_a_pool_of_few_episodes_gives_fewer_rows_of_long_ones_and_says_so(tmp_path: Path, places: int):
    """Weights of a half, episodes of 50 and 1,000 frames: of n places n / 21 are of long ones, on average.

    Of 8 it is one, in 8 of 21 pools, with 1,000 of 1,350 frames; of 32 it is one (10 pools of 21, 1,000 of 2,550) or
    two (11 of 21, 2,000 of 3,500). Every pool gives equally many rows.
    """
    for number in range(20):
        write(tmp_path / f"short/episode_{number}.hdf5", arrays(50, number), success=True)
    for number in range(3):
        write(tmp_path / f"long/episode_{number}.hdf5", arrays(1000, number), success=True)
    weights = {"short": 0.5, "long": 0.5}
    run = mixed(tmp_path, mixture=weights, episodes_per_epoch=places, positive_ratio=1.0)
    found = open_dataset(run)
    rows = {8: 8 / 21 * 1000 / 1350, 32: 10 / 21 * 1000 / 2550 + 11 / 21 * 2000 / 3500}[places]
    shares = mixture.rows_drawn(run.data, found.source, np.ones(23, bool))
    np.testing.assert_allclose(shares, [rows, 1 - rows], atol=0.003)
    drawn = [found.source.lengths[episodes_of_pool(run, found.source, e, 0, 0).indices] for e in range(200)]
    of_long = [lengths[lengths == 1000].sum() / lengths.sum() for lengths in drawn]
    assert np.mean(of_long) == pytest.approx(rows, abs=0.08)  # a standard error is 0.025
    (line,) = [note for note in found.notes if note.startswith("mixture: long:")]
    assert line.startswith(f"mixture: long: weight 0.5, {rows:.2g} of the rows drawn; 3 episodes, 3000 frames, ")
    off = [note for note in found.notes if "are off the weight" in note]
    if places == 32:
        assert off == []
    else:
        (note,) = off
        assert note.startswith("mixture: the rows of long, short are off")
        assert note.endswith("raise data.episodes_per_epoch")


def test_a_folder_that_few_pools_hold_is_not_said_to_be_off(tmp_path: Path):
    """Weight 0.004 of 8 places of equal episodes: 0.03 places a pool, and as many rows as the weight by arithmetic."""
    weights = {f"f{number}": 0.996 / 9 for number in range(9)} | {"rare": 0.004}
    for number, name in enumerate(weights):
        write(tmp_path / name / "episode_0.hdf5", arrays(20, number), success=True)
    found = open_dataset(mixed(tmp_path, mixture=weights, episodes_per_epoch=8, positive_ratio=1.0))
    assert len([note for note in found.notes if note.startswith("mixture: ")]) == 10
    assert [note for note in found.notes if "are off the weight" in note] == []


def test_each_folder_has_its_share_of_positives(tmp_path: Path):
    """12 of 20 places are for successes; where a folder has both labels, its share of them is 0.6."""
    root = folders(tmp_path)
    for number in range(3):
        write(root / f"out/away/failure_{number}.hdf5", arrays(6, 30 + number), success=False)
    run = mixed(root)
    found = open_dataset(run)
    of_away = []
    for epoch in range(200):
        indices = episodes_of_pool(run, found.source, epoch, 0, 0).indices
        positive, away = found.source.positives[indices], mixture.folders_of(run.data, found.source)[indices] == 1
        assert positive.sum() == 12
        of_away.append((positive & away).sum() / away.sum())
    assert np.mean(of_away) == pytest.approx(0.6, abs=0.02)


@settings(max_examples=25)
@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=6), st.integers(1, 64))
def test_places_are_rounded_to_their_mean_and_add_up(parts: list[float], count: int):
    wanted = np.array(parts) / sum(parts) * count
    ends = np.cumsum(wanted)
    ends[-1] = count
    each = np.array([_rounded(ends, u) for u in (np.arange(1000) + 0.5) / 1000])
    assert set(each.sum(1)) == {count}
    assert (np.abs(each - wanted) < 1 + 1e-9).all()
    np.testing.assert_allclose(each.mean(0), wanted, atol=2e-3)


def test_a_pool_is_a_function_of_seed_epoch_and_shard_and_folders_draw_apart(tmp_path: Path):
    root = folders(tmp_path)
    for number in range(8):  # as near, so that equal draws would show
        length = 10 if number % 2 else 20
        write(root / f"twin/episode_{number}.hdf5", arrays(length, 40 + number), success=bool(number % 2))
    run = mixed(root, mixture={"near": 0.5, "twin": 0.5}, episodes_per_epoch=8, positive_ratio=0.5)
    found = open_dataset(run)

    def drawn(epoch: int = 0, shard: int = 0, seed: int = 0) -> list[int]:
        of = dataclasses.replace(run, run=dataclasses.replace(run.run, seed=seed))
        return episodes_of_pool(of, found.source, epoch, 0, shard).indices.tolist()

    assert drawn() == drawn()
    assert len({tuple(one) for one in (drawn(), drawn(epoch=1), drawn(shard=1), drawn(seed=1))}) == 4
    halves = [np.array(drawn(epoch)).reshape(2, 4) for epoch in range(5)]
    assert any((near != twin - 8).any() for near, twin in halves)


@pytest.mark.parametrize("refresh", ["epoch", "rolling"])
def test_a_run_goes_on_at_any_step(tmp_path: Path, refresh: str):
    run = mixed(folders(tmp_path), refresh=refresh, holdout=0.3, observation_norm="quantile")
    whole = list(itertools.islice(make_batches(run), 24))
    for step in (7, 19):
        for one, other in zip(itertools.islice(make_batches(run, start_step=step), 4), whole[step:], strict=False):
            np.testing.assert_array_equal(one["actions"], other["actions"])
            np.testing.assert_array_equal(one["observations"]["state"], other["observations"]["state"])


def test_a_rolling_pool_keeps_the_shares_while_it_is_refreshed(tmp_path: Path):
    run = mixed(folders(tmp_path), refresh="rolling")
    found = open_dataset(run)
    for epoch, part in itertools.product(range(4), range(5)):
        near, away = folder_counts(run, found, episodes_of_pool(run, found.source, epoch, part, 0).indices)
        assert near + away == 20
        assert 10 <= near <= 13


def test_some_of_each_label_of_each_folder_are_held_out(tmp_path: Path):
    run = mixed(folders(tmp_path), holdout=0.25)
    source = open_dataset(run).source
    held = held_out(run.data, source)
    kinds = zip(mixture.folders_of(run.data, source)[held].tolist(), source.positives[held].tolist(), strict=True)
    assert sorted(kinds) == [(0, False), (0, True), (1, True)]
    drawn = {int(i) for epoch in range(20) for i in episodes_of_pool(run, source, epoch, 0, 0).indices}
    assert drawn == set(np.flatnonzero(~held).tolist())


def test_statistics_are_of_the_mixture(tmp_path: Path):
    """Each frame of a folder weighs the folder's share over its frames."""
    run = mixed(folders(tmp_path), action_norm="mean_std")
    found = open_dataset(run)
    episodes = [load_episode(found.source, index) for index in range(len(found.source))]
    frames = np.concatenate([episode.action for episode in episodes]).astype(np.float64)
    weights = np.concatenate(
        [np.full(e.length, 0.75 / 120 if e.id.startswith("near/") else 0.25 / 18) for e in episodes]
    )
    stats = compute_norm_stats(run)["actions"]
    mean = weights @ frames
    np.testing.assert_allclose(stats.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(stats.std, np.sqrt(weights @ np.square(frames - mean)), rtol=1e-9)
    order = np.argsort(frames[:, 0])
    assert stats.q99 is not None
    reached = np.cumsum(weights[order])[np.searchsorted(frames[order, 0], stats.q99[0])]
    assert reached == pytest.approx(0.99, abs=0.02)  # 138 frames: a frame is up to 0.014
    np.testing.assert_array_equal(stats.min, frames.min(0))


def test_folders_without_episodes_and_of_other_widths_are_refused_by_name(tmp_path: Path):
    root = folders(tmp_path)
    with pytest.raises(DataError, match=r"data\.mixture: .* holds no episode in nea, none; expected folders"):
        open_dataset(mixed(root, mixture={"nea": 1.0, "near": 1.0, "none": 1.0}))
    wide = arrays(6, 50)
    wide["/observations/qpos"] = np.zeros((6, STATE), np.float32)
    write(root / "out/away/wide.hdf5", wide, success=True)
    with pytest.raises(DataError, match=r"out/away/wide\.hdf5: /observations/qpos: expected 6 dimensions"):
        open_dataset(mixed(root))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"near": 1.0}, "two folders or more"),
        ({"near": 1.0, "far": 0.0}, "weights above 0"),
        ({"near": 1.0, "far": float("inf")}, "weights above 0"),
        ({"near": 1e308, "far": 1e308}, "expected weights whose sum is finite"),
        ({"near": 1.0, "/far": 1.0}, r"names \['/far'\]"),
        ({"near": 1.0, "../far": 1.0}, r"names \['../far'\]"),
        ({"near": 1.0, "near/far": 1.0}, r"names \['near/far'\]"),
        ({"near": 1.0, "far/": 1.0}, r"names \['far/'\]"),
    ],
)
def test_mixtures_that_make_no_sense(given: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        config(Path("set"), mixture=given)
    with pytest.raises(ValueError, match="is one dataset"):
        config(Path("set"), mixture=WEIGHTS, format="lerobot")


def test_a_folder_that_lost_more_than_one_in_a_hundred_is_told(tmp_path: Path):
    """One of 110 is left out, which is one of three of its folder."""
    for number in range(107):
        write(tmp_path / f"near/episode_{number}.hdf5", arrays(2, number), success=True)
    for number in range(3):
        write(tmp_path / f"out/away/episode_{number}.hdf5", arrays(2, number), success=True)
    (tmp_path / "out/away/episode_1.hdf5").write_bytes(b"torn")
    notes = open_dataset(config(tmp_path, mixture=WEIGHTS, on_bad="skip")).notes
    assert "  1 of the 3 of out/away, whose weight the other 2 bear alone" in notes
    assert not any("of near" in note for note in notes)
