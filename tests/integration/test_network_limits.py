#!/usr/bin/env python3
"""The limits on connections and descriptors, and requests that the HTTP library refuses itself.

    test_network_limits.py [NAME...]        only these tests
"""
from __future__ import annotations

import re
import resource
import select
import socket
import sys
import time
from pathlib import Path

from http_helpers import wait_until
from network_helpers import CHAT, SLOW_US, Net, chat, is_answered, main, read_to_end


def busy_connections_are_limited_and_health_is_answered() -> None:
    """No busy connection is closed for a new one, which is told that the server is full."""
    with Net("--max-connections", "20", "--http-threads", "1", prefill_us=SLOW_US) as server:
        held = [server.open_raw(CHAT, chat()) for _ in range(20)]
        for _ in range(5):
            server.wait_sockets(lambda n: n >= 20)
            assert server.request("GET", "/health")[0] == 200
            for path, body in ((CHAT, chat()), ("/v1/completions", b" " * 900_000)):
                status, headers, answer = server.request("POST", path, body)
                assert status == 503 and headers["connection"] == "close", (status, headers)
                assert answer["error"]["code"] == "too_many_connections", answer
                assert "retry-after" in headers
        assert not select.select(held, [], [], 0.2)[0]
        held.pop().close()
        wait_until(lambda: server.request("GET", "/v1/models")[0] == 200)
        for s in held:
            s.close()


def the_idlest_connection_is_closed_for_a_new_one() -> None:
    with Net("--max-connections", "10") as server:
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
            assert read_to_end(s) == b""
        assert all(speaks(s) for s in used + more)
        more.append(server.connect())
        assert speaks(more[-1])
        # The server ends a request a little after its answer, so neighbours may change places.
        closed = [i for i, s in enumerate(used + more) if not speaks(s)]
        assert len(closed) == 1 and closed[0] < 5, closed
        for s in used + silent + more:
            s.close()


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
    """The idle timeout is longer than the requests of this test wait for their answers."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with Net("--max-connections", "4096") as server:
        worst = idle_connections(4200, server)
        print(f"      4,200 idle connections, 4,096 places: /health/live {worst * 1e3:.1f} ms")
    # The open files of the process, 32 connections and the short ones fit into 64 descriptors.
    with Net("--max-connections", "4096", hard_files=64) as server:
        assert "max_connections_now=32" in server.log_text(), server.log_text()
        worst = idle_connections(400, server)
        print(f"      400 idle connections, 64 descriptors: /health/live {worst * 1e3:.1f} ms")
        assert "cannot accept" not in server.log_text(), server.log_text()


def connections_per_address_are_limited() -> None:
    with Net("--max-connections-per-ip", "5") as server:
        held = [server.connect() for _ in range(5)]
        for s in held:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096)
        assert read_to_end(server.connect()) == b""
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
    """A header beyond 32 KB or a malformed line: the library answers in HTML and closes."""
    with Net(has_test_clock=True) as server:
        for start, status in (
                (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n", b"414"),
                (b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 100_000 + b"\r\n", b"431"),
                (b"GET /health HTTP/1.1\r\n" + b"X-Many: a\r\n" * 20_000, b"431"),
                (b"GET nonsense\r\n", b"400"),
                (b"\0\1\2 nonsense\r\n", b"408")):  # for the library not a whole header
            s = server.connect()
            try:
                s.sendall(start + b"\r\n")
            except ConnectionError:
                pass  # it need not read to the end
            if status == b"408":
                server.advance_until(lambda: is_answered(s))
            data = read_to_end(s)
            # A reset may overtake the answer if the client sent much more than the server read.
            assert data == b"" or data.startswith(b"HTTP/1.1 " + status), data[:200]
        s = server.connect()  # and 16 KB are fine
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 16_000 + b"\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        s.close()
        server.post(CHAT, chat())


if __name__ == "__main__":
    sys.exit(main([
        busy_connections_are_limited_and_health_is_answered,
        the_idlest_connection_is_closed_for_a_new_one,
        idle_connections_keep_nobody_out,
        connections_per_address_are_limited,
        few_descriptors_mean_fewer_connections,
        soft_descriptor_limit_is_raised,
        what_the_library_refuses_is_refused,
    ]))
