"""The server of a page: who is answered, with what, and that no path leads to a file."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from chunkwise.errors import ConfigError
from chunkwise.view.command import serve
from chunkwise.view.server import PageServer
from chunkwise.view.source import View
from chunkwise.view.survey import Survey
from tests.chunkwise.view.played import SIDE, Played, frame_color, get, get_bytes, get_json

PAGE = Path(__file__).parents[3] / "chunkwise/view"


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(View(recordings=Played())) as made:
        made.survey.wait()
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


def test_the_page_and_its_headers(server: PageServer):
    for path, name, kind in (
        ("", "view.html", "text/html"),
        ("view.js", "view.js", "text/javascript"),
        ("chunk.js", "chunk.js", "text/javascript"),
        ("view.css", "view.css", "text/css"),
    ):
        status, headers, content = get(server, f"/{server.key}/{path}")
        assert (status, content) == (200, (PAGE / name).read_bytes())
        assert headers["content-type"].startswith(kind)
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_it_listens_to_this_machine_alone(server: PageServer):
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:PORT"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:PORT"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://127.0.0.1:PORT"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_pages_of_elsewhere_are_refused(server: PageServer, headers: dict[str, str], status: int):
    sent = {name: value.replace("PORT", str(server.port)) for name, value in headers.items()}
    found, _, content = get(server, f"/{server.key}/dataset", **sent)
    assert found == status
    assert (b"a <b>folder</b>" in content) == (status == 200)


def test_who_does_not_know_the_key_learns_nothing(server: PageServer):
    for path in (
        "/",
        "/dataset",
        f"/{server.key}",
        f"/{server.key}x/dataset",
        f"/{server.key[:-1]}/dataset",
        "//dataset",
    ):
        status, _, content = get(server, path)
        assert status == 404
        assert b"folder" not in content
    assert len(server.key) >= 20
    assert get(server, f"/{server.key}/dataset")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "%2e%2e/server.py",
        "server.py",
        "view.html",
        "/etc/passwd",
        "episode/0/../1",
        "episode/-1",
        "episode/0/image/0/-1",
        "episode/0/image/0/1/2",
        "episode/9999999999",
        "episode/0/image/front/1",
        "episode/3",
        "episode/0/column/2",
        "episode/0/image/1/0",
        "episode/0?x=1",
        "episode/0/window/0",
        "episode/0/chunk/0",
        "static/",
    ],
)
def test_no_other_path_leads_anywhere(server: PageServer, path: str):
    status, _, content = get(server, f"/{server.key}/{path}")
    assert status == 404
    assert b"import" not in content
    assert b"root:" not in content


def test_other_methods_are_refused(server: PageServer):
    assert get(server, f"/{server.key}/dataset", "POST")[0] == 501
    assert get(server, f"/{server.key}/dataset", "OPTIONS")[0] == 501


def test_an_episode_and_its_columns(server: PageServer):
    found = get_json(server, "episode/1")
    assert (found["name"], found["cameras"], found["fps"]) == ("episode_1", ["front"], 20.0)
    assert found["columns"] == [
        {"name": "action", "rows": 30, "width": 2, "labels": ["left", "right"]},
        {"name": "reward", "rows": 30, "width": 1, "labels": []},
    ]
    assert found["problems"] == [["episode_1: action, row 3: expected finite numbers, found nan", 3]]
    action = np.frombuffer(get_bytes(server, "episode/1/column/0"), "<f4").reshape(30, 2)
    np.testing.assert_array_equal(action, np.stack([np.arange(30), np.ones(30)], 1))
    reward = np.frombuffer(get_bytes(server, "episode/1/column/1"), "<f4")
    np.testing.assert_array_equal(reward, [np.inf if t == 2 else t / 4 for t in range(30)])


def test_an_episode_is_read_once_for_all_its_columns(server: PageServer):
    for path in ("episode/2", "episode/2/column/0", "episode/2/column/1", "episode/2/image/0/3"):
        get_bytes(server, path)
    recordings = server.view.recordings
    assert isinstance(recordings, Played)
    assert recordings.opened == [2]


@pytest.mark.parametrize(("episode", "frame"), [(0, 0), (1, 29), (2, 7)])
def test_an_image_is_that_of_its_frame(server: PageServer, episode: int, frame: int):
    _, headers, content = get(server, f"/{server.key}/episode/{episode}/image/0/{frame}")
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert headers["content-type"] == "image/png"
    np.testing.assert_array_equal(image[..., ::-1], np.full((SIDE, SIDE, 3), frame_color(episode, frame)))


def test_what_a_reader_refuses_is_said_as_plain_text(server: PageServer):
    status, headers, content = get(server, f"/{server.key}/episode/0/image/0/5")
    assert (status, headers["content-type"]) == (422, "text/plain; charset=utf-8")
    assert content == b"episode_0: expected 5 frames, found row 5"


def test_what_is_no_image_is_not_sent(server: PageServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Played, "image", lambda *_: b"<svg onload='alert(1)'>")
    status, headers, content = get(server, f"/{server.key}/episode/0/image/0/0")
    assert (status, headers["content-type"]) == (422, "text/plain; charset=utf-8")
    assert b"expected a JPEG or PNG" in content


def test_the_list_has_all_and_then_what_changed():
    class Slow(Played):
        def examine(self):
            first, second, third = list(super().examine())
            yield first
            going.wait()
            yield second
            yield third
            yield 0, first[1]

    going = threading.Event()
    survey = Survey(Slow())
    began = survey.since(0)
    assert [row[:5] for row in began["episodes"]] == [[n, f"episode_{n}", "", None, None] for n in range(3)]
    assert not began["done"]
    survey.start()
    while (found := survey.since(began["number"]))["number"] == began["number"]:
        pass
    assert found["episodes"] == [[0, "episode_0", "push", True, 5, 1.5, "", None, "", []]]
    going.set()
    survey.wait()
    rest = survey.since(found["number"])
    assert sorted(row[0] for row in rest["episodes"]) == [0, 1, 2]
    assert rest["done"]
    problem = ["episode_1: action, row 3: expected finite numbers, found nan", 3]
    assert survey.since(0)["episodes"][1] == [1, "episode_1", "lift", False, 30, None, "", None, "", [problem]]
    assert survey.since(rest["number"])["episodes"] == []


@pytest.mark.parametrize("fault", [OSError("the disk is gone"), KeyError("x")])
def test_what_ends_the_survey_is_said(fault: Exception):
    class Broken(Played):
        def examine(self):
            yield next(super().examine())
            raise fault

    survey = Survey(Broken())
    survey.start()
    survey.wait()
    found = survey.since(0)
    assert found["done"]
    assert re.fullmatch(r"OSError: the disk is gone|KeyError: 'x'", found["error"])
    assert found["episodes"][0][4] == 5


def test_a_port_that_is_taken_is_said(server: PageServer):
    with pytest.raises(ConfigError, match=f"--port {server.port}: expected a port that is free"):
        serve(View(recordings=Played()), server.port)
    with pytest.raises(ConfigError, match="--port 70000: expected a port"):
        serve(View(recordings=Played()), 70000)
