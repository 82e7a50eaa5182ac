"""Copies between an engine's device memory and the arena, done by the agent for a worker.

The agent's `connector/wire/device.rs` documents the messages. Where the agent has no driver, or cannot
map the memory, the worker hears so and copies by itself.
"""

import contextlib
import ctypes
import os
import select
import socket
import struct
from collections import namedtuple

from stator_link import KEYS_MAX, WELCOME, Link

EXPORT, COPY = 11, 12
BYE, EXPORTED, COPIED = 72, 73, 74
STORE, LOAD, PASS = range(3)

# Memory of a device: its UUID, the bytes and the IPC handle or the file of an allocation, and the
# offset of an address in it.
Allocation = namedtuple("Allocation", "device bytes handle file offset")
# Sizes of a page, pages, and bytes from one layer, page, head and token to the next.
Pages = namedtuple("Pages", "layers heads tokens content count strides")


def allocation_of(address):
    """The allocation around an address of the current device, by IPC handle.

    Raises where the driver gives none, as for memory whose pieces are mapped one by one.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        if code := getattr(cuda, name)(*arguments):
            raise OSError(f"{name}: error {code}")

    base, size, device = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
    handle, uuid = ctypes.create_string_buffer(64), ctypes.create_string_buffer(16)
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    call("cuIpcGetMemHandle", handle, base)
    call("cuCtxGetDevice", ctypes.byref(device))
    call("cuDeviceGetUuid_v2", uuid, device)
    return Allocation(uuid.raw, size.value, handle.raw, None, address - base.value)


class DeviceLink(Link):
    """A worker's connection to an agent that copies for it, if the agent can."""

    def __init__(self, *args):
        super().__init__(*args)
        # What is exported, whether the agent has mapped it, and the results of orders.
        self.export, self.is_exported, self.orders = None, None, {}
        self.agent, self.is_settled = None, True

    def offer(self, memory, pages, part, event=b""):
        """Exports memory to each agent that welcomes this worker. Called before `start`.

        `part` is the offset of the worker's part in a slot, `event` the IPC handle of an event.
        """
        body = struct.pack("<II16sQ64s64s", 1 if memory.handle else 2, bool(event), memory.device,
                           memory.bytes, memory.handle or b"", event)
        body += struct.pack("<6I6Q", *pages[:5], 0, memory.offset, *pages.strides, part)
        self.export = body, [] if memory.handle else [memory.file]

    def order(self, way, pairs, engine=""):
        """Copies pages, as pairs of source and target, and waits. Whether the bytes are there: if not,
        the caller copies by itself. Until then the pages are the agent's.

        The wait has no bound but the end of the agent, which nobody knows to copy no more before.
        """
        engine, done = engine.encode(), True
        for first in range(0, len(pairs), KEYS_MAX):
            part = pairs[first : first + KEYS_MAX]
            with self.lock:
                if not self.is_exported:
                    return False
                number = next(self.numbers)
                self.orders[number] = None
                head = struct.pack("<3I", way, len(engine), len(part)) + engine
                self._send(COPY, head + b"".join(struct.pack("<II", *pair) for pair in part), number)
                self.news.wait_for(lambda number=number: self.orders[number] is not None)
                done = self.orders.pop(number) and done
        return done

    def _converse(self):
        try:
            super()._converse()
        finally:
            # No page may be used before the agent copies no more: it said so, or has ended.
            with self.lock:
                self.is_exported = False
                is_running = not self.is_settled and any(is_done is None for is_done in self.orders.values())
            if is_running:
                select.select([self.agent], [], [])
            if self.agent is not None:
                os.close(self.agent)
            with self.lock:
                self.agent, self.is_settled = None, True
                self.orders = {number: bool(is_done) for number, is_done in self.orders.items()}
                self.news.notify_all()

    def _take(self, peer, packet, fds):
        super()._take(peer, packet, fds)
        kind, _, _, number = struct.unpack_from("<HHIQ", packet)
        with self.lock:
            if kind == WELCOME and self.export:
                # Without sight of the agent's end, orders could be waited for in vain.
                with contextlib.suppress(OSError):
                    pid, _, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                    self.agent = os.pidfd_open(pid)
                    body, files = self.export
                    message = struct.pack("<HHIQ", EXPORT, 0, len(body), 0) + body
                    socket.send_fds(peer, [message], files)
            elif kind == EXPORTED:
                (status,) = struct.unpack_from("<I", packet, 16)
                self.is_exported, self.is_settled = status == 0, status != 0
                if status:
                    reason = packet[24:].decode(errors="replace")
                    self.logger.info("KV tiers: the engine copies by itself: %s", reason)
            elif kind == COPIED and number in self.orders:
                (status,) = struct.unpack_from("<I", packet, 16)
                self.orders[number] = status == 0
            elif kind == BYE:
                self.is_settled = True
            self.news.notify_all()
