#!/usr/bin/env python3
"""Tests of tools/engine-parity without an engine: its sequences of requests, and its refusals."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hybrid"))
import configs
import recorded
import sequences

PAGES = (1, 16, 64)


def every_sequence():
    for traffic in sequences.TRAFFIC:
        for seed in range(20):
            for page in PAGES:
                for running, longest in ((3, 3000), (2, 888), (1, 233)):
                    yield running, longest, sequences.sequence(traffic, seed, 80, page, running, longest)


class Sequences(unittest.TestCase):
    def test_the_same_seed_makes_the_same_sequence(self):
        for traffic in sequences.TRAFFIC:
            self.assertEqual(sequences.sequence(traffic, 7, 100, 16), sequences.sequence(traffic, 7, 100, 16))
            self.assertNotEqual(sequences.sequence(traffic, 7, 100, 16), sequences.sequence(traffic, 8, 100, 16))

    def test_every_request_starts_and_finishes_within_the_limits(self):
        for running, longest, lines in every_sequence():
            active = set()
            for line in lines:
                if line["op"] == "start":
                    self.assertLessEqual(sequences.length(line["prompt"]), longest)
                    self.assertTrue(all(count > 0 for _, count in line["prompt"]), line)
                    active.add(line["id"])
                else:
                    active.remove(line["id"])
                    self.assertGreater(line["answer"][1], 0)
                self.assertLessEqual(len(active), running)
            self.assertEqual((len(lines), active), (80, set()))

    def test_prompts_share_prefixes(self):
        for traffic in sequences.TRAFFIC:
            prompts = [line["prompt"] for line in sequences.sequence(traffic, 1, 160, 16) if line["op"] == "start"]
            first = {prompt[0][0] for prompt in prompts}
            self.assertLess(len(first), len(prompts) // 3, traffic)
            self.assertGreater(max(map(len, prompts)), 5, traffic)

    def test_tokens_of_a_prompt(self):
        self.assertEqual(list(sequences.tokens_of([[2, 3], [5, 1]])), [131072, 131073, 131074, 327680])


class Configurations(unittest.TestCase):
    def test_room_scales_pools_in_whole_pages(self):
        config = configs.with_room(configs.SGLANG["sglang-window-state-host"], 30)
        self.assertEqual((config["full_tokens"], config["window_tokens"], config["states"]), (2432, 1216, 7))
        self.assertEqual(config["host_tokens"] % config["page"], 0)
        self.assertEqual(configs.with_room(configs.BOTH, 100), configs.BOTH)

    def test_each_stored_sequence_has_a_configuration(self):
        stored = {path.stem for path in recorded.GOLDEN.glob("*.jsonl")}
        self.assertEqual(stored, {*configs.SGLANG, *configs.VLLM})

    def test_words_choose_configurations(self):
        self.assertEqual(recorded.chosen("sglang", "path,3"), {"sglang": ["sglang-state-path3"]})
        self.assertIn("vllm-drawn", recorded.chosen(None, "drawn")["vllm"])


class Refusals(unittest.TestCase):
    def refusal(self, *arguments):
        run = subprocess.run([ROOT / "tools/engine-parity", *arguments], capture_output=True, text=True)
        return run.returncode, run.stderr.strip().splitlines()[-1]

    def test_an_unknown_configuration(self):
        code, text = self.refusal("hybrid", "--only", "nothing")
        self.assertEqual(code, 2)
        self.assertIn("--only nothing: no configuration in tests/hybrid/configs.py", text)

    def test_a_program_that_is_not_there(self):
        for command in ("hybrid", "sglang"):
            code, text = self.refusal(command, "--program", "/nowhere")
            self.assertEqual(code, 2)
            self.assertIn("there is no program at /nowhere", text)

    def test_no_environment(self):
        with tempfile.TemporaryDirectory() as empty:
            for command in (("hybrid", "--golden", "--engine", "vllm"), ("vllm", "--flags"), ("sglang", "--flags")):
                code, text = self.refusal(*command, "--engines", empty)
                self.assertEqual(code, 3)
                self.assertRegex(text, r"there is no (SGLang|vLLM) in .*; run tools/engine-env (sglang|vllm)")


if __name__ == "__main__":
    unittest.main()
