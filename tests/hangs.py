"""Blocks, stops and breaks what a run depends on, for real, and measures how long the run takes to end.

    python -m tests.hangs                       # every case, a line each
    python -m tests.hangs --only reader_driving --only compile

A reader is blocked in a child that runs launch.py with one function replaced: by a mutex that is never given (`c`, in
C, where no signal is heard, as in a read of a file system that does not answer) or by an event (`python`, a wait that
a signal breaks off). Workers are stopped and killed by signals, a folder is made unwritable by a file in its place.

A case passes if the run ends within its bound (10 s after a request to stop, 15 s after the message of an error) with
its exit code, and if a run that had begun to train can be resumed from the step that it names.
"""

import argparse
import ctypes
import dataclasses
import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STOP_SECONDS, FAIL_SECONDS = 10.0, 15.0
START_SECONDS = 300.0
"""For a run to come to the place where it is stopped; a machine may be busy."""
DRIVING = ["--eval.blind-updates", "20", "--eval.plotted-moments", "0"]
QCHUNK = ["--eval.env", "None"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run, what is done to it, and how it must end."""

    config: str
    options: list[str]
    place: str = ""
    """Function that is replaced, as module:path; nothing if empty."""
    how: str = "c"
    """What it does instead: blocks in `c` or in `python`, or `raise`s."""
    when: str = "always"
    """`always`, or only once the run has `trained` (metrics.jsonl is not empty)."""
    act: str = "SIGTERM"
    """Signal to the run once it is there, or what is done to others: see `act`."""
    code: int
    said: str
    """In what it prints."""
    resumes: bool = False


def reader(config: str, place: str, options: list[str], **changes: Any) -> Case:
    """A reader that blocks after some updates: what was trained is saved."""
    how = {"when": "trained", "code": 75, "said": r"saved at step (\d+)", "resumes": True} | changes
    return Case(config=config, options=options, place=place, **how)


def opening(config: str, place: str, **changes: Any) -> Case:
    """A reader that blocks while the data are opened: there is nothing to save."""
    how = {"code": 75, "said": "nothing was trained yet"} | changes
    return Case(config=config, options=[], place=place, **how)


QCHUNK_DEBUG, DRIVING_DEBUG = "configs/qchunk/debug.py", "configs/driving/debug.py"
PI0_DEBUG, RIPT_DEBUG = "configs/openpi_ript/debug.py", "configs/openpi_ript/debug_ript.py"
RIPT = ["--train.steps", "340", "--eval.episodes", "4", "--eval.final-episodes", "4"]
POOL, DRIVING_IMAGE, FRAME = (
    "qchunk.data.pool:Pool._fill",
    "driving.data.images:read_bytes",
    "chunkwise.data.lerobot.video:LeRobotImages.read",
)
BATCH = "tests.train:MatrixTask.batches"
TOY = "tests/train.py"

CASES: dict[str, Case] = {
    "open_qchunk": opening(QCHUNK_DEBUG, "qchunk.data:open_dataset"),
    "open_openpi_ript": opening(PI0_DEBUG, "openpi_ript.train:open_data"),
    "open_driving": opening(DRIVING_DEBUG, "driving.train:open_data"),
    "open_python": opening(DRIVING_DEBUG, "driving.train:open_data", how="python"),
    "open_sigint": opening(DRIVING_DEBUG, "driving.train:open_data", act="SIGINT", code=130, said="by the keyboard"),
    "restore": Case(
        config=TOY,
        options=[],
        place="chunkwise.checkpoint.saved_steps:steps_in",
        code=75,
        said="nothing was trained yet",
    ),
    "reader_qchunk": reader(QCHUNK_DEBUG, POOL, QCHUNK),
    "reader_openpi_ript": reader(PI0_DEBUG, FRAME, []),
    "reader_openpi_ript_main_thread": reader(PI0_DEBUG, FRAME, ["--data.read-threads", "0"]),
    "reader_driving": reader(DRIVING_DEBUG, DRIVING_IMAGE, DRIVING),
    "reader_driving_main_thread": reader(DRIVING_DEBUG, DRIVING_IMAGE, [*DRIVING, "--data.read-threads", "0"]),
    "reader_driving_sigint": reader(DRIVING_DEBUG, DRIVING_IMAGE, DRIVING, act="SIGINT"),
    "reader_python": reader(DRIVING_DEBUG, DRIVING_IMAGE, [*DRIVING, "--data.read-threads", "0"], how="python"),
    "reader_after_interaction": reader(TOY, BATCH, []),
    "evaluation": reader(TOY, "tests.train:MatrixTask.evaluate", []),
    "evaluation_driving": reader(DRIVING_DEBUG, "driving.evaluate:quick", DRIVING, when="always"),
    "interaction": reader(TOY, "tests.train:World.interact", []),
    "end": reader(TOY, "tests.train:MatrixTask.finish", []),
    "compile": reader(TOY, "tests.hangs:slow_to_compile", [], when="always"),
    "evaluation_worker_stopped": reader(
        RIPT_DEBUG, "", [*RIPT, "--train.eval-every", "20"], act="stop the workers at the first evaluation"
    ),
    "collection_worker_stopped": reader(RIPT_DEBUG, "", RIPT, act="stop the workers at the first round"),
    "evaluation_worker_killed": Case(
        config=RIPT_DEBUG,
        options=[*RIPT, "--train.eval-every", "20"],
        act="kill a worker at the first evaluation",
        code=0,
        said="is played again",
    ),
    "collection_worker_killed": Case(
        config=RIPT_DEBUG, options=RIPT, act="kill a worker at the first round", code=0, said="is played again"
    ),
    "checkpoints_unwritable": Case(
        config=TOY,
        options=[],
        act="put a file in the place of checkpoints/",
        code=74,
        said=r"error: .*/checkpoints\b(?!_)",
    ),
    "reader_fails": reader(
        DRIVING_DEBUG, DRIVING_IMAGE, DRIVING, how="raise", act="", code=1, said="broken", resumes=False
    ),
    "evaluation_fails": Case(
        config=TOY, options=[], place="tests.train:MatrixTask.evaluate", how="raise", act="", code=1, said="broken"
    ),
    "fails_beside_a_blocked_thread": reader(
        DRIVING_DEBUG, DRIVING_IMAGE, DRIVING, how="raise beside", act="", code=1, said="broken", resumes=False
    ),
}


def block(how: str, mark: Path) -> None:
    """Does what stands in for a function; leaves a mark just before."""
    mark.touch()
    if how == "raise":
        raise RuntimeError("broken")
    if how == "raise beside":  # one thread fails, and another never ends
        threading.Thread(target=block, args=("c", mark)).start()
        raise RuntimeError("broken")
    if how == "python":
        threading.Event().wait()
    lock = ctypes.create_string_buffer(256)  # a mutex of zeros is a free one
    ctypes.CDLL(None).pthread_mutex_lock(lock)
    ctypes.CDLL(None).pthread_mutex_lock(lock)


def slow_to_compile(state: Any, batch: Any) -> Any:
    """A step of tests/train.py that XLA works on for minutes."""
    import jax.numpy as jnp

    task, step = _original
    Path(os.environ["MARK"]).touch()
    x = batch["x"]
    for i in range(4000):
        x = jnp.sin(x @ jnp.full((x.shape[1], x.shape[1]), 1e-3 * i, x.dtype))
    return step(task, state, batch | {"x": batch["x"] + 0 * x})


_original: tuple[Any, Any]


def child(name: str, folder: Path, arguments: list[str]) -> None:
    """Runs launch.py with one function replaced."""
    case, mark = CASES[name], folder.with_suffix(".mark")
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    if name == "compile":
        os.environ["MARK"] = str(mark)
        train = importlib.import_module("tests.train")
        original = train.MatrixTask.step

        def step(self: Any, state: Any, batch: Any) -> Any:
            global _original
            _original = self, original
            return slow_to_compile(state, batch)

        train.MatrixTask.step = step
    elif case.place:
        module, _, path = case.place.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, function = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        original = getattr(owner, function)

        def replaced(*args: Any, **kwargs: Any) -> Any:
            metrics = folder / "metrics.jsonl"
            if case.when == "always" or (metrics.exists() and metrics.stat().st_size):
                block(case.how, mark)
            return original(*args, **kwargs)

        def batches(self: Any, start: int, **shards: Any) -> Any:
            for step, batch in enumerate(original(self, start, **shards), start):
                if step == 30:  # the interaction before this update has been
                    block(case.how, mark)
                yield batch

        setattr(owner, function, batches if path.endswith("batches") else replaced)
    sys.argv = ["launch.py", *arguments]
    runpy.run_path("launch.py", run_name="__main__")


def launch(case: Case, folder: Path, name: str) -> subprocess.Popen[str]:
    """Starts a run, with a function replaced if a case is named."""
    program = ["-m", "tests.hangs", "--child", name, str(folder)] if name else ["launch.py"]
    command = [sys.executable, *program, "--config", case.config, "--run.dir", str(folder), "--run.resume"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "chunkwise-kill-cache")}
    if name == "compile":
        del environment["JAX_COMPILATION_CACHE_DIR"]
    with folder.with_suffix(".log").open("w") as log:
        return subprocess.Popen([*command, *case.options], cwd=ROOT, env=environment, stdout=log, stderr=log, text=True)


def await_that(there: Callable[[], object], process: subprocess.Popen[str], seconds: float = START_SECONDS) -> bool:
    """Waits until something is there; False if the process ended first, or too much time passed."""
    deadline = time.monotonic() + seconds
    while not (found := there()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(found)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Processes of the environments."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def act(case: Case, process: subprocess.Popen[str], folder: Path) -> float:
    """Does to a run what the case says; the moment from which its end counts."""
    log = folder.with_suffix(".log")
    if "worker" in case.act:
        assert await_that(lambda: len(workers_of(process)) > 0, process), "no worker has been started"
        time.sleep(0.3)
        if case.act.startswith("kill"):
            os.kill(workers_of(process)[0], signal.SIGKILL)
            return time.monotonic()
        stopped = workers_of(process)
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        time.sleep(1.0)
    elif case.place:
        assert await_that(folder.with_suffix(".mark").exists, process), "the run has not come to the place"
        time.sleep(0.5)
    elif "checkpoints" in case.act:
        assert await_that(lambda: "error" in log.read_text(), process)
        return time.monotonic()
    if case.act in ("", "SIGINT", "SIGTERM") and case.how.startswith("raise"):
        assert await_that(lambda: "broken" in log.read_text(), process)
        return time.monotonic()
    process.send_signal(signal.SIGINT if case.act == "SIGINT" else signal.SIGTERM)
    return time.monotonic()


def run(name: str, folder: Path, *, patience: float = 1.0) -> tuple[bool, str]:
    """Plays a case; whether it passed, and a line of the table. `patience` stretches the bounds on a busy machine."""
    case = CASES[name]
    if "place of checkpoints" in case.act:
        folder.mkdir(parents=True)
        (folder / "checkpoints").write_text("not a folder")
    process = launch(case, folder, name)
    bound = FAIL_SECONDS if case.how.startswith("raise") or "checkpoints" in case.act else STOP_SECONDS
    try:
        began = act(case, process, folder)
        process.wait(START_SECONDS if case.code == 0 else 60 * patience)
        seconds = time.monotonic() - began
    except subprocess.TimeoutExpired:
        seconds = float("inf")
    finally:
        process.kill()
        process.wait()
    said = folder.with_suffix(".log").read_text()
    found = re.search(case.said, said)
    passed = process.returncode == case.code and found is not None and (seconds <= bound * patience or case.code == 0)
    saved = f"step {found[1]}" if found and found.groups() else ""
    if passed and case.resumes and found is not None:
        again = launch(case, folder, "")
        again.wait()
        said = folder.with_suffix(".log").read_text()
        passed = again.returncode == 0 and f"resumed from step {found[1]}" in said
    line = f"| {name} | {case.act or case.how} | {seconds:.1f} | {process.returncode} | {saved} |"
    return passed, line if passed else f"{line} FAILED\n{said[-2500:]}"


def main() -> int:
    """Command line."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CASES), help="repeatable; default all")
    chosen = parser.parse_args().only or list(CASES)
    print("| case | what was done | seconds to the end | exit code | saved |\n|---|---|---|---|---|", flush=True)
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            good, line = run(name, Path(folder) / name)
            passed += good
            print(line, flush=True)
    print(f"{passed} of {len(chosen)} ended as they must")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
