"""gpu_bench's tables on the CUDA twin: whole, with right bytes, judged, kept and drawn. Their figures mean nothing.

measured_test.py PROGRAM    PROGRAM: gpu_bench linked with the twin
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
sys.path[:0] = [str(ROOT / "notebooks")]

import measured
import measured_figures

PROGRAM = ""
TTFT = """model,tokens,source,path,overlap,mode,ttft_ms,p10,p90,samples,bytes,wrong_pages
llama,1024,recompute,-,on,-,20,19,21,5,0,0
llama,1024,l2,boxes,on,-,5,4,6,5,1000,0
llama,4096,l2,boxes,on,-,9,8,10,5,4000,0
latent,1024,disk,staged,on,bounce,30,29,31,5,1000,0
"""


class Measured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.results = Path(cls.scratch.name, "results")
        run = subprocess.run([PROGRAM, "--tiny", "--out", str(cls.results / "tables")], capture_output=True, text=True)
        cls.said = run.stderr
        assert run.returncode == 0, run.stderr
        about = (cls.results / "tables/link.csv").read_text().splitlines()[:6]
        (cls.results / "tables/ttft.csv").write_text("\n".join(about) + "\n" + TTFT)

    def output(self, program, *arguments):
        """(exit code, stdout, stderr)"""
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
        # A page of 64 pieces of 24 KiB doesn't fit into the small staging buffer.
        self.assertEqual(set(cells), every - {("staged", direction, 24576, 64) for direction in ("h2d", "d2h")})
        self.assertEqual({row["path"] for row in tables["interference"].rows} - {"none"}, set(measured_figures.PATHS))
        self.assertEqual({row["kind"] for row in tables["link"].rows} - {"copy_node"},
                         {"copy", "copy_both", "copy_on_device", "kernel", "ring"})

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

    def test_wrong_arguments_are_refused(self):
        for arguments in (["--tables", "links"], ["--out"], ["--tiny"], ["--out", "/tmp", "--seconds", "soon"]):
            run = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertIn("gpu_bench: ", run.stderr)

    def test_a_verdict_names_each_target_and_what_was_not_measured(self):
        steps = Path(self.scratch.name, "steps.txt")
        steps.write_text("gpu_tests:passed\nmemcheck:failed (9)\nracecheck:not measured: Device not supported\ntiers-write_back-timeout-replay:passed\n")
        code, text, errors = self.output(measured.main, "verdict", self.results, "--steps", steps)
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(text, r"kernels equal their CPU twins +met")
        self.assertRegex(text, r"memcheck +missed +failed \(9\)")
        self.assertRegex(text, r"racecheck +not measured +Device not supported")
        self.assertRegex(text, r"every path leaves the right bytes +met")
        self.assertRegex(text, r"R >= 0.95 from 32 KiB.* not measured\n")  # no tiny cell is large enough
        self.assertRegex(text, r"a hit in host memory is faster than computing anew +met +in 1 of 1 cases")
        counts = re.search(r"(\d+) met, (\d+) missed, (\d+) not measured", text)
        self.assertEqual(sum(map(int, counts.groups())), len(text.splitlines()) - 2)

    def test_targets_are_judged_by_the_worst_cell(self):
        def row(path, chunk, r, sm):
            return dict(path=path, direction="h2d", chunk_bytes=chunk, chunks=4096.0, bytes=chunk * 4096, r_median=r, gbps=55 * r, submit_us=1.0, sm_ms_per_gb=sm)

        matrix = type("Matrix", (), {})()
        matrix.rows = [row("boxes", 32768.0, 0.97, 0), row("ring", 32768.0, 0.99, 10), row("warp_per_row", 32768.0, 0.5, 200),
                       row("ring", 4096.0, 0.91, 10), row("batch", 4096.0, 0.1, 0), row("warp_per_row", 4096.0, 0.5, 200)]
        states = {target: state for target, state, _ in measured.rate_targets({"matrix": matrix})}
        self.assertEqual(set(states.values()), {"met"})
        matrix.rows[0]["r_median"], matrix.rows[3]["r_median"] = 0.94, 0.89
        states = [state for _, state, _ in measured.rate_targets({"matrix": matrix})]
        self.assertEqual(states, ["missed", "missed", "met", "met"])
        matrix.rows[5]["r_median"] = 0.95
        self.assertEqual([state for _, state, _ in measured.rate_targets({"matrix": matrix})][3], "missed")

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
    PROGRAM = sys.argv.pop(1)
    unittest.main()
