"""kvtwin's eviction policies in SGLang 0.5.23, as a tree core of its unified radix cache.

    --radix-eviction-policy tide                              any policy of kvtwin
    --radix-eviction-policy-config '{"journal": "FILE"}'      records every call, for `kvtwin replay`
    SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=kvtwin

The core is SGLang's own Python core. It also reports each change of the tree to kvtwin.policy.Policy (the mirror), and
takes the victims of both tiers from there. SGLang keeps all pages, locks and transfers, so a wrong mirror can only cost
hits: a victim that SGLang cannot evict is passed over, and if the mirror has no other, SGLang chooses this victim by
LRU. If a report fails, the mirror is made again from SGLang's tree. counters() counts all three.

Left to SGLang: which redundant host copies write_back reclaims first.
"""

import dataclasses
import functools
import hashlib
import logging
import math
import time
from typing import Any

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.components import (
    BASE_COMPONENT_TYPE,
    ComponentType,
    EvictLayer,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

from kvtwin import engine_store
from kvtwin.policy import DEVICE, HINTS, HOST, KEY_BYTES, RECENCY, ROOT, STAMP, STAMP_NODE, CallJournal, Policy
from kvtwin.policy import names, page_keys
from kvtwin_sglang import host_name

BACKEND = "kvtwin"
MAX_PARAMETER = (1 << 31) - 1
MAX_REFUSED = 64  # victims that SGLang cannot evict, in a row
MAX_LOGGED_HINTS = 100  # kinds
MAX_HINT_MS = 1 << 40
logger = logging.getLogger(__name__)

# SGLang's names of the parameters, and kvtwin's.
PARAMETERS = {
    "protected_threshold": "slru_protected_touches",
    "threshold": "tlru_threshold_tokens",
    "next_prompt_estimate": "tlru_next_prompt_tokens",
    "doubling_tokens": "doubling_tokens",
}


class Visitor:
    """What the core knows of a request. Kept at the request."""

    def __init__(self, number: int):
        self.number = number
        self.keys = b""  # of the pages seen so far
        self.visits = 0
        self.inserted = False  # since the last first or further visit by an admission
        self.hinted = False  # its hints have been given


def session_number(request: Any) -> int:
    """64 bits, 0 for no session. Equal names give equal numbers in every process."""
    name = getattr(request, "session_id", None)
    if not name:
        return 0
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), "little") or 1


def hint_milliseconds(payload: Any) -> int | None:
    """The time of an action of kv_hints; 0 without one, None for what is no time. As traces/kv_hints.hpp."""
    found = 0.0
    for name, unit in (("value", 1), ("ttl_ms", 1), ("ttl_s", 1000)):
        number = payload.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
            return None
        found = min(number * unit, MAX_HINT_MS)
    return math.ceil(found)


def reports(method):
    """For a method that tells the mirror of a change that SGLang has made. If that fails, the mirror is made again
    before the next victim is chosen."""

    @functools.wraps(method)
    def guarded(self, *arguments):
        if not self.in_step:
            return None
        try:
            return method(self, *arguments)
        except Exception as error:  # whatever is wrong with the mirror, SGLang goes on
            self.in_step = False
            self.failed_reports += 1
            logger.warning("kvtwin: the mirror is made again, because %s failed: %s", method.__name__, error)
            return None

    return guarded


class KvtwinTreeCore(UnifiedTreeCore):
    def __init__(self, params: CacheInitParams, components: dict):
        wrong = None
        if set(components) != {ComponentType.FULL}:
            # A policy sees pages as leaves of a tree. SGLang gives up windows and states inside nodes too, by lists of its core.
            wrong = "models with sliding windows or Mamba states, because kvtwin's policies choose pages only"
        elif params.is_eagle:
            wrong = "speculative decoding with bigram keys (EAGLE)"
        elif params.enable_session_radix_cache:
            wrong = "--enable-session-radix-cache"
        if wrong:
            raise ValueError(f"the tree core {BACKEND!r} does not take {wrong}; unset SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND")
        name = params.eviction_policy.lower()
        if name not in names():
            raise ValueError(f"kvtwin has no eviction policy {name!r}; it has {', '.join(names())}")
        config = dict(params.eviction_policy_config or {})
        self.policy_name = name
        self.journal = CallJournal(engine_store.text(config, "journal"), host_name()) if "journal" in config else None
        config.pop("journal", None)
        # Pages with the same history form a node of their own.
        self.shares = engine_store.flag(config, "share", True)
        config.pop("share", None)
        unknown = [key for key in config if key not in PARAMETERS]
        if unknown:
            raise ValueError(f"kvtwin does not know {', '.join(unknown)} of --radix-eviction-policy-config; it knows "
                             f"journal, share, {', '.join(PARAMETERS)}")
        self.parameters = {PARAMETERS[key]: engine_store.whole_number(config, key, 0, MAX_PARAMETER) for key in config}
        self.allocator = params.token_to_kv_pool_allocator
        self.clock = time.monotonic_ns
        self.policy: Policy | None = None  # made at the first match or insert, when the host pool is known
        self.in_step = False               # the mirror has all changes
        self.impossible = False            # the mirror cannot be made until the cache is flushed
        self.requests = 0
        self.inserting: Any = None         # the request whose pages are inserted
        self.insert_number = 0             # of this request's present checkpoint
        self.is_first_insert = False
        self.insert_keys = b""
        self.refused: list[tuple[int, int]] = []  # (node of the mirror, tier), leased for one walk
        self.last_victim: Any = None
        self.given_up: set = set()  # nodes that SGLang could not evict in this walk
        self.waiting: dict[int, Any] = {}  # id of the request -> request
        self.passed_over = self.own_choices = self.failed_reports = self.other_matches = self.passed_over_hints = 0
        self.idle_hints: set[tuple[str, str]] = set()  # kinds that have been logged, and why they have no effect
        full = components[ComponentType.FULL]
        self.own_start, self.own_next, self.own_end = (
            full._evict_device_start, full._evict_device_next_node, full._evict_device_end)
        self.own_host_eviction = full.drive_host_eviction
        full._evict_device_start = self.start_device_walk
        full._evict_device_next_node = self.next_device_victim
        full._evict_device_end = self.end_device_walk
        full.drive_host_eviction = self.evict_host_leaves
        self.full = full
        # SGLang's own choice, where the mirror has none.
        super().__init__(dataclasses.replace(params, eviction_policy="lru", eviction_policy_config=None), components)

    # ---- the mirror

    def reset(self) -> None:
        super().reset()
        self.root_node.mirror = ROOT
        self.nodes = {ROOT: self.root_node}
        self.refused.clear()
        self.waiting.clear()
        self.impossible = self.in_step = False

    def ready(self) -> bool:
        """Makes the mirror, or makes it again if a report has failed. False if that is impossible."""
        if self.in_step or self.impossible:
            return self.in_step
        try:
            if self.policy is None:
                host = self.full._full_kv_pool_host
                self.policy = Policy(
                    self.policy_name, device_pages=self.allocator.size // self.page_size,
                    host_pages=0 if host is None else host.size // self.page_size, page_tokens=self.page_size,
                    whole_nodes=True, split_refreshes=True, hits_by_count=True, journal=self.journal, **self.parameters)
                facts = self.policy.stats()
                self.looks_ahead, self.takes_hints = facts["looks_ahead"], facts["takes_hints"]
            self.copy_tree()
            self.in_step = True
        except Exception as error:
            logger.error("kvtwin: the mirror cannot be made, so SGLang chooses all victims by LRU: %s", error)
            self.policy = None
            self.impossible = True
        return self.in_step

    def copy_tree(self) -> None:
        """Reports SGLang's whole tree. The policy's memory of earlier requests is lost."""
        self.policy.clear()
        self.waiting.clear()
        self.refused.clear()
        self.nodes = {ROOT: self.root_node}
        below = [(child, b"") for child in self.root_node.children.values()]
        locks = []
        while below:
            node, prior = below.pop()
            data = node.component_data[BASE_COMPONENT_TYPE]
            keys = self.keys_below(prior, node.key)
            tier = HOST if data.value is None else DEVICE
            node.mirror = self.policy.insert(node.parent.mirror, keys, tier, node.priority)
            self.nodes[node.mirror] = node
            if data.host_value is not None and tier == DEVICE:
                self.policy.place(node.mirror, HOST)
            own = data.lock_ref - sum(child.component_data[BASE_COMPONENT_TYPE].lock_ref for child in node.children.values())
            locks += [node.mirror] * own
            below += [(child, keys[-KEY_BYTES:]) for child in node.children.values()]
        for node in locks:
            self.policy.lease(node, DEVICE)
        for node in sorted(self.nodes.values(), key=lambda node: node.last_access_time):
            self.policy.touch(node.mirror, STAMP_NODE)

    def keys_below(self, prior: bytes, key) -> bytes:
        if prior:
            return page_keys(key.raw_token_ids(), self.page_size, prior)
        return page_keys(key.raw_token_ids(), self.page_size, None, key.extra_key, key.cache_salt)

    def path_key(self, node) -> bytes:
        """The key of the last page of the path to `node`."""
        path = []
        while node is not self.root_node:
            path.append(node)
            node = node.parent
        prior = b""
        for node in reversed(path):
            prior = self.keys_below(prior, node.key)[-KEY_BYTES:]
        return prior

    # ---- requests

    def visitor(self, request) -> Visitor:
        known = getattr(request, "kvtwin_visitor", None)
        if known is None:
            known = request.kvtwin_visitor = Visitor(self.requests)
            self.requests += 1
        return known

    def keys_of(self, request, key) -> bytes:
        """The keys of the pages of `key`, whose tokens are the first ones of the request."""
        pages = len(key) // self.page_size
        known = self.visitor(request)
        have = len(known.keys) // KEY_BYTES
        if have < pages:
            known.keys += self.keys_below(known.keys[-KEY_BYTES:], key[have * self.page_size : pages * self.page_size])
        return known.keys[: pages * KEY_BYTES]

    def admitted(self, request, end: int) -> None:
        """The request goes to work; its cached prefix ends at SGLang's node `end`."""
        if self.ready():
            self.report_admission(request, end)

    @reports
    def report_admission(self, request, end: int) -> None:
        known = self.visitor(request)
        if self.waiting.pop(id(request), None) is not None:
            self.policy.unqueue(known.number)
        if known.visits and not known.inserted:
            return
        prompt = self.prompt_key(request)
        now = self.clock()
        session = session_number(request)
        if getattr(request, "kv_hints", None) and not known.hinted:
            known.hinted = True
            for action in request.kv_hints.actions:
                self.give_hint(action, session, now)
        self.policy.visit(
            known.number, now, len(request.origin_input_ids), self.keys_of(request, prompt), session=session,
            output_tokens=len(request.output_ids),
            is_further=known.visits > 0)
        known.visits += 1
        known.inserted = False
        self.policy.touch(self.node_by_id(end).mirror, RECENCY)

    def give_hint(self, action, session: int, now: int) -> None:
        """To the policy, if it takes such a hint. All others are counted, and the first of each kind is logged."""
        name = action.action_type.removeprefix("kv.")
        kind = HINTS.get("pin" if name == "retain" else name)
        milliseconds = hint_milliseconds(action.payload)
        why = None
        if kind is None:
            why = f"the tree core knows {', '.join(HINTS)} and retain only"
        elif not self.takes_hints:
            why = f"the eviction policy {self.policy_name} takes no hints; tide does"
        elif not session:
            why = "its request has no session_id"
        elif milliseconds is None:
            why = "its time is no number from 0 on"
        if why is None:
            return self.policy.hint(kind, session, milliseconds, now)
        if (name, why) not in self.idle_hints and len(self.idle_hints) < MAX_LOGGED_HINTS:
            self.idle_hints.add((name, why))
            logger.warning("kvtwin: kv_hints: %s has no effect, because %s", action.action_type, why)
        self.passed_over_hints += 1
        return None

    def prompt_key(self, request):
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(request.origin_input_ids, request.extra_key, cache_salt=request.cache_salt).page_aligned(self.page_size)

    def queued(self, request) -> None:
        if self.ready() and self.looks_ahead:
            self.report_queued(request)

    @reports
    def report_queued(self, request) -> None:
        if id(request) in self.waiting:
            return
        prompt = self.prompt_key(request)
        # The last token is always computed.
        pages = max(len(request.origin_input_ids) - 1, 0) // self.page_size
        self.policy.queue(self.visitor(request).number, self.keys_of(request, prompt)[: pages * KEY_BYTES])
        self.waiting[id(request)] = request

    @reports
    def unqueued(self, request) -> None:
        if self.waiting.pop(id(request), None) is not None:
            self.policy.unqueue(self.visitor(request).number)

    def queue_is(self, requests) -> None:
        """Makes the mirror's queue equal to SGLang's."""
        if not (self.ready() and self.looks_ahead):
            return
        now = {id(request) for request in requests}
        for gone in [request for key, request in self.waiting.items() if key not in now]:
            self.unqueued(gone)
        for request in requests:
            if id(request) not in self.waiting:
                self.queued(request)

    # ---- what SGLang does

    def match_prefix(self, params):
        result = super().match_prefix(params)
        if len(params.key) >= self.page_size and self.ready():
            self.report_match(params, self.node_by_id(result.best_match_node))
        return result

    @reports
    def report_match(self, params, end) -> None:
        if params.req is not None:
            keys = self.keys_of(params.req, params.key)
            if self.policy.match(keys)[0] != end.mirror:
                self.other_matches += 1
        self.policy.touch(end.mirror, STAMP)

    def begin_insert(self, params):
        if self.ready():
            self.report_insert(params)
        step = super().begin_insert(params)
        return self.report_step(params, step)

    def resume_insert(self):
        params = self._ongoing_insert_walk_state.params if self._ongoing_insert_walk_state is not None else None
        return self.report_step(params, super().resume_insert())

    @reports
    def report_insert(self, params) -> None:
        request = self.inserting
        if request is None:
            self.insert_keys = self.keys_below(b"", params.key.page_aligned(self.page_size))
            self.is_first_insert = False
            return
        self.insert_keys = self.keys_of(request, params.key)
        known = self.visitor(request)
        self.is_first_insert = self.insert_number == 0
        self.insert_number += 1
        if self.is_first_insert and self.insert_keys:
            self.policy.visit(
                known.number, self.clock(), len(request.origin_input_ids), self.insert_keys,
                session=session_number(request), is_further=known.visits > 0,
                output_tokens=len(request.output_ids))
            known.visits += 1
            known.inserted = True

    def report_step(self, params, step):
        if step.result is not None and params is not None and self.in_step:
            self.report_inserted(self.node_by_id(step.result.last_device_node))
        return step

    @reports
    def report_inserted(self, end) -> None:
        if self.is_first_insert:
            self.policy.touch(end.mirror, RECENCY)

    def _touch_node(self, node):
        super()._touch_node(node)
        if self.in_step:
            self.report_touch(node)

    @reports
    def report_touch(self, node) -> None:
        self.policy.touch(node.mirror, STAMP_NODE)

    def _inc_hit_count_and_check(self, node):
        before = node.hit_count
        result = super()._inc_hit_count_and_check(node)
        if node.hit_count != before:
            self.report_hit(node)
        return result

    @reports
    def report_hit(self, node) -> None:
        self.policy.count(node.mirror)

    def _finish_insert_walk_node(self, state, node, prefix_len):
        self.report_priority(node)
        super()._finish_insert_walk_node(state, node, prefix_len)

    @reports
    def report_priority(self, node) -> None:
        self.policy.raise_priority(node.mirror, node.priority)

    def _add_new_node(self, parent, key, value, priority=0, **others):
        keys = self.insert_keys[self._ongoing_insert_walk_state.total_prefix_length // self.page_size * KEY_BYTES :]
        begin = 0
        while True:
            pages = self.shared_history(keys) if self.shares else len(keys) // KEY_BYTES
            end = begin + pages * self.page_size if pages else len(key)
            node = super()._add_new_node(parent, key[begin:end], value[begin:end], priority, **others)
            self.report_new_node(node, keys[: pages * KEY_BYTES])
            if end >= len(key):
                return node
            self._inc_hit_count_and_check(node)  # SGLang counts the last node
            parent, begin, keys = node, end, keys[pages * KEY_BYTES :]

    def shared_history(self, keys) -> int:
        return self.report_shared(keys) or 0

    @reports
    def report_shared(self, keys):
        return self.policy.share(keys)

    @reports
    def report_new_node(self, node, keys) -> None:
        node.mirror = self.policy.insert(node.parent.mirror, keys, DEVICE, node.priority)
        self.nodes[node.mirror] = node

    def _split_node(self, key, child, split_len):
        upper, action = super()._split_node(key, child, split_len)
        self.report_split(upper, child)
        return upper, action

    @reports
    def report_split(self, upper, child) -> None:
        upper.mirror = self.policy.split(child.mirror, len(upper.key) // self.page_size)
        self.nodes[upper.mirror] = upper

    def _unevict_node_on_insert(self, node, *arguments, **others):
        super()._unevict_node_on_insert(node, *arguments, **others)
        self.report_copy(node, DEVICE)

    def commit_load_back(self, node_id, device_indices, kv_xfer, comp_xfers):
        actions = super().commit_load_back(node_id, device_indices, kv_xfer, comp_xfers)
        for loaded in kv_xfer.nodes_to_load or ():
            self.report_copy(self.node_by_id(loaded), DEVICE)
        return actions

    def commit_backup(self, node_id, host_indices, comp_xfers):
        super().commit_backup(node_id, host_indices, comp_xfers)
        if host_indices.numel() > 0:
            self.report_copy(self.node_by_id(node_id), HOST)

    @reports
    def report_copy(self, node, tier) -> None:
        self.policy.place(node.mirror, tier)

    def insert_host(self, node_id, key, host_value, hash_value):
        anchor, before = self.node_by_id(node_id), {}
        node = anchor
        position = 0
        while position < len(key):  # nodes on the path that are on the host already
            node = node.children.get(key[position:].child_key(self.page_size))
            if node is None:
                break
            before[id(node)] = node.backuped
            position += len(node.key)
        result = super().insert_host(node_id, key, host_value, hash_value)
        if self.in_step:
            self.report_host_path(anchor, key, before)
        return result

    @reports
    def report_host_path(self, anchor, key, before) -> None:
        node, position, was_on_host = anchor, 0, False
        while position < len(key):
            node = node.children.get(key[position:].child_key(self.page_size))
            if node is None or not node.backuped:
                return
            if not hasattr(node, "mirror"):
                keys = self.keys_below(self.path_key(node.parent), node.key)
                node.mirror = self.policy.insert(node.parent.mirror, keys, HOST, node.priority)
                self.nodes[node.mirror] = node
            elif not before.get(id(node), was_on_host):  # a split gives the upper part the state of the lower one
                self.policy.place(node.mirror, HOST)
            was_on_host = before.get(id(node), was_on_host)
            position += len(node.key)

    def inc_lock_ref(self, node_id, skip_lock_components=()):
        result = super().inc_lock_ref(node_id, skip_lock_components)
        if BASE_COMPONENT_TYPE not in result.skipped_lock_components:
            self.report_lock(self.node_by_id(node_id))
        return result

    def dec_lock_ref(self, node_id, params, skip_swa=False):
        result = super().dec_lock_ref(node_id, params, skip_swa)
        if BASE_COMPONENT_TYPE not in params.skipped_lock_components:
            self.report_unlock(self.node_by_id(node_id))
        return result

    def inc_full_pin(self, node_id):
        super().inc_full_pin(node_id)
        self.report_lock(self.node_by_id(node_id))

    def dec_full_pin(self, node_id):
        super().dec_full_pin(node_id)
        self.report_unlock(self.node_by_id(node_id))

    @reports
    def report_lock(self, node) -> None:
        self.policy.lease(node.mirror, DEVICE)

    @reports
    def report_unlock(self, node) -> None:
        self.policy.release(node.mirror, DEVICE)

    def _evict_component_and_detach_lru(self, node, comp, *arguments, target=EvictLayer.DEVICE, **others):
        data = node.component_data[BASE_COMPONENT_TYPE]
        device = EvictLayer.DEVICE in target and data.value is not None
        host = EvictLayer.HOST in target and data.host_value is not None
        reclaimed = host and data.value is not None and not device
        freed = super()._evict_component_and_detach_lru(node, comp, *arguments, target=target, **others)
        if self.in_step:
            self.report_eviction(node, device, host, reclaimed)
        return freed

    @reports
    def report_eviction(self, node, device, host, reclaimed) -> None:
        for tier in (tier for tier, leaves in ((DEVICE, device), (HOST, host)) if leaves):
            if reclaimed or (device and host):
                self.policy.drop(node.mirror, tier)
            else:
                self.policy.evict(node.mirror, tier, len(node.key) // self.page_size)

    def _remove_leaf_from_parent(self, node):
        super()._remove_leaf_from_parent(node)
        self.nodes.pop(getattr(node, "mirror", None), None)

    # ---- victims

    def mirror_victim(self, tier, leaves):
        """The victim of the mirror, or None if SGLang must choose."""
        for _ in range(MAX_REFUSED):
            found = self.ask_victim(tier)
            if found is None:
                return None
            node = self.nodes.get(found)
            if node is not None and node in leaves:
                return node
            self.passed_over += 1
            self.refuse(found, tier)
        return None

    @reports
    def ask_victim(self, tier):
        return self.policy.victim(tier)

    @reports
    def refuse(self, mirrored, tier) -> None:
        """Leaves a node out for the rest of the walk."""
        self.policy.lease(mirrored, tier)
        self.refused.append((mirrored, tier))

    @reports
    def end_refusals(self) -> None:
        for mirrored, tier in self.refused:
            self.policy.release(mirrored, tier)
        self.refused.clear()

    def own_victim(self, leaves):
        self.own_choices += 1
        return min(leaves, key=lambda node: node.last_access_time)

    def next_victim(self, tier, leaves):
        if self.last_victim is not None and self.last_victim in leaves:  # SGLang could not evict it
            self.given_up.add(self.last_victim)
            self.refuse(self.last_victim.mirror, tier)
        self.last_victim = None
        left = leaves - self.given_up if self.given_up else leaves
        if left:
            victim = self.mirror_victim(tier, left) if self.ready() else None
            self.last_victim = victim if victim is not None else self.own_victim(left)
        return self.last_victim

    def start_walk(self) -> None:
        self.last_victim, self.given_up = None, set()
        self.refused.clear()

    def start_device_walk(self, request_cnt) -> None:
        self.device_wanted = request_cnt
        self.start_walk()

    def next_device_victim(self, tracker, device_frees, host_frees, cache_actions):
        if tracker[BASE_COMPONENT_TYPE] >= self.device_wanted:
            return None
        victim = self.next_victim(DEVICE, self.evictable_device_leaves)
        return None if victim is None else victim.id

    def end_device_walk(self) -> None:
        self.end_refusals()
        self.last_victim = None

    def evict_host_leaves(self, num_tokens, tracker, device_frees, host_frees, cache_actions) -> None:
        """Instead of FullComponent.drive_host_eviction. May come in the middle of a walk of the device."""
        outer = self.last_victim, self.given_up, self.refused
        self.last_victim, self.given_up, self.refused = None, set(), []
        while tracker[BASE_COMPONENT_TYPE] < num_tokens:
            victim = self.next_victim(HOST, self.evictable_host_leaves)
            if victim is None:
                break
            self._evict_host_leaf(victim, tracker, device_frees, host_frees, cache_actions=cache_actions)
        self.end_refusals()
        self.last_victim, self.given_up, self.refused = outer

    def counters(self) -> dict[str, int]:
        """passed_over: victims that SGLang could not evict; own_choices: victims that SGLang chose; failed_reports: how
        often the mirror was made again; other_matches: matches that end elsewhere in the mirror; passed_over_hints:
        hints that had no effect."""
        return {"passed_over": self.passed_over, "own_choices": self.own_choices, "failed_reports": self.failed_reports,
                "other_matches": self.other_matches, "passed_over_hints": self.passed_over_hints}
