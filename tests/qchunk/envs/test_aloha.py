"""ALOHA's transfer cube as it is recorded and evaluated: the script, the files, evaluation and video."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pytest

from chunkwise.config.installed import pip_install
from chunkwise.data.images import decode
from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs import render
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites import aloha as suite
from chunkwise.envs.suites.aloha import load_model
from chunkwise.errors import ConfigError
from qchunk import evaluate
from qchunk.config import AlohaRecordConfig, RecordConfig
from qchunk.envs import aloha, aloha_hdf5, simulators, transfer_cube
from qchunk.record import record
from tests.qchunk.played import rollouts

EXACT = RecordConfig(
    env="aloha-transfer-cube", episodes=2, episode_length=300, aloha=AlohaRecordConfig(noise_levels=(0.0,))
)


@pytest.fixture(scope="module")
def env() -> aloha.TransferCube:
    return aloha.TransferCube()


def test_a_reset_is_a_function_of_its_seed(env: aloha.TransferCube) -> None:
    other = simulators.make("aloha-transfer-cube")
    first = env.reset(11)
    actions = env.action_low + np.random.default_rng(0).uniform(0.3, 0.7, (30, 14)) * (env.action_high - env.action_low)
    after = [env.step(action).observation["state"] for action in actions]
    for again in (env, other):
        repeated = again.reset(11)
        np.testing.assert_array_equal(repeated["state"], first["state"])
        np.testing.assert_array_equal([again.step(action).observation["state"] for action in actions], after)
    assert first["qpos"].shape == first["qvel"].shape == (14,)
    assert first["state"].shape == (21,)
    np.testing.assert_array_equal(first["state"][:14], first["qpos"])
    np.testing.assert_allclose(first["qpos"][:6], (0, -0.96, 1.16, 0, -0.3, 0), atol=1e-6)
    box = aloha.draw_box(np.random.default_rng(11))
    np.testing.assert_array_equal(first["state"][14:], np.array([*box, 1, 0, 0, 0], np.float32))


def test_an_episode_is_cut_after_400_steps(env: aloha.TransferCube) -> None:
    joints = env.reset(0)["qpos"]
    steps = [env.step(joints) for _ in range(400)]
    outcomes = [(step.reward, step.success, step.terminated, step.truncated) for step in steps]
    assert outcomes[-1] == (-1.0, False, False, True)
    assert set(outcomes[:-1]) == {(-1.0, False, False, False)}
    env.reset(0)
    assert not env.step(joints).truncated


def test_the_script_without_noise_succeeds(env: aloha.TransferCube) -> None:
    for episode in range(4):
        played = transfer_cube.transfer(env, EXACT, episode)
        assert played.success
        assert played.arrays["/reward"][-1] == 0
        np.testing.assert_array_equal(np.flatnonzero(played.arrays["/terminated"]), [len(played.arrays["/reward"]) - 1])
        assert (played.arrays["/action"] >= env.action_low).all()
        assert (played.arrays["/action"] <= env.action_high).all()


@pytest.mark.long
def test_noise_makes_successes_and_failures(env: aloha.TransferCube) -> None:
    """At 2 cm about a third succeeds: of ten, none or all is less likely than 1 in 50."""
    config = RecordConfig(
        env="aloha-transfer-cube", episodes=10, episode_length=300, aloha=AlohaRecordConfig(noise_levels=(0.02,))
    )
    played = [transfer_cube.transfer(env, config, episode) for episode in range(10)]
    successes = [episode.success for episode in played]
    assert 0 < sum(successes) < 10
    assert {len(episode.arrays["/action"]) for episode in played if not episode.success} == {300}
    assert all(len(episode.arrays["/action"]) < 300 for episode in played if episode.success)
    assert not any(episode.arrays["/terminated"].any() for episode in played if not episode.success)
    assert {episode.noise for episode in played} == {0.02}


def test_an_episode_is_a_function_of_seed_and_number(env: aloha.TransferCube) -> None:
    config = RecordConfig(env="aloha-transfer-cube", episodes=1, episode_length=40, seed=5)
    first = transfer_cube.transfer(env, config, 3)
    transfer_cube.transfer(env, config, 4)
    again = transfer_cube.transfer(aloha.TransferCube(), config, 3)
    assert first.noise == again.noise
    for name, values in first.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
    other = transfer_cube.transfer(env, config, 4)
    assert not np.array_equal(other.arrays["/observations/state"][0], first.arrays["/observations/state"][0])


def test_waypoints_miss_by_the_noise_and_stand_still_between() -> None:
    box = np.array([0.1, 0.5, 0.05])
    exact = transfer_cube.waypoints(box, 0.0, np.random.default_rng(1))
    errors = []
    for draw in range(200):
        rng = np.random.default_rng(draw)
        for arm, (plan, true) in enumerate(zip(transfer_cube.waypoints(box, 0.01, rng), exact, strict=True)):
            missed = np.array([point.position - other.position for point, other in zip(plan, true, strict=True)])
            assert not missed[:2].any()  # at the start
            still = [i for i in range(3, len(true)) if np.array_equal(true[i].position, true[i - 1].position)]
            np.testing.assert_array_equal(missed[still], missed[[i - 1 for i in still]])
            errors.append(missed[2])
            assert arm in (0, 1)
    assert abs(np.std(errors) - 0.01) < 0.001
    assert abs(np.mean(errors)) < 0.001


def test_between_waypoints_a_gripper_moves_in_a_straight_line() -> None:
    turns = transfer_cube.turn((0, 1, 0), 0), transfer_cube.turn((0, 1, 0), 90)
    plan = [
        transfer_cube.Waypoint(0.0, np.zeros(3), turns[0], 0.0),
        transfer_cube.Waypoint(10.0, np.array([1.0, 2.0, 4.0]), turns[1], 1.0),
    ]
    position, rotation, opening = transfer_cube.place(plan, 5)
    np.testing.assert_allclose(position, (0.5, 1, 2))
    np.testing.assert_allclose(rotation, transfer_cube.turn((0, 1, 0), 45), atol=1e-12)
    assert opening == 0.5
    np.testing.assert_allclose(transfer_cube.place(plan, 12)[0], (1, 2, 4))


def test_recording_sorts_by_score_and_resumes(tmp_path: Path) -> None:
    config = RecordConfig(
        env="aloha-transfer-cube",
        episodes=4,
        episode_length=260,
        seed=1,
        aloha=AlohaRecordConfig(noise_levels=(0.0, 0.1), success_score=4, failure_score=2),
    )
    path = tmp_path / "aloha"
    said: list[str] = []
    record(config, path, report=said.append)
    files = {file.name: file for file in path.rglob("*.hdf5")}
    assert sorted(files) == [f"episode_{e:05d}.hdf5" for e in range(4)]
    for file in files.values():
        with h5py.File(file) as h5:
            assert file.parent.name == ("score_4" if h5.attrs["success"] else "score_2")
            assert bool(h5.attrs["success"]) == (h5["/reward"][-1] == 0)  # pyright: ignore[reportIndexIssue]
            assert (h5.attrs["fps"], h5.attrs["sim"], h5.attrs["compress"]) == (50, True, False)
            assert {name: h5[name].shape[1:] for name in ("observations/qpos", "observations/qvel", "action")} == {  # pyright: ignore[reportAttributeAccessIssue]
                "observations/qpos": (14,),
                "observations/qvel": (14,),
                "action": (14,),
            }
    assert {file.parent.name for file in files.values()} == {"score_4", "score_2"}
    made = json.loads((path / "dataset.json").read_text())
    assert made["config"].keys() == {"env", "episodes", "episode_length", "aloha", "seed"}
    assert made["config"]["aloha"]["noise_levels"] == [0.0, 0.1]
    # The same episode again after a stop, and only that.
    victim = files["episode_00002.hdf5"]
    before = victim.read_bytes()
    times = {name: file.stat().st_mtime_ns for name, file in files.items()}
    victim.unlink()
    (path / "dataset.json").rename(path / "recording.json")
    record(config, path, report=said.append)
    assert victim.read_bytes() == before
    assert sum(file.stat().st_mtime_ns != times[name] for name, file in files.items()) == 1
    with pytest.raises(ConfigError, match=r"record\.aloha is .*, there "):
        record(EXACT, path)


def test_a_reset_lets_no_other_environment_fall_limp(env: aloha.TransferCube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of all threads share a model; here one steps, and another resets, in the middle of a reset."""
    lib, inside = suite.mujoco(), []

    def steps(moving: aloha.TransferCube) -> np.ndarray:
        low, high = moving.action_low, moving.action_high
        return np.stack([moving.step(low + 0.6 * (high - low)).observation["qpos"] for _ in range(5)])

    env.reset(3)
    expected = steps(env)
    others = [aloha.TransferCube(), aloha.TransferCube()]
    others[0].reset(3)
    forward = lib.mj_forward

    def meanwhile(model: Any, data: Any) -> None:
        if not inside:
            inside.append(True)
            others[1].reset(5)
            np.testing.assert_array_equal(steps(others[0]), expected)
        forward(model, data)

    monkeypatch.setattr(lib, "mj_forward", meanwhile)
    env.reset(4)
    assert inside
    monkeypatch.undo()
    env.reset(3)
    np.testing.assert_array_equal(steps(env), expected)


def test_outcomes_do_not_depend_on_how_many_play_at_once() -> None:
    """In threads, which reset while others step."""

    def reach(observed: Any, seeds: np.ndarray) -> np.ndarray:
        draws = np.stack([np.random.default_rng(seed).uniform(-1, 1, (10, 14)) for seed in seeds])
        return (observed["qpos"][:, None] + 0.2 * draws).astype(np.float32)

    settings: dict[str, Any] = {"seed": 0, "step": 0, "episodes": 12, "horizon": 10, "max_steps": 20}
    one, many = (evaluate.evaluate(reach, "aloha-transfer-cube", num_envs=n, **settings) for n in (1, 6))
    assert one.outcomes == many.outcomes


def test_what_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"record\.episode_length is 1001; expected at most 400"):
        record(RecordConfig(env="aloha-transfer-cube", episodes=1), tmp_path / "x")
    with pytest.raises(ValueError, match="noise_levels"):
        AlohaRecordConfig(noise_levels=())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    load_model.cache_clear()
    with pytest.raises(ConfigError, match=r"no package gym-aloha\); install it: " + re.escape(pip_install("sim"))):
        load_model("bimanual_viperx_transfer_cube")
    assert not (tmp_path / "x").exists()


def test_jpeg_rows_are_read_back(tmp_path: Path) -> None:
    """As ALOHA's own readers do: a row cut at compress_len decodes to the image."""
    rng = np.random.default_rng(0)
    ramp = np.broadcast_to(np.linspace(0, 255, 48, dtype=np.uint8)[None, :, None], (32, 48, 3))
    images = {
        "top": [np.ascontiguousarray(ramp)] * 3,
        "angle": [rng.integers(0, 256, (32, 48, 3), np.uint8) // 64 * 20 for _ in range(3)],
    }
    arrays = {"/action": np.zeros((3, 14), np.float32)}
    episode = transfer_cube.Transfer(arrays=arrays, images=images, success=True, noise=0.01)
    aloha_hdf5.write(tmp_path / "episode_00000.hdf5", episode, EXACT)
    with h5py.File(tmp_path / "score_5" / "episode_00000.hdf5") as h5:
        assert h5.attrs["compress"]
        lengths = np.asarray(h5["/compress_len"], np.int64)
        assert lengths.shape == (2, 3)
        for camera, row in zip(sorted(images), lengths, strict=True):
            stored: Any = h5[f"/observations/images/{camera}"]
            assert (stored.dtype, stored.shape, stored.chunks) == (np.uint8, (3, row.max()), (1, row.max()))
            assert stored.attrs["compress"]
            for t, length in enumerate(row):
                assert not stored[t, length:].any()
                found = decode(stored[t, :length].tobytes(), source="test")
                error = np.abs(found.astype(np.int64) - images[camera][t]).mean()
                assert error < (3 if camera == "top" else 12)
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.usefixtures("can_render")
def test_recorded_images_are_the_scenes(env: aloha.TransferCube) -> None:
    config = RecordConfig(
        env="aloha-transfer-cube",
        episodes=1,
        episode_length=3,
        aloha=AlohaRecordConfig(cameras=("top", "angle"), image_size=(48, 64)),
    )
    spec = EnvSpec(suite="aloha", cameras=config.aloha.cameras, image_size=config.aloha.image_size)
    played = transfer_cube.transfer(aloha.TransferCube(spec), config, 0)
    assert {camera: len(taken) for camera, taken in played.images.items()} == {"top": 3, "angle": 3}
    env.reset_to_box(played.arrays["/observations/state"][0, 14:17].astype(np.float64))
    np.testing.assert_allclose(env.render(48, 64, "top"), played.images["top"][0], atol=3)
    image = played.images["top"][0].astype(np.int64)
    red = (image[..., 0] > 150) & (image[..., 1] < 80)
    assert 2 <= red.sum() <= 40  # the cube, seen from above
    with pytest.raises(ConfigError, match=r"has no camera 'wrist'; choose from .*, top, angle"):
        aloha.TransferCube(EnvSpec(suite="aloha", cameras=("wrist", "top")))


def _replay(env: aloha.TransferCube, seed: int, horizon: int) -> Any:
    """A policy that plays the script for episode 0 of an evaluation with `seed`, whatever it sees."""
    start = seed_of(Purpose.QCHUNK_EVALUATION_SCENE, seed, 0)
    box = aloha.draw_box(np.random.default_rng(start))
    plans = transfer_cube.waypoints(box, 0.0, np.random.default_rng(0))
    actions = transfer_cube.joint_actions(box, *plans, steps=400)
    calls: list[dict[str, np.ndarray]] = []

    def policy(observations: dict[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
        calls.append(observations)
        at = (len(calls) - 1) * horizon
        return np.broadcast_to(actions[at : at + horizon], (len(observations["qpos"]), horizon, 14))

    return policy, calls


def test_evaluation_ends_at_success(env: aloha.TransferCube) -> None:
    policy, calls = _replay(env, 4, 25)
    settings: dict[str, Any] = {"seed": 4, "step": 0, "episodes": 1, "num_envs": 2, "horizon": 25}
    done = rollouts(policy, "aloha-transfer-cube", **settings)[0]
    assert done.success
    assert 170 < len(done.actions) < 230
    assert len(calls) == -(-len(done.actions) // 25)
    assert -len(done.actions) < done.rewards.sum() < -len(done.actions) / 2
    assert np.abs(done.actions).max() > 1.2  # joint angles beyond 1 are not clipped to it


@pytest.mark.usefixtures("can_render")
def test_evaluation_shows_images_where_chunks_start(env: aloha.TransferCube) -> None:
    policy, calls = _replay(env, 4, 100)
    view = simulators.View(cameras=("angle", "top"), render_size=(48, 64), image_size=(24, 32))
    settings: dict[str, Any] = {"seed": 4, "step": 0, "episodes": 1, "num_envs": 2, "horizon": 100}
    rollouts(policy, "aloha-transfer-cube", **settings, view=view)
    shapes = {(call["images"].shape, str(call["images"].dtype)) for call in calls}
    assert shapes == {((2, 2, 24, 32, 3), "uint8")}
    env.reset(seed_of(Purpose.QCHUNK_EVALUATION_SCENE, 4, 0))
    full = env.render(48, 64, "top").astype(np.float64)
    mean = full.reshape(24, 2, 32, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(calls[0]["images"][0, 1], mean, atol=1)
    assert np.abs(calls[0]["images"][0].astype(np.int64) - calls[1]["images"][0]).max() > 50  # the arms have moved
    np.testing.assert_array_equal(calls[0]["images"][1], calls[0]["images"][0])  # no episode for the second row


@pytest.mark.usefixtures("can_render")
def test_a_video_of_a_transfer(env: aloha.TransferCube, tmp_path: Path) -> None:
    said: list[str] = []
    policy, _ = _replay(env, 4, 25)
    settings: dict[str, Any] = {"seed": 4, "step": 0, "episodes": 1, "num_envs": 1, "horizon": 25}
    (done,) = rollouts(policy, "aloha-transfer-cube", **settings)
    path, opener = tmp_path / "a.mp4", functools.partial(simulators.make, "aloha-transfer-cube", video=True)
    assert render.write_video(opener, [done], path, report=said.append) == path, said
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert frames[0].shape == (240, 320, 3)
    assert len(frames) == 1 + -(-len(done.actions) // 7) + 7  # every seventh of 50 a second, and a second more
    np.testing.assert_allclose(frames[-1][:3].mean(axis=(0, 1)), render.SUCCESS, atol=12)
    assert frames[-1][8:-8, 8:-8].std() > 20
