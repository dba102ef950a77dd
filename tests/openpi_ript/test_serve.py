"""The server, driven by a client that is written here from the protocol's description, and by openpi's own."""

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from core.errors import DataError
from openpi_ript import serve
from openpi_ript.data import open_data
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policy import Policy
from openpi_ript.server import PolicyServer
from openpi_ript.wire import pack, rename, unpack
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_policy import random_params

NAMES = {"observation/image": "image/base_0_rgb", "observation/wrist_image": "image/left_wrist_0_rgb"}


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    root = make_dataset(tmp_path_factory.mktemp("serve"))
    config = small_config(root, root)
    return Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats, step=7)


class Running:
    """A server in a thread with an event loop of its own."""

    def __init__(self, server: PolicyServer) -> None:
        self._server = server
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._listening.wait(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await self._server.start("127.0.0.1", 0) as listening:
            self.port = listening.sockets[0].getsockname()[1]
            self._listening.set()
            await self._stop.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


@pytest.fixture(scope="module")
def port(acting: Policy) -> Iterator[int]:
    running = Running(PolicyServer(acting, names={}))
    yield running.port
    running.close()


def client(port: int) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None)


def wire(array: np.ndarray) -> dict[bytes, Any]:
    """An array as the protocol describes it."""
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": list(array.shape)}


def read(message: str | bytes) -> Any:
    """A message with its arrays, decoded by the protocol's description and nothing of the server's code."""
    assert isinstance(message, bytes), message

    def decode(value: dict[Any, Any]) -> Any:
        if b"__ndarray__" in value:
            return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
        return value

    return msgpack.unpackb(message, object_hook=decode)


def request(policy: Policy, **changes: Any) -> bytes:
    example = policy.example()
    image = {name: wire(picture) for name, picture in example["image"].items()}
    return msgpack.packb({"image": image, "state": wire(example["state"]), "prompt": "move"} | changes)  # pyright: ignore[reportReturnType]


@pytest.mark.slow
def test_a_client_gets_metadata_and_then_actions(acting: Policy, port: int):
    with client(port) as connection:
        metadata = read(connection.recv())
        assert (metadata["action_horizon"], metadata["action_dim"], metadata["step"]) == (8, 3, 7)
        assert metadata["cameras"] == ["base_0_rgb", "left_wrist_0_rgb"]
        connection.send(request(acting))
        first = read(connection.recv())
        assert first["actions"].shape == (8, 3)
        assert first["actions"].dtype == np.float32
        assert np.isfinite(first["actions"]).all()
        assert set(first["server_timing"]) == {"infer_ms"}
        connection.send(request(acting))
        assert set(read(connection.recv())["server_timing"]) == {"infer_ms", "prev_total_ms"}


def test_actions_are_the_policys_and_a_request_may_name_its_scale(
    acting: Policy, port: int, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def infer(observation: Any, *, guidance_scale: Any = None) -> dict[str, np.ndarray]:
        asked.append(guidance_scale)
        return {"actions": observation["state"] * np.float32(2)}

    monkeypatch.setattr(acting, "infer", infer)
    with client(port) as connection:
        connection.recv()
        scale = {b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}
        for extra in ({}, {"guidance_scale": 2.0}, {"guidance_scale": scale}):
            connection.send(request(acting, state=wire(np.array([1.0, 2.0])), **extra))
            np.testing.assert_array_equal(read(connection.recv())["actions"], [2.0, 4.0])
    assert asked == [None, 2.0, 1.5]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"state": wire(np.zeros(5))}, "state: expected 2 numbers"),
        ({"guidance_scale": "strong"}, "guidance_scale: expected a number, found 'strong'"),
        (b"\xc1", "expected msgpack as openpi-client writes it"),
        (msgpack.packb([1, 2]), "expected a map, found list"),
        (msgpack.packb({"state": {**wire(np.zeros(2)), b"shape": [1 << 40]}}), "expected msgpack as openpi-client"),
        (msgpack.packb({"state": {**wire(np.zeros(1)), b"dtype": "|O"}}), "expected msgpack as openpi-client"),
        (msgpack.packb({"state": {**wire(np.zeros(0)), b"shape": [0, 1 << 63]}}), "expected msgpack as openpi-client"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}}), "out of bounds for uint8"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"data": [1], b"dtype": "|O"}}), "a scalar of object from list"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"data": 1 << 40, b"dtype": "|V8"}}), "a scalar of"),
        ({"prompt": None}, "prompt: expected text, found NoneType"),
        ("hello", "expected a binary frame, found text"),
    ],
)
def test_a_bad_request_ends_its_connection_alone(acting: Policy, port: int, message: Any, expected: str):
    with client(port) as other:
        other.recv()
        with client(port) as connection:
            connection.recv()
            connection.send(request(acting, **message) if isinstance(message, dict) else message)
            answer = connection.recv()
            assert isinstance(answer, str), "openpi's client takes text as an error"
            assert expected in answer
            with pytest.raises(ConnectionClosed):
                connection.recv()
        other.send(request(acting))
        assert read(other.recv())["actions"].shape == (8, 3)


def test_health(port: int):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
        assert (answer.status, answer.read()) == (200, b"OK\n")


def test_clients_of_other_robots_work_by_renaming(acting: Policy):
    running = Running(PolicyServer(acting, guidance_scale=1.0, names=NAMES | {"observation/state": "state"}))
    try:
        with client(running.port) as connection:
            connection.recv()
            example = acting.example()
            picture, state = wire(example["image"]["base_0_rgb"]), wire(example["state"].astype(np.float64))
            sent = {"observation/image": picture, "observation/wrist_image": picture, "observation/state": state}
            connection.send(msgpack.packb(sent | {"prompt": "move"}) or b"")
            assert read(connection.recv())["actions"].shape == (8, 3)
    finally:
        running.close()


def test_rename_moves_entries_and_names_what_is_missing():
    moved = rename({"observation/image": 1, "observation/wrist_image": 2, "prompt": "x"}, NAMES)
    assert moved == {"image": {"base_0_rgb": 1, "left_wrist_0_rgb": 2}, "prompt": "x"}
    with pytest.raises(DataError, match=r"expected the entries \['observation/wrist_image'\] as --rename says"):
        rename({"observation/image": 1}, NAMES)


def test_rename_finds_nested_entries_and_changes_nothing_that_it_was_given():
    """openpi's ALOHA client nests its pictures."""
    sent = {"images": {"cam_high": 1, "cam_low": 2}, "state": 3, b"raw": 4}
    moved = rename(sent, {"images/cam_high": "image/base_0_rgb", "images/cam_low": "image/left_wrist_0_rgb"})
    assert moved == {"images": {}, "image": {"base_0_rgb": 1, "left_wrist_0_rgb": 2}, "state": 3, b"raw": 4}
    assert sent["images"] == {"cam_high": 1, "cam_low": 2}
    assert rename({"image": {"z": 1}, "a": 2}, {"a": "image/b"}) == {"image": {"z": 1, "b": 2}}
    assert rename({"image": {"base": 1}}, {"image/base": "image/base_0_rgb"}) == {"image": {"base_0_rgb": 1}}
    with pytest.raises(DataError, match=r"expected the entries \['images/top'\] as --rename says, found \[\"b'raw'\""):
        rename(sent, {"images/top": "image/base_0_rgb"})
    with pytest.raises(DataError, match="expected a dict to put 'a' into as --rename says, found ndarray at 'image'"):
        rename({"a": 1, "image": np.zeros(3)}, {"a": "image/b"})


def test_a_failure_of_the_server_itself_ends_one_connection_and_tells_its_client(
    acting: Policy, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def broken(*_: Any, **__: Any):
        raise MemoryError("no room")

    with client(port) as connection:
        connection.recv()
        with monkeypatch.context() as patch:
            patch.setattr(acting, "infer", broken)
            connection.send(request(acting))
            assert connection.recv() == "the server failed: MemoryError: no room"
        assert "MemoryError: no room" in capfd.readouterr().err
    with client(port) as connection:
        connection.recv()
        connection.send(request(acting))
        assert read(connection.recv())["actions"].shape == (8, 3)


def test_messages_survive_the_way_and_hold_no_objects():
    message = {
        "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "scalar": np.float32(1.5),
        "empty": np.zeros((0, 3), np.float64),
        "flags": np.array([True, False]),
        "text": "ä",
        "nested": {"step": 3, "none": None},
    }
    back = unpack(pack(message))
    assert list(back) == list(message)
    for key in ("image", "empty", "flags"):
        np.testing.assert_array_equal(back[key], message[key])
        assert back[key].dtype == message[key].dtype
    assert type(back["scalar"]) is np.float32
    assert (back["scalar"], back["text"], back["nested"]) == (1.5, "ä", message["nested"])
    raw = msgpack.unpackb(pack({"image": message["image"]}))["image"]
    assert raw == {b"__ndarray__": True, b"data": bytes(range(12)), b"dtype": "|u1", b"shape": [2, 2, 3]}
    for bad in (np.array([None]), np.array(["a"]), object()):
        with pytest.raises(DataError, match="message: expected"):
            pack({"bad": bad})


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert serve.main([str(tmp_path)]) == 64
    assert "is no run of this project" in capsys.readouterr().err
    assert serve.main([str(tmp_path), "--rename", "image"]) == 64
    assert "expected CLIENT=POLICY" in capsys.readouterr().err
    assert serve.main([str(tmp_path), "--config", "configs/qchunk/debug.py"]) == 64
    assert "expected a config of openpi_ript" in capsys.readouterr().err


def test_an_address_that_is_none_ends_with_a_message(
    acting: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(Policy, "from_checkpoint", lambda *_, **__: acting)
    for host, port in (("127.0.0.1", "99999"), ("192.0.2.1", "8000")):
        assert serve.main(["run", "--host", host, "--port", port]) == 64
        assert f"cannot listen at --host {host} --port {port}: " in capsys.readouterr().err


# websockets 17.1 deprecates the way in which openpi-client 0.1.0 connects.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_openpis_own_client(acting: Policy, port: int):
    websocket_client_policy = pytest.importorskip(
        "openpi_client.websocket_client_policy", reason="openpi-client is not installed"
    )
    its = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", port)
    assert its.get_server_metadata()["action_dim"] == 3
    answer = its.infer(acting.example() | {"guidance_scale": 1.0})
    assert answer["actions"].shape == (8, 3)
    with pytest.raises(RuntimeError, match="state: expected 2 numbers"):
        its.infer(acting.example() | {"state": np.zeros(9)})
    its._ws.close()
