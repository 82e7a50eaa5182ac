"""Measures a process that has nothing to do.

usage: idle.py PID SECONDS

Prints one JSON object: CPU time in milliseconds per second, resident memory in bytes, threads, and
the share of the machine's CPU time that others took.
"""

import json
import os
import pathlib
import sys
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process(pid):
    """CPU seconds, resident bytes and threads of one process."""
    # The name, in parentheses, may contain anything; what follows it is separated by spaces.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, threads, pages = fields[11], fields[12], fields[17], fields[21]
    cpu_s = (int(user) + int(system)) / TICKS_PER_S
    return cpu_s, int(pages) * os.sysconf("SC_PAGE_SIZE"), int(threads)


def machine():
    """Seconds that all CPUs worked, and seconds in all."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    total = sum(ticks)
    return (total - ticks[3] - ticks[4]) / TICKS_PER_S, total / TICKS_PER_S


def main(pid, seconds):
    """Two samples and what lies between them."""
    (cpu_before, _, _), (busy_before, all_before) = process(pid), machine()
    time.sleep(seconds)
    (cpu, rss_bytes, threads), (busy, whole) = process(pid), machine()
    others = max(0.0, busy - busy_before - (cpu - cpu_before))
    print(json.dumps({
        "cpu_ms_per_s": 1e3 * (cpu - cpu_before) / seconds,
        "rss_bytes": rss_bytes,
        "threads": threads,
        "other_share": others / (whole - all_before),
    }))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(int(sys.argv[1]), float(sys.argv[2]))
