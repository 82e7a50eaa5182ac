"""What is measured and what stands around it: engines, pickers, what does nothing, Envoy, load."""

import json
import os
import resource
import subprocess
import time

import envoy
from processes import Machine, free_addresses

# Long enough that no metrics page is read while something else is measured.
NEVER = "1h"
TOKENIZE = "--tokenizer-path=worker-agent/tiny-model"
# No run of the load generator sends more.
REQUESTS_MAX = 10_000_000
# Longest wait for the first answer.
SERVING_S = 30


class Testbed:
    """Starts the parts. `processes` ends them."""

    def __init__(self, processes, binaries):
        self.processes = processes
        self.binaries = binaries
        # Number of the next run's first request: nothing is sent twice.
        self.first = 0

    def example(self, name):
        """Where an example program is."""
        return self.binaries / "examples" / name

    def quick_engines(self, count, *flags):
        """Engines that take no time, in one process; returns it and their addresses."""
        command = [self.example("quick_engine"), "--engines", count, *flags]
        process = self.processes.start("quick-engine", command)
        return process, process.first_line().split()

    def streaming_engines(self, step_ms):
        """Four engines that give every stream a token at each step."""
        command = [self.example("fake_engine"), "--engines", 4, "--step-ms", step_ms]
        process = self.processes.start("fake-engine", command)
        addresses = [url.removeprefix("http://") for url in process.first_line().split()]
        return process, addresses

    def agents(self, count):
        """Agents of one simulated worker each; returns their ports."""
        addresses = free_addresses(count)
        folder = self.processes.scratch / "agents"
        for index, address in enumerate(addresses):
            command = [self.binaries / "stator", "agent", "--engine=sim", f"--listen={address}",
                       "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0",
                       "--metrics-port=0", f"--discovery-dir={folder}"]
            self.processes.start(f"agent-{index}", command)
        for process, address in zip(self.processes.started[-count:], addresses):
            process.accepts(address)
        return [address.split(":")[1] for address in addresses]

    def picker(self, name, endpoints, *flags, scrape=NEVER, agents=()):
        """`stator epp`, without TLS, of these endpoints, with the ports of their `agents` where
        they have any; returns it and its address."""
        serving, health, metrics = free_addresses(3)
        file = self.processes.scratch / f"{name}-endpoints.json"
        entries = [{"name": f"engine-{index}", "address": address.split(":")[0],
                    "port": int(address.split(":")[1])} for index, address in enumerate(endpoints)]
        for entry, port in zip(entries, agents):
            entry["labels"] = {"stator.dev/agent-port": port}
        file.write_text(json.dumps({"endpoints": entries}), encoding="utf-8")
        ports = [f"--{flag}={address.split(':')[1]}" for flag, address in (
            ("grpc-port", serving), ("grpc-health-port", health), ("metrics-port", metrics))]
        stale = NEVER if scrape == NEVER else "2s"
        command = [self.binaries / "stator", "epp", f"--endpoints-file={file}", "--host=127.0.0.1",
                   *ports, "--secure-serving=false", f"--refresh-metrics-interval={scrape}",
                   f"--metrics-staleness-threshold={stale}", *flags]
        process = self.processes.start(name, command)
        process.accepts(serving)
        if TOKENIZE in flags:
            # Until then prompts are compared as text.
            process.wait_for(lambda: "tokenizer loaded" in process.output())
        return process, serving

    def do_nothing(self, name, destination, *flags):
        """An ext-proc server that decides nothing: the floor."""
        (address,) = free_addresses(1)
        command = [self.example("do_nothing_ext_proc"), "--listen", address,
                   "--destination", destination, *flags]
        process = self.processes.start(name, command)
        process.accepts(address)
        return process, address

    def envoy(self, upstream, pickers, alone="envoy"):
        """Envoy with one worker and a listener for each picker, and one without; returns it and the
        address of each listener. `pickers` has the addresses of pickers by name."""
        names = [alone, *pickers]
        listeners = dict(zip(names, free_addresses(len(names))))
        file = self.processes.scratch / "envoy.json"
        file.write_text(envoy.bootstrap(listeners, upstream, pickers), encoding="utf-8")
        process = self.processes.start("envoy", [
            os.environ["STATOR_TEST_ENVOY"], "--config-path", file, "--concurrency", 1,
            "--disable-hot-restart", "--log-level", "error"])
        process.accepts(listeners[alone])
        return process, listeners

    def load(self, address, flags, watched=None):
        """Runs the load generator; returns what it reports, with CPU time in µs per request of the
        processes in `watched`, by name, and the share of the machine that strangers took."""
        watched = watched or {}
        machine, own = Machine(self.processes.started), Machine(watched.values())
        before = children_cpu_s()
        command = [self.example("picker_load"), address, "--first", self.first, *flags]
        self.first += REQUESTS_MAX
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              timeout=1800, check=False)
        _, _, watched_s = own.since()
        busy_s, whole_s, known_s = machine.since()
        if done.returncode != 0:
            raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
        report = json.loads(done.stdout)
        if not report["requests"]:
            raise RuntimeError(f"no request succeeded, the first failure: {report['failure']}")
        report["cpu_us"] = {name: 1e6 * seconds / report["requests"]
                            for name, seconds in zip(watched, watched_s)}
        others_s = busy_s - sum(known_s) - (children_cpu_s() - before)
        # A short run may end within one tick of the machine's clock.
        report["others_share"] = max(0.0, others_s / max(whole_s, 0.01))
        return report

    def wait_until_serving(self, address, *flags):
        """Waits until a request is answered: the picker has its endpoints, and Envoy the picker."""
        deadline = time.monotonic() + SERVING_S
        while True:
            try:
                return self.load(address, ["--requests", 1, "--concurrency", 1, *flags])
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


def children_cpu_s():
    """User and system time of the programs that were run and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
