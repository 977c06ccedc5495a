"""Runs the program kvtwin on a case."""

import csv
import json
import os
import subprocess
import sys

from cases import NO_CHUNKS, Case
from sequences import PAGE_TOKENS

EXPERIMENT = """seed = 1
[model]
name = "tiny"
[hardware]
name = "cpu-host"
[workload]
block_tokens = {page}
[scheduler]
chunk_tokens = {chunk}
"""

PREFETCH_MIN_TOKENS = 8
BUFFER_FLAGS = (" --hicache-host-memory-mode buffer_only --hicache-storage-backend file --hicache-storage-prefetch-policy "
                f"wait_complete --hicache-storage-backend-extra-config '{{\"prefetch_threshold\":{PREFETCH_MIN_TOKENS}}}'")


def nanoseconds(seconds):
    """Of a text with nine digits after the point."""
    return int(seconds.replace(".", ""))


class Kvtwin:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        # The program refuses KVTWIN_ names that it does not know.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("KVTWIN_")}

    def run(self, *arguments):
        run = subprocess.run(
            [self.program, *map(str, arguments)], env=self.environment, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))}: exit code {run.returncode}\n{run.stderr}")
        return run.stdout

    def serve(self, case: Case, sequence, settings=()):
        """(device, host) hit tokens of each request, and the evicted pages of both tiers."""
        return self.serve_with_times(case, sequence, settings)[:2]

    def serve_with_times(self, case: Case, sequence, settings=()):
        """The same, and of each request the times in ns of its arrival and of its first token."""
        experiment, out = self.folder / "experiment.toml", self.folder / "run"
        experiment.write_text(EXPERIMENT.format(page=PAGE_TOKENS, chunk=case.chunk_tokens), encoding="utf-8")
        flags = f"--page-size {PAGE_TOKENS} --chunked-prefill-size {case.chunk_tokens}"
        if case.host_tokens:
            flags += f" --enable-hierarchical-cache --hicache-write-policy {case.write_policy}"
        values = [f"workload.trace={sequence}", f"cache.eviction={case.eviction}",
                  f"tiers.device.tokens={case.device_tokens}"]
        if case.host_tokens:
            values.append(f"tiers.host.tokens={case.host_tokens}")
        if case.is_buffer:
            flags += BUFFER_FLAGS
        if case.counts_sessions:
            flags += " --enable-session-radix-cache"
        if case.is_linked:
            flags += " --enable-unified-cache-external-linker"
            values.append("hardware.name=h100-sxm")  # with GPUDirect
        sets = [word for value in [*values, *settings] for word in ("--set", value)]
        # Without SGLang's host times, which overlap the first token of a request with the arrival of the next one.
        sets += ["--set", "serving.engine=none"]
        report = json.loads(self.run(
            "simulate", experiment, "--json", "--out", out, "--force", "--from-sglang-flags", flags, *sets))
        with open(out / "requests.csv", encoding="utf-8", newline="") as table:
            rows = sorted(csv.DictReader(table), key=lambda row: int(row["request"]))
        second = "hit_disk" if case.is_buffer else "hit_remote" if case.is_linked else "hit_host"
        hits = [(int(row["hit_device"]), int(row[second])) for row in rows]
        times = [(arrival, arrival + nanoseconds(row["ttft_s"]))
                 for row in rows for arrival in [nanoseconds(row["arrival_s"])]]
        return hits, [tier["evicted_pages"] for tier in report["tiers"]], times

    def hit_rate(self, case: Case, sequence):
        """Device and host hit tokens of all requests together, by hitrate. None for a case that hitrate does not have."""
        if not case.host_tokens or case.is_buffer or case.counts_sessions or case.chunk_tokens != NO_CHUNKS:
            return None
        row = json.loads(self.run(
            "hitrate", "--trace", sequence, "--trace-block-tokens", PAGE_TOKENS, "--capacity",
            case.device_tokens // PAGE_TOKENS, "--host-capacity", case.host_tokens // PAGE_TOKENS, "--eviction",
            case.eviction, "--write-policy", case.write_policy, "--sglang-rules", "--json"))
        return row["device_hit_blocks"] * PAGE_TOKENS, row["host_hit_blocks"] * PAGE_TOKENS
