"""Rollouts that explore, hindsight on those that failed, and which rows are drawn, each by hand with numpy."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import ExplorationConfig, HindsightConfig
from openpi_ript.data.dataset import TrainingData
from openpi_ript.ript import round as round_of
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.hindsight import in_hindsight
from openpi_ript.ript.recordings import RolloutRecordings
from openpi_ript.ript.round import Ript
from tests.openpi_ript.ript.test_many_tasks import DISCS, TwoTasks
from tests.openpi_ript.ript.test_recordings import write_config
from tests.openpi_ript.ript.test_ript_round import (
    ROLLOUT,
    ROWS,
    SEED,
    SIZE,
    STATES,
    Round,
    half,
    make_config,
    root,
    state_and_number,
)
from tests.openpi_ript.toy_rollouts import Straight, jobs, make_rollout, point

__all__ = ["root"]  # a fixture
EXPLORATION = ExplorationConfig(deviation=(0.5, 0.0, 2.0), each=0.7, share=0.5)
HINDSIGHT = HindsightConfig(reached={"red": "hand"}, radius={"red": 0.1}, goal="aim")


def offset_of(step: int, state: int, k: int) -> tuple[float, ...]:
    rng = np.random.default_rng([SEED, step, state, k, 7])
    drawn = rng.normal(size=3) * [0.5, 0.0, 2.0]
    return tuple((drawn * (rng.random(3) < 0.7)).tolist())


def test_the_last_ones_of_a_group_explore_each_by_an_offset_of_its_own(root: Path, tmp_path: Path):
    one = Round(root, tmp_path, half, exploration=EXPLORATION, groups=4, initial_states=STATES)
    one.interact(2)
    found = {state_and_number(job.path): job.offset for job in one.collector.jobs}
    assert len(found) == 4 * SIZE
    for (state, k), offset in found.items():
        assert offset == (offset_of(2, state, k) if k >= SIZE // 2 else ())
    explored = np.array([offset for offset in found.values() if offset])
    assert len(np.unique(explored, axis=0)) == len(explored) == 2 * SIZE
    assert not explored[:, 1].any()
    assert (explored[:, 0] == 0).any(), "each number has an offset in seven of ten rollouts"


def test_a_task_is_judged_by_those_that_do_not_explore_and_explores_no_more_once_it_is_good(root: Path, tmp_path: Path):
    """Red's first two rollouts of each group succeed, and blue's last two, which explore."""
    settings: dict[str, Any] = {
        "exploration": dataclasses.replace(EXPLORATION, each=1.0, below=0.8),
        "groups": 4,
        "max_groups": 4,
    }
    one = TwoTasks(root, tmp_path, lambda state, k: (k < 2) == (state < STATES), **settings)
    told = one.interact(2)
    assert told["rollouts/success/red"] == [1.0] * 4
    assert told["rollouts/success/blue"] == [0.0] * 4
    assert sum(told["rollouts/success"]) == 8, "all of them"
    assert one.ript.position()["shares"] == {"red": 5 / 6, "blue": 1 / 6}
    resumed = TwoTasks(root, tmp_path, half, **settings)
    resumed.ript.rewind(one.ript.position())
    resumed.interact(6, "b")
    explored = {(job.task, state_and_number(job.path)[1]) for job in resumed.collector.jobs if job.offset}
    assert explored == {("blue", 2), ("blue", 3)}


def test_what_was_executed_is_the_policys_action_and_the_offset_clipped(tmp_path: Path):
    collector, (plain, explores) = Collector(point(max_steps=8)), jobs(2, tmp_path)
    explores = dataclasses.replace(explores, seed=plain.seed, draw=plain.draw, offset=(0.25, -0.125, -9.0))
    found: dict[int, Rollout] = {}
    assert collector.collect([plain, explores], Straight(np.inf), lambda job, one: found.update({job.number: one}))
    collector.close()
    first, other = found[0].actions[:4], found[1].actions[:4]
    expected = np.clip(first + np.array([0.25, -0.125, -9.0], np.float32), [0, 0, 0], [1, 1, 1])
    np.testing.assert_allclose(other, expected, atol=1e-6)
    assert (found[0].offset, found[1].offset) == ((), explores.offset)
    save(explores.path, found[1])
    again = load(explores.path)
    assert again.offset == explores.offset
    np.testing.assert_array_equal(again.actions, found[1].actions)


class Still:
    """Always the middle of what can be done."""

    step = 7
    weights = "f" * 64
    chunk: tuple[int, int] = (4, 3)

    def __call__(self, observation: dict[str, Any], noise: np.ndarray) -> np.ndarray:
        return np.full(noise.shape, 0.5, np.float32)


@pytest.mark.parametrize("steps", [1, 4, 6, 12, None])
def test_an_offset_ends_after_its_steps_in_the_middle_of_a_chunk_too(tmp_path: Path, steps: int | None):
    collector, (one,) = Collector(point(max_steps=8)), jobs(1, tmp_path)
    one = dataclasses.replace(one, offset=(0.25, -0.125, 0.0), offset_steps=steps)
    found: list[Rollout] = []
    assert collector.collect([one], Still(), lambda job, rollout: found.append(rollout))
    collector.close()
    led = np.arange(8)[:, None] < (8 if steps is None else steps)
    np.testing.assert_array_equal(found[0].actions, np.where(led, [0.75, 0.375, 0.5], 0.5).astype(np.float32))
    save(one.path, found[0])
    assert load(one.path).offset_steps == steps


@pytest.mark.parametrize(("steps", "least"), [(5, 3), (4, 2), (1, 1)])
def test_each_rollout_s_offset_ends_between_half_of_the_steps_and_all(
    root: Path, tmp_path: Path, steps: int, least: int
):
    exploration = dataclasses.replace(EXPLORATION, steps=steps)
    one = Round(root, tmp_path, half, exploration=exploration, groups=20, max_groups=20, initial_states=20)
    one.interact(2)
    drawn = [job.offset_steps for job in one.collector.jobs if job.offset]
    assert set(drawn) == set(range(least, steps + 1)), "40 of them"
    assert {job.offset_steps for job in one.collector.jobs if not job.offset} == {None}
    for job in one.collector.jobs:
        state, k = state_and_number(job.path)
        if k >= SIZE // 2:
            rng = np.random.default_rng([SEED, 2, state, k, 7])
            rng.normal(size=3)
            rng.random(3)
            assert (job.offset, job.offset_steps) == (offset_of(2, state, k), rng.integers(least, steps + 1))
        else:
            assert job.offset == ()


@pytest.mark.parametrize("changes", [{"offset": ()}, {"offset_steps": 3}])
def test_a_rollout_on_disk_with_another_offset_is_refused(root: Path, tmp_path: Path, changes: dict[str, Any]):
    one = Round(root, tmp_path, half, exploration=EXPLORATION)
    one.interact(2)
    path = one.collector.jobs[SIZE - 1].path
    save(path, dataclasses.replace(load(path), **changes))
    with pytest.raises(DataError, match=rf"{path.name}: expected the rollout of"):
        Round(root, tmp_path, half, exploration=EXPLORATION).interact(2)


def straight(*xs: float, task: str = "red") -> Rollout:
    """A hand that is at (x, 0) in turn, fingers behind it, and was to come to (9, 9)."""
    made = make_rollout(len(xs) - 1, success=False)
    hand = np.array([[x, 0.0, 7.0] for x in xs], np.float32)
    seen = {**made.observations, "hand": hand, "aim": np.full((len(xs), 2), 9, np.float32)}
    return dataclasses.replace(made, observations=seen, task=task, rewards=np.zeros(len(xs) - 1, np.float32))


def test_a_failure_is_a_success_at_the_place_where_it_ended_up_to_the_frame_that_is_near_enough():
    failed = straight(0.0, 0.3, 0.55, 0.8, 0.91, 0.7, 0.9, 1.0)
    found = in_hindsight(failed, HINDSIGHT)
    assert found is not None
    assert (found.success, found.length, found.task, found.seed) == (True, 4, "red", failed.seed)
    np.testing.assert_array_equal(found.observations["aim"], np.tile(np.array([1, 0], np.float32), (5, 1)))
    for name in ("hand", "position", "agentview_image"):
        np.testing.assert_array_equal(found.observations[name], failed.observations[name][:5])
    np.testing.assert_array_equal(found.actions, failed.actions[:4])
    assert found.rewards.tolist() == [0.0] * 4
    assert (failed.observations["aim"] == 9).all(), "the rollout itself stays as it was"


@pytest.mark.parametrize(
    ("failed", "taken"),
    [
        (straight(0.0, 1.0, 0.0), False),
        (straight(0.0, 1.0, 0.199), False),
        (straight(0.0, 1.0, 0.201), True),
        (straight(0.0, 0.5, 1.0, task="blue"), False),
    ],
)
def test_what_began_near_its_end_or_has_no_such_goal_shows_nothing(failed: Rollout, taken: bool):
    assert (in_hindsight(failed, HINDSIGHT) is not None) == taken


def test_a_place_that_was_passed_is_drawn_by_the_rollouts_own_numbers():
    passed = dataclasses.replace(HINDSIGHT, places="passed")
    failed = straight(0.0, 0.2, 0.5, 0.8, 0.95, 0.0)
    ends: dict[float, int] = {}
    for k in range(64):
        one = dataclasses.replace(failed, draw=(0, 3, 5, k, Purpose.ROLLOUT_ACTION.word or 0))
        found, again = in_hindsight(one, passed), in_hindsight(one, passed)
        assert found is not None
        assert again is not None
        np.testing.assert_array_equal(found.observations["aim"], again.observations["aim"])
        aim = found.observations["aim"][0]
        frame = generator(Purpose.HINDSIGHT, 0, 3, 5, k).choice([2, 3, 4])
        np.testing.assert_array_equal(aim, failed.observations["hand"][frame, :2])
        ends[round(float(aim[0]), 2)] = found.length
    assert ends == {0.5: 2, 0.8: 3, 0.95: 4}, "frames more than two radii of 0.1 from the first; 0 and 0.2 are not"
    assert in_hindsight(straight(0.0, 0.19, 0.0), passed) is None, "never away from where it began"


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"hand": None}, r"expected the arrays \['hand'\] as rollout.hindsight says, found \['agentview_image', 'aim'"),
        ({"hand": np.zeros((3, 1))}, "expected hand with the 2 numbers of aim at its beginning.* found 1"),
    ],
)
def test_observations_without_what_hindsight_reads_are_refused(seen: dict[str, Any], message: str):
    failed = straight(0.0, 0.5, 1.0)
    arrays = {name: value for name, value in {**failed.observations, **seen}.items() if value is not None}
    with pytest.raises(DataError, match=message):
        in_hindsight(dataclasses.replace(failed, observations=arrays), HINDSIGHT)


def test_rounds_imitate_what_hindsight_makes_of_failures(root: Path, tmp_path: Path):
    """Of files, whose hands are put there after they were played; the same after a restart, and with what is drawn."""
    config = dataclasses.replace(HINDSIGHT, reached={"red": "hand"}, goal="position")
    settings: dict[str, Any] = {"groups": 4, "max_groups": 4, "objective": "rejection", "hindsight": config}
    one = TwoTasks(root, tmp_path, lambda state, k: state >= STATES and k == 0, **settings)
    seen = {"hand": np.array([[x, 0.5, 7.0] for x in (0.0, 0.4, 0.95, 1.0, 1.0)], np.float32)}
    played = one.collector.collect

    def collect(todo: Any, actor: Any, done: Any, *stopping: Any) -> bool:
        return played(todo, actor, lambda job, made: done(job, with_hand(job, made)), *stopping)

    def with_hand(job: Any, made: Rollout) -> Rollout:
        return dataclasses.replace(made, task=job.task, observations={**made.observations, **seen})

    one.collector.collect = collect  # pyright: ignore[reportAttributeAccessIssue]
    one.interact(2)
    rollouts = [load(tmp_path / "rollouts" / name) for name in one.files()]
    assert len(rollouts) == 4 * SIZE
    states, actions = [], []
    for made in rollouts:
        count = 2 if made.task == "red" else 4
        if made.task == "blue" and not made.success:
            continue
        place = np.array([[1.0, 0.5]] * 4, np.float32) if made.task == "red" else made.observations["position"]
        states.append(place[:count])
        actions.append(made.actions[:count])
    rows = np.random.default_rng([SEED, 2, 4]).choice(sum(map(len, states)), ROWS)
    again = TwoTasks(root, tmp_path, half, **settings)
    again.ript.rewind(one.ript.position())
    for batches in (one.batches(2), again.batches(2)):
        batch = next(batches)
        np.testing.assert_array_equal(batch["state"][:, :2], np.concatenate(states)[rows])
        np.testing.assert_array_equal(batch["action"][:, 0], np.concatenate(actions)[rows])
        assert batch["optimality"].tolist() == [Optimality.POSITIVE] * ROWS


class OneTask(TwoTasks):
    """Plays red alone, whose hand never leaves a radius without end; the files say whose they are."""

    def __init__(self, root: Path, folder: Path, outcome: Any) -> None:
        config = dataclasses.replace(HINDSIGHT, reached={"red": "robot0_eef_pos"}, radius={"red": 1e9}, goal="position")
        super().__init__(root, folder, outcome, objective="rejection", hindsight=config)
        self.collector.tasks = self.collector.tasks[:1]
        self.ript = Ript(self.config, self.data, folder, self.collector, self.policy)
        self.played, self.collector.collect = self.collector.collect, self.collect  # pyright: ignore[reportAttributeAccessIssue]

    def collect(self, todo: Any, actor: Any, done: Any, *stopping: Any) -> bool:
        named = lambda job, made: done(job, dataclasses.replace(made, task=job.task))  # noqa: E731
        return self.played(todo, actor, named, *stopping)


def test_a_round_of_failures_that_reached_nothing_leaves_the_weights(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    fails = False
    one = OneTask(root, tmp_path, lambda state, k: not fails and k == 0)
    one.interact(2)
    fails = True
    one.interact(6, "b")
    assert "step 6: nothing to learn from, no rollout reached anything and 0 of" in capsys.readouterr().out
    assert next(one.batches(6))["no_signal"].tolist() == [True] * ROWS


def test_a_first_round_of_failures_that_reached_nothing_ends_the_run_again_and_again(root: Path, tmp_path: Path):
    """The second start takes the rollouts that the first one left; a round that solves all goes on."""
    played = []
    for _ in range(2):
        one = OneTask(root, tmp_path / "x", lambda state, k: False)
        with pytest.raises(ConfigError, match=r"step 2: every group .* hindsight .* rollout.size, rollout.hindsight.r"):
            one.interact(2)
        assert one.ript.position()["rounds"] == []
        played.append(len(one.collector.jobs))
    assert played == [4 * SIZE, 0]
    assert OneTask(root, tmp_path / "y", lambda state, k: True).interact(2)["rollouts/success"] == [1.0] * 16


def test_tasks_count_alike_in_a_batch_and_outcomes_inside_each(root: Path, tmp_path: Path):
    """Red has two successes of four rollouts in a group, blue one; the law, drawn here again, and its shares."""
    outcome = lambda state, k: k < (2 if state < STATES else 1)  # noqa: E731
    one = TwoTasks(root, tmp_path, outcome, groups=4, max_groups=4, rows="tasks")
    one.interact(2)
    prompts = {job.path.name: DISCS[job.task] for job in one.collector.jobs}
    for job in one.collector.jobs:
        save(job.path, dataclasses.replace(load(job.path), prompt=prompts[job.path.name]))
    again = TwoTasks(root, tmp_path, outcome, groups=4, max_groups=4, rows="tasks")
    again.ript.rewind(one.ript.position())
    rollouts = [load(tmp_path / "rollouts" / name) for name in one.files()]
    windows = np.concatenate([made.observations["position"][:-1] for made in rollouts])
    kinds = [[(prompt, won) for won in (True, False)] for prompt in sorted(DISCS.values())]
    found = np.repeat(np.array([(made.prompt, made.success) for made in rollouts], object), 4, axis=0)
    pools = [[np.flatnonzero((found == np.array(kind, object)).all(1)) for kind in sides] for sides in kinds]
    rng = np.random.default_rng([SEED, 2, 4])
    expected = [pools[place] for place in rng.integers(2, size=ROWS)]
    rows = [int(rng.choice(sides[rng.integers(2)])) for sides in expected]
    np.testing.assert_array_equal(next(again.batches(2))["state"][:, :2], windows[rows])
    drawn = [row for step in range(2, 600) for _, row in again.ript._drawn(again.ript._training, step)]  # pyright: ignore[reportArgumentType]
    shares = [np.isin(drawn, pool).mean() for sides in pools for pool in sides]
    np.testing.assert_allclose(shares, 0.25, atol=0.03)


def test_a_batch_holds_more_of_what_is_not_solved(root: Path, tmp_path: Path):
    """Of 8 rollouts red won 6 and blue 2: p is 7 / 10 and 3 / 10, so that rows are 3 to 7; after a resume too."""
    settings: dict[str, Any] = {"groups": 4, "max_groups": 4, "rows": "need"}
    one = TwoTasks(root, tmp_path, lambda state, k: k < (3 if state < STATES else 1), **settings)
    one.interact(2)
    words = {task.name: task.prompt for task in one.collector.tasks}
    for job in one.collector.jobs:
        save(job.path, dataclasses.replace(load(job.path), prompt=words[job.task]))
    again = TwoTasks(root, tmp_path, half, **settings)
    again.ript.rewind(one.ript.position())
    of_red = np.repeat([load(tmp_path / "rollouts" / name).prompt == words["red"] for name in one.files()], 4)
    drawn = [row for step in range(2, 600) for _, row in again.ript._drawn(again.ript._training, step)]  # pyright: ignore[reportArgumentType]
    assert of_red[drawn].mean() == pytest.approx(0.3, abs=0.03)
    won = np.repeat([load(tmp_path / "rollouts" / name).success for name in one.files()], 4)
    assert won[drawn].mean() == pytest.approx(0.5, abs=0.03), "inside each task successes count as failures do"


def test_tasks_of_the_same_words_count_once_by_what_was_played(root: Path, tmp_path: Path):
    one = TwoTasks(root, tmp_path, half, groups=4, max_groups=4, rows="need")
    one.interact(2)
    red, blue = one.collector.tasks
    training = one.ript._training
    assert isinstance(training, TrainingData)
    words = training.table.tasks[0]  # all of them, in these fakes
    found: list[dict[str, float]] = []
    for shares in ({"red": 0.9, "blue": 0.2}, {"red": 0.9}):
        one.ript._shares = shares
        one.ript._tasks = tuple(dataclasses.replace(task, prompt=words) for task in (red, blue))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(round_of, "drawn_rows", lambda *_, need: found.append(need) or [])
            one.ript._drawn(training, 2)
    assert found == [{words: 0.8}, {words: pytest.approx(0.1)}]


def test_of_a_task_without_a_success_all_rows_are_failures_of_its_share(root: Path, tmp_path: Path):
    one = TwoTasks(root, tmp_path, lambda state, k: state < STATES and k < 2, groups=2, max_groups=2, rows="tasks")
    one.interact(2)
    assert one.ript.position()["rounds"][0]["groups"]
    drawn = [row for step in range(2, 200) for _, row in one.ript._drawn(one.ript._training, step)]  # pyright: ignore[reportArgumentType]
    assert np.isin(np.arange(2 * 4), drawn).all()


def test_of_a_task_of_successes_alone_all_rows_are_of_them(root: Path, tmp_path: Path):
    """Rejection keeps nothing else: no half of a task's share is drawn from failures that are not there."""
    settings: dict[str, Any] = {"groups": 4, "max_groups": 4, "objective": "rejection", "rows": "tasks"}
    one = TwoTasks(root, tmp_path, lambda state, k: k < 2, **settings)
    one.interact(2)
    drawn = [row for step in range(2, 200) for _, row in one.ript._drawn(one.ript._training, step)]  # pyright: ignore[reportArgumentType]
    assert set(drawn) == set(range(4 * 2 * 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exploration": dataclasses.replace(EXPLORATION, share=0.1)}, "0 of the 4 rollouts of a group"),
        ({"exploration": dataclasses.replace(EXPLORATION, share=1.0)}, "4 of the 4 rollouts of a group"),
        ({"hindsight": HINDSIGHT}, "rollout.objective 'guided', which compares"),
        ({"objective": "ppo", "exploration": EXPLORATION}, "rollout.exploration is set and rollout.objective 'ppo'"),
        ({"objective": "ppo", "hindsight": HINDSIGHT}, "rollout.objective 'ppo', which compares"),
        ({"objective": "ppo", "rows": "tasks"}, "rollout.rows is 'tasks' and rollout.objective 'ppo'"),
        ({"objective": "ppo", "rows": "need"}, "rollout.rows is 'need' and rollout.objective 'ppo'"),
    ],
)
def test_what_has_no_effect_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ROLLOUT, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExplorationConfig(deviation=(0.0, 0.0)), "expected numbers of 0 or above, one of them above"),
        (lambda: ExplorationConfig(deviation=(1.0, -1.0)), "expected numbers of 0 or above"),
        (lambda: ExplorationConfig(deviation=()), "expected numbers of 0 or above"),
        (lambda: ExplorationConfig(deviation=(1.0,), each=1.5), "each is 1.5"),
        (lambda: ExplorationConfig(deviation=(1.0,), steps=0), "steps is 0; expected a number above 0"),
        (lambda: ExplorationConfig(deviation=(1.0,), steps=-3), "steps is -3; expected a number above 0"),
        (lambda: HindsightConfig(reached={}, radius={}), "expected the same tasks, at least one"),
        (lambda: HindsightConfig(reached={"a": "hand"}, radius={"b": 1.0}), "expected the same tasks"),
        (lambda: HindsightConfig(reached={"a": "hand"}, radius={"a": 0.0}), "expected numbers above 0"),
    ],
)
def test_settings_without_sense_are_refused(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_the_rest_of_a_config_lacks_is_refused(root: Path, tmp_path: Path):
    longest = make_config(root, tmp_path).env
    assert longest is not None
    most = 2 * longest.max_steps - 2
    make_config(root, tmp_path, exploration=dataclasses.replace(EXPLORATION, steps=most))
    with pytest.raises(ValueError, match=rf"no offset would end; expected at most {most}, or None"):
        make_config(root, tmp_path, exploration=dataclasses.replace(EXPLORATION, steps=most + 1))
    with pytest.raises(ValueError, match=r"rollout.rows is 'need' and env.tasks empty"):
        make_config(root, tmp_path, rows="need")
    with pytest.raises(ValueError, match=r"rollout.exploration.deviation has 2 numbers and data.robot.action_dim is 3"):
        make_config(root, tmp_path, exploration=ExplorationConfig(deviation=(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"rollout.hindsight.goal is 'aim' and env.state \('position',\)"):
        make_config(root, tmp_path, objective="rejection", hindsight=HINDSIGHT)
    green = dataclasses.replace(HINDSIGHT, reached={"green": "hand"}, radius={"green": 1.0}, goal="position")
    with pytest.raises(ConfigError, match=r"rollout.hindsight.reached names \['green'\]; env has the tasks"):
        TwoTasks(root, tmp_path, half, objective="rejection", hindsight=green)


def test_hindsight_is_refused_where_another_array_has_the_goal_too(root: Path, tmp_path: Path):
    """Meta-World's state of 39 numbers; its parts are taken."""
    one = TwoTasks(
        root, tmp_path, half, objective="rejection", hindsight=dataclasses.replace(HINDSIGHT, goal="position")
    )
    rollout = dataclasses.replace(ROLLOUT, objective="rejection", hindsight=dataclasses.replace(HINDSIGHT, goal="goal"))

    def make(*state: str) -> Ript:
        env = dataclasses.replace(point(), suite="metaworld", state=state)
        config = dataclasses.replace(one.config, env=env, rollout=rollout)
        return Ript(config, one.data, tmp_path, one.collector, one.policy)

    make("hand", "goal")
    with pytest.raises(
        ConfigError, match=r"rollout.hindsight is set and env.state \('state', 'goal'\); expected .* parts"
    ):
        make("state", "goal")


def test_the_page_says_which_failures_may_be_drawn_in_hindsight(root: Path, tmp_path: Path):
    settings: dict[str, Any] = {
        "objective": "rejection",
        "hindsight": dataclasses.replace(HINDSIGHT, goal="position"),
    }
    one = Round(root, tmp_path, half, **settings)
    played = one.collector.collect

    def collect(todo: Any, actor: Any, done: Any, *stopping: Any) -> bool:
        hand = {"hand": np.zeros((5, 3), np.float32)}
        return played(
            todo, actor,
            lambda job, made: done(
                job, dataclasses.replace(made, task="red", observations={**made.observations, **hand})
            ),
            *stopping,
        )  # fmt: skip

    one.collector.collect = collect  # pyright: ignore[reportAttributeAccessIssue]
    one.interact(2)
    write_config(root, tmp_path, **settings)
    told = [summary.label for summary in dict(RolloutRecordings(tmp_path).examine()).values()]
    assert told == [*["positive, weight 1.00"] * 2, *["drawn in hindsight, if it reached another goal"] * 2] * 2
