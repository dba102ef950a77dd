"""Saving and restoring a run; with chunkwise/checkpoint/reader.py the only place of the train loop that names Orbax.

A checkpoint is the state's arrays, and beside them metadata: data position, counters, config fingerprint, tree spec,
a checksum of each leaf, and the hashes of the run's files that belong to it; and the sums of all files (file_sums.py).
Orbax 0.12 does not checksum array data (60 of 60 flipped bits load silently) and casts a changed dtype silently; so
`restore` trusts nothing: it walks from the newest step, verifies each, moves what is proven damaged to `quarantine/`,
and goes on to the one before. What cannot be read for another reason stays where it is (chunkwise/files/trouble.py).

What is announced is on the device. Orbax forces out arrays, but neither its metadata, nor its commit marks, nor any
folder. So a save is written under `<step>.saving`, sealed with its sums, forced out file by file and folder by folder,
and only then gets its name; the folders above are forced out, `saved.json` notes it, and last of all the saves go that
it replaces. All of this is done by the thread that saves.

In several processes each writes and reads the parts of the arrays that lie on its devices, and forces out what it
writes (tensorstore does). The first one lists, reads metadata, seals, names and prunes; a step counts as whole where
every process could read its parts of it, and as durable when the first has told the others that it has its name. A save
that fails on any of them ends the run at once: whether the others' parts arrived nobody knows before Orbax has waited
for minutes. A single process hands its save to a thread of its own: the loop waited 27 ms for Orbax's own threads to
start, 100 to 270 ms on a busy machine.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from chunkwise.checkpoint import saved_steps
from chunkwise.checkpoint.checksums import checksums, require_same_tree, tree_spec
from chunkwise.checkpoint.file_sums import seal
from chunkwise.checkpoint.orbax_files import require_metadata
from chunkwise.checkpoint.prune import KeepBest, logged_evaluations, outdated
from chunkwise.checkpoint.reader import (
    DamagedError,
    Progress,
    UnreadableError,
    each_for_itself,
    metadata_hash,
    quiet,
    read_metadata,
    read_progress,
    require_same_files,
    require_whole,
    verdict,
)
from chunkwise.config.experiment import CheckpointConfig
from chunkwise.config.saved import NO_RULES, ResumeRules, comparable
from chunkwise.distributed import processes
from chunkwise.errors import DataError, NonFiniteError, PreemptedError, StorageError, require_equal
from chunkwise.files.durable import give_name, make_folders, remove_tree, sync_folder, sync_tree, sync_up, write_durably
from chunkwise.files.trouble import SYSTEM, is_trouble, retried, root_cause
from chunkwise.state import TrainState

T = TypeVar("T")
MERGED = "state/manifest.ocdbt"
"""File of a save that names the arrays of all processes; without it a save looks whole and cannot be read."""
# A save that fails is tried again at the next occasion; after this many in a row the run ends.
MAX_FAILED_SAVES = 3


class Checkpoints:
    """The saves of one run, under `<run>/checkpoints`."""

    def __init__(
        self,
        run: Path,
        config: CheckpointConfig,
        fingerprint: dict[str, Any],
        files: Mapping[str, bytes] | None = None,
        *,
        rules: ResumeRules = NO_RULES,
    ) -> None:
        """Touches no file yet.

        Args:
          run: The run's folder, absolute.
          config: How many saves stay.
          fingerprint: JSON values that must be the same when the run goes on: config fields, dataset hash.
          files: Of the run's folder, by name, that whoever uses a save needs beside it. `restore` writes them; their
            hashes are a part of each save.
          rules: What an earlier version may have put into a save's fingerprint, and what it called its fields.
        """
        _quieten_failed_saves()
        self._run = run
        self._folder = run / saved_steps.SAVES
        self._quarantine = run / "quarantine"
        self._config = config
        self._fingerprint = fingerprint
        self._rules = rules
        self._files = dict(files or {})
        self._hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self._files.items()}
        self._pending: ocp.AsyncResponse | concurrent.futures.Future[Any] | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._pending_step = -1
        self._durable_step: int | None = None
        self._hurrying = threading.Event()
        self._failures = 0
        self.best = KeepBest(config)  # whoever evaluates notes it; `restore` takes what was noted before
        self._logged: dict[str, dict[str, float]] = {}
        self._unread: set[int] = set()

    @property
    def durable_step(self) -> int | None:
        """Newest step known to be whole on disk."""
        return self._durable_step

    def prepare(self, state: TrainState) -> None:
        """Compiles what a save computes on the device, so that the first one blocks no longer than the others."""
        checksums(_as_tree(state))

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
                f"{saved_steps.told(self._durable_step)}. Lower optim.learning_rate or set optim.clip_norm"
            )
        metadata = dataclasses.asdict(progress) | {
            "fingerprint": self._fingerprint,
            "spec": tree_spec(_as_tree(state)),
            "checksums": sums,
            "files": self._hashes,
        }
        metadata["sha256"] = metadata_hash(metadata)
        try:
            self._pending = self._start(progress.step, _as_tree(state), metadata)
            self._pending_step = progress.step
        except Exception as error:  # Orbax and tensorstore raise many types for one full disk
            self._failed(progress.step, error)

    def _start(self, step: int, tree: dict[str, Any], metadata: dict[str, Any]) -> Any:
        """Begins to write, once nothing needs the arrays on the device any more; what it returns can be waited for."""
        scratch = self._folder / f"{step}.saving"  # the same name on every process
        how: dict[str, Any] = {"overwrite": True, "custom_metadata": metadata}
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "save")
        if processes.is_primary():
            make_folders(self._folder)
        if processes.is_multiprocess():  # Orbax's processes meet while they start: in the order of the loop
            under_way = ocp.save_checkpointables_async(str(scratch), {"state": tree}, **how)
            if not processes.is_primary():
                return under_way
            return self._thread.submit(self._complete, step, scratch, under_way.result)
        copied = jax.tree.map(np.array, tree)  # a copy on CPUs too, where device_get may return the device's memory

        def write() -> None:
            ocp.save_checkpointables(str(scratch), {"state": copied}, **how)

        return self._thread.submit(self._complete, step, scratch, write)

    def _complete(self, step: int, scratch: Path, write: Callable[[], None]) -> None:
        """Writes the arrays or waits for them, and returns when the save and its name are on the device.

        The order is the promise: what is older goes last, when nothing of the newer one can be lost any more.
        """
        before, sys.unraisablehook = sys.unraisablehook, _say_unless_loop_is_closed
        write()
        # Orbax merges the parts of all processes that a listing names, and takes one that failed for an empty one.
        if not (scratch / MERGED).is_file():
            raise StorageError(f"{scratch / MERGED}: expected it once the arrays are written, found no such file")
        sync_tree(scratch)
        seal(scratch, self._hurrying.is_set)
        final = self._folder / str(step)
        if final.exists():  # from an attempt that failed after the name was given; it was not announced
            remove_tree(final)
        give_name(scratch, final)
        sync_up(self._folder, self._run)
        saved_steps.announce(self._run, step)
        self._prune(step)
        sys.unraisablehook = before  # after a failure it stays: what was under way still complains

    def _prune(self, newest: int) -> None:
        """Removes the saves that no rule keeps, now that the newest is durable."""
        steps = [step for step in saved_steps.steps_in(self._folder) if step <= newest]
        old = outdated(steps, self._config.max_to_keep, self._config.keep_period, self.best.best(steps))
        for step in old:
            if step in self._unread:  # it may be the best, which could not be read
                continue
            try:
                remove_tree(self._folder / str(step))
            except SYSTEM as error:  # the newest save is whole, whatever becomes of the others
                print(f"checkpoint of step {step} could not be removed: {error}", flush=True)

    def wait(self) -> bool:
        """Waits for the save under way; only then is it durable. Returns whether the last one succeeded.

        Raises:
          StorageError: Three saves in a row failed.
        """
        if self._pending is None:
            return self._failures == 0
        pending, self._pending = self._pending, None
        if processes.is_multiprocess():
            if not processes.is_primary():
                self._ended(pending)
            processes.run_on_primary(lambda: self._ended(pending))  # seals, names and forces out what all have written
        elif not self._ended(pending):
            return False
        self._durable_step = self._pending_step
        self._failures = 0
        return True

    def _ended(self, pending: Any) -> bool:
        """Waits for this process's part of a save; False if it failed."""
        try:
            pending.result()
        except Exception as error:  # the write itself fails here, not when it was started
            self._failed(self._pending_step, error)
            return False
        return True

    def hurry(self) -> None:
        """From now on a save has no sums, since reading tens of GB back may take longer than this machine stays.

        It is forced out all the same before it is announced, and proven by the checksums of its arrays.
        """
        self._hurrying.set()

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
        sys.unraisablehook = _say_unless_loop_is_closed
        reason = root_cause(error)
        limit = 1 if processes.is_multiprocess() else MAX_FAILED_SAVES
        print(f"save of step {step} failed ({self._failures} of {limit}): {reason}", flush=True)
        with contextlib.suppress(*SYSTEM):  # whatever stays goes at the next start
            for leftover in self._folder.glob(f"{step}.*"):
                shutil.rmtree(leftover, ignore_errors=True)
        if not processes.is_multiprocess():
            self.close()
        if self._failures >= limit:
            raise StorageError(
                f"{limit} save{'s' * (limit > 1)} in a row failed under {self._folder}: {reason}. "
                f"Last durable step: {self._durable_step}. Make room or mend the folder, then add --run.resume"
            ) from error

    def restore(self, abstract_state: TrainState) -> tuple[TrainState, Progress] | None:
        """Restores the newest checkpoint that proves whole; None if nothing has ever been saved.

        Args:
          abstract_state: Shapes, dtypes and shardings to restore into.

        Raises:
          MismatchError: Config, dataset, tree or a file of the run differ from the checkpoint's; the message tells.
          DataError: There are checkpoints and every one is damaged, or there should be some and are none.
          StorageError: The newest cannot be read, and nothing proves that it is damaged. Nothing is moved.
        """
        steps, self._logged = processes.broadcast_one_to_all(self._clear)
        restored = None
        for step in steps:
            path = self._folder / str(step)
            try:
                with quiet():
                    if restored is None:
                        restored = self._load(step, abstract_state)
                    else:
                        self._read_metadata(step)  # older steps: how good they are, and whether they are any use
            except DamagedError as error:
                processes.run_on_primary(functools.partial(self._set_aside, step, str(error)))
            except UnreadableError as error:
                if restored is None:
                    raise StorageError(
                        f"{path}: the newest checkpoint cannot be read, and nothing shows that it is damaged: {error}. "
                        "Nothing was moved. Mend what keeps it from being read, then add --run.resume again; if it is "
                        "lost for good, move this folder away to go on from the one before"
                    ) from error
                self._unread.add(step)
                if processes.is_primary():
                    print(f"{path}: cannot be read at this time ({error}); left as it is", flush=True)
        if restored is None:
            processes.run_on_primary(lambda: self._require_fresh(steps))
        self._durable_step = None if restored is None else restored[1].step
        processes.run_on_primary(lambda: self._write_files(anew=restored is None))
        return restored

    def _clear(self) -> tuple[list[int], dict[str, dict[str, float]]]:
        """Removes what broken off saves left; lists the steps, newest first, and their logged evaluations."""
        try:
            for path in retried(lambda: saved_steps.remains_in(self._folder)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            steps = retried(lambda: saved_steps.steps_in(self._folder))
            logged = {} if self._config.keep_best is None else retried(lambda: logged_evaluations(self._run))
            return steps, {str(step): logged[str(step)] for step in steps if str(step) in logged}
        except SYSTEM as error:
            raise _unusable(self._folder, error) from error

    def _require_fresh(self, damaged: list[int]) -> None:
        """Notes that the run begins. DataError if it has begun before, and has lost what it had saved."""
        anew = "Start anew in another folder"
        if damaged:
            raise DataError(
                f"every checkpoint under {self._folder} is damaged (steps {damaged}, now in {self._quarantine}). {anew}"
            )
        try:
            noted = retried(lambda: saved_steps.announced(self._run))
            metrics = self._run / "metrics.jsonl"
            trained = (metrics.exists() and metrics.stat().st_size > 0) or (self._run / "done.json").exists()
            if noted is not None and noted["step"] is not None:
                raise DataError(
                    f"{self._folder}: expected the checkpoint of step {noted['step']}, which {saved_steps.ANNOUNCED} "
                    f"names, found none. Put it back ({self._quarantine} has those that were damaged). {anew}"
                )
            if noted is None and trained:
                raise DataError(
                    f"{self._run} holds the metrics of a run and no checkpoint, and no {saved_steps.ANNOUNCED} that "
                    f"says that none was made. Put {self._folder} back. {anew}"
                )
            if trained:
                print("nothing had been saved when this run ended: starting again from step 0", flush=True)
            saved_steps.announce(self._run, None)
        except SYSTEM as error:
            raise _unusable(self._run, error) from error

    def _write_files(self, *, anew: bool) -> None:
        """Writes the run's files that belong to its saves: all of a fresh run, else what is missing."""
        for name, content in self._files.items():
            path = self._run / name
            try:
                if anew or not path.exists():
                    write_durably(path, content)
            except SYSTEM as error:
                raise _unusable(path, error) from error

    def _read_metadata(self, step: int) -> dict[str, Any]:
        """What `save` wrote beside the arrays. Raises DamagedError or UnreadableError on every process alike."""
        path = self._folder / str(step)
        found = processes.broadcast_one_to_all(lambda: _metadata_or_reason(path))
        if "metadata" not in found:
            raise _KINDS[found["kind"]](found["reason"])
        metadata = found["metadata"]
        self.best.note(step, read_progress(metadata).evaluation or self._logged.get(str(step), {}))
        return metadata

    def _load(self, step: int, abstract_state: TrainState) -> tuple[TrainState, Progress]:
        """One checkpoint, verified. Raises DamagedError or UnreadableError on every process alike."""
        metadata = self._read_metadata(step)
        saved, now, remark = comparable(metadata["fingerprint"], self._fingerprint, self._rules)
        require_equal(saved, now, " ".join(["the checkpoint was made with another config or dataset", remark]).rstrip())
        if remark and processes.is_primary():
            print(f"note: {remark}", flush=True)
        require_same_tree(metadata["spec"], _as_tree(abstract_state))
        self._hashes |= processes.broadcast_one_to_all(lambda: require_same_files(self._run, metadata, self._hashes))
        path = self._folder / str(step)
        _everywhere(path, lambda: require_whole(path, jax.process_index(), jax.process_count()))
        abstract = _as_tree(abstract_state)
        tree = _everywhere(path, lambda: _read_arrays(path, abstract))
        try:
            sums, _ = checksums(tree)
        except Exception as error:
            if not is_trouble(error):
                raise
            raise UnreadableError(root_cause(error)) from error
        if damaged := [name for name in sums if sums[name] != metadata["checksums"][name]]:
            raise DamagedError(f"checksum of {', '.join(damaged[:5])} does not match")
        return TrainState(**tree), read_progress(metadata)

    def _set_aside(self, step: int, reason: str) -> None:
        """Moves a damaged step out of the way."""
        goal = self._quarantine / str(step)
        count = 1
        while goal.exists():
            goal = self._quarantine / f"{step}-{count}"
            count += 1
        try:
            make_folders(self._quarantine)
            (self._folder / str(step)).rename(goal)
            sync_folder(self._quarantine)
            sync_folder(self._folder)
        except SYSTEM as error:
            raise _unusable(self._folder / str(step), error) from error
        print(f"checkpoint of step {step} is damaged ({reason}): moved to {goal}", flush=True)

    def close(self) -> None:
        """Ends the threads that write, after waiting for them; not on the way of an error out of one of several
        processes, since they would wait for the others."""
        error = sys.exc_info()[1]
        if processes.is_multiprocess() and error is not None and not isinstance(error, PreemptedError):
            return
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()


_KINDS = {kind.__name__: kind for kind in (UnreadableError, DamagedError)}


def _everywhere(path: Path, check: Callable[[], T]) -> T:
    """What `check` returns on this process, if it succeeds on all of them.

    Raises:
      UnreadableError: One of the processes cannot read its part of the save at `path`; on all.
      DamagedError: All can, and for one of them it is damaged; on all.
    """
    made: list[T] = []
    said = {"kind": "", "reason": ""}
    try:
        made.append(retried(check))
    except Exception as error:  # a damaged file shows as almost any type
        said = _kind_and_reason(path, error)
    all_said = [json.loads(text) for text in processes.gather(json.dumps(said))]
    for name, kind in _KINDS.items():
        if reasons := [one["reason"] for one in all_said if one["kind"] == name]:
            raise kind(reasons[0])
    return made[0]


def _read_arrays(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    """This process's parts of the arrays of one step."""
    require_metadata(path)
    with each_for_itself():
        return ocp.load_checkpointables(str(path), {"state": abstract})["state"]


def _metadata_or_reason(path: Path) -> dict[str, Any]:
    """The metadata of one checkpoint, or why there are none, as JSON values."""
    try:
        with each_for_itself():
            return {"metadata": retried(lambda: read_metadata(path))}
    except Exception as error:  # a damaged file shows as almost any type
        return _kind_and_reason(path, error)


def _kind_and_reason(path: Path, error: Exception) -> dict[str, str]:
    """What to tell the other processes of an error."""
    found = verdict(path, error)
    return {"kind": type(found).__name__, "reason": str(found)}


def _unusable(path: Path, error: Exception) -> StorageError:
    """What the system says of a path of the run, for people."""
    return StorageError(
        f"{path}: {root_cause(error)}. Nothing was moved or cut. Mend it, then start again with --run.resume"
    )


def _say_unless_loop_is_closed(ignored: Any) -> None:
    """Prints what Python could not raise, but for what tensorstore's threads meet after a save of theirs failed.

    Each write that was still under way then finds Orbax's event loop gone, and prints a traceback through this hook.
    """
    if not (isinstance(ignored.exc_value, RuntimeError) and str(ignored.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(ignored)


def _is_no_failed_save(record: logging.LogRecord) -> bool:
    """Drops what Orbax's threads, and asyncio of their tasks, log of a failed save; `_failed` says it in a line."""
    if not record.exc_info:
        return True
    places = [record.pathname, *(frame.filename for frame in traceback.extract_tb(record.exc_info[2]))]
    # tensorstore's errors reach asyncio without a traceback; not each names it, but all a kind of its own
    theirs = re.search("tensorstore|OCDBT|os_error_code", str(record.exc_info[1]))
    return theirs is None and not any("orbax" in place for place in places)


def _quieten_failed_saves() -> None:
    """Has the loggers drop what `_is_no_failed_save` refuses; again and again is as once."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_no_failed_save)


def _as_tree(state: TrainState) -> dict[str, Any]:
    """The state as a dict of its fields, which Orbax stores by name."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
