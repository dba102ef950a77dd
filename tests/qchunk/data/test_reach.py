import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.data import norm_stats
from chunkwise.errors import ConfigError, DataError
from qchunk import data, train
from qchunk.config import DecoupledConfig, OnlineConfig, QChunkConfig
from qchunk.data import reach
from tests.qchunk.recordings import ACTION, arrays, config, dataset, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def recorded(root: Path, *episodes: np.ndarray) -> Path:
    """A folder of episodes with these actions."""
    for number, actions in enumerate(episodes):
        content = arrays(len(actions), number) | {"/action": actions.astype(np.float32)}
        write(root / f"episode_{number}.hdf5", content, success=True)
    return root


def test_min_max_reaches_every_recorded_action(tmp_path: Path):
    rng = np.random.default_rng(0)
    scale = np.array([3.0, 0.01, 1e-5, 400.0])
    episodes = [rng.standard_t(2, size=(n, ACTION)) * scale + 7 for n in (40, 25, 1)]
    episodes[1][3, 0] = 90.0  # one frame far from all others
    opened = data.open_dataset(config(recorded(tmp_path, *episodes), action_norm="min_max"))
    actions = np.concatenate(episodes).astype(np.float32)
    normalised = opened.action_norm.apply(actions)
    assert np.abs(normalised).max() <= 1
    np.testing.assert_array_equal(normalised[:, [0, 1, 3]].min(0), -1)
    np.testing.assert_array_equal(normalised[:, [0, 1, 3]].max(0), 1)
    back = opened.action_norm.invert(np.clip(normalised, -1, 1))
    assert (np.abs(back - actions) <= 1e-6 * np.maximum(np.ptp(actions, axis=0), 1e-3) + 1e-6 * np.abs(actions)).all()
    np.testing.assert_array_equal(
        opened.action_norm.invert(np.ones((1, ACTION), np.float32))[0, [0, 1, 3]], actions.max(0)[[0, 1, 3]]
    )


def test_a_constant_dimension_becomes_0_and_is_reached(tmp_path: Path):
    actions = np.zeros((20, ACTION))
    actions[:, 1] = 0.5
    actions[:, 2] = np.linspace(0, 1e-4, 20)
    opened = data.open_dataset(config(recorded(tmp_path, actions), action_norm="min_max"))
    normalised = opened.action_norm.apply(actions)
    np.testing.assert_array_equal(normalised[:, [0, 1, 3]], 0)
    np.testing.assert_allclose(normalised[:, 2], np.linspace(-0.05, 0.05, 20), atol=1e-6)
    assert opened.notes[0] == "action, dimension 0: scale 0 is below 0.001, which is used instead"


def test_frames_out_of_reach_are_counted_by_frame_and_by_dimension(tmp_path: Path):
    """By hand: of 7 frames 3 have an action beyond 1, one of them in two dimensions, one by a rounding alone."""
    first, second = np.zeros((4, ACTION)), np.zeros((3, ACTION))
    first[1, 2], first[3] = 1.5, [0, -2, 1.1, 0]
    second[0, 2], second[2, 0] = -1.01, 1.0005
    cfg = config(recorded(tmp_path, first, second))
    found = reach.count(cfg, data.open_dataset(cfg))
    assert (found.frames, found.outside, found.by_dimension.tolist()) == (7, 3, [0, 1, 3, 0])
    (note,) = reach.judge(cfg, data.open_dataset(cfg))
    assert note == (
        "42.9 % of 7 frames have an action that the policy cannot give out: outside -1 .. 1 with "
        "data.action_norm=none (most in dimension 2: 42.9 %); --data.action-norm min_max reaches them all"
    )


def test_most_frames_out_of_reach_are_refused_for_what_can_not_be_meant(tmp_path: Path):
    rng = np.random.default_rng(0)
    root = recorded(tmp_path / "data", rng.normal(size=(400, ACTION)) * 3 + 10)
    for mode in ("none", "mean_std"):
        cfg = config(root, action_norm=mode)
        with pytest.raises(DataError, match=rf"action_norm={mode}.*--data\.action-norm min_max.*at most 50 %"):
            reach.judge(cfg, data.open_dataset(cfg))
        goes_on = dataclasses.replace(cfg, run=RunConfig(dir=str(tmp_path / "run"), resume=True))
        assert len(reach.judge(goes_on, data.open_dataset(cfg))) == 1
        own = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, factory="my_agent:make"))
        assert len(reach.judge(own, data.open_dataset(cfg))) == 1
    for mode, notes in (("quantile", 1), ("min_max", 0)):
        cfg = config(root, action_norm=mode)
        assert len(reach.judge(cfg, data.open_dataset(cfg))) == notes


def test_statistics_of_other_data_do_not_hide_what_is_out_of_reach(tmp_path: Path):
    root = recorded(tmp_path / "data", np.full((6, ACTION), 5.0) * np.linspace(0, 1, 6)[:, None])
    cfg = config(root, action_norm="min_max")
    file = tmp_path / "stats.json"
    narrow = data.compute_norm_stats(cfg)
    stats = narrow["actions"]
    assert stats.max is not None
    narrow["actions"] = dataclasses.replace(stats, max=stats.max / 2)
    norm_stats.save(file, narrow)
    others = config(root, action_norm="min_max", norm_stats=str(file))
    found = reach.count(others, data.open_dataset(others))
    assert (found.outside, found.frames) == (3, 6)
    (note,) = reach.judge(others, data.open_dataset(others))
    assert "leave data.norm_stats out" in note
    norm_stats.save(file, norm_stats.without_range(narrow))
    with pytest.raises(DataError, match="expected min and max for min_max"):
        data.open_dataset(others)


def test_the_text_beside_a_run_has_the_range_where_it_is_needed_alone(tmp_path: Path):
    """Checkpoints are bound to the text's hash: that of earlier versions, which know no min_max, must come again."""
    root = recorded(tmp_path, np.random.default_rng(0).normal(size=(9, ACTION)))
    for mode, has in (("quantile", False), ("min_max", True)):
        cfg = config(root, action_norm=mode)
        text = train._beside(cfg, data.open_dataset(cfg))["norm_stats.json"]
        assert ('"min"' in text) == ('"max"' in text) == has


def test_the_text_beside_a_run_is_of_the_files_that_were_opened(tmp_path: Path):
    """A recorder may write another episode meanwhile; the policy that is loaded would act in other units."""
    actions = np.random.default_rng(0).normal(size=(9, ACTION))
    cfg = config(recorded(tmp_path, actions), action_norm="quantile")
    opened = data.open_dataset(cfg)
    text = train._beside(cfg, opened)["norm_stats.json"]
    assert json.loads(text)["norm_stats"]["actions"]["mean"] == pytest.approx(actions.mean(0).tolist(), rel=1e-6)
    recorded(tmp_path, actions, 10 * actions)
    assert train._beside(cfg, opened)["norm_stats.json"] == text
    assert train._beside(cfg, data.open_dataset(cfg))["norm_stats.json"] != text


def with_horizon(horizon: int, path: Path, **agent: Any) -> QChunkConfig:
    """A config that drops partial chunks."""
    cfg = config(path, horizon=horizon, action_norm="min_max")
    return dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, partial_chunks="drop", **agent))


def test_a_dataset_without_a_whole_chunk_is_refused_where_partial_ones_are_dropped(tmp_path: Path):
    """Of 4, 6 and 6 frames; nothing terminates, so that of the sixth action the next state is not known."""
    rng = np.random.default_rng(0)
    root = recorded(tmp_path / "cut", *(rng.normal(size=(length, ACTION)) for length in (4, 6, 6)))
    reach.judge(with_horizon(5, root), data.open_dataset(with_horizon(5, root)))
    for horizon, found in ((6, r"has 6 frames and was cut off before"), (7, r"has 6 frames: no chunk is whole")):
        cfg = with_horizon(horizon, root)
        dataset = data.open_dataset(cfg)
        pool = data.Pool(cfg, 0, 0, dataset=dataset)
        starts = np.arange(len(pool))
        assert not pool.training(pool.batch(starts), pool.locate(starts)[1])["valid"][:, -1].any()
        with pytest.raises(ConfigError, match=rf"partial_chunks is 'drop' and agent\.horizon {horizon}, .* {found}"):
            reach.judge(cfg, dataset)
        used = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, partial_chunks="use"))
        own = with_horizon(horizon, root, factory="of:mine")
        goes_on = dataclasses.replace(cfg, run=RunConfig(dir=str(tmp_path / "run"), resume=True))
        for other in (used, own, goes_on):
            assert reach.judge(other, dataset) == ()


def test_of_a_critic_of_two_lengths_the_policys_must_fit_into_an_episode(tmp_path: Path):
    """The critic of all actions learns from every chunk."""
    content = arrays(6, 0) | {"/terminated": np.arange(6) == 5}
    write(tmp_path / "episode_0.hdf5", content, success=True)

    def decoupled(steps: int) -> QChunkConfig:
        return with_horizon(9, tmp_path, policy="best_of_n", decoupled=DecoupledConfig(policy_horizon=steps))

    reach.judge(decoupled(6), data.open_dataset(decoupled(6)))
    expected = r"agent\.decoupled\.policy_horizon 7, .* has 6 frames.*shorter agent\.decoupled\.policy_horizon"
    with pytest.raises(ConfigError, match=expected):
        reach.judge(decoupled(7), data.open_dataset(decoupled(7)))


def test_a_chunk_that_ends_at_a_termination_is_whole(tmp_path: Path):
    content = arrays(6, 0) | {"/terminated": np.arange(6) == 5}
    write(tmp_path / "episode_0.hdf5", content, success=True)
    cfg = with_horizon(6, tmp_path)
    reach.judge(cfg, data.open_dataset(cfg))
    with pytest.raises(ConfigError, match="has 6 frames: no chunk"):
        reach.judge(with_horizon(7, tmp_path), data.open_dataset(cfg))


def test_online_the_critic_may_learn_from_what_is_found_there(tmp_path: Path):
    cfg = with_horizon(7, dataset(tmp_path, lengths=(6, 6)))
    for start, refused in ((0, False), (1, True)):
        online = OnlineConfig(env="of:mine", steps=7, start=start)
        train_config = dataclasses.replace(cfg.train, steps=start + 7)
        both = dataclasses.replace(cfg, online=online, train=train_config)
        with pytest.raises(ConfigError, match="no chunk is whole") if refused else contextlib.nullcontext():
            reach.judge(both, data.open_dataset(cfg))


@pytest.mark.parametrize(("ratio", "steps", "refused"), [(1.0, 6, True), (1.0, 7, False), (0.9, 6, False)])
def test_online_episodes_that_are_cut_before_a_whole_chunk_teach_the_critic_nothing(
    tmp_path: Path, ratio: float, steps: int, refused: bool
):
    cfg = with_horizon(7, dataset(tmp_path, lengths=(9, 9)))
    online = OnlineConfig(env="of:mine", steps=7, start=0, max_steps=steps, online_ratio=ratio)
    cfg = dataclasses.replace(cfg, online=online, train=dataclasses.replace(cfg.train, steps=7))
    said = r"horizon 7, and online\.max_steps 6 ends each episode before: .* Expected at least 7 steps"
    with pytest.raises(ConfigError, match=said) if refused else contextlib.nullcontext():
        reach.judge(cfg, data.open_dataset(cfg))


def test_a_run_that_may_go_on_and_has_no_save_yet_is_refused_as_a_new_one(tmp_path: Path):
    """So a study begins every run; one that was refused is refused again."""
    root = recorded(tmp_path / "cut", np.random.default_rng(0).normal(size=(4, ACTION)))
    cfg, run = with_horizon(6, root), tmp_path / "run"
    goes_on = dataclasses.replace(cfg, run=RunConfig(dir=str(run), resume=True))
    run.mkdir()
    with pytest.raises(ConfigError, match="no chunk is whole"):
        train._judge(goes_on, run, data.open_dataset(cfg))
    (run / "checkpoints/7").mkdir(parents=True)
    train._judge(goes_on, run, data.open_dataset(cfg))


def test_episodes_of_one_frame_that_time_cut_off_are_said_and_refused_where_all_are_such(tmp_path: Path):
    """Bandits: five of one frame, and in the other folder two more, one of which says that it ended there."""
    only = dataset(tmp_path / "only", lengths=(1,) * 5)
    cfg = config(only, horizon=1, action_norm="min_max")
    found = "have a single frame, no /terminated that says that the episode ended there, and no state after it"
    with pytest.raises(DataError, match=rf"only: 5 of 5 episodes to train on {found}.*Expected /terminated"):
        reach.judge(cfg, data.open_dataset(cfg))
    goes_on = dataclasses.replace(cfg, run=RunConfig(resume=True, dir=str(tmp_path / "run")))
    assert reach.judge(goes_on, data.open_dataset(cfg)) == (f"5 of 5 episodes to train on {found}: " + NOTHING,)
    both = dataset(tmp_path / "both", lengths=(1,) * 5)
    write(both / "ended.hdf5", arrays(1, 5) | {"/terminated": np.ones(1, bool)}, success=True)
    write(both / "longer.hdf5", arrays(2, 6), success=True)
    cfg = config(both, horizon=1, action_norm="min_max")
    assert reach.judge(cfg, data.open_dataset(cfg)) == (f"5 of 7 episodes to train on {found}: " + NOTHING,)


NOTHING = "nothing is learnt from them"


def ended(root: Path, rewards: list[list[float]], terminated: list[int] | None) -> Path:
    """Episodes with these rewards, and /terminated of 0 but for these in their last frame; None: without it."""
    for number, reward in enumerate(rewards):
        content = arrays(len(reward), number) | {"/reward": np.array(reward, np.float32)}
        if terminated is not None:
            content["/terminated"] = np.array([*[0] * (len(reward) - 1), terminated[number]], np.float32)
        write(root / f"episode_{number}.hdf5", content, success=True)
    return root


SPARSE, FAILED = [0.0] * 5 + [1.0], [0.0] * 6
SHIFTED, SHIFTED_FAILED = [-1.0] * 5 + [0.0], [-1.0] * 6


@pytest.mark.parametrize(
    ("rewards", "terminated", "said"),
    [
        ([SPARSE, SPARSE, FAILED, FAILED], [0, 0, 0, 0], "refused 2 of 2"),
        ([SHIFTED, SHIFTED, SHIFTED_FAILED, FAILED], [0, 0, 0, 0], "2 of 3"),  # frames that are trained on earn 0, too
        ([SHIFTED, SHIFTED, SHIFTED_FAILED, SHIFTED_FAILED], [0, 0, 0, 0], "refused 2 of 2"),
        ([SPARSE, SPARSE, FAILED, FAILED], [1, 0, 0, 0], "1 of 2"),
        ([SPARSE, SPARSE, FAILED, FAILED], [1, 1, 0, 0], None),
        ([SPARSE, SPARSE, FAILED, FAILED], None, None),  # the highest reward ends an episode there
        ([[*SPARSE, 1.0], FAILED, FAILED, FAILED], [0, 0, 0, 0], None),  # a frame more
        ([FAILED] * 4, [0, 0, 0, 0], None),
    ],
)
def test_successes_that_time_cut_off_are_never_trained_on(
    tmp_path: Path, rewards: list[list[float]], terminated: list[int] | None, said: str | None
):
    chosen = config(ended(tmp_path / "set", rewards, terminated), positive_ratio=1.0, action_norm="min_max")
    opened = data.open_dataset(chosen)
    refused = said is not None and said.startswith("refused")
    with (
        pytest.raises(DataError, match=said.removeprefix("refused ")) if refused and said else contextlib.nullcontext()
    ):
        notes = reach.judge(chosen, opened)
        told = [note for note in notes if "never trained on" in note]
        assert len(told) == (said is not None)
        assert all(note.startswith(said or "") for note in told)
    pool = data.Pool(chosen, 0, 0, dataset=opened)
    episode, rows = pool.locate(np.arange(len(pool)))
    trained = pool.training(pool.gather(episode, rows), rows)
    if refused and rewards[0] is SPARSE:
        assert not trained["rewards"].any(), "success and failure are the same to the critic"


@pytest.mark.parametrize(
    ("ratio", "batch", "said"),
    [
        (0.1, 4, "of train.batch_size 4 is 0 rows: .* no online row. Expected a larger train.batch_size, or 0 where"),
        (0.9, 4, "of train.batch_size 4 is 4 rows: .* no row of the dataset. Expected a larger .*, or 1 where"),
        (0.125, 4, "is 0 rows"),
        (0.13, 4, None),
        (0.1, 8, None),
        (0.0, 4, None),
        (1.0, 4, None),
        (None, 4, None),
    ],
)
def test_a_share_of_online_rows_that_is_rounded_to_none_or_all_is_refused(
    ratio: float | None, batch: int, said: str | None, tmp_path: Path
):
    cfg = config(recorded(tmp_path, np.random.default_rng(0).normal(size=(9, ACTION))), action_norm="min_max")
    online = OnlineConfig(env="x", steps=5, start=1, online_ratio=ratio)
    cfg = dataclasses.replace(cfg, online=online, train=dataclasses.replace(cfg.train, steps=6, batch_size=batch))
    opened = data.open_dataset(cfg)
    with contextlib.nullcontext() if said is None else pytest.raises(ConfigError, match=said):
        reach.judge(cfg, opened)
    goes_on = dataclasses.replace(cfg, run=RunConfig(dir=str(tmp_path / "run"), resume=True))
    reach.judge(goes_on, opened)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (
            0.1,
            "data.positive_ratio 0.1 of data.episodes_per_epoch 4 is 0 places: none of the 1 positive episodes is ever",
        ),
        (
            0.9,
            "data.positive_ratio 0.9 of data.episodes_per_epoch 4 is 4 places: none of the 2 negative episodes is ever",
        ),
        (0.3, ""),
        (0.0, ""),
        (1.0, ""),
    ],
)
def test_a_label_that_is_never_drawn_is_told(ratio: float, said: str, tmp_path: Path):
    rng = np.random.default_rng(0)
    for number, success in enumerate((True, False, False)):
        content = arrays(9, number) | {"/action": rng.normal(size=(9, ACTION)).astype(np.float32)}
        write(tmp_path / f"episode_{number}.hdf5", content, success=success)
    cfg = config(tmp_path, action_norm="min_max", positive_ratio=ratio, episodes_per_epoch=4)
    notes = [note for note in reach.judge(cfg, data.open_dataset(cfg)) if "positive_ratio" in note]
    assert len(notes) == bool(said)
    assert all(note.startswith(said) for note in notes), notes
