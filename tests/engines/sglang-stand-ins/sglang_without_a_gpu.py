"""A plug-in of SGLang (`sglang.srt.plugins`) for what it takes for granted of its device."""

import multiprocessing


def register():
    """Has indices of pages handed to Mooncake at once, not by way of an event of a CUDA stream, and
    pages of HiCache copied without kernels."""
    if multiprocessing.parent_process() is None:
        # The HTTP server hands over none. What it counts would be on no page had this import been
        # before it says where its processes count together.
        return
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False

    # HiCache's copies between the engine's memory and its own: plain ones, and no driver that has
    # to know of the memory.
    from sglang.srt.mem_cache.pool_host import common, mha

    common._cuda_host_register = lambda *_: None
    mha.transfer_kv_direct = copy_pages


def copy_pages(src_layers, dst_layers, src_indices, dst_indices, page_size):
    for source, target in zip(src_layers, dst_layers):
        target[dst_indices] = source[src_indices]
