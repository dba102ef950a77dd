"""Two processes train as one, are killed, stopped and rearranged: the short form of `python -m tests.pod`."""

import random
from pathlib import Path

from tests import kill, pod

DEBUG = "configs/qchunk/debug.py"
OPTIONS = [*pod.OPTIONS, *pod.OWN[DEBUG], "--train.steps", "60"]


def test_two_processes_train_as_one(tmp_path: Path):
    pod.check_equality(DEBUG, tmp_path, OPTIONS)


def test_a_killed_and_a_stopped_process(tmp_path: Path):
    digest = pod.finish(DEBUG, tmp_path / "untouched", OPTIONS)
    pod.check_kills(DEBUG, tmp_path, OPTIONS, digest, 1, random.Random(0))
    pod.check_terms(DEBUG, tmp_path, OPTIONS, digest, 1, random.Random(0))


def test_other_processes_restore_the_same(tmp_path: Path):
    pod.check_resharding(DEBUG, tmp_path, OPTIONS, [(2, 4, 4), (1, 8, 8)])


def test_the_stream_does_not_depend_on_who_reads_it(tmp_path: Path):
    kill.finish(DEBUG, tmp_path / "recorded", [*OPTIONS, "--train.steps", "1"])
    pod.check_stream(DEBUG, OPTIONS)
