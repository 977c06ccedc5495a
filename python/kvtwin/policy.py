"""kvtwin's eviction policies, for an engine that keeps its own cache.

The engine reports what happens to its pages, and asks for victims:

    from kvtwin.policy import DEVICE, Policy, page_keys
    policy = Policy("tide", device_pages=1000, page_tokens=16)
    keys = page_keys(tokens, 16)                      # 32 bytes a page
    end, device_pages, host_pages = policy.match(keys)
    policy.visit(request=0, time_ns=0, prompt_tokens=len(tokens), keys=keys)
    node = policy.insert(end, keys[32 * device_pages:], DEVICE)
    victim = policy.victim(DEVICE)
    policy.evict(victim, DEVICE, pages)

include/kvtwin/policy.h describes each call. A node is a number; 0 is the root. A policy belongs to one thread at a time.
Errors: InputError for a call that does not fit the state (nothing has changed), WorkError for a failure inside kvtwin.
"""

import operator
from array import array
from typing import Any

from kvtwin import _core

DEVICE, HOST = 0, 1
ROOT = 0
KEY_BYTES = 32
# Kinds of a touch.
RECENCY, ACCESS, STAMP, STAMP_NODE = range(4)
HINTS = {"session_end": 0, "tool_call_pending": 1, "pin": 2, "unpin": 3}
GET, PUT, LOOK_UP = range(3)


def names() -> list[str]:
    """The names of the eviction policies."""
    return list(_core.policy_names)


def page_keys(tokens: "array[int]", page_tokens: int, prior: bytes | None = None, extra_key: str | None = None,
              salt: str | None = None) -> bytes:
    """A key of 32 bytes for each whole page of `tokens`, an array("q"). `prior`: the key of the page before the first
    one. `extra_key`, `salt`: the namespace of a first page."""
    size = operator.index(page_tokens)
    keys: Any = _core.page_keys  # takes any buffer of int64
    return keys(tokens, size, prior, extra_key, salt) if len(tokens) >= size else b""


class CallJournal(_core.CallJournal):
    """A file with every call of the policies that it is given to, and of the engine's storage back end. `kvtwin replay`,
    `kvtwin explain` and `kvtwin calibrate --from` read it. Any thread may call storage_call()."""

    def __init__(self, path: str, host: str = ""):
        super().__init__(path, host)


class Policy(_core.Policy):
    """A radix tree with an eviction policy for each tier.

    name              of the policy, with parameters or without: "lru", "slru(protected=3)"
    whole_nodes       the engine evicts whole nodes
    split_refreshes   a split counts as an access of the lower part
    hits_by_count     a node enters without a hit, and count() adds hits
    parameters        doubling_tokens. Of earlier versions: slru_protected_touches, tlru_threshold_tokens and
                      tlru_next_prompt_tokens, which now stand in the name
    """

    def __init__(self, name: str, device_pages: int, host_pages: int = 0, page_tokens: int = 1, *,
                 whole_nodes: bool = True, split_refreshes: bool = False, hits_by_count: bool = False,
                 journal: CallJournal | None = None, **parameters: int):
        known = ("doubling_tokens", "slru_protected_touches", "tlru_threshold_tokens", "tlru_next_prompt_tokens")
        values: dict[str, Any] = dict.fromkeys(known, 0)
        for key, value in parameters.items():
            if key not in known:
                raise TypeError(f"there is no parameter {key!r}; the parameters are {', '.join(known)}")
            values[key] = value
        super().__init__(name=name, device_pages=device_pages, host_pages=host_pages, page_tokens=page_tokens,
                         whole_nodes=whole_nodes, split_refreshes=split_refreshes, hits_by_count=hits_by_count,
                         journal=journal, **values)

    def insert(self, parent: int, keys: bytes, tier: int = DEVICE, priority: int = 0) -> int:
        return super().insert(parent, keys, tier, priority)

    def visit(  # type: ignore[override]  # by names
              self, request: int, time_ns: int, prompt_tokens: int, keys: bytes, *, session: int = 0,
              output_tokens: int = 0, is_further: bool = False) -> None:
        super().visit(request, time_ns, session, prompt_tokens, output_tokens, keys, is_further)
