"""Kills a training run again and again, and compares its end with that of a run left alone.

    python -m tests.kill --kills 100                       # the debug config of qchunk
    python -m tests.kill --kills 20 -- --train.steps 400   # what follows -- goes to launch.py
    python -m tests.kill --config configs/qchunk/debug_online.py --kills 20   # offline, then online
    python -m tests.kill --config configs/qchunk/debug_online.py -- --online.num-envs 2 --online.interval 4
    python -m tests.kill --config configs/openpi_ript/debug.py --kills 10
    python -m tests.kill --config configs/openpi_ript/debug_ript.py --kills 10   # rollouts too
    python -m tests.kill --config configs/driving/debug.py --kills 10

Each round trains in a fresh folder, is killed up to five times (every other time during a save, else at a random
moment), is resumed each time, and must end with the digest of the untouched run, and its metrics and, where there is
an online phase, its replay log, or its rollouts, to the byte. `--terms` runs get one SIGTERM each: they must exit with
75, and the newest save must be of the step that they name.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
KILLS_PER_ROUND = 5
SHORT = ["--train.eval-every", "0", "--checkpoint.every", "10"]
# An online run's length is its config's; evaluation in a simulator would take longer than all the rest.
OWN = {
    "configs/qchunk/debug.py": ["--train.steps", "300", "--eval.env", "None"],
    "configs/qchunk/debug_online.py": ["--eval.env", "None"],
    "configs/openpi_ript/debug.py": ["--train.steps", "300"],
    "configs/openpi_ript/debug_ript.py": ["--eval.final-episodes", "4"],
    "configs/openpi_ript/debug_ppo.py": ["--eval.final-episodes", "4"],
    "configs/driving/debug.py": ["--train.steps", "200", "--eval.blind-updates", "20", "--eval.plotted-moments", "0"],
    "tests/train.py": [],  # least squares: the loop and its files, a third of the time of the smallest agent
}


def launch(config: str, folder: Path, options: list[str]) -> subprocess.Popen[str]:
    """Starts a run in `folder`, or goes on with it."""
    command = [sys.executable, "launch.py", "--config", config, "--run.dir", str(folder), "--run.resume"]
    # The cache only saves the compiling; the compiled program is the same.
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "chunkwise-kill-cache")}
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(config: str, folder: Path, options: list[str]) -> str:
    """Lets a run go to its end and returns its digest."""
    output, _ = (process := launch(config, folder, options)).communicate()
    found = re.search(r"^done step=\d+ digest=([0-9a-f]{64})$", output, re.MULTILINE)
    if process.returncode != 0 or found is None:
        raise AssertionError(f"the run in {folder} ended with {process.returncode}:\n{output[-3000:]}")
    return found[1]


def written(folder: Path) -> dict[str, bytes]:
    """Contents of the files that a resumed run must repeat to the byte."""
    paths = [folder / "metrics.jsonl", *sorted(path for path in (folder / "replay").rglob("*") if path.is_file())]
    paths += sorted((folder / "rollouts").rglob("*.npz"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def saving(folder: Path) -> bool:
    """Whether a save is under way: it is written, and what it replaces is removed, under names with a suffix."""
    return any(not path.name.isdigit() for path in (folder / "checkpoints").glob("*"))


def training(folder: Path) -> int:
    """Size of the metrics file, which grows as soon as training does."""
    path = folder / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def kill_once(config: str, folder: Path, options: list[str], rng: random.Random, *, in_save: bool) -> str:
    """Starts the run, kills it, and says when: 'save', 'run', or 'finished' if it came to its end first."""
    process = launch(config, folder, options)
    delay = rng.uniform(0.0, 2.5)
    begin, size = None, training(folder)
    moment = "run"
    while process.poll() is None:
        if begin is None and training(folder) != size:
            begin = time.monotonic()
        past = begin is not None and time.monotonic() - begin > (delay if not in_save else delay / 4)
        if past and in_save and saving(folder):
            time.sleep(rng.uniform(0.0, 0.02))
            moment = "save" if saving(folder) else "run"
            break
        if past and not in_save:
            moment = "save" if saving(folder) else "run"
            break
        time.sleep(0.001)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return moment
    output, _ = process.communicate()
    if process.returncode != 0:
        raise AssertionError(f"a restart in {folder} failed with {process.returncode}:\n{output[-3000:]}")
    return "finished"


def term_once(config: str, folder: Path, options: list[str], rng: random.Random) -> bool:
    """Asks a run to stop; False if it came to its end first. AssertionError unless it saves where it stops."""
    process = launch(config, folder, options)
    while process.poll() is None and training(folder) == 0:
        time.sleep(0.001)
    time.sleep(rng.uniform(0.0, 2.0))
    process.terminate()
    output, _ = process.communicate()
    if process.returncode == 0:
        return False
    said = re.search(r"stopped and saved at step (\d+)", output)
    saves = [int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()]
    if process.returncode != 75 or said is None or int(said[1]) != max(saves):
        raise AssertionError(f"SIGTERM: ended with {process.returncode}, saves {sorted(saves)}:\n{output[-3000:]}")
    return True


def expect_end(config: str, folder: Path, options: list[str], untouched: Path, digest: str) -> None:
    """Goes on to the end. Raises AssertionError if it is another than the untouched run's."""
    if (found := finish(config, folder, options)) != digest:
        raise AssertionError(f"{folder}: digest {found}, untouched {digest}")
    expected, found = written(untouched), written(folder)
    if found != expected:
        differing = [name for name in expected | found if found.get(name) != expected.get(name)]
        raise AssertionError(f"{folder}: {', '.join(differing)} differ from the untouched run's")


def run(config: str, kills: int, folder: Path, options: list[str], seed: int = 0, terms: int = 0) -> dict[str, int]:
    """Counts of kills by moment, and of stops. Raises AssertionError at the first divergence or failed restart."""
    rng = random.Random(seed)
    untouched = folder / "untouched"
    digest = finish(config, untouched, options)
    counts = {"run": 0, "save": 0}
    rounds = 0
    while sum(counts.values()) < kills:
        target = folder / f"round{rounds}"
        rounds += 1
        for _ in range(min(KILLS_PER_ROUND, kills - sum(counts.values()))):
            moment = kill_once(config, target, options, rng, in_save=sum(counts.values()) % 2 == 1)
            if moment == "finished":
                break
            counts[moment] += 1
        expect_end(config, target, options, untouched, digest)
        print(f"{sum(counts.values())} kills, {counts['save']} during a save, 0 divergences", flush=True)
    stopped = 0
    for i in range(terms):
        stopped += term_once(config, folder / f"term{i}", options, rng)
        expect_end(config, folder / f"term{i}", options, untouched, digest)
        print(f"{stopped} of {i + 1} SIGTERMs came before the end: exit code 75, saved, 0 divergences", flush=True)
    return counts | {"term": stopped}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/qchunk/debug.py", choices=sorted(OWN))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--terms", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("options", nargs="*", help="for launch.py, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = SHORT + OWN[arguments.config] + arguments.options
        counts = run(arguments.config, arguments.kills, Path(folder), options, arguments.seed, arguments.terms)
    print(
        f"{counts['run'] + counts['save']} kills ({counts['save']} during a save), {counts['term']} SIGTERMs: every "
        "run ended as the untouched one"
    )


if __name__ == "__main__":
    main()
