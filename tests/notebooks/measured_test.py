"""Runs gpu_bench and gpu_ttft on the CUDA twin. Checks that their tables are complete and have no wrong bytes, and that
measured.py judges, stores and draws the tables. The measured times mean nothing.

measured_test.py GPU_BENCH GPU_TTFT BLAS CUFILE    the programs, linked with the twin; libraries that replace cuBLAS and
                                                   cuFile
"""

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "notebooks"), str(ROOT / "python")]

import measured
import measured_figures

PROGRAM = TTFT_PROGRAM = BLAS = CUFILE = ""
TTFT = """model,tokens,source,path,overlap,mode,cufile,ttft_ms,p10,p90,samples,bytes,wrong_pages
llama,1024,recompute,-,on,-,-,20,19,21,5,0,0
llama,1024,l2,boxes,on,-,-,5,4,6,5,1000,0
llama,4096,l2,boxes,on,-,-,9,8,10,5,4000,0
latent,1024,disk,staged,on,bounce,-,30,29,31,5,1000,0
"""


class Measured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.results = Path(cls.scratch.name, "results")
        run = subprocess.run([PROGRAM, "--tiny", "--blas", BLAS, "--out", str(cls.results / "tables")], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        run = subprocess.run([TTFT_PROGRAM, "--tiny", "--blas", BLAS, "--cufile", CUFILE, "--out", str(cls.results / "tables"), "--disk", cls.scratch.name + "/disk"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr

    def output(self, program, *arguments):
        """Returns (exit code, stdout, stderr)."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = program([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def test_every_table_is_there_and_whole(self):
        tables = measured.read_tables(self.results)
        self.assertEqual(sorted(tables), sorted(measured.TABLES))
        for name, table in tables.items():
            self.assertLessEqual({"machine", "gpu", "driver", "cuda", "date", "command"}, set(table.about), name)
        matrix = tables["matrix"]
        self.assertEqual({row["path"] for row in matrix.rows}, set(measured_figures.PATHS))
        self.assertEqual({row["wrong_bytes"] for row in matrix.rows}, {0})
        for row in matrix.rows:
            self.assertEqual(row["bytes"], row["chunk_bytes"] * row["chunks"])
            self.assertEqual(row["ctas"] > 0, row["path"] in ("kernel", "ring", "staged", "warp_per_row"))
        cells = [(row["path"], row["direction"], row["chunk_bytes"], row["chunks"]) for row in matrix.rows]
        every = {(path, direction, chunk, count) for path in measured_figures.PATHS for direction in ("h2d", "d2h") for chunk in (512, 1152, 24576) for count in (16, 64)}
        self.assertEqual(len(cells), len(set(cells)))
        # A page of 64 pieces of 24 KiB does not fit into the small staging buffer.
        self.assertEqual(set(cells), every - {("staged", direction, 24576, 64) for direction in ("h2d", "d2h")})
        for load in ("none", "prefill", "decode"):
            paths = {row["path"] for row in tables["interference"].where(load=load)}
            self.assertEqual(paths, set(measured_figures.PATHS) | {"none"})
        self.assertEqual({row["kind"] for row in tables["link"].rows} - {"copy_node"},
                         {"copy", "copy_both", "copy_on_device", "kernel", "ring", "ring_stages", "staged"})

    def test_the_order_of_cells_hangs_on_the_seed_alone(self):
        def order(seed, name):
            out = Path(self.scratch.name, name)
            subprocess.run([PROGRAM, "--tiny", "--tables", "matrix", "--seed", str(seed), "--out", str(out)], check=True, capture_output=True)
            return [[row[k] for k in ("path", "direction", "chunk_bytes", "chunks")] for row in measured.Table(out / "matrix.csv").rows]

        first = order(1, "a")
        self.assertEqual(first, order(1, "b"))
        other = order(2, "c")
        self.assertNotEqual(first, other)
        self.assertEqual(sorted(first), sorted(other))

    def test_without_cublas_transfers_are_measured_alone(self):
        out = Path(self.scratch.name, "without")
        run = subprocess.run([PROGRAM, "--tiny", "--tables", "interference", "--blas", "/no/such.so", "--out", str(out)], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0)
        self.assertIn("interference without products: ", run.stderr)
        table = measured.Table(out / "interference.csv")
        self.assertEqual({row["load"] for row in table.rows}, {"none"})
        self.assertIn("could not be loaded", table.about["products"])

    def test_wrong_arguments_are_refused(self):
        for arguments in (["--tables", "links"], ["--out"], ["--tiny"], ["--out", "/tmp", "--seconds", "soon"]):
            run = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertIn("gpu_bench: ", run.stderr)

    def test_a_verdict_names_each_target_and_what_was_not_measured(self):
        steps = Path(self.scratch.name, "steps.txt")
        steps.write_text("gpu_tests_kernels:passed\ngpu_tests_graphs:stopped after 100 s\nmemcheck:failed (9)\nracecheck:not measured: no compute-sanitizer here\nsynccheck:not supported: Device not supported\ntiers-write_back-timeout:passed\ntiers-write_back-timeout-replay:passed\n"
                         "tiers-direct:not measured: cuFile can't be loaded\ncalibrate-fit-1:passed\ncalibrate-fit-1-replay:failed (1)\n")
        code, text, errors = self.output(measured.main, "verdict", self.results, "--steps", steps)
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(text, r"kernels equal their CPU twins +met")
        self.assertRegex(text, r"random graphs .*missed +stopped after 100 s")
        self.assertRegex(text, r"kernels reach beyond 2\^32 bytes +not measured\n")
        self.assertRegex(text, r"verified three-tier runs.* met +1 runs\n")
        self.assertRegex(text, r"pages from the disk past host memory.* not measured +cuFile can't be loaded\n")
        self.assertRegex(text, r"calibration runs.* missed +1 runs; failed: calibrate-fit-1-replay\n")
        self.assertRegex(text, r"every step within its budget +missed +gpu_tests_graphs stopped after 100 s\n")
        self.assertRegex(text, r"every prompt finds the right bytes +met +wrong in 0 pages")
        self.assertRegex(text, r"memcheck +missed +failed \(9\)")
        self.assertRegex(text, r"racecheck +not measured +no compute-sanitizer here")
        self.assertRegex(text, r"synccheck +not supported +Device not supported")
        self.assertRegex(text, r"every path leaves the right bytes +met")
        self.assertRegex(text, r"R >= 0.95 from 32 KiB.* not measured\n")  # no tiny cell is large enough
        self.assertRegex(text, r"a hit in host memory is faster than computing +(met|missed) +in \d+ of 12 cases")
        counts = re.search(r"(\d+) met, (\d+) missed, (\d+) not measured, (\d+) not supported", text)
        self.assertEqual(sum(map(int, counts.groups())), len(text.splitlines()) - 2)

    def test_prompts_come_from_every_tier_by_every_path_with_right_bytes(self):
        rows = measured.read_tables(self.results)["ttft"].rows
        for tokens in (64, 128):
            for overlap in ("on", "off"):
                found = {(row["source"], row["path"], row["mode"]) for row in rows if (row["tokens"], row["overlap"]) == (tokens, overlap)}
                loads = {("l2", path, "-") for path in ("auto", "copy_engine", "boxes", "kernel", "ring", "staged")}
                loads |= {("disk", "auto", mode) for mode in ("bounce", "direct")}
                self.assertEqual(found, loads | ({("recompute", "-", "-"), ("l1", "-", "-")} if overlap == "on" else set()))
        self.assertEqual({row["wrong_pages"] for row in rows}, {0})
        # The replacement of cuFile finds no kernel module for GPUDirect.
        self.assertEqual({row["cufile"] for row in rows if row["mode"] == "direct"}, {"compatibility"})
        self.assertEqual({row["cufile"] for row in rows if row["mode"] != "direct"}, {"-"})

    def test_without_cufile_the_table_says_why(self):
        out = Path(self.scratch.name, "without_cufile")
        subprocess.run([TTFT_PROGRAM, "--tiny", "--cufile", "/no/such.so", "--out", str(out), "--disk", str(out / "disk")], check=True, capture_output=True)
        table = measured.Table(out / "ttft.csv")
        self.assertIn("none: cuFile can't be loaded (/no/such.so", table.about["cufile"])
        self.assertEqual({row["cufile"] for row in table.rows if row["mode"] == "direct"}, {"none"})

    def test_prompts_for_which_there_is_no_time_are_left_out(self):
        out = Path(self.scratch.name, "no_time")
        run = subprocess.run([TTFT_PROGRAM, "--tiny", "--seconds", "1e-9", "--out", str(out), "--disk", str(out / "disk")], capture_output=True, text=True)
        self.assertEqual(run.returncode, 124, run.stderr)
        self.assertIn("36 cases left out: the time was over", run.stderr)
        self.assertEqual(measured.Table(out / "ttft.csv").rows, [])

    def test_help_is_no_error(self):
        for program in (PROGRAM, TTFT_PROGRAM):
            run = subprocess.run([program, "--help"], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn(" --out DIR ", run.stdout)

    def test_a_hit_is_judged_by_computing_the_same_prompt(self):
        folder = Path(self.scratch.name, "judged", "tables")
        folder.mkdir(parents=True)
        for slow, sentence in [("5", "met +in 1 of 1 cases"), ("21", "missed +in 0 of 1 cases")]:
            (folder / "ttft.csv").write_text(TTFT.replace("on,-,-,5", f"on,-,-,{slow}"))
            _, text, _ = self.output(measured.main, "verdict", folder.parent)
            self.assertRegex(text, f"a hit in host memory is faster than computing +{sentence}")

    def test_targets_are_judged_by_the_worst_cell(self):
        def row(path, chunk, r, sm):
            return dict(path=path, direction="h2d", chunk_bytes=chunk, chunks=4096.0, bytes=chunk * 4096, r_median=r, gbps=55 * r, submit_us=1.0, sm_ms_per_gb=sm)

        matrix = type("Matrix", (), {})()
        matrix.rows = [row("boxes", 32768.0, 0.97, 0), row("ring", 32768.0, 0.99, 10), row("warp_per_row", 32768.0, 0.5, 200),
                       row("ring", 4096.0, 0.91, 10), row("batch", 4096.0, 0.1, 0), row("warp_per_row", 4096.0, 0.5, 200),
                       row("copy_loop", 4096.0, 0.3, 0)]
        states = {target: state for target, state, _ in measured.rate_targets({"matrix": matrix})}
        self.assertEqual(set(states.values()), {"met"})
        matrix.rows[0]["r_median"], matrix.rows[3]["r_median"] = 0.94, 0.89
        states = [state for _, state, _ in measured.rate_targets({"matrix": matrix})]
        self.assertEqual(states, ["missed", "missed", "met", "met", "met", "missed"])  # 0.89 isn't three times 0.3
        matrix.rows[5]["r_median"] = 0.95
        states = {target: state for target, state, _ in measured.rate_targets({"matrix": matrix})}
        self.assertEqual(states["higher R per SM-ms than one warp per row"], "missed")
        self.assertEqual(states[">= 1.0x the best baseline everywhere"], "missed")
        matrix.rows = matrix.rows[:3]
        states = {target: state for target, state, _ in measured.rate_targets({"matrix": matrix})}
        self.assertEqual(states[">= 3x the copy loop for pieces of <= 8 KiB"], "not measured")

    def test_prefetches_that_were_revoked_as_stopped_count_as_stopped(self):
        folder = Path(self.scratch.name, "stopped")
        for name, prefetch in [("a", {"stopped": 0}), ("b", {"stopped": 1, "revoked_reasons": {"miss": 5, "stopped": 2}})]:
            (folder / "tiers" / name).mkdir(parents=True)
            (folder / "tiers" / name / "report.json").write_text(json.dumps({"tiers": [{"evicted_pages": 4}], "prefetch": prefetch}))
        rows = {target: (state, text) for target, state, text in measured.correctness_targets(folder, [], {})}
        self.assertEqual(rows["these runs evict pages and stop prefetches"], ("met", "at least 4 pages evicted, 3 prefetches stopped"))

    def test_pages_past_host_memory_are_counted(self):
        folder = Path(self.scratch.name, "direct")
        (folder / "tiers" / "direct").mkdir(parents=True)
        for pages, state in [(7, ("met", "7 pages")), (0, ("not measured", "cuFile took no page of that disk"))]:
            (folder / "tiers/direct/report.json").write_text(json.dumps({"real": {"storage": {"disk": {"direct_pages": pages}}}}))
            self.assertEqual(measured.direct_state(folder, "passed"), state)
        self.assertEqual(measured.direct_state(folder, "failed (1)"), ("missed", "failed (1)"))

    def test_wrong_pages_of_prompts_and_failed_benchmarks_are_missed_targets(self):
        tables = {"ttft": type("Table", (), {"rows": [{"wrong_pages": 0.0}, {"wrong_pages": 3.0}]}), "matrix": type("Table", (), {"rows": [{"wrong_bytes": 0.0}]})}
        rows = {target: (state, text) for target, state, text in measured.correctness_targets(self.results, ["bench:failed (1)"], tables)}
        self.assertEqual(rows["every prompt finds the right bytes"], ("missed", "wrong in 3 pages at worst"))
        self.assertEqual(rows["every path leaves the right bytes"][0], "missed")

    def test_tables_are_kept_by_the_gpu_but_not_the_twins(self):
        to = Path(self.scratch.name, "kept")
        code, _, errors = self.output(measured.main, "keep", self.results, to)
        self.assertEqual(code, 2)
        self.assertIn("taken without a GPU", errors)
        real = Path(self.scratch.name, "real")
        (real / "tables").mkdir(parents=True)
        for path in (self.results / "tables").glob("*.csv"):
            (real / "tables" / path.name).write_text(path.read_text().replace("kvtwin CUDA twin", "NVIDIA Made Up"))
        (real / "machine.json").write_text('{"driver": "1"}')
        for name in ("fit-1", "held-out-1"):
            (real / "calibrate" / name).mkdir(parents=True)
            for file in ("report.json", "requests.csv", "journal.kvj"):
                (real / "calibrate" / name / file).write_text(name)
        packed = Path(self.scratch.name, "packed")
        packed.mkdir()
        subprocess.run(["tar", "-czf", str(packed / "tables.tar.gz"), "-C", str(real), "tables"], check=True)
        (packed / "machine.json").write_text('{"driver": "1"}')
        for folder in (real, packed):
            code, text, errors = self.output(measured.main, "keep", folder, to)
            self.assertEqual((code, errors), (0, ""))
            kept = Path(text.strip())
            self.assertEqual(kept, to / "nvidia-made-up")
            provenance = json.loads((kept / "provenance.json").read_text())
            self.assertEqual(provenance["machine"], {"driver": "1"})
            self.assertEqual(sorted(provenance["tables"]), sorted(measured.TABLES))
            self.assertEqual(provenance["runs"], {"fit-1": "fitted to", "held-out-1": "held out"} if folder == real else {})
            self.assertEqual(sorted(path.name for path in (kept / "runs/held-out-1").iterdir()), ["report.json", "requests.csv"])
            self.assertEqual((kept / "matrix.csv").read_text(), (real / "tables/matrix.csv").read_text())

    def test_figures_are_drawn_and_repeat(self):
        code, lines, errors = self.output(measured_figures.main, self.results)
        self.assertEqual((code, errors), (0, ""))
        paths = [Path(line) for line in lines.splitlines()]
        self.assertEqual([path.stem for path in paths], ["rates", "best_path", "interference", "ttft"])
        before = [path.read_bytes() for path in paths]
        for drawn in before:
            self.assertEqual(drawn[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater(len(drawn), 10_000)
        self.output(measured_figures.main, self.results)
        self.assertEqual([path.read_bytes() for path in paths], before)

    def test_tables_that_are_not_whole_are_refused(self):
        folder = Path(self.scratch.name, "bad", "tables")
        folder.mkdir(parents=True)
        text = (self.results / "tables/scatter.csv").read_text()
        for bad, sentence in [(text.replace("ctas", "blocks", 1), "no column ctas"), (text + "h2d,1\n", "other fields"), (text + text.splitlines()[-1].replace("h2d", "d2h")[:-1] + "x\n", "row ")]:
            (folder / "scatter.csv").write_text(bad)
            code, _, errors = self.output(measured.main, "verdict", folder.parent)
            self.assertEqual(code, 2)
            self.assertIn(sentence, errors)
        code, _, errors = self.output(measured.main, "verdict", self.scratch.name + "/bad/tables")
        self.assertEqual(code, 2)
        self.assertIn("tools/gpu-check", errors)


if __name__ == "__main__":
    PROGRAM, TTFT_PROGRAM, BLAS, CUFILE = sys.argv[1:5]
    del sys.argv[1:5]
    unittest.main()
