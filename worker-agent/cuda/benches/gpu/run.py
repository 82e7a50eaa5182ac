"""The proof on a GPU: `python run.py GPU TESTS [STEP...]`, about three minutes.

GPU is the program of this folder (`cargo bench -p stator-cuda --bench gpu --no-run`) and TESTS that of
the room's tests (`cargo test -p stator-cuda --lib --no-run`). Needs one GPU, PyTorch, CuPy and CUDA's
Python bindings. Each step prints what it found; the last line says how many steps failed. With
OUT set, the log and the device's state are written there, too.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

GPU, TESTS = sys.argv[1:3]
OUT = pathlib.Path(os.environ.get("OUT") or tempfile.mkdtemp())
MIB = 1 << 20
MULTIPLIER = 2_654_435_761
# Steps are processes, whose output is the log of the first.
log = open(OUT / "gpu-proof.log" if len(sys.argv) == 3 else os.devnull, "w")


def say(text):
    print(text, flush=True)
    print(text, file=log, flush=True)


def run(*command, **options):
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=options.pop("timeout", 150), **options,
    )
    say(done.stdout.rstrip())
    assert done.returncode == 0, f"{command} ended with {done.returncode}"
    return done.stdout


def query(what):
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def used_mib():
    return int(query("memory.used").split()[0])


def freed(before, within=10):
    """Seconds until the device uses no more than before."""
    started = time.monotonic()
    while used_mib() > before + 8:
        assert time.monotonic() - started < within, f"{used_mib()} MiB used, {before} before"
        time.sleep(0.05)
    return time.monotonic() - started


class Memory:
    """Words on the device that are filled with a seed, as `rig.rs` fills them."""

    def __init__(self, words):
        import cupy

        self.words, self.cupy = words, cupy

    def expected(self, seed, start, end):
        at = self.cupy.arange(start, end, dtype=self.cupy.uint32)
        return at * self.cupy.uint32(MULTIPLIER) + self.cupy.uint32(seed)

    def pieces(self):
        step = 64 * MIB // 4
        return ((at, min(at + step, self.words.size)) for at in range(0, self.words.size, step))

    def fill(self, seed):
        for start, end in self.pieces():
            self.words[start:end] = self.expected(seed, start, end)
        self.cupy.cuda.runtime.deviceSynchronize()

    def holds(self, seed):
        equal = (
            bool((self.words[a:b] == self.expected(seed, a, b)).all()) for a, b in self.pieces()
        )
        return all(equal)

    def wrong(self, seeds):
        """Words that are of none of the seeds."""
        count = 0
        for start, end in self.pieces():
            good = self.cupy.zeros(end - start, dtype=bool)
            for seed in seeds:
                good |= self.words[start:end] == self.expected(seed, start, end)
            count += int((~good).sum())
        return count


def plain_memory(size):
    """Memory by cudaMalloc, and its IPC handle as hexadecimal digits."""
    import cupy

    address = cupy.cuda.runtime.malloc(size)
    handle = cupy.cuda.runtime.ipcGetMemHandle(address)
    unowned = cupy.cuda.UnownedMemory(address, size, None)
    words = cupy.ndarray(size // 4, cupy.uint32, cupy.cuda.MemoryPointer(unowned, 0))
    return Memory(words), bytes(handle).hex()


def state():
    say(query("name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,"
              "pcie.link.gen.current,pcie.link.width.current"))
    say(f"processors {os.cpu_count()}, kernel {os.uname().release}")
    full = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True).stdout
    (OUT / "nvidia-smi.txt").write_text(full)


def tests():
    output = run(TESTS, "gpu", "--nocapture", "--test-threads=1")
    assert "skipped: no CUDA driver" not in output
    import cuda.bindings  # noqa: F401  The next steps need it.


def speed():
    output = run(GPU, "speed")
    say(query("clocks.sm,clocks.mem,temperature.gpu,power.draw"))
    assert "skipped" not in output


def slowdown():
    """Matrix products alone and beside copies at full rate, in turn."""
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)
    small = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)
    small_out = torch.empty(64, 8192, device="cuda", dtype=torch.bfloat16)

    def products(seconds, step):
        """Median milliseconds of batches of products."""
        times, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            step()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        return sorted(times)[len(times) // 2]

    def prefill():
        for _ in range(10):
            torch.matmul(a, b, out=c)

    def decode():
        for _ in range(100):
            torch.matmul(small, a, out=small_out)

    for name, step in [("8192^3 products", prefill), ("64x8192x8192 products", decode)]:
        products(1, step)
        for what in ["blocks", "blocks-store", "pieces", "pieces-store",
                     "kernel32", "kernel32-store", "kernel128", "kernel512", "kernel512-store"]:
            alone = [products(0.7, step)]
            churn = subprocess.Popen([GPU, "churn", "2.5", what], stdout=subprocess.PIPE, text=True)
            while "churning" not in churn.stdout.readline():
                pass
            time.sleep(0.2)
            beside = products(1.5, step)
            rate = churn.stdout.read().strip()
            assert churn.wait() == 0
            alone.append(products(0.7, step))
            base = sum(alone) / 2
            say(f"{name} beside {what}: {base:.3f} ms alone, {beside:.3f} beside "
                f"({100 * (beside / base - 1):+.1f} %); {rate}")


def ipc():
    """cudaMalloc in another process, by IPC handle, both ways."""
    memory, handle = plain_memory(512 * MIB)
    memory.fill(11)
    run(GPU, "ipc", handle, 512 * MIB, "11,12", "-")
    assert memory.holds(12), "wrong bytes in the exporter's memory"
    say("IPC handle of CuPy's memory: bytes equal both ways")


def torch_event():
    """PyTorch's own memory, and its event: nothing is copied before it computed."""
    import cupy
    import torch

    tensor = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    words = cupy.from_dlpack(tensor.view(torch.int32)).view(cupy.uint32)
    memory = Memory(words)
    memory.fill(1)
    shared = tensor.untyped_storage()._share_cuda_()
    offset = shared[3]
    assert offset == 0, f"the storage begins at {offset} of its allocation"
    handle = shared[1][-64:]
    new = torch.from_dlpack(memory.expected(21, 0, words.size).view(cupy.int32))
    event = torch.cuda.Event(interprocess=True)
    torch.cuda.synchronize()
    # The stream computes for about two seconds, and only then has what is to be stored.
    torch.cuda._sleep(4_000_000_000)
    tensor.view(torch.int32).copy_(new)
    event.record()
    run(GPU, "ipc", handle.hex(), 512 * MIB, "21,22", event.ipc_handle().hex())
    torch.cuda.synchronize()
    assert memory.holds(22), "wrong bytes in PyTorch's memory"
    say("PyTorch's memory after PyTorch's event: bytes equal both ways")


def vmm():
    """Memory of the virtual memory interface, by file descriptor, both ways."""
    import cupy
    from cuda.bindings import driver as cu

    cupy.zeros(1)

    def must(result):
        assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
        return result[1] if len(result) == 2 else result[1:]

    kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    size = 512 * MIB
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = 0
    wanted.requestedHandleTypes = kind
    allocation = must(cu.cuMemCreate(size, wanted, 0))
    address = must(cu.cuMemAddressReserve(size, 0, 0, 0))
    must(cu.cuMemMap(address, size, 0, allocation, 0))
    access = cu.CUmemAccessDesc()
    access.location = wanted.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    must(cu.cuMemSetAccess(address, size, [access], 1))
    file = int(must(cu.cuMemExportToShareableHandle(allocation, kind, 0)))
    unowned = cupy.cuda.UnownedMemory(int(address), size, None)
    words = cupy.ndarray(size // 4, cupy.uint32, cupy.cuda.MemoryPointer(unowned, 0))
    memory = Memory(words)
    memory.fill(31)
    run(GPU, "file", file, size, "31,32", pass_fds=[file])
    assert memory.holds(32), "wrong bytes in the exporter's memory"
    say("VMM file descriptor: bytes equal both ways")


def exporter():
    """Role of `kills`: exports memory, then obeys lines of input."""
    memory, handle = plain_memory(2048 * MIB)
    memory.fill(41)
    print(handle, flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            half = memory.words.size // 2
            print(memory.wrong([41, 42]), flush=True)
            assert half
        else:
            break


def kills():
    """`kill -9` of importer and of exporter while copies run."""
    before = used_mib()

    def pair():
        exporting = subprocess.Popen(
            [sys.executable, __file__, GPU, TESTS, "exporter"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        handle = exporting.stdout.readline().strip()
        holding = subprocess.Popen(
            [GPU, "hold", handle, str(2048 * MIB), "41"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        while "holding" not in (line := holding.stdout.readline()):
            assert line, "the importer ended"
        time.sleep(0.7)
        return exporting, holding

    exporting, holding = pair()
    during = used_mib()
    holding.kill()
    holding.wait()
    exporting.stdin.write("check\n")
    exporting.stdin.flush()
    wrong = int(exporting.stdout.readline())
    assert wrong == 0, f"{wrong} words that nobody wrote"
    exporting.stdin.close()
    exporting.wait()
    say(f"importer killed in flight: exporter's bytes right, {during} MiB used, "
        f"free again after {freed(before):.2f} s")

    exporting, holding = pair()
    exporting.kill()
    exporting.wait()
    time.sleep(1)
    held = used_mib()
    alive = holding.poll() is None
    output, _ = holding.communicate("end\n", timeout=60)
    say(output.strip())
    say(f"exporter killed in flight: importer {'went on' if alive else 'had ended'}, ended with "
        f"{holding.returncode}, {held} MiB used meanwhile, free again after {freed(before):.2f} s")
    if holding.returncode == 0:
        assert "all bytes equal" in output


def tiers():
    run(GPU, "tiers", os.environ.get("STATOR_GPU_DIR", "/tmp"))


STEPS = [state, tests, kills, ipc, torch_event, vmm, speed, slowdown, tiers]


def main():
    if sys.argv[3:] == ["exporter"]:
        return exporter()
    # Each step is a process of its own, whose end gives its memory back.
    if len(sys.argv) > 3:
        for name in sys.argv[3:]:
            {step.__name__: step for step in STEPS}[name]()
        return None
    failed = []
    for step in STEPS:
        started = time.monotonic()
        say(f"== {step.__name__}")
        command = [sys.executable, __file__, GPU, TESTS, step.__name__]
        try:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, timeout=200, env={**os.environ, "OUT": str(OUT)})
            say(ended.stdout.rstrip())
            assert ended.returncode == 0, f"ended with {ended.returncode}"
        except Exception:
            say(traceback.format_exc(limit=1).rstrip())
            failed.append(step.__name__)
        say(f"== {step.__name__}: {'FAILED' if step.__name__ in failed else 'done'} in "
            f"{time.monotonic() - started:.1f} s")
    say(f"{len(failed)} of {len(STEPS)} steps failed: {', '.join(failed) or 'none'}")
    return sys.exit(bool(failed))


main()
