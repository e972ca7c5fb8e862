"""Helpers of the network tests: a fake server with flags, slow clients, certificates, a runner."""
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


CLOCK_STEP_S = 100


class Net(Server):
    """A fake server, started with flags. All timeouts are ten minutes unless set.

    With has_test_clock the server's clock stands still until advance().
    """

    def __init__(self, *flags: str, step_us: int = 0, prefill_us: int = 0, queue_max: int = 1000,
                 hard_files: int = 0, has_test_clock: bool = False) -> None:
        command = [program(), "0", str(step_us), str(prefill_us), str(queue_max), *flags]
        if hard_files:
            command = ["prlimit", f"--nofile={hard_files}:{hard_files}", *command]
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-log-")
        env = {**os.environ, **({"TARN_TEST_CLOCK_S": str(CLOCK_STEP_S)} if has_test_clock else {})}
        self.clock_s = 0  # of the test clock, since the start
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env=env,
                                        stdin=subprocess.PIPE)
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.startswith(b"serves at "):
            raise SystemExit(f"{command} ended with {self.process.wait()}: {self.log_text()}")
        found = re.search(rb":(\d+)/v1", line)
        self.port = int(found.group(1)) if found else 0

    def advance(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(b".")
        self.process.stdin.flush()
        assert self.process.stdout.read(1) == b"."
        self.clock_s += CLOCK_STEP_S

    def advance_until(self, is_there: Callable[[], bool]) -> int:
        """Seconds by which the test clock advanced until `is_there`. The server may be slow to see
        the new time, so the number has a lower bound only."""
        begin_s = self.clock_s

        def advance() -> bool:
            if is_there():
                return True
            self.advance()
            time.sleep(0.05)
            return False
        wait_until(advance, lambda: f"the clock advanced by {self.clock_s - begin_s} s")
        return self.clock_s - begin_s

    def n_sockets(self) -> int:
        """The number of open connections: all sockets of the server except the listening one."""
        n = -1
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                n += os.readlink(descriptor).startswith("socket:")
            except FileNotFoundError:
                pass  # closed in between
        return n

    def wait_sockets(self, want: Callable[[int], bool]) -> None:
        wait_until(lambda: want(self.n_sockets()), lambda: f"{self.n_sockets()} sockets")

    def n_unread(self, s: socket.socket) -> int:
        """Bytes from this client that no thread of the server has read yet."""
        ours, theirs = f":{s.getsockname()[1]:04X}", f":{self.port:04X}"
        n = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues = line.split()[:5]
            sent, received = (int(q, 16) for q in queues.split(":"))
            if local.endswith(ours) and remote.endswith(theirs):
                n += sent
            elif local.endswith(theirs) and remote.endswith(ours):
                n += received
        return n

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
    """All bytes that the server sends until it closes the connection."""
    s.settimeout(WAIT_SECONDS)
    pieces = []
    try:
        while piece := s.recv(1 << 20):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def is_answered(s: socket.socket) -> bool:
    """Whether the server answered or closed."""
    return bool(select.select([s], [], [], 0)[0])


def drip(s: socket.socket, server: Net) -> int:
    """Send a byte at each step of the test clock until the server answers or closes; return the
    seconds."""
    def send() -> bool:
        try:
            s.sendall(b"x")
        except ConnectionError:
            return True
        return is_answered(s)
    return server.advance_until(send)


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
