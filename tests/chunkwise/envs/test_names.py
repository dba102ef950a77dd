"""Names of environments: every form, and what is none."""

import pytest

from chunkwise.envs import names
from chunkwise.envs.environment import SUITES, EnvSpec
from chunkwise.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("metaworld/reach-v3", ("metaworld", "reach-v3")),
        ("robosuite/Lift", ("robosuite", "Lift")),
        ("libero_spatial/0", ("libero", "libero_spatial/0")),
        ("libero/libero_90/3", ("libero", "libero_90/3")),
        ("point/red", ("point", "red")),
        ("town/drive", ("town", "drive")),
        ("ogbench/cube-single-v0", ("ogbench", "cube-single-v0")),
        ("scene-play-singletask-task1-v0", ("ogbench", "scene-play-singletask-task1-v0")),
        ("visual-cube-single-play-singletask-task1-v0", ("ogbench", "visual-cube-single-play-singletask-task1-v0")),
        ("Pendulum-v1", ("gymnasium", "Pendulum-v1")),
        ("ALE/Pong-v5", ("gymnasium", "ALE/Pong-v5")),
        ("gymnasium/mine:Hill-v0", ("gymnasium", "mine:Hill-v0")),
        ("mine:Hill-v0", ("gymnasium", "mine:Hill-v0")),
        ("my.pkg:ours/Hill-v12", ("gymnasium", "my.pkg:ours/Hill-v12")),
        ("mine:make", ("mine:make", "")),
        ("mine:make:Hill-v0", ("mine:make", "Hill-v0")),
        ("my.pkg:make:task", ("my.pkg:make", "task")),
    ],
)
def test_a_name_is_a_suite_and_a_task(name: str, expected: tuple[str, str]):
    assert names.split_name(name) == expected
    spec = names.spec_named(name)
    assert (spec.suite, spec.task, spec.allow_code) == (*expected, True)


@pytest.mark.parametrize("name", ["", "Lift", "metaworld/", "nonsense/Lift", "mine:", ":make", "a/b:c", "x/y/z-v0"])
def test_what_is_no_name_is_refused(name: str):
    with pytest.raises(ConfigError, match="expected suite/task"):
        names.split_name(name)


def test_what_is_listed_has_a_form_and_every_suite_is_listed():
    listed = names.known()
    suites = {names.split_name(name)[0] for name in listed if name != "gymnasium/ID"}
    assert suites == {*SUITES, "module:factory"} - {"gymnasium"}
    assert len([name for name in listed if name.startswith("metaworld/")]) == 50 + 6
    assert listed["metaworld/MT10"].startswith("a set of 10 tasks")
    assert isinstance(names.spec_named("point/red"), EnvSpec)
