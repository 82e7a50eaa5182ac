#!/usr/bin/env python3
"""What a decode worker waits for its prompt's KV when prefill has ended, pushed chunk by chunk and moved at the end.

Two pairs of built-in engines compute the same prompts in turn. The prefill agent of the one computes a
prompt in chunks (--chunk), so that blocks move while it computes. That of the other computes the whole
prompt in one step, so that all blocks move when the prompt is computed; with --before, a build that does
not push, it computes the same chunks. The time is from the end of prefill to decode's first token, as the
proxy counts it (`stator_proxy_kv_transfer_duration_seconds`); the result is its median, of pairs of
prompts, and the ratio.

    tests/compare/kv/push.py --stator target/release/stator --before OLDER

The model is the bundled one: 2 KiB of KV a token. With `--prompt` twice as long, twice as much moves.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time

CONTEXT, ANSWER = 8192, 4
TRANSFER = "stator_proxy_kv_transfer_duration_seconds"
EARLY = "stator_agent_kv_blocks_early_total"
FETCHED = "stator_agent_kv_blocks_fetched_total"


class Process:
    """A role of stator on free ports, and what it says that it listens on."""

    def __init__(self, stator, role, args, side, ready):
        self.process = subprocess.Popen([stator, role, "--metrics-port=0", *args], text=True,
                                        env={**os.environ, "STATOR_LOG_FORMAT": "json"},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = {}
        while not {side, ready} <= said.keys():
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"it ended: {self.process.args}")
            entry = json.loads(line) if line.startswith("{") else {}
            address = entry.get("address") or entry.get("endpoint") or ""
            said[entry.get("message")] = address.removeprefix("http://")
        self.side, self.ready = said[side], said[ready]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def metric(self, name):
        """The sum of a metric's samples."""
        text = request(self.side, "GET", "/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))

    def end(self):
        self.process.kill()
        self.process.wait()


def request(address, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(address, timeout=300)
    headers = {"content-type": "application/json", **(headers or {})}
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    return text


class Pair:
    """Two agents and a proxy."""

    def __init__(self, stator, home, chunk):
        agent = ["--listen=127.0.0.1:0", "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0",
                 f"--discovery-dir={home}", "--model-name=tiny", "--workers=1", f"--context-length={CONTEXT}"]
        side = "side server listening"
        self.prefill = Process(stator, "agent", [*agent, "--role=prefill", f"--max-batched-tokens={chunk}"], side, "serving")
        self.decode = Process(stator, "agent", [*agent, "--role=decode", "--prefill-timeout-ms=120000"], side, "serving")
        args = [f"--discovery-dir={home}", "--http-port=0", "--router-split=always"]
        self.proxy = Process(stator, "proxy", args, side, "listening")

    def share(self, prompts):
        """Waits until the proxy has found both agents and splits prompts."""
        for prompt in prompts:
            try:
                if self.ask(prompt)[0] is not None:
                    return
            except AssertionError:
                time.sleep(0.1)
        raise SystemExit("the agents do not share prompts")

    def ask(self, prompt):
        """Seconds from the end of prefill to the first token, of the whole request, and the answer."""
        before = self.proxy.metric(f"{TRANSFER}_sum"), self.proxy.metric(f"{TRANSFER}_count")
        body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        begun = time.monotonic()
        answer = json.loads(request(self.proxy.ready, "POST", "/v1/completions", body))
        took = time.monotonic() - begun
        shared = self.proxy.metric(f"{TRANSFER}_count") - before[1]
        waited = self.proxy.metric(f"{TRANSFER}_sum") - before[0] if shared == 1 else None
        return waited, took, answer["choices"][0]["text"]

    def end(self):
        for process in (self.proxy, self.decode, self.prefill):
            process.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stator", required=True)
    parser.add_argument("--before", help="a build that moves all blocks when the prompt is computed")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a chunk")
    parser.add_argument("--prompts", type=int, default=20)
    args = parser.parse_args()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = Pair(args.before, other, args.chunk) if args.before else Pair(args.stator, other, CONTEXT)
        pairs = {"pushed": Pair(args.stator, one, args.chunk), "at the end": whole}
        try:
            for pair in pairs.values():
                pair.share([draw.randrange(3, 3000) for _ in range(100)] for _ in range(1000))
            waits, totals = {name: [] for name in pairs}, {name: [] for name in pairs}
            for at in range(args.prompts):
                prompt = [draw.randrange(3, 3000) for _ in range(args.prompt)]
                answers = set()
                for name in sorted(pairs, reverse=at % 2 == 1):
                    waited, took, text = pairs[name].ask(prompt)
                    assert waited is not None, f"{name}: the prompt was not shared"
                    waits[name].append(waited)
                    totals[name].append(took)
                    answers.add(text)
                assert len(answers) == 1, "the answers differ"
            for name, pair in pairs.items():
                early = pair.decode.metric(EARLY) / pair.decode.metric(FETCHED)
                quarters = statistics.quantiles(waits[name], n=4)
                print(f"{name:<12} {quarters[1] * 1e3:8.2f} ms ({quarters[0] * 1e3:.2f} to {quarters[2] * 1e3:.2f}), "
                      f"whole request {statistics.median(totals[name]) * 1e3:.0f} ms, {early:.0%} of blocks early")
            ratios = [new / old for new, old in zip(waits["pushed"], waits["at the end"])]
            print(f"ratio {statistics.median(ratios):.2f}")
        finally:
            for pair in pairs.values():
                pair.end()


if __name__ == "__main__":
    main()
