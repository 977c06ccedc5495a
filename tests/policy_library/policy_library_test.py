"""Tests policies in shared libraries: hitrate, compare, simulate, run, replay, check and the C interface take the path of
one as the name of an eviction policy. Arguments: kvtwin, the library role_age.so, one for other headers, one without a
policy, and libkvtwin.so."""

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, POLICY, OTHER, NONE, LIBRARY = (Path(argument).resolve() for argument in sys.argv[1:6])
del sys.argv[1:6]
QUICKSTART = ROOT / "experiments/quickstart.toml"


def kvtwin(*arguments, code=0):
    ran = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode != code:
        raise AssertionError(f"{arguments}: {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran


class Library(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def simulated(self, *assignments):
        out = self.folder / "out"
        kvtwin("simulate", QUICKSTART, "--out", out, "--force", *[part for one in assignments for part in ("--set", one)])
        return json.loads((out / "report.json").read_text())

    def groups(self):
        trace = self.folder / "groups.jsonl"
        kvtwin("trace", "generate", "--kind", "groups", "--groups", "40", "--prompts-per-group", "20", "--prefix-tokens",
               "4096", "--question-tokens", "2048", "--out", trace, "--force")
        return trace

    def test_hitrate_uses_the_role_and_the_parameters(self):
        evictions = f"lru,{POLICY},{POLICY}(system=1000, user=1)"
        rows = [json.loads(line) for line in
                kvtwin("hitrate", "--trace", self.groups(), "--trace-block-tokens", "16", "--capacity", "8000",
                       "--eviction", evictions, "--json").stdout.splitlines()]
        self.assertEqual([row["eviction"] for row in rows],
                         ["lru", str(POLICY), f"{POLICY}(system=1000, user=1)"])
        lru, good, bad = (row["token_hit_ratio"] for row in rows)
        self.assertGreater(good, lru)
        self.assertGreater(good, bad)

    def test_without_known_roles_it_is_lru(self):
        # The bundled trace does not say where a system prompt ends, and hitrate has no answers.
        rows = [json.loads(line) for line in
                kvtwin("hitrate", "--trace", ROOT / "traces/chat_small.jsonl.zst", "--capacity", "3000", "--limit", "2000",
                       "--eviction", f"lru,{POLICY}", "--json").stdout.splitlines()]
        self.assertEqual(rows[0]["hit_blocks"], rows[1]["hit_blocks"])

    def test_compare_and_simulate(self):
        out = self.folder / "compared"
        values = ["lru", str(POLICY), f"{POLICY}(output=1000)"]
        kvtwin("compare", QUICKSTART, "--vary", "cache.eviction=" + ",".join(values), "--set", "workload.limit=60",
               "--out", out)
        self.assertEqual(json.loads((out / "compare.json").read_text())["axes"][0]["values"], values)
        digests = [self.simulated(f"cache.eviction={value}", "workload.limit=200", "tiers.device.tokens=20000",
                                  "tiers.host.tokens=40000")["decisions"]["digest"] for value in values]
        self.assertEqual(len(set(digests)), 3)

    def test_answers_leave_first(self):
        # Answers are never prompted again here. A policy that evicts them first hits more.
        trace = self.groups()
        hits = [sum(self.simulated(f"cache.eviction={eviction}", f"workload.trace={trace}", "workload.limit=400",
                                   "workload.block_tokens=16",
                                   "workload.shrink=1", "workload.time_scale=0.1", "model.name=llama-3.1-8b",
                                   "hardware.name=h100-sxm", "tiers.device.tokens=100000", "tiers.host.tokens=0"
                                   )["tokens"][key] for key in ("hit_device",))
                for eviction in ("lru", f"{POLICY}(output=1000)")]
        self.assertGreater(hits[1], hits[0])

    def test_a_real_run_is_decided_again(self):
        trace = self.folder / "two.jsonl"
        kvtwin("trace", "generate", "--kind", "groups", "--groups", "6", "--prompts-per-group", "10", "--prefix-tokens",
               "1024", "--question-tokens", "512", "--requests-per-second", "20", "--out", trace)
        run = self.folder / "run"
        kvtwin("run", QUICKSTART, "--device", "host", "--out", run, "--set", f"workload.trace={trace}", "--set",
               "workload.block_tokens=16", "--set", "workload.shrink=1", "--set", "workload.limit=60", "--set", f"cache.eviction={POLICY}(output=9)", "--set", "tiers.device.tokens=2048",
               "--set", "tiers.host.tokens=4096")
        report = json.loads((run / "report.json").read_text())
        self.assertGreater(sum(tier["evicted_pages"] for tier in report["tiers"]), 0)
        self.assertIn(f"'{POLICY}(unknown=2, system=1, user=2, output=9)'", (run / "experiment.resolved.toml").read_text())
        kvtwin("replay", run)

    def test_check_tests_the_rules(self):
        said = kvtwin("check", POLICY).stdout
        self.assertIn("eviction policy: role_age(unknown=2, system=1, user=2, output=4); keeps the rules", said)

    def test_refusals_say_what_would_be_right(self):
        copy = self.folder / "text.so"
        copy.write_text("not a library")
        for name, sentence in ((self.folder / "absent.so", "there is no such file"),
                               (copy, "can't be loaded"),
                               (NONE, "is no policy library"),
                               (OTHER, "was built for another kvtwin: its policy headers are 0123456789ab"),
                               (f"{POLICY}(sytem=3)", 'role_age.so: unknown parameter "sytem": did you mean "system"?'),
                               (f"{POLICY}(system=0)", "system is 0; it must be at least 1")):
            with self.subTest(name):
                ran = kvtwin("simulate", QUICKSTART, "--set", f"cache.eviction={name}", code=2)
                self.assertIn(sentence, ran.stderr)
                ran = kvtwin("hitrate", "--trace", ROOT / "traces/chat_small.jsonl.zst", "--capacity", "100", "--limit", "10",
                             "--eviction", name, code=2)
                self.assertIn(sentence, ran.stderr)

    def test_the_c_interface(self):
        class Config(ctypes.Structure):
            _fields_ = [("struct_size", ctypes.c_uint32), ("name", ctypes.c_char_p), ("device_pages", ctypes.c_uint64),
                        ("host_pages", ctypes.c_uint64), ("page_tokens", ctypes.c_uint32),
                        ("whole_nodes", ctypes.c_uint32), ("split_refreshes", ctypes.c_uint32),
                        ("hits_by_count", ctypes.c_uint32), ("doubling_tokens", ctypes.c_uint64),
                        ("slru_protected_touches", ctypes.c_uint32), ("tlru_threshold_tokens", ctypes.c_uint64),
                        ("tlru_next_prompt_tokens", ctypes.c_uint64), ("journal", ctypes.c_void_p)]

        class Error(ctypes.Structure):
            _fields_ = [("text", ctypes.c_char_p), ("size", ctypes.c_size_t)]

        library = ctypes.CDLL(LIBRARY)
        library.kvtwin_policy_create.argtypes = [ctypes.POINTER(Config), ctypes.POINTER(ctypes.c_void_p), Error]
        library.kvtwin_policy_destroy.argtypes = [ctypes.c_void_p]

        def created(name):
            config = Config(ctypes.sizeof(Config), str(name).encode(), 100, 0, 16)
            policy, text = ctypes.c_void_p(), ctypes.create_string_buffer(1000)
            status = library.kvtwin_policy_create(config, policy, Error(ctypes.cast(text, ctypes.c_char_p), 1000))
            library.kvtwin_policy_destroy(policy)
            return status, text.value.decode()

        self.assertEqual(created(f"{POLICY}(system=3)")[0], 0)
        status, text = created(OTHER)
        self.assertEqual(status, 16)
        self.assertIn("was built for another kvtwin", text)

    def test_a_relative_path(self):
        shutil.copy(POLICY, self.folder / "mine.so")
        ran = subprocess.run([PROGRAM, "check", "mine.so"], capture_output=True, text=True, check=False, cwd=self.folder)
        # The library has the policy role_age, whatever the file is called.
        self.assertIn("mine.so: eviction policy", ran.stdout)


if __name__ == "__main__":
    unittest.main()
