"""Sequences of requests for both sides, made from the bundled trace and from kvtwin's generators.

A block of the trace becomes one page of PAGE_TOKENS tokens, and all lengths shrink with it, so that both sides are quick.
A request starts GAP_MS after the one before it, so that every request ends before the next one starts.
"""

import hashlib
import json
from array import array
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE_TOKENS = 4
GAP_MS = 100_000
MAX_ANSWER_TOKENS = 4096
FIRST_ANSWER_TOKEN = 1 << 40


@dataclass(frozen=True)
class Request:
    blocks: tuple
    prompt_tokens: int
    answer_tokens: int
    priority: int

    def prompt(self):
        tokens = array("q")
        for block in self.blocks:
            tokens.extend(range(block * PAGE_TOKENS, (block + 1) * PAGE_TOKENS))
        return tokens[: self.prompt_tokens]

    def line(self, number):
        return json.dumps({
            "timestamp": number * GAP_MS, "input_length": self.prompt_tokens, "output_length": self.answer_tokens,
            "hash_ids": self.blocks, "priority": self.priority})


def answer(number, tokens):
    """The tokens of an answer, which no prompt has."""
    first = FIRST_ANSWER_TOKEN + number * MAX_ANSWER_TOKENS
    return array("q", range(first, first + tokens))


def priority_of(number):
    return number * 2654435761 % 2**32 % 4


def read(path, block_tokens, answer_divisor=0):
    """`answer_divisor`: of the answers' lengths; 0 = as the prompts'."""
    divisor = block_tokens // PAGE_TOKENS
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        yield Request(
            tuple(line["hash_ids"]), -(-line["input_length"] // divisor),
            min(MAX_ANSWER_TOKENS, -(-line["output_length"] // (answer_divisor or divisor))), 0)


def with_priorities(requests):
    for number, r in enumerate(requests):
        yield Request(r.blocks, r.prompt_tokens, r.answer_tokens, priority_of(number))


def prompts_again(requests):
    """Prompts of whole pages. Every third prompt comes a second time five requests later."""
    last = []
    for number, r in enumerate(requests):
        last = [*last[-5:], Request(r.blocks, len(r.blocks) * PAGE_TOKENS, r.answer_tokens, 0)]
        yield last[-1]
        if number % 3 == 0:
            yield last[0]


def make(name, kvtwin, folder, real_trace):
    """The requests of sequence `name`, or None if `name` is "real" and the file `real_trace` is not there."""
    trace = folder / f"{name}.source.jsonl"
    generated = {"agentic": (300, 64), "tools": (1500, 512), "groups": (1000, 16)}
    if name in generated:
        requests, block_tokens = generated[name]
        kvtwin.run("trace", "generate", "--kind", name, "--requests", requests, "--out", trace)
        return list(read(trace, block_tokens))
    if name == "real":
        if not real_trace.is_file():
            return None
        kvtwin.run("trace", "convert", real_trace, trace)
        return list(read(trace, 512))
    limit = {"chat": 1500, "answers": 700, "priorities": 1000, "again": 800}[name]
    kvtwin.run("trace", "convert", ROOT / "traces/chat_small.jsonl.zst", trace, "--limit", limit)
    requests = read(trace, 512, 16 if name == "answers" else 0)
    if name == "priorities":
        requests = with_priorities(requests)
    if name == "again":
        requests = prompts_again(requests)
    return list(requests)


def write(requests, path):
    """Returns the file's digest."""
    text = "\n".join(r.line(number) for number, r in enumerate(requests)) + "\n"
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
