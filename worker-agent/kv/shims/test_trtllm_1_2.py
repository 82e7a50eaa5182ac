"""The shim for TensorRT-LLM with stand-ins for its interface. Runs in any Python with torch."""

import logging
import os
import struct
import sys
import types
import unittest

import torch
from test_sglang_0_5 import SLOTS, STRIDE, Agent, stand_in

TOKENS, PAGE = 4, 64


class Half:
    def __init__(self, llm_args):
        self._llm_args, self._metadata = llm_args, None

    def bind_connector_meta(self, metadata):
        self._metadata = metadata


for package in ("tensorrt_llm._torch", "tensorrt_llm._torch.pyexecutor"):
    stand_in(package)
stand_in("tensorrt_llm", __version__="1.2")
stand_in("tensorrt_llm._torch.pyexecutor.kv_cache_connector",
         KvCacheConnectorScheduler=Half, KvCacheConnectorWorker=Half)
os.environ["STATOR_KV_PAGE_BYTES"] = str(PAGE)

import trtllm_1_2 as shim  # noqa: E402

ARGS = types.SimpleNamespace(
    kv_cache_config=types.SimpleNamespace(tokens_per_block=TOKENS, dtype="auto"), model="tiny",
    dtype="bfloat16", tensor_parallel_size=1, pipeline_parallel_size=1)


def request(number, tokens):
    return types.SimpleNamespace(request_id=number, get_tokens=lambda beam: list(tokens))


def scheduled(number, blocks, computed, tokens):
    data = types.SimpleNamespace(request_id=number, new_tokens=[], new_block_ids=list(blocks),
                                 computed_position=computed, num_scheduled_tokens=tokens)
    return types.SimpleNamespace(new_requests=[data], cached_requests=[])


NOTHING = types.SimpleNamespace(new_requests=[], cached_requests=[])


class Keeps(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)

    def scheduler(self, path):
        shim.SOCKET = path
        scheduler = shim.Scheduler(ARGS)
        self.addCleanup(scheduler.shutdown)
        return scheduler

    def test_blocks_of_a_prompt_come_back_as_they_were(self):
        agent = Agent(self)
        worker = shim.Worker(ARGS)
        cache = torch.randint(0, 255, (8, PAGE), dtype=torch.uint8)
        worker.blocks = cache
        worker._joined(b"b" * 16, SLOTS, STRIDE, agent.arena)
        scheduler = self.scheduler(agent.path)
        self.assertTrue(scheduler.boot)

        self.assertEqual(scheduler.get_num_new_matched_tokens(request(1, range(11)), 0), (0, False))
        worker.bind_connector_meta(scheduler.build_connector_meta(scheduled(1, (3, 5, 1), 0, 11)))
        worker.start_load_kv(None)
        worker.wait_for_save(None)
        self.assertFalse(scheduler.is_idle())
        # They are handed over once all ranks have passed.
        self.assertEqual(agent.held, {})
        for _ in range(shim.SETTLED):
            scheduler.build_connector_meta(NOTHING)
        self.assertFalse(scheduler.request_finished(request(1, ()), []))
        while len(agent.held) < 2:
            pass
        self.assertTrue(scheduler.is_idle())
        # Routers are told by the tokens, and of a block by the one before it.
        (first, second), [words] = agent.held, agent.words
        head = struct.pack("<4I", TOKENS, 0, 0, 2)
        entries = first + bytes(32) + struct.pack("<4I", *range(4))
        entries += second + first[:32] + struct.pack("<4I", *range(4, 8))
        self.assertEqual(words, head + entries)

        kept = cache.clone()
        cache.zero_()
        # One block is on the device already, and the last token is computed.
        self.assertEqual(scheduler.get_num_new_matched_tokens(request(2, range(9)), TOKENS), (TOKENS, False))
        worker.bind_connector_meta(scheduler.build_connector_meta(scheduled(2, (0, 6, 7), TOKENS, 1)))
        worker.start_load_kv(None)
        self.assertTrue(torch.equal(cache[6], kept[5]))
        self.assertEqual(int(cache[0].sum()), 0)
        # Another seed, another name.
        adapted = request(3, range(9))
        adapted.lora_task_id = 7
        self.assertEqual(scheduler.get_num_new_matched_tokens(adapted, 0), (0, False))
        self.assertFalse(scheduler._words(3, 0))

    def test_an_agent_that_can_copies_and_the_worker_where_it_failed(self):
        agent, orders, marks = Agent(self), [], []
        worker = shim.Worker(ARGS)
        worker.blocks = torch.arange(8 * PAGE, dtype=torch.int64).to(torch.uint8).view(8, PAGE)
        worker._joined(b"b" * 16, SLOTS, STRIDE, agent.arena)
        worker.boot, worker.is_exported = b"b" * 16, True
        worker.event = types.SimpleNamespace(record=marks.append)
        answers = [True, False, False]
        worker.order = lambda *order: orders.append(order) or answers.pop(0)
        job = shim.Job(b"b" * 16)
        job.stores, job.loads = [(3, 5)], [(2, 5)]
        worker.bind_connector_meta(job)
        worker.wait_for_save("stream")
        self.assertEqual(int(worker.arenas[b"b" * 16][5].sum()), 0, "the agent would have copied")
        worker.wait_for_save("stream")
        worker.start_load_kv("stream")
        self.assertTrue(torch.equal(worker.blocks[2], worker.blocks[3]))
        store, load = (shim.STORE, [(3, 5)]), (shim.LOAD, [(5, 2)])
        self.assertEqual((orders, marks), ([store, store, load], ["stream"] * 3))
        # Slots of another start of the agent are not this agent's.
        job.boot = worker.boot
        worker.boot = None
        worker.wait_for_save("stream")
        self.assertEqual(len(orders), 3)

    def test_nothing_is_promised_without_an_agent(self):
        scheduler = self.scheduler("/nowhere/agent.sock")
        self.assertEqual(scheduler.get_num_new_matched_tokens(request(1, range(11)), 0), (0, False))
        self.assertEqual(scheduler.build_connector_meta(scheduled(1, (0, 1, 2), 0, 11)).stores, [])

    def test_a_fault_is_off_and_a_broken_promise_is_an_error(self):
        scheduler = self.scheduler(Agent(self).path)
        self.assertEqual(scheduler.get_num_new_matched_tokens(None, None), (0, False))
        self.assertTrue(scheduler.ended.is_set())
        self.assertEqual(scheduler.build_connector_meta(None).loads, [])
        scheduler.due[1] = (0, 1)
        with self.assertRaises(RuntimeError):
            scheduler.build_connector_meta(None)
        with self.assertRaises(RuntimeError):
            shim.Worker(ARGS).start_load_kv(None)


if __name__ == "__main__":
    unittest.main()
