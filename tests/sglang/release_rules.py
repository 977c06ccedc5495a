"""Rules of SGLang's prefix cache that differ between releases, read from the source of an installed release.

tools/engine-parity sglang --rules prints the rules of a release, or writes its line of release_rules.tsv in
tests/fixtures/sglang/. The source is parsed and not imported, because older releases do not fit the stand-ins.
"""

import ast
import importlib.metadata
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "fixtures/sglang/release_rules.tsv"
RULES = {
    "release": "of SGLang",
    "tree": "the class that serves a model without window and state layers, with a host tier",
    "timeout_base_s": "cache.prefetch_timeout_base_s",
    "timeout_per_ki_token_s": "cache.prefetch_timeout_per_ki_token_s",
    "timeout_most_s": "cache.prefetch_timeout_most_s; 0: no bound",
    "timeout_from": "cache.rules.prefetch_timeout_from",
    "prefetch_policy": "default of --hicache-storage-prefetch-policy",
    "mem_layout": "default of --hicache-mem-layout",
    "retry_steps": "default of --hicache-storage-prefetch-retry-poll-interval; 0: no retry",
    "retry_attempts": "default of --hicache-storage-prefetch-retry-max-attempts; 0: no such flag",
    "prompt_priority": "cache.rules.raise_prompt_priority",
    "reclaims": "cache.rules.reclaim_shadowed under write_back",
    "counts_once": "an insert counts a use of a prefix once for a request",
    "rechecks": "cache.rules.prefetch_recheck",
    "beyond_device": "cache.rules.prefetch_share_of = host_less_device",
    "host_memory_fraction": "default of --hicache-host-memory-fraction; 0: no such flag",
}


class Source:
    def __init__(self, folder):
        self.folder = folder

    def text(self, name):
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def field(self, name, absent):
        """The default of a field of ServerArgs."""
        files = [self.folder / "server_args.py", *sorted(self.folder.glob("arg_groups/fields/*.py"))]
        for path in files:
            if f"    {name}:" not in path.read_text(encoding="utf-8"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
                    return ast.literal_eval(node.value)
        return absent

    def popped(self, name, key):
        """The default of a key of --hicache-storage-backend-extra-config."""
        for node in ast.walk(ast.parse(self.text(name))):
            if (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "pop" and len(node.args) == 2
                    and getattr(node.args[0], "value", "") == key):
                return ast.literal_eval(node.args[1])
        raise LookupError(f"{name} has no {key}")

    def fields_of_class(self, name, of):
        """The defaults of a class's fields."""
        for node in ast.walk(ast.parse(self.text(name))):
            if isinstance(node, ast.ClassDef) and node.name == of:
                return {field.target.id: ast.literal_eval(field.value) for field in node.body
                        if isinstance(field, ast.AnnAssign)}
        raise LookupError(f"{name} has no class {of}")


def timeout_of(source, tree):
    """base, per 1,024 tokens, upper bound."""
    if tree == "UnifiedRadixCache":
        controller = "mem_cache/hybrid_cache/hybrid_cache_controller.py"
        return (source.popped(controller, "prefetch_timeout_base"),
                source.popped(controller, "prefetch_timeout_per_ki_token"), 0)
    if "PrefetchTimeoutConfig()" in source.text("mem_cache/hiradix_cache.py"):
        config = source.fields_of_class("mem_cache/hicache_storage.py", "PrefetchTimeoutConfig")
        return config["base"], config["per_ki_token"], config["max"]
    return (source.popped("mem_cache/hiradix_cache.py", "prefetch_timeout_base"),
            source.popped("mem_cache/hiradix_cache.py", "prefetch_timeout_per_ki_token"), 0)


def beyond_device(source, release):
    """Whether prefetches may fill a share of what the host pool has more than the device pool, which it must have."""
    code = "".join(source.text("managers/cache_controller.py").split())
    beyond = "int(0.8*(self.mem_pool_host.size-self.mem_pool_device.size))" in code
    half = any(f"int(0.5*self.mem_pool_host.{size})" in code for size in ("size", "logical_size"))
    pool = source.text("mem_cache/pool_host/base.py") or source.text("mem_cache/memory_pool_host.py")
    must = "assert(self.size>device_pool.size)" in "".join(pool.split())
    assert beyond != half and beyond == must, f"SGLang {release} has another limit of prefetches"
    return beyond


def rules_of(folder, release):
    source = Source(folder)
    chooser = source.text("mem_cache/registry.py") or source.text("managers/scheduler.py")
    tree = "HiRadixCache" if "HiRadixCache(" in chooser else "UnifiedRadixCache"
    code = source.text(
        "mem_cache/hiradix_cache.py" if tree == "HiRadixCache" else "mem_cache/unified_radix_cache.py")
    core = code + source.text("mem_cache/unified_cache/unified_tree_core.py")
    base, per_ki_token, most = timeout_of(source, tree)
    issue, wait = "operation.start_time" in code, "_start_storage_prefetch_wait" in code
    assert issue != wait, f"SGLang {release} has another time limit of prefetches"
    return {
        "release": release,
        "tree": tree,
        "timeout_base_s": base,
        "timeout_per_ki_token_s": per_ki_token,
        "timeout_most_s": most,
        "timeout_from": "wait" if wait else "issue",
        "prefetch_policy": source.field("hicache_storage_prefetch_policy", ""),
        "mem_layout": source.field("hicache_mem_layout", ""),
        "retry_steps": source.field("hicache_storage_prefetch_retry_poll_interval", 0),
        "retry_attempts": source.field("hicache_storage_prefetch_retry_max_attempts", 0),
        "prompt_priority": tree == "UnifiedRadixCache" and "insert_params.priority + 1" in core,
        "reclaims": tree == "UnifiedRadixCache" and "_reclaim_full_host_duplicates" in core,
        "counts_once": "inserted_len" in core,
        "rechecks": "_prefetch_after_device_hit_loss(" in source.text("managers/scheduler.py"),
        "beyond_device": beyond_device(source, release),
        "host_memory_fraction": source.field("hicache_host_memory_fraction", 0),
    }


def number_of(release):
    return [int(part) for part in release.split(".")]


def installed():
    distribution = importlib.metadata.distribution("sglang")
    return rules_of(Path(distribution.locate_file("sglang/srt")), distribution.version)


def line_of(rules):
    words = [str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
             for value in rules.values()]
    return "\t".join(words)


def compare(renew):
    """Prints the rules of the installed release, and whether they are the stored ones. Returns 1 if not."""
    rules = installed()
    line = line_of(rules)
    stored = FILE.read_text(encoding="utf-8").splitlines() if FILE.is_file() else []
    rows = {text.split("\t")[0]: text for text in stored if not text.startswith(("#", "release\t"))}
    for name, value in rules.items():
        print(f"{name}: {value}  ({RULES[name]})")
    same = rows.get(rules["release"]) == line
    print("as stored" if same else f"not as stored in {FILE.name}")
    if renew:
        rows[rules["release"]] = line
        head = ["# Rules of SGLang's releases, read from their source; see tests/sglang/release_rules.py", "\t".join(RULES)]
        FILE.write_text("\n".join([*head, *(rows[name] for name in sorted(rows, key=number_of))]) + "\n",
                        encoding="utf-8")
    return 0 if renew or same else 1
