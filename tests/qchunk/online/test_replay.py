"""The replay against the pool, which cuts the same episodes when they are files, and its log against damage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkwise.config.experiment import TrainConfig
from chunkwise.data.episodes import Episode
from chunkwise.data.norm_stats import Affine
from chunkwise.errors import DataError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data import Dataset, Pool
from qchunk.online.replay import Log, Replay, read
from tests.chunkwise.calls import Calls

H, A = 3, 2
DIMS = {"action": A, "qpos": 2, "state": 3}


class Episodes:
    """An EpisodeSource in memory."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes
        self.ids = tuple(str(i) for i in range(len(episodes)))
        self.lengths = np.array([episode.length for episode in episodes], np.int64)
        self.positives = np.array([episode.positive for episode in episodes])
        self.dims = DIMS

    def __len__(self) -> int:
        return len(self.episodes)

    def load(self, index: int) -> Episode:
        return self.episodes[index]

    def manifest_hash(self) -> str:
        return ""


def config_of(episodes: int = 1) -> QChunkConfig:
    return QChunkConfig(
        train=TrainConfig(steps=10, batch_size=4),
        data=DataConfig(path="none", observation="state", episodes_per_epoch=episodes, positive_ratio=1.0),
        agent=AgentConfig(horizon=H, discount=0.9, hidden_sizes=(4,)),
    )


def dataset_of(source: Any) -> Dataset:
    return Dataset(
        files=Files(Bounds("none")),
        source=source,
        action_norm=Affine(offset=np.full(A, 0.5), scale=np.full(A, 3.0)),
        observation_norm=Affine(offset=np.full(3, -1.0), scale=np.full(3, 0.7)),
        cameras=(),
        depth_cameras=(),
        image_size=None,
        notes=(),
    )


def episode_of(length: int, ending: str, seed: int) -> Episode:
    """Random numbers; `ending` is "terminated", or "cut" by a time limit."""
    rng = np.random.default_rng(seed)
    return Episode(
        id=str(seed),
        states={name: rng.normal(size=(length + 1, DIMS[name])).astype(np.float32) for name in ("qpos", "state")},
        action=rng.uniform(-1, 1, (length, A)).astype(np.float32),
        reward=rng.normal(size=length),
        terminated=np.arange(length) == (length - 1 if ending == "terminated" else -1),
        positive=ending == "terminated",
    )


def records_of(episode: Episode, dtype: np.dtype) -> np.ndarray:
    """The log of an episode that succeeded if it was terminated."""
    records = np.zeros(episode.length + 1, dtype)
    records["first"][0] = True
    for name, values in episode.states.items():
        records[name] = values
    records["action"][1:], records["reward"][1:] = episode.action, episode.reward
    records["terminated"][1:] = records["success"][1:] = episode.terminated
    records["truncated"][-1] = not episode.terminated[-1]
    return records


def assert_equal(found: Any, expected: Any) -> None:
    """Two batches, key by key, to the bit."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_equal(found[key], value)
        elif value is None:
            assert found[key] is None
        else:
            assert found[key].dtype == value.dtype, key
            np.testing.assert_array_equal(found[key], value, err_msg=key)


ENDINGS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["terminated", "cut"])), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(endings=ENDINGS, cut=st.integers(0, 9), step=st.integers(1, 40))
def test_finished_episodes_give_the_pools_chunks_and_an_unfinished_one_only_whole_chunks(
    endings: list[tuple[int, str]], cut: int, step: int
) -> None:
    episodes = [episode_of(length, ending, i) for i, (length, ending) in enumerate(endings)]
    dataset = dataset_of(Episodes(episodes))
    replay = Replay(config_of(), dataset, capacity=60)
    records = np.concatenate([records_of(episode, replay.dtype) for episode in episodes])
    begun = records_of(episode_of(20, "cut", 99), replay.dtype)[: cut + 1]
    records = np.concatenate([records, begun])
    for i in range(0, len(records), step):
        replay.extend(records[i : i + step])
    finished = int(dataset.source.lengths.sum())
    assert replay.starts == finished + max(0, cut - H + 1)
    assert (replay.steps, replay.episodes, replay.over) == (finished + cut, len(episodes) + 1, False)
    np.testing.assert_array_equal(replay.unfinished(records), begun)
    for i, episode in enumerate(episodes):
        pool = Pool(config_of(), 0, 0, dataset=dataset_of(Episodes([episode])))
        starts = np.arange(episode.length)
        before = int(dataset.source.lengths[:i].sum())
        found, expected = replay.gather(starts + before), pool.batch(starts)
        assert_equal(found, expected)
    # The whole chunks of the unfinished episode are those of the episode that it may become.
    pool = Pool(config_of(), 0, 0, dataset=dataset_of(Episodes([episode_of(20, "cut", 99)])))
    starts = np.arange(max(0, cut - H + 1))
    assert_equal(replay.gather(starts + finished), pool.batch(starts) | {"is_positive": np.zeros(len(starts), bool)})


def test_one_record_at_a_time_leaves_the_memory_of_all_at_once() -> None:
    episodes = [episode_of(5, "cut", 0), episode_of(2, "terminated", 1)]
    dataset = dataset_of(Episodes(episodes))
    one, all_at_once = (Replay(config_of(), dataset, capacity=10) for _ in range(2))
    records = np.concatenate([records_of(episode, one.dtype) for episode in episodes])
    drawable = []
    for i in range(len(records)):
        one.extend(records[i : i + 1])
        drawable.append(one.starts)
    all_at_once.extend(records)
    assert drawable == [0, 0, 0, 1, 2, 5, 5, 5, 7]
    assert_equal(one.gather(np.arange(7)), all_at_once.gather(np.arange(7)))


def test_the_log_is_cut_back_and_goes_on(tmp_path: Path) -> None:
    replay = Replay(config_of(), dataset_of(Episodes([episode_of(4, "cut", 0)])), capacity=10)
    records = records_of(episode_of(4, "cut", 0), replay.dtype)
    log = Log(tmp_path / "replay", replay.dtype)
    assert len(log.open(0, 0)) == 0
    log.append(records[:2])
    kept = (log.rows, log.crc32)
    log.append(records[2:4])
    log.sync()
    np.testing.assert_array_equal(read(tmp_path / "replay"), records[:4])
    again = Log(tmp_path / "replay", replay.dtype)
    np.testing.assert_array_equal(again.open(*kept), records[:2])
    again.append(records[2:])
    again.sync()
    np.testing.assert_array_equal(read(tmp_path / "replay"), records)
    whole = Log(tmp_path / "replay", replay.dtype)
    np.testing.assert_array_equal(whole.open(again.rows, again.crc32), records)


def test_what_is_written_of_the_log_is_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(config_of(), dataset_of(Episodes([episode_of(4, "cut", 0)])), capacity=10)
    records = records_of(episode_of(4, "cut", 0), replay.dtype)
    log = Log(tmp_path / "replay", replay.dtype)
    log.open(0, 0)
    log.append(records)
    calls = Calls(tmp_path, monkeypatch)
    log.sync()
    assert calls.seen == [f"fsync replay/frames.bin {records.nbytes} bytes"]


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    replay = Replay(config_of(), dataset_of(Episodes([episode_of(4, "cut", 0)])), capacity=10)
    log = Log(tmp_path / "replay", replay.dtype)
    log.open(0, 0)
    log.append(records_of(episode_of(4, "cut", 0), replay.dtype))
    log.sync()
    path = tmp_path / "replay/frames.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"frames\.bin: the checksum of 5 records is"):
        Log(tmp_path / "replay", replay.dtype).open(log.rows, log.crc32)
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"frames\.bin: expected 5 records \(\d+ bytes\), as when the checkpoint"):
        Log(tmp_path / "replay", replay.dtype).open(log.rows, log.crc32)
