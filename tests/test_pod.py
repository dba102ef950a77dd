"""Two processes train as one, are killed, stopped and rearranged: the short form of `python -m tests.pod`."""

import random
from pathlib import Path

import pytest

from tests import pod

TOY = "tests/train.py"
OPTIONS = pod.OWN[TOY]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path):
    pod.check_equality(TOY, tmp_path, OPTIONS)


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_and_a_stopped_process(tmp_path: Path):
    digest = pod.finish(TOY, tmp_path / "untouched", OPTIONS, devices=2)
    pod.check_kills(TOY, tmp_path, OPTIONS, digest, 1, random.Random(1), devices=2)
    pod.check_terms(TOY, tmp_path, OPTIONS, digest, 1, random.Random(0), devices=2)
    pod.check_damage(TOY, tmp_path, OPTIONS, digest, devices=2)


@pytest.mark.slow
@pytest.mark.long
def test_other_processes_restore_the_same(tmp_path: Path):
    pod.check_resharding(TOY, tmp_path, OPTIONS, [(2, 4, 4), (1, 8, 8)])
