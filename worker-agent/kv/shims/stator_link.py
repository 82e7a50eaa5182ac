"""An engine's connection to the agent that owns the host arena: what the shims beside this share.

The agent's `connector/wire.rs` documents the messages. A thread joins the agent and reads what it
says. A call of the engine waits for that only in `ask`, for milliseconds.
"""

import contextlib
import hashlib
import itertools
import os
import socket
import struct
import threading
import time
from collections import deque

HELLO, ASK, END, FILLED, TOUCH, RESET, PULSE, BYE, TOKENS, HINT, HOLDERS = *range(1, 11), 13
WELCOME, REFUSED, FOUND, READY, GRANT, DUP = range(65, 71)
PROTOCOL, KEYS_MAX, ASK_KEYS_MAX, PACKET_BYTES, NAMES_BYTES = 3, 1024, 65536, 65536, 256
HOLDERS_MAX, ADDRESS_BYTES = 4, 256
# Longest waits: of a call, of a request for FOUND and for READY, and until the agent is tried again.
CALL_S, FOUND_S, READY_S, RETRY_S = 0.002, 0.05, 2.0, 1.0
# What a pulse counts.
LOADED, STORED, ASKS_LATE, LOADS_LATE, FAULTS = range(5)


def guarded(**answers):
    """Has the public methods of a `Link` hold its lock, and answer so where they would raise."""

    def guard(name, method, answer):
        def call(self, *args):
            try:
                with self.lock:
                    return method(self, *args)
            except Exception:
                self.fault(name)
                return answer(self, *args)

        return call

    def guard_all(owner):
        for name, method in list(vars(owner).items()):
            if callable(method) and not name.startswith("_"):
                setattr(owner, name, guard(name, method, answers.get(name, lambda *_: None)))
        return owner

    return guard_all


class Nothing:
    """Stands for a part of an engine that could not be made: a method without an answer gives None."""

    def __init__(self, **answers):
        vars(self).update(answers)

    def __getattr__(self, name):
        return lambda *_, **__: None


class Ask:
    """A question for the leading blocks of a prompt, and what is known of the answer."""

    def __init__(self, number, boot, keys):
        self.number, self.boot, self.began = number, boot, time.monotonic()
        self.places = {key: place for place, key in enumerate(keys)}
        # Slots of the first blocks, and how many more come.
        self.ready, self.pending, self.is_found = [], 0, False

    def knows(self, key):
        """Whether the answer is about this key: it ends with the first block that is missing."""
        place = self.places.get(key)
        return place is not None and (not self.is_settled() or place <= len(self.ready))

    def is_settled(self):
        """Whether nothing more comes of it."""
        return self.is_found and not self.pending


class Link:
    """A connection that comes back. `boot` names an agent's start, while that agent welcomes us."""

    # Longest wait of a request for FOUND.
    found_s = FOUND_S

    def __init__(self, path, hello, logger):
        self.path, self.hello, self.logger = path, hello, logger
        self.lock, self.ended, self.numbers = threading.RLock(), threading.Event(), itertools.count(1)
        self.news = threading.Condition(self.lock)
        self.peer = self.boot = self.namespace = self.said = None
        self.asks, self.credit, self.counts = {}, deque(), [0] * 5
        self.slots = self.prefill_us = self.load_us = self.pulse_due = self.heard = 0

    def is_idle(self):
        """Whether no copy of an earlier connection runs any more, which HELLO promises."""
        return True

    def _joined(self, boot, slots, stride, fd):
        """Maps an agent's arena, before it may be used. Called without the lock: it may take long."""

    def _pulsed(self):
        """Called with the lock once in a while, as long as there is an agent."""

    def start(self):
        """Joins the agent if there is one, and from then on whenever there is one."""
        threading.Thread(target=self._run, name="stator-link", daemon=True).start()
        with self.lock:
            self.news.wait_for(lambda: self.boot or self.said, RETRY_S)

    def _run(self):
        while not self.ended.is_set():
            try:
                if self.is_idle():
                    self._converse()
            except Exception as why:
                with self.lock:
                    self.peer = None
                    self._leave()
                    if str(why) != self.said and not self.ended.is_set():
                        self.logger.warning("KV tiers are off until %s answers: %s", self.path, why)
                    self.said = str(why)
                    self.news.notify_all()
            self.ended.wait(RETRY_S)

    def _converse(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            for option, limit_ms in ((socket.SO_RCVTIMEO, 1000), (socket.SO_SNDTIMEO, 10)):
                limit = struct.pack("ll", limit_ms // 1000, limit_ms % 1000 * 1000)
                peer.setsockopt(socket.SOL_SOCKET, option, limit)
            peer.connect(self.path)
            peer.send(struct.pack("<HHIQ", HELLO, 0, len(self.hello), 0) + self.hello)
            while not self.ended.is_set():
                with contextlib.suppress(BlockingIOError):
                    packet, fds, _, _ = socket.recv_fds(peer, PACKET_BYTES, 1)
                    self._take(peer, packet, fds)
                with self.lock:
                    if self.boot and time.monotonic() >= self.pulse_due:
                        self.pulse_due = time.monotonic() + RETRY_S
                        pulse = struct.pack("<II5Q", self.prefill_us, self.load_us, *self.counts)
                        self._send(PULSE, self.boot + pulse)
                        self._pulsed()

    def _take(self, peer, packet, fds):
        if not packet:
            raise ConnectionError("the connection is closed")
        kind, _, _, number = struct.unpack_from("<HHIQ", packet)
        body = packet[16:]
        if kind == REFUSED:
            raise ConnectionError(body[8:].decode(errors="replace"))
        if kind == WELCOME:
            boot, slots, _, stride = struct.unpack("<16sIIQ", body)
            self._joined(boot, slots, stride, *fds)
            os.close(*fds)
        with self.lock:
            self.heard = time.monotonic()
            if kind == WELCOME:
                self.peer, self.boot, self.slots, self.pulse_due, self.said = peer, boot, slots, 0, None
                self.asks, self.credit, self.counts = {}, deque(), [0] * 5
                self.logger.info("KV tiers: the agent at %s has %d slots", self.path, slots)
                if self.namespace:
                    self._send(RESET, self.namespace)
            elif kind in (GRANT, DUP):
                self.credit.extend(self._slots(body[4:]))
            elif kind in (FOUND, READY) and (ask := self.asks.get(number)):
                ask.ready += self._slots(body[8:])
                ask.pending, ask.is_found = struct.unpack_from("<I", body)[0], True
            self.news.notify_all()

    def _slots(self, body):
        """A copy to or from outside the arena would harm the engine."""
        slots = struct.unpack(f"<{len(body) // 4}I", body)
        if max(slots, default=-1) >= self.slots:
            raise ValueError("a slot outside the arena")
        return slots

    def _send(self, kind, body=b"", number=0):
        try:
            if self.peer:
                self.peer.send(struct.pack("<HHIQ", kind, 0, len(body), number) + body)
        except OSError:
            self._leave()

    def _leave(self):
        """Ends this connection. The thread begins another when no copy runs."""
        peer, self.peer, self.boot, self.asks = self.peer, None, None, {}
        if peer:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _ask(self, keys, told=None, prefill_us=None):
        """Asks for the leading blocks of a prompt, if there is an agent, and waits a little.

        `told` are the parameters that the agent or its sidecar gave the engine with the prompt, if any.
        Without a block the engine computes for `prefill_us`, by default as long as for any other.
        """
        if not keys or not self.boot:
            return None
        ask = Ask(next(self.numbers), self.boot, keys[:ASK_KEYS_MAX])
        self.asks[ask.number], keys = ask, list(ask.places)
        told = told if isinstance(told, dict) else {}
        hint, holders = told.get("stator_hint"), _holders(told.get("stator_holders"))
        if isinstance(hint, int) and 0 <= hint < 2**64:
            self._send(HINT, struct.pack("<Q", hint), ask.number)
        elif holders:
            self._send(HOLDERS, struct.pack("<I", len(holders)) + b"".join(holders), ask.number)
        prefill_us = self.prefill_us if prefill_us is None else min(prefill_us, 2**32 - 1)
        for first in range(0, len(keys), KEYS_MAX):
            part = keys[first : first + KEYS_MAX]
            head = struct.pack("<4I", prefill_us, len(keys), first, len(part))
            self._send(ASK, head + b"".join(part), ask.number)
        self.news.wait_for(lambda: ask.is_found or ask.number not in self.asks, CALL_S)
        return ask

    def _is_open(self, ask):
        """Whether an ask's slots are ours. Gives up an ask that is late, an agent that is silent."""
        now = time.monotonic()
        wait_s = READY_S if ask and ask.is_found else self.found_s
        if ask and not ask.is_settled() and now > ask.began + wait_s:
            self.counts[LOADS_LATE if ask.is_found else ASKS_LATE] += ask.number in self.asks
            self._end(ask)
            if now > self.heard + READY_S:
                self._leave()
        return ask is not None and self.asks.get(ask.number) is ask

    def _end(self, ask):
        """The slots of an ask are not needed any more."""
        if ask and self.asks.pop(ask.number, None):
            self._send(END, number=ask.number)

    def _filled(self, entries):
        """Hands over slots that have been filled: key, slot, depth and words of each."""
        for first in range(0, len(entries), KEYS_MAX):
            part = entries[first : first + KEYS_MAX]
            self._tell([(key, *words) for key, _, _, words in part if words])
            body = b"".join(key + struct.pack("<II", slot, depth) for key, slot, depth, _ in part)
            self._send(FILLED, struct.pack("<I", len(part)) + body)
        self.counts[STORED] += len(entries)

    def _tell(self, words):
        """Tells the tokens of blocks of one request, so that routers hear where the blocks are."""
        size = max((len(key + text) for key, _, text in words), default=1)
        most = (PACKET_BYTES - 1024) // size
        for first in range(0, len(words) if most else 0, most or 1):
            part, (lora, salt) = words[first : first + most], words[first][1]
            head = struct.pack("<4I", (size - 68) // 4, len(lora), len(salt), len(part)) + lora + salt
            self._send(TOKENS, head + b"".join(key + text for key, _, text in part))

    def fault(self, entry):
        """Ends the tiers for good because of the exception that is being handled. The log has the first."""
        self.counts[FAULTS] += 1
        if not self.ended.is_set():
            self.logger.exception("KV tiers are off until the engine restarts: %s failed", entry)
        self.shutdown()

    def shutdown(self):
        """Leaves for good. The agent keeps what copies may touch until this process has ended."""
        with self.lock:
            self.ended.set()
            self._leave()


def _holders(told):
    """Agents that lend a prompt's blocks, as HOLDERS has them; what is no agent is passed over."""
    holders = []
    for entry in told[:HOLDERS_MAX] if isinstance(told, list) else ():
        match entry:
            case [str(address), int(blocks)] if 0 < blocks < 2**32:
                text = address.encode(errors="replace")
                if 0 < len(text) <= ADDRESS_BYTES:
                    holders.append(struct.pack("<II", blocks, len(text)) + text)
    return holders


def hello(role, rank, world, tokens, row_bytes, engine, form):
    """HELLO of a scheduler, with `role` 0, or of a worker that maps the arena, with 1."""
    engine, form = engine.encode()[:256], form.encode(errors="replace")
    fingerprint, form = hashlib.sha256(form).digest(), form[:1024].decode(errors="ignore").encode()
    head = (PROTOCOL, role, rank, world, tokens, 0, row_bytes, fingerprint, os.urandom(16))
    return struct.pack("<6IQ32s16sII", *head, len(engine), len(form)) + engine + form
