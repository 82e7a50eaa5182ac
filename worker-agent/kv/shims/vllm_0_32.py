"""Lets vLLM 0.32 keep KV in the host arena of a Stator agent.

vLLM's `OffloadingConnector` decides when blocks are copied, and fences them; the agent decides
which blocks are kept, and where. Each worker maps the arena, a memory file of the agent's. An
exception would end the engine: each entry catches it, counts it, and turns the tiers off.
"""

import hashlib
import itertools
import mmap
import os
import pathlib
import time

import numpy as np
import torch
from stator_link import LOADED, Link, Prompt, guarded, hello
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import LookupResult, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

logger = init_logger(f"vllm.{__name__}")

# Steps after a reset of the cache in which copies of before may still run, and the name by which the
# connector hands the spec words for the form of the KV.
RESET_STEPS, FORM = 16, "stator_form"


class Slots(base.BlockIDsLoadStoreSpec):
    """Slots of the arena that an agent made at its start `boot`."""

    def __init__(self, boot=b"", slots=()):
        super().__init__(list(slots))
        self.boot = boot


@guarded(lookup=lambda *_: LookupResult.MISS, prepare_load=lambda *_: Slots(),
         prepare_store=lambda *_: base.PrepareStoreOutput([], Slots(), []))
class Manager(Link, base.OffloadingManager):
    """Answers the scheduler from what the agent said: one ASK a request, slots in advance."""

    def __init__(self, spec):
        super().__init__(spec.path, spec.hello(0), logger)
        self.spec = spec
        # Prompt and ask of each request; its ask while it is loaded; slots being filled, by key.
        self.prompts, self.told, self.loads, self.stores = {}, {}, {}, {}
        # Whether a load may follow a lookup of this step; start and tokens of the last step.
        self.may_load, self.steps, self.quiet_until, self.last = False, 0, 0, (0.0, 0)
        self.start()

    def is_idle(self):
        return not (self.may_load or self.loads or self.stores or self.steps < self.quiet_until)

    def arrive(self, request):
        self.prompts[request.request_id] = Prompt(request, self.spec)
        self._inquire(request.request_id)

    def _inquire(self, request):
        """Once for each request and preemption: what failed to load is not offered again."""
        step = self.spec.hashes_per_chunk
        keys = [value + self.spec.group for value in self.prompts[request].hashes[step - 1 :: step]]
        self.told[request] = self._ask(keys, self.prompts[request].told)

    def lookup(self, key, req_context):
        ask = self.told.get(req_context.req_id)
        place = ask.places.get(key) if self._is_open(ask) else None
        if place is None or ask.is_found and place >= len(ask.ready) + ask.pending:
            return LookupResult.MISS
        if place >= len(ask.ready):
            return LookupResult.HIT_PENDING if ask.is_found else LookupResult.RETRY
        self.may_load = True
        return LookupResult.HIT

    def prepare_load(self, keys, req_context):
        ask = self.loads[req_context.req_id] = self.told[req_context.req_id]
        self.counts[LOADED] += len(keys)
        return Slots(ask.boot, [ask.ready[ask.places[key]] for key in keys])

    def complete_load(self, keys, req_context):
        self._end(self.loads.pop(req_context.req_id, None))

    def prepare_store(self, keys, req_context):
        ask = self.told.get(req_context.req_id)
        held = set(itertools.islice(ask.places, len(ask.ready) + ask.pending)) if ask else ()
        new = [key for key in keys if key not in held and key not in self.stores]
        new = new[: len(self.credit)] if self.boot else []
        slots = [self.credit.popleft() for _ in new]
        end, prompt = req_context.get_offload_key_position, self.prompts.get(req_context.req_id)
        depths = [end(key) // self.spec.chunk - 1 for key in new]
        words = [prompt and prompt.words(depth) for depth in depths]
        self.stores.update(zip(new, zip(slots, depths, words)))
        return base.PrepareStoreOutput(new, Slots(self.boot, slots), [])

    def complete_store(self, keys, req_context, success=True):
        self._filled([(key, *self.stores.pop(key)) for key in keys if key in self.stores])

    def on_new_request(self, req_context):
        return base.RequestOffloadingContext()

    def on_request_finished(self, req_context):
        self.prompts.pop(req_context.req_id, None)
        ask = self.told.pop(req_context.req_id, None)
        if req_context.req_id not in self.loads:
            self._end(ask)

    def on_schedule_end(self, context):
        self.steps, self.may_load = self.steps + 1, False
        # Who is scheduled without a load needs none any more.
        for request in set(context.new_req_ids) - self.loads.keys():
            self._end(self.told.get(request))
        [self._inquire(request) for request in context.preempted_req_ids]

    def has_pending_work(self):
        return self.steps < self.quiet_until

    def reset_cache(self):
        """The blocks mean something else from here on. No copy of before is reported any more."""
        self.stores, self.loads, self.told, self.namespace = {}, {}, {}, os.urandom(16)
        self.quiet_until = self.steps + RESET_STEPS
        self._leave()

    def step(self, tokens):
        """A step begins: the one before says how long a block takes to compute."""
        (began, before), now = self.last, time.monotonic()
        if before >= 2 * self.spec.chunk:
            block_us = (now - began) * 1e6 * self.spec.chunk / before
            self.prefill_us = int(((self.prefill_us or block_us) * 7 + block_us) / 8) or 1
        self.last = now, tokens


class Region(SharedOffloadRegion):
    """The agent's arena, in place of vLLM's own file. A slot has the parts of all workers."""

    def __init__(self, fd, slots, stride, spec):
        self.mmap_obj = mmap.mmap(fd, slots * stride)
        self.page_size, self.num_chunks, self._row_stride = mmap.PAGESIZE, slots, stride
        self.total_size_bytes, self.rank = slots * stride, spec.rank
        self._worker_offset, self._worker_area_end = spec.rank * spec.page, (spec.rank + 1) * spec.page
        self._base = torch.frombuffer(memoryview(self.mmap_obj), dtype=torch.int8)
        self._views, self._canonical_offset, self.fd, self._creator = [], 0, None, False
        self.is_pinned, self.pinned_addresses = False, []


class CpuCopies:
    """Copies within the call, on the platform that vLLM's own worker refuses. A slot has one block."""

    def __init__(self, kv_caches, _, slots, region):
        self.region, self.done = region, []
        view = region.create_next_worker_view
        self.pairs = [(of.tensor, view(of.page_size_bytes)) for of in kv_caches.tensors]

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
         submit_load=lambda self, job, _, to: self._failed(job, to), take_bad_blocks=lambda *_: set())
class Worker(Link, base.OffloadingWorker):
    """Copies between the device and the arenas that jobs name.

    vLLM takes no failed job: one that fails is reported as done. vLLM computes the blocks of a load;
    the agent takes no slot once this link has ended.
    """

    def __init__(self, spec, kv_caches):
        super().__init__(spec.path, spec.hello(1), logger)
        self.spec, self.kv_caches, self.arenas = spec, kv_caches, {}
        self.done, self.bad_blocks = [], set()
        self.start()

    def _joined(self, boot, slots, stride, fd):
        is_cpu = current_platform.is_cpu()
        if not is_cpu:
            current_platform.set_device(self.kv_caches.tensors[0].tensor.device)
        copies, blocks = CpuCopies if is_cpu else CPUOffloadingWorker, self.spec.blocks_per_chunk
        self.arenas[boot] = copies(self.kv_caches, blocks, slots, Region(fd, slots, stride, self.spec))

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

    def _failed(self, job, load_to=None):
        self.done.append(TransferResult(job, True))
        self.bad_blocks.update(getattr(load_to, "block_ids", np.array([])).tolist())
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done + [result for arena in self.arenas.values() for result in arena.get_finished()]

    def take_bad_blocks(self):
        blocks, self.bad_blocks = self.bad_blocks, set()
        return blocks

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
        blocks, tokens = self.blocks_per_chunk, self.tokens_per_block[0]
        self.page, self.chunk = config.worker_kv_bytes_per_block * blocks, tokens * blocks
        self.hashes_per_chunk = self.chunk // self.tokens_per_hash
        self.group, self.row_bytes = config.groups[0].group_id.to_bytes(4, "big"), self.page * copies
        self.form = (
            f"{extra.get(FORM)} chunk={self.chunk} page={self.page} copies={copies}"
            f" groups={len(config.groups)} blocks={blocks}"
            f" layout={config.kv_cache_layout} canonical={config.canonical_layout}")

    def hello(self, role):
        rank, world = self.config.parallel.rank if role else 0, self.config.parallel.world_size
        return hello(role, rank, world, self.chunk, self.row_bytes, self.config.engine_id, self.form)

    def get_manager(self):
        return Manager(self)

    def get_worker(self, kv_caches):
        return Worker(self, kv_caches)


class Connector(OffloadingConnector):
    """Named by `kv_connector`. It sees what the spec does not: requests whole, and steps."""

    def __init__(self, vllm_config, role, kv_cache_config):
        vllm_config.kv_transfer_config.kv_connector_extra_config[FORM] = form_of(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)

    def on_new_request(self, request):
        super().on_new_request(request)
        self.connector_scheduler.manager.arrive(request)

    def build_connector_meta(self, scheduler_output):
        self.connector_scheduler.manager.step(scheduler_output.total_num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def get_block_ids_with_load_errors(self):
        worker = self.connector_worker and self.connector_worker.worker
        return worker.take_bad_blocks() if worker else set()


def form_of(vllm_config):
    """All that decides the bytes of a block and the hash that names it, beside its layout."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    config = pathlib.Path(model.model, "config.json")
    digest = hashlib.sha256(config.read_bytes()).hexdigest()[:16] if config.exists() else "none"
    return (
        f"vllm={__version__} platform={current_platform.device_type} model={model.model}"
        f" revision={model.revision} config={digest} quantization={model.quantization}"
        f" dtype={model.dtype} kv={cache.cache_dtype} tp={parallel.tensor_parallel_size}"
        f" pp={parallel.pipeline_parallel_size} dcp={parallel.decode_context_parallel_size}"
        f" attention={vllm_config.attention_config.backend}"
        f" hash={cache.prefix_caching_hash_algo} seed={os.environ.get('PYTHONHASHSEED', 'none')}")
