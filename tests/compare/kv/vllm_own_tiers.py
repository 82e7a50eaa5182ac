"""vLLM's own tiers where vLLM computes on a CPU, to compare with.

Its specification refuses there, because its copies need a GPU. This one has the copies of our shim,
which do the same; what vLLM keeps, and where, is its own.
"""

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm_0_32 import CpuCopies


class Copies(CpuCopies):
    def submit_store(self, job, device, slots, is_load=False):
        super().submit_store(job, device, slots, is_load)
        return True

    def submit_load(self, job, slots, device):
        super().submit_load(job, slots, device)
        return True


class Spec(TieringOffloadingSpec):
    """Named by `spec_name`."""

    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id, num_chunks=self.num_chunks,
                rank=self.config.parallel.rank, kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker)
            self._worker = Copies(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        return self._worker
