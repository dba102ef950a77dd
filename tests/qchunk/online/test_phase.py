"""The online phase: what is executed and recorded, that going on anywhere repeats it, and how batches are mixed."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.config.load import load
from chunkwise.envs.environment import Observation, Step
from chunkwise.errors import ConfigError, DataError, MismatchError, NonFiniteError, RunError
from chunkwise.state import TrainState
from qchunk.config import AgentConfig, DataConfig, EvalConfig, OnlineConfig, QChunkConfig
from qchunk.envs import simulators
from qchunk.online.phase import Online, online_rows
from qchunk.online.replay import read
from qchunk.train import QChunkTask
from tests import kill
from tests.qchunk.online.test_replay import Episodes, dataset_of, episode_of

TASK = "cube-single-play-singletask-task2-v0"
STATE: Any = TrainState(step=0, params={}, opt_state={}, target={})
NORM = dataset_of(Episodes([episode_of(9, "cut", 0)]))


def config_of(**online: Any) -> QChunkConfig:
    """Chunks of 3; 20 environment steps from update 4 on, in stretches of 2."""
    settings = {"env": TASK, "steps": 20, "start": 4, "interval": 2} | online
    base = OnlineConfig(**settings)
    updates = base.start + (base.steps - base.warmup) * base.updates_per_step
    return QChunkConfig(
        train=TrainConfig(steps=updates, batch_size=8),
        data=DataConfig(path="none", observation="state"),
        agent=AgentConfig(horizon=3, discount=0.9, hidden_sizes=(4,)),
        online=base,
    )


class Line:
    """Environment whose state is (seed, t, what the actions add up to); it is cut at 7, or ends when the sum is 2."""

    drift = 0.0
    looked: ClassVar[list[int]] = []
    """When images were taken, by any of them."""
    fps = 10
    action_dim = 2

    did: ClassVar[list[tuple[int, int, str]]] = []
    """Which of them, in which thread, did what."""

    def __init__(self) -> None:
        self.t, self.total, self.seed = 0, 0.0, 0
        self.number = len(self.did)
        self.did.append((self.number, threading.get_ident(), "make"))

    def reset(self, seed: int) -> Observation:
        self.did.append((self.number, threading.get_ident(), "reset"))
        self.seed, self.t, self.total = seed, 0, 0.0
        return self.observation()

    def step(self, action: np.ndarray) -> Step:
        self.did.append((self.number, threading.get_ident(), "step"))
        self.t, self.total = self.t + 1, self.total + float(action.sum()) + self.drift
        success = self.total >= 2
        return Step(self.observation(), -0.1 * self.t, success, terminated=success, truncated=self.t == 7)

    def state(self) -> np.ndarray:
        return np.array([self.seed % 1000, self.t, self.total])

    def clip(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, -1, 1).astype(np.float32)

    def observation(self) -> Observation:
        state = self.state().astype(np.float32)
        return {"state": state, "unused": state, "qpos": np.array([self.t / 2, 0.5], np.float32)}

    def images(self) -> Observation:
        """The first shows t, the second the sum of actions."""
        self.looked.append(self.t)
        self.did.append((self.number, threading.get_ident(), "images"))
        shown = {"side": int(100 + 20 * self.total), "top": self.t}
        return {name: np.full((2, 3, 3), value % 256, np.uint8) for name, value in shown.items()}

    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        self.did.append((self.number, threading.get_ident(), "close"))


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Line())


def policy_of(state: Any) -> Any:
    """Chunks of three actions that depend on what is seen and on the key."""

    def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
        seen = observations["state"][:, 1].astype(int).tolist()
        rngs = [np.random.default_rng([seed, t]) for seed, t in zip(seeds.tolist(), seen, strict=True)]
        return np.stack([rng.uniform(-0.5, 0.9, (3, 2)) for rng in rngs])

    return policy


def online_of(folder: Path, config: QChunkConfig | None = None) -> Online:
    return Online(config_of() if config is None else config, NORM, folder, policy_of)


def never() -> bool:
    return False


def saved(online: Online) -> dict[str, Any]:
    """Its position, as a checkpoint has it."""
    online.sync()
    return online.position()


def run(online: Online, rounds: range) -> list[Any]:
    return [online.interact(STATE, 4 + 2 * i, never) for i in rounds]


def test_each_environment_has_a_thread_of_its_own_and_is_closed(tmp_path: Path) -> None:
    """A GL context belongs to one thread."""
    Line.did.clear()
    online = online_of(tmp_path, config_of(num_envs=2))
    online.rewind(None)
    run(online, range(4))
    online.close()
    env, thread = ({did[i] for did in Line.did} for i in (0, 1))
    assert (len(env), len(thread), threading.get_ident() in thread) == (2, 2, False)
    for one in env:
        assert len({where for who, where, _ in Line.did if who == one}) == 1
        assert [what for who, _, what in Line.did if who == one] == ["make", "reset", *4 * ["step"], "close"]


def test_chunks_are_executed_whole_and_a_new_episode_begins_with_a_new_one(tmp_path: Path) -> None:
    online = online_of(tmp_path)
    online.rewind(None)
    ended = run(online, range(10))
    position = saved(online)
    records = read(tmp_path / "replay")
    assert position["rows"] == len(records) == 20 + online.replays[0].episodes
    firsts = np.flatnonzero(records["first"])
    ends = np.append(firsts[1:], len(records))
    over = records["terminated"] | records["truncated"]
    assert over.sum() >= 2
    np.testing.assert_array_equal(firsts[1:], np.flatnonzero(over)[: len(firsts) - 1] + 1)
    assert len(set(records["state"][firsts, 0])) == len(firsts)  # each from a seed of its own
    asked = 0
    for begin, end in zip(firsts, ends, strict=True):
        episode = records[begin:end]
        np.testing.assert_array_equal(episode["state"][:, 1], np.arange(len(episode)))
        sums = np.cumsum(episode["action"].astype(np.float64).sum(axis=1))
        np.testing.assert_allclose(episode["state"][:, 2], sums, atol=1e-5)
        np.testing.assert_allclose(episode["reward"][1:], -0.1 * np.arange(1, len(episode)))
        asked += -(-(len(episode) - 1) // 3)  # a chunk is asked for every 3 steps, and at each start
    assert asked > 20 / 3
    values = {name: [x for one in ended for x in one[name]] for name in ended[0]}
    lengths = ends - firsts - 1
    assert values["online/length"] == lengths[: over.sum()].tolist()
    assert values["online/success"] == records["terminated"][over].astype(float).tolist()
    np.testing.assert_allclose(values["online/return"], [-0.1 * n * (n + 1) / 2 for n in lengths[: over.sum()]])


def test_what_is_executed_is_what_was_asked_for_in_that_episode(tmp_path: Path) -> None:
    """Each chunk from what is seen then, by a key of its own, clipped; its rest is dropped where the episode ends."""
    asked: list[tuple[float, float, np.ndarray]] = []  # seed and t of the state that was seen, and the chunk
    keys: list[int] = []

    def noted(state: Any) -> Any:
        def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
            (seed, t, _), drawn = observations["state"][0], policy_of(state)(observations, seeds) * 1.5
            assert {name: len(seen) for name, seen in observations.items()} == {"state": 1, "qpos": 1}
            asked.append((seed, t, drawn[0]))
            keys.extend(seeds.tolist())
            return drawn

        return policy

    online = Online(config_of(), NORM, tmp_path, noted)
    online.rewind(None)
    run(online, range(10))
    online.sync()
    records = read(tmp_path / "replay")
    firsts = np.flatnonzero(records["first"])
    dropped, expected_keys, taken = 0, [], 0
    for episode, (begin, end) in enumerate(zip(firsts, np.append(firsts[1:], len(records)), strict=True)):
        seed = np.random.SeedSequence([0, episode, 1]).generate_state(1)[0] % 1000
        assert set(records["state"][begin:end, 0]) == {np.float32(seed)}
        length = end - begin - 1
        chunks = [asked.pop(0) for _ in range(0, length, 3)]
        assert [(seed, t) for seed, t, _ in chunks] == [(seed, t) for t in range(0, length, 3)]
        actions = np.clip(np.concatenate([chunk for *_, chunk in chunks]), -1, 1).astype(np.float32)
        np.testing.assert_array_equal(records["action"][begin + 1 : end], actions[:length])
        dropped += end < len(records) and length % 3 > 0
        expected_keys += [np.random.SeedSequence([0, taken + t, 2]).generate_state(1)[0] for t in range(0, length, 3)]
        taken += length
    assert not asked
    assert dropped, "no episode ended inside a chunk"
    assert keys == expected_keys


def test_another_seed_meets_other_episodes_and_draws(tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        config = dataclasses.replace(config_of(online_ratio=0.5), run=RunConfig(seed=seed))
        online = online_of(tmp_path / str(seed), config)
        online.rewind(None)
        run(online, range(10))
        online.sync()
        records = read(tmp_path / str(seed) / "replay")
        mixed: Any = next(online.mixed(offline(), 5))
        found.append((set(records["state"][:, 0]), set(records["action"][:, 0]) - {0}, set(mixed["rewards"][4:, 0])))
    for one, other in zip(*found, strict=True):
        assert one
        assert one != other
    assert not found[0][0] & found[1][0], "seeds of environments"
    assert not found[0][1] & found[1][1], "actions"


@pytest.mark.parametrize("done", range(10))
def test_going_on_from_any_position_repeats_the_rest(tmp_path: Path, done: int) -> None:
    """After any stretch: in mid-chunk, in mid-episode, or where an episode has ended."""
    untouched = online_of(tmp_path / "a")
    (tmp_path / "a").mkdir()
    untouched.rewind(None)
    run(untouched, range(10))
    expected = saved(untouched)

    (tmp_path / "b").mkdir()
    killed = online_of(tmp_path / "b")
    killed.rewind(None)
    run(killed, range(done))
    position = saved(killed)
    run(killed, range(done, min(done + 2, 10)))  # later than the save
    killed.sync()
    resumed = online_of(tmp_path / "b")
    resumed.rewind(position)
    assert (resumed.replays[0].steps, resumed.replays[0].starts) == (2 * done, resumed.replays[0].starts)
    run(resumed, range(done, 10))
    assert saved(resumed) == expected
    assert (tmp_path / "a/replay/frames.bin").read_bytes() == (tmp_path / "b/replay/frames.bin").read_bytes()
    starts = np.arange(untouched.replays[0].starts)
    found, expected = (online.replays[0].gather(starts)["actions"] for online in (resumed, untouched))
    np.testing.assert_array_equal(found, expected)


def test_a_stretch_broken_off_leaves_the_position_of_before(tmp_path: Path) -> None:
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(3))
    before = saved(online)
    asked = iter([False, True])
    assert online.interact(STATE, 10, lambda: next(asked)) is None
    assert saved(online) == before


def test_images_are_stored_as_seen_and_drawn_with_their_frames(tmp_path: Path) -> None:
    """An image shows t or the sum of actions; a run that goes on takes the last one from the log."""

    def policy_of_images(state: Any) -> Any:
        def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
            assert (observations["images"][0, 0] == observations["state"][0, 1]).all()
            return policy_of(state)(observations, seeds)

        return policy

    view = simulators.View(cameras=("top", "side"), render_size=(9, 9), image_size=(2, 3))
    config = config_of(env="aloha-transfer-cube")
    dataset = dataclasses.replace(NORM, cameras=view.cameras, image_size=view.image_size)

    def begun(folder: Path, position: Any = None) -> Online:
        online = Online(config, dataset, folder, policy_of_images, view)
        online.rewind(position)
        return online

    online = begun(tmp_path)
    run(online, range(3))
    position = saved(online)
    Line.looked.clear()
    assert position["render_size"] == [9, 9]
    other = dataclasses.replace(view, render_size=(18, 9))
    with pytest.raises(
        MismatchError, match=r"^eval.render_size is \[18, 9\], and \[9, 9\] where .* --eval.render-size 9 9"
    ):
        Online(config, dataset, tmp_path, policy_of_images, other).rewind(position)
    of_gymnasium = config_of(env="Pendulum-v1")  # what it observes has its own size, whatever it is asked for
    Online(of_gymnasium, dataset, tmp_path, policy_of_images, other).rewind(position)
    rendered = dataclasses.replace(other, cameras=("render", "side"))
    with pytest.raises(MismatchError, match=r"^eval.render_size is \[18, 9\], and \[9, 9\] where"):
        Online(of_gymnasium, dataset, tmp_path, policy_of_images, rendered).rewind(position)
    of_before = {name: value for name, value in position.items() if name != "render_size"}
    Online(config, dataset, tmp_path, policy_of_images, other).rewind(of_before)
    online = begun(tmp_path, position)
    run(online, range(3, 10))
    online.sync()
    records = read(tmp_path / "replay")
    assert len(Line.looked) == len(records) - position["rows"]
    assert all(len({did[1] for did in Line.did if did[0] == number}) == 1 for number, *_ in Line.did)
    assert (records["images"][:, 0] == records["state"][:, 1][:, None, None, None]).all()
    batch: Any = online.replays[0].gather(np.arange(online.replays[0].starts))
    for name in ("observations", "next_observations"):
        images, t = batch[name]["images"], dataset.observation_norm.invert(batch[name]["state"])[:, 1]
        assert images.shape == (online.replays[0].starts, 2, 2, 3, 3)
        assert (images[:, 0] == np.round(t)[:, None, None, None]).all()
        assert len(np.unique(images[:, 1])) > 10
    with pytest.raises(ConfigError, match=f"{TASK} shows no images"):
        Online(config_of(), dataset, tmp_path, policy_of, view)
    evaluated = dataclasses.replace(config_of(), online=None, eval=EvalConfig(env=TASK))
    with pytest.raises(ConfigError, match=f"{TASK} shows no images"):  # before any training
        QChunkTask(evaluated, tmp_path, dataset)


def test_a_run_goes_on_in_an_environment_that_shows_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log keeps float32: the policy acts by that, and the environment is compared with it."""

    def wide(line: Line) -> Observation:
        return {"state": line.state() + 1e-9, "qpos": np.array([line.t / 3, 0.1])}

    monkeypatch.setattr(Line, "observation", wide)
    untouched = online_of(tmp_path / "untouched")
    untouched.rewind(None)
    run(untouched, range(6))
    stopped = online_of(tmp_path / "stopped")
    stopped.rewind(None)
    run(stopped, range(3))
    resumed = online_of(tmp_path / "stopped")
    resumed.rewind(saved(stopped))
    run(resumed, range(3, 6))
    assert saved(resumed) == saved(untouched)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            {"state": np.array([0.0, np.nan, 0.0])},
            rf"^the environment {TASK} \(reset with seed \d+, step 3\): step\(\) observed 'state' with 1 of 3 numbers",
        ),
        ({"reward": np.inf}, rf"^the environment {TASK} \(reset with seed \d+, step 3\): step\(\) gave the reward inf"),
        ({"reward": np.ones(1)}, r"step 3\): step\(\) gave the reward array\(\[1\.\]\); expected one number or bool"),
        ({"reward": None}, r"step 3\): step\(\) gave the reward None; expected one number"),
    ],
)
def test_an_environment_that_gives_nan_ends_the_run_before_it_is_learnt_from(
    broken: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Line.step

    def step(line: Line, action: np.ndarray) -> Step:
        found = whole(line, action)
        reward = broken.get("reward", found.reward)
        seen = {**found.observation, **{name: value for name, value in broken.items() if name != "reward"}}
        return dataclasses.replace(found, observation=seen, reward=reward) if line.t == 3 else found

    monkeypatch.setattr(Line, "step", step)
    online = online_of(tmp_path)
    online.rewind(None)
    with pytest.raises(RunError, match=words):
        run(online, range(2))
    online.sync()
    assert np.isfinite(read(tmp_path / "replay")["state"]).all()


def test_a_policy_that_answers_nan_ends_the_run_before_it_is_executed(tmp_path: Path) -> None:
    asked: list[int] = []

    def policy(observations: Any, seeds: np.ndarray) -> np.ndarray:
        asked.append(len(seeds))
        return np.full((len(seeds), 3, 2), np.nan if len(asked) == 2 else 0.1, np.float32)

    online = Online(config_of(), NORM, tmp_path, lambda state: policy)
    online.rewind(None)
    with pytest.raises(NonFiniteError, match=f"^{TASK}: the policy answered with NaN or Inf in online environment 0"):
        run(online, range(4))
    online.sync()
    assert np.isfinite(read(tmp_path / "replay")["action"]).all()


def test_an_environment_that_does_not_repeat_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = online_of(tmp_path)
    online.rewind(None)
    run(online, range(1))
    position = saved(online)
    monkeypatch.setattr(Line, "drift", 1e-3)
    resumed = online_of(tmp_path)
    resumed.rewind(position)
    with pytest.raises(DataError, match="does not repeat online episode 0: state at its step 1 is"):
        run(resumed, range(1, 2))


def test_the_warm_up_comes_before_the_first_online_update(tmp_path: Path) -> None:
    online = online_of(tmp_path, config_of(warmup=6))
    online.rewind(None)
    assert (online.start, online.every) == (4, 2)
    online.interact(STATE, 4, never)
    assert online.replays[0].steps == 8
    online.interact(STATE, 6, never)
    assert online.replays[0].steps == 10
    config = config_of(warmup=6)
    assert [config.env_steps(step) for step in (0, 4, 5, 6, 7, 18)] == [0, 0, 8, 8, 10, 20]


def offline() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    while True:
        b = 8
        seen = {"qpos": np.zeros((b, 2), np.float32), "state": np.zeros((b, 3), np.float32)}
        seen |= {"images": None, "depth_images": None}
        yield {
            "observations": seen,
            "next_observations": seen,
            "actions": rng.normal(size=(b, 3, 2)).astype(np.float32),
            "rewards": np.full((b, 3), 77, np.float32),
            "masks": np.ones((b, 3), np.float32),
            "valid": np.ones((b, 3), np.float32),
            "terminals": np.zeros((b, 3), bool),
            "is_positive": np.ones(b, bool),
            "final_reward": np.full(b, 77, np.float32),
        }


def test_batches_hold_online_rows_by_ratio_and_are_functions_of_the_step(tmp_path: Path) -> None:
    online = online_of(tmp_path, config_of(online_ratio=0.5))
    online.rewind(None)
    assert (next(online.mixed(offline(), 0))["final_reward"] == 77).all()  # nothing is there yet
    run(online, range(5))
    batches = online.mixed(offline(), 6)
    first: Any = next(batches)
    second: Any = next(batches)
    for batch in (first, second):
        assert (batch["final_reward"] == 77).tolist() == [True] * 4 + [False] * 4
        plain = next(offline())
        for key, value in batch.items():
            if not isinstance(value, dict):
                assert (value.shape, value.dtype) == (plain[key].shape, plain[key].dtype), key
    assert not np.array_equal(first["rewards"][4:], second["rewards"][4:])
    again: Any = next(online.mixed(offline(), 7))
    np.testing.assert_array_equal(again["rewards"], second["rewards"])
    np.testing.assert_array_equal(again["observations"]["state"][4:], second["observations"]["state"][4:])


def test_without_a_ratio_every_transition_counts_alike() -> None:
    rng = np.random.default_rng(0)
    online = config_of().online
    assert online is not None
    counts = [online_rows(online, 128, 250, 750, rng) for _ in range(2000)]
    np.testing.assert_allclose(np.mean(counts), 32, atol=4 * np.sqrt(128 * 0.25 * 0.75 / 2000))
    np.testing.assert_allclose(np.var(counts), 24, rtol=0.15)
    assert online_rows(online, 128, 0, 750, rng) == 0
    assert online_rows(dataclasses.replace(online, online_ratio=0.3), 10, 1, 750, rng) == 3


def test_phases_that_do_not_add_up_are_refused() -> None:
    config = config_of()
    with pytest.raises(ValueError, match=r"train\.steps is 23; expected 24: online\.start 4, and .* 1 for each of 20"):
        dataclasses.replace(config, train=dataclasses.replace(config.train, steps=23))
    with pytest.raises(ValueError, match=r"online\.steps 20 less online\.warmup 5 is 15; expected a multiple of 2"):
        config_of(warmup=5)
    for wrong, found in (({"steps": 25}, 25), ({"warmup": 5}, 5), ({"interval": 4}, 4)):
        expected = rf"online\.{next(iter(wrong))} is {found}; expected a multiple of online\.num_envs 3"
        with pytest.raises(ValueError, match=expected):
            config_of(**{"steps": 24, "interval": 6, "num_envs": 3} | wrong)
    both = r"steps is 25, online\.interval is 4; .*: --online\.steps 27 --online\.interval 6$"
    with pytest.raises(ValueError, match=both):
        config_of(steps=25, interval=4, num_envs=3)
    with pytest.raises(ValueError, match="num_envs is 0; expected a number above 0"):
        config_of(num_envs=0)
    with pytest.raises(ConfigError, match=r"train\.steps is 10; expected 900"):
        load(["--config", "configs/qchunk/debug_online.py", "--train.steps", "10"])


@pytest.mark.long
def test_sigkill_offline_online_and_in_a_save(tmp_path: Path) -> None:
    """More than an episode online; saves every ten updates find most chunks half executed."""
    options = ["--online.start", "60", "--online.steps", "230", "--train.steps", "270", "--eval.env", "None"]
    options += ["--train.eval-every", "0", "--checkpoint.every", "10"]
    counts = kill.run("configs/qchunk/debug_online.py", 2, tmp_path, options, seed=2)
    assert sum(counts.values()) >= 2
    assert len(read(tmp_path / "untouched/replay")) == 232


def test_the_environment_judges_as_the_recordings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = []
    monkeypatch.setattr(simulators, "make", lambda name, view, rules: told.append(rules) or Line())
    config = config_of()
    data = dataclasses.replace(config.data, task="cube-single-singletask-v0", sparse=True, success_timing="post")
    run(online_of(tmp_path, dataclasses.replace(config, data=data)), range(1))
    assert told == [simulators.Rules(sparse=True, success_timing="post")]
