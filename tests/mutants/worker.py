"""Runs pytest again and again, each time in a fork of a process that has imported jax once: saves 2 s a mutant.

Started by runner.py as a script, in the copy of the tree that it tests; reads a JSON object a line, {"arguments",
"log", "limit", "order"}, and answers each with {"code", "seconds", "tests"}; code is pytest's, or "timeout". `order`
holds group and rank inside its file for each test, `tests` the seconds of each that ran.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# No threads are started by these, so that a fork is whole; pyarrow and av start some.
PRELOADED = ["numpy", "jax", "jax.numpy", "flax.linen", "optax", "jaxtyping", "beartype", "pytest"]
PRELOADED += ["PIL.Image", "h5py", "tyro", "rich", "grain", "orbax.checkpoint", "orbax.checkpoint.experimental.v1"]

running: list[int] = []
"""The child that runs pytest."""


class Order:
    """A plugin of pytest: the first group of tests of all files, then the second; those of a file together."""

    def __init__(self, order: dict[str, list[float]], notes: Path) -> None:
        """Takes group and rank of each test, and the file that gets what they took."""
        self._order, self._notes = order, notes
        self._took: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Sorts, where anything is known."""
        files = list(dict.fromkeys(item.path for item in items))

        def place(item: Any) -> tuple[float, int, float]:
            group, rank = self._order.get(item.nodeid, (1, 0.0))
            return group, files.index(item.path), rank

        if self._order:
            items.sort(key=place)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds the time of a phase of a test."""
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Writes the seconds of each test."""
        self._notes.write_text(json.dumps(self._took))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs pytest in a fork, whose whole group of processes ends with it."""
    began = time.monotonic()
    times = Path(request["log"] + ".json")
    times.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, target in ((log, 1), (log, 2), (os.open(os.devnull, os.O_RDONLY), 0)):
            os.dup2(number, target)
        code = 3
        try:
            order = Order(request["order"], times)
            code = int(sys.modules["pytest"].main(request["arguments"], plugins=[order]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    running.append(child)
    code: int | str = "timeout"
    while time.monotonic() - began < request["limit"]:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    running.clear()
    _end(child)
    if code == "timeout":
        os.waitpid(child, 0)
    tests = json.loads(times.read_text()) if times.exists() else {}
    return {"code": code, "seconds": time.monotonic() - began, "tests": tests}


def _end(child: int) -> None:
    """Kills a child and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _on_term(*_: object) -> None:
    """Ends with what runs."""
    for child in running:
        _end(child)
    os._exit(1)


def main() -> None:
    """Imports, then answers until its input ends."""
    signal.signal(signal.SIGTERM, _on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = os.getcwd()
    for name in PRELOADED if "--preload" in sys.argv else ["pytest"]:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not there", file=sys.stderr)
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
