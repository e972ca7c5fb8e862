#!/usr/bin/env python3
"""Clients that leave, wait, crowd or come while the server goes: over the fake engine.

The fake engine is as slow as we ask, so every phase can be met on purpose, also under sanitizers.
"One block" is one request inside.
"""
from __future__ import annotations

import random
import socket
import struct
import sys
import threading
import time

from http_helpers import Server, fake_server, run_tests

CHAT = "/v1/chat/completions"
SLOW_PREFILL_US = 60_000_000
NOTICE_SECONDS = 1.0


def chat(stream: bool, max_tokens: int = 3000) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], "stream": stream,
            "max_tokens": max_tokens}


def leave(server: Server, body: dict[str, object], how: str) -> float:
    """Seconds until the server noticed."""
    s = server.open_raw(CHAT, body)
    server.wait_blocks(lambda n: n == 1, 5)
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-closed first":
        s.shutdown(socket.SHUT_WR)
    s.close()
    seconds = server.wait_blocks(lambda n: n == 0, NOTICE_SECONDS)
    s.close()
    return seconds


def lost_in_prefill_is_noticed() -> None:
    with fake_server(1000, SLOW_PREFILL_US, 100) as server:
        for stream in (False, True):
            for how in ("close", "reset", "half-closed first"):
                print(f"      stream={stream} {how}: {leave(server, chat(stream), how):.3f} s")


def lost_in_decode_is_noticed() -> None:
    with fake_server(20_000, 0, 100) as server:
        for stream in (False, True):
            for how in ("close", "reset"):
                print(f"      stream={stream} {how}: {leave(server, chat(stream), how):.3f} s")


def every_answer_of_a_lost_call_is_cancelled() -> None:
    with fake_server(20_000, 0, 100) as server:
        s = server.open_raw(CHAT, {**chat(False), "n": 16})
        server.wait_blocks(lambda n: n == 16, 5)
        s.close()
        server.wait_blocks(lambda n: n == 0, NOTICE_SECONDS)


def random_disconnects_leave_nothing_behind() -> None:
    rng = random.Random(1)
    delays = [rng.uniform(0, 0.3) for _ in range(300)]
    lock = threading.Lock()

    def client(server: Server) -> None:
        while True:
            with lock:
                if not delays:
                    return
                delay = delays.pop()
            s = server.open_raw(CHAT, chat(delay > 0.15))
            time.sleep(delay)
            if delay > 0.2:
                s.recv(4096)
            s.close()

    with fake_server(5_000, 50_000, 1000) as server:
        threads = [threading.Thread(target=client, args=(server,)) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        server.wait_blocks(lambda n: n == 0, NOTICE_SECONDS)
        frames, _ = server.stream(CHAT, chat(True, 5))
        assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames) == "abcde"


def a_waiting_stream_gets_a_comment_each_second() -> None:
    with fake_server(1000, 3_500_000, 100) as server:
        start = time.monotonic()
        frames, n_comments = server.stream(CHAT, chat(True, 3))
        assert n_comments == 3, n_comments
        assert frames and time.monotonic() - start > 3.4


def a_stream_comes_as_it_is_made() -> None:
    with fake_server(50_000, 0, 100) as server:
        s = server.open_raw(CHAT, chat(True, 10))
        times = []
        data = b""
        while b"[DONE]" not in data:
            piece = s.recv(65536)
            assert piece
            data += piece
            times.append(time.monotonic())
        s.close()
        gaps = [b - a for a, b in zip(times, times[1:])]
        assert len(times) >= 10, len(times)
        assert max(gaps) < 0.5, gaps


def a_client_that_does_not_read_holds_up_nobody() -> None:
    with fake_server(0, 0, 100) as server:
        s = server.open_raw(CHAT, {**chat(True, 4000), "logprobs": True, "top_logprobs": 20})
        start = time.monotonic()
        server.post(CHAT, chat(False, 10))
        assert time.monotonic() - start < 2
        s.close()
        server.wait_blocks(lambda n: n == 0, 5)


def a_full_queue_says_429_and_when_to_come_back() -> None:
    with fake_server(20_000, SLOW_PREFILL_US, 2) as server:
        held = [server.open_raw(CHAT, chat(False)) for _ in range(2)]
        server.wait_blocks(lambda n: n == 2, 5)
        status, headers, answer = server.request("POST", CHAT, chat(False))
        assert status == 429, (status, answer)
        assert headers["retry-after"].isdigit()
        assert answer["error"]["type"] == "rate_limit_error", answer
        # All of a call or nothing of it.
        status, _, _ = server.request("POST", CHAT, {**chat(False), "n": 3})
        assert status == 429
        for s in held:
            s.close()
        server.wait_blocks(lambda n: n == 0, NOTICE_SECONDS)


def sigterm_lets_running_requests_finish() -> None:
    server = fake_server(100_000, 0, 100)
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(server.stream(CHAT, chat(True, 15))[0])),
        threading.Thread(target=lambda: results.append(server.post(CHAT, chat(False, 15)))),
    ]
    for t in threads:
        t.start()
    server.wait_blocks(lambda n: n == 2, 5)
    server.process.terminate()
    time.sleep(0.3)
    status, _, _ = server.request("GET", "/health/live")
    assert status == 200, status
    status, headers, _ = server.request("GET", "/health/ready")
    assert status == 503 and "retry-after" in headers, status
    status, headers, _ = server.request("POST", CHAT, chat(False, 1))
    assert status == 503 and "retry-after" in headers, status
    for t in threads:
        t.join()
    assert len(results) == 2
    assert server.stop() == 0


def a_key_guards_every_route_but_health() -> None:
    with fake_server(0, 0, 100, "sesame") as server:
        for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT),
                             ("POST", "/tokenize"), ("GET", "/nowhere"), ("OPTIONS", CHAT)):
            status, _, answer = server.request(method, path, {} if method == "POST" else None)
            assert status == 401, (method, path, status)
            assert answer["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/health/live", "/health/ready"):
            assert server.request("GET", path)[0] == 200
        for headers in ({"Authorization": "Bearer sesame"}, {"x-api-key": "sesame"}):
            assert server.request("GET", "/v1/models", None, headers)[0] == 200
        assert server.request("GET", "/v1/models", None, {"x-api-key": "sesamo"})[0] == 401


def one_connection_serves_many_requests() -> None:
    import http.client
    import json
    with fake_server(0, 0, 100) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        ids = set()
        for i in range(50):
            body = b"{" if i % 5 == 4 else json.dumps(chat(i % 2 == 0, 5)).encode()
            connection.request("POST", CHAT, body)
            response = connection.getresponse()
            response.read()
            assert response.status == (400 if i % 5 == 4 else 200)
            ids.add(response.getheader("X-Request-Id"))
        assert len(ids) == 50
        connection.request("GET", "/health", headers={"X-Request-Id": "my-own_id.1"})
        response = connection.getresponse()
        response.read()
        assert response.getheader("X-Request-Id") == "my-own_id.1"
        connection.close()


if __name__ == "__main__":
    sys.exit(run_tests([
        lost_in_prefill_is_noticed,
        lost_in_decode_is_noticed,
        every_answer_of_a_lost_call_is_cancelled,
        random_disconnects_leave_nothing_behind,
        a_waiting_stream_gets_a_comment_each_second,
        a_stream_comes_as_it_is_made,
        a_client_that_does_not_read_holds_up_nobody,
        a_full_queue_says_429_and_when_to_come_back,
        sigterm_lets_running_requests_finish,
        a_key_guards_every_route_but_health,
        one_connection_serves_many_requests,
    ]))
