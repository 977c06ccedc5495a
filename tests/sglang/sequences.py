"""Sequences of requests for both sides, made from the bundled trace and from kvtwin's generators.

A block of the trace becomes one page of PAGE_TOKENS tokens, and all lengths shrink with it, so that both sides are quick.
A request starts GAP_MS after the one before it, so that every request ends before the next one starts.
"""

import hashlib
import json
import random
from array import array
from dataclasses import dataclass, replace
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
    session: int = 0  # 0 = none
    closes: tuple = ()  # sessions that close behind this request
    closes_own: bool = False  # the request's session closes while the request runs

    def prompt(self):
        tokens = array("q")
        for block in self.blocks:
            tokens.extend(range(block * PAGE_TOKENS, (block + 1) * PAGE_TOKENS))
        return tokens[: self.prompt_tokens]

    def lines(self, number):
        time = number * GAP_MS
        request = {"timestamp": time, "input_length": self.prompt_tokens, "output_length": self.answer_tokens,
                   "hash_ids": self.blocks, "priority": self.priority}
        yield request | {"session": self.session} if self.session else request
        if self.closes_own:
            yield {"timestamp": time, "hint": "session_end", "session": self.session}
        for session in self.closes:
            yield {"timestamp": time + GAP_MS // 2, "hint": "session_end", "session": session}


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


def with_sessions(requests, seed):
    """A request mostly belongs to the session of the last request with which it shares more than its first blocks. So
    sessions branch. Sessions close, in the middle too, and closed ones open again."""
    rnd = random.Random(seed)
    last = {}  # the session of the last request with this block
    known = []
    for r in requests:
        deepest = next((last[block] for block in reversed(r.blocks[2:]) if block in last), 0)
        session = deepest
        if not deepest or rnd.random() < 0.08:
            session = rnd.choice(known) if known and rnd.random() < 0.1 else len(known) + 1
        if rnd.random() < 0.1:
            session = 0
        if session and session not in known:
            known.append(session)
        last.update((block, session or deepest) for block in r.blocks[2:])
        closes = tuple(rnd.sample(known, min(len(known), rnd.randrange(1, 4)))) if known and rnd.random() < 0.15 else ()
        yield replace(r, session=session, closes=closes, closes_own=bool(session) and rnd.random() < 0.08)


def make(name, kvtwin, folder, real_trace):
    """The requests of sequence `name`, or None if `name` is "real" and the file `real_trace` is not there."""
    trace = folder / f"{name}.source.jsonl"
    generated = {"agentic": (300, 64), "tools": (1500, 512), "groups": (1000, 16)}
    if "-" in name:  # another sequence, with sessions drawn by a seed
        base, seed = name.split("-")
        own = folder / name
        own.mkdir()
        requests = make(base, kvtwin, own, real_trace)
        return None if requests is None else list(with_sessions(requests, int(seed)))
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
    text = "".join(json.dumps(line) + "\n" for number, r in enumerate(requests) for line in r.lines(number))
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
