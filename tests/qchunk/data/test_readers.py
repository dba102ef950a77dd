import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.config.installed import pip_install
from chunkwise.data.episodes import Episode
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites.ogbench import make as make_ogbench
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.links import Bounds
from qchunk.config import DataConfig
from qchunk.data import Pool, index, relabel
from qchunk.data.dataset import open_dataset
from qchunk.data.readers import aloha, ogbench
from qchunk.data.relabel import SingleTask
from tests.qchunk.data.test_npz import write_npz
from tests.qchunk.recordings import ACTION, QPOS, STATE, arrays, config, dataset, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def source(path: Path, **data: Any) -> Any:
    return index.open_source(DataConfig(path=str(path), **data))[0]


def notes(path: Path, **data: Any) -> tuple[str, ...]:
    return index.open_source(DataConfig(path=str(path), **data))[1]


def refused(path: Path, **data: Any) -> str:
    with pytest.raises(DataError) as caught:
        source(path, **data)
    return str(caught.value)


class TestAloha:
    def test_reads_what_was_written(self, tmp_path: Path):
        content = arrays(7, 0, terminated=True)
        write(tmp_path / "episode_0.hdf5", content, success=True)
        episode = source(tmp_path).load(0)
        np.testing.assert_array_equal(episode.states["qpos"], content["/observations/qpos"])
        np.testing.assert_array_equal(episode.states["state"], content["/observations/state"])
        np.testing.assert_array_equal(episode.action, content["/action"])
        np.testing.assert_array_equal(episode.reward, content["/reward"])
        np.testing.assert_array_equal(episode.terminated, content["/terminated"])
        assert (episode.id, episode.positive, episode.length) == ("episode_0.hdf5", True, 7)

    def test_other_dtypes_chunks_and_columns(self, tmp_path: Path):
        content = arrays(7, 0)
        with h5py.File(tmp_path / "a.h5", "w") as h5:
            for name in ("/observations/qpos", "/action"):
                h5.create_dataset(name, data=content[name].astype(np.float64), fletcher32=True, chunks=(3, 2))
            h5.create_dataset("/reward", data=content["/reward"].astype(np.float32)[:, None], compression="gzip")
            h5.create_dataset("/terminated", data=np.zeros((7, 1), np.uint8))
            h5.create_dataset("/observations/images/cam_high", data=np.zeros((7, 4, 4, 3), np.uint8))
            h5.create_dataset("/language", data="pick up the cube")
        episode = source(tmp_path).load(0)
        np.testing.assert_array_equal(episode.action, content["/action"])
        np.testing.assert_array_equal(episode.reward, content["/reward"].astype(np.float32))
        assert not episode.terminated.any()
        assert list(episode.states) == ["qpos"]

    def test_episodes_are_in_natural_order(self, tmp_path: Path):
        for number in (10, 2, 1):
            write(tmp_path / f"episode_{number}.hdf5", arrays(3, number), success=True)
        assert source(tmp_path).ids == ["episode_1.hdf5", "episode_2.hdf5", "episode_10.hdf5"]

    def test_score_folders_label_and_other_scores_are_left_out_and_counted(self, tmp_path: Path):
        for score in (1, 2, 3, 4, 5):
            write(tmp_path / f"task/score_{score}/episode_0.hdf5", arrays(3, score))
        assert source(tmp_path).positives.tolist() == [False, False, True, True]
        assert notes(tmp_path) == (
            "1 episode(s) left out by the score of their folder (positive (4, 5), negative (1, 2))",
        )
        assert source(tmp_path, positive_scores=(3,), negative_scores=()).positives.tolist() == [True]
        with pytest.raises(ValueError, match=r"expected each score in one of them, found \[3\] in both"):
            source(tmp_path, positive_scores=(3, 4), negative_scores=(3,))

    def test_the_attribute_success_labels(self, tmp_path: Path):
        found = source(dataset(tmp_path, lengths=(3, 4, 5)))
        assert found.positives.tolist() == [True, False, True]
        assert found.lengths.tolist() == [3, 4, 5]

    def test_without_labels_all_are_positive_and_it_says_so(self, tmp_path: Path):
        write(tmp_path / "episode_0.hdf5", arrays(3, 0))
        assert source(tmp_path).positives.tolist() == [True]
        assert notes(tmp_path)[0].startswith("no labels")

    def test_a_label_that_only_some_episodes_lack_is_refused(self, tmp_path: Path):
        dataset(tmp_path, lengths=(3, 4))
        write(tmp_path / "episode_2.hdf5", arrays(3, 0))
        assert "episode_2.hdf5: attribute success: expected a label" in refused(tmp_path)

    def test_a_missing_reward_is_made_from_the_label_or_refused(self, tmp_path: Path):
        found = source(dataset(tmp_path, lengths=(3, 4), reward=False))
        assert found.load(0).reward.tolist() == [0, 0, 1]
        assert found.load(1).reward.tolist() == [0, 0, 0, 0]
        assert found.load(1).terminated.tolist() == [False, False, False, True]
        text = refused(tmp_path, missing_reward="refuse")
        line = "/reward: expected a reward, for data.missing_reward=refuse, found none; the same in "
        assert text.count(line) == 1

    def test_a_reward_without_terminated_ends_by_time(self, tmp_path: Path):
        assert not source(dataset(tmp_path, lengths=(3,))).load(0).terminated.any()

    def test_actions_can_be_the_joints(self, tmp_path: Path):
        content = arrays(5, 0)
        del content["/action"]
        write(tmp_path / "episode_0.hdf5", content, success=True)
        assert "/action: expected this array, for data.action=action, found none" in refused(tmp_path)
        found = source(tmp_path, action="qpos")
        np.testing.assert_array_equal(found.load(0).action, content["/observations/qpos"])
        assert found.dims == {"qpos": QPOS, "state": STATE, "action": QPOS}

    def test_the_fingerprint_is_of_the_content(self, tmp_path: Path):
        one, other = dataset(tmp_path / "a", lengths=(3, 4)), dataset(tmp_path / "b", lengths=(3, 4))
        same = source(one).manifest_hash()
        assert source(other).manifest_hash() == same
        with h5py.File(other / "episode_0.hdf5", "r+") as h5:
            h5["/action"][...] += 1  # pyright: ignore
        assert source(other).manifest_hash() != same
        fingerprints = [open_dataset(config(root)).fingerprint for root in (one, other)]
        assert fingerprints == [same, source(other).manifest_hash()], "what a run compares when it goes on"

    def test_every_problem_is_listed_with_file_dataset_row_expected_and_found(self, tmp_path: Path):
        good = dataset(tmp_path, lengths=(6,) * 4)
        nan, inf, short, narrow, empty = (arrays(6, seed) for seed in range(5))
        nan["/action"][4, 2] = np.nan
        inf["/observations/state"][1, 0] = np.inf
        short["/reward"] = short["/reward"][:5]
        narrow["/observations/qpos"] = narrow["/observations/qpos"][:, :-1]
        empty = {name: x[:0] for name, x in empty.items()}
        bad = {"nan": nan, "inf": inf, "short": short, "narrow": narrow, "empty": empty}
        for name, content in bad.items():
            write(good / f"{name}.hdf5", content, success=True)
        (good / "text.hdf5").write_text("no HDF5")
        write(good / "cut.hdf5", arrays(300, 0), success=True)
        with (good / "cut.hdf5").open("r+b") as file:
            file.truncate(5000)
        text = refused(good)
        assert "nan.hdf5: /action, row 4: expected finite numbers, found nan in column 2 (1 such row(s))" in text
        assert "inf.hdf5: /observations/state, row 1: expected finite numbers, found inf in column 0" in text
        assert "short.hdf5: /reward, row 5: expected 6 rows, as many as /action, found 5 rows" in text
        assert "narrow.hdf5: /observations/qpos: expected 6 dimensions, as in most episodes, found 5 dim" in text
        assert "empty.hdf5: /action: expected at least 1 frame, found shape (0, 4)" in text
        assert "text.hdf5: expected a whole HDF5 file, found Unable to" in text
        assert "cut.hdf5: expected a whole HDF5 file, found Unable to" in text
        assert "truncated" in text
        assert "on-bad skip" in text
        assert text.splitlines()[0] == "7 problem(s):"

    def test_at_most_one_in_a_hundred_is_skipped(self, tmp_path: Path):
        """100 episodes with a bad one go on without it; of 99, or with two bad ones, they are refused."""
        for i in range(99):
            write(tmp_path / f"episode_{i}.hdf5", arrays(2, i), success=True)
        bad = tmp_path / "episode_99.hdf5"
        write(bad, arrays(2, 99) | {"/action": np.full((2, ACTION), np.nan, np.float32)}, success=True)
        assert "on-bad skip to leave out up to 1 %" in refused(tmp_path)
        assert source(tmp_path, on_bad="skip").ids == [f"episode_{i}.hdf5" for i in range(99)]
        said = notes(tmp_path, on_bad="skip")
        assert said[0] == "skipped 1 bad episode(s) of 100 (data.on_bad=skip):"
        assert said[1].startswith("  episode_99.hdf5: /action, row 0: expected finite numbers")
        (tmp_path / "episode_0.hdf5").rename(tmp_path / "episode_0.away")
        assert "1 of 99 episodes are bad; data.on_bad=skip leaves out at most 1 %" in refused(tmp_path, on_bad="skip")
        (tmp_path / "episode_0.away").rename(tmp_path / "episode_0.hdf5")
        bad.rename(tmp_path / "episode_98.hdf5")
        shutil.copyfile(tmp_path / "episode_98.hdf5", bad)
        assert "2 of 100 episodes are bad; data.on_bad=skip leaves out at most 1 %" in refused(tmp_path, on_bad="skip")

    def test_an_episode_that_was_exchanged_is_judged_anew(self, tmp_path: Path):
        """For the better and for the worse, whatever its size and time; what others hold is remembered."""
        dataset(tmp_path, lengths=(6, 6))
        file = tmp_path / "episode_1.hdf5"
        good = file.read_bytes()
        found = source(tmp_path)
        assert found.lengths.tolist() == [6, 6]
        label = arrays(4, 7)
        for content, lengths in (
            (label, [6, 4]),
            (label | {"/action": np.full((4, ACTION), np.inf, np.float32)}, None),
        ):
            file.unlink()
            write(file, content, success=True)
            if lengths is None:
                assert "episode_1.hdf5: /action, row 0: expected finite numbers" in refused(tmp_path)
            else:
                found = source(tmp_path)
                assert found.lengths.tolist() == lengths
                np.testing.assert_array_equal(found.load(1).action, content["/action"])
        file.write_bytes(good)
        assert source(tmp_path).lengths.tolist() == [6, 6]

    def test_data_outside_the_file_is_refused(self, tmp_path: Path):
        dataset(tmp_path, lengths=(6, 6))
        secret = tmp_path / "secret.bin"
        secret.write_bytes(bytes(6 * ACTION * 4))
        content = arrays(6, 0)
        action = content.pop("/action")
        for name in ("external", "soft", "link", "virtual"):
            with h5py.File(write(tmp_path / f"{name}.hdf5", content, success=True), "r+") as h5:
                if name == "external":
                    h5.create_dataset("action", action.shape, "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
                elif name == "soft":
                    h5["action"] = h5py.SoftLink("/observations/qpos")
                elif name == "link":
                    h5["action"] = h5py.ExternalLink(str(tmp_path / "episode_0.hdf5"), "/action")
                else:
                    layout = h5py.VirtualLayout(action.shape, "f4")
                    layout[:] = h5py.VirtualSource(tmp_path / "episode_0.hdf5", "action", action.shape)
                    h5.create_virtual_dataset("action", layout)
        text = refused(tmp_path)
        for name, found in (
            ("external", "external storage"),
            ("link", "ExternalLink at 'action'"),
            ("virtual", "a virtual dataset"),
        ):
            assert f"{name}.hdf5: /action: expected data stored in this file, found {found}" in text
        assert "soft.hdf5: /action: expected data stored in this file, at this place of it, found SoftLink at" in text

    def test_a_declared_size_that_is_not_in_the_file_is_refused_unread(self, tmp_path: Path):
        dataset(tmp_path, lengths=(6, 6))
        content = arrays(6, 0)
        del content["/action"]
        for name, rows in (("huge", 100_000_000_000), ("never_written", 6)):
            with h5py.File(write(tmp_path / f"{name}.hdf5", content, success=True), "r+") as h5:
                h5.create_dataset("action", (rows, 14), "f4", chunks=(6, 14))
        text = refused(tmp_path)
        assert "huge.hdf5: /action: expected at most 8192 MiB (arrays that are read from one file, once they" in text
        assert "never_written.hdf5: /action: expected an array whose bytes are in the file, found 336 bytes" in text
        assert (tmp_path / "huge.hdf5").stat().st_size < 10_000

    def test_wrong_kinds_are_refused(self, tmp_path: Path):
        content = arrays(6, 0)
        write(tmp_path / "flat.hdf5", content | {"/action": np.zeros(6, np.float32)}, success=True)
        write(tmp_path / "text.hdf5", content | {"/action": np.array([[b"a"] * 4] * 6)}, success=True)
        write(tmp_path / "ended.hdf5", content | {"/terminated": np.full(6, 2)}, success=True)
        write(tmp_path / "label.hdf5", content, success="False")
        write(tmp_path / "unknown.hdf5", content, success=-1)
        text = refused(tmp_path)
        assert "unknown.hdf5: attribute success: expected a bool, 0 or 1, found" in text
        assert "flat.hdf5: /action: expected shape [T, d], found shape (6,)" in text
        assert "text.hdf5: /action: expected numbers, found dtype |S1" in text
        assert "ended.hdf5: /terminated: expected 0 or 1 in each frame, found values 2 to 2" in text
        assert "label.hdf5: attribute success: expected a bool, 0 or 1, found 'False' of type str" in text

    def test_a_damaged_checksummed_frame_is_refused(self, tmp_path: Path):
        dataset(tmp_path, lengths=(6, 6))
        action = np.random.default_rng(0).normal(size=(2000, ACTION)).astype(np.float32)
        content = {name: np.repeat(x, 400, axis=0)[:2000] for name, x in arrays(6, 0).items()}
        del content["/action"]
        file = write(tmp_path / "episode_9.hdf5", content, success=True)
        with h5py.File(file, "r+") as h5:
            h5.create_dataset("action", data=action, chunks=(2000, ACTION), fletcher32=True)
        raw = bytearray(file.read_bytes())
        at = raw.index(action[1000].tobytes())
        raw[at : at + 4096] = bytes(4096)
        file.write_bytes(raw)
        assert "episode_9.hdf5: /action: expected readable data, found" in refused(tmp_path)

    def test_a_missing_an_empty_or_a_wrong_path_says_what_to_change(self, tmp_path: Path):
        assert "does not exist; set --data.path to a folder of HDF5 episodes" in refused(tmp_path / "none")
        assert "holds no episode; expected files *.hdf5" in refused(tmp_path)
        (tmp_path / "a.npz").touch()
        assert "set --data.format ogbench_npz" in refused(tmp_path / "a.npz")
        (tmp_path / "a.npz").rename(tmp_path / "a-val.npz")
        text = refused(tmp_path, format="ogbench_npz")
        assert "no folder of them, which data.format=ogbench_npz expects (files *-val.npz are left out)" in text


TASK = "cube-double-play-singletask-task2-v0"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Random joint states of two cubes, some of them at their goals, and what OGBench itself says of them."""
    from ogbench.relabel_utils import relabel_dataset

    env = make_ogbench(EnvSpec(suite="ogbench", task=TASK))
    env.reset(0)
    inner = env.gym.unwrapped
    rng = np.random.default_rng(0)
    qpos = np.repeat(inner._data.qpos[None].copy(), 40, axis=0)
    for cube in range(2):
        goal = inner._data.mocap_pos[inner._cube_target_mocap_ids[cube]]
        near = rng.random(40) < 0.5
        qpos[:, 14 + 7 * cube : 17 + 7 * cube] = goal + np.where(near, 0.01, 0.1)[:, None] * rng.normal(size=(40, 3))
    stepped = []
    for frame in qpos:  # what the environment answers from each state
        inner.set_state(frame, np.zeros(inner.model.nv))
        inner.post_step()
        stepped.append((inner.compute_reward(), inner.terminate_episode()))
    frames = {"qpos": qpos}
    with warnings.catch_warnings(action="ignore"):
        relabel_dataset("cube-double-singletask-task2-v0", env.gym, frames)
    return {"qpos": qpos, "stepped": stepped, "frames": frames}


class TestRelabel:
    def test_reward_and_termination_are_ogbenchs(self, recorded: dict[str, Any]):
        reward, terminated = SingleTask(TASK).relabel(recorded["qpos"], None)
        np.testing.assert_array_equal(reward, recorded["frames"]["rewards"])
        np.testing.assert_array_equal(terminated, recorded["frames"]["masks"] == 0)
        np.testing.assert_array_equal(reward, [r for r, _ in recorded["stepped"]])
        np.testing.assert_array_equal(terminated, [t for _, t in recorded["stepped"]])
        assert set(reward) == {-2.0, -1.0, 0.0}
        assert terminated.any()

    def test_a_sparse_reward_is_0_where_all_cubes_are_there_and_minus_1_elsewhere(self, recorded: dict[str, Any]):
        dense, terminated = SingleTask(TASK).relabel(recorded["qpos"], None)
        sparse, ended = SingleTask(TASK, sparse=True).relabel(recorded["qpos"], None)
        assert sparse.tolist() == [0 if reward == 0 else -1 for reward in dense.tolist()]
        assert sparse.dtype == np.float64
        np.testing.assert_array_equal(ended, terminated)

    def test_both_readers_relabel(self, recorded: dict[str, Any], tmp_path: Path):
        reward, terminated = SingleTask(TASK).relabel(recorded["qpos"], None)
        content = arrays(40, 0, reward=False) | {"/sim/qpos": recorded["qpos"]}
        write(tmp_path / "data" / "episode_0.hdf5", content, env="cube-double-v0")
        episode = source(tmp_path / "data", task=TASK).load(0)
        np.testing.assert_array_equal(episode.reward, reward)
        np.testing.assert_array_equal(episode.terminated, terminated)
        write_npz(tmp_path / "a.npz", lengths=(25, 15), qpos=recorded["qpos"])
        found = source(tmp_path / "a.npz", format="ogbench_npz", task=TASK)
        np.testing.assert_array_equal(found.load(0).reward, reward[:24])
        np.testing.assert_array_equal(found.load(1).terminated, terminated[25:39])
        sparse = source(tmp_path / "a.npz", format="ogbench_npz", task=TASK, sparse=True).load(0).reward
        np.testing.assert_array_equal(sparse, np.where(reward[:24] == 0, 0, -1))

    def test_another_scene_is_refused(self, recorded: dict[str, Any], tmp_path: Path):
        write(tmp_path / "a.hdf5", arrays(40, 0) | {"/sim/qpos": recorded["qpos"]}, env="cube-single-v0")
        assert f"attribute env: expected cube-double-v0, for data.task={TASK}, found cube-single-v0" in refused(
            tmp_path, task=TASK
        )
        with pytest.raises(DataError, match="simulator state of 3 numbers; cube-double-singletask-task2-v0 has 28"):
            SingleTask(TASK).relabel(np.zeros((5, 3)), None)

    def test_a_scene_named_by_a_text_of_fixed_length_is_compared_too(self, recorded: dict[str, Any], tmp_path: Path):
        name = np.bytes_("cube-single-v0")
        write(tmp_path / "a.hdf5", arrays(40, 0) | {"/sim/qpos": recorded["qpos"]}, env=name)
        assert f"attribute env: expected cube-double-v0, for data.task={TASK}, found cube-single-v0" in refused(
            tmp_path, task=TASK
        )

    def test_states_are_needed(self, tmp_path: Path):
        write(tmp_path / "a.hdf5", arrays(4, 0))
        assert "/sim/qpos: expected this array, for data.task (rewards are computed from it)" in refused(
            tmp_path, task=TASK
        )
        assert "/sim/button_states: expected this array" in refused(tmp_path, task="scene-play-singletask-v0")

    def test_names(self):
        assert relabel.base_env(TASK) == "cube-double-v0"
        assert relabel.base_env("puzzle-3x3-play-singletask-v0") == "puzzle-3x3-v0"
        with pytest.raises(ConfigError, match=r"data\.task is 'cube-single-v0'; expected an OGBench task"):
            relabel.base_env("cube-single-v0")
        with pytest.raises(ConfigError, match="no environment cube-nine-singletask-task2-v0"):
            SingleTask("cube-nine-play-singletask-task2-v0")

    def test_without_the_simulator_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "ogbench.manipspace", None)
        with pytest.raises(ConfigError, match=re.escape(pip_install("sim"))):
            SingleTask(TASK)


def test_labelled_outcome_by_hand():
    reward, terminated = relabel.labelled_outcome(None, None, 3, True)
    assert (reward.tolist(), terminated.tolist()) == ([0, 0, 1], [False, False, True])
    reward, terminated = relabel.labelled_outcome(None, np.array([False, True, False]), 3, False)
    assert (reward.tolist(), terminated.tolist()) == ([0, 0, 0], [False, True, False])
    reward, terminated = relabel.labelled_outcome(np.ones(2), None, 2, True)
    assert (reward.tolist(), terminated.tolist()) == ([1, 1], [False, False])


def test_files_are_found_below_folders(tmp_path: Path):
    write(tmp_path / "b" / "score_5" / "x.h5", arrays(2, 0))
    (tmp_path / "b" / "notes.txt").touch()
    (tmp_path / "b" / "episode_1.part").touch()
    assert aloha.episode_names(Bounds(tmp_path)) == ["b/score_5/x.h5"]
    for name in ("b/EPISODE_10.HDF5", "b/EPISODE_2.H5", ".b.part/episode_0.hdf5", "b/.episode_1.hdf5"):
        write(tmp_path / name, arrays(2, 0))
    assert aloha.episode_names(Bounds(tmp_path)) == ["b/EPISODE_2.H5", "b/EPISODE_10.HDF5", "b/score_5/x.h5"]
    assert ogbench.KEYS["action"] == "actions"


def takes_nothing(path: Path) -> None:
    """A reader that finds an episode in no file."""


def test_a_file_of_many_episodes_is_said_to_be_converted(tmp_path: Path):
    for name, hint in (
        ("low_dim.hdf5", rf"\. One file with .*: python -m qchunk.convert {tmp_path}/low_dim.hdf5 OUT"),
        ("a.npz", "; set --data.format ogbench_npz"),
        ("a.bin", ""),
    ):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=rf"{name} is a file; data.format=aloha_hdf5 expects a folder .*{hint}$"):
            source(tmp_path / name)


def test_a_reader_that_declines_every_file_is_named(tmp_path: Path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("1\n")
    text = refused(tmp_path, format=f"{__name__}:takes_nothing")
    assert text.endswith(
        f"no episode is left to train on. The reader {__name__}:takes_nothing returned None for each of 2 files."
    )


def only_state(path: Path) -> Episode:
    """A reader whose episodes have no joints."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    outcome: dict[str, Any] = {"reward": np.zeros(4), "terminated": np.zeros(4, bool), "positive": True}
    return Episode(id=path.name, states={"state": x}, action=x / 8, **outcome)


def test_a_reader_without_joints_is_told_of_them_where_they_are_needed_alone(tmp_path: Path):
    (tmp_path / "a.csv").write_text("1\n")
    name = f"{__name__}:only_state"
    text = refused(tmp_path, format=name)
    assert "a.csv: qpos: expected this array, for data.observation=qpos, found none" in text
    text = refused(tmp_path, format=name, observation="state", action="qpos")
    assert "a.csv: qpos: expected this array, for data.action=qpos, found none" in text
    pool = Pool(config(tmp_path, format=name, observation="state", episodes_per_epoch=1), 0, 0)
    seen = pool.batch(np.array([2]))["observations"]
    assert seen["qpos"] is None
    np.testing.assert_array_equal(seen["state"], [[4, 5]])


def test_an_episode_that_is_exchanged_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While it is indexed, and while a pool reads it; nothing was done to what was read before."""
    path, other = dataset(tmp_path / "data", (7, 12)), write(tmp_path / "other.hdf5", arrays(7, 5), success=True)
    episodes = source(path)
    with pytest.raises(DataError, match=r"episode_0\.hdf5"), episodes.images(0):
        other.replace(path / "episode_0.hdf5")
    examine = aloha.examine

    def exchange(root: Path, file: Path, *more: Any, **hashes: Any) -> Any:
        report = examine(root, file, *more, **hashes)
        write(file, arrays(7, 6), success=True)
        return report

    monkeypatch.setattr(aloha, "examine", exchange)
    assert "episode_0.hdf5" in refused(path)


def test_the_files_of_a_dataset_are_told_before_any_is_judged_and_normalisation_is_one_of_them(tmp_path: Path):
    path, stats = dataset(tmp_path / "data", (7, 12)), tmp_path / "norm_stats.json"
    (path / "episode_0.hdf5").write_bytes(b"no HDF5")
    told: list[str] = []
    for text in ("{}", "{ }"):
        stats.write_text(text)
        with pytest.raises(DataError, match=r"episode_0\.hdf5"):
            open_dataset(config(path, norm_stats=str(stats)), check=lambda files: told.append(files.digest()))
    assert len(set(told)) == 2, "other statistics are another dataset"
    assert index.dataset_files(DataConfig(path=str(path))).digest() not in told
