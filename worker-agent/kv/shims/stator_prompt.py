"""The scheduler's side of vLLM's shims: which blocks of a prompt the agent is asked for, group by group.

A group is the layers whose KV is cached alike. Full attention needs all blocks up to the place from
which the engine computes; a sliding window or a state needs the last ones before it. So the agent is
asked for the leading blocks of the former first, and then for the last blocks of the latter.
"""

import hashlib
import itertools
import os
import pathlib
import struct
import time

from stator_link import NAMES_BYTES, Link

# Windows that a request looks for, each to the left of one in which a block is missing. Blocks beyond
# a window that are asked for too: vLLM looks for up to two more where drafts or odd ends are at stake.
WINDOWS_MAX, BEYOND = 8, 2
# Loads before their time is believed, and over which it is averaged.
LOADS_MIN = 8
# What is known of a block.
MISS, HIT, COMING, UNKNOWN = range(4)


class Group:
    """A group: suffix of its keys, tokens of a block, hashes of a block, blocks of its window if any."""

    def __init__(self, number, tokens, hash_tokens, window_tokens=None):
        self.suffix, self.tokens, self.hashes = number.to_bytes(4, "big"), tokens, tokens // hash_tokens
        self.window = window_tokens and -(-window_tokens // tokens)

    def keys(self, hashes):
        return [value + self.suffix for value in hashes[self.hashes - 1 :: self.hashes]]


class Groups(dict):
    """Groups of an engine, by suffix. `main` is the first with full attention, if there is one."""

    def __init__(self, groups):
        super().__init__((group.suffix, group) for group in groups)
        self.main = next((of for of in self.values() if not of.window), next(iter(self.values())))

    def full(self):
        return [group for group in self.values() if not group.window]

    def of(self, key):
        return self[key[-4:]]


class Prompt:
    """A request's hashes, and what names its blocks for routers: tokens, adapter and salt, where no
    media take part in it. They are read when a block is stored: its copy may end after the request."""

    def __init__(self, request, group):
        self.hashes, self.tokens = request.block_hashes, getattr(request, "all_token_ids", ())
        self.group = group
        # What the agent said with the request.
        self.told = getattr(request, "kv_transfer_params", None)
        lora = getattr(getattr(request, "lora_request", None), "lora_name", None) or ""
        self.names = lora.encode(), (getattr(request, "cache_salt", None) or "").encode()
        others = getattr(request, "mm_features", None), getattr(request, "prompt_embeds", None)
        if others[0] or others[1] is not None or max(map(len, self.names)) > NAMES_BYTES:
            self.tokens = ()

    def words(self, key, depth):
        """Names of the sequence, hash of the block before, and tokens; None if they are not known.
        Routers know a block once: by the KV of one group."""
        size, step = self.group.tokens, self.group.hashes
        tokens = self.tokens[depth * size : (depth + 1) * size]
        if key[-4:] != self.group.suffix or len(tokens) != size:
            return None
        before = self.hashes[depth * step - 1] if depth else bytes(32)
        return self.names, before + struct.pack(f"<{size}I", *tokens)


class Questions:
    """The asks of a request, by the suffix of their group, in the order in which they were sent."""

    def __init__(self, prompt, groups, boot):
        self.prompt, self.groups, self.boot, self.left = prompt, groups, boot, WINDOWS_MAX
        self.asks = {suffix: [] for suffix in groups}

    def all(self):
        return itertools.chain(*self.asks.values())

    def of(self, key):
        """The ask whose answer is about the key, if there is one."""
        return next((ask for ask in reversed(self.asks[key[-4:]]) if ask.knows(key)), None)

    def held(self):
        """Keys of blocks that the agent has, as far as it was asked."""
        found = (itertools.islice(ask.places, len(ask.ready) + ask.pending) for ask in self.all())
        return set(itertools.chain(*found))

    def slots(self, keys):
        asks = ((self.of(key), key) for key in keys)
        return [ask.ready[ask.places[key]] for ask, key in asks]

    def window(self, key, end):
        """Keys of the window that ends with this key, from the right, if it is to be looked for."""
        group, before = self.groups.of(key), self.asks[key[-4:]][-1:]
        is_settled = all(ask.is_settled() for ask in before)
        if not group.window or not is_settled or not self.left or end % group.tokens:
            return []
        self.left -= 1
        first = max(end // group.tokens - group.window - BEYOND, 0)
        return group.keys(self.prompt.hashes)[first : end // group.tokens][::-1]


class PromptLink(Link):
    """A link that asks for prompts, of an engine with these groups."""

    def __init__(self, path, hello, logger, groups):
        super().__init__(path, hello, logger)
        # Prompt and questions of each request; these while it is loaded; slots being filled, by key.
        self.groups, self.prompts, self.told, self.loads, self.stores = groups, {}, {}, {}, {}
        # Start and tokens of the last step; starts of loads, by request; loads that were measured.
        self.last, self.begun, self.measured = (0.0, 0), {}, 0

    def _arrive(self, request, prompt):
        self.prompts[request] = prompt
        self._inquire(request)

    def _inquire(self, request):
        """Once for each request and preemption: what failed to load is not offered again."""
        prompt = self.prompts[request]
        questions = self.told[request] = Questions(prompt, self.groups, self.boot)
        for group in self.groups.full():
            if ask := self._ask(group.keys(prompt.hashes), prompt.told):
                questions.asks[group.suffix].append(ask)

    def _look_back(self, questions, key, end):
        """Asks for the window that ends with this key. All of the prompt before it is at stake."""
        asks = questions.asks[key[-4:]]
        is_open = self._is_open(asks[-1]) if asks else questions.boot == self.boot
        keys = questions.window(key, end) if is_open else []
        cost_us = self.prefill_us * end // (self.groups.main.tokens * max(len(keys), 1))
        if ask := self._ask(keys, questions.prompt.told, cost_us):
            asks.append(ask)
        return ask

    def _is_ahead(self, questions, end):
        """Whether full attention may not reach as far as to this token, which the agent is to say."""
        asks = [(group, ask) for group in self.groups.full() for ask in questions.asks[group.suffix]]
        return any(
            end > (len(ask.ready) + ask.pending) * group.tokens and not ask.is_settled()
            for group, ask in asks if self._is_open(ask))

    def _find(self, request, key, end):
        """What is known of a request's block that ends at this token."""
        questions = self.told.get(request)
        if not questions:
            return MISS
        if self.groups.of(key).window and self._is_ahead(questions, end):
            return UNKNOWN
        ask = questions.of(key) or self._look_back(questions, key, end)
        place = ask.places.get(key) if self._is_open(ask) else None
        if place is None or ask.is_found and place >= len(ask.ready) + ask.pending:
            return MISS
        return HIT if place < len(ask.ready) else COMING if ask.is_found else UNKNOWN

    def _grant(self, request, keys, end):
        """The blocks of a request that are to be stored, of those at hand, and their slots."""
        questions, prompt = self.told.get(request), self.prompts.get(request)
        held = questions.held() if questions else ()
        new = [key for key in keys if key not in held and key not in self.stores]
        # Only whole blocks, and of all groups those of the same leading part of the prompt.
        new = [key for key in new if self.boot and end(key) % self.groups.of(key).tokens == 0]
        taken = set(sorted(new, key=end)[: len(self.credit)])
        new = [key for key in new if key in taken]
        slots = [self.credit.popleft() for _ in new]
        for key, slot in zip(new, slots):
            depth = end(key) // self.groups.of(key).tokens - 1
            self.stores[key] = slot, depth, prompt and prompt.words(key, depth)
        return new, slots

    def _finish(self, request):
        self.prompts.pop(request, None)
        self.begun.pop(request, None)
        questions = self.told.pop(request, None)
        if request not in self.loads:
            self._end_all(questions)

    def _end_all(self, questions):
        for ask in questions.all() if questions else ():
            self._end(ask)

    def _load_begins(self, request):
        self.begun[request] = time.monotonic()

    def _load_ended(self, request):
        """A load is there: with the steps that the request waited, it took `load_us`."""
        if request in self.begun:
            took_us = (time.monotonic() - self.begun.pop(request)) * 1e6
            self.measured += 1
            self.load_us += int((took_us - self.load_us) / min(self.measured, LOADS_MIN))

    def _pays(self, tokens):
        """Whether a load of so many tokens is faster than computing them."""
        if not tokens or self.measured < LOADS_MIN or self.prefill_us * tokens > self.load_us * self.groups.main.tokens:
            return True
        # What was slow once is tried again: nothing else measures it.
        self.load_us -= self.load_us // 32
        return False

    def _pace(self, tokens):
        """A step begins: the one before says how long a block takes to compute."""
        (began, before), now, block = self.last, time.monotonic(), self.groups.main.tokens
        if before >= 2 * block:
            block_us = (now - began) * 1e6 * block / before
            self.prefill_us = int(((self.prefill_us or block_us) * 7 + block_us) / 8) or 1
        self.last = now, tokens


def form_of(vllm_config, version, platform):
    """All that decides the bytes of a block and the hash that names it, beside its layout."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    config = pathlib.Path(model.model, "config.json")
    text = config.read_bytes() if config.exists() else b"none"
    digest = hashlib.sha256(text + str(model.hf_overrides or "").encode()).hexdigest()[:16]
    return (
        f"vllm={version} platform={platform.device_type} model={model.model}"
        f" revision={model.revision} config={digest} quantization={model.quantization}"
        f" dtype={model.dtype} kv={cache.cache_dtype} tp={parallel.tensor_parallel_size}"
        f" pp={parallel.pipeline_parallel_size} dcp={parallel.decode_context_parallel_size}"
        f" attention={vllm_config.attention_config.backend}"
        f" hash={cache.prefix_caching_hash_algo} seed={os.environ.get('PYTHONHASHSEED', 'none')}")


def groups_of(kv_cache_config):
    """Words for the groups of KV, and the window of each in tokens; None is full attention.

    vLLM keeps these names for itself: where one is missing, its import fails here, and not the engine's.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
        get_sliding_window_size_in_chunks as window_in_chunks,
    )
    from vllm.v1.kv_cache_interface import iter_layer_specs

    groups, windows = kv_cache_config.kv_cache_groups, {}
    for of in get_offloading_group_ids(kv_cache_config):
        spec = next(iter(iter_layer_specs(groups[of].kv_cache_spec)))
        windows[of] = type(spec).__name__, spec.block_size, window_in_chunks(spec, 1)
    words = [":".join(map(str, group)) for group in windows.values()]
    return "1" if len(words) == 1 else ",".join(words), {of: group[2] for of, group in windows.items()}
