"""The scripts of examples/cluster, run against stand-ins for the cluster's own commands.

They say what launch.py is started with, whether its parser takes that, and what becomes of its exit code.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chunkwise.config.load import load
from openpi_ript.config.experiment import OpenpiRiptConfig
from tests.slurm_commands import SCONTROL, SRUN

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "examples/cluster"

# Writes down what it was started with, and ends with the next of the codes in $CODES.
PROGRAM = """#!/usr/bin/env python3
import fcntl, json, os, sys
with open(os.environ["LOG"], "a+") as log:
    fcntl.flock(log, fcntl.LOCK_EX)
    log.seek(0)
    started = len(log.readlines())
    log.write(json.dumps([os.environ.get("JAX_NUM_PROCESSES"), *sys.argv[1:]]) + "\\n")
with open(os.environ["LOG"] + "-cores", "w") as file:
    file.write(os.environ.get("CORES", ""))
codes = os.environ["CODES"].split()
sys.exit(int(codes[min(started, len(codes) - 1)]))
"""
# A machine of $HOSTS hosts whose home is this folder; what is done with it is in the file calls. Its calls of a kind
# answer with the words of HOSTS, STATES and SETUPS one after another, the last one again and again; "-" fails.
GCLOUD = """#!/bin/bash
next() {
  echo "$1" >> "$HOME/calls"
  local -a words=($2)
  local made=$(grep -cx "$1" "$HOME/calls")
  local word="${words[$((made <= ${#words[@]} ? made - 1 : ${#words[@]} - 1))]}"
  case $word in
    NONE) echo "ERROR: (gcloud.compute.tpus.tpu-vm.describe) NOT_FOUND: no such machine" >&2; exit 1 ;;
    -) echo "ERROR: no answer" >&2; exit 1 ;;
  esac
  echo "$word"
}
case "$*" in
  *networkEndpoints*) next hosts "$HOSTS" ;;
  *'value(state)'*) next state "$STATES" ;;
  *' delete '*) echo delete >> "$HOME/calls" ;;
  *' create '*) echo create >> "$HOME/calls" ;;
  *--worker=all*) bash -n -c "${!#}" && exit "$(next setup "$SETUPS")" ;;
  *) cd "$HOME" && exec bash -c "${!#}" ;;
esac
"""


@pytest.fixture
def stands_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which the cluster's commands are stand-ins."""
    binaries = tmp_path / "chunkwise/.venv/bin"
    binaries.mkdir(parents=True)
    for name, text in {"python": PROGRAM, "srun": SRUN, "scontrol": SCONTROL, "gcloud": GCLOUD}.items():
        folder = binaries if name == "python" else tmp_path
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    settings = {"RUN": "/shared/a run", "DATA": "/shared/data", "ZONE": "here", "REPOSITORY": "x", "HOSTS": "2"}
    settings |= {"STATES": "READY", "SETUPS": "0", "PAUSE": "0", "TRIES": "3"}
    settings |= {"SLURM_CPUS_PER_TASK": "64"}  # of sbatch, which sets it for the script
    settings |= {"PYTHON": str(binaries / "python"), "LOG": str(tmp_path / "log"), "HOME": str(tmp_path)}
    return os.environ | settings | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "CODES": "0"}


def run(command: list[str], environment: dict[str, str]) -> tuple[int, str, list[list[Any]]]:
    """Exit code, what was printed, and what the program was started with: JAX_NUM_PROCESSES and its arguments."""
    Path(environment["LOG"]).unlink(missing_ok=True)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    log = Path(environment["LOG"])
    return done.returncode, done.stdout + done.stderr, [json.loads(line) for line in log.read_text().splitlines()]


def commands() -> dict[str, list[str]]:
    """Each example as a command."""
    (container,) = pod()["containers"]
    sky = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    return {
        "slurm": [str(CLUSTER / "slurm.sh")],
        "jobset": [*container["command"], *container["args"]],
        "skypilot": ["bash", "-c", sky["run"]],
        "tpu": [str(CLUSTER / "tpu.sh")],
    }


def pod() -> dict[str, Any]:
    job = yaml.safe_load((CLUSTER / "jobset.yaml").read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]


@pytest.mark.parametrize(("name", "devices"), [("slurm", 16), ("jobset", 32), ("skypilot", 16), ("tpu", 32)])
def test_launch_takes_what_it_is_started_with(name: str, devices: int, stands_in: dict[str, str]):
    code, said, started = run(commands()[name], stands_in)
    assert code == 0, said
    assert len(started) == (2 if name == "tpu" else 1)
    for processes, program, *arguments in started:
        assert processes == ("auto" if name == "tpu" else None)
        assert program == "launch.py"
        config, _ = load(arguments)
        assert isinstance(config, OpenpiRiptConfig)
        assert (config.run.dir, config.run.resume, config.data.path) == ("/shared/a run", True, "/shared/data")
        assert config.run.compile_cache == "/shared/a run.programs"
        assert config.train.batch_size % devices == 0
        assert devices % config.mesh.fsdp == 0
        assert config.mesh.data in (-1, devices // config.mesh.fsdp)


@pytest.mark.parametrize("code", [0, 64, 65, 70, 74, 75, 76, 78, 134, 137, 139, 253])
def test_exit_codes_come_back(code: int, stands_in: dict[str, str]):
    for name in ("slurm", "jobset", "skypilot"):
        found, said, _ = run(commands()[name], stands_in | {"CODES": str(code)})
        again = name == "slurm" and code in (75, 76, 134, 137, 139, 253)
        assert found == (0 if again else code)
        assert ("scontrol requeue 7" in said) == again


def test_slurm_gives_each_process_the_cores_that_sbatch_asked_for(stands_in: dict[str, str]):
    assert "\n#SBATCH --cpus-per-task=64\n" in (CLUSTER / "slurm.sh").read_text()
    code, said, _ = run(commands()["slurm"], stands_in)
    assert (code, Path(stands_in["LOG"] + "-cores").read_text()) == (0, "64"), said


def test_slurm_ends_after_enough_restarts(stands_in: dict[str, str]):
    many = stands_in | {"CODES": "75", "SLURM_RESTART_COUNT": "100"}
    found, said, _ = run(commands()["slurm"], many)
    assert (found, "scontrol" in said) == (75, False)


@pytest.mark.parametrize(
    ("codes", "expected", "starts"),
    [("75 75 0 0", 0, 4), ("75 76 65 134", 65, 4), ("134 255 0 0", 0, 4), ("1 76", 1, 2), ("75", 75, 6)],
)
def test_tpu_goes_on_where_it_was_stopped_or_left_alone(
    codes: str, expected: int, starts: int, stands_in: dict[str, str]
):
    """Two hosts, so two codes a start; at most two restarts."""
    found, said, started = run(commands()["tpu"], stands_in | {"CODES": codes, "MAX_RESTARTS": "2"})
    assert (found, len(started)) == (expected, starts), said


def calls_of_tpu(environment: dict[str, str]) -> tuple[int, list[str], int]:
    """The exit code of tpu.sh, what was done with machines and asked of them in order, and starts of the program."""
    found, _, started = run(commands()["tpu"], environment)
    calls = (Path(environment["HOME"]) / "calls").read_text().split()
    return found, calls, len(started)


def test_tpu_asks_again_where_a_call_fails(stands_in: dict[str, str]):
    """A call that fails says nothing: no machine is deleted for it, and no training counts as done."""
    round_ = ["state", "setup", "hosts"]
    found = calls_of_tpu(stands_in | {"HOSTS": "2 - 2", "CODES": "75 75 0 0", "MAX_RESTARTS": "2"})
    assert found == (0, round_ * 3, 4)
    Path(stands_in["HOME"], "calls").unlink()
    assert calls_of_tpu(stands_in | {"STATES": "- - READY"}) == (0, ["state"] * 2 + round_, 2)
    Path(stands_in["HOME"], "calls").unlink()
    Path(stands_in["LOG"]).write_text("")
    for hosts in ("-", "0"):
        environment = stands_in | {"HOSTS": hosts, "MAX_RESTARTS": "1"}
        done = subprocess.run(commands()["tpu"], env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, Path(stands_in["LOG"]).read_text()) == (255, ""), done.stdout


@pytest.mark.parametrize("state", ["NONE", "PREEMPTED", "TERMINATED"])
def test_tpu_makes_a_machine_where_there_is_none_or_it_was_taken(state: str, stands_in: dict[str, str]):
    calls = ["state", "delete", "create", "setup", "hosts"]
    assert calls_of_tpu(stands_in | {"STATES": state}) == (0, calls, 2)


def test_tpu_takes_no_lost_machine_for_an_error_of_the_program(stands_in: dict[str, str]):
    """A broken call of gcloud's own ends with 1, too."""
    calls = ["state", "setup", "hosts", "state", "state", "delete", "create", "setup", "hosts"]
    assert calls_of_tpu(stands_in | {"CODES": "1 76 0 0", "STATES": "READY PREEMPTED PREEMPTED READY"}) == (0, calls, 4)
    Path(stands_in["HOME"], "calls").unlink()
    assert calls_of_tpu(stands_in | {"CODES": "65 76"}) == (65, ["state", "setup", "hosts", "state"], 2)


def test_tpu_sets_a_machine_up_again_where_that_failed(stands_in: dict[str, str]):
    found = calls_of_tpu(stands_in | {"SETUPS": "255 1 0", "STATES": "NONE READY PREEMPTED READY"})
    tries = ["state", "delete", "create", "setup", "state", "setup", "state", "delete", "create", "setup", "hosts"]
    assert found == (0, tries, 2)
    Path(stands_in["HOME"], "calls").unlink()
    done = subprocess.run(commands()["tpu"], env=stands_in | {"SETUPS": "2"}, capture_output=True, timeout=60)
    assert (done.returncode, Path(stands_in["HOME"], "calls").read_text().split()) == (2, ["state", "setup"] * 3)


def test_kubernetes_and_skypilot_restart_on_these_codes():
    spec = yaml.safe_load((CLUSTER / "jobset.yaml").read_text())["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert codes["containerName"] == pod()["containers"][0]["name"]
    assert codes["values"] == [75, 76, 134]
    assert (job["backoffLimit"], job["completionMode"], pod()["restartPolicy"]) == (0, "Indexed", "Never")
    assert job["parallelism"] == job["completions"] == 8
    sky = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    assert sky["resources"]["job_recovery"]["recover_on_exit_codes"] == [75, 76, 134]
