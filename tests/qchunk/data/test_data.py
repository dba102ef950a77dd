import os
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from chunkwise.data import norm_stats
from chunkwise.errors import ConfigError, DataError
from qchunk import data
from qchunk.data import Batch, Pool, make_batches, refresh, stream
from qchunk.data import dataset as dataset_lib
from qchunk.data.readers import aloha
from tests.qchunk.recordings import ACTION, QPOS, STATE, arrays, assert_same, config, dataset, plain_transition, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def take(batches: Any, count: int) -> list[Batch]:
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("kind", ["reward", "terminated", "labels", "labels_terminated"])
def test_transitions_have_the_bits_of_a_plain_reading(tmp_path: Path, kind: str):
    options = {"reward": "labels" not in kind, "terminated": "terminated" in kind}
    root = dataset(tmp_path, lengths=(40, 3, 25, 1, 60, 8, 30, 50), **options)
    pool = Pool(config(root, horizon=6, episodes_per_epoch=8, discount=0.97), 0, 0)
    assert sorted(pool.ids) == sorted(f"episode_{i}.hdf5" for i in range(8))
    rng = np.random.default_rng(0)
    for episode in rng.integers(0, 8, 250):  # 1,000 pairs over the four kinds
        start = int(rng.integers(0, pool.lengths[episode]))
        plain = plain_transition(root / pool.ids[episode], start, horizon=6, discount=0.97)
        assert_same(pool.transition(int(episode), start), plain)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frames=st.lists(st.tuples(st.booleans(), st.floats(-100, 100)), min_size=1, max_size=9),
    horizon=st.integers(1, 12),
    discount=st.floats(0.05, 1.0),
)
def test_every_start_of_odd_episodes(tmp_path: Path, frames: list, horizon: int, discount: float):
    """Chunks longer than the episode, starts at the last frame, terminated frames anywhere and several of them."""
    content = arrays(len(frames), 0) | {
        "/terminated": np.array([t for t, _ in frames]),
        "/reward": np.array([r for _, r in frames]),
    }
    file = write(tmp_path / "one" / "episode_0.hdf5", content, success=True)
    pool = Pool(config(file.parent, horizon=horizon, discount=discount, episodes_per_epoch=1, positive_ratio=1.0), 0, 0)
    batch: Any = pool.batch(np.arange(len(pool)))
    for start in range(len(frames)):
        plain = plain_transition(file, start, horizon=horizon, discount=discount)
        assert_same(pool.transition(0, start), plain)
        np.testing.assert_array_equal(batch["rewards"][start], plain["rewards"])
        np.testing.assert_array_equal(batch["actions"][start], plain["actions"])


def test_a_batch_is_its_transitions_stacked(tmp_path: Path):
    pool = Pool(config(dataset(tmp_path)), 0, 0)
    batch: Any = pool.batch(np.arange(len(pool)))
    row = 0
    for episode, length in enumerate(pool.lengths):
        for start in range(length):
            one = pool.transition(episode, start)
            assert_same(
                {k: v[row] for k, v in batch.items() if not isinstance(v, dict)},
                {k: v for k, v in one.items() if not isinstance(v, dict)},
            )
            assert_same(batch["next_observations"]["qpos"][row], one["next_observations"]["qpos"])
            row += 1
    assert row == len(pool)


def test_a_place_outside_the_pool_is_refused(tmp_path: Path):
    pool = Pool(config(dataset(tmp_path)), 0, 0)
    for episode, start in ((4, 0), (-1, 0), (0, int(pool.lengths[0])), (0, -1)):
        with pytest.raises(IndexError, match=r"episode is|start is"):
            pool.transition(episode, start)
    for start in (-1, len(pool)):
        with pytest.raises(IndexError, match=f"start is {start}; the pool holds 0 to {len(pool) - 1}"):
            pool.batch(np.array([0, start]))


def test_a_part_that_the_refresh_does_not_have_is_refused(tmp_path: Path):
    path = dataset(tmp_path)
    with pytest.raises(ConfigError, match=r"part is 1; expected 0 to 0 \(data\.refresh is 'epoch'\)"):
        Pool(config(path), 0, 0, part=1)
    with pytest.raises(ConfigError, match=r"part is 2; expected 0 to 1 \(data\.refresh_parts\)"):
        Pool(config(path, refresh="rolling", refresh_parts=2), 0, 0, part=2)


def test_the_batch_has_the_documented_shapes_and_dtypes(tmp_path: Path):
    batch: Any = next(make_batches(config(dataset(tmp_path), batch=8, horizon=5)))
    assert batch.keys() == Batch.__annotations__.keys()
    for name in ("rewards", "masks", "valid"):
        assert (batch[name].shape, batch[name].dtype) == ((8, 5), np.float32)
    assert (batch["terminals"].shape, batch["terminals"].dtype) == ((8, 5), bool)
    assert (batch["actions"].shape, batch["actions"].dtype) == ((8, 5, ACTION), np.float32)
    assert (batch["is_positive"].shape, batch["is_positive"].dtype) == ((8,), bool)
    assert (batch["final_reward"].shape, batch["final_reward"].dtype) == ((8,), np.float32)
    for name in ("observations", "next_observations"):
        assert batch[name]["qpos"].shape == (8, QPOS)
        assert batch[name]["state"].shape == (8, STATE)
        assert batch[name]["images"] is batch[name]["depth_images"] is None


def test_files_without_state_give_none(tmp_path: Path):
    content = arrays(9, 0)
    del content["/observations/state"]
    write(tmp_path / "episode_0.hdf5", content, success=True)
    assert next(make_batches(config(tmp_path)))["observations"]["state"] is None
    assert data.dims(config(tmp_path)) == data.Dims(observation=QPOS, action=ACTION)
    with pytest.raises(DataError, match=r"/observations/state: expected this array, for data\.observation=state"):
        data.dims(config(tmp_path, observation="state"))


def start_of(batch: Any, values: np.ndarray) -> np.ndarray:
    """Global start of each row, found by its first joint."""
    order = np.argsort(values)
    return order[np.searchsorted(values[order], batch["observations"]["qpos"][:, 0])]


def test_every_start_is_drawn_at_its_expected_rate(tmp_path: Path):
    cfg = config(dataset(tmp_path, lengths=(40, 3, 25, 1)), batch=500, steps_per_epoch=1000)
    pool = Pool(cfg, 0, 0)
    values = pool.batch(np.arange(len(pool)))["observations"]["qpos"][:, 0]
    batches = make_batches(cfg)
    counts = np.zeros(len(pool))
    for batch in take(batches, 400):  # 200,000 draws
        counts += np.bincount(start_of(batch, values), minlength=len(pool))
    assert counts.sum() == 200_000
    assert stats.chisquare(counts).pvalue > 1e-3


def test_shards_epochs_and_seeds_differ(tmp_path: Path):
    root = dataset(tmp_path, lengths=(30,) * 12)
    pools = [
        Pool(config(root, shards=2, seed=seed), epoch, shard)
        for seed, epoch, shard in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    assert len({frozenset(pool.ids) for pool in pools}) == 4
    batches = take(make_batches(config(root, shards=2)), 11)
    first, second = batches[0]["observations"]["qpos"][:4], batches[0]["observations"]["qpos"][4:]
    assert not np.array_equal(first, second)
    assert not np.array_equal(batches[0]["actions"], batches[1]["actions"])
    assert not np.array_equal(batches[0]["actions"], batches[10]["actions"])  # the same step of the next epoch
    again = Pool(config(root, shards=2), 0, 1)
    assert again.ids == pools[1].ids


@pytest.mark.parametrize("step", [0, 1, 9, 10, 25, 1_000_000_007])
def test_resuming_at_a_step_gives_its_batch(tmp_path: Path, step: int):
    cfg = config(dataset(tmp_path))
    batches = make_batches(cfg, start_step=max(step - 3, 0))
    run = take(batches, min(step, 3) + 2)
    resumed = take(make_batches(cfg, start_step=step), 2)
    for one, other in zip(run[-2:], resumed, strict=True):
        assert_same(one, other)


def test_the_iterator_keeps_grains_state(tmp_path: Path):
    root = dataset(tmp_path)
    for threads in (0, 2):
        batches: Any = make_batches(config(root, read_threads=threads))
        take(batches, 13)
        assert batches.get_state() == {"next_index": 13}
        after = take(batches, 2)
        batches.set_state({"next_index": 13})
        for one, other in zip(after, take(batches, 2), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(("shards", "processes"), [(1, 2), (2, 1), (3, 2), (3, 4), (4, 6), (2, 12)])
def test_any_number_of_processes_gives_the_same_stream(tmp_path: Path, shards: int, processes: int):
    cfg = config(dataset(tmp_path), batch=12, shards=shards)
    whole = take(make_batches(cfg), 12)
    parts = [take(make_batches(cfg, shard=p, num_shards=processes), 12) for p in range(processes)]
    for step, batch in enumerate(whole):
        joined = stream._concatenate([part[step] for part in parts])
        assert_same(batch, joined)


def test_a_process_loads_only_the_pools_of_its_rows(tmp_path: Path):
    cfg = config(dataset(tmp_path), batch=12, shards=4)
    touched = [[cut.shard for cut in stream.pieces(cfg, p, 3)] for p in range(3)]
    assert touched == [[0, 1], [1, 2], [2, 3]]
    assert [cut.rows for cut in stream.pieces(cfg, 1, 3)] == [slice(1, 3), slice(0, 2)]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_the_stream(tmp_path: Path, threads: int):
    cfg = config(dataset(tmp_path), steps_per_epoch=7)
    plain = take(make_batches(cfg), 40)
    threaded = take(make_batches(config(tmp_path, steps_per_epoch=7, read_threads=threads)), 40)
    for one, other in zip(plain, threaded, strict=True):
        assert_same(one, other)


def test_an_epoch_of_one_step_works_with_threads(tmp_path: Path):
    cfg = config(dataset(tmp_path), steps_per_epoch=1, read_threads=2)
    for step, batch in enumerate(take(make_batches(cfg), 6)):
        again = next(make_batches(config(tmp_path, steps_per_epoch=1), start_step=step))
        assert_same(batch, again)


def test_processes_must_divide_the_batch(tmp_path: Path):
    cfg = config(dataset(tmp_path), batch=8)
    with pytest.raises(ConfigError, match="batch_size 8: expected a multiple of the number of shards, 3"):
        make_batches(cfg, num_shards=3)
    with pytest.raises(ConfigError, match="shards, 2, and a shard below it, found shard 2"):
        make_batches(cfg, shard=2, num_shards=2)
    with pytest.raises(ConfigError, match="expected a multiple of the number of shards, 0, "):
        make_batches(cfg, num_shards=0)
    with pytest.raises(ConfigError, match=r"start_step is -1; expected the number of the first batch, 0 or above"):
        make_batches(cfg, start_step=-1)


def test_a_batch_owns_its_memory(tmp_path: Path):
    batches = make_batches(config(dataset(tmp_path)))
    one = next(batches)
    kept = {key: np.copy(one[key]) for key in ("actions", "rewards", "masks", "valid", "terminals", "final_reward")}
    for key in kept:
        one[key][...] = 0
    take(batches, 3)
    again = next(make_batches(config(tmp_path)))
    for key, value in kept.items():
        np.testing.assert_array_equal(again[key], value)


def test_stats(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = dataset(tmp_path, lengths=(7, 12, 5, 9))
    pool = Pool(config(root), 3, 0)
    found = pool.stats()
    assert found["total_possible_starts"] == len(pool) == 33
    assert (found["loaded_episodes"], found["distinct_episodes"], found["positive_ratio"]) == (4, 4, 0.5)
    assert found["lengths"] == {"min": 5, "mean": 8.25, "max": 12}
    assert (found["epoch"], found["shard"], found["notes"]) == (3, 0, [])
    assert found["draws_per_start"] == 10 * 8 / 33
    assert found["bytes"] >= (33 + 4 * 5) * 4 * (QPOS + STATE + ACTION)
    short = Pool(config(root, episodes_per_epoch=6, positive_ratio=1.0), 0, 0).stats()
    assert (short["loaded_episodes"], short["distinct_episodes"]) == (6, 2)
    assert short["notes"] == ["2 positive episodes for 6 places: some are drawn more than once"]
    take(make_batches(config(root, episodes_per_epoch=6, positive_ratio=1.0)), 25)
    assert capsys.readouterr().out.count("drawn more than once") == 1


def test_the_ratio_is_that_of_the_pool(tmp_path: Path):
    root = dataset(tmp_path, lengths=(4,) * 20)
    assert Pool(config(root, episodes_per_epoch=10, positive_ratio=0.6), 0, 0).stats()["positive_ratio"] == 0.6


def test_normalisation_is_applied_when_the_pool_loads(tmp_path: Path):
    cfg = config(
        dataset(tmp_path),
        observation="state",
        observation_norm="mean_std",
        action_norm="quantile",
        episodes_per_epoch=6,
    )
    opened = data.open_dataset(cfg)
    files = [opened.source.load(i) for i in range(6)]
    states = np.concatenate([file.states["state"] for file in files])
    pool = Pool(cfg, 0, 0)
    batch = pool.batch(np.arange(len(pool)))
    seen, first = batch["observations"]["state"], batch["actions"][:, 0]
    assert seen is not None
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(0), 1, rtol=1e-5)
    raw = np.concatenate([opened.source.load(opened.source.ids.index(name)).action for name in pool.ids])
    np.testing.assert_allclose(opened.action_norm.invert(first), raw, atol=1e-5)
    stats_of = data.compute_norm_stats(cfg)
    np.testing.assert_allclose(stats_of["state"].mean, states.mean(0, dtype=np.float64), rtol=1e-6)
    low, high = stats_of["actions"].q01, stats_of["actions"].q99
    np.testing.assert_allclose(first, 2 * (raw - low) / (high - low) - 1, atol=1e-5)
    qpos = np.concatenate([opened.source.load(opened.source.ids.index(name)).states["qpos"] for name in pool.ids])
    np.testing.assert_array_equal(batch["observations"]["qpos"], qpos)  # not what the networks see: left alone


@pytest.mark.parametrize("observation", ["qpos", "state"])
def test_statistics_are_of_every_frame_of_every_episode(tmp_path: Path, observation: str):
    """First and last frames too, and episodes of one frame, whatever is drawn or positive."""
    root = dataset(tmp_path, lengths=(7, 1, 12, 1, 2))
    found = data.compute_norm_stats(config(root, observation=observation, episodes_per_epoch=2))
    names = {"state": f"/observations/{observation}", "actions": "/action"}
    assert found.keys() == names.keys()
    for key, name in names.items():
        x = np.concatenate([arrays(length, i)[name] for i, length in enumerate((7, 1, 12, 1, 2))]).astype(np.float64)
        np.testing.assert_allclose(found[key].mean, x.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found[key].std, x.std(0), rtol=1e-9)
        np.testing.assert_allclose(found[key].q01, x.min(0), atol=np.ptp(x, axis=0).max() / 1000)
        np.testing.assert_allclose(found[key].q99, x.max(0), atol=np.ptp(x, axis=0).max() / 1000)


def test_norm_stats_are_written_and_used(tmp_path: Path):
    root = dataset(tmp_path / "data")
    path = tmp_path / "norm_stats.json"
    norm_stats.save(path, data.compute_norm_stats(config(root)))
    loaded = data.open_dataset(config(root, action_norm="mean_std", norm_stats=str(path)))
    computed = data.open_dataset(config(root, action_norm="mean_std"))
    np.testing.assert_array_equal(loaded.action_norm.scale, computed.action_norm.scale)
    np.testing.assert_array_equal(loaded.observation_norm.scale, np.ones(QPOS))
    norm_stats.save(path, {"state": norm_stats.load(path)["state"]})
    with pytest.raises(DataError, match=r"expected 4 dimensions of 'actions', the array 'action', found none; .*write"):
        data.open_dataset(config(root, action_norm="mean_std", norm_stats=str(path)))


def test_a_dimension_that_never_moves_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    content = arrays(30, 0)
    content["/action"][:, 2] = 0.5
    write(tmp_path / "episode_0.hdf5", content, success=True)
    batch = next(make_batches(config(tmp_path, action_norm="mean_std", positive_ratio=1.0)))
    assert "data: action, dimension 2: scale 0 is below 0.001" in capsys.readouterr().out
    np.testing.assert_allclose(batch["actions"][:, :, 2], 0.0)


def test_the_next_pool_loads_while_this_one_is_used(tmp_path: Path):
    loaded, release = [], threading.Event()

    def load(epoch: int, previous: Any, cancelled: threading.Event) -> Any:
        if epoch == 1:
            release.wait(10)
        loaded.append(epoch)
        return {0: epoch}

    pools = refresh.PoolLoader(load)
    assert pools.get(0, go_on=False) == {0: 0}
    assert set(pools._loading) == {0}  # nothing is loaded ahead before it is time
    pools.get(0, go_on=True)
    assert set(pools._loading) == {0, 1}
    assert pools.get(0, go_on=True) == {0: 0}  # and the load does not hold up this epoch
    assert loaded == [0]
    release.set()
    assert pools.get(1, go_on=False) == {0: 1}
    assert set(pools._loading) == {0, 1}  # a thread may still be building the last batch of epoch 0
    pools.get(1, go_on=True)
    assert set(pools._loading) == {1, 2}


def test_threads_that_wait_together_are_counted_once():
    pools = refresh.PoolLoader(lambda number, previous, cancelled: time.sleep(0.3))
    began = time.perf_counter()
    threads = [threading.Thread(target=pools.get, args=(0,), kwargs={"go_on": False}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < pools.waited <= time.perf_counter() - began  # not eight times as long


def test_a_failure_in_the_background_is_raised_when_the_pool_is_needed(tmp_path: Path):
    cfg = config(dataset(tmp_path), steps_per_epoch=5, read_threads=0)
    batches: Any = make_batches(cfg)
    take(batches, 1)
    batches._batches._pools._loading[1].result()
    for file in tmp_path.glob("*.hdf5"):  # the pool of epoch 1 is there; that of epoch 2 can't be read
        with file.open("r+b") as h5:
            h5.write(bytes(2048))
    take(batches, 9)
    with pytest.raises(DataError, match=r"episode_\d\.hdf5: changed since the dataset was opened"):
        next(batches)


def test_reading_is_tried_four_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    opened = data.open_dataset(config(dataset(tmp_path)))
    tries = []

    read = opened.source.load

    def flaky(index: int) -> Any:
        tries.append(index)
        if len(tries) < 3:
            raise OSError("stale file handle")
        return read(index)

    monkeypatch.setattr(opened.source, "load", flaky)
    assert dataset_lib.load_episode(opened.source, 1).id == "episode_1.hdf5"
    assert tries == [1, 1, 1]  # the third succeeded
    tries.clear()

    def broken(index: int) -> Any:
        tries.append(index)
        raise OSError("stale file handle")

    monkeypatch.setattr(opened.source, "load", broken)
    with pytest.raises(DataError, match=r"episode_1\.hdf5: could not be read in up to 4 tries: stale file handle"):
        dataset_lib.load_episode(opened.source, 1)
    assert tries == [1, 1, 1, 1]


def test_an_episode_that_changed_after_indexing_is_refused(tmp_path: Path):
    opened = data.open_dataset(config(dataset(tmp_path)))
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as h5:
        del h5["action"]
        h5["action"] = np.zeros((3, ACTION), np.float32)
    with pytest.raises(DataError, match=r"episode_0\.hdf5: changed since the dataset was opened"):
        opened.source.load(0)


def test_actions_whose_sign_was_turned_while_it_runs_are_noticed(tmp_path: Path):
    opened = data.open_dataset(config(dataset(tmp_path)))
    before = opened.source.load(0)
    file = tmp_path / "episode_0.hdf5"
    file.touch()
    np.testing.assert_array_equal(opened.source.load(0).action, before.action)
    status = file.stat()
    with h5py.File(file, "r+") as h5:
        h5["/action"][...] *= -1  # pyright: ignore
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    with pytest.raises(DataError, match=r"episode_0\.hdf5: changed since the dataset was opened"):
        opened.source.load(0)


def test_a_change_while_an_episode_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened = data.open_dataset(config(dataset(tmp_path)))
    read = aloha._read

    def read_then_change(h5: h5py.File, key: str) -> Any:
        found = read(h5, key)
        (tmp_path / "episode_0.hdf5").write_bytes(b"other")
        return found

    monkeypatch.setattr(aloha, "_read", read_then_change)
    with pytest.raises(DataError, match=r"episode_0\.hdf5: changed since the dataset was opened"):
        opened.source.load(0)


def test_a_link_to_a_folder_of_episodes_is_followed(tmp_path: Path):
    dataset(tmp_path / "elsewhere" / "score_5")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "score_5").symlink_to(tmp_path / "elsewhere" / "score_5")
    with pytest.raises(DataError, match=r"score_5: a path that leads out .*--data\.allow-links-to"):
        data.open_dataset(config(tmp_path / "set"))
    allowed = (str(tmp_path / "elsewhere"),)
    opened = data.open_dataset(config(tmp_path / "set", allow_links_to=allowed))
    assert opened.source.ids[0] == "score_5/episode_0.hdf5"
    assert opened.source.positives.all()
    assert len(opened.source.load(0).action) == opened.source.lengths[0]


def test_loading_stops_when_the_run_ends(tmp_path: Path):
    from concurrent.futures import CancelledError

    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledError):
        Pool(config(dataset(tmp_path)), 0, 0, cancelled=stop)


def test_labels_are_dealt_at_their_even_share():
    """Two positives of six: at 1/4 and 3/4, the others at 1/8, 3/8, 5/8 and 7/8."""
    positive = np.array([True, False, True, False, False, False])
    np.testing.assert_array_equal(refresh._dealt(positive), [1, 0, 3, 4, 2, 5])
