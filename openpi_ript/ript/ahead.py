"""A round that is played while updates go on, with the weights of the round before (rollout.staleness 1).

    rollouts/step_00000320-<weights>/acting.safetensors    the weights that play; removed once the round is on disk

Its rollouts are decided by seed, weights and `Plan`, all of which are fixed when it is begun; so it does not matter how
far it has come when the run is saved or killed. What a checkpoint holds of it is which weights play; they are on disk
before a checkpoint says so, and a resumed run plays what is missing.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.distributed import host, processes
from chunkwise.distributed.stopping import is_requested
from chunkwise.envs.divided import Outcome
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, scratch_file
from chunkwise.train.run_dir import storage_error
from openpi_ript.ript.acting import ActingPolicy
from openpi_ript.ript.playing import Plan, Player
from openpi_ript.ript.rollout_data import Group
from openpi_ript.weights import by_path, load_safetensors

WEIGHTS = "acting.safetensors"
"""File of a round's folder."""
SECONDS_TO_END = 5.0
_LOOK = 0.2
"""Seconds between two looks whether the round has come to its end."""


class Ahead:
    """A round that is played by a thread."""

    def __init__(self, plan: Plan, policy_step: int, weights: str, folder: Path) -> None:
        """Begins nothing yet.

        Args:
          plan: Of the round.
          policy_step: Updates behind the weights that play.
          weights: Their digest.
          folder: Of all rounds, in the run's.
        """
        self.plan, self.policy_step, self.weights = plan, policy_step, weights
        self._run, self._file = folder.parent, folder / plan.folder / WEIGHTS
        self._closing, self._written = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._groups: list[Group[Outcome]] | None = None
        self._error: BaseException | None = None
        self._unwritten: BaseException | None = None

    def record(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"step": self.plan.step, "policy_step": self.policy_step, "weights": self.weights}

    def wait_until_written(self) -> None:
        """Comes back when the weights are on disk, where this process writes them.

        Raises:
          StorageError: They could not be written.
        """
        if self._thread is not None and processes.is_primary():
            self._written.wait()
            if self._unwritten is not None:
                raise self._unwritten

    def begin(self, player: Player, policy: ActingPolicy, params: PyTree | None, *, play: bool) -> None:
        """Has a thread write the weights and play.

        Args:
          player: Used by nobody else meanwhile.
          policy: Gets the weights; used by nobody else meanwhile.
          params: On this process's first device, and nobody else's; None: those of the file, or none are needed, as the
            whole round is on disk.
          play: Whether an update will need the round; else the weights are written alone.

        Raises:
          DataError: The file of the weights is missing or damaged.
        """
        if params is None:
            found = player.recorded(self.plan, self.policy_step, self.weights)
            if found is not None or not play:
                self._groups = found
                return
        fresh = params is not None
        weights = self._read() if params is None else params

        def work() -> None:
            try:
                if processes.is_primary() and fresh:
                    self._write(weights)
                self._written.set()
                if play:
                    policy.use(weights, self.policy_step)
                    self._groups = player.play(self.plan, lambda: self._closing.is_set() or is_requested())
                    policy.release()
            except BaseException as error:  # told to whoever waits
                self._error = error
                if not self._written.is_set():
                    self._unwritten = error
            finally:
                self._written.set()

        self._thread = threading.Thread(target=work, name="round ahead", daemon=True)
        self._thread.start()

    def wait(self, stopping: Callable[[], bool]) -> list[Group[Outcome]] | None:
        """Returns what was played once all is; None if it was stopped. Raises what playing raised.

        Of several processes each waits for its thread, which hears from the others that it is to stop.
        """
        while not self.settled:
            if stopping() and not processes.is_multiprocess():
                return None
            if self._thread is not None:
                self._thread.join(_LOOK)
        if self._error is not None:
            raise self._error
        return self._groups

    @property
    def settled(self) -> bool:
        """Whether nothing goes on any more."""
        return self._thread is None or not self._thread.is_alive()

    def end(self) -> None:
        """Ends what goes on, but waits no longer for a program that compiles or a process that does not answer."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(SECONDS_TO_END)

    def forget(self) -> None:
        """Removes the weights, of which the round on disk has no more need."""
        if processes.is_primary():
            self._file.unlink(missing_ok=True)

    def _write(self, params: PyTree) -> None:
        leaves = {name: np.asarray(jax.device_get(leaf), order="C") for name, leaf in by_path(params).items()}
        with storage_error(self._run):
            make_folders(self._file.parent)
            with scratch_file(self._file) as scratch:
                try:
                    save_file(leaves, scratch)
                except SafetensorError as error:  # what the system says is in its text alone
                    raise OSError(f"{self._file}: {error}") from error

    def _read(self) -> PyTree:
        try:
            params = load_safetensors(self._file)
        except DataError as error:
            raise DataError(
                f"{error}. What is missing of the round is played with these weights: bring the file back from a copy "
                "of the run's folder, or begin the run anew"
            ) from error
        here = jax.local_devices()[0]
        params = jax.tree.map(lambda leaf: jax.device_put(leaf, here), params)
        if (found := tree_digest(params)) != self.weights:
            raise DataError(f"{self._file}: expected the weights {self.weights}, found {found}; begin the run anew")
        return params


def copied(params: PyTree) -> PyTree:
    """Weights of one's own on this process's first device; the next update takes the memory of the others."""
    whole = jax.tree.map(np.array, host.to_host(params))  # a copy: on a CPU numpy shows the device's own memory
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.local_devices()[0]), whole)
