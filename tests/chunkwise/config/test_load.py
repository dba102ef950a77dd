"""Command lines and config files: what is right is read, what is wrong is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import chunkwise
from chunkwise.config.load import load
from chunkwise.config.saved import flatten, read_config
from chunkwise.errors import ConfigError
from qchunk.config import QChunkConfig

ROOT = Path(__file__).parents[3]
DEBUG = ["--config", str(ROOT / "configs/qchunk/debug.py")]


def test_reads_a_file_and_overrides_fields():
    config, path = load([*DEBUG, "--train.steps", "7", "--agent.discount", "0.9", "--run.resume", "--run.dir", "x"])
    flat = flatten(config)
    assert (flat["train.steps"], flat["agent.discount"], flat["run.resume"], flat["run.dir"]) == (7, 0.9, True, "x")
    assert flat["train.batch_size"] == 32  # of the file
    assert path.name == "debug.py"
    assert config.package == "qchunk"


def test_what_an_evaluation_elsewhere_takes_from_the_run_is_taken():
    """`chunkwise evaluate RUN --env ID` reads these of a run that has no environment of its own."""
    words = "--eval.final-episodes 9 --eval.num-envs 2 --eval.rows 2 --eval.max-steps 9 --eval.render-size 9 9"
    config, _ = load([*DEBUG, "--eval.env", "None", *words.split()])
    assert flatten(config)["eval.render_size"] == [9, 9]


def test_a_name_twice_among_pairs_is_refused():
    """Only the last would count, and the first is said to be 1 where it is nothing."""
    pairs = ["--data.mixture", "near", "1", "far", "2", "near", "5"]
    with pytest.raises(ConfigError, match=r"^--data\.mixture names near more than once; expected each name once$"):
        load([*DEBUG, *pairs, "--run.seed", "1"])
    config, _ = load([*DEBUG, *pairs[:5], "--agent.hidden-sizes", "8", "8", "--data.norm-stats", "far"])
    assert flatten(config)["data.mixture"] == {"near": 1.0, "far": 2.0}


def test_tuples_and_none_are_read():
    config, _ = load([*DEBUG, "--agent.hidden-sizes", "8", "16", "--optim.clip-norm", "1", "--eval.env", "None"])
    flat = flatten(config)
    assert flat["agent.hidden_sizes"] == [8, 16]
    assert flat["optim.clip_norm"] == 1.0
    assert flat["eval.env"] is None


BEST, GAUSSIAN = ["--agent.policy", "best_of_n"], ["--agent.policy", "gaussian"]
ROLLING = ["--data.refresh", "rolling"]
ADJOINT = ["--agent.policy", "adjoint_matching"]
ALOHA = ["--record.env", "aloha-transfer-cube"]
HELD_OUT = ["--eval.env", "None", "--data.holdout", "0.1"]


@pytest.mark.parametrize(
    ("without", "flag", "reader", "reads"),
    [
        (BEST, "--agent.alpha=3", "agent.policy distill", ["--agent.policy", "distill"]),
        ([], "--agent.num-samples=3", "agent.policy best_of_n", BEST),
        (GAUSSIAN, "--agent.flow_steps=3", "an agent.policy with a flow", []),
        (GAUSSIAN, "--agent.flow-predicts=chunk", "an agent.policy with a flow", BEST),
        ([], "--data.refresh-parts=3", "data.refresh rolling", ROLLING),
        ([], "--data.jpeg-channels=bgr", "data.cameras", ["--data.cameras", "top"]),
        ([], "--data.image-size=9 9", "data.cameras", ["--data.depth-cameras", "top"]),
        (["--eval.env", "None"], "--fleet.address=local", "eval.env", []),
        (["--eval.env", "None"], "--fleet.silence=9", "eval.env", []),
        (["--eval.env", "None"], "--eval.videos=9", "eval.env", []),
        ([], "--data.frames=recorded", "data.cameras", ["--data.cameras", "top"]),
        ([], "--data.decode-threads=1", "data.cameras", ["--data.cameras", "top"]),
        (["--agent.num-critics", "1"], "--agent.q-aggregation=min", "agent.num_critics above 1", []),
        (["--eval.env", "None"], "--train.eval-every=9", "eval.env or data.holdout", HELD_OUT),
        ([*ADJOINT, "--agent.num-critics", "1"], "--agent.adjoint.rho=0.1", "agent.num_critics above 1", ADJOINT),
        (["--agent.horizon", "1"], "--agent.partial-chunks=drop", "agent.horizon above 1", []),
        ([], "--record.aloha.jpeg-quality=50", "record.env aloha-transfer-cube", ALOHA),
        (ALOHA, "--record.noise=0.2", "a record.env of OGBench", []),
        (ALOHA, "--record.random-action=0.5", "a record.env of OGBench", []),
    ],
)
def test_a_flag_without_effect_is_refused(without: list[str], flag: str, reader: str, reads: list[str]):
    name, _, value = flag.partition("=")
    words = [name, *value.split()]
    with pytest.raises(
        ConfigError, match=f"^{name} has no effect here; leave it out, or set {reader}, which reads it$"
    ):
        load([*DEBUG, *without, *words])
    load([*DEBUG, *reads, *words])


def test_no_evaluations_may_be_asked_for_where_there_are_none():
    load([*DEBUG, "--eval.env", "None", "--train.eval-every", "0"])


def test_the_default_that_another_policy_demands_may_be_given():
    load([*DEBUG, "--agent.num-critics", "1", "--agent.adjoint.rho", "0.5"])


def test_an_agent_of_the_users_own_may_read_any_setting_of_agents():
    load([*DEBUG, *GAUSSIAN, "--agent.flow-steps", "3", "--agent.alpha", "2", "--agent.factory", "own:agent"])


def test_what_a_config_file_sets_may_be_for_a_flag_to_use():
    """Its alpha is of the one-step policy, which a flag replaces; a dataset that is looked at is not trained on."""
    path = ROOT / "configs/qchunk/cube_double.py"
    config, _ = load(["--config", str(path), *BEST, "--agent.num-samples", "8"])
    assert "agent.alpha" in config.unread
    load([*DEBUG, "--data.jpeg-channels", "bgr"], trains=False)


@pytest.mark.parametrize("words", [["--train.stepz", "3"], ["--train.steps", "abc"], ["--agent.policy", "foo"]])
def test_an_error_reads_in_a_terminal_as_in_a_file(words: list[str], monkeypatch: pytest.MonkeyPatch):
    """In a terminal it is drawn in colours, each sign of the box with its own."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(ConfigError) as plain:
        load([*DEBUG, *words])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(ConfigError) as coloured:
        load([*DEBUG, *words])
    assert "\x1b" not in str(coloured.value)
    assert str(coloured.value) == str(plain.value)


def test_a_run_goes_on_with_a_flag_that_a_new_one_is_refused_for(tmp_path: Path):
    """A scheduler's command always says --run.resume: its first start is a new run, whose flags have an effect."""
    words = [*DEBUG, "--agent.num-samples", "8", "--run.resume", "--run.dir", str(tmp_path / "run")]
    with pytest.raises(ConfigError, match=r"--agent\.num-samples has no effect here"):
        load(words)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (tmp_path / "run/metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"--agent\.num-samples has no effect here"):
        load(words)  # a start that failed before its first update left that
    (tmp_path / "run/metrics.jsonl").write_text("{}\n")
    load(words)


@pytest.mark.parametrize("words", [["--profile", "3"], ["--profile=3"], ["--run.profile=3"]])
def test_a_short_flag_takes_its_value_either_way(words: list[str]):
    assert flatten(load([*DEBUG, *words])[0])["run.profile"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing"),
        (["--config"], "--config needs a file"),
        (["--config", str(ROOT / "configs/qchunk/nothing.py")], "does not exist"),
        ([*DEBUG, "--train.stesp", "3"], r"(?s)Unrecognized options: --train.stesp.*--train.steps"),
        ([*DEBUG, "--agent.policy", "best"], r"(?s)invalid choice 'best'.*best_of_n"),
        ([*DEBUG, "--agent.discount", "1.5"], r"agent.discount is 1.5; expected above 0"),
        ([*DEBUG, "--train.steps", "0"], r"(?s)TrainConfig.steps is 0;\s+expected"),
        ([*DEBUG, "--data.shards", "5"], r"not\s+divisible"),
        ([*DEBUG, "--optim.clip-norm", "inf"], r"clip_norm is inf;\s+expected a finite .* None, which clips nothing"),
        ([*DEBUG, "--optim.clip-norm", "nan"], r"clip_norm is nan;\s+expected a finite"),
        ([*DEBUG, "--run.seed", "9223372036854775808"], r"run.seed is 9223372036854775808; expected int, of 64 bits"),
        ([*DEBUG, "--agent.alpha", "inf"], r"^command line: agent.alpha is inf; expected float, finite$"),
        ([*DEBUG, "--optim.learning-rate", "1e400", "--print-config"], r"optim.learning_rate is inf; .* finite"),
        (
            [*DEBUG, "--optim.beta1", "nan"],
            r"optim.beta1 is nan; expected a share of an old value, 0 or above and below",
        ),
        (
            [*DEBUG, "--optim.beta1", "1"],
            r"optim.beta1 is 1.0; expected a share of an old value, 0 or above and below 1",
        ),
        ([*DEBUG, "--optim.beta1", "-0.1"], r"optim.beta1 is -0.1; expected a share"),
        ([*DEBUG, "--optim.beta2", "1.5"], r"optim.beta2 is 1.5; expected a share"),
        ([*DEBUG, "--optim.method", "schedule_free", "--optim.beta2", "1"], r"optim.beta2 is 1.0; expected a share"),
        ([*DEBUG, "--run.resume", "False"], r"(?s)Unrecognized.*\n--run.resume False: .* write --run.no-resume$"),
        ([*DEBUG, "--run.resume=true"], r"write --run.resume$"),
        ([*DEBUG, "--run.no-resume", "False"], r"write --run.resume$"),
    ],
)
def test_names_what_is_wrong(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(ConfigError, match=message):
        load(arguments)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("alpha=", "alhpa=", r"line \d+: TypeError: .*'alhpa'.*; did you mean 'alpha'\?"),
        ("steps=200", "steps=-1", r"line \d+: ValueError: TrainConfig.steps is -1"),
        ("return QChunkConfig(", "return (", "SyntaxError"),
        ("def get_config", "def config", "AttributeError"),
        ("return QChunkConfig", "return dict", r"returned dict, expected a config"),
        ("steps=200", "steps=2e2", r"mine.py: train.steps is 200.0; expected int: write 200$"),
        ("steps=200", "steps=1e5", r"mine.py: train.steps is 100000.0; expected int: write 100_000$"),
        (
            "alpha=",
            "partial_chunks='Drop', alpha=",
            r"agent.partial_chunks is 'Drop'; expected Literal\['use', 'drop'\]",
        ),
        ("alpha=", "discount=True, alpha=", r"agent.discount is True; expected float$"),
        ("train=", "mesh=3, train=", r"mine.py: mesh is 3; expected MeshConfig$"),
        ("(32, 32)", "range(1, 3)", r"agent.hidden_sizes is range\(1, 3\); expected tuple\[int, ...\]"),
        ("alpha=", "factory='a:b', settings={'k': None}, alpha=", r"agent.settings is {'k': None}; expected dict"),
    ],
)
def test_names_what_is_wrong_in_a_file(tmp_path: Path, old: str, new: str, message: str):
    text = (ROOT / "configs/qchunk/debug.py").read_text()
    assert old in text
    path = tmp_path / "mine.py"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load(["--config", str(path)])


def test_a_files_values_are_taken_as_a_run_is_read(tmp_path: Path):
    text = (ROOT / "configs/qchunk/debug.py").read_text()
    given = "settings={'k': True, 'n': 2, 'f': 0.5, 'w': 'x'}"
    text = text.replace("(32, 32)", f"[8, 4], factory='a:b', {given}, discount=1")
    text = (
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Mine: x: int = 1\n"
        + text
    )
    path = tmp_path / "mine.py"
    path.write_text(text.replace('path="', "path=Path('a') / \"") + "\nfrom pathlib import Path\n")
    config, _ = load(["--config", str(path), "--agent.settings.n", "3", "--agent.settings.no-k"])
    assert isinstance(config, QChunkConfig)
    assert config.data.path == "a/datasets/qchunk/debug"
    assert config.agent.hidden_sizes == (8, 4)
    assert config.agent.discount == 1
    assert config.agent.settings == {"k": False, "n": 3, "f": 0.5, "w": "x"}
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, QChunkConfig) == config


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 64), (["--help"], 0), ([*DEBUG, "--help"], 0), ([*DEBUG, "--x"], 64)]
)
def test_exit_codes_without_a_traceback(arguments: list[str], code: int):
    found = subprocess.run([sys.executable, "launch.py", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == code
    assert "Traceback" not in found.stderr
    if code == 0:
        assert "--" in found.stdout


def test_help_shows_every_field():
    found = subprocess.run([sys.executable, "launch.py", *DEBUG, "--help"], cwd=ROOT, capture_output=True, text=True)
    config, _ = load(DEBUG)
    missing = {name for name in flatten(config) if f"--{name.replace('_', '-')}" not in found.stdout}
    # Whole parts that this config leaves out; only a file can put them in.
    assert missing == {"agent.encoder", "agent.decoupled", "online"}


def test_a_config_file_begins_with_a_shipped_one(tmp_path: Path):
    """In a clone and in a wheel, whose configs lie elsewhere; types that the file defines stay its own."""
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nimport dataclasses\nimport chunkwise\n"
        "@dataclasses.dataclass\nclass Own:\n    steps: int = 7\n"
        "def get_config():\n    config = chunkwise.get_config('qchunk/debug')\n"
        "    @dataclasses.dataclass\n    class More(Own):\n        batch: int = 4\n"
        "    own = More()\n"
        "    train = dataclasses.replace(config.train, steps=own.steps, batch_size=own.batch)\n"
        "    return dataclasses.replace(config, train=train)\n"
    )
    found, _ = load(["--config", str(tmp_path / "mine.py")])
    shipped = chunkwise.get_config("qchunk/debug")
    assert (found.train.steps, found.train.batch_size, shipped.train.batch_size) == (7, 4, 32)
    assert flatten(found) | {"train.steps": shipped.train.steps, "train.batch_size": 32} == flatten(shipped)
    assert chunkwise.get_config(str(tmp_path / "mine.py")) == found
    with pytest.raises(ConfigError, match=r"no config is named qchunk/debgu.*; did you mean qchunk/debug\?"):
        chunkwise.get_config("qchunk/debgu")
