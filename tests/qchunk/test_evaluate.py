"""Evaluation: which episodes run, what counts, that nothing depends on the number of environments, and videos."""

import contextlib
import dataclasses
import errno
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.data.sampling import Purpose
from chunkwise.envs import render
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.evaluate import Evaluation
from chunkwise.envs.workers import Run, Stretch, answer
from chunkwise.errors import ConfigError, NonFiniteError
from chunkwise.policies.execution import Execution
from qchunk import evaluate, train
from qchunk.config import EvalConfig, OnlineConfig
from qchunk.envs import simulators
from tests.qchunk import recordings
from tests.qchunk.online.test_replay import Episodes, dataset_of, episode_of
from tests.qchunk.online.test_replay import config_of as replay_config
from tests.qchunk.played import rollouts

TASK = "cube-single-play-singletask-task2-v0"


class Countdown:
    """Environment whose state is (seed, t). It succeeds at step `seed % 7 + 1` if seed is even, and is cut at 9."""

    fps = 10
    action_dim = 3

    def __init__(self) -> None:
        self.seed = self.t = 0
        self.log: list[tuple[int, list[float]]] = []

    def reset(self, seed: int) -> Observation:
        self.seed, self.t = seed, 0
        return self.observation()

    def step(self, action: np.ndarray) -> Step:
        assert self.t < 9, "stepped after the end"
        self.t += 1
        self.log.append((self.seed, action.tolist()))
        success = self.seed % 2 == 0 and self.t == self.seed % 7 + 1
        return Step(self.observation(), -1.0, success, terminated=success, truncated=self.t == 9)

    def state(self) -> np.ndarray:
        return np.array([self.seed, self.t], np.float64)

    def clip(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, -1, 1).astype(np.float32)

    def observation(self) -> Observation:
        return {"state": self.state().astype(np.float32), "qpos": np.array([self.t / 2, 0.5], np.float32)}

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None: ...


@pytest.fixture
def countdowns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Countdown]]:
    made: list[Countdown] = []

    def make(name: str, view: Any = None, rules: Any = None) -> Countdown:
        made.append(Countdown())
        return made[-1]

    monkeypatch.setattr(simulators, "make", make)
    seed_of = evaluate.seed_of

    def plain(purpose: Purpose, seed: int, *numbers: int) -> int:
        scene = purpose is Purpose.QCHUNK_EVALUATION_SCENE
        return 100 * seed + numbers[0] if scene else seed_of(purpose, seed, *numbers)

    monkeypatch.setattr(evaluate, "seed_of", plain)
    evaluate.close_environments()
    yield made
    evaluate.close_environments()


class Recorder:
    """Policy that keeps what it was asked; chunks of three actions (seed, t, 5 + i), the last one to be clipped."""

    def __init__(self) -> None:
        self.calls: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def __call__(self, observations: dict[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
        self.calls.append((observations["state"], observations["qpos"], seeds))
        state = np.repeat(observations["state"][:, None], 3, axis=1) / 1000
        return np.concatenate([state, np.full((len(state), 3, 1), 5.0)], axis=-1)


@pytest.mark.parametrize("num_envs", [1, 2, 4, 16])
def test_counts_lengths_and_returns(countdowns: list[Countdown], num_envs: int) -> None:
    result = evaluate.evaluate(Recorder(), TASK, seed=0, step=0, episodes=10, num_envs=num_envs, horizon=3)
    # Even episodes 0, 2, 4, 6, 8 succeed after 1, 3, 5, 7, 2 steps; odd ones are cut after 9.
    assert (len(result.outcomes), result.successes, result.mean("reward"), result.mean("length")) == (10, 5, -6.3, 6.3)
    assert [outcome["length"] for outcome in result.outcomes] == [1, 9, 3, 9, 5, 9, 7, 9, 2, 9]
    assert [outcome["seed"] for outcome in result.outcomes] == list(range(10))
    assert sum(len(env.log) for env in countdowns) == 63
    assert len(countdowns) == min(num_envs, 10), "one an episode at most"


def test_the_policy_sees_each_chunks_start_and_its_actions_are_clipped(countdowns: list[Countdown]) -> None:
    policy = Recorder()
    evaluate.evaluate(policy, TASK, seed=1, step=4, episodes=3, num_envs=2, horizon=3)
    # Episodes 100 (succeeds at step 3), 101 (cut at 9), 102 (at step 5), two environments.
    states = [state for call in policy.calls for state, key in zip(call[0].tolist(), call[2], strict=True) if key]
    assert sorted(states) == [[100, 0], [101, 0], [101, 3], [101, 6], [102, 0], [102, 3]]
    for state, qpos, _ in policy.calls:
        assert state.dtype == np.float32
        np.testing.assert_array_equal(qpos, np.stack([state[:, 1] / 2, [0.5, 0.5]], axis=1, dtype=np.float32))
    action = [action for env in countdowns for seed, action in env.log if seed == 101][4]
    np.testing.assert_allclose(action, [0.101, 0.003, 1.0], rtol=1e-6)


def test_draws_depend_on_seed_step_episode_and_chunk_alone(countdowns: list[Countdown]) -> None:
    """By hand: SeedSequence([seed, step, episode, 4, chunk]); whatever the number of environments."""

    def drawn(seed: int, step: int, num_envs: int) -> dict[tuple[int, int], int]:
        policy = Recorder()
        evaluate.evaluate(policy, TASK, seed=seed, step=step, episodes=3, num_envs=num_envs, horizon=3)
        found = {}
        for states, _, seeds in policy.calls:
            for (scene, t), key in zip(states.tolist(), seeds.tolist(), strict=True):
                if key:  # 0 fills the row of an environment that has no episode
                    found[int(scene) - 100 * seed, int(t) // 3] = key
        return found

    expected = {
        (episode, chunk): int(np.random.SeedSequence([1, 4, episode, 4, chunk]).generate_state(1)[0])
        for episode, chunk in [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    }
    assert drawn(1, 4, 1) == drawn(1, 4, 2) == drawn(1, 4, 3) == expected
    assert not set(expected.values()) & set(drawn(1, 5, 2).values())
    assert not set(expected.values()) & set(drawn(2, 4, 2).values())


def test_a_policy_is_late_and_is_told_what_runs_meanwhile(countdowns: list[Countdown]) -> None:
    """Episode 101 lasts 9 steps: chunks of 3, begun every 2 steps, one step late."""
    told: list[Any] = []

    class Completed(Recorder):
        def __call__(self, observations: Any, seeds: Any, committed: Any = None) -> np.ndarray:
            told.append(
                [
                    (np.round(one.actions[:, 1:2].astype(float), 3).ravel().tolist(), one.weights.tolist())
                    for one in committed
                ]
            )
            return super().__call__(observations, seeds)

    policy = Completed()
    execution = Execution(how="realtime", execute=2, delay=1)
    settings: Any = {"seed": 1, "step": 0, "episodes": 2, "num_envs": 2, "horizon": 3}
    evaluate.evaluate(policy, TASK, **settings, execution=execution)
    rows = [
        (state, row)
        for (states, _, keys), committed in zip(policy.calls, told, strict=True)
        for state, key, row in zip(states.tolist(), keys, committed, strict=True)
        if key and state[0] == 101
    ]
    assert [state for state, _ in rows] == [[101, t] for t in (0, 2, 4, 6, 8)]
    # Action i of a chunk is (seed / 1000, t / 1000, 5), t the step at which it was begun.
    made = [round(1000 * action[1]) for env in countdowns for seed, action in env.log if seed == 101]
    assert made == [0, 0, 0, 2, 2, 4, 4, 6, 6], "three of the first chunk, then two of each"
    assert [row for _, row in rows] == [([], []), *(([t / 1000], [1.0]) for t in (0, 2, 4, 6))]
    with pytest.raises(ConfigError, match="--delay is 2; expected at most 1, half of the 3 actions of a chunk"):
        evaluate.evaluate(policy, TASK, **settings, execution=Execution(delay=2))


def test_bad_chunks_are_refused(countdowns: list[Countdown]) -> None:
    def chunks(value: float, length: int) -> Any:
        return lambda observations, seeds: np.full((2, length, 3), value)

    with pytest.raises(ValueError, match=r"returned shape \(2, 4, 3\); expected \(2, 3, actions\)"):
        evaluate.evaluate(chunks(0.0, 4), TASK, seed=0, step=0, episodes=2, num_envs=2, horizon=3)
    with pytest.raises(NonFiniteError, match=r"^episode_000\d: the policy of step 6 answered with NaN or Inf after 0"):
        evaluate.evaluate(chunks(np.nan, 3), TASK, seed=0, step=6, episodes=2, num_envs=2, horizon=3)


def test_a_policy_sees_normalised_observations_and_its_actions_are_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: actions (a - 0.5) / 3 and states (s + 1) / 0.7 are what the networks know."""
    dataset = dataset_of(Episodes([episode_of(9, "cut", 0)]))
    task = train.QChunkTask(replay_config(), tmp_path, dataset)
    asked: list[Any] = []

    def program(params: Any, observations: Any, seeds: Any) -> Any:
        asked.append((params, observations, seeds))
        return np.array([[[-1.0, 1.0], [0.0, 0.5], [2.0, -0.5]]], np.float32)

    seen = {"state": np.array([[-1.0, 0.4, 6.0]], np.float32), "qpos": np.array([[3.0, 4.0]], np.float32)}
    monkeypatch.setattr(task._policy, "_program", program)
    chunk = task._policy.with_weights("weights", 3).chunks(seen, np.array([17], np.uint32))
    np.testing.assert_allclose(chunk, [[[-2.5, 3.5], [0.5, 2.0], [6.5, -1.0]]], rtol=1e-6)
    ((params, observations, seeds),) = asked
    assert (params, seeds.tolist()) == ("weights", [17])
    np.testing.assert_allclose(observations["state"], [[0.0, 2.0, 10.0]], rtol=1e-6)
    assert set(observations) == {"state"}
    np.testing.assert_array_equal(seen["state"], np.array([[-1.0, 0.4, 6.0]], np.float32))


def _feedback(observations: dict[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
    """Moves the gripper towards the cube: a function of the observation, so that the scene matters."""
    state = observations["state"]
    actions = np.zeros((len(state), 5, 5))
    actions[:, :, :3] = (state[:, None, 19:22] - state[:, None, 12:15])[:, :, :] / 2
    return actions


def test_the_real_environment_gives_the_same_episodes_again() -> None:
    settings: dict[str, Any] = {"seed": 5, "step": 0, "episodes": 2, "horizon": 5}
    one, other = (rollouts(_feedback, TASK, **settings, num_envs=n) for n in (1, 2))
    for first, again in zip(one, other, strict=True):
        assert (first.seed, first.success, first.init_hash) == (again.seed, again.success, again.init_hash)
        assert (first.success, first.rewards.sum(), again.rewards.sum()) == (False, -200.0, -200.0)
        np.testing.assert_array_equal(first.actions, again.actions)
        assert first.actions.shape == (200, 5)
    assert not np.array_equal(one[0].actions, one[1].actions)


def test_a_success_ends_the_episode() -> None:
    env: Any = simulators.make(TASK)
    env.reset(0)
    qpos = env.info["qpos"].copy()
    qpos[14:17] = (0.50, 0.0, 0.02)  # the goal of task 2
    env.gym.unwrapped.set_state(qpos, env.info["qvel"])
    stretch = answer(env, Run(np.zeros((5, 5), np.float32)), every_frame=False)
    assert isinstance(stretch, Stretch)
    # OGBench judges a single task by the state before the action, and set_state leaves its flag of success as it was:
    # the second of five steps is the first that is a success, and the reward is 0 at the goal.
    assert (stretch.over, stretch.success.tolist(), stretch.rewards.tolist()) == (True, [False, True], [0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [(TASK, ("state", 28), 5), (TASK, ("qpos", 7), 5), ("aloha-transfer-cube", ("qpos", 14), 14)],
)
def test_widths_of_dataset_and_environment(name: str, observation: tuple[str, int], action: int) -> None:
    simulators.require_widths("eval.env", name, "d", observation=observation, action=action)
    key, width = observation
    for other, more in (((key, width - 1), action), (observation, action + 1)):
        found = f"{key} {other[1]} and action {more} there"
        with pytest.raises(
            ConfigError, match=f"^eval.env is '{name}', .*{key} of width {width} .*{action}; .* d, found {found}"
        ):
            simulators.require_widths("eval.env", name, "d", observation=other, action=more)


@pytest.mark.parametrize(
    ("name", "task", "taken"),
    [
        (TASK, TASK, True),
        ("ogbench/cube-single-singletask-task2-v0", TASK, True),
        ("cube-single-noisy-singletask-task2-v0", TASK, True),
        (TASK, None, True),
        (TASK, "cube-single-play-singletask-v0", True),
        ("ogbench/cube-single-singletask-v0", TASK, True),
        ("cube-double-singletask-v0", TASK, False),
        ("my_env:Cart", TASK, True),
        (TASK, "cube-single-play-singletask-task4-v0", False),
        ("cube-double-play-singletask-task2-v0", TASK, False),
    ],
)
def test_an_environment_is_of_the_task_whose_rewards_are_learnt_from(name: str, task: str | None, taken: bool) -> None:
    with contextlib.nullcontext() if taken else pytest.raises(ConfigError, match=f"^data.task is '{task}', .*{name}"):
        simulators.require_task("eval.env", name, task)


def test_another_array_of_the_environment_that_has_the_datasets_width_is_named() -> None:
    """OGBench's observations are what its environments show as `state`; `qpos` there is another array."""
    with pytest.raises(ConfigError, match=r"qpos of width 7; expected 28, .*\. Its state .* --data.observation state$"):
        simulators.require_widths("eval.env", TASK, "d", observation=("qpos", 28), action=5)


def test_all_arrays_that_the_online_phase_keeps_are_compared_before_the_first_update() -> None:
    asked: Any = {"observation": ("state", 28), "action": 5}
    simulators.require_widths("online.env", TASK, "d", kept={"qpos": 7, "state": 28}, **asked)
    for kept, there in (({"qpos": 6, "state": 28}, "{'qpos': 7, 'state': 28}"), ({"elsewhere": 3}, "neither")):
        with pytest.raises(ConfigError, match=f"^online.env is '{TASK}', which shows {there} beside state; expected"):
            simulators.require_widths("online.env", TASK, "d", kept=kept, **asked)


@pytest.mark.parametrize("field", ["eval.env", "online.env"])
def test_a_dataset_of_another_width_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    config = recordings.config(recordings.dataset(tmp_path / "data"), observation="qpos", action_norm="min_max")
    part = {
        "eval.env": {"eval": EvalConfig(env=TASK)},
        "online.env": {"online": OnlineConfig(env=TASK, steps=20, start=80, interval=5)},
    }[field]
    config = dataclasses.replace(config, run=RunConfig(dir=str(tmp_path / "run")), **part)
    monkeypatch.setattr(train, "QChunkTask", lambda *_: pytest.fail("it was made"))
    with pytest.raises(
        ConfigError, match=rf"^{field} is '{TASK}', .* 7 .* 5; .*/data, found qpos 6 and action 4 there"
    ):
        train.main(config, "widths")
    monkeypatch.setattr(simulators, "require_widths", lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception, match="it was made"):
        train.main(dataclasses.replace(config, run=RunConfig(dir=str(tmp_path / "other"))), "widths")


@pytest.mark.long
@pytest.mark.usefixtures("can_render")
def test_a_video_of_ogbench(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "videos" / "a.mp4"
    settings: Any = {"seed": 5, "step": 0, "episodes": 1, "num_envs": 1, "horizon": 5}
    played = rollouts(_feedback, TASK, **settings)
    short = {"actions": played[0].actions[:30], "rewards": played[0].rewards[:30]}
    played = [dataclasses.replace(played[0], **short)]
    opener = functools.partial(simulators.make, TASK, video=True)
    assert render.write_video(opener, played, path, report=said.append) == path, said
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 1 + 10 + 7  # 30 steps, every third; a second more at 7 a second
    assert frames[0].shape == (200, 200, 3)
    np.testing.assert_allclose(frames[-1][:3].mean(axis=(0, 1)), render.FAILURE, atol=12)
    for frame in (frames[0], frames[-1]):
        assert frame[8:-8, 8:-8].std() > 20  # a scene, not a flat colour
    assert np.abs(frames[0].astype(float) - frames[-1])[8:-8, 8:-8].max() > 50  # which moves


class Mine(Countdown):
    """An environment of the user's own."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec


@pytest.mark.parametrize(("name", "task"), [("", ""), (":push-t", "push-t")])
def test_an_environment_of_the_users_own(name: str, task: str) -> None:
    view = simulators.View(cameras=("top",), render_size=(9, 12), image_size=(3, 4))
    env = simulators.make(f"tests.qchunk.test_evaluate:Mine{name}", view)
    assert isinstance(env, Mine)
    found = (env.spec.task, env.spec.cameras, env.spec.render_size, env.spec.image_size)
    assert found == (task, ("top",), (9, 12), (3, 4))
    done = rollouts(Recorder(), "tests.qchunk.test_evaluate:Mine", seed=1, step=0, episodes=2, num_envs=1, horizon=3)
    assert {len(rollout.actions) for rollout in done} <= set(range(1, 10))
    with pytest.raises(
        ConfigError, match=r"^eval.env is 'tests.*:Mine', which shows \['qpos', 'state'\]; expected arm"
    ):
        simulators.require_widths("eval.env", "tests.qchunk.test_evaluate:Mine", "d", observation=("arm", 2), action=3)


def test_ogbench_shows_no_images() -> None:
    view = simulators.View(cameras=("front",), render_size=(8, 8), image_size=(8, 8))
    with pytest.raises(ConfigError, match=f"{TASK} shows no images"):
        simulators.make(TASK, view)


def test_a_seed_that_no_run_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for seed in (-1, 1 << 63):
        with pytest.raises(SystemExit) as ended:
            evaluate.main([str(tmp_path), "--seed", str(seed)])
        assert ended.value.code == 64
        assert f"--seed: expected 0 to 2^63 - 1, found '{seed}'" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path), "--seed", str((1 << 63) - 1)]) == 64
    assert "--seed" not in capsys.readouterr().err, "then the folder is looked at, which is no run"


def test_nothing_is_played_for_a_file_that_cannot_be_and_what_was_played_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    outcome = {"seed": 0, "init_hash": "h", "success": True, "length": 2, "reward": 1.0}
    played: list[int] = []

    def play(*_: Any, **__: Any) -> Evaluation:
        played.append(1)
        return Evaluation(step=4, weights="", outcomes=(outcome,))

    own = SimpleNamespace(final_episodes=3, env=None, max_steps=None)
    policy = SimpleNamespace(step=4, config=SimpleNamespace(eval=own, run=SimpleNamespace(seed=0)))
    monkeypatch.setattr(evaluate, "load_policy", lambda *_, **__: policy)
    monkeypatch.setattr(evaluate, "QChunkPolicy", SimpleNamespace)
    monkeypatch.setattr(evaluate, "evaluate_run", play)
    (tmp_path / "file").write_text("")
    for out, code, message in (
        (tmp_path, 64, f"error: {tmp_path} is a folder; expected the name of a file"),
        (tmp_path / "file/o.json", 74, f"error: cannot write {tmp_path / 'file/o.json'}: Not a directory"),
    ):
        assert evaluate.main([str(tmp_path), "--out", str(out)]) == code
        assert capsys.readouterr().err.startswith(message)
    assert not played

    def fill_up(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Evaluation, "save", fill_up)
    assert evaluate.main([str(tmp_path), "--out", str(tmp_path / "o.json")]) == 74
    said = capsys.readouterr()
    assert "step 4: 1 of 1 episodes succeeded" in said.out
    assert f"error: cannot write {tmp_path / 'o.json'}: No space left on device" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_what_was_played_is_written_before_its_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outcome = {"seed": 0, "init_hash": "h", "success": True, "length": 2, "reward": 1.0}
    out, filmed = tmp_path / "o.json", []

    def play(*_: Any, done: Any, **__: Any) -> Evaluation:
        done(SimpleNamespace(number=0), "the rollout")
        return Evaluation(step=4, weights="", outcomes=(outcome,))

    def film(env: str, played: dict[int, Any], path: Path, count: int, **_: Any) -> None:
        filmed.append((env, played, path, count, out.exists()))
        raise OSError(errno.ENOSPC, "No space left on device")

    own = SimpleNamespace(final_episodes=3, env="own", max_steps=None)
    policy = SimpleNamespace(step=4, config=SimpleNamespace(eval=own, run=SimpleNamespace(seed=0)))
    monkeypatch.setattr(evaluate, "load_policy", lambda *_, **__: policy)
    monkeypatch.setattr(evaluate, "QChunkPolicy", SimpleNamespace)
    monkeypatch.setattr(evaluate, "evaluate_run", play)
    monkeypatch.setattr(evaluate.simulators, "rules_of", lambda _: evaluate.simulators.USUAL)
    monkeypatch.setattr(evaluate, "write_video", film)
    with pytest.raises(OSError, match="No space left"):
        evaluate.main([str(tmp_path), "--out", str(out), "--video", "2"])
    assert filmed == [("own", {0: "the rollout"}, tmp_path / "o.mp4", 2, True)]
    assert Evaluation.load(out).outcomes == (outcome,)


@pytest.mark.long
def test_a_run_is_evaluated_again_as_its_training_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from launch import main as launch

    run = tmp_path / "run"
    config = str(Path(__file__).parents[2] / "configs/qchunk/debug.py")
    sizes = ["--train.steps", "4", "--train.log-every", "4", "--eval.final-episodes", "3", "--eval.videos", "0"]
    assert launch(["--config", config, *sizes, "--train.eval-every", "0", "--run.dir", str(run)]) == 0
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert evaluate.main([str(run), "--num-envs", "1", "--episodes", "3"]) == 0
    found = Evaluation.load(run / "evaluations/step_00000004.json")
    assert found.metrics() == {name: logged[name] for name in found.metrics()}
    assert "3 episodes" in capsys.readouterr().out
    assert (
        evaluate.main(
            [str(run), "--execute", "1", "--episodes", "1", "--max-steps", "3", "--out", str(tmp_path / "o.json")]
        )
        == 0
    )
    assert Evaluation.load(tmp_path / "o.json").outcomes[0]["length"] == 3
    for name in ("o", "o.mp4"):
        assert evaluate.main([str(run), "--episodes", "1", "--video", "1", "--out", str(tmp_path / name)]) == 64
        assert "expected a name that ends in .json" in capsys.readouterr().err
    assert evaluate.main([str(run), "--execute", "6"]) == 64
    assert "a chunk of this policy has 5 actions" in capsys.readouterr().err
    short = ["--episodes", "1", "--max-steps", "5"]
    assert evaluate.main([str(run), *short, "--how", "ensemble", "--delay", "1"]) == 0
    found = Evaluation.load(run / "evaluations/step_00000004-how_ensemble-delay_1-max_steps_5-episodes_1.json")
    assert found.settings == {"how": "ensemble", "delay": 1, "max_steps": 5, "episodes": 1}
    capsys.readouterr()
    for flags, message in [
        (["--how", "realtime"], "--how realtime: agent.policy is distill, whose chunks cannot be completed here"),
        (["--how", "every"], "--how every: expected the number of steps in --execute N, found none"),
        (["--delay", "3"], "--delay is 3; expected at most 2, half of the 5 actions of a chunk"),
        (["--delay", "-1"], "--delay is -1; expected a number of steps, 0 or above"),
    ]:
        assert evaluate.main([str(run), *short, *flags]) == 64
        assert message in capsys.readouterr().err
    assert evaluate.main([str(run), "--env", "puzzle-3x3-play-singletask-task1-v0"]) == 64
    assert "expected the widths of the dataset" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path)]) == 64


def test_every_environment_of_an_evaluation_is_made_by_the_runs_rules(
    countdowns: list[Countdown], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    make = simulators.make
    monkeypatch.setattr(simulators, "make", lambda name, view, rules: told.append(rules) or make(name, view))
    rules = simulators.Rules(sparse=True, success_timing="post")
    evaluate.evaluate(Recorder(), TASK, seed=0, step=0, episodes=2, num_envs=2, horizon=3, rules=rules)
    assert told == [rules, rules]
