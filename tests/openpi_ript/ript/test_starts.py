"""Which published states evaluations and groups begin in, and that no run evaluates where it was trained."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.evaluate import Evaluation
from chunkwise.envs.rollout import load
from chunkwise.errors import ConfigError, DataError, MismatchError
from openpi_ript import evaluate as command
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import spec_of
from openpi_ript.envs.point import PointEnv
from openpi_ript.policies import saved
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.evaluation import make_manifest
from openpi_ript.ript.round import Ript
from openpi_ript.ript.starts import Starts
from openpi_ript.train import _same_states, main
from tests.openpi_ript.ript import test_ript_round
from tests.openpi_ript.small_run import make_dataset
from tests.openpi_ript.toy_rollouts import point

PLACES = np.linspace(0.05, 0.95, 20).reshape(10, 2)


class Placed(PointEnv):
    """The simulated point, which can begin anywhere."""

    def reset_to(self, state: Any) -> Any:
        self._position = state.copy()
        return self._observe()


def env(path: Path, **changes: Any) -> EnvConfig:
    return point(suite=f"{__name__}:Placed", initial_states=str(path), **changes)


@pytest.fixture
def states(tmp_path: Path) -> Path:
    np.savez(tmp_path / "s.npz", red=PLACES, blue=PLACES[:7] + 0.01)
    return tmp_path / "s.npz"


def test_evaluations_take_the_first_rows_and_groups_the_last(states: Path):
    starts = Starts(env(states, task="", prompt="", tasks=("red", "blue"), prompts={"red": "r", "blue": "b"}))
    assert starts.published
    assert [starts.held_out("red", n) for n in (0, 4)] == [0, 4]
    assert [starts.of_group("red", n) for n in (0, 4)] == [9, 5]
    assert starts.of_group("blue", 0) == 6
    starts.require_apart(8, 3)
    with pytest.raises(
        ConfigError, match=r"7 initial states of blue, .* first 4 and rollout.initial_states the last 4"
    ):
        starts.require_apart(8, 4)
    with pytest.raises(ConfigError, match=r"7 initial states of blue, and 8 are asked for"):
        starts.held_out("blue", 7)
    assert not Starts(point()).published


def test_a_manifest_is_of_the_first_rows(states: Path):
    two = env(states, task="", prompt="", tasks=("red", "blue"), prompts={"red": "r", "blue": "b"})
    collector = Collector(two, allow_code=True)
    try:
        manifest = make_manifest(collector, seed=3, episodes=4)
        assert [(state.task, state.seed) for state in manifest.states] == [
            ("red", 0),
            ("blue", 0),
            ("red", 1),
            ("blue", 1),
        ]
        assert len({state.init_hash for state in manifest.states}) == 4
        with pytest.raises(ConfigError, match="7 initial states of blue, and 8 are asked"):
            make_manifest(collector, seed=3, episodes=16)
    finally:
        collector.close()


def test_groups_begin_in_the_last_rows(states: Path, tmp_path: Path):
    root = make_dataset(tmp_path / "set")
    one = test_ript_round.Round(root, tmp_path / "run", test_ript_round.half)
    config = dataclasses.replace(one.config, env=env(states))
    one.ript = Ript(config, one.data, tmp_path / "run", one.collector, one.policy)
    one.interact(2)
    tried = one.tried()
    assert len(tried) == 2
    for job in one.collector.jobs:
        state, _ = test_ript_round.state_and_number(job.path)
        assert job.seed == len(PLACES) - 1 - state


def test_environments_that_cannot_begin_anywhere_are_refused(states: Path):
    for suite, task in (("point", "red"), ("aloha", "AlohaInsertion"), ("ogbench", "cube")):
        with pytest.raises(ValueError, match=r"env.initial_states is .*expected one of libero, metaworld, robomimic"):
            point(suite=suite, task=task, initial_states=str(states))
    with pytest.raises(ValueError, match=r"env.initial_states is .* and env.python '/usr/bin/python3'"):
        env(states, python="/usr/bin/python3")
    assert spec_of(env(states), allow_code=True).initial_states == str(states)


def test_an_evaluation_may_begin_in_another_file_and_not_where_groups_began(states: Path, tmp_path: Path):
    other = tmp_path / "other.npz"
    np.savez(other, red=PLACES / 2)
    own, same = env(states), tmp_path / "same.npz"
    same.write_bytes(states.read_bytes())
    found, manifest = command.published(point(suite=own.suite), other, tmp_path / "manifest.json")
    assert (found.initial_states, manifest.parent) == (str(other), tmp_path)
    assert manifest.name.startswith("manifest-")
    assert manifest != command.published(own, states, tmp_path / "manifest.json")[1]
    command.require_unseen(found, own, 10, 6)
    command.require_unseen(own, own, 4, 6)
    for file in (states, same):
        again, _ = command.published(own, file, tmp_path / "manifest.json")
        with pytest.raises(ConfigError, match=r"first 5 and rollout.initial_states the last 6"):
            command.require_unseen(again, own, 5, 6)
    command.require_unseen(point(), own, 1000, 6)
    with pytest.raises(ConfigError, match=r"env.initial_states is"):
        command.published(point(), other, tmp_path / "manifest.json")
    with pytest.raises(DataError, match=r"--initial-states .*none.npz: cannot be read"):
        command.published(own, tmp_path / "none.npz", tmp_path / "manifest.json")
    assert command.environment_of(own, "metaworld/reach-v3", None).initial_states == ""


def test_a_run_reads_its_own_copy_and_no_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = test_ript_round.make_config(make_dataset(tmp_path / "set"), tmp_path)
    config = dataclasses.replace(config, env=env(Path("/etc/states.npz")))
    monkeypatch.setattr(saved.saved, "read_config", lambda *_: config)
    (tmp_path / saved.TOKENIZER).write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"expected the run's initial states in initial_states\.npz, found none"):
        saved.read_config(tmp_path)
    (tmp_path / saved.INITIAL_STATES).write_bytes(b"x")
    read = saved.read_config(tmp_path).env
    assert read is not None
    assert read.initial_states == str(tmp_path / "initial_states.npz")


def test_a_run_goes_on_with_the_file_that_it_began_with(states: Path, tmp_path: Path):
    kept = tmp_path / "kept.npz"
    assert _same_states(str(states), kept) == states.read_bytes()
    kept.write_bytes(states.read_bytes())
    assert _same_states(str(states), kept) == states.read_bytes()
    kept.write_bytes(b"another")
    with pytest.raises(MismatchError, match=r"env.initial_states .*s\.npz: not the file that the run began with"):
        _same_states(str(states), kept)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_evaluates_plays_and_goes_on_in_published_states(states: Path, tmp_path: Path):
    """Three starts: whole, with another file (refused), and from where the file was moved to."""
    module: Any = __import__("configs.openpi_ript.debug_ript", fromlist=["get_config"])
    config = module.get_config()
    data = dataclasses.replace(config.data, path=str(tmp_path / "set"))
    settings = dataclasses.replace(config.env, suite=f"{__name__}:Placed", initial_states=str(states))
    rollout = dataclasses.replace(config.rollout, start=20, updates=4, initial_states=6, groups=2, max_groups=4)
    config = dataclasses.replace(
        config,
        data=data,
        tokenizer=str(tmp_path / "set/tokenizer.model"),
        env=settings,
        rollout=rollout,
        eval=dataclasses.replace(config.eval, episodes=4, final_episodes=4, videos=0),
        train=dataclasses.replace(config.train, steps=24, eval_every=24),
        run=dataclasses.replace(config.run, dir=str(tmp_path / "run")),
    )
    too_many = dataclasses.replace(config, eval=dataclasses.replace(config.eval, final_episodes=5))
    too_many = dataclasses.replace(too_many, run=dataclasses.replace(config.run, dir=str(tmp_path / "other")))
    with pytest.raises(ConfigError, match=r"first 5 and rollout.initial_states the last 6"):
        main(too_many, "test")
    main(config, "test")
    assert (tmp_path / "run/initial_states.npz").read_bytes() == states.read_bytes()
    seeds = {outcome["seed"] for outcome in _outcomes(tmp_path / "run")}
    assert seeds == {0, 1, 2, 3}
    rollouts = list((tmp_path / "run/rollouts").glob("*/*.npz"))
    assert rollouts
    begins = {tuple(_first(path)) for path in rollouts}
    assert begins <= {tuple(row) for row in PLACES[4:].astype(np.float32)}
    longer = dataclasses.replace(config.train, steps=26)
    resumed = dataclasses.replace(config, train=longer, run=dataclasses.replace(config.run, resume=True))
    np.savez(tmp_path / "changed.npz", red=PLACES + 0.001)
    changed = dataclasses.replace(resumed.env, initial_states=str(tmp_path / "changed.npz"))
    with pytest.raises(MismatchError, match=r"env.initial_states .*changed\.npz: not the file that the run began with"):
        main(dataclasses.replace(resumed, env=changed), "test")
    moved = states.rename(tmp_path / "moved.npz")
    main(dataclasses.replace(resumed, env=dataclasses.replace(settings, initial_states=str(moved))), "test")


def _outcomes(run: Path) -> Any:
    (found,) = (run / "evaluations").glob("*.json")
    return Evaluation.load(found).outcomes


def _first(path: Path) -> Any:
    return load(path).observations["position"][0]
