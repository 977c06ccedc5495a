"""synthetic_plan.py FOLDER: writes plan.json in the documented format, with invented but plausible numbers."""

import json
import sys
from pathlib import Path

GOALS = [
    {"figure": "ttft_p90_s", "limit": 2.0, "unit": "s", "better": "less"},
    {"figure": "tpot_p90_s", "limit": 0.05, "unit": "s", "better": "less"},
]


def tried(tp, engines, gib):
    gpus = tp * engines
    ttft = 0.4 + 90 / gpus * (8 / tp) ** 0.3 / (1 + gib / 4096) ** 2
    figures = {
        "ttft_p90_s": ttft,
        "tpot_p90_s": 0.012 + 0.05 / tp,
        "hit_ratio": min(0.37, 0.1 + gib / 8192),
        "good_share": min(1, 1.6 / ttft),
    }
    meets = figures["ttft_p90_s"] <= 2 and figures["tpot_p90_s"] <= 0.05
    one = {
        "settings": {
            "hardware.name": "h100-pcie5",
            "parallel.tp": tp,
            "cluster.engines": engines,
            "tiers.host.gib": gib,
        },
        "gpus": gpus,
        "price_month": gpus * 1800.0 + engines * gib * 2.1,
        "power_kw": 0.9 * gpus,
        "figures": figures,
        "stage": "full",
        "meets": meets,
    }
    return one if meets else one | {"why_not": f"TTFT p90 is {ttft:.3g} s"}


def setting(one, because):
    engines, gib = one["settings"]["cluster.engines"], one["settings"]["tiers.host.gib"]
    return one | {
        "parts": [
            {
                "name": "GPU h100",
                "count": one["gpus"],
                "price_month": one["gpus"] * 1800.0,
                "power_w": one["gpus"] * 700.0,
            },
            {
                "name": "GiB of DRAM",
                "count": engines * gib,
                "price_month": engines * gib * 2.1,
                "power_w": engines * gib * 0.4,
            },
        ],
        "experiment": "recommended.toml",
        "price_per_million_tokens": one["price_month"] / 310e3,
        "because": because,
    }


def plan():
    every = [
        tried(tp, gpus // tp, gib) for tp in (2, 4, 8) for gpus in (32, 40, 48, 56, 64) for gib in (0, 256, 1024, 2048)
    ]
    meeting = sorted((one for one in every if one["meets"]), key=lambda one: one["price_month"])
    front, lowest = [], float("inf")
    for index in sorted(
        range(len(every)), key=lambda index: (every[index]["price_month"], every[index]["figures"]["ttft_p90_s"])
    ):
        if every[index]["figures"]["ttft_p90_s"] < lowest:
            front.append(index)
            lowest = every[index]["figures"]["ttft_p90_s"]
    changes = [
        ("one engine less", tried(8, 4, 1024)),
        ("one more GPU", tried(8, 6, 1024)),
        ("twice the DRAM", tried(8, 5, 2048)),
        ("one drive more", tried(8, 5, 1024)),
    ]
    return {
        "schema_version": 1,
        "kind": "plan",
        "kvtwin_version": "0.2.0",
        "git_commit": "unknown",
        "command": "kvtwin plan plan.toml --out out/plan",
        "title": "Qwen3-32B, ten requests per second",
        "model": "qwen3-32b",
        "workload": {
            "source": "generated",
            "requests": 12031,
            "duration_s": 3600.0,
            "requests_per_second": 10.0,
            "prompt_tokens_mean": 12035.0,
            "output_tokens_mean": 343.0,
        },
        "goals": GOALS,
        "prices": {
            "file": "prices.toml",
            "currency": "USD",
            "assumed": ["gpu.h100"],
            "used": [
                {"name": "gpu.h100", "value": 2.5, "unit": "USD/h", "source": "assumed", "date": "2026-11-25"},
                {
                    "name": "dram",
                    "value": 2.1,
                    "unit": "USD/GiB/month",
                    "source": "a list of prices",
                    "date": "2026-11-25",
                },
            ],
        },
        "recommendation": setting(meeting[0], "the lowest price"),
        "reason": None,
        "alternatives": [
            setting(one, because)
            for one, because in zip(meeting[1:4], ("more headroom", "fewer engines", "lower latency"))
        ],
        "tried": every,
        "front": front,
        "binds": {
            "sentence": "Compute is busy 88 % of the time and binds.",
            "lanes": [
                {"name": "compute", "busy_fraction": 0.88, "busy_fraction_p99": 1.0},
                {"name": "h2d", "busy_fraction": 0.03, "busy_fraction_p99": 0.21},
            ],
            "ttft_parts_seconds": {"queue": 0.31, "prefetch_wait": 0.0, "load_wait": 0.02, "compute": 0.4},
        },
        "margins": [
            {
                "change": change,
                "settings": one["settings"],
                "figures": one["figures"],
                "gpus": one["gpus"],
                "price_month": one["price_month"],
                "meets": one["meets"],
            }
            for change, one in changes
        ],
        "drives": [
            {"write_policy": "write_through", "written_tb_per_day": 306.0, "dwpd": 19.9, "years": 0.25},
            {"write_policy": "write_back", "written_tb_per_day": 298.0, "dwpd": 19.4, "years": 0.26},
        ],
        "confidence": {
            "seeds": 1,
            "draws": 20,
            "share_meeting": 0.95,
            "figures": {"ttft_p90_s": [1.31, 1.93]},
            "hangs_on": [
                {"number": "gemm_fraction", "at_low": 2.06, "at_high": 1.4},
                {"number": "peak_bf16", "at_low": 1.9, "at_high": 1.5},
            ],
        },
        "hits_by_capacity": [
            {"capacity_tokens": 2**power * 100_000, "hit_ratio": 0.08 + 0.03 * power, "hit_opt": 0.12 + 0.03 * power}
            for power in range(9)
        ],
        "search": {"simulations": 60, "bounded": 12, "seconds": 214.0},
        "warnings": ["The price of gpu.h100 is assumed."],
        "reproduce": ["kvtwin simulate out/plan/recommended.toml --out out/recommended"],
    }


def write(folder, **changed):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan() | changed, indent=1), encoding="utf-8")
    (folder / "recommended.toml").write_text(
        "seed = 1  # default\nmodel.name = 'qwen3-32b'  # plan\n", encoding="utf-8"
    )


if __name__ == "__main__":
    write(sys.argv[1])
