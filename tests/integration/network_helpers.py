"""What the network tests share: a fake server with flags, slow clients, certificates, a runner."""
from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from http_helpers import TIMEOUT, WAIT_SECONDS, Server, run_tests, tarn_test, wait_until

CHAT = "/v1/chat/completions"
SLOW_US = 600_000_000  # of prefill: longer than any test waits for a client to be noticed


def program() -> str:
    return os.environ.get("TARN_TEST_FAKE_SERVER") or str(tarn_test.program("tarn-fake-server"))


def is_sanitized() -> bool:
    return tarn_test.is_sanitized(Path(program()))


class Net(Server):
    """A fake server with flags, wherever it listens. Its timeouts are minutes unless set."""

    def __init__(self, *flags: str, step_us: int = 0, prefill_us: int = 0, queue_max: int = 1000,
                 hard_files: int = 0) -> None:
        command = [program(), "0", str(step_us), str(prefill_us), str(queue_max), *flags]
        if hard_files:
            command = ["prlimit", f"--nofile={hard_files}:{hard_files}", *command]
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-log-")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.startswith(b"serves at "):
            raise SystemExit(f"{command} ended with {self.process.wait()}: {self.log_text()}")
        found = re.search(rb":(\d+)/v1", line)
        self.port = int(found.group(1)) if found else 0

    def n_sockets(self) -> int:
        """Connections that the server has open: its sockets but the one that listens."""
        n = -1
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                n += os.readlink(descriptor).startswith("socket:")
            except FileNotFoundError:
                pass  # closed in between
        return n

    def wait_sockets(self, want: Callable[[int], bool]) -> None:
        wait_until(lambda: want(self.n_sockets()), lambda: f"{self.n_sockets()} sockets")

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10  # type: ignore

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)


def chat(stream: bool = False, max_tokens: int = 5, content: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "stream": stream,
            "max_tokens": max_tokens}


def post_bytes(path: str, body: bytes, extra: str = "") -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            .encode() + body)


def read_to_end(s: socket.socket) -> bytes:
    """The bytes that come until the server closes the connection."""
    s.settimeout(WAIT_SECONDS)
    pieces = []
    try:
        while piece := s.recv(1 << 20):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def drip(s: socket.socket) -> None:
    """Sends a byte now and then until the server answers or closes."""
    end = time.monotonic() + WAIT_SECONDS
    try:
        while time.monotonic() < end:
            s.sendall(b"x")
            if select.select([s], [], [], 0.1)[0]:
                return
    except ConnectionError:
        return
    raise AssertionError("the server still takes bytes")


def assert_408(data: bytes) -> None:
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 "), data
    assert json.loads(body)["error"]["code"] == "request_timeout", body
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n", data


def ask_unix(path: Path, request: bytes = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(TIMEOUT)
        s.connect(str(path))
        s.sendall(request)
        answer = s.recv(65536)
        # A long answer is read to its end when the request closes the connection.
        while b"Connection: close" in request and (more := s.recv(65536)):
            answer += more
        return answer


def fails(*flags: str) -> str:
    done = subprocess.run([program(), "0", "0", "0", "10", *flags], capture_output=True,
                          timeout=WAIT_SECONDS)
    assert done.returncode == 1, done
    return done.stderr.decode()


def make_certificate(folder: str, name: str) -> tuple[str, str]:
    cert, key = f"{folder}/{name}.crt", f"{folder}/{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def main(tests: list[Callable[[], None]], n_at_once: int = 1) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    chosen = [t for t in tests if not names or t.__name__ in names]
    if not shutil.which("openssl"):
        print("      no openssl: without TLS")
        chosen = [t for t in chosen if "tls" not in t.__name__ and "handshake" not in t.__name__]
    return run_tests(chosen, n_at_once)
