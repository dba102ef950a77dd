"""Connections of two sides that know a key: who is listened to, and who is believed."""

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from chunkwise.distributed import connections
from chunkwise.distributed.connections import accept, connect, hang_up, listen_on

SOON = 25.0
"""Seconds in which something happens on a busy machine."""
HERE = "127.0.0.1"


class Accepting:
    """A side that accepts, in a thread."""

    def __init__(self, host: str = HERE) -> None:
        self.listener = listen_on(host)
        self.port = self.listener.getsockname()[1]
        self._accepted: list[Connection] = []
        self._thread = threading.Thread(target=lambda: self._accepted.append(accept(self.listener, b"key")))
        self._thread.start()

    @property
    def connection(self) -> Connection:
        self._thread.join(SOON)
        return self._accepted[0]


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    made = Accepting()
    with made.listener:
        yield made


class Trap:
    """Does something when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_who_does_not_know_the_key_is_not_listened_to(
    accepting: Accepting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGER", 0.2)
    with pytest.raises(AuthenticationError):
        connect(HERE, accepting.port, b"another")
    mark = tmp_path / "unpickled"
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", pickle.dumps(Trap(mark)), b"\x7f\xff\xff\xff" + b"x" * 99):
        with socket.create_connection((HERE, accepting.port)) as stranger:
            stranger.sendall(said)
            time.sleep(0.3)  # the first says nothing
            stranger.settimeout(SOON)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass  # up to its end
    ours = connect(HERE, accepting.port, b"key")
    ours.send({"slot": 2})
    assert accepting.connection.recv() == {"slot": 2}
    assert not mark.exists()


@pytest.mark.parametrize("said", [b"\0\0\0\5hello", b"\xff\xff\xff\xfe", b""])
def test_who_says_what_is_no_challenge_is_not_believed(said: bytes) -> None:
    with socket.create_server((HERE, 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as found:
                found.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            connect(HERE, listener.getsockname()[1], b"ours")
        thread.join(SOON)


def test_who_holds_the_port_must_know_the_key_too() -> None:
    """Else what they send would be unpickled here."""
    with socket.create_server((HERE, 0)) as listener:

        def welcome() -> None:
            connection = Connection(listener.accept()[0].detach())
            connection.send_bytes(b"#CHALLENGE#" + b"x" * 20)
            connection.recv_bytes()
            connection.send_bytes(b"#WELCOME#")
            connection.recv_bytes()
            connection.send_bytes(b"x" * 16)
            assert connection.recv_bytes() == b"#FAILURE#"
            connection.close()

        thread = threading.Thread(target=welcome)
        thread.start()
        with pytest.raises(AuthenticationError):
            connect(HERE, listener.getsockname()[1], b"ours")
        thread.join(SOON)


def test_a_message_that_stops_in_its_middle_is_not_waited_for(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine has no power any more, which closes no connection."""
    monkeypatch.setattr(connections, "REACHED", 0.5)
    ours = connect(HERE, accepting.port, b"key")
    os.write(accepting.connection.fileno(), b"\x00\x00\x00\x63half")
    assert ours.poll(SOON)
    with pytest.raises(BlockingIOError):
        ours.recv()


def test_a_default_of_sockets_changes_nothing(accepting: Accepting) -> None:
    socket.setdefaulttimeout(0.01)
    try:
        ours = connect(HERE, accepting.port, b"key")
        theirs = accepting.connection
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(ours.fileno())
    assert os.get_blocking(theirs.fileno())


def test_hanging_up_ends_what_reads_also_where_a_copy_stays_open(accepting: Accepting) -> None:
    ours = connect(HERE, accepting.port, b"key")
    copy = os.dup(ours.fileno())
    hang_up(ours)
    assert accepting.connection.poll(SOON)
    with pytest.raises(EOFError):
        accepting.connection.recv()
    os.close(copy)


def test_both_families_of_addresses() -> None:
    for host in (HERE, *(["::1"] if Path("/proc/net/if_inet6").exists() else [])):
        made = Accepting(host)
        connect(host, made.port, b"key").close()
        assert made.connection.poll(SOON)
        made.listener.close()
