"""Asks all questions, one after the other, and prints a table or more for each. `run` builds what
this needs and starts it."""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time

import gateway
import idle
import memory
import picks
import streaming
from processes import Processes
from table import markdown
from testbed import Testbed

QUESTIONS = {"gateway": gateway, "picks": picks, "streaming": streaming, "idle": idle,
             "memory": memory}
RESULTS = pathlib.Path(".cache/bench/results")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured. Times are seconds of one measurement."""

    # Rounds over all variants, so that slow changes of the machine fall on all of them alike.
    passes: int
    load_s: int
    paced_s: int
    stream_s: int
    idle_s: int
    memory_requests: tuple


FULL = Plan(passes=3, load_s=6, paced_s=20, stream_s=12, idle_s=10,
            memory_requests=(100_000, 500_000, 1_000_000))
SHORT = Plan(passes=1, load_s=3, paced_s=6, stream_s=6, idle_s=5,
             memory_requests=(100_000, 500_000, 1_000_000))
QUICK = Plan(passes=1, load_s=1, paced_s=1, stream_s=1, idle_s=1,
             memory_requests=(1_000, 2_000, 4_000))


def machine():
    """What was measured, and on what, in a line."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    return f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, {model}; stator {commit}"


def ask(name, plan, binaries, rows):
    """Measures one question; its rows are added as they come, so that none is lost."""
    def record(row):
        rows.append(row)
        print(f"{name} {len(rows)}: {row['variant']}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="stator-bench-") as scratch:
        with Processes(pathlib.Path(scratch)) as processes:
            QUESTIONS[name].measure(Testbed(processes, binaries), plan, record)


def arguments():
    """The command line, as `run` explains it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--only", default=",".join(QUESTIONS))
    parsed = parser.parse_args()
    parsed.only = parsed.only.split(",")
    unknown = set(parsed.only) - set(QUESTIONS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(QUESTIONS)}")
    return parsed


def main():
    """All of it."""
    args = arguments()
    plan = QUICK if args.quick else SHORT if args.short else FULL
    # As after Ctrl-C: whatever was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / time.strftime("epp-%Y%m%dT%H%M%SZ", time.gmtime())
    build = "debug" if args.debug else "release"
    results = {"machine": machine(), "build": build, "plan": dataclasses.asdict(plan), "rows": {}}
    tables = [f"{results['machine']}, {build} build{', --quick' if args.quick else ', --short' if args.short else ''}\n"]
    print(tables[0], flush=True)
    failed = []
    for name in args.only:
        rows = results["rows"][name] = []
        try:
            ask(name, plan, pathlib.Path("target") / build, rows)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            # What was measured before stands, and the other questions can be answered.
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        finally:
            path.with_suffix(".json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        for table in QUESTIONS[name].tables(rows) if rows else ():
            tables.append(markdown(*table))
            print(tables[-1], flush=True)
        path.with_suffix(".md").write_text("\n".join(tables), encoding="utf-8")
    print(f"The measurements are in {path}.json, the tables in {path}.md.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
