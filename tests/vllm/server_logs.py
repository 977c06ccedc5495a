#!/usr/bin/env python3
"""The first lines of a vLLM server's log, written by vLLM's own code without a GPU and without a model.

tools/engine-parity vllm --logs compares them with server.log in tests/fixtures/vllm/, or writes that file. As a program in the
environment of `tools/engine-env vllm`, this module prints them. Real: the parser of the command line, the line of the
arguments that are no defaults, the formatter's text of the engine's line and the line of the pool's size. Of the pool, the
numbers of blocks and of bytes are given here.
"""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import server_flags

FILE = Path(__file__).resolve().parents[1] / "fixtures/vllm/server.log"
COMMAND = ["Qwen/Qwen3-32B", "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.9", "--max-model-len", "32768",
           "--kv-transfer-config",
           '{"kv_connector": "OffloadingConnector", "engine_id": "0", "kv_role": "kv_both", "kv_connector_extra_config": '
           '{"cpu_bytes_to_use": 68719476736}}']


def lines():
    version = server_flags.prepare()
    from vllm.entrypoints.common import startup
    from vllm.v1.core import kv_cache_utils

    written = []
    logger = SimpleNamespace(info=lambda text, *values: written.append(text % values),
                             info_once=lambda text, *values: written.append(text % values))
    startup.logger = kv_cache_utils.logger = logger
    arguments = server_flags.parser().parse_args(COMMAND)
    arguments.model = arguments.model_tag
    startup.log_non_default_args(arguments)
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=32768), cache_config=SimpleNamespace(),
                             device_config=SimpleNamespace(device_type="cuda"),
                             attention_config=SimpleNamespace(hisparse_config=None))
    kv_cache_utils.get_max_concurrency_for_kv_cache_config = lambda *_: 11437 * 16 / 32768
    kv_cache_utils.update_kv_cache_capacity(config, None)
    return version, written


def text():
    logging.disable(logging.CRITICAL)
    version, written = lines()
    return "\n".join((f"# vllm {version}; see tests/vllm/server_logs.py", *written, ""))


def compare(renew):
    run = subprocess.run([sys.executable, "-W", "ignore", __file__], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"tools/engine-parity vllm: the lines of this release cannot be written:\n{run.stderr}")
    if renew:
        FILE.write_text(run.stdout, encoding="utf-8")
        return 0
    differs = run.stdout != FILE.read_text(encoding="utf-8")
    print("the stored lines are not this vLLM's" if differs else "the stored lines are this vLLM's")
    return differs


if __name__ == "__main__":
    print(text(), end="")
