#!/usr/bin/env python3
"""Slow, silent and greedy clients meet the header, body, write and idle timeouts. Over the fake
engine, so also under sanitizers; only on 127.0.0.1.

    test_network_timeouts.py [NAME...]        only these tests
"""
from __future__ import annotations

import http.client
import json
import re
import select
import socket
import sys
import time

from http_helpers import TIMEOUT, WAIT_SECONDS
from network_helpers import CHAT, Net, assert_408, chat, drip, main, post_bytes, read_to_end


def a_slow_header_gets_408() -> None:
    with Net("--header-timeout", "1") as server:
        start = time.monotonic()
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        drip(s)
        assert time.monotonic() - start > 0.9
        assert_408(read_to_end(s))


def a_slow_second_header_gets_408() -> None:
    with Net("--header-timeout", "2") as server:
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"ready"' in s.recv(4096)
        time.sleep(2.3)  # the header timeout does not count while a connection is idle
        start = time.monotonic()
        s.sendall(b"GE")
        drip(s)
        assert time.monotonic() - start > 1.9
        assert_408(read_to_end(s))


def a_header_that_stops_coming_is_late_too() -> None:
    """After the first piece no event of the socket comes: only the ticks find these clients."""
    with Net("--header-timeout", "1") as server:
        silent = []
        for _ in range(200):
            silent.append(server.connect())
            silent[-1].sendall(b"GET /health HTTP/1.1\r\n")
        for s in silent:
            assert_408(read_to_end(s))


def an_idle_connection_stays_until_the_idle_timeout() -> None:
    with Net("--header-timeout", "1", "--body-timeout", "1", "--write-timeout", "1",
             "--idle-timeout", "4") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
        for pause in (1.5, 0):
            connection.request("POST", CHAT, json.dumps(chat()))
            start = time.monotonic()
            response = connection.getresponse()
            assert response.status == 200 and response.read()
            time.sleep(pause)
        assert connection.sock
        assert read_to_end(connection.sock) == b""
        assert time.monotonic() - start > 2.5


def a_slow_body_gets_408() -> None:
    with Net("--body-timeout", "1") as server:
        s = server.connect()
        start = time.monotonic()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" % CHAT.encode())
        drip(s)
        assert time.monotonic() - start > 0.9
        assert_408(read_to_end(s))


def a_body_above_the_least_rate_may_take_longer() -> None:
    """Each 16 KB that have come allow one second more: 400 KB allow 25."""
    with Net("--body-timeout", "1") as server:
        body = json.dumps(chat(content="x" * 400_000)).encode()
        s = server.connect()
        s.settimeout(TIMEOUT)
        text = post_bytes("/tokenize", body)
        s.sendall(text[:-1])
        time.sleep(2)
        s.sendall(text[-1:])
        assert s.recv(100).startswith(b"HTTP/1.1 200 ")
        s.close()


def an_answer_that_takes_long_is_not_late() -> None:
    with Net("--header-timeout", "1", "--body-timeout", "1", "--write-timeout", "1",
             prefill_us=1_600_000) as server:
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
        assert select.select([s], [], [], WAIT_SECONDS)[0]
        server.wait_sockets(lambda n: n == 0)
        assert b"[DONE]" not in read_to_end(s)
        assert server.blocks_in_use() == 0
        s.close()


def a_client_that_does_not_take_a_whole_answer_is_dropped() -> None:
    with Net("--write-timeout", "1", "--max-body-bytes", "4M") as server:
        body = json.dumps({"prompt": "x" * 1_500_000, "return_token_strs": True}).encode()
        for reads, whole in ((True, True), (False, False)):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.settimeout(WAIT_SECONDS)
            s.connect(("127.0.0.1", server.port))
            s.sendall(post_bytes("/tokenize", body, "Connection: close\r\n"))
            if not reads:
                assert select.select([s], [], [], WAIT_SECONDS)[0]
                server.wait_sockets(lambda n: n == 0)
            data = read_to_end(s)
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


def a_connection_that_never_sends_is_closed() -> None:
    with Net("--header-timeout", "1") as server:
        start = time.monotonic()
        assert read_to_end(server.connect()) == b""
        assert time.monotonic() - start > 0.9


if __name__ == "__main__":
    sys.exit(main([
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
        a_connection_that_never_sends_is_closed,
    ], n_at_once=4))
