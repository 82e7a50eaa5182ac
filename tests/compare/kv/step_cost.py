#!/usr/bin/env python3
"""What the connector of the KV tiers costs a vLLM: processor time of its steps, with and without.

Two engines run, one of them with tiers, and take turns at the same requests: eight at a time decode. In
rounds with nothing to do no block may be stored (`max_offload_tokens`), in the others each block is.
The result is the ratio of processor time that the engines' processes used per step, the median of all
pairs of rounds, and the first and third quarter.

    tests/compare/kv/step_cost.py --stator target/release/stator --vllm PROGRAM --model FOLDER
"""

import argparse
import http.client
import json
import os
import random
import statistics
import threading

from multi_turn import Engine

AT_A_TIME, PROMPT, ANSWER = 8, 40, 480


def processes(root):
    """A process and all that descend from it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rsplit(") ", 1)[1].split()[1])
        except OSError:
            pass
    found = {root}
    while more := {of for of, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def used_s(agent):
    """Processor time of the engine that an agent runs."""
    total = 0.0
    for process in processes(agent) - {agent}:
        with open(f"/proc/{process}/stat") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def decode(engine, prompts, more):
    """Processor time per step of requests that decode together."""
    def ask(prompt):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True,
                **more}
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        assert answer["usage"]["completion_tokens"] == ANSWER, answer

    before = used_s(engine.process.pid)
    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (used_s(engine.process.pid) - before) / ANSWER


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--stator", required=True)
    options.add_argument("--vllm", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--folder", help="folder on the disk that tiers are to use")
    options.set_defaults(sglang=None)
    args = options.parse_args()
    chance = random.Random(3)
    fresh = lambda: [[chance.randrange(100, 8000) for _ in range(PROMPT)] for _ in range(AT_A_TIME)]
    with Engine(args, "none") as none, Engine(args, "host") as host:
        ways = {"nothing to do": {"kv_transfer_params": {"max_offload_tokens": 0}}, "offloading": {}}
        for engine in (none, host):
            decode(engine, fresh(), {})
        for name, more in ways.items():
            ratios, steps = [], []
            for at in range(args.rounds):
                # Neither is always the first.
                prompts, order = fresh(), (none, host) if at % 2 else (host, none)
                times = {engine.name: decode(engine, prompts, more) for engine in order}
                ratios.append(times["host"] / times["none"])
                steps.append(times["none"] * 1e6)
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{name}: {middle - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}) of a step of"
                  f" {statistics.median(steps):.0f} us, {args.rounds} pairs of rounds", flush=True)


if __name__ == "__main__":
    main()
