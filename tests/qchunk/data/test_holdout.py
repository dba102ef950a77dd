import shutil
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import DataError
from qchunk.data import Pool, compute_norm_stats, open_dataset
from qchunk.data.dataset import load_episode
from qchunk.data.holdout import held_out, measured
from tests.qchunk.recordings import arrays, config, dataset, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def names(root: Path, share: float, seed: int = 0) -> set[str]:
    cfg = config(root, seed=seed, holdout=share)
    source = open_dataset(cfg).source
    return {source.ids[int(i)] for i in np.flatnonzero(held_out(cfg.data, source))}


def test_the_share_of_each_label_is_held_out_the_same_for_every_seed_and_copy(tmp_path: Path):
    root = dataset(tmp_path / "a", lengths=(5,) * 20)  # 10 of each label
    held = names(root, 0.3)
    assert sorted(int(name.split("_")[1].split(".")[0]) % 2 for name in held) == [0] * 3 + [1] * 3
    assert names(root, 0.3, seed=7) == held
    assert names(Path(shutil.copytree(root, tmp_path / "b")), 0.3) == held
    assert names(root, 0.5) > held
    assert names(root, 0.0) == set()
    assert len(names(root, 0.99)) == 18  # one of each label stays


def test_another_episode_moves_at_most_one(tmp_path: Path):
    root = dataset(tmp_path, lengths=(5,) * 20)
    for before, number in ((names(root, 0.3), 20), (names(root, 0.3), 22)):
        write(root / f"a{number}.hdf5", arrays(5, number), success=True)  # the first of all
        assert len(before - names(root, 0.3)) <= 1


def test_at_least_one_of_a_label_with_two(tmp_path: Path):
    assert len(names(dataset(tmp_path, lengths=(5,) * 4), 0.01)) == 2
    with pytest.raises(DataError, match=r"data.holdout is 0.5, and no label has more than one episode of 2"):
        names(dataset(tmp_path / "b", lengths=(5, 5)), 0.5)


def test_no_pool_draws_them_and_no_statistic_knows_them(tmp_path: Path):
    root = dataset(tmp_path, lengths=(7, 12, 5, 9, 20, 3))
    cfg = config(root, holdout=0.4, episodes_per_epoch=8, action_norm="mean_std", refresh="rolling", refresh_parts=2)
    found = open_dataset(cfg)
    held = {found.source.ids[int(i)] for i in np.flatnonzero(held_out(cfg.data, found.source))}
    drawn = {name for epoch in range(6) for part in (0, 1) for name in Pool(cfg, epoch, 0, part=part).ids}
    assert len(held) == 2
    assert drawn == set(found.source.ids) - held
    kept = [load_episode(found.source, i).action for i in range(6) if found.source.ids[i] not in held]
    np.testing.assert_allclose(compute_norm_stats(cfg)["actions"].mean, np.concatenate(kept).mean(0, dtype=float))


def test_of_more_than_a_pool_holds_each_label_has_its_share_of_those_measured(tmp_path: Path):
    """Nine failures come before three successes in the order of files; four of the twelve are measured."""
    for folder, count in (("score_1", 18), ("score_5", 6)):
        for number in range(count):
            write(tmp_path / f"{folder}/episode_{number:02d}.hdf5", arrays(5, number), success=folder == "score_5")
    cfg = config(tmp_path, holdout=0.5, episodes_per_epoch=4)
    source = open_dataset(cfg).source
    taken = measured(cfg.data, source)
    assert held_out(cfg.data, source)[taken].all()
    assert source.positives[taken].tolist() == [False, False, False, True]
    wide = config(tmp_path, holdout=0.5, episodes_per_epoch=12)
    np.testing.assert_array_equal(measured(wide.data, source), np.flatnonzero(held_out(wide.data, source)))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_out_of_range(tmp_path: Path, share: float):
    with pytest.raises(ValueError, match=r"data\.holdout is"):
        config(tmp_path, holdout=share)
