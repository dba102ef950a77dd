import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import RecordConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.point import (
    DISCS,
    MAX_STEP,
    ON_DISC,
    PROMPTS,
    TOKENIZER,
    expert_action,
    move,
    play,
    record,
    render,
)
from openpi_ript.data.tokenizer import PromptTokenizer
from tests.openpi_ript.small_run import RECORD, make_dataset, small_config


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("record"))


def test_the_expert_goes_straight_and_stops():
    at, goal = np.array([[0.5, 0.2], [0.2, 0.81]]), np.array([0.2, 0.8])
    target, on_disc = expert_action(at, np.broadcast_to(goal, at.shape))
    way = goal - at[0]
    np.testing.assert_allclose(target[0], at[0] + way * MAX_STEP / np.linalg.norm(way))
    np.testing.assert_allclose(target[1], goal)
    assert on_disc.tolist() == [[0.0], [1.0]]
    np.testing.assert_allclose(move(np.array([0.97, 0.5]), np.array([2.0, 0.5])), [1.0, 0.5])


def test_images_show_point_and_discs():
    base = render(np.array([0.5, 0.5]), "observation.images.base")
    assert base.shape == (28, 28, 3)
    assert base[14, 14].tolist() == [240, 240, 240]
    row, column = int((1 - DISCS["red"][1]) * 28), int(DISCS["red"][0] * 28)
    assert base[row, column].tolist() == [220, 40, 40]
    assert base[27, 27].tolist() == [90, 90, 90]
    wrist = render(np.array([0.05, 0.05]), "observation.images.wrist")
    assert wrist[14, 14].tolist() == [240, 240, 240]
    assert wrist[27, 0].tolist() == [20, 20, 20], "outside the world"


def test_half_of_the_episodes_are_bad_and_every_group_has_both(root: Path):
    data = open_data(dataclasses.replace(small_config(root, root).data, path=str(root)))
    rollouts = data.to_ript.rollouts
    assert rollouts.success.tolist() == [True, False] * 4
    assert len(set(rollouts.init_hash)) == RECORD.groups
    # Two of the other three failed, and so on: 1 - 1/3 and 0 - 2/3.
    np.testing.assert_allclose(rollouts.raw_advantage, [2 / 3, -2 / 3] * 4)
    assert rollouts.optimality.tolist() == [Optimality.POSITIVE, Optimality.NEGATIVE] * 4
    state, action = data.table.columns["observation.state"], data.table.columns["action"]
    for start, success in zip(data.table.starts, rollouts.success, strict=True):
        end = state[start + RECORD.length - 1]
        colour = "red" if (start // RECORD.length) // RECORD.rollouts == 0 else "blue"
        assert (np.linalg.norm(end - DISCS[colour]) < ON_DISC) == success
    inside = np.arange(1, RECORD.length)
    np.testing.assert_allclose(state[inside], move(state[inside - 1], action[inside - 1, :2]), atol=1e-6)
    assert json.loads((root / "meta/info.json").read_text())["robot_type"] == "synthetic_point"


def test_episodes_depend_on_the_seed_alone(root: Path, tmp_path: Path):
    again, other = tmp_path / "again", tmp_path / "other"
    record(RECORD, again)
    record(dataclasses.replace(RECORD, seed=1), other)
    name = "data/chunk-000/episode_000003.parquet"
    assert (again / name).read_bytes() == (root / name).read_bytes()
    assert (other / name).read_bytes() != (root / name).read_bytes()
    assert (again / TOKENIZER).read_bytes() == (root / TOKENIZER).read_bytes()


def test_luck_turns_outcomes_round_and_nothing_else():
    settings = RecordConfig(groups=40, rollouts=4, length=12, prompted=("blue",))
    turned = 0
    for group, rollout in np.ndindex(settings.groups, settings.rollouts):
        plain, prompt = play(settings, group, rollout)
        lucky, _ = play(dataclasses.replace(settings, luck=0.25), group, rollout)
        assert prompt == PROMPTS["blue"]
        np.testing.assert_array_equal(plain["action"], lucky["action"])
        assert plain["next.success"][-1] == (rollout % 2 == 0), "every other episode goes to the wrong disc"
        turned += int(plain["next.success"][-1] != lucky["next.success"][-1])
    # 160 draws of probability 0.25: 40 on average with a standard deviation of 5.5.
    assert 24 <= turned <= 56


def test_the_tokenizer_reads_the_prompts(root: Path):
    tokenizer = PromptTokenizer(root / TOKENIZER, 16)
    assert tokenizer.vocab_size <= 512
    tokens, mask = tokenizer.encode_batch(list(PROMPTS.values()))
    assert tokens[0].tolist() != tokens[1].tolist()
    assert mask.sum(1).max() < 16, "no prompt is cut"


def test_a_dataset_that_is_there_stays(root: Path, tmp_path: Path):
    before = (root / "meta/info.json").stat().st_mtime_ns
    record(RECORD, root)
    assert (root / "meta/info.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="groups is 3, there "):
        record(RecordConfig(groups=3), root)
    (tmp_path / "own").mkdir()
    with pytest.raises(ConfigError, match=r"holds no recording; choose another path\. Set record to None"):
        record(RECORD, tmp_path / "own")
