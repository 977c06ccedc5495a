"""The configurations of engines that sequences are recorded with. The keys are those of the engines' servers
(tests/sglang/hybrid_server.py, tests/vllm/hybrid_server.py); tests/hybrid/sglang_server.cpp reads them too. The entries of
DRAWN are functions of the seed, which draw everything."""

import random

WINDOW = dict(page=16, full_tokens=6144, window=64, window_tokens=4096, chunk=512)
STATE = dict(page=64, full_tokens=16384, states=48, chunk=1024)
BOTH = dict(page=64, full_tokens=16384, window=128, window_tokens=8192, states=48, chunk=1024)
SMALL = dict(page=16, full_tokens=4096, window=64, window_tokens=2048, chunk=512)

SGLANG = {
    "sglang-window": WINDOW,
    "sglang-window-page1": dict(page=1, full_tokens=4000, window=50, window_tokens=1500, chunk=256),
    "sglang-window-page64": dict(page=64, full_tokens=8192, window=128, window_tokens=3072, chunk=128),
    "sglang-window-odd": dict(page=16, full_tokens=6144, window=100, window_tokens=2048, chunk=512),
    "sglang-window-long": dict(page=16, full_tokens=8192, window=1000, window_tokens=4096, chunk=256),
    "sglang-window-tight": dict(page=16, full_tokens=8192, window=128, window_tokens=1536, chunk=256),
    "sglang-window-agents": dict(page=16, full_tokens=12288, window=64, window_tokens=3072, chunk=512),
    "sglang-window-lfu": {**WINDOW, "eviction": "lfu"},
    "sglang-state": STATE,
    "sglang-state-page1": dict(page=1, full_tokens=12000, states=40, chunk=128),
    "sglang-state-tight": dict(page=1, full_tokens=16384, states=20, chunk=1024),
    "sglang-state-path1": dict(page=16, full_tokens=12288, states=40, chunk=256, track_interval=128, max_states_per_path=1),
    "sglang-state-path2": dict(page=64, full_tokens=16384, states=40, chunk=512, max_states_per_path=2),
    "sglang-state-path3": dict(page=64, full_tokens=12288, states=32, chunk=256, track_interval=128, max_states_per_path=3),
    "sglang-state-no-buffer": dict(page=1, full_tokens=12000, states=32, chunk=1024, strategy="no_buffer"),
    "sglang-state-agents": dict(page=16, full_tokens=16384, states=40, chunk=512),
    "sglang-state-slru": {**STATE, "full_tokens": 12288, "eviction": "slru"},
    "sglang-window-state": BOTH,
    "sglang-window-state-lfu": {**BOTH, "full_tokens": 12288, "page": 16, "eviction": "lfu"},
    "sglang-window-state-page1": dict(page=1, full_tokens=10000, window=70, window_tokens=4000, states=32, chunk=256,
                                      track_interval=128),
    "sglang-window-state-tight": dict(page=16, full_tokens=12288, window=100, window_tokens=3072, states=24, chunk=256,
                                      max_states_per_path=3),
    "sglang-window-host": dict(**SMALL, host_tokens=16384, host_window_tokens=4096),
    "sglang-window-host-back": dict(**SMALL, host_tokens=8192, host_window_tokens=4096, write_policy="write_back"),
    "sglang-window-page1-host": dict(page=1, full_tokens=4000, window=50, window_tokens=1500, chunk=256, host_tokens=8000,
                                     host_window_tokens=1500),
    "sglang-state-host": dict(page=64, full_tokens=8192, states=24, chunk=1024, host_tokens=32768, host_states=48),
    "sglang-state-host-back": dict(page=64, full_tokens=8192, states=24, chunk=1024, host_tokens=12288, host_states=24,
                                   write_policy="write_back"),
    "sglang-state-page1-host": dict(page=1, full_tokens=8000, states=24, chunk=256, track_interval=128, host_tokens=16000,
                                    host_states=40),
    "sglang-window-state-host": dict(page=64, full_tokens=8192, window=128, window_tokens=4096, states=24, chunk=512,
                                     host_tokens=16384, host_window_tokens=4096, host_states=40),
    "sglang-window-state-host-back": dict(page=64, full_tokens=8192, window=128, window_tokens=4096, states=24, chunk=512,
                                          host_tokens=12288, host_window_tokens=2048, host_states=24,
                                          write_policy="write_back"),
    "sglang-window-state-path-host-back": dict(page=16, full_tokens=8192, window=100, window_tokens=3072, states=24, chunk=256,
                                               max_states_per_path=2, host_tokens=6144, host_window_tokens=1024,
                                               host_states=12, write_policy="write_back"),
}
SESSIONS = {
    "sglang-window-sessions": {**WINDOW, "window_tokens": 2048},
    "sglang-window-odd-sessions": dict(page=16, full_tokens=6144, window=100, window_tokens=2048, chunk=512),
    "sglang-window-sessions-agents": dict(page=16, full_tokens=12288, window=64, window_tokens=2048, chunk=512),
    "sglang-state-sessions": dict(page=64, full_tokens=16384, states=24, chunk=1024),
    "sglang-state-page1-sessions": dict(page=1, full_tokens=8000, states=24, chunk=128, eviction="slru"),
    "sglang-state-path2-sessions": dict(page=16, full_tokens=12288, states=24, chunk=512, max_states_per_path=2),
    "sglang-window-state-sessions": dict(page=16, full_tokens=8192, window=100, window_tokens=3072, states=24, chunk=256),
    "sglang-window-state-sessions-agents": dict(page=16, full_tokens=16384, window=128, window_tokens=4096, states=24, chunk=512),
    "sglang-window-sessions-host": dict(**SMALL, host_tokens=8192, host_window_tokens=2048),
    "sglang-state-sessions-host": dict(page=64, full_tokens=8192, states=20, chunk=1024, host_tokens=16384, host_states=24),
    "sglang-window-state-sessions-host": dict(page=64, full_tokens=8192, window=128, window_tokens=4096, states=24, chunk=512,
                                              host_tokens=12288, host_window_tokens=3072, host_states=24),
    "sglang-window-sessions-host-back": dict(**SMALL, host_tokens=6144, host_window_tokens=2048, write_policy="write_back"),
    "sglang-state-sessions-host-back": dict(page=64, full_tokens=8192, states=20, chunk=1024, host_tokens=12288,
                                            host_states=16, write_policy="write_back"),
    "sglang-window-state-sessions-host-back": dict(page=64, full_tokens=8192, window=128, window_tokens=4096, states=24,
                                                   chunk=512, host_tokens=8192, host_window_tokens=2048, host_states=16,
                                                   write_policy="write_back"),
}
SGLANG.update({name: {**config, "session_radix": True} for name, config in SESSIONS.items()})  # --enable-session-radix-cache
ATTENTION = dict(memory=400_000_000, layers={"full": 18, "window": 18}, heads=8, head_size=64, window=128, chunk=512)
STATES = dict(memory=900_000_000, layers={"full": 12, "state": 36}, heads=2, head_size=256, chunk=1024,
              state_shapes=[[3, 2048], [8, 64, 64]], state_dtypes=["bfloat16", "float32"])
HOST = dict(memory=16_000_000, heads=2, head_size=64, chunk=512, host_chunks=700)
VLLM = {
    "vllm-window": ATTENTION,
    "vllm-window-dense": {**ATTENTION, "retention": None},
    "vllm-window-odd": {**ATTENTION, "memory": 300_000_000, "window": 100, "retention": 256},
    "vllm-window-tight": {**ATTENTION, "memory": 140_000_000},
    "vllm-window-5to1": dict(memory=4_000_000_000, layers={"full": 10, "window": 52}, heads=16, head_size=128, window=1024,
                             chunk=1024),
    "vllm-window-agents": {**ATTENTION, "memory": 600_000_000},
    "vllm-window-large-rows": {**ATTENTION, "memory": 400_000_000, "window_heads": 16},
    "vllm-window-small-rows": {**ATTENTION, "memory": 300_000_000, "window_heads": 4, "window": 500},
    "vllm-state": STATES,
    "vllm-state-tight": {**STATES, "memory": 250_000_000, "chunk": 256},
    "vllm-state-agents": {**STATES, "memory": 600_000_000, "chunk": 512},
    "vllm-window-host": {**HOST, "layers": {"full": 6, "window": 6}, "window": 64},
    "vllm-window-host-arc": {**HOST, "layers": {"full": 6, "window": 18}, "window": 100, "host_eviction": "arc",
                             "host_chunks": 200},
    "vllm-state-host": {**STATES, "memory": 150_000_000, "host_chunks": 200},
}
ENGINES = {"sglang": SGLANG, "vllm": VLLM}


def drawn_sglang(seed, host=False):
    rnd = random.Random(seed)
    page = rnd.choice((1, 1, 2, 8, 16, 16, 32, 64, 128))

    def tokens(least, most):
        return max(page, rnd.randrange(least, most) // page * page)

    config = dict(page=page, full_tokens=tokens(3000, 14000), chunk=max(page, rnd.choice((64, 100, 128, 300, 512, 4096))))
    kinds = rnd.choice(("window", "state", "window and state"))
    if "window" in kinds:
        config["window"] = rnd.choice((1, 5, 16, 50, 64, 100, 128, 200, 500, 1000, 4000))
        config["window_tokens"] = tokens(config["full_tokens"] // 5, config["full_tokens"])
        config["window_eviction_interval"] = rnd.choice((128, 128, 1, 16, 300))
    if "state" in kinds:
        config["states"] = rnd.randrange(12, 50)
        config["state_chunk"] = rnd.choice((16, 32, 64, 64, 128, 256))
        config["track_interval"] = rnd.choice((16, 64, 128, 256, 256))
        config["max_states_per_path"] = rnd.choice((-1, -1, -1, 1, 2, 3, 4))
        if page == 1 and rnd.random() < 0.4:
            config["strategy"], config["state_chunk"] = "no_buffer", 64
    config["eviction"] = rnd.choice(("lru", "lru", "lru", "lfu", "fifo", "mru", "filo", "slru"))
    if host:
        config["host_tokens"] = tokens(config["full_tokens"] // 3, config["full_tokens"] * 3)
        if "window" in kinds:
            config["host_window_tokens"] = tokens(config["window_tokens"] // 3, config["window_tokens"] * 2)
        if "state" in kinds:
            config["host_states"] = rnd.randrange(5, 60)
        config["write_policy"] = rnd.choice(("write_through", "write_through", "write_back", "write_through_selective"))
    return config


def drawn_vllm(seed):
    rnd = random.Random(seed)
    config = dict(heads=2, head_size=64, block=rnd.choice((16, 16, 32, 64)), chunk=rnd.choice((64, 256, 512, 4096)))
    if rnd.random() < 0.5:
        config["layers"] = {"full": rnd.randrange(1, 7), "window": rnd.randrange(1, 13)}
        config["window"] = rnd.choice((16, 50, 128, 500, 1024))
        config["retention"] = rnd.choice((0, 0, None, 64, 256, 1024))
        if rnd.random() < 0.3:  # blocks of the smaller rows have twice the tokens
            config["window_heads"] = rnd.choice((1, 4))
    else:
        config["layers"] = {"full": rnd.randrange(1, 5), "state": rnd.randrange(1, 13)}
        config["state_shapes"] = [[3, 256], [rnd.choice((1, 2, 4)), 32, 64]]
        config["state_dtypes"] = ["bfloat16", "float32"]
        config["retention"] = rnd.choice((0, 0, None, 960))  # a multiple of the blocks: 32, 48, 64 or 80 tokens
    config["memory"] = 512 * sum(config["layers"].values()) * rnd.randrange(1500, 14000)
    return config


def drawn_write_back(seed):
    """L2 is at most as large as L1, so that it is full, and has few states."""
    rnd, config = random.Random(seed), {**drawn_sglang(seed, host=True), "write_policy": "write_back"}
    page, percent = config["page"], rnd.choice((15, 30, 60, 100))
    for key in ("full_tokens", "window_tokens"):
        if key in config:
            config["host_" + key.removeprefix("full_")] = max(page, config[key] * percent // 100 // page * page)
    if "states" in config:
        config["host_states"] = rnd.choice((1, 3, 8, 20))
    return config


def with_references(drawn):
    return lambda seed: {**drawn(seed), "session_radix": True}


DRAWN = {
    "sglang-drawn": drawn_sglang,
    "sglang-drawn-sessions": with_references(drawn_sglang),
    "sglang-drawn-sessions-host": with_references(lambda seed: drawn_sglang(seed, host=True)),
    "sglang-drawn-sessions-back": with_references(drawn_write_back),
    "sglang-drawn-host": lambda seed: drawn_sglang(seed, host=True),
    "sglang-drawn-back": drawn_write_back,
    "vllm-drawn": drawn_vllm,
}

# Sizes of pools. `room` of a sequence multiplies them.
SIZES = ("full_tokens", "window_tokens", "states", "host_tokens", "host_window_tokens", "host_states", "memory")


def config_of(name, seed):
    return DRAWN[name](seed) if name in DRAWN else {**SGLANG, **VLLM}[name]


def traffic_of(name, seed):
    agents = seed % 2 == 1 if name in DRAWN else name.endswith("-agents")
    return "agents" if agents else "chats"


def unit_of(config):
    """The tokens up to a multiple of which the prompts are equal. kvtwin finds vLLM's blocks by the page that they end in, the
    least common multiple of all blocks; if a page has several blocks of a group, vLLM also finds those in front of the place
    where two prompts part."""
    heads = config.get("heads", 1), config.get("window_heads", config.get("heads", 1))
    return 1 if heads[0] == heads[1] else config.get("block", 16) * max(heads) // min(heads)


def with_room(config, percent):
    """The configuration with pools of `percent` % of its sizes, in whole pages. kvtwin refuses a window pool on the device
    that is smaller than the windows of two requests (EngineConfig::least_slots), so the pool has at least these."""
    page = config.get("page", 1)
    scaled = {key: max(page, config[key] * percent // 100 // page * page) if "tokens" in key
              else max(1, config[key] * percent // 100) for key in SIZES if key in config}
    if "window_tokens" in scaled:
        pages = -(-config["window"] // page) + -(-config.get("window_eviction_interval", 128) // page) + 2
        scaled["window_tokens"] = max(scaled["window_tokens"], 2 * pages * page)
    return {**config, **scaled}


def most_running(config):
    """SGLang's limit on the requests that run at a time: a fifth of the states, or a third without tracking; 3 here at
    most."""
    if "states" not in config:
        return 3
    return max(1, min(3, config["states"] // (3 if config.get("strategy") == "no_buffer" else 5)))
