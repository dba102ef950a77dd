import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from core.errors import ConfigError, DataError, StorageError
from core.images import decode
from qchunk import convert as convert_module
from qchunk.config import DataConfig
from qchunk.convert import convert, detect, main
from qchunk.converters.recording import ConvertSettings, terminations
from qchunk.data import Pool
from qchunk.index import open_source
from tests import lerobot_files
from tests.qchunk.recordings import assert_same, config, plain_transition

KEYS = {"object": 3, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
WIDTH = sum(KEYS.values())
ACTION = 7


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def settings(**changes: Any) -> ConvertSettings:
    return ConvertSettings(**changes)


def demo(length: int, seed: int, *, solved: bool = True, pictures: bool = False) -> dict[str, np.ndarray]:
    """One robomimic episode by dataset name; `dones` as done_mode 2 writes it."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {f"obs/{key}": rng.normal(size=(length, width)) for key, width in KEYS.items()}
    found |= {f"next_obs/{key}": rng.normal(size=(length, width)) for key, width in KEYS.items()}
    found["obs/robot0_joint_pos"] = rng.normal(size=(length, 7))
    found["actions"] = rng.uniform(-1, 1, (length, ACTION))
    found["states"] = rng.normal(size=(length, 30))
    found["rewards"], found["dones"] = np.zeros(length), np.zeros(length, np.int64)
    found["rewards"][-1], found["dones"][-1] = float(solved), 1
    if pictures:
        y, x = np.mgrid[:16, :24]
        plane = np.stack([8 * y, 8 * x, 4 * (x + y)], -1)
        found["obs/agentview_image"] = np.stack([plane + t for t in range(length)]).astype(np.uint8)
        found["obs/robot0_eye_in_hand_image"] = found["obs/agentview_image"][:, ::-1]
        found["obs/agentview_depth"] = rng.random((length, 16, 24, 1)).astype(np.float32)
    return found


def write_robomimic(path: Path, demos: dict[str, dict[str, np.ndarray]], **masks: list[str]) -> Path:
    with h5py.File(path, "w") as h5:
        data = h5.create_group("data")
        data.attrs["total"] = sum(len(x["actions"]) for x in demos.values())
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"reward_shaping": False}})
        for name, content in demos.items():
            group = data.create_group(name)
            group.attrs["num_samples"] = len(content["actions"])
            for key, x in content.items():
                group.create_dataset(key, data=x)
        for name, members in masks.items():
            h5[f"mask/{name}"] = np.array(members, dtype="S")
    return path


def robomimic(path: Path) -> Path:
    demos = {f"demo_{i}": demo(6 + i, i, solved=i != 1) for i in (0, 1, 2, 10)}
    return write_robomimic(path, demos, train=["demo_10", "demo_0"], valid=["demo_1", "demo_2"])


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def walk(group: h5py.Group, prefix: str) -> None:  # visititems shows a dataset with two names only once
        for name, x in group.items():
            if isinstance(x, h5py.Group):
                walk(x, f"{prefix}{name}/")
            else:
                found[f"{prefix}{name}"] = x[()]

    with h5py.File(path, "r") as h5:
        walk(h5, "")
    return found


def attributes_of(path: Path) -> dict[str, Any]:
    with h5py.File(path, "r") as h5:
        return dict(h5.attrs)


def refused(source: Path, out: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        convert(source, out, settings=settings(**options))
    assert not out.exists()
    assert [p.name for p in out.parent.iterdir() if p.name.endswith(".part")] == []
    return str(caught.value)


class TestRobomimic:
    def test_arrays_rewards_and_labels(self, tmp_path: Path):
        convert(robomimic(tmp_path / "low_dim.hdf5"), tmp_path / "out")
        files = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert files == ["dataset.json", *(f"episode_{i:05d}.hdf5" for i in range(4))]
        for index, (number, solved) in enumerate(((0, True), (1, False), (2, True), (10, True))):
            content = demo(6 + number, number, solved=solved)
            path = tmp_path / "out" / files[1 + index]
            found, attributes = arrays_of(path), attributes_of(path)
            observation = np.concatenate([content[f"obs/{key}"] for key in KEYS], 1).astype(np.float32)
            np.testing.assert_array_equal(found["observations/qpos"], observation, strict=True)
            np.testing.assert_array_equal(found["observations/state"], observation)
            np.testing.assert_array_equal(found["action"], content["actions"].astype(np.float32), strict=True)
            np.testing.assert_array_equal(found["reward"], content["rewards"], strict=True)
            # The done of the episode that failed is where its recording ends, not a termination.
            assert found["terminated"].tolist() == [False] * (5 + number) + [solved]
            assert (bool(attributes["success"]), attributes["env"]) == (solved, "Lift")
            assert list(attributes["observation_keys"]) == list(KEYS)
            assert list(attributes["filter_keys"]) == [["train"], ["valid"], ["valid"], ["train"]][index]
            assert attributes["source"] == f"low_dim.hdf5/data/demo_{number}"

    def test_transitions_are_the_specifications(self, tmp_path: Path):
        convert(robomimic(tmp_path / "low_dim.hdf5"), tmp_path / "out")
        pool = Pool(config(tmp_path / "out", episodes_per_epoch=4, horizon=3), 0, 0)
        for episode, name in enumerate(pool.ids):
            for start in range(int(pool.lengths[episode])):
                expected = plain_transition(tmp_path / "out" / name, start, horizon=3, discount=0.9)
                found = pool.transition(episode, start)
                for key in expected.keys() - {"observations", "next_observations"}:
                    assert_same(found[key], expected[key])
                for key in ("qpos", "state"):
                    assert_same(found["observations"][key], expected["observations"][key])
                    assert_same(found["next_observations"][key], expected["next_observations"][key])

    def test_one_transition_by_hand(self, tmp_path: Path):
        content = demo(4, 0)
        content["rewards"][:] = [0, 0, 1, 1]
        content["dones"][:] = [0, 0, 1, 1]
        convert(write_robomimic(tmp_path / "a.hdf5", {"demo_0": content}), tmp_path / "out")
        cfg = config(tmp_path / "out", episodes_per_epoch=1, positive_ratio=1.0, horizon=3, discount=0.5)
        found = Pool(cfg, 0, 0).transition(0, 1)
        assert found["rewards"].tolist() == [0, 0.5, 0.5]  # nothing is earned after the termination in frame 2
        assert found["masks"].tolist() == [1, 0, 0]
        assert found["valid"].tolist() == [1, 1, 1]
        assert found["terminals"].tolist() == [False, True, True]
        np.testing.assert_array_equal(found["actions"], content["actions"][1:4].astype(np.float32))
        assert bool(found["is_positive"])

    def test_keys_filter_and_final_done_are_the_users(self, tmp_path: Path):
        source = robomimic(tmp_path / "low_dim.hdf5")
        keys = ("robot0_joint_pos", "object")
        chosen = settings(observation_keys=keys, filter_key="valid", final_done="termination")
        convert(source, tmp_path / "out", settings=chosen)
        found = arrays_of(tmp_path / "out/episode_00000.hdf5")
        content = demo(7, 1, solved=False)
        expected = np.concatenate([content["obs/robot0_joint_pos"], content["obs/object"]], 1).astype(np.float32)
        np.testing.assert_array_equal(found["observations/qpos"], expected)
        assert found["terminated"].tolist() == [False] * 6 + [True]
        about = json.loads((tmp_path / "out/dataset.json").read_text())
        assert about["settings"]["observation_keys"] == list(keys)
        assert (about["episodes"], about["about_the_source"]["env_args"]["env_name"]) == (2, "Lift")
        assert "robot0_eef_pos" in about["about_the_source"]["observations_left_out"]

    def test_pictures_as_jpeg_rows(self, tmp_path: Path):
        source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": demo(5, 0, pictures=True)})
        convert(source, tmp_path / "out", settings=settings(cameras={"agentview_image": "cam_high"}))
        path = tmp_path / "out/episode_00000.hdf5"
        found, attributes = arrays_of(path), attributes_of(path)
        assert [name for name in found if "images" in name] == ["observations/images/cam_high"]
        rows, lengths = found["observations/images/cam_high"], found["compress_len"]
        assert (bool(attributes["compress"]), lengths.shape, rows.shape) == (True, (1, 5), (5, lengths.max()))
        for frame in range(5):
            assert not rows[frame, lengths[0, frame] :].any()
            picture = decode(rows[frame, : lengths[0, frame]].tobytes(), source="").astype(int)
            original = demo(5, 0, pictures=True)["obs/agentview_image"][frame]
            assert np.abs(picture - original).max() <= 8

    def test_pictures_raw_and_none(self, tmp_path: Path):
        content = demo(5, 0, pictures=True)
        source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": content})
        convert(source, tmp_path / "raw", settings=settings(images="raw"))
        found = arrays_of(tmp_path / "raw/episode_00000.hdf5")
        for key in ("agentview_image", "robot0_eye_in_hand_image"):
            np.testing.assert_array_equal(found[f"observations/images/{key}"], content[f"obs/{key}"], strict=True)
        assert not attributes_of(tmp_path / "raw/episode_00000.hdf5")["compress"]
        convert(source, tmp_path / "none", settings=settings(images="none"))
        assert not any("images" in name for name in arrays_of(tmp_path / "none/episode_00000.hdf5"))

    def test_shaped_rewards_give_no_labels(self, tmp_path: Path):
        content = demo(5, 0)
        content["rewards"] = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
        convert(write_robomimic(tmp_path / "dense.hdf5", {"demo_0": content}), tmp_path / "out")
        assert "success" not in attributes_of(tmp_path / "out/episode_00000.hdf5")
        assert not arrays_of(tmp_path / "out/episode_00000.hdf5")["terminated"].any()

    def test_the_same_source_gives_the_same_bytes(self, tmp_path: Path):
        source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": demo(5, 0, pictures=True)})
        for name in ("one", "two"):
            convert(source, tmp_path / name)
        for path in (tmp_path / "one").iterdir():
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()

    def test_every_problem_is_in_one_report(self, tmp_path: Path):
        demos = {f"demo_{i}": demo(6, i) for i in range(9)}
        demos["demo_1"]["obs/object"][3, 1] = np.nan
        demos["demo_2"]["rewards"] = demos["demo_2"]["rewards"][:-1]
        del demos["demo_3"]["obs/robot0_eef_pos"]
        demos["demo_4"]["actions"] = demos["demo_4"]["actions"][:, :6]
        demos["demo_5"]["dones"][2] = 7
        source = write_robomimic(tmp_path / "bad.hdf5", demos)
        with h5py.File(source, "r+") as h5:
            h5["data/demo_0"].attrs["num_samples"] = 99
        text = refused(source, tmp_path / "out")
        for line in (
            "bad.hdf5/data/demo_0: attribute num_samples: expected 6, the rows of actions; found 99",
            "bad.hdf5/data/demo_1: obs/object, row 3: expected finite numbers; found nan in column 1 (1 such row(s))",
            "bad.hdf5/data/demo_2: rewards, row 5: expected 6 rows, as many as actions; found 5 rows",
            "bad.hdf5/data/demo_3: obs/robot0_eef_pos: expected this array; found none; there are ['object', 'robot0",
            "bad.hdf5/data/demo_4: action: expected 7 dimensions, as in most episodes; found 6 dimensions",
            "bad.hdf5/data/demo_5: dones, row 2: expected 0 or 1 in each frame; found 7 (1 such row(s))",
        ):
            assert line in text
        assert "6 problem(s)" in text

    def test_missing_observations_say_what_to_do(self, tmp_path: Path):
        content = {key: x for key, x in demo(5, 0).items() if "obs" not in key}
        text = refused(write_robomimic(tmp_path / "demo.hdf5", {"demo_0": content}), tmp_path / "out")
        assert "expected /obs in each episode; found it in none: make them with" in text
        with pytest.raises(ConfigError, match=r"no episode has the observations \['pose'\]; there are \['object', "):
            convert(robomimic(tmp_path / "a.hdf5"), tmp_path / "out", settings=settings(observation_keys=("pose",)))

    def test_data_outside_the_file_and_sizes_that_are_not_there(self, tmp_path: Path):
        source = write_robomimic(tmp_path / "a.hdf5", {f"demo_{i}": demo(5, i) for i in range(3)})
        with h5py.File(source, "r+") as h5:
            del h5["data/demo_0/actions"], h5["data/demo_1/actions"]
            h5["data/demo_0/actions"] = h5py.ExternalLink("/etc/passwd", "/x")
            h5.create_dataset("data/demo_1/actions", (10**12, 7), "f4", chunks=(5, 7))
        text = refused(source, tmp_path / "out")
        assert "demo_0: actions: expected data stored in this file; found ExternalLink at 'actions'" in text
        assert "demo_1: actions: expected at most 8 GiB an array; found 28000000000000 bytes declared" in text

    def test_masks_that_name_no_episode(self, tmp_path: Path):
        source = write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo(5, 0)}, train=["demo_0", "demo_9"])
        assert "mask/train: expected names of episodes under /data; found ['demo_9']" in refused(source, tmp_path / "o")

    def test_damaged_files(self, tmp_path: Path):
        source = robomimic(tmp_path / "a.hdf5")
        source.write_bytes(source.read_bytes()[:3000])
        assert "expected a whole HDF5 file; found" in refused(source, tmp_path / "out")
        source = robomimic(tmp_path / "b.hdf5")
        with h5py.File(source, "r+") as h5:
            h5["data"].attrs["env_args"] = '{"env_name": "Lift", "env_name": "Can"}'
        assert "env_args: expected JSON with finite numbers and unique keys" in refused(source, tmp_path / "out")


def d4rl_arrays(rows: int = 12) -> dict[str, np.ndarray]:
    """Three episodes: terminated after row 3, cut by time after row 8, unfinished."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {
        "observations": rng.normal(size=(rows, 5)).astype(np.float32),
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "rewards": np.arange(rows, dtype=np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.zeros(rows, bool),
    }
    found["terminals"][3], found["timeouts"][8] = True, True
    return found


def write_d4rl(path: Path, content: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as h5:
        for name, x in content.items():
            h5[name] = x
        h5["infos/qpos"] = np.zeros((len(content["actions"]), 3))
        h5["metadata/algorithm"] = "SAC"
    return path


class TestD4rl:
    def test_seams_and_terminations(self, tmp_path: Path):
        content = d4rl_arrays()
        convert(write_d4rl(tmp_path / "hopper.hdf5", content), tmp_path / "out")
        spans = ((0, 4), (4, 9), (9, 12))
        for index, (first, end) in enumerate(spans):
            path = tmp_path / f"out/episode_{index:05d}.hdf5"
            found = arrays_of(path)
            np.testing.assert_array_equal(found["observations/qpos"], content["observations"][first:end], strict=True)
            np.testing.assert_array_equal(found["action"], content["actions"][first:end], strict=True)
            assert found["reward"].tolist() == list(range(first, end))
            assert found["terminated"].tolist() == content["terminals"][first:end].tolist()
            assert attributes_of(path)["source"] == f"hopper.hdf5 rows {first} to {end - 1}"
            assert "success" not in attributes_of(path)
        about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
        assert about == {"ends_by_terminals": 1, "ends_by_timeouts": 1, "unfinished_last_episode": True}

    def test_a_chunk_is_bootstrapped_after_a_time_limit_and_not_after_a_termination(self, tmp_path: Path):
        convert(write_d4rl(tmp_path / "hopper.hdf5", d4rl_arrays()), tmp_path / "out")
        cfg = config(tmp_path / "out", episodes_per_epoch=3, positive_ratio=1.0, horizon=2, discount=0.5)
        pool = Pool(cfg, 0, 0)
        chunks = {name: pool.transition(e, int(pool.lengths[e]) - 2) for e, name in enumerate(pool.ids)}
        ended, cut = chunks["episode_00000.hdf5"], chunks["episode_00001.hdf5"]
        assert (ended["rewards"].tolist(), ended["masks"].tolist()) == ([2, 2 + 0.5 * 3], [1, 0])
        assert (cut["rewards"].tolist(), cut["masks"].tolist()) == ([7, 7 + 0.5 * 8], [1, 1])

    def test_seams_that_no_flag_marks_show_in_the_next_observations(self, tmp_path: Path):
        content = d4rl_arrays()
        del content["timeouts"]
        shifted = np.concatenate([content["observations"][1:], content["observations"][:1]])
        shifted[[3, 6]] += 1  # row 3 terminates, row 6 is cut
        convert(write_d4rl(tmp_path / "a.hdf5", content | {"next_observations": shifted}), tmp_path / "out")
        lengths = [len(arrays_of(p)["action"]) for p in sorted((tmp_path / "out").glob("*.hdf5"))]
        assert lengths == [4, 3, 5]
        about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
        assert about["ends_by_discontinuity"] == 1

    def test_without_timeouts_the_limit_must_be_said(self, tmp_path: Path):
        content = d4rl_arrays()
        del content["timeouts"]
        source = write_d4rl(tmp_path / "a.hdf5", content)
        with pytest.raises(ConfigError, match=r"neither timeouts nor next_observations.*--max-episode-steps"):
            convert(source, tmp_path / "out")
        convert(source, tmp_path / "out", settings=settings(max_episode_steps=3))
        lengths = [len(arrays_of(p)["action"]) for p in sorted((tmp_path / "out").glob("*.hdf5"))]
        assert lengths == [3, 1, 3, 3, 2]  # the count starts anew after the termination in row 3

    def test_sparse_rewards_label(self, tmp_path: Path):
        content = d4rl_arrays()
        content["rewards"] = np.zeros((12, 1), np.float32)
        content["rewards"][5] = 1
        convert(write_d4rl(tmp_path / "antmaze.hdf5", content), tmp_path / "out")
        found = open_source(DataConfig(path=str(tmp_path / "out")))[0]
        assert found.positives.tolist() == [False, True, False]

    def test_bad_files(self, tmp_path: Path):
        content = d4rl_arrays()
        content["rewards"] = content["rewards"][:-2]
        content["terminals"] = content["terminals"].astype(np.float32)
        content["terminals"][1] = 0.5
        text = refused(write_d4rl(tmp_path / "a.hdf5", content), tmp_path / "out")
        assert "a.hdf5: terminals, row 1: expected 0 or 1 in each frame; found 0.5" in text
        assert "a.hdf5: rewards, row 10: expected 12 rows; found 10 rows" in text
        content = d4rl_arrays()
        content["observations"][10, 4] = np.inf
        text = refused(write_d4rl(tmp_path / "b.hdf5", content), tmp_path / "out")
        assert "b.hdf5 rows 9 to 11: observations, row 10: expected finite numbers; found inf in column 4" in text


class TestOgbench:
    def test_the_pool_is_the_same_as_from_the_npz(self, tmp_path: Path):
        rng = np.random.default_rng(0)
        content = {
            "observations": rng.normal(size=(12, 5)).astype(np.float32),
            "actions": rng.normal(size=(12, 3)).astype(np.float32),
            "terminals": np.zeros(12, np.float32),
            "rewards": -np.ones(12, np.float32),
            "masks": np.ones(12, np.float32),
            "qpos": rng.normal(size=(12, 21)),
        }
        content["terminals"][[4, 11]] = 1
        content["rewards"][3], content["masks"][3] = 0, 0
        np.savez_compressed(tmp_path / "cube.npz", **content)
        convert(tmp_path / "cube.npz", tmp_path / "out")
        same: dict[str, Any] = {"episodes_per_epoch": 2, "positive_ratio": 1.0, "horizon": 3}
        direct = Pool(config(tmp_path / "cube.npz", format="ogbench_npz", **same), 0, 0)
        pool = Pool(config(tmp_path / "out", **same), 0, 0)
        assert direct.lengths.tolist() == pool.lengths.tolist()
        for episode in range(2):
            for start in range(int(pool.lengths[episode])):
                one, other = direct.transition(episode, start), pool.transition(episode, start)
                for key in ("actions", "rewards", "masks", "valid", "terminals"):
                    assert_same(one[key], other[key])
                assert_same(one["observations"]["qpos"], other["observations"]["qpos"])
        np.testing.assert_array_equal(arrays_of(tmp_path / "out/episode_00001.hdf5")["sim/qpos"], content["qpos"][5:11])

    def test_bad_files_are_reported_as_by_the_source(self, tmp_path: Path):
        np.savez(tmp_path / "a.npz", observations=np.zeros((4, 2), np.float32))
        assert "a.npz: actions: expected an array of this name; found none" in refused(
            tmp_path / "a.npz", tmp_path / "out"
        )


class TestLerobot:
    @pytest.mark.parametrize("version", ["v21", "v30"])
    def test_arrays_pictures_and_labels(self, tmp_path: Path, version: str):
        episodes = lerobot_files.record()
        write = {"v21": lerobot_files.write_v21, "v30": lerobot_files.write_v30}[version]
        convert(write(tmp_path / "set", episodes, storage="image"), tmp_path / "out", settings=settings(images="raw"))
        for index, episode in enumerate(episodes):
            path = tmp_path / f"out/episode_{index:05d}.hdf5"
            found, attributes = arrays_of(path), attributes_of(path)
            np.testing.assert_array_equal(found["observations/qpos"], episode.state, strict=True)
            np.testing.assert_array_equal(found["action"], episode.action, strict=True)
            np.testing.assert_array_equal(found["reward"], episode.reward.astype(np.float64), strict=True)
            assert found["terminated"].tolist() == episode.success.tolist()
            assert bool(attributes["success"]) is bool(episode.success.any())
            assert attributes["instruction"] == lerobot_files.TASKS[index % 2]
            for key in lerobot_files.CAMERAS:
                name = key.rpartition(".")[2]
                np.testing.assert_array_equal(found[f"observations/images/{name}"], episode.images[key], strict=True)
        assert open_source(DataConfig(path=str(tmp_path / "out")))[0].positives.tolist() == [True, False, True]

    def test_bad_sets_are_refused_with_all_problems(self, tmp_path: Path):
        episodes = lerobot_files.record()
        episodes[0].state[2, 1] = np.nan
        episodes[2].timestamp[4] += 0.5
        text = refused(lerobot_files.write_v30(tmp_path / "set", episodes, storage="image"), tmp_path / "out")
        assert "episode 0, data/chunk-000/file-000.parquet, observation.state, row 2: expected finite numbers" in text
        assert "episode 2, data/chunk-000/file-001.parquet, timestamp, row 4: expected" in text

    def test_keys_that_are_not_there(self, tmp_path: Path):
        root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record(), storage="image")
        with pytest.raises(ConfigError, match=r"no features \['observation.joints'\]; the dataset has"):
            convert(root, tmp_path / "out", settings=settings(observation_keys=("observation.joints",)))
        with pytest.raises(ConfigError, match=r"no cameras \['top'\]; it has"):
            convert(root, tmp_path / "out", settings=settings(cameras={"top": "cam_high"}))


def test_a_done_at_the_end_is_a_time_limit_unless_solved():
    done = np.array([False, True, True])
    assert terminations(done, solved=False, final_done="time_limit").tolist() == [False, True, False]
    assert terminations(done, solved=True, final_done="time_limit").tolist() == [False, True, True]
    assert terminations(done, solved=False, final_done="termination").tolist() == [False, True, True]
    assert done.tolist() == [False, True, True]


class TestCommand:
    def test_formats_are_recognised(self, tmp_path: Path):
        assert detect(robomimic(tmp_path / "a.hdf5")) == "robomimic"
        assert detect(write_d4rl(tmp_path / "b.hdf5", d4rl_arrays())) == "d4rl"
        np.savez(tmp_path / "c.npz", x=np.zeros(1))
        assert detect(tmp_path / "c.npz") == "ogbench"
        assert detect(lerobot_files.write_v21(tmp_path / "d", lerobot_files.record(), storage="image")) == "lerobot"
        with h5py.File(tmp_path / "e.hdf5", "w") as h5:
            h5["x"] = 1
        for path, text in (
            (tmp_path / "none", "there is no such file or folder"),
            (tmp_path / "e.hdf5", r"found \['x'\]"),
            (tmp_path, "A folder of ALOHA HDF5 episodes needs no conversion"),
        ):
            with pytest.raises(DataError, match=text):
                detect(path)

    def test_exit_codes_and_output(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        source = robomimic(tmp_path / "a.hdf5")
        out = str(tmp_path / "out")
        assert main([str(source), out, "--filter-key", "train", "--observation-keys", "object"]) == 0
        assert "wrote 2 episodes into" in capsys.readouterr().out
        assert main([str(source), out]) == 64
        assert "exists; convert into a folder that does not exist yet" in capsys.readouterr().err
        other = str(tmp_path / "other")
        assert main([str(source), other, "--filter-key", "best"]) == 64
        assert "there is no filter key 'best'; /mask holds ['train', 'valid']" in capsys.readouterr().err
        assert main([str(source), other, "--max-episode-steps", "5"]) == 64
        assert "--max-episode-steps means nothing for robomimic; it is for d4rl" in capsys.readouterr().err
        assert main([str(tmp_path / "none.hdf5"), other]) == 65
        with pytest.raises(SystemExit) as stop:
            main([str(source), other, "--camera", "agentview"])
        assert stop.value.code == 64
        assert not Path(other).exists()

    def test_settings_that_cannot_be(self, tmp_path: Path):
        source = robomimic(tmp_path / "a.hdf5")
        for changes, text in (
            ({"cameras": {"a": "x", "b": "x"}}, "cannot name a camera"),
            ({"cameras": {"a": "../x"}}, "cannot name a camera"),
            ({"quality": 0}, "--quality is 0; expected 1 to 100"),
        ):
            with pytest.raises(ConfigError, match=text):
                convert(source, tmp_path / "out", settings=settings(**changes))

    def test_a_failure_while_writing_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        source = robomimic(tmp_path / "a.hdf5")
        write, count = convert_module.write_episode, 0

        def full_disk(*args: Any, **kwargs: Any) -> None:
            nonlocal count
            count += 1
            if count == 3:
                raise OSError(28, "No space left on device")
            write(*args, **kwargs)

        monkeypatch.setattr(convert_module, "write_episode", full_disk)
        with pytest.raises(StorageError, match=r"could not be written: .*No space left"):
            convert(source, tmp_path / "out")
        assert sorted(os.listdir(tmp_path)) == ["a.hdf5"]

    def test_a_damaged_picture_is_refused_and_leaves_nothing(self, tmp_path: Path):
        content = demo(5, 0, pictures=True)
        source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": content})
        with h5py.File(source, "r+") as h5:
            del h5["data/demo_0/obs/agentview_image"]
            h5["data/demo_0/obs"].create_dataset(  # pyright: ignore
                "agentview_image", data=content["obs/agentview_image"], chunks=(1, 16, 24, 3), fletcher32=True
            )
        raw = bytearray(source.read_bytes())
        at = raw.index(content["obs/agentview_image"][3].tobytes())
        raw[at : at + 100] = bytes(100)
        source.write_bytes(raw)
        text = refused(source, tmp_path / "out")
        assert "image.hdf5/data/demo_0/obs, rows 0 on: expected readable pictures; found" in text
