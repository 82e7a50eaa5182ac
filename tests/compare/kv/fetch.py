#!/usr/bin/env python3
"""A prompt whose prefix another agent holds: fetched from there, and computed.

Two agents with built-in engines and host memory for KV stand behind a proxy. For each length the one computes
a prompt; the other then gets it with a question behind it, and fetches the prefix. In between it gets prompts
as long that nobody holds, and computes them. The result is the median time until an answer of one token is
there, both ways, and the ratio of pairs. Every fetched prompt must have the answer of the agent that computed it.

    tests/compare/kv/fetch.py --stator target/release/stator

The model is the bundled one, with 2 KiB of KV a token in blocks of 16 tokens, and the link is this machine's
loopback. An agent fetches what it expects to get sooner than it would compute it; the column `fetched` says
how much of the prefixes that was.
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import time

from push import Process, request

CONTEXT, BLOCK, QUESTION = 8192, 16, 8
INDEX = "stator_proxy_kv_index_blocks"
# Prompts that each agent gets before anything is measured, so that it knows its own speed and the link's.
WARM_UP = 6


class Fleet:
    """Two agents that lend to each other, and a proxy whose clients choose the worker."""

    def __init__(self):
        self.workers, self.processes = [], []

    def start(self, stator, home):
        for name in ("holder", "reader"):
            args = ["--listen=127.0.0.1:0", "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0",
                    f"--discovery-dir={home}", f"--agent-id={name}", "--model-name=tiny", "--workers=1",
                    f"--context-length={CONTEXT}", f"--block-size={BLOCK}", "--kv-host-gb=1"]
            self.processes.append(Process(stator, "agent", args, "side server listening", "serving"))
            place = pathlib.Path(home, f"{name}.json")
            while not place.exists():
                time.sleep(0.01)
            record = json.loads(place.read_text())
            self.workers.append(record["workers"][0]["worker"])
        args = [f"--discovery-dir={home}", "--http-port=0", "--router-pins"]
        self.proxy = Process(stator, "proxy", args, "side server listening", "listening")
        self.processes.append(self.proxy)
        for worker in range(2):
            self.wait_for(worker)

    def wait_for(self, worker):
        """Waits until the proxy has found a worker."""
        for _ in range(1000):
            try:
                return self.ask(worker, [3] * BLOCK)
            except AssertionError:
                time.sleep(0.1)
        raise SystemExit("the proxy does not find the agents")

    def ask(self, worker, prompt):
        """Seconds until the answer is there, the answer, and tokens of the prompt that were not computed."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        headers = {"x-stator-worker-id": f"{self.workers[worker]:016x}"}
        begun = time.monotonic()
        answer = json.loads(request(self.proxy.ready, "POST", "/v1/completions", body, headers))
        took = time.monotonic() - begun
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return took, answer["choices"][0]["text"], cached

    def hold(self, prompt):
        """The holder computes a prompt, and the proxy hears that it holds all its blocks."""
        before = self.proxy.metric(INDEX)
        self.ask(0, prompt)
        while self.proxy.metric(INDEX) < before + len(prompt) // BLOCK:
            time.sleep(0.005)

    def end(self):
        for process in reversed(self.processes):
            process.end()


def measure(fleet, draw, tokens, rounds):
    """Times of fetched and of computed prompts, and tokens that were fetched."""
    fetched, computed, saved = [], [], 0
    prompt = lambda length: [draw.randrange(3, 3000) for _ in range(length)]
    for at in range(rounds):
        held = prompt(tokens)
        fleet.hold(held)
        question = prompt(QUESTION)
        fresh = prompt(tokens + QUESTION)
        for way in sorted(("computed", "fetched"), reverse=at % 2 == 1):
            if way == "computed":
                took, _, cached = fleet.ask(1, fresh)
                assert cached == 0, f"{cached} tokens of a new prompt are cached"
                computed.append(took)
            else:
                took, text, cached = fleet.ask(1, held + question)
                fetched.append(took)
                saved += cached
        assert text == fleet.ask(0, held + question)[1], "the answers differ"
    return fetched, computed, saved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stator", required=True)
    parser.add_argument("--prompts", type=int, default=9, help="pairs of prompts of each length")
    parser.add_argument("--lengths", default="16,32,64,128,512,2048,4096", help="tokens of a prefix, whole blocks")
    args = parser.parse_args()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as home:
        fleet = Fleet()
        try:
            fleet.start(args.stator, home)
            measure(fleet, draw, 512, WARM_UP)
            print("tokens   computed, ms             fetched, ms              ratio  fetched")
            for tokens in map(int, args.lengths.split(",")):
                fetched, computed, saved = measure(fleet, draw, tokens, args.prompts)
                cells = []
                for times in (computed, fetched):
                    low, median, high = (1e3 * quarter for quarter in statistics.quantiles(times, n=4))
                    cells.append(f"{median:8.1f} ({low:.1f} to {high:.1f})".ljust(24))
                ratio = statistics.median(new / old for new, old in zip(fetched, computed))
                print(f"{tokens:<7}{cells[0]} {cells[1]} {ratio:5.2f}  {saved / tokens / args.prompts:.0%}", flush=True)
        finally:
            fleet.end()


if __name__ == "__main__":
    main()
