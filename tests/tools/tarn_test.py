"""Helpers of all Python tests: paths, skipping a test, running the built programs.

Environment: TARN_BUILD_DIR (default <repo>/build), TARN_SHARED (default <repo>/../shared).
Standard library only, so that a test can skip politely when NumPy is not there.
"""
from __future__ import annotations

import array
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Iterator, NoReturn

REPO = Path(__file__).resolve().parents[2]
TOOLS = REPO / "tests" / "tools"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE


def build_dir() -> Path:
    return Path(os.environ.get("TARN_BUILD_DIR") or REPO / "build")


def patience(seconds: float) -> int:
    """The limit of a wait that guards against hanging, longer where programs are slower: times
    TARN_TEST_PATIENCE, by default 4 in a ThreadSanitizer build, as for ctest's own timeouts."""
    factor = os.environ.get("TARN_TEST_PATIENCE")
    if not factor:
        cache = build_dir() / "CMakeCache.txt"
        is_thread = cache.is_file() and re.search(r"^TARN_SANITIZE:\w+=.*thread",
                                                  cache.read_text(errors="replace"), re.M)
        factor = "4" if is_thread else "1"
    return round(seconds * float(factor))


READY_SECONDS = patience(120)


def skip(reason: str) -> NoReturn:
    print(f"SKIP: {reason}")
    sys.exit(SKIPPED)


def shared_data(name: str) -> Path:
    """A folder of ../shared/data; the test is skipped where that is not there."""
    path = Path(os.environ.get("TARN_SHARED") or REPO.parent / "shared") / "data" / name
    if not path.is_dir():
        skip(f"no ../shared (looked for {path})")
    return path


def need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        skip("no NumPy for this Python: install python3-numpy")


def program(name: str) -> Path:
    """A built program; its absence is a failure, not a skip."""
    for path in (build_dir() / name, build_dir() / "tests" / name):
        if path.is_file():
            return path
    raise SystemExit(f"{name} is not in {build_dir()}: build it first")


def is_sanitized(path: Path) -> bool:
    """A sanitizer's build is several times slower, and keeps freed memory."""
    code = path.read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code


def run_logits(model: Path, ids: list[int], *options: str) -> array.array:
    """Raw float32 logits [n_ids, vocab] as tarn-logits computes them."""
    return run_logits_and_kernels(model, ids, *options)[0]


def run_logits_and_kernels(model: Path, ids: list[int], *options: str) -> tuple[array.array, str]:
    """The logits, and the name of the kernel set that computed them. "cuda" is the emulated GPU."""
    name = "tarn-logits-emulated" if "cuda" in options else "tarn-logits"
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out_file = Path(folder) / "ids.txt", Path(folder) / "out.f32"
        ids_file.write_text(" ".join(map(str, ids)) + "\n")
        command = [str(program(name)), str(model), str(ids_file), str(out_file), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(600))
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n"
                             f"{done.stdout}{done.stderr}")
        logits = array.array("f")
        logits.frombytes(out_file.read_bytes())
    if sys.byteorder == "big":
        logits.byteswap()
    return logits, done.stdout.strip()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports(n: int) -> int:
    """The first of n ports that follow each other and are free."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + n):
                socket.create_server(("127.0.0.1", port)).close()
            return first
        except (OSError, OverflowError):
            continue


def post(url: str, body: dict, timeout: float = patience(120)) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.code} {error.read().decode(errors='replace')}") from None


def wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"tarn-server ended with {server.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url + "/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"tarn-server is not ready after {READY_SECONDS} s:\n{log.read_text()}")


@contextlib.contextmanager
def server(model: Path, *options: str, name: str = "tarn-server") -> Iterator[str]:
    """Run tarn-server (or another program of its kind) on a free port; yield its URL; SIGTERM at
    the end must give status 0."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [str(program(name)), "--model", str(model), "--host", "127.0.0.1",
                   "--port", str(port), *options]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_ready(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                status = process.wait(timeout=patience(60))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
        if status:
            raise SystemExit(f"tarn-server ended with {status}:\n{log.read_text()[-4000:]}")
