"""Copies that an agent does for a worker, without a device: a memory file is the device's."""

import logging
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import stator_device as device
import stator_link as link
import test_sglang_0_5 as kit

PAGE, PAGES = 64, 4


class Agent(kit.Agent):
    """An agent that copies between the file and the arena. What it does at an order can be changed."""

    def __init__(self, test, is_able=True):
        self.is_able, self.at_order = is_able, self.copy
        super().__init__(test)

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                while True:
                    got, self.files, _, _ = socket.recv_fds(peer, 1 << 20, 1)
                    if not got:
                        break
                    self.hear(peer, *struct.unpack_from("<HHIQ", got), got[16:])

    def hear(self, peer, kind, flags, length, number, body):
        if kind == device.EXPORT:
            self.exported, (file,) = struct.unpack("<II16sQ64s64s6I6Q", body), self.files
            self.device = mmap.mmap(file, PAGES * PAGE)
            os.close(file)
            reason = b"" if self.is_able else b"no driver"
            status = struct.pack("<II", not self.is_able, len(reason)) + reason
            peer.send(kit.packet(device.EXPORTED, status))
        elif kind == device.COPY:
            self.at_order(peer, number, body)
        else:
            super().hear(peer, kind, flags, length, number, body)

    def copy(self, peer, number, body):
        way, length, count = struct.unpack_from("<3I", body)
        arena = mmap.mmap(self.arena, kit.SLOTS * kit.STRIDE)
        for at in range(count):
            source, target = struct.unpack_from("<II", body, 12 + length + 8 * at)
            page, slot = (source, target) if way == device.STORE else (target, source)
            there, here = slice(slot * kit.STRIDE, slot * kit.STRIDE + PAGE), slice(page * PAGE, page * PAGE + PAGE)
            if way == device.STORE:
                arena[there] = self.device[here]
            else:
                self.device[here] = arena[there]
        self.answer(peer, number)

    def answer(self, peer, number, status=0):
        peer.send(kit.packet(device.COPIED, struct.pack("<II", status, 0), number))


class Orders(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.file = os.memfd_create("device")
        self.addCleanup(os.close, self.file)
        os.ftruncate(self.file, PAGES * PAGE)
        self.memory = mmap.mmap(self.file, PAGES * PAGE)

    def worker(self, agent):
        hello = link.hello(1, 0, 1, 4, PAGE, "engine", "tiny")
        worker = device.DeviceLink(agent.path, hello, logging.getLogger())
        self.addCleanup(worker.shutdown)
        memory = device.Allocation(b"u" * 16, PAGES * PAGE, None, self.file, 0)
        worker.offer(memory, device.Pages(1, 1, 1, PAGE, PAGES, (PAGE,) * 4), 7)
        worker.start()
        with worker.lock:
            self.assertTrue(worker.news.wait_for(lambda: worker.is_exported is not None, 20))
        return worker

    def test_pages_go_to_slots_and_back(self):
        agent = Agent(self)
        worker = self.worker(agent)
        self.assertEqual(agent.exported[:4], (2, 0, b"u" * 16, PAGES * PAGE))
        self.assertEqual(agent.exported[6:], (1, 1, 1, PAGE, PAGES, 0, 0, PAGE, PAGE, PAGE, PAGE, 7))
        self.memory[PAGE : 2 * PAGE] = b"k" * PAGE
        self.assertTrue(worker.order(device.STORE, [(1, 5)]))
        self.assertTrue(worker.order(device.LOAD, [(5, 3), (5, 0)]))
        self.assertEqual(self.memory[:], (b"k" * 2 + bytes(1) + b"k").replace(b"k", b"k" * PAGE).replace(
            b"\0", bytes(PAGE)))
        self.assertEqual(worker.orders, {})

    def test_a_long_order_is_cut(self):
        agent, counts = Agent(self), []
        agent.at_order = lambda peer, number, body: (
            counts.append(struct.unpack_from("<3I", body)), agent.answer(peer, number))
        pairs = [(0, 0)] * (link.KEYS_MAX + 1)
        self.assertTrue(self.worker(agent).order(device.PASS, pairs, "other"))
        self.assertEqual(counts, [(2, 5, link.KEYS_MAX), (2, 5, 1)])

    def test_without_a_driver_the_worker_copies(self):
        worker = self.worker(Agent(self, is_able=False))
        self.assertIs(worker.is_exported, False)
        self.assertFalse(worker.order(device.STORE, [(0, 0)]))

    def test_a_copy_that_failed_is_the_workers(self):
        agent = Agent(self)
        agent.at_order = lambda peer, number, body: agent.answer(peer, number, 1)
        self.assertFalse(self.worker(agent).order(device.STORE, [(0, 0)]))

    def test_the_end_is_awaited_unless_the_agent_said_that_nothing_runs(self):
        for says_bye in (True, False):
            agent, waited = Agent(self), []

            def leave(peer, number, body, says_bye=says_bye):
                if says_bye:
                    peer.send(kit.packet(device.BYE))
                peer.shutdown(socket.SHUT_RDWR)

            agent.at_order = leave
            worker = self.worker(agent)
            # This process is the agent's, too: its end is not awaited here in earnest.
            real, device.select = device.select, types.SimpleNamespace(
                select=lambda files, *_: waited.append(files == [worker.agent]))
            self.addCleanup(setattr, device, "select", real)
            self.assertFalse(worker.order(device.STORE, [(0, 0)]))
            self.assertEqual(waited, [] if says_bye else [True])
            device.select = real
            worker.shutdown()

    def test_an_order_ends_with_the_agents_process(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sock")
            dying = subprocess.Popen([sys.executable, "-c", DYING, path], stdout=subprocess.PIPE, text=True)
            self.assertEqual(dying.stdout.readline(), "listening\n")
            worker = self.worker(types.SimpleNamespace(path=path))
            self.assertFalse(worker.order(device.STORE, [(0, 0)]))
            self.assertEqual(dying.wait(20), 9)
            dying.stdout.close()


# An agent that dies at the first order.
DYING = """
import os, socket, struct, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
peer, _ = listener.accept()
kind = 0
while kind != 12:
    kind, _, _, _ = struct.unpack_from("<HHIQ", peer.recv(1 << 20))
    if kind == 1:
        welcome = struct.pack("<HHIQ16sIIQ", 65, 0, 32, 0, b"b" * 16, 1, 1, 4096)
        socket.send_fds(peer, [welcome], [os.memfd_create("arena")])
    elif kind == 11:
        peer.send(struct.pack("<HHIQII", 73, 0, 8, 0, 0, 0))
os._exit(9)
"""

if __name__ == "__main__":
    unittest.main()
