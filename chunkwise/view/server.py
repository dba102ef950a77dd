"""Serves a dataset's page to browsers of this machine.

    GET /KEY/                                 the page; /KEY/view.js, /KEY/chunk.js, /KEY/view.css
    GET /KEY/dataset                          what is shown
    GET /KEY/episodes/AFTER                   episodes that changed after a change of this number
    GET /KEY/episode/E                        cameras, columns and problems of an episode
    GET /KEY/episode/E/column/C               32-bit little-endian floats, row after row
    GET /KEY/episode/E/image/C/FRAME          JPEG or PNG
    GET /KEY/episode/E/window/FRAME           what training draws at this start
    GET /KEY/episode/E/window/FRAME/C         PNG of an image as the network gets it
    GET /KEY/episode/E/chunk/FRAME            what the policy would do

KEY is drawn at the start. Other users of the machine do not know it, nor does a page of elsewhere, whose images and
scripts a browser would fetch from here. Paths are matched whole and hold numbers; none leads to a file.
"""

import functools
import hmac
import http
import importlib.resources
import json
import math
import re
import secrets
import socketserver
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from websockets.datastructures import Headers

from chunkwise.data.images import encode_png
from chunkwise.errors import RunError, one_line
from chunkwise.policies.access import Access
from chunkwise.printable import printable
from chunkwise.view.images import media_type
from chunkwise.view.source import Chunk, EpisodeContent, View, Window
from chunkwise.view.survey import Survey

HOST = "127.0.0.1"
FILES = {
    "": ("view.html", "text/html; charset=utf-8"),
    "view.js": ("view.js", "text/javascript; charset=utf-8"),
    "chunk.js": ("chunk.js", "text/javascript; charset=utf-8"),
    "view.css": ("view.css", "text/css; charset=utf-8"),
}
"""Of the page, by path."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KEPT = 4
"""Episodes whose columns are kept: that shown, and those around it."""
IDLE_S = 60
"""Seconds after which a connection without a request is closed."""

Answer = tuple[str, bytes]


class Refusal(Exception):
    """A request that is not answered, with the status."""

    def __init__(self, status: http.HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class PageServer(ThreadingHTTPServer):
    """Listens to this machine alone, a thread a connection."""

    daemon_threads = True

    def __init__(self, view: View, port: int = 0) -> None:
        """Listens at a port, 0 for any that is free, and begins to look at the episodes.

        Raises:
          OSError: The port is taken.
        """
        super().__init__((HOST, port), _Handler)
        self.port: int = self.server_address[1]
        self.key = secrets.token_urlsafe(16)
        self.url = f"http://{HOST}:{self.port}/{self.key}/"
        names = (HOST, "localhost")
        self.access = Access(origins=frozenset(f"http://{name}:{self.port}" for name in names))
        self.view, self.survey = view, Survey(view.recordings)
        self.open = functools.lru_cache(KEPT)(view.recordings.open)
        self.window: Callable[[int, int], Window] | None = None
        if view.training is not None:
            self.window = functools.lru_cache(KEPT)(view.training.window)
        self.chunk: Callable[[int, int], Chunk] | None = None
        if view.policy is not None:
            self.chunk = functools.lru_cache(KEPT)(view.policy.chunk)
        self.survey.start()

    def server_bind(self) -> None:
        """Binds without http.server's question for this machine's name, which may wait for a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a browser that left; else what http.server says."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def answer(self, path: str) -> Answer:
        """Returns content type and content.

        Args:
          path: Behind the key, as it came.

        Raises:
          Refusal: There is no such thing.
          RunError: It cannot be read.
        """
        if path in FILES:
            name, kind = FILES[path]
            return kind, importlib.resources.files("chunkwise.view").joinpath(name).read_bytes()
        if path == "dataset":
            return _json(self._dataset())
        for pattern, method in _ROUTES.items():
            if found := re.fullmatch(pattern, path, re.ASCII):
                return method(self, *(int(digits) for digits in found.groups()))
        raise Refusal(http.HTTPStatus.NOT_FOUND, "there is no such page")

    def _dataset(self) -> dict[str, Any]:
        recordings, training, policy = self.view.recordings, self.view.training, self.view.policy
        return {
            "title": printable(recordings.title),
            "kind": printable(recordings.kind),
            "training": None if training is None else printable(training.name),
            "policy": None if policy is None else printable(policy.name),
        }

    def _episodes(self, after: int) -> Answer:
        return _json(self.survey.since(after))

    def _episode(self, episode: int) -> Answer:
        content = self._content(episode)
        problems = [*self.survey.summary(episode).problems, *content.problems]
        columns = []
        for name, x in content.columns.items():
            width = 1 if x.ndim == 1 else x.shape[1]
            labels = [printable(label) for label in content.labels.get(name, ())]
            columns.append({"name": printable(name), "rows": len(x), "width": width, "labels": labels})
        return _json(
            {
                "name": printable(self.view.recordings.names[episode]),
                "cameras": [printable(name) for name in content.cameras],
                "columns": columns,
                "fps": content.fps,
                "times": None if content.times is None else content.times.tolist(),
                "frames": content.frames,
                "notes": [printable(note) for note in content.notes],
                "problems": [[str(problem), problem.row] for problem in problems],
            }
        )

    def _column(self, episode: int, column: int) -> Answer:
        columns = list(self._content(episode).columns.values())
        with np.errstate(over="ignore"):  # beyond float32 is Inf, which the page shows as such
            x = _at(columns, column, "column").astype("<f4")
        return "application/octet-stream", x.tobytes()

    def _image(self, episode: int, camera: int, frame: int) -> Answer:
        name = _at(self._content(episode).cameras, camera, "camera")
        return _image(self.view.recordings.image(episode, name, frame))

    def _window(self, episode: int, frame: int) -> Answer:
        window = self._drawn(episode, frame)
        return _json(
            {
                "recorded": _plain(window.recorded),
                "over": printable(window.over),
                "valid": _plain(window.valid),
                "in_plane": window.in_plane,
                "arrays": {printable(name): _plain(x) for name, x in window.arrays.items()},
                "per_step": [printable(name) for name in window.per_step],
                "images": [[printable(name), *image.shape[:2]] for name, image in window.images.items()],
                "notes": [printable(note) for note in window.notes],
            }
        )

    def _window_image(self, episode: int, frame: int, image: int) -> Answer:
        return _image(encode_png(_at(list(self._drawn(episode, frame).images.values()), image, "image")))

    def _chunk(self, episode: int, frame: int) -> Answer:
        if self.chunk is None:
            raise Refusal(http.HTTPStatus.NOT_FOUND, "there is no policy: --policy RUN shows one")
        self._content(episode)
        chunk = self.chunk(episode, frame)
        return _json(
            {
                "actions": _plain(chunk.actions),
                "over": printable(chunk.over),
                "recorded": _plain(chunk.recorded),
                "in_plane": chunk.in_plane,
                "notes": [printable(note) for note in chunk.notes],
            }
        )

    def _content(self, episode: int) -> EpisodeContent:
        _at(self.view.recordings.names, episode, "episode")
        return self.open(episode)

    def _drawn(self, episode: int, frame: int) -> Window:
        if self.window is None:
            raise Refusal(http.HTTPStatus.NOT_FOUND, "there is no config: --config NAME says how training reads this")
        self._content(episode)
        return self.window(episode, frame)


_NUMBER = r"(\d{1,9})"
_ROUTES: Mapping[str, Callable[..., Answer]] = {
    rf"episodes/{_NUMBER}": PageServer._episodes,
    rf"episode/{_NUMBER}": PageServer._episode,
    rf"episode/{_NUMBER}/column/{_NUMBER}": PageServer._column,
    rf"episode/{_NUMBER}/image/{_NUMBER}/{_NUMBER}": PageServer._image,
    rf"episode/{_NUMBER}/window/{_NUMBER}": PageServer._window,
    rf"episode/{_NUMBER}/window/{_NUMBER}/{_NUMBER}": PageServer._window_image,
    rf"episode/{_NUMBER}/chunk/{_NUMBER}": PageServer._chunk,
}


class _Handler(BaseHTTPRequestHandler):
    """Answers GET; BaseHTTPRequestHandler refuses other methods with 501."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "chunkwise"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        try:
            self._send(http.HTTPStatus.OK, *self.server.answer(self._path()))
        except Refusal as refusal:
            self._refuse(refusal.status, refusal.why)
        except RunError as error:
            self._refuse(http.HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except ConnectionError:
            raise
        except Exception as error:  # what a reader met that it has no words for; the page says it, the server goes on
            self._refuse(http.HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {one_line(error)}")

    def _path(self) -> str:
        """The path behind the key. Raises Refusal for a page of elsewhere, and for who does not know the key."""
        refused = self.server.access.refusal(Headers(self.headers.items()))
        if refused is not None:
            here = f"a request of the page itself, to {HOST}:{self.server.port} or localhost:{self.server.port}"
            raise Refusal(refused[0], f"expected {here}, found another Host or Origin")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise Refusal(http.HTTPStatus.FORBIDDEN, "expected a request of this page, found one of another site")
        key, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(key.encode(), self.server.key.encode()):
            raise Refusal(http.HTTPStatus.NOT_FOUND, "expected the address that `chunkwise view` printed")
        return path

    def _refuse(self, status: http.HTTPStatus, why: str) -> None:
        self._send(status, "text/plain; charset=utf-8", why.encode("utf-8", "replace"))

    def _send(self, status: http.HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the address with the key would be in each line."""


def _at(values: Any, place: int, what: str) -> Any:
    if place >= len(values):
        raise Refusal(http.HTTPStatus.NOT_FOUND, f"there is no {what} {place}, of {len(values)}")
    return values[place]


def _image(content: bytes) -> Answer:
    return media_type(content), content


def _json(tree: Any) -> Answer:
    return "application/json", json.dumps(tree, allow_nan=False).encode()


def _plain(x: np.ndarray) -> Any:
    """Lists of numbers and bools; numbers that JSON has not are words."""
    if x.ndim:
        return [_plain(np.asarray(one)) for one in x]
    value = x.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
