"""Runs every command on hostile artefacts: nothing may run, and nothing outside may be opened.

    python -m tests.hostile [--only WORDS] [--keep DIR]

Prints a table: the attack, the exit code, what ran, what was opened outside. A traceback counts as a failure too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from tests import lerobot_files
from tests.hostile.artefacts import GOOD, ROOT, SECRET, Place
from tests.hostile.cases import ATTACKS, Attack
from tests.hostile.watch import Watch

SECONDS = 300
"""For one command."""


def make_good(folder: Path, chosen: Sequence[Attack]) -> None:
    """The artefacts that some attacks begin with."""
    wanted = {one.base for one in chosen}
    if "export" in wanted or any("{good}" in part for one in chosen for part in one.command):
        wanted.add("ript")
    for name, make in GOOD.items():
        if name in wanted and not (folder / name).exists():
            make(folder / name)


def make_outside(folder: Path) -> None:
    """Files of somebody else, such as an attacker wants to have read."""
    folder.mkdir(parents=True)
    (folder / "folder").mkdir()
    for name in ("secret.bin", "norm_stats.json", "folder/secret"):
        (folder / name).write_text(SECRET * 100)
    with h5py.File(folder / "other.hdf5", "w") as h5:
        h5["action"] = np.zeros((400, 4), np.float32)
    lerobot_files.write_video(folder / "other.mp4", lerobot_files.record((9,))[0].images[lerobot_files.CAMERAS[0]])
    for suffix in ("jpg", "png"):
        Image.new("RGB", (48, 32)).save(folder / f"secret.{suffix}")


def attack(one: Attack, good: Path, folder: Path) -> tuple[int, list[str]]:
    """Makes an artefact hostile and runs the command; its exit code, and what went wrong."""
    place = Place(folder / "artefact", folder / "outside", folder / "ran")
    make_outside(place.outside)
    shutil.copytree(good / one.base, place.folder, symlinks=True)
    one.change(place)
    command = [part.format(folder=place.folder, good=good) for part in one.command]
    if one.inside:
        command = [str(ROOT / part) if (ROOT / part).is_file() else part for part in command]
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "JAX_PLATFORMS": "cpu"}
    with Watch(place.outside) as watch:
        try:
            found = subprocess.run(
                [sys.executable, *command],
                cwd=place.folder if one.inside else ROOT,
                env=settings,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, [f"not done after {SECONDS} s"]
        touched = watch.seen()
    said = found.stdout + found.stderr
    wrong = [touch.replace(f"{folder}/", "") for touch in touched]
    if place.marker.exists():
        wrong.append("code ran")
    if found.returncode not in one.codes:
        wrong.append(f"exit code {found.returncode}, expected {' or '.join(map(str, one.codes))}: {said[-400:]}")
    if one.says not in said:
        wrong.append(f"expected {one.says!r} in {said[-400:]!r}")
    if "Traceback" in said and 1 not in one.codes:
        wrong.append(f"a traceback: {said.strip().splitlines()[-1][:200]}")
    if SECRET in said:
        wrong.append("the secret was printed")
    return found.returncode, wrong


def main() -> int:
    """Command line; returns 1 if anything ran or was opened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose names hold these words")
    parser.add_argument("--keep", type=Path, help="folder of good artefacts, to be made once")
    arguments = parser.parse_args()
    chosen = [one for one in ATTACKS if arguments.only in one.name]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        good: Path = (arguments.keep or Path(scratch, "good")).resolve()
        good.mkdir(parents=True, exist_ok=True)
        make_good(good, chosen)
        print("| attack | exit code | seconds | ran, or opened outside |\n|---|---|---|---|", flush=True)
        for number, one in enumerate(chosen):
            began = time.monotonic()
            code, wrong = attack(one, good, Path(scratch, str(number)))
            failed += bool(wrong)
            print(
                f"| {one.name} | {code} | {time.monotonic() - began:.0f} | {'; '.join(wrong) or 'nothing'} |",
                flush=True,
            )
    print(f"{len(chosen) - failed} of {len(chosen)}: nothing ran, nothing outside was opened")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
