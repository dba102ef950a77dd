"""Saves as they lie on disk: the note beside the arrays, reading all or part of one, and checking it.

Nothing here writes. A save is trusted only if its note's own hash is right and every array that is read has the
checksum that the note gives.
"""

import contextlib
import dataclasses
import datetime
import gc
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

from core.checksums import checksums, named_leaves, tree_spec
from core.errors import DataError, MismatchError, require_equal
from core.seal import broken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run must remember beside its arrays, as plain JSON values."""

    step: int
    """Updates applied, and so the index of the next batch."""
    metrics_bytes: int
    """Size of metrics.jsonl; on resume it is cut back to this."""
    window: dict[str, list[float]]
    """Sum and count of each metric since the last line of metrics.jsonl."""
    evaluated: bool
    """Whether the evaluation due at this step has been done."""
    position: dict[str, Any] | None
    """Of the task's interaction with a world, from which it goes on; None where there is none."""
    skipped_in_a_row: int
    """Updates before this step that were not applied, without one that was in between."""
    evaluation: dict[str, float] = dataclasses.field(default_factory=dict)
    """Finite metrics of the evaluation at this step; empty where there was none."""


def whole_note(path: Path) -> dict[str, Any]:
    """The note of one checkpoint. Raises ValueError if it is not whole, or of another step than its folder's name."""
    note: Any = ocp.checkpointables_metadata(str(path)).custom_metadata
    if not isinstance(note, dict) or note.get("sha256") != note_hash(note):
        raise ValueError("the note beside the arrays is missing or damaged")
    if note["step"] != int(path.name):
        raise ValueError(f"the folder is named {path.name}, its note says step {note['step']}")
    return note


def note_hash(note: dict[str, Any]) -> str:
    """SHA-256 of the note without its own hash."""
    rest = {key: value for key, value in note.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_progress(note: dict[str, Any]) -> Progress:
    """What a whole note remembers; a field that is younger than the note has its default.

    Raises MismatchError where it has none: another version of this code wrote the note.
    """
    fields = dataclasses.fields(Progress)
    if missing := [f.name for f in fields if f.name not in note and f.default_factory is dataclasses.MISSING]:
        raise MismatchError(
            f"the checkpoint of step {note['step']} was made by another version of this code, which did not write "
            f"{', '.join(missing)}. Go on with that version, or start anew in another folder"
        )
    return Progress(**{field.name: note[field.name] for field in fields if field.name in note})


def steps_in(folder: Path) -> list[int]:
    """Steps under a folder of saves, newest first."""
    names = (path.name for path in folder.glob("*"))
    return sorted((int(name) for name in names if name.isascii() and name.isdecimal()), reverse=True)


def read_newest(run: Path, abstract: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Part of the newest checkpoint of a run that proves whole, for those who only use it; nothing is moved.

    Args:
      run: The run's folder; training may go on in it meanwhile.
      abstract: Shapes, dtypes and shardings by field of `TrainState`, e.g. {"params": ...}; other fields are not read.

    Returns:
      The step, and the arrays.

    Raises:
      MismatchError: The newest checkpoint holds other arrays under these fields.
      DataError: There is no checkpoint, or every one is damaged.
    """
    folder = run.resolve() / "checkpoints"
    reasons = []
    for step in steps_in(folder):
        try:
            with quiet():
                return step, _read_part(folder / str(step), abstract)
        except MismatchError:
            raise
        except Exception as error:  # as in restore
            reasons.append(f"step {step}: {root_cause(error)}")
    raise DataError(f"{folder}: expected a checkpoint of a run, found {'; '.join(reasons) or 'none'}")


def _read_part(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    """Some fields of one checkpoint, verified."""
    note = whole_note(path)
    fields = tuple(f"['{field}']" for field in abstract)
    saved = {name: spec for name, spec in note["spec"].items() if name.startswith(fields)}
    require_equal(saved, tree_spec(abstract), "the checkpoint holds another tree of arrays")
    partly = each_for_itself()
    partly.pytree.loading.partial_load = True
    with partly:
        tree = ocp.load_checkpointables(str(path), {"state": abstract})["state"]
    sums, _ = checksums(tree)
    damaged = [name for name in sums if sums[name] != note["checksums"][name]]
    if damaged:
        raise ValueError(f"checksum of {', '.join(damaged[:5])} does not match")
    return tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """One step on disk, as far as its folder and note tell without reading arrays."""

    path: Path
    step: int
    size: int
    """Bytes of all files."""
    written: datetime.datetime
    leaves: int
    numbers: int
    """Elements of all arrays: weights, optimiser state, target."""
    evaluation: dict[str, float]
    """Finite metrics of the evaluation at this step; empty where there was none."""
    damage: str | None
    """Why the note cannot be trusted; None if it can."""


def list_saves(run: Path) -> list[Save]:
    """The steps under a run's folder, newest first; nothing is moved."""
    folder = run.resolve() / "checkpoints"
    paths = [path for path in folder.glob("*") if path.name.isascii() and path.name.isdecimal()]
    return [_describe(path) for path in sorted(paths, key=lambda path: -int(path.name))]


def _describe(path: Path) -> Save:
    files = [file for file in path.rglob("*") if file.is_file()]
    spec: dict[str, str] = {}
    evaluation: dict[str, float] = {}
    damage = None
    try:
        with quiet():
            note = whole_note(path)
        spec, evaluation = note["spec"], read_progress(note).evaluation
    except Exception as error:  # a damaged file shows as almost any type
        damage = root_cause(error)
    shapes = [json.loads(text[text.index("[") :]) for text in spec.values()]
    return Save(
        path=path,
        step=int(path.name),
        size=sum(file.stat().st_size for file in files),
        written=datetime.datetime.fromtimestamp(path.stat().st_mtime),
        leaves=len(spec),
        numbers=sum(math.prod(shape) for shape in shapes),
        evaluation=evaluation,
        damage=damage,
    )


def verify(save: Save) -> str | None:
    """Reads all arrays of a step and compares them with its note; what is wrong, or None."""
    try:
        with quiet():
            note = whole_note(save.path)
            if reason := broken(save.path):
                return reason
            leaves = read_arrays(save.path)
            wanted = {_plain(path): (spec, note["checksums"][path]) for path, spec in note["spec"].items()}
            if leaves.keys() != wanted.keys():
                missing = sorted(wanted.keys() ^ leaves.keys())
                return f"arrays missing or too many: {', '.join(missing[:5])}"
            sums, _ = checksums(leaves)
    except Exception as error:  # a damaged file shows as almost any type
        return root_cause(error)
    found = {_plain(path): total for path, total in sums.items()}
    bad = [name for name, spec in tree_spec(leaves).items() if (spec, found[_plain(name)]) != wanted[_plain(name)]]
    return f"checksum of {', '.join(_plain(name) for name in bad[:5])} does not match" if bad else None


def read_arrays(path: Path) -> dict[str, jax.Array]:
    """All arrays of one step's folder on one device, by the names on their way through the state: params/critic/...

    The tree comes back as plain dicts and lists, whatever it was made of. Nothing is checked: see `verify`.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    described: Any = ocp.checkpointables_metadata(str(path)).metadata["state"]
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), described)
    tree = ocp.load_checkpointables(str(path), {"state": abstract})["state"]
    return {_plain(name): jnp.asarray(leaf) for name, leaf in named_leaves(tree).items()}


def _plain(path: str) -> str:
    """A path's names joined by slashes, whatever container each of them indexes."""
    return "/".join(re.findall(r"[^\[\]'.]+", path))


def each_for_itself() -> ocp.Context:
    """A context in which Orbax reads without waiting for other processes, which may have failed where one did not."""
    context = ocp.Context()
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    return context


def root_cause(error: BaseException) -> str:
    """The last exception of the chain, in which Orbax hides what really happened, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if len(text) <= 240:
        return text
    code = re.search(r"os_error_code='(\d+)'", text)  # tensorstore's words for it may be anywhere in a page of JSON
    return f"{text[:120]}...{text[-120:]}" + (f": {os.strerror(int(code[1]))}" if code else "")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No log lines: for one damaged file Orbax logs a page of tracebacks, some of them when its tasks are collected."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        gc.collect()
        logging.disable(before)
