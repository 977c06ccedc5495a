"""Tests tools/engine-server with a small program in the place of vLLM: its start, its processes, and its errors."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of `vllm serve`, the port, the health page, a second process, and the ways to fail.
VLLM = """
import http.server, os, signal, subprocess, sys, time
print(" ".join(sys.argv[1:]), flush=True)
mode = os.environ.get("FAKE_VLLM", "")
if mode == "fails":
    sys.exit("ValueError: no such flag")
second = subprocess.Popen([sys.executable, "-c", "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(1000)"])
if mode == "silent":
    time.sleep(1000)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
try:
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Page).serve_forever()
except KeyboardInterrupt:
    if mode != "leaves a process":
        second.kill()
"""
MAKE_MODEL = """
import sys
if "small_model.py" in sys.argv[3]:
    sys.exit("ImportError: no package transformers" if "window" in sys.argv else 0)
"""


class Servers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.program("python", MAKE_MODEL)
        self.program("vllm", VLLM)
        self.addCleanup(self.run_tool, "stop")

    def program(self, name, text):
        file = self.folder / "engines/vllm-server/bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!{sys.executable}\n{text}")
        file.chmod(0o755)

    def run_tool(self, *arguments, **environment):
        own = [] if arguments == ("stop",) or "--" in arguments else ["--json"]
        places = ["--engines", self.folder / "engines", "--folder", self.folder / "servers", *own]
        end = arguments.index("--") if "--" in arguments else len(arguments)
        return subprocess.run([ROOT / "tools/engine-server", "vllm", *arguments[:end], *places, *arguments[end:]], text=True,
                              env=os.environ | environment, capture_output=True)

    def refused(self, code, sentence, *arguments, **environment):
        run = self.run_tool(*arguments, **environment)
        self.assertEqual(run.returncode, code, run.stderr)
        self.assertRegex(run.stderr, sentence)

    def processes_of(self, session):
        return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat")
                if (fields := self.fields(stat)) and fields[0] != "Z" and int(fields[3]) == session]

    def fields(self, stat):
        try:
            return stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None

    def test_a_server_starts_is_found_and_ends_with_all_its_processes(self):
        for mode in ("", "leaves a process"):
            with self.subTest(mode):
                run = self.run_tool("start", FAKE_VLLM=mode)
                self.assertEqual(run.returncode, 0, run.stderr)
                server = json.loads(run.stdout)
                self.assertEqual(json.loads(self.run_tool("status").stdout), server)
                self.assertEqual(len(self.processes_of(server["pid"])), 2)
                self.refused(2, "runs already", "start")
                self.assertEqual(self.run_tool("stop").returncode, 0)
                self.assertEqual(self.processes_of(server["pid"]), [])
                self.refused(1, "does not run", "status")
                self.assertEqual(self.run_tool("stop").returncode, 0)

    def test_own_flags_come_behind_those_of_the_tool(self):
        self.assertEqual(self.run_tool("start", "--blocks", "77", "--", "--block-size", "16").returncode, 0)
        log = (self.folder / "servers/vllm/server.log").read_text().splitlines()[0]
        self.assertIn("--num-gpu-blocks-override 77", log)
        self.assertTrue(log.endswith("--block-size 16"), log)

    def test_a_server_that_does_not_start_ends_with_a_sentence(self):
        self.refused(1, "the server ended: ValueError: no such flag", "start", FAKE_VLLM="fails")
        self.refused(1, "did not answer within 1 s", "start", "--timeout", "1", FAKE_VLLM="silent")
        session = json.loads((self.folder / "servers/vllm/server.json").read_text())["pid"]
        self.assertEqual(self.processes_of(session), [])

    def test_wrong_calls_are_refused_with_a_sentence(self):
        self.refused(2, "there is no wheel", "start", "--tier", str(self.folder / "tier"), "--wheel", "/no/wheel")
        self.refused(2, "makes its last folder only", "start", "--tier", "/no/such/tier", "--wheel", __file__)
        self.refused(2, "invalid choice", "start", "--model", "tree")
        self.refused(2, "too long for a socket", "start", "--name", "n" * 100)
        self.refused(1, "the model could not be made: ImportError", "start", "--model", "window")
        (self.folder / "engines/vllm-server/bin/python").unlink()
        self.refused(2, "run tools/engine-env vllm-server", "start")

    def test_a_name_that_leaves_the_folder_is_refused(self):
        for name in ("../x", "a/b", "", "models"):
            self.refused(2, "--name", "start", "--name", name)


if __name__ == "__main__":
    unittest.main()
