"""benchmarks/accelerator.py: sections that fail or hang leave the others, and a small form of all runs through."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accelerator
from chunkwise.train.targets import CHIPS, chip_of

ROOT = Path(__file__).parents[1]
ROW = {"what": "a product", "value": 12.345, "unit": "ms", "beside": {"rows": 4}}
MACHINE = {"platform": "cpu", "jax": "0", "driver": ""}


def section(program: str, seconds: float = 60.0) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    return accelerator.run_section([sys.executable, "-c", program], seconds, {"MORE": "5"}, said.append), said


def test_rows_before_a_failure_are_kept():
    found, said = section(
        f"import os; print('ROW ' + {json.dumps(ROW)!r}); print('MACHINE ' + {json.dumps(MACHINE)!r}, flush=True)\n"
        "print('note', os.environ['MORE'], flush=True); os.abort()"
    )
    assert found["rows"] == [ROW]
    assert found["machine"] == MACHINE
    assert found["state"] == "failed, exit code -6"
    assert said == ["  a product: 12.3 ms (rows 4)", "note 5"]


def test_one_that_hangs_is_ended_with_what_it_started():
    began = time.monotonic()
    found, said = section(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"print(child.pid, flush=True); print('ROW ' + {json.dumps(ROW)!r}, flush=True); time.sleep(60)",
        seconds=3.0,
    )
    assert time.monotonic() - began < 30
    assert (found["rows"], found["state"]) == ([ROW], "stopped after 3 s")
    status = Path(f"/proc/{said[0]}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        os.kill(int(said[0]), 9)
        pytest.fail("what the section had started was left behind")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sections that end at once, in a state given by name; ok by default."""
    states: dict[str, str] = {}

    def run(command: list[str], seconds: float, more: Any, say: Any) -> dict[str, Any]:
        name = command[2]
        assert seconds <= accelerator.LIMITS[name]
        machine = MACHINE if name == "device" else None
        return {"rows": [ROW], "machine": machine, "state": states.get(name, "ok"), "seconds": 1.0}

    monkeypatch.setattr(accelerator, "run_section", run)
    return states


def test_a_section_that_fails_leaves_the_others(played: dict[str, str], tmp_path: Path):
    played["serve"] = "failed, exit code 1"
    assert accelerator.main(["--small", "--out", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "accelerator.json").read_text())
    assert list(report["sections"]) == ["device", "pi0_full", "serve", "qchunk", "pi0_lora"]
    assert report["machine"] == MACHINE
    assert all(one["rows"] == [ROW] for one in report["sections"].values())
    lines = (tmp_path / "accelerator.md").read_text().splitlines()
    assert lines[0] == f"{report['date']}, small sizes, which mean nothing; platform cpu, jax 0"
    assert "| pi0_lora | a product | 12.3 ms | rows 4 |" in lines
    assert [line for line in lines if "**" in line] == ["| serve | **failed, exit code 1** | | |"]
    played.clear()
    assert accelerator.main(["--small", "--only", "serve", "--out", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "accelerator.json").read_text())["sections"]) == ["device", "serve"]


def test_a_cpu_is_asked_for_small_sizes(played: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert accelerator.main(["--out", str(tmp_path)]) == 64
    assert "--small runs on a CPU" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "accelerator.json").read_text())["sections"]) == ["device"]


def test_the_limits_leave_time_for_the_last(played: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert accelerator.BUDGET < 540
    first = [seconds for name, seconds in accelerator.LIMITS.items() if name != "pi0_lora"]
    assert accelerator.BUDGET - sum(first) > 100
    monkeypatch.setattr(accelerator, "BUDGET", 1.0)
    assert accelerator.main(["--small", "--out", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "accelerator.json").read_text())
    assert {one["state"] for one in report["sections"].values()} == {"no time was left"}


def test_devices_are_known_by_what_jax_calls_them():
    kinds = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA L4": "l4", "TPU v5": "v5p", "TPU v5 lite": "v5e"}
    for kind, name in (kinds | {"TPU v6 lite": "v6e", "NVIDIA GeForce RTX 4090": "rtx4090"}).items():
        assert chip_of(kind) is CHIPS[name]
    for kind in ("cpu", "NVIDIA L40", "NVIDIA H100 PCIe", ""):
        assert chip_of(kind) is None


@pytest.mark.long
def test_the_forms_of_an_update_shrink_until_one_fits():
    from benchmarks import accelerator_sections as sections
    from openpi_ript.train import without_data

    assert list(sections.SECTIONS) == list(accelerator.LIMITS)
    ways = list(sections.full_ways(1, small=False))
    sizes = [sections.least_memory(config, without_data(config, {})) for _, config in ways]
    # 3.238 billion weights, twice for Adam, once for the average and once for the gradient, in float32; 32 rows
    assert sizes[0] == pytest.approx(3.238e9 * 4 * 5 + 32 * 0.2e9, rel=1e-3)
    assert sizes[4] == pytest.approx(3.238e9 * 4 * 4 + 32 * 0.2e9, rel=1e-3)
    assert sizes[-1] < 24e9
    eight = dict(sections.full_ways(8, small=False))["moving average"]
    assert eight.train.batch_size == 2 * 8
    assert eight.mesh.fsdp == 8


@pytest.mark.long
def test_all_of_it_runs_through_in_a_small_form(tmp_path: Path):
    program = [sys.executable, "benchmarks/accelerator.py", "--small", "--out", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "accelerator.json").read_text())
    rows = {name: [row["what"] for row in one["rows"]] for name, one in report["sections"].items()}
    assert {name: len(each) for name, each in rows.items()} == {
        "device": 3,
        "pi0_full": 1,
        "serve": 4,
        "qchunk": 2,
        "pi0_lora": 3,
    }
    assert all(row["value"] > 0 for one in report["sections"].values() for row in one["rows"])
    assert report["machine"]["jax"]
    assert rows["qchunk"] == ["QC-FQL, 4 updates a call", "QC, 4 updates a call"]
    assert "compiler's memory" in report["sections"]["pi0_full"]["rows"][0]["beside"]
