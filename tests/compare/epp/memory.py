"""Question 5: does memory stay flat?

1 KB requests by ext-proc itself: of 64 conversations, and each of its own, which is the worst that
an index of prompts can be sent. Engines that publish no events are taken to hold a prompt for two
minutes, so that memory may grow for that long and no longer, and half a million requests take longer
at this pace. Metrics pages are read as usual, because requests that nobody watches to their end leave
the picker's books by what engines report.
"""

BODY_BYTES = 1 << 10
CONCURRENCY = 64
RATE = 4000
ENDPOINTS = 8
SCRAPE = "50ms"


def measure(testbed, plan, record):
    """Hands one row per variant and number of requests so far to `record`."""
    _, engines = testbed.quick_engines(ENDPOINTS)
    for name, conversations in (("64 conversations", 64), ("all different", 0)):
        process, address = testbed.picker("memory", engines, scrape=SCRAPE)
        testbed.wait_until_serving(address, "--to", "ext-proc")
        record({"variant": name, "requests": 0, "rss_bytes": process.rss_bytes()})
        sent = 0
        for requests in plan.memory_requests:
            flags = ["--to", "ext-proc", "--concurrency", CONCURRENCY, "--body-bytes", BODY_BYTES,
                     "--rate", RATE, "--conversations", conversations,
                     "--requests", requests - sent]
            load = testbed.load(address, flags, {"picker": process})
            sent = requests
            record({"variant": name, "requests": sent, "rss_bytes": process.rss_bytes(),
                    "requests_per_s": load["requests_per_s"], "failures": load["failures"]})
        testbed.processes.stop(process)


def tables(rows):
    """The only table: title, name of the first column, columns, rows."""
    def at(requests):
        return lambda row: row["rss_bytes"] / 2**20 if row["requests"] == requests else None
    counts = sorted({row["requests"] for row in rows})
    columns = [(f"after {requests:,}", at(requests), 1) for requests in counts]
    columns.append(("requests/s", lambda row: row.get("requests_per_s"), 0))
    columns.append(("failed", lambda row: row.get("failures"), 0))
    yield f"RSS in MB after so many requests of 1 KB, at most {RATE:,} a second", "prompts", columns, rows
