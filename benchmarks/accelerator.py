"""Everything that only an accelerator can show, in one command of under nine minutes, with no data to fetch.

    python benchmarks/accelerator.py
    python benchmarks/accelerator.py --qc PYTHON DIR     # the official Q-chunking code beside ours (qchunk_update.py)
    python benchmarks/accelerator.py --small             # all of it in a minute on a CPU, in sizes that mean nothing

Each section (accelerator_sections.py) runs in a process of its own with a time limit: one that fails, hangs or runs out
of memory leaves the others. After each of them accelerator.json and accelerator.md, a table, are written into --out
anew, with date, devices and versions. Weights and pixels are random.

  device     products of bfloat16, the device's memory, the way from the host: what they reach
  pi0_full   updates of all of pi0's weights, in the largest form that fits (moving average, rows, at last layers)
  serve      a chunk of pi0 at 10 denoising steps, from an observation on the host
  qchunk     QC-FQL and QC with 1, 10 and 50 updates a call, batches drawn and metrics read as in a run
  pi0_lora   updates of pi0's adapters (configs/openpi_ript/sft.py), then the same fed by the loader from files

"share of peak" is the time that a program's products would take at the data sheet's rate, divided by the time taken: of
all that is executed, and in brackets without what is computed again for the backward pass. "no faster than" is the
bound of `chunkwise compile`; its memory stands beside the most that the device held. Exit code 1 if a section failed.
"""

import argparse
import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUDGET = 525.0
"""Seconds for all sections together."""
LIMITS = {"device": 60.0, "pi0_full": 170.0, "serve": 80.0, "qchunk": 105.0, "pi0_lora": 170.0}
"""Seconds of a section, in which the others are left theirs."""
MEMORY = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94"}
"""Of sections that want all of a GPU; jax takes three quarters by itself."""
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Of a section beside which the official code has a process of its own."""


def run_section(
    command: Sequence[str], seconds: float, more: Mapping[str, str], say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Runs a section; what it printed is shown, but for its rows.

    Args:
      command: Of its process.
      seconds: After which it is killed, with all that it started.
      more: Of the environment.
      say: Takes its other lines.

    Returns:
      `rows` that it reported before its end, however it ended, `machine` where it told, `seconds`, and `state`: ok,
      failed with the exit code, or stopped at the limit.
    """
    began = time.perf_counter()
    found: dict[str, Any] = {"rows": [], "machine": None}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | more,
        start_new_session=True,  # so that all of it can be ended
    )
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(
        target=lambda out: [*map(lines.put, out), lines.put(None)], args=(process.stdout,), daemon=True
    )
    reader.start()
    state = None
    while True:
        try:
            line = lines.get(timeout=max(0.0, began + seconds - time.perf_counter()))
        except queue.Empty:
            state = "stopped"
            break
        if line is None:
            break
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "ROW":
            found["rows"].append(json.loads(rest))
            say(shown(found["rows"][-1]))
        elif word == "MACHINE":
            found["machine"] = json.loads(rest)
        else:
            say(line.rstrip("\n"))
    try:
        process.wait(0 if state else max(1.0, began + seconds - time.perf_counter()))
    except subprocess.TimeoutExpired:  # or it closed its output and did not end
        state = f"stopped after {seconds:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    reader.join(5)  # what lives on where a section ended by itself may hold its output open
    process.stdout.close()
    return found | {
        "state": state or ("ok" if code == 0 else f"failed, exit code {code}"),
        "seconds": round(time.perf_counter() - began, 1),
    }


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shown(row: Mapping[str, Any]) -> str:
    """A row in a line."""
    beside = "; ".join(f"{name} {value}" for name, value in row["beside"].items())
    return f"  {row['what']}: {number(row['value'])} {row['unit']}" + (f" ({beside})" if beside else "")


def table(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    machine = report["machine"] or {}
    told = ", ".join(f"{name} {value}" for name, value in machine.items() if value not in (None, ""))
    lines = [f"{report['date']}, {'small sizes, which mean nothing; ' if report['small'] else ''}{told}", ""]
    lines += ["| section | measured | | beside |", "|---|---|---|---|"]
    for name, section in report["sections"].items():
        for row in section["rows"]:
            beside = "; ".join(f"{key} {value}" for key, value in row["beside"].items())
            lines.append(f"| {name} | {row['what']} | {number(row['value'])} {row['unit']} | {beside} |")
        if section["state"] != "ok":
            lines.append(f"| {name} | **{section['state']}** | | |")
    return "\n".join(lines) + "\n"


def write(report: Mapping[str, Any], folder: Path) -> None:
    """Writes both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accelerator.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "accelerator.md").write_text(table(report))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, for any machine")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="SECTION")
    parser.add_argument("--out", type=Path, default=Path("accelerator"), help="folder of the two files (accelerator)")
    parser.add_argument("--qc", nargs=2, metavar=("PYTHON", "DIR"), help="Python and checkout of the official code")
    given = parser.parse_args(argv)
    began = time.perf_counter()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    report: dict[str, Any] = {"date": date, "small": given.small, "machine": None, "sections": {}}
    words = ["--small"] * given.small + (["--qc", *given.qc] if given.qc else [])
    for name in ["device", *(each for each in LIMITS if each in given.only and each != "device")]:
        left = BUDGET - (time.perf_counter() - began)
        if left < 15:
            report["sections"][name] = {"rows": [], "state": "no time was left", "seconds": 0.0}
            continue
        print(f"== {name}", flush=True)
        program = [sys.executable, str(Path(__file__).with_name("accelerator_sections.py")), name, *words]
        more = SHARED if name == "qchunk" else MEMORY
        section = run_section(program, min(LIMITS[name], left), more, lambda line: print(line, flush=True))
        machine = section.pop("machine")
        report["machine"] = report["machine"] or machine
        report["sections"][name] = section
        write(report, given.out)
        if name == "device" and machine is not None and machine["platform"] == "cpu" and not given.small:
            print("no GPU and no TPU is here that jax can use (chunkwise doctor says why); --small runs on a CPU")
            return 64
    report["seconds"] = round(time.perf_counter() - began, 1)
    write(report, given.out)
    print(f"\n{table(report)}\n{report['seconds']} s; {given.out / 'accelerator.json'}, {given.out / 'accelerator.md'}")
    return int(any(section["state"] != "ok" for section in report["sections"].values()))


if __name__ == "__main__":
    sys.exit(main())
