"""What a server promises to a robot: finite actions of its own request, no waiting for others, limits by name."""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from chunkwise.policies import server
from chunkwise.policies.access import Access
from chunkwise.policies.server import Limits
from openpi_ript.policies.policy import Policy
from tests.chunkwise.policies.serving import client, read, running, wire
from tests.openpi_ript.compilations import compilations
from tests.openpi_ript.serving import TOKEN, request, toy_policy


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    with toy_policy(tmp_path_factory.mktemp("serve")) as policy:
        yield policy


@pytest.fixture(scope="module")
def port(acting: Policy) -> Iterator[int]:
    with running(acting, names={}) as number:
        yield number


def test_nothing_is_sent_that_is_not_finite_nor_anything_older(
    acting: Policy, port: int, monkeypatch: pytest.MonkeyPatch
):
    with client(port) as connection:
        connection.recv()
        connection.send(request(acting))
        first = read(connection.recv())["actions"]
        with monkeypatch.context() as patch:
            patch.setattr(acting, "_sample", lambda *_: np.full((4, 8, 8), np.nan, np.float32))
            for _ in range(2):
                connection.send(request(acting))
                answer = connection.recv()
                assert answer == (
                    "actions: expected finite numbers, found nan at step 0, dimension 0; no action is sent"
                )
        connection.send(request(acting))
        assert np.abs(read(connection.recv())["actions"] - first).max() > 1e-4


def test_a_request_that_says_no_scale_has_the_servers(acting: Policy, monkeypatch: pytest.MonkeyPatch):
    asked, prepare = [], acting.prepare

    def prepared(*arguments: Any, **options: Any) -> Any:
        asked.append(options.get("guidance_scale"))
        return prepare(*arguments, **options)

    monkeypatch.setattr(acting, "prepare", prepared)
    with running(acting, options={"guidance_scale": 2.5}) as port, client(port) as connection:
        connection.recv()
        asked.clear()  # what the start compiled for
        for changes in ({}, {"guidance_scale": 0.5}, {}):
            connection.send(request(acting, **changes))
            assert isinstance(connection.recv(), bytes)
    assert asked == [2.5, 0.5, 2.5]


def test_bounds_are_told_and_kept(acting: Policy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acting, "_sample", lambda *_: np.full((1, 8, 8), 1e6, np.float32))
    try:
        acting.bound("clip", margin=0.5)
        with running(acting) as port, client(port) as connection:
            bounds = read(connection.recv())["bounds"]
            assert (bounds["mode"], bounds["relative_dims"]) == ("clip", [0, 1])
            connection.send(request(acting))
            answer = read(connection.recv())
            assert answer["clipped"] == 24
            np.testing.assert_allclose(answer["actions"], [bounds["high"]] * 8, rtol=1e-6)
        acting.bound("refuse", margin=0.5)
        with running(acting) as port, client(port) as connection:
            connection.recv()
            connection.send(request(acting))
            assert "as --bounds refuse says, found" in str(connection.recv())
    finally:
        acting.bounds = None


def test_after_the_start_nothing_compiles(acting: Policy, port: int):
    example = acting.example()
    with compilations() as counted, client(port) as connection:
        connection.recv()
        for rows in (1, 2, 3, 5, 16):
            image = {name: wire(np.stack([one] * rows)) for name, one in example["image"].items()}
            state = wire(np.stack([example["state"]] * rows))
            connection.send(request(acting, image=image, state=state, guidance_scale=float(rows)))
            assert read(connection.recv())["actions"].shape == (rows, 8, 3)
    assert counted == []


def test_clients_at_once_get_what_each_would_get_alone(acting: Policy):
    """Noise is a function of the connection's number and the request's; so a second server answers the same."""

    def ask(port: int, connection: ClientConnection, number: int) -> list[np.ndarray]:
        answers = []
        for scale in (1.0, 3.0):
            state = wire(np.full(2, number / 10, np.float32))
            connection.send(request(acting, state=state, guidance_scale=scale))
            answers.append(read(connection.recv())["actions"])
        return answers

    results = []
    for together in (False, True):
        with running(acting) as port, contextlib.ExitStack() as stack:
            connections = []
            for _ in range(4):
                connections.append(stack.enter_context(client(port)))
                connections[-1].recv()
            if together:
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    results.append(list(pool.map(ask, [port] * 4, connections, range(4))))
            else:
                results.append([ask(port, connection, number) for number, connection in enumerate(connections)])
    # A request alone is computed by the program for one row; between programs float32 rounds differently.
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-4)
    assert np.abs(results[0][0][0] - results[0][1][0]).max() > 1e-3


def again_let_in(port: int) -> ClientConnection:
    """A client, once the server has seen that the only one it allows is gone: that client knows first."""
    for _ in range(100):
        try:
            return client(port)
        except InvalidStatus:
            time.sleep(0.1)
    raise AssertionError("the place of a client that left is never free again")


def test_limits_name_their_flags(acting: Policy, capfd: pytest.CaptureFixture[str]):
    limits = Limits(clients=1, message_mib=1, rows=2, idle_s=0.5)
    with running(acting, limits=limits) as port:
        with client(port) as connection:
            metadata = read(connection.recv())
            assert (metadata["max_rows"], metadata["max_message_bytes"]) == (2, 1 << 20)
            with pytest.raises(InvalidStatus) as refused, client(port):
                pass
            assert refused.value.response.status_code == 503
            assert b"expected at most 1 clients as --max-clients says" in (refused.value.response.body or b"")
            connection.send(request(acting, state=wire(np.zeros((3, 2)))))
            assert "expected at most 2 rows in one request as --max-rows says, found 3" in str(connection.recv())
            connection.send(b"x" * ((1 << 20) + 1))
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(timeout=30)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        with again_let_in(port) as connection:
            connection.recv()
            with pytest.raises(ConnectionClosed, match=r"no request in 0\.5 s, see --idle-timeout"):
                connection.recv(timeout=30)
    assert "a message above --max-message-mib 1" in capfd.readouterr().err


def test_who_asks_for_health_or_leaves_disturbs_nobody(
    acting: Policy, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """While the device is busy: the health is told, a client that leaves is forgotten, the others are answered."""
    busy, go = threading.Event(), threading.Event()
    real = acting._sample
    calls = []

    def slow(*arguments: Any) -> Any:
        calls.append(len(arguments[2]))
        busy.set()
        assert go.wait(30)
        return real(*arguments)

    with running(acting) as port, client(port) as one, client(port) as other:
        monkeypatch.setattr(acting, "_sample", slow)
        one.recv()
        other.recv()
        one.send(request(acting))
        assert busy.wait(30)
        for path in ("healthz", "healthz/", "healthz?from=balancer"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                assert answer.read() == b"OK\n"
        with client(port) as leaving:
            leaving.recv()
            leaving.send(request(acting))
        go.set()
        assert read(one.recv())["actions"].shape == (8, 3)
        other.send(request(acting))
        assert read(other.recv())["actions"].shape == (8, 3)
    assert set(calls) == {1}
    assert capfd.readouterr().err == ""


def test_a_client_that_takes_no_answers_is_dropped(acting: Policy, monkeypatch: pytest.MonkeyPatch):
    async def never(*_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(server, "SEND_SECONDS", 0.05)
    with running(acting) as port, client(port) as connection:
        connection.recv()
        with monkeypatch.context() as patch:
            patch.setattr(ServerConnection, "send", never)
            connection.send(request(acting))
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=30)


def test_only_who_has_the_token_and_no_page_is_let_in(acting: Policy, capfd: pytest.CaptureFixture[str]):
    access = Access(token=TOKEN, origins=frozenset({"http://localhost:3000"}))
    key = {"Authorization": f"Api-Key {TOKEN}"}
    with running(acting, access=access) as port:
        for settings in ({"additional_headers": key}, {"additional_headers": key, "origin": "http://localhost:3000"}):
            with client(port, **settings) as connection:
                assert read(connection.recv())["action_dim"] == 3
        for settings, code in (
            ({}, 401),
            ({"additional_headers": {"Authorization": "Api-Key wrong"}}, 401),
            ({"additional_headers": key, "origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused, client(port, **settings):
                pass
            assert refused.value.response.status_code == code
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.read() == b"OK\n"
    assert TOKEN not in capfd.readouterr().err


def test_what_a_client_sends_breaks_no_line_of_the_log(acting: Policy, port: int, capfd: pytest.CaptureFixture[str]):
    with client(port) as connection:
        connection.recv()
        connection.send(request(acting, image={"\x1b[31m\nfake: line": 1}))
        answer = connection.recv()
    assert isinstance(answer, str)
    assert len(answer) <= 1000
    assert capfd.readouterr().err.count("\n") == 1
