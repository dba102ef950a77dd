"""The order of the calls that make files durable, as tests see it."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest


class Calls:
    """Records fsync, replace, rename and mkdir in their order, with names relative to a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._root, self._lock = root, threading.Lock()
        for name in ("replace", "rename", "mkdir"):
            monkeypatch.setattr(os, name, self._traced(name, getattr(os, name)))
        fsync = os.fsync

        def traced(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            size = "" if os.path.isdir(path) else f" {os.fstat(descriptor).st_size} bytes"
            fsync(descriptor)
            self._note(f"fsync {self._name(path)}{size}")

        monkeypatch.setattr(os, "fsync", traced)

    def _traced(self, name: str, call: Any) -> Any:
        def traced(*paths: Any, **options: Any) -> None:
            call(*paths, **options)
            self._note(" ".join([name, *(self._name(path) for path in paths if not isinstance(path, int))]))

        return traced

    def _note(self, line: str) -> None:
        with self._lock:
            self.seen.append(line)

    def _name(self, path: str | os.PathLike[str]) -> str:
        name = os.path.relpath(path, self._root)
        return ".".join(["SCRATCH" if part[:1].isdigit() and "-" in part else part for part in name.split(".")]) or "."
