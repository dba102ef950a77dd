"""Two processes train as one, are killed, stopped and rearranged: the short form of `python -m tests.pod`."""

import random
from pathlib import Path

import pytest

from tests import pod
from tests.driving.test_train import write_drive
from tests.openpi_ript.small_run import make_dataset
from tests.qchunk import recordings

TOY = "tests/train.py"
OPTIONS = pod.OWN[TOY]
MORE = {"qchunk": ("--data.task", "None", "--eval.env", "None")}
"""What a package's debug config has beside its data's path that these tests' data do not."""


QUICK = ("--train.steps", "2", "--train.batch-size", "4", "--eval.blind-updates", "2", "--eval.plotted-moments", "0")


def test_batches_of_every_package_do_not_depend_on_who_reads_them(tmp_path: Path):
    """With the names under which each package's data are opened, which `.ci/full` relies on."""
    for package, data in small_data(tmp_path).items():
        options = ["--data.path", str(data), "--train.batch-size", "4", *MORE.get(package, ())]
        config = f"configs/{package}/debug.py"
        one = pod.stream_hash(config, options, processes=1, threads=0, batches=3)
        assert one == pod.stream_hash(config, options, processes=2, threads=2, batches=3), package
        assert one != pod.stream_hash(config, [*options, "--run.seed", "1"], processes=1, threads=0, batches=3)


def small_data(folder: Path) -> dict[str, Path]:
    """A dataset for each package's debug config."""
    for number in range(6):
        recordings.write(
            folder / f"qchunk/episode_{number}.hdf5", recordings.arrays(12, number), success=number % 2 == 0
        )
        write_drive(folder / "driving", f"drive_{number}", frames=40, start_yaw=float(number))
    return {
        "qchunk": folder / "qchunk",
        "openpi_ript": make_dataset(folder),
        "driving": folder / "driving",
    }


def test_two_processes_train_as_one(tmp_path: Path):
    pod.check_equality(TOY, tmp_path, OPTIONS)


@pytest.mark.long
def test_two_processes_begin_with_the_weights_of_another_run(tmp_path: Path):
    config, options = "configs/driving/debug.py", ["--data.path", str(small_data(tmp_path)["driving"]), *QUICK]
    first = pod.finish(config, tmp_path / "first", [*options, "--run.seed", "1"], processes=1, devices=1)
    options += ["--waypoints.weights", str(tmp_path / "first")]
    alone = pod.finish(config, tmp_path / "alone", options, processes=1, devices=2)
    assert pod.finish(config, tmp_path / "together", options, processes=2, devices=1) == alone != first


@pytest.mark.long
def test_a_killed_and_a_stopped_process(tmp_path: Path):
    digest = pod.finish(TOY, tmp_path / "untouched", OPTIONS, devices=2)
    pod.check_kills(TOY, tmp_path, OPTIONS, digest, 1, random.Random(1), devices=2)
    pod.check_terms(TOY, tmp_path, OPTIONS, digest, 1, random.Random(0), devices=2)
    pod.check_damage(TOY, tmp_path, OPTIONS, digest, devices=2)


@pytest.mark.long
def test_other_processes_restore_the_same(tmp_path: Path):
    pod.check_resharding(TOY, tmp_path, OPTIONS, [(2, 4, 4), (1, 8, 8)])
