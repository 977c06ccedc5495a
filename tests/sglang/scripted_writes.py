"""Requests one after another on SGLang's own cache with a host tier, above a storage whose writes end when the script says so.

The cache, the controller and its storage threads are SGLang's. Until a write ends, SGLang keeps its pages on the host. The writes
fail, so a page is written again whenever it comes to the host.
"""

import random
import threading
from array import array
from types import SimpleNamespace

import scripted_storage
import sequential_server
from scripted_storage import PAGE_TOKENS


class Storage:
    """Has no page. A write ends after `open.set()`."""

    def __init__(self):
        self.open = threading.Event()

    def batch_exists(self, keys, extra_info=None):
        return 0

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        self.open.wait()
        return [False] * len(keys)


class Server(sequential_server.Server):
    def _add_host(self, tokens, write_policy, load_back_min_tokens):
        super()._add_host(tokens, write_policy, load_back_min_tokens)
        cache, controller = self.cache, self.cache.cache_controller
        self.storage = Storage()
        controller.enable_storage = cache.enable_storage = True
        controller.storage_stop_event = threading.Event()
        controller.storage_backend, controller.storage_backend_type = self.storage, "file"
        controller.page_get_func, controller.page_set_func = controller._page_get_zero_copy, controller._page_set_zero_copy
        controller.prefetch_tokens_occupied, controller.prefetch_capacity_limit = 0, 0
        controller.pp_prefetch_decisions, controller.pp_prefetch_command_thread = {}, None
        controller.prefetch_hits_sync_groups = controller.prefetch_completion_sync_groups = []
        controller._all_reduce = lambda tensor, op, groups: tensor
        controller.storage_config = SimpleNamespace(pp_rank=0, is_storage_writer=True)
        controller._start_storage_threads()
        cache.hicache_storage_pass_prefix_keys = False

    def end_writes(self):
        self.storage.open.set()

        def ended():
            self.cache.check_hicache_events()
            return not self.cache.ongoing_backup

        scripted_storage.until(ended)
        self.storage.open.clear()

    def stop(self):
        self.storage.open.set()
        self.cache.cache_controller._stop_storage_threads()


def random_scenario(draw):
    """`requests`: a document, its first pages, and whether all writes end after the request."""
    device_pages = draw.randint(8, 40)
    documents = [(draw.randint(0, 4), draw.randint(2, device_pages - 2)) for _ in range(draw.randint(1, 12))]
    requests, ends = [], draw.choice([0.0, 0.0, 0.05, 0.3])
    for _ in range(60):
        document = draw.randrange(len(documents))
        requests.append((document, draw.randint(1, documents[document][1]), draw.random() < ends))
    return {"write_policy": draw.choice(["write_back", "write_back", "write_through"]), "device_pages": device_pages,
            "host_pages": draw.randint(4, 60), "documents": documents, "requests": requests}


def prompt_of(scenario, document, pages):
    """The pages of document 1 up to the shared ones, then the document's own."""
    shared = scenario["documents"][document][0]
    tokens = [(1 if page < shared else 2 + document) * 10_000 + page * PAGE_TOKENS + at
              for page in range(pages) for at in range(PAGE_TOKENS)]
    return array("q", [*tokens, 1])


def results(scenario):
    """Pages that hit on the device and on the host, by request. SGLang gives up if a request has no room: `full`."""
    server = Server("rust", "lru", PAGE_TOKENS, scenario["device_pages"] * PAGE_TOKENS, scenario["host_pages"] * PAGE_TOKENS,
                    scenario["write_policy"], load_back_min_tokens=1)
    hits = []
    try:
        for number, (document, pages, ends) in enumerate(scenario["requests"]):
            try:
                hit = server.serve(number, prompt_of(scenario, document, pages), 1, array("q", [2]))
            except AssertionError as error:
                if "does not fit" not in str(error):
                    raise
                return [*hits, "full"]  # SGLang's scheduler ends with "Prefill out of memory"
            hits.append(":".join(str(tokens // PAGE_TOKENS) for tokens in hit))
            if ends:
                server.end_writes()
        return hits
    finally:
        server.stop()


COLUMNS = "write_policy device_pages host_pages documents requests hits"


def table(version, count):
    scripted_storage.prepare()
    draw = random.Random(7)
    lines = [f"# SGLang {version}: requests above a storage whose writes end when the script says so, and their hits; pages of "
             f"{PAGE_TOKENS} tokens; see tests/sglang/scripted_writes.py", "\t".join(COLUMNS.split())]
    for _ in range(count):
        scenario = random_scenario(draw)
        documents = ",".join(f"{shared}:{pages}" for shared, pages in scenario["documents"])
        requests = ",".join(f"{document}:{pages}:{int(ends)}" for document, pages, ends in scenario["requests"])
        lines.append("\t".join(map(str, (scenario["write_policy"], scenario["device_pages"], scenario["host_pages"], documents,
                                         requests, ",".join(results(scenario))))))
    return "\n".join(lines) + "\n"
