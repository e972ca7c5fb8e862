#!/usr/bin/env python3
"""The memory that connections take, idle and streaming.

    test_network_memory.py [--idle N] [--active N]
"""
from __future__ import annotations

import argparse
import resource
import socket
import sys
import time

from http_helpers import run_tests
from network_helpers import CHAT, Net, chat, is_sanitized

BOUND_KB_EACH = 48


def ask_all(sockets: list[socket.socket]) -> None:
    for s in sockets:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for s in sockets:
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")


def measure_memory(n_idle: int, n_active: int) -> None:
    with Net("--max-connections", str(n_idle + n_active + 100), "--http-threads", "4",
             step_us=50_000) as server:
        server.post(CHAT, chat())
        base = server.resident_bytes()
        idle = [server.connect() for _ in range(n_idle)]
        server.wait_sockets(lambda n: n >= n_idle)
        server.post(CHAT, chat())
        silent = server.resident_bytes()
        ask_all(idle)
        used = server.resident_bytes()
        active = []
        for _ in range(n_active):
            active.append(server.open_raw(CHAT, chat(True, 3000)))
        server.wait_blocks(lambda n: n == n_active)
        time.sleep(1)
        t = time.monotonic()
        assert server.request("GET", "/health")[0] == 200
        health = time.monotonic() - t
        full = server.resident_bytes()
        ask_all(idle[:100])
        for s in active:
            s.close()
        server.wait_blocks(lambda n: n == 0)
        for s in idle:
            s.close()
        print(f"      RSS: {base >> 20} MB alone, {silent >> 20} MB with {n_idle} silent "
              f"connections, {used >> 20} MB after a request on each, {full >> 20} MB "
              f"with {n_active} streams; /health then {health * 1000:.0f} ms")
        each = (full - base) / (n_idle + n_active) / 1024
        print(f"      {each:.1f} KB a connection")
        if not is_sanitized():
            assert each < BOUND_KB_EACH, each


def main() -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--active", type=int, default=50)
    args = parser.parse_args()

    def connections_take_little_memory() -> None:
        measure_memory(args.idle, args.active)
    return run_tests([connections_take_little_memory])


if __name__ == "__main__":
    sys.exit(main())
