"""A headless browser, driven over WebDriver, which is HTTP with JSON.

It needs Debian's packages `chromium` and `chromium-driver`, and no packages from PyPI.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from server import free_ports, wait_until

SECONDS_MAX = 120.0
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)

# Keys by name, encoded as in WebDriver.
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "Space": " ",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Shift": "\ue008",
    "Control": "\ue009",
}


#: Where Debian has the program itself. `chromium` is a script around it that calls others.
DEBIAN_PROGRAM = pathlib.Path("/usr/lib/chromium/chromium")


def is_installed() -> bool:
    """Returns true if this machine has the browser."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


def _program() -> str:
    if DEBIAN_PROGRAM.is_file():
        return str(DEBIAN_PROGRAM)
    return shutil.which("chromium") or "chromium"


class Browser:
    """A browser session."""

    def __init__(self, port: int, profile: pathlib.Path) -> None:
        self._port = port
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        options = {"args": flags, "binary": _program()}
        capabilities = {
            "goog:chromeOptions": options,
            # It doesn't wait until every part is loaded, because a page with a stream never ends.
            "pageLoadStrategy": "eager",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        wanted = {"capabilities": {"alwaysMatch": capabilities}}
        self._path = f"/session/{self._call('POST', '/session', wanted)['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS_MAX)
        with contextlib.closing(connection):
            text = json.dumps(body) if method == "POST" else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{value['error']}: {value['message']}")
        return value

    def _in_session(self, path: str, body: Any = None, method: str = "POST") -> Any:
        return self._call(method, self._path + path, {} if body is None else body)

    def open(self, url: str) -> None:
        """Navigates to a page, and waits until it is loaded."""
        self._in_session("/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The return value of a script in the page."""
        return self._in_session("/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """The value that a script in the page passes to the function after its arguments."""
        return self._in_session("/execute/async", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str, what: str = "") -> Any:
        """Waits until a script returns a value."""
        seen: list[Any] = []

        def look() -> bool:
            seen[:] = [self.run(script)]
            return bool(seen[0])

        wait_until(look, SECONDS_MAX, what or script)
        return seen[0]

    def press(self, *names: str) -> None:
        """Presses keys together, or types a text."""
        held = [KEYS.get(name, name) for name in names]
        downs = [{"type": "keyDown", "value": key} for key in held]
        ups = [{"type": "keyUp", "value": key} for key in reversed(held)]
        self._keys(downs + ups)

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        steps = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._keys(steps)

    def _keys(self, steps: list[dict[str, str]]) -> None:
        source = {"type": "key", "id": "keyboard", "actions": steps}
        self._in_session("/actions", {"actions": [source]})

    def tab_to(self, is_there: str) -> None:
        """Presses the tab key until the condition is true of the focused element, `it`."""
        for _ in range(80):
            if self.run(f"const it = document.activeElement; return Boolean({is_there})"):
                return
            self.press("Tab")
        raise AssertionError(f"the focus never gets to {is_there}")

    def tool(self, command: str, **parameters: Any) -> Any:
        """Sends a command of the browser's developer tools."""
        body = {"cmd": command, "params": parameters}
        return self._in_session("/goog/cdp/execute", body)

    def prefer(self, **features: str) -> None:
        """Makes the browser prefer these values of media features, and no motion."""
        features = {"prefers_reduced_motion": "reduce", **features}
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.tool("Emulation.setEmulatedMedia", features=named)

    def resize(self, width: int, height: int) -> None:
        """Gives the page this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tool("Emulation.setDeviceMetricsOverride", **metrics)

    def screenshot(self, file: pathlib.Path) -> None:
        """Writes a screenshot to a PNG file."""
        data = self._in_session("/screenshot", method="GET")
        file.write_bytes(base64.b64decode(data))

    def log(self, kind: str) -> list[dict[str, Any]]:
        """The log entries since the last call, from `browser` or `performance`."""
        return self._in_session("/se/log", {"type": kind})

    def requested(self) -> list[str]:
        """The addresses that the page has requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def close(self) -> None:
        """Ends the session."""
        self._in_session("", method="DELETE")


@contextlib.contextmanager
def browser(folder: pathlib.Path) -> Iterator[Browser]:
    """A browser with a new profile in this directory."""
    [port] = free_ports(1)
    profile = folder / "profile"
    command = ["chromedriver", f"--port={port}", f"--log-path={folder / 'driver.log'}"]
    environment = {**os.environ, "HOME": str(folder)}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
            with contextlib.closing(connection):
                connection.request("GET", "/status")
                return connection.getresponse().status == 200
        except OSError:
            return False

    try:
        wait_until(answers, SECONDS_MAX, "the driver of the browser answers")
        session = Browser(port, profile)
        try:
            yield session
        finally:
            session.close()
    finally:
        driver.terminate()
        driver.wait(SECONDS_MAX)
