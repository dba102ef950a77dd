"""The page of a run's rollouts: files as they lie, and advantages as training has them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from chunkwise.config.saved import flatten
from chunkwise.envs.rollout import load, save
from chunkwise.errors import ConfigError, DataError
from openpi_ript import view
from openpi_ript.ript.recordings import RolloutRecordings
from tests.openpi_ript.ript.test_ript_round import Round, make_config
from tests.openpi_ript.small_run import make_dataset
from tests.openpi_ript.toy_rollouts import make_rollout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("recordings"))


def half(state: int, k: int) -> bool:
    return k < 2


def write_config(root: Path, run: Path, **rollout: Any) -> None:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps(flatten(make_config(root, run, **rollout))))


def by_hand(run: Path, outcomes: dict[int, list[bool]], step: int = 2) -> Path:
    """A round whose rollouts succeeded as the lists say, by initial state."""
    folder = run / f"rollouts/step_{step:08d}-abc"
    for state, won in outcomes.items():
        for k, success in enumerate(won):
            made = make_rollout(4 + k, success=success, init_hash=f"{state:016x}", seed=10 * state + k)
            save(folder / f"state_{state:05d}-{k:02d}.npz", made)
    return folder


def test_an_episode_is_its_file(root: Path, tmp_path: Path):
    folder = by_hand(tmp_path, {3: [True, False, False, False]})
    write_config(root, tmp_path)
    found = RolloutRecordings(tmp_path)
    assert found.names == [f"state_00003-{k:02d} of step_00000002-abc" for k in range(4)]
    rollout, content = load(folder / "state_00003-02.npz"), found.open(2)
    assert list(content.columns)[:2] == ["action", "reward"]
    assert content.frames == 7, "what was seen after the last action is shown too"
    assert content.cameras == ("agentview_image", "robot0_eye_in_hand_image")
    np.testing.assert_array_equal(content.columns["action"], rollout.actions)
    np.testing.assert_array_equal(content.columns["reward"], rollout.rewards)
    np.testing.assert_array_equal(content.columns["position"], rollout.observations["position"])
    assert "Initial state 3, seed 32; 4 updates" in content.notes[0]
    for camera, frame in (("agentview_image", 0), ("robot0_eye_in_hand_image", 6)):
        image = cv2.imdecode(np.frombuffer(found.image(2, camera, frame), np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        np.testing.assert_array_equal(image[..., ::-1], rollout.observations[camera][frame])
    for camera, frame in (("agentview_image", 7), ("position", 0), ("../../config.json", 0)):
        with pytest.raises(DataError, match="state_00003-02 of step_00000002-abc: expected"):
            found.image(2, camera, frame)


def test_advantages_by_hand_and_who_is_not_trained_on(root: Path, tmp_path: Path):
    """Leave-one-out of (1, 0, 0, 0) is 1 and -1/3; a group that ended alike carries no signal."""
    by_hand(tmp_path, {0: [True, False, False, False], 4: [False] * 4, 5: [True, True]})
    write_config(root, tmp_path)
    steps = list(RolloutRecordings(tmp_path).examine())
    assert [number for number, _ in steps[:10]] == list(range(10)), "outcomes come first"
    assert steps[0][1].advantage is None
    told = dict(steps)
    assert [told[k].advantage for k in range(10)] == pytest.approx([1, *[-1 / 3] * 3, *[None] * 6])
    assert [told[k].label.partition(",")[0] for k in range(10)] == [
        "positive",
        *["negative"] * 3,
        *["not drawn"] * 4,
        *["2 of 4 there"] * 2,
    ]
    # softplus(log) of the standardised advantages: sqrt(3) and -1 / sqrt(3).
    assert [told[k].label.partition(", ")[2] for k in (0, 1)] == [
        f"weight {np.log1p(np.exp(x)):.2f}" for x in (3**0.5, -(3**-0.5))
    ]
    assert [told[k].success for k in range(4)] == [True, False, False, False]
    assert [told[k].total_reward for k in range(2)] == [1, 0]
    assert [told[k].length for k in range(4)] == [4, 5, 6, 7]
    assert {told[k].group for k in range(10)} == {"round of update 2"}


@pytest.mark.parametrize("changes", [{}, {"replay_rounds": 2}, {"objective": "rejection"}])
def test_advantages_are_those_of_training(root: Path, tmp_path: Path, changes: dict[str, Any]):
    """Of two rounds; the second is trained on alone, or with the first."""
    one = Round(root, tmp_path, lambda state, k: k < state % 4, **changes)
    write_config(root, tmp_path, **changes)
    for step, weights in ((2, "a"), (6, "b")):
        one.interact(step, weights)
        trained: Any = one.ript._training
        rollouts = trained.to_ript.rollouts
        recordings = RolloutRecordings(tmp_path)
        told = {recordings.names[number]: summary for number, summary in recordings.examine()}
        paths = [name.removesuffix(".npz").partition("/") for name in one.files()]
        files = [f"{file} of {folder}" for folder, _, file in paths]
        if changes.get("objective") == "rejection":
            files = [name for name in files if told[name].success]
        assert len(files) == len(rollouts.success)
        newest = {name for name in files if f"of step_{step:08d}" in name}
        assert newest
        for name, raw, weight in zip(files, rollouts.raw_advantage, rollouts.advantage, strict=True):
            if name in newest:
                assert told[name].advantage == pytest.approx(raw)
                assert told[name].label.endswith(f"weight {weight:.2f}")
        others = [told[name] for name in told if f"of step_{step:08d}" in name and name not in newest]
        assert {(other.label, other.advantage) for other in others} <= {("not drawn", None)}


def test_a_bad_file_is_told_and_the_rest_is_shown(root: Path, tmp_path: Path):
    folder = by_hand(tmp_path, {0: [True, False, False, False], 1: [True, False, True, False]})
    (folder / "state_00000-02.npz").write_bytes(b"no rollout")
    save(folder / "state_00001-03.npz", make_rollout(4, success=False, init_hash="f" * 16))
    write_config(root, tmp_path)
    found = RolloutRecordings(tmp_path)
    told = dict(found.examine())
    assert [told[k].label for k in range(4)] == ["3 of 4 there", "3 of 4 there", "unreadable", "3 of 4 there"]
    assert "expected a whole .npz file" in str(told[2].problems[0])
    assert str(told[2].problems[0]).startswith("state_00000-02 of step_00000002-abc: ")
    assert "expected one initial state" in str(told[7].problems[0])
    assert "action" in found.open(3).columns
    with pytest.raises(DataError, match="state_00000-02"):
        found.open(2)


def test_a_rollout_that_holds_objects_is_not_unpickled(root: Path, tmp_path: Path):
    folder = by_hand(tmp_path, {0: [True, False, False, False]})
    ran = tmp_path / "ran"

    class Runs:
        def __reduce__(self):
            return (Path.touch, (ran,))

    good: dict[str, Any] = dict(np.load(folder / "state_00000-00.npz"))
    np.savez(folder / "state_00000-01.npz", **good | {"rewards": np.array([Runs()], object)})  # pyright: ignore[reportArgumentType]
    np.savez(folder / "state_00000-02.npz", **good | {"observation/x": np.array([Runs()], object)})  # pyright: ignore[reportArgumentType]
    write_config(root, tmp_path)
    found = RolloutRecordings(tmp_path)
    told = dict(found.examine())
    assert told[1].label == "unreadable"
    for episode in (1, 2):
        with pytest.raises(DataError, match="expected numbers or text, found dtype object"):
            found.open(episode)
    assert not ran.exists()


def test_limits_of_the_runs_own_config_are_not_obeyed(root: Path, tmp_path: Path):
    by_hand(tmp_path, {0: [True, False, False, False]})
    config = make_config(root, tmp_path)
    limits = dataclasses.replace(config.data.limits, decoded_mib=1 << 40, expansion=1 << 40, free_mib=1 << 40)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, limits=limits))
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    bomb = dict(np.load(tmp_path / "rollouts/step_00000002-abc/state_00000-00.npz"))
    bomb["observation/zeros"] = np.zeros((5, 80 << 20), np.uint8)
    np.savez_compressed(tmp_path / "rollouts/step_00000002-abc/state_00000-01.npz", **bomb)
    with pytest.raises(DataError, match="expansion"):
        RolloutRecordings(tmp_path).open(1)


def test_what_is_no_run_with_rollouts_is_said(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_config(root, tmp_path)
    assert view.main([str(tmp_path)]) == 65
    assert f"the run has played no round. What it learns from is {root}" in capsys.readouterr().err
    assert view.main([str(tmp_path), "--config", "openpi_ript/debug"]) == 64
    assert "is a run, which was made with its own config" in capsys.readouterr().err
    by_hand(tmp_path, {0: [True]})
    (tmp_path / "rollouts/step_00000002-abc/state_00000-01.npz").symlink_to("/etc/passwd")
    assert view.main([str(tmp_path)]) == 65
    assert "expected links inside the folder alone" in capsys.readouterr().err
    (tmp_path / "rollouts/step_00000002-abc/state_00000-01.npz").unlink()
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="expected the config of a run"):
        RolloutRecordings(tmp_path)


def test_only_rollouts_are_listed(root: Path, tmp_path: Path):
    """By number, not by name; and what has another name is passed over."""
    folder = by_hand(tmp_path, {0: [True, False]}, step=100)
    by_hand(tmp_path, {0: [False]}, step=8)
    (folder / "state_00000-00.npz.part").write_bytes(b"")
    (folder / "notes.npz").write_bytes(b"")
    (tmp_path / "rollouts/other").mkdir()
    write_config(root, tmp_path)
    assert RolloutRecordings(tmp_path).names == [
        "state_00000-00 of step_00000008-abc",
        "state_00000-00 of step_00000100-abc",
        "state_00000-01 of step_00000100-abc",
    ]
