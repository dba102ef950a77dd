"""What is on this machine of what the project uses, and what to do about what is not.

    chunkwise doctor                      # a run's folder would be in the working folder
    chunkwise doctor /mnt/runs --json     # or there: room, locks, fsync

Devices and each way of rendering are tried in processes of their own: a broken driver can abort the one that asks it.
Ends with 74 where the folder cannot hold runs, with 64 where a package is missing or too old, else with 0: the rest is
needed by some only.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

import chunkwise
from chunkwise.cli import command
from chunkwise.config.installed import clone, pip, pip_install, version_of
from chunkwise.distributed.cores import cores
from chunkwise.errors import ConfigError, StorageError
from chunkwise.files.durable import publish, sync_file, sync_folder, write_durably
from chunkwise.printable import say

GIB = 2**30
ROOM = 10 * GIB
"""Free space below which is said that it is little: the environment takes 3 GB, a dataset or a run often as much."""
SECONDS = 120
"""In which devices and renderers must answer."""
SYNCS = 20
"""Of which the median is told."""
SLOW_SYNC = 0.05
"""Seconds from which saves are said to be slow: one syncs about 30 files."""

DISTRIBUTION = "chunkwise"
SIMULATORS = {
    "ogbench": "sim",
    "mujoco": "sim",
    "dm-control": "sim",
    "gym-aloha": "sim",
    "gymnasium": "sim",
    "robosuite": "robosuite",
    "metaworld": "",
    "libero": "",
}
"""Packages of simulators, and the extra that has each; empty: none has, and `OTHERWISE` says what installs it."""
OTHERWISE = {
    "metaworld": "make env of a clone, or pip install --no-deps metaworld==3.1.1",
    "libero": "installed by its own instructions",
}
LOGGERS = {"tensorboardX": "tb", "wandb": "wandb", "trackio": "trackio"}
LOCAL = ("ext", "xfs", "btrfs", "zfs", "overlay", "apfs")
"""How the names of file systems begin whose locks and fsync are those of this machine."""

DEVICES = """
import json, jax
found = [dict(kind=d.device_kind, platform=d.platform, stats=d.memory_stats() or {}) for d in jax.local_devices()]
print(json.dumps([dict(d, stats=d["stats"].get("bytes_limit")) for d in found]))
"""
RENDER = """
import mujoco
from chunkwise.envs.suites.offscreen import Renderer
scene = '<mujoco><worldbody><light pos="0 0 2"/><geom type="sphere" size=".3" rgba="1 0 0 1"/>'
model = mujoco.MjModel.from_xml_string(scene + '<camera name="c" pos="0 0 2"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
image = Renderer(model, 32, 32).render(data, "c")
assert image[16, 16, 0] > image[0, 0, 0] + 50, "the image does not show the scene"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found of one thing."""

    name: str
    state: Literal["ok", "absent", "bad"]
    """absent: what only some need is not there. bad: what every run needs is not there, or does not work."""
    found: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""


def packages() -> Iterator[Finding]:
    """Looks whether each package that the project requires is there, in a version that it takes."""
    wrong: dict[str, str] = {}
    requirements = [Requirement(text) for text in _required()]
    requirements = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    for one in requirements:
        version = version_of(one.name)
        if version is None or not one.specifier.contains(version, prereleases=True):
            wrong[f"{one.name}{one.specifier}"] = version or "none"
    versions = ", ".join(f"{name} {version_of(name)}" for name in ("jax", "flax", "orbax-checkpoint", "numpy"))
    yield Finding(name="python", state="ok", found=f"{platform.python_version()} at {sys.executable}")
    if wrong:
        found = f"expected {'; '.join(f'{needed}, found {version}' for needed, version in wrong.items())}"
        advice = "make env" if clone() else f"{pip()} install {shlex.join(wrong)}"
        yield Finding(name="packages", state="bad", found=found, advice=advice)
    else:
        yield Finding(name="packages", state="ok", found=f"chunkwise {chunkwise.__version__}, {versions}")


def devices() -> Iterator[Finding]:
    """Asks jax for its devices and their memory, and looks for accelerators that it does not see."""
    done = _asked(DEVICES, {})
    if isinstance(done, str):
        advice = "JAX_PLATFORMS=cpu makes do with the CPU; else see jax's instructions for this driver"
        yield Finding(name="devices", state="bad", found=f"jax cannot open them: {done}", advice=advice)
        return
    found = json.loads(done.stdout.splitlines()[-1])
    kinds = sorted({device["kind"] for device in found})
    memory = min((device["stats"] or 0 for device in found), default=0)
    each = f", {memory / GIB:.1f} GiB each that jax may use" if memory else ""
    advice = ""
    if {device["platform"] for device in found} == {"cpu"}:
        if "cpu" in os.environ.get("JAX_PLATFORMS", ""):
            each = ", because JAX_PLATFORMS says so"
        elif Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
            advice = "an NVIDIA card is here and jax does not see it: "
            advice += f"{pip_install('cuda')} (CUDA 13), or for an older driver {pip_install('cuda12')}"
        elif Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists():
            advice = f"this looks like a TPU host and jax does not see the chips: {pip_install('tpu')}"
    state = "absent" if advice else "ok"
    yield Finding(name="devices", state=state, found=f"{len(found)} {', '.join(kinds)}{each}", advice=advice)


def host() -> Iterator[Finding]:
    """Counts the cores and the memory that this process may use."""
    mine, there = len(cores()), os.cpu_count() or 1
    fewer = f" of {there}" if mine < there else ""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _limit_of_container()
    memory = f"{min(total, limit or total) / GIB:.1f} GiB of memory"
    if limit is not None and limit < total:
        memory += f" (this container's, of {total / GIB:.1f})"
    yield Finding(name="host", state="ok", found=f"{mine}{fewer} cores, {memory}, {platform.platform()}")


def rendering() -> Iterator[Finding]:
    """Renders an image in each way that MuJoCo has on this system."""
    if version_of("mujoco") is None:
        advice = pip_install("sim", locked=True)
        yield Finding(name="rendering", state="absent", found="mujoco is not installed", advice=advice)
        return
    backends = ("egl", "osmesa") if sys.platform == "linux" else ("glfw",)
    started = {name: _start(RENDER, {"MUJOCO_GL": name}) for name in backends}
    answers = {name: _answer(process) for name, process in started.items()}
    works = [name for name, answer in answers.items() if not isinstance(answer, str)]
    if works:
        advice = "" if works[0] == backends[0] else f"set MUJOCO_GL={works[0]}"
        yield Finding(name="rendering", state="ok", found=f"by {', '.join(works)}", advice=advice)
        return
    reasons = "; ".join(f"{name}: {answer}" for name, answer in answers.items())
    advice = "on Debian: apt install libegl1 libgl1 libosmesa6; without, simulators run and show no images or videos"
    yield Finding(name="rendering", state="absent", found=reasons, advice=advice)


def codecs() -> Iterator[Finding]:
    """Looks for the codecs of recordings and videos."""
    from av.codec import Codec

    missing = []
    uses: tuple[tuple[str, Literal["r", "w"], str], ...] = (
        ("libx264", "w", "writes videos"),
        ("h264", "r", "reads H.264"),
        ("hevc", "r", "reads H.265"),
        ("libdav1d", "r", "reads AV1, which LeRobot writes"),
    )
    for name, mode, use in uses:
        try:
            Codec(name, mode)
        except Exception:  # a class of its own, which PyAV does not export in all versions
            missing.append(f"{name}, which {use}")
    if missing:
        advice = "pip install --force-reinstall --only-binary av av"
        yield Finding(name="codecs", state="absent", found=f"PyAV lacks {'; '.join(missing)}", advice=advice)
    else:
        yield Finding(name="codecs", state="ok", found=f"H.264, H.265 and AV1 by PyAV {version_of('av')}, JPEG, PNG")


def optional() -> Iterator[Finding]:
    """Looks for the packages of simulators and loggers."""
    for name, extra in SIMULATORS.items():
        yield _optional(name, pip_install(extra, locked=True) if extra else OTHERWISE[name])
    for name, extra in LOGGERS.items():
        yield _optional(name, pip_install(extra))


def storage(folder: Path) -> Iterator[Finding]:
    """Tries what a run's folder needs of its file system: room, exclusive locks, fsync, renaming."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as name:
            yield from _storage(folder, Path(name))
    except OSError as error:
        advice = "give a folder in which files may be written: chunkwise doctor DIR"
        yield Finding(name="storage", state="bad", found=f"{folder}: {error.strerror or error}", advice=advice)


def _storage(folder: Path, scratch: Path) -> Iterator[Finding]:
    kind = _file_system(folder)
    free = shutil.disk_usage(folder).free
    little = "" if free >= ROOM else f"make room: below {ROOM // GIB} GiB a run may end with exit code 74"
    passing = "what is written there is lost with the next start: give a folder on a disk" if kind == "tmpfs" else ""
    yield Finding(
        name="room",
        state="absent" if little or passing else "ok",
        found=f"{free / GIB:.1f} GiB free at {folder.resolve()}{f' ({kind})' if kind else ''}",
        advice="; ".join(filter(None, (little, passing))),
    )
    if _locks(scratch / "lock"):
        remote = kind and not kind.startswith((*LOCAL, "tmpfs"))
        advice = "two hosts may not see one another's locks there: start a run on one of them only" if remote else ""
        yield Finding(name="locks", state="ok", found="a second process is kept out", advice=advice)
    else:
        advice = "a run there is not kept from being started twice: give another folder, or mount it with locks"
        yield Finding(name="locks", state="bad", found="a lock that is held was given again", advice=advice)
    seconds = []
    for k in range(SYNCS):
        began = time.perf_counter()
        write_durably(scratch / f"file{k}", b"x" * 4096)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    slow = f"a save of some 30 files takes {30 * median:.0f} s there" if median > SLOW_SYNC else ""
    found = f"a file of 4 KiB is on the disk after {1e3 * median:.1f} ms (median of {SYNCS})"
    yield Finding(name="fsync", state="ok", found=found, advice=slow)
    (scratch / "made").mkdir()
    (scratch / "made/file").write_bytes(b"x")
    sync_file(scratch / "made/file")
    sync_folder(scratch / "made")
    publish(scratch / "made", scratch / "given")
    whole = (scratch / "given/file").read_bytes() == b"x"
    advice = "" if whole else "give another folder: a checkpoint is written aside and then renamed"
    yield Finding(name="rename", state="ok" if whole else "bad", found="folders are renamed whole", advice=advice)


def _required() -> list[str]:
    """What the project requires, as it is installed, or as a checkout says, whose environment is made from its lock."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.requires(DISTRIBUTION) or []
    with contextlib.suppress(OSError), open((clone() or Path()) / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["dependencies"]
    return []


def _locks(path: Path) -> bool:
    """Whether a lock that one open file holds is refused to another."""
    with open(path, "wb") as one, open(path, "rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder is on, such as ext4 or nfs4; empty where the system does not say."""
    real, best, kind = f"{folder.resolve()}/", "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, name, *_ = line.split(" ")
            point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)
            if real.startswith(f"{point.rstrip('/')}/") and len(point) >= len(best):
                best, kind = point, name
    return kind


def _limit_of_container() -> int | None:
    """Bytes of memory that this container may use (cgroup 2 or 1); None without a limit."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text())
    return None


def _optional(name: str, advice: str) -> Finding:
    version = version_of(name)
    if version is None:
        return Finding(name=name, state="absent", found="not installed", advice=advice)
    return Finding(name=name, state="ok", found=version)


def _start(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts Python on a program, in the environment of this process and with these variables."""
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=variables,
    )


def _answer(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str] | str:
    """What a process said that ended well, or else why it did not, in a few words."""
    try:
        out, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer after {SECONDS} s"
    if process.returncode == 0:
        return subprocess.CompletedProcess(process.args, 0, out, said)
    lines = said.strip().splitlines() or [f"ended with {process.returncode}"]
    return lines[-1][:200]


def _asked(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str] | str:
    return _answer(_start(program, environment))


PROBES: tuple[Callable[[], Iterator[Finding]], ...] = (packages, devices, host, rendering, codecs, optional)


def examine(folder: Path) -> Iterator[Finding]:
    """Yields what is found of this machine, and of the folder that is to hold runs."""
    for probe in PROBES:
        yield from probe()
    yield from storage(folder)


def exit_code(findings: list[Finding]) -> int:
    """Returns that of the worst finding."""
    bad = {finding.name for finding in findings if finding.state == "bad"}
    if bad & {"storage", "locks", "rename"}:
        return StorageError.exit_code
    return ConfigError.exit_code if bad else 0


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise doctor",
        description=__doc__,
        epilog="example: chunkwise doctor runs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="where runs would be; default: here")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments = parser.parse_args(argv)
    findings = []
    marks = {"ok": "ok     ", "absent": "absent ", "bad": "BAD    "}
    for finding in examine(arguments.folder):
        findings.append(finding)
        if not arguments.json:
            say(f"{marks[finding.state]}{finding.name:<18}{finding.found}")
            if finding.advice:
                say(f"{'':<25}-> {finding.advice}")
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        return exit_code(findings)
    counts = {state: sum(finding.state == state for finding in findings) for state in marks}
    print(f"{counts['ok']} in order, {counts['absent']} absent, {counts['bad']} bad")
    if counts["bad"]:
        print("next: mend what is BAD, and ask again")
    else:
        print("next: chunkwise train qchunk/debug, which takes a minute and shows that all of it works together")
    return exit_code(findings)


if __name__ == "__main__":
    command.run(main)
