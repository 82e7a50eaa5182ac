"""Question 2: how many picks does one core give?

No Envoy: the load generator speaks ext-proc itself and encodes and reads hardly more than it must,
so that the servers are what is busy. Their rate per core is what their CPU time says; the rate that
was seen depends on how many cores there are, and on the generator's.
"""

from testbed import TOKENIZE

SIZES = {"1 KB": 1 << 10, "20 KB": 20 << 10, "220 KB": 220 << 10}
CONCURRENCY = 64
TOKENIZED = "tokenized"


def start(testbed):
    """Starts all servers; returns each with its address."""
    _, engines = testbed.quick_engines(256)
    servers = {
        "nothing": testbed.do_nothing("nothing", engines[0]),
        "stator, 8": testbed.picker("stator-8", engines[:8]),
        "stator, 256": testbed.picker("stator-256", engines),
        f"stator, 8, {TOKENIZED}": testbed.picker("stator-8-tokens", engines[:8], TOKENIZE),
    }
    for _, address in servers.values():
        testbed.wait_until_serving(address, "--to", "ext-proc")
    return servers


def measure(testbed, plan, record):
    """Hands one row per size, server and pass to `record`."""
    servers = start(testbed)
    for number in range(plan.passes):
        for size, body_bytes in SIZES.items():
            for name, (process, address) in servers.items():
                if TOKENIZED in name and body_bytes < 2048:
                    continue
                flags = ["--to", "ext-proc", "--concurrency", CONCURRENCY, "--body-bytes", body_bytes]
                testbed.load(address, [*flags, "--requests", 200])
                flags += ["--duration-s", plan.load_s]
                load = testbed.load(address, flags, {"picker": process})
                record({"size": size, "variant": name, "pass": number, "load": load})


def per_core(row):
    """Picks that a core would do in a second if it did nothing else."""
    cpu_us = row["load"]["cpu_us"]["picker"]
    return 1e6 / cpu_us if cpu_us else None


def tables(rows):
    """A table per size: title, name of the first column, columns, rows by name."""
    columns = [
        ("picks/s per core", per_core, 0),
        ("CPU µs/pick", lambda row: row["load"]["cpu_us"]["picker"], 1),
        ("picks/s seen", lambda row: row["load"]["requests_per_s"], 0),
        ("latency µs p50", lambda row: row["load"]["latency_us"]["p50"], 0),
        ("p99", lambda row: row["load"]["latency_us"]["p99"], 0),
        ("p99.9", lambda row: row["load"]["latency_us"]["p999"], 0),
        ("failed", lambda row: row["load"]["failures"], 0),
        ("others %", lambda row: 100 * row["load"]["others_share"], 0),
    ]
    for size in SIZES:
        title = f"{size} by ext-proc itself: {CONCURRENCY} streams on 4 connections"
        yield title, "server", columns, [row for row in rows if row["size"] == size]
