"""data.format lerobot: the batches of a LeRobot dataset are those of the converted one, bit for bit."""

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from chunkwise.data.lerobot.meta import EpisodeMeta
from chunkwise.data.lerobot.tables import EpisodeTable
from chunkwise.errors import DataError
from qchunk import inspect
from qchunk.config import DataConfig
from qchunk.convert import convert
from qchunk.data import compute_norm_stats, make_batches, open_dataset
from qchunk.data.conventions import ends_by_rewards
from qchunk.data.readers.lerobot import arrays_of, problems_of
from tests import lerobot_files
from tests.lerobot_files import Recorded
from tests.qchunk.converters.sources import settings
from tests.qchunk.recordings import config

REWARD, SUCCESS, DONE = "next.reward", "next.success", "next.done"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def written(root: Path, episodes: list[Recorded], *, version: str = "v21", without: tuple[str, ...] = ()) -> Path:
    """A dataset, of which info.json does not name some features."""
    write = {"v21": lerobot_files.write_v21, "v30": lerobot_files.write_v30}[version]
    write(root, episodes, storage="image")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {key: feature for key, feature in info["features"].items() if key not in without}
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def batches(path: Path, **data: Any) -> list[dict[str, np.ndarray]]:
    """Batches of three epochs, flat."""
    taken = itertools.islice(make_batches(config(path, episodes_per_epoch=3, steps_per_epoch=2, **data)), 6)
    return [{**{f"{name} of {key}": x for key, part in batch.items() if isinstance(part, dict)
                for name, x in part.items() if isinstance(x, np.ndarray)},
             **{key: x for key, x in batch.items() if isinstance(x, np.ndarray)}} for batch in taken]  # fmt: skip


def assert_same_as_converted(root: Path, out: Path, **data: Any) -> None:
    convert(root, out, settings=settings(images="none"))
    found, expected = batches(root, format="lerobot", **data), batches(out, **data)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, x in one.items():
            np.testing.assert_array_equal(x, other[key], strict=True, err_msg=key)


@pytest.mark.parametrize("version", ["v21", "v30"])
@pytest.mark.parametrize("without", [(), (SUCCESS,), (REWARD,), (REWARD, SUCCESS)])
def test_batches_are_those_of_the_converted_dataset(tmp_path: Path, version: str, without: tuple[str, ...]):
    """With the dataset's own labels, with those that rewards of 0 and 1 give, without rewards, without anything."""
    episodes = lerobot_files.record((7, 5, 9, 6))
    root = written(tmp_path / "set", episodes, version=version, without=without)
    assert_same_as_converted(root, tmp_path / "out", action_norm="mean_std", observation_norm="quantile")


def test_dense_rewards_and_rewards_that_end_an_episode_are_too(tmp_path: Path):
    """-1 until success, then 0: the greatest reward, kept to the end, terminates, as in an HDF5 file."""
    episodes = lerobot_files.record((7, 5, 9, 6))
    for index, episode in enumerate(episodes):
        episode.reward = np.full(len(episode.reward), -1, np.float32)
        episode.reward[-1 - index % 2 :] = 0 if index < 3 else -1
    root = written(tmp_path / "set", episodes, without=(SUCCESS,))
    assert_same_as_converted(root, tmp_path / "out", observation="state")
    ends = [open_dataset(config(root, format="lerobot")).source.load(i).terminated[-1] for i in range(4)]
    assert ends == [True, True, True, False]
    for episode in episodes:
        episode.reward = np.linspace(0, 3, len(episode.reward), dtype=np.float32)
    root = written(tmp_path / "dense", episodes, without=(SUCCESS,))
    assert_same_as_converted(root, tmp_path / "dense_out", action="qpos")


def test_a_done_in_the_last_row_alone_leaves_rewards_of_at_most_0_to_say_what_success_is():
    """LeRobot's simulated sets have it in every episode. Rewards of 1, a success, or a done before the end do say."""
    few = {"observation.state": np.zeros((3, 2)), "action": np.zeros((3, 1))}

    def terminated(reward: list[float], done: list[bool], **more: Any) -> list[bool] | None:
        success = {"next.success": np.array(more.pop("success"))} if "success" in more else {}
        columns = few | success | {"next.reward": np.array(reward, np.float64), "next.done": np.array(done)}
        found = arrays_of(columns, by_rewards=ends_by_rewards([columns["next.reward"]]), **more).terminated
        return None if found is None else found.tolist()

    last = [False, False, True]
    assert terminated([-1, -1, 0], last) is None
    assert terminated([0, 0, 1], last) == last
    assert terminated([-1, -1, 0], last, final_done="termination") == last
    assert terminated([-1, -1, 0], last, success=[False] * 3) == [False] * 3
    assert terminated([-1, -1, 0], last, success=last) == last
    assert terminated([-1, 0, 0], [False, True, True]) == [False, True, False]
    assert terminated([-1, -1, 0], [False] * 3) == [False] * 3
    assert terminated([0, 0, 0], last) == [False] * 3
    assert not ends_by_rewards([np.array([-1.0, -1.0]), np.array([-1.0, 1.0])]), "one that earned 1 says it for all"
    assert ends_by_rewards([None, np.zeros(2), np.array([-1.0, 0.0])])


def with_done(root: Path) -> Path:
    """The dataset with its column of success as one of done."""
    for file in root.glob("data/*/*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.rename_columns([DONE if name == SUCCESS else name for name in table.column_names]), file)
    info = root / "meta/info.json"
    info.write_text(info.read_text().replace(f'"{SUCCESS}"', f'"{DONE}"'))
    return root


@pytest.mark.parametrize("values", [(0, 0, 1), (0, 0.5, 1), (-0.1, -0.1, 1)])
def test_failures_among_successes_are_cut_off_by_time(tmp_path: Path, values: tuple[float, float, float]):
    """Rewards until, before and at success: a done in the last row of a failure is no termination there."""
    episodes = lerobot_files.record((7, 5, 9, 6))
    for index, episode in enumerate(episodes):
        episode.reward = np.full(len(episode.reward), values[0], np.float32)
        episode.reward[-3:] = values[1]
        episode.reward[-1] = values[2] if index % 2 else values[1]
        episode.success = np.arange(len(episode.reward)) == len(episode.reward) - 1
    root = with_done(written(tmp_path / "set", episodes))
    assert_same_as_converted(root, tmp_path / "out", observation="state")
    source = open_dataset(config(root, format="lerobot")).source
    for index in range(4):
        ended = source.load(index).terminated
        assert ended[-1] == index % 2
        assert not ended[:-1].any()
        with h5py.File(tmp_path / f"out/episode_{index:05d}.hdf5") as converted:  # which says so itself
            np.testing.assert_array_equal(np.asarray(converted["terminated"], bool), ended)


@pytest.mark.parametrize("key", ["next.done", SUCCESS])
@pytest.mark.parametrize("value", [0.3, np.nan, 2.0])
def test_a_flag_is_0_or_1(tmp_path: Path, key: str, value: float):
    columns = {"next.done": np.array([0.0, 0, 1]), SUCCESS: np.array([0.0, 0, 1])}
    columns[key] = np.array([0, value, value])
    meta = EpisodeMeta(index=4, length=3, file="data/a.parquet", videos={})
    (problem,) = problems_of(EpisodeTable(meta=meta, columns=columns, problems=()))
    assert (problem.episode, problem.key, problem.row, problem.expected) == (4, key, 1, "0 or 1")
    assert problem.found == f"{value} (2 such row(s))"


def test_arrays_and_statistics_by_hand(tmp_path: Path):
    """The second episode earns a reward of 1 on its way, and failed all the same, as the dataset says."""
    episodes = lerobot_files.record((7, 5, 9))
    episodes[1].reward[1] = 1.0
    run = config(written(tmp_path / "set", episodes), format="lerobot", action_norm="mean_std")
    found = open_dataset(run)
    assert found.source.ids == ["episode_00000", "episode_00001", "episode_00002"]
    assert found.source.positives.tolist() == [True, False, True]
    for index, episode in enumerate(episodes):
        loaded = found.source.load(index)
        np.testing.assert_array_equal(loaded.states["qpos"], episode.state, strict=True)
        np.testing.assert_array_equal(loaded.action, episode.action, strict=True)
        np.testing.assert_array_equal(loaded.reward, episode.reward)
        assert loaded.terminated.tolist() == episode.success.tolist()
    actions = np.concatenate([episode.action for episode in episodes])
    np.testing.assert_allclose(compute_norm_stats(run)["actions"].mean, actions.mean(0, dtype=np.float64), rtol=1e-6)


def test_what_is_wrong_is_refused_or_skipped_by_episode(tmp_path: Path):
    episodes = lerobot_files.record((7, 5, 9))
    episodes[1].state[2, 1] = np.nan
    root = written(tmp_path / "set", episodes)
    with pytest.raises(DataError) as error:
        open_dataset(config(root, format="lerobot"))
    assert "episode 1, data/chunk-000/episode_000001.parquet: observation.state, row 2" in str(error.value)
    walked = inspect.read(str(root))
    assert (walked.data.format, len(walked.selection.reports), len(walked.selection.bad)) == ("lerobot", 2, 1)
    assert inspect.main([str(root)]) == 65
    with pytest.raises(DataError, match=r"expected features observation\.state, action, found .*next\.reward"):
        open_dataset(
            config(written(tmp_path / "no", episodes, without=("observation.state", "action")), format="lerobot")
        )


def test_a_table_that_changes_is_noticed(tmp_path: Path):
    root = written(tmp_path / "set", lerobot_files.record())
    run = config(root, format="lerobot")
    first = open_dataset(run)
    again = written(tmp_path / "other", lerobot_files.record(seed=1))
    file = "data/chunk-000/episode_000001.parquet"
    (root / file).write_bytes((again / file).read_bytes())
    second = open_dataset(run)
    assert second.fingerprint != first.fingerprint
    assert second.files.digest() != first.files.digest()
    with pytest.raises(DataError, match="episode_000001"):
        first.files.require_unchanged(first.files.place(file))


def test_the_way_to_the_images_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"takes no images; convert .* python -m qchunk\.convert set OUT"):
        DataConfig(path="set", format="lerobot", cameras=("base",))
    with pytest.raises(ValueError, match=r"data\.task is 'cube'.*expected None"):
        DataConfig(path="set", format="lerobot", task="cube")
    root = written(tmp_path / "set", lerobot_files.record())
    with pytest.raises(DataError, match=r"is a LeRobot dataset; set --data\.format lerobot"):
        open_dataset(config(root))
