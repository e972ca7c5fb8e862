#!/usr/bin/env python3
"""What a network does to a server: slow, silent, greedy and vanishing clients, limits, TLS, Unix
sockets, CORS. Over the fake engine, so also under sanitizers; only on 127.0.0.1.

    test_network.py [--idle N --active N] [NAME...]

With numbers: only the memory that so many connections take. With names: only those tests.
"""
from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import resource
import select
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from http_helpers import Server, run_tests, tarn_test

CHAT = "/v1/chat/completions"
SLOW_US = 60_000_000


def program() -> str:
    return os.environ.get("TARN_TEST_FAKE_SERVER") or str(tarn_test.program("tarn-fake-server"))


def is_sanitized() -> bool:
    code = Path(program()).read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code


class Net(Server):
    """A fake server with flags, wherever it listens."""

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

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def chat(stream: bool = False, max_tokens: int = 5, content: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "stream": stream,
            "max_tokens": max_tokens}


def post_bytes(path: str, body: bytes, extra: str = "") -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            .encode() + body)


def read_to_end(s: socket.socket, seconds: float) -> tuple[bytes, float]:
    """What comes until the server closes, and when it did."""
    start = time.monotonic()
    s.settimeout(seconds)
    pieces = []
    try:
        while piece := s.recv(1 << 20):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces), time.monotonic() - start


def drip(s: socket.socket, pause: float, seconds: float) -> float:
    """A byte now and then until the server has enough; after how long that was."""
    start = time.monotonic()
    try:
        while time.monotonic() - start < seconds:
            s.sendall(b"x")
            if select.select([s], [], [], pause)[0]:
                return time.monotonic() - start
    except ConnectionError:
        return time.monotonic() - start
    raise AssertionError(f"still open after {seconds} s")


def assert_408(data: bytes) -> None:
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 "), data
    assert json.loads(body)["error"]["code"] == "request_timeout", body
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n", data


# --- deadlines ---

def a_slow_header_gets_408() -> None:
    with Net("--header-timeout", "1") as server:
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        seconds = drip(s, 0.1, 5)
        assert 0.8 < seconds < 2.5, seconds
        assert_408(read_to_end(s, 2)[0])


def a_slow_second_header_gets_408() -> None:
    with Net("--header-timeout", "1") as server:
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"ready"' in s.recv(4096)
        time.sleep(1.5)  # idle is not late
        s.sendall(b"GE")
        seconds = drip(s, 0.1, 5)
        assert 0.8 < seconds < 2.5, seconds
        assert_408(read_to_end(s, 2)[0])


def a_header_that_stops_coming_is_late_too() -> None:
    """One piece and then nothing: epoll alone would miss some of these."""
    with Net("--header-timeout", "1", "--idle-timeout", "60") as server:
        silent = [server.connect() for _ in range(200)]
        for s in silent:
            s.sendall(b"GET /health HTTP/1.1\r\n")
        start = time.monotonic()
        for s in silent:
            assert_408(read_to_end(s, 10)[0])
        assert time.monotonic() - start < 4, time.monotonic() - start


def an_idle_connection_stays_until_the_idle_timeout() -> None:
    with Net("--header-timeout", "1", "--body-timeout", "1", "--write-timeout", "1",
             "--idle-timeout", "4") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for _ in range(3):
            connection.request("POST", CHAT, json.dumps(chat()))
            response = connection.getresponse()
            assert response.status == 200 and response.read()
            time.sleep(1.6)
        assert connection.sock
        data, seconds = read_to_end(connection.sock, 10)
        assert data == b"" and 1 < seconds < 7, (data, seconds)


def a_slow_body_gets_408() -> None:
    with Net("--body-timeout", "1") as server:
        s = server.connect()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" % CHAT.encode())
        seconds = drip(s, 0.1, 5)
        assert 0.8 < seconds < 2.5, seconds
        assert_408(read_to_end(s, 2)[0])


def a_body_above_the_least_rate_may_take_longer() -> None:
    with Net("--body-timeout", "1") as server:
        body = json.dumps(chat(content="x" * 80_000)).encode()
        s = server.connect()
        start = time.monotonic()
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        for i in range(0, len(body), 8000):
            s.sendall(body[i:i + 8000])
            time.sleep(0.2)
        assert time.monotonic() - start > 1.9
        assert s.recv(100).startswith(b"HTTP/1.1 200 ")
        s.close()


def an_answer_that_takes_long_is_not_late() -> None:
    with Net("--header-timeout", "1", "--body-timeout", "1", "--write-timeout", "1",
             prefill_us=2_500_000) as server:
        assert server.post(CHAT, chat())["choices"][0]["message"]["content"] == "abcde"
        frames, _ = server.stream(CHAT, chat())
        assert len(frames) > 1


def a_client_that_does_not_take_a_stream_is_dropped() -> None:
    with Net("--write-timeout", "1") as server:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        body = json.dumps({**chat(True, 4000), "logprobs": True, "top_logprobs": 20}).encode()
        s.sendall(post_bytes(CHAT, body))
        server.wait_blocks(lambda n: n == 1, 5)
        time.sleep(3)
        data, _ = read_to_end(s, 10)
        assert b"[DONE]" not in data
        assert server.blocks_in_use() == 0
        s.close()


def a_client_that_does_not_take_a_whole_answer_is_dropped() -> None:
    with Net("--write-timeout", "1", "--max-body-bytes", "4M") as server:
        body = json.dumps({"prompt": "x" * 1_500_000, "return_token_strs": True}).encode()
        for reads, whole in ((True, True), (False, False)):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.settimeout(60)
            s.connect(("127.0.0.1", server.port))
            s.sendall(post_bytes("/tokenize", body, "Connection: close\r\n"))
            if not reads:
                assert select.select([s], [], [], 60)[0]
                time.sleep(2.5)
            data, _ = read_to_end(s, 60)
            n = int(re.search(rb"(?i)content-length: (\d+)", data).group(1))  # type: ignore
            got = len(data.partition(b"\r\n\r\n")[2])
            assert (got == n) is whole, (reads, got, n)
            s.close()


def slowloris_does_not_hold_up_others() -> None:
    """Answers come while every slow client is still held; each slow client is dropped later."""
    n = 500
    with Net("--header-timeout", "4", "--body-timeout", "4", "--max-connections", "600") as server:
        slow = []
        for i in range(n):
            s = server.connect()
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" if i % 2
                      else b"GET /health HTTP/1.1\r\nX-Slow: ")
            slow.append(s)
        n_answers, deadline = 0, time.monotonic() + 90
        while slow and time.monotonic() < deadline:
            server.post(CHAT, chat())
            for s in slow:
                try:
                    s.send(b"x")
                except OSError:
                    pass  # the select below finds the closed connection
            slow = [s for s in slow if not select.select([s], [], [], 0)[0]]
            n_answers += len(slow) > 0
            time.sleep(0.2)
        assert not slow, f"{len(slow)} of {n} are still there"
        print(f"      {n} slow clients: {n_answers} answers before the last of them was dropped")
        assert n_answers > 0


# --- limits ---

def busy_connections_are_limited_and_health_is_answered() -> None:
    """Nobody busy is cut for a newcomer; a newcomer learns that the server is alive, and full."""
    with Net("--max-connections", "20", "--http-threads", "1", prefill_us=SLOW_US) as server:
        held = [server.open_raw(CHAT, chat()) for _ in range(20)]
        for _ in range(5):
            until_in_flight(server, 20)
            assert server.request("GET", "/health")[0] == 200
            for path, body in ((CHAT, chat()), ("/v1/completions", b" " * 900_000)):
                status, headers, answer = server.request("POST", path, body)
                assert status == 503 and headers["connection"] == "close", (status, headers)
                assert answer["error"]["code"] == "too_many_connections", answer
                assert "retry-after" in headers
        assert not select.select(held, [], [], 0.2)[0]
        held.pop().close()
        end = time.monotonic() + 10
        while server.request("GET", "/v1/models")[0] != 200:
            assert time.monotonic() < end
        for s in held:
            s.close()


def until_in_flight(server: Net, n: int) -> None:
    """Over a guest's connection /metrics is refused, so the log says how many there are."""
    end = time.monotonic() + 10
    while n_sockets(server) < n:
        assert time.monotonic() < end, (n_sockets(server), n)
        time.sleep(0.01)


def n_sockets(server: Net) -> int:
    """Connections that the server has open: all of its sockets but the one that listens."""
    n = -1
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            n += os.readlink(descriptor).startswith("socket:")
        except FileNotFoundError:
            pass  # closed while we looked
    return n


def the_idlest_connection_is_closed_for_a_new_one() -> None:
    with Net("--max-connections", "10", "--idle-timeout", "60") as server:
        def speaks(s: socket.socket) -> bool:
            try:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                return s.recv(4096).startswith(b"HTTP/1.1 200 ")
            except ConnectionError:
                return False
        used = [server.connect() for _ in range(5)]
        for s in used:
            assert speaks(s)
        silent = [server.connect() for _ in range(5)]
        time.sleep(1.2)  # young ones are spared: their request may be under way
        more = [server.connect() for _ in range(5)]
        for s in more:
            assert speaks(s)
        for s in silent:
            assert read_to_end(s, 5)[0] == b""
        assert all(speaks(s) for s in used + more)
        more.append(server.connect())
        assert speaks(more[-1])
        # The server ends a request a little after its answer, so neighbours may change places.
        closed = [i for i, s in enumerate(used + more) if not speaks(s)]
        assert len(closed) == 1 and closed[0] < 5, closed
        for s in used + silent + more:
            s.close()


def a_connection_that_never_sends_is_closed() -> None:
    with Net("--header-timeout", "1", "--idle-timeout", "60") as server:
        data, seconds = read_to_end(server.connect(), 10)
        assert data == b"" and 0.8 < seconds < 3, (data, seconds)


def idle_connections(n: int, server: Net) -> float:
    """n connections that send nothing; the longest time that /health/live then takes."""
    held, worst = [], 0.0
    for i in range(n):
        held.append(server.connect())
        if i % (n // 20) == 0:
            start = time.monotonic()
            assert server.request("GET", "/health/live")[0] == 200
            worst = max(worst, time.monotonic() - start)
            server.post(CHAT, chat())
    for s in held:
        s.close()
    return worst


def idle_connections_keep_nobody_out() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    bound = 2.0 if is_sanitized() else 0.5
    with Net("--max-connections", "4096") as server:
        worst = idle_connections(4200, server)
        print(f"      4,200 idle connections, 4,096 places: /health/live {worst * 1e3:.1f} ms")
        assert worst < bound
    # What the process has open, 32 connections and the guests fit into 64 descriptors.
    with Net("--max-connections", "4096", hard_files=64) as server:
        assert "max_connections_now=32" in server.log_text(), server.log_text()
        worst = idle_connections(400, server)
        print(f"      400 idle connections, 64 descriptors: /health/live {worst * 1e3:.1f} ms")
        assert worst < bound
        assert "cannot accept" not in server.log_text(), server.log_text()


def connections_per_address_are_limited() -> None:
    with Net("--max-connections-per-ip", "5") as server:
        held = [server.connect() for _ in range(5)]
        for s in held:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096)
        assert read_to_end(server.connect(), 5)[0] == b""
        other = socket.socket()
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", server.port))
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 200 ")
        for s in held + [other]:
            s.close()


def few_descriptors_mean_fewer_connections() -> None:
    with Net("--max-connections", "4000", hard_files=600) as server:
        words = server.log_text()
        assert "too few file descriptors" in words and "max_connections_now=344" in words, words
        held = [server.connect() for _ in range(300)]
        for s in held:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        held += [server.connect() for _ in range(400)]
        for s in held[-300:]:  # those who came last have a place
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        for s in held:
            s.close()
        server.post(CHAT, chat())


def soft_descriptor_limit_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with Net("--max-connections", "1000") as server:
            limits = Path(f"/proc/{server.process.pid}/limits").read_text()
            assert int(re.search(r"Max open files +(\d+)", limits).group(1)) >= 1256  # type: ignore
            assert "too few" not in server.log_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def what_the_library_refuses_is_refused() -> None:
    """A header beyond 32 KB or a line that is none: the library answers, in HTML, and closes."""
    with Net("--header-timeout", "2") as server:
        for start, status in (
                (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n", b"414"),
                (b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 100_000 + b"\r\n", b"431"),
                (b"GET /health HTTP/1.1\r\n" + b"X-Many: a\r\n" * 20_000, b"431"),
                (b"GET nonsense\r\n", b"400"),
                (b"\0\1\2 nonsense\r\n", b"4")):
            s = server.connect()
            try:
                s.sendall(start + b"\r\n")
            except ConnectionError:
                pass  # it need not read to the end
            data, _ = read_to_end(s, 5)
            # A reset may overtake the answer when we have sent much more than was read.
            assert data == b"" or data.startswith(b"HTTP/1.1 " + status), data[:200]
        s = server.connect()  # and 16 KB are fine
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 16_000 + b"\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        s.close()
        server.post(CHAT, chat())


def bodies_are_limited() -> None:
    with Net() as server:
        for body, status, word in (
                (b" " * (1 << 21), 413, "body_too_large"),
                (b"[" * 100_000, 400, "malformed_json"),
                (b'{"a":' * 1000 + b"1" + b"}" * 1000, 400, "malformed_json"),
                (b'{"prompt":[' + b"1," * 100_000 + b"1]}", 400, ""),
                (b'{"messages":[' + b"{}," * 100_000 + b"{}]}", 400, ""),
                (b'{"prompt":"a","stop":[' + b'"x",' * 100_000 + b'"x"]}', 400, "")):
            path = CHAT if b"messages" in body else "/v1/completions"
            got, _, answer = server.request("POST", path, body)
            assert got == status and word in answer["error"]["code"], (body[:20], got, answer)


def resident_bytes(server: Net) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10


def bodies_that_parse_to_too_much_are_413() -> None:
    """The limit is named, the memory does not grow, and the server goes on."""
    with Net("--max-body-bytes", "16M") as server:
        before = resident_bytes(server)
        for item, count, word in ((b"{}", 5_000_000, "4194304"), (b"{}", 600_000, "memory"),
                                  (b"1", 4_200_000, "4194304")):
            body = b'{"messages":[],"metadata":[' + b",".join([item] * count) + b"]}"
            got, _, answer = server.request("POST", CHAT, body)
            assert got == 413 and word in answer["error"]["message"], (got, answer)
        server.post(CHAT, chat())
        assert is_sanitized() or resident_bytes(server) < before + (48 << 20), before


def empty_bodies_and_bytes_behind_the_json_are_named() -> None:
    with Net() as server:
        for body, words in ((b"", "the body is empty"), (b"  \n", "empty"),
                            (b'{"messages":[]} x', "more text follows"),
                            (b'{"messages":[]}{}', "more text follows"),
                            (b"[]", "must be a JSON object, not an array")):
            got, _, answer = server.request("POST", CHAT, body)
            assert got == 400 and words in answer["error"]["message"], (body, got, answer)
            assert answer["error"]["code"] == "malformed_json", answer


def request_until_answered(server: Net, body: bytes) -> tuple[int, Any]:
    """Where not even a connection's own memory is left, the server can only close it: ask again,
    since what the request before took is given back a moment after its answer."""
    for _ in range(20):
        try:
            got, _, answer = server.request("POST", CHAT, body)
            return got, answer
        except ConnectionError:
            assert server.process.poll() is None, "the server ended"
            time.sleep(0.05)
    raise AssertionError("no answer in 20 tries")


def a_server_without_memory_says_so() -> None:
    """A 6 MB chat under several limits of its address space: 503 or 400, and never a crash."""
    if is_sanitized():
        return
    body = b'{"messages":[{"role":"user","content":"' + b"a " * 3_000_000 + b'"}]}'
    with Net("--max-body-bytes", "32M") as server:
        pid = server.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        mapped = int(re.search(r"VmSize:\s+(\d+)", status)[1]) << 10
        codes = []
        for more in range(8, 138, 10):
            limit = mapped + (more << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            got, answer = request_until_answered(server, body)
            # With nothing left, not even the words fit.
            words = answer["error"]["message"] if answer else "out of memory"
            assert (got == 503 and "out of memory" in words) or \
                (got == 400 and answer["error"]["code"] == "context_length_exceeded"), (got, words)
            codes.append(got)
            server.post(CHAT, chat())
        assert codes.count(503) >= 3 and codes[-1] == 400, codes


def a_heavy_client_delays_itself() -> None:
    """Five long requests of one address; another one's shorter one overtakes most of them."""
    def ask(source: str, body: bytes) -> None:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120,
                                       source_address=(source, 0))
        c.request("POST", "/tokenize", body)
        assert c.getresponse().status == 200
        c.close()
        ended.append(source)

    n = 1_500_000 if is_sanitized() else 3_000_000
    heavy = json.dumps({"prompt": "a b " * (n // 4)}).encode()
    short = json.dumps({"prompt": "a b " * 50_000}).encode()
    ended: list[str] = []
    with Net("--max-body-bytes", "8M") as server:
        threads = [threading.Thread(target=ask, args=("127.0.0.1", heavy)) for _ in range(5)]
        for t in threads:
            t.start()
        while not ended:  # all of them have come by the time that the first is answered
            time.sleep(0.01)
        ask("127.0.0.2", short)
        for t in threads:
            t.join()
    assert ended.index("127.0.0.2") <= 3, ended


def a_chunked_body_is_limited_too() -> None:
    with Net() as server:
        s = server.connect()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                  % CHAT.encode())
        for _ in range(40):
            s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 413 ")
        s.close()


def bodies_together_are_limited() -> None:
    """40 times 2.5 MB do not fit into 64 MB: some are sent away, nothing else happens."""
    with Net("--max-body-bytes", "4M") as server:
        body = b" " * 2_500_000
        held = []
        for _ in range(40):
            s = server.connect()
            s.sendall(post_bytes(CHAT, body)[:-1])
            held.append(s)
        codes: dict[bytes, int] = {}
        for s in held:
            s.sendall(b" ")
            head = s.recv(4096)
            codes[head[9:12]] = codes.get(head[9:12], 0) + 1
            assert head[9:12] != b"503" or b"Retry-After: " in head, head
            s.close()
        assert set(codes) == {b"400", b"503"} and codes[b"503"] >= 5, codes
        assert server.request("POST", CHAT, body)[0] == 400
        server.post(CHAT, chat())


def long_bodies_hold_up_nobody() -> None:
    """80 long requests, two work threads: some are told to come back, small ones never wait."""
    with Net("--http-threads", "1") as server:
        n = 100_000 if is_sanitized() else 500_000
        body = json.dumps({"prompt": "x" * n, "return_token_strs": True}).encode()
        open_ = []
        for _ in range(80):
            s = server.connect()
            threading.Thread(target=lambda s=s: s.sendall(post_bytes("/tokenize", body))).start()
            open_.append(s)
        times = []
        codes: dict[bytes, int] = {}
        waiting = list(open_)
        start = time.monotonic()
        while waiting and time.monotonic() - start < 300:
            t = time.monotonic()
            assert server.request("GET", "/health")[0] == 200
            times.append(time.monotonic() - t)
            for s in select.select(waiting, [], [], 0)[0]:
                head = s.recv(400)
                codes[head[9:12]] = codes.get(head[9:12], 0) + 1
                if head[9:12] == b"429":
                    assert b"Retry-After: " in head, head
                waiting.remove(s)
                s.close()
        assert set(codes) <= {b"200", b"429"} and codes[b"200"] >= 2, codes
        assert sum(codes.values()) == 80, codes
        times.sort()
        print(f"      {codes}; /health meanwhile: median {times[len(times) // 2] * 1e3:.1f} ms, "
              f"worst {times[-1] * 1e3:.0f} ms")


def long_prompts_give_the_same_answers() -> None:
    with Net("--http-threads", "1") as server:
        for n in (60_000, 70_000, 200_000):
            answer = server.post("/tokenize", {"prompt": "y" * n})
            assert answer["count"] in (n, n + 1), (n, answer["count"])
        # White space makes a long body of a short prompt.
        body = json.dumps(chat(False, 5)).encode() + b" " * 100_000
        for _ in range(3):
            status, _, answer = server.request("POST", CHAT, body)
            assert status == 200
            assert answer["choices"][0]["message"]["content"] == "abcde", answer
        body = json.dumps(chat(True, 5)).encode() + b" " * 100_000
        status, _, text = server.request("POST", CHAT, body)
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        assert server.request("POST", CHAT, b"{" + b" " * 100_000)[0] == 400


def who_leaves_a_long_request_is_noticed() -> None:
    with Net(prefill_us=SLOW_US) as server:
        body = json.dumps(chat(False, 5)).encode() + b" " * 500_000
        for _ in range(20):
            s = server.connect()
            s.sendall(post_bytes(CHAT, body))
            s.close()
        s = server.connect()
        s.sendall(post_bytes(CHAT, body))
        server.wait_blocks(lambda n: n >= 1, 5)
        s.close()
        server.wait_blocks(lambda n: n == 0, 2)


# --- who leaves ---

def leave_at(server: Net, rng: random.Random, i: int) -> None:
    stage = i % 5
    body = json.dumps(chat(rng.random() < 0.5, 3000)).encode()
    if rng.random() < 0.1:
        body += b" " * 100_000
    text = post_bytes(CHAT, body)
    head = len(text) - len(body)
    s = server.connect()
    if rng.random() < 0.3:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        if stage == 0:
            s.sendall(text[:rng.randrange(0, head)])
        elif stage == 1:
            s.sendall(text[:rng.randrange(head, len(text))])
        else:  # queued, in prefill, in the stream
            s.sendall(text)
            time.sleep((0, rng.uniform(0, 0.05), rng.uniform(0.05, 0.2))[stage - 2])
            if stage == 4 and rng.random() < 0.5:
                s.setblocking(False)
                s.recv(65536)
    except OSError:
        pass
    s.close()


def a_thousand_disconnects_leave_nothing_behind() -> None:
    with Net(step_us=5_000, prefill_us=50_000, queue_max=100) as server:
        numbers = list(range(1000))
        lock = threading.Lock()

        def client(seed: int) -> None:
            rng = random.Random(seed)
            while True:
                with lock:
                    if not numbers:
                        return
                    i = numbers.pop()
                leave_at(server, rng, i)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seconds = server.wait_blocks(lambda n: n == 0, 3)
        m = server.metrics()
        assert m.get("tarn:kv_blocks_leaked", 0) == 0
        print(f"      0 blocks in use {seconds:.2f} s after the last one")
        frames, _ = server.stream(CHAT, chat(True, 5))
        assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames) == "abcde"


def lost_streams_give_their_descriptors_back() -> None:
    with Net("--idle-timeout", "60", step_us=5_000, prefill_us=20_000) as server:
        idle = server.connect()  # an older connection that stays
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096)
        for _ in range(3):
            held = [server.open_raw(CHAT, chat(True, 3000)) for _ in range(20)]
            server.wait_blocks(lambda n: n == 20, 5)
            for s in held:
                s.close()
            end = time.monotonic() + 10
            while n_sockets(server) > 1:
                assert time.monotonic() < end, f"{n_sockets(server)} sockets are still open"
                time.sleep(0.05)
        idle.close()


# --- Unix sockets ---

def ask_unix(path: Path, request: bytes = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(str(path))
        s.sendall(request)
        answer = s.recv(65536)
        # Who asked for the connection's end gets all of a long answer.
        while b"Connection: close" in request and (more := s.recv(65536)):
            answer += more
        return answer


def fails(*flags: str) -> str:
    done = subprocess.run([program(), "0", "0", "0", "10", *flags], capture_output=True,
                          timeout=60)
    assert done.returncode == 1, done
    return done.stderr.decode()


def a_unix_socket_serves() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tarn.sock"
        with Net("--uds", str(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert ask_unix(path).startswith(b"HTTP/1.1 200 ")
            answer = ask_unix(path, post_bytes(CHAT, json.dumps(chat()).encode()))
            assert b'"abcde"' in answer, answer
        assert not path.exists()
        with Net("--uds", str(path), "--uds-mode", "0660"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660


def who_leaves_a_unix_socket_is_noticed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tarn.sock"
        with Net("--uds", str(path), prefill_us=SLOW_US):
            def in_use() -> float:
                text = ask_unix(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
                                      b"Connection: close\r\n\r\n")
                for line in text.decode(errors="replace").splitlines():
                    if "tarn:kv_blocks{" in line and 'state="in_use"' in line:
                        return float(line.rsplit(" ", 1)[1])
                return -1.0
            s = socket.socket(socket.AF_UNIX)
            s.connect(str(path))
            s.sendall(post_bytes(CHAT, json.dumps(chat()).encode()))
            end = time.monotonic() + 5
            while in_use() != 1 and time.monotonic() < end:
                time.sleep(0.01)
            assert in_use() == 1
            s.close()
            end = time.monotonic() + 1
            while in_use() != 0 and time.monotonic() < end:
                time.sleep(0.01)
            assert in_use() == 0


def a_stale_unix_socket_is_replaced_nothing_else_is() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tarn.sock"
        server = Net("--uds", str(path))
        assert "another process listens" in fails("--uds", str(path))
        assert ask_unix(path)  # and goes on
        server.process.kill()
        server.process.wait()
        assert server.process.stdout
        server.process.stdout.close()
        assert path.exists()
        with Net("--uds", str(path)):
            assert ask_unix(path)
        path.write_text("precious")
        assert "no socket" in fails("--uds", str(path))
        assert path.read_text() == "precious"
        assert "cannot listen" in fails("--uds", str(Path(folder) / "none" / "tarn.sock"))
        assert "has more than" in fails("--uds", "/tmp/" + "x" * 200)
        assert "--uds-mode" in fails("--uds", str(path), "--uds-mode", "rw")


# --- TLS ---

def make_certificate(folder: str, name: str) -> tuple[str, str]:
    cert, key = f"{folder}/{name}.crt", f"{folder}/{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def tls_serves() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        with Net("--tls-cert", cert, "--tls-key", key, "--header-timeout", "1") as server:
            context = ssl.create_default_context(cafile=cert)
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30,
                                                     context=context)
            for stream in (False, True):
                connection.request("POST", CHAT, json.dumps(chat(stream)))
                response = connection.getresponse()
                text = response.read()
                assert response.status == 200, text
                assert b"[DONE]" in text if stream else b'"abcde"' in text, text
            body = json.dumps({"prompt": "z" * 300_000, "return_token_strs": True})
            connection.request("POST", "/tokenize", body)
            assert len(json.loads(connection.getresponse().read())["tokens"]) >= 300_000
            connection.close()
            old = ssl.create_default_context(cafile=cert)
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            try:
                raw = server.connect()
                old.wrap_socket(raw, server_hostname="127.0.0.1")
                raise AssertionError("TLS 1.1 was accepted")
            except (ssl.SSLError, OSError):
                raw.close()
            # Plain HTTP gets nothing; half a handshake is late like half a header.
            s = server.connect()
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" not in read_to_end(s, 5)[0]
            s = server.connect()
            s.sendall(b"\x16\x03\x01\x02\x00\x01")
            data, seconds = read_to_end(s, 10)
            assert seconds < 3, seconds


def who_leaves_over_tls_is_noticed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        with Net("--tls-cert", cert, "--tls-key", key, prefill_us=SLOW_US) as server:
            context = ssl.create_default_context(cafile=cert)

            def in_use() -> bytes:
                c = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
                c.request("GET", "/metrics")
                text = c.getresponse().read()
                c.close()
                return re.search(rb'tarn:kv_blocks\{[^}]*state="in_use"[^}]*\} (\d+)',
                                 text).group(1)  # type: ignore
            c = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
            c.request("POST", CHAT, json.dumps(chat()))
            end = time.monotonic() + 5
            while in_use() != b"1" and time.monotonic() < end:
                pass
            c.close()
            end = time.monotonic() + 1
            while in_use() != b"0" and time.monotonic() < end:
                pass
            assert in_use() == b"0"


def wrong_tls_files_are_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        _, other = make_certificate(folder, "b")
        words = fails("--tls-cert", cert, "--tls-key", other)
        assert cert in words and other in words and "together" in words, words
        words = fails("--tls-cert", cert + "x", "--tls-key", key)
        assert "tls-cert" in words and cert + "x" in words, words
        words = fails("--tls-cert", cert, "--tls-key", key + "x")
        assert "tls-key" in words and key + "x" in words, words
        words = fails("--tls-cert", key, "--tls-key", key)
        assert "tls-cert" in words and "PEM" in words, words
        assert "--tls-cert" in fails("--tls-cert", cert)
        assert "--tls-key" in fails("--tls-key", key)
        Path(cert).write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        assert cert in fails("--tls-cert", cert, "--tls-key", key)


# --- CORS, request ids ---

def cors_is_off_by_default() -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
    with Net() as server:
        for method, path in (("GET", "/health"), ("OPTIONS", CHAT)):
            _, headers, _ = server.request(method, path, None, preflight)
            assert not [h for h in headers if h.startswith("access-control")], headers


def cors_answers_allowed_origins() -> None:
    with Net("--allowed-origins", "https://a.example, http://localhost:3000") as server:
        for origin, allowed in (("https://a.example", True), ("http://localhost:3000", True),
                                ("https://b.example", False), ("https://a.example.evil", False),
                                ("null", False)):
            _, headers, _ = server.request("POST", CHAT, chat(), {"Origin": origin})
            assert headers.get("access-control-allow-origin") == (origin if allowed else None)
            assert ("vary" in headers) is allowed
            status, headers, _ = server.request(
                "OPTIONS", CHAT, None, {"Origin": origin, "Access-Control-Request-Method": "POST"})
            assert ("access-control-allow-methods" in headers) is allowed, headers
            if allowed:
                assert status == 204
                assert "Authorization" in headers["access-control-allow-headers"]
        _, headers, _ = server.request("GET", "/health")
        assert "access-control-allow-origin" not in headers
        # Errors too, or a page could not read why.
        status, headers, _ = server.request("POST", CHAT, b"{", {"Origin": "https://a.example"})
        assert status == 400 and "access-control-allow-origin" in headers
    with Net("--allowed-origins", "*") as server:
        _, headers, _ = server.request("GET", "/health", None, {"Origin": "https://b.example"})
        assert headers["access-control-allow-origin"] == "https://b.example"


def request_ids_go_in_and_out() -> None:
    with Net() as server:
        def id_of(given: str | None, path: str = "/health", body: Any = None) -> str:
            _, headers, _ = server.request("POST" if body else "GET", path, body,
                                           {"X-Request-Id": given} if given else {})
            return headers["x-request-id"]
        assert id_of("my-own_id.1") == "my-own_id.1"
        assert id_of("my-own_id.1", CHAT, chat(True)) == "my-own_id.1"
        assert id_of("my-own_id.1", CHAT, b"{") == "my-own_id.1"
        assert id_of("my-own_id.1", "/nowhere") == "my-own_id.1"
        made = {id_of(None) for _ in range(20)}
        assert len(made) == 20 and all(re.fullmatch("[0-9a-f]{24}", i) for i in made), made
        for bad in ("a b", "a\tb", 'a"b', "x" * 64, "<script>", "ä"):
            assert re.fullmatch("[0-9a-f]{24}", id_of(bad)), bad
        assert id_of("x" * 63) == "x" * 63


# --- memory ---

def rss_kb(server: Net) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))  # type: ignore


def ask_all(sockets: list[socket.socket]) -> None:
    for s in sockets:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for s in sockets:
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")


def measure_memory(n_idle: int, n_active: int, bound_kb_each: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with Net("--max-connections", str(n_idle + n_active + 100), "--idle-timeout", "300",
             "--header-timeout", "300", "--http-threads", "4", step_us=20_000) as server:
        server.post(CHAT, chat())
        base = rss_kb(server)
        idle = [server.connect() for _ in range(n_idle)]
        time.sleep(0.5)
        server.post(CHAT, chat())
        silent = rss_kb(server)
        ask_all(idle)
        used = rss_kb(server)
        active = []
        for _ in range(n_active):
            active.append(server.open_raw(CHAT, chat(True, 3000)))
        server.wait_blocks(lambda n: n == n_active, 60)
        time.sleep(1)
        t = time.monotonic()
        assert server.request("GET", "/health")[0] == 200
        health = time.monotonic() - t
        full = rss_kb(server)
        ask_all(idle[:100])
        for s in active:
            s.close()
        server.wait_blocks(lambda n: n == 0, 10)
        for s in idle:
            s.close()
        print(f"      RSS: {base / 1024:.0f} MB alone, {silent / 1024:.0f} MB with {n_idle} silent "
              f"connections, {used / 1024:.0f} MB after a request on each, {full / 1024:.0f} MB "
              f"with {n_active} streams; /health then {health * 1000:.0f} ms")
        each = (full - base) / (n_idle + n_active)
        print(f"      {each:.1f} KB a connection")
        if not is_sanitized():
            assert each < bound_kb_each, each


BOUND_KB_EACH = 48


def connections_take_little_memory() -> None:
    measure_memory(1000, 50, BOUND_KB_EACH)


TESTS = [
    a_slow_header_gets_408,
    a_slow_second_header_gets_408,
    a_header_that_stops_coming_is_late_too,
    an_idle_connection_stays_until_the_idle_timeout,
    a_slow_body_gets_408,
    a_body_above_the_least_rate_may_take_longer,
    an_answer_that_takes_long_is_not_late,
    a_client_that_does_not_take_a_stream_is_dropped,
    a_client_that_does_not_take_a_whole_answer_is_dropped,
    slowloris_does_not_hold_up_others,
    busy_connections_are_limited_and_health_is_answered,
    the_idlest_connection_is_closed_for_a_new_one,
    a_connection_that_never_sends_is_closed,
    idle_connections_keep_nobody_out,
    connections_per_address_are_limited,
    few_descriptors_mean_fewer_connections,
    soft_descriptor_limit_is_raised,
    what_the_library_refuses_is_refused,
    bodies_are_limited,
    bodies_that_parse_to_too_much_are_413,
    empty_bodies_and_bytes_behind_the_json_are_named,
    a_server_without_memory_says_so,
    a_heavy_client_delays_itself,
    a_chunked_body_is_limited_too,
    bodies_together_are_limited,
    long_bodies_hold_up_nobody,
    long_prompts_give_the_same_answers,
    who_leaves_a_long_request_is_noticed,
    a_thousand_disconnects_leave_nothing_behind,
    lost_streams_give_their_descriptors_back,
    a_unix_socket_serves,
    who_leaves_a_unix_socket_is_noticed,
    a_stale_unix_socket_is_replaced_nothing_else_is,
    tls_serves,
    who_leaves_over_tls_is_noticed,
    wrong_tls_files_are_named,
    cors_is_off_by_default,
    cors_answers_allowed_origins,
    request_ids_go_in_and_out,
    connections_take_little_memory,
]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int)
    parser.add_argument("--active", type=int)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.idle is not None:
        def many_connections_take_little_memory() -> None:
            measure_memory(args.idle, args.active or 0, BOUND_KB_EACH)
        return run_tests([many_connections_take_little_memory])
    tests = [t for t in TESTS if not args.names or t.__name__ in args.names]
    if not shutil.which("openssl"):
        print("      no openssl: without TLS")
        tests = [t for t in tests if "tls" not in t.__name__]
    return run_tests(tests)


if __name__ == "__main__":
    sys.exit(main())
