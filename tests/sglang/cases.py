"""What is compared: sequence, policies and capacities. Tokens are those of the shrunken sequences."""

from dataclasses import dataclass

POLICIES = ("lru", "fifo", "lfu", "mru", "filo", "slru")
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
NO_CHUNKS = 65536


@dataclass(frozen=True)
class Case:
    sequence: str
    eviction: str
    device_tokens: int
    host_tokens: int = 0
    write_policy: str = "write_through"
    chunk_tokens: int = NO_CHUNKS
    # With either, the second number of a request's hits is of storage, which keeps everything.
    is_buffer: bool = False  # the host
    is_linked: bool = False  # the device to storage, without a host
    counts_sessions: bool = False  # --enable-session-radix-cache

    @property
    def name(self):
        words = [self.sequence, self.eviction, f"device={self.device_tokens}"]
        if self.host_tokens:
            words += [f"{'buffer' if self.is_buffer else 'host'}={self.host_tokens}", self.write_policy]
        if self.is_linked:
            words.append("linker")
        if self.counts_sessions:
            words.append("session_radix")
        if self.chunk_tokens != NO_CHUNKS:
            words.append(f"chunk={self.chunk_tokens}")
        return " ".join(words)


def one_tier():
    for eviction in POLICIES:
        for tokens in (4000, 12000, 40000):
            yield Case("chat", eviction, tokens)
        yield Case("agentic", eviction, 40000)
        yield Case("tools", eviction, 4000)
        yield Case("groups", eviction, 60000)
        yield Case("answers", eviction, 8000)
        yield Case("again", eviction, 8000)
        for sequence in ("chat", "answers"):
            yield Case(sequence, eviction, 8000, chunk_tokens=32)
    for tokens in (4000, 12000, 40000):
        yield Case("priorities", "priority", tokens)
    yield Case("priorities", "priority", 8000, chunk_tokens=32)


def two_tiers():
    for write_policy in WRITE_POLICIES:
        for eviction in POLICIES:
            for device, host in ((4000, 8000), (4000, 2000), (12000, 28000), (12000, 12000)):
                yield Case("chat", eviction, device, host, write_policy)
        for sequence, device in (("agentic", 40000), ("tools", 4000), ("groups", 60000), ("answers", 8000),
                                 ("again", 8000)):
            yield Case(sequence, "lru", device, 2 * device, write_policy)
            yield Case(sequence, "slru", device, 2 * device, write_policy)
        yield Case("answers", "lru", 8000, 16000, write_policy, chunk_tokens=32)
        for device, host in ((4000, 8000), (4000, 2000), (8000, 16000), (12000, 12000)):
            yield Case("priorities", "priority", device, host, write_policy)


def buffers():
    for write_policy in ("write_through", "write_through_selective"):
        for eviction in POLICIES:
            for device, buffer in ((4000, 4000), (4000, 400), (12000, 12000)):
                yield Case("chat", eviction, device, buffer, write_policy, is_buffer=True)
        for sequence, device in (("agentic", 40000), ("tools", 4000), ("groups", 60000), ("answers", 8000),
                                 ("again", 8000)):
            yield Case(sequence, "lru", device, device, write_policy, is_buffer=True)
            yield Case(sequence, "slru", device, device // 4, write_policy, is_buffer=True)
        yield Case("answers", "lru", 8000, 8000, write_policy, chunk_tokens=32, is_buffer=True)
        yield Case("priorities", "priority", 4000, 4000, write_policy, is_buffer=True)


def linkers():
    for eviction in POLICIES:
        for device in (4000, 12000):
            yield Case("chat", eviction, device, is_linked=True)
    for sequence, device in (("agentic", 40000), ("tools", 4000), ("groups", 60000), ("answers", 8000), ("again", 8000)):
        for eviction in ("lru", "slru"):
            yield Case(sequence, eviction, device, is_linked=True)
    for eviction in POLICIES:
        yield Case("agentic", eviction, 80000, is_linked=True)
        yield Case("answers", eviction, 4000, is_linked=True)
    for device in (4000, 12000):
        yield Case("priorities", "priority", device, is_linked=True)
    yield Case("answers", "lru", 8000, chunk_tokens=32, is_linked=True)
    yield Case("agentic", "lru", 40000, chunk_tokens=256, is_linked=True)


def real_trace():
    for eviction in POLICIES:
        for tokens in (12000, 40000, 120000):
            yield Case("real", eviction, tokens)
        for write_policy in WRITE_POLICIES:
            for device, host in ((12000, 28000), (40000, 120000)):
                yield Case("real", eviction, device, host, write_policy)


def sessions():
    def case(*given, **named):
        return Case(*given, **named, counts_sessions=True)

    for eviction in POLICIES:
        for seed in (1, 2):
            for tokens in (4000, 12000):
                yield case(f"chat-{seed}", eviction, tokens)
            yield case(f"agentic-{seed}", eviction, 40000)
        yield case("tools-3", eviction, 4000)
        yield case("chat-4", eviction, 8000, chunk_tokens=32)
    for seed in (1, 2):
        yield case(f"priorities-{seed}", "priority", 4000)
    for write_policy in WRITE_POLICIES:
        for eviction in POLICIES:
            for device, host in ((4000, 8000), (4000, 2000), (12000, 12000)):
                yield case("chat-1", eviction, device, host, write_policy)
        for sequence, device in (("agentic-1", 40000), ("tools-3", 4000), ("groups-1", 60000), ("answers-1", 8000),
                                 ("again-1", 8000)):
            yield case(sequence, "lru", device, 2 * device, write_policy)
            yield case(sequence, "slru", device, 2 * device, write_policy)
        yield case("priorities-1", "priority", 4000, 8000, write_policy)
    for eviction in ("lru", "slru"):
        yield case("chat-1", eviction, 4000, 400, is_buffer=True)
        yield case("chat-1", eviction, 4000, is_linked=True)


def all_cases():
    return [*one_tier(), *two_tiers(), *buffers(), *linkers(), *sessions(), *real_trace()]
