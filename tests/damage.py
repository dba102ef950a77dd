"""Damages the newest checkpoint of a run in every way that disks know, goes on with the run, and compares its end.

    python -m tests.damage --cases 60
    python -m tests.damage --cases 60 --restore-only      # half a second a case instead of a training run
    python -m tests.damage --config configs/driving/debug.py --restore-only --only flip_a_bit

A short run is made once. Each case takes a copy, flips a bit, cuts or removes a file, or puts a false newest step
beside it, then resumes: the run must set aside what is not whole, and end with the digest of the undamaged one. With
--restore-only a case ends where the run would go on: what was restored must be what was saved at that step, to the bit.
A save whose file of sums was removed need not be set aside: the checksums of its arrays prove it. Nor is an empty
folder of a step, which is no damaged save but the rest of a removal: it goes.
"""

import argparse
import contextlib
import importlib
import io
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from rich.progress import track

from chunkwise.checkpoint.file_sums import NAME
from tests import kill

CONFIG = "configs/qchunk/debug.py"
OPTIONS = [*kill.SHORT, "--train.steps", "40"]
EMPTY = "empty folder as the newest step"


def flip_a_bit(newest: Path, rng: random.Random) -> str:
    """One bit of one byte, each byte of the step equally likely."""
    file = _draw_file(newest, rng)
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return f"bit flipped in byte {place} of {file.relative_to(newest)}"


def cut_a_file(newest: Path, rng: random.Random) -> str:
    file = _draw_file(newest, rng)
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])
    return f"{file.relative_to(newest)} cut"


def _draw_file(newest: Path, rng: random.Random) -> Path:
    """A file, in proportion to its size. Some are named at random: in order of size a seed draws the same ones."""
    files = [file for file in newest.rglob("*") if file.is_file()]
    files.sort(key=lambda file: (-file.stat().st_size, file.name))
    return rng.choices(files, [file.stat().st_size for file in files])[0]


def remove_a_file(newest: Path, rng: random.Random) -> str:
    file = rng.choice([file for file in sorted(newest.rglob("*")) if file.is_file()])
    file.unlink()
    return f"{file.relative_to(newest)} removed"


def add_a_false_step(newest: Path, rng: random.Random) -> str:
    """What a kill inside a removal of older versions left, or a copy under a later number."""
    false = newest.with_name(str(int(newest.name) + 10))
    if rng.random() < 0.5:
        false.mkdir()
        return EMPTY
    shutil.copytree(newest, false)
    return "the newest step copied under a later number"


KINDS: tuple[Callable[[Path, random.Random], str], ...] = (flip_a_bit, cut_a_file, remove_a_file, add_a_false_step)


Kinds = tuple[Callable[[Path, random.Random], str], ...]


def run(cases: int, folder: Path, seed: int = 0, *, kinds: Kinds, config: str = CONFIG) -> int:
    """Number of cases in which something was set aside; in the others the file of sums was removed.

    Raises:
      AssertionError: Damage was not set aside, or a run ended otherwise than the undamaged one, or did not go on.
    """
    whole, options = folder / "whole", kill.OWN[config] + OPTIONS
    expected = kill.finish(config, whole, options)
    rng = random.Random(seed)
    set_aside = 0
    for case in track(range(cases), "damaging"):
        copy = folder / f"case{case}"
        shutil.copytree(whole, copy)
        newest = max((copy / "checkpoints").iterdir(), key=lambda path: int(path.name))
        what = kinds[case % len(kinds)](newest, rng)
        digest = kill.finish(config, copy, options)
        if digest != expected:
            raise AssertionError(f"{what}: the run ended with {digest}, undamaged with {expected}")
        if kill.written(copy) != kill.written(whole):
            raise AssertionError(f"{what}: metrics.jsonl differs from the undamaged run's")
        set_aside += _was_set_aside(copy, what)
        shutil.rmtree(copy)
    return set_aside


def _was_set_aside(copy: Path, what: str) -> bool:
    """Whether the damage is in quarantine, or gone where it was nothing. AssertionError if not, and it should be."""
    aside = (copy / "quarantine").exists()
    if what == EMPTY:
        if aside or any(not list(path.iterdir()) for path in (copy / "checkpoints").iterdir()):
            raise AssertionError(f"{what}: it was set aside, or stayed")
        return True
    if not aside and what != f"{NAME} removed":
        raise AssertionError(f"{what}: nothing was set aside")
    return aside


def _without_checkpoints(run: Path, copy: Path) -> Path:
    """Copies what a checkpoint is bound to, such as norm_stats.json; returns the copy."""
    return Path(shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints")))


def restore_only(cases: int, folder: Path, seed: int = 0, *, kinds: Kinds, config: str = CONFIG) -> int:
    """As `run`, by restoring in this process; the number of cases in which something was set aside.

    Raises:
      AssertionError: Damage was not set aside, or something else was restored than had been saved at that step.
    """
    whole, options = folder / "whole", kill.OWN[config] + OPTIONS
    kill.finish(config, whole, options)
    restore = _restorer(["--config", config, "--run.dir", str(whole), "--run.resume", *options])
    saved: dict[int, str] = {}
    for path in (whole / "checkpoints").iterdir():
        alone = _without_checkpoints(whole, folder / f"step{path.name}")
        shutil.copytree(path, alone / "checkpoints" / path.name)
        saved |= [restore(alone)]
    rng = random.Random(seed)
    set_aside = 0
    for case in track(range(cases), "damaging"):
        copy = _without_checkpoints(whole, folder / f"case{case}")
        shutil.copytree(whole / "checkpoints", copy / "checkpoints")
        newest = max((copy / "checkpoints").iterdir(), key=lambda path: int(path.name))
        what = kinds[case % len(kinds)](newest, rng)
        step, found = restore(copy)
        if found != saved[step]:
            raise AssertionError(f"{what}: step {step} was restored, and is not what was saved")
        set_aside += _was_set_aside(copy, what)
        shutil.rmtree(copy)
    return set_aside


def _restorer(arguments: list[str]) -> Callable[[Path], tuple[int, str]]:
    """What restores a copy of a run's checkpoints as launch.py with these arguments would: the step, and the digest."""
    from chunkwise.checkpoint.checksums import digest
    from chunkwise.checkpoint.manager import Checkpoints
    from chunkwise.config.experiment import CheckpointConfig
    from chunkwise.config.load import load

    class Asked(Exception):
        """The run is about to restore."""

    asked: list[tuple[Any, dict[str, Any]]] = []

    def ask(self: Checkpoints, abstract_state: Any) -> None:
        asked.append((abstract_state, self._fingerprint))
        raise Asked

    config = load(arguments)[0]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.object(Checkpoints, "restore", ask),
        contextlib.suppress(Asked),
    ):
        importlib.import_module(f"{config.package}.train").main(config, "damage")
    abstract, fingerprint = asked[0]

    def restore(copy: Path) -> tuple[int, str]:
        checkpoints = Checkpoints(copy, CheckpointConfig(), fingerprint)
        with contextlib.redirect_stdout(io.StringIO()):  # it says what it sets aside
            restored = checkpoints.restore(abstract)
        checkpoints.close()
        assert restored is not None
        state, progress = restored
        return progress.step, digest(state, {})

    return restore


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=CONFIG, choices=sorted(kill.OWN))
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the damage")
    parser.add_argument("--restore-only", action="store_true", help="do not train on after each case")
    parser.add_argument("--only", choices=[kind.__name__ for kind in KINDS], help="one kind of damage")
    arguments = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if arguments.only in (None, kind.__name__))
    with tempfile.TemporaryDirectory() as folder:
        check = restore_only if arguments.restore_only else run
        set_aside = check(arguments.cases, Path(folder), arguments.seed, kinds=kinds, config=arguments.config)
    end = "what was restored had been saved" if arguments.restore_only else "every run ended as the undamaged one"
    unsealed = arguments.cases - set_aside
    print(f"{arguments.cases} cases, {set_aside} set aside, {unsealed} lacked only {NAME}, 0 divergences: {end}")


if __name__ == "__main__":
    main()
