"""A vLLM server for tests (tools/engine-server), requests one by one, and the files that kvtwin compares them with."""

import contextlib
import json
import random
import shutil
import signal
import subprocess
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KVTWIN = ROOT / "build/kvtwin"
VOCABULARY = range(2, 8192)
PATIENCE_S = 600
BEGIN = 1_600_000_000  # of the request log: a date


def sessions(seed, count, turns, system_tokens=128, most_new_tokens=160, most_answer_tokens=12):
    """Requests of `count` sessions in mixed order, as (session, new tokens, tokens of the answer). All sessions begin with
    the same system prompt."""
    draw = random.Random(seed)
    system = draw.choices(VOCABULARY, k=system_tokens)
    left = {session: turns for session in range(count)}
    while left:
        session = draw.choice(sorted(left))
        new = draw.choices(VOCABULARY, k=draw.randint(1, most_new_tokens))
        yield session, (system if left[session] == turns else []) + new, draw.randint(1, most_answer_tokens)
        left[session] -= 1
        if left[session] == 0:
            del left[session]


class Server:
    """A running server. `served` has one entry per request: its session, prompt, answer (token ids), and cached tokens."""

    def __init__(self, name, *flags):
        self.name = name
        run = subprocess.run([ROOT / "tools/engine-server", "vllm", "start", "--name", name, "--json", *flags], text=True,
                             stdout=subprocess.PIPE)
        if run.returncode != 0:
            raise RuntimeError(f"the server {name} did not start")
        self.facts = json.loads(run.stdout)
        self.served = []

    def stop(self):
        """Ends the server, and removes its folder with the log."""
        subprocess.run([ROOT / "tools/engine-server", "vllm", "stop", "--name", self.name], check=True)
        shutil.rmtree(Path(self.facts["log"]).parent, ignore_errors=True)

    def fetch(self, path, body=None):
        request = urllib.request.Request(self.facts["url"] + path, headers={"Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.read()

    def ask(self, session, prompt, answer_tokens, **more):
        """`more`: of the request's body."""
        reply = json.loads(self.fetch("/v1/completions", {
            "model": "m", "prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True} | more))
        self.served.append({"session": session, "prompt": prompt, "answer": reply["choices"][0]["token_ids"],
                            "cached": reply["usage"]["prompt_tokens_details"]["cached_tokens"]})

    def serve(self, requests, **more):
        """Serves requests of sessions(): each prompt is that of the session's request before, its answer, and new tokens."""
        history = {}
        for session, new, answer_tokens in requests:
            prompt = history.get(session, []) + new
            self.ask(session, prompt, answer_tokens, **more)
            history[session] = prompt + self.served[-1]["answer"]

    def cached_tokens(self):
        """Cached prompt tokens of all requests by source (device, host, disk), as vLLM counts them."""
        counter, found = "vllm:prompt_tokens_cached_by_source_total{", {}
        for line in self.fetch("/metrics").decode().splitlines():
            if line.startswith(counter):
                found[line.split('source="')[1].split('"')[0]] = int(float(line.split()[-1]))
        return found

    @contextlib.contextmanager
    def recorded(self, folder):
        """Records the server's KV events into `folder`."""
        command = [KVTWIN, "record", "--kv-events", self.facts["kv_events"], "--replay", self.facts["replay"], "--out", folder]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        process.stderr.readline()  # it listens; messages from before are replayed
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()

    def write_log(self, file):
        """Writes `served` as SGLang's request log, which kvtwin reads. Requests are a second apart."""
        lines = []
        for number, request in enumerate(self.served):
            what = {"rid": f"r{number}", "text": None, "input_ids": request["prompt"], "session_id": f"s{request['session']}",
                    "sampling_params": {"max_new_tokens": len(request["answer"])}}
            facts = {"id": what["rid"], "prompt_tokens": len(request["prompt"]), "completion_tokens": len(request["answer"]),
                     "cached_tokens": request["cached"], "e2e_latency": 0.5}
            for event, at, more in (("received", 0.0, {}),
                                    ("finished", 0.5, {"out": {"output_ids": request["answer"], "meta_info": facts}})):
                time = datetime.fromtimestamp(BEGIN + number + at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
                lines.append({"timestamp": time, "event": f"request.{event}", "rid": what["rid"], "obj": what} | more)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def write_experiment(self, file):
        """Writes the experiment that describes this server."""
        facts = self.facts
        file.write_text(f"""engine = "vllm"
[model]
config = "{facts['model']}/config.json"
[hardware]
name = "cpu-host"
[cache]
page_tokens = {facts['block_tokens']}
[tiers.device]
tokens = {facts['blocks'] * facts['block_tokens']}
[scheduler]
chunk_tokens = {facts['chunk']}
max_running = {facts['running']}
""", encoding="utf-8")
