"""Pretrained against from scratch, at equal compute: ADE of waypoints on held-out drives, at 10 % and 100 % of labels.

    python launch.py --config configs/driving/pretrain.py --run.dir runs/driving-pretrain
    python benchmarks/driving_waypoints.py --pretraining runs/driving-pretrain --seeds 3

Every cell is a run of configs/driving/waypoints.py in --out; one that is there is not trained again, and one that
was stopped goes on. An update of the pretraining sees two moments of each sample, one of the waypoints one, at the same
batch size; so from scratch gets two more updates for each of the pretraining. With a frozen encoder an update takes
0.55 of the time of one of everything (53 and 96 ms on two cores), and gets as many more. 10 % are whole drives.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = "configs/driving/waypoints.py"
FRACTIONS = (0.1, 1.0)
FROZEN_COST = 0.55  # of an update of everything


def cell(out: Path, start: str, fraction: float, seed: int, options: list[str]) -> dict[str, Any]:
    """Result of one run, trained if it is not there."""
    folder = out / f"{start}-{fraction:g}-{seed}"
    if not (folder / "done.json").exists():
        command = [sys.executable, "launch.py", "--config", CONFIG, "--run.dir", str(folder), "--run.resume"]
        command += ["--run.seed", str(seed), "--data.episode-fraction", str(fraction), *options]
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("a") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            raise SystemExit(f"{folder} ended with {code}; see its log.txt, and run the same command again to go on")
    return json.loads((folder / "evaluation.json").read_text())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretraining", type=Path, required=True, help="run folder of configs/driving/pretrain.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=2000, help="of the pretrained runs")
    parser.add_argument("--out", type=Path, default=Path("runs/driving-waypoints-benchmark"))
    arguments = parser.parse_args()
    pretrained = json.loads((arguments.pretraining / "done.json").read_text())["step"]
    moments = len(json.loads((arguments.pretraining / "config.json").read_text())["data.offsets_s"])
    weights = ["--waypoints.weights", str(arguments.pretraining.resolve())]
    starts = {
        "pretrained": [*weights, "--train.steps", str(arguments.updates)],
        "frozen": [*weights, "--waypoints.freeze", "--train.steps", str(round(arguments.updates / FROZEN_COST))],
        "scratch": ["--train.steps", str(arguments.updates + moments * pretrained)],
    }
    print("| labels | start | ade_2s per seed, m | mean | best blind row (history MLP), same drives |")
    print("|---|---|---|---|---|", flush=True)
    for fraction in FRACTIONS:
        for start, options in starts.items():
            results = [cell(arguments.out, start, fraction, seed, options) for seed in range(arguments.seeds)]
            ades = [result["rows"]["model"]["ade_2s"]["mean"] for result in results]
            blind = float(np.mean([result["rows"]["history_mlp"]["ade_2s"]["mean"] for result in results]))
            every = ", ".join(f"{ade:.3f}" for ade in ades)
            print(f"| {fraction:.0%} | {start} | {every} | {np.mean(ades):.3f} | {blind:.3f} |", flush=True)


if __name__ == "__main__":
    main()
