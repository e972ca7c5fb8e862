#!/usr/bin/env python3
"""Bodies that are long, many, malformed or expand to too much: each has a limit and an answer.

    test_network_bodies.py [NAME...]        only these tests
"""
from __future__ import annotations

import http.client
import json
import re
import resource
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, WAIT_SECONDS
from network_helpers import CHAT, Net, chat, is_sanitized, main, post_bytes

N_HEAVY = 6


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


def bodies_that_parse_to_too_much_are_413() -> None:
    """The limit is named, the memory does not grow, and the server goes on."""
    with Net("--max-body-bytes", "16M") as server:
        before = server.resident_bytes()
        for item, count, word in ((b"{}", 5_000_000, "4194304"), (b"{}", 600_000, "memory"),
                                  (b"1", 4_200_000, "4194304")):
            body = b'{"messages":[],"metadata":[' + b",".join([item] * count) + b"]}"
            got, _, answer = server.request("POST", CHAT, body)
            assert got == 413 and word in answer["error"]["message"], (got, answer)
        server.post(CHAT, chat())
        assert is_sanitized() or server.resident_bytes() < before + (48 << 20), before


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
    """Try again where no memory was left for the connection itself and the server closed it:
    the memory of the request before is free a moment after its answer."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            got, _, answer = server.request("POST", CHAT, body)
            return got, answer
        except ConnectionError:
            assert server.process.poll() is None, "the server ended"
            assert time.monotonic() < end, "no answer"
            time.sleep(0.05)


def a_server_without_memory_says_so() -> None:
    """A 6 MB chat under several limits of its address space: 503 or 400, and never a crash."""
    if is_sanitized():
        return
    body = b'{"messages":[{"role":"user","content":"' + b"a " * 3_000_000 + b'"}]}'
    with Net("--max-body-bytes", "32M") as server:
        pid = server.process.pid
        server.post(CHAT, chat())  # threads that start with the first request are mapped now
        status = Path(f"/proc/{pid}/status").read_text()
        mapped = int(re.search(r"VmSize:\s+(\d+)", status)[1]) << 10
        codes = []
        for more in (*range(4, 28, 4), *range(28, 138, 10)):
            limit = mapped + (more << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            got, answer = request_until_answered(server, body)
            # With nothing left, not even the words fit.
            words = answer["error"]["message"] if answer else "out of memory"
            assert (got == 503 and "out of memory" in words) or \
                (got == 400 and answer["error"]["code"] == "context_length_exceeded"), (got, words)
            codes.append(got)
            server.post(CHAT, chat())
        print(f'      {codes}')
        assert codes.count(503) >= 3 and codes[-1] == 400, codes


def a_heavy_client_delays_itself() -> None:
    """Long requests of one address are there; a short one of another address overtakes some."""
    def ask(source: str, body: bytes) -> None:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT,
                                       source_address=(source, 0))
        c.request("POST", "/tokenize", body)
        sent.release()
        assert c.getresponse().status == 200
        c.close()
        ended.append(source)

    n = 1_500_000
    heavy = json.dumps({"prompt": "a b " * (n // 4)}).encode()
    short = json.dumps({"prompt": "a b " * 50_000}).encode()
    ended: list[str] = []
    sent = threading.Semaphore(0)
    with Net("--max-body-bytes", "8M") as server:
        threads = [threading.Thread(target=ask, args=("127.0.0.1", heavy))
                   for _ in range(N_HEAVY)]
        for t in threads:
            t.start()
        for _ in range(N_HEAVY):
            sent.acquire()
        ask("127.0.0.2", short)
        for t in threads:
            t.join()
    assert ended.index("127.0.0.2") < N_HEAVY - 1, ended


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
    """80 long requests, two work threads: some get 503 with Retry-After, small ones never wait."""
    with Net("--http-threads", "1") as server:
        n = 100_000 if is_sanitized() else 150_000
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
        while waiting and time.monotonic() - start < 5 * WAIT_SECONDS:
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


if __name__ == "__main__":
    sys.exit(main([
        bodies_are_limited,
        bodies_that_parse_to_too_much_are_413,
        empty_bodies_and_bytes_behind_the_json_are_named,
        a_server_without_memory_says_so,
        a_heavy_client_delays_itself,
        a_chunked_body_is_limited_too,
        bodies_together_are_limited,
        long_bodies_hold_up_nobody,
        long_prompts_give_the_same_answers,
    ]))
