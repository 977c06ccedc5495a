"""Records what an engine's own cache does with sequences of requests. As a program in the environment of the engine
(`tools/engine-env sglang|vllm`), called by `tools/engine-parity hybrid`:

  record.py sglang|vllm OPTIONS    OPTIONS: a JSON object with the fields of Options. Prints the path of each file, and
                                   the sequences that are left out.

hybrid_server.hpp describes the files. The first line also has all that is needed to record the sequence again.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(TESTS), str(TESTS / "hybrid")]
import configs
import sequences


@dataclass(frozen=True)
class Options:
    names: list  # of configurations
    seeds: list
    operations: int
    room: int  # %, of the sizes of the pools
    traffic: str  # chats, agents, or "" = the one of the configuration
    core: str  # of SGLang's tree
    folder: str
    seed_in_name: bool


class SglangEngine:
    def __init__(self, options):
        sys.path.insert(0, str(TESTS / "sglang"))
        import sglang_imports

        self.version, self.core = sglang_imports.prepare(), options.core
        import hybrid_server

        self.does_not_fit = hybrid_server.DoesNotFitError
        self.server = lambda config: hybrid_server.Server(core=self.core, **config)


class VllmEngine:
    does_not_fit = ()
    core = None

    def __init__(self, options):
        sys.path.insert(0, str(TESTS / "vllm"))
        import vllm_imports

        self.version = vllm_imports.prepare_core()
        import hybrid_server
        import offloaded_server

        self.server = lambda config: (offloaded_server if "host_chunks" in config else hybrid_server).Server(**config)


def run(server, operations):
    """The operations with their outcomes."""
    running, lines = {}, []
    for operation in operations:
        if operation["op"] == "start":
            session = {"session": operation["session"]} if "session" in operation else {}
            running[operation["id"]], outcome = server.start(
                operation["id"], sequences.tokens_of(operation["prompt"]), **session)
        elif operation["op"] == "close":
            outcome = server.close(operation["session"])
        else:
            outcome = server.finish(running.pop(operation["id"]), sequences.tokens_of([operation["answer"]]))
        lines.append({**operation, **outcome, "usage": server.usage()})
    server.check()
    return lines


def smaller_limits(most_running):
    """Limits of a sequence, from the largest down: requests that run at a time, and tokens of a prompt."""
    lengths = (3000, 2000, 1333, 888, 592, 394, 262)
    for several in (True, False):
        for longest in lengths:
            yield from ((running, longest) for running in range(most_running, 0, -1) if (running > 1) == several)


def record(engine, name, seed, options):
    """The lines of the file; None if no request fits. The limits are the largest of smaller_limits() with which every
    request fits."""
    config = configs.with_room(configs.config_of(name, seed), options.room)
    traffic = options.traffic or configs.traffic_of(name, seed)
    for running, longest in smaller_limits(configs.most_running(config)):
        made = sequences.sequence(traffic, seed, options.operations, config.get("page", 16), running, longest,
                                  configs.unit_of(config), config.get("session_radix", False))
        try:
            lines = run(engine.server(config), made)
        except engine.does_not_fit:
            continue
        core = "python" if config.get("session_radix") else engine.core  # SGLang's other one has no sessions
        return [{"engine": name.split("-")[0], "version": engine.version, "core": core, "config": config,
                 "traffic": traffic, "seed": seed, "running": running, "longest": longest}, *lines]
    return None


def main():
    options = Options(**json.loads(sys.argv[2]))
    engine = {"sglang": SglangEngine, "vllm": VllmEngine}[sys.argv[1]](options)
    for name in options.names:
        for seed in options.seeds:
            lines = record(engine, name, seed, options)
            if lines is None:
                print(f"left out: {name}, seed {seed}: a request does not fit the pools")
                continue
            path = Path(options.folder) / (f"{name}-{seed}.jsonl" if options.seed_in_name else f"{name}.jsonl")
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            print(path, flush=True)


if __name__ == "__main__":
    main()
