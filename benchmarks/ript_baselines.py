"""RIPT beside its baselines on robosuite's Lift: success on held-out initial states before and after the rounds.

    python benchmarks/ript_baselines.py --seeds 3

Every cell is a run of configs/openpi_ript/ript_lift.py in --out, with the same demonstrations, initial states of the
evaluation, number of rounds and updates; one that is there is not run again, and one that was stopped goes on. A cell
takes 6 to 10 minutes on one core. The intervals are Wilson's over the episodes of all seeds, which meet the same
initial states; McNemar's exact test pairs each state's outcome before and after.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.reports.intervals import wilson
from chunkwise.reports.paired import compare

CONFIG = "configs/openpi_ript/ript_lift.py"
BEFORE, AFTER = 400, 1000
"""Updates: the end of the supervised part, and of the last round, in that config."""
METHODS = {
    "CFG-RIPT": [],
    "guidance off when acting": ["--guidance.scale", "1"],
    "rejection sampling": ["--guidance.scale", "1", "--rollout.objective", "rejection"],
    "control": ["--rollout.dataset_share", "1"],
}


def outcomes(folder: Path, seed: int, options: list[str]) -> tuple[list[bool], list[bool]]:
    """Successes before and after, state by state, of one run, which is made if it is not there."""
    if not (folder / "done.json").exists():
        command = [sys.executable, "launch.py", "--config", CONFIG, "--run.dir", str(folder), "--run.resume"]
        command += ["--run.seed", str(seed), "--eval.videos", "0", *options]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("a") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            raise SystemExit(f"{folder} ended with {code}; see {log.name}, and run the same command again to go on")
    files = (folder / f"evaluations/step_{step:08d}.json" for step in (BEFORE, AFTER))
    before, after = ([episode["success"] for episode in json.loads(file.read_text())["outcomes"]] for file in files)
    return before, after


def share(successes: list[bool]) -> str:
    """With its interval."""
    low, high = wilson(sum(successes), len(successes))
    return f"{sum(successes) / len(successes):.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("runs/ript-baselines"))
    arguments = parser.parse_args()
    print("| method | before | after | after, by seed | McNemar's p |")
    print("|---|---|---|---|---|", flush=True)
    for method in arguments.methods:
        name = method.lower().replace(" ", "-")
        runs = [outcomes(arguments.out / f"{name}-{seed}", seed, METHODS[method]) for seed in range(arguments.seeds)]
        before, after = ([success for run in runs for success in run[i]] for i in (0, 1))
        by_seed = ", ".join(f"{sum(run[1]) / len(run[1]):.0%}" for run in runs)
        p_value = compare(before, after).p_value
        print(f"| {method} | {share(before)} | {share(after)} | {by_seed} | {p_value:.1e} |", flush=True)


if __name__ == "__main__":
    main()
