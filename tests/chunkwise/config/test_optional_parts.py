"""Parts that may be None: switched on by a flag for a field of theirs, and off by None."""

import dataclasses
from pathlib import Path

import pytest

from chunkwise.config.load import load
from chunkwise.config.saved import flatten
from chunkwise.errors import ConfigError
from qchunk.config import DecoupledConfig, EncoderConfig, OnlineConfig, QChunkConfig

ROOT = Path(__file__).parents[3]


def config(*flags: str, file: str = "qchunk/debug.py") -> QChunkConfig:
    loaded, _ = load(["--config", str(ROOT / "configs" / file), *flags])
    assert isinstance(loaded, QChunkConfig)
    return loaded


def test_a_flag_of_a_field_makes_the_part_with_its_defaults():
    found = config("--agent.encoder.kind", "resnet", "--agent.encoder.augment.shift=2", "--data.cameras", "front")
    encoder = EncoderConfig(kind="resnet", augment=dataclasses.replace(EncoderConfig().augment, shift=2))
    plain = config("--data.cameras", "front")
    assert found == dataclasses.replace(plain, agent=dataclasses.replace(plain.agent, encoder=encoder))
    assert type(found) is QChunkConfig, "the config's own classes, which a saved run names"
    assert type(found.agent.encoder) is EncoderConfig


def test_values_are_checked_when_all_flags_are_known():
    found = config("--agent.decoupled.policy_horizon", "2", "--agent.policy", "best_of_n")
    assert found.agent.decoupled == DecoupledConfig(policy_horizon=2)
    with pytest.raises(ConfigError, match=r"agent\.decoupled needs agent\.policy best_of_n"):
        config("--agent.decoupled.policy-horizon", "2")


def test_a_part_without_defaults_asks_for_its_fields():
    with pytest.raises(ConfigError, match=r"(?s)--online\.steps INT.*--online\.start INT"):
        config("--online.env", "cube-single-play-singletask-task2-v0")
    flags = ["--online.env", "cube-single-play-singletask-task2-v0", "--online.steps", "10", "--online.start", "190"]
    assert config(*flags).online == OnlineConfig(env="cube-single-play-singletask-task2-v0", steps=10, start=190)


@pytest.mark.parametrize("flags", [("--record", "None"), ("--record=None",)])
def test_none_switches_a_part_off(flags: tuple[str, ...]):
    found = config(*flags)
    assert found == dataclasses.replace(config(), record=None)
    assert flatten(found)["record"] is None


def test_none_of_a_part_that_is_none_changes_nothing():
    assert config("--agent.encoder", "None") == config()


def test_on_and_off_at_once_is_refused():
    with pytest.raises(ConfigError, match=r"--record None and --record\.env: expected the one or the other"):
        config("--record", "None", "--record.env", "cube-single-v0")


def test_none_of_what_is_no_part_is_a_value():
    assert config("--eval.env", "None").eval.env is None


def test_an_online_config_goes_offline():
    found = config("--online", "None", file="qchunk/debug_online.py")
    assert found.online is None


def test_the_errors_have_a_line_each():
    with pytest.raises(ConfigError) as error:
        config("--agent.polcy", "distill")
    assert not set("│╭╰─") & set(str(error.value))
    assert "--agent.policy {best_of_n,distill,gaussian,adjoint_matching}" in str(error.value)
    assert len(str(error.value).splitlines()) > 2
