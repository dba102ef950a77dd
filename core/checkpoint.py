"""Saving and restoring a run; the only place of the train loop that names Orbax.

A checkpoint is the state's arrays, and beside them a note: data position, counters, config fingerprint, tree spec,
and a checksum of each leaf. Orbax 0.12 does not checksum array data (60 of 60 flipped bits load silently), casts a
changed dtype silently, and removes old steps in a way that a kill can leave half done; so `restore` trusts nothing:
it walks from the newest step, verifies each, moves what fails to `quarantine/`, and goes on to the one before.

In several processes each writes and reads the parts of the arrays that lie on its devices. The first one lists, reads
notes and moves folders; a step counts as whole where every process could read its parts of it. A save that fails on
any of them ends the run at once: whether the others' parts arrived nobody knows before Orbax has waited for minutes.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import json
import logging
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

from core import processes
from core.checksums import checksums, named_leaves, tree_spec
from core.config import CheckpointConfig
from core.errors import DataError, MismatchError, NonFiniteError, PreemptedError, StorageError, require_equal
from core.keep_best import KeepBest
from core.state import TrainState

# A save that fails is tried again at the next occasion; after this many in a row the run ends.
MAX_FAILED_SAVES = 3


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


class Checkpoints:
    """The saves of one run, under `<run>/checkpoints`."""

    def __init__(self, run: Path, config: CheckpointConfig, fingerprint: dict[str, Any]) -> None:
        """Opens the folder.

        Args:
          run: The run's folder, absolute.
          config: How many saves stay.
          fingerprint: JSON values that must be the same when the run goes on: config fields, dataset hash.
        """
        self._folder = run / "checkpoints"
        self._quarantine = run / "quarantine"
        self._config = config
        self._fingerprint = fingerprint
        self._pending: ocp.AsyncResponse | None = None
        self._pending_step = -1
        self._durable_step: int | None = None
        self._failures = 0
        self._best = KeepBest(config)
        self._manager: ocp.training.Checkpointer | None = None

    @property
    def _checkpointer(self) -> ocp.training.Checkpointer:
        """The manager of saves, opened only after `restore` has cleared damaged steps away: it reads them all."""
        if self._manager is None:
            self._manager = self._open()
        return self._manager

    def _open(self) -> ocp.training.Checkpointer:
        """A manager with explicit policies: Orbax's own save as often as possible and keep everything."""
        preserve = ocp.training.preservation_policies
        save_each: Any = ocp.training.save_decision_policies.FixedIntervalPolicy(1)
        policies: list[Any] = [preserve.LatestN(self._config.keep_last)]
        if self._config.keep_every is not None:
            policies.append(preserve.EveryNSteps(self._config.keep_every))
        if self._config.keep_best is not None:
            policies.append(self._best)
        keep_any: Any = preserve.AnyPreservationPolicy(policies)  # Any: Orbax's v1 protocol and its v0 policies differ
        return ocp.training.Checkpointer(
            str(self._folder),
            save_decision_policy=save_each,
            preservation_policy=keep_any,
            cleanup_tmp_directories=True,
        )

    @property
    def durable_step(self) -> int | None:
        """Newest step known to be whole on disk."""
        return self._durable_step

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts a save in the background, after waiting for the one before.

        The copy from the device is done when this returns, so the state may be donated to the next update.

        Raises:
          NonFiniteError: A weight or an optimiser value is NaN or infinite; nothing is written.
          StorageError: Three saves in a row failed; the message names the last durable step.
        """
        self.wait()
        sums, bad = checksums(_as_tree(state))
        if bad:
            raise NonFiniteError(
                f"step {progress.step}: not saved, because {', '.join(bad[:5])} is not finite. "
                f"The last save is of step {self._durable_step}. Lower optim.learning_rate or set optim.clip_norm"
            )
        note = dataclasses.asdict(progress) | {
            "fingerprint": self._fingerprint,
            "spec": tree_spec(_as_tree(state)),
            "checksums": sums,
        }
        note["sha256"] = _note_hash(note)
        self._best.note(progress.step, progress.evaluation)
        try:
            self._pending = self._checkpointer.save_checkpointables_async(
                progress.step, {"state": _as_tree(state)}, force=True, overwrite=True, custom_metadata=note
            )
            self._pending_step = progress.step
        except Exception as error:  # Orbax and tensorstore raise many types for one full disk
            self._failed(progress.step, error)

    def wait(self) -> bool:
        """Waits for the save under way; only then is it durable. Returns whether the last one succeeded.

        Raises:
          StorageError: Three saves in a row failed.
        """
        if self._pending is None:
            return self._failures == 0
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except Exception as error:  # the write itself fails here, not when it was started
            self._failed(self._pending_step, error)
            return False
        self._durable_step = self._pending_step
        self._failures = 0
        return True

    def save_now(self, state: TrainState, progress: Progress) -> None:
        """Saves and waits until the save is durable, trying up to three times.

        Raises:
          StorageError: It failed three times in a row.
          NonFiniteError: As `save`.
        """
        self.save(state, progress)
        while not self.wait():
            self.save(state, progress)

    def _failed(self, step: int, error: BaseException) -> None:
        """Counts and reports a failed save, and removes what it left."""
        if processes.lost(error) is not None:
            raise error
        self._failures += 1
        reason = _root_cause(error)
        limit = 1 if processes.several() else MAX_FAILED_SAVES
        print(f"save of step {step} failed ({self._failures} of {limit}): {reason}", flush=True)
        for leftover in self._folder.glob("*"):  # "<step>" or "<step>.<suffix of a temporary folder>"
            if leftover.name.split(".")[0] == str(step):
                shutil.rmtree(leftover, ignore_errors=True)
        if not processes.several():
            self.close()
        if self._failures >= limit:
            raise StorageError(
                f"{limit} save{'s' * (limit > 1)} in a row failed under {self._folder}: {reason}. "
                f"Last durable step: {self._durable_step}. Make room or mend the folder, then add --run.resume"
            ) from error

    def restore(self, abstract_state: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest checkpoint that proves whole, or None if there is none at all.

        Args:
          abstract_state: Shapes, dtypes and shardings to restore into.

        Raises:
          MismatchError: Config, dataset or tree differ from the checkpoint's; the message lists the keys.
          DataError: There are checkpoints, and every one is damaged.
        """
        steps = processes.on_first(lambda: _steps(self._folder))
        restored = None
        for step in steps:
            reason = ""
            try:
                with _quiet():
                    if restored is None:
                        restored = self._load(step, abstract_state)
                    else:
                        self._read_note(step)  # older steps: only what the manager of saves is going to read
            except MismatchError:
                raise
            except Exception as error:  # a damaged file shows as almost any type
                reason = _root_cause(error)
            if reason:
                processes.first_does(functools.partial(self._set_aside, step, reason))
        if steps and restored is None:
            raise DataError(
                f"every checkpoint under {self._folder} is damaged (steps {steps}, now in {self._quarantine}). "
                "Start anew in another folder"
            )
        self._durable_step = None if restored is None else restored[1].step
        return restored

    def _read_note(self, step: int) -> dict[str, Any]:
        """What `save` wrote beside the arrays. Raises ValueError if it is not whole, or of another step."""
        note = processes.on_first(lambda: _note_or_damage(self._folder / str(step)))
        if isinstance(note, str):
            raise ValueError(note)
        if note["step"] != step:
            raise ValueError(f"the folder is named {step}, its note says step {note['step']}")
        self._best.note(step, _progress(note).evaluation)
        return note

    def _load(self, step: int, abstract_state: TrainState) -> tuple[TrainState, Progress]:
        """One checkpoint, verified. Raises ValueError if its contents contradict its note."""
        note = self._read_note(step)
        require_equal(note["fingerprint"], self._fingerprint, "the checkpoint was made with another config or dataset")
        require_equal(note["spec"], tree_spec(_as_tree(abstract_state)), "the checkpoint holds another tree of arrays")
        tree = _load_everywhere(self._folder / str(step), _as_tree(abstract_state))
        state = TrainState(**tree)
        sums, _ = checksums(tree)
        damaged = [path for path in sums if sums[path] != note["checksums"][path]]
        if damaged:
            raise ValueError(f"checksum of {', '.join(damaged[:5])} does not match")
        return state, _progress(note)

    def _set_aside(self, step: int, reason: str) -> None:
        """Moves a damaged step out of the way."""
        self._quarantine.mkdir(exist_ok=True)
        goal = self._quarantine / str(step)
        count = 1
        while goal.exists():
            goal = self._quarantine / f"{step}-{count}"
            count += 1
        (self._folder / str(step)).rename(goal)
        print(f"checkpoint of step {step} is damaged ({reason}): moved to {goal}", flush=True)

    def close(self) -> None:
        """Frees Orbax's threads, after waiting for them; not on the way of an error out of one of several processes,
        since they would wait for the others."""
        error = sys.exc_info()[1]
        if processes.several() and error is not None and not isinstance(error, PreemptedError):
            return
        if self._manager is not None:
            self._manager.close()
            self._manager = None


def _progress(note: dict[str, Any]) -> Progress:
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


def _load_everywhere(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    """The arrays of one step, each process reading its parts; ValueError on all if one of them could not."""
    tree: dict[str, Any] = {}
    reason = ""
    try:
        with _each_for_itself():
            tree = ocp.load_checkpointables(str(path), {"state": abstract})["state"]
    except Exception as error:  # a damaged file shows as almost any type
        reason = _root_cause(error)
    reasons = [text for text in processes.gather(reason) if text]
    if reasons:
        raise ValueError(reasons[0])
    return tree


def _each_for_itself() -> ocp.Context:
    """A context in which Orbax reads without waiting for other processes, which may have failed where one did not."""
    context = ocp.Context()
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    return context


def _steps(folder: Path) -> list[int]:
    """Steps under a folder of saves, newest first."""
    return sorted((int(path.name) for path in folder.glob("*") if path.name.isdigit()), reverse=True)


def _note_or_damage(path: Path) -> dict[str, Any] | str:
    """The note of one checkpoint, or what is wrong with it."""
    try:
        with _each_for_itself():
            return _whole_note(path)
    except Exception as error:  # a damaged file shows as almost any type
        return _root_cause(error)


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
    for step in _steps(folder):
        try:
            with _quiet():
                return step, _read_part(folder / str(step), abstract)
        except MismatchError:
            raise
        except Exception as error:  # as in restore
            reasons.append(f"step {step}: {_root_cause(error)}")
    raise DataError(f"{folder}: expected a checkpoint of a run, found {'; '.join(reasons) or 'none'}")


def _read_part(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    """Some fields of one checkpoint, verified."""
    note = _whole_note(path)
    fields = tuple(f"['{field}']" for field in abstract)
    saved = {name: spec for name, spec in note["spec"].items() if name.startswith(fields)}
    require_equal(saved, tree_spec(abstract), "the checkpoint holds another tree of arrays")
    partly = _each_for_itself()
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
    paths = [path for path in folder.glob("*") if path.name.isdigit()]
    return [_describe(path) for path in sorted(paths, key=lambda path: -int(path.name))]


def _describe(path: Path) -> Save:
    files = [file for file in path.rglob("*") if file.is_file()]
    spec: dict[str, str] = {}
    evaluation: dict[str, float] = {}
    damage = None
    try:
        with _quiet():
            note = _whole_note(path)
        spec, evaluation = note["spec"], _progress(note).evaluation
        if note["step"] != int(path.name):
            damage = f"the note says step {note['step']}"
    except Exception as error:  # a damaged file shows as almost any type
        damage = _root_cause(error)
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
        with _quiet():
            note = _whole_note(save.path)
            leaves = read_arrays(save.path)
            wanted = {_plain(path): (spec, note["checksums"][path]) for path, spec in note["spec"].items()}
            if leaves.keys() != wanted.keys():
                missing = sorted(wanted.keys() ^ leaves.keys())
                return f"arrays missing or too many: {', '.join(missing[:5])}"
            sums, _ = checksums(leaves)
    except Exception as error:  # a damaged file shows as almost any type
        return _root_cause(error)
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


def _as_tree(state: TrainState) -> dict[str, Any]:
    """The state as a dict of its fields, which Orbax stores by name."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _whole_note(path: Path) -> dict[str, Any]:
    """The note of one checkpoint. Raises ValueError if it is not whole."""
    note: Any = ocp.checkpointables_metadata(str(path)).custom_metadata
    if not isinstance(note, dict) or note.get("sha256") != _note_hash(note):
        raise ValueError("the note beside the arrays is missing or damaged")
    return note


def _note_hash(note: dict[str, Any]) -> str:
    """SHA-256 of the note without its own hash."""
    rest = {key: value for key, value in note.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _root_cause(error: BaseException) -> str:
    """The last exception of the chain, in which Orbax hides what really happened, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text if len(text) <= 200 else text[:200] + "..."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No log lines: for one damaged file Orbax logs a page of tracebacks, some of them when its tasks are collected."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        gc.collect()
        logging.disable(before)


if __name__ == "__main__":
    from core.checkpoint_tool import main

    sys.exit(main(sys.argv[1:]))
