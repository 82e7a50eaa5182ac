#!/usr/bin/env python3
"""Measures how soon a proxy knows that a worker is gone.

usage: deaths.py STATOR MODEL [ROUNDS] [KUBE]

STATOR is the binary, MODEL a folder with a tokenizer, KUBE the folder of the tests' API server, whose
etcd is a place to register as well. Each round starts an agent with a pretend vLLM, waits until a
proxy counts its worker, ends something, and asks the proxy for that number again and again until it is
0. Prints a table of milliseconds from that end to that number, which include half of the way of one
question. As `deaths.py serve` it is that vLLM.
"""

import http.client
import http.server
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

METRICS = """vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0
vllm:request_success_total{engine="0"} 1
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
"""
TOKEN = {"index": 0, "finish_reason": "length", "stop_reason": None, "token_ids": [1], "logprobs": None}
USAGE = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 2048}]}


class Engine(http.server.BaseHTTPRequestHandler):
    """What an agent asks a vLLM that has nothing to do."""

    def do_GET(self):
        answers = {
            "/health": "",
            "/version": json.dumps({"version": "0.32.0"}),
            "/v1/models": json.dumps(MODELS),
            "/metrics": METRICS,
            "/kv_event_sources": "{}",
        }
        status = 405 if self.path == "/inference/v1/generate" else 404
        self.answer(200 if self.path in answers else status, answers.get(self.path, ""))

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = [{"choices": [TOKEN], "usage": None}, {"choices": [], "usage": USAGE}]
        events = [json.dumps({"request_id": "r", **part}) for part in parts]
        self.answer(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

    def answer(self, status, text):
        kind = "text/event-stream" if text.startswith("data:") else "application/json"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Process:
    """A stator that logs JSON, until the end of the round."""

    def __init__(self, *command):
        environment = {**os.environ, "STATOR_LOG_FORMAT": "json"}
        self.child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.lines, self.told = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            with self.told:
                self.lines.append(line.decode())
                self.told.notify_all()

    def line(self, has):
        """The first line that has this."""
        find = lambda: next((line for line in self.lines if has in line), None)
        with self.told:
            if not self.told.wait_for(find, 60):
                sys.exit(f"nothing with {has!r} in:\n{''.join(self.lines)}")
            return find()

    def event(self, message):
        return json.loads(self.line(f'"message":"{message}"'))

    def end(self):
        self.child.kill()
        self.child.wait()


def until(workers, connection):
    """Waits until the proxy counts so many workers."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        if f"stator_proxy_workers {workers}" in page.splitlines():
            return time.monotonic()
    sys.exit(f"no {workers} workers after 60 s")


def round_of(stator, model, home, discovery, ends):
    """Milliseconds from an end to a proxy without a worker."""
    registered = [f"--discovery={discovery}"] if discovery else [f"--discovery-dir={home}/fleet"]
    free = ["--metrics-port=0", *registered]
    plane = ["--listen=127.0.0.1:0", "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0"]
    proxy = Process(stator, "proxy", "--http-port=0", *free)
    engine = ["--engine=vllm", f"--engine-program={os.path.abspath(__file__)}", f"--model={model}"]
    agent = Process(stator, "agent", *engine, *plane, *free, "--agent-id=a")
    connection = http.client.HTTPConnection(proxy.event("listening")["address"])
    until(1, connection)
    # Whatever began with the worker has come to rest.
    time.sleep(0.5)
    pid = agent.event("engine started")["pid"]
    begun = time.monotonic()
    ends(agent, pid)
    took = until(0, connection) - begun
    for process in (agent, proxy):
        process.end()
    return took * 1000


def main(stator, model, rounds=10, kube=None):
    died = {
        "the engine is killed": lambda agent, pid: os.kill(pid, signal.SIGKILL),
        "the agent is killed": lambda agent, pid: agent.child.kill(),
        "the agent is told to end": lambda agent, pid: agent.child.terminate(),
    }
    rows = [(f"{what}, files", None, ends) for what, ends in died.items()]
    with tempfile.TemporaryDirectory() as home:
        etcd = None
        if kube:
            etcd = Process(f"{kube}/kube", "-etcd", "-dir", f"{home}/etcd", "-port", "0")
            url = etcd.line("http").strip()
            source = f"etcd://{url.partition('://')[2]}/fleet"
            rows += [(f"{what}, etcd", source, ends) for what, ends in died.items()]
        print("| what ends | median ms | longest ms |\n| --- | --- | --- |")
        for number, (what, source, ends) in enumerate(rows):
            took = []
            for turn in range(int(rounds)):
                place = pathlib.Path(home, f"{number}-{turn}")
                place.mkdir()
                took.append(round_of(stator, model, place, source and f"{source}/{number}-{turn}", ends))
            print(f"| {what} | {statistics.median(took):.0f} | {max(took):.0f} |", flush=True)
        if etcd:
            etcd.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        port = int(sys.argv[sys.argv.index("--port") + 1])
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Engine).serve_forever()
    elif len(sys.argv) in (3, 4, 5):
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
