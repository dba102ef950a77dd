"""The server, driven by a client that is written from the protocol's description, and by openpi's own."""

import contextlib
import errno
import importlib
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from chunkwise.errors import DataError
from chunkwise.policies import serve
from chunkwise.policies.access import Access
from chunkwise.policies.wire import pack, rename, unpack
from openpi_ript.policies.policy import Policy
from tests.chunkwise.policies.serving import client, read, running, wire
from tests.openpi_ript.serving import TOKEN, request, toy_policy

NAMES = {"observation/image": "image/base_0_rgb", "observation/wrist_image": "image/left_wrist_0_rgb"}


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    with toy_policy(tmp_path_factory.mktemp("serve")) as policy:
        yield policy


@pytest.fixture(scope="module")
def port(acting: Policy) -> Iterator[int]:
    with running(acting, names={}) as number:
        yield number


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


def test_actions_are_the_policys_and_a_request_may_name_its_scale(acting: Policy, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def act(requests: Any) -> list[np.ndarray]:
        asked.extend(request.inputs["scale"].tolist() for request in requests)
        return [np.full((request.rows, 8, 8), 2, np.float32) for request in requests]

    monkeypatch.setattr(acting, "act", act)
    expected = acting.finish(acting.prepare(acting.example()), np.full((1, 8, 8), 2, np.float32))["actions"]
    with running(acting) as port, client(port) as connection:
        connection.recv()
        asked.clear()
        scale = {b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}
        for extra in ({}, {"guidance_scale": 2.0}, {"guidance_scale": scale}):
            connection.send(request(acting, **extra))
            np.testing.assert_array_equal(read(connection.recv())["actions"], expected)
    assert asked == [[3.0], [2.0], [1.5]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"state": wire(np.zeros(5))}, "state: expected 2 numbers"),
        (
            {"state": wire(np.array([3e38, 0], np.float32))},
            "state: expected at most 1e+06 after normalising, found 3e+38",
        ),
        ({"state": wire(np.array([0, -np.inf]))}, "state: expected finite numbers, found -inf at entry 1"),
        ({"guidance_scale": "strong"}, "guidance_scale: expected a number, found 'strong'"),
        ({"guidance_scale": True}, "guidance_scale: expected a number, found True"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan; expected a number of 0 or above"),
        ({"guidance_scale": -1}, "guidance_scale is -1.0; expected a number of 0 or above"),
        ({"guidance_scale": wire(np.zeros(2))}, "guidance_scale: expected a number, found array([0., 0.])"),
        (
            {"state": wire(np.zeros((17, 2)))},
            "state: expected at most 16 rows in one request as --max-rows says, found 17",
        ),
        ({"prompt": None}, "prompt: expected text, found NoneType"),
    ],
)
def test_a_request_that_is_refused_gets_no_actions_and_the_next_one_its_own(
    acting: Policy, port: int, message: Any, expected: str
):
    with client(port) as connection:
        connection.recv()
        connection.send(request(acting))
        first = read(connection.recv())["actions"]
        connection.send(request(acting, **message))
        answer = connection.recv()
        assert isinstance(answer, str), "openpi's client takes text as an error"
        assert expected in answer
        connection.send(request(acting))
        later = read(connection.recv())["actions"]
    assert np.abs(later - first).max() > 1e-4, "its own noise"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"\xc1", "expected msgpack as openpi-client writes it"),
        (msgpack.packb([1, 2]), "expected a map, found list"),
        (msgpack.packb({"state": {**wire(np.zeros(2)), b"shape": [1 << 40]}}), "expected msgpack as openpi-client"),
        (msgpack.packb({"state": {**wire(np.zeros(1)), b"dtype": "|O"}}), "expected msgpack as openpi-client"),
        ("hello", "expected a binary frame, found text"),
    ],
)
def test_what_is_no_message_ends_its_connection_alone(acting: Policy, port: int, message: Any, expected: str):
    with client(port) as other:
        other.recv()
        with client(port) as connection:
            connection.recv()
            connection.send(message)
            answer = connection.recv()
            assert isinstance(answer, str), "openpi's client takes text as an error"
            assert expected in answer
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=30)
        other.send(request(acting))
        assert read(other.recv())["actions"].shape == (8, 3)


def test_health(port: int):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
        assert (answer.status, answer.read()) == (200, b"OK\n")


def test_clients_of_other_robots_work_by_renaming(acting: Policy):
    names = NAMES | {"observation/state": "state"}
    with running(acting, options={"guidance_scale": 1.0}, names=names) as port, client(port) as connection:
        connection.recv()
        example = acting.example()
        image, state = wire(example["image"]["base_0_rgb"]), wire(example["state"].astype(np.float64))
        sent = {"observation/image": image, "observation/wrist_image": image, "observation/state": state}
        connection.send(msgpack.packb(sent | {"prompt": "move"}) or b"")
        assert read(connection.recv())["actions"].shape == (8, 3)


def test_rename_moves_entries_and_names_what_is_missing():
    moved = rename({"observation/image": 1, "observation/wrist_image": 2, "prompt": "x"}, NAMES)
    assert moved == {"image": {"base_0_rgb": 1, "left_wrist_0_rgb": 2}, "prompt": "x"}
    with pytest.raises(DataError, match=r"expected the entries \['observation/wrist_image'\] as --rename says"):
        rename({"observation/image": 1}, NAMES)


def test_rename_finds_nested_entries_and_changes_nothing_that_it_was_given():
    """openpi's ALOHA client nests its images."""
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
    with pytest.raises(DataError, match="expected 'images/z' once, as --rename says, found it flat and nested"):
        rename({"images/z": 1, "images": {"z": 2}}, {"images/z": "image/z"})


def test_a_failure_of_the_server_itself_ends_one_connection_and_tells_its_client(
    acting: Policy, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def broken(*_: Any, **__: Any):
        raise MemoryError("no room in /secret/place")

    with client(port) as connection:
        connection.recv()
        with monkeypatch.context() as patch:
            patch.setattr(acting, "finish", broken)
            connection.send(request(acting))
            assert connection.recv() == "the server failed; its log says why (failure 1)"
        assert "MemoryError: no room in /secret/place" in capfd.readouterr().err
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=30)
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


def test_a_run_that_cannot_be_read_is_not_told_as_a_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "checkpoint")

    monkeypatch.setattr(serve, "load_policy", fails)
    assert serve.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "checkpoint" in said
    assert "cannot listen" not in said


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert serve.main([str(tmp_path)]) == 64
    assert "is no run of this project" in capsys.readouterr().err
    assert serve.main([str(tmp_path / "none")]) == 64
    assert "none: expected the folder of a run, found nothing (in " in capsys.readouterr().err
    assert serve.main([str(tmp_path), "--", "--guidance.scale", "3"]) == 64
    assert "-- --guidance.scale 3: expected --config FILE, whose fields these are" in capsys.readouterr().err
    assert serve.main([str(tmp_path), "--rename", "image"]) == 64
    assert "expected CLIENT=POLICY" in capsys.readouterr().err
    assert serve.main([str(tmp_path), "--config", "configs/qchunk/debug.py"]) == 64
    assert "a policy of qchunk is that of a run" in capsys.readouterr().err
    command = [
        str(tmp_path),
        "--config",
        "configs/openpi_ript/debug.py",
        "--port",
        "1",
        "--",
        "--tokenizer",
        "none.model",
    ]
    assert serve.main(command) == 65
    assert "expected" in capsys.readouterr().err
    assert serve.main([*command[:-2], "--tokeniser", "none.model"]) == 64
    assert "--tokeniser" in capsys.readouterr().err


def test_other_machines_are_listened_to_with_a_token_alone(
    acting: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("CHUNKWISE_TOKEN", raising=False)
    monkeypatch.setattr("chunkwise.policies.serve.load_policy", lambda *_, **__: acting)
    assert serve.main(["run", "--host", "0.0.0.0"]) == 64
    assert "--host 0.0.0.0 listens to other machines: expected a token" in capsys.readouterr().err
    assert serve.main(["run", "--host", "0.0.0.0", "--token", TOKEN, "--no-token"]) == 64
    assert "--no-token: expected no token, found one" in capsys.readouterr().err
    wrong = {
        "--max-clients": "0",
        "--max-rows": "-1",
        "--max-message-mib": "0",
        "--idle-timeout": "nan",
        "--batch-sizes": "0",
        "--guidance-scale": "nan",
    }
    for flag, value in wrong.items():
        assert serve.main(["run", flag, value]) == 64
        error = capsys.readouterr().err
        assert flag.removeprefix("--").replace("-", "_") in error.replace("-", "_"), error
    assert serve.main(["run", "--bounds", "refuse", "--bounds-margin", "-1"]) == 64
    assert "--bounds-margin is -1" in capsys.readouterr().err
    assert serve.main(["run", "--spec", "--bounds", "clip", "--bounds-margin", "-3"]) == 64
    said = capsys.readouterr()
    assert (said.out, "--bounds-margin is -3" in said.err) == ("", True)
    assert serve.main(["run", "--spec", "--bounds-margin", "0.2"]) == 64
    assert "--bounds-margin is 0.2, and nothing is bounded; expected --bounds refuse or" in capsys.readouterr().err
    acting.bounds = None
    assert serve.main(["run", "--spec", "--bounds", "clip"]) == 0
    stats = acting._stats["actions"]
    low = stats.q01[:3] - 0.5 * (stats.q99[:3] - stats.q01[:3])
    assert acting.bounds is not None
    np.testing.assert_allclose(acting.bounds.low, low)
    acting.bounds = None


def test_sigterm_stops_it_as_ctrl_c_does(acting: Policy, monkeypatch: pytest.MonkeyPatch):
    """Clients are told that it goes away, and the exit code is 0; also before it listens."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setattr("chunkwise.policies.serve.load_policy", lambda *_, **__: acting)
    codes: list[int] = []

    def connected() -> ClientConnection:
        for _ in range(300):
            with contextlib.suppress(OSError):
                return client(port)
            time.sleep(0.1)
        raise AssertionError("it never listens")

    def watch() -> None:
        with connected() as connection:
            connection.recv()
            os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(ConnectionClosed):
                connection.recv(timeout=30)
            codes.append(connection.protocol.close_code or 0)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        assert serve.main(["run", "--port", str(port), "--batch-sizes", "1"]) == 0
        watching.join(30)
        assert (codes, heard) == ([1001], [])
        monkeypatch.setattr(acting, "compile", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert serve.main(["run", "--port", str(port)]) == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_clients_are_told_the_servers_own_scale(acting: Policy):
    with running(acting, options={"guidance_scale": 2.0}) as port, client(port) as connection:
        assert read(connection.recv())["guidance_scale"] == 2.0
    with running(acting, options={"guidance_scale": None}) as port, client(port) as connection:
        assert read(connection.recv())["guidance_scale"] == acting.metadata["guidance_scale"] != 2.0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["a=state", "b=state"], "each of the policy's names once, found state twice"),
        (["a=state", "a=image/top"], "each of the client's names once, found a twice"),
        (["a=image/top", "b=image"], "an entry or what is inside of it, found image and image/top"),
    ],
)
def test_an_entry_is_renamed_once(pairs: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert serve.main(["run", *(word for pair in pairs for word in ("--rename", pair))]) == 64
    assert f"--rename: expected {message}" in capsys.readouterr().err


def test_an_entry_is_renamed_to_what_the_policy_reads(
    acting: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A misspelt camera was one that is off, for every client, without a word."""
    monkeypatch.setattr("chunkwise.policies.serve.load_policy", lambda *_, **__: acting)
    for pair in ("wrist=image/left_wrist_O_rgb", "task=promt", "qpos=stat", "a=state/b"):
        assert serve.main(["run", "--rename", pair, "--port", "99999"]) == 64
        said = capsys.readouterr().err
        assert f"found {pair.partition('=')[2]}" in said
        assert "image/left_wrist_0_rgb" in said
    for pair in ("wrist=image/left_wrist_0_rgb", "all=image", "task=prompt", "scale=guidance_scale"):
        assert serve.main(["run", "--rename", pair, "--port", "99999"]) == 64
        assert "cannot listen" in capsys.readouterr().err, "it got as far as its port"


def test_an_address_that_is_none_ends_with_a_message(
    acting: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("chunkwise.policies.serve.load_policy", lambda *_, **__: acting)
    for host, port, *more in (("127.0.0.1", "99999"), ("192.0.2.1", "8000", "--no-token")):
        assert serve.main(["run", "--host", host, "--port", port, "--batch-sizes", "1", *more]) == 64
        said = capsys.readouterr()
        assert f"cannot listen at --host {host} --port {port}: " in said.err
        assert re.fullmatch(r"compiling for 1 rows\ncompiled in \d+\.\d s\n", said.out)


# websockets 17.1 deprecates the way in which openpi-client 0.1.0 connects.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_openpis_own_client(acting: Policy, port: int):
    websocket_client_policy = importlib.import_module("openpi_client.websocket_client_policy")
    its = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", port)
    assert its.get_server_metadata()["action_dim"] == 3
    answer = its.infer(acting.example() | {"guidance_scale": 1.0})
    assert answer["actions"].shape == (8, 3)
    with pytest.raises(RuntimeError, match="state: expected 2 numbers"):
        its.infer(acting.example() | {"state": np.zeros(9)})
    assert its.infer(acting.example())["actions"].shape == (8, 3)
    its._ws.close()


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_openpis_own_client_with_its_api_key(acting: Policy):
    websocket_client_policy = importlib.import_module("openpi_client.websocket_client_policy")
    with running(acting, access=Access(token=TOKEN)) as port:
        its = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", port, api_key=TOKEN)
        assert its.infer(acting.example())["actions"].shape == (8, 3)
        its._ws.close()
        with pytest.raises(InvalidStatus, match="401"):
            websocket_client_policy.WebsocketClientPolicy("127.0.0.1", port, api_key="another")
