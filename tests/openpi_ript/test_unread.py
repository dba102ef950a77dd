"""Settings that a run would not read are refused, on a command line and in a config file, unless it goes on."""

import contextlib
import dataclasses
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from chunkwise.config import names
from chunkwise.config.load import load
from chunkwise.config.saved import flatten, read_config
from chunkwise.config.study import read_study, runs_of
from chunkwise.errors import ConfigError
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.experiment import GuidanceConfig, OpenpiRiptConfig
from openpi_ript.config.rollouts import HindsightConfig
from openpi_ript.train import main, of_training

SHAPED = AdvantageConfig(normalization="min_max", clipping="none", negative_handling="relu")
CONTROL = ["--rollout.dataset-share", "1"]
GREY = ["--augment.colour-probability", "0"]
VALUE = ["--guidance.labels", "value"]
WEIGHED = GuidanceConfig(positive_weight="advantage")


class Begun(Exception):
    """A run was begun."""


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any) -> NoReturn:
        raise Begun

    monkeypatch.setattr("openpi_ript.train.RunFolder", begin)


def shipped(name: str, *flags: str) -> OpenpiRiptConfig:
    config, _ = load(["--config", str(names.find(f"openpi_ript/{name}")), *flags])
    assert isinstance(config, OpenpiRiptConfig)
    return config


def with_rollout(config: OpenpiRiptConfig, **changes: Any) -> OpenpiRiptConfig:
    assert config.rollout is not None
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **changes))


def shaped(guidance: GuidanceConfig, advantage: AdvantageConfig = SHAPED, *, resume: bool = False) -> OpenpiRiptConfig:
    config = shipped("debug")
    return dataclasses.replace(
        config,
        guidance=guidance,
        data=dataclasses.replace(config.data, advantage=advantage),
        run=dataclasses.replace(config.run, resume=resume, dir="old" if resume else None),
    )


@pytest.mark.parametrize(
    ("name", "flags", "reader"),
    [
        ("debug", ["--data.advantage.clipping", "none"], "guidance.positive_weight advantage"),
        ("debug", ["--data.advantage.ddof", "1"], "guidance.positive_weight advantage"),
        ("debug_ript", ["--rollout.tasks", "need"], "several env.tasks"),
        ("sft", ["--train.eval-every", "5"], "env or data.holdout"),
        ("sft", ["--data.init-key", "seed"], "data.advantage"),
        ("debug", ["--data.init-key", "seed", "--data.advantage.group-by", "task"], "data.advantage with group_by"),
        ("debug", ["--data.init-key", "seed", *VALUE], "guidance.labels rloo, or data.advantage.uniform_groups drop"),
        ("debug", ["--data.advantage.group-by", "task", *VALUE], "guidance.labels rloo"),
        ("ript_lift_images", ["--augment.hue", "0.2", *GREY], "augment.colour_probability above 0"),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(name: str, flags: list[str], reader: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{flags[0]} has no effect here; leave it out, or set {reader}"):
        shipped(name, *flags)
    for file in ("config.json", "metrics.jsonl"):
        (tmp_path / file).write_text("{}")
    shipped(name, *flags, "--run.resume", "--run.dir", str(tmp_path))  # a run that was begun with it goes on


def test_flags_that_are_read_are_taken() -> None:
    shipped("debug", "--data.advantage.clipping", "none", "--guidance.positive-weight", "advantage")
    shipped("debug", "--data.advantage.group-by", "task", "--data.advantage.uniform-groups", "drop")
    shipped("metaworld_mt10", "--rollout.tasks", "success")
    shipped("debug", "--data.init-key", "seed")
    shipped("debug", "--data.init-key", "seed", *VALUE, "--data.advantage.uniform-groups", "drop")
    shipped("ript_lift_images", "--augment.hue", "0.2")
    shipped("debug_ript", "--rollout.replay-rounds", "2", "--rollout.rows", "tasks", *CONTROL)


@pytest.mark.parametrize("guidance", [GuidanceConfig(), GuidanceConfig(loss="label_dropout")])
def test_a_shape_that_no_weight_has_is_refused(guidance: GuidanceConfig) -> None:
    message = (
        r"^data.advantage.normalization is 'min_max', which has no effect here; expected 'standard', its default, or "
        r"guidance.positive_weight advantage, which reads it$"
    )
    with pytest.raises(ConfigError, match=message):
        main(shaped(guidance), "test")
    for read in (
        shaped(WEIGHED),
        shaped(guidance, AdvantageConfig(group_by="task", uniform_groups="drop")),
        shaped(guidance, resume=True),
    ):
        with pytest.raises(Begun):
            main(read, "test")


def test_the_best_of_nothing_is_refused() -> None:
    """Evaluations without an environment and held-out episodes measure nothing."""
    config = shipped("debug", "--checkpoint.keep-best", "holdout/loss", "--checkpoint.best", "lowest")
    with pytest.raises(ConfigError, match=r"keep_best is holdout/loss, and this run evaluates nothing: env is None"):
        main(config, "test")
    held = dataclasses.replace(config, data=dataclasses.replace(config.data, holdout=0.2))
    goes_on = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True, dir="old"))
    for read in (held, goes_on):
        with pytest.raises(Begun):
            main(read, "test")


def test_a_law_of_tasks_for_a_single_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.tasks is 'need', which .* expected 'uniform', .* env.tasks"):
        main(with_rollout(shipped("debug_ript"), tasks="need"), "test")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, False),
        ({"advantage": SHAPED}, True),
        ({"advantage": SHAPED, "objective": "rejection"}, True),
        ({"advantage": SHAPED, "guidance": WEIGHED}, False),
    ],
)
def test_what_only_layer_4_reads_is_said(
    changes: dict[str, Any], said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = shipped("debug_ript")
    config = dataclasses.replace(config, guidance=changes.pop("guidance", config.guidance))
    with pytest.raises(Begun):
        main(with_rollout(config, **changes), "test")
    assert ("rollout.advantage shapes what chunkwise convert --layer-4 writes" in capsys.readouterr().out) == said


@pytest.mark.parametrize("name", ["metaworld_mt10", "metaworld_mt10_images", "ript_lift", "ript_lift_images"])
@pytest.mark.parametrize("flags", [[], CONTROL])
def test_a_control_is_its_config_and_one_flag_more(
    name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the config says of rollouts stays, so that the two runs differ in whether any are played."""
    with pytest.raises(Begun):
        main(shipped(name, *flags), "test")
    said = "rollout.dataset_share is 1, as of a control: no rollout is played" in capsys.readouterr().out
    assert said == (flags == CONTROL)


@pytest.mark.parametrize("name", ["lift", "metaworld_mt10", "metaworld_mt50", "metaworld_staleness", "ript_staleness"])
def test_the_runs_of_the_studies_begin(name: str) -> None:
    study, _ = read_study(name)
    for run in runs_of(dataclasses.replace(study, seeds=study.seeds[:1])):
        assert isinstance(run.config, OpenpiRiptConfig)
        with pytest.raises(Begun):
            main(run.config, "test")


def test_studies_of_meta_world_are_what_they_were_measured_with() -> None:
    """They change a config that has gone on since; these are its values of then."""
    then = {
        "optim.learning_rate": 1e-3, "rollout.rows": "tasks", "rollout.exploration.steps": None,
        "rollout.exploration.each": 0.5, "rollout.exploration.share": 0.75, "train.log_every": 50,
    }  # fmt: skip
    own = {
        "metaworld_mt50": {
            "train.steps": 2000, "train.batch_size": 128, "train.eval_every": 400, "rollout.start": 400,
            "rollout.updates": 160, "rollout.groups": 200, "rollout.hindsight.places": "passed",
            "env.state_function": "relative", "data.path": "datasets/openpi_ript/metaworld-mt50",
        },
        "metaworld_staleness": {
            "train.steps": 640, "train.batch_size": 64, "train.eval_every": 0, "rollout.start": 320,
            "rollout.updates": 80, "rollout.groups": 40, "rollout.hindsight.places": "last",
            "env.state_function": "concatenate", "data.path": "datasets/openpi_ript/metaworld-mt10",
        },
    }  # fmt: skip
    for name, values in own.items():
        for run in runs_of(read_study(name)[0]):
            found = flatten(run.config)
            assert {field: found[field] for field in then | values} == then | values


def test_more_groups_than_initial_states_are_refused() -> None:
    """Of several tasks there are so many of each."""
    few = with_rollout(shipped("debug_ript"), initial_states=3, groups=4, max_groups=8)
    with pytest.raises(ConfigError, match=r"rollout.groups is 4, and rollout.initial_states 3 of each task are 3 "):
        main(few, "test")
    several = with_rollout(shipped("metaworld_mt10"), initial_states=3, groups=30, max_groups=40)
    for taken in (with_rollout(few, groups=3), with_rollout(few, dataset_share=1.0), several):
        with pytest.raises(Begun):
            main(taken, "test")


@pytest.mark.parametrize("labels", ["value", "rloo"])
def test_what_decides_nothing_beside_a_value_is_said(
    labels: Literal["value", "rloo"], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Begun):
        main(shaped(GuidanceConfig(labels=labels), AdvantageConfig()), "test")
    assert ("the value labels each chunk" in capsys.readouterr().out) == (labels == "value")


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_recording_is_looked_at_for_a_run_that_begins_or_goes_on(
    goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def folder(*_: Any) -> Iterator[types.SimpleNamespace]:
        yield types.SimpleNamespace(path=tmp_path, begun=goes_on, plays=False)

    def demonstrate(_: OpenpiRiptConfig, *, begun: bool) -> NoReturn:
        assert begun == goes_on
        raise Begun

    monkeypatch.setattr("openpi_ript.train.RunFolder", folder)
    monkeypatch.setattr("openpi_ript.train._require_fit", lambda _: None)
    monkeypatch.setattr("openpi_ript.envs.demonstrate.demonstrate", demonstrate)
    with pytest.raises(Begun):
        main(shipped("metaworld_mt10"), "test")


def test_hindsight_beside_images_is_refused_for_new_runs(tmp_path: Path) -> None:
    """Images go on to show the goal that was meant; a run that was begun so before is loaded, and goes on."""
    seen = shipped("metaworld_mt10_images")
    hindsight = HindsightConfig(reached={"reach-v3": "hand"}, radius={"reach-v3": 0.05})
    assert seen.env is not None
    env = dataclasses.replace(seen.env, state=("hand", "goal"))
    both = with_rollout(dataclasses.replace(seen, env=env), hindsight=hindsight)
    message = r"rollout.hindsight is set and env.cameras shows corner2: .* Expected rollout.hindsight None, or env.cam"
    with pytest.raises(ConfigError, match=message):
        main(both, "test")
    assert re.search(message, of_training(both).refusal or "")
    (tmp_path / "config.json").write_text(json.dumps(flatten(both)))
    assert read_config(tmp_path, OpenpiRiptConfig) == both
    going_on = dataclasses.replace(both, run=dataclasses.replace(both.run, resume=True, dir="old"))
    for taken in (going_on, with_rollout(both, hindsight=None), shipped("metaworld_mt10")):
        with pytest.raises(Begun):
            main(taken, "test")
