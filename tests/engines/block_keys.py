"""Prints the keys of some prompts' blocks, as vLLM computes them and the agent's module sends them."""

import json

from stator_prompt import Group
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK, PROMPT = 32, list(range(1000, 1100))
ADAPTER = LoRARequest("adapter", 1, "/nowhere")

# Name, algorithm, group, and what else is part of the hash.
CASES = [
    ("plain", "sha256_cbor", 0, {}),
    ("second group", "sha256_cbor", 1, {}),
    ("salt", "sha256_cbor", 0, {"cache_salt": "tenant"}),
    ("adapter", "sha256_cbor", 0, {"lora_request": ADAPTER}),
    ("salt and adapter", "sha256_cbor", 0, {"cache_salt": "tenant", "lora_request": ADAPTER}),
]


def keys(algorithm, group, more):
    function = get_hash_fn_by_name(algorithm)
    init_none_hash(function)
    hasher = get_request_block_hasher(BLOCK, function)
    request = Request("r", PROMPT, SamplingParams(max_tokens=1), None, block_hasher=hasher, **more)
    return [key.hex() for key in Group(group, BLOCK, BLOCK).keys(request.block_hashes)]


print(json.dumps([{"prompt": name, "keys": keys(*case)} for name, *case in CASES]))
