"""SGLang's results as a small file, and kvtwin's results compared with them.

The file has, for each case, SGLang's totals, a digest of all requests' hits, and the requests in which kvtwin differed
when the file was written. So a comparison needs no SGLang.
"""

import hashlib
import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "fixtures/sglang/parity.json"
MAX_LISTED = 100


def digest_of(hits):
    return hashlib.sha256("".join(f"{device},{host}\n" for device, host in hits).encode()).hexdigest()[:16]


def difference(engine_hits, kvtwin_hits):
    """[request, SGLang's device and host hit tokens, kvtwin's]"""
    assert len(engine_hits) == len(kvtwin_hits)
    return [[number, *engine, *kvtwin]
            for number, (engine, kvtwin) in enumerate(zip(engine_hits, kvtwin_hits)) if engine != kvtwin]


def row_of(case, engine_hits, evicted_pages, kvtwin_hits, kvtwin_evicted_pages):
    differ = difference(engine_hits, kvtwin_hits)
    row = {
        "case": case.name,
        "requests": len(engine_hits),
        "hit_device": sum(device for device, _ in engine_hits),
        "hit_host": sum(host for _, host in engine_hits),
        "evicted_pages": evicted_pages,
        "digest": digest_of(engine_hits),
        "differ": len(differ),
    }
    if len(differ) > MAX_LISTED:
        row["kvtwin_digest"] = digest_of(kvtwin_hits)
    elif differ:
        row["differences"] = differ
    if kvtwin_evicted_pages != evicted_pages:
        row["kvtwin_evicted_pages"] = kvtwin_evicted_pages
    return row


def check_totals(row, totals):
    """None, or how the hits of hitrate differ from SGLang's."""
    if totals == (row["hit_device"], row["hit_host"]):
        return None
    return (f"hitrate hits {totals[0]} tokens on the device and {totals[1]} on the host instead of "
            f"{row['hit_device']} and {row['hit_host']}")


def check(row, kvtwin_hits, kvtwin_evicted_pages):
    """None, or what is wrong. Fewer differences than the file lists are right."""
    if len(kvtwin_hits) != row["requests"]:
        return f"{len(kvtwin_hits)} requests were served instead of {row['requests']}"
    if digest_of(kvtwin_hits) == row["digest"]:
        return None if kvtwin_evicted_pages in (row["evicted_pages"], row.get("kvtwin_evicted_pages")) else (
            f"{kvtwin_evicted_pages} pages were evicted from the device instead of {row['evicted_pages']}")
    if digest_of(kvtwin_hits) == row.get("kvtwin_digest"):
        return None
    known = list(kvtwin_hits)
    for number, device, host, *_ in row.get("differences", []):
        known[number] = (device, host)
    if digest_of(known) == row["digest"]:
        return None
    device, host = (sum(column) for column in zip(*kvtwin_hits))
    return (f"hits differ from SGLang's in requests that tests/fixtures/sglang/parity.json does not list: "
            f"{device} tokens hit on the device and {host} on the host instead of {row['hit_device']} and "
            f"{row['hit_host']}")


def table(rows):
    """Markdown: one line for each sequence, write policy, capacity and chunk; one column for each eviction policy."""
    cells, evictions = {}, []
    for row in rows:
        sequence, eviction, *rest = row["case"].split()
        if eviction not in evictions:
            evictions.append(eviction)
        text = f"{row['hit_device'] + row['hit_host']:,}" + (f" ({row['differ']})" if row["differ"] else "")
        key = (sequence, row["requests"], " ".join(rest))
        cells.setdefault(key, {})[eviction] = text
    lines = ["| sequence | requests | tokens of the tiers | " + " | ".join(f"`{e}`" for e in evictions) + " |",
             "|---|---|---|" + "---|" * len(evictions)]
    for (sequence, requests, rest), values in cells.items():
        found = " | ".join(values.get(e, "") for e in evictions)
        lines.append(f"| {sequence} | {requests:,} | {rest} | {found} |")
    return "\n".join(lines)


def read():
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(version, sequences, rows):
    """One line for each sequence and case, so that a change is a short diff."""
    lines = ['{', f'"sglang": {json.dumps(version)},', '"sequences": {']
    lines.append(",\n".join(f"{json.dumps(name)}: {json.dumps(digest)}" for name, digest in sequences.items()))
    lines += ['},', '"cases": [']
    lines.append(",\n".join(json.dumps(row) for row in rows))
    lines += [']', '}']
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
