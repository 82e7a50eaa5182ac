"""The connector for vLLM 0.32 between vLLM's own halves, and where it cannot be made. Runs in vLLM's Python."""

import inspect
import logging
import struct
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import stator_link as link
import torch
import vllm_0_32 as shim
from test_vllm_0_32 import BOOT, GARBAGE, PAGE, TOKENS, Agent, caches, packet, slots
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

ROLES = KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER
NOWHERE = "/nowhere/agent.sock"


def groups():
    """Four blocks of one group with full attention; a block has a page of bytes."""
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    tensor = KVCacheTensor(4 * PAGE, ["layer0"], 4 * PAGE, PAGE)
    return KVCacheConfig(4, [tensor], [KVCacheGroupSpec(["layer0"], spec)])


def connector(role, path=NOWHERE, of=None):
    config = VllmConfig()
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="Connector", kv_connector_module_path="vllm_0_32", kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "Spec", "spec_module_path": "vllm_0_32", "stator_socket": path})
    config.cache_config.block_size = TOKENS
    config.model_config = SimpleNamespace(
        model="tiny", hf_overrides=None, revision=None, quantization=None, dtype="bfloat16", use_mla=False,
        get_total_num_kv_heads=lambda: 2)
    return shim.Connector(config, role, of or groups())


def asked(blocks):
    """A request of so many blocks and one more token."""
    of = Request("r", list(range(blocks * TOKENS + 1)), SamplingParams(max_tokens=1), None)
    of.block_hashes = [struct.pack("<I28x", block) for block in range(blocks)]
    return of


def step(scheduler, worker, finished=()):
    """A step of the engine: what both say to one another, and what the worker reports."""
    output = SchedulerOutput.make_empty()
    output.finished_req_ids = set(finished)
    worker.bind_connector_metadata(scheduler.build_connector_meta(output))
    worker.handle_preemptions(worker._get_connector_metadata())
    worker.start_load_kv(None)
    worker.wait_for_save()
    results = worker.get_transfer_results(set(finished))
    meta = worker.build_connector_worker_meta()
    scheduler.update_connector_output(KVConnectorOutput(
        finished_recving=results.finished_recving, failed_recving=results.failed_recving,
        kv_connector_worker_meta=meta))
    return results


class Serves(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)

    def halves(self, path):
        """A scheduler's and a worker's connector, as they are in two processes."""
        scheduler, worker = (connector(role, path) for role in ROLES)
        scheduler.connector_scheduler.manager.found_s = 20.0
        worker.connector_worker.worker = worker.connector_worker.spec.get_worker(caches())
        self.addCleanup(worker.shutdown)
        self.addCleanup(scheduler.shutdown)
        return scheduler, worker

    def begin_load(self, scheduler):
        """A request of three blocks, of which two are to be loaded into the device's blocks 1 and 2."""
        request = asked(3)
        scheduler.on_new_request(request)
        while (found := scheduler.get_num_new_matched_tokens(request, 0))[0] is None:
            pass
        self.assertEqual(found, (2 * TOKENS, True))
        blocks = KVCacheBlocks(([KVCacheBlock(1), KVCacheBlock(2)],))
        scheduler.update_state_after_alloc(request, blocks, 2 * TOKENS)
        return request

    def holder(self):
        found = struct.pack("<I", 0) + slots(5, 2)
        return Agent(self, lambda number: [packet(link.FOUND, found, number)])

    def test_starts_and_serves_without_an_agent(self):
        scheduler, worker = self.halves(NOWHERE)
        request = asked(3)
        scheduler.on_new_request(request)
        self.assertEqual(scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        scheduler.update_state_after_alloc(request, KVCacheBlocks(([KVCacheBlock(1)],)), 0)
        self.assertEqual(step(scheduler, worker).finished_recving, set())
        request.status = RequestStatus.FINISHED_STOPPED
        self.assertEqual(scheduler.request_finished(request, [1]), (False, None))
        step(scheduler, worker, ["r"])
        self.assertFalse(scheduler.has_pending_push_work())
        self.assertEqual(scheduler.connector_scheduler.manager.counts[link.FAULTS], 0)
        self.assertIsNot(scheduler.connector_scheduler, shim.OFF)

    def test_reports_every_load_also_of_dead_requests(self):
        agent = self.holder()
        scheduler, worker = self.halves(agent.path)
        request = self.begin_load(scheduler)
        # The client hangs up before the worker hears of the load.
        request.status = RequestStatus.FINISHED_ABORTED
        self.assertEqual(scheduler.request_finished(request, [1, 2]), (False, None))
        manager = scheduler.connector_scheduler.manager
        results = step(scheduler, worker, ["r"])
        self.assertEqual((results.finished_recving, results.failed_recving), ({"r"}, set()))
        # The slots are let go, and nothing is remembered.
        self.assertEqual((manager.loads, manager.asks, manager.prompts, manager.told), ({}, {}, {}, {}))
        self.assertFalse(scheduler.has_pending_push_work())
        limit = time.monotonic() + 20
        while link.END not in agent.heard:
            self.assertLess(time.monotonic(), limit)

    def test_slots_of_a_dead_request_are_held_until_its_load_has_ended(self):
        scheduler, worker = self.halves(self.holder().path)
        request, manager = self.begin_load(scheduler), scheduler.connector_scheduler.manager
        output = SchedulerOutput.make_empty()
        output.finished_req_ids = {"r"}
        request.status = RequestStatus.FINISHED_ABORTED
        scheduler.request_finished(request, [1, 2])
        scheduler.build_connector_meta(output)
        self.assertEqual((list(manager.loads), len(manager.asks)), (["r"], 1))
        self.assertTrue(scheduler.has_pending_push_work())

    def test_a_load_that_fails_is_told_of_by_its_request(self):
        scheduler, worker = self.halves(self.holder().path)
        self.begin_load(scheduler)
        worker.connector_worker.worker._leave()
        worker.connector_worker.worker.arenas.clear()
        results = step(scheduler, worker)
        self.assertEqual((results.finished_recving, results.failed_recving), ({"r"}, {"r"}))


def broken(name):
    """Something that the connector needs fails, or is not there any more."""
    fails = mock.Mock(side_effect=RuntimeError(name))
    stock = shim.OffloadingConnector
    return {
        "form": lambda: mock.patch.object(shim, "form_of", fails),
        "groups": lambda: mock.patch.object(shim, "groups_of", fails),
        "spec": lambda: mock.patch.object(shim.Spec, "hello", fails),
        "vllm": lambda: mock.patch.object(stock, "__init__", fails),
        "halves": lambda: mock.patch.object(stock, "__init__", halves_of_another_version),
    }[name]()


def halves_of_another_version(self, config, role, _):
    is_scheduler = role is KVConnectorRole.SCHEDULER
    self.connector_scheduler = SimpleNamespace() if is_scheduler else None
    self.connector_worker = None if is_scheduler else SimpleNamespace()


class CannotBeMade(unittest.TestCase):
    def off(self, breaks, role):
        logger = mock.Mock()
        with mock.patch.object(shim, "logger", logger), breaks:
            made = connector(role)
        self.assertIs(made.connector_scheduler or made.connector_worker, shim.OFF)
        self.assertEqual(logger.exception.call_count, 1)
        return made

    def test_what_it_needs_fails(self):
        for name in ("form", "groups", "vllm", "halves"):
            scheduler, worker = (self.off(broken(name), role) for role in ROLES)
            request = asked(2)
            scheduler.on_new_request(request)
            self.assertEqual(scheduler.get_num_new_matched_tokens(request, 0), (0, False))
            worker.register_kv_caches({})
            results = step(scheduler, worker)
            self.assertEqual((results.finished_recving, results.failed_recving), (set(), set()))
            self.assertEqual(scheduler.request_finished(request, []), (False, None))
            self.assertEqual(list(scheduler.take_events()), [])
            self.assertFalse(scheduler.has_pending_push_work())
            self.assertIsNone(scheduler.get_kv_connector_stats())

    def test_the_spec_fails_in_either_half(self):
        self.off(broken("spec"), KVConnectorRole.SCHEDULER)
        worker = connector(KVConnectorRole.WORKER)
        with broken("spec"), mock.patch.object(shim, "logger"):
            worker.register_kv_caches({"layer0": caches().tensors[0].tensor})
        self.assertIs(worker.connector_worker, shim.OFF)
        # A scheduler that joined has nothing to say to it.
        scheduler = connector(KVConnectorRole.SCHEDULER)
        self.assertEqual(step(scheduler, worker).finished_recving, set())

    def test_every_method_takes_garbage(self):
        logging.disable(logging.CRITICAL)
        for garbage in (SimpleNamespace(), *filter(None, GARBAGE)):
            for role in ROLES:
                self.assertIs(connector(role, of=garbage).connector_worker, shim.OFF)
        for role in ROLES:
            made = self.off(broken("form"), role)
            names = [name for name, of in inspect.getmembers(shim.OffloadingConnector, inspect.isfunction)
                     if not name.startswith("_") and of.__qualname__.startswith("OffloadingConnector")]
            self.assertGreater(len(names), 15)
            # vLLM asserts the type of what it hands the worker itself.
            made.bind_connector_metadata(made.build_connector_meta(SchedulerOutput.make_empty()))
            for name in sorted(set(names) - {"handle_preemptions"}):
                method = getattr(made, name)
                count = sum(of.kind is of.POSITIONAL_OR_KEYWORD
                            for of in inspect.signature(method).parameters.values())
                for first in range(len(GARBAGE)):
                    method(*[GARBAGE[(first + 3 * at) % len(GARBAGE)] for at in range(count)])


if __name__ == "__main__":
    unittest.main()
