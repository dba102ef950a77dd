import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.data.images import decode
from chunkwise.envs.suites import robomimic as robomimic_env
from chunkwise.errors import ConfigError, DataError
from qchunk.config import DataConfig
from qchunk.convert import convert
from qchunk.converters.robomimic import DEFAULT_KEYS
from qchunk.data import Pool
from qchunk.data.conventions import terminations
from qchunk.data.index import format_of, open_source
from tests.qchunk.converters.sources import (
    KEYS,
    arrays_of,
    attributes_of,
    demo,
    refused,
    robomimic,
    settings,
    write_robomimic,
)
from tests.qchunk.recordings import assert_same, config, plain_transition


def test_arrays_rewards_and_labels(tmp_path: Path):
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


def test_transitions_are_the_specifications(tmp_path: Path):
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


def test_one_transition_by_hand(tmp_path: Path):
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


def test_keys_filter_and_final_done_are_the_users(tmp_path: Path):
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


def test_images_as_jpeg_rows(tmp_path: Path):
    source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": demo(5, 0, images=True)})
    convert(source, tmp_path / "out", settings=settings(cameras={"agentview_image": "cam_high"}))
    path = tmp_path / "out/episode_00000.hdf5"
    found, attributes = arrays_of(path), attributes_of(path)
    assert [name for name in found if "images" in name] == ["observations/images/cam_high"]
    rows, lengths = found["observations/images/cam_high"], found["compress_len"]
    assert (bool(attributes["compress"]), lengths.shape, rows.shape) == (True, (1, 5), (5, lengths.max()))
    for frame in range(5):
        assert not rows[frame, lengths[0, frame] :].any()
        image = decode(rows[frame, : lengths[0, frame]].tobytes(), source="").astype(int)
        original = demo(5, 0, images=True)["obs/agentview_image"][frame]
        assert np.abs(image - original).max() <= 8


def test_images_raw_and_none(tmp_path: Path):
    content = demo(5, 0, images=True)
    source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": content})
    convert(source, tmp_path / "raw", settings=settings(images="raw"))
    found = arrays_of(tmp_path / "raw/episode_00000.hdf5")
    for key in ("agentview_image", "robot0_eye_in_hand_image"):
        np.testing.assert_array_equal(found[f"observations/images/{key}"], content[f"obs/{key}"], strict=True)
    assert not attributes_of(tmp_path / "raw/episode_00000.hdf5")["compress"]
    convert(source, tmp_path / "none", settings=settings(images="none"))
    assert not any("images" in name for name in arrays_of(tmp_path / "none/episode_00000.hdf5"))


@pytest.mark.parametrize("images", ["jpeg", "raw"])
def test_images_come_back_in_the_pools_batches(tmp_path: Path, images: Any):
    content = demo(5, 0, images=True)
    source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": content})
    cameras = {"agentview_image": "cam_high", "robot0_eye_in_hand_image": "cam_wrist"}
    convert(source, tmp_path / "out", settings=settings(cameras=cameras, images=images))
    cfg = config(
        tmp_path / "out", episodes_per_epoch=1, positive_ratio=1.0, horizon=2, cameras=("cam_wrist", "cam_high")
    )
    found = Pool(cfg, 0, 0).transition(0, 1)
    for key, frame in (("observations", 1), ("next_observations", 3)):
        for k, name in enumerate(("robot0_eye_in_hand_image", "agentview_image")):
            error = np.abs(found[key]["images"][k].astype(int) - content[f"obs/{name}"][frame])
            assert error.max() <= (8 if images == "jpeg" else 0)


def test_shaped_rewards_give_no_labels(tmp_path: Path):
    content = demo(5, 0)
    content["rewards"] = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    convert(write_robomimic(tmp_path / "dense.hdf5", {"demo_0": content}), tmp_path / "out")
    assert "success" not in attributes_of(tmp_path / "out/episode_00000.hdf5")
    assert not arrays_of(tmp_path / "out/episode_00000.hdf5")["terminated"].any()


def test_rewards_up_to_0_say_themselves_where_an_episode_ends(tmp_path: Path):
    """-1 until success, then 0, as Q-chunking's code has them; done is set in each last frame."""
    demos = {}
    for number in range(4):
        content = demo(6, number)
        content["rewards"] = np.array([-1.0] * 5 + [0.0 if number < 2 else -1.0])
        content["dones"] = np.array([0] * 5 + [1])
        demos[f"demo_{number}"] = content
    source = write_robomimic(tmp_path / "shifted.hdf5", demos)
    convert(source, tmp_path / "out")
    assert "terminated" not in arrays_of(tmp_path / "out/episode_00000.hdf5")
    opened = open_source(DataConfig(path=str(tmp_path / "out")))[0]
    ends = [opened.load(i).terminated.tolist() for i in range(4)]
    assert ends == [[False] * 5 + [solved] for solved in (True, True, False, False)]
    convert(source, tmp_path / "each", settings=settings(final_done="termination"))
    assert arrays_of(tmp_path / "each/episode_00003.hdf5")["terminated"].tolist() == [False] * 5 + [True]


def test_an_npz_beside_episodes_is_no_dataset(tmp_path: Path):
    """Such as statistics of them; a folder of npz alone is OGBench's, whatever the case of the suffix."""
    convert(robomimic(tmp_path / "a.hdf5"), tmp_path / "out")
    np.savez(tmp_path / "out/stats.npz", mean=np.zeros(3))
    assert format_of(tmp_path / "out") == "aloha_hdf5"
    (tmp_path / "npz").mkdir()
    (tmp_path / "npz/A.NPZ").write_bytes((tmp_path / "out/stats.npz").read_bytes())
    assert format_of(tmp_path / "npz") == "ogbench_npz"


def test_the_same_source_gives_the_same_bytes(tmp_path: Path):
    source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": demo(5, 0, images=True)})
    for name in ("one", "two"):
        convert(source, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_every_problem_is_in_one_report(tmp_path: Path):
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
        "bad.hdf5/data/demo_0: attribute num_samples: expected 6, the rows of actions, found 99",
        "bad.hdf5/data/demo_1: obs/object, row 3: expected finite numbers, found nan in column 1 (1 such row(s))",
        "bad.hdf5/data/demo_2: rewards, row 5: expected 6 rows, as many as actions, found 5 rows",
        "bad.hdf5/data/demo_3: obs/robot0_eef_pos: expected this array, found none",
        "bad.hdf5/data/demo_4: action: expected 7 dimensions, as in most episodes, found 6 dimensions",
        "bad.hdf5/data/demo_5: dones, row 2: expected 0 or 1 in each frame, found 7 (1 such row(s))",
    ):
        assert line in text
    assert "6 problem(s)" in text


def test_missing_observations_say_what_to_do(tmp_path: Path):
    content = {key: x for key, x in demo(5, 0).items() if "obs" not in key}
    text = refused(write_robomimic(tmp_path / "demo.hdf5", {"demo_0": content}), tmp_path / "out")
    assert "expected /obs in each episode, found it in none: make them with" in text
    with pytest.raises(ConfigError, match=r"no episode has the observations \['pose'\]; there are \['object', "):
        convert(robomimic(tmp_path / "a.hdf5"), tmp_path / "out", settings=settings(observation_keys=("pose",)))


def test_data_outside_the_file_and_sizes_that_are_not_there(tmp_path: Path):
    source = write_robomimic(tmp_path / "a.hdf5", {f"demo_{i}": demo(5, i) for i in range(3)})
    with h5py.File(source, "r+") as h5:
        del h5["data/demo_0/actions"], h5["data/demo_1/actions"]
        h5["data/demo_0/actions"] = h5py.ExternalLink("/etc/passwd", "/x")
        h5.create_dataset("data/demo_1/actions", (10**12, 7), "f4", chunks=(5, 7))
    text = refused(source, tmp_path / "out")
    assert "demo_0: actions: expected data stored in this file, found ExternalLink at 'actions'" in text
    assert "demo_1: actions: expected at most 8192 MiB" in text


@pytest.mark.parametrize("kind", ["external", "soft", "virtual"])
def test_a_camera_that_lies_elsewhere_is_not_left_out_in_silence(kind: str, tmp_path: Path):
    """Unless no images are asked for, or another episode has it in its place, of which this one is bad."""
    source = write_robomimic(tmp_path / "a.hdf5", {f"demo_{i}": demo(5, i, images=True) for i in range(2)})
    link = {"external": h5py.ExternalLink("b.hdf5", "/x"), "soft": h5py.SoftLink("/elsewhere")}
    found = {"external": "ExternalLink at 'agentview_image'", "soft": "SoftLink at 'agentview_image'"}
    with h5py.File(source, "r+") as h5:
        h5["/elsewhere"] = np.zeros((5, 8, 8, 3), np.uint8)
        for name in ("demo_0", "demo_1"):
            obs = h5[f"data/{name}/obs"]
            assert isinstance(obs, h5py.Group)
            del obs["agentview_image"]
            if kind == "virtual":
                obs.create_virtual_dataset("agentview_image", h5py.VirtualLayout((5, 8, 8, 3), "u1"))
            else:
                obs["agentview_image"] = link[kind]
    said = f"demo_0.*obs/agentview_image: expected data stored in .*found {found.get(kind, 'a virtual dataset')}"
    for cameras in ({}, {"agentview_image": "cam_high"}):
        with pytest.raises(DataError, match=said):
            convert(source, tmp_path / "out", settings=settings(cameras=cameras))
    convert(source, tmp_path / "none", settings=settings(images="none"))
    convert(source, tmp_path / "other", settings=settings(cameras={"robot0_eye_in_hand_image": "hand"}))


def test_links_to_what_is_no_image_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_robomimic(tmp_path / "a.hdf5", {f"demo_{i}": demo(5, i, images=True) for i in range(2)})
    with h5py.File(source, "r+") as h5:
        obs = h5["data/demo_0/obs"]
        assert isinstance(obs, h5py.Group)
        links = {"to_numbers": h5py.SoftLink("/data/demo_0/actions"), "to_nothing": h5py.SoftLink("/data/none")}
        links |= {"beside": h5py.SoftLink("object"), "elsewhere": h5py.ExternalLink("b.hdf5", "/x")}
        for name, link in (links | {"to_a_group": h5py.SoftLink("/data/demo_1")}).items():
            obs[name] = link
    convert(source, tmp_path / "out", settings=settings())
    said = " ".join(capsys.readouterr().out.split())
    assert re.search("; left out: .*beside, elsewhere, .*to_a_group, to_nothing, to_numbers", said)


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content = demo(5, 0)
    content["obs/agentview_image"] = np.zeros((5, 8, 8, 3), np.float32)
    convert(write_robomimic(tmp_path / "a.hdf5", {"demo_0": content}), tmp_path / "out", settings=settings())
    assert re.search("; left out: .*agentview_image", capsys.readouterr().out)


def test_the_environment_shows_what_a_converted_file_holds():
    assert tuple(key.removesuffix("-state") for key in robomimic_env.KEYS) == DEFAULT_KEYS


@pytest.mark.parametrize("kind", ["S", h5py.string_dtype()], ids=["fixed", "variable"])
def test_masks_are_texts_of_either_kind(kind: Any, tmp_path: Path):
    source = write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo(5, 0), "demo_1": demo(4, 1)})
    with h5py.File(source, "r+") as h5:
        h5["mask/train"] = np.array(["demo_1"], dtype=kind)
    convert(source, tmp_path / "out", settings=settings(filter_key="train"))
    assert len(list((tmp_path / "out").rglob("*.hdf5"))) == 1


def test_masks_that_name_no_episode(tmp_path: Path):
    source = write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo(5, 0)}, train=["demo_0", "demo_9"])
    assert "mask/train: expected names of episodes under /data, found ['demo_9']" in refused(source, tmp_path / "o")


def test_damaged_files(tmp_path: Path):
    source = robomimic(tmp_path / "a.hdf5")
    source.write_bytes(source.read_bytes()[:3000])
    assert "expected a whole HDF5 file with the group /data, found" in refused(
        source, tmp_path / "out", kind="robomimic"
    )
    source = robomimic(tmp_path / "b.hdf5")
    with h5py.File(source, "r+") as h5:
        h5["data"].attrs["env_args"] = '{"env_name": "Lift", "env_name": "Can"}'
    assert "env_args: expected JSON with finite numbers and unique keys" in refused(source, tmp_path / "out")


def test_a_done_at_the_end_is_a_time_limit_unless_solved():
    done = np.array([False, True, True])
    assert terminations(done, solved=False, final_done="time_limit").tolist() == [False, True, False]
    assert terminations(done, solved=True, final_done="time_limit").tolist() == [False, True, True]
    assert terminations(done, solved=False, final_done="termination").tolist() == [False, True, True]
    assert done.tolist() == [False, True, True]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_order_of_episodes_does_not_hang_on_the_hash_seed(tmp_path: Path, hash_seed: str):
    """Kills: a key for which names that differ in letters alone are equal, so that a set's order decides."""
    names = ["place_0", "pick_10", "pick_0", "demo_1", "pick_2", "lift", "demo_01"]
    source = write_robomimic(tmp_path / "a.hdf5", {name: demo(4, i) for i, name in enumerate(names)})
    code = (
        "import sys, pathlib\n"
        "from qchunk.converters.recording import ConvertSettings\n"
        "from qchunk.converters.robomimic import RobomimicReader\n"
        "reader = RobomimicReader(pathlib.Path(sys.argv[1]), ConvertSettings())\n"
        "print(*(reader.read(i).recording.id.rpartition('/')[2] for i in range(len(reader))))\n"
    )
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code, source], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["demo_01", "demo_1", "lift", "pick_0", "pick_2", "pick_10", "place_0"]


def test_a_camera_that_the_first_episode_lacks_is_not_lost_for_the_others(tmp_path: Path):
    """Kills: cameras, and what is left out, judged by the first episode alone."""
    demos = {f"demo_{i}": demo(4, i, images=True) for i in range(3)}
    del demos["demo_0"]["obs/agentview_image"], demos["demo_0"]["obs/agentview_depth"]
    source = write_robomimic(tmp_path / "a.hdf5", demos)
    text = refused(source, tmp_path / "out")
    assert "a.hdf5/data/demo_0: obs/agentview_image: expected uint8 (4, h, w, 3), found none" in text
    assert "1 problem(s)" in text
    convert(source, tmp_path / "out", settings=settings(cameras={"robot0_eye_in_hand_image": "wrist"}))
    about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
    assert about["observations_left_out"] == ["agentview_depth", "agentview_image", "robot0_joint_pos"]
