"""Question 4: what does a picker cost that has nothing to do?

100 endpoints, no requests. Pages are 40 KB, as vLLM's are, and read every 50 ms; agents are those of
simulated workers.
"""

import time

from processes import Machine

ENDPOINTS = 100
INTERVAL = "50ms"
# Connections are made and caches filled by then.
SETTLE_S = 3
PAGES = "pages every 50 ms"


def measure(testbed, plan, record):
    """Hands one row per variant and pass to `record`."""
    _, whole = testbed.quick_engines(ENDPOINTS)
    _, named = testbed.quick_engines(ENDPOINTS, "--named-metrics")
    variants = {
        "no pages": (whole, {}),
        "agents push": (whole, {"agents": testbed.agents(ENDPOINTS)}),
        f"{PAGES}, whole": (whole, {"scrape": INTERVAL}),
        f"{PAGES}, by name": (named, {"scrape": INTERVAL}),
    }
    for number in range(plan.passes):
        for name, (engines, scraping) in variants.items():
            process, _ = testbed.picker("idle", engines, **scraping)
            time.sleep(SETTLE_S)
            machine, own = Machine(testbed.processes.started), Machine([process])
            time.sleep(plan.idle_s)
            (_, _, [cpu_s]), (busy_s, whole_s, known_s) = own.since(), machine.since()
            record({"variant": name, "pass": number, "cpu_ms_per_s": 1e3 * cpu_s / plan.idle_s,
                    "rss_bytes": process.rss_bytes(),
                    "others_share": max(0.0, (busy_s - sum(known_s)) / whole_s)})
            testbed.processes.stop(process)


def tables(rows):
    """The only table: title, name of the first column, columns, rows."""
    columns = [
        ("CPU ms/s", lambda row: row["cpu_ms_per_s"], 1),
        ("RSS MB", lambda row: row["rss_bytes"] / 2**20, 1),
        ("others %", lambda row: 100 * row["others_share"], 0),
    ]
    yield f"Idle with {ENDPOINTS} endpoints", "variant", columns, rows
