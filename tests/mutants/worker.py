"""Runs pytest again and again, each time in a fork of a process that has imported jax once: saves 2 s a mutant.

Started by runner.py as a script, in the copy of the tree that it tests; reads a JSON object a line, {"arguments",
"log", "limit"}, and answers each with {"code", "seconds"}; code is pytest's, or "timeout".
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
from typing import Any

# No threads are started by these, so that a fork is whole; pyarrow and av start some.
PRELOADED = ["numpy", "jax", "jax.numpy", "flax.linen", "optax", "jaxtyping", "beartype", "pytest"]
PRELOADED += ["PIL.Image", "h5py", "tyro", "rich", "grain", "orbax.checkpoint", "orbax.checkpoint.experimental.v1"]

running: list[int] = []
"""The child that runs pytest."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs pytest in a fork, whose whole group of processes ends with it."""
    began = time.monotonic()
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
            code = int(sys.modules["pytest"].main(request["arguments"]))
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
    return {"code": code, "seconds": time.monotonic() - began}


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
    for name in PRELOADED:
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
