"""Appends one measurement to a file of JSON lines, and prints a line about it.

usage: record.py RESULTS PEER SCENARIO PASS ROUTER_PID RSS_BEFORE_BYTES REPORT

REPORT is what `stator bench --json` or idle.py wrote; where it is missing or empty, the measurement
has failed, and is recorded as such. RSS_BEFORE_BYTES is the router's resident memory before the load
began.
"""

import json
import pathlib
import sys

# Plots are drawn from these; a table needs none of them.
LARGE = ("curves", "series", "points")


def read(report):
    """The report as a dictionary; none where there is no usable one."""
    try:
        return json.loads(pathlib.Path(report).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def summary(line):
    """What one wants to see while the comparison runs."""
    name = f"{line['peer'] + '/' + line['scenario']:24}"
    if line["report"] is None:
        return f"{name} FAILED"
    report, router = line["report"], line["router"]
    if line["scenario"] == "idle":
        return f"{name} {report['cpu_ms_per_s']:8.1f} ms/s CPU  {report['rss_bytes'] / 2**20:6.0f} MB"
    return (
        f"{name} {report['throughput']['requests_per_s']:9.1f} req/s  "
        f"CPU {router.get('cpu_us_per_request') or 0:8.1f} us/req {router.get('cpu_us_per_output_token') or 0:7.2f} us/token  "
        f"TTFT p50 {report['latency']['ttft']['p50_ms']:8.2f} ms  failed {report['requests']['failed']}  "
        f"others {100 * report['machine']['other_share']:3.0f} %"
    )


def main(results, peer, scenario, number, router_pid, rss_before_bytes, report):
    """One line more."""
    report = read(report)
    router = None
    if report is not None:
        for name in LARGE:
            report.pop(name, None)
        router = next((p for p in report.get("processes", []) if p["pid"] == int(router_pid)), {})
    line = {
        "peer": peer, "scenario": scenario, "pass": int(number), "router": router,
        "rss_before_bytes": int(rss_before_bytes), "report": report,
    }
    with open(results, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(summary(line), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 8:
        sys.exit(__doc__)
    main(*sys.argv[1:])
