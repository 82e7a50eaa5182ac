"""A plug-in of SGLang (`sglang.srt.plugins`) for what it takes for granted of its device."""


def register():
    """Has indices of pages handed to Mooncake at once, not by way of an event of a CUDA stream."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False
