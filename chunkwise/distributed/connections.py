"""Connections between processes of different machines that both know a key.

Those of Python's `multiprocessing`, whose handshake proves to each side that the other knows the key before anything of
it is unpickled. What travels is neither encrypted nor signed, as between the nodes of a Ray cluster without TLS.
"""

import contextlib
import os
import socket
import struct
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

REACHED = 20.0
"""Seconds in which whoever listens must be reached, and a message that has begun go on: their machine may have no power
any more."""
STRANGER = 5.0
"""Seconds in which whoever connects must say something that follows from the key; the next one waits so long."""
ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
"""Seconds after which a connection that carries nothing is tried, between two tries, and their number: routers forget
those that are idle for minutes, as these are while a policy trains."""


def listen_on(host: str) -> socket.socket:
    """Listens on a free port of an address, of either family."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def connect(host: str, port: int, key: bytes) -> Connection:
    """Connects to whoever listens. Raises OSError, EOFError or AuthenticationError where they do not know the key."""
    connection = _made(socket.create_connection((host, port), timeout=REACHED))
    try:
        limit(connection, REACHED)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException as error:
        connection.close()
        if isinstance(error, AssertionError):  # Python's, of what is no challenge
            raise AuthenticationError(str(error)) from error
        raise
    return connection


def accept(listener: socket.socket, key: bytes) -> Connection:
    """Waits for the first who knows the key; nothing that others say is unpickled."""
    while True:
        connection = _made(listener.accept()[0])
        try:
            limit(connection, STRANGER)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            limit(connection, 0)
        except (OSError, EOFError, AuthenticationError, AssertionError):
            connection.close()
        else:
            return connection


def _made(found: socket.socket) -> Connection:
    """A connection of a socket; small messages leave at once, and one whose other side is gone ends."""
    found.settimeout(None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the second of two writes may wait 40 ms
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in ALIVE.items():  # not every system has all of them
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(found.detach())


def limit(connection: Connection, seconds: float) -> None:
    """Has a read or write of a connection that gets no further fail after so many seconds; 0: never."""
    interval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as found:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            found.setsockopt(socket.SOL_SOCKET, option, interval)
        found.settimeout(None)  # whatever socket.setdefaulttimeout says


def hang_up(connection: Connection) -> None:
    """Tells the other side that nothing follows, also where a forked child holds the connection open."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)
