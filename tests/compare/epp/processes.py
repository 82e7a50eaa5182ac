"""Processes under test: started in groups of their own, watched through /proc, always stopped."""

import os
import pathlib
import signal
import socket
import subprocess
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Longest wait for a process to be ready, and to end.
START_S, STOP_S = 60, 10


class Process:
    """A running program. Its output goes to a file that is shown when it fails."""

    def __init__(self, name, command, scratch):
        self.name = name
        self.log = scratch / f"{name}.log"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True)

    def _stat(self):
        # The name, in parentheses, may contain anything; what follows it is separated by spaces.
        text = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()

    def cpu_s(self):
        """User and system time of all its threads so far, in seconds; resolution 10 ms."""
        fields = self._stat()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def rss_bytes(self):
        """Resident memory now."""
        return int(self._stat()[21]) * PAGE_BYTES

    def output(self):
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, ready):
        """Polls until `ready` returns something true, and returns that."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = ready()
            if found:
                return found
            if self.child.poll() is not None:
                break
            time.sleep(0.05)
        end = self.output()[-2000:]
        raise RuntimeError(f"{self.name} is not ready; the end of its log:\n{end}")

    def first_line(self):
        """The first line that it prints, once it is complete."""
        def read():
            line, end, _ = self.output().partition("\n")
            return line if end else None
        return self.wait_for(read)

    def accepts(self, address):
        """Waits until somebody accepts connections at `host:port`."""
        host, port = address.split(":")

        def connect():
            try:
                with socket.create_connection((host, int(port)), timeout=1):
                    return True
            except OSError:
                return False
        self.wait_for(connect)

    def stop(self):
        """SIGTERM, and SIGKILL where that does not help. Nothing where it has ended by itself."""
        if self.child.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.child.pid, number)
                self.child.wait(STOP_S)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                pass


class Processes:
    """All that was started. Leaving the context stops everything, the latest first."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.started = []
        self.count = 0

    def start(self, name, command):
        """Runs a program; `name` names its log."""
        self.count += 1
        process = Process(f"{self.count}-{name}", command, self.scratch)
        self.started.append(process)
        return process

    def stop(self, process):
        """Ends one of them before the others."""
        process.stop()
        self.started.remove(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.stop()


class Machine:
    """How busy the machine was since this was made, and with whom."""

    def __init__(self, processes):
        self.processes = list(processes)
        self.before = self._now()

    def _now(self):
        with open("/proc/stat", encoding="ascii") as stat:
            ticks = [int(field) for field in stat.readline().split()[1:9]]
        whole = sum(ticks) / TICKS_PER_S
        busy = whole - (ticks[3] + ticks[4]) / TICKS_PER_S
        return busy, whole, [process.cpu_s() for process in self.processes]

    def since(self):
        """Seconds that the machine was busy, all seconds, and CPU seconds of each process."""
        (busy, whole, each), (busy_now, whole_now, each_now) = self.before, self._now()
        return busy_now - busy, whole_now - whole, [now - then for now, then in zip(each_now, each)]


def free_addresses(count):
    """Loopback addresses with ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()
