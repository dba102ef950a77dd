"""openpi_ript/robots by hand-computed numbers; test_openpi_policies.py compares the whole with openpi's own."""

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.config.saved import flatten, read_config
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies.execution import Committed
from chunkwise.policies.load import load_policy
from chunkwise.policies.server import PolicyServer
from chunkwise.policies.wire import rename
from openpi_ript import config as configs
from openpi_ript.config import DataConfig, EnvConfig, EvalConfig, OpenpiRiptConfig, RobotConfig, toy
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.data.lerobot_writer import Recorded, write_lerobot
from openpi_ript.ript.acting import ActingPolicy
from openpi_ript.robots.adapter import Adapter, as_bytes, find_adapter, joined
from openpi_ript.robots.aloha import Aloha
from openpi_ript.robots.arms import Droid
from openpi_ript.robots.libero import Libero, rotation_vector
from openpi_ript.train import _require_image_of_each, main
from tests.chunkwise.policies.serving import running
from tests.openpi_ript.robots.openpi_cases import POLICIES, Case, observation
from tests.openpi_ript.robots.test_openpi_policies import TOKENIZER, config_of, make_policy

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


class Doubled(Adapter):
    """One of a user's own."""

    def state(self, state: np.ndarray) -> np.ndarray:
        return 2 * state


class OwnNames(Adapter):
    """One whose client has other names, which it reads without asking whether they are there."""

    def observation(self, sent: Mapping[str, Any], cameras: Sequence[str]) -> Mapping[str, Any]:
        return {
            "state": sent["joints"],
            "image": {name: sent[f"my_{name}"] for name in cameras},
            "prompt": sent["goal"],
        }


def test_alohas_joints_turn_and_its_grippers_become_angles() -> None:
    """A position of 0.5 is 0.03822 m of travel: sine 0.3910 of the motor's angle, 0.4017 rad."""
    aloha, state = Aloha(), np.arange(1.0, 15.0)
    state[[6, 13]] = 0.5, 1.0
    got = aloha.state(state)
    np.testing.assert_array_equal(got[:6], [1, -2, -3, 4, 5, 6])
    np.testing.assert_array_equal(got[7:13], [8, -9, -10, 11, 12, 13])
    sine = (0.022**2 + 0.03822**2 - 0.036**2) / (2 * 0.022 * 0.03822)
    assert got[6] == pytest.approx((np.arcsin(sine) - 0.5476) / 1.082, abs=1e-12)
    wide = (0.022**2 + 0.058**2 - 0.036**2) / (2 * 0.022 * 0.058)
    assert got[13] == pytest.approx((np.arcsin(min(wide, 1)) - 0.5476) / 1.082, abs=1e-12)
    assert state[1] == 2  # the caller's own is not changed
    assert np.isfinite(aloha.state(np.full(14, -0.01844 / 0.03956))).all()  # no travel at all


def test_alohas_actions_come_back() -> None:
    aloha, chunk = Aloha(), np.random.default_rng(0).uniform(-1, 1, (3, 5, 14))
    np.testing.assert_allclose(aloha.acted(aloha.action(chunk)), chunk, atol=1e-12)
    closed = np.zeros(14)
    closed[6], closed[13] = 0.0, 1.0
    np.testing.assert_allclose(aloha.action(closed)[[6, 13]], [-0.6213 - 0.5476, 1.4910 - 0.5476], atol=1e-12)
    assert aloha.acted(closed)[6] == pytest.approx((0.5476 + 0.6213) / 2.1123)


def test_quaternions_become_axis_times_angle() -> None:
    half = np.sqrt(0.5)
    turns = np.array([[0, 0, 0, 1], [half, 0, 0, half], [0, 0, 1, 0], [0, -1, 0, -1e-9], [0, 0, 0, 1.1], [0, 0, 0, -1]])
    expected = [[0, 0, 0], [np.pi / 2, 0, 0], [0, 0, np.pi], [0, -np.pi, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(rotation_vector(turns), expected, atol=1e-6)
    small = np.array([1e-5, 0, 0, 1.0], np.float32)  # whose fourth number is 1 in 32 bits
    np.testing.assert_allclose(rotation_vector(small), np.zeros(3), atol=2e-5)


def test_rotations_are_those_of_openpis_libero_client() -> None:
    """Recorded from `_quat2axisangle` of examples/libero/main.py of openpi 15a9616, rounded to six digits."""
    given = [
        [0.001257, 0.305295, -0.280148, -0.910116],
        [-0.262948, -0.573495, 0.034783, 0.775082],
        [-0.493548, -0.622166, 0.491177, 0.35786],
        [0.090353, -0.797522, -0.025072, 0.595958],
        [-0.497725, -0.169442, -0.703969, -0.47748],
        [0.997, 0.0, 0.072, -0.01],
        [0.0, 0.0, 0.0, -1.2],
        [0.0001, 0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0, 0.0],
    ]
    recorded = [
        [0.016469, 3.999872, -3.670405],
        [-0.569251, -1.241548, 0.075301],
        [-1.273619, -1.605523, 1.267501],
        [0.209808, -1.85192, -0.058219],
        [-2.343579, -0.797832, -3.314696],
        [3.152266, 0.0, 0.227646],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [3.141593, 0.0, 0.0],
    ]
    np.testing.assert_allclose(rotation_vector(np.array(given)), recorded, atol=1e-6)
    seen = np.concatenate([np.full((9, 3), 0.5), given, np.full((9, 2), 0.02)], axis=1).astype(np.float32)
    state = Libero().simulated_state(seen)
    np.testing.assert_allclose(state, np.concatenate([seen[:, :3], recorded, seen[:, 7:]], axis=1), atol=3e-6)


def test_liberos_simulator_is_seen_as_openpis_client_sends_it() -> None:
    """The simulator's own image has its first row at the bottom; ours is upright, openpi turns it by 180 degrees."""
    libero, rng = Libero(), np.random.default_rng(0)
    own = rng.integers(0, 256, (4, 6, 3)).astype(np.uint8)
    upright = own[::-1]
    np.testing.assert_array_equal(libero.simulated_image(upright), np.rot90(own, 2))
    np.testing.assert_array_equal(libero.simulated_image(np.stack([upright] * 2))[1], own[::-1, ::-1])
    state = np.array([[1, 2, 3, 0, 0, 1, 0, 8, 9]], np.float32)
    np.testing.assert_allclose(libero.simulated_state(state), [[1, 2, 3, 0, 0, np.pi, 8, 9]], atol=1e-6)
    with pytest.raises(DataError, match=r"position, quaternion and fingers, 9 numbers, found 8"):
        libero.simulated_state(state[:, :8])


def test_droids_state_is_joints_and_gripper_of_one_moment_or_of_many() -> None:
    keys = ("joints", "gripper")
    np.testing.assert_array_equal(joined({"joints": [1.0, 2.0], "gripper": 3.0}, keys), [1, 2, 3])
    np.testing.assert_array_equal(
        joined({"joints": [[1.0, 2.0]] * 2, "gripper": [3.0, 4.0]}, keys), [[1, 2, 3], [1, 2, 4]]
    )
    with pytest.raises(DataError, match=r"joints, gripper: expected numbers of one moment.*\[2, 2\]"):
        joined({"joints": [[1.0, 2.0]] * 2, "gripper": [[3.0]]}, keys)
    with pytest.raises(DataError, match=r"gripper: expected it in the observation, found \['joints'\]"):
        joined({"joints": [1.0]}, keys)


def test_images_of_floats_become_bytes() -> None:
    got = as_bytes(np.array([[0.0, 0.5, 1.0]], np.float32), "cam")
    np.testing.assert_array_equal(got, np.array([[0, 127, 255]], np.uint8))
    assert as_bytes(got, "cam") is got
    for bad in (1.5, -0.1, np.nan):
        with pytest.raises(DataError, match=r"image cam: expected floats from 0 to 1, or bytes"):
            as_bytes(np.array([bad, 0.5]), "cam")


def test_malformed_entries_are_refused_by_their_names() -> None:
    droid, aloha = find_adapter("droid"), find_adapter("aloha")
    arm = {"observation/joint_position": [0.0] * 7, "observation/gripper_position": [0.0]}
    ragged = [[1], [1, 2]]
    with pytest.raises(DataError, match=r"observation/joint_position: expected an array"):
        droid.observation(arm | {"observation/joint_position": ragged}, ())
    with pytest.raises(DataError, match=r"image observation/exterior_image_1_left: expected an array"):
        droid.observation(arm | {"observation/exterior_image_1_left": ragged}, ("base_0_rgb",))
    with pytest.raises(DataError, match=r"prompt: expected text in UTF-8, found bytes that are none"):
        droid.observation(arm | {"prompt": b"\xff\xfe"}, ())
    assert droid.observation(arm | {"prompt": "öffne".encode()}, ())["prompt"] == "öffne"
    mixed: Any = {"state": [0.0] * 14, "images": {b"x": 1, "y": 2}}
    with pytest.raises(DataError, match=r"images: expected cameras of .*, found \[\"b'x'\", 'y'\]"):
        aloha.observation(mixed, ("base_0_rgb",))


@pytest.mark.parametrize("robot", ["aloha", "droid", "libero", "ur5"])
def test_observations_with_our_names_are_taken_too(robot: str) -> None:
    own = {"state": np.ones(14), "image": {"base_0_rgb": None}, "prompt": "go"}
    assert find_adapter(robot).observation(own, CAMERAS) is own


def test_clients_names_become_ours() -> None:
    sent, _ = observation(POLICIES[0], 2)  # a single camera, of bytes
    got = find_adapter("aloha").observation(sent, CAMERAS)
    assert sorted(got) == ["image", "prompt", "state"]
    assert got["image"]["left_wrist_0_rgb"] is None
    assert got["image"]["base_0_rgb"].dtype == np.uint8
    with pytest.raises(DataError, match=r"images: expected cameras of .*cam_low.*, found .'cam_front'"):
        find_adapter("aloha").observation({**sent, "images": {"cam_front": 0}}, CAMERAS)
    with pytest.raises(DataError, match=r"images/cam_high: expected it in the observation"):
        find_adapter("aloha").observation({**sent, "images": {"cam_low": np.zeros(3)}}, CAMERAS)
    ur5 = {"joints": np.arange(6.0), "gripper": np.array([6.0]), "base_rgb": np.zeros((2, 2, 3), np.uint8)}
    with pytest.raises(DataError, match=r"wrist_rgb: expected it"):
        find_adapter("ur5").observation(ur5, CAMERAS)
    got = find_adapter("ur5").observation({**ur5, "prompt": b"go"}, CAMERAS[:1])
    np.testing.assert_array_equal(got["state"], np.arange(7.0))
    assert (list(got["image"]), got["prompt"]) == (["base_0_rgb"], "go")
    nested = {"observation": {"state": np.ones(8)}, "prompt": "go"}
    np.testing.assert_array_equal(find_adapter("libero").observation(nested, ())["state"], np.ones(8))


def test_a_camera_for_which_the_robots_client_has_no_name_is_asked_for() -> None:
    """Masked, a policy that learnt from it would act without it, and nothing would say so."""
    image = np.zeros((2, 2, 3), np.uint8)
    sent = {"observation/joint_position": np.zeros(7), "observation/gripper_position": np.ones(1)}
    sent |= {"observation/exterior_image_1_left": image, "observation/exterior_image_2_left": image}
    droid, cameras = find_adapter("droid"), ("base_0_rgb", "exterior")
    with pytest.raises(DataError, match=r"image/exterior: expected it .* trained on it .* has no name for it"):
        droid.observation(sent, cameras)
    renamed = rename(sent, {"observation/exterior_image_2_left": "image/exterior"})
    assert sorted(droid.observation(renamed, cameras)["image"]) == ["base_0_rgb", "exterior"]
    for none in ({"image": {"exterior": None}}, {"image/exterior": None}):
        off = droid.observation(sent | none, cameras)["image"]
        assert off["exterior"] is None
        assert off["base_0_rgb"] is not None
    nines = image + 9
    beside = droid.observation(sent | {"image/exterior": nines, "image/base_0_rgb": nines}, cameras)["image"]
    assert {name: int(x[0, 0, 0]) for name, x in beside.items()} == {"exterior": 9, "base_0_rgb": 9}
    theirs = droid.observation(sent | {"observation/exterior_image_1_left": None}, cameras[:1])["image"]
    assert theirs["base_0_rgb"] is None  # an array of None equals None, too
    with pytest.raises(DataError, match="image: expected a dict by camera, found list"):
        droid.observation(sent | {"image": [image]}, cameras)


def test_a_camera_in_openpis_third_place_is_asked_for_too() -> None:
    """openpi masks that place of a UR5; a policy that has a camera there was trained on it."""
    image = np.zeros((2, 2, 3), np.uint8)
    sent = {"joints": np.arange(6.0), "gripper": np.ones(1), "base_rgb": image, "wrist_rgb": image}
    with pytest.raises(DataError, match=r"image/right_wrist_0_rgb: expected it .* None for a camera"):
        find_adapter("ur5").observation(sent, CAMERAS)
    got = find_adapter("ur5").observation(sent | {"image": {"right_wrist_0_rgb": None}}, CAMERAS)["image"]
    assert {name: image is None for name, image in got.items()} == dict.fromkeys(CAMERAS, False) | {CAMERAS[2]: True}


def test_an_entry_that_a_server_renames_takes_the_place_of_the_robots_own() -> None:
    def image(value: int) -> np.ndarray:
        return np.full((2, 2, 3), value, np.uint8)

    sent = {"observation/joint_position": np.zeros(7), "observation/gripper_position": np.ones(1)}
    sent |= {"observation/exterior_image_1_left": image(1), "observation/exterior_image_2_left": image(2)}
    sent |= {"observation/wrist_image_left": image(9)}
    renamed = rename(sent, {"observation/exterior_image_2_left": "image/base_0_rgb"})
    got = find_adapter("droid").observation(renamed, CAMERAS[:2])
    assert {name: int(x[0, 0, 0]) for name, x in got["image"].items()} == {"base_0_rgb": 2, "left_wrist_0_rgb": 9}
    np.testing.assert_array_equal(got["state"], [0] * 7 + [1])
    two = {"state": np.zeros(14), "images": {"cam_high": image(1), "cam_low": image(2)}}
    got = find_adapter("aloha").observation(rename(two, {"images/cam_low": "image/base_0_rgb"}), CAMERAS[:1])
    assert int(got["image"]["base_0_rgb"][0, 0, 0]) == 2
    other = {"state": np.arange(8.0)} | {name: x for name, x in sent.items() if "image" in name}
    np.testing.assert_array_equal(find_adapter("droid").observation(other, ())["state"], np.arange(8.0))


def test_an_adapter_that_converts_is_known_by_its_methods() -> None:
    class Turned(Adapter):
        def acted(self, action: np.ndarray) -> np.ndarray:
            return -action

    class Seen(Adapter):
        def observation(self, sent: Any, cameras: Any) -> Any:
            return sent

    found = {made: made().same_numbers for made in (Adapter, Droid, Libero, Seen, Aloha, Doubled, Turned)}
    assert [made for made, same in found.items() if same] == [Adapter, Droid, Libero, Seen]


def test_an_adapter_has_a_name_or_is_code_that_the_user_named() -> None:
    name = f"{__name__}:Doubled"
    with pytest.raises(ConfigError, match=r"would import Python code"):
        find_adapter(name)
    assert isinstance(find_adapter(name, allow_code=True), Doubled)
    with pytest.raises(ConfigError, match=r"expected an openpi_ript.robots.adapter.Adapter, found dict"):
        find_adapter("builtins:dict", allow_code=True)
    with pytest.raises(ConfigError, match=r"expected one of none, aloha, droid, libero, ur5"):
        find_adapter("alhoa")
    with pytest.raises(ValueError, match=r"robot.adapter is 'alhoa'; expected none, aloha"):
        RobotConfig(state_dim=14, adapter="alhoa")
    with pytest.raises(ValueError, match=r"robot.adapter is aloha, robot.state_dim 6 .*; expected 14 and 14"):
        RobotConfig(state_dim=6, adapter="aloha")


def _dataset(root: Path, **columns: np.ndarray) -> Path:
    episodes = [Recorded(columns=columns, images={}, task="go")]
    names = {key: [str(i) for i in range(x.shape[1])] for key, x in columns.items() if x.ndim == 2}
    write_lerobot(root, episodes, fps=10, robot="toy", provenance={}, names=names)
    return root


def _open(root: Path, robot: RobotConfig, **changes: Any) -> TrainingData:
    settings: dict[str, Any] = {"path": str(root), "robot": robot, "cameras": {}, "horizon": 4}
    settings |= {"action_norm": "mean_std"} | changes
    return open_data(DataConfig(**settings), allow_code=True)


def test_a_dataset_imports_no_code_unasked(tmp_path: Path) -> None:
    robot = RobotConfig(state_dim=14, adapter=f"{__name__}:Doubled")
    with pytest.raises(ConfigError, match=r"would import Python code"):
        open_data(DataConfig(path=str(tmp_path), robot=robot))


def test_statistics_and_windows_are_of_the_policys_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state, action = (rng.uniform(0, 1, (9, 14)).astype(np.float32) for _ in range(2))
    root = _dataset(tmp_path / "aloha", **{"observation.state": state, "action": action})
    data, aloha = _open(root, configs.ALOHA), Aloha()
    np.testing.assert_allclose(data.stats["state"].mean, aloha.state(state).mean(0), atol=1e-9)
    sample, dims = data.sample(5), list(configs.ALOHA.relative_dims)
    frames = np.minimum(np.arange(5, 9), 8)
    relative = aloha.action(action)[frames]
    relative[:, dims] -= aloha.state(state)[5, dims]
    stats = data.stats["actions"]
    np.testing.assert_allclose(sample["action"], (relative - stats.mean) / (stats.std + 1e-6), rtol=1e-4, atol=1e-5)
    sent = data.to_openpi.observed_action(sample["action"], state[5])
    np.testing.assert_allclose(sent, action[frames], atol=1e-5)
    assert data.stats_source["adapter"] == "aloha"
    plain = _open(root, dataclasses.replace(configs.ALOHA, adapter="none"))
    assert "adapter" not in plain.stats_source
    assert np.abs(plain.stats["state"].mean - data.stats["state"].mean).max() > 0.1


def test_a_state_in_several_columns_is_joined(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    joints, gripper = (rng.uniform(0, 1, shape).astype(np.float32) for shape in ((6, 7), (6,)))
    action = rng.uniform(0, 1, (6, 8)).astype(np.float32)
    root = _dataset(tmp_path / "droid", joint_position=joints, gripper_position=gripper, actions=action)
    names: dict[str, Any] = {"action_key": "actions", "state_parts": ("joint_position", "gripper_position")}
    data = _open(root, configs.DROID, **names)
    np.testing.assert_array_equal(data.raw(2)["state"], [*joints[2], gripper[2]])
    with pytest.raises(DataError, match=r"joint_positions"):
        _open(root, configs.DROID, action_key="actions", state_parts=("joint_positions",))
    own = dataclasses.replace(configs.DROID, adapter=f"{__name__}:Doubled")
    with pytest.raises(ConfigError, match=r"would import Python code"):
        open_data(dataclasses.replace(data.config, robot=own))
    doubled = _open(root, own, **names)
    np.testing.assert_allclose(doubled.stats["state"].mean, 2 * data.stats["state"].mean, atol=1e-6)


def test_a_policy_says_what_its_robot_is_and_what_it_cannot_export() -> None:
    policy = make_policy(POLICIES[0])
    assert policy.metadata["adapter"] == "aloha"
    assert policy.metadata["reset_pose"] == [0, -1.5, 1.5, 0, 0, 0]
    assert policy.spec.observation["state"].unit.startswith("ALOHA's own: joints in radians")
    with pytest.raises(ConfigError, match=r"adapter is aloha, which changes numbers, and an export has no place"):
        policy.exportable()
    assert make_policy(POLICIES[3]).exportable().inputs["state"] == ((8,), "float32")


def test_libero_reads_one_state_of_its_environment() -> None:
    config = config_of(POLICIES[-1])
    env: dict[str, Any] = {"suite": "libero", "task": "libero_spatial/0", "prompt": "go", "max_steps": 9}
    env["cameras"] = dict.fromkeys(config.data.cameras, "agentview_image")

    def with_env(**changes: Any) -> OpenpiRiptConfig:
        settings: dict[str, Any] = env | {"execute": 4} | changes
        return dataclasses.replace(config, env=EnvConfig(**settings), eval=EvalConfig())

    assert with_env().env is not None
    with pytest.raises(ValueError, match=r"env.state is .* and what data.robot.adapter libero reads is"):
        with_env(state=("robot0_eef_pos",))


def test_two_cameras_that_share_a_key_show_the_same(tmp_path: Path) -> None:
    """A rollout keeps one image a key: the policy would be trained on another image than it acted on. A run that was
    begun so before is loaded, and begins no more."""
    config = config_of(POLICIES[-1])
    first, second, *_ = config.data.cameras
    shared = dataclasses.replace(config.data, cameras={first: "observation.images.a", second: "observation.images.a"})
    env: dict[str, Any] = {"suite": "libero", "task": "libero_spatial/0", "prompt": "go", "max_steps": 9, "execute": 4}

    def shown(one: str, other: str) -> OpenpiRiptConfig:
        acting = EnvConfig(**env, cameras={first: one, second: other})
        return dataclasses.replace(config, data=shared, env=acting, eval=EvalConfig())

    _require_image_of_each(shown("agentview_image", "agentview_image"))
    before = shown("agentview_image", "hand")
    (tmp_path / "config.json").write_text(json.dumps(flatten(before)))
    assert read_config(tmp_path, OpenpiRiptConfig) == before
    with pytest.raises(ConfigError, match=r"names observation.images.a more than once, .* agentview_image and hand in"):
        main(before, "test")


@pytest.mark.long
def test_a_run_with_an_adapter_of_ones_own_is_loaded_where_it_is_trusted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"observation.state": rng.uniform(0, 1, (12, 2)), "action": rng.uniform(0, 1, (12, 2))}
    root = _dataset(tmp_path / "set", **{name: x.astype(np.float32) for name, x in columns.items()})
    name = f"{__name__}:Doubled"
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=2, relative_dims=(0,), adapter=name)
    data = DataConfig(path=str(root), robot=robot, cameras={}, horizon=8, action_norm="mean_std")
    model, tokenizer = toy("pi0"), str(TOKENIZER)
    run = RunConfig(dir=str(tmp_path / "run"))
    train = TrainConfig(steps=1, batch_size=2)
    main(OpenpiRiptConfig(run=run, train=train, model=model, data=data, tokenizer=tokenizer), "test")
    with pytest.raises(ConfigError, match=r"adapter is .*:Doubled', which would import Python code"):
        load_policy(tmp_path / "run")
    policy = load_policy(tmp_path / "run", allow_code=name)
    state = np.array([0.25, 0.5], np.float32)
    noise = rng.standard_normal((8, 8)).astype(np.float32)
    actions = policy.infer({"state": state, "prompt": "go"}, noise=noise)["actions"]
    stats = open_data(data, allow_code=True).stats
    chunk = policy.act([policy.prepare({"state": state, "prompt": "go"}, noise=noise)])[0][0, :, :2]
    by_hand = chunk * (stats["actions"].std + 1e-6) + stats["actions"].mean + np.array([0.5, 0.0])
    np.testing.assert_allclose(actions, by_hand, atol=1e-5)  # twice 0.25 was subtracted, and is added again


def test_an_adapter_of_ones_own_reads_the_names_of_its_client_and_is_asked_for_no_others() -> None:
    """Rollouts, compilation and a server's start have ours; DROID's adapter leaves numbers and our names alone."""
    droid = make_policy(POLICIES[3])
    robot = dataclasses.replace(droid.config.data.robot, adapter=f"{__name__}:OwnNames")
    config = dataclasses.replace(droid.config, data=dataclasses.replace(droid.config.data, robot=robot))
    own = ActingPolicy(config, droid._stats, allow_code=True)
    own.use(droid._params, 0)
    rng = np.random.default_rng(0)
    state, noise = rng.uniform(-1, 1, 8).astype(np.float32), rng.standard_normal((6, 32)).astype(np.float32)
    images = {name: rng.integers(0, 256, (28, 28, 3)).astype(np.uint8) for name in droid.config.data.cameras}
    ours = {"state": state, "image": images, "prompt": "fold the towel"}
    theirs = {"joints": state, "goal": "fold the towel", **{f"my_{name}": image for name, image in images.items()}}
    expected = droid.infer(ours, noise=noise)["actions"]
    own.compile([1])
    np.testing.assert_array_equal(own.infer(theirs, noise=noise)["actions"], expected)
    np.testing.assert_array_equal(own.infer(ours, by_spec=True, noise=noise)["actions"], expected)
    rows = {"state": state[None], "image": {name: x[None] for name, x in images.items()}, "prompt": ["fold the towel"]}
    np.testing.assert_array_equal(own(rows, noise[None])[0], expected)
    PolicyServer(own, batch_sizes=(1,)).close()


def test_what_is_committed_and_rows_of_a_batch_are_the_robots_too() -> None:
    policy = make_policy(POLICIES[0])
    rows = [observation(POLICIES[0], number) for number in (3, 5)]  # the first of floats, and of another size
    both = [policy.infer(sent, noise=noise)["actions"] for sent, noise in rows]
    third, fifth = (dict(sent) for sent, _ in rows)
    state = np.stack([third["state"], fifth["state"]])
    images = {name: np.stack([image] * 2) for name, image in fifth["images"].items() if name != "cam_right_wrist"}
    batch = {"state": state, "images": images, "prompt": [third["prompt"], fifth["prompt"]]}
    got = policy.infer(batch, noise=np.stack([noise for _, noise in rows]))["actions"]
    assert got.shape == (2, 6, 14)
    own = policy.infer({**fifth, "images": {k: v[1] for k, v in images.items()}}, noise=rows[1][1])["actions"]
    np.testing.assert_allclose(got[1], own, atol=1e-4)
    known = policy._known([Committed(actions=both[0], weights=np.ones(6, np.float32))], state[:1])
    back = policy._to_openpi.observed_action(known["actions"][..., :14], state[:1])
    np.testing.assert_allclose(back[0], both[0], atol=1e-5)


# websockets 17.1 deprecates the way in which openpi-client 0.1.0 connects.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
@pytest.mark.parametrize(
    "case",
    [POLICIES[3], *(pytest.param(POLICIES[i], marks=pytest.mark.long) for i in (0, 7))],
    ids=lambda case: case.name,
)
def test_openpis_own_client_is_answered(case: Case) -> None:
    policy = make_policy(case)
    with running(policy) as port:
        its = importlib.import_module("openpi_client.websocket_client_policy").WebsocketClientPolicy("127.0.0.1", port)
        assert its.get_server_metadata()["adapter"] == case.robot
        for number in range(6):
            sent, _ = observation(case, number)
            assert its.infer(sent)["actions"].shape == (6, policy.config.data.robot.action_dim)
        its._ws.close()
