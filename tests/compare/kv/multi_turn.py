#!/usr/bin/env python3
"""Conversations with vLLM, with and without KV tiers, ours and its own.

80 users have 10 turns each: 200 tokens, then 96 more with each turn, answered with 32. Four requests
run at a time by default, and the users of a turn come in a random order, the same in all runs. The engine has
room for a tenth of all KV. Each configuration gets an engine of its own in each repetition; they take
turns. The result is the ratio of times to first token. With `--at-a-time 1` the answers of all runs
must be equal; with more, batches differ from run to run, and with them rounding and some answers,
also between two runs without a tier.

A model as tiny as this is computed so fast that KV is worth less than with a large one. The
break-even figure says how much: bytes of KV that the engine computes in a second. A tier that gives
more than that saves time. With `--disk-mb-s` the agent and its engine read no more than that from the
disk of `--folder` once they serve, and write no more, by a control group; it needs root. NVMe under a
large model on a GPU gives about 1.3 times the break-even figure.

    tests/compare/kv/multi_turn.py --stator target/release/stator --vllm PROGRAM --model FOLDER

`--only` chooses configurations: none, host, disk, vllm-host, vllm-fs, ceiling; with `--lmcache PROGRAM`
also lmcache, LMCache's server with host memory for all KV, in chunks of a block, answers too. Its copies
on a CPU are a fall-back of its own. PROGRAM is in an environment that sees vLLM's packages (a `.pth` file),
with `pip install --no-deps lmcache==0.5.6 sortedcontainers opentelemetry-exporter-prometheus`. With `--sglang PROGRAM`
instead of `--vllm` the engine is an SGLang, and they are: none, host and disk (tiers of an agent below
HiCache), hicache (HiCache alone, with room for all KV), hicache-file (over a folder), ceiling.
"""

import argparse
import glob
import hashlib
import http.client
import json
import os
import queue
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

USERS, TURNS = 80, 10
FIRST, MORE, ANSWER = 200, 96, 32
BLOCK_TOKENS, BLOCK_BYTES, BLOCKS = 32, 16384, 384
# Host memory for all KV, and for a tenth of it above a disk.
ALL_GB, LITTLE_GB = 0.128, 0.012
HERE = os.path.dirname(os.path.abspath(__file__))
SHIMS = os.path.join(HERE, "../../../worker-agent/kv/shims")
# Of vLLM's own tiers, whose memory file is named after it.
ENGINE_ID = f"compare-{os.getpid()}"
FLAGS = ["--enforce-eager", "--dtype", "bfloat16", "--max-num-seqs", "32", "--max-model-len", "2048",
         "--block-size", str(BLOCK_TOKENS),
         "--prefix-caching-hash-algo", "sha256_cbor"]
ENVIRONMENT = {
    "DO_NOT_TRACK": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0", "TRANSFORMERS_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1",
    "SGLANG_HOST_IP": "127.0.0.1", "SGLANG_USE_CPU_ENGINE": "1"}
SGLANG_FLAGS = ["--device", "cpu", "--dtype", "bfloat16", "--max-running-requests", "32", "--context-length", "2048",
                "--page-size", str(BLOCK_TOKENS), "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
                "--grammar-backend", "none", "--disable-cuda-graph", "--disable-overlap-schedule"]


def own_tiers(host_gb, tiers):
    """Flags of a vLLM with tiers of its own."""
    extra = {"spec_name": "Spec", "spec_module_path": "vllm_own_tiers", "offload_prompt_only": False,
             "cpu_bytes_to_use": int(host_gb * 1e9), "secondary_tiers": tiers}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": ENGINE_ID,
              "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(config)]


def lmcache_connector(port):
    """Flags of a vLLM that keeps KV in LMCache's server."""
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port, "lmcache.mp.save_decode_cache": True}
    config = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
              "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(config)]


def configurations(home, port=0):
    """Flags of the agent and of the engine, by name. `home` is a folder for tiers on disk, `port` LMCache's."""
    pool = lambda blocks: ["--kv-cache-memory-bytes", str(blocks * BLOCK_BYTES)]
    little = pool(BLOCKS)
    disk = ["--kv-host-gb", str(LITTLE_GB), "--kv-disk-gb", "1", "--kv-disk-dir", os.path.join(home, "disk")]
    fs = {"type": "fs", "root_dir": os.path.join(home, "fs")}
    return {
        "none": ([], little),
        "host": (["--kv-host-gb", str(ALL_GB)], little),
        "disk": (disk, little),
        "vllm-host": ([], little + own_tiers(ALL_GB, [])),
        "vllm-fs": ([], little + own_tiers(LITTLE_GB, [fs])),
        "lmcache": ([], little + lmcache_connector(port)),
        "ceiling": ([], pool(int(ALL_GB * 1e9) // BLOCK_BYTES)),
    }


def sglang_configurations(home, port=0):
    """The same of an SGLang. HiCache is to have room for twice the pool, its least, but where it is alone."""
    pool = lambda blocks: ["--max-total-tokens", str(blocks * BLOCK_TOKENS)]
    everything = pool(int(ALL_GB * 1e9) // BLOCK_BYTES)
    hicache = lambda ratio: pool(BLOCKS) + [
        "--enable-hierarchical-cache", "--hicache-io-backend=direct", "--hicache-mem-layout=layer_first",
        f"--hicache-ratio={ratio}", "--hicache-write-policy=write_through",
        "--hicache-storage-prefetch-policy=wait_complete"]
    little = hicache(2)
    disk = ["--kv-host-gb", str(LITTLE_GB), "--kv-disk-gb", "1", "--kv-disk-dir", os.path.join(home, "disk")]
    return {
        "none": ([], pool(BLOCKS)),
        "host": (["--kv-host-gb", str(ALL_GB)], little),
        "disk": (disk, little),
        "hicache": ([], hicache(20)),
        "hicache-file": ([], little + ["--hicache-storage-backend=file"]),
        "ceiling": ([], everything),
    }


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def serves(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class SlowDisk:
    """A control group, whose processes can be made slow on the disk of a folder."""

    def __init__(self, folder):
        disk = os.stat(folder).st_dev
        self.disk, root = f"{os.major(disk)}:{os.minor(disk)}", "/sys/fs/cgroup/blkio"
        self.is_first = os.path.isdir(root)
        self.path = os.path.join(root if self.is_first else "/sys/fs/cgroup", f"compare-{os.getpid()}")
        os.mkdir(self.path)

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(text)

    def enter(self):
        self.write("cgroup.procs", str(os.getpid()))

    def limit(self, mb_s):
        rate = int(mb_s * 1e6)
        if self.is_first:
            for way in ("read", "write"):
                self.write(f"blkio.throttle.{way}_bps_device", f"{self.disk} {rate}")
        else:
            self.write("io.max", f"{self.disk} rbps={rate} wbps={rate}")

    def remove(self):
        os.rmdir(self.path)


class LmcacheServer:
    """LMCache's server, with host memory for all KV."""

    def __init__(self, program, log):
        self.port, health = free_port(), free_port()
        command = [program, "server", "--host", "127.0.0.1", "--port", str(self.port), "--http-port", str(health),
                   "--prometheus-port", str(free_port()), "--chunk-size", str(BLOCK_TOKENS), "--l1-size-gb",
                   str(ALL_GB * 1e9 / 2**30), "--eviction-policy", "LRU", "--no-l1-use-lazy",
                   "--supported-transfer-mode", "engine_driven", "--shm-name", f"compare-{os.getpid()}"]
        environment = {**os.environ, **ENVIRONMENT, "LMCACHE_TRACK_USAGE": "false"}
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while not serves(health, "/healthcheck"):
            if self.process.poll() is not None:
                raise SystemExit(open(log.name).read()[-4000:])
            time.sleep(0.5)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


class Engine:
    """An agent with its engine, for the time of a `with`."""

    def __init__(self, args, name):
        self.args, self.name, self.port = args, name, free_port()

    def __enter__(self):
        self.home = tempfile.TemporaryDirectory(dir=self.args.folder)
        ways, flags = (sglang_configurations, SGLANG_FLAGS) if self.args.sglang else (configurations, FLAGS)
        self.log = open(os.path.join(self.home.name, "log"), "w")
        self.server = self.name == "lmcache" and LmcacheServer(self.args.lmcache, self.log)
        tier, engine = ways(self.home.name, self.server.port if self.server else 0)[self.name]
        program = ["sglang", "--engine-program", self.args.sglang] if self.args.sglang else [
            "vllm", "--engine-program", self.args.vllm]
        command = [self.args.stator, "agent", "--engine", *program,
                   "--model", self.args.model, "--model-name", "tiny", "--listen", "127.0.0.1:0",
                   "--engine-port", str(self.port), "--metrics-port", "0", "--events-listen", "off",
                   "--replay-listen", "off",
                   "--discovery-dir", self.home.name, *tier, "--", *flags, *engine]
        environment = {**os.environ, **ENVIRONMENT, "LMCACHE_TRACK_USAGE": "false",
                       "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": os.path.join(self.home.name, "file")}
        if self.name.startswith("vllm"):
            environment["PYTHONPATH"] = f"{HERE}:{SHIMS}"
        if self.server:
            venv = os.path.dirname(os.path.dirname(self.args.lmcache))
            environment["PYTHONPATH"], = glob.glob(f"{venv}/lib/python3*/site-packages")
        self.disk = self.args.disk_mb_s and SlowDisk(self.home.name)
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log,
                                        preexec_fn=self.disk.enter if self.disk else None)
        deadline = time.monotonic() + 180
        while not serves(self.port, "/health"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(open(self.log.name).read()[-4000:])
            time.sleep(0.5)
        if self.disk:
            self.disk.limit(self.args.disk_mb_s)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        if self.disk:
            self.disk.remove()
        if self.server:
            self.server.stop()
        for left in glob.glob(f"/dev/shm/vllm_offload_{ENGINE_ID}*"):
            os.remove(left)
        self.home.cleanup()

    def ask(self, prompt):
        """The tokens of the answer, seconds to the first, and tokens that were cached."""
        return self.ask_sglang(prompt) if self.args.sglang else self.ask_vllm(prompt)

    def ask_sglang(self, prompt):
        sampling = {"max_new_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began, first, tokens, cached = time.perf_counter(), None, [], 0
        connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            tokens += chunk["output_ids"]
            cached = chunk["meta_info"]["cached_tokens"]
            if tokens and first is None:
                first = time.perf_counter() - began
        connection.close()
        assert len(tokens) == ANSWER, f"{len(tokens)} tokens"
        return tokens, first, cached

    def ask_vllm(self, prompt):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began, first, tokens, cached = time.perf_counter(), None, [], 0
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                tokens += choice.get("token_ids") or []
            if tokens and first is None:
                first = time.perf_counter() - began
            if chunk.get("usage"):
                cached = (chunk["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        connection.close()
        assert len(tokens) == ANSWER, f"{len(tokens)} tokens"
        return tokens, first, cached


def converse(engine, users, at_a_time):
    chance = random.Random(1)
    words = lambda count: [chance.randrange(100, 8000) for _ in range(count)]
    said = [words(FIRST) for _ in range(users)]
    further = [[words(MORE) for _ in range(TURNS)] for _ in range(users)]
    order = [(turn, user) for turn in range(TURNS) for user in chance.sample(range(users), users)]
    done = [[threading.Event() for _ in range(TURNS)] for _ in range(users)]
    todo, results = queue.SimpleQueue(), []
    for item in order:
        todo.put(item)

    def work():
        while True:
            try:
                turn, user = todo.get_nowait()
            except queue.Empty:
                return
            if turn and not done[user][turn - 1].wait(120):
                raise TimeoutError(f"user {user} never got an answer to turn {turn - 1}")
            prompt = said[user] + further[user][turn]
            tokens, first, cached = engine.ask(prompt)
            said[user] = prompt + tokens
            results.append((turn, first, cached, len(prompt)))
            done[user][turn].set()

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(at_a_time)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == users * TURNS, f"{len(results)} answers"
    digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    first = [first * 1e3 for _, first, _, _ in results]
    late = [first * 1e3 for turn, first, _, _ in results if turn >= TURNS - 3]
    return {"mean": statistics.mean(first), "p50": statistics.median(first),
            "late": statistics.mean(late), "digest": digest, "wall": time.perf_counter() - began,
            "hits": sum(cached for _, _, cached, _ in results) / sum(size for *_, size in results)}


def break_even(engine):
    """Bytes of KV that an engine computes in a second: a long prompt's time less a short one's."""
    chance = random.Random(2)
    words = lambda count: [chance.randrange(100, 8000) for _ in range(count)]
    times = {size: statistics.median(engine.ask(words(size))[1] for _ in range(5)) for size in (64, 1600)}
    return BLOCK_BYTES / BLOCK_TOKENS * (1600 - 64) / (times[1600] - times[64])


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--stator", required=True)
    engine = options.add_mutually_exclusive_group(required=True)
    engine.add_argument("--vllm", help="program that serves")
    engine.add_argument("--sglang", help="program that serves")
    options.add_argument("--lmcache", help="program of LMCache that starts its server")
    options.add_argument("--model", required=True)
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--at-a-time", type=int, default=4)
    options.add_argument("--users", type=int, default=USERS, help="fewer have room on the device for more of their KV")
    options.add_argument("--only", nargs="+", help="configurations")
    options.add_argument("--folder", help="folder on the disk that tiers are to use")
    options.add_argument("--disk-mb-s", type=float, help="speed of that disk, in MB/s")
    args = options.parse_args()
    known = list((sglang_configurations if args.sglang else configurations)(""))
    args.only = args.only or [name for name in known if name != "lmcache" or args.lmcache]
    if unknown := set(args.only) - set(known):
        raise SystemExit(f"--only: {sorted(unknown)} are not among {known}")
    if "lmcache" in args.only and not args.lmcache:
        raise SystemExit("--only lmcache: needs --lmcache PROGRAM")
    runs, worth = {name: [] for name in args.only}, []
    print("| configuration | hit ratio | mean TTFT ms | p50 ms | turns 8 to 10 ms | wall s | digest |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for _ in range(args.repetitions):
        for name in args.only:
            with Engine(args, name) as engine:
                run = converse(engine, args.users, args.at_a_time)
                if name == "none":
                    worth.append(break_even(engine))
            runs[name].append(run)
            print(f"| {name} | {run['hits']:.3f} | {run['mean']:.1f} | {run['p50']:.1f} |"
                  f" {run['late']:.1f} | {run['wall']:.1f} | {run['digest']} |", flush=True)
    if worth:
        disk = f"the disk gave {args.disk_mb_s:g} MB/s" if args.disk_mb_s else "no tier was throttled"
        print(f"break-even: {statistics.median(worth) / 1e6:.1f} MB/s of KV; {disk}")
    for name in [name for name in args.only if name != "none" and "none" in runs]:
        ratios = []
        for what in ("mean", "p50", "late"):
            none, tier = (statistics.median(run[what] for run in runs[of]) for of in ("none", name))
            ratios.append(f"{what} {none:.1f} -> {tier:.1f} ms ({tier / none - 1:+.0%})")
        print(f"{name}: " + ", ".join(ratios))
    digests = {run["digest"] for of in runs.values() for run in of}
    if len(digests) > 1 and args.at_a_time == 1:
        raise SystemExit(f"the answers differ: {digests}")
    print("answers: " + ("the same in all runs" if len(digests) == 1 else f"{len(digests)} digests"))


if __name__ == "__main__":
    main()
