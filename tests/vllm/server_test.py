#!/usr/bin/env python3
"""A real vLLM server on the CPU beside kvtwin: each request's hits and the KV events against a simulation, and kvtwin's tier
inside the server, over a restart. No time is tested.

Needs build/kvtwin, the environment of `tools/engine-env vllm-server` and the wheel of `tools/python-package`. Takes about
4 minutes on two idle cores. With KVTWIN_DEEP=1 also models with sliding windows and with states, and their restarts.
"""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import server_client

# In float32 the greedy answers do not depend on how a prompt is divided into passes. vLLM has no linear attention in it.
FLOAT32 = ("--", "--dtype", "float32")
DEEP = os.environ.pop("KVTWIN_DEEP", "0") == "1"  # kvtwin refuses variables that it does not know
BLOCKS = 101  # the requests below need about twice as many


def requests():
    return server_client.sessions(seed=1, count=15, turns=4)


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="kvtwin-vllm-server-")
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def start(self, *flags):
        server = server_client.Server(f"test-{os.getpid()}", "--context", "1024", *flags)
        self.addCleanup(server.stop)
        return server

    def validate(self, server, *arguments):
        """kvtwin's simulation of what the server served, compared request by request."""
        server.write_log(self.folder / "requests.jsonl")
        server.write_experiment(self.folder / "served.toml")
        run = subprocess.run([server_client.KVTWIN, "validate", "--request-log", self.folder / "requests.jsonl", "--experiment",
                              self.folder / "served.toml", "--json", *arguments], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)["cells"][0]

    def assert_equal_hits(self, server, compared):
        hits = compared["request_hits"]
        self.assertEqual((hits["joined"], hits["equal"]), (len(server.served), len(server.served)), hits["first_difference"])
        self.assertGreater(sum(request["cached"] for request in server.served), 5000, "hardly a hit: nothing was compared")


class Device(Case):
    def test_hits_and_events_are_those_of_the_simulation(self):
        server = self.start("--blocks", str(BLOCKS), *FLOAT32)
        with server.recorded(self.folder / "events"):
            server.serve(requests())
        compared = self.validate(server, "--events", self.folder / "events")
        self.assert_equal_hits(server, compared)
        (device,) = compared["events"]["tiers"]
        # vLLM removes a block when a pass or a decode step needs its place, and kvtwin before the pass: the same events, in
        # another order.
        for kind in ("stored", "removed"):
            self.assertEqual(device[kind]["measured"], device[kind]["predicted"], device["first_difference"])
        self.assertEqual(device["common"], device["stored"]["measured"] + device["removed"]["measured"], device["first_difference"])
        self.assertGreater(device["removed"]["measured"], 100, "hardly a removal: nothing was compared")

        # Requests that ask for reports are all told by events, also those that store nothing.
        before = len(server.served)
        with server.recorded(self.folder / "reports"):
            server.serve(server_client.sessions(seed=2, count=15, turns=4), vllm_xargs={"kv_cache_report_mode": "full"})
        told = {folder: json.loads(subprocess.run([server_client.KVTWIN, "watch", self.folder / folder, "--json"], check=True,
                                                  capture_output=True, text=True).stdout) for folder in ("events", "reports")}
        # A recording has the messages from before, too.
        self.assertEqual(told["reports"]["requests"] - told["events"]["requests"], len(server.served) - before)
        self.assertGreater(told["reports"]["events"]["reports"], 10)


class Tier(Case):
    def restarted(self, *flags):
        """Two servers, one after the other, with the same requests and the same tier. Checks that the answers are equal."""
        flags = ("--tier", str(self.folder / "tier"), *flags)
        first = self.start(*flags)
        first.serve(requests())
        first.stop()
        second = self.start(*flags)
        second.serve(requests())
        for number, (before, after) in enumerate(zip(first.served, second.served, strict=True)):
            self.assertEqual(before["answer"], after["answer"], f"request {number}")
        return second

    def test_a_restarted_server_reads_the_blocks_and_answers_the_same(self):
        second = self.restarted("--blocks", str(BLOCKS), *FLOAT32)
        for number, after in enumerate(second.served):
            # The first request of each prefix hits too. Of a prompt that ends with a block, vLLM may load all blocks.
            block = second.facts["block_tokens"]
            self.assertGreaterEqual(after["cached"], (len(after["prompt"]) - 1) // block * block, f"request {number}")
        cached = second.cached_tokens()
        self.assertEqual(sum(cached.values()), sum(request["cached"] for request in second.served))
        self.assertGreater(cached["disk"], 5000, cached)
        stored = subprocess.run(["du", "--bytes", "--summarize", self.folder / "tier"], capture_output=True, text=True).stdout
        self.assertGreater(int(stored.split()[0]), 10_000_000)

    @unittest.skipUnless(DEEP, "KVTWIN_DEEP=1 is not set")
    def test_a_restarted_server_of_a_model_with_windows_answers_the_same(self):
        second = self.restarted("--model", "window", "--blocks", "201", *FLOAT32)
        self.assertGreater(second.cached_tokens()["disk"], 1000)

    @unittest.skipUnless(DEEP, "KVTWIN_DEEP=1 is not set")
    def test_a_restarted_server_of_a_model_with_states_answers_the_same(self):
        second = self.restarted("--model", "state", "--blocks", "61")
        self.assertGreater(second.cached_tokens()["disk"], 1000)


@unittest.skipUnless(DEEP, "KVTWIN_DEEP=1 is not set")
class HybridModels(Case):
    def test_a_model_with_sliding_windows(self):
        server = self.start("--model", "window", "--blocks", "201", *FLOAT32)
        server.serve(requests())
        self.assert_equal_hits(server, self.validate(server))

    def test_a_model_with_states(self):
        server = self.start("--model", "state", "--blocks", "61")
        server.serve(requests())
        # The least block of attention that is as large as a state.
        log = Path(server.facts["log"]).read_text(encoding="utf-8")
        tokens = re.search(r"Setting attention block size to (\d+) tokens", log)[1]
        self.assert_equal_hits(server, self.validate(server, "--set", f"cache.page_tokens={tokens}", "--set",
                                                     f"tiers.device.tokens={61 * int(tokens)}"))


if __name__ == "__main__":
    unittest.main()
