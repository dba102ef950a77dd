"""Several tasks in one run: their law, prompts and limits, groups, evaluation and demonstrations of each."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from chunkwise.envs.collect import Job, Task
from chunkwise.envs.evaluate import Manifest
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.envs.suites.metaworld import MT10, PROMPTS
from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import make, names_of, tasks_of
from openpi_ript.ript.candidates import candidates
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.evaluation import evaluate, make_manifest
from openpi_ript.ript.round import Ript
from tests.openpi_ript.ript.test_ript_round import ROWS, SEED, SIZE, STATES, Round, half, root
from tests.openpi_ript.toy_rollouts import Straight, jobs, make_rollout, point

__all__ = ["root"]  # a fixture
DISCS = {"red": "move to the red disc", "blue": "go to the blue one"}
TASKS = tuple(Task(name=name, prompt=prompt, max_steps=20) for name, prompt in DISCS.items())


def both(**changes: Any) -> EnvConfig:
    return point(task="", prompt="", tasks=("red", "blue"), prompts=DISCS, **changes)


def chosen(law: Literal["uniform", "success", "need"], **changes: Any) -> list[int]:
    settings: dict[str, Any] = {"seed": 3, "step": 4, "states": 5, "shares": [0.5] * 3, "resting": (), "most": 15}
    return candidates(law, **settings | changes)


def test_one_tasks_states_come_as_before_there_were_several():
    expected = np.random.default_rng([3, 4, 5]).permutation(5).tolist()
    for law in ("uniform", "success", "need"):
        assert chosen(law, shares=[0.2]) == expected
        assert chosen(law, shares=[0.2], resting={expected[1]}, most=3) == [expected[0], *expected[2:4]]


def test_uniform_takes_each_task_in_turn_and_none_twice_before_all_had_theirs():
    order = chosen("uniform")
    assert sorted(order) == list(range(15))
    for turn in range(5):
        assert sorted(state // 5 for state in order[3 * turn : 3 * turn + 3]) == [0, 1, 2]
    assert [state // 5 for state in order[:3]] != [state // 5 for state in chosen("uniform", step=5)[:3]]
    assert [state % 5 for state in order if state < 5] != [state % 5 for state in order if 5 <= state < 10]
    left = chosen("uniform", resting=set(range(5, 10)))
    assert sorted(left) == [*range(5), *range(10, 15)]


@pytest.mark.parametrize(
    ("law", "shares", "expected"),
    [
        ("success", [0.5, 0.1, 0.9], np.array([0.25, 0.09, 0.09]) / 0.43),
        ("need", [0.5, 0.1, 0.9], np.array([0.5, 0.9, 0.1]) / 1.5),
    ],
)
def test_laws_draw_tasks_by_their_share_of_successes(law: Any, shares: list[float], expected: np.ndarray):
    first = Counter(chosen(law, shares=shares, step=step, most=1)[0] // 5 for step in range(3000))
    np.testing.assert_allclose([first[place] / 3000 for place in range(3)], expected, atol=0.03)
    whole = chosen(law, shares=shares)
    assert sorted(whole) == list(range(15)), "a task whose states are all taken leaves its turn to others"


def test_names_prompts_and_limits():
    config = EnvConfig(
        suite="metaworld",
        tasks=("MT10", "sweep-v3"),
        max_steps=200,
        prompts={"push-v3": "shove it"},
        steps={"sweep-v3": 90},
    )
    assert names_of(config) == (*MT10, "sweep-v3")
    found = {task.name: task for task in tasks_of(config)}
    assert found["push-v3"] == Task(name="push-v3", prompt="shove it", max_steps=200)
    assert found["sweep-v3"] == Task(name="sweep-v3", prompt=PROMPTS["sweep-v3"], max_steps=90)
    assert len(names_of(EnvConfig(suite="metaworld", tasks=("MT50",), max_steps=1))) == 50
    alone = EnvConfig(suite="metaworld", task="reach-v3", max_steps=9)
    assert tasks_of(alone) == (Task(name="reach-v3", prompt=PROMPTS["reach-v3"], max_steps=9),)
    assert len(names_of(EnvConfig(suite="libero", tasks=("libero_90", "libero_10"), max_steps=1))) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("red", "red")}, "expected each once"),
        ({"task": "red"}, "expected one of the two"),
        ({"tasks": ()}, "expected one of the two"),
        ({"prompt": "go"}, "expected the prompts in env.prompts"),
        ({"steps": {"red": 0}}, "expected 1 or more"),
        ({"tasks": (), "task": "red"}, "are for env.tasks"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(both(), **changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            point(task="", prompt="", tasks=("red",), prompts={"green": "x"}),
            "env.prompts names green; env has the tasks",
        ),
        (point(task="", prompt="", tasks=("red", "blue"), steps={"x": 3}, prompts=DISCS), "env.steps names x"),
        (point(task="", prompt="", tasks=("red", "blue"), prompts={"red": "go"}), "point blue: its suite does not say"),
        (EnvConfig(suite="metaworld", tasks=("MT10", "push-v3"), max_steps=1), "names push-v3 twice"),
        (EnvConfig(suite="metaworld", tasks=("MT11",), max_steps=1), "metaworld MT11: its suite does not say"),
    ],
)
def test_what_no_suite_knows_is_refused(config: EnvConfig, message: str):
    with pytest.raises(ConfigError, match=message):
        tasks_of(config)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector(both(steps={"blue": 6}))
    yield made
    made.close()


def test_tasks_play_side_by_side_each_with_its_prompt_disc_and_limit(collector: Collector, tmp_path: Path):
    todo = [dataclasses.replace(job, task=("red", "blue")[n % 3 > 0]) for n, job in enumerate(jobs(9, tmp_path))]
    actor, finished = Straight(-np.inf), dict[int, Rollout]()
    assert collector.collect(todo, actor, lambda job, rollout: finished.update({job.number: rollout}))
    for job in todo:
        rollout = finished[job.number]
        assert (rollout.task, rollout.prompt) == (job.task, DISCS[job.task])
        assert rollout.success == (job.task == "red"), "the actor goes to red whatever it is told"
        assert rollout.success or rollout.length == 6
        alone = dict[int, Rollout]()
        assert collector.collect([job], actor, lambda job, one, alone=alone: alone.update({0: one}))
        np.testing.assert_array_equal(alone[0].actions, rollout.actions)
        save(job.path, rollout)
        assert load(job.path).task == job.task
    assert {tuple(batch["prompt"]) for batch in actor.batches} <= {(prompt,) for prompt in DISCS.values()}


def test_an_evaluation_has_equally_many_of_each_task(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=3, episodes=6)
    assert [state.task for state in manifest.states] == ["red", "blue"] * 3
    assert manifest.task == "red, blue"
    manifest.save(tmp_path / "m.json")
    assert Manifest.load(tmp_path / "m.json") == manifest

    def run(episodes: int, using: Manifest = manifest) -> Any:
        return evaluate(
            collector, Straight(-np.inf), using, episodes=episodes, guidance_scale=None, folder=tmp_path, keep=2
        )

    result = run(6)
    assert result.tasks == ("red", "blue")
    assert (result.successes, result.of_task("red").successes, result.of_task("blue").successes) == (3, 3, 0)
    found = result.metrics("policy")
    assert (found["policy/success"], found["policy/success/red"], found["policy/success/blue"]) == (0.5, 1, 0)
    assert str(result).endswith("\n  red: 3 of 3\n  blue: 0 of 3")
    assert [load(tmp_path / f"episode_000{n}.npz").task for n in (0, 1)] == ["red", "blue"]
    with pytest.raises(ConfigError, match="is 5 and there are 2 tasks; expected equally many episodes of each"):
        run(5)
    with pytest.raises(ConfigError, match="is 3 and there are 2 tasks"):
        make_manifest(collector, seed=3, episodes=3)
    with pytest.raises(DataError, match="initial states of point red, blue, found 6 of point red"):
        run(6, dataclasses.replace(manifest, task="red"))


class TwoTasks(Round):
    """A Round whose collector has both discs; red succeeds for two rollouts of four, blue never."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        outcome: Any = None,
        rows: Literal["frames", "tasks", "need"] = "frames",
        **rollout: Any,
    ) -> None:
        super().__init__(root, folder, outcome or (lambda state, k: half(state, k) and state < STATES), **rollout)
        self.collector.tasks = TASKS
        assert self.config.rollout is not None
        settings = dataclasses.replace(self.config.rollout, rows=rows)  # need has no sense with the one task of before
        self.config = dataclasses.replace(self.config, env=both(), rollout=settings)
        self.ript = Ript(self.config, self.data, folder, self.collector, self.policy)


def test_a_round_plays_every_task_and_says_how_each_went(root: Path, tmp_path: Path, capsys: Any):
    one = TwoTasks(root, tmp_path, groups=4, max_groups=4)
    metrics = one.interact(2)
    by_task: dict[str, list[Job]] = {"red": [], "blue": []}
    for job in one.collector.jobs:
        by_task[job.task].append(job)
    assert {name: len(found) for name, found in by_task.items()} == {"red": 2 * SIZE, "blue": 2 * SIZE}
    for place, name in enumerate(by_task):
        states = {int(job.path.stem.removeprefix("state_").split("-")[0]) for job in by_task[name]}
        assert all(state // STATES == place for state in states)
    assert metrics["rollouts/success/red"] == [1.0, 1.0, 0.0, 0.0] * 2
    assert metrics["rollouts/success/blue"] == [0.0] * 8
    assert "red 4/8, blue 0/8" in capsys.readouterr().out
    assert one.ript.position()["shares"] == {"red": 5 / 10, "blue": 1 / 10}
    assert json.dumps(one.ript.position())


def test_what_is_trained_on_has_its_own_prompt(root: Path, tmp_path: Path):
    one = TwoTasks(root, tmp_path, half, groups=4, max_groups=4)
    one.interact(2)
    prompts = {job.path: DISCS[job.task] for job in one.collector.jobs}
    for path, prompt in prompts.items():
        save(path, dataclasses.replace(load(path), prompt=prompt))
    again = TwoTasks(root, tmp_path, half, groups=4, max_groups=4)
    again.ript.rewind(one.ript.position())
    windows = [
        (load(tmp_path / "rollouts" / name).observations["position"][t], prompts[tmp_path / "rollouts" / name])
        for name in one.files()
        for t in range(4)
    ]
    rows = np.random.default_rng([SEED, 2, 4]).choice(len(windows), ROWS)
    batch = next(again.batches(2))
    assert batch["prompt"] == [windows[row][1] for row in rows]
    np.testing.assert_array_equal(batch["state"][:, :2], np.stack([windows[row][0] for row in rows]))
    drawn = {prompt for batch in itertools.islice(again.batches(2), 4) for prompt in batch["prompt"]}
    assert drawn == set(DISCS.values())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_share_of_each_batch_is_the_datasets(root: Path, tmp_path: Path, shards: int):
    one = TwoTasks(root, tmp_path, half, dataset_share=0.25)
    one.interact(2)
    rng = np.random.default_rng([SEED, 2, 4])
    windows = [load(tmp_path / "rollouts" / name).observations["position"][t] for name in one.files() for t in range(4)]
    played = [windows[row] for row in rng.choice(len(windows), 3)]
    raw = one.data.raw(int(rng.choice(one.data.rows, 1)[0]))
    parts = [next(one.ript.batches(lambda _: iter(()), 2, shard=i, num_shards=shards)) for i in range(shards)]
    states = np.concatenate([part["state"] for part in parts])[:, :2]
    np.testing.assert_array_equal(states, np.stack([*played, raw["state"]]))
    label = np.concatenate([part["optimality"] for part in parts])
    assert label[-1] == Optimality.POSITIVE, "the dataset is imitated"
    assert [prompt for part in parts for prompt in part["prompt"]][-1] == raw["task"]


def test_with_the_dataset_alone_nothing_is_played_and_imitation_goes_on(root: Path, tmp_path: Path):
    one = TwoTasks(root, tmp_path, half, dataset_share=1.0)
    assert one.interact(2) == {}
    assert one.policy.used == []
    assert one.collector.jobs == []
    found, expected = one.batches(0), one.data.batches(seed=SEED, batch_size=ROWS)
    for _ in range(5):
        batch, imitated = next(found), next(expected)
        np.testing.assert_array_equal(batch["state"], imitated["state"])


def test_imitation_ends_with_the_first_round_whatever_rounds_find(root: Path, tmp_path: Path):
    """The dataset's updates 0 and 1, a round's, then none where the newest round has nothing."""
    solved = False
    one = Round(root, tmp_path, lambda state, k: solved or half(state, k))
    starts: list[int] = []

    def supervised(start: int) -> Iterator[Any]:
        starts.append(start)
        return one.data.batches(seed=SEED, batch_size=ROWS, start_step=start)

    batches = one.ript.batches(supervised, 0)
    for _ in range(2):
        next(batches)
    one.interact(2)
    for _ in range(4):
        assert "action" in next(batches)
    solved = True
    one.interact(6, "b")
    assert set(next(batches)) == {"no_signal"}
    assert starts == [0]


def test_shares_decide_the_next_round_also_after_a_restart(root: Path, tmp_path: Path):
    settings = {"groups": 2, "max_groups": 6, "tasks": "need", "early_stop": 1.0}
    one = TwoTasks(root, tmp_path / "a", **settings)
    one.interact(2)
    position = json.loads(json.dumps(one.ript.position()))
    other = TwoTasks(root, tmp_path / "a", **settings)
    other.ript.rewind(position)
    for each in (one, other):
        each.interact(6, "b")
    shares = [position["shares"].get(name, 0.5) for name in DISCS]
    expected = candidates("need", seed=SEED, step=6, states=STATES, shares=shares, resting=(), most=6)
    assert one.tried() == expected[: len(one.tried())]
    assert other.tried() == [], "the other's rollouts lie there already"
    assert other.ript.position() == one.ript.position()
    old = TwoTasks(root, tmp_path / "a", **settings)
    old.ript.rewind({name: value for name, value in position.items() if name != "shares"})
    assert old.ript.position()["shares"] == {}


def test_states_of_another_task_with_the_same_number_do_not_rest(root: Path, tmp_path: Path):
    solved_red = lambda state, k: state < STATES or half(state, k)  # noqa: E731
    one = TwoTasks(root, tmp_path, solved_red, groups=2 * STATES, max_groups=2 * STATES, retry_after=100)
    one.interact(2)
    one.interact(6, "b")
    assert sorted(one.tried()) == list(range(STATES, 2 * STATES)), "all of red's rest, none of blue's"


def test_the_config_makes_each_tasks_environment():
    red, blue = (make(both(), task) for task in ("red", "blue"))
    first = make(both())
    ends = [
        env.reset(3) and env.step(np.array([*disc, 1.0], np.float32)) for env, disc in ((red, (0, 0)), (blue, (0, 0)))
    ]
    assert len(ends) == 2
    assert np.array_equal(red._disc, first._disc)  # pyright: ignore[reportAttributeAccessIssue]
    assert not np.array_equal(red._disc, blue._disc)  # pyright: ignore[reportAttributeAccessIssue]


def test_rollouts_without_a_task_are_read(tmp_path: Path):
    save(tmp_path / "a.npz", make_rollout(3))
    assert load(tmp_path / "a.npz").task == ""
