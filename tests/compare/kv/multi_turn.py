#!/usr/bin/env python3
"""Conversations with vLLM, with and without a KV tier in the agent's host memory.

80 users have 10 turns each: 200 tokens, then 96 more with each turn, answered with 32. Four requests
run at a time by default, and the users of a turn come in a random order, the same in all runs. The engine has
room for a tenth of all KV. Each configuration gets an engine of its own in each repetition; they take
turns. The result is the ratio of times to first token. With `--at-a-time 1` the answers of all runs
must be equal; with more, batches differ from run to run, and with them rounding and some answers,
also between two runs without a tier.

    tests/compare/kv/multi_turn.py --stator target/release/stator --vllm PROGRAM --model FOLDER
"""

import argparse
import hashlib
import http.client
import json
import os
import queue
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

USERS, TURNS = 80, 10
FIRST, MORE, ANSWER = 200, 96, 32
BLOCK_TOKENS, BLOCK_BYTES, BLOCKS = 32, 16384, 384
FLAGS = ["--enforce-eager", "--dtype", "bfloat16", "--max-num-seqs", "32", "--max-model-len", "2048",
         "--block-size", str(BLOCK_TOKENS), "--kv-cache-memory-bytes", str(BLOCKS * BLOCK_BYTES),
         "--prefix-caching-hash-algo", "sha256_cbor"]
ENVIRONMENT = {
    "DO_NOT_TRACK": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0", "TRANSFORMERS_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1"}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Engine:
    """An agent with its engine, for the time of a `with`."""

    def __init__(self, args, tier):
        self.args, self.tier, self.port = args, tier, free_port()

    def __enter__(self):
        self.home = tempfile.TemporaryDirectory()
        command = [self.args.stator, "agent", "--engine", "vllm", "--engine-program", self.args.vllm,
                   "--model", self.args.model, "--model-name", "tiny", "--listen", "127.0.0.1:0",
                   "--engine-port", str(self.port), "--metrics-port", "0",
                   "--discovery-dir", self.home.name, *self.tier, "--", *FLAGS]
        self.log = open(os.path.join(self.home.name, "log"), "w")
        environment = {**os.environ, **ENVIRONMENT}
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 180
        while not self.serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(open(self.log.name).read()[-4000:])
            time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.home.cleanup()

    def serves(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def ask(self, prompt):
        """The tokens of the answer, seconds to the first, and tokens that were cached."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began, first, tokens, cached = time.perf_counter(), None, [], 0
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                tokens += choice.get("token_ids") or []
            if tokens and first is None:
                first = time.perf_counter() - began
            if chunk.get("usage"):
                cached = (chunk["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        connection.close()
        assert len(tokens) == ANSWER, f"{len(tokens)} tokens"
        return tokens, first, cached


def converse(engine, at_a_time):
    chance = random.Random(1)
    words = lambda count: [chance.randrange(100, 8000) for _ in range(count)]
    said = [words(FIRST) for _ in range(USERS)]
    further = [[words(MORE) for _ in range(TURNS)] for _ in range(USERS)]
    order = [(turn, user) for turn in range(TURNS) for user in chance.sample(range(USERS), USERS)]
    done = [[threading.Event() for _ in range(TURNS)] for _ in range(USERS)]
    todo, results = queue.SimpleQueue(), []
    for item in order:
        todo.put(item)

    def work():
        while True:
            try:
                turn, user = todo.get_nowait()
            except queue.Empty:
                return
            if turn and not done[user][turn - 1].wait(120):
                raise TimeoutError(f"user {user} never got an answer to turn {turn - 1}")
            prompt = said[user] + further[user][turn]
            tokens, first, cached = engine.ask(prompt)
            said[user] = prompt + tokens
            results.append((turn, first, cached, len(prompt)))
            done[user][turn].set()

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(at_a_time)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == USERS * TURNS, f"{len(results)} answers"
    digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    first = [first * 1e3 for _, first, _, _ in results]
    late = [first * 1e3 for turn, first, _, _ in results if turn >= TURNS - 3]
    return {"mean": statistics.mean(first), "p50": statistics.median(first),
            "late": statistics.mean(late), "digest": digest, "wall": time.perf_counter() - began,
            "hits": sum(cached for _, _, cached, _ in results) / sum(size for *_, size in results)}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--stator", required=True)
    options.add_argument("--vllm", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--at-a-time", type=int, default=4)
    args = options.parse_args()
    configurations = {"none": [], "host tier": ["--kv-host-gb", "0.128"]}
    runs = {name: [] for name in configurations}
    print("| configuration | hit ratio | mean TTFT ms | p50 ms | turns 8 to 10 ms | wall s | digest |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for _ in range(args.repetitions):
        for name, tier in configurations.items():
            with Engine(args, tier) as engine:
                run = converse(engine, args.at_a_time)
            runs[name].append(run)
            print(f"| {name} | {run['hits']:.3f} | {run['mean']:.1f} | {run['p50']:.1f} |"
                  f" {run['late']:.1f} | {run['wall']:.1f} | {run['digest']} |", flush=True)
    for what in ("mean", "p50", "late"):
        none, tier = (statistics.median(run[what] for run in runs[name]) for name in configurations)
        print(f"{what}: {none:.1f} ms without, {tier:.1f} ms with the tier: {tier / none - 1:+.0%}")
    digests = {run["digest"] for of in runs.values() for run in of}
    if len(digests) > 1 and args.at_a_time == 1:
        raise SystemExit(f"the answers differ: {digests}")


if __name__ == "__main__":
    main()
