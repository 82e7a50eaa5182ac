"""Markdown tables of a comparison: the median of the passes and, in parentheses, their range.

usage: table.py RESULTS.jsonl
"""

import json
import statistics
import sys

PEERS = [
    "direct", "stator-kv", "stator-rr", "dynamo-kv", "dynamo-kv-fast", "dynamo-rr",
    "sglang-cache", "sglang-rr", "vllm-cache", "vllm-rr", "smg-cache", "smg-rr",
]
TITLES = {
    "idle": "no requests",
    "a1": "short prompts, 16 tokens out, 1 connection",
    "a16": "short prompts, 16 tokens out, 16 connections",
    "a128": "short prompts, 16 tokens out, 128 connections",
    "a1q": "as a1, client with TCP_QUICKACK",
    "a16q": "as a16, client with TCP_QUICKACK",
    "a128p": "as a128, a token every 5 ms, so that each is sent on its own",
    "n16": "as a16, not streamed",
    "b1": "prompts of 4,000 tokens (half shared), 32 tokens out, 1 connection",
    "b16": "prompts of 4,000 tokens (half shared), 32 tokens out, 16 connections",
    "c1000": "1,000 streams, a token every 20 ms",
    "c4000": "4,000 streams, a token every 20 ms (200,000 tokens/s asked for)",
    "c4000s": "4,000 streams, a token every 200 ms",
}
MIB, KIB = 2**20, 2**10


def of(*path, scale=1.0):
    """Reads a number of a measurement by its path; none where a part of the path is missing."""
    def read(line):
        value = line
        for key in path:
            value = value.get(key) if value is not None else None
        return None if value is None else value * scale
    return read


def over_direct(read, direct):
    """The same number, less what the engine alone took in the same pass."""
    def difference(line):
        value, floor = read(line), read(direct.get(line["pass"], {}))
        return None if value is None or floor is None or line["peer"] == "direct" else value - floor
    return difference


def per_stream_kb(line):
    """Memory that each of a scenario's streams added."""
    before, peak = of("rss_before_bytes")(line), of("router", "rss_peak_bytes")(line)
    streams = int("".join(filter(str.isdigit, line["scenario"])))
    return None if before is None or peak is None else (peak - before) / KIB / streams


def events_per_request(line):
    """Stream events with content in each answer: fewer than tokens where several came in one."""
    latency, requests = line["report"]["latency"], line["report"]["requests"]["succeeded"]
    events = latency["ttft"]["count"] + latency["inter_chunk"]["count"]
    return events / requests if requests and events else None


def cell(lines, read, digits):
    """Median and range of a number over the passes."""
    values = [value for value in map(read, lines) if value is not None]
    if not values:
        return "-"
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def columns(scenario, direct):
    """Headings, and for each the number and its digits."""
    router, others = "router", ("others %", of("report", "machine", "other_share", scale=100), 0)
    failed = ("errors", of("report", "requests", "failed"), 0)
    if scenario == "idle":
        return [
            ("CPU ms/s", of("report", "cpu_ms_per_s"), 1),
            ("RSS MB", of("report", "rss_bytes", scale=1 / MIB), 0),
            ("threads", of("report", "threads"), 0),
            ("others %", of("report", "other_share", scale=100), 0),
        ]
    if scenario.startswith("c"):
        gap, ttft = ("report", "latency", "inter_chunk"), ("report", "latency", "ttft")
        return [
            ("tokens/s", of("report", "throughput", "output_tokens_per_s"), 0),
            ("CPU µs/token", of(router, "cpu_us_per_output_token"), 1),
            ("gap ms p50", of(*gap, "p50_ms"), 1),
            ("gap p99", of(*gap, "p99_ms"), 0),
            ("TTFT ms p50", of(*ttft, "p50_ms"), 0),
            ("TTFT p99", of(*ttft, "p99_ms"), 0),
            ("RSS MB before", of("rss_before_bytes", scale=1 / MIB), 0),
            ("RSS peak", of(router, "rss_peak_bytes", scale=1 / MIB), 0),
            ("KB per stream", per_stream_kb, 0),
            failed,
            others,
        ]
    name, kind = ("latency", "e2e") if scenario.startswith("n") else ("TTFT", "ttft")
    p50, p99 = of("report", "latency", kind, "p50_ms"), of("report", "latency", kind, "p99_ms")
    return [
        ("CPU µs/request", of(router, "cpu_us_per_request"), 0),
        ("req/s", of("report", "throughput", "requests_per_s"), 0),
        (f"{name} ms p50", p50, 2),
        (f"{name} p99", p99, 2),
        ("p50 over direct", over_direct(p50, direct), 2),
        ("p99 over direct", over_direct(p99, direct), 2),
        ("events/request", events_per_request, 1),
        ("RSS MB peak", of(router, "rss_peak_bytes", scale=1 / MIB), 0),
        ("cached %", of("report", "tokens", "cached_share", scale=100), 0),
        failed,
        others,
    ]


def table(scenario, lines):
    """One scenario: a row for each peer."""
    good = [line for line in lines if line["report"] is not None]
    direct = {line["pass"]: line for line in good if line["peer"] == "direct"}
    heads = columns(scenario, direct)
    rows = [["peer"] + [head for head, _, _ in heads], ["---"] * (len(heads) + 1)]
    for peer in sorted({line["peer"] for line in good}, key=PEERS.index):
        passes = [line for line in good if line["peer"] == peer]
        rows.append([peer] + [cell(passes, read, digits) for _, read, digits in heads])
    failed = sorted(line["peer"] for line in lines if line["report"] is None)
    print(f"\n### {scenario}: {TITLES[scenario]}\n")
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))
    if failed:
        print(f"\nFailed runs: {', '.join(failed)}.")


def main(results):
    """All scenarios that were measured, in their usual order."""
    with open(results, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for scenario in TITLES:
        measured = [line for line in lines if line["scenario"] == scenario]
        if measured:
            table(scenario, measured)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
