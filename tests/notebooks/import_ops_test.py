"""Tests kvtwin import-ops on folders with a few measured rows in the files and columns of aiconfigurator-core: which tables
are made, which rows are in them, and the errors for bad input.

    import_ops_test.py KVTWIN
"""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else str(ROOT / "build/kvtwin")
SIZES = (128, 8192, 131072, 1048576)


def all_reduce(backend, ms):
    return [{"op_name": "all_reduce", "backend": backend, "num_gpus": 8, "message_size": size, "latency": ms * (1 + i)}
            for i, size in enumerate(SIZES)]


def deep_ep(ranks_us, mode, **more):
    """Rows of {nodes: microseconds there, and as many back}."""
    part = "transmit" if mode == "normal" else "avg_t"
    return [{"device": "NVIDIA H100", "node_num": nodes, "hidden_size": 7168, "num_topk": 8, "num_experts": 256,
             "num_token": tokens, f"dispatch_{part}_us": us * tokens, f"combine_{part}_us": us * tokens, **more}
            for nodes, us in ranks_us.items() for tokens in (1, 2, 4, 8)]


class ImportOps(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.source = self.folder / "source"
        self.out = self.folder / "out"

    def write(self, file, rows, gpu="h100_sxm"):
        path = self.source / f"aiconfigurator_core/systems/data/{gpu}/{file}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)

    def run_program(self, *words, code=0):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False,
                              env={**os.environ, "KVTWIN_PYTHON": sys.executable})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def tables(self, name="h100-sxm.sglang", source=None):
        """Imports, and returns {name of a table: its times}."""
        self.run_program("import-ops", source or self.source, "--out", self.out, "--force")
        text = pa.CompressedInputStream(pa.OSFile(str(self.out / f"{name}.zst")), "zstd").read().decode()
        self.head, *parts = text.split("\ntable ")
        return {lines[0]: [int(ns) for line in lines if line.startswith("ns ") for ns in line.split()[1:]]
                for lines in (part.splitlines() for part in parts)}

    def test_graph_rows_are_the_all_reduce_and_eager_rows_the_launch(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", all_reduce("sglang_graph", 0.004) + all_reduce("sglang_eager", 0.02))
        tables = self.tables()
        self.assertEqual(tables["all_reduce 8"], [4000, 8000, 12000, 16000])
        self.assertEqual(tables["launch"], [30000])  # the median of the small messages

    def test_an_eager_layer_is_better_than_an_all_reduce(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", all_reduce("sglang_graph", 0.004) + all_reduce("sglang_eager", 0.02))
        layer = [{"num_heads": 16, "batch_size": batch, "isl": isl, "step": 0, "latency": ms}
                 for batch, isl, ms in ((1, 1, 0.6), (1, 16, 0.6), (1, 128, 0.66), (1, 4096, 9.0), (8, 128, 5.0))]
        self.write("mla/sglang/0.5.10/wideep_context_mla_perf", layer)
        self.assertEqual(self.tables()["launch"], [40000])  # 0.6 ms and 15 kernels

    def test_the_exchange_of_each_number_of_nodes(self):
        self.write("comm/sglang/0.5.6/wideep_deepep_ll_perf", deep_ep({1: 10, 2: 20}, "low_latency"))
        normal = [row for sms in (20, 24) for row in deep_ep({2: 40 - sms}, "normal", dispatch_sms=sms, dispatch_notify_us=1.0,
                                                             combine_notify_us=2.0)]
        self.write("comm/sglang/0.5.6/wideep_deepep_normal_perf", normal)
        tables = self.tables()
        self.assertEqual(tables["exchange_low_latency 7168 8 256 8"], [20000, 160000])  # the values between are on the line
        self.assertEqual(tables["exchange_low_latency 7168 8 256 16"], [40000, 320000])
        self.assertEqual(tables["exchange_normal 7168 8 256 16"], [43000, 323000])  # 20 SMs
        self.assertNotIn("launch", tables)

    def test_a_wheel_gives_the_bytes_of_a_folder(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", all_reduce("sglang_graph", 0.004))
        meta = self.source / "aiconfigurator_core/systems/data/h100_sxm/comm/sglang/0.5.9/collection_meta.yaml"
        meta.write_text("    collected_at: '2026-07-31'\n    collected_at: '2026-06-01'\n")
        tables = self.tables()
        self.assertIn("\ndate 2026-07-31\n", self.head)
        before = (self.out / "h100-sxm.sglang.zst").read_bytes()
        wheel = self.folder / "some.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in sorted(self.source.rglob("*.*")):
                if path.is_file():
                    archive.write(path, path.relative_to(self.source))
        self.assertEqual(self.tables(source=wheel), tables)
        self.assertEqual((self.out / "h100-sxm.sglang.zst").read_bytes(), before)

    def test_a_simulation_takes_the_table(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", all_reduce("sglang_graph", 0.004) + all_reduce("sglang_eager", 0.02))
        self.tables()
        run = self.run_program("simulate", ROOT / "experiments/chat_hour.toml", "--set", "workload.limit=20", "--set",
                               f"hardware.operators_file={self.out}/h100-sxm.sglang.zst", "--out", self.folder / "run")
        self.assertIn("h100-sxm.sglang.zst", run)

    def test_only_the_named_gpus_and_engines(self):
        for gpu in ("h100_sxm", "b200_sxm"):
            for engine in ("sglang", "vllm"):
                self.write(f"comm/{engine}/1.0/custom_allreduce_perf", all_reduce(f"{engine}_graph", 0.004), gpu)
        self.run_program("import-ops", self.source, "--out", self.out, "--gpu", "b200-sxm", "--engine", "vllm,trtllm")
        self.assertEqual([path.name for path in self.out.iterdir()], ["b200-sxm.vllm.zst"])

    def test_left_out_rows(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", [
            {"op_name": "all_reduce", "backend": "sglang_graph", "num_gpus": 8, "message_size": 64 * i, "latency": 0.001 * i}
            for i in range(1, 65)])
        self.run_program("import-ops", self.source, "--out", self.out, "--leave-out", 4)
        said = self.run_program("presets", "--operators", self.out / "h100-sxm.sglang.zst", "--rows", self.out / "h100-sxm.sglang.csv")
        self.assertIn("all_reduce", said)

    def test_bad_input_is_one_sentence(self):
        self.write("comm/sglang/0.5.9/custom_allreduce_perf", all_reduce("sglang_graph", 0.004))
        empty, text, filled = self.folder / "empty", self.folder / "text", self.folder / "filled"
        empty.mkdir()
        text.write_text("no wheel")
        filled.mkdir()
        (filled / "file").touch()
        for words, why in (((self.folder / "nothing",), "neither a wheel nor a folder"), ((text,), "neither a wheel nor a folder"),
                           ((empty,), "has no measured operators"), ((self.source, "--gpu", "h900"), "there is no 'h900'"),
                           ((self.source, "--engine", "sgl"), "there is no 'sgl'"), ((self.source, "--date", "today"), "is no date"),
                           ((self.source, "--engine", "vllm"), "has no rows of h100_sxm with vllm")):
            said = self.run_program("import-ops", *words, "--out", self.out, code=2)
            self.assertIn(why, said)
            self.assertEqual(len(said.strip().splitlines()), 1, said)
        self.assertIn("--force", self.run_program("import-ops", self.source, "--out", filled, code=2))
        (self.source / "aiconfigurator_core/systems/data/h100_sxm/comm/sglang/0.5.9/custom_allreduce_perf.parquet").write_text("x")
        self.assertIn("is no parquet file", self.run_program("import-ops", self.source, "--out", self.out, code=2))


if __name__ == "__main__":
    unittest.main()
