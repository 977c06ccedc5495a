"""watch_page_test.py PROGRAM: the page of kvtwin watch in a headless Chromium, as a file and live. Exit code 77: Chromium
is not installed.
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
import browser

PROGRAM = ""
EVENTS = ROOT / "tests/fixtures/vllm/kv_events.jsonl"


class OfARecording(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.page = Path(folder.name) / "report.html"
        subprocess.run([PROGRAM, "watch", EVENTS, "--every", "5s", "--report", cls.page], check=True, stdout=subprocess.DEVNULL)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.__exit__)

    def test_shows_the_figures_and_loads_nothing(self):
        self.browser.open(self.page)
        self.assertEqual(self.browser.faults, [])
        self.assertEqual([one for one in self.browser.requests if not one.startswith(("data:", self.page.as_uri()))], [])
        self.assertIn("Add a host tier of 400 blocks", self.browser.value("document.getElementById('advice').textContent"))
        self.assertEqual(self.browser.value("document.querySelectorAll('#sizes tr').length"), 8)
        self.assertEqual(self.browser.value("document.querySelector('#sizes tr.marked').cells[2].textContent"), "321")
        self.assertEqual(self.browser.value("document.querySelectorAll('.dot').length"), 8)
        self.assertEqual(self.browser.value("document.getElementById('state').textContent"), "a snapshot")

    def test_sizes_that_are_not_known_are_marked(self):
        page = self.page.with_name("least.html")
        subprocess.run([PROGRAM, "watch", EVENTS, "--every", "5s", "--device-blocks", "100", "--max-blocks", "250", "--report",
                        page], check=True, stdout=subprocess.DEVNULL)
        self.browser.open(page)
        self.assertEqual(self.browser.faults, [])
        cell = "[...document.querySelectorAll('#sizes tr')].find((row) => row.cells[1].textContent === '%s').cells[3].textContent"
        self.assertTrue(self.browser.value(cell % "400").startswith("\u2265 "))
        self.assertFalse(self.browser.value(cell % "200").startswith("\u2265"))
        self.assertGreater(self.browser.value("document.querySelectorAll('.dot.least').length"), 2)
        self.assertIn("hits may be more", self.browser.value("document.getElementById('canary').textContent"))

    def test_curves_by_pool(self):
        page = self.page.with_name("pools.html")
        subprocess.run([PROGRAM, "watch", EVENTS.with_name("kv_events_groups.jsonl"), "--report", page], check=True,
                       stdout=subprocess.DEVNULL)
        self.browser.open(page)
        self.assertEqual(self.browser.faults, [])
        self.assertGreater(self.browser.value("document.querySelectorAll('#pool-curves tr').length"), 10)
        self.assertIn("sliding_window of 128 tokens", self.browser.value("document.getElementById('pool-curves').textContent"))

    def test_the_points_by_keyboard(self):
        self.browser.open(self.page)
        for _ in range(20):
            self.browser.press_tab()
            if self.browser.value("document.activeElement.classList.contains('dot')"):
                break
        told = []
        for _ in range(3):
            told.append(self.browser.value("document.getElementById('point').textContent"))
            for kind in ("rawKeyDown", "keyUp"):
                self.browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                                  windowsVirtualKeyCode=39)
        self.assertTrue(told[2].startswith("100 blocks hit 35.31 %"), told)

    def test_narrow_and_dark(self):
        self.browser.open(self.page)
        self.browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
        self.browser.call("Emulation.setEmulatedMedia", media="screen",
                          features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 360)
        self.assertEqual(self.browser.value("getComputedStyle(document.body).backgroundColor"), "rgb(20, 24, 29)")
        self.browser.call("Emulation.setEmulatedMedia", media="", features=[])
        self.browser.call("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)

    def test_a_label_for_each_part(self):
        self.browser.open(self.page)
        for landmark in ("header", "main", "footer", "h1"):
            self.assertEqual(self.browser.value(f"document.querySelectorAll('{landmark}').length"), 1)
        self.assertEqual(self.browser.value("[...document.querySelectorAll('.dot')].every(e => e.getAttribute('aria-label'))"), True)


class Live(unittest.TestCase):
    def test_the_page_of_a_watch(self):
        # No engine is there, and none is needed for a page.
        watch = subprocess.Popen([PROGRAM, "watch", "tcp://127.0.0.1:1", "--serve", "127.0.0.1:0", "--json"],
                                 stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            line = watch.stderr.readline()
            if "has no" in line:
                self.skipTest(line)
            url = re.search(r"http://[^ \n]+", line).group()
            with browser.Browser(loopback=True) as one:
                one.faults = []
                before = one.loaded
                one.call("Page.navigate", url=url)
                while one.loaded == before:
                    one.receive()
                one.value("new Promise(done => { const look = () => document.getElementById('state').textContent === 'live' ? "
                          "done(true) : setTimeout(look, 50); look(); })")
                self.assertEqual(one.faults, [])
                self.assertIn("no advice yet", one.value("document.getElementById('advice').textContent").lower())
                self.assertEqual({address for address in one.requests if not address.startswith("data:")},
                                 {url, url + "figures.json"})
        finally:
            watch.terminate()
            watch.wait()
            watch.stderr.close()


if __name__ == "__main__":
    if browser.program() is None:
        print("Chromium is not installed", file=sys.stderr)
        sys.exit(77)
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=1)
