import itertools
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg

from chunkwise.data.buffers import SPARES
from chunkwise.data.sampling import Purpose
from chunkwise.errors import ConfigError, DataError
from qchunk.data.dataloader_v3 import QCSimpleDatasetV3, create_qc_dataloader_v3
from tests.qchunk import image_recordings
from tests.qchunk.recordings import ACTION, QPOS, assert_same, dataset, plain_transition

CHUNK = 5


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def frames(root: Path) -> dict[bytes, tuple[Path, int]]:
    """File and frame of each qpos."""
    found = {}
    for file in sorted(root.glob("*.hdf5")):
        with h5py.File(file) as h5:
            found |= {row.tobytes(): (file, t) for t, row in enumerate(np.asarray(h5["/observations/qpos"]))}
    return found


def make(root: Path, **more: Any) -> tuple[QCSimpleDatasetV3, Any]:
    settings: dict[str, Any] = {"episodes_per_epoch": 4, "batch_size": 6, "num_workers": 1, "discount": 0.9}
    return create_qc_dataloader_v3(str(root), (), None, CHUNK, **(settings | more))


def test_every_transition_is_the_specifications(tmp_path: Path):
    root = dataset(tmp_path)
    pool, loader = make(root)
    where = frames(root)
    assert len(pool) == pool.total_starts == pool.episode_lengths.sum() == pool.get_stats()["total_possible_starts"]
    assert pool.get_stats()["loaded_episodes"] == len(pool.loaded_episodes) == len(pool.episode_labels) == 4
    rows = [pool[i] for i in range(len(pool))]
    for batch in itertools.islice(loader, 5):
        rows += [
            {key: x[k] for key, x in batch.items() if key not in ("observations", "next_observations")}
            | {key: {"qpos": batch[key]["qpos"][k]} for key in ("observations", "next_observations")}
            for k in range(6)
        ]
    for row in rows:
        file, start = where[row["observations"]["qpos"].tobytes()]
        expected = plain_transition(file, start, horizon=CHUNK, discount=0.9)
        np.testing.assert_allclose(row["rewards"], expected["rewards"], rtol=1e-6)
        for key in ("actions", "masks", "valid", "terminals", "is_positive"):
            np.testing.assert_array_equal(row[key], expected[key])
        np.testing.assert_array_equal(row["next_observations"]["qpos"], expected["next_observations"]["qpos"])
        assert row["final_reward"] == row["rewards"][-1]
    assert isinstance(rows[0]["is_positive"], bool)
    assert isinstance(rows[0]["final_reward"], float)


def test_images_are_float_chw_of_the_cameras_asked_for(tmp_path: Path):
    jpegs = image_recordings.write_episode(tmp_path / "episode_0.hdf5", 6, 0, success=True)
    cameras = ["cam_high", "cam_left_wrist", "cam_right_wrist"]
    pool, loader = create_qc_dataloader_v3(
        dataset_dir=str(tmp_path),
        camera_names=cameras,
        norm_stats=None,
        chunk_size=CHUNK,
        episodes_per_epoch=2,
        batch_size=4,
        rank=0,
        world_size=8,
        epoch_seed=0,
    )
    batch, one = next(iter(loader)), pool[3]
    assert batch["observations"]["images"].shape == (4, 3, 3, image_recordings.HEIGHT, image_recordings.WIDTH)
    assert batch["observations"]["images"].dtype == np.float32
    assert batch["observations"]["depth_images"] is None
    where = frames(tmp_path)
    shown = [(batch["observations"]["qpos"][k], batch["observations"]["images"][k]) for k in range(4)]
    for qpos, images in [*shown, (one["observations"]["qpos"], one["observations"]["images"])]:
        _, start = where[qpos.tobytes()]
        for camera, image in zip(cameras, images, strict=True):
            expected = simplejpeg.decode_jpeg(jpegs[camera][start]).transpose(2, 0, 1)
            np.testing.assert_array_equal(image, expected.astype(np.float32) / np.float32(255))
    last = QCSimpleDatasetV3(str(tmp_path), cameras, None, CHUNK, 2, layout="khwc", world_size=8)
    np.testing.assert_array_equal(
        last[3]["observations"]["images"], one["observations"]["images"].transpose(0, 2, 3, 1)
    )


def test_a_batch_is_a_function_of_epoch_rank_and_its_number(tmp_path: Path):
    root = dataset(tmp_path)
    first, loader = make(root, epoch_seed=3, world_size=2)
    batches = list(itertools.islice(loader, 70))  # past a block of draws
    again, other = make(root, epoch_seed=0, world_size=2)
    ahead = iter(other)
    next(ahead)
    again.refresh_epoch(3)
    assert_same(list(itertools.islice(ahead, 70))[69], batches[69])
    assert_same(again[4], first[4])
    elsewhere = make(root, epoch_seed=3, world_size=2, rank=1)[1]
    assert not np.array_equal(next(iter(elsewhere))["actions"], batches[0]["actions"])
    later = first[4]
    first.refresh_epoch(4)
    assert not np.array_equal(later["actions"], first[4]["actions"])


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_draws_frames_of_its_own(rank: int, tmp_path: Path):
    data, _ = make(dataset(tmp_path), epoch_seed=3, world_size=2, rank=rank)
    counter = np.array([0, 4, rank, Purpose.POOL_ITEM.word], np.uint64)
    bits = np.random.Philox(key=np.array([data._config.run.seed, 3], np.uint64), counter=counter)
    expected = data.pool.batch(np.random.Generator(bits).permutation(len(data))[4:5])
    for _ in range(4):
        data[4]
    np.testing.assert_array_equal(data[4]["actions"], expected["actions"][0])


def test_each_pass_over_the_indices_draws_every_frame_in_an_order_of_its_own(tmp_path: Path):
    root = dataset(tmp_path, lengths=(50, 50))
    pool, _ = make(root, episodes_per_epoch=2, positive_ratio=0.5)
    where = frames(root)
    first, second = ([where[pool[i]["observations"]["qpos"].tobytes()] for i in range(100)] for _ in range(2))
    assert set(first) == set(second) == set(where.values())
    # Of two orders that are drawn apart, one frame in the mean has the same place in both.
    in_order = [where[row.tobytes()] for row in pool.pool.batch(np.arange(100))["observations"]["qpos"]]
    for one, other in ((first, second), (first, in_order), (second, in_order)):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 8
    for idx in (-1, 100):
        with pytest.raises(IndexError, match=rf"idx is {idx}; expected 0 to 99"):
            pool[idx]
    pool.refresh_epoch(pool.epoch)
    assert [where[pool[i]["observations"]["qpos"].tobytes()] for i in range(100)] == first


def test_a_worker_that_was_not_forked_loads_the_same_pool(tmp_path: Path):
    root = dataset(tmp_path)
    pool = make(root, world_size=2, rank=1, holdout=0.3, action="qpos")[0]
    pool.refresh_epoch(5)
    there = pickle.loads(pickle.dumps(pool))
    assert (there.loaded_episodes, there.epoch) == (pool.loaded_episodes, 5)
    for i in range(len(pool)):
        assert_same(there[i], pool[i])


def test_statistics_by_alohas_names(tmp_path: Path):
    root = dataset(tmp_path)
    rng = np.random.default_rng(0)
    stats = {
        "qpos_mean": rng.normal(size=QPOS),
        "qpos_std": rng.uniform(0.5, 2, QPOS),
        "action_mean": rng.normal(size=ACTION).astype(np.float32),
        "action_std": rng.uniform(0.5, 2, ACTION).tolist(),
    }
    plain = make(root)[0][2]
    found = create_qc_dataloader_v3(str(root), (), stats, CHUNK, 4, discount=0.9)[0][2]
    expected = (plain["actions"] - stats["action_mean"]) / np.array(stats["action_std"])
    np.testing.assert_allclose(found["actions"], expected, rtol=1e-5, atol=1e-6)
    seen = (plain["observations"]["qpos"] - stats["qpos_mean"]) / stats["qpos_std"]
    np.testing.assert_allclose(found["observations"]["qpos"], seen, rtol=1e-5, atol=1e-6)
    for broken, message in (
        ({**stats, "action_std": np.zeros(ACTION)}, r"norm_stats\['action_std'\]: expected numbers above 0"),
        ({**stats, "qpos_mean": np.zeros(2)}, r"norm_stats\['qpos_mean'\]: expected 6 finite numbers"),
        ({"qpos_mean": stats["qpos_mean"]}, "expected 'qpos_std'"),
    ):
        with pytest.raises(DataError, match=message):
            create_qc_dataloader_v3(str(root), (), broken, CHUNK, 4)


def test_validation_has_the_episodes_that_training_never_draws(tmp_path: Path):
    root = dataset(tmp_path)
    train, _ = make(root, holdout=0.3)
    drawn = set(train.loaded_episodes)
    for epoch in range(1, 8):
        train.refresh_epoch(epoch)
        drawn |= set(train.loaded_episodes)
    assert (
        set(make(root, holdout=0.3, dataset_type="val")[0].loaded_episodes)
        == {file.name for file in root.glob("*.hdf5")} - drawn
    )


def test_statistics_of_qpos_are_not_put_onto_another_array(tmp_path: Path):
    """Both arrays may have one width, so that nothing else would be noticed."""
    root = dataset(tmp_path)
    stats = {"qpos_mean": np.zeros(QPOS), "qpos_std": np.ones(QPOS)}
    stats |= {"action_mean": np.zeros(ACTION), "action_std": np.ones(ACTION)}
    for given in (stats, None):
        with pytest.raises(ConfigError, match=r"observation is 'state'; expected 'qpos', .*make_batches gives"):
            create_qc_dataloader_v3(str(root), (), given, CHUNK, 4, observation="state")
    with pytest.raises(ConfigError, match=r"^action 'qpos' beside norm_stats, .* /action are normalised"):
        create_qc_dataloader_v3(str(root), (), stats, CHUNK, 4, action="qpos")
    with pytest.raises(ConfigError, match=r"^action_norm 'mean_std' beside norm_stats"):
        create_qc_dataloader_v3(str(root), (), stats, CHUNK, 4, action_norm="mean_std")
    assert len(create_qc_dataloader_v3(str(root), (), stats, CHUNK, 4, observation="qpos")[0])


def test_the_memory_of_validation_is_that_of_all_episodes_held_out(tmp_path: Path):
    """Eight raw episodes of 12 frames, four of them held out: a pool of one would have fitted into the budget."""
    image_recordings.dataset(tmp_path, lengths=(12,) * 8, jpeg=False)
    frame = image_recordings.HEIGHT * image_recordings.WIDTH * 3
    buffers = 2 * 1 * frame * SPARES  # batches of one row under way
    words: dict[str, Any] = {"episodes_per_epoch": 1, "batch_size": 1, "dataset_type": "val", "holdout": 0.5}

    def opened(images: int) -> QCSimpleDatasetV3:
        gib = (images * frame + buffers) / (1 << 30)
        return create_qc_dataloader_v3(str(tmp_path), ["cam_high"], None, CHUNK, memory_gib=gib, **words)[0]

    with pytest.raises(ConfigError, match=r"images of 4 episodes need .* lower data\.holdout or data\.image_size"):
        opened(4 * 12 - 1)
    stats = opened(4 * 12 + 1).get_stats()
    assert (stats["loaded_episodes"], stats["image_bytes"]) == (4, 4 * 12 * frame)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2; expected 0 to 1"),
        ({"dataset_type": "val"}, "dataset_type is 'val'"),
        ({"dataset_type": "test"}, "dataset_type is 'test'"),
        ({"layout": "khw"}, "layout is 'khw'; expected one of kchw, khwc"),
        ({"positive_ratio": 1.5}, "positive_ratio"),
        ({"epoch_seed": -1}, "epoch_seed is -1; expected a whole number, 0 or above"),
        ({"epoch_seed": 1.9}, r"epoch_seed is 1\.9; expected a whole number"),
    ],
)
def test_arguments_out_of_range(tmp_path: Path, more: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        make(dataset(tmp_path), **more)
