"""What a Q-chunking run hands on, told without an update."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chunkwise.config.experiment import CheckpointConfig, RunConfig
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.envs.evaluate import Evaluation
from chunkwise.errors import ConfigError
from qchunk import evaluate as evaluation
from qchunk import train
from qchunk.config import EvalConfig
from qchunk.envs import run_summary, simulators
from qchunk.train import QChunkTask
from tests.chunkwise.distributed.test_processes import run_two
from tests.qchunk import image_recordings, recordings


def bare(**fields: Any) -> QChunkTask:
    """A task that was never set up, with so much as a test needs."""
    task = QChunkTask.__new__(QChunkTask)
    vars(task).update(fields)
    return task


def test_online_rows_go_on_from_the_step_of_the_resume(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    online = SimpleNamespace(mixed=lambda batches, start, **share: asked.append((batches, start, share)) or "mixed")
    monkeypatch.setattr(train.stream, "open_stream", lambda config, dataset, **where: where)
    task = bare(config=None, dataset=None, online=online)
    assert task.batches(40, shard=1, num_shards=2) == "mixed"
    offline = {"shard": 1, "num_shards": 2, "start_step": 40, "training": True}
    assert asked == [(offline, 40, {"shard": 1, "num_shards": 2})]


@pytest.mark.parametrize(("final", "episodes"), [(False, 3), (True, 50)])
def test_the_last_evaluation_has_its_own_number_of_episodes(
    final: bool, episodes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[int] = []
    saved: list[Path] = []

    def evaluate(policy: Any, env: str, **settings: Any) -> Any:
        asked.append(settings["episodes"])
        return SimpleNamespace(metrics=lambda name: {f"{name}/success": 1.0}, save=saved.append, outcomes=())

    monkeypatch.setattr(train, "evaluate", evaluate)
    monkeypatch.setattr(train, "view_of", lambda config, dims: None)
    monkeypatch.setattr(train.simulators, "rules_of", lambda config: None)
    monkeypatch.setattr(train, "_asked", lambda policy, state: policy)
    settings = SimpleNamespace(env="x", episodes=3, final_episodes=50, num_envs=1, rows=None, max_steps=None, videos=0)
    config = SimpleNamespace(eval=settings, online=None, run=SimpleNamespace(seed=0), fleet=None)
    agent = SimpleNamespace(action_horizon=5, dims=None)
    task = bare(config=config, agent=agent, folder=tmp_path, _policy="own", _cloning=None, _division=None)
    monkeypatch.setattr(task, "_offline", lambda state: {})
    state: Any = SimpleNamespace(step=10)
    assert task.evaluate(state, final=final) == {"policy/success": 1.0}
    assert asked == [episodes]
    assert saved == [tmp_path / "evaluations/step_00000010.json"]


def test_a_resume_is_told_by_the_content_of_all_files():
    dataset = SimpleNamespace(fingerprint="episodes", files=SimpleNamespace(digest=lambda: "files"), arrays_hash=None)
    assert bare(dataset=dataset).data_fingerprint() == {"manifest": "episodes", "files": "files"}
    dataset.arrays_hash = "arrays"  # of a reader of the user's
    assert bare(dataset=dataset).data_fingerprint()["arrays_of_the_reader"] == "arrays"


PLAY = """
from tests.qchunk import test_task
test_task.play(Path(sys.argv[1]))
processes.leave(0, together=True)
"""


ALONE = "import sys; from pathlib import Path; from tests.qchunk import test_task; test_task.play(Path(sys.argv[1]))"


def play(folder: Path) -> None:
    """Evaluates as a run does at its end: seven episodes of a policy and of behaviour cloning, and a video."""
    from tests.qchunk.test_evaluate import Countdown, Recorder

    made: list[int] = []
    stepped = Countdown.step

    def step(env: Countdown, action: Any) -> Any:
        made.extend([env.seed] if not env.t else [])
        return stepped(env, action)

    Countdown.step = step  # pyright: ignore[reportAttributeAccessIssue]
    simulators.make = lambda name, view=None, rules=None: Countdown()  # pyright: ignore[reportAttributeAccessIssue]
    simulators.rules_of = lambda config: simulators.USUAL
    train.view_of = lambda config, dims: None
    train._asked = lambda policy, state: policy
    shown: dict[int, Any] = {}
    train.write_video = lambda env, played, path, count, **more: shown.update(played)  # pyright: ignore
    settings = SimpleNamespace(
        env="countdown", episodes=3, final_episodes=7, num_envs=2, rows=2, max_steps=None, videos=1
    )
    task = bare(
        config=SimpleNamespace(
            eval=settings, online=None, run=SimpleNamespace(seed=3), fleet=None, data=SimpleNamespace(holdout=0)
        ),
        agent=SimpleNamespace(action_horizon=3, dims=None),
        folder=folder,
        _policy=Recorder(),
        _cloning=lambda observations, seeds: Recorder()(observations, seeds) * 0.5,
        _division=Division(),
    )
    state: Any = SimpleNamespace(step=10)
    told: dict[str, Any] = {}
    if processes.is_primary():
        told["metrics"] = task.evaluate(state, final=True)
        told["shown"] = {number: [one.seed, one.actions.tolist()] for number, one in sorted(shown.items())}
    else:
        task.help_evaluate(state, final=True)
    told["begun"] = sorted(made)
    (folder / f"told.{processes.index()}.json").write_text(json.dumps(told))


@pytest.mark.long
def test_two_processes_evaluate_as_one(tmp_path: Path):
    """Each plays its half of the episodes, whose outcomes, metrics and video are those of one process."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, str(folders[0])],
        check=False,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    ended = run_two(PLAY, str(folders[1]), seconds=400)  # imports alone take minutes on a busy machine
    assert [code for code, _ in ended] == [0, 0], ended
    one = json.loads((folders[0] / "told.0.json").read_text())
    first, second = (json.loads((folders[1] / f"told.{index}.json").read_text()) for index in (0, 1))
    assert first["metrics"] == one["metrics"]
    assert first["shown"] == one["shown"]
    assert sorted(one["shown"], key=int) == [str(number) for number in range(7)]
    scenes = [evaluation.scene_seed(3, episode) for episode in range(7)]
    assert one["begun"] == sorted(2 * scenes)
    assert first["begun"] == sorted(2 * scenes[::2])
    assert second["begun"] == sorted(2 * scenes[1::2])
    files = [folder / "evaluations/step_00000010.json" for folder in folders]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [outcome["seed"] for outcome in Evaluation.load(files[1]).outcomes] == scenes
    assert [path.name for path in files[1].parent.iterdir()] == [files[1].name], "no rollout of the others is left"


def test_the_newest_video_is_that_of_the_last_step(tmp_path: Path) -> None:
    """By number: as texts step_90 would come after step_100, and an extended run show what it did before."""
    (tmp_path / "videos").mkdir()
    for step in (100, 90, 1000, 9):
        (tmp_path / f"videos/step_{step}.mp4").touch()
    assert [video.stem for video in run_summary.videos_of(tmp_path)] == ["step_9", "step_90", "step_100", "step_1000"]


def test_the_best_of_a_run_that_evaluates_nothing_is_refused_before_anything_is_made(tmp_path: Path):
    """A config file may set it; an environment, or episodes held out, would be what it is measured by."""
    config = recordings.config(tmp_path / "none", action_norm="min_max")
    config = dataclasses.replace(config, checkpoint=CheckpointConfig(keep_best="policy/success"))
    assert config.evaluates_nothing
    with pytest.raises(ConfigError, match=r"^checkpoint\.keep_best is policy/success, and this run evaluates nothing"):
        train.main(dataclasses.replace(config, run=RunConfig(dir=str(tmp_path / "run"))), "best")
    assert not (tmp_path / "run").exists()
    assert not recordings.config(tmp_path, holdout=0.1).evaluates_nothing


@pytest.mark.parametrize(
    ("env", "factory", "next_"),
    [
        (None, None, "next: chunkwise serve RUN"),
        ("cube-single-v0", None, "next: chunkwise evaluate RUN, chunkwise serve RUN"),
        ("my_env:Cart", None, "next: chunkwise evaluate RUN --env my_env:Cart, chunkwise serve RUN"),
        (
            "a:B",
            "iql:f",
            "next: chunkwise evaluate RUN --allow-code iql:f --env a:B, chunkwise serve RUN --allow-code iql:f",
        ),
    ],
)
def test_the_end_names_only_what_the_run_can_do(
    env: str | None,
    factory: str | None,
    next_: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Without an environment `evaluate` is refused, and code is named again."""
    monkeypatch.setattr(run_summary, "draw", lambda folder: folder)
    monkeypatch.setattr(run_summary, "videos_of", lambda folder: [])
    config = SimpleNamespace(eval=SimpleNamespace(env=env), agent=SimpleNamespace(factory=factory))
    bare(config=config, folder="RUN").finish()
    assert capsys.readouterr().out.splitlines()[-1] == next_


def test_images_of_another_size_than_recorded_are_said(tmp_path: Path):
    root = image_recordings.dataset(tmp_path / "data", lengths=(5,))
    cameras = image_recordings.CAMERAS[:1]
    config = recordings.config(root, cameras=cameras, image_size=(6, 8), action_norm="min_max")
    dataset = train.data.open_dataset(config)
    shown = dataset.source.images_of[0][f"/observations/images/{cameras[0]}"]  # pyright: ignore
    size = (shown.height, shown.width)

    def said(**settings: Any) -> tuple[str, ...]:
        return train._rendered(dataclasses.replace(config, eval=EvalConfig(**settings)), dataset)

    (note,) = said(env="aloha-transfer-cube")
    assert f"recorded at {size[0]} x {size[1]}, and environments render them at eval.render_size 480 x 640" in note
    assert f"--eval.render-size {size[0]} {size[1]} renders" in note
    assert said(env="aloha-transfer-cube", render_size=size) == said(env=None) == said(env="Pendulum-v1") == ()
