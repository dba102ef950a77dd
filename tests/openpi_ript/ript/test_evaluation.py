import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from chunkwise.data.sampling import Purpose, words
from chunkwise.envs import environment, render
from chunkwise.envs.evaluate import Evaluation, Manifest, compare_evaluations
from chunkwise.envs.rollout import load
from chunkwise.envs.workers import ProcessWorkers, Start, Stretch
from chunkwise.errors import ConfigError, DataError, RunError, StorageError
from chunkwise.state import TrainState
from openpi_ript import evaluate as command
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import spec_of, tasks_of
from openpi_ript.policies import saved
from openpi_ript.ript import acting
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.evaluation import MANIFEST, evaluate, make_manifest, manifest_of, write_video
from openpi_ript.tasks import ript
from tests.openpi_ript.toy_rollouts import Straight, point


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector(point())
    yield made
    made.close()


def run(collector: Collector, manifest: Manifest, folder: Path, threshold: float = 0.0, keep: int = 0) -> Evaluation:
    return evaluate(
        collector,
        Straight(threshold),
        manifest,
        episodes=len(manifest.states),
        guidance_scale=None,
        folder=folder,
        keep=keep,
    )


def test_a_manifest_is_the_same_for_every_run_and_survives_its_file(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=3, episodes=6)
    manifest.save(tmp_path / "m.json")
    assert Manifest.load(tmp_path / "m.json") == manifest
    assert make_manifest(collector, seed=3, episodes=4).states == manifest.states[:4]
    assert len({state.init_hash for state in manifest.states}) == 6
    assert not set(make_manifest(collector, seed=4, episodes=6).states) & set(manifest.states)
    (tmp_path / "m.json").write_text("[1]")
    with pytest.raises(DataError, match="expected a manifest"):
        Manifest.load(tmp_path / "m.json")


def test_every_episode_draws_noise_of_its_own(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=3, episodes=4)
    same = dataclasses.replace(manifest, states=(manifest.states[0],) * 4)
    actor = Straight()
    evaluate(collector, actor, same, episodes=4, guidance_scale=None, folder=tmp_path, keep=4)
    rollouts = [load(tmp_path / f"episode_{n:04d}.npz") for n in range(4)]
    assert [rollout.draw for rollout in rollouts] == [tuple(words(Purpose.RIPT_EVALUATION, 3, n)) for n in range(4)]
    assert len({rollout.actions[:1].tobytes() for rollout in rollouts}) == 4


def test_a_runs_own_manifest_is_made_anew_for_another_seed(collector: Collector, tmp_path: Path):
    path = tmp_path / MANIFEST
    first = manifest_of(collector, path, seed=3, episodes=2)
    assert manifest_of(collector, path, seed=3, episodes=1) == first, "long enough, so it stays"
    other = manifest_of(collector, path, seed=4, episodes=2)
    assert (other.seed, Manifest.load(path)) == (4, other)
    assert not set(other.states) & set(first.states)


def test_a_manifest_that_the_user_names_is_used_as_it_is(collector: Collector, tmp_path: Path):
    given = tmp_path / "theirs.json"
    make_manifest(collector, seed=5, episodes=2).save(given)
    before = given.read_bytes()
    found = command.initial_states(
        collector, tmp_path / MANIFEST, given, seed=0, episodes=4
    )  # another seed, and too short
    assert (found.seed, len(found.states)) == (5, 2)
    assert given.read_bytes() == before
    with pytest.raises(DataError, match="expected 4 initial states"):
        evaluate(collector, Straight(0.0), found, episodes=4, guidance_scale=None, folder=tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    own = command.initial_states(collector, tmp_path / MANIFEST, None, seed=0, episodes=2)
    assert Manifest.load(tmp_path / "manifest.json") == own
    assert command.initial_states(collector, tmp_path / MANIFEST, None, seed=0, episodes=3).states[:2] == own.states
    new = command.initial_states(collector, tmp_path / MANIFEST, tmp_path / "new.json", seed=0, episodes=2)
    assert Manifest.load(tmp_path / "new.json") == new == own
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/manifest\.json: Not a directory\. .* --manifest"):
        command.initial_states(collector, tmp_path / "file" / MANIFEST, None, seed=0, episodes=2)


@pytest.mark.parametrize(
    ("given", "expected", "name"),
    [
        pytest.param(("--episodes", "2"), (None, 1.5), "step_00000007", marks=pytest.mark.long),
        (("--guidance-scale", "3", "--episodes", "1"), (3.0, 3.0), "step_00000007-guidance_scale_3-0-episodes_1"),
    ],
)
def test_the_scale_that_is_written_down_is_the_one_that_acts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    expected: tuple[float | None, float],
    name: str,
):
    class Acting(Straight):
        """Stands for the run's policy: without a scale of its own it takes the config's."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(0.0)
            self.guidance_scale: float | None = None

        def use(self, *_: Any) -> None:
            pass

    scales: list[Any] = []

    def watched(collector: Collector, actor: Any, manifest: Manifest, **more: Any) -> Evaluation:
        scales.append((actor.guidance_scale, more["guidance_scale"]))
        return evaluate(collector, actor, manifest, **more)

    settings = SimpleNamespace(seed=0, final_episodes=2)
    chunk = SimpleNamespace(action_horizon=Straight().chunk[0])
    adapted = SimpleNamespace(robot=SimpleNamespace(adapter="none"))
    config = SimpleNamespace(env=point(), eval=settings, guidance=SimpleNamespace(scale=1.5), model=chunk, data=adapted)
    config.rollout = None
    monkeypatch.setattr(saved, "read_config", lambda _: config)
    monkeypatch.setattr(saved, "read_run_weights", lambda *_: (7, {}))
    monkeypatch.setattr(saved, "read_stats", lambda *_: {})
    monkeypatch.setattr(acting, "ActingPolicy", Acting)
    monkeypatch.setattr(command, "evaluate", watched)
    assert command.main(["run", str(tmp_path), *given]) == 0
    assert scales == [expected]
    assert [file.stem for file in (tmp_path / "evaluations").glob("*.json")] == [name]
    written = Evaluation.load(tmp_path / f"evaluations/{name}.json")
    assert (written.guidance_scale, len(written.outcomes)) == (expected[1], int(given[-1]))
    assert command.main(["run", str(tmp_path), "--how", "ensemble", "--delay", "1"]) == 0
    late = Evaluation.load(tmp_path / "evaluations/step_00000007-how_ensemble-delay_1.json")
    assert late.settings == {"how": "ensemble", "delay": 1}
    own = tmp_path / MANIFEST
    assert command.main(["run", str(tmp_path), "--manifest", str(own), "--guidance-scale", "1.5"]) == 0
    other = tmp_path / "of another run" / MANIFEST
    other.parent.mkdir()
    other.write_bytes(own.read_bytes() + b" ")
    before = {file.stem for file in (tmp_path / "evaluations").glob("*.json")} | {"step_00000007"}
    assert command.main(["run", str(tmp_path), "--manifest", str(other)]) == 0
    (added,) = {file.stem for file in (tmp_path / "evaluations").glob("*.json")} - before
    assert added == f"step_00000007-manifest_{hashlib.sha256(other.read_bytes()).hexdigest()[:12]}"
    for prompt in ("to the disc", "to the other disc", "to the disc"):
        assert command.main(["run", str(tmp_path), "--env", "point/red", "--prompt", prompt]) == 0
    found = [Evaluation.load(file) for file in (tmp_path / "evaluations").glob("*-prompt_*.json")]
    assert sorted(one.settings["prompt"] for one in found) == ["to the disc", "to the other disc"]
    assert command.main(["run", str(tmp_path), "--execute", "100"]) == 64
    for wrong in ("0", "-1"):
        assert command.main(["run", str(tmp_path), "--episodes", wrong]) == 64


@pytest.mark.parametrize("given", [(), ("--allow-env", "other:Env"), ("--allow-env", "evil:Env")])
def test_code_that_a_run_names_is_imported_where_the_user_names_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
):
    config = SimpleNamespace(env=point(suite="evil:Env"), eval=SimpleNamespace(seed=0, final_episodes=2), guidance=None)
    config.model = SimpleNamespace(action_horizon=8)
    monkeypatch.setattr(saved, "read_config", lambda _: config)
    monkeypatch.setattr(saved, "read_run_weights", lambda *_: pytest.fail("weights were read"))
    if given == ("--allow-env", "evil:Env"):
        with pytest.raises(pytest.fail.Exception, match="weights were read"):
            command.main(["run", str(tmp_path), *given])
        return
    assert command.main(["run", str(tmp_path), *given]) == 64
    assert "env.suite is 'evil:Env', which would import Python code" in capsys.readouterr().err


def test_another_environment_has_its_own_task_prompt_and_limit():
    run = point(task="", prompt="", tasks=("red", "blue"), prompts={"red": "to red"}, steps={"red": 7})
    red = command.environment_of(run, "point/red", None)
    assert (red.suite, red.task, red.tasks, red.prompt, red.max_steps) == ("point", "red", (), "to red", 7)
    assert command.environment_of(run, "point/red", "go").prompt == "go"
    assert command.environment_of(run, "point/blue", "go").max_steps == run.max_steps
    assert command.environment_of(point(), "point/red", None).prompt == point().prompt
    elsewhere = command.environment_of(point(task="reach-v3"), "metaworld/reach-v3", None)
    assert (elsewhere.suite, elsewhere.prompt, elsewhere.state) == ("metaworld", "", point().state)
    several = command.environment_of(run, "metaworld/MT10", None)
    assert (several.task, several.tasks, several.steps, several.prompts) == ("", ("MT10",), {}, {})
    assert command.environment_of(run, "mine:make", "go").suite == "mine:make"
    fast = EnvConfig(suite="robosuite", task="Lift", prompt="lift", max_steps=9, rendering="fast")
    found = [command.environment_of(fast, name, "go").rendering for name in ("robosuite/Door", "metaworld/push-v3")]
    assert found == ["fast", "full"]
    with pytest.raises(ConfigError, match=r"--env town/drive: env\.suite is 'town'; expected one of aloha"):
        command.environment_of(run, "town/drive", "go")
    with pytest.raises(ConfigError, match=r"--env point/red: env\.python is '/usr/bin/python3'"):
        command.environment_of(run, "point/red", "go", "/usr/bin/python3")
    ten = point(
        suite="metaworld", task="", prompt="", tasks=("reach-v3", "basketball-v3"),
        prompts={"reach-v3": "go there", "basketball-v3": "throw"}, steps={"reach-v3": 5, "basketball-v3": 6},
    )  # fmt: skip
    several = command.environment_of(ten, "metaworld/MT10", None)
    assert (several.prompt, several.prompts, several.steps) == ("", {"reach-v3": "go there"}, {"reach-v3": 5})
    told = {task.name: (task.prompt, task.max_steps) for task in tasks_of(several)}
    assert told["reach-v3"] == ("go there", 5)
    assert told["push-v3"][1] == ten.max_steps
    alone = dataclasses.replace(ten, task="reach-v3", prompt="go", tasks=(), prompts={}, steps={})
    assert command.environment_of(alone, "metaworld/MT10", None).prompts == {"reach-v3": "go"}
    with pytest.raises(ConfigError, match="--prompt: metaworld/MT10 has several tasks"):
        command.environment_of(run, "metaworld/MT10", "go")


def test_the_command_plays_in_another_environment_on_states_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    config = SimpleNamespace(env=point(), eval=SimpleNamespace(seed=0, final_episodes=2), guidance=None)
    config.model = SimpleNamespace(action_horizon=8)
    config.data = SimpleNamespace(robot=SimpleNamespace(adapter="none"))
    asked: list[tuple[EnvConfig, bool]] = []

    def collector_of(env: EnvConfig, *, allow_code: bool, execution: Any, fleet: Any) -> Any:
        asked.append((env, allow_code))
        raise ConfigError("seen")

    monkeypatch.setattr(saved, "read_config", lambda _: config)
    monkeypatch.setattr(command, "Collector", collector_of)
    assert command.main(["run", str(tmp_path), "--env", "mine:make", "--prompt", "go"]) == 64
    assert command.main(["run", str(tmp_path), "--allow-env", "mine:make"]) == 64
    assert [(env.suite, env.prompt, allowed) for env, allowed in asked] == [
        ("mine:make", "go", True),
        ("point", point().prompt, False),
    ]
    assert command.main(["run", str(tmp_path), "--prompt", "go"]) == 64
    config.env = dataclasses.replace(config.env, state_function="evil:function")
    for allowed, count in (("mine:make", 2), ("evil:function", 3), ("mine:make,evil:function", 4)):
        words = ["run", str(tmp_path), "--env", "mine:make", "--prompt", "go", "--allow-env", allowed]
        assert command.main(words) == 64
        assert len(asked) == count, "the function that reads its state is the run's, and no part of what was named"
    assert command.main(["run", str(tmp_path), "--env", "Lift"]) == 64
    said = capsys.readouterr().err
    assert "--prompt: expected --env" in said
    assert "environment 'Lift': expected suite/task" in said


def test_a_wrong_option_ends_with_64(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "somewhere", "--episode", "x"])
    assert ended.value.code == 64
    assert "usage" in capsys.readouterr().err


class Mortal(ProcessWorkers):
    """Kills a worker before it answers, at each of some answers."""

    def __init__(self, config: EnvConfig, at: set[int]) -> None:
        super().__init__(functools.partial(environment.make, spec_of(config)), config.num_envs, name="point")
        self.answers, self.at = 0, at

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        self.answers += 1
        slot = next(iter(slots))
        pid = self.pid(slot)
        if self.answers in self.at and pid is not None:
            os.kill(pid, signal.SIGKILL)
            while (process := self._processes[slot]) is not None and process.is_alive():
                time.sleep(0.01)
            with contextlib.suppress(EOFError, OSError):
                self._pipes[slot].recv()  # what it had answered before
        return super().receive(slots, stopping, within=within)


def test_a_worker_that_dies_while_the_manifest_is_made_is_replaced(collector: Collector):
    mortal = Collector(point())
    mortal.workers = Mortal(mortal.config, {1, 3, 4})
    assert make_manifest(mortal, seed=3, episodes=4) == make_manifest(collector, seed=3, episodes=4)
    assert mortal.deaths == 3
    mortal.close()


def test_an_initial_state_that_kills_every_worker_ends_the_run_with_its_name():
    mortal = Collector(point())
    mortal.workers = Mortal(mortal.config, {2, 3, 4})
    with pytest.raises(RunError, match=r"initial_state_0001: 3 workers died in this rollout \(seed \d+\)"):
        make_manifest(mortal, seed=3, episodes=4)
    assert isinstance(mortal.workers, Mortal)
    assert mortal.workers.pid(0) is None


def test_an_evaluation_survives_the_death_of_a_worker(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=0, episodes=4)
    mortal = Collector(point())
    mortal.workers = Mortal(mortal.config, {1, 6})
    assert run(mortal, manifest, tmp_path) == run(collector, manifest, tmp_path)
    assert mortal.deaths == 2
    mortal.close()


def test_an_evaluation_repeats_and_is_compared_state_by_state(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=0, episodes=12)
    good, bad = run(collector, manifest, tmp_path, -1.0), run(collector, manifest, tmp_path, 1.5)
    assert run(collector, manifest, tmp_path, -1.0) == good
    assert [outcome["init_hash"] for outcome in good.outcomes] == [state.init_hash for state in manifest.states]
    assert good.successes > bad.successes
    assert good.metrics()["policy/success"] == good.successes / 12
    assert good.metrics()["policy/success_low"] < good.successes / 12 <= good.metrics()["policy/success_high"]
    good.save(tmp_path / "a.json")
    assert Evaluation.load(tmp_path / "a.json") == good
    found = compare_evaluations(good, dataclasses.replace(bad, outcomes=bad.outcomes[::-1]))
    pairs = [(a["success"], b["success"]) for a, b in zip(good.outcomes, bad.outcomes, strict=True)]
    assert (found.both, found.only_a, found.only_b) == tuple(
        pairs.count(pair) for pair in [(True, True), (True, False), (False, True)]
    )


def test_another_initial_state_than_the_manifests_is_refused(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=0, episodes=2)
    wrong = dataclasses.replace(manifest.states[1], init_hash="0" * 16)
    with pytest.raises(DataError, match="expected the initial state 0000000000000000 of the manifest"):
        run(collector, dataclasses.replace(manifest, states=(manifest.states[0], wrong)), tmp_path)
    with pytest.raises(DataError, match="of point blue"):
        run(collector, dataclasses.replace(manifest, task="blue"), tmp_path)
    one, other = (
        run(collector, manifest, tmp_path),
        run(collector, make_manifest(collector, seed=1, episodes=2), tmp_path),
    )
    with pytest.raises(DataError, match="no initial state in common"):
        compare_evaluations(one, other)


def test_the_command_compares_files(collector: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    manifest = make_manifest(collector, seed=0, episodes=4)
    for name, threshold in (("a", -1.0), ("b", 1.5)):
        run(collector, manifest, tmp_path, threshold).save(tmp_path / f"{name}.json")
    assert command.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "of 4" in capsys.readouterr().out
    assert command.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "none.json")]) == 65
    assert "none.json" in capsys.readouterr().err


def test_the_rollouts_that_were_kept_make_a_video(collector: Collector, tmp_path: Path):
    manifest = make_manifest(collector, seed=0, episodes=5)
    result = run(collector, manifest, tmp_path, keep=5)
    write_video(collector, tmp_path, tmp_path / "grid.mp4", episodes=5)
    with av.open(str(tmp_path / "grid.mp4")) as container:
        *_, last = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
    assert last.shape == (400, 600, 3)
    assert sorted(tmp_path.glob("episode_*.mp4")) == [tmp_path / f"episode_{n:04d}.mp4" for n in range(5)]
    for n, outcome in enumerate(result.outcomes):
        y, x = 200 * (n // 3), 200 * (n % 3)
        shown = last[y + 1 : y + 4, x + 10 : x + 190].mean(axis=(0, 1))  # colours of neighbours run a little
        errors = [float(np.abs(shown - colour).max()) for colour in (render.FAILURE, render.SUCCESS)]
        assert errors[outcome["success"]] < 30
        assert errors[not outcome["success"]] > 80


def of_outcomes(**outcomes: bool) -> Evaluation:
    listed = tuple({"init_hash": state, "success": success} for state, success in outcomes.items())
    return Evaluation(step=1, weights="0", guidance_scale=None, outcomes=listed)


def test_evaluations_are_paired_by_initial_state_whatever_their_order():
    """What both have is in another order, among states that the other one lacks."""
    one = of_outcomes(x=True, c=True, d=True, e=False, f=False)
    other = of_outcomes(f=True, e=True, y=False, d=False, z=True, c=True)
    found = compare_evaluations(one, other)
    assert (found.both, found.only_a, found.only_b, found.neither) == (1, 1, 2, 0)
    swapped = compare_evaluations(other, one)
    assert (swapped.both, swapped.only_a, swapped.only_b, swapped.neither) == (1, 2, 1, 0)
    with pytest.raises(DataError, match="no initial state in common"):
        compare_evaluations(of_outcomes(a=True), of_outcomes(b=True))


def test_only_the_last_evaluation_of_a_run_keeps_rollouts_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept, shown, asked = [], [], []

    def play(*_: Any, keep: int, episodes: int, **__: Any) -> Any:
        kept.append(keep)
        asked.append(episodes)
        return SimpleNamespace(save=lambda path: None, metrics=dict)

    monkeypatch.setattr(ript, "evaluate", play)
    monkeypatch.setattr(ript, "manifest_of", lambda *_, **__: None)
    monkeypatch.setattr(ript, "write_video", lambda *_, episodes: shown.append(episodes))
    settings = SimpleNamespace(videos=5, final_episodes=3, episodes=2, seed=0)
    task: Any = object.__new__(ript.RiptTask)
    vars(task).update(
        config=SimpleNamespace(eval=settings, env=point(), guidance=None, rollout=None),
        policy=SimpleNamespace(use=lambda *_: None, release=lambda: None),
        _of_dataset=lambda _: {},
        collector=None,
        folder=tmp_path,
        _division=None,
        ript=None,
    )
    state = TrainState(step=4, params={}, opt_state={}, target={})
    for final in (False, True):
        task.evaluate(state, final=final)
    assert (kept, shown) == ([0, 3], [3])
    assert asked == [2, 3], "eval.episodes during training, eval.final_episodes at its end"
