"""Find the programs that tests/gpu/run can start on this machine, and the environment for them."""
from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("tarn-gpu-tests", "tarn-gpu-speed", "tarn-server", "tarn-bench")
# CUDA's own libraries are too large to carry, except the runtime. The folders where they may lie:
# the toolkit, the distribution's packages, the wheels that come with PyTorch.
LIBRARY_FOLDERS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib",
                   "/usr/lib/x86_64-linux-gnu", "/opt/*/lib", "/opt/*/lib64",
                   "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
                   "/usr/lib/python3*/site-packages/nvidia/*/lib",
                   "/usr/local/lib/python3*/*-packages/nvidia/*/lib")
TOOLKIT = "/usr/local/cuda/bin"


def environment(env: dict[str, str], repo: Path) -> dict[str, str]:
    """The loader finds the copied libraries, and CUDA's in the version that was linked."""
    folders = [str(repo / "build" / "gpu" / "lib")]
    for pattern in LIBRARY_FOLDERS:
        folders += [f for f in sorted(glob.glob(pattern))
                    if glob.glob(f + "/libcublasLt.so.13*") or glob.glob(f + "/libcudart.so.13*")]
    if env.get("LD_LIBRARY_PATH"):
        folders.append(env["LD_LIBRARY_PATH"])
    path = env.get("PATH", "/usr/bin:/bin")
    if TOOLKIT not in path.split(":"):
        path += ":" + TOOLKIT
    return {**env, "LD_LIBRARY_PATH": ":".join(folders), "PATH": path}


def output_of(argv: list[str], env: dict[str, str], seconds: float = 20) -> tuple[int, str]:
    """Exit status and output; 127 where it does not start, 124 where it takes longer."""
    try:
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=seconds)
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} took longer than {seconds:.0f} s"
    return done.returncode, done.stdout.decode(errors="replace")


def describe_device(env: dict[str, str]) -> str:
    """Name, driver and memory of the GPU, as nvidia-smi prints them; empty without a GPU."""
    status, text = output_of(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,"
                              "clocks.max.sm,clocks.max.mem", "--format=csv"], env)
    return text.strip() if status == 0 else ""


def why_not(folder: Path, env: dict[str, str]) -> str:
    """Why the programs of a folder do not start here; empty if they do."""
    for name in PROGRAMS:
        program = folder / name
        if not os.access(program, os.X_OK):
            return f"{program} is missing: run tests/gpu/prepare and carry build/gpu"
        _, libraries = output_of(["ldd", str(program)], env)
        missing = [line.split()[0] for line in libraries.splitlines() if "not found" in line]
        if missing:
            return f"{program} does not find {', '.join(missing)}"
    status, text = output_of([str(folder / "tarn-server"), "--version"], env)
    return "" if status == 0 else f"tarn-server --version: {text.strip()[:300]}"


def build_environment(repo: Path) -> dict[str, str]:
    """Headers and libraries that prepare carried, for a machine without any of them."""
    deps, lib = repo / "build/gpu/deps", repo / "build/gpu/lib"
    pkg = sorted({str(p.parent) for p in deps.glob("usr/**/*.pc")})
    include = deps / "usr/include"
    return {"PKG_CONFIG_LIBDIR": ":".join(pkg),
            "C_INCLUDE_PATH": f"{include}:{include}/x86_64-linux-gnu",
            "CMAKE_PREFIX_PATH": str(deps / "usr"), "CMAKE_LIBRARY_PATH": str(lib),
            "LIBRARY_PATH": str(lib)}


def build_command(repo: Path) -> list[str]:
    """A build in build/gpu-here with what prepare carried, pkg-config included."""
    return ["/bin/bash", str(repo / "tests/gpu/build-here")]


def built_folder(repo: Path) -> Path:
    return repo / "build" / "gpu-here" / "gpu"


def has_tool(name: str, env: dict[str, str]) -> bool:
    return shutil.which(name, path=env.get("PATH")) is not None
