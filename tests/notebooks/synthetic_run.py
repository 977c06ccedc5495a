"""synthetic_run.py FOLDER: writes a run folder in the documented format, with invented but plausible numbers."""

import csv
import json
import math
import random
import sys
from pathlib import Path

HITS = ["hit_device", "hit_host", "hit_disk", "hit_remote"]
SPREAD = ["mean", "p50", "p90", "p95", "p99", "max"]


def quantiles(values):
    values = sorted(values)

    def at(share):
        return values[max(0, math.ceil(share * len(values)) - 1)]

    return dict(zip(SPREAD, [sum(values) / len(values), at(0.5), at(0.9), at(0.95), at(0.99), values[-1]]))


def write(folder, requests=600, engines=2, seed=1):
    chance = random.Random(seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    clock = 0.0
    for request in range(requests):
        clock += chance.expovariate(4)
        prompt = int(chance.lognormvariate(8, 1)) + 1
        row = dict(request=request, arrival_s=f"{clock:.9f}", prompt_tokens=prompt, output_tokens=chance.randrange(1, 400))
        if request % 97 == 96:
            rows.append(row | dict(retractions=0, outcome="rejected"))
            continue
        left = prompt - 1
        warm = min(1, request / 200)
        for key, most in zip(HITS, [0.5 * warm, 0.6 * warm, 0.3 * warm, 0.1]):
            row[key] = int(left * chance.random() * most)
            left -= row[key]
        row["recomputed_after_stop"] = left // 20
        row["miss"] = left + 1 - left // 20
        parts = [chance.expovariate(5), chance.random() * 0.02, row["hit_host"] * 2e-6, row["miss"] * 6e-5]
        row |= dict(zip(["queue_s", "prefetch_wait_s", "load_wait_s", "compute_s"], parts))
        row["ttft_s"] = sum(parts)
        row["tpot_s"] = 0.02 + chance.random() * 0.01
        row["e2e_s"] = row["ttft_s"] + row["tpot_s"] * row["output_tokens"]
        rows.append(row | dict(retracted_recompute=0, retractions=0, outcome="completed"))
    columns = """request,arrival_s,prompt_tokens,output_tokens,hit_device,hit_host,hit_disk,hit_remote,miss,
        recomputed_after_stop,retracted_recompute,queue_s,prefetch_wait_s,load_wait_s,compute_s,ttft_s,tpot_s,e2e_s,
        retractions,outcome"""
    with open(folder / "requests.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns.replace("\n", "").replace(" ", "").split(","), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

    lanes = [f"gpu{n}.{way}" for n in range(engines) for way in ("h2d", "d2h")] + ["disk.read", "disk.write", "compute"]
    window = clock / 80
    with open(folder / "lanes.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("lane,window_start_s,window_s,busy_fraction,bytes".split(","))
        for index, lane in enumerate(lanes):
            level = 0.15 + 0.1 * index if lane != "compute" else 0.85
            for n in range(80):
                busy = min(1, max(0, level * (1 + 0.5 * math.sin(n / 6 + index)) + chance.gauss(0, 0.05)))
                moved = 0 if lane == "compute" else int(busy * window * 25e9)
                writer.writerow([lane, f"{n * window:.9f}", f"{window:.9f}", f"{busy:.6f}", moved])

    served = [row for row in rows if row["outcome"] == "completed"]
    tokens = {key: sum(row[key] for row in served) for key in [*HITS, "recomputed_after_stop", "miss"]}
    report = dict(
        schema_version=1, kvtwin_version="0.1.0", git_commit="unknown", world="simgrid", device="model", seed=seed,
        requests=dict(total=requests, completed=len(served), rejected=requests - len(served), failed=0),
        tokens=tokens | dict(prompt=sum(tokens.values()), output=sum(row["output_tokens"] for row in served)),
        ttft_seconds=quantiles([row["ttft_s"] for row in served]),
        ttft_parts_seconds={
            part: sum(row[part + "_s"] for row in served) / len(served)
            for part in ("queue", "prefetch_wait", "load_wait", "compute")
        },
        simulated_seconds=clock,
    )
    (folder / "report.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    write(sys.argv[1])
