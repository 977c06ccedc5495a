"""The entry point `sglang.srt.plugins` of the package: adds the tree core and the policies' names to SGLang.

If SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND is not `kvtwin`, the plugin only adds names, and SGLang runs as without it.
"""

from sglang.srt.environ import envs
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.unified_cache.tree_core_registry import register_tree_core_backend, registered_tree_core_backends
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from kvtwin.policy import names

BACKEND = "kvtwin"


def make_core(params, components):
    from kvtwin_sglang.tree_core import KvtwinTreeCore

    return KvtwinTreeCore(params, components)


def needs_core(name):
    def strategy(**config):
        raise ValueError(f"the eviction policy {name!r} is kvtwin's; set SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND={BACKEND}")

    return strategy


def mirror_of(cache):
    core = getattr(cache, "tree_core", None)
    return core if hasattr(core, "admitted") else None


def around_checkpoint(original, cache, request, **others):
    """The inserts of a checkpoint belong to the request."""
    core = mirror_of(cache)
    if core is None:
        return original(cache, request, **others)
    core.inserting, core.insert_number = request, 0
    try:
        return original(cache, request, **others)
    finally:
        core.inserting = None


def after_admission(result, adder, request, *others, **named):
    core = mirror_of(adder.tree_cache)
    if core is not None:
        core.admitted(request, request.last_node)


def before_batch(scheduler, *others, **named):
    core = mirror_of(scheduler.tree_cache)
    if core is not None:
        core.queue_is(scheduler.waiting_queue)


def register_core():
    if BACKEND in registered_tree_core_backends():
        return
    register_tree_core_backend(BACKEND, make_core)
    for name in names():
        utils._EVICTION_POLICY_FACTORIES.setdefault(name, needs_core(name))


def register():
    """Called by SGLang in each of its processes."""
    from sglang.srt.arg_groups.choices import RADIX_EVICTION_POLICY_CHOICES

    register_core()
    RADIX_EVICTION_POLICY_CHOICES.extend(name for name in names() if name not in RADIX_EVICTION_POLICY_CHOICES)
    if envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.get() != BACKEND:
        return
    HookRegistry.register("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint", around_checkpoint,
                          HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.schedule_policy.PrefillAdder._commit_prefill_admission", after_admission,
                          HookType.AFTER)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill", before_batch, HookType.BEFORE)
