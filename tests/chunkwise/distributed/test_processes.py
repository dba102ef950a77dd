"""Two processes that talk to one another, without devices or training; tests/test_pod.py trains in them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jax._src import distributed
from jax.errors import JaxRuntimeError

from chunkwise.distributed import processes

ROOT = Path(__file__).parents[3]

JOIN = """
import os, sys
from pathlib import Path
from chunkwise.distributed import cluster, processes
from chunkwise.errors import ConfigError, DataError, NonFiniteError, PreemptedError
cluster.initialise()
me = 0 if processes.is_primary() else 1
"""

TALK = """
assert processes.is_multiprocess()
if me == 0:
    port = f":{int(os.environ['JAX_COORDINATOR_ADDRESS'].rpartition(':')[2]):04X}"
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = {row[1].removesuffix(port) for row in rows if row[1].endswith(port) and row[3] == "0A"}
    loopback = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}  # 127.0.0.1, the same as IPv6, ::1
    assert listening and listening <= loopback, listening
assert processes.broadcast_one_to_all(lambda: {"me": me, "list": [1, None, 0.1]}) == {"me": 0, "list": [1, None, 0.1]}
assert processes.gather(f"I am {me}") == ["I am 0", "I am 1"]
try:
    processes.broadcast_one_to_all(lambda: (_ for _ in ()).throw(DataError("no file")))
except DataError as error:
    assert str(error) == "no file"
else:
    raise AssertionError
folder = Path(sys.argv[1])
def make():
    if me == 1:
        assert (folder / "0").exists()
    (folder / str(me)).touch()
    return me
assert processes.primary_then_all(make) == me
assert processes.on_all(lambda: me) == me
def refuse():
    if me == 1:
        raise DataError("no file here", "mount it")
    return 3
for act in (processes.on_all, processes.primary_then_all):
    try:
        act(refuse)
    except DataError as error:
        assert error.args == (("process 1: " if me == 0 else "") + "no file here", "mount it"), error.args
    else:
        raise AssertionError
processes.run_on_primary((folder / f"done{me}").touch)
assert (folder / "done0").exists() and not (folder / "done1").exists()
processes.require_same({"seed": 3})
try:
    processes.require_same({"seed": me, "same": 1})
except ConfigError as error:
    assert "  seed: 0 and 1" in str(error) and "same" not in str(error)
else:
    raise AssertionError
for _ in range(3):
    processes.gather("more")
    processes.broadcast_one_to_all(lambda: 1)
kept = [key for key, _ in processes._client().key_value_dir_get("chunkwise")]
assert len(kept) <= 6, kept  # of the last two calls of both kinds: what all have read is forgotten
print("talked", me, file=sys.stderr)
processes.leave(0, together=True)
"""


def run_two(code: str, *arguments: str, seconds: float = 120) -> list[tuple[int, str]]:
    """Exit code and output of each of two processes that run `code` once they are joined."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = []
    for i in range(2):
        joined = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(i)}
        environment = os.environ | joined | {"JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", JOIN + code, *arguments]
        started.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    outputs = [process.communicate(timeout=seconds)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def test_they_talk(tmp_path: Path):
    (first, said), (second, also) = run_two(TALK, str(tmp_path))
    assert (first, second) == (0, 0), said + also
    assert "process 0 of 2 (JAX_NUM_PROCESSES=2, JAX_PROCESS_ID=0, JAX_COORDINATOR_ADDRESS), 2 cpu devices" in said
    assert "talked 0" in said
    assert "process 1 of 2 has joined" in also
    assert "talked 1" in also


def test_each_keeps_the_exit_code_of_an_error_that_all_met():
    assert [code for code, _ in run_two("processes.leave(NonFiniteError.exit_code, together=False)")] == [70, 70]


@pytest.mark.long
def test_the_end_of_one_ends_the_other():
    wait = "processes.gather('x')"
    ended = run_two(f"os._exit(9) if me == 1 else {wait}")
    assert ended[1][0] == 9
    assert ended[0][0] not in (0, 75, 9)
    assert "another task died" in ended[0][1]


def test_alone_every_call_is_the_plain_one():
    assert not processes.is_multiprocess()
    assert processes.is_primary()
    assert processes.broadcast_one_to_all(lambda: 3) == 3
    assert processes.primary_then_all(lambda: object) is object
    assert processes.gather("x") == ["x"]
    processes.require_same({"seed": 3})
    with pytest.raises(ZeroDivisionError):
        processes.run_on_primary(lambda: 1 / 0)


def test_an_exception_of_jax_that_means_a_lost_process(monkeypatch: pytest.MonkeyPatch):
    closed = JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [::1]\nsecond line")
    assert processes.lost(closed) is None  # a single process has no peer
    monkeypatch.setattr(distributed.global_state, "num_processes", 2)
    assert "another process of this run ended" in str(processes.lost(closed))
    assert "second line" not in str(processes.lost(closed))
    wrapped = ValueError("a save failed")
    wrapped.__cause__ = closed
    assert processes.lost(wrapped) is not None
    assert processes.lost(JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")) is None
    assert processes.lost(ValueError("Gloo")) is None
