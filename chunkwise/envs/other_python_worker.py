"""The other side of other_python.py: makes one environment in another interpreter, and does what it is told.

It is run as a file, so that nothing else of this project is on that interpreter's path, and needs Python 3.8, numpy,
and what the environment itself imports. A message is a header (4 bytes, then the lengths of both parts, little-endian
32 and 64 bits), JSON, and the arrays as an .npz file; nothing is pickled.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import queue
import signal
import struct
import sys
import threading
import time
import traceback
import types
from typing import Any

HEADER = struct.Struct("<4sIQ")
MAGIC = b"cwe1"
MAX_WORDS = 1 << 20
"""Bytes of a message's JSON."""
MAX_ARRAYS = 1 << 30
"""Bytes of a message's arrays."""
KINDS = "biuf"
"""Of numpy's dtypes, those that cross: numbers."""
METHODS = ("reset", "state", "clip", "step", "images", "render", "close")
SIZES = ("fps", "action_dim")


class BrokenMessageError(Exception):
    """What was read is no message of this protocol, or ends within one."""


def write(file: Any, words: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Writes one message; `arrays` holds numpy arrays of numbers by name."""
    content = b""
    if arrays:
        import numpy as np

        packed = io.BytesIO()
        np.savez(packed, **arrays)
        content = packed.getvalue()
    text = json.dumps(words).encode()
    file.write(HEADER.pack(MAGIC, len(text), len(content)) + text + content)
    file.flush()


def read(file: Any) -> tuple[str, bytes]:
    """Reads one message; returns its JSON and its .npz file, empty without arrays.

    Raises:
      EOFError: The other side is gone.
      BrokenMessageError: It begins or ends as no message does, or is longer than one may be.
    """
    header = file.read(HEADER.size)
    if not header:
        raise EOFError
    if len(header) < HEADER.size or header[:4] != MAGIC:
        raise BrokenMessageError(f"expected the begin of a message, found {header!r}")
    _, words, arrays = HEADER.unpack(header)
    if words > MAX_WORDS or arrays > MAX_ARRAYS:
        raise BrokenMessageError(
            f"expected at most {MAX_WORDS} bytes of JSON and {MAX_ARRAYS} of arrays, found {words} and {arrays}"
        )
    content = file.read(words + arrays)
    if len(content) < words + arrays:
        raise BrokenMessageError(f"expected a message of {words + arrays} bytes, found {len(content)}")
    return content[:words].decode(), content[words:]


def plain(what: str, found: Any) -> dict[str, Any]:
    """Returns arrays by name, of numbers. Raises TypeError for whatever else an environment shows."""
    import numpy as np

    if not isinstance(found, dict):
        raise TypeError(f"{what} gave {type(found).__name__}; expected a dict of arrays by name")
    arrays = {name: np.asarray(value) for name, value in found.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or array.dtype.kind not in KINDS:
            raise TypeError(f"{what} shows {name!r} of dtype {array.dtype}; expected names, and arrays of numbers")
    return arrays


class Server:
    """One environment, and the script of its episode."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Makes it. Raises whatever its factory raises, ImportError where it cannot be imported."""
        module, _, attribute = spec["suite"].partition(":")
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()}
        self.env = getattr(importlib.import_module(module), attribute)(types.SimpleNamespace(**given))
        missing = [name for name in (*METHODS, *SIZES) if not hasattr(self.env, name)]
        if missing:
            raise TypeError(
                f"{spec['suite']}: expected an environment, found {type(self.env).__name__} without "
                f"{', '.join(missing)}; chunkwise/envs/environment.py says what each is"
            )
        self.script: Any = None

    def describe(self) -> dict[str, Any]:
        """Returns what is asked once."""
        size = getattr(self.env, "video_size", None)
        described = {"fps": float(self.env.fps), "action_dim": int(self.env.action_dim)}
        described["expert"] = hasattr(self.env, "expert")
        return described if size is None else dict(described, video_size=[int(side) for side in size])

    def answer(self, words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Does what was asked; returns numbers and arrays."""
        what = words["call"]
        if what == "reset":
            return {}, plain("reset()", self.env.reset(words["seed"]))
        if what == "step":
            return self._step(arrays["action"])
        if what == "images":
            return {}, plain("images()", self.env.images())
        if what == "render":
            return {}, plain("render()", {"image": self.env.render(words["height"], words["width"])})
        if what == "state":
            return {}, plain("state()", {"state": self.env.state()})
        if what == "clip":
            return {}, plain("clip()", {"action": self.env.clip(arrays["action"])})
        if what == "expert":
            self.script = self.env.expert()
            return {}, {}
        if what == "act":
            return {}, plain("the script of expert()", {"action": self.script(arrays)})
        raise ValueError(f"unknown request {what!r}")

    def _step(self, action: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        step = self.env.step(action)
        missing = [name for name in ("observation", "reward", "success") if not hasattr(step, name)]
        if missing:
            raise TypeError(
                f"step() gave a {type(step).__name__} without {', '.join(missing)}; expected an object with "
                "observation, reward and success, for example types.SimpleNamespace(...)"
            )
        ends = {name: bool(getattr(step, name, False)) for name in ("success", "terminated", "truncated")}
        return dict(ends, reward=float(step.reward)), plain("step()", step.observation)


def told(error: BaseException) -> dict[str, Any]:
    """Returns an error as it is sent: type and message, and the lines of code that led to it, but for those here."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    said = " ".join(str(error).split())
    lines = [f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    return {"error": type(error).__name__, "said": said[:4000], "lines": lines[-30:]}


def main() -> None:
    """Serves stdin and stdout until stdin ends, because the other side closed it or died."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the other side decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a simulator prints is no answer
    # Else what it prints comes when this process ends, or is lost if it is killed.
    getattr(sys.stdout, "reconfigure")(line_buffering=True)  # noqa: B009
    asked = queue.Queue()
    threading.Thread(target=_listen, args=(os.fdopen(os.dup(0), "rb"), asked), daemon=True).start()
    server = None
    while True:
        text, content = asked.get()
        try:
            import numpy as np

            words = json.loads(text)
            if server is None:
                server = Server(words["spec"])
                found, shown = dict(server.describe(), numpy=np.__version__), {}
            else:
                arrays = dict(np.load(io.BytesIO(content), allow_pickle=False)) if content else {}
                found, shown = server.answer(words, arrays)
        except (Exception, SystemExit) as error:  # whatever a simulator raises
            write(answers, dict(told(error), python=sys.version.split()[0]))
        else:
            write(answers, dict(found, python=sys.version.split()[0], cpu_s=time.process_time()), shown)


def _listen(requests: Any, asked: Any) -> None:
    """Reads requests, in a thread: so that the process ends with the other side, even within a long step."""
    try:
        while True:
            asked.put(read(requests))
    except (EOFError, BrokenMessageError):
        os._exit(0)
