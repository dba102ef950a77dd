"""The code of docs/extend.md, written to files as the page says and run from a folder of the user's own."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extend.md").read_text()


def files_of_page() -> dict[str, str]:
    """Code by the file name that the page gives it in the paragraph before."""
    found = re.findall(r"`(my_\w+\.py)`[^`]*(?:`[^`]+`[^`]*)*?```python\n(.*?)```", PAGE, re.DOTALL)
    return dict(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in files_of_page().items():
        (tmp_path / name).write_text(code)
    return tmp_path


def launch(folder: Path, *arguments: str) -> str:
    """Trains from the user's folder; returns what was said. The run's folder is `run` there."""
    command = [sys.executable, str(ROOT / "launch.py"), *arguments, "--run.dir", "run"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_the_page_names_its_files():
    assert set(files_of_page()) == {
        "my_iql.py",
        "my_iql_config.py",
        "my_csv.py",
        "my_env.py",
        "my_cart.py",
        "my_hill.py",
        "my_rail.py",
    }


@pytest.mark.long
def test_an_agent_trains_and_a_setting_reaches_it(folder: Path):
    short = ["--train.steps", "4", "--train.log-every", "4", "--train.updates-per-call", "1", "--eval.env", "None"]
    launch(folder, "--config", "my_iql_config.py", *short, "--agent.settings.expectile", "0.99")
    assert '"value_loss"' in (folder / "run/metrics.jsonl").read_text().splitlines()[0]
    assert '"expectile": 0.99' in (folder / "run/config.json").read_text()


def test_a_setting_that_the_factory_does_not_take_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    from chunkwise.errors import ConfigError
    from qchunk.agents.make import make_agent
    from qchunk.data import Dims
    from tests.qchunk.agents.test_qc import agent_of

    monkeypatch.syspath_prepend(str(folder))
    config = agent_of().config
    mine = dataclasses.replace(
        config.agent, policy="best_of_n", factory="my_iql:make_agent", settings={"expectile": 0.99}
    )
    made = make_agent(dataclasses.replace(config, agent=mine), Dims(observation=3, action=2), allow_code=True)
    assert made.expectile == 0.99  # pyright: ignore[reportAttributeAccessIssue]
    for settings in ({"expectil": 0.7}, {}):
        agent = dataclasses.replace(config.agent, factory="my_iql:make_agent", settings=settings)
        with pytest.raises(ConfigError, match=r"my_iql:make_agent does not take agent\.settings.*expectile"):
            make_agent(dataclasses.replace(config, agent=agent), Dims(observation=3, action=2), allow_code=True)


def write_carts(folder: Path) -> None:
    """Episodes of the page's cart, pushed to the middle, one CSV each."""
    sys.path.insert(0, str(folder))
    try:
        from chunkwise.envs.environment import EnvSpec, make

        env = make(EnvSpec(suite="my_env:Cart", allow_code=True))
    finally:
        sys.path.remove(str(folder))
    (folder / "carts").mkdir()
    (folder / "carts/notes.txt").write_text("no episode")
    for seed in range(6):
        rows, x, done = [], env.reset(seed)["qpos"], False
        while not done and len(rows) < 60:
            action = env.clip(np.array([-2 * x[0] - 4 * x[1]]))
            step = env.step(action)
            rows.append([*x, *action, step.reward + 1])
            x, done = step.observation["qpos"], step.terminated
        header = "x0,x1,u0,reward"
        np.savetxt(folder / f"carts/{seed}.csv", np.array(rows), delimiter=",", header=header, comments="")


def cart_run(folder: Path, *more: str) -> list[str]:
    sizes = ["--data.episodes-per-epoch", "4", "--train.batch-size", "8", "--agent.horizon", "4"]
    rhythm = ["--train.steps", "4", "--train.log-every", "4", "--train.updates-per-call", "1"]
    data = ["--data.format", "my_csv:read", "--data.path", "carts"]
    return ["--config", str(ROOT / "configs/qchunk/own_data.py"), *data, *sizes, *rhythm, *more]


@pytest.mark.long
def test_a_reader_and_an_environment_train_and_evaluate_together(folder: Path):
    write_carts(folder)
    evaluation = [
        "--eval.env",
        "my_env:Cart",
        "--eval.final-episodes",
        "2",
        "--eval.num-envs",
        "1",
        "--eval.videos",
        "0",
    ]
    launch(folder, *cart_run(folder, *evaluation))
    assert '"policy/success"' in (folder / "run/metrics.jsonl").read_text()


@pytest.mark.long
@pytest.mark.parametrize("config", ["my_cart.py", "my_hill.py"])
def test_a_round_of_ript_in_ones_own_environment_and_in_one_of_gymnasium(folder: Path, config: str):
    short = ["--train.steps", "80", "--rollout.start", "60", "--train.eval-every", "0", "--eval.final-episodes", "4"]
    said = launch(folder, "--config", config, *short, "--eval.videos", "0")
    played = re.search(r"step 60: (\d+) of \d+ rollouts succeeded, (\d+) of \d+ groups hold both outcomes", said)
    assert played is not None
    assert int(played[2]) > 0, "a round that has something to learn from"
    assert "of 4 episodes succeeded" in said


@pytest.mark.long
def test_a_round_of_ript_in_a_python_of_its_own(folder: Path, bare: Path):
    short = ["--train.steps", "80", "--rollout.start", "60", "--train.eval-every", "0", "--eval.final-episodes", "4"]
    env = ["--env.suite", "my_rail:Rail", "--env.python", str(bare), "--eval.videos", "0"]
    said = launch(folder, "--config", "my_cart.py", *short, *env)
    assert re.search(r"step 60: (\d+) of \d+ rollouts succeeded", said)
    assert "of 4 episodes succeeded" in said
    command = [sys.executable, "-m", "openpi_ript.evaluate", "run", "run", "--episodes", "2"]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    for allowed, code in (("my_rail:Rail", 64), (f"my_rail:Rail@{bare}", 0)):
        made = subprocess.run(
            [*command, "--allow-env", allowed], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert made.returncode == code, made.stdout + made.stderr


def test_the_page_s_cart_is_inspected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from chunkwise.envs import inspect

    monkeypatch.syspath_prepend(str(folder))
    assert inspect.main(["--env", "my_env:Cart", "--steps", "60"]) == 0
    assert "resets and replays are exact" in capsys.readouterr().out


def test_the_page_s_rail_is_the_same_in_a_python_of_its_own(
    folder: Path, bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from chunkwise.envs import inspect

    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert inspect.main(["--env", "my_rail:Rail", "--python", str(bare), "--steps", "60"]) == 0
    assert "resets and replays are exact" in capsys.readouterr().out


def test_what_a_reader_raises_is_listed_with_the_file(folder: Path):
    write_carts(folder)
    (folder / "carts/3.csv").write_text("x0,x1,u0,reward\n0,0,nan,0\n")
    (folder / "carts/4.csv").write_text("x0,x1,u0\n0,0,0\n")
    command = [sys.executable, str(ROOT / "launch.py"), *cart_run(folder), "--run.dir", "run"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 65, made.stdout + made.stderr
    assert "3.csv" in made.stderr
    assert "4.csv" in made.stderr
    assert "finite" in made.stderr


def test_a_robot_is_a_value_of_a_config():
    code = re.search(r"```python\n(from openpi_ript.config import RobotConfig.*?)```", PAGE, re.DOTALL)
    assert code is not None
    names: dict = {}
    exec(code[1], names)
    assert "zeros appended" in names["MY_ARM"].adaptation


def test_an_agent_that_a_run_brought_is_refused():
    from chunkwise.errors import ConfigError
    from qchunk.agents.make import make_agent
    from qchunk.config import AgentConfig
    from qchunk.data import Dims
    from tests.qchunk.agents.test_qc import agent_of

    config = agent_of().config
    named = dataclasses.replace(config, agent=AgentConfig(factory="antigravity:geohash"))
    with pytest.raises(ConfigError, match="would import Python code"):
        make_agent(named, Dims(observation=3, action=2))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"settings": {"expectile": 0.7}}, "agent.factory alone reads"),
        ({"factory": "my_iql"}, "expected module:function"),
    ],
)
def test_what_would_have_no_effect_is_refused(settings: dict, words: str):
    from qchunk.config import AgentConfig

    with pytest.raises(ValueError, match=words):
        AgentConfig(**settings)


@pytest.mark.parametrize("given", [{"action": 1}, [1, 2]])
def test_what_is_no_episode_is_named_with_its_file(given: object, tmp_path: Path):
    from qchunk.data.readers import own

    (tmp_path / "a.csv").write_text("x")
    (report,) = own.examine(tmp_path, "a.csv", lambda path: given, digest="")  # pyright: ignore[reportArgumentType]
    assert f"a.csv: expected an Episode of numpy arrays from the reader, found {type(given).__name__}" in str(
        report.problems[0]
    )


def test_an_environment_that_gives_nan_or_a_tuple_is_named():
    from chunkwise.envs.environment import Step
    from chunkwise.envs.workers import Run, answer
    from chunkwise.errors import RunError

    names: dict = {}
    exec(files_of_page()["my_env.py"], names)

    class Bad(names["Cart"]):
        def __init__(self, given: object) -> None:
            self.given = given

        def step(self, action: np.ndarray) -> object:
            return self.given

    observation = {"state": np.zeros(1, np.float32)}
    for given, words in (
        ((observation, 0.0, False, False, {}), r"gave a tuple; expected a chunkwise"),
        (Step(observation, float("nan"), success=False), r"^step\(\) gave the reward nan"),
    ):
        with pytest.raises(RunError, match=words):
            answer(Bad(given), Run(np.zeros((2, 1), np.float32)), every_frame=False)  # pyright: ignore
