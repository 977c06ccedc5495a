"""Tests kvtwin.Store on a Mooncake Store inside a Python program, which has Mooncake's package. Started by
tools/engine-storage remote, with the Python of the environment `remote`."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import unittest
from pathlib import Path

import numpy as np

import kvtwin

PROGRAMS = Path(sysconfig.get_path("purelib"), "mooncake")
FORM = kvtwin.PageForm(layers=2, planes=2, heads=2, head_bytes=64, page_tokens=16)
IDENTITY = kvtwin.Identity(model="m", kv_dtype="bfloat16", revision="1")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Servers(unittest.TestCase):
    def start(self, program, ready, *arguments):
        """Starts a program of Mooncake and returns when it has written `ready`."""
        process = subprocess.Popen([PROGRAMS / program, *arguments], env=os.environ | {"MC_LOG_LEVEL": "INFO", "GLOG_minloglevel": "0"}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        output = ""
        for line in process.stdout:
            output += line
            if ready in line:
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return process
        self.fail(f"{program} doesn't start:\n{output}")

    def setUp(self):
        self.port = free_port()
        self.master = self.start("mooncake_master", "Master admin server started", f"-rpc_port={self.port}",
                                 "-rpc_address=127.0.0.1", f"-metrics_port={free_port()}", "-metrics_host=127.0.0.1",
                                 "-client_ttl=1000")
        while not accepts(self.port):
            pass
        self.start("mooncake_client", "Starting real client service", "-host=127.0.0.1", f"-port={free_port()}",
                   f"-master_server_address=127.0.0.1:{self.port}", "-metadata_server=P2PHANDSHAKE", "-protocol=tcp",
                   "-global_segment_size=64MB")

    def store(self, **options):
        return kvtwin.Store("remote", f"mooncake://127.0.0.1:{self.port}", FORM, IDENTITY, **options)

    def test_pages_come_back_also_in_another_store(self):
        random = np.random.default_rng(1)
        keys = [random.bytes(32) for _ in range(20)]
        with self.store(timeout_s=60) as store:
            pages = random.integers(0, 256, (20, store.page_bytes), np.uint8)
            self.assertEqual(store.put_pages(keys, pages).tolist(), [0] * 20)
            self.assertEqual(store.look_up([*keys, bytes(32)]), 20)
        with self.store(timeout_s=60) as store:
            np.testing.assert_array_equal(np.array(store.get_pages(keys)), pages)
            self.assertEqual(store.remove(keys).tolist(), [0] * 20)
            self.assertEqual(store.look_up(keys), 0)

    def test_threads_of_python_and_of_the_store_go_on_together(self):
        random = np.random.default_rng(2)
        keys = [random.bytes(32) for _ in range(8)]
        counted, ended = 0, threading.Event()

        def count():
            nonlocal counted
            while not ended.is_set():
                counted += 1

        counter = threading.Thread(target=count)
        with self.store(timeout_s=60) as store:
            pages = random.integers(0, 256, (8, store.page_bytes), np.uint8)
            store.put_pages(keys, pages)
            counter.start()
            for _ in range(50):
                np.testing.assert_array_equal(np.array(store.get_pages(keys)), pages)
            ended.set()
            counter.join()
        self.assertGreater(counted, 0)

    def test_a_master_that_stands_still_is_unreachable_and_python_goes_on(self):
        with self.store(timeout_s=0.1) as store:
            key, page = bytes([7]) * 32, bytes(store.page_bytes)
            while store.put_pages([key], [page])[0] != kvtwin.PageStatus.OK:
                pass
            os.kill(self.master.pid, signal.SIGSTOP)
            self.assertEqual(store.put_pages([bytes([8]) * 32], [page])[0], kvtwin.PageStatus.UNREACHABLE)
            with self.assertRaises(kvtwin.LookUpError):
                store.look_up([key])
            os.kill(self.master.pid, signal.SIGCONT)
            while store.get_pages([key])[0] is None:
                pass


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
