"""The list of ratios that `python -m benchmarks` measures again, and its verdicts."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import benchmarks.__main__ as again
from benchmarks import hosts, slow_worker

ROOT = Path(__file__).parents[1]
ROW = {"name": "pool", "find": r"^ *32 .* ([\d.]+)$", "ratio": 40.0}


@pytest.mark.parametrize(
    ("better", "now", "verdict"),
    [
        ("higher", "35.0", "as before"),
        ("higher", "33.9", "fell"),
        ("higher", "47.1", "rose"),
        ("lower", "47.1", "fell"),
        ("lower", "46.0", "as before"),
        ("lower", "33.9", "rose"),
    ],
)
def test_a_ratio_falls_by_more_than_a_seventh(better: str, now: str, verdict: str):
    output = f" batch  specified/s   ratio\n    32       35,589    {now}\n   128  36,436    82.6\n"
    (found,) = again.judge([ROW | {"better": better}], output)
    assert (found.now, found.verdict, found.bad) == (float(now), verdict, verdict == "fell")


def test_what_is_not_there_is_told_apart():
    (missing,) = again.judge([ROW], "no table\n")
    assert (missing.verdict, missing.bad) == ("not found in the output", True)
    (left_out,) = again.judge([ROW], None, "not measured: name its peer by --torch")
    assert (left_out.verdict, left_out.bad) == ("not measured: name its peer by --torch", False)


def test_the_list_names_programs_peers_and_one_number_each():
    names = []
    for entry in again.read_ratios():
        assert (ROOT / entry["run"][0]).is_file()
        assert set(entry) <= {"run", "rows", "peer", "with_peer"}
        filled = [
            each.format(torch="p", lerobot="p", qc="p", qc_path="d", openpi="p", openpi_path="d")
            for each in entry.get("with_peer", [])
        ]
        assert bool(filled) == ("peer" in entry)
        for row in entry["rows"]:
            assert re.compile(row["find"]).groups == 1
            names.append(row["name"])
    assert len(names) == len(set(names))


def test_the_page_has_every_recorded_ratio():
    page = (ROOT / "docs/performance.md").read_text() + (ROOT / "docs/serving.md").read_text()
    for entry in again.read_ratios():
        for row in entry["rows"]:
            assert re.search(rf"(?<![\d.]){row['ratio']:g}0?(?![\d])", page), row["name"]


def test_only_what_is_asked_for_is_run(capsys: pytest.CaptureFixture[str]):
    assert again.main(["--only", "lerobot"]) == 0
    said = capsys.readouterr().out
    assert "not measured: name its peer by --lerobot" in said
    assert "0 of 4 fell or are missing" in said


@pytest.mark.parametrize(
    ("answers", "inference", "chunks", "seconds"),
    [
        # The fast one has two batches while the slow one has one, with the first of them: 2 * (0.45 + 2.2).
        ((0.45, 1.8), 2.2, 3, 5.3),
        # The fast one's begin at 0, 1.05, 2.1, 3.3, 4.35, the slow one's at 0 with it and at 2.7 alone.
        ((0.45, 1.8), 0.6, 7, 5.4),
        ((1.0, 1.0), 3.0, 2, 4.0),  # always together
        ((0.5, 0.5 + 1e-9), 0.0, 2, 0.5),
    ],
)
def test_no_order_of_batches_reaches_more_than_is_counted_by_hand(
    answers: tuple[float, float], inference: float, chunks: int, seconds: float
):
    ideal = sum(1 / (answer + inference) for answer in answers)
    assert slow_worker.best_share(answers, inference) == pytest.approx(chunks / seconds / ideal, abs=0.006)


def test_with_one_row_the_policy_is_the_limit():
    """Answers at once and after 3 ms, inferences of 25 ms: 1 / 25 of 1 / 25 + 1 / 28."""
    found = slow_worker.best_share((0.0, 0.003), 0.025, rows=1)
    assert found == pytest.approx((1 / 25) / (1 / 25 + 1 / 28), abs=0.006)


@pytest.mark.long
def test_the_collector_is_timed_with_its_own_workers():
    """On the simulated point, small: the program wraps calls of the collector, and runs through."""
    program = [sys.executable, "benchmarks/rollouts.py", "--suite", "point", "--rollouts", "2", "--rounds", "1"]
    done = subprocess.run([*program, "--num-envs", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = r"^point, collector against serial: \d+ against \d+ steps/s: [\d.]+ times"
    assert re.search(told, done.stdout, re.MULTILINE), done.stdout


def latencies(**seconds: float) -> hosts.Latencies:
    """Of one value each, chunks of one step; what is not given takes no time."""
    times = {name: np.full(3, seconds.pop(name, 0.0)) for name in ("step", "inference", "request")}
    return hosts.Latencies(**times, rows=int(seconds.get("rows", 1)), chunk=1, length=int(seconds.get("length", 1)))


def test_simulated_rollouts_take_the_time_that_is_counted_by_hand():
    def play(measured: hosts.Latencies, slower: list[float], rollouts: int, network: float = 0.0) -> hosts.Played:
        return hosts.play(measured, slower, rollouts, network=network, rng=np.random.default_rng(0))

    one = latencies(step=1, inference=0.5, request=0.25, length=2)
    assert play(one, [2.0], 3, network=0.125).seconds == 3 * 2 * (2 + 0.5 + 0.25 + 2 * 0.125)
    assert hosts.alone(one, 2.0, network=0.125) == 1 / 3
    # One row a batch: four inferences of 1 s, one after the other, and the last step.
    both = play(latencies(step=1, inference=1), [1, 1], 4)
    assert (both.seconds, both.busy) == (5, 0.8)
    # Two rows: both begin at 0, one has ended at 2 and at 4, when the last rollout begins; the slow one ends at 6.
    uneven = play(latencies(step=1, inference=1, rows=2), [1, 5], 4)
    assert (uneven.flow_steps, uneven.flow_seconds, uneven.seconds, uneven.busy) == (2, 4, 6, 0.5)
