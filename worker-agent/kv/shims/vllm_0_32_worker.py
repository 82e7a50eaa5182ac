"""The worker's side of the shim for vLLM 0.32: copies between the device and the agent's arena."""

import mmap
import os
import time

import numpy as np
import torch
from stator_link import Link, guarded
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

logger = init_logger(f"vllm.{__name__}")


class Slots(base.BlockIDsLoadStoreSpec):
    """Slots of the arena that an agent made at its start `boot`."""

    def __init__(self, boot=b"", slots=()):
        super().__init__(list(slots))
        self.boot = boot


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


class CpuCopies(base.OffloadingWorker):
    """Copies within the call, on the platform that vLLM's own worker refuses."""

    def __init__(self, kv_caches, blocks_per_chunk, num_cpu_chunks, mmap_region):
        self.blocks, self.region, self.done, self.pairs = blocks_per_chunk, mmap_region, [], []
        for cache in kv_caches.tensors:
            view = mmap_region.create_next_worker_view(cache.page_size_bytes * self.blocks)
            self.pairs.append((cache.tensor, view.unflatten(1, (self.blocks, -1))))

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec, is_load=False)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec, is_load=True)

    def copy(self, job, device, slots, is_load):
        began, first = time.perf_counter(), device.block_indices[0]
        places = np.arange(first, first + len(device.block_ids))
        slots = slots.block_ids[places // self.blocks - first // self.blocks]
        indices = (device.block_ids, slots, places % self.blocks)
        blocks, slots, parts = (torch.from_numpy(np.asarray(ids, np.int64)) for ids in indices)
        for tensor, arena in self.pairs:
            if is_load:
                tensor[blocks] = arena[slots, parts]
            else:
                arena[slots, parts] = tensor[blocks]
        size = sum(tensor.shape[1] for tensor, _ in self.pairs) * len(blocks)
        self.done.append(TransferResult(job, True, size, time.perf_counter() - began))
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.pairs.clear()
        self.region.cleanup()


@guarded(
    submit_store=True, submit_load=True, get_finished=list, wait=None, shutdown=None,
    take_failed=set, take_bad_blocks=set)
class Worker(base.OffloadingWorker):
    """Copies between the device and each arena that jobs may still name.

    vLLM takes no failed job. So one that fails is reported as done, and beside it as bad: the
    scheduler forgets the slots of a store, and has the blocks of a load computed.
    """

    def __init__(self, spec, kv_caches):
        self.link = Link(self, spec.path, spec.hello(role=1), logger)
        self.spec, self.kv_caches, self.copies, self.used = spec, kv_caches, {}, b""
        # Boot and blocks to load of each job that runs.
        self.jobs, self.done, self.failed, self.bad_blocks = {}, [], set(), set()

    def idle(self):
        return not self.jobs

    def counts(self):
        return 0, 0, 0, 0

    def heard(self, kind, flags, number, body):
        pass

    def joined(self, boot, slots, stride, fd):
        if boot in self.copies:
            return
        if stride < self.spec.row_bytes or os.fstat(fd).st_size < slots * stride:
            raise ValueError("the arena is smaller than it was said to be")
        self.forget(self.used)
        region = Region(fd, slots, stride, self.spec)
        make = CpuCopies if current_platform.is_cpu() else CPUOffloadingWorker
        self.copies[boot] = make(
            kv_caches=self.kv_caches, blocks_per_chunk=self.spec.blocks_per_chunk,
            num_cpu_chunks=slots, mmap_region=region)

    def forget(self, *kept):
        """Unmaps the arenas of agents that have ended, once no job names them."""
        kept = {*kept, *(boot for boot, _ in self.jobs.values())}
        for boot in [boot for boot in self.copies if boot not in kept]:
            self.copies.pop(boot).shutdown()

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.submit(job_id, dst_spec.boot, None, (src_spec, dst_spec))

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.submit(job_id, src_spec.boot, dst_spec.block_ids.tolist(), (src_spec, dst_spec))

    def submit(self, job, boot, loads, specs):
        self.jobs[job] = (boot, loads)
        if boot in self.copies:
            if boot != self.used:
                self.used = boot
                self.forget(boot, next(reversed(self.copies)))
            copies = self.copies[boot]
            try:
                copy = copies.submit_store if loads is None else copies.submit_load
                copy(job, *specs)
                return True
            except Exception:
                self.link.faults += 1
                logger.exception("KV tiers: a copy failed")
        self.fail(job)
        return True

    def fail(self, job):
        _, loads = self.jobs.pop(job)
        self.failed.add(job)
        self.bad_blocks.update(loads or ())
        self.done.append(TransferResult(job, True))

    def get_finished(self):
        for copies in self.copies.values():
            for result in copies.get_finished():
                if result.success:
                    self.jobs.pop(result.job_id, None)
                    self.done.append(result)
                else:
                    self.fail(result.job_id)
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        for copies in self.copies.values():
            copies.wait(job_ids)

    def take_failed(self):
        failed, self.failed = self.failed, set()
        return failed

    def take_bad_blocks(self):
        blocks, self.bad_blocks = self.bad_blocks, set()
        return blocks

    def shutdown(self):
        self.link.close()
        for copies in self.copies.values():
            copies.shutdown()
