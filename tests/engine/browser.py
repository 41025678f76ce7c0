"""A headless Chromium, driven through a pipe by its DevTools protocol: no package, no port."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe", "--window-size=1000,900")
_KEYS = {"ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35,
         "Escape": 27, "Tab": 9}


def find() -> str | None:
  """Path of a Chromium."""
  return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
  """One page of a browser of its own.

  Args:
    program: see `find`.
    profile: a new folder.

  Attributes:
    messages: what the page said on the console, and what the browser said of the page.
    requests: addresses that it asked for.
  """

  def __init__(self, program: str, profile: pathlib.Path, timeout_s: float = 60):
    self.messages: list[str] = []
    self.requests: list[str] = []
    self._timeout_s, self._last, self._buffer = timeout_s, 0, b""
    theirs_in, self._out = os.pipe()
    self._in, theirs_out = os.pipe()
    # Chromium reads from 3 and writes to 4. A shell moves them there.
    command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    self._process = subprocess.Popen(
        ["bash", "-c", command, program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    self._session = None
    target = self.call("Target.createTarget", url="about:blank")["targetId"]
    self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.call(f"{domain}.enable")

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """A command of the protocol, and its answer."""
    self._last += 1
    message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
    if self._session:
      message["sessionId"] = self._session
    os.write(self._out, json.dumps(message).encode() + b"\0")
    while True:
      answer = self._read()
      if answer.get("id") == self._last:
        assert "error" not in answer, (method, answer)
        return answer["result"]

  def _read(self) -> dict[str, Any]:
    """The next message; events are noted."""
    end = time.monotonic() + self._timeout_s
    while b"\0" not in self._buffer:
      ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
      read = os.read(self._in, 1 << 16) if ready else b""
      if not read:
        raise TimeoutError(f"{self._process.args[3]} said nothing for {self._timeout_s} s, "
                           f"or ended: {self._process.poll()}")
      self._buffer += read
    line, _, self._buffer = self._buffer.partition(b"\0")
    message = json.loads(line)
    params = message.get("params", {})
    if message.get("method") == "Runtime.consoleAPICalled":
      self.messages.append(str(params["args"]))
    elif message.get("method") == "Runtime.exceptionThrown":
      self.messages.append(str(params["exceptionDetails"]))
    elif message.get("method") == "Log.entryAdded":
      self.messages.append(params["entry"]["text"])
    elif message.get("method") == "Network.requestWillBeSent":
      self.requests.append(params["request"]["url"])
    return message

  def open(self, path: pathlib.Path, dark: bool = False, script: bool = True) -> None:
    """Opens a file, in light or dark, with or without JavaScript."""
    self.call("Emulation.setEmulatedMedia", features=[
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
    self.call("Emulation.setScriptExecutionDisabled", value=not script)
    self.call("Page.navigate", url=path.as_uri())
    while self._read().get("method") != "Page.loadEventFired":
      pass

  def value(self, expression: str) -> Any:
    """The value of a JavaScript expression, JSON-ready."""
    answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
    assert "exceptionDetails" not in answer, answer
    return answer["result"].get("value")

  def press(self, *names: str) -> None:
    """Presses keys and lets go of them."""
    for name in names:
      for kind in ("rawKeyDown", "keyUp"):
        self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                  windowsVirtualKeyCode=_KEYS[name])

  def point(self, selector: str) -> None:
    """Moves the pointer onto the first element that a selector finds."""
    x, y = self.value(
        f"(() => {{ const r = document.querySelector({json.dumps(selector)})"
        ".getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()")
    self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

  def screenshot(self, path: pathlib.Path) -> None:
    """Writes what is to be seen as a PNG."""
    path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

  def close(self) -> None:
    """Ends the browser."""
    os.close(self._out)
    os.close(self._in)
    try:
      self._process.wait(10)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
