"""Trains in several processes on this machine, as a pod of several hosts would, and takes them away in every way.

    python -m tests.pod                                        # the debug config of qchunk
    python -m tests.pod --config configs/driving/debug.py --kills 20 --terms 4
    python -m tests.pod --config tests/train.py --kills 100    # least squares: the processes and nothing else
    python -m tests.pod --config configs/openpi_ript/debug_ript.py --steps 40     # behind the first round of rollouts
    python -m tests.pod --config configs/driving/debug_rollouts.py --steps 20    # two rounds of drives
    python -m tests.pod --config configs/qchunk/debug_online.py                  # an environment step an update
    python -m tests.pod --config configs/qchunk/debug_online.py -- --online.num-envs 2 --online.interval 2

Two processes with four simulated devices each, joined by gloo, stand in for two hosts. In this order:

  stream    the hash of the first 100 global batches is the same for 1, 2 and 4 processes, 0, 1 and 8 reader threads
  equality  after 20 updates the weights are those of one process with eight devices, to 1e-5
  repeat    two runs end in the same digest, and the same metrics.jsonl to the byte
  kills     SIGKILL of either process, every other time during a save; the other ends by itself, both are started
            again, and the run ends as one that was left alone
  terms     SIGTERM to either: both save the same step and exit 75; the run ends as one that was left alone
  reshard   2 x 4 -> 4 x 2 -> 1 x 8, with the weights split otherwise each time: what is restored is what was saved
  hang      SIGSTOP of either: the other ends, and says why
  damage    a file of the newest save is cut: both go back to the one before, and end as the undamaged run
  refusals  a second run in the folder, other options on one process: all processes exit alike
"""

import argparse
import collections
import dataclasses
import hashlib
import importlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from chunkwise.checkpoint.reader import read_arrays
from chunkwise.config import load
from tests import kill
from tests.compare import BOUND, difference

ROOT = Path(__file__).parent.parent
SECONDS_TO_NOTICE = 60.0
"""After which a process whose peer is gone or hangs must have ended; jax's heartbeats are 10 seconds."""
KILLS_PER_ROUND = 4
SHORT = ["--train.eval-every", "0", "--checkpoint.every", "5"]
OWN = {
    "configs/qchunk/debug.py": [*SHORT, "--eval.env", "None"],
    "configs/qchunk/debug_online.py": [*SHORT, "--eval.env", "None", "--online.start", "0", "--online.interval", "1"],
    "configs/openpi_ript/debug.py": SHORT,
    "configs/openpi_ript/debug_ript.py": [*SHORT, "--checkpoint.every", "20", "--eval.final-episodes", "4"],
    "configs/openpi_ript/debug_ppo.py": [*SHORT, "--checkpoint.every", "20", "--eval.final-episodes", "4"],
    "configs/driving/debug.py": [*SHORT, "--eval.blind-updates", "20", "--eval.plotted-moments", "0"],
    "configs/driving/debug_rollouts.py": [*SHORT, "--eval.blind-updates", "20", "--eval.plotted-moments", "0"],
    "tests/train.py": [],
}
WITH_ROUNDS = (
    "configs/driving/debug_rollouts.py",
    "configs/openpi_ript/debug_ript.py",
    "configs/openpi_ript/debug_ppo.py",
)
LAYOUTS = ((2, 4, 4), (4, 2, 2), (1, 8, 8))
"""Processes, devices of each, and how many of these share one copy of the weights."""
ENDED = re.compile(r"^done step=\d+ digest=([0-9a-f]{64})$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pod:
    """Processes of one run, each with its output in a file."""

    processes: tuple[subprocess.Popen[bytes], ...]
    logs: tuple[Path, ...]

    def codes(self) -> list[int | None]:
        """Exit codes; None where a process still runs."""
        return [process.poll() for process in self.processes]

    def wait(self) -> list[int]:
        """Exit codes once all have ended."""
        return [process.wait() for process in self.processes]

    def output(self) -> str:
        """The end of what each has said."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2500:]}" for log in self.logs)

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.processes:
            process.kill()
            process.wait()


def launch(
    config: str, folder: Path, options: Sequence[str], *, processes: int = 2, devices: int = 4, last: Sequence[str] = ()
) -> Pod:
    """Starts a run, or goes on with it, in `processes` of `devices` devices each; `last` is added for the last one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "launch.py", "--config", config, "--run.dir", str(folder), "--run.resume", *options]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        # The cache only saves the compiling; the compiled program is the same.
        "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "chunkwise-kill-cache"),
    }
    if processes > 1:
        environment |= {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(processes)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    logs = tuple(folder.with_name(f"{folder.name}.{i}.log") for i in range(processes))
    started = []
    for i, log in enumerate(logs):
        own = environment | ({"JAX_PROCESS_ID": str(i)} if processes > 1 else {})
        words = [*command, *last] if i == processes - 1 else command
        with log.open("wb") as file:
            started.append(subprocess.Popen(words, cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT))
    return Pod(processes=tuple(started), logs=logs)


def finish(config: str, folder: Path, options: Sequence[str], *, processes: int = 2, devices: int = 4) -> str:
    """Lets a run go to its end and returns its digest."""
    pod = launch(config, folder, options, processes=processes, devices=devices)
    codes = pod.wait()
    found = ENDED.search(pod.logs[0].read_text())
    if any(codes) or found is None:
        raise AssertionError(f"the run in {folder} ended with {codes}:\n{pod.output()}")
    return found[1]


def train_steps(config: str, steps: int) -> list[str]:
    """Options for a run of so many updates: online, one with each environment step after 20 of warm-up; with rollouts,
    so many from the first round on."""
    online = ["--online.steps", str(20 + steps)] if "online" in config else []
    loaded: Any = load(["--config", config])[0] if config in WITH_ROUNDS else None
    before = loaded.rollout.start if loaded else 0
    return ["--train.steps", str(before + steps), *online]


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Of the newest save."""
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return {name: np.asarray(x) for name, x in read_arrays(newest).items() if name.startswith("params/")}


def data_of(package: str) -> Any:
    """The module with `make_batches` of a package."""
    return importlib.import_module({"openpi_ript": "openpi_ript.data.dataset"}.get(package, f"{package}.data"))


def stream_hash(config: str, options: Sequence[str], processes: int, threads: int, batches: int = 100) -> str:
    """Of the first global batches, put together from the rows of all processes."""
    loaded, _ = load(["--config", config, *options, "--data.read-threads", str(threads)])
    data = data_of(loaded.package)
    shards = [data.make_batches(loaded, shard=i, num_shards=processes) for i in range(processes)]
    hasher = hashlib.sha256()
    for _ in range(batches):
        parts = [jax.tree_util.tree_flatten_with_path(next(shard))[0] for shard in shards]
        rows: dict[str, list[Any]] = collections.defaultdict(list)
        for part in parts:
            for path, leaf in part:
                # A list of texts comes text by text, each with its number as the last part of its path.
                name = jax.tree_util.keystr(path[:-1] if isinstance(leaf, str) else path)
                rows[name] += [leaf] if isinstance(leaf, str) else list(leaf)
        for name, values in sorted(rows.items()):
            hasher.update(f"{name} {len(values)}".encode())
            for value in values:
                hasher.update(value.encode() if isinstance(value, str) else value.dtype.str.encode() + value.tobytes())
    return hasher.hexdigest()


def check_stream(config: str, options: Sequence[str]) -> None:
    """The order of the samples does not depend on who reads them."""
    layouts = [(1, 0), (2, 0), (4, 0), (1, 1), (1, 8), (2, 8)]
    hashes = {layout: stream_hash(config, options, *layout) for layout in layouts}
    if len(set(hashes.values())) != 1:
        raise AssertionError(f"the streams by (processes, threads) differ: {hashes}")
    say(f"stream: {next(iter(hashes.values()))[:16]} for (processes, threads) {', '.join(map(str, layouts))}")


def check_equality(config: str, folder: Path, options: Sequence[str]) -> None:
    """Two processes train what one trains."""
    short = [*options, *train_steps(config, 20)]
    digests = [finish(config, folder / "one", short, processes=1, devices=8), finish(config, folder / "two", short)]
    worst = difference(weights(folder / "two"), weights(folder / "one"))
    if worst.relative > BOUND:
        raise AssertionError(f"after 20 updates the weights of one and of two processes differ by {worst.relative:.1e}")
    same = "bit-identical" if digests[0] == digests[1] else "not bit-identical"
    say(
        f"equality: {worst.absolute:.1e}, {worst.relative:.1e} of an array's largest number, between 2 x 4 and 1 x 8 "
        f"devices after 20 updates ({same})"
    )


def expect_end(
    config: str, target: Path, untouched: Path, digest: str, options: Sequence[str], devices: int = 4
) -> None:
    """Goes on with a run and compares its end with that of the untouched one."""
    found = finish(config, target, options, devices=devices)
    if found != digest:
        raise AssertionError(f"{target}: digest {found}, untouched {digest}")
    if kill.written(target) != kill.written(untouched):
        raise AssertionError(f"{target}: metrics.jsonl differs from the untouched run's")


def wait_for_training(pod: Pod, folder: Path) -> None:
    """Until the metrics file grows."""
    size = kill.training(folder)
    while kill.training(folder) == size and None in pod.codes():
        time.sleep(0.002)


def end_of_the_other(pod: Pod, victim: int) -> tuple[float, int]:
    """Seconds until the other process ended by itself, and its exit code. Raises AssertionError if it does not end."""
    began = time.monotonic()
    try:
        code = pod.processes[1 - victim].wait(timeout=SECONDS_TO_NOTICE)
    except subprocess.TimeoutExpired:
        pod.end()
        raise AssertionError(f"process {1 - victim} goes on without the other:\n{pod.output()}") from None
    seconds = time.monotonic() - began
    said = pod.logs[1 - victim].read_text()
    if code in (0, 75) or not re.search("another process|another task|coordination service|CoordinationService", said):
        raise AssertionError(f"process {1 - victim} ended with {code} and does not say why:\n{pod.output()}")
    return seconds, code


def kill_once(
    config: str, folder: Path, options: Sequence[str], rng: random.Random, devices: int, *, in_save: bool
) -> tuple[str, float, int] | None:
    """Kills one process: when, how long the other lasted, its exit code. None if the run came to its end first."""
    pod = launch(config, folder, options, devices=devices)
    try:
        wait_for_training(pod, folder)
        victim, until = rng.randrange(2), time.monotonic() + rng.uniform(0.0, 1.0 if in_save else 3.0)
        while pod.codes() == [None, None] and (time.monotonic() < until or (in_save and not kill.saving(folder))):
            time.sleep(0.001)
        if in_save:
            time.sleep(rng.uniform(0.0, 0.02))
        moment = "save" if kill.saving(folder) else "run"
        if pod.codes() != [None, None]:
            codes = pod.wait()
            if any(codes):
                raise AssertionError(f"a restart in {folder} failed with {codes}:\n{pod.output()}")
            return None
        pod.processes[victim].kill()
        return moment, *end_of_the_other(pod, victim)
    finally:
        pod.end()


def check_kills(
    config: str, folder: Path, options: Sequence[str], digest: str, kills: int, rng: random.Random, devices: int = 4
) -> None:
    """SIGKILL of either process changes nothing."""
    moments: collections.Counter[str] = collections.Counter()
    codes: collections.Counter[int] = collections.Counter()
    seconds: list[float] = []
    rounds = 0
    while moments.total() < kills:
        target = folder / f"round{rounds}"
        rounds += 1
        for _ in range(min(KILLS_PER_ROUND, kills - moments.total())):
            killed = kill_once(config, target, options, rng, devices, in_save=moments.total() % 2 == 1)
            if killed is None:
                break
            moments[killed[0]] += 1
            seconds.append(killed[1])
            codes[killed[2]] += 1
        expect_end(config, target, folder / "untouched", digest, options, devices)
        times = f"{min(seconds):.1f} to {max(seconds):.1f} s" if seconds else "-"
        say(
            f"kills: {moments.total()}, {moments['save']} during a save, 0 divergences, 0 failed restarts; the other "
            f"ended after {times} with {dict(codes)}"
        )


def check_terms(
    config: str, folder: Path, options: Sequence[str], digest: str, terms: int, rng: random.Random, devices: int = 4
) -> None:
    """SIGTERM to one saves the same step on both."""
    seconds: list[float] = []
    for i in range(terms):
        target = folder / f"term{i}"
        pod = launch(config, target, options, devices=devices)
        try:
            wait_for_training(pod, target)
            time.sleep(rng.uniform(0.0, 1.0))
            pod.processes[i % 2].terminate()
            began = time.monotonic()
            codes = pod.wait()
            seconds.append(time.monotonic() - began)
        finally:
            pod.end()
        steps = {step for log in pod.logs for step in re.findall(r"stopped and saved at step (\d+)", log.read_text())}
        if codes != [75, 75] or len(steps) != 1:
            raise AssertionError(f"SIGTERM to process {i % 2}: ended with {codes}, saved {steps}:\n{pod.output()}")
        expect_end(config, target, folder / "untouched", digest, options, devices)
    say(
        f"terms: {terms} of {terms} saved the same step and exited 75, after {min(seconds):.1f} to {max(seconds):.1f} s"
    )


def check_resharding(
    config: str, folder: Path, options: Sequence[str], layouts: Sequence[tuple[int, int, int]] = LAYOUTS
) -> None:
    """What other processes and devices restore is what was saved."""
    split = ["--mesh.replicate-below", "0"]
    target, before = folder / "reshard", None
    for stage, (processes, devices, fsdp) in enumerate(layouts):
        layout = [*options, *split, "--mesh.fsdp", str(fsdp)]
        if before is not None:  # nothing is left to train: the digest is that of what was restored
            steps = train_steps(config, 10 * stage)
            restored = finish(config, target, [*layout, *steps], processes=processes, devices=devices)
            if restored != before:
                raise AssertionError(f"{processes} x {devices} devices restored {restored}, saved was {before}")
        steps = train_steps(config, 10 * stage + 10)
        before = finish(config, target, [*layout, *steps], processes=processes, devices=devices)
    end = 10 * len(layouts)
    finish(config, folder / "whole", [*options, *train_steps(config, end)], processes=1, devices=8)
    worst = difference(weights(target), weights(folder / "whole"))
    if worst.relative > BOUND:
        raise AssertionError(f"after {end} updates the weights differ by {worst.relative:.1e} from an unchanged run's")
    way = " -> ".join(f"{processes} x {devices}" for processes, devices, _ in layouts)
    say(
        f"reshard: {way} restored bit-identical; {worst.absolute:.1e}, {worst.relative:.1e} of an array's largest "
        f"number, from an unchanged run after {end} updates"
    )


def check_hang(config: str, folder: Path, options: Sequence[str]) -> None:
    """A process that no longer answers ends the run."""
    for victim in (1, 0):
        target = folder / f"hang{victim}"
        pod = launch(config, target, options)
        try:
            wait_for_training(pod, target)
            pod.processes[victim].send_signal(signal.SIGSTOP)
            seconds, code = end_of_the_other(pod, victim)
        finally:
            pod.end()
        say(f"hang: process {victim} stopped; the other ended after {seconds:.1f} s with {code}")


def check_damage(config: str, folder: Path, options: Sequence[str], digest: str, devices: int = 4) -> None:
    """All processes leave a damaged save aside."""
    target = folder / "damaged"
    shutil.copytree(folder / "untouched", target)
    newest = max((target / "checkpoints").iterdir(), key=lambda path: int(path.name))
    largest = max((file for file in newest.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    expect_end(config, target, folder / "untouched", digest, options, devices)
    aside = [path.name for path in (target / "quarantine").iterdir()]
    say(f"damage: {largest.relative_to(newest)} cut; set aside {', '.join(aside)}, ended as the undamaged run")


def check_refusals(config: str, folder: Path, options: Sequence[str]) -> None:
    """What one process refuses ends all of them with the same exit code."""
    holder = launch(config, folder / "held", options)
    try:
        wait_for_training(holder, folder / "held")
        expect_refusal(launch(config, folder / "held", options), 73, "is in use by")
    finally:
        holder.end()
    expect_refusal(launch(config, folder / "other", options, last=["--run.seed", "7"]), 64, "run.seed: 0 and 7")
    say("refusals: busy folder, different options: the same exit code everywhere")


def expect_refusal(pod: Pod, code: int, words: str) -> None:
    """Raises AssertionError unless every process ended with `code` and said `words`."""
    codes = pod.wait()
    if set(codes) != {code} or not all(words in log.read_text() for log in pod.logs):
        raise AssertionError(f"expected {code} and {words!r}, ended with {codes}:\n{pod.output()}")


def say(line: str) -> None:
    print(line, flush=True)


def run(
    config: str,
    folder: Path,
    options: Sequence[str],
    *,
    kills: int,
    terms: int,
    devices: int,
    seed: int,
    parts: Sequence[str],
) -> None:
    """The parts that are asked for, with `devices` of each process in the runs that are interrupted.

    Raises AssertionError at the first that fails.
    """
    rng = random.Random(seed)
    if "stream" in parts and config.startswith("configs"):
        kill.finish(config, folder / "recorded", [*options, *train_steps(config, 2)])  # where there are no data yet
        check_stream(config, options)
    if "equality" in parts:
        check_equality(config, folder, options)
    digest = ""
    if {"repeat", "kills", "terms", "damage"} & {*parts}:
        digest = finish(config, folder / "untouched", options, devices=devices)
    if "repeat" in parts:
        expect_end(config, folder / "again", folder / "untouched", digest, options, devices)
        say("repeat: two runs bit-identical")
    if "kills" in parts:
        check_kills(config, folder, options, digest, kills, rng, devices)
    if "terms" in parts:
        check_terms(config, folder, options, digest, terms, rng, devices)
    if "reshard" in parts:
        check_resharding(config, folder, options)
    if "hang" in parts:
        check_hang(config, folder, options)
    if "damage" in parts:
        check_damage(config, folder, options, digest, devices)
    if "refusals" in parts:
        check_refusals(config, folder, options)


PARTS = ("stream", "equality", "repeat", "kills", "terms", "reshard", "hang", "damage", "refusals")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/qchunk/debug.py", choices=sorted(OWN))
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--terms", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="of the runs that are interrupted")
    parser.add_argument("--devices", type=int, default=4, help="of each process in these runs; fewer are faster")
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable; default all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("options", nargs="*", help="for launch.py, after --")
    arguments = parser.parse_args()
    options = [*OWN[arguments.config], *train_steps(arguments.config, arguments.steps), *arguments.options]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run(
            arguments.config,
            Path(folder),
            options,
            kills=arguments.kills,
            terms=arguments.terms,
            devices=arguments.devices,
            seed=arguments.seed,
            parts=arguments.only or PARTS,
        )
    say(f"{arguments.config}: everything holds ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
