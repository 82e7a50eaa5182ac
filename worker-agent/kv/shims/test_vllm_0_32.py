"""The shim for vLLM 0.32 under agents and callers that misbehave. Runs in vLLM's Python."""

import contextlib
import inspect
import itertools
import logging
import os
import random
import socket
import struct
import tempfile
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import stator_link as link
import stator_prompt as prompt
import torch
import vllm_0_32 as shim
from vllm.v1.kv_offload import base, config
from vllm.v1.kv_offload.base import LookupResult

TOKENS, PAGE, SLOTS, BOOT = 32, 4096, 8, b"b" * 16
GARBAGE = [None, -1, 2**70, "text", b"\xff", [], [None], {"a": 1}, object(), float("nan")]


def spec(path="/nowhere/agent.sock", windows=(None,)):
    extra = {"stator_socket": path, shim.FORM: "hash=sha256_cbor", shim.WINDOWS: dict(enumerate(windows))}
    return shim.Spec(config.OffloadingConfig(
        groups=tuple(config.OffloadingGroupConfig(TOKENS, (f"layer{of}",), of)
                     for of in range(len(windows))),
        worker_kv_bytes_per_block=PAGE, enable_kv_cache_events=False, extra_config=extra,
        engine_id="engine", model=config.OffloadingModelConfig("model", "bfloat16"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=1),
        parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)))


def started(*args, found_s=20.0):
    """A manager of such a spec, as its connector starts it. It waits long for an agent that answers."""
    manager = spec(*args).get_manager()
    manager.found_s = found_s
    manager.start()
    return manager


def caches():
    tensor = torch.arange(4 * PAGE, dtype=torch.int32).to(torch.int8).view(4, PAGE)
    ref = base.CanonicalKVCacheRef(0, PAGE)
    return base.CanonicalKVCaches([base.CanonicalKVCacheTensor(tensor, PAGE)], [[ref]])


def request(name, blocks):
    hashes = [struct.pack("<I28x", block) for block in range(blocks)]
    context = base.ReqContext(name)
    keys, windowed = ([base.make_offload_key(value, group) for value in hashes] for group in (0, 1))
    for place, both in enumerate(zip(keys, windowed)):
        for key in both:
            context.set_offload_key_position(key, (place + 1) * TOKENS)
    asked = SimpleNamespace(
        request_id=name, block_hashes=hashes, all_token_ids=list(range(blocks * TOKENS)),
        lora_request=None, cache_salt="salt", mm_features=[], prompt_embeds=None,
        kv_transfer_params=None)
    return asked, context, keys


def windowed(keys):
    """The keys of the second group."""
    return [base.make_offload_key(key[:32], 1) for key in keys]


def packet(kind, body=b"", number=0, flags=0):
    return struct.pack("<HHIQ", kind, flags, len(body), number) + body


def slots(*numbers):
    return struct.pack(f"<I{len(numbers)}I", len(numbers), *numbers)


class Agent:
    """An agent that welcomes, grants all its slots, and answers an ask with what it is told to."""

    def __init__(self, test, answer=lambda number: []):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.path, self.answer, self.heard = os.path.join(folder.name, "sock"), answer, []
        self.packets, self.filled = [], threading.Event()
        self.arena = os.memfd_create("arena")
        test.addCleanup(os.close, self.arena)
        os.ftruncate(self.arena, SLOTS * PAGE)
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
            threading.Thread(target=self.talk, args=(peer,), daemon=True).start()

    def talk(self, peer):
        # The shim may go in the middle of a word.
        with peer, contextlib.suppress(OSError):
            while got := peer.recv(1 << 20):
                kind, _, _, number = struct.unpack_from("<HHIQ", got)
                self.heard.append(kind)
                self.packets.append(got)
                if kind == link.FILLED:
                    self.filled.set()
                if kind == link.HELLO:
                    welcome = packet(link.WELCOME, struct.pack("<16sIIQ", BOOT, SLOTS, SLOTS, PAGE))
                    socket.send_fds(peer, [welcome], [self.arena])
                    peer.send(packet(link.GRANT, slots(*range(SLOTS))))
                elif kind == link.ASK:
                    for answer in self.answer(number):
                        peer.send(answer)


class NeverRaises(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)

    def shims(self, path):
        for make in (lambda: started(path), lambda: spec(path).get_worker(caches())):
            made = make()
            self.addCleanup(made.shutdown)
            yield made

    def test_every_method_takes_garbage(self):
        agent = Agent(self)
        entries = [name for of in (base.OffloadingManager, base.OffloadingWorker) for name in dir(of)]
        entries += ["arrive", "step", "take_failed"]
        entries = sorted({name for name in entries if not name.startswith("_")})
        for path, name in itertools.product(("/nowhere/agent.sock", agent.path), entries):
            for made in self.shims(path):
                method, of = getattr(made, name, None), getattr(type(made).__mro__[-3], name, None)
                count = len(inspect.signature(of).parameters) - 1 if of else 1
                for first in range(len(GARBAGE) if method else 0):
                    method(*[GARBAGE[(first + 3 * at) % len(GARBAGE)] for at in range(count)])

    def test_a_shim_with_a_fault_is_off_and_still_answers(self):
        manager = started(Agent(self).path)
        self.assertEqual(manager.boot, BOOT)
        manager.logger = mock.Mock()
        for _ in range(3):
            manager.lookup(b"key", None)
        self.assertTrue(manager.ended.is_set())
        self.assertEqual((manager.logger.exception.call_count, manager.counts[link.FAULTS]), (1, 3))
        asked, context, keys = request("r", 3)
        manager.arrive(asked)
        self.assertEqual(manager.lookup(keys[0], context), LookupResult.MISS)
        self.assertEqual(manager.prepare_store(keys, context).keys_to_store, [])

    def test_any_bytes_of_an_agent_are_survived(self):
        chance = random.Random(1)
        for length, kind in itertools.product((0, 1, 4, 8, 24, 60), range(60, 80)):
            noise = packet(kind, chance.randbytes(length), number=1, flags=chance.randrange(3))
            agent = Agent(self, lambda number: [noise, noise[:7]])
            manager = started(agent.path)
            asked, context, keys = request("r", 2)
            manager.arrive(asked)
            for _ in range(100):
                result = manager.lookup(keys[0], context)
            self.assertIsInstance(result, LookupResult)
            self.assertFalse(manager.counts[link.FAULTS], f"{kind} {length}")
            manager.shutdown()

    def test_a_hint_is_said_before_its_request_and_garbage_never(self):
        lent = {"stator_holders": [["10.0.0.1:7010", 2], "no", ["h:1", 0]]}
        for told, heard in (
            ({"stator_hint": 7}, [link.HINT, link.ASK]),
            (lent, [link.HOLDERS, link.ASK]),
            ({"stator_holders": [["h:1", -1], [1, 1]]}, [link.ASK]),
            (None, [link.ASK]),
        ):
            agent = Agent(self, lambda number: [packet(link.FOUND, struct.pack("<I", 0) + slots(0), number)])
            manager = started(agent.path)
            asked, context, keys = request("r", 1)
            asked.kv_transfer_params = told
            manager.arrive(asked)
            while manager.lookup(keys[0], context) == LookupResult.RETRY:
                pass
            said = (link.HINT, link.HOLDERS, link.ASK)
            self.assertEqual([kind for kind in agent.heard if kind in said], heard)
        for garbage in GARBAGE:
            hints = ({"stator_hint": garbage}, {"stator_holders": garbage}, {"stator_holders": [garbage]})
            for told in (garbage, *hints, {"stator_holders": [[garbage, garbage]]}):
                manager = started(Agent(self).path)
                asked.kv_transfer_params = told
                manager.arrive(asked)
                self.assertFalse(manager.counts[link.FAULTS], told)

    def test_a_load_that_takes_longer_than_computing_is_not_made(self):
        manager = started()
        manager.prefill_us = 1000
        for _ in range(prompt.LOADS_MIN):
            self.assertTrue(manager.pays(TOKENS))
            manager.begun["r"] = time.monotonic() - 0.1
            manager._load_ended("r")
        self.assertTrue(manager.pays(150 * TOKENS))
        self.assertFalse(manager.pays(90 * TOKENS))
        # Once it was slow; it is tried again.
        self.assertTrue(any(manager.pays(90 * TOKENS) for _ in range(100)))

    def test_a_slot_outside_the_arena_is_never_used(self):
        found = struct.pack("<I", 0) + slots(SLOTS)
        agent = Agent(self, lambda number: [packet(link.FOUND, found, number)])
        manager = started(agent.path)
        asked, context, keys = request("r", 1)
        manager.arrive(asked)
        while (result := manager.lookup(keys[0], context)) == LookupResult.RETRY:
            pass
        self.assertEqual(result, LookupResult.MISS)

    def test_requests_end_under_a_silent_agent(self):
        pending = packet(link.FOUND, struct.pack("<I", 2) + slots(), 1)
        for answers, waits, found_s in (([], link.ASKS_LATE, link.FOUND_S), ([pending], link.LOADS_LATE, 20.0)):
            manager = started(Agent(self, lambda number: answers).path, found_s=found_s)
            asked, context, keys = request("r", 2)
            manager.arrive(asked)
            while manager.lookup(keys[0], context) != LookupResult.MISS:
                pass
            self.assertEqual(manager.counts[waits], 1)
            # It stays a miss, without another wait.
            self.assertEqual(manager.lookup(keys[1], context), LookupResult.MISS)
            manager.on_request_finished(context)
            manager.shutdown()

    def test_blocks_come_back_as_they_were(self):
        found = struct.pack("<I", 0) + slots(5, 2)
        agent = Agent(self, lambda number: [packet(link.FOUND, found, number)])
        manager, copies = started(agent.path), spec(agent.path).get_worker(caches())
        asked, context, keys = request("r", 3)
        manager.arrive(asked)
        results = [self.settled(manager, key, context) for key in keys]
        self.assertEqual(results, [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS])
        # The scheduler asks again at each of its steps: nobody else is asked then.
        with mock.patch.object(manager, "_send", side_effect=AssertionError):
            self.assertEqual([manager.lookup(key, context) for key in keys * 3], results * 3)
        self.assertEqual((manager.counts[link.FAULTS], agent.heard.count(link.ASK)), (0, 1))
        device, stored = copies.kv_caches.tensors[0].tensor, caches().tensors[0].tensor
        self.assertTrue(copies.submit_store(1, blocks(1, 3), shim.Slots(BOOT, [5, 2])))
        device.zero_()
        self.assertTrue(copies.submit_load(2, manager.prepare_load(keys[:2], context), blocks(0, 2)))
        self.assertEqual([result.job_id for result in copies.get_finished()], [1, 2])
        self.assertTrue(torch.equal(device[[0, 2]], stored[[1, 3]]))
        self.assertFalse(manager.is_idle())
        manager.complete_load(set(keys[:2]), context)
        self.assertFalse(manager.is_idle(), "the scheduler may still ask for the second load")
        manager.on_schedule_end(base.ScheduleEndContext(["r"], []))
        self.assertTrue(manager.is_idle())
        # What the agent has is not stored again.
        self.assertEqual(manager.prepare_store(keys, context).keys_to_store, keys[2:])

    def stored(self, change=lambda asked: None):
        """What the agent is sent about two blocks of a request that are stored when it has ended."""
        agent = Agent(self)
        manager = started(agent.path)
        asked, context, keys = request("r", 2)
        change(asked)
        manager.arrive(asked)
        with manager.lock:
            manager.news.wait_for(lambda: len(manager.credit) >= len(keys), 20)
        self.assertEqual(manager.prepare_store(keys, context).keys_to_store, keys)
        manager.on_request_finished(context)
        manager.complete_store(keys, context)
        # Tokens are told before.
        self.assertTrue(agent.filled.wait(20))
        self.assertFalse(manager.counts[link.FAULTS])
        manager.shutdown()
        return [got for got in agent.packets if got[0] in (link.TOKENS, link.FILLED)], keys

    def test_tokens_of_stored_blocks_are_told_before_they_are_filled(self):
        (tokens, filled), keys = self.stored()
        self.assertEqual((tokens[0], filled[0]), (link.TOKENS, link.FILLED))
        self.assertEqual(struct.unpack_from("<4I", tokens, 16), (TOKENS, 0, 4, 2))
        numbers = struct.pack(f"<{2 * TOKENS}I", *range(2 * TOKENS))
        blocks = keys[0] + bytes(32) + numbers[: 4 * TOKENS] + keys[1] + keys[0][:32]
        self.assertEqual(tokens[32:], b"salt" + blocks + numbers[4 * TOKENS :])

    def test_tokens_that_do_not_name_a_block_are_not_told(self):
        def with_media(asked):
            asked.mm_features = [object()]

        def without_tokens(asked):
            asked.all_token_ids = []

        def long_salt(asked):
            asked.cache_salt = "s" * 257

        for change in (with_media, without_tokens, long_salt):
            (filled,), _ = self.stored(change)
            self.assertEqual(filled[0], link.FILLED)

    def test_a_copy_that_fails_is_reported_as_done_and_ends_the_link(self):
        agent = Agent(self)
        copies = spec(agent.path).get_worker(caches())
        self.assertEqual(copies.boot, BOOT)
        self.assertTrue(copies.submit_load(1, shim.Slots(b"another agent's", [0]), blocks(3)))
        # The agent takes no slot of an engine one of whose workers has gone.
        self.assertIsNone(copies.peer)
        self.assertTrue(copies.submit_store(2, blocks(1), shim.Slots(b"another agent's", [0])))
        done = [(result.job_id, result.success) for result in copies.get_finished()]
        self.assertEqual(done, [(1, True), (2, True)])
        self.assertEqual((copies.take_failed(), copies.take_failed()), ([1, 2], []))

    def test_a_failed_key_is_a_miss_for_its_request(self):
        agent = Agent(self, lambda number: [packet(link.FOUND, struct.pack("<I", 0) + slots(0), number)])
        manager = started(agent.path)
        asked, context, keys = request("r", 1)
        manager.arrive(asked)
        self.assertEqual(self.settled(manager, keys[0], context), LookupResult.HIT)
        manager.prepare_load(keys, context)
        # However the load ended: if it failed, vLLM looks up again.
        manager.complete_load(set(keys), context)
        self.assertEqual(manager.lookup(keys[0], context), LookupResult.MISS)
        manager.on_schedule_end(base.ScheduleEndContext(["r"], ["r"]))
        self.assertEqual(self.settled(manager, keys[0], context), LookupResult.HIT, "after a preemption")

    def hybrid(self, answers, blocks=6):
        """A manager of a model with full attention, and a window of two blocks; both groups' keys. The
        agent has the leading blocks of each ask, as many as the answers say."""
        left = iter(answers)

        def answer(number):
            count = next(left)
            return [packet(link.FOUND, struct.pack("<I", 0) + slots(*range(count)), number)]

        agent = Agent(self, answer)
        manager = started(agent.path, (None, 2 * TOKENS))
        asked, context, keys = request("r", blocks)
        manager.arrive(asked)
        return agent, manager, context, keys, windowed(keys)

    @staticmethod
    def settled(manager, key, context):
        while (result := manager.lookup(key, context)) == LookupResult.RETRY:
            pass
        return result

    def test_a_window_is_asked_for_where_full_attention_ends(self):
        agent, manager, context, full, window = self.hybrid([4, 2])
        results = [self.settled(manager, key, context) for key in full]
        self.assertEqual(results, [LookupResult.HIT] * 4 + [LookupResult.MISS] * 2)
        # From the right, as vLLM looks for it.
        results = [self.settled(manager, key, context) for key in (window[3], window[2], window[1])]
        self.assertEqual(results, [LookupResult.HIT] * 2 + [LookupResult.MISS])
        asks = [got for got in agent.packets if got[0] == link.ASK]
        self.assertEqual([window[3], window[2]], [asks[1][32:68], asks[1][68:104]])
        loaded = manager.prepare_load(full[:4] + window[2:4], context)
        self.assertEqual(loaded.block_ids.tolist(), [0, 1, 2, 3, 1, 0])
        manager.complete_load(set(full[:4] + window[2:4]), context)
        self.assertEqual(manager.asks, {})

    def test_a_window_with_a_gap_is_looked_for_further_left_and_not_for_ever(self):
        agent, manager, context, full, window = self.hybrid([8] + [1] * 20, blocks=24)
        self.assertEqual(self.settled(manager, full[0], context), LookupResult.HIT)
        results = [self.settled(manager, key, context) for key in reversed(window)]
        # Of each ask there is the first block alone.
        tried = [LookupResult.HIT, LookupResult.MISS] * prompt.WINDOWS_MAX
        self.assertEqual(results, tried + [LookupResult.MISS] * (len(window) - len(tried)))
        self.assertEqual(agent.heard.count(link.ASK), 1 + prompt.WINDOWS_MAX)

    def test_a_window_is_not_looked_for_before_full_attention_has_answered(self):
        agent = Agent(self)
        manager = started(agent.path, (None, 2 * TOKENS))
        asked, context, keys = request("r", 3)
        manager.arrive(asked)
        self.assertEqual(manager.lookup(windowed(keys)[2], context), LookupResult.RETRY)
        self.assertEqual(len(manager.asks), 1)
        # The agent stays silent: so nothing is found.
        manager.found_s = link.FOUND_S
        self.assertEqual(self.settled(manager, keys[0], context), LookupResult.MISS)

    def test_both_groups_are_stored_up_to_the_same_place(self):
        _, manager, context, full, window = self.hybrid([0], blocks=SLOTS)
        with manager.lock:
            manager.news.wait_for(lambda: len(manager.credit) >= SLOTS, 20)
        stored = manager.prepare_store(full + window, context).keys_to_store
        self.assertEqual(stored, full[: SLOTS // 2] + window[: SLOTS // 2])

    def test_hello_waits_for_the_copies_of_the_connection_before(self):
        agent = Agent(self, lambda number: [packet(link.FOUND, struct.pack("<I", 0) + slots(0), number)])
        manager = started(agent.path)
        asked, context, keys = request("r", 2)
        manager.arrive(asked)
        self.settled(manager, keys[0], context)
        manager._leave()
        # Between the lookup and the load.
        self.assertFalse(manager.is_idle())
        self.assertEqual(manager.prepare_load(keys[:1], context).boot, BOOT)
        manager.on_schedule_end(base.ScheduleEndContext(["r"], []))
        self.assertFalse(manager.is_idle())
        self.assertEqual(manager.lookup(keys[0], context), LookupResult.MISS)
        manager.complete_load(set(keys[:1]), context)
        self.assertTrue(manager.is_idle())

    def test_a_reset_waits_for_copies_that_nobody_reports(self):
        manager = started(Agent(self).path)
        asked, context, keys = request("r", 2)
        manager.arrive(asked)
        self.assertEqual(manager.prepare_store(keys, context).keys_to_store, keys)
        manager.reset_cache()
        self.assertEqual(manager.prepare_store(keys, context).keys_to_store, [])
        while manager.has_pending_work():
            self.assertFalse(manager.is_idle())
            manager.on_schedule_end(base.ScheduleEndContext([], []))
        self.assertTrue(manager.is_idle())


def blocks(*numbers):
    return base.GPULoadStoreSpec(list(numbers), group_sizes=[len(numbers)], block_indices=[0])


if __name__ == "__main__":
    unittest.main()
