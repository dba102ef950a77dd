"""A config that was written into a run folder comes back equal."""

import dataclasses
import json
import typing
from pathlib import Path

import pytest

from chunkwise.config.experiment import CheckpointConfig, OptimConfig, RunConfig, TrainConfig, of_a_run_of_before
from chunkwise.config.saved import _fits, _fitting, flatten, read_config, with_fitting_values
from chunkwise.errors import ConfigError, DataError, MismatchError
from chunkwise.policies.load import load_policy
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, toy_config


def test_round_trip(tmp_path: Path):
    config = ToyConfig(
        train=TrainConfig(steps=3, batch_size=2),
        checkpoint=CheckpointConfig(every=7, keep_period=None),
        width=5,
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, ToyConfig) == config


def test_optional_parts_come_back(tmp_path: Path):
    from driving.config import DataConfig, DrivingConfig, ModelConfig, ObjectiveConfig, VitConfig

    config = DrivingConfig(
        train=TrainConfig(steps=3, batch_size=2),
        data=DataConfig(path="here", offsets_s=(0.0, 0.5)),
        model=ModelConfig(vit=VitConfig(depth=2)),
        objective=ObjectiveConfig(temporal=1.0),
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    assert read_config(tmp_path, DrivingConfig) == config
    without = dataclasses.replace(config, model=ModelConfig())
    (tmp_path / "config.json").write_text(json.dumps(flatten(without)))
    assert read_config(tmp_path, DrivingConfig) == without


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected the config of a run"),
        (b"{", "expected the config of a run"),
        (b'{"width": \xff}', "expected the config of a run, found .*utf-8"),
        (b"\x00\x01\x02", "expected the config of a run"),
        (b"[" * 100_000, "expected the config of a run"),
        (b"[]", "an object of fields, found list"),
        (b"{}", "train is missing"),
        (b'{"train.steps": 0, "train.batch_size": 1}', "expected a ToyConfig"),
    ],
)
def test_what_is_no_config_is_refused_by_who_reads_it_and_who_resumes_it(tmp_path: Path, text: bytes, message: str):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=rf"config\.json: {message}|config\.json: expected .*{message}"):
        read_config(tmp_path, ToyConfig)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    config = toy_config(tmp_path, run=RunConfig(dir=str(tmp_path), resume=True))
    with pytest.raises((ConfigError, MismatchError), match=r"config\.json|was started with another config"):
        RunFolder(config, "toy")


def test_a_config_that_is_a_folder_is_none(tmp_path: Path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises((ConfigError, DataError), match=r"config\.json"):
        read_config(tmp_path, ToyConfig)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("width", "4", "width is '4'; expected int"),
        ("width", 4.0, "width is 4.0; expected int"),
        ("width", True, "width is True; expected int"),
        ("width", None, "width is None; expected int"),
        ("width", 2**63, "width is 9223372036854775808; expected int"),
        ("width", [4], r"width is \(4,\); expected int"),
        ("run.compile_cache", 3, r"run.compile_cache is 3; expected str \| None"),
        ("checkpoint.best", "lowest ", r"checkpoint.best is 'lowest '; expected Literal\['highest', 'lowest'\]"),
        ("optim.learning_rate", "1e-3", "optim.learning_rate is '1e-3'; expected float"),
        ("optim.learning_rate", float("nan"), "optim.learning_rate is nan; expected float"),
        ("optim.learning_rate", float("inf"), "optim.learning_rate is inf; expected float"),
        ("optim.clip_norm", {"a": 1}, r"optim.clip_norm is \{'a': 1\}; expected float \| None"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(tmp_path: Path, field: str, value: object, words: str):
    flat = flatten(ToyConfig(train=TrainConfig(steps=3, batch_size=2)))
    assert field in flat
    (tmp_path / "config.json").write_text(json.dumps(flat | {field: value}))
    with pytest.raises(ConfigError, match=words):
        read_config(tmp_path, ToyConfig)


@dataclasses.dataclass(frozen=True)
class Told:
    task: str = ""


def test_an_empty_text_is_refused_where_it_is_no_default(tmp_path: Path):
    config = toy_config(tmp_path / "run")
    for name in ("dir", "compile_cache"):
        empty = dataclasses.replace(config, run=dataclasses.replace(config.run, **{name: ""}))
        with pytest.raises(ConfigError, match=rf"^flags: run\.{name} is empty; expected str \| None of at least one"):
            with_fitting_values(empty, "flags")
        with of_a_run_of_before():  # which was begun so goes on
            assert with_fitting_values(empty, "flags") == empty
    with pytest.raises(ConfigError, match=r"^toy: run\.compile_cache is empty"):  # of a program, for a new run
        RunFolder(toy_config(tmp_path / "run", run=RunConfig(dir=str(tmp_path / "run"), compile_cache="")), "toy")
    assert _fitting(Told(), "env.") == Told(), "its default"


def test_a_programs_config_that_could_not_be_read_back_is_refused_before_there_is_a_folder(tmp_path: Path):
    optim = OptimConfig(schedule="Cosine")  # pyright: ignore[reportArgumentType]
    config = dataclasses.replace(toy_config(tmp_path / "run"), optim=optim)
    with pytest.raises(
        ConfigError, match=r"^toy: optim.schedule is 'Cosine'; expected Literal\['constant', 'cosine'\]$"
    ):
        RunFolder(config, "toy")
    with pytest.raises(ConfigError, match=r"^config: optim.schedule is 'Cosine'"):
        load_policy(tmp_path, config=config)
    assert not list(tmp_path.iterdir())


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnOptim(OptimConfig):
    momentum: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(ToyConfig):
    more: int = 1


def test_a_class_of_ones_own_whose_fields_a_run_would_not_give_back_is_refused(tmp_path: Path):
    config = dataclasses.replace(toy_config(tmp_path / "run"), optim=OwnOptim())
    with pytest.raises(
        ConfigError, match=r"^toy: optim is a OwnOptim, a class of your own; expected a OptimConfig its"
    ):
        RunFolder(config, "toy")
    whole = OwnConfig(train=TrainConfig(steps=3, batch_size=2))
    with pytest.raises(
        ConfigError, match=r"^config: the config is a OwnConfig, .*; expected a ToyConfig itself, since"
    ):
        load_policy(tmp_path, config=whole)
    assert not list(tmp_path.iterdir())


def test_values_that_fit_their_fields(tmp_path: Path):
    flat = flatten(ToyConfig(train=TrainConfig(steps=3, batch_size=2)))
    fitting = {"optim.clip_norm": None, "run.compile_cache": "here", "train.ema_decay": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(flat | fitting))
    read = flatten(read_config(tmp_path, ToyConfig))
    assert {name: read[name] for name in fitting} == fitting


def test_tuples_and_dicts_are_looked_into(tmp_path: Path):
    from openpi_ript.config.rollouts import EnvConfig

    fits = typing.get_type_hints(EnvConfig)
    for name, good, bad in (
        ("state", ("a", "b"), (("a", 1), "a", 1)),
        ("image_size", (84, 84), ((84,), (84, 84, 84), (84, "84"), 84)),
        ("cameras", {"a": "b"}, ({"a": 1}, ("a",), "a")),
        ("rendering", "full", ("none", 1, None)),
    ):
        assert _fits(fits[name], good)
        for value in bad:
            assert not _fits(fits[name], value), (name, value)
    assert _fits(typing.Literal[1, 2], 1)
    assert not _fits(typing.Literal[1, 2], True)


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"expected the folder of a run, found no config\.json in it"):
        read_config(tmp_path, ToyConfig)
