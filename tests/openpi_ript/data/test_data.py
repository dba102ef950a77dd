"""openpi_ript/data/dataset.py: from files to batches; windows, rollouts, refusals, determinism, resume and shards."""

import dataclasses
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.data.groups import rloo
from chunkwise.data.images import resize_with_pad
from chunkwise.data.shards import PackSettings
from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.data import UR5E, AdvantageConfig, DataConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data import norm
from openpi_ript.data.advantage import process
from openpi_ript.data.batch import TrainingBatch
from openpi_ript.data.dataset import TrainingData, make_batches, open_data
from openpi_ript.data.pack import pack
from openpi_ript.data.transforms import init_hash
from openpi_ript.inspect import Inspection, inspect
from tests.lerobot_files import CAMERAS, TASKS, Recorded, record, write_v21, write_v30

HORIZON = 4
CAMERA_MAP = {"base_0_rgb": CAMERAS[0], "left_wrist_0_rgb": CAMERAS[1]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The part of a run's config that `make_batches` reads."""

    run: RunConfig = dataclasses.field(default_factory=lambda: RunConfig(seed=3))
    train: TrainConfig = dataclasses.field(default_factory=lambda: TrainConfig(steps=10, batch_size=6))
    data: DataConfig


def rollouts() -> list[Recorded]:
    """Two initial states, three rollouts each; the first state's end 1, 0, 0, the second's all fail."""
    episodes = record((7, 5, 9, 3, 4, 6))
    for index, episode in enumerate(episodes):
        episode.state[0] = episodes[index // 3 * 3].state[0]
        episode.task[:] = index // 3
        episode.success[:] = False
        episode.success[-1] = index == 0
        episode.reward[:] = episode.success
    return episodes


def config(root: Path, **changes: Any) -> DataConfig:
    settings = DataConfig(path=str(root), robot=UR5E, cameras=CAMERA_MAP, horizon=HORIZON, image_size=(28, 28))
    return dataclasses.replace(settings, **changes)


def assert_same(a: TrainingBatch, b: TrainingBatch) -> None:
    for name in a["image"]:
        np.testing.assert_array_equal(a["image"][name], b["image"][name])
    for key in ("state", "action", "action_is_pad", "prompt", "advantages", "optimality"):
        np.testing.assert_array_equal(a[key], b[key])


def rows_of(batch: TrainingBatch, data: TrainingData) -> list[int]:
    """Row of the table of each sample, recognised by its state."""
    table = [data.to_openpi.state.apply(state) for state in data.table.columns["observation.state"]]
    return [next(r for r, state in enumerate(table) if (state == row[:6]).all()) for row in batch["state"]]


def test_a_window_is_the_recording_to_the_letter(tmp_path: Path) -> None:
    """Every window has its own observation, its padding marked, its action relative to its own state."""
    episodes = rollouts()
    data = open_data(config(write_v30(tmp_path / "set", episodes, "image")))
    state = np.concatenate([e.state for e in episodes]).astype(np.float64)
    row = 0
    for index, episode in enumerate(episodes):
        length = len(episode.state)
        for t in range(length):
            sample = data.sample(row)
            for step in range(HORIZON):
                assert sample["action_is_pad"][step] == (t + step >= length)
                expected = episode.action[min(t + step, length - 1)].copy()
                expected[:6] -= episode.state[t]
                np.testing.assert_array_equal(sample["action"][step], expected)
            normalised = (episode.state[t] - state.mean(0)) / (state.std(0) + 1e-6)
            np.testing.assert_allclose(sample["state"], [*normalised, *np.zeros(8)], atol=1e-5)
            for name, key in CAMERA_MAP.items():
                np.testing.assert_array_equal(sample["image"][name], resize_with_pad(episode.images[key][t], 28, 28))
            assert sample["prompt"] == TASKS[index // 3]
            row += 1
    assert row == data.table.frames


def test_advantages_are_of_the_episode_and_labels_of_the_raw_ones(tmp_path: Path) -> None:
    episodes = rollouts()
    advantage = AdvantageConfig(normalization="none", clipping="none", negative_handling="softplus")
    data = open_data(config(write_v21(tmp_path / "set", episodes, "image"), advantage=advantage))
    found = data.to_ript.rollouts
    raw = np.array([1.0, -0.5, -0.5, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(found.raw_advantage, raw, atol=1e-12)
    np.testing.assert_allclose(found.advantage, np.log1p(np.exp(raw)), rtol=1e-6)
    assert found.optimality.tolist() == [1, 0, 0, 2, 2, 2]  # a group that failed is not positive
    assert found.init_hash == [init_hash(e.state[0]) for e in episodes]
    assert len(set(found.init_hash)) == 2
    sample: Any = data.sample(int(data.table.starts[1]) + 2)
    assert set(sample) >= {"advantages", "init_hash", "rollout_success", "rollout_reward", "episode_length"}
    np.testing.assert_allclose(sample["advantages"], np.full(HORIZON, np.log1p(np.exp(-0.5))), rtol=1e-6)
    assert (sample["rollout_success"], sample["rollout_reward"], sample["episode_length"]) == (False, 0.0, 5)
    assert any("2 groups of rollouts by init_hash; 3 of 6 rollouts" in note for note in data.notes)


@pytest.mark.parametrize("field", ["reward_key", "success_key", "correction_key"])
def test_a_column_of_several_numbers_is_no_outcome(tmp_path: Path, field: str) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    with pytest.raises(DataError, match=rf"set: action: expected one number a frame, found .*; .* data\.{field}"):
        open_data(config(root, advantage=AdvantageConfig(), **{field: "action"}))


@pytest.mark.parametrize(("written", "found"), [(-1.0, "-1.0"), (0.2, "0.2")])
def test_flags_are_0_or_1(tmp_path: Path, written: float, found: str) -> None:
    """Failures that are written as -1 would all be successes."""
    root = write_v21(tmp_path / "set", rollouts(), "image")
    for file in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        flags = np.where(table["next.success"].to_numpy(), 1.0, written)
        place = table.column_names.index("next.success")
        pq.write_table(table.set_column(place, "next.success", pa.array(flags, pa.float64())), file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["next.success"]["dtype"] = "float64"
    (root / "meta/info.json").write_text(json.dumps(info))
    wanted = rf"next\.success, episode 0, row 0: expected 0 or 1, found {found} \(\d+ such rows\); .*data\.success_key"
    with pytest.raises(DataError, match=wanted):
        open_data(config(root, advantage=AdvantageConfig()))
    with pytest.raises(DataError, match=r"episode 0, row 0: expected 0 or 1, .* data\.correction_key"):
        open_data(config(root, success_key="none", correction_key="next.success"))
    open_data(config(root, success_key="none"))


@pytest.mark.parametrize(("group_by", "groups"), [("task", [0, 0, 0, 1, 1, 1]), ("dataset", [0] * 6)])
def test_rollouts_are_compared_as_asked(tmp_path: Path, group_by: Any, groups: list[int]) -> None:
    settings = AdvantageConfig(group_by=group_by)
    data = open_data(config(write_v21(tmp_path / "set", rollouts(), "image"), advantage=settings))
    raw = rloo(np.array([1.0, 0, 0, 0, 0, 0]), np.array(groups))
    np.testing.assert_allclose(data.to_ript.rollouts.raw_advantage, raw)
    np.testing.assert_array_equal(data.to_ript.rollouts.advantage, process(raw, settings)[0])


def test_rollouts_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    """The same arm, the same place, another instruction: that one succeeded says nothing of the other."""
    episodes = rollouts()
    for episode in episodes:
        episode.state[0] = episodes[0].state[0]
    data = open_data(config(write_v21(tmp_path / "set", episodes, "image"), advantage=AdvantageConfig()))
    assert len(set(data.to_ript.rollouts.init_hash)) == 1
    np.testing.assert_allclose(data.to_ript.rollouts.raw_advantage, [1, -0.5, -0.5, 0, 0, 0], atol=1e-12)
    assert data.to_ript.rollouts.optimality.tolist() == [1, 0, 0, 2, 2, 2]


def test_the_initial_state_can_be_another_column_than_the_robots(tmp_path: Path) -> None:
    """The robot starts as always; what differs is the world, which a column tells."""
    episodes = rollouts()
    for index, episode in enumerate(episodes):
        episode.reward[0] = index // 3  # stands for the world here
    root = write_v21(tmp_path / "set", episodes, "image")
    settings = config(root, advantage=AdvantageConfig(), init_key="next.reward", reward_key="none")
    found = open_data(settings).to_ript.rollouts
    assert len(set(found.init_hash)) == 2
    assert found.init_hash[0] == init_hash(np.zeros(1, np.float32))
    with pytest.raises(DataError, match="expected feature 'world', found"):
        open_data(dataclasses.replace(settings, init_key="world"))


def test_graded_rewards_are_compared_though_there_is_a_success_flag(tmp_path: Path) -> None:
    """The reward of an episode is the sum of its frames'; the flag, true at any of them, is kept beside it."""
    episodes = rollouts()
    for episode, first, last in zip(episodes, (0.5, 0.25, 0, 0, 1, -1), (0.5, 0.25, 0, 0.5, 0, 0), strict=True):
        episode.reward[:] = 0
        episode.reward[0], episode.reward[-1] = first, last
        episode.success[:] = False
    episodes[1].success[1] = episodes[5].success[-1] = True
    found = open_data(config(write_v21(tmp_path / "set", episodes, "image"), advantage=AdvantageConfig()))
    rollouts_found = found.to_ript.rollouts
    np.testing.assert_allclose(rollouts_found.reward, [1, 0.5, 0, 0.5, 1, -1])
    assert rollouts_found.success.tolist() == [False, True, False, False, False, True]
    # Others' means: 0.25, 0.5, 0.75; then 0, -0.25, 0.75.
    np.testing.assert_allclose(rollouts_found.raw_advantage, [0.75, 0, -0.75, 0.5, 1.25, -1.75], atol=1e-7)
    assert rollouts_found.optimality.tolist() == [1, 2, 0, 1, 1, 0]


def test_what_is_left_out_has_no_part_in_the_statistics_of_advantages(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    settings = AdvantageConfig(negative_handling="none")
    for uniform, width in (("keep", 6), ("drop", 3)):
        advantage = dataclasses.replace(settings, uniform_groups=uniform)
        data = open_data(config(root, advantage=advantage))
        raw = np.array([1.0, -0.5, -0.5, 0.0, 0.0, 0.0])
        expected = np.where(raw == 0, 0, raw / raw[:width].std())
        np.testing.assert_allclose(data.to_ript.rollouts.advantage, expected, rtol=1e-6)
        assert data.replaced["nan"] == 0


def test_uniform_groups_can_be_left_out(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    data = open_data(config(root, advantage=AdvantageConfig(uniform_groups="drop")))
    assert data.rows.tolist() == list(range(7 + 5 + 9))
    failed = rollouts()
    failed[0].success[:] = False
    failed[0].reward[:] = 0
    root = write_v21(tmp_path / "failed", failed, "image")
    with pytest.raises(ConfigError, match="uniform_groups is 'drop' and every group"):
        open_data(config(root, advantage=AdvantageConfig(uniform_groups="drop")))


def test_without_rollouts_every_sample_weighs_one(tmp_path: Path) -> None:
    batch = next(make_batches(Config(data=config(write_v21(tmp_path / "set", rollouts(), "image")))))
    assert batch["advantages"].tolist() == [1.0] * 6
    assert (batch["optimality"] == Optimality.POSITIVE).all()


def test_sample_i_is_a_function_of_seed_and_i(tmp_path: Path) -> None:
    data = open_data(config(write_v21(tmp_path / "set", rollouts(), "image")))
    total = data.table.frames
    batches = list(itertools.islice(data.batches(seed=3, batch_size=6), 12))  # 72 samples of 34 frames: 2 epochs
    rows = [row for batch in batches for row in rows_of(batch, data)]
    expected = np.concatenate([np.random.default_rng([3, epoch]).permutation(total) for epoch in range(3)])
    # Rollouts share initial states, so compare states, not rows.
    state = data.table.columns["observation.state"]
    np.testing.assert_array_equal(state[rows], state[expected[: len(rows)]])
    other = next(data.batches(seed=4, batch_size=6))
    assert not np.array_equal(other["state"], batches[0]["state"])


def test_resume_at_a_step_gives_that_batch(tmp_path: Path) -> None:
    settings = Config(data=config(write_v21(tmp_path / "set", rollouts(), "image")))
    straight = list(itertools.islice(make_batches(settings), 9))
    for step in (0, 1, 5, 8):
        assert_same(next(make_batches(settings, start_step=step)), straight[step])
    threaded = dataclasses.replace(settings.data, read_threads=2)
    again = itertools.islice(make_batches(dataclasses.replace(settings, data=threaded), start_step=3), 4)
    for step, batch in enumerate(again, start=3):
        assert_same(batch, straight[step])


@pytest.mark.parametrize("num_shards", [2, 3])
def test_shards_split_the_same_batches(tmp_path: Path, num_shards: int) -> None:
    settings = Config(data=config(write_v21(tmp_path / "set", rollouts(), "image")))
    whole = list(itertools.islice(make_batches(settings, start_step=2), 3))
    shards = [
        list(itertools.islice(make_batches(settings, shard=p, num_shards=num_shards, start_step=2), 3))
        for p in range(num_shards)
    ]
    for step, batch in enumerate(whole):
        for key in ("state", "action", "advantages"):
            np.testing.assert_array_equal(np.concatenate([shard[step][key] for shard in shards]), batch[key])
    with pytest.raises(ConfigError, match=r"batch_size 6: expected a multiple of the number of shards, 4"):
        make_batches(settings, num_shards=4)


def test_both_versions_and_all_storages_give_one_batch(tmp_path: Path) -> None:
    roots = [
        write_v21(tmp_path / "a", rollouts(), "image"),
        write_v30(tmp_path / "b", rollouts(), "image"),
        write_v21(tmp_path / "c", rollouts(), "image_file"),
    ]
    first, *others = [next(make_batches(Config(data=config(root)))) for root in roots]
    for other in others:
        assert_same(first, other)


def test_statistics_come_from_a_file_of_this_dataset_alone(tmp_path: Path) -> None:
    settings = config(write_v21(tmp_path / "set", rollouts(), "image"), action_norm="mean_std")
    data = open_data(settings)
    norm.save_stats(tmp_path / "norm_stats.json", data.stats, data.stats_source)
    again = open_data(dataclasses.replace(settings, norm_stats=str(tmp_path)))
    np.testing.assert_array_equal(again.sample(5)["action"], data.sample(5)["action"])
    other = write_v21(tmp_path / "other", record(seed=9), "image")
    with pytest.raises(DataError, match="these statistics belong to another dataset or setting; fingerprint"):
        open_data(config(other, norm_stats=str(tmp_path)))


def test_statistics_far_from_the_data_are_noted(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    entry = {name: [value] * 7 for name, value in (("mean", 500.0), ("std", 1.0), ("q01", 0.0), ("q99", 1.0))}
    file = tmp_path / "norm_stats.json"
    file.write_text(json.dumps({"norm_stats": {"state": entry, "actions": entry}}))
    notes = open_data(config(root, norm_stats=str(file))).notes
    assert sum("are these another dataset's statistics?" in note for note in notes) == 6


def test_actions_that_look_relative_already_are_noted(tmp_path: Path) -> None:
    absolute = open_data(config(write_v21(tmp_path / "set", rollouts(), "image")))
    assert not any("relative already" in note for note in absolute.notes)
    episodes = rollouts()
    for episode in episodes:
        episode.action[:, :6] -= episode.state
    relative = open_data(config(write_v21(tmp_path / "relative", episodes, "image")))
    assert any("relative already" in note for note in relative.notes)
    assert "state 6 -> 14: 8 zeros appended after normalisation" in relative.notes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fps": 30.0}, "expected 30 fps as data.fps says, found 10"),
        ({"state_key": "observation.joints"}, "expected feature 'observation.joints', found"),
        ({"cameras": {"base_0_rgb": "observation.images.top"}}, "expected feature 'observation.images.top'"),
        ({"robot": dataclasses.replace(UR5E, state_dim=7)}, "of 7 values as robot.state_dim says, found 6"),
        ({"robot": dataclasses.replace(UR5E, action_dim=8)}, "of 8 values as robot.action_dim says, found 7"),
        (
            {"advantage": AdvantageConfig(), "reward_key": "none", "success_key": "none"},
            "expected 'none' or 'none' to compute advantages from, found neither",
        ),
        ({"reward_key": "next.rewards"}, "expected column 'next.rewards' as data.reward_key says, found"),
        ({"success_key": "s"}, "expected column 's' as data.success_key says, found"),
        ({"norm_stats": "nowhere.json"}, "nowhere.json: expected a JSON file"),
    ],
)
def test_a_dataset_that_does_not_fit_the_config_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    with pytest.raises(DataError, match=r"expected") as error:
        open_data(config(root, **changes))
    assert words in str(error.value)


def test_a_clock_that_jitters_and_wrong_totals_open_where_the_config_says_so(tmp_path: Path) -> None:
    episodes = record()
    episodes[1].timestamp[2] += 0.004
    root = write_v21(tmp_path / "set", episodes, "image")
    info = json.loads((root / "meta/info.json").read_text()) | {"total_episodes": 4}
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="total_episodes: expected 4, found 3"):
        open_data(config(root))
    with pytest.raises(DataError, match=r"episode 1, .*timestamp, row 2"):
        open_data(config(root, wrong_totals="note"))
    data = open_data(config(root, wrong_totals="note", tolerance_s=0.005))
    assert any("total_episodes: expected 4, found 3" in note for note in data.notes)
    assert "timestamps lie up to 0.004 s from frame_index / fps; data.tolerance_s is 0.005" in data.notes
    assert len(data.rows) == 21
    report = inspect(Inspection(path=root, horizon=4, tolerance_s=0.005, wrong_totals="note"))
    assert not report["refused"]
    assert inspect(Inspection(path=root, horizon=4))["refused"]
    pack(root, tmp_path / "pack", settings=PackSettings(image_size=(28, 28)), tolerance_s=0.005, wrong_totals="note")
    assert len(open_data(config(tmp_path / "pack")).rows) == 21


def test_a_task_without_words_is_refused(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "go"}\n{"task_index": 1, "task": ""}\n')
    with pytest.raises(DataError, match=r"an instruction for tasks \[1\], found ''"):
        open_data(config(root))
    data = open_data(config(root, default_prompt="move"))
    assert data.sample(21)["prompt"] == "move"
    assert not any("is the prompt of no frame" in note for note in data.notes)


def test_every_frame_has_the_default_prompt_where_it_is_asked_for(tmp_path: Path) -> None:
    """Groups stay those of the tasks: the first one's rollouts are compared with one another, the second's too."""
    root = write_v21(tmp_path / "set", rollouts(), "image")
    grouped = config(root, default_prompt="move", advantage=AdvantageConfig(group_by="task"))
    plain, one = open_data(grouped), open_data(dataclasses.replace(grouped, prompt_from_task=False))
    assert {plain.sample(row)["prompt"] for row in plain.rows.tolist()} == set(TASKS)
    assert {one.sample(row)["prompt"] for row in one.rows.tolist()} == {"move"}
    assert one.stats_source == plain.stats_source
    np.testing.assert_array_equal(one.to_ript.rollouts.optimality, plain.to_ript.rollouts.optimality)
    assert one.to_ript.rollouts.optimality.tolist() == [1, 0, 0, 2, 2, 2]
    assert any(note.startswith("data.default_prompt, 'move', is the prompt of no frame") for note in plain.notes)
    assert "every frame's prompt is data.default_prompt, 'move', as data.prompt_from_task False says" in one.notes
    with pytest.raises(ValueError, match=r"data\.prompt_from_task is False and data.default_prompt None"):
        config(root, prompt_from_task=False)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_image_that_turns_out_damaged_ends_training_with_its_name(tmp_path: Path, threads: int) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image_file")
    image = root / f"images/{CAMERAS[0]}/episode_000003/frame_000001.png"
    image.write_bytes(image.read_bytes()[:70])
    batches = open_data(config(root, read_threads=threads)).batches(seed=0, batch_size=34)  # one epoch a batch
    with pytest.raises(DataError, match=rf"episode 3, {CAMERAS[0]}, row 1: expected a whole JPEG or PNG"):
        next(batches)


def test_a_length_that_no_table_backs_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts())
    for name, old, new in (
        ("episodes.jsonl", '"length": 6', f'"length": {10**13}'),
        ("info.json", "34", str(28 + 10**13)),
    ):
        path = root / "meta" / name
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=rf"episode 5, .* 6 rows where meta/ says {10**13}"):
        open_data(config(root))


def test_reward_and_success_stand_in_for_each_other(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", rollouts(), "image")
    by_success = open_data(config(root, reward_key="none")).to_ript.rollouts
    by_reward = open_data(config(root, success_key="none")).to_ript.rollouts
    for found in (by_success, by_reward):
        assert found.reward.tolist() == [1, 0, 0, 0, 0, 0]
        assert found.success.tolist() == [True, False, False, False, False, False]


def test_rewards_that_no_success_is_told_by_are_noted(tmp_path: Path) -> None:
    episodes = rollouts()
    notes = open_data(config(write_v21(tmp_path / "one", episodes, "image"), success_key="none")).notes
    assert not any("counts as a success" in note for note in notes)
    for episode in episodes:
        episode.reward -= 1
    notes = open_data(config(write_v21(tmp_path / "less", episodes, "image"), success_key="none")).notes
    assert any("no episode counts as a success" in note for note in notes)


def test_labels_that_contradict_the_successes_are_noted(tmp_path: Path) -> None:
    """-1 a step, and 0 where the last episode succeeds: failures of 3 and 4 steps have larger sums, -3 and -4 to -5."""
    episodes = rollouts()
    for episode in episodes:
        episode.reward[:] = -1
    episodes[5].success[-1] = True
    episodes[5].reward[-1] = 0
    root = write_v21(tmp_path / "set", episodes, "image")
    data = open_data(config(root, advantage=AdvantageConfig()))
    # Of -7, -5, -9 the first, a success, is the mean of the others, and contradicts nothing; so is -4 of -3, -4, -5.
    assert data.to_ript.rollouts.optimality.tolist() == [2, 1, 0, 1, 2, 0]
    (line,) = [note for note in data.notes if "contradict" in note]
    assert line.startswith(
        "2 labels contradict 'next.success': in 1 groups a failure is positive and a success negative"
    )
    assert line.endswith("set data.reward_key none to label by success")
    by_success = open_data(config(root, advantage=AdvantageConfig(), reward_key="none"))
    assert by_success.to_ript.rollouts.optimality.tolist() == [1, 0, 0, 0, 0, 1]
    assert not any("contradict" in note for note in by_success.notes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, True), ({"reward_key": "none"}, False), ({"success_key": "none"}, False), ({"init_key": "action"}, False)],
)
def test_successes_that_would_tell_apart_what_rewards_do_not(
    tmp_path: Path, changes: dict[str, Any], found: bool
) -> None:
    """With the first action as the start each rollout is alone."""
    episodes = rollouts()
    for episode in episodes:
        episode.reward[:] = 0
    data = open_data(config(write_v21(tmp_path / "set", episodes, "image"), advantage=AdvantageConfig(), **changes))
    assert data.success_tells_apart == found


def test_images_that_lie_turned_are_for_runs_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new training refuses them, since LeRobot's own reader turns them; one that was begun reads them as it did."""

    def turned(image: np.ndarray) -> bytes:
        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = 6
        Image.fromarray(image).save(file, "PNG", exif=exif)
        return file.getvalue()

    plain = open_data(config(write_v21(tmp_path / "plain", record(), "image")))
    monkeypatch.setattr("tests.lerobot_files.png", turned)
    found = open_data(config(write_v21(tmp_path / "turned", record(), "image")))
    assert plain.refused == ()
    assert [line.partition(": viewers")[0] for line in found.refused] == [
        f"episode 0, {camera}, row 0: EXIF orientation 6" for camera in CAMERAS
    ]
    assert set(found.refused) <= set(found.notes)
    for camera, image in found.images.read(1, 2).items():
        np.testing.assert_array_equal(image, plain.images.read(1, 2)[camera])
