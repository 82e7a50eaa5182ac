"""Lets vLLM 0.32 keep KV in the host arena of a Stator agent.

vLLM's `OffloadingConnector` decides when blocks are copied, and fences them; the agent decides
which blocks are kept, and where. Each worker maps the arena, a memory file of the agent's. An
exception would end the engine: each entry catches it, counts it, and turns the tiers off.
"""

import mmap
import os

import numpy as np
import torch
from stator_link import LOADED, Link, Nothing, guarded, hello
from stator_prompt import Group, Groups, Prompt, PromptLink, form_of, groups_of
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import base as connector
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import LookupResult, TransferResult

logger = init_logger(f"vllm.{__name__}")

# Steps after a reset of the cache in which copies of before may still run, and the names by which the
# connector hands the spec words for the form of the KV, and what there is to know of its groups.
RESET_STEPS, FORM, GROUPS, WINDOWS = 16, "stator_form", "stator_groups", "stator_windows"
# In the order of MISS, HIT, COMING and UNKNOWN.
RESULTS = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY


class Slots(base.BlockIDsLoadStoreSpec):
    """Slots of the arena that an agent made at its start `boot`."""

    def __init__(self, boot=b"", slots=()):
        super().__init__(list(slots))
        self.boot = boot


@guarded(lookup=lambda *_: LookupResult.MISS, prepare_load=lambda *_: Slots(),
         prepare_store=lambda *_: base.PrepareStoreOutput([], Slots(), []))
class Manager(PromptLink, base.OffloadingManager):
    """Answers the scheduler from what the agent said: an ASK for each prompt, slots in advance."""

    def __init__(self, spec):
        super().__init__(spec.path, spec.hello(0), logger, spec.groups)
        # Whether a load may follow a lookup of this step.
        self.may_load, self.steps, self.quiet_until = False, 0, 0

    def is_idle(self):
        return not (self.may_load or self.loads or self.stores or self.steps < self.quiet_until)

    def arrive(self, request):
        self._arrive(request.request_id, Prompt(request, self.groups.main))

    def lookup(self, key, req_context):
        end = req_context.get_offload_key_position(key)
        found = RESULTS[self._find(req_context.req_id, key, end)]
        self.may_load |= found is LookupResult.HIT
        return found

    def prepare_load(self, keys, req_context):
        questions = self.loads[req_context.req_id] = self.told[req_context.req_id]
        self.counts[LOADED] += len(keys)
        self._load_begins(req_context.req_id)
        return Slots(questions.boot, questions.slots(keys))

    def complete_load(self, keys, req_context):
        self._load_ended(req_context.req_id)
        self._end_all(self.loads.pop(req_context.req_id, None))

    def prepare_store(self, keys, req_context):
        new, slots = self._grant(req_context.req_id, keys, req_context.get_offload_key_position)
        return base.PrepareStoreOutput(new, Slots(self.boot, slots), [])

    def complete_store(self, keys, req_context, success=True):
        self._filled([(key, *self.stores.pop(key)) for key in keys if key in self.stores])

    def on_new_request(self, req_context):
        return base.RequestOffloadingContext()

    def on_request_finished(self, req_context):
        self._finish(req_context.req_id)

    def on_schedule_end(self, context):
        self.steps, self.may_load = self.steps + 1, False
        # Who is scheduled without a load needs none any more.
        for request in set(context.new_req_ids) - self.loads.keys():
            self._end_all(self.told.get(request))
        [self._inquire(request) for request in context.preempted_req_ids]

    def has_pending_work(self):
        return self.steps < self.quiet_until

    def reset_cache(self):
        """The blocks mean something else from here on. No copy of before is reported any more."""
        self.stores, self.loads, self.told, self.namespace = {}, {}, {}, os.urandom(16)
        self.quiet_until = self.steps + RESET_STEPS
        self._leave()

    step, pays = PromptLink._pace, PromptLink._pays


def region(fd, slots, stride, spec):
    """The agent's arena, in place of vLLM's own file. A slot has the parts of all workers."""
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

    memory, start = mmap.mmap(fd, slots * stride), spec.rank * spec.page
    of = SharedOffloadRegion.__new__(SharedOffloadRegion)
    vars(of).update(
        mmap_obj=memory, page_size=mmap.PAGESIZE, num_chunks=slots, total_size_bytes=slots * stride,
        rank=spec.rank, _row_stride=stride, _worker_offset=start, _worker_area_end=start + spec.page,
        _base=torch.frombuffer(memoryview(memory), dtype=torch.int8), _views=[], _canonical_offset=0,
        fd=None, _creator=False, is_pinned=False, pinned_addresses=[])
    return of


class CpuCopies:
    """Copies within the call, on the platform that vLLM's own worker refuses. A slot has one block."""

    def __init__(self, kv_caches, _, slots, region):
        self.region, self.done = region, []
        part = region.create_next_worker_view
        self.pairs = [(of.tensor, part(of.page_size_bytes)) for of in kv_caches.tensors]

    def submit_store(self, job, device, slots, is_load=False):
        blocks, slots = (torch.from_numpy(of.block_ids.astype(np.int64)) for of in (device, slots))
        for tensor, arena in self.pairs:
            if is_load:
                tensor[blocks] = arena[slots]
            else:
                arena[slots] = tensor[blocks]
        self.done.append(TransferResult(job, True))

    def submit_load(self, job, slots, device):
        self.submit_store(job, device, slots, is_load=True)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, jobs):
        pass

    def shutdown(self):
        self.pairs.clear()
        self.region.cleanup()


@guarded(submit_store=lambda self, job, *_: self._failed(job), get_finished=lambda *_: [],
         submit_load=lambda self, job, *_: self._failed(job), take_failed=lambda *_: [])
class Worker(Link, base.OffloadingWorker):
    """Copies between the device and the arenas that jobs name.

    vLLM takes no failed job: one that fails is reported as done. vLLM computes what a load should have
    brought; the agent takes no slot once this link has ended.
    """

    def __init__(self, spec, kv_caches):
        super().__init__(spec.path, spec.hello(1), logger)
        self.spec, self.kv_caches, self.arenas = spec, kv_caches, {}
        self.done, self.failed = [], []
        self.start()

    def _joined(self, boot, slots, stride, fd):
        copies = CpuCopies
        if not current_platform.is_cpu():
            from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker as copies

            current_platform.set_device(self.kv_caches.tensors[0].tensor.device)
        arena, blocks = region(fd, slots, stride, self.spec), self.spec.blocks_per_chunk
        self.arenas[boot] = copies(self.kv_caches, blocks, slots, arena)

    def _arena(self, boot):
        """The scheduler names one arena at a time, which all workers have mapped. Unmaps the others."""
        for other in self.arenas.keys() - {boot, self.boot}:
            self.arenas.pop(other).shutdown()
        return self.arenas[boot]

    def submit_store(self, job_id, src_spec, dst_spec):
        self._arena(dst_spec.boot).submit_store(job_id, src_spec, dst_spec)
        return True

    def submit_load(self, job_id, src_spec, dst_spec):
        self._arena(src_spec.boot).submit_load(job_id, src_spec, dst_spec)
        return True

    def _failed(self, job):
        self.done.append(TransferResult(job, True))
        self.failed.append(job)
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done + [result for arena in self.arenas.values() for result in arena.get_finished()]

    def take_failed(self):
        failed, self.failed = self.failed, []
        return failed

    def wait(self, job_ids):
        [arena.wait(job_ids) for arena in self.arenas.values()]

    def shutdown(self):
        super().shutdown()
        [arena.shutdown() for arena in self.arenas.values()]


class Spec(base.OffloadingSpec):
    """Named by `spec_name` of the connector's extra configuration, beside `stator_socket`."""

    def __init__(self, config):
        super().__init__(config)
        extra, parallel = config.extra_config, config.parallel
        self.path, self.replicated_layout = str(extra.get("stator_socket")), config.replicated_layout
        self.offload_prompt_only = bool(extra.get("offload_prompt_only", False))
        # Where all ranks have the same bytes, the first stores them.
        copies, self.rank = (1, 0) if self.replicated_layout else (parallel.world_size, parallel.rank)
        blocks, hash_tokens, windows = self.blocks_per_chunk, self.tokens_per_hash, extra.get(WINDOWS, {})
        self.groups = Groups(
            Group(of.group_id, of.tokens_per_block * blocks, hash_tokens, windows.get(of.group_id))
            for of in config.groups)
        # All groups take their blocks from one pool: a row has room for those of any of them.
        self.page, self.chunk = config.worker_kv_bytes_per_block * blocks, self.groups.main.tokens
        self.row_bytes = self.page * copies
        self.form = (
            f"{extra.get(FORM)} chunk={self.chunk} page={self.page} copies={copies}"
            f" groups={extra.get(GROUPS, len(self.groups))} blocks={blocks}"
            f" layout={config.kv_cache_layout} canonical={config.canonical_layout}")

    def hello(self, role):
        rank, world = self.config.parallel.rank if role else 0, self.config.parallel.world_size
        return hello(role, rank, world, self.chunk, self.row_bytes, self.config.engine_id, self.form)

    def get_manager(self):
        return Manager(self)

    def get_worker(self, kv_caches):
        return Worker(self, kv_caches)


# Stands for either half of a connector.
OFF = Nothing(
    manager=Nothing(), worker=None, _load_jobs={}, get_finished=lambda *_: (set(), set()),
    request_finished=lambda *_: (False, None), get_external_cache_hit_sources=lambda *_: {},
    build_connector_meta=lambda *_: OffloadingConnectorMetadata({}, {}), take_events=list)


class Connector(OffloadingConnector):
    """Named by `kv_connector`. It sees requests whole, and steps. If it cannot be made, it does nothing."""

    def __init__(self, vllm_config, role, kv_cache_config):
        try:
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            extra[FORM] = form_of(vllm_config, __version__, current_platform)
            extra[GROUPS], extra[WINDOWS] = groups_of(kv_cache_config)
            super().__init__(vllm_config, role, kv_cache_config)
            (self.connector_scheduler or OFF).manager.start()
            # Without these no failed load could be reported.
            (self.connector_worker or OFF)._load_jobs, connector.KVConnectorTransferResults().failed_recving
        except Exception:
            connector.KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
            self._off("connector")

    def _off(self, part):
        self.connector_scheduler = self.connector_worker = OFF
        logger.exception("KV tiers are off until the engine restarts: its %s could not be made", part)

    def register_kv_caches(self, kv_caches):
        try:
            super().register_kv_caches(kv_caches)
        except Exception:
            self._off("worker")

    def on_new_request(self, request):
        super().on_new_request(request)
        self.connector_scheduler.manager.arrive(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        is_off, ask = self.connector_scheduler is OFF, super().get_num_new_matched_tokens
        found = (0, False) if is_off else ask(request, num_computed_tokens)
        return found if self.connector_scheduler.manager.pays(found[0] or 0) else (0, False)

    def build_connector_meta(self, scheduler_output):
        self.connector_scheduler.manager.step(getattr(scheduler_output, "total_num_scheduled_tokens", 0))
        return super().build_connector_meta(scheduler_output)

    def get_transfer_results(self, finished_req_ids):
        jobs, worker = dict(self.connector_worker._load_jobs), self.connector_worker.worker
        results = super().get_transfer_results(finished_req_ids)
        failed = worker.take_failed() if worker else ()
        results.failed_recving.update(jobs[job] for job in failed if job in jobs)
        return results


if Connector.__name__ not in getattr(KVConnectorFactory, "_registry", Connector.__name__):
    # `MultiConnector` looks up by their names whose statistics it has.
    KVConnectorFactory.register_connector(Connector.__name__, __name__, Connector.__name__)
