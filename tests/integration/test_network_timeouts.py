#!/usr/bin/env python3
"""Slow, silent and greedy clients meet the header, body, write and idle timeouts, which pass on a
test clock. The engine is the fake one, so the test also runs under sanitizers; only on 127.0.0.1.

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

from http_helpers import TIMEOUT, WAIT_SECONDS, wait_until
from network_helpers import (CHAT, Net, assert_408, chat, drip, is_answered, main, post_bytes,
                             read_to_end)


MINUTES_10 = 600  # the timeouts of a fake server; only the test clock reaches them


def a_slow_header_gets_408() -> None:
    with Net(has_test_clock=True) as server:
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        assert drip(s, server) >= MINUTES_10
        assert_408(read_to_end(s))


def a_slow_second_header_gets_408() -> None:
    with Net(has_test_clock=True) as server:
        s, half = server.connect(), server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"ready"' in s.recv(4096)
        # The header timeout does not count while a connection is idle.
        half.sendall(b"GE")
        assert server.advance_until(lambda: is_answered(half)) >= MINUTES_10
        assert not is_answered(s)
        s.sendall(b"GE")
        assert drip(s, server) >= MINUTES_10
        assert_408(read_to_end(s))


def a_header_that_stops_coming_is_late_too() -> None:
    """After the first piece no event of the socket comes: only the ticks find these clients."""
    with Net(has_test_clock=True) as server:
        silent = []
        for _ in range(200):
            silent.append(server.connect())
            silent[-1].sendall(b"GET /health HTTP/1.1\r\n")
        assert server.advance_until(lambda: all(is_answered(s) for s in silent)) >= MINUTES_10
        for s in silent:
            assert_408(read_to_end(s))


def an_idle_connection_meets_no_header_timeout() -> None:
    with Net(has_test_clock=True) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
        half = server.connect()
        half.sendall(b"GE")
        for _ in range(2):
            connection.request("POST", CHAT, json.dumps(chat()))
            response = connection.getresponse()
            assert response.status == 200 and response.read()
            server.advance_until(lambda: is_answered(half))
            assert connection.sock and not is_answered(connection.sock)


def an_idle_connection_is_closed_at_the_idle_timeout() -> None:
    """libmicrohttpd measures this timeout, with its own clock."""
    with Net("--idle-timeout", "1", has_test_clock=True) as server:
        s = server.connect()
        start = time.monotonic()
        try:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        except ConnectionError:
            pass  # on a slow machine the timeout passes before the request
        read_to_end(s)
        assert time.monotonic() - start > 0.9


def a_slow_body_gets_408() -> None:
    with Net(has_test_clock=True) as server:
        s = server.connect()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" % CHAT.encode())
        assert drip(s, server) >= MINUTES_10
        assert_408(read_to_end(s))


def a_body_above_the_least_rate_may_take_longer() -> None:
    """Each 16 KB of the body extend the timeout by one second: 8 MB extend it to ten minutes."""
    with Net("--body-timeout", "100", "--max-body-bytes", "16M", has_test_clock=True) as server:
        body = json.dumps(chat(content="x" * 8_000_000)).encode()
        s = server.connect()
        s.settimeout(TIMEOUT)
        text = post_bytes("/tokenize", body)
        s.sendall(text[:-1])
        wait_until(lambda: server.n_unread(s) == 0)
        for _ in range(3):
            server.advance()
        s.sendall(text[-1:])
        assert s.recv(100).startswith(b"HTTP/1.1 200 ")
        s.close()


def an_answer_that_takes_long_is_not_late() -> None:
    for stream in (False, True):
        with Net(prefill_us=1_000_000_000, has_test_clock=True) as server:
            s = server.connect()
            s.sendall(post_bytes(CHAT, json.dumps(chat(stream)).encode(), "Connection: close\r\n"))
            wait_until(lambda: server.blocks_in_use() == 1)
            assert server.advance_until(lambda: server.blocks_in_use() == 0) > MINUTES_10
            answer = read_to_end(s)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.count(b"data: ") > 2 if stream else b'"abcde"' in answer, answer


def a_client_that_does_not_take_a_stream_is_dropped() -> None:
    with Net(has_test_clock=True) as server:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        body = json.dumps({**chat(True, 4000), "logprobs": True, "top_logprobs": 20}).encode()
        s.sendall(post_bytes(CHAT, body))
        assert select.select([s], [], [], WAIT_SECONDS)[0]
        assert server.advance_until(lambda: server.n_sockets() == 0) >= MINUTES_10
        assert b"[DONE]" not in read_to_end(s)
        assert server.blocks_in_use() == 0
        s.close()


def a_client_that_does_not_take_a_whole_answer_is_dropped() -> None:
    with Net("--max-body-bytes", "4M", has_test_clock=True) as server:
        body = json.dumps({"prompt": "x" * 1_500_000, "return_token_strs": True}).encode()
        for reads, whole in ((True, True), (False, False)):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.settimeout(WAIT_SECONDS)
            s.connect(("127.0.0.1", server.port))
            s.sendall(post_bytes("/tokenize", body, "Connection: close\r\n"))
            if not reads:
                assert select.select([s], [], [], WAIT_SECONDS)[0]
                server.advance_until(lambda: server.n_sockets() == 0)
            data = read_to_end(s)
            n = int(re.search(rb"(?i)content-length: (\d+)", data).group(1))  # type: ignore
            got = len(data.partition(b"\r\n\r\n")[2])
            assert (got == n) is whole, (reads, got, n)
            s.close()


def slowloris_does_not_hold_up_others() -> None:
    """Answers come while every slow client is still held; each slow client is dropped later."""
    n = 500
    with Net("--max-connections", "600", has_test_clock=True) as server:
        slow = []
        for i in range(n):
            slow.append(server.connect())
            slow[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
                             if i % 2 else b"GET /health HTTP/1.1\r\nX-Slow: ")
        for _ in range(5):
            server.post(CHAT, chat())
        assert not any(is_answered(s) for s in slow)

        def drip_all() -> bool:
            for s in slow:
                try:
                    s.send(b"x")
                except OSError:
                    pass  # is_answered() is true then
            return all(is_answered(s) for s in slow)
        assert server.advance_until(drip_all) >= MINUTES_10
        server.post(CHAT, chat())


def a_connection_that_never_sends_is_closed() -> None:
    with Net(has_test_clock=True) as server:
        s = server.connect()
        assert server.advance_until(lambda: is_answered(s)) >= MINUTES_10
        assert read_to_end(s) == b""


if __name__ == "__main__":
    sys.exit(main([
        a_slow_header_gets_408,
        a_slow_second_header_gets_408,
        a_header_that_stops_coming_is_late_too,
        an_idle_connection_meets_no_header_timeout,
        an_idle_connection_is_closed_at_the_idle_timeout,
        a_slow_body_gets_408,
        a_body_above_the_least_rate_may_take_longer,
        an_answer_that_takes_long_is_not_late,
        a_client_that_does_not_take_a_stream_is_dropped,
        a_client_that_does_not_take_a_whole_answer_is_dropped,
        slowloris_does_not_hold_up_others,
        a_connection_that_never_sends_is_closed,
    ], n_at_once=4))
