#!/usr/bin/env python3
"""Compile kernels/cuda for every architecture and print the resources of each kernel.

    cuda_report.py [--nvcc PATH] [--csv FILE] [--jobs N] [--arch 80,90] [SOURCE.cu...]
    cuda_report.py --show FILE      prints the table of an earlier --csv again

Warnings are errors, and so are a kernel that spills registers to memory, and products of a
warpgroup that ptxas puts one behind the other; there are no exceptions. Sources of
TARN_CUDA_SM90A_SOURCES are compiled for sm_90a alone.
Product kernels must load as wide as cuda_ptx.py says.
The table has, for each kernel and architecture: registers per thread, barriers, static shared
memory, stack and spills in bytes. Exit status 77 without nvcc, 1 when anything failed.
"""
from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cuda_ptx  # noqa: E402

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "kernels" / "cuda"
FLAGS = ["-c", "-std=c++17", "-O3", "--fmad=false", f"-I{REPO}", "-Werror=all-warnings",
         "-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-exceptions,-fno-rtti",
         "-Xptxas=-v"]  # spills are judged here: as an error, one would hide the other figures
MAY_SPILL: frozenset[str] = frozenset()
SKIP = 77
DTYPES = {0: "f32", 1: "f16", 2: "bf16", 3: "i8", 4: "i4", 5: "a8", 6: "a4", 7: "f8"}  # enum dtype

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)a?'")
SERIALIZED = re.compile(r"Potential Performance Loss")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(?:.*?, (\d+) bytes smem)?")
INFORMATION = re.compile(r"^ptxas info|bytes stack frame|bytes cumulative stack")


@dataclass
class Kernel:
    file: str
    name: str
    sm: int
    registers: int = 0
    barriers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0


@dataclass
class Compiled:
    file: str
    seconds: float
    kernels: list[Kernel]
    errors: str


def find_nvcc(given: str | None) -> str | None:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    installed = [shutil.which("nvcc")] + [f"{h}/bin/nvcc" for h in homes if h]
    candidates = [given] if given else installed
    return next((c for c in candidates if c and os.access(c, os.X_OK)), None)


def sources() -> list[Path]:
    """The list of sources.cmake; no build compiles a .cu file that is not in it."""
    text = re.sub(r"#.*", "", (FOLDER / "sources.cmake").read_text())
    listed = re.findall(r"[\w/]+\.cu\b", text)
    missing = {p.name for p in FOLDER.glob("*.cu")} - set(listed)
    if missing:
        sys.exit(f"not in kernels/cuda/sources.cmake: {', '.join(sorted(missing))}")
    return [FOLDER / name for name in listed]


def sm90a_sources() -> set[str]:
    text = (FOLDER / "sources.cmake").read_text()
    listed = re.search(r"TARN_CUDA_SM90A_SOURCES\b([^)]*)", text)
    return set(re.findall(r"[\w/]+\.cu\b", listed[1])) if listed else set()


def parse(file: str, log: str) -> list[Kernel]:
    """ptxas writes for each kernel: its name, its stack, its registers."""
    kernels: list[Kernel] = []
    for line in log.splitlines():
        if m := ENTRY.search(line):
            kernels.append(Kernel(file, m[1], int(m[2])))
        elif (m := STACK.search(line)) and kernels:
            kernels[-1].stack_bytes = int(m[1])
            kernels[-1].spill_bytes = int(m[2]) + int(m[3])
        elif (m := USED.search(line)) and kernels:
            kernels[-1].registers = int(m[1])
            kernels[-1].barriers = int(m[2] or 0)
            kernels[-1].shared_bytes = int(m[3] or 0)
    return kernels


def compile_one(nvcc: str, path: Path, archs: list[str], out: Path) -> Compiled:
    if path.name in sm90a_sources():
        targets = ["-gencode=arch=compute_90a,code=sm_90a"]
    else:
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        targets.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    kept = out / path.stem
    kept.mkdir()
    begin = time.monotonic()
    run = subprocess.run([nvcc, *FLAGS, *targets, "--keep", "--keep-dir", str(kept), str(path),
                          "-o", str(out / (path.stem + ".o"))],
                         capture_output=True, text=True, check=False)
    log = run.stdout + run.stderr
    narrow = [error for ptx in sorted(kept.glob("*.ptx"))
              for error in cuda_ptx.check(ptx.read_text(errors="replace"))]
    shutil.rmtree(kept)
    lines = [l for l in log.splitlines() if SERIALIZED.search(l) or not INFORMATION.search(l)]
    bad = run.returncode or any(re.search(r"\b(error|warning)\b", l, re.I) or SERIALIZED.search(l)
                                for l in lines)
    errors = "\n".join(lines).strip() or f"nvcc ended with {run.returncode}"
    return Compiled(path.name, time.monotonic() - begin, parse(path.name, log),
                    "\n".join([*([errors] if bad else []), *narrow]))


def short_names(kernels: list[Kernel]) -> None:
    """The demangled name without return type, parameters and nvcc's prefix of static functions."""
    tool = shutil.which("c++filt")
    if not tool or not kernels:
        return
    run = subprocess.run([tool], input="\n".join(k.name for k in kernels), capture_output=True,
                         text=True, check=True)
    for kernel, name in zip(kernels, run.stdout.splitlines()):
        name = re.sub(r"\((?:unsigned )?(?:int|bool)\)", "", name.removeprefix("void "))
        name = re.sub(r"\(dtype\)(\d+)", lambda m: DTYPES[int(m[1])], name)
        kernel.name = re.sub(r"\(\w+ *\*?(?:, .*)?\)$", "", name)


def print_table(kernels: list[Kernel]) -> None:
    """One line per kernel; where architectures differ, their figures side by side."""
    names: dict[tuple[str, str], list[Kernel]] = {}
    for k in kernels:
        names.setdefault((k.file, k.name), []).append(k)
    width = max((len(n) for _, n in names), default=0)
    print(f"{'file':18} {'kernel':{width}} {'sm':>5} {'registers':>9} {'spilled':>7} {'stack':>6} "
          f"{'shared':>6}")
    for (file, name), group in names.items():
        def column(field: str) -> str:
            values = [str(getattr(k, field)) for k in group]
            return values[0] if len(set(values)) == 1 else "/".join(values)
        print(f"{file:18} {name:{width}} {column('sm'):>5} {column('registers'):>9} "
              f"{column('spill_bytes'):>7} {column('stack_bytes'):>6} {column('shared_bytes'):>6}")


def show(path: Path) -> int:
    with path.open(newline="") as f:
        print_table([Kernel(r["file"], r["name"], *(int(r[x]) for x in list(r)[2:]))
                     for r in csv.DictReader(f)])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--arch", default="80,90")
    parser.add_argument("sources", nargs="*", type=Path)
    options = parser.parse_args()
    if options.show:
        return show(options.show)

    nvcc = find_nvcc(options.nvcc)
    if not nvcc:
        print("SKIP: no nvcc on this machine, so no GPU code can be compiled")
        return SKIP
    # Longest first, or one large file at the end would leave the other cores idle.
    paths = sorted(options.sources or sources(), key=lambda p: -p.stat().st_size)
    archs = options.arch.split(",")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as out, ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda p: compile_one(nvcc, p, archs, Path(out)), paths))

    kernels = [k for c in done for k in c.kernels]
    short_names(kernels)
    kernels.sort(key=lambda k: (k.file, k.name, k.sm))
    print_table(kernels)
    if options.csv:
        with options.csv.open("w", newline="") as f:
            rows = csv.DictWriter(f, [x for x in Kernel.__dataclass_fields__])
            rows.writeheader()
            rows.writerows(asdict(k) for k in kernels)

    failed = False
    for c in done:
        if c.errors:
            failed = True
            print(f"\n{c.file}:\n{c.errors}")
    for k in kernels:
        if k.spill_bytes and k.name not in MAY_SPILL:
            failed = True
            print(f"{k.file}: {k.name} spills {k.spill_bytes} bytes on sm_{k.sm}")
    slowest = max(done, key=lambda c: c.seconds)
    print(f"\n{len(paths)} files, {len(kernels)} kernels for sm_{', sm_'.join(archs)} in "
          f"{time.monotonic() - begin:.0f} s; slowest {slowest.file} ({slowest.seconds:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
