"""Runs that were begun with what a new run is refused for: read, gone on with, and not begun again."""

import dataclasses
import json
from pathlib import Path

import pytest

from chunkwise import get_config
from chunkwise.config.experiment import RunConfig, of_a_run_of_before
from chunkwise.config.load import load
from chunkwise.config.saved import flatten, read_config
from chunkwise.errors import ConfigError
from chunkwise.train.run_dir import RunFolder

ROOT = Path(__file__).parents[3]
REFUSED = [
    ("qchunk", "agent.gaussian.bc_weight", 0.02, r"agent\.gaussian is .*, which agent\.policy \w+ does not read"),
    ("qchunk", "data.negative_scores", (1, 4), r"expected each score in one of them, found \[4\] in both"),
    ("openpi_ript", "guidance.dropout", 0.2, r"guidance\.dropout is 0\.2, which guidance\.loss 'two_branch' does not"),
    (
        "openpi_ript",
        "data.advantage.clip_quantile",
        0.2,
        r"advantage\.clip_quantile is 0\.2, which advantage\.clipping",
    ),
    ("openpi_ript", "checkpoint.best", "lowest", r"checkpoint\.best is 'lowest', which a run without checkpoint\.keep"),
]
"""Of a package's debug config: what versions before 26 November 2026 trained with, and what is said of it now."""


def flags(package: str, field: str, value: object) -> list[str]:
    words = [str(one) for one in value] if isinstance(value, tuple) else [str(value)]
    return ["--config", str(ROOT / f"configs/{package}/debug.py"), f"--{field.replace('_', '-')}", *words]


@pytest.mark.parametrize(("package", "field", "value", "words"), REFUSED)
def test_a_run_of_before_is_read_and_goes_on_and_a_new_one_is_not_begun(
    package: str, field: str, value: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    before, given = get_config(f"{package}/debug"), flags(package, field, value)
    with pytest.raises(ConfigError, match=words):
        load(given)
    folder, earlier = tmp_path / "run", tmp_path / "earlier"
    earlier.mkdir()
    for file in ("config.json", "metrics.jsonl"):
        (earlier / file).write_text("{}")
    resumed, _ = load([*given, "--run.dir", str(earlier), "--run.resume"])
    with of_a_run_of_before():
        resumed = dataclasses.replace(resumed, run=dataclasses.replace(resumed.run, dir=str(folder)))
    with pytest.raises(ConfigError, match=words):
        RunFolder(resumed, "run")
    assert not folder.exists(), "a folder without a run, which --run.resume begins"
    folder.mkdir()
    flat = json.loads(json.dumps(flatten(before) | {field: value}))
    (folder / "config.json").write_text(json.dumps(flat))
    (folder / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')
    read = read_config(folder, type(before))
    assert json.loads(json.dumps(flatten(read))) == flat
    with RunFolder(resumed, "run") as open_folder:
        assert open_folder.begun
    with pytest.raises(ConfigError, match=words):
        load(given)  # what was read so leaves nothing behind


def test_a_run_that_is_not_resumed_is_read_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    package, field, value, words = REFUSED[0]
    with pytest.raises(ConfigError, match=words):
        load([*flags(package, field, value), "--run.resume", "--run.no-resume"])


def test_pretraining_of_before_that_compared_nothing_is_read(tmp_path: Path) -> None:
    """With one camera the loss between cameras was 0; with one row a batch so was that between rows."""
    from driving.config import DrivingConfig

    before = get_config("driving/pretrain")
    given = {"data.cameras": ["front"], "data.min_cameras": 1, "train.batch_size": 1, "objective.cross_camera": 1.0}
    (tmp_path / "config.json").write_text(json.dumps(flatten(before) | given))
    assert read_config(tmp_path, type(before)).train.batch_size == 1
    with pytest.raises(ConfigError, match=r"train\.batch_size is 1, and objective\.cross_camera"):
        RunFolder(read_config(tmp_path, type(before)), "new")
    left = {"objective.temporal": 0.0, "objective.cross_camera": 0.0, "objective.temperature": 0.2}
    (tmp_path / "config.json").write_text(json.dumps(flatten(before) | left))
    read = read_config(tmp_path, DrivingConfig).objective
    assert read is not None
    assert read.temperature == 0.2


def test_rounds_of_before_whose_share_of_the_dataset_was_no_row_are_read(tmp_path: Path) -> None:
    from openpi_ript.config import OpenpiRiptConfig
    from openpi_ript.policies.saved import TOKENIZER
    from openpi_ript.policies.saved import read_config as acting_config

    before = get_config("openpi_ript/debug_ript")
    given = {"train.batch_size": 4, "rollout.dataset_share": 0.05}
    (tmp_path / "config.json").write_text(json.dumps(flatten(before) | given))
    read = read_config(tmp_path, OpenpiRiptConfig)
    assert read.rollout is not None
    assert read.rollout.dataset_share == 0.05
    (tmp_path / TOKENIZER).touch()
    assert acting_config(tmp_path).tokenizer == str(tmp_path / TOKENIZER), "a policy, which has its own, is loaded"
    run = RunConfig(dir=str(tmp_path / "new"), resume=True)
    with of_a_run_of_before():
        new = dataclasses.replace(read, run=run)
    with pytest.raises(ConfigError, match=r"of which rounded 0 rows are the dataset's"):
        RunFolder(new, "new")


@pytest.mark.parametrize(
    ("package", "flag", "now"),
    [
        ("qchunk", "--checkpoint.keep-last", "--checkpoint.max-to-keep"),
        ("qchunk", "--checkpoint.keep_every=3", "--checkpoint.keep-period"),
        ("qchunk", "--agent.target-rate", "--agent.tau"),
        ("openpi_ript", "--train.accumulate", "--train.grad-accum-steps"),
        ("driving", "--train.ema", "--train.ema-decay"),
        ("driving", "--eval.pictures", "--eval.plotted-moments"),
    ],
)
def test_a_flag_of_before_is_answered_with_the_one_of_today(package: str, flag: str, now: str) -> None:
    config = ["--config", str(ROOT / f"configs/{package}/debug.py")]
    with pytest.raises(ConfigError, match=f"^{flag.partition('=')[0]} is called {now} now; write that$"):
        load([*config, *(flag, "3")[: 1 if "=" in flag else 2]])


def test_a_keyword_of_before_in_a_config_file_is_answered_with_the_one_of_today(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import dataclasses\nimport chunkwise\nfrom chunkwise.config.experiment import CheckpointConfig\n"
        "def get_config():\n    saves = CheckpointConfig(keep_last=3)\n"
        "    return dataclasses.replace(chunkwise.get_config('qchunk/debug'), checkpoint=saves)\n"
    )
    with pytest.raises(ConfigError, match=r"line 5: TypeError: .*'keep_last'; it is called 'max_to_keep' now$"):
        load(["--config", str(path)])
