"""The work of `tools/engine-parity hybrid`."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

import configs

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden/hybrid"
GOLDEN_OPTIONS = dict(seeds=[1], operations=60, room=60, traffic="", core="rust", seed_in_name=False)


def chosen(engine, words):
    """The names of the configurations, by engine."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    return {engine_name: [name for name in (*table, *configs.DRAWN)
                          if name.startswith(engine_name) and all(word in name for word in wanted)]
            for engine_name, table in configs.ENGINES.items() if engine in (None, engine_name)}


def known():
    return {*configs.SGLANG, *configs.VLLM, *configs.DRAWN}


def configuration_of(path):
    """Of a file CONFIGURATION-SEED.jsonl."""
    return path.stem.rsplit("-", 1)[0]


def record(pythons, names, options):
    """Returns the paths of the files."""
    paths = []
    for engine, python in pythons.items():
        if not names[engine]:
            continue
        command = [python, "-W", "ignore", HERE / "record.py", engine, json.dumps({**options, "names": names[engine]})]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"tools/engine-parity: the sequences of {engine} cannot be recorded:\n{run.stderr}")
        for line in run.stdout.splitlines():
            if line.endswith(".jsonl"):
                paths.append(Path(line))
            elif line.startswith("left out: "):
                print(line)
    return paths


def compare(given, names, pythons):
    first = secrets.randbelow(1 << 30) if given.seed is None else given.seed
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob("*-*.jsonl"):
        if configuration_of(old) in known():
            old.unlink()
    options = dict(seeds=list(range(first, first + given.seeds)), operations=given.operations, room=given.room,
                   traffic=given.traffic, core=given.core, folder=str(given.out.absolute()), seed_in_name=True)
    paths = record(pythons, names, options)
    wrong = 0
    if paths:
        run = subprocess.run([given.program, *paths], stdout=subprocess.PIPE, text=True)
        differences = [line for line in run.stdout.splitlines() if not line.endswith(": equal")]
        for line in differences:
            print(line)
        wrong = max(len(differences), int(run.returncode != 0))
    print(f"seeds {first} to {first + given.seeds - 1}: {len(paths)} sequences compared, {wrong} differ")
    return 1 if wrong else 0


def renew(given, names, pythons):
    """Files of configurations that are not chosen stay. A file of no configuration is removed. Drawn ones have no file."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.jsonl")}
    names = {engine: [name for name in chosen_names if name not in configs.DRAWN] for engine, chosen_names in names.items()}
    for path in record(pythons, names, {**GOLDEN_OPTIONS, "folder": str(GOLDEN)}):
        if before.get(path.name) != path.read_text(encoding="utf-8"):
            print(f"{'changed' if path.name in before else 'new'}: {path.name}")
    for name in sorted(before.keys() - {f"{name}.jsonl" for name in known() - configs.DRAWN.keys()}):
        (GOLDEN / name).unlink()
        print(f"gone: {name}")
    return 0
