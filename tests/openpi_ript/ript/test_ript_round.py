"""What makes a round learn, against the documented laws computed here with numpy alone.

Every draw of a round is `default_rng([seed, ...])` with a last word of its own: initial states 1, noise 2, rows of a
batch 4, order of the candidates 5. Runs of earlier versions go on from what these laws gave, so they are written out.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.rollout import load, save
from chunkwise.errors import DataError
from chunkwise.state import TrainState
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.ript.round import Ript
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_rollouts import FakeCollector, FakePolicy, drawn_by, point

SEED, SIZE, ROWS = 5, 4, 4
"""Of the run, of a group, of a batch."""
STATES = 6
ROLLOUT = RolloutConfig(start=2, updates=4, groups=2, max_groups=4, size=SIZE, initial_states=STATES)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("round"))


def make_config(root: Path, folder: Path, **rollout: Any) -> OpenpiRiptConfig:
    """States and actions as they are, so that a batch shows what was recorded."""
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(path=str(root), robot=robot, cameras={}, horizon=8, state_norm="none", action_norm="none")
    return small_config(
        root, folder, data=data, env=point(), rollout=dataclasses.replace(ROLLOUT, **rollout), eval=EvalConfig()
    )


class Round:
    """A Ript whose rollouts are fakes, and what it asked of them."""

    def __init__(self, root: Path, folder: Path, outcome: Callable[[int, int], bool], **rollout: Any) -> None:
        self.config = make_config(root, folder, **rollout)
        self.collector, self.policy = FakeCollector(outcome), FakePolicy()
        self.data, self.folder = open_data(self.config.data), folder
        self.ript = Ript(self.config, self.data, folder, self.collector, self.policy)

    def interact(self, step: int, weights: str = "a") -> Any:
        self.collector.jobs.clear()
        return self.ript.interact(TrainState(step=step, params=weights, opt_state={}, target={}), step, lambda: False)

    def batches(self, start: int) -> Iterator[Any]:
        def supervised(first: int) -> Iterator[Any]:
            return self.data.batches(seed=SEED, batch_size=ROWS, start_step=first)

        return self.ript.batches(supervised, start)

    def tried(self) -> list[int]:
        """Initial states in the order in which they were begun."""
        return list(dict.fromkeys(state_and_number(job.path)[0] for job in self.collector.jobs))

    def files(self) -> list[str]:
        """All files of the rounds that are trained on, one after another."""
        rounds = self.ript.position()["rounds"]
        return [f"{one['folder']}/{name}" for one in rounds for group in one["groups"] for name in group]


def state_and_number(path: Path) -> tuple[int, int]:
    state, k = path.stem.removeprefix("state_").split("-")
    return int(state), int(k)


def order_of(step: int) -> list[int]:
    return np.random.default_rng([SEED, step, 5]).permutation(STATES).tolist()


def environment_seed(state: int) -> int:
    return int(np.random.SeedSequence([SEED, state, 1]).generate_state(1)[0])


def half(state: int, k: int) -> bool:
    return k < 2


def expected_windows(step: int, states: list[int]) -> dict[str, np.ndarray]:
    """Every window of a round's rollouts, in the order of states and numbers: first state, first action."""
    drawn = [drawn_by(environment_seed(s), (SEED, step, s, k, 2)) for s in states for k in range(SIZE)]
    return {
        "state": np.concatenate([one["position"][:-1] for one in drawn]),
        "action": np.concatenate([one["actions"] for one in drawn]),
    }


def test_every_rollout_has_noise_of_its_own_and_a_group_one_start(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half)
    draws, starts, actions = set(), {}, []
    for step, weights in ((2, "a"), (6, "b")):
        one.interact(step, weights)
        for number, job in enumerate(one.collector.jobs):
            state, k = state_and_number(job.path)
            assert job.draw == (SEED, step, state, k, 2)
            assert job.seed == environment_seed(state)
            assert job.number == number, "the slot, and with it the row of the batch, goes by the round's numbers"
            rollout = load(job.path)
            actions.append(rollout.actions)
            starts.setdefault(state, set()).add(rollout.observations["position"][0].tobytes())
            draws.add(job.draw)
    assert len(draws) == len(actions) == 2 * 2 * SIZE
    assert len({one.tobytes() for one in actions}) == len(actions), "no two rollouts of two rounds are the same"
    assert all(len(found) == 1 for found in starts.values()), "rollouts of a state begin alike, in every round"


def test_another_seed_plays_other_rollouts_from_other_states(root: Path, tmp_path: Path):
    jobs = []
    for seed in (5, 6):
        one = Round(root, tmp_path / str(seed), half, initial_states=50)
        config = dataclasses.replace(one.config, run=dataclasses.replace(one.config.run, seed=seed))
        ript = Ript(config, one.data, tmp_path / str(seed), one.collector, one.policy)
        ript.interact(TrainState(step=2, params="a", opt_state={}, target={}), 2, lambda: False)
        jobs.append(one.collector.jobs)
        batch = next(ript.batches(lambda _: iter(()), 2))
        windows = len(jobs[-1]) * 4
        rows = np.random.default_rng([seed, 2, 4]).choice(windows, ROWS)
        everything = np.concatenate([load(job.path).observations["position"][:-1] for job in jobs[-1]])
        np.testing.assert_array_equal(batch["state"][:, :2], everything[rows])
    for a, b in zip(*jobs, strict=True):
        assert a.draw != b.draw
        assert a.seed != b.seed
        assert a.path.name != b.path.name


def test_a_round_tries_the_states_of_its_own_order(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half)
    tried = []
    for step in (2, 6, 10, 14):
        one.interact(step, chr(97 + step))
        tried.append(one.tried())
        assert tried[-1] == order_of(step)[:2]
    assert len(set(map(tuple, tried))) == 4


def test_waves_fill_what_is_missing_and_stop_when_there_is_enough(root: Path, tmp_path: Path):
    a, b, c, d = order_of(2)[:4]

    def tried(name: str, alike: set[int], **rollout: Any) -> tuple[list[int], list[int]]:
        one = Round(root, tmp_path / name, lambda state, k: state not in alike and k < 2, **rollout)
        one.interact(2)
        assert [job.number for job in one.collector.jobs] == list(range(len(one.collector.jobs)))
        used = list(dict.fromkeys(state_and_number(Path(name))[0] for name in one.files()))
        return one.tried(), used

    assert tried("one missing", {a}) == ([a, b, c], [b, c])
    assert tried("two missing", {a, c}) == ([a, b, c, d], [b, d])
    assert tried("at most three", {a, c}, max_groups=3) == ([a, b, c], [b])
    assert tried("half is enough", {a}, early_stop=0.5) == ([a, b], [b])
    assert tried("a little is one", {a, b}, early_stop=0.3) == ([a, b, c, d], [c, d]), "waves are of what is missing"
    assert tried("three of five", {a}, groups=3, early_stop=0.5) == ([a, b, c], [b, c])


def test_a_share_of_groups_is_taken_as_it_is_written(root: Path, tmp_path: Path):
    """0.28 of 25 are 7, while 0.28 * 25 is a little more as a float."""
    order = np.random.default_rng([SEED, 2, 5]).permutation(26).tolist()
    settings: dict[str, Any] = {"groups": 25, "max_groups": 26, "initial_states": 26, "early_stop": 0.28, "size": 2}
    one = Round(root, tmp_path, lambda state, k: state not in order[:7] or k < 1, **settings)
    one.interact(2)
    assert one.tried() == order[:25]


def test_advantages_that_were_clipped_are_among_a_round_s_metrics(root: Path, tmp_path: Path):
    """Two of four succeed in both groups: all are clipped from 1 or -1 standard deviation to a half."""
    told = Round(root, tmp_path, half, advantage=AdvantageConfig(clip_value=0.5)).interact(2)
    assert told["rollouts/advantages_clipped"] == [8.0]
    assert told["rollouts/advantages_negative"] == [4.0]


def test_a_state_rests_until_just_before_the_update_at_which_it_may_return(root: Path, tmp_path: Path):
    """All states but one are solved; resting 8 updates from step 2 on, they are back at step 10 and not at 9."""
    good = order_of(2)[1]
    one = Round(root, tmp_path, lambda state, k: state != good or k < 2, groups=1, max_groups=2, retry_after=8)
    told = one.interact(2)
    (bad,) = (state for state in one.tried() if state != good)
    assert told["rollouts/resting_states"] == [1.0]
    for step, rests in ((9, True), (10, False)):
        order = order_of(step)
        again = Round(root, tmp_path / str(step), lambda state, k: state != good or k < 2,
                      groups=1, max_groups=STATES, retry_after=8)  # fmt: skip
        again.ript._resting = list(one.ript._resting)
        told = again.interact(step, "b")
        wanted = [state for state in order[: order.index(good) + 1] if not (rests and state == bad)]
        assert again.tried() == wanted
        still = [rest["state"] for rest in again.ript.position()["resting"]]
        assert sorted(still) == sorted(({bad} if rests else set()) | (set(wanted) - {good}))
        assert len(still) == len(set(still))
        # The next round is 4 updates later, when those of this one rest yet, and the one of step 2 no longer.
        assert told["rollouts/resting_states"] == [float(len(set(wanted) - {good}))]


def test_no_state_is_said_to_rest_that_the_next_round_may_try(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Two of three are solved; a round is 4 updates."""
    for retry_after, rest in ((0, 0), (4, 0), (5, 2)):
        good = order_of(2)[2]
        one = Round(root, tmp_path / str(retry_after), lambda state, k, good=good: state != good or k < 2,
                    groups=1, max_groups=3, retry_after=retry_after)  # fmt: skip
        assert one.ript.every == 4
        assert one.interact(2)["rollouts/resting_states"] == [float(rest)]
        assert f"1 of 3 groups hold both outcomes, {rest} initial states rest\n" in capsys.readouterr().out


def test_each_update_draws_its_rows_from_all_windows(root: Path, tmp_path: Path):
    """States, actions, weights and labels of four updates, from the laws and RLOO by hand."""
    first, second = order_of(2)[:2]
    one = Round(root, tmp_path, lambda state, k: k < (2 if state == first else 1))
    one.interact(2)
    windows = expected_windows(2, [first, second])
    # 1 1 0 0: a reward less the mean of the other three. 1 0 0 0 likewise. Their mean is 0, their variance 7/18.
    raw = np.array([2 / 3, 2 / 3, -2 / 3, -2 / 3, 1, -1 / 3, -1 / 3, -1 / 3])
    weight = np.log1p(np.exp(raw / np.sqrt(7 / 18)))
    label = np.where(raw > 0, Optimality.POSITIVE, Optimality.NEGATIVE)
    taken = []
    for step, batch in zip((2, 3, 4, 5), one.batches(2), strict=False):
        rows = np.random.default_rng([SEED, step, 4]).choice(len(windows["state"]), ROWS)
        taken.append(rows.tolist())
        np.testing.assert_array_equal(batch["state"][:, :2], windows["state"][rows])
        np.testing.assert_array_equal(batch["action"][:, 0], windows["action"][rows])
        np.testing.assert_allclose(batch["advantages"], weight[rows // 4], rtol=1e-6)
        np.testing.assert_array_equal(batch["optimality"], label[rows // 4])
        assert batch["prompt"] == ["move to the red disc"] * ROWS
    assert len(set(map(tuple, taken))) == 4
    later = next(one.batches(5))
    np.testing.assert_array_equal(later["state"][:, :2], windows["state"][taken[-1]])


def test_a_new_round_takes_the_place_of_the_old_one(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half)
    one.interact(2, "a")
    batches = one.batches(2)
    for _ in range(4):
        next(batches)
    one.interact(6, "b")
    assert [found["step"] for found in one.ript.position()["rounds"]] == [6]
    windows = expected_windows(6, order_of(6)[:2])
    rows = np.random.default_rng([SEED, 6, 4]).choice(len(windows["state"]), ROWS)
    np.testing.assert_array_equal(next(batches)["state"][:, :2], windows["state"][rows])


def test_two_rounds_are_replayed_after_a_resume_too_and_the_oldest_goes(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half, replay_rounds=2)
    for step, weights in ((2, "a"), (6, "b"), (10, "c")):
        one.interact(step, weights)
    assert [found["step"] for found in one.ript.position()["rounds"]] == [6, 10]
    windows = np.concatenate([expected_windows(step, order_of(step)[:2])["state"] for step in (6, 10)])
    resumed = Round(root, tmp_path, half, replay_rounds=2)
    resumed.ript.rewind(one.ript.position())
    assert not resumed.collector.jobs
    seen = set()
    for step, (batch, again) in enumerate(zip(one.batches(10), resumed.batches(10), strict=False), start=10):
        rows = np.random.default_rng([SEED, step, 4]).choice(len(windows), ROWS)
        np.testing.assert_array_equal(batch["state"][:, :2], windows[rows])
        np.testing.assert_array_equal(again["state"][:, :2], windows[rows])
        seen |= {int(row) * 2 // len(windows) for row in rows}
        if step == 13:
            break
    assert seen == {0, 1}


def test_who_rests_is_known_after_a_resume(root: Path, tmp_path: Path):
    a, b = order_of(2)[:2]
    one = Round(root, tmp_path, lambda state, k: state == a or k < 2, retry_after=8)
    one.interact(2, "a")
    resumed = Round(root, tmp_path, half, retry_after=8)
    resumed.ript.rewind(one.ript.position())
    resumed.interact(6, "b")
    assert resumed.tried() == [state for state in order_of(6) if state != a][:2]
    assert b in one.tried()


def test_the_weights_of_the_round_act_and_are_written_down(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half)
    for step, weights in ((2, "a"), (6, "b")):
        one.interact(step, weights)
        assert not one.policy.holding, "the next update takes their memory"
        found = [load(tmp_path / "rollouts" / name) for name in one.files()]
        assert {(rollout.step, rollout.weights) for rollout in found} == {(step, weights * 64)}
        assert {Path(name).parent.name for name in one.files()} == {f"step_{step:08d}-{weights * 12}"}
    assert one.policy.used == [("a", 2), ("b", 6)]


def test_what_is_told_of_a_round(root: Path, tmp_path: Path):
    alike = order_of(2)[0]
    one = Round(root, tmp_path, lambda state, k: state != alike and k < 1)
    told = one.interact(2)
    assert told == {
        "rollouts/success": [0.0] * 4 + [1.0, 0.0, 0.0, 0.0] * 2,
        "rollouts/length": [4.0] * 12,
        "rollouts/mixed_groups": [0.0, 1.0, 1.0],
        "rollouts/resting_states": [0.0],
        **{f"rollouts/advantages_{name}": [0.0] for name in ("nan", "extreme", "clipped", "capped")},
        "rollouts/advantages_negative": [6.0],  # the three that failed of two groups
    }, "what no rollout solved is tried again"


def test_of_a_position_of_before_only_solved_states_rest_on(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half, retry_after=8)
    resting = [{"state": state, "init_hash": f"{state:016x}", "step": 2, "success": state == 4} for state in (1, 4)]
    one.ript.rewind({"rounds": [], "resting": resting})
    assert one.ript.position()["resting"] == [{"state": 4, "init_hash": f"{4:016x}", "step": 2}]


@pytest.mark.parametrize(
    "change", [{"weights": "b" * 64}, {"draw": (SEED, 2, 0, 0, 9)}, {"step": 3}, {"seed": 1}], ids=str
)
def test_a_rollout_on_disk_that_is_anothers_is_refused(root: Path, tmp_path: Path, change: dict[str, Any]):
    one = Round(root, tmp_path, half)
    one.interact(2)
    path = one.collector.jobs[3].path
    save(path, dataclasses.replace(load(path), **change))
    with pytest.raises(DataError, match=rf"{path.name}: expected the rollout of"):
        Round(root, tmp_path, half).interact(2)


def test_rejection_takes_every_success_of_groups_alike_too(root: Path, tmp_path: Path):
    first, second = order_of(2)[:2]
    one = Round(root, tmp_path, lambda state, k: True if state == first else k == 3, objective="rejection")
    one.interact(2)
    names = [(state_and_number(Path(name))) for name in one.files()]
    third = one.tried()[2]
    assert names == [(state, k) for state in (first, second, third) for k in range(SIZE)]
    windows = expected_windows(2, [first, second, third])["state"].reshape(12, 4, 2)
    won = windows[[0, 1, 2, 3, 7, 11]].reshape(-1, 2)
    rows = np.random.default_rng([SEED, 2, 4]).choice(len(won), ROWS)
    batch = next(one.batches(2))
    np.testing.assert_array_equal(batch["state"][:, :2], won[rows])
    assert batch["advantages"].tolist() == [1.0] * ROWS
    assert batch["optimality"].tolist() == [Optimality.POSITIVE] * ROWS


def test_supervised_updates_go_up_to_the_first_round_from_any_start(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half)
    one.interact(2)
    windows = expected_windows(2, order_of(2)[:2])["state"]
    for start in (0, 1, 2):
        batches = one.batches(start)
        plain = one.data.batches(seed=SEED, batch_size=ROWS, start_step=start)
        for _ in range(start, 2):
            np.testing.assert_array_equal(next(batches)["action"], next(plain)["action"])
        rows = np.random.default_rng([SEED, 2, 4]).choice(len(windows), ROWS)
        np.testing.assert_array_equal(next(batches)["state"][:, :2], windows[rows])
