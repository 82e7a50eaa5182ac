"""Lets TensorRT-LLM keep KV in the host arena of a Stator agent: a KV cache connector.

Written from TensorRT-LLM's documented interface; it has not been run under the engine. The variable
STATOR_KV_SOCKET names the agent's socket. Loads come before a forward pass and stores after it, both
in its stream; with STATOR_KV_DEVICE_COPIES=agent the agent copies, after an event of that stream.
TensorRT-LLM gives no hashes, so the tokens of each block are hashed here.
"""

import contextlib
import hashlib
import logging
import mmap
import os
import struct

import torch
from stator_device import LOAD, STORE, DeviceLink, Pages, allocation_of
from stator_link import LOADED, Link, guarded, hello
from tensorrt_llm import __version__
from tensorrt_llm._torch.pyexecutor.kv_cache_connector import (
    KvCacheConnectorScheduler, KvCacheConnectorWorker)

logger = logging.getLogger(__name__)

SOCKET = os.environ.get("STATOR_KV_SOCKET", "")
# One id for the scheduler and the workers of an engine: they have the first rank's parent in common.
ENGINE = os.environ.get("STATOR_KV_ENGINE") or f"trtllm-{os.getppid()}"
# Who copies between device and arena.
BY_AGENT = os.environ.get("STATOR_KV_DEVICE_COPIES") == "agent"
# Passes after which all ranks have ended the stores of a pass: each begins with a broadcast.
SETTLED = 2
# Longest wait for blocks on their way: TensorRT-LLM does not ask again.
WAIT_S = 0.01


def describe(role, args, rank=0):
    """HELLO. All ranks have pages of the same size; TensorRT-LLM tells the scheduler none, so the
    operator does."""
    tokens, world = args.kv_cache_config.tokens_per_block, args.tensor_parallel_size
    page = int(os.environ["STATOR_KV_PAGE_BYTES"])
    form = (
        f"trtllm={__version__} model={args.model} dtype={args.dtype} kv={args.kv_cache_config.dtype}"
        f" block={tokens} page={page} tp={world} pp={args.pipeline_parallel_size}")
    return hello(role, rank, world, tokens, page * world, ENGINE, form)


class Job:
    """Copies of a pass: the agent's start, and block and slot of each load and store."""

    def __init__(self, boot):
        self.boot, self.loads, self.stores = boot, [], []


def broken_promise(self, *_):
    """TensorRT-LLM takes no report of a load that failed: an answer would be wrong without this."""
    raise RuntimeError("KV tiers: blocks that were promised cannot be loaded")


@guarded(get_num_new_matched_tokens=lambda *_: (0, False), request_finished=lambda *_: False,
         build_connector_meta=lambda self, *_: broken_promise(self) if self.due else Job(None))
class Scheduler(Link, KvCacheConnectorScheduler):
    """Asks once for each request, and reports stores when all ranks have ended them."""

    def __init__(self, llm_args):
        KvCacheConnectorScheduler.__init__(self, llm_args)
        Link.__init__(self, SOCKET, describe(0, llm_args), logger)
        self.tokens = llm_args.kv_cache_config.tokens_per_block
        # Of each request: keys of its full blocks, its ask, first block and number of its load, tokens.
        self.keys, self.told, self.due, self.prompts = {}, {}, {}, {}
        # Blocks of each request, and how many of them are stored or held; stores of the last passes.
        self.blocks, self.saved, self.passes = {}, {}, [[] for _ in range(SETTLED)]
        self.start()

    def is_idle(self):
        return not self.due and not any(self.passes)

    def _chain(self, tokens, seed, before=0, last=b""):
        """Keys of the full blocks of a prompt behind the first `before`, whose last hash is known."""
        last = last or hashlib.sha256(seed).digest()
        for first in range(before * self.tokens, len(tokens) - self.tokens + 1, self.tokens):
            part = struct.pack(f"<{self.tokens}I", *tokens[first : first + self.tokens])
            last = hashlib.sha256(last + part).digest()
            yield last + bytes(4)

    def _words(self, request, place):
        """What names a block for routers: names, hash of the block before, and tokens. Of adapters and
        salts TensorRT-LLM tells numbers, no names."""
        tokens = self.prompts[request][place * self.tokens : (place + 1) * self.tokens]
        before = self.keys[request][place - 1][:32] if place else bytes(32)
        return tokens and ((b"", b""), before + struct.pack(f"<{self.tokens}I", *tokens))

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        space = [getattr(request, name, None) for name in ("lora_task_id", "cache_salt_id")]
        seed, tokens = repr(space), request.get_tokens(0)
        self.prompts[request.request_id] = tokens if space == [None, None] else []
        keys = self.keys[request.request_id] = list(self._chain(tokens, seed.encode()))
        ask = self.told[request.request_id] = self._ask(keys)
        first = num_computed_tokens // self.tokens
        self.news.wait_for(lambda: not self._is_open(ask) or ask.is_found and not ask.pending, WAIT_S)
        if not self._is_open(ask) or num_computed_tokens % self.tokens:
            return 0, False
        # The last token is always computed.
        count = min(len(ask.ready), (len(tokens) - 1) // self.tokens) - first
        if count <= 0:
            return 0, False
        self.due[request.request_id] = (first, count)
        return count * self.tokens, False

    def update_state_after_alloc(self, request, block_ids):
        """The blocks come again with the pass."""

    def build_connector_meta(self, scheduler_output):
        self._filled(self.passes.pop(0))
        job, stores = Job(self.boot), []
        for data in [*scheduler_output.new_requests, *scheduler_output.cached_requests]:
            blocks = self.blocks.setdefault(data.request_id, [])
            blocks.extend(data.new_block_ids)
            ask, (first, count) = self.told.get(data.request_id), self.due.pop(data.request_id, (0, 0))
            if count:
                job.boot = ask.boot
                job.loads += zip(blocks[first : first + count], ask.ready[first : first + count])
                self.counts[LOADED] += count
            # Full blocks at the end of this pass, of the prompt only: later tokens are not hashed.
            done = data.computed_position + count * self.tokens + data.num_scheduled_tokens
            keys = self.keys.get(data.request_id, ())[: done // self.tokens]
            held = len(ask.ready) + ask.pending if ask else 0
            for place in range(max(self.saved.get(data.request_id, 0), held), len(keys)):
                if self.boot and self.credit and job.boot == self.boot and place < len(blocks):
                    slot = self.credit.popleft()
                    job.stores.append((blocks[place], slot))
                    stores.append((keys[place], slot, place, self._words(data.request_id, place)))
            self.saved[data.request_id] = max(len(keys), held)
        self.passes.append(stores)
        return job

    def request_finished(self, request, cache_block_ids):
        for table in (self.keys, self.due, self.blocks, self.saved, self.prompts):
            table.pop(request.request_id, None)
        self._end(self.told.pop(request.request_id, None))
        # Stores are over at the end of their pass.
        return False


@guarded(start_load_kv=broken_promise)
class Worker(DeviceLink, KvCacheConnectorWorker):
    """Copies between its part of each block and its part of a slot, in the stream of the pass."""

    def __init__(self, llm_args):
        KvCacheConnectorWorker.__init__(self, llm_args)
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0)))
        DeviceLink.__init__(self, SOCKET, describe(1, llm_args, self.rank), logger)
        self.blocks, self.arenas, self.event = None, {}, None

    def register_kv_caches(self, kv_cache_tensor):
        self.blocks = kv_cache_tensor.flatten(1).view(torch.uint8)
        if self.blocks.shape[1] != int(os.environ["STATOR_KV_PAGE_BYTES"]):
            raise ValueError(f"STATOR_KV_PAGE_BYTES has to be {self.blocks.shape[1]}")
        if BY_AGENT and self.blocks.is_cuda:
            self._offer()
        self.start()

    def _offer(self):
        """Exports the pages, each of which is one piece, and the event that orders come after."""
        count, page = self.blocks.shape
        try:
            torch.cuda.set_device(self.blocks.device)
            memory = allocation_of(self.blocks.data_ptr())
            self.event = torch.cuda.Event(interprocess=True)
            self.event.record()
            pages = Pages(1, 1, 1, page, count, (page, page, page, page))
            self.offer(memory, pages, self.rank * page, self.event.ipc_handle())
        except Exception as why:
            self.export = None
            logger.warning("KV tiers: the engine copies by itself: %s", why)

    def _joined(self, boot, slots, stride, fd):
        arena = torch.frombuffer(mmap.mmap(fd, slots * stride), dtype=torch.uint8).view(slots, stride)
        page = self.blocks.shape[1]
        if self.blocks.is_cuda and not self.export:
            torch.cuda.set_device(self.blocks.device)
            torch.cuda.cudart().cudaHostRegister(arena.data_ptr(), slots * stride, 0)
        self.arenas[boot] = arena[:, self.rank * page : (self.rank + 1) * page]

    def _copy(self, pairs, stream, is_load):
        if not pairs:
            return
        if self.boot == self._metadata.boot and self.is_exported:
            self.event.record(stream)
            ends = pairs if not is_load else [(slot, block) for block, slot in pairs]
            if self.order(LOAD if is_load else STORE, ends):
                return
        arena = self.arenas[self._metadata.boot]
        with torch.cuda.stream(stream) if self.blocks.is_cuda else contextlib.nullcontext():
            for block, slot in pairs:
                to, of = (self.blocks[block], arena[slot]) if is_load else (arena[slot], self.blocks[block])
                to.copy_(of, non_blocking=True)
        if self.blocks.is_cuda:
            stream.synchronize()

    def start_load_kv(self, stream):
        self._copy(self._metadata.loads, stream, is_load=True)

    def wait_for_save(self, stream):
        self._copy(self._metadata.stores, stream, is_load=False)

    def wait_for_layer_load(self, layer_idx, stream):
        pass

    def save_kv_layer(self, layer_idx, stream):
        pass

    def get_finished(self, finished_gen_req_ids, started_loading_req_ids):
        """Nothing is asynchronous."""
        return [], []
