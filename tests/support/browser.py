"""A real browser for tests of pages: Debian's chromium, headless, driven over its debugging pipe.

Chrome's DevTools protocol over two file descriptors: JSON messages that end in a NUL byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE = 60.0  # seconds for a page to load, on a busy machine
_STATE = "[document.readyState, location.href].join('|')"
# The protocol reads descriptor 3 and writes descriptor 4.
_LAUNCH = """
import fcntl, os, sys
down, up = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3])
os.dup2(down, 3)
os.dup2(up, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab; see `browser`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._number, self._rest = to_browser, from_browser, 0, b""
        self.requests: list[str] = []  # addresses that pages asked for, themselves among them
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._call("Page.enable", {})
        self._call("Network.enable", {})

    def open(self, page: Path, width: int, *, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Loads a page at a width, in CSS pixels, and waits until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        self._call("Page.navigate", {"url": "about:blank"})
        self.requests.clear()
        self._call("Page.navigate", {"url": page.resolve().as_uri()})
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            ready, where = self.value(_STATE).split("|", 1)
            if where.startswith("file:") and ready == "complete":
                return
            time.sleep(0.05)
        raise AssertionError(f"{page.name} was not loaded within {_PATIENCE:g} s")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses a key, such as ("Tab", 9) or ("Enter", 13, "\\r")."""
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self._call("Input.dispatchKeyEvent", {"type": "keyDown" if text else "rawKeyDown", **facts})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **facts})

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """What is seen of the page, as a PNG file."""
        found = self._call("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None) is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser closed its pipe"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts chromium without a display, without a network and with an empty profile."""
    assert CHROMIUM is not None
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(down_read), str(up_write), CHROMIUM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
             "--hide-scrollbars", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
             "--disable-dev-shm-usage"],
            pass_fds=(down_read, up_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(down_read)
        os.close(up_write)
        try:
            yield Browser(down_write, up_read)
        finally:
            os.close(down_write)
            process.terminate()
            process.wait(timeout=20)
            os.close(up_read)
