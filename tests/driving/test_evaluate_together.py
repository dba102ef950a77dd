"""The evaluation on held-out drives by two processes, against that by one: metrics, report, who predicted what."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from chunkwise.distributed import processes
from chunkwise.errors import StopRequested
from chunkwise.train import rngs
from driving import evaluate
from driving.config import WaypointConfig
from driving.data.batches import DrivingData, open_data
from driving.eval import divided
from tests.chunkwise.distributed.test_processes import run_two
from tests.driving.test_evaluate import write_drives

ALONE = """
import sys
from pathlib import Path
from tests.driving import test_evaluate_together
test_evaluate_together.measure(*map(Path, sys.argv[1:3]))
"""
TOGETHER = """
from tests.driving import test_evaluate_together
test_evaluate_together.measure(*map(Path, sys.argv[1:3]))
processes.leave(0, together=True)
"""


def measure(drives: Path, folder: Path) -> None:
    """Evaluates weights of three modes within a run and at its end, and tells what came of it and was read.

    Two processes do so once more, of which the second is asked to stop.
    """
    from driving.train import EvaluatedWaypoints
    from tests.driving.online.test_round import params_of
    from tests.driving.test_evaluate import make_config

    config = make_config(drives, waypoints=WaypointConfig(hidden_sizes=(8,), modes=3))
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, every=2))
    noting: list[list[int]] = []
    batch = DrivingData.batch

    def noted(self: DrivingData, rows: Any, *more: Any) -> Any:
        noting.append(rows.tolist())
        return batch(self, rows, *more)

    task = EvaluatedWaypoints(config, open_data(config.data), folder)
    state = jax.jit(task.init)(rngs.key(0, "init")).replace(params=params_of(config))
    DrivingData.batch = noted  # pyright: ignore[reportAttributeAccessIssue]
    told: dict[str, Any] = {}

    def evaluated(*, final: bool) -> None:
        if processes.is_primary():
            told[f"final {final}"] = task.evaluate(state, final=final)
        else:
            task.help_evaluate(state, final=final)

    evaluated(final=False)
    evaluated(final=True)
    read = noting.copy()
    if processes.is_multiprocess():
        divided.is_requested = lambda: processes.index() == 1
        with pytest.raises(StopRequested):
            evaluated(final=False)
    (folder / f"told.{processes.index()}.json").write_text(json.dumps(told | {"read": read}))


@pytest.mark.long
def test_two_processes_measure_what_one_measures(tmp_path: Path):
    drives, one, two = (tmp_path / name for name in ("drives", "one", "two"))
    for folder in (one, two):
        folder.mkdir()
    write_drives(drives)
    subprocess.run([sys.executable, "-c", ALONE, str(drives), str(one)], check=True)
    ended = run_two(TOGETHER, str(drives), str(two), seconds=400)
    assert [code for code, _ in ended] == [0, 0], ended
    alone = json.loads((one / "told.0.json").read_text())
    first, second = (json.loads((two / f"told.{index}.json").read_text()) for index in (0, 1))
    assert {name: first[name] for name in first if name != "read"} == {
        name: alone[name] for name in alone if name != "read"
    }
    assert (two / evaluate.REPORT).read_bytes() == (one / evaluate.REPORT).read_bytes()
    assert sorted(first["read"] + second["read"]) == sorted(alone["read"])
    # Places and modes of two parts of the validation drives, twice, and of three parts of the test drives.
    assert (len(first["read"]), len(second["read"])) == (2 + 2 + 4, 2 + 2 + 2)
    assert not list((two / "evaluations").iterdir()), "no part is left"
