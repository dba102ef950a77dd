"""OGBench's .npz files: transitions, several files as one dataset, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.errors import DataError
from qchunk.config import DataConfig
from qchunk.data import Pool, index, make_batches
from qchunk.data.readers import ogbench
from tests.qchunk.recordings import ACTION, STATE, config


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def source(path: Path, **data: Any) -> Any:
    return index.open_source(DataConfig(path=str(path), **data))[0]


def refused(path: Path, **data: Any) -> str:
    with pytest.raises(DataError) as caught:
        source(path, **data)
    return str(caught.value)


def write_npz(file: Path, lengths: tuple[int, ...] = (5, 1, 7), **more: np.ndarray) -> dict[str, np.ndarray]:
    """Episodes of so many *rows*, as OGBench writes them."""
    rng = np.random.default_rng(0)
    rows = sum(lengths)
    content = {
        "observations": rng.normal(size=(rows, STATE)).astype(np.float32),
        "actions": rng.normal(size=(rows, ACTION)).astype(np.float32),
        "terminals": np.zeros(rows, np.float32),
    } | more
    content["terminals"][np.cumsum(lengths) - 1] = 1
    np.savez_compressed(file, **content)  # pyright: ignore[reportArgumentType]
    return content


def test_chunks_of_one_are_ogbenchs_own_transitions(tmp_path: Path):
    from ogbench.utils import load_dataset

    file = tmp_path / "a.npz"
    write_npz(file, lengths=(5, 2, 9))
    theirs = load_dataset(str(file))
    cfg = config(file, horizon=1, format="ogbench_npz", episodes_per_epoch=3, positive_ratio=1.0)
    pool = Pool(cfg, 0, 0)
    assert len(pool) == len(theirs["observations"]) == 4 + 1 + 8
    batch: Any = pool.batch(np.arange(len(pool)))
    ours = np.lexsort(batch["observations"]["state"].T)
    same = np.lexsort(theirs["observations"].T)
    for mine, key in ((batch["observations"], "observations"), (batch["next_observations"], "next_observations")):
        np.testing.assert_array_equal(mine["state"][ours], theirs[key][same])
    np.testing.assert_array_equal(batch["actions"][ours, 0], theirs["actions"][same])
    np.testing.assert_array_equal(batch["terminals"][ours, 0], theirs["terminals"][same] == 1)


def test_a_row_that_is_an_episode_of_its_own_has_no_action(tmp_path: Path):
    write_npz(tmp_path / "a.npz", lengths=(5, 1, 7))
    text = refused(tmp_path / "a.npz", format="ogbench_npz")
    assert "a.npz#1: actions: expected at least 1 frame" in text


def test_shifted_files_with_rewards_and_masks(tmp_path: Path):
    rng = np.random.default_rng(1)
    extra = {
        "next_observations": rng.normal(size=(7, STATE)).astype(np.float32),
        "rewards": np.arange(7, dtype=np.float32),
        "masks": np.array([1, 1, 0, 1, 1, 0, 1], np.float32),
    }
    content = write_npz(tmp_path / "a.npz", lengths=(3, 4))
    for first, last in ((0, 3), (3, 7)):
        extra["next_observations"][first : last - 1] = content["observations"][first + 1 : last]
    np.savez(tmp_path / "a.npz", **content, **extra)  # pyright: ignore[reportArgumentType]
    found = source(tmp_path / "a.npz", format="ogbench_npz")
    assert found.lengths.tolist() == [3, 4]
    episode = found.load(1)
    assert episode.reward.tolist() == [3, 4, 5, 6]
    assert episode.terminated.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(episode.states["state"][:4], content["observations"][3:])
    np.testing.assert_array_equal(episode.states["state"][4], extra["next_observations"][6])


def test_ends_that_only_timeouts_or_next_observations_tell_are_refused(tmp_path: Path):
    """As D4RL marks a time limit; chunks went on into the next episode."""
    content = write_npz(tmp_path / "a.npz", lengths=(3, 4))
    following = np.concatenate([content["observations"][1:], content["observations"][:1]])
    shifted = content | {"next_observations": following, "timeouts": content["terminals"].astype(bool)}
    np.savez(tmp_path / "a.npz", **shifted)  # pyright: ignore[reportArgumentType]
    assert source(tmp_path / "a.npz", format="ogbench_npz").lengths.tolist() == [3, 4]

    late = np.zeros(7)
    late[[1, 2]] = 1
    np.savez(tmp_path / "a.npz", **shifted | {"timeouts": late})  # pyright: ignore[reportArgumentType]
    expected = "expected 1 where an episode ends, and masks 0 where it was terminated, found 0 beside"
    text = refused(tmp_path / "a.npz", format="ogbench_npz")
    assert f"a.npz: terminals, row 1: {expected} timeouts 1 (1 row(s))" in text

    following[4] += 1e-3
    np.savez(tmp_path / "a.npz", **shifted | {"next_observations": following})  # pyright: ignore[reportArgumentType]
    of = "next_observations that is not the next row's observation (1 row(s))"
    assert f"terminals, row 4: {expected} {of}" in refused(tmp_path / "a.npz", format="ogbench_npz")
    following[4] = content["observations"][5].astype(np.float16).astype(np.float32)
    rounded = content["observations"].astype(np.float16)
    both = {"observations": rounded, "next_observations": following}
    both["next_observations"] = np.concatenate([rounded[1:], rounded[:1]]).astype(np.float64)
    np.savez(tmp_path / "a.npz", **shifted | both)  # pyright: ignore[reportArgumentType]
    assert source(tmp_path / "a.npz", format="ogbench_npz").lengths.tolist() == [3, 4], "in another precision"
    np.savez(tmp_path / "a.npz", **shifted | {"timeouts": late + 0.5})  # pyright: ignore[reportArgumentType]
    assert "timeouts, row 0: expected 0 or 1, found 0.5" in refused(tmp_path / "a.npz", format="ogbench_npz")


@pytest.mark.parametrize("kept", [0, 4 << 30])
def test_a_folder_is_drawn_as_one_file_with_all_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int):
    monkeypatch.setattr(ogbench, "KEPT_BYTES", kept)
    content = write_npz(tmp_path / "whole.npz", lengths=(5, 9, 7, 4, 6))
    (tmp_path / "parts").mkdir()
    for name, rows in (("cube-000", slice(14)), ("cube-001", slice(14, 21)), ("cube-002", slice(21, 31))):
        np.savez(tmp_path / f"parts/{name}.npz", **{key: x[rows] for key, x in content.items()})  # pyright: ignore[reportArgumentType]
    np.savez(tmp_path / "parts/cube-000-val.npz", **content)  # pyright: ignore[reportArgumentType]
    (tmp_path / "parts/._cube-000.npz").write_bytes(b"\0\5\x16\7")  # as macOS leaves it beside a file
    same: dict[str, Any] = {"format": "ogbench_npz", "episodes_per_epoch": 4, "positive_ratio": 1.0}
    of_one = make_batches(config(tmp_path / "whole.npz", steps_per_epoch=2, **same))
    of_parts = make_batches(config(tmp_path / "parts", steps_per_epoch=2, **same))
    for _ in range(6):
        one, parts = next(of_one), next(of_parts)
        jax.tree.map(np.testing.assert_array_equal, dict(parts), dict(one))
    found = source(tmp_path / "parts", format="ogbench_npz")
    names = [f"cube-00{number}.npz#{episode}" for number, episode in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))]
    assert list(found.ids) == names
    assert [found.load(place).id for place in (0, 4, 1)] == [names[0], names[4], names[1]]
    assert len(found._kept) == (1 if kept == 0 else 2)


def test_a_bad_file_of_a_folder_is_named(tmp_path: Path):
    content = write_npz(tmp_path / "a.npz", lengths=(6, 7))
    content["actions"][9, 1] = np.inf
    np.savez(tmp_path / "b.npz", **content)  # pyright: ignore[reportArgumentType]
    assert "b.npz#1: actions, row 9: expected finite numbers, found inf" in refused(tmp_path, format="ogbench_npz")


def test_bad_files_are_refused(tmp_path: Path):
    nan = np.zeros((13, ACTION), np.float32)
    nan[7] = np.nan
    write_npz(tmp_path / "nan.npz", lengths=(6, 7), actions=nan)
    text = refused(tmp_path / "nan.npz", format="ogbench_npz")
    assert "nan.npz#1: actions, row 7: expected finite numbers, found nan in column 0 (1 such row(s))" in text
    write_npz(tmp_path / "short.npz", lengths=(6, 7), actions=nan[:5])
    assert "actions: expected 13 rows as in terminals, found 5 rows" in refused(
        tmp_path / "short.npz", format="ogbench_npz"
    )
    np.savez(tmp_path / "keys.npz", observations=nan)
    assert "keys.npz: terminals: expected an array of this name" in refused(tmp_path / "keys.npz", format="ogbench_npz")
    content = write_npz(tmp_path / "open.npz", lengths=(6, 7))
    content["terminals"][-1] = 0
    np.savez(tmp_path / "open.npz", **content)  # pyright: ignore[reportArgumentType]
    assert "terminals, row 12: expected 1 in the last row" in refused(tmp_path / "open.npz", format="ogbench_npz")
    whole = (tmp_path / "nan.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "cut.npz: expected a whole .npz file" in refused(tmp_path / "cut.npz", format="ogbench_npz")


@pytest.mark.parametrize("value", [np.nan, 2.0])
def test_an_end_that_is_neither_0_nor_1_is_refused(value: float, tmp_path: Path):
    """NaN is true to numpy: two episodes became three, and a row was lost."""
    terminals = np.zeros(12, np.float32)
    terminals[2] = value
    write_npz(tmp_path / "a.npz", lengths=(5, 7), terminals=terminals)
    text = refused(tmp_path / "a.npz", format="ogbench_npz")
    assert f"a.npz: terminals, row 2: expected 0 or 1, found {value:g} (1 such row(s))" in text
    masks = np.ones(12, np.float32)
    masks[3:5] = value
    write_npz(tmp_path / "b.npz", lengths=(5, 7), masks=masks)
    text = refused(tmp_path / "b.npz", format="ogbench_npz")
    assert f"b.npz: masks, row 3: expected 0 or 1, found {value:g} (2 such row(s))" in text


def test_an_array_of_another_width_goes_by_its_name_in_the_file(tmp_path: Path):
    write_npz(tmp_path / "a.npz", lengths=(5, 7))
    write_npz(tmp_path / "b.npz", lengths=(4,), observations=np.zeros((4, STATE + 1), np.float32))
    text = refused(tmp_path, format="ogbench_npz")
    assert text.splitlines()[1].strip() == (
        f"b.npz#0: observations: expected {STATE} dimensions, as in most episodes, found {STATE + 1} dimensions"
    )


def test_pickles_are_never_loaded(tmp_path: Path):
    content = write_npz(tmp_path / "a.npz", lengths=(6, 7))
    content["actions"] = np.array([{}] * 13, dtype=object)
    np.savez(tmp_path / "a.npz", **content)  # pyright: ignore[reportArgumentType]
    assert "actions: expected numbers or text, found dtype object" in refused(tmp_path / "a.npz", format="ogbench_npz")


def rewarded(file: Path, *rewards: list[float], masks: bool = False) -> None:
    """An episode for each list, of as many steps, with the last row that OGBench adds."""
    lengths = tuple(len(one) + 1 for one in rewards)
    reward = np.array([value for one in rewards for value in [*one, one[-1]]], np.float32)
    more = {"masks": np.ones(len(reward), np.float32)} if masks else {}
    write_npz(file, lengths=lengths, rewards=reward, **more)


def test_without_masks_the_reward_of_success_ends_an_episode(tmp_path: Path):
    rewarded(tmp_path / "a.npz", [-1, -1, 0], [-1, -1, -1])
    found, notes = index.open_source(DataConfig(path=str(tmp_path / "a.npz"), format="ogbench_npz"))
    assert [found.load(i).terminated.tolist() for i in (0, 1)] == [[False, False, True], [False] * 3]
    assert any("1 end with the reward of success, 0, " in note for note in notes)
    rewarded(tmp_path / "b.npz", [-1, -1, 0], masks=True)
    assert not source(tmp_path / "b.npz", format="ogbench_npz").load(0).terminated.any(), "as its masks say"


def test_a_stage_on_the_way_to_success_ends_nothing(tmp_path: Path):
    """OGBench's rewards count what is still to be done, up to 0: at -1 one of two objects is not there."""
    rewarded(tmp_path / "a.npz", [-2, -1, -1], [-2, -2, -1], [-2, -2, -2])
    found = source(tmp_path / "a.npz", format="ogbench_npz")
    assert not any(found.load(i).terminated.any() for i in range(3))


def test_files_of_two_conventions_are_refused(tmp_path: Path):
    rewarded(tmp_path / "a.npz", [-1, -1, 0], [-1, -1, 0])
    rewarded(tmp_path / "b.npz", [0, 0, 1])
    assert "b.npz#0: rewards: expected one convention in all files" in refused(tmp_path, format="ogbench_npz")
    write_npz(tmp_path / "b.npz", lengths=(4,))
    assert "b.npz#0: rewards: expected one convention in all files" in refused(tmp_path, format="ogbench_npz")


def test_rewards_that_are_made_up_are_said(tmp_path: Path):
    write_npz(tmp_path / "a.npz", lengths=(4,))
    notes = index.open_source(DataConfig(path=str(tmp_path), format="ogbench_npz"))[1]
    assert any("each episode earns 1 at its last frame, and ends there" in note for note in notes)


def test_a_file_that_holds_no_episode_is_none_of_the_hundred_that_may_be_left_out(tmp_path: Path):
    """It may have held most of the data."""
    write_npz(tmp_path / "a.npz", lengths=(3,) * 150)
    content = write_npz(tmp_path / "b.npz", lengths=(3,) * 150)
    content["actions"][7] = np.nan
    np.savez(tmp_path / "b.npz", **content)  # pyright: ignore[reportArgumentType]
    assert len(source(tmp_path, format="ogbench_npz", on_bad="skip")) == 299, "one episode of 300"
    (tmp_path / "b#1.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:2000])
    (tmp_path / "b.npz").unlink()
    text = refused(tmp_path, format="ogbench_npz", on_bad="skip")
    assert "b#1.npz: cannot be cut into episodes, which alone data.on_bad=skip leaves out" in text
    assert text.count("expected a whole .npz file") == 1
