"""Lets vLLM 0.32 keep KV in the host arena of a Stator agent.

vLLM's `OffloadingConnector` decides when blocks are copied, and fences them; the agent decides
which blocks are kept, and where. No KV goes through Python: the arena is a memory file of the
agent's, which each worker maps, and copies to and from (`vllm_0_32_worker.py`).

An exception would end the engine, so none leaves this file: each entry catches, counts, and turns
the tiers off. The engine serves without an agent, and joins it when it comes. A call waits for the
agent for milliseconds at most, a request for two seconds.
"""

import hashlib
import itertools
import os
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from stator_link import (
    ASK, ASK_KEYS_MAX, CALL_S, DUP, END, FILLED, FOUND, GRANT, KEYS_MAX, MORE, PROTOCOL, READY,
    RESET, Link, guarded)
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm_0_32_worker import Slots, Worker

logger = init_logger(f"vllm.{__name__}")

# Longest waits of a request: for the answer to its ask, and for blocks that are on their way.
FOUND_S, READY_S = 0.05, 2.0
# Asks in a row without an answer, after which nothing is asked until the agent says something.
SILENT_MAX = 3
# Steps after a reset of the cache in which copies of before may still run.
RESET_STEPS = 16
# Words for the form of the KV, put into the extra configuration by the connector for the spec.
FORM = "stator_form"


class Request:
    """A request of the scheduler's. `hashes` grows with its tokens."""

    def __init__(self, hashes):
        self.hashes, self.has_failed, self.ask = hashes, False, None


class Ask:
    """A question for a request's blocks, and what is known of the answer."""

    def __init__(self, number, keys, link):
        self.number, self.boot, self.epoch = number, link.boot, link.epoch
        self.places = {key: place for place, key in enumerate(keys)}
        # Slots of the first blocks; how many more come; how many there were or were to come.
        self.ready, self.pending, self.held = [], 0, 0
        self.is_found, self.is_late, self.has_ended, self.since = False, False, False, {}


@guarded(
    arrive=None, lookup=LookupResult.MISS, prepare_load=Slots, complete_load=None,
    prepare_store=lambda: base.PrepareStoreOutput([], Slots(), []), complete_store=None,
    on_request_finished=None, on_schedule_end=None, reset_cache=None, step_begins=None,
    step_ends=None, shutdown=None)
class Manager(base.OffloadingManager):
    """Answers the scheduler from what the agent said: one ASK a request, slots in advance."""

    def __init__(self, spec):
        self.link, self.spec = Link(self, spec.path, spec.hello(role=0), logger), spec
        # Requests by id; asks by number, and by request while it is loaded.
        self.requests, self.asks, self.loads, self.numbers = {}, {}, {}, itertools.count(1)
        # Slots to fill; slots that are being filled, by key; keys whose copy failed.
        self.credit, self.stores, self.bad = deque(), {}, set()
        self.steps, self.quiet_until, self.begun, self.last_end = 0, 0, deque(maxlen=64), 0.0
        self.loaded = self.stored = self.asks_late = self.loads_late = 0

    def idle(self):
        return not self.stores and not self.loads and self.steps >= self.quiet_until

    def counts(self):
        return self.loaded, self.stored, self.asks_late, self.loads_late

    def joined(self, boot, slots, stride, fd):
        self.credit.clear()
        self.asks.clear()
        self.loaded = self.stored = self.asks_late = self.loads_late = 0

    def heard(self, kind, flags, number, body):
        if kind in (GRANT, DUP):
            self.credit.extend(self.link.read_slots(body, 0))
        elif kind in (FOUND, READY) and (ask := self.asks.get(number)):
            ask.pending, = struct.unpack_from("<I", body)
            ask.ready.extend(self.link.read_slots(body, 4))
            ask.held = max(ask.held, len(ask.ready) + ask.pending)
            ask.is_found = ask.is_found or not flags & MORE
            if ask.is_found and ask.has_ended:
                del self.asks[number]

    def arrive(self, request):
        self.link.pump()
        self.requests[request.request_id] = kept = Request(request.block_hashes)
        self.ask(kept)

    def ask(self, request):
        """The request's ask; a new one where it has none, or came back after it was scheduled."""
        link, step, ask = self.link, self.spec.hashes_per_chunk, request.ask
        if request.has_failed or not link.boot:
            return None
        if ask and ask.epoch == link.epoch and not ask.has_ended:
            return ask
        hashes = itertools.islice(request.hashes, step - 1, step * ASK_KEYS_MAX, step)
        keys = [value + self.spec.group for value in hashes]
        if not keys or link.silent >= SILENT_MAX:
            return None
        request.ask = ask = Ask(next(self.numbers), keys, link)
        self.asks[ask.number] = ask
        for first in range(0, len(keys), KEYS_MAX):
            part = keys[first : first + KEYS_MAX]
            head = struct.pack("<4I", link.prefill_us, len(keys), first, len(part))
            link.send(ASK, head + b"".join(part), ask.number)
        return ask

    def end(self, ask):
        """The slots of the answer are not needed any more."""
        if ask and not ask.has_ended:
            ask.has_ended = True
            # The answer may still come: it says which blocks need not be stored.
            if ask.is_found:
                self.asks.pop(ask.number, None)
            if ask.epoch == self.link.epoch:
                self.link.send(END, number=ask.number)

    def lookup(self, key, req_context):
        request = self.requests.get(req_context.req_id)
        ask = request and self.ask(request)
        place = ask.places.get(key) if ask else None
        if place is None:
            return LookupResult.MISS
        if place >= len(ask.ready) and not ask.is_late and (ask.pending or not ask.is_found):
            self.listen(ask)
        if place < len(ask.ready):
            return LookupResult.HIT
        if ask.is_late or ask.is_found and place >= len(ask.ready) + ask.pending:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if ask.is_found else LookupResult.RETRY

    def listen(self, ask):
        """Reads what came. The first call waits a little: to be asked again takes a whole step."""
        now, is_first, link = time.monotonic(), not ask.since, self.link
        since = ask.since.setdefault(ask.is_found, now)
        link.pump()
        while is_first and link.boot and not ask.is_found and time.monotonic() < now + CALL_S:
            link.pump(CALL_S)
        if ask.is_found not in ask.since:
            return
        if now - since > (READY_S if ask.is_found else FOUND_S) or not link.boot:
            ask.is_late = True
            self.loads_late += ask.is_found
            self.asks_late += not ask.is_found
            link.silent += not ask.is_found

    def get_load_source(self, key, req_context):
        return CacheHitSource.HOST

    def prepare_load(self, keys, req_context):
        ask = self.requests[req_context.req_id].ask
        slots = [ask.ready[ask.places[key]] for key in keys]
        if ask.epoch != self.link.epoch:
            # Since the lookup, HELLO gave these slots back. The worker knows no arena of this name
            # and says so, and the blocks are computed.
            return Slots(b"", slots)
        self.loads[req_context.req_id] = ask
        self.loaded += len(slots)
        return Slots(ask.boot, slots)

    def complete_load(self, keys, req_context):
        request = self.requests.get(req_context.req_id)
        if request and not self.bad.isdisjoint(keys):
            request.has_failed = True
        self.bad.difference_update(keys)
        self.end(self.loads.pop(req_context.req_id, None))

    def prepare_store(self, keys, req_context):
        self.link.pump()
        request = self.requests.get(req_context.req_id)
        ask = request and request.ask
        held = ask.held if ask and ask.epoch == self.link.epoch else 0
        new = (key for key in keys if key not in self.stores)
        new = [key for key in new if not held or ask.places.get(key, held) >= held]
        taken = new[: len(self.credit)] if self.link.boot else []
        slots = [self.credit.popleft() for _ in taken]
        self.stores.update(zip(taken, slots))
        return base.PrepareStoreOutput(taken, Slots(self.link.boot, slots), [])

    def complete_store(self, keys, req_context, success=True):
        filled = []
        for key in keys:
            slot, end = self.stores.pop(key, None), req_context.get_offload_key_position(key)
            if slot is not None and success and end and key not in self.bad:
                filled.append(key + struct.pack("<II", slot, end // self.spec.chunk - 1))
            elif slot is not None:
                self.credit.append(slot)
        self.bad.difference_update(keys)
        self.stored += len(filled)
        for first in range(0, len(filled), KEYS_MAX):
            part = filled[first : first + KEYS_MAX]
            self.link.send(FILLED, struct.pack("<I", len(part)) + b"".join(part))

    def on_new_request(self, req_context):
        return base.RequestOffloadingContext()

    def on_request_finished(self, req_context):
        request = self.requests.pop(req_context.req_id, None)
        if request and request.ask and req_context.req_id not in self.loads:
            self.end(request.ask)
            self.asks.pop(request.ask.number, None)

    def on_schedule_end(self, context):
        self.steps += 1
        # Who is scheduled without a load needs none any more.
        for request in context.new_req_ids:
            if request in self.requests and request not in self.loads:
                self.end(self.requests[request].ask)

    def has_pending_work(self):
        return self.steps < self.quiet_until

    def reset_cache(self):
        """The blocks mean something else from here on. No copy of before is reported any more."""
        self.stores, self.loads, self.bad = {}, {}, set()
        self.quiet_until, self.link.namespace = self.steps + RESET_STEPS, os.urandom(16)
        self.link.drop("the engine's cache was reset")

    def step_begins(self, tokens):
        self.begun.append((time.monotonic(), tokens))

    def step_ends(self, failed, jobs):
        """Learns which copies failed, and how long a block takes to compute."""
        for job in failed:
            self.bad.update(jobs[job].keys if job in jobs else ())
        now = time.monotonic()
        began, tokens = self.begun.popleft() if self.begun else (now, 0)
        took_s, self.last_end = now - max(began, self.last_end), now
        if tokens >= 2 * self.spec.chunk:
            block_us = took_s * 1e6 * self.spec.chunk / tokens
            before_us = self.link.prefill_us or block_us
            self.link.prefill_us = int((7 * before_us + block_us) / 8) or 1

    def shutdown(self):
        self.link.close()


class Spec(base.OffloadingSpec):
    """Named by `spec_name` of the connector's extra configuration, beside `stator_socket`."""

    def __init__(self, config):
        super().__init__(config)
        extra, parallel = config.extra_config, config.parallel
        self.offload_prompt_only = bool(extra.get("offload_prompt_only", False))
        self.replicated_layout = config.replicated_layout
        copies, self.rank = parallel.world_size, parallel.rank
        if config.replicated_layout:
            # All ranks have the same bytes; the first stores them.
            copies, self.rank = 1, 0
        self.page = config.worker_kv_bytes_per_block * self.blocks_per_chunk
        self.row_bytes = self.page * copies
        self.chunk = self.tokens_per_block[0] * self.blocks_per_chunk
        self.hashes_per_chunk = self.chunk // self.tokens_per_hash
        self.group = config.groups[0].group_id.to_bytes(4, "big")
        layout = f"chunk={self.chunk} page={self.page} copies={copies} layout={config.kv_cache_layout}"
        self.form = f"{extra.get(FORM)} {layout}"
        whys = {
            "stator_socket is not given": not extra.get("stator_socket"),
            "the connector of this file is needed": not extra.get(FORM),
            "the model has several groups of KV": len(config.groups) > 1,
            "canonical_layout is set": config.canonical_layout,
            "blocks have no size": not self.page,
            "--prefix-caching-hash-algo has to be sha256_cbor": "hash=sha256" not in self.form,
        }
        why = next((why for why, is_so in whys.items() if is_so), None)
        if why:
            logger.warning("KV tiers are off: %s", why)
        self.path = None if why else extra["stator_socket"]

    def hello(self, role):
        parallel, engine = self.config.parallel, self.config.engine_id.encode()[:256]
        form, rank = self.form.encode(errors="replace"), parallel.rank if role else 0
        head = (PROTOCOL, role, rank, parallel.world_size, self.chunk, 0, self.row_bytes)
        proof = hashlib.sha256(form).digest(), os.urandom(16)
        form = form[:1024].decode(errors="ignore").encode()
        return struct.pack("<6IQ32s16sII", *head, *proof, len(engine), len(form)) + engine + form

    def get_manager(self):
        manager = Manager(self)
        manager.link.start()
        return manager

    def get_worker(self, kv_caches):
        worker = Worker(self, kv_caches)
        worker.link.start()
        return worker


class Connector(OffloadingConnector):
    """Named by `kv_connector`. It sees what the spec does not: requests whole, and steps."""

    def __init__(self, vllm_config, role, kv_cache_config):
        try:
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            extra[FORM] = form_of(vllm_config)
        except Exception:
            logger.exception("KV tiers are off: the form of the KV is not known")
        super().__init__(vllm_config, role, kv_cache_config)

    def on_new_request(self, request):
        super().on_new_request(request)
        self.connector_scheduler.manager.arrive(request)

    def build_connector_meta(self, scheduler_output):
        self.connector_scheduler.manager.step_begins(scheduler_output.total_num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output):
        scheduler = self.connector_scheduler
        failed = getattr(connector_output.kv_connector_worker_meta, "failed", ())
        scheduler.manager.step_ends(failed, scheduler._jobs)
        super().update_connector_output(connector_output)

    def build_connector_worker_meta(self):
        meta = super().build_connector_worker_meta()
        failed = self.connector_worker.worker.take_failed() if meta else set()
        return meta and Meta(meta.completed_jobs, meta.transfer_stats, failed)

    def get_block_ids_with_load_errors(self):
        worker = self.connector_worker and self.connector_worker.worker
        return worker.take_bad_blocks() if worker else set()


@dataclass
class Meta(OffloadingWorkerMetadata):
    """Also has the jobs that some worker failed."""

    failed: set[int] = field(default_factory=set)

    def aggregate(self, other):
        meta = super().aggregate(other)
        return Meta(meta.completed_jobs, meta.transfer_stats, self.failed | other.failed)


def form_of(vllm_config):
    """All that decides the bytes of a block and the hash that names it, beside its layout."""
    model, cache, parallel = (
        vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config)
    config = os.path.join(model.model, "config.json")
    if os.path.exists(config):
        with open(config, "rb") as file:
            config = hashlib.sha256(file.read()).hexdigest()[:16]
    words = {
        "vllm": __version__, "platform": current_platform.device_type, "model": model.model,
        "revision": model.revision, "config": config, "quantization": model.quantization,
        "dtype": model.dtype, "kv": cache.cache_dtype, "heads": model.get_total_num_kv_heads(),
        "dim": model.get_head_size(), "layers": model.get_total_num_hidden_layers(),
        "block": cache.block_size, "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size, "dcp": parallel.decode_context_parallel_size,
        "attention": vllm_config.attention_config.backend,
        "hash": cache.prefix_caching_hash_algo, "seed": os.environ.get("PYTHONHASHSEED", "none"),
    }
    return " ".join(f"{name}={value}" for name, value in words.items())
