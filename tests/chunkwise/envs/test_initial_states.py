"""Published initial states: what a file holds, where an episode begins, and who cannot begin in one."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs import initial_states, inspect
from chunkwise.envs.environment import Environment, EnvSpec, make, state_hash
from chunkwise.envs.initial_states import read_states, write_states
from chunkwise.envs.suites import robosuite
from chunkwise.errors import ConfigError, DataError
from tests.chunkwise.envs.countdown import Countdown
from tests.chunkwise.files.test_torch_array import written

ROWS = np.array([[4.0, 1.0], [6.0, 0.0], [7.0, 2.0]])


class Placed(Countdown):
    """A Countdown that can begin in any of its states."""

    video_size = (8, 8)

    def reset_to(self, state: Any) -> Any:
        self.seed, self.t = (int(number) for number in state)
        return self._observe()


def spec(path: Path, suite: str = f"{__name__}:Placed", task: str = "") -> EnvSpec:
    return EnvSpec(suite=suite, task=task, initial_states=str(path), allow_code=True)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_reset_begins_in_the_row_of_its_seed(tmp_path: Path):
    env: Any = make(spec(saved(tmp_path / "s.npz", states=ROWS)))
    for seed, row in ((0, 0), (1, 1), (2, 2), (4, 1)):
        assert env.reset(seed)["state"].tolist() == ROWS[row].tolist()
        assert env.state().tolist() == ROWS[row].tolist()
    assert (env.fps, env.action_dim, env.video_size) == (10, 3, (8, 8))
    step = env.step(env.clip(np.full(3, 2.0)))
    assert (step.reward, env.state()[1]) == (0.0, 1)
    env.close()
    assert env.closed
    with pytest.raises(AttributeError):
        _ = env.expert
    assert isinstance(env, Environment)


def test_each_task_has_rows_of_its_own(tmp_path: Path):
    file = saved(tmp_path / "s.npz", **{"": ROWS, "a/0": ROWS, "b": ROWS[:1] + 1, "states": ROWS + 5})
    found = read_states(file, ("b", "a/0"))
    assert list(found) == ["b", "a/0"]
    np.testing.assert_array_equal(found["b"], ROWS[:1] + 1)
    np.testing.assert_array_equal(read_states(file, ("c",))["c"], ROWS + 5)
    np.testing.assert_array_equal(read_states(file, ("b",))["b"], ROWS[:1] + 1)
    with pytest.raises(DataError, match=r"expected initial states of 'c', found .*a/0, b, states"):
        read_states(file, ("b", "c"))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (np.array([[1.0, 2.0], [np.nan, 1.0]]), "found NaN or Inf in row 1"),
        (np.zeros((2, 2), np.int64), r"found int64 of shape \[2, 2\]"),
        (np.zeros(3), r"found float64 of shape \[3\]"),
        (np.zeros((0, 3)), r"found float64 of shape \[0, 3\]"),
        (np.array([[None]]), "dtype object"),
    ],
)
def test_a_file_that_holds_no_states_is_refused(tmp_path: Path, states: Any, said: str):
    with pytest.raises(DataError, match=said):
        read_states(saved(tmp_path / "s.npz", states=states), ("only",))


def test_a_file_that_is_missing_or_in_the_way_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"env.initial_states: .*none\.npz cannot be read: No such file"):
        read_states(tmp_path / "none.npz", ("only",))
    write_states(tmp_path / "s.npz", {"libero_spatial/0": ROWS})
    np.testing.assert_array_equal(read_states(tmp_path / "s.npz", ("libero_spatial/0",))["libero_spatial/0"], ROWS)
    with pytest.raises(ConfigError, match="exists"):
        write_states(tmp_path / "s.npz", {"a": ROWS})


def test_an_environment_that_cannot_begin_in_a_state_is_refused(tmp_path: Path):
    file = saved(tmp_path / "s.npz", states=ROWS)
    for refused in (spec(file, "tests.chunkwise.envs.countdown:Countdown"), spec(file, "point", "red")):
        with pytest.raises(ConfigError, match=r"cannot begin in a given state; expected robosuite, robomimic,"):
            make(refused)


def test_liberos_files_become_one_without_being_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    first, second = written(tmp_path / "a.pruned_init", ROWS), written(tmp_path / "b.pruned_init", ROWS + 1)
    out = tmp_path / "out.npz"
    assert initial_states.main([str(out), f"libero_spatial/1={first}", f"libero_goal/0={second}"]) == 0
    assert "wrote 6 initial states of 2 tasks" in capsys.readouterr().out
    found = read_states(out, ("libero_spatial/1", "libero_goal/0"))
    np.testing.assert_array_equal(found["libero_goal/0"], ROWS + 1)
    assert initial_states.main([str(out), f"a={first}"]) == 64
    for wrong in ([f"a={first}", f"a={first}"], ["a="], ["reach-v3"], ["libero_spatial/3"]):
        assert initial_states.main([str(tmp_path / "new.npz"), *wrong]) == 64
    assert "the package libero is missing" in capsys.readouterr().err
    assert initial_states.main([str(tmp_path / "new.npz"), f"a={tmp_path / 'none'}"]) == 65
    assert initial_states.main([str(tmp_path / "new.npz"), f"a={out}"]) == 65
    assert not (tmp_path / "new.npz").exists()
    monkeypatch.setattr(initial_states, "published_file", {f"libero_10/{n}": first for n in range(10)}.__getitem__)
    assert initial_states.main([str(tmp_path / "ten.npz"), "libero_10"]) == 0
    assert len(read_states(tmp_path / "ten.npz", robosuite.TASK_SETS["libero_10"])) == 10


def played(env: Any, steps: int = 6) -> np.ndarray:
    """States under random actions."""
    actions = np.random.default_rng(1).uniform(-1, 1, (steps, env.action_dim))
    shown = []
    for action in actions:
        env.step(env.clip(action))
        shown.append(env.state())
    return np.stack(shown)


@pytest.mark.filterwarnings("ignore")  # the simulator's own
@pytest.mark.parametrize(
    ("suite", "task"), [("robosuite", "Stack"), pytest.param("robomimic", "lift", marks=pytest.mark.long)]
)
def test_robosuite_begins_in_its_own_states_as_where_they_came_from(suite: str, task: str, tmp_path: Path):
    env: Any = make(EnvSpec(suite=suite, task=task))
    env.reset(5)
    begin = env._env.sim.get_state().flatten()
    own = played(env)
    later = env._env.sim.get_state().flatten()
    file = saved(tmp_path / "s.npz", states=np.stack([begin, later]))
    given: Any = make(dataclasses.replace(env._spec, suite=suite, task=task, initial_states=str(file)))
    given.reset(1)
    np.testing.assert_array_equal(given.state(), later[1:])
    moved = played(given)
    given.reset(0)
    np.testing.assert_array_equal(given.state(), begin[1:])
    np.testing.assert_allclose(
        played(given), own, rtol=1e-4, atol=1e-5
    )  # rad, m; 0.06 where the joints' rest is another
    env.reset(7)
    env.reset_to(later)
    np.testing.assert_array_equal(played(env), moved)
    with pytest.raises(ConfigError, match=rf"expected an initial state of {len(begin)} numbers \(time, .*found"):
        env.reset_to(begin[1:])
    given.close()
    env.close()


@pytest.mark.filterwarnings("ignore")
def test_a_door_stands_where_no_state_says():
    env: Any = make(EnvSpec(suite="robosuite", task="Door"))
    with pytest.raises(ConfigError, match="Door: an initial state cannot say where its door stands"):
        env.reset_to(np.zeros(3))
    env.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["reach-v3", "peg-unplug-side-v3"])
def test_metaworld_begins_as_its_own_benchmarks_do(task: str):
    """Meta-World's Task holds what a reset draws, and freezes it."""
    its: Any = importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS[task]()
    its._set_task_called, its._partially_observable, its._freeze_rand_vec = True, False, True
    space, rng = its._random_reset_space, np.random.default_rng(0)
    env: Any = make(EnvSpec(suite="metaworld", task=task))
    hashes = set()
    for row in rng.uniform(space.low, space.high, (3, len(space.low))):
        its._last_rand_vec = row
        fresh = its.reset()[0]
        env.reset(8)
        np.testing.assert_allclose(env.reset_to(row)["state"], fresh, atol=1e-6)
        hashes.add(state_hash(env.state()))
        env.step(np.ones(4, np.float32))
        env.reset_to(row)
        assert state_hash(env.state()) in hashes
    assert len(hashes) == 3
    drawn = env.reset(8)["state"]
    np.testing.assert_array_equal(env.reset(8)["state"], drawn)  # seeds draw again
    env.close()


@pytest.mark.filterwarnings("ignore")
def test_metaworld_refuses_what_its_task_never_begins_with():
    env: Any = make(EnvSpec(suite="metaworld", task="push-v3"))
    space = env._env._random_reset_space
    with pytest.raises(ConfigError, match=r"push-v3: expected an initial state of 6 numbers from .*, found \[0\.0\]"):
        env.reset_to(np.zeros(1))
    with pytest.raises(ConfigError, match="expected an initial state of 6 numbers"):
        env.reset_to(space.high + 0.01)
    anywhere = env._made["_random_reset_space"]
    anywhere.low[:], anywhere.high[:] = -1, 1
    with pytest.raises(ConfigError, match="objects and goal are too near one another"):
        env.reset_to(np.array([0, 0.6, 0.02, 0, 0.6, 0.02]))
    env.close()


def test_inspect_looks_at_given_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = saved(tmp_path / "s.npz", states=ROWS)
    arguments = ["--env", f"{__name__}:Placed", "--steps", "4", "--initial-states", str(file)]
    assert inspect.main(arguments) == 0
    assert "steps a second" in capsys.readouterr().out
    assert inspect.main([*arguments[:-1], str(tmp_path / "none.npz")]) == 65
