"""Runs of a study on other machines: against stand-ins for Slurm's commands, and, long, on a Ray of this machine."""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.study import StudyConfig, runs_of
from chunkwise.distributed.cores import cores
from chunkwise.reports import study as program
from chunkwise.reports import study_fleet, study_progress
from tests.chunkwise.reports.test_study import ROOT, STUDY
from tests.slurm_commands import SCONTROL, SRUN

RECORDS = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
echo "41$(wc -l < "$LOG");cluster"
"""
ENDS = """#!/bin/bash
printf '%s\\n' "$*, $CORES cores" >> "$LOG"
exit $CODE
"""
PLAYS = """#!/bin/bash
# Plays an array's tasks one after another, or the command of --wrap; says the job's number.
[[ $1 == --parsable ]] && shift
while [[ $# -gt 0 ]]; do
  case $1 in
    --wrap) shift; bash -c "$1" > /dev/null 2>&1 ;;
    -*) ;;
    *) for i in $(sed -n 's/^#SBATCH --array=//p' "$1" | sed 's/%.*//; s/,/ /g'); do
         for n in $(seq ${i%-*} ${i#*-}); do SLURM_ARRAY_TASK_ID=$n bash "$1" >> "$LOG" 2>&1; done
       done ;;
  esac
  shift
done
echo 7
"""


@pytest.fixture
def stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH for commands, with srun and scontrol in it; what they are given is in its file log."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(folder / "log"))
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        put(folder, name, text)
    return folder


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


def write_study(folder: Path) -> str:
    (folder / "mine.py").write_text(STUDY)
    return str(folder / "mine.py")


def test_the_script_of_an_array_and_its_submission(
    stands_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    put(stands_in, "sbatch", RECORDS)
    out = tmp_path / "the 50%j out"
    words = [write_study(tmp_path), "--out", str(out), "--slurm", "--cores", "3", "--workers", "2"]
    monkeypatch.setattr(
        program, "is_complete", lambda study, run, out: run.folder.endswith("learning-rate=1e-3/seed_4")
    )
    assert program.main([*words, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert not out.exists()
    assert "#SBATCH --array=0,2-3%2\n" in text
    assert "#SBATCH --cpus-per-task=3\n" in text
    assert 'srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-3}" ' in text  # --sbatch '-c 8' goes before
    assert f"#SBATCH --output='{out}/logs/slurm-%A-%a.txt'\n" in text.replace("%%", "%")
    assert text.count("%%") == str(out).count("%") == 1
    assert program.main([*words, "--sbatch", "--partition gpu --comment 'a b'"]) == 0
    assert (out / "slurm.sh").read_text() == text
    array, table = (stands_in / "log").read_text().splitlines()
    assert array == f"--parsable --partition gpu --comment a b {out}/slurm.sh"
    assert table.startswith("--parsable --partition gpu --comment a b --dependency=afterany:411 ")
    assert f" --output={out}/slurm-table-%j.txt --wrap " in table.replace("%%", "%")
    assert re.search(rf"--out '{out}' --of [0-9a-f]{{12}} --table$", table), table
    assert f"--out '{out}' --watch shows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("echo 'Welcome,\n42 nodes'; echo 41", 0, "4 runs are the array 41, and job 41 writes the table behind it"),
        ("echo invalid partition >&2; exit 1", 64, "error: sbatch ended with 1: invalid partition"),
        ("echo Submitted batch job 41", 64, "error: sbatch --parsable said 'Submitted batch job 41'; expected a job's"),
        (
            'echo 41; [[ "$*" == *--wrap* ]] && echo limit >&2 && exit 1 || exit 0',
            0,
            "4 runs are the array 41; the job of the table behind it was refused: sbatch ended with 1: limit. --table "
            "writes it later",
        ),
        (None, 64, "error: --slurm: sbatch cannot be started: "),
    ],
)
def test_what_sbatch_answers(
    stands_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str | None, code: int, said: str
):
    put(stands_in, "sbatch", "not a program\n" if answer is None else f"#!/bin/bash\n{answer}\n")
    assert program.main([write_study(tmp_path), "--out", str(tmp_path / "out"), "--slurm"]) == code
    told = capsys.readouterr()
    assert said in told.out + told.err


def test_a_job_s_number_is_of_the_study_that_was_submitted(
    stands_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The file is edited for the next study while the array of the first one waits."""
    put(stands_in, "sbatch", RECORDS)
    trained: list[int] = []
    monkeypatch.setattr(program, "_one", lambda _, run, *__: trained.append(run.seed) or "")
    file, out = write_study(tmp_path), tmp_path / "out"
    assert program.main([file, "--out", str(out), "--slurm"]) == 0
    words = shlex.split(re.findall(r" -m chunkwise study (.*) --only ", (out / "slurm.sh").read_text())[0])
    assert program.main([*words, "--only", "3"]) == 0
    Path(file).write_text(STUDY.replace("1e-3", "2.5e-3"))
    for wanted in (["--only", "3"], ["--table"]):
        assert program.main([*words, *wanted]) == 64
        assert "its runs are no longer those that were submitted" in capsys.readouterr().err
    assert trained == [4]


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [(0, 0, False), (65, 0, False), (75, 3, True), (143, 0, True), (134, 0, False), (75, 100, False)],
)
def test_a_run_that_was_stopped_is_queued_again(
    stands_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, restarts: int, again: bool
):
    fake = put(stands_in, "python", ENDS)
    monkeypatch.setenv("CODE", str(code))
    for name, value in {
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_JOB_ID": "70",
        "SLURM_RESTART_COUNT": str(restarts),
    }.items():
        monkeypatch.setenv(name, value)
    text = study_fleet.script("x", [str(fake), "study"], tmp_path, [5], workers=None, cores=8)
    done = subprocess.run(["bash", str(put(stands_in, "it.sh", text))], capture_output=True, text=True, check=False)
    assert (stands_in / "log").read_text() == "study --only 5, 8 cores\n"
    assert (done.stdout, done.returncode) == (("scontrol requeue 70_5\n", 0) if again else ("", code))


def test_one_run_ends_with_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    for why, code in (
        ("ended with 65: error: bad", 65),
        ("ended with -6: x", 134),
        ("done.json: expected", 70),
        ("", 0),
    ):
        monkeypatch.setattr(program, "_one", lambda _, run, *__, why=why: asked.append(run.seed) or why)
        assert program.main([write_study(tmp_path), "--out", str(tmp_path / "out"), "--only", "3"]) == code
    assert asked == [4] * 4
    assert not (tmp_path / "out/table.md").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--only", "4"], "--only is 4; expected 0 to 3"),
        (["--only", "-1"], "--only is -1; expected 0 to 3"),
        (["--slurm", "--fleet", "local"], "--fleet and --slurm: choose one of them"),
        (["--cores", "2"], "--cores is for --fleet and --slurm"),
        (["--cores", "0", "--slurm"], "--cores is 0; expected at least 1"),
        (["--workers", "0"], "--workers is 0; expected at least 1"),
        (["--sbatch", "-p x"], "--sbatch is for --slurm"),
        (["--slurm", "--sbatch", "-p 'x"], """--sbatch is "-p 'x": No closing quotation; expected words"""),
        (["--slurm", "--sbatch", "-p 'x", "--dry-run"], """--sbatch is "-p 'x": No closing quotation"""),
        (["--out", "lr=[0.1]"], "lr=[0.1]: expected a folder without *, ? and [ in its path"),
        (["--slurm"], "expected Slurm's sbatch on this machine, found none"),
        (["--slurm", "--dry-run", "--out", "a\\b"], "expected no backslash and no line break in the path, which Slurm"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str):
    assert program.main([write_study(tmp_path), "--out", str(tmp_path / "out"), *words]) == 64
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out/slurm.sh").exists() or words == ["--slurm"]


def test_cores_are_one_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5, 7, 8})
    with study_fleet.own_cores(2, tmp_path) as first, study_fleet.own_cores(2, tmp_path) as second:
        assert (first, second) == ({1, 2}, {5, 7})
        with study_fleet.own_cores(2, tmp_path) as third:
            assert third == {1, 2, 5, 7, 8}, "one is left, which is too few"
        with study_fleet.own_cores(1, tmp_path) as fourth:
            assert fourth == {8}
    with study_fleet.own_cores(3, tmp_path) as again:
        assert again == {1, 2, 5}


def test_a_run_has_its_cores_alone_and_the_next_one_may_have_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(study_fleet.tempfile, "gettempdir", lambda: str(tmp_path))
    before = os.sched_getaffinity(0)
    says = (sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))")
    worker = study_fleet.StudyWorker(command=says, folder=str(tmp_path), cores=1)
    assert worker.train(0) == (0, "1")
    assert os.sched_getaffinity(0) == before


def test_a_run_that_its_machine_cannot_start_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(study_fleet.tempfile, "gettempdir", lambda: str(tmp_path))
    code, said = study_fleet.StudyWorker(command=("true",), folder=str(tmp_path / "none"), cores=1).train(0)
    assert code == 74
    assert said.startswith("could not be started on ")
    assert said.endswith(f"No such file or directory: '{tmp_path}/none'")


class Dies(study_fleet.StudyWorker):
    """Its process ends in run 0."""

    def train(self, number: int) -> tuple[int, str]:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0, "trained"


@pytest.mark.long
def test_a_run_that_costs_its_workers_has_failed_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program, "StudyWorker", Dies)
    runs = runs_of(StudyConfig(config="qchunk/debug", seeds=(0, 1)))
    failed: dict[str, str] = {}
    places = argparse.Namespace(workers=1, fleet=None, cores=1)
    program.train_on_fleet(runs, tmp_path, ["chunkwise", "study"], [0, 1], places, failed)
    assert failed == {"debug/seed_0": "3 workers died in it, perhaps for want of memory"}


def test_how_far_runs_are(tmp_path: Path):
    study = StudyConfig(config="qchunk/debug", seeds=(0, 1, 2))
    runs = runs_of(study)
    steps = runs[0].config.train.steps
    folder = tmp_path / runs[1].folder
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 7, "x": 1}\n{"step": 9')
    found = study_progress.rows(study, runs, tmp_path, {runs[2].folder: "ended with 65: error"})
    assert found == [
        (runs[0].folder, "waiting", f"0/{steps}", ""),
        (runs[1].folder, "begun", f"7/{steps}", ""),
        (runs[2].folder, "ended with 65: error", f"0/{steps}", ""),
    ]


def test_a_run_ends_with_its_worker_and_comes_to_save(tmp_path: Path):
    """Ray kills an actor with its children and its group of processes: the run gets SIGTERM all the same."""
    mark = tmp_path / "stopped"
    ends = f"(pathlib.Path({str(mark)!r}).touch(), sys.exit(0))"
    run = f"import pathlib, signal, sys, time; signal.signal(15, lambda *_: {ends})"
    run += f"; pathlib.Path({str(tmp_path / 'began')!r}).touch(); time.sleep(600)"
    made = f"StudyWorker(command={(sys.executable, '-c', run)!r}, folder={str(tmp_path)!r}, cores=1)"
    program = f"from chunkwise.reports.study_fleet import StudyWorker; {made}.train(0)"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": path}
    worker = subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True)
    until = time.monotonic() + 60
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    assert children
    os.killpg(worker.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    worker.wait()
    while not mark.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_run_whose_worker_ended_before_it_began_does_not_begin(tmp_path: Path):
    words = study_fleet.leashed([sys.executable, "-c", f"open({str(tmp_path / 'began')!r}, 'w')"])
    subprocess.run(words, check=True)
    assert (tmp_path / "began").exists()
    (tmp_path / "began").unlink()
    words[words.index(str(os.getpid()))] = str(os.getppid())
    assert subprocess.run(words, check=False).returncode == 75
    assert not (tmp_path / "began").exists()


def tables(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("table.json", "table.md")]


SLOW = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(2)
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "begun").touch()
time.sleep(100)
"""
STOPPED = """
import sys
from chunkwise.cli import command
from chunkwise.distributed import stopping
from chunkwise.reports import study
stopping.GRACE = 0.5
slow, place, *words = sys.argv[1:]
study.leashed = lambda _: [sys.executable, "-c", slow, place]
command.run(lambda: study.main(words))
"""


@pytest.mark.parametrize("words", [pytest.param(["--only", "1"], marks=pytest.mark.long), []])
def test_a_study_that_is_stopped_ends_after_its_runs(tmp_path: Path, words: list[str]):
    """Slurm, and a container's end, kill what a study leaves behind: here a run that takes 2 s to save."""
    study = [write_study(tmp_path), "--out", str(tmp_path / "out"), *words]
    process = subprocess.Popen([sys.executable, "-c", STOPPED, SLOW, str(tmp_path), *study], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 75
        assert (tmp_path / "saved").exists()
    finally:
        process.kill()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_slurm_trains_what_processes_train_and_only_what_is_left(stands_in: Path, tmp_path: Path):
    put(stands_in, "sbatch", PLAYS)
    words = [sys.executable, "-m", "chunkwise", "study", write_study(tmp_path), "--out"]
    subprocess.run([*words, str(tmp_path / "here"), "--workers", "2"], cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run([*words, str(tmp_path / "there"), "--only", "1"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run([*words, str(tmp_path / "there"), "--slurm"], cwd=ROOT, check=True, capture_output=True)
    assert "#SBATCH --array=0,2-3\n" in (tmp_path / "there/slurm.sh").read_text(), done
    assert tables(tmp_path / "there") == tables(tmp_path / "here")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_cluster_trains_what_processes_train_also_after_a_kill(tmp_path: Path):
    words = [sys.executable, "-m", "chunkwise", "study", write_study(tmp_path), "--out"]
    here, there = tmp_path / "here", tmp_path / "there"
    share = str(max(1, len(cores()) // 2))
    subprocess.run([*words, str(here), "--workers", "2"], cwd=ROOT, check=True, capture_output=True)
    place = [*words, str(there), "--fleet", "local", "--workers", "2", "--cores", share]
    killed = subprocess.Popen(place, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    while not list(there.glob("*/seed_*/done.json")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    again = subprocess.run(place, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert tables(there) == tables(here)
    starts = [line for path in there.glob("*/seed_*/starts.jsonl") for line in path.read_text().splitlines()]
    assert 4 <= len(starts) <= 7, "the finished one is not started again"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_study_on_a_cluster_that_is_stopped_saves_its_runs(tmp_path: Path):
    """Ray wraps what a signal's handler raises; the run saves above what it had saved by itself, nothing."""
    long = '"--train.steps", "90000000", "--checkpoint.every", "90000000"'
    (tmp_path / "mine.py").write_text(STUDY.replace('"--train.steps", "30"', long).replace("(3, 4)", "(3,)"))
    words = [sys.executable, "-m", "chunkwise", "study", str(tmp_path / "mine.py"), "--out", str(tmp_path / "out")]
    stopped = subprocess.Popen([*words, "--fleet", "local"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (found := [*tmp_path.glob("out/*/seed_3/metrics.jsonl")]) or not found[0].stat().st_size:
        assert stopped.poll() is None
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    said = stopped.communicate()[1]
    assert stopped.returncode == 75, said
    assert "the same command goes on with the study" in said
    assert "Traceback" not in said
    saved, until = found[0].parent / "saved.json", time.monotonic() + 60
    while not (json.loads(saved.read_text())["step"] or 0):
        assert time.monotonic() < until
        time.sleep(0.05)
