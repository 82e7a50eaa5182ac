"""Stands in for SGLang's package of compiled kernels, which is not published for CPUs.

On a CPU SGLang computes with plain PyTorch where the processor has no AMX, or this package has no
operators. It imports the names below all the same: from the allocator's fast path, and for
speculative decoding. None of them is called for a dense model on such a CPU; one that is called
says so.
"""


def _missing(name):
    def kernel(*_arguments, **_named):
        raise NotImplementedError(f"sgl_kernel.{name}: there are no compiled kernels here")

    return kernel


for _name in (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
):
    globals()[_name] = _missing(_name)
