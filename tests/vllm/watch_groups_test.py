#!/usr/bin/env python3
"""`kvtwin watch` of the KV events of hybrid models, which vLLM's own KV cache manager makes on the CPU: the curve of each group
of layers at its present size is near the hits that vLLM's classes find in this group.

Needs build/kvtwin (or KVTWIN_PROGRAM); runs in the environment of `tools/engine-env vllm`. No time is tested.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path.home() / ".cache/kvtwin/engines/vllm/bin/python"
PROGRAM = os.environ.get("KVTWIN_PROGRAM", ROOT / "build/kvtwin")
if Path(sys.executable).absolute() != PYTHON:
    if not PYTHON.is_file():
        sys.exit("tests/vllm/watch_groups_test.py: there is no vLLM; run tools/engine-env vllm")
    os.execv(PYTHON, [PYTHON, *sys.argv])
os.environ.pop("KVTWIN_PROGRAM", None)  # kvtwin refuses a variable that it does not know
sys.dont_write_bytecode = True
import vllm_imports

vllm_imports.prepare_core()
import hybrid_server

BLOCK = 16
WINDOWS = dict(layers={"full": 2, "window": 2}, heads=2, head_size=64, window=64, block=BLOCK)
STATES = dict(layers={"full": 1, "state": 3}, heads=2, head_size=64, state_shapes=((4, 64), (8, 64)),
              state_dtypes=("bfloat16", "float32"), block=BLOCK)


def conversations(count, turns, seed=3):
    """Prompts of conversations, whose turns alternate; some end early."""
    draw = random.Random(seed)
    system = [draw.randrange(1000) for _ in range(6 * BLOCK)]
    open_ones = []
    for _ in range(count):
        open_ones.append([system + [draw.randrange(1000) for _ in range(draw.randrange(20, 200))], turns])
        for _ in range(2):
            conversation = draw.choice(open_ones)
            yield list(conversation[0])
            conversation[0] += [draw.randrange(1000) for _ in range(draw.randrange(20, 120))]
            conversation[1] -= 1
            if conversation[1] == 0:
                open_ones.remove(conversation)
            if not open_ones:
                break


def recorded(server, prompts, path):
    """Serves the prompts one after another, with answers of one token. Writes what the manager's events say as `kvtwin record`
    does. Returns the prompt tokens in whole blocks and, by group, the longest prefixes that were found."""
    def number_of(value):
        return "0x" + value.hex() if isinstance(value, bytes) else value

    asked, found = 0, {}
    with path.open("w") as file:
        file.write(json.dumps({"type": "header", "version": 1, "endpoint": "tcp://127.0.0.1:5557", "topic": ""}) + "\n")
        for number, prompt in enumerate(prompts):
            request, outcome = server.start(number, prompt)
            assert request is not None, "the pool has no room"
            asked += len(prompt) // BLOCK * BLOCK
            for group, hit in enumerate(outcome["groups"]):
                found[group] = found.get(group, 0) + hit
            server.finish(request, [1])
            for event in server.manager.take_events():
                line = {"seq": number, "ts": 1_700_000_000 + 10.0 * number, "rank": 0, "type": type(event).__name__}
                if hasattr(event, "block_hashes"):
                    line |= {"block_hashes": [number_of(one) for one in event.block_hashes], "medium": event.medium,
                             "group_idx": event.group_idx}
                if type(event).__name__ == "BlockStored":
                    parent = event.parent_block_hash
                    line |= {"block_size": event.block_size, "kv_cache_spec_kind": event.kv_cache_spec_kind,
                             "kv_cache_spec_sliding_window": event.kv_cache_spec_sliding_window}
                    if parent is not None:
                        line["parent_block_hash"] = number_of(parent)
                file.write(json.dumps(line) + "\n")
    return asked, found


class WatchOfGroups(unittest.TestCase):
    def compared(self, kind, memory, **model):
        """Returns by group the share that vLLM finds, and kvtwin's for the present size and for the largest."""
        server = hybrid_server.Server(memory, **model, events=True)
        with tempfile.TemporaryDirectory(prefix="kvtwin-watch-groups-") as folder:
            path = Path(folder) / "kv_events.jsonl"
            asked, found = recorded(server, conversations(120, 5), path)
            watched = json.loads(subprocess.run([PROGRAM, "watch", path, "--json"], check=True, capture_output=True,
                                                text=True).stdout)
        held = {pool["group"]: pool["peak"] for pool in watched["pools"]}
        shares = {}
        for curve in watched.get("pool_curves", []):
            self.assertEqual(curve["kind"], kind)
            sizes = {size["blocks"]: size["usable_ratio"] for size in curve["sizes"]}
            group = curve["group"]
            shares[group] = (found[group] / asked, sizes[held[group]], max(sizes.values()))
            print(f"\n{kind} group {group}: vLLM {100 * shares[group][0]:.2f} %, kvtwin {100 * shares[group][1]:.2f} % at "
                  f"{held[group]} blocks, {100 * shares[group][2]:.2f} % at most", file=sys.stderr)
        return shares

    def test_windows(self):
        for memory, delta in ((1 << 30, 0.01), (3 << 20, 0.03)):
            with self.subTest(memory=memory):
                shares = self.compared("sliding_window", memory, **WINDOWS)
                self.assertTrue(shares)
                for measured, present, _ in shares.values():
                    self.assertAlmostEqual(present, measured, delta=delta)

    def test_states(self):
        for memory, delta in ((1 << 30, 0.01), (8 << 20, 0.03)):
            with self.subTest(memory=memory):
                shares = self.compared("mamba", memory, **STATES)
                self.assertTrue(shares)
                for measured, present, _ in shares.values():
                    self.assertAlmostEqual(present, measured, delta=delta)


if __name__ == "__main__":
    unittest.main()
