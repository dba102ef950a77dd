import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from qchunk.config import DataConfig
from qchunk.convert import convert
from qchunk.data import Pool
from qchunk.data.index import open_source
from tests.qchunk.converters.sources import (
    arrays_of,
    attributes_of,
    d4rl_arrays,
    refused,
    settings,
    write_d4rl,
)
from tests.qchunk.recordings import config


def test_seams_and_terminations(tmp_path: Path):
    content = d4rl_arrays()
    convert(write_d4rl(tmp_path / "hopper.hdf5", content), tmp_path / "out")
    spans = ((0, 4), (4, 9), (9, 12))
    for index, (first, end) in enumerate(spans):
        path = tmp_path / f"out/episode_{index:05d}.hdf5"
        found = arrays_of(path)
        np.testing.assert_array_equal(found["observations/qpos"], content["observations"][first:end], strict=True)
        np.testing.assert_array_equal(found["action"], content["actions"][first:end], strict=True)
        assert found["reward"].tolist() == list(range(first, end))
        assert found["terminated"].tolist() == content["terminals"][first:end].tolist()
        assert attributes_of(path)["source"] == f"hopper.hdf5 rows {first} to {end - 1}"
        assert "success" not in attributes_of(path)
    about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
    assert about == {"ends_by_terminals": 1, "ends_by_timeouts": 1, "unfinished_last_episode": True}


def test_a_chunk_is_bootstrapped_after_a_time_limit_and_not_after_a_termination(tmp_path: Path):
    convert(write_d4rl(tmp_path / "hopper.hdf5", d4rl_arrays()), tmp_path / "out")
    cfg = config(tmp_path / "out", episodes_per_epoch=3, positive_ratio=1.0, horizon=2, discount=0.5)
    pool = Pool(cfg, 0, 0)
    chunks = {name: pool.transition(e, int(pool.lengths[e]) - 2) for e, name in enumerate(pool.ids)}
    ended, cut = chunks["episode_00000.hdf5"], chunks["episode_00001.hdf5"]
    assert (ended["rewards"].tolist(), ended["masks"].tolist()) == ([2, 2 + 0.5 * 3], [1, 0])
    assert (cut["rewards"].tolist(), cut["masks"].tolist()) == ([7, 7 + 0.5 * 8], [1, 1])


def test_seams_that_no_flag_marks_show_in_the_next_observations(tmp_path: Path):
    content = d4rl_arrays()
    del content["timeouts"]
    shifted = np.concatenate([content["observations"][1:], content["observations"][:1]])
    shifted[[3, 6]] += 1  # row 3 terminates, row 6 is cut
    convert(write_d4rl(tmp_path / "a.hdf5", content | {"next_observations": shifted}), tmp_path / "out")
    lengths = [len(arrays_of(p)["action"]) for p in sorted((tmp_path / "out").glob("*.hdf5"))]
    assert lengths == [4, 3, 5]
    about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
    assert about["ends_by_discontinuity"] == 1


def test_without_timeouts_the_limit_must_be_said(tmp_path: Path):
    content = d4rl_arrays()
    del content["timeouts"]
    source = write_d4rl(tmp_path / "a.hdf5", content)
    with pytest.raises(ConfigError, match=r"neither timeouts nor next_observations.*--max-episode-steps"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", settings=settings(max_episode_steps=3))
    lengths = [len(arrays_of(p)["action"]) for p in sorted((tmp_path / "out").glob("*.hdf5"))]
    assert lengths == [3, 1, 3, 3, 2]  # the count starts anew after the termination in row 3


def test_sparse_rewards_label(tmp_path: Path):
    content = d4rl_arrays()
    content["rewards"] = np.zeros((12, 1), np.float32)
    content["rewards"][5] = 1
    convert(write_d4rl(tmp_path / "antmaze.hdf5", content), tmp_path / "out")
    found = open_source(DataConfig(path=str(tmp_path / "out")))[0]
    assert found.positives.tolist() == [False, True, False]


def test_bad_files(tmp_path: Path):
    content = d4rl_arrays()
    content["rewards"] = content["rewards"][:-2]
    content["terminals"] = content["terminals"].astype(np.float32)
    content["terminals"][1] = 0.5
    text = refused(write_d4rl(tmp_path / "a.hdf5", content), tmp_path / "out")
    assert "a.hdf5: terminals, row 1: expected 0 or 1 in each frame, found 0.5" in text
    assert "a.hdf5: rewards, row 10: expected 12 rows, found 10 rows" in text
    content = d4rl_arrays()
    content["observations"][10, 4] = np.inf
    text = refused(write_d4rl(tmp_path / "b.hdf5", content), tmp_path / "out")
    assert "b.hdf5 rows 9 to 11: observations, row 10: expected finite numbers, found inf in column 4" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x: np.where(np.arange(12)[:, None] == 9, np.nan, x),
            "next_observations, row 9: expected finite numbers",
        ),
        (lambda x: x[:, :1], "next_observations: expected rows of 5 numbers as observations, found rows of 1"),
        (lambda x: np.repeat(x, 2, axis=1), "expected rows of 5 numbers as observations, found rows of 10"),
    ],
)
def test_next_observations_that_tell_no_seam_are_refused(tmp_path: Path, change: Callable[[Any], Any], message: str):
    """NaN is near to nothing and far from nothing; one column goes with any width."""
    content = d4rl_arrays()
    following = np.concatenate([content["observations"][1:], content["observations"][:1]])
    wrong = content | {"next_observations": change(following).astype(np.float32)}
    assert message in refused(write_d4rl(tmp_path / "a.hdf5", wrong), tmp_path / "out")


def test_an_observation_of_no_number_is_refused(tmp_path: Path):
    content = d4rl_arrays()
    content["observations"] = content["observations"][:, :0]
    text = refused(write_d4rl(tmp_path / "a.hdf5", content), tmp_path / "out")
    assert "a.hdf5: observations: expected at least one number a row, found none" in text


def lengths_of(out: Path) -> list[int]:
    return [len(arrays_of(path)["action"]) for path in sorted(out.glob("*.hdf5"))]


@pytest.mark.parametrize(("one", "other"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_next_observations_of_another_precision_make_no_seams(tmp_path: Path, one: Any, other: Any):
    """Kills: a distance in 64 bits, in which every row of them begins an episode."""
    content = d4rl_arrays()
    observations = 100 * np.random.default_rng(1).normal(size=(12, 5))
    following = np.concatenate([observations[1:], observations[:1]])
    following[6, 2] += 1e-2
    arrays = {"observations": observations.astype(one), "next_observations": following.astype(other)}
    convert(write_d4rl(tmp_path / "a.hdf5", content | arrays), tmp_path / "out")
    assert lengths_of(tmp_path / "out") == [4, 3, 2, 3]  # ends by terminals, a seam, timeouts


def test_next_observations_one_step_of_rounding_away_make_no_seam(tmp_path: Path):
    content = d4rl_arrays()
    following = np.concatenate([content["observations"][1:], content["observations"][:1]])
    following = np.nextafter(following, np.float32(np.inf)) * np.float32(1000)
    arrays = {"observations": content["observations"] * np.float32(1000), "next_observations": following}
    convert(write_d4rl(tmp_path / "a.hdf5", content | arrays), tmp_path / "out")
    assert lengths_of(tmp_path / "out") == [4, 5, 3]


def test_next_observations_of_other_rows_are_refused(tmp_path: Path):
    """Kills: a conversion that makes an episode of every row."""
    content = d4rl_arrays()
    wrong = content | {"next_observations": content["observations"][::-1] + 1}
    text = refused(write_d4rl(tmp_path / "a.hdf5", wrong), tmp_path / "out")
    assert "a.hdf5: next_observations: expected the observation of the next row after most rows, found another" in text
    assert "after 9 of 12 rows, none of which ends by terminals or timeouts" in text  # 11, less rows 3 and 8
    content["terminals"][:] = True
    convert(write_d4rl(tmp_path / "b.hdf5", wrong | {"terminals": content["terminals"]}), tmp_path / "ended")
    assert lengths_of(tmp_path / "ended") == [1] * 12
