"""Runs the cases and prints a table; see tests/bombs/__init__.py."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bombs import PEAK_MB, SECONDS, Case, Command, all_cases

ROOT = Path(__file__).parents[2]
KILL_MB = 5000
"""Memory at which a case is ended, so that one that fails does not take the machine with it."""


class Result(NamedTuple):
    """What became of one case."""

    case: str
    outcome: str
    code: int | None
    peak_mb: int
    over_mb: int
    """Beyond the start of its program."""
    seconds: float
    message: str

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("FAILED")


class Run(NamedTuple):
    """One program that ended, or was ended."""

    code: int | None
    peak_mb: int
    seconds: float
    output: str
    ended: str
    """Why it was killed; empty if it ended by itself."""


def run(command: Command, scratch: Path, *, seconds: float = SECONDS) -> Run:
    """Runs Python, and measures the largest memory of the process.

    Args:
      command: Behind `python`.
      scratch: Folder for its output and caches.
      seconds: After which it is killed.
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(scratch / "cache"), "COLUMNS": "200"}
    environment["PYTHONPATH"] = str(ROOT)
    log = scratch / "output.txt"
    begin, ended = time.monotonic(), ""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, *command], cwd=scratch, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, _peak_mb(child.pid))
            if not ended and time.monotonic() - begin > seconds:
                ended = f"still running after {seconds:.0f} s"
            elif not ended and peak > KILL_MB:
                ended = f"took more than {KILL_MB} MB"
            if ended:
                child.kill()
            time.sleep(0.01)
    took = time.monotonic() - begin
    return Run(None if ended else child.returncode, peak, took, log.read_text(errors="replace"), ended)


def _peak_mb(pid: int) -> int:
    """Largest memory of a process so far. The figure of wait4 begins with that of the process it was forked from."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:")), 0)


def judge(case: Case, found: Run, start_mb: int) -> Result:
    """Compares what happened with what may happen."""
    over = max(0, found.peak_mb - start_mb)
    lines = [line.strip() for line in found.output.splitlines() if line.strip()]
    told = next((line for line in lines if "expected" in line or "limits" in line), lines[-1] if lines else "")
    reasons = [found.ended] if found.ended else []
    if "Traceback (most recent call last)" in found.output:
        reasons.append("a traceback")
        told = lines[-1]
    elif found.code not in ((0, *case.codes) if case.may_read else case.codes) and not found.ended:
        reasons.append(f"exit code {found.code}")
    if over > PEAK_MB:
        reasons.append(f"{over} MB over the start")
    outcome = f"FAILED: {', '.join(reasons)}" if reasons else ("refused" if found.code in case.codes else "read")
    return Result(case.name, outcome, found.code, found.peak_mb, over, found.seconds, told)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases that are named, or all; returns 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bombs", description="Hostile files through real programs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases, or the beginning of their names; default: all")
    parser.add_argument("--list", action="store_true", help="print the cases and what is hostile about them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args(argv)
    cases = [c for c in all_cases().values() if not arguments.names or c.name.startswith(tuple(arguments.names))]
    if arguments.list:
        for one in cases:
            print(f"{one.name:32} {' '.join((one.build.__doc__ or '').split())}")
        return 0
    starts: dict[str, int] = {}
    results = []
    print(
        f"{'case':32} {'outcome':9} {'code':>4} {'peak MB':>8} {'over start':>10} {'seconds':>8}  message", flush=True
    )
    for one in cases:
        with tempfile.TemporaryDirectory(prefix="bomb-") as name:
            folder = Path(name) / "files"
            folder.mkdir()
            command = one.build(folder)
            key = " ".join(command[:2] if command[0] == "-m" else command[:1])
            if key not in starts:
                starts[key] = run([*key.split(), "--help"], Path(name)).peak_mb
            result = judge(one, run(command, Path(name)), starts[key])
        results.append(result)
        print(
            f"{result.case:32} {result.outcome:9} {result.code!s:>4} {result.peak_mb:>8} {result.over_mb:>10} "
            f"{result.seconds:>8.1f}  {result.message.replace(name, '')[:200]}",
            flush=True,
        )
    failed = sum(result.failed for result in results)
    print(f"{len(results)} cases, {failed} failed")
    if arguments.json:
        arguments.json.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
