"""A plug-in of SGLang (`sglang.srt.plugins`) for what it takes for granted of its device."""

import multiprocessing


def register():
    """Has indices of pages handed to Mooncake at once, not by way of an event of a CUDA stream."""
    if multiprocessing.parent_process() is None:
        # The HTTP server hands over none. What it counts would be on no page had this import been
        # before it says where its processes count together.
        return
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False
