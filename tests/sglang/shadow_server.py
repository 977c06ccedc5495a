"""SGLang's own cache with kvtwin's tree core (python/kvtwin_sglang/tree_core.py), for requests one after another."""

from sequential_server import Server

# The depth at which a token costs twice what the first one does, of the model and hardware in kvtwin_program.py.
DOUBLING_TOKENS = 273


def prepare():
    """Registers the core, as SGLang's start would by the package's entry point. The package must be on Python's path."""
    from kvtwin_sglang import plugin
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plugin.register_core()
    HookRegistry.register("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint",
                          plugin.around_checkpoint, HookType.AROUND)
    HookRegistry.apply_hooks()


class ShadowServer(Server):
    def __init__(self, eviction, *arguments, times=None, journal=None, **named):
        self.config = {"journal": str(journal)} if journal else {}
        if times is not None:
            self.config["doubling_tokens"] = DOUBLING_TOKENS
        super().__init__("kvtwin", eviction, *arguments, **named)
        self.core = self.cache.tree_core
        self.times = times
        if times is not None:
            self.core.clock = lambda: self.now

    def queue(self, request):
        if self.times is not None:
            self.now = self.times[request.rid][0]
        self.core.queued(request)

    def _decode(self, request, fill):
        # kvtwin's scheduler works on a request in two steps: the first one computes the prompt, the second one the answer.
        if self.times is not None and len(fill) > len(request.origin_input_ids):
            self.now = self.times[request.rid][1]
        super()._decode(request, fill)

    def admit(self, request):
        self.core.admitted(request, request.last_node)

    def check(self):
        super().check()
        self.core.policy.check()
        total = {0: 0, 1: 0}
        for node in self.core.nodes.values():
            data = node.component_data[0]
            for tier, value in ((0, data.value), (1, data.host_value)):
                total[tier] += 0 if value is None or node is self.core.root_node else len(node.key) // self.page
        stats = self.core.policy.stats()
        assert (stats["device_pages"], stats["host_pages"]) == (total[0], total[1]), "the mirror has other pages"
        assert stats["nodes"] + 1 == len(self.core.nodes), "the mirror has other nodes"
