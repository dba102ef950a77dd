"""One online environment: which arrays it has to show, what is executed of a chunk, and what is said when it fails."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.envs.environment import Observation, Step
from chunkwise.errors import ConfigError, DataError, MismatchError, RunError, StorageError
from qchunk import train
from qchunk.config import AgentConfig, AugmentConfig, EncoderConfig, OnlineConfig, QChunkConfig
from qchunk.data import Dims, open_dataset
from qchunk.envs import simulators
from qchunk.online.phase import Online, replaced_rows
from qchunk.online.replay import read
from qchunk.train import _require_shift, require_fit
from tests.qchunk import recordings
from tests.qchunk.data.test_npz import write_npz
from tests.qchunk.online.test_phase import (
    NORM,
    STATE,
    TASK,
    Line,
    config_of,
    never,
    offline,
    online_of,
    policy_of,
    run,
    saved,
)
from tests.qchunk.recordings import ACTION


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


class Plain(Line):
    """It shows nine numbers as `state`, as a Gymnasium environment would, and nothing beside them."""

    action_dim = ACTION

    def observation(self) -> Observation:
        return {"state": np.arange(9, dtype=np.float32) + self.t}


def online_config(path: Path, **data: Any) -> QChunkConfig:
    config = recordings.config(path, observation="state", **data)
    online = OnlineConfig(env="mine:Env", steps=20, start=4, interval=5)
    return dataclasses.replace(config, train=TrainConfig(steps=24, batch_size=8), online=online)


def test_the_observation_stands_for_its_second_name_which_only_the_recordings_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Plain())
    write_npz(tmp_path / "a.npz", lengths=(9, 7, 9))
    config = online_config(tmp_path / "a.npz", format="ogbench_npz")
    dataset = open_dataset(config)
    require_fit(config, dataset)
    online = Online(config, dataset, tmp_path, lambda _: lambda seen, seeds: np.zeros((1, 5, ACTION), np.float32))
    online.rewind(None)
    online.interact(STATE, 4, never)
    online.sync()
    records = read(tmp_path / "replay")
    np.testing.assert_array_equal(records["state"][:, 0], np.arange(6))
    np.testing.assert_array_equal(records["qpos"], records["state"])


def test_a_shift_by_which_nothing_is_left_of_an_image_is_refused():
    """A new run's alone: one of before goes on."""
    config = dataclasses.replace(
        recordings.config(Path("set"), cameras=("top",)),
        agent=AgentConfig(encoder=EncoderConfig(augment=AugmentConfig(shift=6))),
    )
    _require_shift(config, Dims(observation=9, action=2, cameras=("top",), image_size=(7, 9)))
    small = Dims(observation=9, action=2, cameras=("top",), image_size=(9, 6))
    with pytest.raises(ConfigError, match=r"augment\.shift is 6, and images are 9 x 6; expected less than either side"):
        _require_shift(config, small)
    _require_shift(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True, dir="old")), small)


def test_an_array_that_only_the_recordings_have_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Plain())
    config = online_config(recordings.dataset(tmp_path))
    with pytest.raises(ConfigError, match=r"which shows \{'state': 9\} beside state; expected the widths \{'qpos': 6"):
        require_fit(config, open_dataset(config))


@pytest.mark.parametrize(("differs", "kept"), [(None, ["state"]), (0, ["qpos", "state"]), (1, ["qpos", "state"])])
def test_an_array_that_differs_in_any_episode_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: int | None, kept: list[str]
):
    config = online_config(recordings.dataset(tmp_path))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, observation="state"))
    states = [{"state": np.ones((3, 2)), "qpos": np.full((3, 2), 1.0 + (number == differs))} for number in range(2)]
    source: Any = type("Two", (), {"dims": {"qpos": 2, "state": 2}, "__len__": lambda self: 2})()
    monkeypatch.setattr(train, "load_episode", lambda _, number: SimpleNamespace(states=states[number]))
    dataset: Any = SimpleNamespace(source=source)
    assert sorted(train._kept(config, dataset)) == kept


def mine(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Lets every environment be a Line with some methods of another kind."""
    env = type("Mine", (Line,), methods)
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: env())


def test_what_is_executed_is_what_the_log_keeps_where_bounds_have_64_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A bound of 0.3 is another number in 32 bits; a run that goes on plays what is in the log, and finds the same."""
    steps: list[np.ndarray] = []

    def step(line: Line, action: np.ndarray) -> Step:
        steps.append(action)
        return Line.step(line, action)

    mine(monkeypatch, clip=lambda _, action: np.clip(action, np.full(2, -0.3), np.full(2, 0.3)), step=step)
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(2))
    assert {action.dtype for action in steps} == {np.dtype(np.float32)}
    online.sync()
    position = online.position()
    again = online_of(tmp_path)
    again.rewind(position)
    run(again, range(2, 4))
    np.testing.assert_array_equal(steps[4:8], steps[:4])


def fail(*_: Any) -> Any:
    raise ConnectionError("no robot at 10.0.0.2")


def late(line: Line, action: np.ndarray) -> Step:
    return fail() if line.t == 2 else Line.step(line, action)


@pytest.mark.parametrize(
    ("methods", "where"),
    [
        ({"__init__": fail}, "could not be made"),
        ({"reset": fail}, r"\(reset with seed [0-9]+, step 0\) failed"),
        ({"clip": fail}, r"\(reset with seed [0-9]+, step 1\) failed"),
        ({"step": late}, r"\(reset with seed [0-9]+, step 3\) failed"),
    ],
)
def test_what_an_online_environment_raises_is_told_with_its_seed_and_step(
    methods: dict[str, Any], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mine(monkeypatch, **methods)
    online = online_of(tmp_path)
    online.rewind(None)
    with pytest.raises(RunError, match=rf"^the environment {TASK} {where}: ConnectionError: no robot at 10.0.0.2"):
        run(online, range(3))


def gives(first: Any, later: Any) -> Any:
    """Of images: the cameras, and what the first of them is until and from the third step on."""
    return lambda line: {"top": first if line.t < 3 else later, "side": np.zeros((2, 3, 3), np.uint8)}


GREY = np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("methods", "error", "said"),
    [
        ({"reset": lambda line, seed: (Line.reset(line, seed), {})}, RunError, r"step 0\): reset\(\) gave a tuple"),
        ({"observation": lambda line: {"qpos": np.zeros((2, 1)), "state": line.state()}}, ConfigError, r"\(2, 1\)"),
        (
            {"images": gives(GREY, GREY.astype(np.float32))},
            RunError,
            r"step 3\): images\(\) gave 'top' as float32; expected uint8",
        ),
        ({"images": gives(GREY, GREY[:, :2])}, RunError, r"step 3\) failed to show images: ValueError"),
        (
            {"images": lambda line: dict.fromkeys(("top", "side"), GREY[: 2 - line.t // 2])},
            RunError,
            r"step 2\): images\(\) gave \[cameras, h, w, 3\] of \[2, 1, 3, 3\]; expected \[2, 2, 3, 3\], as at",
        ),
        ({"images": lambda line: {"top": GREY} if line.t else gives(GREY, GREY)(line)}, DataError, "step 1.*side too"),
    ],
)
def test_what_an_environment_shows_later_is_looked_at_too(
    methods: dict[str, Any], error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once at the start, with another seed; floats would be kept as black."""
    mine(monkeypatch, **methods)
    view = simulators.View(cameras=("top", "side"), render_size=(2, 3), image_size=(2, 3))
    dataset = dataclasses.replace(NORM, cameras=view.cameras, image_size=view.image_size)
    online = Online(config_of(env="aloha-transfer-cube"), dataset, tmp_path, policy_of, view)
    online.rewind(None)
    with pytest.raises(error, match=said):
        run(online, range(5))


@pytest.mark.parametrize(("methods", "where"), [({"__init__": fail}, "could not be made"), ({"reset": fail}, "failed")])
def test_what_an_environment_raises_when_it_is_compared_is_told(
    methods: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
):
    mine(monkeypatch, **methods)
    with pytest.raises(RunError, match=rf"^the environment mine:Env .*{where}: ConnectionError: no robot"):
        simulators.require_widths("eval.env", "mine:Env", "d", observation=("state", 3), action=2)


def test_an_environment_that_changes_its_action_is_asked_for_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In place, as into its drives' units: the log has the policy's actions, and a run that goes on finds the same."""

    def step(line: Line, action: np.ndarray) -> Step:
        action *= 0.5
        return Line.step(line, action)

    mine(monkeypatch)
    plain = online_of(tmp_path / "plain")
    mine(monkeypatch, step=step)
    online = online_of(tmp_path / "changed")
    for one in (plain, online):
        one.rewind(None)
        run(one, range(2))
        one.sync()
    actions = [read(tmp_path / name / "replay")["action"] for name in ("plain", "changed")]
    assert np.abs(actions[0]).max() > 0.1
    np.testing.assert_array_equal(actions[0][:2], actions[1][:2])
    again = online_of(tmp_path / "changed")
    again.rewind(online.position())
    run(again, range(2, 4))


def test_a_full_disk_is_told_with_the_last_step_that_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine(monkeypatch)
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(1))
    (tmp_path / "replay/frames.bin").unlink()
    (tmp_path / "replay/frames.bin").symlink_to("/dev/full")
    (tmp_path / "checkpoints/4").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot write .*frames.bin: No space left.* Last durable step: 4\."):
        online.sync()
    (tmp_path / "replay/layout.json").unlink()
    (tmp_path / "replay").rename(tmp_path / "elsewhere")
    (tmp_path / "replay").write_text("no folder")
    with pytest.raises(
        StorageError, match=r"cannot write .*replay/layout.json.*: Not a directory. Last durable step: 4\."
    ):
        online_of(tmp_path).rewind(None)


def test_fewer_steps_than_were_taken_are_refused_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nine stretches of two steps; 18 steps are room enough, and 6 are not."""
    mine(monkeypatch)
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(9))
    online.sync()
    online_of(tmp_path, config_of(steps=18)).rewind(online.position())
    with pytest.raises(MismatchError, match=r"^online.steps is 6, and 18 steps have been taken"):
        online_of(tmp_path, config_of(steps=6)).rewind(online.position())


def test_each_virtual_shard_gives_up_its_last_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the last shards' pools loaded, and all their rows replaced."""
    assert replaced_rows(8, 3, 1).tolist() == [5, 6, 7]
    assert replaced_rows(8, 3, 2).tolist() == [3, 6, 7]
    assert replaced_rows(12, 8, 3).tolist() == [2, 3, 5, 6, 7, 9, 10, 11]
    assert replaced_rows(8, 8, 4).tolist() == list(range(8))
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Line())
    config, drawn = config_of(online_ratio=0.5), []
    for shards in (1, 2):
        data = dataclasses.replace(config.data, shards=shards)
        online = online_of(tmp_path / str(shards), dataclasses.replace(config, data=data))
        (tmp_path / str(shards)).mkdir()
        online.rewind(None)
        run(online, range(5))
        batch: Any = next(online.mixed(offline(), 6))
        assert (batch["final_reward"] == 77).tolist() == ([True] * (4 // shards) + [False] * (4 // shards)) * shards
        drawn.append(batch["rewards"][batch["final_reward"] != 77])
    np.testing.assert_array_equal(*drawn)


def test_an_episode_is_cut_as_by_a_time_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a phase that is one episode in an environment without an end, which nothing says."""
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Line())
    online = online_of(tmp_path, config_of(max_steps=4))
    online.rewind(None)
    told = run(online, range(5))
    online.sync()
    records = read(tmp_path / "replay")
    lengths = np.diff(np.append(np.flatnonzero(records["first"]), len(records))) - 1
    assert lengths.max() == 4
    over = np.flatnonzero(records["terminated"] | records["truncated"])
    full = [end for end in over if records["state"][end, 1] == 4 and not records["terminated"][end]]
    assert full
    assert records["truncated"][full].all()
    assert [4.0] in [list(one.get("online/length", [])) for one in told]
    resumed = online_of(tmp_path, config_of(max_steps=4))
    resumed.rewind(online.position())
    run(resumed, range(5, 9))
    (tmp_path / "untouched").mkdir()
    untouched = online_of(tmp_path / "untouched", config_of(max_steps=4))
    untouched.rewind(None)
    run(untouched, range(9))
    assert resumed.position() == untouched.position()
    assert "has not ended" not in capsys.readouterr().out
    monkeypatch.setattr("qchunk.online.player.ENDLESS", 5)
    limited = online_of(tmp_path / "limited", config_of(max_steps=6))
    (tmp_path / "limited").mkdir()
    limited.rewind(None)
    run(limited, range(10))
    assert "has not ended" not in capsys.readouterr().out, "no advice to set what is set"
    (tmp_path / "endless").mkdir()
    endless = online_of(tmp_path / "endless")
    endless.rewind(None)
    run(endless, range(10))
    said = capsys.readouterr().out
    assert (
        "has not ended after 5 steps; if the environment has no time limit, cut episodes with online.max_steps" in said
    )


def test_an_episode_that_would_have_ended_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same observations and rewards of an environment whose time limit was changed meanwhile."""
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Line())
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(1))
    position = saved(online)
    assert len(read(tmp_path / "replay")) > 2
    step = Line.step

    def shorter(line: Line, action: np.ndarray) -> Step:
        return dataclasses.replace(step(line, action), truncated=line.t == 2)

    monkeypatch.setattr(Line, "step", shorter)
    resumed = online_of(tmp_path)
    resumed.rewind(position)
    with pytest.raises(DataError, match="online episode 0: truncated at its step 2 is True, False in"):
        run(resumed, range(1, 2))
