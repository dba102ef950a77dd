"""Saving and restoring a run; with core/saves.py the only place of the train loop that names Orbax.

A checkpoint is the state's arrays, and beside them a note: data position, counters, config fingerprint, tree spec,
and a checksum of each leaf; and the sums of all files (core/seal.py). Orbax 0.12 does not checksum array data (60 of 60
flipped bits load silently), casts a changed dtype silently, and removes old steps in a way that a kill can leave half
done; so `restore` trusts nothing: it walks from the newest step, verifies each, moves what fails to `quarantine/`, and
goes on to the one before.

In several processes each writes and reads the parts of the arrays that lie on its devices. The first one lists, reads
notes and moves folders; a step counts as whole where every process could read its parts of it. A save that fails on
any of them ends the run at once: whether the others' parts arrived nobody knows before Orbax has waited for minutes.
A single process hands its save to a thread of its own: the loop waited 27 ms for Orbax's own threads to start, 100 to
270 ms on a busy machine.
"""

import concurrent.futures
import dataclasses
import functools
import logging
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from core import processes
from core.checksums import checksums, tree_spec
from core.config import CheckpointConfig, comparable
from core.errors import DataError, MismatchError, NonFiniteError, PreemptedError, StorageError, require_equal
from core.keep_best import KeepBest
from core.saves import Progress, each_for_itself, note_hash, quiet, read_progress, root_cause, steps_in, whole_note
from core.seal import broken, seal
from core.state import TrainState

# A save that fails is tried again at the next occasion; after this many in a row the run ends.
MAX_FAILED_SAVES = 3


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
        self._pending: ocp.AsyncResponse | concurrent.futures.Future[Any] | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._pending_step = -1
        self._durable_step: int | None = None
        self._hurrying = threading.Event()
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
                f"The last save is of step {self._durable_step}. Lower optim.learning_rate or set optim.clip_norm"
            )
        note = dataclasses.asdict(progress) | {
            "fingerprint": self._fingerprint,
            "spec": tree_spec(_as_tree(state)),
            "checksums": sums,
        }
        note["sha256"] = note_hash(note)
        self._best.note(progress.step, progress.evaluation)
        try:
            self._pending = self._start(progress.step, _as_tree(state), note)
            self._pending_step = progress.step
        except Exception as error:  # Orbax and tensorstore raise many types for one full disk
            self._failed(progress.step, error)

    def _start(self, step: int, tree: dict[str, Any], note: dict[str, Any]) -> Any:
        """Begins to write, once nothing needs the arrays on the device any more; what it returns can be waited for."""
        manager = self._checkpointer
        how: dict[str, Any] = {"force": True, "overwrite": True, "custom_metadata": note}
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "save")
        if processes.several():  # Orbax's processes meet while they start; that must stay in the order of the loop
            under_way = manager.save_checkpointables_async(step, {"state": tree}, **how)
            return self._thread.submit(self._seal, step, under_way) if processes.is_first() else under_way
        copied = jax.tree.map(np.array, tree)  # a copy on CPUs too, where device_get may return the device's memory

        def write() -> None:
            before, sys.unraisablehook = sys.unraisablehook, _say_unless_loop_is_closed
            manager.save_checkpointables(step, {"state": copied}, **how)
            seal(self._folder / str(step), self._hurrying.is_set)
            sys.unraisablehook = before  # after a failure it stays: what was under way still complains

        return self._thread.submit(write)

    def _seal(self, step: int, under_way: Any) -> None:
        """Waits until every process has written its part, then writes the sums of all files."""
        under_way.result()
        seal(self._folder / str(step), self._hurrying.is_set)

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

    def hurry(self) -> None:
        """From now on a save is done when its arrays are; to sum tens of GB may take longer than this machine stays."""
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
        steps = processes.on_first(lambda: steps_in(self._folder))
        restored = None
        for step in steps:
            reason = ""
            try:
                with quiet():
                    if restored is None:
                        restored = self._load(step, abstract_state)
                    else:
                        self._read_note(step)  # older steps: only what the manager of saves is going to read
            except MismatchError:
                raise
            except Exception as error:  # a damaged file shows as almost any type
                reason = root_cause(error)
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
        self._best.note(step, read_progress(note).evaluation)
        return note

    def _load(self, step: int, abstract_state: TrainState) -> tuple[TrainState, Progress]:
        """One checkpoint, verified. Raises ValueError if its contents contradict its note."""
        note = self._read_note(step)
        saved, now, remark = comparable(note["fingerprint"], self._fingerprint)
        require_equal(saved, now, " ".join(["the checkpoint was made with another config or dataset", remark]).rstrip())
        if remark and processes.is_first():
            print(f"note: {remark}", flush=True)
        require_equal(note["spec"], tree_spec(_as_tree(abstract_state)), "the checkpoint holds another tree of arrays")
        path = self._folder / str(step)
        _raise_first(_reason_of(lambda: broken(path, jax.process_index(), jax.process_count())))
        tree = _load_everywhere(path, _as_tree(abstract_state))
        state = TrainState(**tree)
        sums, _ = checksums(tree)
        damaged = [path for path in sums if sums[path] != note["checksums"][path]]
        if damaged:
            raise ValueError(f"checksum of {', '.join(damaged[:5])} does not match")
        return state, read_progress(note)

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
        """Ends the threads that write, after waiting for them; not on the way of an error out of one of several
        processes, since they would wait for the others."""
        error = sys.exc_info()[1]
        if processes.several() and error is not None and not isinstance(error, PreemptedError):
            return
        manager, self._manager = self._manager, None
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
        if manager is None:
            return
        try:
            manager.close()
        except Exception:  # a save under way failed as well; the first error says more
            if error is None:
                raise


def _load_everywhere(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    """The arrays of one step, each process reading its parts; ValueError on all if one of them could not."""
    tree: dict[str, Any] = {}
    reason = ""
    try:
        with each_for_itself():
            tree = ocp.load_checkpointables(str(path), {"state": abstract})["state"]
    except Exception as error:  # a damaged file shows as almost any type
        reason = root_cause(error)
    _raise_first(reason)
    return tree


def _reason_of(check: Callable[[], str]) -> str:
    """What `check` returns, or why it failed: the others wait to hear of this process."""
    try:
        return check()
    except OSError as error:
        return root_cause(error)


def _raise_first(reason: str) -> None:
    """ValueError on all processes if one of them has a reason."""
    if reasons := [text for text in processes.gather(reason) if text]:
        raise ValueError(reasons[0])


def _note_or_damage(path: Path) -> dict[str, Any] | str:
    """The note of one checkpoint, or what is wrong with it."""
    try:
        with each_for_itself():
            return whole_note(path)
    except Exception as error:  # a damaged file shows as almost any type
        return root_cause(error)


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


for name in ("absl", "asyncio"):
    logging.getLogger(name).addFilter(_is_no_failed_save)


def _as_tree(state: TrainState) -> dict[str, Any]:
    """The state as a dict of its fields, which Orbax stores by name."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


if __name__ == "__main__":
    from core.checkpoint_tool import main

    sys.exit(main(sys.argv[1:]))
