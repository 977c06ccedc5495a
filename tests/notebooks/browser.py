"""A headless Chromium without network, driven over its DevTools protocol through pipes. Needs Debian's package chromium.

python tests/notebooks/browser.py PAGE.html PICTURE.png PAPER.pdf   writes a picture of the whole page, and its print
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 120  # for one answer


def program():
    """Returns the path of Chromium; None if it is not installed."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """`loopback`: pages of servers on 127.0.0.1 can be opened. `faults`: console errors, uncaught exceptions, refused loads.
    `requests`: the addresses that pages loaded."""

    def __init__(self, width=1000, height=900, loopback=False):
        self.faults, self.requests, self.loaded = [], [], 0
        self.last, self.rest = 0, b""
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # its processes end after the first one
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()
        # Chromium reads from 3 and writes to 4.
        command = [
            program(),
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND" + (", EXCLUDE 127.0.0.1" if loopback else ""),
            f"--user-data-dir={self.profile.name}",
            "about:blank",
        ]
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_commands, write_answers)]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read_commands, write_answers, *ends):
            os.close(end)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if not loopback:
            self.call(
                "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    def call(self, method, **parameters):
        self.last += 1
        number = self.last
        message = {"id": number, "method": method, "params": parameters} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self):
        """Returns the next message, and keeps the events of interest."""
        end = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            if not select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]:
                raise RuntimeError(f"Chromium: no answer within {SECONDS} s")
            block = os.read(self.answers, 1 << 20)
            if not block:
                raise RuntimeError("Chromium has ended")
            self.rest += block
        message, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(message)
        method, content = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(
                content["exceptionDetails"]
                .get("exception", content["exceptionDetails"])
                .get("description", str(content))
            )
        elif method == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.faults.append(
                f"console.{content['type']}: {[one.get('value', one.get('description')) for one in content['args']]}"
            )
        elif method == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.faults.append(content["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded += 1
        return message

    def open(self, path, script=True):
        """Opens a file, with or without JavaScript, and waits until the page has loaded."""
        self.faults, self.requests, before = [], [], self.loaded
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while self.loaded == before:
            self.receive()

    def value(self, expression):
        """Returns the value of a JavaScript expression; of a promise, its result."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press_tab(self):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self):
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"])

    def paper(self):
        """Returns the printed page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"])


if __name__ == "__main__":
    page, picture, paper = sys.argv[1:]
    with Browser() as browser:
        browser.open(page)
        Path(picture).write_bytes(browser.picture())
        Path(paper).write_bytes(browser.paper())
        print(f"{len(browser.requests)} loads, faults: {browser.faults or 'none'}")
