"""The shim for SGLang 0.5 with stand-ins for SGLang's interface. Runs in any Python with torch."""

import contextlib
import logging
import os
import socket
import struct
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import torch


def stand_in(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


class HiCacheStorage:
    def register_mem_pool_host(self, pool):
        self.mem_pool_host = pool

    def register_mem_host_pool_v2(self, pool, name):
        pass


class PoolTransferResult:
    kv_hit_pages = 0

    @classmethod
    def empty(cls):
        return cls()


for package in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
    stand_in(package)
stand_in("sglang.srt.mem_cache.hicache_storage", HiCacheStorage=HiCacheStorage,
         PoolTransferResult=PoolTransferResult)
stand_in("sglang.version", __version__="0.5.23")

import sglang_0_5 as shim  # noqa: E402
import stator_link as link  # noqa: E402

TOKENS, SLOTS, STRIDE, BOOT = 4, 8, 4096, b"b" * 16
# Keys and values of two layers, each of two heads of eight numbers.
SHAPE = (2, 2, TOKENS, 2, 8)


class Pool:
    """Host memory as SGLang has it: layer first, a page is as many tokens."""

    layout, page_size = "layer_first", TOKENS

    def __init__(self, pages):
        self.kv = torch.randn(2, 2, pages * TOKENS, 2, 8).to(torch.bfloat16)
        # Pages that were copied together.
        self.flattened = 0

    def get_dummy_flat_data_page(self):
        return torch.zeros(SHAPE, dtype=torch.bfloat16).flatten()

    def get_data_page(self, index, flat=True):
        page = self.kv[:, :, index : index + TOKENS]
        self.flattened += flat
        return page.flatten() if flat else page

    def set_from_flat_data_page(self, index, page):
        self.kv[:, :, index : index + TOKENS] = page.reshape(SHAPE)


def packet(kind, body=b"", number=0):
    return struct.pack("<HHIQ", kind, 0, len(body), number) + body


def slots(*numbers):
    return struct.pack(f"<I{len(numbers)}I", len(numbers), *numbers)


class Agent:
    """An agent that keeps what it is given, and welcomes one connection after the other."""

    def __init__(self, test, is_silent=False):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.path, self.held, self.is_silent = os.path.join(folder.name, "sock"), {}, is_silent
        self.depths, self.words, self.asked, self.ended = [], [], [], []
        self.arena = os.memfd_create("arena")
        test.addCleanup(os.close, self.arena)
        os.ftruncate(self.arena, SLOTS * STRIDE)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        test.addCleanup(self.listener.close)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            # The shim may go in the middle of a word.
            with peer, contextlib.suppress(OSError):
                while got := peer.recv(1 << 20):
                    self.hear(peer, *struct.unpack_from("<HHIQ", got), got[16:])

    def hear(self, peer, kind, _, length, number, body):
        if kind == link.HELLO:
            welcome = packet(link.WELCOME, struct.pack("<16sIIQ", BOOT, SLOTS, SLOTS, STRIDE))
            socket.send_fds(peer, [welcome], [self.arena])
            # Two at first, more with each slot that is filled.
            peer.send(packet(link.GRANT, slots(0, 1)))
        elif kind == link.ASK and not self.is_silent:
            self.asked.append(number)
            keys = [body[at : at + 36] for at in range(16, len(body), 36)]
            held = [self.held.get(key) for key in keys]
            count = held.index(None) if None in held else len(held)
            # The last comes a little later, as from a disk.
            first = held[: max(count - 1, 0)]
            pending = struct.pack("<I", count - len(first))
            peer.send(packet(link.FOUND, pending + slots(*first), number))
            if count:
                peer.send(packet(link.READY, struct.pack("<I", 0) + slots(held[count - 1]), number))
        elif kind == link.END:
            self.ended.append(number)
        elif kind == link.TOKENS:
            self.words.append(body)
        elif kind == link.FILLED:
            for at in range(4, len(body), 44):
                slot, depth = struct.unpack_from("<II", body, at + 36)
                self.depths.append(depth)
                self.held[body[at : at + 36]] = slot
                if slot + 2 < SLOTS:
                    peer.send(packet(link.GRANT, slots(slot + 2)))


def config(**changes):
    of = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dp_rank=0,
              dcp_size=1, is_mla_model=False, model_name="tiny", extra_config={})
    return types.SimpleNamespace(**{**of, **changes})


class Keeps(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)

    def storage(self, path, pool, **changes):
        storage = shim.Storage(config(extra_config={"stator_socket": path}, **changes), {})
        storage.register_mem_pool_host(pool)
        self.addCleanup(storage.close)
        return storage

    def test_pages_come_back_as_they_were(self):
        agent, pool, other = Agent(self), Pool(4), Pool(4)
        keys, places = [f"{of:064x}" for of in range(4)], torch.arange(4 * TOKENS)
        storage = self.storage(agent.path, pool)
        self.assertEqual(storage.batch_set_v1(keys[:3], places[: 3 * TOKENS]), [True] * 3)
        self.assertEqual(storage.batch_exists(keys), 3)
        # One, to know the form.
        self.assertEqual(pool.flattened, 1)
        loaded = self.storage(agent.path, other)
        # The agent of this test serves one connection at a time.
        storage.close()
        while not loaded.pages.boot:
            pass
        self.assertEqual(loaded.batch_get_v1(keys, places), [True, True, True, False])
        self.assertTrue(torch.equal(other.kv[:, :, : 3 * TOKENS], pool.kv[:, :, : 3 * TOKENS]))
        self.assertFalse(torch.equal(other.kv, pool.kv))
        self.assertTrue(loaded.pages.is_idle())

    def test_what_was_looked_up_is_awaited_until_it_can_be_loaded(self):
        agent, pool = Agent(self), Pool(2)
        keys, places = ["00" * 32, "11" * 32], torch.arange(2 * TOKENS)
        storage = self.storage(agent.path, pool)
        storage.batch_set_v1(keys, places)
        with mock.patch.object(shim, "READY_S", 3600):
            self.assertEqual(storage.batch_exists(keys), 2)
            self.assertEqual(storage.batch_get_v1(keys, places), [True, True])
            looked_up, loaded = agent.asked
            while not agent.ended:
                pass
            self.assertEqual(agent.ended, [loaded])
        while len(agent.ended) < 2:
            pass
        self.assertEqual(agent.ended, [loaded, looked_up])

    def test_ranks_have_pages_of_their_own_unless_all_have_the_same(self):
        groups = [shim.group_of(config(tp_rank=rank, is_mla_model=mla))
                  for mla in (False, True) for rank in (0, 1)]
        self.assertEqual(len(set(groups)), 2)
        self.assertNotEqual(groups[0], groups[1])

    def test_nothing_is_there_without_an_agent(self):
        storage = self.storage("/nowhere/agent.sock", Pool(2))
        keys, places = ["00" * 32, "11" * 32], torch.arange(2 * TOKENS)
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_get_v1(keys, places), [False, False])
        self.assertEqual(storage.batch_set_v1(keys, places), [False, False])

    def test_calls_end_under_a_silent_agent(self):
        storage = self.storage(Agent(self, is_silent=True).path, Pool(2))
        keys, places = ["00" * 32, "11" * 32], torch.arange(2 * TOKENS)
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_get_v1(keys, places), [False, False])

    def test_a_pool_of_another_kind_is_served_without_tiers(self):
        storage = self.storage("/nowhere/agent.sock", object())
        self.assertEqual(storage.batch_exists(["00" * 32]), 0)
        self.assertEqual(storage.batch_set_v1(["00" * 32], torch.arange(TOKENS)), [False])
        storage.close()

    def test_a_configuration_of_another_kind_is_served_without_tiers(self):
        storage = shim.Storage(object(), {})
        storage.register_mem_pool_host(Pool(1))
        self.assertEqual(storage.batch_exists(["00" * 32]), 0)
        storage.close()

    def test_pages_are_as_deep_as_sglang_says(self):
        agent, pool = Agent(self), Pool(4)
        storage = self.storage(agent.path, pool)
        info = types.SimpleNamespace(prefix_keys=["ff" * 32] * 5)
        keys, places = [f"{of:064x}" for of in range(2)], torch.arange(2 * TOKENS)
        self.assertEqual(storage.batch_set_v1(keys, places, info), [True] * 2)
        self.assertEqual(storage.batch_exists(keys), 2)
        self.assertEqual(sorted(agent.depths), [5, 6])

    def test_a_model_with_several_pools_is_served_without_tiers(self):
        agent, pool = Agent(self), Pool(2)
        storage = self.storage(agent.path, pool)
        keys, places = ["00" * 32, "11" * 32], torch.arange(2 * TOKENS)
        storage.register_mem_host_pool_v2(pool, "kv")
        self.assertEqual(storage.batch_set_v1(keys[:1], places[:TOKENS]), [True])
        logging.disable(logging.NOTSET)
        with self.assertLogs(shim.logger, "WARNING") as log:
            storage.register_mem_host_pool_v2(object(), "swa")
            storage.register_mem_host_pool_v2(object(), "mamba")
        self.assertEqual(len(log.output), 1)
        self.assertEqual(storage.batch_set_v1(keys, places), [False, False])
        transfers = [types.SimpleNamespace(name=name, keys=of) for name, of in (("kv", keys), ("swa", None))]
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(storage.batch_exists_v2(keys, transfers).kv_hit_pages, 0)
        nothing = {"kv": [False, False], "swa": []}
        self.assertEqual(storage.batch_get_v2(transfers), nothing)
        self.assertEqual(storage.batch_set_v2(transfers, None), nothing)

    def test_garbage_is_survived(self):
        for garbage in ([None], ["not hex"], [b"\xff"], [7]):
            storage = self.storage(Agent(self).path, Pool(2))
            self.assertEqual(storage.batch_exists(garbage), 0)
            self.assertEqual(storage.batch_get_v1(garbage, None), [False])
            self.assertEqual(storage.batch_set_v1(garbage, None), [False])
            self.assertTrue(storage.pages.ended.is_set())


if __name__ == "__main__":
    unittest.main()
