"""How long a save keeps a run from training, and its share of the time between two saves.

    python benchmarks/saves.py [--config configs/driving/debug.py] [--saves 12] [--rounds 3]
    python benchmarks/saves.py --config configs/qchunk/cube_single.py --every 100 --saves 5 -- --eval.env None

Trains each debug config through launch.py, without evaluations, in a process of its own, and times
`Checkpoints.save`: the wait for the save before, checksums, and the copy from the device. The end, which waits until
its save is durable, is left out. With --every a config saves more often than it would by itself, so that a measure ends
within minutes: what a save blocks is then set against the time of as many updates as the config has between two saves.
What follows -- goes to launch.py.
"""

import argparse
import importlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.reader import Progress
from chunkwise.config.load import load
from chunkwise.state import TrainState

ROOT = Path(__file__).parents[1]
CONFIGS = {
    "configs/qchunk/debug.py": ["--eval.env", "None"],
    "configs/openpi_ript/debug.py": [],
    "configs/driving/debug.py": ["--eval.blind-updates", "20", "--eval.plotted-moments", "0"],
}
"""With the options that make the end of a run short."""


def child(result: Path, arguments: list[str]) -> int:
    """Trains, and leaves when each save began and ended in `result`."""
    launch = importlib.import_module("launch")
    save, times = Checkpoints.save, list[tuple[float, float]]()

    def timed(self: Checkpoints, state: TrainState, progress: Progress) -> None:
        began = time.perf_counter()
        save(self, state, progress)
        times.append((began, time.perf_counter()))

    Checkpoints.save = timed
    code = launch.main(arguments)
    result.write_text(json.dumps(times[:-1]))
    return code


def measure(config: str, saves: int, often: int | None, options: list[str]) -> None:
    """Prints the line of one run."""
    own = load(["--config", config])[0].checkpoint.every
    every = often or own
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "times.json"
        steps = ["--train.steps", str(every * (saves + 1)), "--train.eval-every", "0"]
        command = [sys.executable, __file__, "--child", str(result), "--config", config, *steps]
        command += ["--run.dir", f"{folder}/run", "--checkpoint.every", str(every), *CONFIGS.get(config, []), *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{config} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        times = json.loads(result.read_text())
    blocked = [1e3 * (end - began) for began, end in times]
    median, mean = statistics.median(blocked), statistics.mean(blocked)
    # Updates alone, as many as the config has between two saves; without --every, what was measured.
    updates = [1e3 * (later[0] - earlier[1]) * own / every for earlier, later in itertools.pairwise(times)]
    between = [time + mean for time in updates]
    print(
        f"{config}: {own} updates between saves, {statistics.median(between):.0f} ms; a save blocks "
        f"{median:.1f} ms in the median ({100 * median / statistics.median(between):.1f} %), {mean:.1f} in the mean "
        f"({100 * mean / statistics.mean(between):.1f} %), {max(blocked):.1f} at most",
        flush=True,
    )


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", help="repeatable; default the debug configs")
    parser.add_argument("--every", type=int, help="updates between saves while it is measured (default: the config's)")
    parser.add_argument("options", nargs="*", help="for launch.py, after --")
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for _ in range(arguments.rounds):
        for config in arguments.config or CONFIGS:
            measure(config, arguments.saves, arguments.every, arguments.options)


if __name__ == "__main__":
    main()
