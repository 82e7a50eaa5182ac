"""Question 3: what does a streamed token cost the picker?

400 streams through Envoy, a token every 20 ms each: 20,000 tokens/s. Answers have 200 tokens, so
100 requests begin in a second and are part of the figures.
"""

import json
import time
import urllib.request

from processes import Machine

STREAMS, STEP_MS, TOKENS = 400, 20, 200
ALONE = "envoy"
# Streams begin one after the other over this time.
RAMP_S = 2


def start(testbed):
    """Starts all variants; returns the engines, the listener of each variant, and the processes to
    watch with it."""
    _, engines = testbed.streaming_engines(STEP_MS)
    pickers = {
        "nothing": testbed.do_nothing("nothing", engines[0]),
        "stator, auto": testbed.picker("stator-auto", engines),
        "stator, none": testbed.picker("stator-none", engines, "--response-path=none"),
    }
    addresses = {name: address for name, (_, address) in pickers.items()}
    gateway, listeners = testbed.envoy(engines[0], addresses, ALONE)
    watched = {name: {"envoy": gateway} for name in listeners}
    for name, (process, _) in pickers.items():
        watched[name]["picker"] = process
    for address in listeners.values():
        testbed.wait_until_serving(address)
    return engines, listeners, watched


def tokens(engines):
    """Tokens that the engines have produced so far."""
    total = 0
    for engine in engines:
        with urllib.request.urlopen(f"http://{engine}/stats", timeout=10) as stats:
            total += json.load(stats)["tokens"]
    return total


def stream(testbed, engines, address, watched, seconds):
    """One measurement, while `stator bench` reads and all streams are open."""
    report = testbed.processes.scratch / "streaming.json"
    client = testbed.processes.start("bench", [
        testbed.binaries / "stator", "bench", "--url", f"http://{address}", "--model", "tiny",
        "--concurrency", STREAMS, "--ramp", f"{RAMP_S}s", "--duration", f"{seconds + 2}s",
        "--prompt-tokens", 32, "--output-tokens", TOKENS, "--json", report])
    time.sleep(RAMP_S + 1)
    machine, own = Machine(testbed.processes.started), Machine(watched.values())
    before, begin = tokens(engines), time.monotonic()
    time.sleep(seconds)
    count, passed_s = tokens(engines) - before, time.monotonic() - begin
    (_, _, watched_s), (busy_s, whole_s, known_s) = own.since(), machine.since()
    if client.child.wait(60) != 0 or count == 0:
        raise RuntimeError(f"no tokens; the client said: {client.output()[-2000:]}")
    testbed.processes.stop(client)
    measured = json.loads(report.read_text(encoding="utf-8"))
    return {
        "tokens_per_s": count / passed_s,
        "cpu_us": {name: 1e6 * cpu_s / count for name, cpu_s in zip(watched, watched_s)},
        "gap_p99_ms": measured["latency"]["inter_chunk"]["p99_ms"] or None,
        "failures": measured["requests"]["failed"],
        "others_share": max(0.0, (busy_s - sum(known_s)) / whole_s),
    }


def measure(testbed, plan, record):
    """Hands one row per variant and pass to `record`."""
    engines, listeners, watched = start(testbed)
    for number in range(plan.passes):
        for name, address in listeners.items():
            measured = stream(testbed, engines, address, watched[name], plan.stream_s)
            record({"variant": name, "pass": number, **measured})


def cores(row, name):
    """Cores that a process kept busy, in thousandths."""
    cpu_us = row["cpu_us"].get(name)
    return None if cpu_us is None else cpu_us * row["tokens_per_s"] / 1e3


def tables(rows):
    """The only table: title, name of the first column, columns, rows."""
    columns = [
        ("tokens/s", lambda row: row["tokens_per_s"], 0),
        ("picker mcores", lambda row: cores(row, "picker"), 0),
        ("picker CPU µs/token", lambda row: row["cpu_us"].get("picker"), 2),
        ("Envoy CPU µs/token", lambda row: row["cpu_us"]["envoy"], 2),
        ("gap ms p99", lambda row: row["gap_p99_ms"], 1),
        ("failed", lambda row: row["failures"], 0),
        ("others %", lambda row: 100 * row["others_share"], 0),
    ]
    title = f"{STREAMS} streams through Envoy, a token every {STEP_MS} ms; `--response-path`"
    yield title, "variant", columns, rows
