"""Question 1: what does the picker add to a request through Envoy?

All variants run at once, with a listener of one Envoy each, and are measured in turn. Each is asked
in two ways: with a fixed number of requests in flight, for the rate and for CPU time; and at a fixed
pace that Envoy alone carries with ease, for latency.
"""

from testbed import TOKENIZE

ALONE = "envoy"
# Size of a body in bytes, and the pace at which its latency is taken, in requests per second.
SIZES = {"1 KB": (1 << 10, 400), "20 KB": (20 << 10, 250), "220 KB": (220 << 10, 100)}
TOKENIZED = "tokenized"
CONCURRENCY = 16
# How each variant is asked, in a row.
WAYS = ("full", "paced")


def start(testbed):
    """Starts all variants; returns the listener of each and the processes to watch with it."""
    _, engines = testbed.quick_engines(256)
    pickers = {
        "nothing": testbed.do_nothing("nothing", engines[0]),
        "nothing, closes early": testbed.do_nothing("nothing-closes", engines[0], "--close-early"),
        "stator, 8": testbed.picker("stator-8", engines[:8]),
        "stator, 256": testbed.picker("stator-256", engines),
        f"stator, 8, {TOKENIZED}": testbed.picker("stator-8-tokens", engines[:8], TOKENIZE),
        f"stator, 256, {TOKENIZED}": testbed.picker("stator-256-tokens", engines, TOKENIZE),
    }
    addresses = {name: address for name, (_, address) in pickers.items()}
    gateway, listeners = testbed.envoy(engines[0], addresses, ALONE)
    watched = {name: {"envoy": gateway} for name in listeners}
    for name, (process, _) in pickers.items():
        watched[name]["picker"] = process
    for address in listeners.values():
        testbed.wait_until_serving(address)
    return listeners, watched


def measure(testbed, plan, record):
    """Hands one row per size, variant and pass to `record`."""
    listeners, watched = start(testbed)
    for number in range(plan.passes):
        for size, (body_bytes, rate) in SIZES.items():
            for name, address in listeners.items():
                # Short prompts are compared as text by everyone: there is little to tokenize.
                if TOKENIZED in name and body_bytes < 2048:
                    continue
                body = ["--concurrency", CONCURRENCY, "--body-bytes", body_bytes]
                # Connections, caches, and the prefixes of all conversations.
                testbed.load(address, [*body, "--requests", 200])
                full = testbed.load(address, [*body, "--duration-s", plan.load_s], watched[name])
                pace = ["--duration-s", plan.paced_s, "--rate", rate]
                paced = testbed.load(address, [*body, *pace], watched[name])
                record({"size": size, "variant": name, "pass": number, "full": full, "paced": paced})


def added(rows, row, quantile):
    """Latency at the fixed pace over Envoy alone in the same pass, in µs."""
    floor = next(other for other in rows if other["variant"] == ALONE
                 and (other["size"], other["pass"]) == (row["size"], row["pass"]))
    if row is floor:
        return None
    return row["paced"]["latency_us"][quantile] - floor["paced"]["latency_us"][quantile]


def tables(rows):
    """A table per size: title, name of the first column, columns, rows by name."""
    columns = [
        ("req/s", lambda row: row["full"]["requests_per_s"], 0),
        ("picker CPU µs", lambda row: row["full"]["cpu_us"].get("picker"), 0),
        ("Envoy CPU µs", lambda row: row["full"]["cpu_us"]["envoy"], 0),
        ("picker CPU µs, paced", lambda row: row["paced"]["cpu_us"].get("picker"), 0),
        ("latency µs p50", lambda row: row["paced"]["latency_us"]["p50"], 0),
        ("added p50", lambda row: added(rows, row, "p50"), 0),
        ("added p99", lambda row: added(rows, row, "p99"), 0),
        ("added p99.9", lambda row: added(rows, row, "p999"), 0),
        ("failed", lambda row: sum(row[way]["failures"] for way in WAYS), 0),
        ("others %", lambda row: 100 * max(row[way]["others_share"] for way in WAYS), 0),
    ]
    for size, (_, rate) in SIZES.items():
        title = f"{size} through Envoy: {CONCURRENCY} in flight; latency at {rate} req/s"
        yield title, "variant", columns, [row for row in rows if row["size"] == size]
