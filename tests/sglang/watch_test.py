#!/usr/bin/env python3
"""`kvtwin watch` beside SGLang's own cache, which runs on the CPU with its host tier and publishes its KV events: the hits are
those that SGLang's classes count, from the request log and from the counters.

Needs build/kvtwin (or KVTWIN_PROGRAM); runs in the environment of `tools/engine-env sglang`. The stand-ins are those of
tests/fixtures/sglang/capture_engine.py. No time is tested.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/sglang"
PYTHON = Path.home() / ".cache/kvtwin/engines/sglang/bin/python"
PROGRAM = os.environ.get("KVTWIN_PROGRAM", ROOT / "build/kvtwin")
if Path(sys.executable).absolute() != PYTHON:
    if not PYTHON.is_file():
        sys.exit("tests/sglang/watch_test.py: there is no SGLang; run tools/engine-env sglang")
    os.execv(PYTHON, [PYTHON, *sys.argv])
os.environ.pop("KVTWIN_PROGRAM", None)  # kvtwin refuses a variable that it does not know
sys.path.insert(0, str(FIXTURES))
sys.dont_write_bytecode = True
import capture_engine
import zmq

PATIENCE_MS = 60_000


class Counters:
    """A /metrics page with the counters of SGLang's server, as its classes count."""

    def __init__(self):
        self.prompt = self.device = self.host = 0
        self.looks = threading.Semaphore(0)
        counters = self

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = (f"sglang:prompt_tokens_total {counters.prompt}\n"
                        f'sglang:cached_tokens_total{{cache_source="device"}} {counters.device}\n'
                        f'sglang:cached_tokens_total{{cache_source="host"}} {counters.host}\n').encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)
                counters.looks.release()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait_for_a_look(self, times=1):
        """Waits until the page has been fetched with the present numbers, and its answer was taken."""
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(times + 1):
            self.looks.acquire()


class WatchOfSglang(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="kvtwin-watch-sglang-")
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        # SGLang's publisher does not say when somebody has subscribed: it sends to this program, which passes the messages on.
        context = zmq.Context.instance()
        self.publisher = capture_engine.ZmqEventPublisher(0, endpoint=capture_engine.ENDPOINT, bind=True, topic="kv")
        self.addCleanup(self.publisher.shutdown)
        self.from_sglang = context.socket(zmq.SUB)
        self.from_sglang.connect(capture_engine.ENDPOINT)
        self.from_sglang.subscribe("")
        self.to_watch = context.socket(zmq.XPUB)
        self.endpoint = f"tcp://127.0.0.1:{self.to_watch.bind_to_random_port('tcp://127.0.0.1')}"
        self.addCleanup(self.from_sglang.close)
        self.addCleanup(self.to_watch.close)
        self.counters = Counters()
        self.addCleanup(self.counters.server.server_close)
        self.addCleanup(self.counters.server.shutdown)

    def watch(self, *arguments):
        return subprocess.Popen(
            [PROGRAM, "watch", self.endpoint, "--json", "--experiment", FIXTURES / "served.toml", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def pass_on(self, first_ms=PATIENCE_MS):
        """Passes on what SGLang's publisher has sent."""
        wait_ms = first_ms
        while self.from_sglang.poll(wait_ms):
            self.to_watch.send_multipart(self.from_sglang.recv_multipart())
            wait_ms = 50

    def serve(self, log_folder):
        """Serves the requests. Returns the prompt tokens, and those of them that hit on the device and on the host."""
        engine = capture_engine.Engine(self.publisher.publish)
        logger = capture_engine.RequestLogger(True, 3, "json", [str(log_folder)])
        for number, (rid, session, prompt, answer) in enumerate(capture_engine.work()):
            request = capture_engine.GenerateReqInput(rid=rid, input_ids=prompt, session_id=session,
                                                      sampling_params={"max_new_tokens": len(answer)})
            logger.log_received_request(request)
            device, host = engine.serve(prompt, answer, session)
            logger.log_finished_request(request, capture_engine.finished(rid, prompt, answer, device, host, 0.01))
            self.pass_on(PATIENCE_MS if number == 0 else 250)  # so that the next request comes after this one has ended
            self.counters.prompt += len(prompt)
            self.counters.device += device
            self.counters.host += host
        return self.counters.prompt, self.counters.device, self.counters.host

    def end(self, process):
        process.send_signal(signal.SIGINT)
        return json.loads(process.communicate(timeout=120)[0])

    def connect_publisher(self):
        """Returns when this program's own subscription to SGLang's publisher has arrived."""
        probe = capture_engine.KVEventBatch(ts=0.0, events=[])
        while not self.from_sglang.poll(20):
            self.publisher.publish(probe)
        while self.from_sglang.poll(100):
            self.from_sglang.recv_multipart()

    def test_hits_are_those_that_the_classes_count(self):
        self.connect_publisher()
        counted = self.watch("--metrics", self.counters.url, "--metrics-every", "50ms", "--every", "1s")
        self.assertTrue(self.to_watch.poll(PATIENCE_MS), "the watch did not subscribe")
        self.to_watch.recv()
        self.counters.wait_for_a_look()
        with tempfile.TemporaryDirectory(dir=self.folder) as logs:
            prompt, device, host = self.serve(logs)
            self.counters.wait_for_a_look(40)  # the watch takes a page once per second
            events = self.end(counted)
            (log,) = Path(logs).iterdir()
            exact = json.loads(subprocess.run(
                [PROGRAM, "watch", log, "--json", "--experiment", FIXTURES / "served.toml"], check=True, capture_output=True,
                text=True).stdout)
        self.assertGreater(device, 5000)
        self.assertGreater(host, 500, "hardly a hit of the host tier")

        measured = events["measured"]
        self.assertEqual((measured["lookup_tokens"], measured["device_hit_tokens"], measured["host_hit_tokens"]),
                         (prompt, device, host))
        self.assertEqual(events["events"]["lost_messages"], 0)
        self.assertEqual(events["events"]["not_read"], 0)
        twin = events["canary"].get("twin_hit_ratio_with_untold", events["canary"]["twin_hit_ratio"])
        print(f"\nmeasured {100 * measured['hit_ratio']:.2f} %, the twin from events {100 * twin:.2f} %", file=sys.stderr)
        self.assertAlmostEqual(twin, measured["hit_ratio"], delta=0.03)
        self.assertEqual(events["canary"]["parted"], "")

        canary = exact["canary"]
        self.assertEqual((canary["measured_lookup_tokens"], canary["measured_hit_tokens"]), (prompt, device + host))
        self.assertEqual((canary["twin_device_hit_tokens"], canary["twin_host_hit_tokens"]), (device, host))


if __name__ == "__main__":
    unittest.main()
