"""Lets SGLang 0.5 keep KV in the host arena of a Stator agent: a storage backend of HiCache.

SGLang copies pages between the device and its own host memory; this file copies them between that
memory and the arena, and the agent decides which are kept, and where. SGLang calls from three
threads, which may wait. Each rank has a backend and a connection of its own.

Where a method would raise, it answers that there is nothing, and turns the tiers off.
"""

import collections
import contextlib
import functools
import hashlib
import logging
import mmap
import os
import pathlib
import time

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.version import __version__
from stator_link import LOADED, LOADS_LATE, READY_S, Link, hello

logger = logging.getLogger(__name__)

# Longest wait of a backup for slots to fill, and of a look-up: it holds up no step of the engine.
CREDIT_S, LOOKUP_S = 1.0, 0.5
# Most look-ups whose pages may still be loaded.
LOOK_UPS_MAX = 64


class Pages(Link):
    """The connection of a rank: it finds, loads and stores pages."""

    found_s = LOOKUP_S

    def __init__(self, path, words, page_bytes):
        super().__init__(path, words, logger)
        self.page_bytes, self.copies, self.map = page_bytes, 0, None
        self.looked_up = collections.deque()

    def is_idle(self):
        return not self.copies

    def _joined(self, boot, slots, stride, fd):
        # Nobody copies: `is_idle` was so, and until WELCOME nobody asks.
        self.map = torch.frombuffer(mmap.mmap(fd, slots * stride), dtype=torch.uint8)
        self.map = self.map.view(slots, stride)[:, : self.page_bytes]

    @contextlib.contextmanager
    def copying(self):
        """While slots are read or filled, no other connection begins."""
        with self.lock:
            self.copies += 1
        try:
            yield
        finally:
            with self.lock:
                self.copies -= 1

    def found(self, keys):
        """How many leading pages are there, or on their way to the arena.

        The question stays open for a while: SGLang loads the pages next, a batch at a time, and the
        agent drops reads that no question waits for.
        """
        with self.lock:
            ask = self._ask(keys)
            self.news.wait_for(lambda: not self._is_open(ask) or ask.is_found, self.found_s)
            if not ask:
                return 0
            self.looked_up.append(ask)
            if len(self.looked_up) > LOOK_UPS_MAX:
                self._end(self.looked_up.popleft())
            return len(ask.ready) + ask.pending

    def _pulsed(self):
        while self.looked_up and time.monotonic() > self.looked_up[0].began + READY_S:
            self._end(self.looked_up.popleft())

    def load(self, keys, put):
        """Calls `put(place, page)` for the leading pages that are there in time; their number."""
        with self.copying():
            with self.lock:
                ask = self._ask(keys)
                is_over = lambda: not self._is_open(ask) or ask.is_found and not ask.pending
                self.counts[LOADS_LATE] += not self.news.wait_for(is_over, READY_S)
                # If the connection ended, the agent keeps the slots until the next HELLO.
                slots, arena = list(ask.ready) if ask else [], self.map
            for place, slot in enumerate(slots):
                put(place, arena[slot])
            with self.lock:
                self._end(ask)
                self.counts[LOADED] += len(slots)
            return len(slots)

    def store(self, keys, depth, page):
        """Stores `page(place)` for each key, as long as the agent grants slots; their number."""
        for place, key in enumerate(keys):
            with self.copying():
                with self.lock:
                    self.news.wait_for(lambda: self.credit or not self.boot, CREDIT_S)
                    peer = self.peer
                    if not self.boot or not self.credit:
                        return place
                    slot, arena = self.credit.popleft(), self.map
                # From where it lies, in pieces: a page that is flattened first is copied twice.
                pieces = page(place)
                arena[slot].view(pieces.dtype).view(pieces.shape).copy_(pieces)
                with self.lock:
                    # A slot of an earlier connection is not ours to hand over.
                    if self.peer is not peer:
                        return place
                    self._filled([(key, slot, depth + place, None)])
        return len(keys)


def safely(answer):
    """Answers so where a method of the backend would raise, or has no pool yet."""

    def guard(method):
        @functools.wraps(method)
        def call(self, keys, *args):
            try:
                return method(self, keys, *args) if self.pages else answer(keys)
            except Exception:
                self.pages.fault(method.__name__)
                return answer(keys)

        return call

    return guard


def group_of(config):
    """The part of a page's name that is the rank's. Where all ranks have the same bytes, they share them."""
    is_shared = config.is_mla_model and config.dcp_size == 1
    rank = 0 if is_shared else config.tp_rank
    return (config.pp_rank << 16 | rank).to_bytes(4, "big")


class Storage(HiCacheStorage):
    """Named by `class_name` of the backend's extra configuration, beside `stator_socket`."""

    def __init__(self, config, kwargs=None):
        self.config, self.pages = config, None

    def register_mem_pool_host(self, pool):
        super().register_mem_pool_host(pool)
        try:
            self.join(pool)
        except Exception:
            logger.exception("KV tiers are off until the engine restarts: its pages are not known")

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        """Names a further pool. A prefix needs the pages of all of them, of which the agent has one kind."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != "kv" and self.pages:
            logger.warning("KV tiers are off: the model has KV of another form, %s", host_pool_name)
            self.close()
            self.pages = None

    def join(self, pool):
        """Begins the connection, now that the form of pages is known."""
        # A page that is there: a new one may need memory that a driver has pinned.
        page = pool.get_data_page(0)
        size, of = page.numel() * page.element_size(), self.config
        self.dtype, self.tokens, self.group = page.dtype, pool.page_size, group_of(of)
        file = pathlib.Path(str(of.model_name), "config.json")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else "none"
        form = (
            f"sglang={__version__} model={of.model_name} config={digest} dtype={page.dtype}"
            f" page={self.tokens} bytes={size} layout={pool.layout} pool={type(pool).__name__}"
            f" tp={of.tp_size} pp={of.pp_size} cp={of.attn_cp_size} dcp={of.dcp_size}")
        rank = f"{of.dp_rank}.{of.pp_rank}.{of.attn_cp_rank}.{of.tp_rank}"
        engine = f"sglang-{rank}-{os.urandom(6).hex()}"
        words = hello(0, 0, 0, self.tokens, size, engine, form)
        self.pages = Pages(str((of.extra_config or {}).get("stator_socket")), words, size)
        self.pages.start()

    def names(self, keys):
        return [bytes.fromhex(key).ljust(32, b"\0")[:32] + self.group for key in keys]

    @safely(lambda keys: 0)
    def batch_exists(self, keys, extra_info=None):
        return self.pages.found(self.names(keys))

    @safely(lambda keys: [False] * len(keys))
    def batch_get_v1(self, keys, host_indices, extra_info=None):
        put = lambda place, page: self.mem_pool_host.set_from_flat_data_page(
            int(host_indices[place * self.tokens]), page.view(self.dtype))
        count = self.pages.load(self.names(keys), put)
        return [place < count for place in range(len(keys))]

    @safely(lambda keys: [False] * len(keys))
    def batch_set_v1(self, keys, host_indices, extra_info=None):
        depth = len(extra_info and extra_info.prefix_keys or ())
        get = self.mem_pool_host.get_data_page
        page = lambda place: get(int(host_indices[place * self.tokens]), flat=False)
        count = self.pages.store(self.names(keys), depth, page)
        return [place < count for place in range(len(keys))]

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

        return PoolTransferResult.empty()

    def batch_get_v2(self, transfers, extra_info=None):
        return {of.name: [False] * len(of.keys or ()) for of in transfers}

    def batch_set_v2(self, transfers, extra_info=None):
        return self.batch_get_v2(transfers)

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def get(self, key, target_location=None, target_sizes=None):
        """Not used: `interface_v1` is set."""

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        """Not used: `interface_v1` is set."""

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return False

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        return False

    def clear(self):
        """The agent keeps what other engines may still use."""

    def close(self):
        if self.pages:
            self.pages.shutdown()
