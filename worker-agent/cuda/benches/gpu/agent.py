"""The agent copies for engines, on a GPU: `python agent.py STATOR [STEP...]`, about two minutes.

STATOR is the program (`cargo build -p stator`), which may be stripped. The engine is a stand-in: the
connector for TensorRT-LLM over PyTorch's memory, without TensorRT-LLM. Needs one GPU, PyTorch, CuPy and
CUDA's Python bindings. Each step prints a line of what it found; the last line says how many steps
failed. With OUT set, the agent's log is written there.
"""

import logging
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "kv" / "shims"))
STATOR = os.path.abspath(sys.argv[1])
OUT = pathlib.Path(os.environ.get("OUT") or tempfile.mkdtemp())
MIB, TOKENS, PAGES = 1 << 20, 16, 256
PAGE, HOST_GB = MIB // 4, 1.5
os.environ.update(STATOR_KV_DEVICE_COPIES="agent")
logging.basicConfig(level=logging.WARNING)


def say(text):
    print(text, flush=True)


def until(what, is_so, within=30):
    end = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


def used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True).stdout)


class Half:
    def __init__(self, llm_args):
        self._metadata = None

    def bind_connector_meta(self, metadata):
        self._metadata = metadata


def connector(socket, engine):
    """The connector's module, for an engine with this id."""
    for name, contents in {
        "tensorrt_llm": {"__version__": "1.2"},
        "tensorrt_llm._torch": {},
        "tensorrt_llm._torch.pyexecutor": {},
        "tensorrt_llm._torch.pyexecutor.kv_cache_connector": {
            "KvCacheConnectorScheduler": Half, "KvCacheConnectorWorker": Half},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    import stator_link
    import trtllm_1_2

    # A program that was built without optimisation takes long for checksums.
    stator_link.FOUND_S = stator_link.READY_S = trtllm_1_2.WAIT_S = 20.0
    os.environ["STATOR_KV_PAGE_BYTES"] = str(PAGE)
    trtllm_1_2.SOCKET, trtllm_1_2.ENGINE = socket, engine
    return trtllm_1_2


ARGS = types.SimpleNamespace(
    kv_cache_config=types.SimpleNamespace(tokens_per_block=TOKENS, dtype="auto"), model="tiny",
    dtype="bfloat16", tensor_parallel_size=1, pipeline_parallel_size=1)
NOTHING = types.SimpleNamespace(new_requests=[], cached_requests=[])


def request(number, tokens):
    return types.SimpleNamespace(request_id=number, get_tokens=lambda beam: list(tokens))


def scheduled(number, blocks, computed, tokens):
    data = types.SimpleNamespace(request_id=number, new_tokens=[], new_block_ids=list(blocks),
                                 computed_position=computed, num_scheduled_tokens=tokens)
    return types.SimpleNamespace(new_requests=[data], cached_requests=[])


class Agent:
    """The program, which waits for an engine that never comes and serves its tiers meanwhile."""

    def __init__(self, folder=None):
        self.folder = folder or tempfile.mkdtemp()
        self.socket = os.path.join(self.folder, "kv.sock")
        pathlib.Path(self.folder, "config.json").write_text('{"vocab_size":10000}')
        self.log = open(OUT / "agent.log", "ab")
        self.log.write(b"---\n")
        flags = ["--engine=trtllm", "--attach=http://127.0.0.1:1", f"--model={self.folder}",
                 f"--discovery-dir={self.folder}", "--listen=127.0.0.1:0", "--metrics-port=0",
                 "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0",
                 f"--kv-host-gb={HOST_GB}", f"--kv-socket-dir={self.folder}"]
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen([STATOR, "agent", *flags], stdout=self.log, stderr=self.log,
                                        env=environment)
        until("the agent's socket", lambda: os.path.exists(self.socket) or self.is_over())
        assert not self.is_over(), (OUT / "agent.log").read_text()[-2000:]

    def is_over(self):
        return self.process.poll() is not None

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(timeout=30)


class Engine:
    """A pool on the device, and both halves of the connector."""

    def __init__(self, agent, name):
        import torch

        self.torch, self.shim = torch, connector(agent.socket, name)
        self.pool = torch.zeros((PAGES, PAGE), dtype=torch.uint8, device="cuda")
        self.stream, self.requests = torch.cuda.Stream(), 0
        torch.cuda.synchronize()
        started = time.monotonic()
        self.worker = self.shim.Worker(ARGS)
        self.worker.register_kv_caches(self.pool)
        assert self.worker.export, "the memory was not exported"
        until("the agent maps the memory", lambda: self.worker.is_exported is not None)
        self.mapped_s = time.monotonic() - started
        self.scheduler = self.shim.Scheduler(ARGS)
        until("the scheduler is welcome", lambda: self.scheduler.boot)

    def pattern(self, seed, pages):
        at = self.torch.arange(PAGE // 4, dtype=self.torch.int32, device="cuda")
        rows = [at * 40503 + seed * 7919 + page for page in pages]
        return self.torch.stack(rows).view(self.torch.uint8).view(len(pages), PAGE)

    def compute(self, seed, pages):
        """Fills pages on the stream, which is busy for about half a second before."""
        values = self.pattern(seed, pages)
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(self.stream):
            self.torch.cuda._sleep(1_000_000_000)
            self.pool[list(pages)] = values

    def holds(self, seed, pages, of=None):
        self.torch.cuda.synchronize()
        there = self.pool[list(pages)]
        return bool((there == self.pattern(seed, of or pages)).all())

    def pass_of(self, scheduled):
        self.worker.bind_connector_meta(self.scheduler.build_connector_meta(scheduled))
        self.worker.start_load_kv(self.stream)

    def prompt(self, first, pages):
        """A prompt with these blocks and one token more."""
        return [first + at for at in range(TOKENS * len(pages) + 1)]

    def store(self, seed, pages, first):
        self.requests += 1
        tokens = self.prompt(first, pages)
        matched = self.scheduler.get_num_new_matched_tokens(request(self.requests, tokens), 0)
        assert matched == (0, False), matched
        self.compute(seed, pages)
        self.pass_of(scheduled(self.requests, [*pages, 0], 0, len(tokens)))
        self.worker.wait_for_save(self.stream)
        for _ in range(self.shim.SETTLED):
            self.pass_of(NOTHING)
        self.scheduler.request_finished(request(self.requests, ()), [])

    def load(self, pages, first):
        """Loads the blocks of a prompt into these pages. Waits until the agent has their checksums."""
        tokens = self.prompt(first, pages)

        def finds():
            self.requests += 1
            matched = self.scheduler.get_num_new_matched_tokens(request(self.requests, tokens), 0)
            if matched[0] == TOKENS * len(pages):
                return True
            self.scheduler.request_finished(request(self.requests, ()), [])
            return False

        until("the blocks are held", finds)
        # The stream is busy, and only then clears the pages: the load comes after that.
        with self.torch.cuda.stream(self.stream):
            self.torch.cuda._sleep(1_000_000_000)
            self.pool[list(pages)] = 0
        self.pass_of(scheduled(self.requests, [*pages, 0], 0, 1))
        self.scheduler.request_finished(request(self.requests, ()), [])

    def end(self):
        self.scheduler.shutdown()
        self.worker.shutdown()


def round_trip():
    """Stores and loads through the agent, after the engine's event."""
    agent = Agent()
    engine = Engine(agent, "a")
    assert engine.worker.is_exported, "the agent copies for no engine"
    orders = []
    order = engine.worker.order
    engine.worker.order = lambda *what: orders.append(what) or order(*what)
    pages = list(range(3, 35))
    engine.store(1, pages, 100)
    engine.load(pages[::-1], 100)
    assert engine.holds(1, pages[::-1], of=pages), "wrong bytes"
    assert [way for way, _ in orders] == [engine.shim.STORE, engine.shim.LOAD], orders
    engine.end()
    agent.end()
    say(f"IPC memory of PyTorch, mapped and {HOST_GB} GB pinned after {engine.mapped_s:.1f} s: 32 pages "
        "stored after the engine's event, loaded after the engine cleared them: bytes equal")


def passes():
    """Pages of one engine to another, and memory by file."""
    import cupy
    import stator_device as device
    import torch
    from cuda.bindings import driver as cu

    agent = Agent()
    first, second = Engine(agent, "a"), Engine(agent, "b")
    assert first.worker.is_exported and second.worker.is_exported
    pages = list(range(40, 72))
    first.compute(5, pages)
    first.worker.event.record(first.stream)
    second.worker.event.record(second.stream)
    assert second.worker.order(device.PASS, [(page, page - 40) for page in pages], "a")
    assert second.holds(5, [page - 40 for page in pages], of=pages), "wrong bytes"
    assert not second.worker.order(device.PASS, [(0, 0)], "nobody")
    say("device to device, between two engines' memories: 32 pages after the source's event: bytes equal")

    def must(result):
        assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
        return result[1] if len(result) == 2 else result[1:]

    kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    size = 64 * PAGE
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = torch.cuda.current_device()
    wanted.requestedHandleTypes = kind
    allocation = must(cu.cuMemCreate(size, wanted, 0))
    address = must(cu.cuMemAddressReserve(size, 0, 0, 0))
    must(cu.cuMemMap(address, size, 0, allocation, 0))
    access = cu.CUmemAccessDesc()
    access.location, access.flags = wanted.location, cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    must(cu.cuMemSetAccess(address, size, [access], 1))
    file = int(must(cu.cuMemExportToShareableHandle(allocation, kind, 0)))
    words = cupy.ndarray(size // 4, cupy.uint32, cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(int(address), size, None), 0))
    words[:] = cupy.arange(size // 4, dtype=cupy.uint32) * 40503
    cupy.cuda.runtime.deviceSynchronize()
    expected = words.copy()
    uuid = device.allocation_of(first.pool.data_ptr()).device
    memory = device.Allocation(uuid, size, None, file, 0)
    # Layer first: a page is 64 pieces of 4 KiB, which the slot has behind each other.
    count, piece = size // PAGE, PAGE // 64
    pages = device.Pages(64, 1, 1, piece, count, (count * piece, piece, piece, piece))
    first.shim.ENGINE = "c"
    link = device.DeviceLink(agent.socket, first.shim.describe(1, ARGS), logging.getLogger())
    arena = {}
    link._joined = lambda boot, slots, stride, fd: arena.update(
        map=mmap.mmap(fd, slots * stride), stride=stride)
    link.offer(memory, pages, 0)
    link.start()
    until("the agent maps the file", lambda: link.is_exported is not None)
    assert link.is_exported, "the file was not mapped"
    # Slots that are granted to an engine.
    until("slots", lambda: len(first.scheduler.credit) >= count)
    slots = [first.scheduler.credit.popleft() for _ in range(count)]
    assert link.order(device.STORE, list(enumerate(slots)))
    by_piece = expected.reshape(64, count, piece // 4).transpose(1, 0, 2).reshape(count, -1)
    for page, slot in enumerate(slots):
        start = slot * arena["stride"]
        assert arena["map"][start : start + PAGE] == by_piece[page].tobytes(), f"wrong bytes in {page}"
    words[:] = 0
    cupy.cuda.runtime.deviceSynchronize()
    assert link.order(device.LOAD, [(slot, page) for page, slot in enumerate(slots)])
    assert bool((words == expected).all()), "wrong bytes"
    link.shutdown()
    first.end()
    second.end()
    agent.end()
    say(f"VMM memory by file, layer first in 4 KiB pieces: {count} pages to slots and back: bytes equal")


def agent_killed():
    """`kill -9` of the agent in the middle of copies; the next agent copies again."""
    agent = Agent()
    engine = Engine(agent, "a")
    until("slots", lambda: len(engine.scheduler.credit) >= 32)
    slots = [engine.scheduler.credit.popleft() for _ in range(32)]
    pages = list(range(32))
    engine.compute(7, pages)
    engine.torch.cuda.synchronize()
    results = []

    def orders():
        while not results or results[-1]:
            results.append(engine.worker.order(engine.shim.STORE, list(zip(pages, slots))))

    ordering = threading.Thread(target=orders)
    ordering.start()
    until("orders are answered", lambda: len(results) > 3)
    agent.end(signal.SIGKILL)
    ordering.join(timeout=30)
    assert not ordering.is_alive() and not results[-1], "an order of a dead agent has no end"
    assert engine.holds(7, pages), "wrong bytes in the engine's memory"
    engine.scheduler.shutdown()
    again = Agent(agent.folder)
    until("the next agent maps the memory", lambda: engine.worker.is_exported and engine.worker.boot)
    engine.scheduler = engine.shim.Scheduler(ARGS)
    until("the scheduler is welcome", lambda: engine.scheduler.boot)
    engine.store(8, pages, 5000)
    engine.load(pages, 5000)
    assert engine.holds(8, pages), "wrong bytes after the restart"
    engine.end()
    again.end()
    say(f"agent killed after {len(results) - 1} orders: the open one failed, the engine's bytes right; the "
        "next agent mapped, stored and loaded")


def victim():
    """Role of `engine_killed`: orders copies until it is killed."""
    agent = types.SimpleNamespace(socket=sys.argv[3])
    engine = Engine(agent, "victim")
    until("slots", lambda: len(engine.scheduler.credit) >= 32)
    slots = [engine.scheduler.credit.popleft() for _ in range(32)]
    say("ordering")
    while engine.worker.order(engine.shim.STORE, list(zip(range(32), slots))):
        pass


def engine_killed():
    """`kill -9` of an engine in the middle of copies: its memory is free, another engine goes on."""
    agent = Agent()
    engine = Engine(agent, "a")
    engine.store(3, list(range(16)), 100)
    before = used_mib()
    command = [sys.executable, __file__, STATOR, "victim", agent.socket]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline().strip() == "ordering"
    time.sleep(0.5)
    during = used_mib()
    other.kill()
    other.wait()
    killed = time.monotonic()
    until("the device's memory is free", lambda: used_mib() <= before + 16)
    freed = time.monotonic() - killed
    assert during > before + PAGES * PAGE // MIB, (before, during)
    engine.load(list(range(16)), 100)
    assert engine.holds(3, list(range(16))), "wrong bytes"
    engine.end()
    agent.end()
    say(f"engine killed in the middle of copies: {during} MiB used, {before} before it came, free again after "
        f"{freed:.2f} s; another engine loaded right bytes")


def speed():
    """Orders of many pages, beside the engine's own copies from pinned memory."""
    global PAGE
    PAGE = 2 * MIB
    agent = Agent()
    engine = Engine(agent, "a")
    torch, count = engine.torch, 64
    until("slots", lambda: len(engine.scheduler.credit) >= count)
    slots = [engine.scheduler.credit.popleft() for _ in range(count)]
    pinned = torch.empty((count, PAGE), dtype=torch.uint8, pin_memory=True)

    def rate(run):
        run()
        times = []
        for _ in range(9):
            started = time.monotonic()
            run()
            times.append(time.monotonic() - started)
        return count * PAGE / sorted(times)[4] / 1e9

    def own(is_load):
        for at in range(count):
            to, of = (engine.pool[at], pinned[at]) if is_load else (pinned[at], engine.pool[at])
            to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()

    shim, worker = engine.shim, engine.worker
    store = rate(lambda: worker.order(shim.STORE, list(zip(range(count), slots))))
    load = rate(lambda: worker.order(shim.LOAD, list(zip(slots, range(count)))))
    own_store, own_load = rate(lambda: own(False)), rate(lambda: own(True))
    started = time.monotonic()
    for _ in range(200):
        worker.order(shim.LOAD, [(slots[0], 0)])
    one = (time.monotonic() - started) / 200
    engine.end()
    agent.end()
    say(f"{count} pages of 2 MiB by the agent: store {store:.1f}, load {load:.1f} GB/s; by the engine, pinned: "
        f"{own_store:.1f}, {own_load:.1f} GB/s; one page by order after {one * 1e6:.0f} us")


STEPS = [round_trip, passes, agent_killed, engine_killed, speed]


def main():
    if sys.argv[2:3] == ["victim"]:
        return victim()
    # Each step is a process of its own, whose end gives its memory back.
    if len(sys.argv) > 2:
        for name in sys.argv[2:]:
            {step.__name__: step for step in STEPS}[name]()
        # The links' threads are daemons.
        sys.stdout.flush()
        os._exit(0)
    failed = []
    for step in STEPS:
        started = time.monotonic()
        command = [sys.executable, __file__, STATOR, step.__name__]
        try:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   timeout=60, env={**os.environ, "OUT": str(OUT)})
            say(ended.stdout.rstrip())
            assert ended.returncode == 0, f"ended with {ended.returncode}"
        except Exception:
            say(traceback.format_exc(limit=1).rstrip())
            failed.append(step.__name__)
        outcome = "FAILED" if step.__name__ in failed else "done"
        say(f"== {step.__name__}: {outcome} in {time.monotonic() - started:.1f} s")
    say(f"{len(failed)} of {len(STEPS)} steps failed: {', '.join(failed) or 'none'}")
    if failed:
        say((OUT / "agent.log").read_text(errors="replace")[-3000:])
    return sys.exit(bool(failed))


main()
