"""Saves as they lie on disk: the metadata beside the arrays, reading all or part of one, and checking it.

Nothing here writes. A save is trusted only if the hash of its metadata is right and every array that is read has the
checksum that the metadata give. It is called damaged only on proof; what cannot be read for another reason is
unreadable (chunkwise/files/trouble.py).
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

from chunkwise.checkpoint.checksums import checksums, named_leaves, require_same_tree, tree_spec
from chunkwise.checkpoint.file_sums import is_sealed, probe, verify_files
from chunkwise.checkpoint.orbax_files import require_arrays, require_declared, require_metadata
from chunkwise.checkpoint.prune import logged_evaluations
from chunkwise.checkpoint.saved_steps import SAVES, step_of, steps_in
from chunkwise.errors import DataError, MismatchError, StorageError, Told
from chunkwise.files import budget
from chunkwise.files.strict_json import parse_json
from chunkwise.files.trouble import SYSTEM, is_trouble, retried, root_cause

METADATA = "_CHECKPOINT_METADATA"
MOST_READS = 20
"""Saves in turn that are tried while training removes each before it is read."""
"""Orbax's file of metadata, in which ours are its `custom_metadata`."""
SIZE_FACTOR, SIZE_SLACK = 4, 256 << 20
"""A save may have this many times the bytes of its arrays, and so many more for metadata."""


class DamagedError(Told):
    """A save is not what was written: a sum differs, metadata do not parse, a file is missing."""


class UnreadableError(Told):
    """A save could not be read, and nothing shows that it is damaged."""


def verdict(path: Path, error: Exception) -> DamagedError | UnreadableError:
    """What an error says of the save at `path` that was being read.

    A library's word that it cannot read something is no proof: where the sums of the files are right, they are what was
    written, and something else is wrong (a version, a bug). Only a save without sums is judged by that word, provided
    that all of its files can be read.
    """
    if isinstance(error, DamagedError | UnreadableError):
        return error
    reason = root_cause(error)
    if isinstance(error, budget.LimitError):  # it may be whole, and only larger than what this machine is to bear
        return UnreadableError(str(error))
    if is_trouble(error):
        return UnreadableError(reason)
    try:
        if is_sealed(path):
            found = verify_files(path)
            return DamagedError(found) if found else UnreadableError(f"{reason}, though its files are what was written")
        probe(path)
    except DataError as another:
        return UnreadableError(str(another)) if isinstance(another, budget.LimitError) else DamagedError(str(another))
    except Exception as another:  # memory may run out as well
        return UnreadableError(root_cause(another))
    return DamagedError(reason)


def require_whole(path: Path, share: int = 0, shares: int = 1) -> None:
    """Raises DamagedError where the files of a save are not those of its sums; as `file_sums.verify_files`."""
    if reason := verify_files(path, share, shares):
        raise DamagedError(reason)


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
    interacted: bool = dataclasses.field(default_factory=bool)
    """Whether `position` is that after the interaction due at this step: the data failed to come, and no update did."""


def read_metadata(path: Path) -> dict[str, Any]:
    """Reads the metadata of one checkpoint, of the step that its folder's name says.

    Read from Orbax's file without Orbax, for which a file that cannot be read is one without metadata.

    Raises:
      DamagedError: It is not whole.
      OSError: It cannot be read.
      LimitError: It costs more than a limit.
    """
    try:
        # A metric may be NaN, in the sums since the last line that the metadata hold.
        tree = parse_json(budget.read_bytes(path / METADATA).decode(), source=str(path / METADATA), finite=False)
    except budget.LimitError:
        raise
    except (FileNotFoundError, NotADirectoryError, ValueError, DataError) as error:
        raise DamagedError(f"{METADATA}: {root_cause(error)}") from error
    metadata: Any = tree.get("custom_metadata") if isinstance(tree, dict) else None
    if not isinstance(metadata, dict) or metadata.get("sha256") != metadata_hash(metadata):
        raise DamagedError("the metadata beside the arrays are missing or damaged")
    if metadata["step"] != step_of(path):
        raise DamagedError(f"the folder is named {path.name}, its metadata say step {metadata['step']}")
    _require_no_larger(path, metadata)
    return metadata


def _require_no_larger(path: Path, metadata: Mapping[str, Any]) -> None:
    """Compares the size of a save with that of its arrays, before every byte of it is summed.

    Arrays are compressed, so that their files have at most a little more than their bytes. Raises DamagedError.
    """
    try:
        arrays = sum(_nbytes(text) for text in metadata["spec"].values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{METADATA}: expected dtype and shape of every array, found {root_cause(error)}") from error
    most = SIZE_FACTOR * arrays + SIZE_SLACK
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            size = os.stat(Path(parent, name), follow_symlinks=False).st_size
            total += size
            if total > most:
                found = f"{Path(parent, name).relative_to(path)} of {size} bytes"
                raise DamagedError(f"expected at most {most} bytes for arrays of {arrays} bytes, found {found}")


def _nbytes(text: str) -> int:
    """Bytes of an array by its dtype and shape, as `tree_spec` words them."""
    dtype, _, shape = text.partition("[")
    item = jnp.dtype(dtype).itemsize if not dtype.startswith("key<") else 16
    return math.prod(json.loads(f"[{shape}")) * item


def require_same_files(run: Path, metadata: dict[str, Any], wanted: Mapping[str, str]) -> dict[str, str]:
    """Compares the files of a run that belong to a save with their hashes in its metadata.

    Args:
      run: The run's folder.
      metadata: Of the save.
      wanted: SHA-256, by name, of what the run would write where a file is missing; {} for those who only read.

    Returns:
      The hashes in the metadata; {} if an older version made it, which is said where files are wanted.

    Raises:
      MismatchError: A file is another one; the message names it.
      StorageError: It cannot be read.
    """
    if "files" not in metadata:
        if wanted:
            names = ", ".join(wanted)
            print(f"checkpoint of step {metadata['step']}: made before {names} belonged to it; not compared")
        return {}
    for name, digest in metadata["files"].items():
        path = run / name
        try:
            found = retried(lambda path=path: hashlib.sha256(budget.read_bytes(path)).hexdigest())
        except FileNotFoundError:
            found = wanted.get(name, "nothing")
        except DataError as error:  # larger than any of these files, or a pipe
            raise MismatchError(f"{error}. It is not the file of the checkpoint of step {metadata['step']}") from error
        except SYSTEM as error:
            raise StorageError(f"{path}: {root_cause(error)}. Mend it, then start again") from error
        if found != digest:
            raise MismatchError(
                f"{path} is not the file that the checkpoint of step {metadata['step']} was made with: expected "
                f"SHA-256 {digest}, found {found}. Put that file back, or start anew in another folder"
            )
    return metadata["files"]


def metadata_hash(metadata: dict[str, Any]) -> str:
    """Returns the SHA-256 of metadata without their own hash."""
    rest = {key: value for key, value in metadata.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_progress(metadata: dict[str, Any]) -> Progress:
    """What metadata remember; a field that is younger than they are has its default.

    Raises MismatchError where it has none: another version of this code wrote them.
    """
    fields = dataclasses.fields(Progress)
    if missing := [f.name for f in fields if f.name not in metadata and f.default_factory is dataclasses.MISSING]:
        raise MismatchError(
            f"the checkpoint of step {metadata['step']} was made by another version of this code, which did not write "
            f"{', '.join(missing)}. Go on with that version, or start anew in another folder"
        )
    return Progress(**{field.name: metadata[field.name] for field in fields if field.name in metadata})


def read_newest(
    run: Path, abstract: dict[str, Any], *, only: int | None = None, plain: Sequence[str] = ()
) -> tuple[int, dict[str, Any]]:
    """Part of the newest checkpoint of a run that proves whole, for those who only use it; nothing is moved.

    Args:
      run: The run's folder; training may go on in it meanwhile, so that steps come and are removed while one is read.
      abstract: Shapes, dtypes and shardings by field of `TrainState`, e.g. {"params": ...}; other fields are not read.
      only: The one step that will do; None: any.
      plain: Further fields, of whatever shapes, on one device; they come as plain dicts and lists.

    Returns:
      The step, and the arrays by field.

    Raises:
      MismatchError: The newest checkpoint holds other arrays under these fields, or a file of the run that belongs to
        it is another one.
      DataError: There is no checkpoint, or every one is damaged.
      StorageError: The newest cannot be read, and nothing proves that it is damaged.
    """
    folder = run.resolve() / SAVES
    reasons: dict[int, str] = {}
    while True:
        try:
            steps = retried(lambda: steps_in(folder))
        except SYSTEM as error:
            raise StorageError(f"{folder}: {root_cause(error)}") from error
        if only is not None and only not in (*steps, *reasons):
            found = ", ".join(map(str, steps)) or "none"
            raise DataError(f"{folder}: expected a checkpoint of step {only}, found {found}")
        step = next((step for step in steps if step not in reasons and only in (None, step)), None)
        if step is None:
            break
        path = folder / str(step)
        try:
            with quiet():
                return step, retried(lambda path=path: _read_part(path, abstract, plain))
        except (MismatchError, StorageError):
            raise
        except Exception as error:  # as in restore
            if not path.exists():
                reasons[step] = "removed meanwhile"
                if len(reasons) < MOST_READS:
                    continue
                raise StorageError(
                    f"{folder}: {len(reasons)} saves in turn were removed while they were read; training saves faster "
                    "than they can be read here: copy one, or keep more (checkpoint.keep)"
                ) from error
            found = verdict(path, error)
            if isinstance(found, UnreadableError):
                raise StorageError(f"{path}: cannot be read, and nothing shows that it is damaged: {found}") from error
            reasons[step] = str(found)
    said = "; ".join(f"step {step}: {reason}" for step, reason in reasons.items())
    raise DataError(f"{folder}: expected a checkpoint of a run, found {said or 'none'}")


def _read_part(path: Path, abstract: dict[str, Any], plain: Sequence[str]) -> dict[str, Any]:
    """Some fields of one checkpoint, verified; see `read_newest`."""
    metadata = read_metadata(path)
    fields = tuple(f"['{field}']" for field in abstract)
    saved = {name: spec for name, spec in metadata["spec"].items() if name.startswith(fields)}
    require_same_tree(saved, abstract)
    require_same_files(path.parent.parent, metadata, {})
    require_metadata(path)
    if plain:
        described = _described(path)
        abstract = abstract | {field: described[field] for field in plain}
    partly = each_for_itself()
    partly.pytree.loading.partial_load = True
    with partly:
        tree = ocp.load_checkpointables(str(path), {"state": abstract})["state"]
    sums, _ = checksums(tree)
    wanted = {_plain(name): total for name, total in metadata["checksums"].items()}
    damaged = [name for name in sums if sums[name] != wanted.get(_plain(name))]
    if damaged:
        raise DamagedError(f"checksum of {', '.join(damaged[:5])} does not match")
    return tree


def read_fingerprint(run: Path, step: int) -> dict[str, Any]:
    """Returns what a checkpoint of a run was made with: config fields by name, and of its dataset `dataset.<name>`.

    Raises:
      DataError: It is not whole, or none is of this step.
      StorageError: It cannot be read, and nothing proves that it is damaged.
    """
    path = run.resolve() / SAVES / str(step)
    try:
        return retried(lambda: read_metadata(path))["fingerprint"]
    except (DamagedError, *SYSTEM) as error:
        found = verdict(path, error)
        kind = StorageError if isinstance(found, UnreadableError) else DataError
        raise kind(f"{path}: expected a checkpoint of a run, found {found}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """One step on disk, as far as its folder and metadata tell without reading arrays."""

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
    damage: DamagedError | UnreadableError | None
    """Why the metadata cannot be trusted, or not be read; None if they can."""


def list_saves(run: Path) -> list[Save]:
    """The steps under a run's folder, newest first, but for those that training removes meanwhile; nothing is moved."""
    folder = run.resolve() / SAVES
    try:
        saves = [_describe(folder / str(step)) for step in retried(lambda: steps_in(folder))]
        logged = retried(lambda: logged_evaluations(run))
    except SYSTEM as error:
        raise StorageError(f"{folder}: {root_cause(error)}") from error
    return [
        save if save.evaluation or save.damage else dataclasses.replace(save, evaluation=logged.get(str(save.step), {}))
        for save in saves
        if save is not None
    ]


def is_gone(path: Path) -> bool:
    """Whether a step has been removed since it was listed: no error in reading it is then a fault of it."""
    return not os.path.lexists(path)


def _describe(path: Path) -> Save | None:
    """What is seen of a step; None if it is gone."""
    try:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        written = datetime.datetime.fromtimestamp(path.stat().st_mtime)
    except FileNotFoundError:
        if is_gone(path):
            return None
        raise
    shapes: list[list[int]] = []
    evaluation: dict[str, float] = {}
    damage = None
    try:
        with quiet():
            metadata = retried(lambda: read_metadata(path))
        evaluation = read_progress(metadata).evaluation
        shapes = [json.loads(text[text.index("[") :]) for text in metadata["spec"].values()]
    except Exception as error:  # a damaged file shows as almost any type
        damage = verdict(path, error)
    if damage is not None and is_gone(path):
        return None
    return Save(
        path=path,
        step=int(path.name),
        size=size,
        written=written,
        leaves=len(shapes),
        numbers=sum(math.prod(shape) for shape in shapes),
        evaluation=evaluation,
        damage=damage,
    )


def verify(save: Save) -> DamagedError | UnreadableError | None:
    """Reads all arrays of a step and compares them with its metadata; what is wrong, or None."""
    try:
        with quiet():
            retried(lambda: _verify(save.path))
    except Exception as error:  # a damaged file shows as almost any type
        return verdict(save.path, error)
    return None


def _verify(path: Path) -> None:
    """Raises DamagedError if a save is not what was written."""
    metadata = read_metadata(path)
    require_whole(path)
    leaves = read_arrays(path)
    wanted = {_plain(name): (spec, metadata["checksums"][name]) for name, spec in metadata["spec"].items()}
    if differing := sorted(wanted.keys() ^ leaves.keys()):
        raise DamagedError(f"arrays missing or too many: {', '.join(differing[:5])}")
    sums, _ = checksums(leaves)
    found = {_plain(name): total for name, total in sums.items()}
    bad = [name for name, spec in tree_spec(leaves).items() if (spec, found[_plain(name)]) != wanted[_plain(name)]]
    if bad:
        raise DamagedError(f"checksum of {', '.join(_plain(name) for name in bad[:5])} does not match")


def read_arrays(path: Path) -> dict[str, jax.Array]:
    """All arrays of one step's folder on one device, by the names on their way through the state: params/critic/...

    The tree comes back as plain dicts and lists, whatever it was made of. Nothing is checked but what they
    would cost: see `verify`. Raises LimitError before anything is allocated.
    """
    require_metadata(path)
    tree = ocp.load_checkpointables(str(path), {"state": _described(path)})["state"]
    return {_plain(name): jnp.asarray(leaf) for name, leaf in named_leaves(tree).items()}


def _described(path: Path) -> Any:
    """Shapes of all arrays of a step's folder by Orbax's metadata, on one device, in plain dicts and lists."""
    require_declared(path)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    described: Any = ocp.checkpointables_metadata(str(path)).metadata["state"]
    require_arrays(path, jax.tree.leaves(described))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), described)


def _plain(path: str) -> str:
    """A path's names joined by slashes, whatever container each of them indexes."""
    return "/".join(re.findall(r"[^\[\]'.]+", path))


def each_for_itself() -> ocp.Context:
    """A context in which Orbax reads without waiting for other processes, which may have failed where one did not."""
    context = ocp.Context()
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    return context


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
