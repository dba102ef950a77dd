"""What the processes of one run tell one another beside the arrays: texts, through jax's coordinator.

Every process must make the same calls in the same order; the calls are numbered, and call n of one meets call n of the
others. In a run of one process each is the plain call that it stands for.

The client is not public in jax 0.10, but the one way to wait for minutes (for a recording, for an evaluation) without
a program waiting on the devices; Orbax goes the same way.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import select
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, TypeVar

from chunkwise import errors
from chunkwise.errors import ConfigError, PeerError, RunError, StopRequested

T = TypeVar("T")

# A recording or an evaluation may take hours; a process that dies meanwhile is noticed by its heartbeat.
_WAIT_MS = 7 * 24 * 3600 * 1000
# How long the first process, whose end ends all, waits for others that are about to say their own last word.
_LAST_WORDS_SECONDS = 10.0

# In messages of a collective or of the coordinator; jax raises the same type where memory runs out.
_BETWEEN_PROCESSES = re.compile(r"gloo|nccl|coordinat|barrier|peer|socket|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED", re.I)

_calls = itertools.count()
_said: list[str] = []
"""Keys of what this process said in calls, and others may not have read yet."""


def is_multiprocess() -> bool:
    """Whether this run has more than one process."""
    return _jax().num_processes > 1


def is_primary() -> bool:
    """Whether this is the process that writes and prints."""
    return index() == 0


def count() -> int:
    """Processes of this run."""
    return max(_jax().num_processes, 1)


def index() -> int:
    """This process's number, from 0 on."""
    return _jax().process_id


def next_call() -> int:
    """Returns a number that no call had before; the same on every process that makes the same calls."""
    return next(_calls)


def broadcast_one_to_all(make: Callable[[], T]) -> T:
    """Calls `make` on the first process alone; the others wait for what it returns.

    Args:
      make: Returns a JSON value.

    Raises:
      RunError: As `make` raised it, on every process; on the others of the nearest class of chunkwise/errors.py.
    """
    if not is_multiprocess():
        return make()
    key = f"chunkwise/first/{next(_calls)}"
    if not is_primary():
        said, value = json.loads(_client().blocking_key_value_get(key, _WAIT_MS))
        if said == "value":
            return value
        raise getattr(errors, said)(*value)
    try:
        value = make()
    except RunError as error:
        _say(key, json.dumps([kind(error), error.args]))
        raise
    _say(key, json.dumps(["value", value]))
    return value


def kind(error: RunError) -> str:
    """Names the nearest class of chunkwise/errors.py: others may want more than a message."""
    return next(one.__name__ for one in type(error).__mro__ if getattr(errors, one.__name__, None) is one)


def tell(key: str, text: str) -> None:
    """Says something under a key, to whom it may concern."""
    _client().key_value_set(key, text, allow_overwrite=True)


def forget(key: str) -> None:
    """Removes what was said under a key, where anything was."""
    _client().key_value_delete(key)


def is_told(key: str) -> bool:
    """Whether any process has said something under a key."""
    from jax.errors import JaxRuntimeError

    try:
        _client().key_value_try_get(key)
    except JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return False
    return True


def heard(key: str, seconds: float) -> str | None:
    """Waits for what is said under a key; None if nothing is within so many seconds."""
    from jax.errors import JaxRuntimeError

    try:
        return _client().blocking_key_value_get(key, int(1000 * seconds))
    except JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None


def run_on_primary(act: Callable[[], object]) -> None:
    """Calls `act` on the first process alone; the others wait until it is done. Raises as `broadcast_one_to_all`."""

    def done() -> None:
        act()

    broadcast_one_to_all(done)


def primary_then_all(make: Callable[[], T]) -> T:
    """Calls `make` on every process, on the first one before the others: what it leaves on disk they find there.

    Raises:
      RunError: As `on_all`.
    """
    made: list[T] = []
    broadcast_one_to_all(lambda: made.append(make()))
    return on_all(lambda: made[0] if made else make())


def on_all(make: Callable[[], T]) -> T:
    """Calls `make` on every process, and returns what it gave here once all are done.

    Raises:
      RunError: As `make` raised it here, else as it did on another process, which the message names: all end alike.
    """
    made: list[T] = []
    refused: RunError | None = None
    try:
        made.append(make())
    except RunError as error:
        refused = error
    said = gather(json.dumps(None if refused is None else [kind(refused), refused.args]))
    if refused is not None:
        raise refused
    for process, (name, words) in ((i, json.loads(text)) for i, text in enumerate(said) if text != "null"):
        first, *more = words or [name]
        raise getattr(errors, name)(f"process {process}: {first}", *more)
    return made[0]


def gather(text: str) -> list[str]:
    """What every process says, by index."""
    if not is_multiprocess():
        return [text]
    key, read = f"chunkwise/gather/{next(_calls)}", _said.copy()
    _say(f"{key}/{_jax().process_id}", text)
    found = [_client().blocking_key_value_get(f"{key}/{i}", _WAIT_MS) for i in range(_jax().num_processes)]
    for before in read:  # all have come to this call, and so have read what was said before it
        _client().key_value_delete(before)
        _said.remove(before)
    return found


def _say(key: str, text: str) -> None:
    """Says something under a key of a call; the first process keeps it until all have read it (`gather`)."""
    _said.append(key)
    _client().key_value_set(key, text)


def compile_together(jitted: Any, *arguments: Any) -> None:
    """Compiles a jitted function for these arguments and returns when every process has.

    At the first run of a program gloo joins its devices, and gives the last process 30 s to come; how long a process
    compiles, or loaded its data before, is not bounded. The function's next call finds the program compiled.
    """
    if is_multiprocess():
        jitted.lower(*arguments).compile()
        gather("")


def require_same(values: dict[str, Any]) -> None:
    """Compares JSON values of all processes by name.

    Raises:
      ConfigError: They differ; on every process, naming the process and the values.
    """
    every = [json.loads(text) for text in gather(json.dumps(values))]
    for index, theirs in enumerate(every):
        differing = [name for name in every[0].keys() | theirs.keys() if every[0].get(name) != theirs.get(name)]
        if differing:
            lines = [f"  {name}: {every[0].get(name)!r} and {theirs.get(name)!r}" for name in sorted(differing)[:20]]
            raise ConfigError(
                f"processes 0 and {index} of this run were started with other options or versions, or see other data:",
                *lines,
            )


def report(error: BaseException) -> int:
    """Prints what ends this process, a traceback only where nobody foresaw it; returns the exit code."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr, flush=True)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        print("\nstopped by the keyboard", file=sys.stderr, flush=True)
        return 130
    if isinstance(error, BrokenPipeError) and _unread(sys.stdout):
        return errors.UNREAD
    told = error if isinstance(error, RunError | StopRequested) else lost(error) or out_of_memory(error)
    text = "".join(traceback.format_exception(error)) if told is None else f"\nerror: {told}"
    print(text, file=sys.stderr, flush=True)
    return 1 if told is None else told.exit_code


def _unread(stream: TextIO) -> bool:
    """Whether a stream goes into a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # a system without poll; a stream without a file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def leave(code: int, *, together: bool) -> NoReturn:
    """Ends this process with an exit code, whatever its threads are doing.

    Python's own end waits for every thread that was begun by a pool, such as a reader of a file system that does not
    answer, or the storage library's retries (320 s where a folder cannot be written). What must be on disk is there.

    Args:
      code: Exit code.
      together: Whether the other processes of this run are about to leave, too; then it waits for them. After an error
        nobody waits: they notice within seconds. The first process stays a little longer, because the others end with
        it before they can print an error that all of them met.
    """
    if "jax" in sys.modules and is_multiprocess():
        if together:
            _jax().shutdown()
        elif code != StopRequested.exit_code:
            _last_words()
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more
            stream.flush()
    os._exit(code)


def out_of_memory(error: BaseException) -> RunError | None:
    """Returns what is said where a device has no memory for a program; None for another error."""
    if "jax" not in sys.modules:
        return None
    from jax.errors import JaxRuntimeError

    if not isinstance(error, JaxRuntimeError) or "RESOURCE_EXHAUSTED" not in str(error):
        return None
    return RunError(
        f"the device has no memory left: {str(error).partition(chr(10))[0]}",
        "Lower train.batch_size, or set train.grad_accum_steps, which computes the same update in parts; "
        "`chunkwise compile NAME --topology ...` says what a config needs",
    )


def lost(error: BaseException) -> PeerError | None:
    """What an exception of jax means if it came because another process ended; None if it is something else."""
    if "jax" not in sys.modules:
        return None
    from jax.errors import JaxRuntimeError

    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).split("\n", maxsplit=1)[0]
    if not is_multiprocess() or not isinstance(error, JaxRuntimeError) or not _BETWEEN_PROCESSES.search(text):
        return None
    return PeerError(
        f"process {_jax().process_id}: another process of this run ended or no longer answers; its own output says "
        f"why ({text[:200]}). Start all of them again with --run.resume"
    )


def _last_words() -> None:
    """Tells that this process is about to end; the first one waits until all have told, for a few seconds."""
    key = "chunkwise/leaving"
    try:
        if not is_primary():
            _client().key_value_set(f"{key}/{_jax().process_id}", "")
            return
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < deadline and len(_client().key_value_dir_get(key)) < _jax().num_processes - 1:
            time.sleep(0.05)
    except Exception:  # the connection may be what broke
        return


def _client() -> Any:
    return _jax().client


def _jax() -> Any:
    """What jax knows of the processes; reading it starts no device. Imported late: data code comes past here."""
    from jax._src import distributed

    return distributed.global_state
