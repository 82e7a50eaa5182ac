#!/usr/bin/env python3
"""Measures what it costs to hand the KV of a prompt from one built-in engine to another.

usage: hand_over.py STATOR [STATOR ...] [--rounds N] [--secret]

Each round starts a prefill agent, a decode agent and a proxy of each binary, which take turns. Every
prompt is computed once. Then the decode agent forgets its cache and the prompts are asked for again, one
after the other, three times: the prefill agent has them cached, so that little is left but to move
their KV. Prints, for each binary, the medians over all rounds of milliseconds and of CPU time of both
agents (`/proc/PID/stat`) for a prompt, each pass less what the same requests take when decode has the KV
itself. `--secret` gives the agents a fleet secret.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from deaths import Process

PROMPTS, TOKENS, BLOCK_TOKENS = 6, 7_937, 256
PASSES = 3
FETCHED = "stator_agent_kv_blocks_fetched_total"


def address(url):
    return url.removeprefix("http://")


def metric(at, name):
    connection = http.client.HTTPConnection(at)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name + " ")), 0.0)


def cpu_seconds(process):
    stat = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


class Pair:
    """A proxy and two agents of one binary."""

    def __init__(self, stator, home, secret):
        self.stator = stator
        agent = [stator, "agent", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--discovery-dir", home,
                 "--events-listen", "off", "--replay-listen", "off", "--workers", "1", "--block-size",
                 str(BLOCK_TOKENS), "--total-blocks", "512"] + secret
        self.prefill = Process(*agent, "--agent-id", "prefill", "--role", "prefill")
        self.decode = Process(*agent, "--agent-id", "decode", "--role", "decode")
        self.page = self.decode.event("side server listening")["address"]
        self.endpoint = self.decode.event("serving")["endpoint"]
        self.prefill.event("serving")
        self.proxy = Process(stator, "proxy", "--http-port", "0", "--metrics-port", "0", "--discovery-dir", home,
                             "--router-split", "always")
        self.client = http.client.HTTPConnection(address(self.proxy.event("listening")["address"]))

    def ask(self, prompt):
        body = json.dumps({"model": "stator-tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0})
        self.client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = json.load(self.client.getresponse())
        return answer["choices"][0]["text"]

    def forget(self):
        subprocess.run([self.stator, "operate", "--agent", self.endpoint, "reset-cache"], check=True,
                       capture_output=True)

    def timed(self, prompts):
        """Milliseconds and CPU milliseconds for a prompt, and the answers."""
        agents = [self.prefill, self.decode]
        cpu, began = sum(map(cpu_seconds, agents)), time.monotonic()
        answers = [self.ask(prompt) for prompt in prompts]
        wall = time.monotonic() - began
        cpu = sum(map(cpu_seconds, agents)) - cpu
        return [1000 * wall / len(prompts), 1000 * cpu / len(prompts)], answers

    def measure(self, prompts):
        """The cost of moving a prompt, once for each pass."""
        while True:  # Until the proxy knows both agents.
            before = metric(self.page, FETCHED)
            self.ask([7] * (2 * BLOCK_TOKENS + 1))
            if metric(self.page, FETCHED) > before:
                break
            self.forget()
        expected = [self.ask(prompt) for prompt in prompts]
        passes = []
        for _ in range(PASSES):
            self.forget()
            before = metric(self.page, FETCHED)
            moved, answers = self.timed(prompts)
            blocks = metric(self.page, FETCHED) - before
            if answers != expected or blocks != len(prompts) * (TOKENS // BLOCK_TOKENS):
                sys.exit(f"{self.stator}: {blocks} blocks came, answers {answers} and not {expected}")
            here, _ = self.timed(prompts)
            passes.append([with_move - without for with_move, without in zip(moved, here)])
        return passes

    def end(self):
        for process in (self.proxy, self.decode, self.prefill):
            process.end()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("stator", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secret", action="store_true")
    args = parser.parse_args()
    draw = random.Random(1)
    prompts = [[draw.randrange(10, 3000) for _ in range(TOKENS)] for _ in range(PROMPTS)]
    costs = {stator: [] for stator in args.stator}
    for _ in range(args.rounds):
        for stator in args.stator:
            with tempfile.TemporaryDirectory() as home:
                secret = pathlib.Path(home) / "secret"
                secret.write_text("a-secret-of-this-comparison\n")
                flags = ["--fleet-secret-file", str(secret)] if args.secret else []
                agents = pathlib.Path(home) / "agents"
                agents.mkdir()
                pair = Pair(stator, str(agents), flags)
                try:
                    costs[stator] += pair.measure(prompts)
                finally:
                    pair.end()
    print(f"{TOKENS // BLOCK_TOKENS} blocks of a prompt, {args.rounds * PASSES} passes of {PROMPTS} prompts")
    for stator, passes in costs.items():
        wall, cpu = (statistics.median(column) for column in zip(*passes))
        spread = [f"{min(column):.1f} to {max(column):.1f}" for column in zip(*passes)]
        print(f"{stator}: {wall:.1f} ms ({spread[0]}), {cpu:.1f} ms of CPU ({spread[1]})")


main()
