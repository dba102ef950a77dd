"""Cuts the power of a training run again and again, and compares its end with that of a run left alone.

    python -m tests.power --cuts 10                    # every debug config; root, and a loop device
    python -m tests.power --cuts 20 --config configs/driving/debug.py

The run's folder lies on a file system in an image. A cut is a copy of that image as it is at the moment, without a
sync: what the kernel still holds in memory is not in it. The process is stopped while it is copied, twice until both
copies are the same, since a device writes no block before another that was flushed earlier. The copy is repaired by
fsck, as after a cut, mounted, and the run goes on from it. The file system is told to wait with its own commits for a
minute, and not to guess which renamed files are precious, so that nothing is saved by luck.

Cuts come in turn: in a save, when a save has just got its name (the older ones are being removed), when one has just
been announced, after SIGTERM and exit 75, after `done`, and at any moment. After each, what had been announced must be
there: the step of `saved.json`, the step that was named with exit 75, and `done.json`. Every third cut, and the last,
the run goes to its end: digest, metrics, replay and rollouts must be those of the untouched run.
"""

import argparse
import contextlib
import dataclasses
import filecmp
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests import kill

MEBIBYTES = 256
CUTS_PER_ROUND = 3
KINDS = ("save", "name", "announced", "stop", "done", "run")
TOOLS = ("losetup", "mkfs.ext4", "e2fsck", "mount", "umount")
# commit: only what is forced out is on the device. noauto_da_alloc: no help for those who rename without fsync.
OPTIONS = "commit=60,noauto_da_alloc"


class LostError(Exception):
    """Something that was announced did not outlive the cut."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """What was announced when the power went."""

    kind: str
    step: int | None
    """Newest save that had been announced."""
    digest: str | None
    """Of `done.json`, if the run had ended."""


def possible() -> str:
    """Why this machine cannot mount an image; empty if it can."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found"
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        try:
            make(image)
            with mounted(image, Path(folder) / "disk"):
                return ""
        except (subprocess.CalledProcessError, OSError) as error:
            return f"no loop device can be mounted here: {error}"


def make(image: Path) -> None:
    """Makes an empty file system in a sparse file."""
    with image.open("wb") as file:
        file.truncate(MEBIBYTES * 2**20)
    command(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)])


@contextlib.contextmanager
def mounted(image: Path, disk: Path) -> Iterator[Path]:
    """Mounts an image for the length of the block; the folder."""
    disk.mkdir(exist_ok=True)
    device = command(["losetup", "--find", "--show", str(image)]).strip()
    try:
        command(["mount", "-o", OPTIONS, device, str(disk)])
        try:
            yield disk
        finally:
            for _ in range(100):  # what a killed process held open is closed a moment later
                if subprocess.run(["umount", str(disk)], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                command(["umount", "--lazy", str(disk)])
    finally:
        command(["losetup", "--detach", device])


def command(words: list[str]) -> str:
    """Output of a command that must succeed."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def snapshot(image: Path, copy: Path) -> None:
    """Copies what has reached the device, as it was at one moment."""
    again = copy.with_name("again")
    command(["cp", "--sparse=always", str(image), str(copy)])
    while True:
        command(["cp", "--sparse=always", str(image), str(again)])
        if filecmp.cmp(copy, again, shallow=False):
            break
        again.replace(copy)
    again.unlink()
    filecmp.clear_cache()


def repair(image: Path) -> None:
    """Repairs a file system as the system does after a cut. LostError if fsck cannot."""
    done = subprocess.run(["e2fsck", "-fy", str(image)], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise LostError(f"fsck ended with {done.returncode}: {done.stdout[-500:]}")


def announced(run: Path) -> int | None:
    """Step of the newest save that has been announced, as the running system sees it."""
    try:
        return json.loads((run / "saved.json").read_text())["step"]
    except (OSError, ValueError):
        return None


def steps(run: Path) -> set[str]:
    """Names of the saves."""
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir(run / "checkpoints") if name.isdigit()}
    return set()


def cut_once(config: str, image: Path, folder: Path, options: list[str], kind: str, rng: random.Random) -> Cut:
    """Starts the run or goes on with it, cuts the power at a moment of this kind, and leaves what remains in `image`.

    If the run comes to its end first, the cut is after `done`.
    """
    copy = folder / "copy"
    with mounted(image, folder / "disk") as disk:
        run = disk / "run"
        process = kill.launch(config, run, options)
        wait_for(process, run, kind, rng)
        step, output = None, ""
        if kind == "stop" and process.poll() is None:
            process.terminate()
        if kind in ("stop", "done") or process.poll() is not None:
            output, _ = process.communicate()
            if process.returncode not in (0, 75):
                raise LostError(f"the run ended with {process.returncode}:\n{output[-3000:]}")
            kind = "done" if process.returncode == 0 else "stop"
            if kind == "stop":
                said = re.search(r"stopped and saved at step (\d+)", output)
                step = None if said is None else int(said[1])
        else:
            step = announced(run)
            process.send_signal(signal.SIGSTOP)
        snapshot(image, copy)
        if process.poll() is None:
            process.kill()
            process.communicate()
    copy.replace(image)
    repair(image)
    found = re.search(r"^done step=(\d+) digest=([0-9a-f]{64})$", output, re.MULTILINE)
    return Cut(kind=kind, step=int(found[1]) if found else step, digest=found[2] if found else None)


def wait_for(process: subprocess.Popen[str], run: Path, kind: str, rng: random.Random) -> None:
    """Until the moment of a cut, or the run's end."""
    size, begin, delay = kill.training(run), None, rng.uniform(0.0, 1.5)
    while process.poll() is None and kind != "done":
        if begin is None:
            if kill.training(run) != size:
                begin = time.monotonic()
        elif time.monotonic() - begin > delay:
            break
        time.sleep(0.001)
    before = {"save": kill.saving(run), "name": steps(run), "announced": announced(run)}
    while process.poll() is None and kind in before:
        now = {"save": kill.saving(run), "name": steps(run), "announced": announced(run)}[kind]
        if now is True or (kind != "save" and now != before[kind]):
            time.sleep(rng.uniform(0.0, 0.02 if kind == "save" else 0.01))
            break
        time.sleep(0.0005)


def check(run: Path, cut: Cut) -> None:
    """LostError unless what had been announced is there, as far as files tell."""
    if cut.digest is not None:
        done = run / "done.json"
        if not done.exists() or json.loads(done.read_text())["digest"] != cut.digest:
            raise LostError("done.json is not there")
    if cut.step is not None and max(map(int, steps(run)), default=-1) < cut.step:
        raise LostError(f"step {cut.step} had been announced, there are {sorted(steps(run))}")


def go_on(config: str, run: Path, options: list[str], cut: Cut) -> str:
    """Lets the run go to its end; its digest. LostError if it refuses, or goes on from before what was announced."""
    process = kill.launch(config, run, options)
    output, _ = process.communicate()
    found = re.search(r"^done step=\d+ digest=([0-9a-f]{64})$", output, re.MULTILINE)
    if process.returncode != 0 or found is None:
        raise LostError(f"the run that goes on ended with {process.returncode}:\n{output[-3000:]}")
    resumed = re.search(r"^resumed from step (\d+)$", output, re.MULTILINE)
    if (int(resumed[1]) if resumed else 0) < (cut.step or 0):
        raise LostError(f"step {cut.step} had been announced, it went on from {resumed and resumed[1]}")
    if cut.digest is not None and found[1] != cut.digest:
        raise LostError(f"digest {found[1]}, {cut.digest} before the cut")
    return found[1]


def run(config: str, cuts: int, folder: Path, options: list[str], seed: int = 0, kinds: tuple[str, ...] = KINDS) -> int:
    """Number of rounds that were lost; each is told. A round is up to three cuts, and goes on to the end."""
    rng = random.Random(seed)
    untouched = folder / "untouched"
    digest = kill.finish(config, untouched, options)
    counts: Counter[str] = Counter()
    lost = rounds = 0
    while counts.total() < cuts:
        image = folder / "image"
        make(image)
        rounds += 1
        try:
            cut = None
            for _ in range(min(CUTS_PER_ROUND, cuts - counts.total())):
                kind = kinds[counts.total() % len(kinds)]
                counts[kind] += 1
                cut = cut_once(config, image, folder, options, kind, rng)
                with mounted(image, folder / "disk") as disk:
                    check(disk / "run", cut)
            assert cut is not None
            with mounted(image, folder / "disk") as disk:
                if (found := go_on(config, disk / "run", options, cut)) != digest:
                    raise LostError(f"digest {found}, untouched {digest}")
                if (left := kill.written(disk / "run")) != (expected := kill.written(untouched)):
                    differing = [name for name in expected | left if left.get(name) != expected.get(name)]
                    raise LostError(f"{', '.join(differing)} differ from the untouched run's")
        except LostError as error:
            lost += 1
            print(f"{config}: lost: {error}", flush=True)
        told = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        print(f"{config}: {counts.total()} cuts ({told}) in {rounds} runs, {lost} lost", flush=True)
    return lost


def workplace() -> str | None:
    """Where images lie: in memory if there is such a file system, since a flush then costs nothing."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", choices=sorted(kill.OWN), help="repeatable; default all")
    parser.add_argument("--cuts", type=int, default=6, help="of each config")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", action="append", choices=KINDS, help="kinds of cuts, repeatable; default all")
    parser.add_argument("options", nargs="*", help="for launch.py, after --")
    arguments = parser.parse_args()
    if reason := possible():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # or the image would stay mounted
    lost = 0
    for config in arguments.config or sorted(kill.OWN):
        options = kill.SHORT + kill.OWN[config] + arguments.options
        with tempfile.TemporaryDirectory(dir=workplace()) as folder:
            kinds = tuple(arguments.only or KINDS)
            lost += run(config, arguments.cuts, Path(folder), options, arguments.seed, kinds)
    if lost:
        raise SystemExit(f"{lost} runs lost")
    print("0 runs lost: what had been announced was there, and every run ended as the untouched one")


if __name__ == "__main__":
    main()
