"""Command lines and config files: what is right is read, what is wrong is named."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from chunkwise.config.experiment import (
    CheckpointConfig,
    FreeFields,
    MeshConfig,
    OptimConfig,
    TrainConfig,
    comparable,
    fingerprint,
    flatten,
    free_fields,
    load,
)
from chunkwise.errors import ConfigError

ROOT = Path(__file__).parents[3]
DEBUG = ["--config", str(ROOT / "configs/qchunk/debug.py")]


def test_reads_a_file_and_overrides_fields():
    config, path = load([*DEBUG, "--train.steps", "7", "--agent.discount", "0.9", "--run.resume", "--run.dir", "x"])
    flat = flatten(config)
    assert (flat["train.steps"], flat["agent.discount"], flat["run.resume"], flat["run.dir"]) == (7, 0.9, True, "x")
    assert flat["train.batch_size"] == 32  # of the file
    assert path.name == "debug.py"
    assert config.package == "qchunk"


def test_tuples_and_none_are_read():
    config, _ = load([*DEBUG, "--agent.hidden-sizes", "8", "16", "--optim.clip-norm", "1", "--eval.env", "None"])
    flat = flatten(config)
    assert flat["agent.hidden_sizes"] == [8, 16]
    assert flat["optim.clip_norm"] == 1.0
    assert flat["eval.env"] is None


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
    ],
)
def test_names_what_is_wrong_in_a_file(tmp_path: Path, old: str, new: str, message: str):
    text = (ROOT / "configs/qchunk/debug.py").read_text()
    assert old in text
    path = tmp_path / "mine.py"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load(["--config", str(path)])


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimConfig(clip_norm=0.0), "clip_norm"),
        (lambda: OptimConfig(learning_rate=-1.0), "learning_rate"),
        (lambda: MeshConfig(data=0), "data"),
        (lambda: TrainConfig(steps=1, batch_size=0), "batch_size"),
    ],
)
def test_values_out_of_range_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_configs_are_frozen():
    config, _ = load(DEBUG)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run.seed = 3  # type: ignore[misc]  the point of the test


def test_the_smallest_numbers_of_saves_are_taken():
    assert CheckpointConfig(keep_every=1, keep_last=1, every=1).keep_every == 1
    for name in ("keep_every", "keep_last", "every"):
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(CheckpointConfig(), **{name: 0})


def test_a_checkpoint_without_a_list_of_files_is_compared_in_the_rest_and_that_is_said():
    current = {"run.seed": 1, "dataset.files": "f"}
    assert comparable({"run.seed": 1, "dataset.files": "g"}, current, FREE) == (
        {"run.seed": 1, "dataset.files": "g"},
        current,
        "",
    )
    saved, now, remark = comparable({"run.seed": 2}, current, FREE)
    assert (saved, now) == ({"run.seed": 2}, {"run.seed": 1})
    assert remark.startswith("the checkpoint is an earlier version's, which kept no list of the dataset's files")


FREE = FreeFields(always=("run.dir", "data.path", "checkpoint."), at_a_constant_rate=("train.steps",))
EVERY_RUN = {
    *("run.dir", "run.resume", "run.compile_cache"),
    *("train.updates_per_call", "train.log_every", "train.eval_every", "train.max_skipped"),
    *("mesh.", "checkpoint.", "eval.", "data.path", "data.read_threads"),
    *("data.verify", "data.allow_links_to", "data.limits."),
}
QCHUNK = {"data.norm_stats", "data.frames", "data.memory_gib", "data.decode_threads", "record.processes"}


def test_fingerprint_leaves_out_what_may_change_on_resume():
    flat = {"run.dir": "a", "run.seed": 1, "train.steps": 5, "optim.schedule": "constant", "checkpoint.every": 3}
    assert fingerprint(flat, FREE) == {"run.seed": 1, "optim.schedule": "constant"}
    kept = dict.fromkeys(["train.batch_size", "train.accumulate", "train.ema", "data.path_of", "checkpoint"], 2)
    assert fingerprint(kept, FREE) == kept
    assert "train.steps" in fingerprint(flat | {"optim.schedule": "cosine"}, FREE)


@pytest.mark.parametrize(
    ("file", "always", "constant"),
    [
        ("qchunk/debug", EVERY_RUN | QCHUNK, {"train.steps", "online.steps"}),
        ("openpi_ript/debug", EVERY_RUN | {"tokenizer", "data.norm_stats"}, {"train.steps"}),
        ("driving/debug", EVERY_RUN | {"data.cache_mb", "record.processes"}, {"train.steps"}),
    ],
)
def test_the_fields_that_may_change_on_resume(file: str, always: set[str], constant: set[str]):
    """All of them: a name more lets a run go on with other batches, one less refuses runs that are there."""
    config, _ = load(["--config", str(ROOT / f"configs/{file}.py")])
    free = free_fields(type(config))
    assert set(free.always) == always
    assert set(free.at_a_constant_rate) == constant
    assert fingerprint({"eval": None, "mesh.data": 1}, free) == {"eval": None}  # whether there is one is not free


def test_a_checkpoint_of_before_the_list_of_files_is_comparable():
    before = {"run.seed": 1, "data.path": "a", "optim.schedule": "constant", "dataset.manifest": "x"}
    now = {"run.seed": 1, "optim.schedule": "constant", "dataset.manifest": "x", "dataset.files": "y"}
    saved, current, note = comparable(before, now, FREE)
    assert saved == current
    assert "earlier version" in note
    assert comparable(now, now, FREE) == (now, now, "")
    saved, current, _ = comparable(now, now | {"dataset.files": "z"}, FREE)
    assert saved != current
    saved, current, _ = comparable(before, now | {"dataset.manifest": "z"}, FREE)
    assert saved != current
