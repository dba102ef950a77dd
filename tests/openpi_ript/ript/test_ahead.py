"""Rounds with rollout.staleness 1: which weights play, what a checkpoint holds of it, and what a resumed run plays."""

import dataclasses
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.envs.divided import MANIFEST
from chunkwise.envs.rollout import load
from chunkwise.errors import DataError, NonFiniteError, StorageError
from chunkwise.state import TrainState
from openpi_ript.config.rollouts import RolloutConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.ript import ahead
from openpi_ript.ript.ahead import WEIGHTS
from openpi_ript.ript.round import Ript
from tests.openpi_ript.ript.test_ript_round import SEED, half, make_config, order_of, state_and_number
from tests.openpi_ript.small_run import make_dataset
from tests.openpi_ript.toy_rollouts import FakeCollector, FakePolicy


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("ahead"))


class Weighed(FakePolicy):
    """Known by the digest of real arrays."""

    def use(self, params: Any, step: int) -> None:
        self.step, self.weights, self.holding = step, tree_digest(params), True
        self.used.append((params, step))


def params_of(step: int) -> dict[str, Any]:
    return {"a": {"w": np.full(3, step, np.float32)}, "b": np.arange(step, dtype=np.int32), "c": np.float32(step)}


def name_of(step: int, policy_step: int) -> str:
    return f"step_{step:08d}-{tree_digest(params_of(policy_step))[:12]}"


class Run:
    """A Ript whose rollouts are fakes, of a run of 14 updates with rounds at 2, 6, 10 and, if it went on, 14."""

    def __init__(self, root: Path, folder: Path, *, steps: int = 14, **rollout: Any) -> None:
        config = make_config(root, folder, staleness=1, **rollout)
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))
        self.collector, self.policy, self.folder = FakeCollector(half), Weighed(), folder / "rollouts"
        self.data = open_data(config.data)
        self.ript = Ript(config, self.data, folder, self.collector, self.policy)

    def interact(self, *steps: int) -> Any:
        told: Any = None
        for step in steps:
            params = params_of(step)
            told = self.ript.interact(TrainState(step=step, params=params, opt_state={}, target={}), step, no)
            params["a"]["w"][:] = -1  # the next update takes the memory
        return told

    def settle(self) -> None:
        assert self.ript.settled(no)

    def first(self, step: int) -> np.ndarray:
        return next(self.ript.batches(lambda _: iter(()), step))["state"]


def no() -> bool:
    return False


def test_a_round_is_played_with_the_weights_of_the_one_before(root: Path, tmp_path: Path):
    run = Run(root, tmp_path)
    run.interact(2, 6, 10)
    run.settle()
    assert [step for _, step in run.policy.used] == [2, 2, 6], "that of 14 is needed by no update"
    for step, policy_step in ((2, 2), (6, 2), (10, 6)):
        folder = run.folder / name_of(step, policy_step)
        files = sorted(folder.glob("*.npz"))
        assert {state_and_number(path)[0] for path in files} == set(order_of(step)[:2])
        for path in files:
            rollout = load(path)
            assert (rollout.step, rollout.weights) == (policy_step, tree_digest(params_of(policy_step)))
            assert rollout.draw == (SEED, step, *state_and_number(path), 2), "noise of the round's own"
        assert not (folder / WEIGHTS).exists(), "weights that have played are let go of"
    ahead = run.ript.position()["ahead"]
    assert ahead == {"step": 14, "policy_step": 10, "weights": tree_digest(params_of(10))}
    assert (run.folder / name_of(14, 10) / WEIGHTS).exists(), "a run that goes on needs them"
    assert [one["step"] for one in run.ript.position()["rounds"]] == [10]


@pytest.mark.parametrize("left", ["nothing", "some", "all but the manifest", "all"])
def test_a_resumed_run_plays_what_is_missing_with_the_weights_that_played(root: Path, tmp_path: Path, left: str):
    whole = Run(root, tmp_path / "whole")
    whole.interact(2)
    whole.ript.sync()
    position = whole.ript.position()
    whole.settle()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    ahead = tmp_path / "cut/rollouts" / name_of(6, 2)
    files = sorted(path.name for path in ahead.glob("*.npz"))
    kept = {"nothing": 0, "some": 3}.get(left, len(files))
    if left != "all":
        (ahead / MANIFEST).unlink()
    else:
        (ahead / WEIGHTS).unlink()
    for name in files[kept:]:
        (ahead / name).unlink()
    resumed = Run(root, tmp_path / "cut")
    resumed.ript.rewind(position)
    np.testing.assert_array_equal(resumed.first(2), whole.first(2))
    assert resumed.ript.position() == position
    assert whole.interact(6) == resumed.interact(6)
    assert whole.interact(10) == resumed.interact(10)
    assert whole.ript.position() == resumed.ript.position()
    whole.ript.sync()
    resumed.ript.sync()
    np.testing.assert_array_equal(resumed.first(10), whole.first(10))
    assert sorted(resumed.collector.played[: len(files) - kept]) == files[kept:]
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "cut" / path.relative_to(tmp_path / "whole")).read_bytes(), path


def test_a_longer_run_is_the_same_as_one_that_was_made_longer(root: Path, tmp_path: Path):
    whole, short = Run(root, tmp_path / "whole", steps=20), Run(root, tmp_path / "short", steps=6)
    whole.interact(2, 6)
    short.interact(2)
    short.ript.sync()  # as before each save: the weights are written by a thread
    longer = Run(root, tmp_path / "short", steps=20)
    longer.ript.rewind(short.ript.position())
    longer.interact(6)
    assert longer.ript.position() == whole.ript.position()


def test_what_is_lost_and_what_goes_wrong_is_told(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = Run(root, tmp_path, steps=6)
    run.interact(2)
    run.ript.sync()
    position = run.ript.position()
    file = run.folder / name_of(6, 2) / WEIGHTS
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"acting.safetensors: expected the weights"):
        Run(root, tmp_path).ript.rewind(position)
    file.unlink()
    with pytest.raises(DataError, match=r"acting.safetensors: expected a safetensors file, .* bring the file back"):
        Run(root, tmp_path).ript.rewind(position)

    file.write_bytes(content)
    broken = Run(root, tmp_path)
    monkeypatch.setattr(broken.collector, "collect", lambda *_: (_ for _ in ()).throw(NonFiniteError("NaN")))
    broken.ript.rewind(position)
    with pytest.raises(NonFiniteError, match="NaN"):
        broken.interact(6)


def test_no_save_names_weights_that_are_not_there(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: a checkpoint that no run can go on from, after a disk that was full for a moment."""

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    run = Run(root, tmp_path, steps=14)
    monkeypatch.setattr(ahead, "save_file", full)
    run.interact(2)
    with pytest.raises(StorageError, match=r"cannot write .*acting.safetensors: .*No space left.*Last durable step"):
        run.ript.sync()


def test_a_round_that_goes_on_can_be_left(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By a request to stop while the loop waits for it, and at the end of the run."""
    run, asked = Run(root, tmp_path), threading.Event()
    run.interact(2)
    run.settle()
    run.ript.sync()
    position = run.ript.position()

    def endless(jobs: Any, actor: Any, done: Any, stopping: Any) -> bool:
        asked.set()
        while not stopping():
            time.sleep(0.01)
        return False

    slow = Run(root, tmp_path)
    monkeypatch.setattr(slow.collector, "collect", endless)
    for path in (*(run.folder / name_of(6, 2)).glob("*.npz"), run.folder / name_of(6, 2) / MANIFEST):
        path.unlink()
    slow.ript.rewind(position)
    assert asked.wait(30)
    state = TrainState(step=6, params=params_of(6), opt_state={}, target={})
    assert slow.ript.interact(state, 6, lambda: True) is None
    assert slow.ript.settled(lambda: True) is None
    assert slow.ript.position() == position
    slow.ript.close()
    assert slow.ript.settled(no)


def test_staleness_is_refused_where_it_does_not_go(root: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"rollout.staleness is 1 and rollout.objective 'ppo'"):
        RolloutConfig(start=2, updates=4, groups=2, max_groups=4, objective="ppo", staleness=1)
    run = Run(root, tmp_path, dataset_share=1.0)
    assert run.interact(2) == {}
    assert "ahead" not in run.ript.position()
