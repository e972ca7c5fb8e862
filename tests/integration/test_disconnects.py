#!/usr/bin/env python3
"""Clients that leave, wait, are too many, or connect while the server stops; with a fake engine.

Each test sets the speed of the fake engine, so it reaches every phase of a request, also under
sanitizers. A request holds one block. Without a cancellation a request takes minutes: a block that
is freed early proves that the server noticed the lost client.
"""
from __future__ import annotations

import http.client
import json
import random
import select
import socket
import struct
import sys
import threading
import time
from typing import Callable

from http_helpers import WAIT_SECONDS, Server, fake_server, run_tests, wait_until
from network_helpers import SLOW_US, Net, post_bytes, read_to_end

CHAT = "/v1/chat/completions"
SLOW_STEP_US = 200_000  # 3,000 tokens take ten minutes


def chat(stream: bool, max_tokens: int = 3000) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], "stream": stream,
            "max_tokens": max_tokens}


def leave(server: Server, body: dict[str, object], how: str) -> float:
    """Seconds until the server noticed."""
    s = server.open_raw(CHAT, body)
    server.wait_blocks(lambda n: n == 1)
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-closed first":
        s.shutdown(socket.SHUT_WR)
    s.close()
    seconds = server.wait_blocks(lambda n: n == 0)
    s.close()
    return seconds


def lost_in_prefill_is_noticed() -> None:
    with fake_server(1000, SLOW_US, 100) as server:
        for stream in (False, True):
            for how in ("close", "reset", "half-closed first"):
                print(f"      stream={stream} {how}: {leave(server, chat(stream), how):.3f} s")


def lost_in_decode_is_noticed() -> None:
    with fake_server(SLOW_STEP_US, 0, 100) as server:
        for stream in (False, True):
            for how in ("close", "reset"):
                print(f"      stream={stream} {how}: {leave(server, chat(stream), how):.3f} s")


def every_answer_of_a_lost_call_is_cancelled() -> None:
    with fake_server(SLOW_STEP_US, 0, 100) as server:
        s = server.open_raw(CHAT, {**chat(False), "n": 16})
        server.wait_blocks(lambda n: n == 16)
        s.close()
        server.wait_blocks(lambda n: n == 0)


def read_until(s: socket.socket, is_there: Callable[[bytes], bool]) -> bytes:
    s.settimeout(WAIT_SECONDS)
    data = b""
    while not is_there(data):
        piece = s.recv(65536)
        assert piece, data
        data += piece
    return data


def a_waiting_stream_gets_a_comment_each_second() -> None:
    with fake_server(1000, SLOW_US, 100) as server:
        start = time.monotonic()
        s = server.open_raw(CHAT, chat(True, 3))
        data = read_until(s, lambda data: data.count(b": keep-alive\n\n") == 3)
        assert time.monotonic() - start > 2.7
        assert b"data: " not in data, data
        s.close()
        server.wait_blocks(lambda n: n == 0)


def a_stream_comes_as_it_is_made() -> None:
    """The first tokens are read while the last one is ten minutes away."""
    with fake_server(SLOW_STEP_US, 0, 100) as server:
        s = server.open_raw(CHAT, chat(True, 3000))
        read_until(s, lambda data: data.count(b"data: ") >= 3)
        s.close()
        server.wait_blocks(lambda n: n == 0)


def open_unread(server: Server, stream: bool) -> socket.socket:
    """A request whose answer is larger than the kernel's buffers: the server cannot finish it
    before the test reads."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", server.port))
    body = {**chat(stream, 4000), "logprobs": True, "top_logprobs": 20}
    s.sendall(post_bytes(CHAT, json.dumps(body).encode(), "Connection: close\r\n"))
    assert select.select([s], [], [], WAIT_SECONDS)[0]
    return s


def a_client_that_does_not_read_holds_up_nobody() -> None:
    with fake_server(0, 0, 100) as server:
        s = open_unread(server, True)
        server.post(CHAT, chat(False, 10))
        assert b"[DONE]" in read_to_end(s)
        s.close()


def a_full_queue_says_429_and_when_to_come_back() -> None:
    with fake_server(20_000, SLOW_US, 2) as server:
        held = [server.open_raw(CHAT, chat(False)) for _ in range(2)]
        server.wait_blocks(lambda n: n == 2)
        status, headers, answer = server.request("POST", CHAT, chat(False))
        assert status == 429, (status, answer)
        assert headers["retry-after"].isdigit()
        assert answer["error"]["type"] == "rate_limit_error", answer
        # All of a call or nothing of it.
        status, _, _ = server.request("POST", CHAT, {**chat(False), "n": 3})
        assert status == 429
        for s in held:
            s.close()
        server.wait_blocks(lambda n: n == 0)


def sigterm_lets_running_requests_finish() -> None:
    server = fake_server(0, 0, 100)
    unread = [open_unread(server, stream) for stream in (True, False)]
    server.process.terminate()
    wait_until(lambda: server.request("GET", "/health/ready")[0] == 503)
    for method, path, want in (("GET", "/health/live", 200), ("GET", "/health/ready", 503),
                               ("POST", CHAT, 503)):
        status, headers, _ = server.request(method, path, chat(False, 1) if path == CHAT else None)
        assert status == want, (path, status)
        assert ("retry-after" in headers) == (want == 503), headers
    for s, end in zip(unread, (b"[DONE]\n\n", b"}")):
        data = read_to_end(s)
        assert end in data[-20:], data[-200:]
        s.close()
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
    with fake_server(0, 0, 100) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_SECONDS)
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


def a_client_that_leaves_a_long_request_is_noticed() -> None:
    with Net(prefill_us=SLOW_US) as server:
        body = json.dumps(chat(False, 5)).encode() + b" " * 500_000
        for _ in range(20):
            s = server.connect()
            s.sendall(post_bytes(CHAT, body))
            s.close()
        s = server.connect()
        s.sendall(post_bytes(CHAT, body))
        server.wait_blocks(lambda n: n >= 1)
        s.close()
        server.wait_blocks(lambda n: n == 0)


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
    with Net(step_us=50_000, prefill_us=50_000, queue_max=100) as server:
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
        seconds = server.wait_blocks(lambda n: n == 0)
        m = server.metrics()
        assert m.get("tarn:kv_blocks_leaked", 0) == 0
        print(f"      0 blocks in use {seconds:.2f} s after the last one")
        frames, _ = server.stream(CHAT, chat(True, 5))
        assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames) == "abcde"


def lost_streams_give_their_descriptors_back() -> None:
    with Net(step_us=50_000, prefill_us=20_000) as server:
        idle = server.connect()  # an older connection that stays
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096)
        for _ in range(3):
            held = [server.open_raw(CHAT, chat(True, 3000)) for _ in range(20)]
            server.wait_blocks(lambda n: n == 20)
            for s in held:
                s.close()
            server.wait_sockets(lambda n: n == 1)
        idle.close()


if __name__ == "__main__":
    sys.exit(run_tests([
        lost_in_prefill_is_noticed,
        lost_in_decode_is_noticed,
        every_answer_of_a_lost_call_is_cancelled,
        a_thousand_disconnects_leave_nothing_behind,
        a_client_that_leaves_a_long_request_is_noticed,
        lost_streams_give_their_descriptors_back,
        a_waiting_stream_gets_a_comment_each_second,
        a_stream_comes_as_it_is_made,
        a_client_that_does_not_read_holds_up_nobody,
        a_full_queue_says_429_and_when_to_come_back,
        sigterm_lets_running_requests_finish,
        a_key_guards_every_route_but_health,
        one_connection_serves_many_requests,
    ], n_at_once=2))
