from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.errors import DataError
from qchunk.agents.base import chunk_td_target, kept_rows
from qchunk.config import DataConfig
from qchunk.data import index, make_batches, open_dataset, stream
from qchunk.data.index import read_index
from qchunk.data.selection import Selection, select
from tests.qchunk import image_recordings
from tests.qchunk.recordings import arrays, config, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def rewarded(root: Path, *episodes: list[float], **more: Any) -> Path:
    """A folder of episodes with these rewards."""
    for number, rewards in enumerate(episodes):
        content = arrays(len(rewards), number) | {"/reward": np.array(rewards, np.float64)} | more
        write(root / f"episode_{number}.hdf5", content, success=number % 2 == 0)
    return root


def ends(root: Path) -> list[bool]:
    """Whether each episode's last frame is terminated; no other frame is."""
    source = index.open_source(DataConfig(path=str(root)))[0]
    terminated = [source.load(i).terminated for i in range(len(source))]
    assert not any(one[:-1].any() for one in terminated)
    return [bool(one[-1]) for one in terminated]


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        ([[0, 0, 0, 1], [0, 0, 0]], [True, False]),
        ([[-1, -1, 0], [-1, -1, -1]], [True, False]),
        ([[0, 1, 2, 3, 4, 4], [0, 0, 1, 1, 3, 0]], [True, False]),
        ([[0, 1, 0, 0], [0, 0, 1]], [False, False]),  # reached and lost again: no end
        ([[1, 1, 1], [1, 1]], [False, False]),
        ([[0.1, 0.7, 0.9, 0.95], [0.2, 0.3, 0.5]], [False, False]),  # dense
        ([[i % 18 / 18 for i in range(54)], [0, 0]], [False, False]),
    ],
)
def test_the_reward_of_success_ends_an_episode_that_says_nothing_else(
    tmp_path: Path, episodes: list[list[float]], expected: list[bool]
):
    root = rewarded(tmp_path, *episodes)
    assert ends(root) == expected
    notes = index.open_source(DataConfig(path=str(root)))[1]
    assert bool(notes) == any(expected)
    if any(expected):
        assert "2 episode(s) that do not say where they terminated: 1 end with the reward of success" in notes[0]
        assert "1 were cut off by time" in notes[0]


def test_a_file_that_says_where_it_terminated_is_believed(tmp_path: Path):
    assert ends(rewarded(tmp_path, [0, 0, 0, 1], **{"/terminated": np.zeros(4, bool)})) == [False]


def targets(root: Path, value: float, horizon: int) -> dict[int, tuple[float, bool]]:
    """Target and whether it is trained on, of each frame of a dataset of one episode; all states are worth `value`.

    A frame is known by its first action.
    """
    cfg = config(root, batch=32, horizon=horizon, discount=0.5, episodes_per_epoch=1, positive_ratio=1.0)
    batches = stream.open_stream(cfg, open_dataset(cfg), shard=0, num_shards=1, start_step=0, training=True)
    content = arrays(4, 0)["/action"]
    found = {}
    for _ in range(3):
        batch: Any = next(batches)
        batch = jax.tree.map(jnp.asarray, batch)
        y = chunk_td_target(batch, jnp.full(32, value), discount=0.5)
        kept = kept_rows(batch, horizon, "use")
        for action, target, use in zip(batch["actions"][:, 0], y, kept, strict=True):
            frame = int(np.flatnonzero((content == np.asarray(action)).all(1))[0])
            found[frame] = (float(target), bool(use))
    return found


def test_targets_at_an_end_by_time_bootstrap_from_a_state_that_exists(tmp_path: Path):
    """By hand: rewards 1, 2, 4, 8, discount 1/2, chunks of 2, every state worth 32.

    Frame 0: 1 + 2/2 + 32/4. Frame 1: 2 + 4/2 + 32/4. Frame 2: the state after its second action, of frame 3, is not
    recorded, so that one step counts: 4 + 32/2. Frame 3: nothing after it is known.
    """
    found = targets(rewarded(tmp_path, [1, 2, 4, 8]), 32.0, 2)
    assert {frame: found[frame] for frame in (0, 1, 2)} == {0: (10.0, True), 1: (12.0, True), 2: (20.0, True)}
    assert found[3][1] is False


def test_targets_at_the_reward_of_success_do_not_bootstrap(tmp_path: Path):
    """By hand: rewards 0, 0, 0, 1, discount 1/2, chunks of 2, every state worth 16: frames 2 and 3 earn 1 at most."""
    found = targets(rewarded(tmp_path, [0, 0, 0, 1]), 16.0, 2)
    assert found == {0: (4.0, True), 1: (4.0, True), 2: (0.5, True), 3: (1.0, True)}


def test_chunks_longer_than_the_episode_at_an_end_by_time(tmp_path: Path):
    """By hand, chunks of 6: frame 0: 1 + 2/2 + 4/4 + 32/8."""
    found = targets(rewarded(tmp_path, [1, 2, 4, 8]), 32.0, 6)
    assert found[0] == (7.0, True)
    assert found[1] == (12.0, True)
    assert found[2] == (20.0, True)
    assert found[3][1] is False


def test_what_others_take_of_the_loader_is_the_specifications(tmp_path: Path):
    root = rewarded(tmp_path, [1, 2, 4, 8])
    batch = next(make_batches(config(root, batch=32, horizon=2, episodes_per_epoch=1, positive_ratio=1.0)))
    assert (batch["valid"][:, 0] == 1).all()
    assert (batch["rewards"][:, 0].max(), batch["final_reward"].max()) == (8, np.float32(4 + 0.9 * 8))


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        index.open_source(DataConfig(path=str(root)))
    return str(caught.value)


def test_two_conventions_of_reward_are_refused_by_kind(tmp_path: Path):
    root = rewarded(tmp_path, [0, 0, 0, 1], [-1, -1, -1, 0], [0, 0, 0, 1], [0, 0, 0, 0])
    text = refused(root)
    assert "episode_1.hdf5: /reward: expected one convention in all files: a reward in the file, of at least 0" in text
    assert "as in 2 (such as episode_0.hdf5, episode_2.hdf5)" in text
    assert "found a reward in the file, of at most 0" in text
    assert text.count("episode_3") == 0


def test_files_without_a_reward_beside_files_with_one_are_refused(tmp_path: Path):
    root = rewarded(tmp_path, [0, 0, 0, 1], [0, 0, 0, 0])
    write(root / "episode_2.hdf5", arrays(4, 2, reward=False), success=True)
    text = refused(root)
    assert "episode_2.hdf5: /reward: expected one convention" in text
    assert "found no /reward (rewards are made from labels, 0 and 1)" in text


def test_dense_rewards_of_any_sign_are_one_convention(tmp_path: Path):
    root = rewarded(tmp_path, [0.3, 0.4, 0.5], [-0.3, -0.4, -0.7])
    assert len(index.open_source(DataConfig(path=str(root)))[0]) == 2


def test_no_positive_episode_is_said_where_rewards_are_made_from_labels(tmp_path: Path):
    write(tmp_path / "a.hdf5", arrays(4, 0, reward=False), success=False)
    assert index.open_source(DataConfig(path=str(tmp_path)))[1][-1].startswith("no episode is positive")
    write(tmp_path / "b.hdf5", arrays(4, 0, reward=False), success=True)
    assert index.open_source(DataConfig(path=str(tmp_path)))[1] == ()


@pytest.mark.parametrize("folder", ["Score_5", "score-5", "SCORE5", "scores_5"])
def test_a_folder_nearly_called_score_is_named(tmp_path: Path, folder: str):
    write(tmp_path / f"score_1/{folder}x/a.hdf5", arrays(4, 0), success=True)
    write(tmp_path / f"{folder}/b.hdf5", arrays(4, 1), success=True)
    assert f"b.hdf5: folder {folder}: expected a folder score_5, found {folder}" in refused(tmp_path)


def test_depth_is_found_where_the_original_looks(tmp_path: Path):
    here, there = (
        image_recordings.dataset(tmp_path / "here", depth=True),
        image_recordings.dataset(tmp_path / "there", depth=True),
    )
    for file in sorted(there.glob("*.hdf5")):
        with h5py.File(file, "r+") as h5:
            h5.move("/observations/images_depth", "/observations/depth_images")

    def batch(root: Path) -> Any:
        return next(make_batches(config(root, positive_ratio=1.0, depth_cameras=("cam_high",))))

    one, other = batch(here), batch(there)
    np.testing.assert_array_equal(one["observations"]["depth_images"], other["observations"]["depth_images"])
    assert one["observations"]["depth_images"].any()
    file = there / "episode_0.hdf5"
    with h5py.File(file, "r+") as h5:
        h5["/observations/images_depth/cam_high"] = np.asarray(h5["/observations/depth_images/cam_high"])
    with pytest.raises(DataError, match=r"depth_images/cam_high: expected depth of a camera in one place"):
        batch(there)


@pytest.mark.parametrize("given", ["its name", "a dot"])
def test_a_path_that_is_itself_called_score_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str):
    """Kills: failures trained on as successes where data.path is their folder."""
    for score in (1, 3, 5):
        write(tmp_path / f"score_{score}/a.hdf5", arrays(4, 0))
    write(tmp_path / "score_5/score_2/b.hdf5", arrays(4, 1))

    def chosen(score: int) -> Selection:
        folder = tmp_path / f"score_{score}"
        monkeypatch.chdir(folder)
        data = DataConfig(path="." if given == "a dot" else str(folder))
        return select(read_index(data), data)

    assert chosen(1).positives.tolist() == [False]
    assert chosen(5).positives.tolist() == [True, False]  # the innermost folder decides
    assert (len(chosen(3).reports), chosen(3).left_out) == (0, 1)


def test_a_path_nearly_called_score_is_named(tmp_path: Path):
    write(tmp_path / "Score_5/a.hdf5", arrays(4, 0))
    assert "a.hdf5: folder Score_5: expected a folder score_5, found Score_5" in refused(tmp_path / "Score_5")


@pytest.mark.parametrize(("value", "mixed", "refused"), [(0.1, True, True), (0.1, False, False), (1.0, True, False)])
def test_one_reward_in_two_widths_is_two_rewards(tmp_path: Path, value: float, mixed: bool, refused: bool):
    """float32(0.1) is not 0.1: some successes would end, and others be cut off."""
    for number in range(4):
        dtype = np.float32 if mixed and number % 2 else np.float64
        write(tmp_path / f"episode_{number}.hdf5", arrays(6, number) | {"/reward": np.array([0] * 5 + [value], dtype)})
    if not refused:
        assert ends(tmp_path) == [True] * 4
        return
    with pytest.raises(DataError, match=r"0\.10000000149.*, as 32 bits hold it .*, found 0\.1"):
        index.open_source(DataConfig(path=str(tmp_path)))


def test_recordings_of_several_rates_are_told(tmp_path: Path):
    """Which a file may say in any number; one that says nothing says nothing against the others."""
    for number, fps in enumerate([12.5, 20, np.float32(20), None, np.nan, "20 Hz", [20, 20], np.complex64(3), 20.01]):
        write(tmp_path / f"{number}.hdf5", arrays(4, number), success=True, **({} if fps is None else {"fps": fps}))
    told = "attribute fps: 12.5 in 1, 20 in 2, 20.01 in 1 episodes; a chunk of these lasts another time, "
    assert [note for note in index.open_source(DataConfig(path=str(tmp_path)))[1] if note.startswith(told)]
    (tmp_path / "0.hdf5").unlink()
    assert not [note for note in index.open_source(DataConfig(path=str(tmp_path)))[1] if "fps" in note]
