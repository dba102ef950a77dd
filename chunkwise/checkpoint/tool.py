"""Checkpoints for people: what a run folder holds, whether it is whole, and what can go.

    chunkwise checkpoint ls RUN        steps, sizes, and whether each one's metadata are whole; reads no arrays
    chunkwise checkpoint verify RUN    reads every array and compares checksums; exit code 65 if anything is damaged,
                                       74 if it cannot be read
    chunkwise checkpoint prune RUN     deletes all but the newest steps, once the newest has been verified; the best
                                       stays too where the run's config has checkpoint.keep_best

`ls` and `verify` change nothing and may run beside the training; `prune` needs the folder for itself.
"""

import argparse
import contextlib
import fcntl
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from chunkwise.checkpoint.prune import KeepBest, outdated
from chunkwise.checkpoint.reader import DamagedError, Save, UnreadableError, is_gone, list_saves, verify
from chunkwise.cli.command import Parser
from chunkwise.config.experiment import CheckpointConfig, ExperimentConfig
from chunkwise.config.saved import read_config
from chunkwise.errors import BusyError, ConfigError, DataError, RunError, StorageError
from chunkwise.files.durable import remove_tree
from chunkwise.files.trust import require_own_files
from chunkwise.printable import printable


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    parser = Parser(
        prog="chunkwise checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("ls", "verify", "prune"):
        command = commands.add_parser(name)
        command.add_argument("run", type=Path, help="a run's folder")
        if name == "prune":
            command.add_argument("--max-to-keep", type=int, default=1, help="newest steps that stay (default 1)")
            command.add_argument("--keep-period", type=int, help="multiples of this step stay too")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "prune":
            return _prune(arguments.run, arguments.max_to_keep, arguments.keep_period)
        return _show(arguments.run, _saves(arguments.run), deep=arguments.command == "verify")
    except RunError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code


def _saves(run: Path) -> list[Save]:
    """Newest first; DataError where there is none."""
    if not run.is_dir():
        raise DataError(f"{run}: expected the folder of a run, found {'a file' if run.exists() else 'nothing'}")
    require_own_files(run)
    saves = list_saves(run)
    if not saves:
        raise DataError(f"{run}: expected checkpoints under checkpoints/, found none")
    return saves


def _show(run: Path, saves: list[Save], *, deep: bool) -> int:
    """Prints a table; returns 65 if any save is damaged, else 74 if any cannot be read."""
    table = Table(title=Text(printable(f"{run}/checkpoints")), title_justify="left")
    for column in ("step", "size", "arrays", "numbers", "saved", "arrays read" if deep else "metadata"):
        table.add_column(column, justify="right")
    damaged = unreadable = 0
    for save in track(saves, "verifying", transient=True) if deep else saves:
        reason = save.damage or (verify(save) if deep else None)
        if reason is not None and is_gone(save.path):
            table.add_row(str(save.step), "", "", "", "", "removed meanwhile")
            continue
        damaged += isinstance(reason, DamagedError)
        unreadable += isinstance(reason, UnreadableError)
        table.add_row(
            str(save.step),
            f"{save.size / 2**20:.1f} MiB",
            str(save.leaves),
            f"{save.numbers:,}",
            save.written.strftime("%Y-%m-%d %H:%M:%S"),
            Text(_verdict(reason)),  # no markup: a file may be called [/red]
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if damaged:
        print(f"{damaged} of {len(saves)} damaged; a resumed run sets them aside and takes the newest whole one")
        return DataError.exit_code
    if unreadable:
        print(f"{unreadable} of {len(saves)} cannot be read at this time; nothing shows that they are damaged")
        return StorageError.exit_code
    return 0


def _verdict(reason: DamagedError | UnreadableError | None) -> str:
    if reason is None:
        return "whole"
    return f"{'damaged' if isinstance(reason, DamagedError) else 'unreadable'}: {reason}"


def _prune(run: Path, max_to_keep: int, keep_period: int | None) -> int:
    """Deletes what neither rule keeps; a kill in between leaves whole steps or folders that are no steps."""
    if max_to_keep < 1 or (keep_period is not None and keep_period < 1):
        raise ConfigError(f"--max-to-keep is {max_to_keep}, --keep-period is {keep_period}; expected at least 1")
    saves = _saves(run)
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(run / "lock", "a+"))
        except OSError as error:
            said = error.strerror or error
            raise StorageError(f"{run / 'lock'} cannot be opened for writing: {said}; nothing was deleted") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"{run} is in use; a running training deletes old steps by itself") from error
        reason = saves[0].damage or verify(saves[0])
        if isinstance(reason, DamagedError):
            raise DataError(f"step {saves[0].step}, the newest, is damaged ({reason}); nothing was deleted")
        if reason is not None:
            raise StorageError(f"step {saves[0].step}, the newest, cannot be read ({reason}); nothing was deleted")
        config = _config(run)
        kept = config.keep_period if keep_period is None else keep_period
        old = outdated([save.step for save in saves], max_to_keep, kept, _best(config, saves))
        gone = [save for save in saves if save.step in old]
        for save in gone:
            try:
                remove_tree(save.path)
            except OSError as error:
                raise StorageError(f"{save.path} could not be removed: {error}") from error
    freed = sum(save.size for save in gone)
    print(f"deleted {len(gone)} of {len(saves)} steps, {freed / 2**20:.1f} MiB; the newest, {saves[0].step}, is whole")
    return 0


def _config(run: Path) -> CheckpointConfig:
    """What the run's config says of saves; the defaults of a folder without one."""
    return read_config(run, ExperimentConfig).checkpoint if (run / "config.json").exists() else CheckpointConfig()


def _best(config: CheckpointConfig, saves: list[Save]) -> int | None:
    """The step that a run keeps as its best, if its config asks for one and an evaluation has been saved."""
    policy = KeepBest(config)
    for save in saves:
        policy.note(save.step, save.evaluation)
    return policy.best([save.step for save in saves])
