"""Recording with OGBench's oracles: layout, purity of an episode, resuming, and what happens when processes die."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from chunkwise.config.installed import pip_install
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites import ogbench
from chunkwise.errors import BusyError, ConfigError
from qchunk.config import RecordConfig
from qchunk.envs.play import play_episode
from qchunk.record import episode_path, record

CONFIG = RecordConfig(env="cube-single-v0", episodes=3, episode_length=60, seed=7)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "cube"
    record(CONFIG, path, report=lambda _: None)
    return path


@pytest.fixture(scope="module")
def play_env() -> Any:
    return ogbench.make_play(CONFIG.env, CONFIG.episode_length)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        names = ["/observations/qpos", "/observations/state", "/action", "/sim/qpos", "/sim/qvel"]
        return {name: np.asarray(file[name]) for name in names}


def test_layout(recorded: Path) -> None:
    names = [f"episode_{e:05d}.hdf5" for e in range(3)]
    assert sorted(p.name for p in recorded.iterdir()) == ["dataset.json", *names]
    found: dict[str, tuple[tuple[int, ...], str, bool]] = {}
    with h5py.File(recorded / names[1]) as file:
        file.visititems(
            lambda name, node: (
                found.__setitem__(name, (node.shape, str(node.dtype), node.fletcher32))
                if isinstance(node, h5py.Dataset)
                else None
            )
        )
        assert dict(file.attrs) == {"env": "cube-single-v0", "fps": 20, "seed": 7, "source": "ogbench oracle play"}
    assert found == {
        "observations/qpos": ((60, 7), "float32", True),
        "observations/state": ((60, 28), "float32", True),
        "action": ((60, 5), "float32", True),
        "sim/qpos": ((60, 21), "float64", True),
        "sim/qvel": ((60, 20), "float64", True),
    }
    made = json.loads((recorded / "dataset.json").read_text())
    assert made["config"] == {
        "env": "cube-single-v0",
        "episodes": 3,
        "episode_length": 60,
        "noise": 0.1,
        "random_action": 0.0,
        "directed": None,
        "seed": 7,
    }
    assert made["versions"].keys() == {"ogbench", "mujoco"}


def test_arrays_agree_with_the_simulator_state(recorded: Path, play_env: Any) -> None:
    arrays = _arrays(recorded / "episode_00002.hdf5")
    scene = play_env.gym.unwrapped
    np.testing.assert_array_equal(arrays["/observations/qpos"][:, :6], arrays["/sim/qpos"][:, :6].astype(np.float32))
    # OGBench scales cube positions around (0.425, 0, 0) by 10.
    cube = (arrays["/sim/qpos"][:, 14:17] - [0.425, 0, 0]) * 10
    np.testing.assert_allclose(arrays["/observations/state"][:, 19:22], cube, atol=1e-6)
    assert np.abs(arrays["/action"]).max() <= 1
    play_env.reset(0)
    for t in (0, 17, 59):
        scene.set_state(arrays["/sim/qpos"][t], arrays["/sim/qvel"][t])
        # What mj_step leaves behind is one physics step of 2 ms old for the gripper's site; contact forces are not
        # part of the state. The rest is a function of the state.
        expected, state = arrays["/observations/state"][t], scene.compute_observation()
        np.testing.assert_allclose(state[12:17], expected[12:17], atol=0.05)
        np.testing.assert_allclose(np.delete(state, range(12, 19)), np.delete(expected, range(12, 19)), atol=1e-5)


def test_replaying_actions_repeats_the_observations_in_the_task_environment(recorded: Path) -> None:
    arrays = _arrays(recorded / "episode_00000.hdf5")
    env = ogbench.make(EnvSpec(suite="ogbench", task="cube-single-play-singletask-task2-v0"))
    env.reset(3)
    env.gym.unwrapped.set_state(arrays["/sim/qpos"][0], arrays["/sim/qvel"][0])
    for t, action in enumerate(arrays["/action"][:-1], start=1):
        observed = env.step(action).observation
        for name in ("qpos", "state"):
            np.testing.assert_allclose(observed[name], arrays[f"/observations/{name}"][t], atol=1e-4, err_msg=f"t={t}")
        np.testing.assert_allclose(env.info["qpos"], arrays["/sim/qpos"][t], atol=1e-5)


def test_an_episode_is_a_function_of_seed_and_number(recorded: Path, play_env: Any) -> None:
    # A worker recorded episode 2 after another one; here it comes after episode 1 and in another process.
    play_episode(play_env, CONFIG, 1)
    for name, values in play_episode(play_env, CONFIG, 2).items():
        np.testing.assert_array_equal(values, _arrays(recorded / "episode_00002.hdf5")[name])
    first = [_arrays(recorded / f"episode_{e:05d}.hdf5")["/sim/qpos"][0] for e in range(3)]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])


def test_random_actions_and_noise_come_from_the_config(play_env: Any) -> None:
    config = RecordConfig(env="cube-single-v0", episodes=1, episode_length=60, random_action=1.0)
    actions = play_episode(play_env, config, 0)["/action"]
    assert np.abs(actions.mean()) < 0.1  # 300 uniform draws: standard error 0.033
    assert abs(actions.std() - 1 / np.sqrt(3)) < 0.08
    quiet, noisy = (RecordConfig(env="cube-single-v0", episodes=1, episode_length=60, noise=x) for x in (0.0, 1.0))
    rough = [np.abs(np.diff(play_episode(play_env, c, 0)["/action"][:, :3], axis=0)).mean() for c in (quiet, noisy)]
    assert rough[1] > 3 * rough[0]


def test_resume_records_exactly_the_missing(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "cube"
    path.mkdir()
    for e in (0, 2):
        (path / f"episode_{e:05d}.hdf5").write_bytes(episode_path(recorded, e).read_bytes())
    (path / "recording.json").write_bytes((recorded / "dataset.json").read_bytes())
    (path / "episode_00001.part").write_bytes(b"half a file")
    before = {e: episode_path(path, e).stat().st_mtime_ns for e in (0, 2)}
    said: list[str] = []
    record(CONFIG, path, report=said.append)
    assert said[0].startswith("recording 1 of 3 episodes of cube-single-v0")
    assert {e: episode_path(path, e).stat().st_mtime_ns for e in (0, 2)} == before
    assert sorted(p.name for p in path.iterdir()) == sorted(p.name for p in recorded.iterdir())
    for name, values in _arrays(episode_path(recorded, 1)).items():
        np.testing.assert_array_equal(_arrays(episode_path(path, 1))[name], values)


def test_a_complete_dataset_is_left_alone(recorded: Path) -> None:
    said: list[str] = []
    record(
        RecordConfig(env="cube-single-v0", episodes=3, episode_length=60, seed=7, processes=1),
        recorded,
        report=said.append,
    )
    assert said == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"noise": 0.2}, "record.noise is 0.2, there 0.1"), ({"episodes": 5}, "record.episodes is 5, there 3")],
)
def test_other_settings_are_refused(recorded: Path, changed: dict[str, Any], message: str) -> None:
    settings = {"env": "cube-single-v0", "episodes": 3, "episode_length": 60, "seed": 7} | changed
    with pytest.raises(ConfigError, match=message):
        record(RecordConfig(**settings), recorded)


def test_foreign_files_and_a_second_recorder_are_refused(recorded: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "episode_00000.hdf5").write_bytes(b"")
    with pytest.raises(ConfigError, match="not empty and holds no recording"):
        record(CONFIG, tmp_path)
    folder = os.open(recorded, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        with pytest.raises(BusyError, match="another process is recording"):
            record(CONFIG, recorded)
    finally:
        os.close(folder)


def test_names_that_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for env in ("antmaze-large-v0", "visual-cube-single-v0", "cube-single-singletask-v0"):
        with pytest.raises(ConfigError, match="no play episodes can be recorded"):
            record(RecordConfig(env=env, episodes=1), tmp_path / "x")
    with pytest.raises(ConfigError, match="OGBench has no environment cube-single-v9"):
        record(RecordConfig(env="cube-single-v9", episodes=1), tmp_path / "x")
    monkeypatch.setitem(sys.modules, "ogbench.manipspace", None)
    with pytest.raises(ConfigError, match=re.escape(pip_install("sim"))):
        record(RecordConfig(env="cube-single-v0", episodes=1), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def _start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "qchunk.record", "--env", "cube-single-v0", "--episodes", "50"]
    command += ["--episode-length", "40", "--path", str(path)]
    process = subprocess.Popen(command, stderr=-1, text=True)
    while process.poll() is None and not list(path.glob("*.hdf5")):
        time.sleep(0.02)
    return process


def _workers(pid: int) -> list[int]:
    """Children that record; Python's resource tracker is a child too, and ends by itself."""
    return [child.pid for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        pytest.param(signal.SIGTERM, 75, "stopped by SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 130, "stopped", marks=pytest.mark.long),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_deaths_leave_whole_episodes_and_no_processes(
    tmp_path: Path, number: signal.Signals, code: int, message: str
) -> None:
    process = _start(tmp_path / "cube")
    workers = _workers(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert message in errors
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30  # a worker whose parent was killed ends after the episode it is at
    while any(_alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if _alive(worker)]
    files = sorted((tmp_path / "cube").glob("*.hdf5"))
    assert 0 < len(files) < 50
    assert all(len(_arrays(file)["/action"]) == 40 for file in files)
    assert (tmp_path / "cube" / "recording.json").exists()
