"""The chunks that the page draws are those of `infer` on what the files hold."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.data.images import decode, resize_into
from chunkwise.data.norm_stats import Affine
from chunkwise.errors import ConfigError, DataError
from qchunk import view
from qchunk.agents.make import make_agent
from qchunk.config import DataConfig
from qchunk.data.dataset import Dims
from qchunk.data.recordings import open_recordings
from qchunk.policies.chunks import Sights, policy_chunks
from qchunk.policies.policy import QChunkPolicy
from tests.qchunk import recordings
from tests.qchunk.image_recordings import write_episode
from tests.qchunk.policies.test_policy import CAMERAS, SIZE, config_of
from tests.qchunk.random_weights import weights

HORIZON = 3


def policy_of(folder: Path, *, images: bool) -> QChunkPolicy:
    """Random weights; recorded numbers are not those of the networks."""
    agent = make_agent(
        config_of(folder, folder, agent={}, images=images),
        Dims(
            observation=recordings.STATE,
            action=recordings.ACTION,
            cameras=CAMERAS if images else (),
            image_size=SIZE if images else None,
        ),
    )
    rng = np.random.default_rng(7)
    norms = [
        Affine(offset=rng.normal(size=width), scale=1 + rng.random(width))
        for width in (recordings.STATE, recordings.ACTION)
    ]
    return QChunkPolicy(agent, weights(agent)[0], observation_norm=norms[0], action_norm=norms[1], step=6)


@pytest.mark.parametrize("images", [False, True])
def test_a_chunk_is_what_infer_gives_for_that_frame(tmp_path: Path, images: bool):
    jpegs = write_episode(tmp_path / "a.hdf5", 9, 2, size=(24, 32))
    write_episode(tmp_path / "b.hdf5", 6, 3, size=(24, 32))
    found = open_recordings(DataConfig(path=str(tmp_path)))
    policy = policy_of(tmp_path, images=images)
    chunks = policy_chunks(policy, "runs/mine", found)
    assert chunks.name == "runs/mine"
    with h5py.File(tmp_path / "a.hdf5") as h5:
        state, action = np.asarray(h5["/observations/state"]), np.asarray(h5["/action"])
    for frame in (0, 4, 8):
        observation: dict[str, Any] = {"state": state[frame]}
        stacked = np.empty((1, len(CAMERAS), *SIZE, 3), np.uint8)
        if images:
            shown = {name: decode(jpegs[name][frame], source="") for name in CAMERAS}
            observation["image"] = shown
            for k, name in enumerate(CAMERAS):
                resize_into(shown[name], stacked[0, k])
        made = chunks.chunk(0, frame)
        np.testing.assert_array_equal(made.actions, policy.infer(observation, draw=(0, frame))["actions"])
        np.testing.assert_array_equal(made.recorded, action[frame : frame + HORIZON])
        assert (made.over, made.in_plane) == ("action", False)
        seen = {"state": state[None, frame], "images": stacked}
        (value,) = policy.values(seen, made.actions[None])
        assert made.notes[0].startswith(f"The critic's value of the policy's chunk is {value:.4g}")
        if frame < 7:
            (recorded,) = policy.values(seen, action[None, frame : frame + HORIZON])
            assert made.notes[0].endswith(f", that of the recorded one {recorded:.4g}.")
        else:
            assert "recorded" not in made.notes[0]
    np.testing.assert_array_equal(chunks.chunk(0, 4).actions, chunks.chunk(0, 4).actions)
    with pytest.raises(DataError, match=r"a\.hdf5: expected a frame below 9, found 9"):
        chunks.chunk(0, 9)


def test_colours_that_the_recorder_exchanged_are_shown_as_training_sees_them(tmp_path: Path):
    jpegs = write_episode(tmp_path / "a.hdf5", 4, 2, size=(24, 32))
    found, policy = open_recordings(DataConfig(path=str(tmp_path))), policy_of(tmp_path, images=True)
    shown: dict[str, Any] = {}
    for channels in ("rgb", "bgr"):
        data = dataclasses.replace(policy.config.data, jpeg_channels=channels)
        policy.config = dataclasses.replace(policy.config, data=data)
        shown[channels] = Sights(policy, found).sight(0, 1).observation["image"]
    for name in CAMERAS:
        recorded = decode(jpegs[name][1], source="")
        np.testing.assert_array_equal(shown["rgb"][name], recorded)
        np.testing.assert_array_equal(shown["bgr"][name], recorded[..., ::-1])
        assert not np.array_equal(shown["rgb"][name], shown["bgr"][name])


def test_of_ogbenchs_files_the_observation_is_the_state_under_either_name(tmp_path: Path):
    rng = np.random.default_rng(0)
    content = {
        "observations": rng.normal(size=(9, recordings.STATE)).astype(np.float32),
        "actions": rng.normal(size=(9, recordings.ACTION)).astype(np.float32),
        "terminals": np.array([0, 0, 0, 1, 0, 0, 0, 0, 1], np.float32),
    }
    np.savez(tmp_path / "play.npz", **content)  # pyright: ignore[reportArgumentType]
    found = open_recordings(DataConfig(path=str(tmp_path / "play.npz"), format="ogbench_npz"))
    policy = policy_of(tmp_path, images=False)
    for observation in ("qpos", "state"):
        data = dataclasses.replace(policy.config.data, observation=observation)
        policy.config = dataclasses.replace(policy.config, data=data)
        sight = Sights(policy, found).sight(1, 2)
        np.testing.assert_array_equal(sight.observation["state"], content["observations"][6])
        np.testing.assert_array_equal(sight.recorded[0], content["actions"][6])


def test_the_base_is_a_part_of_the_recorded_chunk(tmp_path: Path):
    write_episode(tmp_path / "a.hdf5", 5, 2, size=(24, 32))
    found, policy = open_recordings(DataConfig(path=str(tmp_path))), policy_of(tmp_path, images=False)
    data = dataclasses.replace(policy.config.data, base_action=True)
    policy.config = dataclasses.replace(policy.config, data=data)
    with h5py.File(tmp_path / "a.hdf5") as h5:
        expected = np.concatenate([np.asarray(h5["/action"]), np.asarray(h5["/base_action"])], axis=1)[2:]
    np.testing.assert_array_equal(Sights(policy, found).sight(0, 2).recorded, expected)


def test_what_the_policy_does_not_find_is_said(tmp_path: Path):
    arrays = recordings.arrays(5, 0)
    recordings.write(tmp_path / "a.hdf5", {"/action": arrays["/action"], "/observations/qpos": arrays["/action"]})
    recordings.write(tmp_path / "b.hdf5", arrays)
    recordings.write(tmp_path / "c.hdf5", arrays | {"/action": arrays["/action"][:, :2]})
    found = open_recordings(DataConfig(path=str(tmp_path)))
    chunks = policy_chunks(policy_of(tmp_path, images=True), "mine", found)
    with pytest.raises(DataError, match=r"a\.hdf5: expected state as data\.observation of the policy says, found"):
        chunks.chunk(0, 0)
    with pytest.raises(DataError, match=r"b\.hdf5: expected images of cam_left_wrist, which the policy sees"):
        chunks.chunk(1, 0)
    alone = policy_chunks(policy_of(tmp_path, images=False), "mine", found)
    with pytest.raises(DataError, match="action: expected 4 numbers as the policy's actions have, found 2"):
        alone.chunk(2, 0)
    with pytest.raises(ConfigError, match="--policy is mine, a object; expected a run of qchunk"):
        policy_chunks(object(), "mine", found)


def test_the_command_refuses_what_has_no_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recordings.dataset(tmp_path / "set", (7,))
    (tmp_path / "none").mkdir()
    assert view.main([str(tmp_path / "set"), "--policy", str(tmp_path / "none")]) == 64
    assert "is no run of this project (it has no config.json)" in capsys.readouterr().err
    for words, message in (
        (["--allow-code", "a:b"], "expected --policy RUN"),
        (["--checkpoint", "best"], "--checkpoint says which policy of a run is asked; expected --policy RUN"),
        (["--agent.horizon", "3"], "fields of a config need --config"),
    ):
        with pytest.raises(SystemExit) as left:
            view.main([str(tmp_path / "set"), *words])
        assert left.value.code == 64
        assert message in capsys.readouterr().err


def test_the_checkpoint_that_is_named_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recordings.dataset(tmp_path / "set", (7,))
    asked: list[Any] = []

    def loaded(run: Path, *, checkpoint: Any, allow_code: Any) -> Any:
        asked.append((run, checkpoint))
        raise DataError("enough")

    monkeypatch.setattr("chunkwise.policies.load.load_policy", loaded)
    words = [str(tmp_path / "set"), "--policy", "mine"]
    for more in ([], ["--checkpoint", "best"], ["--checkpoint", "200"]):
        assert view.main([*words, *more]) == 65
    assert asked == [(Path("mine"), "newest"), (Path("mine"), "best"), (Path("mine"), 200)]
    assert view.main([*words, "--checkpoint", "last"]) == 64
