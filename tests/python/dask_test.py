"""Tests sweeps on Dask: two worker processes, of which one is killed. Run by tools/python-package."""

import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path

import kvtwin
from distributed import Client, LocalCluster

EXPERIMENT = "experiments/quickstart.toml"
VARY = {"cache.eviction": ["lru", "tide", "fifo"], "tiers.host.tokens": [50_000, 100_000, 150_000]}
FEW = {"workload.limit": 60}


def die_at_the_second_task(marker):
    """Runs in a worker: it computes one simulation, and is killed in the next."""
    import kvtwin.sweeps

    run_shard, done = kvtwin.sweeps.run_shard, []

    def run_or_die(arguments, shard):
        if done:
            Path(marker).write_text(shard)
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(shard)
        return run_shard(arguments, shard)

    kvtwin.sweeps.run_shard = run_or_die


class Dask(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", local_directory=scratch.name)
        self.addCleanup(cluster.close)
        self.client = Client(cluster)
        self.addCleanup(self.client.close)

    def test_the_rows_are_those_without_dask(self):
        alone = kvtwin.sweep(EXPERIMENT, VARY, set=FEW, out=self.scratch / "alone")
        marker = self.scratch / "killed"
        worker = sorted(self.client.scheduler_info()["workers"])[0]
        self.client.run(die_at_the_second_task, str(marker), workers=[worker])
        together = kvtwin.sweep(EXPERIMENT, VARY, set=FEW, out=self.scratch / "together", client=self.client)
        self.assertTrue(marker.exists(), "no worker was killed")
        for name in ("sweep.jsonl", "sweep.csv", "compare.json"):
            self.assertEqual((alone.folder / name).read_bytes(), (together.folder / name).read_bytes(), name)
        self.assertEqual(len(together.rows), 9)
        # All rows came from the workers, and the same call finds them.
        self.assertEqual(len(list(together.folder.glob("sweep.shard-*-of-9.jsonl"))), 9)
        again = kvtwin.sweep(EXPERIMENT, VARY, set=FEW, out=self.scratch / "together", client=self.client)
        self.assertEqual((again.folder / "sweep.jsonl").read_bytes(), (alone.folder / "sweep.jsonl").read_bytes())

    def test_bad_input_is_refused_before_any_task(self):
        with self.assertRaisesRegex(kvtwin.InputError, "unknown eviction"):
            kvtwin.sweep(EXPERIMENT, {"cache.eviction": ["lru", "best"]}, client=self.client)


if __name__ == "__main__":
    sys.exit(unittest.main())
