"""Recordings that are made up, and what asks a page's server as a browser would."""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from chunkwise.data.images import encode_png
from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from chunkwise.view.server import PageServer
from chunkwise.view.source import EpisodeContent, EpisodeSummary

SIDE = 8


def frame_color(episode: int, frame: int) -> tuple[int, int, int]:
    """The colour of the only camera's image, another one for each frame."""
    return (frame % 251, (7 * episode + 40) % 256, frame // 251)


class Played:
    """Episodes of these lengths; frame t of episode e has the action (t, e) and an image of one colour."""

    title, kind = "a <b>folder</b>", "played"

    def __init__(self, lengths: tuple[int, ...] = (5, 30, 12), names: Mapping[int, str] | None = None) -> None:
        self.lengths = lengths
        self.names = [(names or {}).get(number, f"episode_{number}") for number in range(len(lengths))]
        self.opened: list[int] = []

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        for number, length in enumerate(self.lengths):
            wrong = Problem(file=self.names[number], key="action", row=3, expected="finite numbers", found="nan")
            yield (
                number,
                EpisodeSummary(
                    name=self.names[number],
                    task="lift" if number % 2 else "push",
                    success=(True, False, None)[number % 3],
                    length=length,
                    total_reward=float("nan") if number else 1.5,
                    problems=(wrong,) if number == 1 else (),
                ),
            )

    def open(self, episode: int) -> EpisodeContent:
        self.opened.append(episode)
        frames = np.arange(self.lengths[episode], dtype=np.float32)
        action = np.stack([frames, np.full_like(frames, episode)], axis=1)
        reward = np.where(frames == 2, np.inf, frames / 4)
        labels = {"action": ("left", "right")}
        return EpisodeContent(cameras=("front",), columns={"action": action, "reward": reward}, labels=labels, fps=20.0)

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        if frame >= self.lengths[episode]:
            raise DataError(f"{self.names[episode]}: expected {self.lengths[episode]} frames, found row {frame}")
        return encode_png(np.full((SIDE, SIDE, 3), frame_color(episode, frame), np.uint8))


def get(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content; `path` is taken as it is, and a header replaces that of the same name."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in ({"Host": f"127.0.0.1:{server.port}"} | names).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def get_json(server: PageServer, path: str) -> Any:
    """The tree behind the key."""
    status, _, content = get(server, f"/{server.key}/{path}")
    assert status == 200, content
    return json.loads(content)


def get_bytes(server: PageServer, path: str) -> bytes:
    """The content behind the key."""
    status, _, content = get(server, f"/{server.key}/{path}")
    assert status == 200, content
    return content
