"""Tests import-silicon and silicon-choices of docs/results/tools on made-up rows: which workers a row gets, which rows are
left out, and which choice of a pair is right."""

import csv
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "docs/results/tools"
COLUMNS = """id silicon_data_source backend backend_version model_path system precision mode isl osl gemm_quant_mode
moe_quant_mode batch_size tp_size pp_size attention_dp_size moe_tp_size moe_ep_size prefill_batch_size prefill_num_workers
prefill_tp_size prefill_pp_size prefill_attention_dp_size prefill_moe_tp_size prefill_moe_ep_size decode_batch_size
decode_num_workers decode_tp_size decode_pp_size decode_attention_dp_size decode_moe_tp_size decode_moe_ep_size
silicon_ttft_ms silicon_tpot_ms""".split()
DUMP = "db-dump/2026-04-27; config_id=1; silicon_concurrency={}; measured=2026-02-07T00:00:00.000Z; image"
LIST = "source_file=2026-03-25.csv; model=DeepSeek-R1; silicon_concurrency={}; measured={}T00:00:00Z; image={}"
TRTLLM = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:"


def row(name, source, ttft, tpot, **more):
    base = dict.fromkeys(COLUMNS, "") | {
        "id": name, "silicon_data_source": source, "backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "gb200", "precision": "fp4", "mode": "disagg", "isl": "1024", "osl": "1024", "gemm_quant_mode": "nvfp4",
        "moe_quant_mode": "nvfp4", "silicon_ttft_ms": ttft, "silicon_tpot_ms": tpot}
    return base | {key: str(value) for key, value in more.items()}


def numbered(prefill, decode):
    names = ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
    sides = {"prefill": prefill, "decode": decode}
    return {f"{side}_{name}": value for side in sides for name, value in zip(names, sides[side], strict=True)}


def ranks(prefill, decode, ep):
    return {"prefill_tp_size": prefill, "decode_tp_size": decode, "prefill_moe_ep_size": ep}


class Silicon(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def run_tool(self, tool, *arguments):
        done = subprocess.run([TOOLS / tool, *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def table(self, *rows, mode="disagg"):
        systems = self.folder / "aiconfigurator_core" / "systems"
        systems.mkdir(parents=True, exist_ok=True)
        with open(systems / "silicon_sample.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        out = self.folder / "table.json"
        self.said = self.run_tool("import-silicon", self.folder, "--mode", mode, "--out", out)
        return {entry["name"]: entry for entry in json.loads(out.read_text())}

    def test_workers_are_those_of_the_row_of_its_twin_or_of_the_one_recipe(self):
        entries = self.table(
            row("numbers", DUMP.format(7), "50.5", "5.5", **numbered((2, 1, 4, 4), (3, 8, 1, 8))),
            row("twin", LIST.format(7, "2026-02-08", "x"), "50.5", "5.5", **ranks(4, 8, 4)),
            # By the list of recipes: 1 x 4 ranks, 4 x 8 ranks without speculation, 141 clients.
            row("recipe", LIST.format(141, "2025-12-20", TRTLLM + "0.5.1-rc0.pre3"), "60", "6", **ranks(4, 8, 4)),
            row("all_gpus", LIST.format(141, "2025-12-20", TRTLLM + "0.5.1-rc0.pre3"), "61", "6", **ranks(36, 36, 1)),
        )
        self.assertEqual(entries["numbers"]["parallel"], {"tp": 4, "ep": 4, "attention_dp": 4})
        self.assertEqual(entries["numbers"]["cluster"]["prefill"], 2)
        self.assertEqual(entries["numbers"]["cluster"]["decode"], 3)
        self.assertIn("parallel.tp=8, parallel.ep=8, parallel.attention_dp=1", entries["numbers"]["cluster"]["decode_set"])
        self.assertNotIn("twin", entries)  # the same run, and its workers are known
        self.assertIn("1 the same run as another row", self.said)
        self.assertEqual(entries["recipe"]["cluster"]["decode"], 4)
        self.assertEqual(entries["all_gpus"]["cluster"], entries["recipe"]["cluster"])
        self.assertEqual(entries["recipe"]["workload"]["concurrency"], 141)
        self.assertIn("1 numbers in a row with the same figures", self.said)
        self.assertIn("2 the one recipe", self.said)

    def test_recipes_without_a_radix_cache_have_one_state_per_request(self):
        qwen = {"model_path": "Qwen/Qwen3.5-397B-A17B", "system": "b200_sxm", "precision": "fp8", "mode": "agg",
                "gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block", "batch_size": "256", "tp_size": "4",
                "moe_tp_size": "4", "moe_ep_size": "1", "pp_size": "1", "attention_dp_size": "1"}
        entries = self.table(
            row("sglang", "source_file=2026-03-25.csv", "2205", "37", **qwen | {"backend": "sglang"}),
            row("vllm", "source_file=2026-03-25.csv", "2205", "37", **qwen | {"backend": "vllm"}),
            row("gap", "source_file=/aic/gap.csv", "2205", "37", **qwen | {"backend": "sglang"}), mode="agg")
        states = {name: entry["set"].get("tiers.device.states_per_request") for name, entry in entries.items()}
        buffers = {name: entry["set"].get("cache.state_points") for name, entry in entries.items()}
        self.assertEqual(buffers, {"sglang": "no_buffer", "vllm": None, "gap": None})
        self.assertEqual(states, {"sglang": 1, "vllm": None, "gap": None})
        points = {name: entry["set"].get("cache.state_points") for name, entry in entries.items()}
        self.assertEqual(points, {"sglang": "no_buffer", "vllm": None, "gap": None})

    def test_generated_servers_have_the_pass_tokens_of_their_generator(self):
        qwen = {"model_path": "Qwen/Qwen3-32B", "system": "h100_sxm", "precision": "", "mode": "agg", "batch_size": "8",
                "isl": "1024", "osl": "128", "tp_size": "2", "moe_tp_size": "1", "moe_ep_size": "1", "pp_size": "1",
                "attention_dp_size": "1"}
        entries = self.table(
            *(row(engine, "source_file=/aic-auto-gap-analysis/x.csv", "154", "18", **qwen | {"backend": engine})
              for engine in ("vllm", "trtllm", "sglang")),
            row("inferencemax", "source_file=2026-03-25.csv", "154", "18", **qwen | {"backend": "vllm"}),
            row("other", "source_file=/aic-auto-gap-analysis/x.csv", "154", "18", **qwen | {"backend": "vllm", "isl": "1000"}),
            mode="agg")
        tokens = {name: entry["scheduler"]["chunk_tokens"] for name, entry in entries.items()}
        self.assertEqual(tokens, {"vllm": 3040, "trtllm": 3040, "sglang": 16384, "inferencemax": 8192, "other": 8192})
        for name, entry in entries.items():
            self.assertEqual("warmup_requests" in entry["workload"], name == "other")  # else the first prompts count
            self.assertEqual("range_ratio" in entry["workload"], name == "inferencemax")

    def test_rows_that_cannot_be_told_are_left_out_by_reason(self):
        entries = self.table(
            row("kept", DUMP.format(7), "50.5", "5.5", **numbered((1, 1, 4, 4), (4, 8, 1, 8))),
            row("draft", LIST.format(180, "2026-02-08", TRTLLM + "0.8.1.post2"), "1", "2", **ranks(4, 32, 4)),
            row("either", LIST.format(12, "2026-02-08", TRTLLM + "0.8.1.post2"), "1", "3", **ranks(4, 8, 4)),
            row("none", LIST.format(13, "2026-02-08", TRTLLM + "0.8.1.post2"), "1", "4", **ranks(4, 8, 4)),
        )
        self.assertEqual(list(entries), ["kept", "draft"])
        self.assertNotIn("model.draft", entries["kept"]["cluster"]["decode_set"])
        self.assertIn("model.draft.tokens=3, model.draft.accept_length=2.49", entries["draft"]["cluster"]["decode_set"])
        self.assertEqual(entries["draft"]["group"], "gb200 trtllm roles mtp")
        for reason in ("several recipes, some with speculative decoding", "no recipe with these ranks and clients"):
            self.assertIn(f"1 {reason}", self.said)

    def test_rows_that_no_entry_can_say_are_left_out_by_reason(self):
        workers = numbered((1, 1, 4, 4), (4, 8, 1, 8))
        entries = self.table(
            row("kept", DUMP.format(7), "50.5", "5.5", **workers),
            row("stages", DUMP.format(7), "51", "5.5", **workers, decode_pp_size=2),
            row("infinite", DUMP.format(7), "inf", "5.5", **workers),
            row("zero", DUMP.format(7), "52", "0", **workers),
        )
        self.assertEqual(list(entries), ["kept"])
        for reason in ("1 pipeline parallelism", "2 no TTFT or TPOT"):
            self.assertIn(reason, self.said)

    def test_a_file_of_another_form_is_refused(self):
        self.table(row("kept", DUMP.format(7), "50.5", "5.5", **numbered((1, 1, 4, 4), (4, 8, 1, 8))))
        file = self.folder / "aiconfigurator_core/systems/silicon_sample.csv"
        whole = file.read_text()
        for text, said in ((whole.replace("pp_size", "depth"), "has no column decode_pp_size"),
                           (whole.replace("isl,osl", "isl,isl,osl"), "has a column twice"),
                           (whole + "short,row\n", "row 2 has another number of fields")):
            file.write_text(text)
            done = subprocess.run([TOOLS / "import-silicon", self.folder, "--mode", "disagg", "--out",
                                   self.folder / "other.json"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stderr)

    def test_the_better_choice_has_more_tokens_per_gpu(self):
        def validation(name, entries):
            cells = [{"cell": entry, "figures": [
                {"figure": "ttft_mean_s", "measured": 0.1, "predicted": 0.1},
                {"figure": "tpot_mean_s", "measured": measured, "predicted": predicted}]} for entry, measured, predicted in entries]
            (self.folder / name).write_text(json.dumps({"cells": cells}))
            return self.folder / name

        def entry(name, clients, **more):
            return {"name": name, "group": "gb200 trtllm", "model": "deepseek-v3", "parallel": {"tp": 4}, "set":
                    {"model.weights": "nvfp4"}, "workload": {"question_tokens": 1024, "output_tokens": 1024,
                                                             "concurrency": clients}, **more}
        roles = {"prefill": 1, "decode": 1, "decode_set": "parallel.tp=4, parallel.ep=4"}
        aggregated, apart = self.folder / "agg.json", self.folder / "apart.json"
        aggregated.write_text(json.dumps([entry("a", 8), entry("far", 64)]))
        apart.write_text(json.dumps([entry("d", 32, cluster=roles), entry("e", 12, cluster=roles)]))
        pairs = json.loads(self.run_tool(
            "silicon-choices", "--json", "--aggregated", aggregated, validation("1.json", [("a", 0.01, 0.01), ("far", 0.05, 0.05)]),
            "--disaggregated", apart, validation("2.json", [("d", 0.0105, 0.03), ("e", 0.0105, 0.0105)])))
        self.assertEqual([(p["aggregated"], p["disaggregated"]) for p in pairs], [("a", "d"), ("a", "e")])
        # d: 32 clients on 8 GPUs against 8 on 4; as predicted, its tokens take three times as long.
        self.assertGreater(pairs[0]["measured"], 1)
        self.assertEqual([p["right"] for p in pairs], [False, True])


if __name__ == "__main__":
    unittest.main()
