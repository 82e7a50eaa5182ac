"""The connection of a process of an engine to the agent that owns the host arena.

It knows the messages, which the agent's `connector/wire.rs` documents, and no engine: a shim beside
this file translates for each engine. Nothing happens at import.
"""

import functools
import logging
import os
import select
import socket
import struct
import threading
import time

HELLO, ASK, END, FILLED, TOUCH, RESET, PULSE, BYE = range(1, 9)
WELCOME, REFUSED, FOUND, READY, GRANT, DUP, AGENT_PULSE, AGENT_BYE = range(65, 73)
PROTOCOL, MORE = 1, 1
KEY_BYTES, KEYS_MAX, ASK_KEYS_MAX = 36, 1024, 65536
PACKET_BYTES_MAX, PACKETS_MAX = 65536, 1024
# Longest wait of one call, and time between two attempts to connect.
CALL_S, RETRY_S = 0.002, 1.0


def guarded(**answers):
    """Makes each of these methods take its link's lock, and answer this where it would raise.

    An exception would end the engine.
    """

    def guard(method, answer):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            try:
                with self.link.lock:
                    return method(self, *args, **kwargs)
            except Exception:
                self.link.fault(method.__name__)
                return answer() if callable(answer) else answer

        return call

    def guard_all(owner):
        for name, answer in answers.items():
            setattr(owner, name, guard(getattr(owner, name), answer))
        return owner

    return guard_all


class Link:
    """A connection that comes back. The lock is held in all methods but `start`.

    Its owner has `idle()`: no copy touches the arena; `joined(boot, slots, stride, fd)`;
    `heard(kind, flags, number, body)`; and `counts()`: loaded, stored, late asks, late loads.
    """

    def __init__(self, owner, path, hello, logger=logging.getLogger(__name__)):
        self.owner, self.path, self.hello, self.logger = owner, path, hello, logger
        self.lock, self.ended, self.off = threading.RLock(), threading.Event(), not path
        # The agent's start, while there is a connection that it has welcomed.
        self.socket = self.boot = self.namespace = self.said = None
        self.slots = self.epoch = self.prefill_us = self.faults = self.silent = 0
        self.tried = -RETRY_S

    def start(self):
        """Connects now, if there is an agent, and from then on whenever there is one."""
        try:
            if not self.off:
                threading.Thread(target=self.tick, name="stator-link", daemon=True).start()
            deadline = time.monotonic() + RETRY_S
            with self.lock:
                self.pump()
                while self.socket and not self.boot and time.monotonic() < deadline:
                    self.pump(CALL_S)
        except Exception:
            self.fault("start")

    def tick(self):
        """Once a second: joins an agent that came, and tells it that the engine lives."""
        while not self.ended.wait(RETRY_S):
            try:
                with self.lock:
                    self.pump()
                    if self.boot:
                        counts = (*self.owner.counts(), self.faults)
                        self.send(PULSE, self.boot + struct.pack("<II5Q", self.prefill_us, 0, *counts))
                    elif self.socket and time.monotonic() - self.tried > RETRY_S:
                        self.drop("it does not answer HELLO")
            except Exception:
                self.fault("tick")

    def pump(self, wait_s=0.0):
        """Reads what the agent sent, after at most `wait_s`; connects where that is due."""
        try:
            if self.off or not (self.socket or self.connect()):
                return
            if wait_s:
                self.poll(select.POLLIN, wait_s)
            for _ in range(PACKETS_MAX):
                if not self.socket:
                    return
                packet, fds, _, _ = socket.recv_fds(self.socket, PACKET_BYTES_MAX, 1)
                try:
                    self.receive(packet, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
        except BlockingIOError:
            pass
        except (OSError, ValueError, struct.error) as error:
            self.drop(error)

    def connect(self):
        now = time.monotonic()
        # HELLO is a promise that no copy of an earlier connection touches the arena any more.
        if now - self.tried < RETRY_S or not self.owner.idle():
            return False
        self.tried, self.silent, self.epoch = now, 0, self.epoch + 1
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.socket.connect(self.path)
        self.socket.send(struct.pack("<HHIQ", HELLO, 0, len(self.hello), 0) + self.hello)
        return True

    def receive(self, packet, fds):
        if not packet:
            raise ConnectionError("it closed the connection")
        kind, flags, _, number = struct.unpack_from("<HHIQ", packet)
        body, self.silent = packet[16:], 0
        if kind == WELCOME and fds:
            boot, self.slots, _, stride = struct.unpack("<16sIIQ", body)
            self.owner.joined(boot, self.slots, stride, fds[0])
            self.boot, self.said = boot, None
            self.logger.info("KV tiers: the agent at %s has %d slots", self.path, self.slots)
            if self.namespace:
                self.send(RESET, self.namespace)
        elif kind == REFUSED:
            raise ConnectionError("it refused: " + body[8:].decode(errors="replace"))
        elif kind == AGENT_BYE:
            raise ConnectionError("it ends")
        else:
            self.owner.heard(kind, flags, number, body)

    def read_slots(self, body, at):
        """A count and as many slots. A copy to or from outside the arena would harm the engine."""
        count, = struct.unpack_from("<I", body, at)
        slots = struct.unpack_from(f"<{count}I", body, at + 4)
        if max(slots, default=-1) >= self.slots:
            raise ValueError("a slot outside the arena")
        return slots

    def send(self, kind, body=b"", number=0):
        packet = struct.pack("<HHIQ", kind, 0, len(body), number) + body
        try:
            if self.socket:
                self.socket.send(packet)
        except BlockingIOError:
            self.poll(select.POLLOUT, CALL_S)
            try:
                self.socket.send(packet)
            except OSError:
                self.drop("it does not read")
        except OSError as error:
            self.drop(error)

    def poll(self, events, wait_s):
        poll = select.poll()
        poll.register(self.socket, events)
        poll.poll(wait_s * 1e3)

    def drop(self, why):
        # Said once, not every second.
        if self.said != str(why):
            self.logger.warning("KV tiers are off until the agent at %s comes: %s", self.path, why)
        self.said, self.boot = str(why), None
        if self.socket:
            self.socket.close()
        self.socket = None

    def fault(self, entry):
        """Turns the tiers off for good; the exception is the one that is being handled."""
        self.faults += 1
        self.logger.exception("KV tiers are off until the engine restarts: %s failed", entry)
        self.close()

    def close(self):
        """The agent keeps what copies may still touch until this process has ended."""
        self.off, self.boot = True, None
        self.ended.set()
        if self.socket:
            self.socket.close()
        self.socket = None
