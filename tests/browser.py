"""A real Chromium without a window, driven over its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

SECONDS = 30
"""After which what is waited for is held not to come."""
KEYS = {
    " ": "Space",
    "/": "Slash",
    "?": "Slash",
    "ArrowLeft": "",
    "ArrowRight": "",
    "Home": "",
    "End": "",
    "Escape": "",
}


def find_chromium() -> str | None:
    """Where it is installed, if it is."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="no Chromium: a browser is no package of Python")
"""Of a test that opens a page; what pages hold, and what servers answer, is tested without one."""


class Tab:
    """One page, and what it complained of."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors: list[str] = []
        """Exceptions of its scripts, and what its policy forbade."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Asks the browser, and notes what it says in between."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            found = json.loads(self._socket.recv(SECONDS))
            if found.get("id") == number:
                assert "error" not in found, found
                return found["result"]
            if found["method"] == "Runtime.exceptionThrown":
                details = found["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            if found["method"] == "Log.entryAdded" and found["params"]["entry"]["source"] in ("security", "javascript"):
                self.errors.append(found["params"]["entry"]["text"])

    def evaluate(self, script: str) -> Any:
        """What an expression gives, once it is resolved."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """What an expression gives once that is true."""
        end = time.monotonic() + SECONDS
        while not (found := self.evaluate(script)):
            assert time.monotonic() < end, f"{script} stayed {found!r}; {self.errors}"
            time.sleep(0.02)
        return found

    def go(self, url: str) -> None:
        """Opens an address."""
        self.call("Page.navigate", url=url)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key as a person would."""
        text = key if len(key) == 1 else ""
        code = KEYS.get(key) or (f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else key)
        common = {"key": key, "code": code, "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Writes into what has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str, share: float = 0.5) -> None:
        """Clicks at a share of an element's width, in the middle of its height."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"(() => {{const b = {box}; return [b.x + {share} * b.width, b.y + b.height / 2]}})()")
        for kind in ("mousePressed", "mouseReleased"):
            buttons = int(kind == "mousePressed")
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def scheme(self, name: str) -> None:
        """Has the person prefer "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, file: Path) -> None:
        """Writes a PNG of what is seen."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browsing(folder: Path, *, size: tuple[int, int] = (1280, 860)) -> Iterator[Tab]:
    """Starts Chromium with an empty profile in a folder, and ends it."""
    chromium = find_chromium()
    assert chromium is not None
    words = [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "--no-first-run",
        "--disable-gpu",
    ]
    words += ["--disable-dev-shm-usage", "--disable-background-networking", f"--window-size={size[0]},{size[1]}"]
    words += ["--hide-scrollbars", "--force-device-scale-factor=1"]
    words += ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses root
    process = subprocess.Popen([chromium, *words, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        announced, end = folder / "DevToolsActivePort", time.monotonic() + SECONDS
        while not (announced.is_file() and "\n" in (text := announced.read_text())):
            assert process.poll() is None, f"{chromium} ended with {process.returncode}"
            assert time.monotonic() < end, f"{chromium} does not begin"
            time.sleep(0.02)
        with urllib.request.urlopen(f"http://127.0.0.1:{text.split()[0]}/json/list", timeout=SECONDS) as answer:
            (page,) = [one for one in json.load(answer) if one["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
            tab = Tab(socket)
            tab.call(
                "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
            )
            yield tab
    finally:
        process.terminate()
        process.wait(SECONDS)
