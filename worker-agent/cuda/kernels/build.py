"""Makes pages.ptx from pages.cu: `python build.py`, or with `--check` compares them.

Needs the packages of requirements.txt beside it, and no GPU. Both ways assemble the result and print
what each architecture needs; they fail if that is more than the budget. Ends with 3 if the packages
are missing.
"""

import ctypes
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ARCHITECTURES = ["sm_80", "sm_90"]
REGISTERS_MAX = 40


def find_tools():
    try:
        import nvidia.cuda_nvcc
        import nvidia.cuda_nvrtc
    except ImportError:
        sys.exit(3)
    nvrtc = pathlib.Path(nvidia.cuda_nvrtc.__path__[0], "lib/libnvrtc.so.12")
    ptxas = pathlib.Path(nvidia.cuda_nvcc.__path__[0], "bin/ptxas")
    return ctypes.CDLL(str(nvrtc)), ptxas


def compile_source(nvrtc, source):
    program = ctypes.c_void_p()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"pages.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    failed = made or nvrtc.nvrtcCompileProgram(program, 1, options)
    if failed:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"NVRTC: error {failed}: {log.value.decode()}")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


def assemble(ptxas, path):
    for architecture in ARCHITECTURES:
        with tempfile.NamedTemporaryFile() as cubin:
            command = [ptxas, f"-arch={architecture}", "-v", path, "-o", cubin.name]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        registers = int(re.search(r"Used (\d+) registers", done.stderr)[1])
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))
        print(f"{architecture}: {registers} registers, {spills} bytes spilled")
        if registers > REGISTERS_MAX or spills:
            sys.exit(f"{architecture}: the budget is {REGISTERS_MAX} registers and no spills")


def main():
    nvrtc, ptxas = find_tools()
    source = (HERE / "pages.cu").read_bytes()
    head = f"// Made by build.py from pages.cu with SHA-256 {hashlib.sha256(source).hexdigest()}\n"
    ptx = head + compile_source(nvrtc, source)
    path = HERE / "pages.ptx"
    if "--check" not in sys.argv:
        path.write_text(ptx)
    elif path.read_text() != ptx:
        sys.exit("pages.ptx is not what the compiler makes of pages.cu: run build.py")
    assemble(ptxas, path)


main()
