"""Returns by hand: rewards of -1, a cost of failing, in units of the worst outcome."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.errors import DataError
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.value import ValueConfig
from openpi_ript.data.batch import to_training_batch
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.data.returns import Returns, ReturnSample, returns_of
from tests.openpi_ript.small_run import make_dataset, small_config


def judge(**changes: Any) -> Returns:
    """Two tasks of at most 10 and 4 steps; failing costs half a limit more; the value takes over after 3 steps."""
    config = ValueConfig(failure_cost=0.5, lookahead=3)
    return Returns(prompts=("far", "near"), limits=np.array([10, 4]), config=config, demonstrations=False, **changes)


def came_of(frame: int, *, success: bool, prompt: str = "far", length: int = 6, returns: Returns | None = None) -> Any:
    found: Any = (returns or judge()).of(prompt, frame, length, success=success, corrected=False)
    return found


def test_a_return_is_the_rewards_to_the_end():
    """By adding them up: -1 each, at the end 0 or -5, all of it divided by 10 + 5."""
    for success, last in ((True, 0.0), (False, -5.0)):
        rewards = np.array([-1, -1, -1, -1, -1, last]) / 15
        for frame in range(6):
            assert came_of(frame, success=success)["observed"] == pytest.approx(rewards[frame:].sum(), abs=1e-12)
    assert came_of(5, success=True)["observed"] == 0
    near = came_of(1, success=False, prompt="near", length=4)
    assert near["observed"] == pytest.approx(-(2 + 2) / 6), "a task's own limit"
    assert (near["task"], came_of(0, success=True)["task"]) == (1, 0)
    assert came_of(0, success=False, length=10)["observed"] == pytest.approx(-14 / 15), "the worst lies above -1"


def test_rewards_ahead_and_the_return_from_there_are_the_return():
    for success in (True, False):
        for frame in range(3):
            here, there = (came_of(at, success=success) for at in (frame, frame + 3))
            assert here["continues"]
            assert here["ahead"] + there["observed"] == pytest.approx(here["observed"])
        for frame in range(3, 6):
            here = came_of(frame, success=success)
            assert (here["continues"], here["ahead"]) == (False, 0.0), "the episode ends before"


def test_without_lookahead_nothing_continues():
    whole = dataclasses.replace(judge(), config=ValueConfig(lookahead=None, failure_cost=0.5))
    here = came_of(0, success=True, returns=whole)
    assert (here["continues"], here["ahead"]) == (False, 0.0)


def test_what_is_forced():
    returns, demonstrated = judge(), dataclasses.replace(judge(), demonstrations=True)
    forced = [
        one.of("far", 0, 6, success=False, corrected=corrected)["forced"]
        for one in (returns, demonstrated)
        for corrected in (False, True)
    ]
    assert forced == [False, True, True, True]
    assert not demonstrated.of_rollouts().demonstrations
    assert demonstrated.of_rollouts().limits is demonstrated.limits


def test_another_prompt_is_refused():
    with pytest.raises(DataError, match="'elsewhere'"):
        came_of(0, success=True, prompt="elsewhere")


def test_limits_are_the_longest_of_dataset_and_tasks():
    table = FrameTable(
        fps=10.0,
        lengths=np.array([3, 7, 5]),
        episodes=np.arange(3),
        columns={"task_index": np.repeat([0, 1, 2], [3, 7, 5])},
        tasks={0: "near", 1: "far", 2: " ", 3: "unused"},
    )
    limits = {"near": 4, "far": 6, "new": 9}
    returns = returns_of(table, ValueConfig(), demonstrations=True, default_prompt="said", limits=limits)
    assert returns.prompts == ("far", "near", "new", "said")
    assert returns.limits.tolist() == [7, 4, 9, 5]
    assert returns.demonstrations


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """Eight recorded episodes of ten frames, two prompts."""
    folder = tmp_path_factory.mktemp("returns")
    data = open_data(small_config(make_dataset(folder), folder / "run").data)
    returns = returns_of(data.table, ValueConfig(lookahead=4), demonstrations=False)
    return dataclasses.replace(data, returns=returns)


def sampled(data: TrainingData, row: int) -> ReturnSample:
    sample = data.sample(row)
    assert "returns" in sample
    return sample["returns"]


def test_samples_of_a_dataset(opened: TrainingData):
    """Frame 3 of its second episode, and frame 8, four steps behind which nothing is."""
    success = bool(opened.to_ript.rollouts.success[1])
    here = sampled(opened, 13)
    assert here["observed"] == pytest.approx(-(6 + (0 if success else 10)) / 20)
    assert (here["continues"], here["ahead"], here["forced"]) == (True, -4 / 20, False)
    assert "later" in here
    later, last = opened.to_openpi(opened.raw(17)), opened.to_openpi(opened.raw(18))
    np.testing.assert_array_equal(here["later"]["state"], later["state"])
    for name, image in later["image"].items():
        np.testing.assert_array_equal(here["later"]["image"][name], image)
    end = sampled(opened, 18)
    assert not end["continues"]
    assert "later" in end
    np.testing.assert_array_equal(end["later"]["state"], last["state"])
    outcomes = opened.to_ript.rollouts.success
    assert {True, False} == set(outcomes.tolist()), "both kinds are there"
    ends = [sampled(opened, 10 * episode + 9)["observed"] for episode in range(8)]
    np.testing.assert_allclose(ends, np.where(outcomes, 0.0, -0.5))


def test_batches_hold_what_samples_hold(opened: TrainingData):
    rows = [3, 27, 49]
    samples = [opened.sample(row) for row in rows]
    batch = to_training_batch(samples)
    assert "returns" in batch
    assert "later" in batch["returns"]
    each = [sampled(opened, row) for row in rows]
    for name in ("observed", "ahead", "continues", "task", "forced"):
        entries: Any = batch["returns"]
        expected: Any = [dict(one)[name] for one in each]
        np.testing.assert_allclose(entries[name], expected, rtol=1e-6)
    assert batch["returns"]["later"]["state"].shape == batch["state"].shape
    assert "returns" not in to_training_batch([{k: v for k, v in one.items() if k != "returns"} for one in samples])  # pyright: ignore[reportArgumentType]
    drawn = next(opened.batches(seed=0, batch_size=4))
    assert "returns" in drawn, "the pipeline's samples are these"


def test_corrections_are_read_from_their_column(tmp_path: Path):
    """Any column of truths will do: here the last frame of a success."""
    config = small_config(make_dataset(tmp_path), tmp_path / "run").data
    data = open_data(dataclasses.replace(config, correction_key="next.success", advantage=AdvantageConfig()))
    returns = returns_of(data.table, ValueConfig(lookahead=None), demonstrations=False)
    data = dataclasses.replace(data, returns=returns)
    forced = [sampled(data, row)["forced"] for row in range(data.table.frames)]
    assert forced == data.table.columns["next.success"].astype(bool).tolist()
    assert sum(forced) == data.to_ript.rollouts.success.sum()
    assert "later" not in sampled(data, 0)
    with pytest.raises(DataError, match="by_hand"):
        open_data(dataclasses.replace(config, correction_key="by_hand"))
