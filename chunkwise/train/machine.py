"""What the last bits of a run depend on beside its config and data, and what is said where that changes.

XLA splits a computation on a CPU by the number of cores that the process may use, and with it the order of sums; other
devices, versions and instruction sets compile to other sums as well. So a digest is comparable between runs on the same
machine, and a run that goes on elsewhere may end with another digest than one that was left alone.

machine.json is a list: the machine of the run's first update, and each other one on which it went on, with the step.
Beside it stand the hashes of the user's own source files that the config names: environments, readers, agents.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.packages import PACKAGES
from chunkwise.config.saved import flatten
from chunkwise.distributed import processes
from chunkwise.distributed.cores import cores
from chunkwise.errors import DataError, StorageError
from chunkwise.files.durable import write_json
from chunkwise.files.strict_json import read_json

NAME = "machine.json"
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")
_SETTINGS = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
}
"""Of jax, by which every number may be another, with their defaults."""
_CODE = "own_code"
_OWN = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w./-]*(?::.*)?")
"""`module:name`, as of a class or an id of Gymnasium's, and what an environment of one's own may be told after it."""
_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")


def describe() -> dict[str, Any]:
    """JSON values: cores that this process may use, devices of the run, processes, `program`, XLA's flags, the CPU."""
    import jax

    devices = jax.devices()
    return {
        "cores": _cores_of_xla(),
        "devices": f"{len(devices)} {devices[0].device_kind}",
        "processes": jax.process_count(),
        **program(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        **_cpu(),
    }


def program() -> dict[str, str]:
    """Returns versions, and jax's settings where they are not the defaults: what all processes of a run share."""
    import jax

    versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
    values = {name: getattr(jax.config, name) for name in _SETTINGS}
    return versions | {name: "" if value == _SETTINGS[name] else str(value) for name, value in values.items()}


def shared(config: ExperimentConfig) -> dict[str, str]:
    """Returns what all processes of a run share: `program`, and hashes of the source, this project's and the user's."""
    if not processes.is_multiprocess():
        return program()
    own = {f"source of {name}": sum_ for name, sum_ in own_code(config).items()}
    return program() | own | {"source of chunkwise": _source_of_all()}


def _source_of_all() -> str:
    """A hash over the source files of this project, by their places in their packages."""
    found = hashlib.sha256()
    for name in ("chunkwise", *PACKAGES):
        spec = importlib.machinery.PathFinder.find_spec(name)
        folder = Path(__file__).parents[2] / name if spec is None or spec.origin is None else Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            if path.is_file() and not path.name.startswith("."):  # an editor's lock is a link to nowhere
                with contextlib.suppress(OSError):
                    found.update(f"{name}/{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _cores_of_xla() -> int:
    """Cores among which XLA divides its work on a CPU: NPROC where that is set, else all that there are."""
    text = os.environ.get("NPROC", "")
    return int(text) if text.isdecimal() and int(text) > 0 else len(cores())


def peak_memory() -> dict[str, float]:
    """Returns the most memory that this process held, GB: of the host, and of its first device where that tells."""
    import jax

    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, bytes
    found = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9}
    held = jax.local_devices()[0].memory_stats()  # None on a CPU
    if held and "peak_bytes_in_use" in held:
        found["device"] = held["peak_bytes_in_use"] / 1e9
    return {name: round(value, 3) for name, value in found.items()}


def own_code(config: ExperimentConfig) -> dict[str, str]:
    """Returns, of each `module:name` in a config, a hash of the module's source file; nothing is imported for that.

    Files that the module imports are not looked at, and an environment of another Python (env.python) only where this
    one finds its module too.
    """
    found: dict[str, str] = {}
    for text in _texts(flatten(config)):
        if (match := _OWN.fullmatch(text)) and (path := _source(match[1])) is not None:
            with contextlib.suppress(OSError):
                found[text] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _source(module: str) -> Path | None:
    """The file of a module; None where none is found. A package's own __init__ is not run, as find_spec would."""
    parts, places = module.split("."), None
    spec = None
    for k in range(len(parts)):
        if k and places is None:  # a module, which has none inside
            return None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: k + 1]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.origin.endswith(".py") else None


def note(run: Path, step: int, code: Mapping[str, str]) -> None:
    """Prints the machine and writes it into the run's folder; says what differs from the one that the run was on.

    Args:
      run: Folder of the run.
      step: From which it goes on, 0 at its start.
      code: That of `own_code`.

    Raises:
      DataError: machine.json is not what this wrote.
      StorageError: It cannot be written.
    """
    now = describe()
    print("machine: " + ", ".join(f"{name} {value}" for name, value in now.items() if value != ""), flush=True)
    if not processes.is_primary():
        return
    path = run / NAME
    known = _read(path)
    before = [entry for entry in known if entry["step"] < step]  # those that made what the run goes on with
    changed = differences(before[-1], now) if before else []
    if changed:
        print(
            f"resumed with {', '.join(changed)}: the digest may differ from that of a run without the change",
            flush=True,
        )
    # Of the newest start, whether it saved or not: what it played lies there. A run of an earlier version kept none.
    played = known[-1].get(_CODE, {}) if known else {}
    others = [name for name in code if played.get(name, code[name]) != code[name]]
    kept = before[-1].get(_CODE, {}) if before else {}
    if others:
        print(
            f"resumed with other source than before of {', '.join(others)}: what lies in the run's folder, rollouts of "
            "a round that was cut off too, was made by the one of before",
            flush=True,
        )
    entry = {"step": step} | now | ({_CODE: dict(code)} if code else {})
    entries = before if before and not changed and kept == dict(code) else [*before, entry]
    if entries != known:
        try:
            write_json(path, entries)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _read(path: Path) -> list[dict[str, Any]]:
    entries = read_json(path) if path.exists() else []
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("step"), int) for e in entries
    ):
        raise DataError(f"{path}: expected a list of machines, each with its step; delete the file to go on without")
    return entries


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Each value that is another, in words."""
    return [
        f"{name} {now[name] or 'not set'} (saved on {saved.get(name) or 'not set'})"
        for name in now
        if saved.get(name, "") != now[name]
    ]


def _cpu() -> dict[str, str]:
    """Name of the CPU and the wide instructions that it has, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {"cpu": platform.processor()}
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    there = set() if flags is None else set(flags[1].split())
    return {
        "cpu": platform.processor() if model is None else model[1],
        "instructions": " ".join(name for name in _INSTRUCTIONS if name in there),
    }
