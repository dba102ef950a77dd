"""Episodes that a robot's loop recorded are a dataset; and the program of docs/serving.md, run as it stands there."""

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
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies.control import Control
from chunkwise.policies.load import load_policy
from chunkwise.policies.recorded import RobotEpisode
from qchunk import inspect
from qchunk.data import make_batches, open_dataset
from qchunk.data.dataset import load_episode
from qchunk.data.readers.aloha_images import read_jpegs
from tests.chunkwise.policies.serving import ask, client, read, running
from tests.qchunk import recordings
from tests.qchunk.policies.test_policy import trained

ROOT = Path(__file__).parents[3]
T = 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def episode(seed: int = 0, **more: Any) -> tuple[RobotEpisode, list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    found, seen = RobotEpisode(rate_hz=20.0, ended="steps", reason="", missed=1), []
    for step in range(T):
        image = np.full((16, 24, 3), 40 * step, np.uint8)
        observation = {"state": rng.normal(size=9), "qpos": rng.normal(size=6), "image": {"top": image, "off": None}}
        seen.append(observation | more)
        action = rng.normal(size=4).astype(np.float32)
        found.add(2 * step, seen[-1], action, person=step in (2, 3))
    return found, seen


def test_training_reads_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    made = []
    for number in range(3):
        recorded, seen = episode(number, prompt="pick it up")
        recorded.save(root / f"episode_{number}.hdf5", success=number != 1)
        made.append((recorded, seen))
    assert inspect.main([str(root)]) == 0
    assert "episodes   3" in capsys.readouterr().out
    config = recordings.config(root, observation="state", cameras=("top",), image_size=(16, 24), holdout=0.0)
    source = open_dataset(config).source
    assert source.positives.tolist() == [True, False, True]
    for number, (recorded, seen) in enumerate(made):
        read = load_episode(source, number)
        np.testing.assert_array_equal(read.action, np.stack(recorded.actions))
        for name in ("state", "qpos"):
            np.testing.assert_array_equal(read.states[name], np.stack([one[name] for one in seen]).astype(np.float32))
        assert read.reward.tolist() == [0.0] * 5 + [float(number != 1)]
        assert read.terminated.tolist() == [False] * 5 + [True]
    with h5py.File(root / "episode_0.hdf5") as h5:
        assert np.asarray(h5["intervention"]).tolist() == [False, False, True, True, False, False]
        assert np.asarray(h5["step"]).tolist() == [0, 2, 4, 6, 8, 10]
        assert dict(h5.attrs) == {
            "sim": False,
            "compress": True,
            "fps": 20.0,
            "ended": "steps",
            "reason": "",
            "missed": 1,
            "prompt": "pick it up",
            "success": True,
        }
        assert list(h5["observations/images"]) == ["top"]  # pyright: ignore[reportArgumentType]


def test_an_array_that_serves_as_both_is_stored_once(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    for step in range(T):
        recorded.add(step, {"state": np.full(3, step), "note": "x"}, np.zeros(2, np.float32), person=False)
    path = recorded.save(tmp_path / "episode.hdf5", success=None)
    with h5py.File(path) as h5:
        assert h5["observations/qpos"] == h5["observations/state"]
        assert "success" not in h5.attrs
        assert sorted(h5["observations"]) == ["qpos", "state"]  # pyright: ignore[reportArgumentType]


def test_a_state_that_is_not_finite_is_named_and_recorded(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    for step in range(4):
        seen = {"state": np.array([step, np.nan if step in (1, 3) else 0.0]), "qpos": np.zeros(2)}
        recorded.add(step, seen, np.zeros(2, np.float32), person=False)
    assert [note[:15] for note in recorded.not_finite] == ["state at step 1", "state at step 3"]
    with pytest.warns(UserWarning, match=r"e\.hdf5: state has NaN or infinite numbers in 2 of 4 rows, first 1; "):
        path = recorded.save(tmp_path / "e.hdf5", success=True)
    with h5py.File(path) as h5:
        assert np.isnan(np.asarray(h5["observations/state"])).sum() == 2


@pytest.mark.parametrize("frames", [1, 5])
def test_a_camera_that_sees_nothing_is_read_beside_one_that_does(frames: int, tmp_path: Path) -> None:
    """Of an unchanging image all JPEGs have one length, at which the lengths of a larger one were thought to end."""
    recorded = RobotEpisode(rate_hz=20.0)
    rng = np.random.default_rng(0)
    looks = [{"a_busy": rng.integers(0, 256, (48, 64, 3), np.uint8), "wrist": np.zeros((48, 64, 3), np.uint8)}] * frames
    for step, images in enumerate(looks):
        recorded.add(step, {"state": np.full(3, step), "image": images}, np.zeros(2, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        for name, low, high in (("a_busy", 100, 155), ("wrist", 0, 1)):
            rows = read_jpegs(h5[f"observations/images/{name}"])  # pyright: ignore[reportArgumentType]
            means = [decode(bytes(rows[t]), source="").mean() for t in range(frames)]
            assert [low <= mean <= high for mean in means] == [True] * frames


def test_joints_that_a_function_tells_are_recorded_as_qpos_beside_the_state(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0, joints=lambda seen: seen["joints"])
    for step in range(2):
        recorded.add(step, {"state": np.ones(3), "joints": [step, 7]}, np.zeros(2, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        group: Any = h5["observations"]
        np.testing.assert_array_equal(group["qpos"], [[0, 7], [1, 7]])
        np.testing.assert_array_equal(group["state"], np.ones((2, 3)))


def test_an_episode_of_one_step_has_its_image(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    image = np.full((16, 24, 3), 99, np.uint8)
    recorded.add(0, {"state": np.zeros(3), "image": {"top": image}}, np.zeros(2, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        assert h5["observations/images/top"].shape[0] == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_images_may_have_their_channels_first_and_are_uint8(tmp_path: Path) -> None:
    image = np.zeros((16, 24, 3), np.uint8)
    image[..., 0] = 200
    recorded = RobotEpisode(rate_hz=20.0)
    seen = {"state": np.zeros(3), "image": {"top": image.transpose(2, 0, 1)}}
    recorded.add(0, seen, np.zeros(2, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        jpeg: Any = h5["observations/images/top"]
        found = decode(jpeg[0].tobytes(), source="top")
    assert found.shape == image.shape
    assert np.abs(found.astype(int) - image).max() < 8
    with pytest.raises(DataError, match="top"):
        recorded.add(1, {"state": np.zeros(3), "image": {"top": image / 255}}, np.zeros(2, np.float32), person=False)


def test_what_is_no_episode_is_refused(tmp_path: Path) -> None:
    empty = RobotEpisode(rate_hz=20.0, ended="watchdog", reason="the policy has not answered")
    with pytest.raises(DataError, match=r"the robot executed no action \(watchdog: the policy has not answered\)"):
        empty.save(tmp_path / "e.hdf5", success=False)
    blind = RobotEpisode(rate_hz=20.0)
    blind.add(0, {"joints": np.zeros(3)}, np.zeros(2, np.float32), person=False)
    with pytest.raises(DataError, match=r"expected state or qpos in the robot's observations, found \['joints'\]"):
        blind.save(tmp_path / "e.hdf5", success=False)
    assert list(tmp_path.iterdir()) == []


def colour(value: int) -> np.ndarray:
    return np.full((8, 8, 3), value, np.uint8)


@pytest.mark.parametrize(
    ("seen", "arrays", "cameras"),
    [
        ({"state": np.ones(3), "images": {"cam_high": colour(9).transpose(2, 0, 1)}}, ["qpos", "state"], ["cam_high"]),
        (
            {
                "observation/joint_position": np.ones(2),
                "observation/gripper_position": np.ones(1),
                "observation/exterior_image_1_left": colour(9),
            },
            ["gripper_position", "joint_position", "qpos", "state"],
            ["exterior_image_1_left"],
        ),
        (
            {"observation/state": np.ones(3), "observation/image": colour(9), "observation/depth": np.ones((8, 8, 3))},
            ["qpos", "state"],
            ["image"],
        ),
    ],
    ids=["aloha", "droid", "libero"],
)
def test_observations_by_the_names_of_openpis_clients_are_recorded(
    tmp_path: Path, seen: dict[str, Any], arrays: list[str], cameras: list[str]
) -> None:
    recorded = RobotEpisode(rate_hz=20.0, joints=lambda observation: np.ones(3))
    for step in range(2):
        recorded.add(step, seen, np.zeros(3, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        group: Any = h5["observations"]
        assert sorted(set(group) - {"images"}) == arrays
        assert list(group["images"]) == cameras
        np.testing.assert_array_equal(group["qpos"], np.ones((2, 3)))
        found = decode(group["images"][cameras[0]][1].tobytes(), source="camera")
    np.testing.assert_array_equal(found, colour(9))


def test_a_camera_that_missed_a_frame_costs_its_own_images_alone(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    for step in range(4):
        images = {"top": colour(9), "wrist": None if step == 2 else colour(9)}
        seen = {"state": np.ones(3), "image": images} | ({"force": np.ones(6)} if step else {})
        recorded.add(step, seen, np.zeros(2, np.float32), person=False)
    assert recorded.left_out == ["force: there at 3 of 4 steps", "wrist: there at 3 of 4 steps"]
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        group: Any = h5["observations"]
        assert (sorted(group), list(group["images"])) == (["images", "qpos", "state"], ["top"])
        assert h5.attrs["left_out"] == "force: there at 3 of 4 steps; wrist: there at 3 of 4 steps"


def test_what_changes_its_size_is_left_out_whole_and_named(tmp_path: Path) -> None:
    """Kills: an episode that cannot be saved for one vector's sake, and a camera of two sizes that training refuses."""
    recorded = RobotEpisode(rate_hz=20.0)
    for step in range(3):
        seen = {"state": np.ones(3), "touch": np.zeros(3 + step // 2), "image": {"top": colour(9), "wrist": colour(9)}}
        if step:
            seen["image"]["wrist"] = np.zeros((6, 8, 3), np.uint8)
        recorded.add(step, seen, np.zeros(2, np.float32), person=False)
    expected = [
        "touch: of shape [3] at the first step and [4] at step 2",
        "wrist: of shape [8, 8, 3] at the first step and [6, 8, 3] at step 1",
    ]
    assert recorded.left_out == expected
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        group: Any = h5["observations"]
        assert (sorted(group), list(group["images"])) == (["images", "qpos", "state"], ["top"])
        assert h5.attrs["left_out"] == "; ".join(expected)
    config = recordings.config(tmp_path, observation="state", cameras=("top",), image_size=(8, 8), holdout=0.0)
    assert open_dataset(config).source.lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("seen", "action", "message"),
    [
        ({"state": np.zeros(9)}, 4, r"qpos: expected shape \[6\] at every step, as at the first, found none at step 6"),
        ({"state": np.zeros(8), "qpos": np.zeros(6)}, 4, r"state: expected shape \[9\] .*found shape \[8\] at step 6"),
        ({"state": np.zeros(9), "qpos": np.zeros(6)}, 3, r"action: expected shape \[4\] .*found shape \[3\] at step 6"),
    ],
)
def test_a_step_of_other_joints_is_refused_and_those_before_it_are_saved(
    tmp_path: Path, seen: dict[str, Any], action: int, message: str
) -> None:
    recorded, _ = episode()
    with pytest.raises(DataError, match=message):
        recorded.add(99, seen, np.zeros(action, np.float32), person=False)
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=False)) as h5:
        assert h5["action"].shape == (T, 4)  # pyright: ignore[reportAttributeAccessIssue]


def test_numbers_keep_their_dtype_and_a_single_one_is_a_vector(tmp_path: Path) -> None:
    """Kills: times of 10 steps that are all the same in float32, and a gripper that is not recorded at all."""
    recorded = RobotEpisode(rate_hz=20.0)
    for step in range(3):
        seen = {"state": np.full(2, 0.1), "gripper": 0.7, "frame": np.array([2**24 + step])}
        recorded.add(step, seen | {"time": np.float64(1.76e9 + step / 10)}, np.zeros(2, np.float32), person=False)
    assert recorded.left_out == []
    path = recorded.save(tmp_path / "episode.hdf5", success=True)
    with h5py.File(path) as h5:
        group: Any = h5["observations"]
        found = {name: group[name][()] for name in group}
    assert found["gripper"].tolist() == [[0.7]] * 3
    assert found["frame"].tolist() == [[16777216], [16777217], [16777218]]
    np.testing.assert_allclose(np.diff(found["time"], axis=0), 0.1, atol=1e-6)
    assert {name: x.dtype.name for name, x in found.items()} == {
        "frame": "int64",
        "gripper": "float64",
        "qpos": "float32",
        "state": "float32",
        "time": "float64",
    }
    assert inspect.main([str(tmp_path)]) == 0
    source = open_dataset(recordings.config(tmp_path, observation="state", holdout=0.0)).source
    np.testing.assert_array_equal(load_episode(source, 0).states["state"], np.full((3, 2), 0.1, np.float32))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"a": np.ones(2), "a/b": np.ones(2)}, "a/b: expected names of which none is the folder of another"),
        ({"state/tool": np.ones(2)}, "state/tool: .* found state beside it"),
        ({"qpos/left": np.ones(2)}, "qpos/left: .* found qpos beside it"),
        ({"observation": {"images": np.ones(2)}}, "images: expected names of which none is the folder"),
        ({"observation/images/top": np.ones(2)}, "images/top: .* found images beside it"),
        ({"image": {"top": np.zeros((8, 8, 3), np.uint8), "top/left": np.zeros((8, 8, 3), np.uint8)}}, "top/left: "),
        ({".": np.ones(2)}, r"'\.': expected a name of a dataset in an HDF5 file"),
        ({"a//b": np.ones(2)}, "'a//b': expected a name"),
        ({"a\0b": np.ones(2)}, "expected a name"),
        ({"prompt": "pick\0up"}, "prompt: expected text without NUL"),
        ({"prompt": "pick\ud800up"}, "prompt: expected text without NUL, in UTF-8"),
        ({"touch": [[1.0], [1.0, 2.0]]}, "touch: expected an array"),
    ],
)
def test_what_no_file_can_hold_is_refused_before_the_first_action(more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        RobotEpisode(rate_hz=20.0).measured({"state": np.ones(3)} | more)


def test_words_that_are_no_text_are_named_and_an_error_of_any_words_is_saved(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0, reason="the bus said \0")
    seen = {"state": np.ones(3), "d\0epth": np.ones((2, 2)), "found": np.zeros(0), "prompt": b"pick"}
    recorded.add(0, seen, np.zeros(2, np.float32), person=False)
    assert [said.split(":")[0] for said in recorded.left_out] == ["d\0epth", "found"]
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        assert h5.attrs["reason"] == r"the bus said \x00"
        assert h5.attrs["prompt"] == "pick"
        assert "d\\x00epth: float64 of shape [2, 2]" in str(h5.attrs["left_out"])


def test_a_number_whose_name_is_taken_is_left_out_and_the_robot_drives() -> None:
    """It was not recorded before, so that such a robot drove; vectors of one name are refused."""
    for seen in (
        {"gripper": 0.5, "gripper/force": np.ones(2)},
        {"gripper": np.ones(2), "observation/gripper": 0.5},
        {"stamp": 1.5, "observation/stamp": 1.5},
    ):
        recorded = RobotEpisode(rate_hz=20.0)
        recorded.add(0, {"state": np.ones(3)} | seen, np.zeros(2, np.float32), person=False)
        assert len(recorded.left_out) == 1


def test_an_empty_state_is_refused_at_once() -> None:
    with pytest.raises(DataError, match="state: expected numbers, found an empty vector"):
        RobotEpisode(rate_hz=20.0).measured({"state": np.zeros(0)})


def test_two_entries_of_one_name_are_refused() -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    for twice in (
        {"state": np.ones(3), "observation/state": np.ones(3)},
        {"state": np.ones(3), "image": {"top": colour(1)}, "images": {"top": colour(2)}},
    ):
        with pytest.raises(DataError, match=r"once in an observation, found (state|top) twice"):
            recorded.measured(twice)


@pytest.mark.long
def test_the_program_of_the_page_drives_records_and_its_episode_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, monkeypatch)
    section = (ROOT / "docs/serving.md").read_text().split("## On a robot")[1]
    program = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    assert "runs/qchunk-..." in program
    (tmp_path / "drive.py").write_text(program.replace("runs/qchunk-...", str(tmp_path / "run")))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):  # the second run's episode has a name of its own
        ran = subprocess.run(
            [sys.executable, "drive.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        stopped, ended = ran.stdout.splitlines()[-2:]
        assert stopped == "stopped"
        assert ended.startswith("steps  missed")
    source = open_dataset(recordings.config(tmp_path / "recordings", observation="state")).source
    assert (source.lengths.tolist(), source.dims["state"]) == ([100, 100], recordings.STATE)


class Still:
    """A robot that stays where it is."""

    def __init__(self) -> None:
        self.commands: list[np.ndarray] = []

    def observe(self) -> dict[str, Any]:
        return {"state": np.zeros(recordings.STATE, np.float32)}

    def act(self, action: np.ndarray) -> None:
        self.commands.append(action)

    def stop(self) -> None: ...


def test_a_policy_that_is_served_drives_a_robot_until_its_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, monkeypatch)
    policy = load_policy(tmp_path / "run")

    class Client:
        """As openpi's: a refusal is an error."""

        def infer(self, observation: Any) -> Any:
            answer = ask(connection, observation)
            if not isinstance(answer, dict):
                raise TypeError(answer)
            return answer

    robot = Still()
    control = Control(robot, Client(), rate_hz=50.0, patience_s=30.0)
    with running(policy) as port, client(port) as connection:
        read(connection.recv())
        episode = control.run(6)
        expected = [policy.infer(robot.observe(), draw=(0, count))["actions"] for count in range(2)]
        np.testing.assert_array_equal(np.stack(robot.commands), np.concatenate(expected))
        assert (episode.ended, episode.failures) == ("steps", [])
    episode = Control(robot, Client(), rate_hz=50.0, first_s=0.1).run(6)
    assert (episode.ended, len(episode), len(robot.commands)) == ("watchdog", 0, 6)
    assert "inferences failed" in episode.reason


@pytest.mark.parametrize("key", ["observation/wrist_image", "observation/exterior_image_1_left", "image/top", "Image"])
@pytest.mark.parametrize("image", [np.ones((8, 8, 3), np.float32), np.ones((8, 8), np.uint8)], ids=["float", "grey"])
def test_an_image_that_no_file_could_hold_is_refused_before_the_first_action(key: str, image: np.ndarray) -> None:
    """Kills: an image by a name of openpi's clients that is neither recorded nor refused."""
    recorded = RobotEpisode(rate_hz=20.0)
    with pytest.raises(DataError, match=r"image .*: expected (uint8 in 0\.\.255|\[height, width, 3\]), found"):
        recorded.measured({"state": np.zeros(3), key: image})


def test_what_is_neither_a_vector_nor_an_image_is_named(tmp_path: Path) -> None:
    recorded = RobotEpisode(rate_hz=20.0)
    seen = {"state": np.ones(3), "observation/depth_image": np.ones((4, 5)), "touch": np.ones((2, 3), np.float32)}
    seen |= {"contact": np.zeros(2, bool), "mask": True}
    for step in range(2):
        recorded.add(step, seen, np.zeros(2, np.float32), person=False)
    ending = "neither a vector of numbers, nor a uint8 image, nor a depth map"
    expected = [
        f"contact: bool of shape [2], {ending}",
        f"mask: bool of shape [], {ending}",
        f"observation/depth_image: float64 of shape [4, 5], {ending}",
        f"touch: float32 of shape [2, 3], {ending}",
    ]
    assert recorded.left_out == expected
    with h5py.File(recorded.save(tmp_path / "episode.hdf5", success=True)) as h5:
        assert h5.attrs["left_out"] == "; ".join(expected)


def test_a_recording_is_not_replaced_unless_that_is_said(tmp_path: Path) -> None:
    first, other = episode(0)[0], episode(1)[0]
    path = first.save(tmp_path / "e.hdf5", success=True)
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=r"e\.hdf5 exists; save the episode under another name, or with overwrite=True"
    ):
        other.save(path, success=False)
    assert path.read_bytes() == before
    with h5py.File(other.save(path, success=False, overwrite=True)) as h5:
        assert not h5.attrs["success"]


@pytest.mark.parametrize("observation", ["qpos", "state"])
def test_recordings_with_a_state_join_those_without(tmp_path: Path, observation: str):
    """A robot's recorder writes the policy's observation as state, ALOHA's own recorders write none."""
    root = recordings.dataset(tmp_path / "data")
    for number in range(4):  # the most
        with h5py.File(root / f"episode_{number}.hdf5", "a") as h5:
            del h5["/observations/state"]
    cfg = recordings.config(root, observation=observation)
    if observation == "state":
        with pytest.raises(DataError, match=r"episode_0\.hdf5: /observations/state: expected this array, for data\."):
            open_dataset(cfg)
        return
    found = open_dataset(cfg)
    assert dict(found.source.dims) == {"qpos": recordings.QPOS, "action": recordings.ACTION}
    told = "/observations/state: in 2 of 6 episodes, or of several widths; it is not read (data.observation is qpos)"
    assert [note for note in found.notes if told in note]
    batch = next(make_batches(cfg))
    assert batch["observations"]["state"] is None
    assert batch["observations"]["qpos"].shape == (8, recordings.QPOS)


@pytest.mark.parametrize("folder", ["score_3", "score_5"])
def test_a_file_that_cannot_be_opened_has_its_folder_s_score(tmp_path: Path, folder: str):
    root = recordings.dataset(tmp_path / "data")
    for number in range(6):
        place = root / ("score_5" if number % 2 else "score_3") / f"episode_{number}.hdf5"
        place.parent.mkdir(exist_ok=True)
        (root / f"episode_{number}.hdf5").rename(place)
    (root / folder / "cut.hdf5").write_bytes((root / "score_5" / "episode_1.hdf5").read_bytes()[:3000])
    cfg = recordings.config(root, positive_scores=(5,), negative_scores=(1,))
    if folder == "score_3":  # training takes none of them
        assert len(open_dataset(cfg).source) == 3
        return
    with pytest.raises(DataError, match="1 problem") as error:
        open_dataset(cfg)
    assert "expected a folder score_5" not in str(error.value)


def test_a_mobile_base_s_part_of_the_action_is_written_as_recordings_have_it(tmp_path: Path):
    recorded, _ = episode()
    width = recorded.actions[0].shape[0]
    for wrong in (-1, width):
        recorded.base_action = wrong
        with pytest.raises(ConfigError, match=rf"base_action is {wrong}; expected 0 to {width - 1} of the action's"):
            recorded.save(tmp_path / "data" / "episode.hdf5", success=True)
    recorded.base_action = 2
    path = recorded.save(tmp_path / "data" / "episode.hdf5", success=True)
    with h5py.File(path) as h5:
        assert (h5["/action"].shape, h5["/base_action"].shape) == ((T, width - 2), (T, 2))  # pyright: ignore[reportAttributeAccessIssue]
    source = open_dataset(recordings.config(path.parent, base_action=True, holdout=0.0)).source
    np.testing.assert_array_equal(load_episode(source, 0).action, np.stack(recorded.actions))
