#!/usr/bin/env python3
"""The scripted server sends the bytes of its script at the right times, checked by a plain socket.

The C client is not used here, because its own tests rely on the scripted server.
"""
import json
import socket
import sys
import time
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scripted_server import ScriptedServer  # noqa: E402

EARLY_MS = 1.5   # asyncio's timers and the two clocks' reading
LATE_MS = 150    # a busy machine
READ_SECONDS = 20


class Client:
    """Send one request on one connection; return the received pieces and their times."""

    def __init__(self, server, script, path="/v1/completions", **body):
        url = urllib.parse.urlsplit(server.url)
        self.socket = socket.create_connection((url.hostname, url.port), timeout=READ_SECONDS)
        data = json.dumps({"prompt": "one two three", "script": script, **body}).encode()
        self.begin = time.monotonic()
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}"
                            "\r\n\r\n".encode() + data)
        self.text = b""
        self.arrivals = []   # (bytes so far, ms)

    def read_until(self, mark=None):
        """To the mark or to the end; False on RST."""
        try:
            while mark is None or mark not in self.text:
                data = self.socket.recv(65536)
                if not data:
                    return True
                self.text += data
                self.arrivals.append((len(self.text), (time.monotonic() - self.begin) * 1000))
        except ConnectionResetError:
            return False
        return True

    def when(self, mark):
        """ms at which `mark` was complete."""
        at = self.text.index(mark) + len(mark)
        return next(ms for n, ms in self.arrivals if n >= at)


def near(ms, due):
    assert due - EARLY_MS <= ms <= due + LATE_MS, (ms, due)


def times_are_kept(server):
    c = Client(server, {"ttft_ms": 60, "gap_ms": [20, 40], "n_tokens": 4}, stream=True)
    c.read_until(b"[DONE]")
    for i, due in enumerate((60, 80, 120, 140)):
        near(c.when(b'"text":"t%d "' % i), due)
    near(c.when(b"\r\n\r\n"), 0)
    c = Client(server, {"head_ms": 50, "ttft_ms": 30, "n_tokens": 1}, stream=True)
    c.read_until(b"[DONE]")
    near(c.when(b"\r\n\r\n"), 50)
    near(c.when(b"t0"), 50)
    c = Client(server, {"ttft_ms": 50, "gap_ms": 10, "n_tokens": 3})
    c.read_until(b"}}")
    near(c.when(b"t2 "), 70)
    c = Client(server, {"stall_after": 1, "stall_ms": 100, "n_tokens": 2}, stream=True)
    c.read_until(b"[DONE]")
    near(c.when(b"t0 "), 0)
    near(c.when(b"t1 "), 100)
    c = Client(server, {"ttft_ms": 100, "comment_ms": 30, "n_tokens": 1}, stream=True)
    c.read_until(b"[DONE]")
    assert c.text.count(b": still here") == 3, c.text


def events(c):
    """The JSON of a stream's events, chunked framing taken off."""
    body, out = c.text.split(b"\r\n\r\n", 1)[1], b""
    while body:
        size, body = body.split(b"\r\n", 1)
        out, body = out + body[:int(size, 16)], body[int(size, 16) + 2:]
    return [line[6:] for line in out.decode().split("\n") if line.startswith("data: ")]


def contents_are_kept(server):
    c = Client(server, {"n_tokens": 4, "tokens_per_chunk": 2, "cached_tokens": 2,
                        "cached_tiers": {"host": 2}}, path="/v1/chat/completions", stream=True,
               messages=[{"role": "user", "content": "a b"}],
               stream_options={"include_usage": True}, prompt=None)
    c.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
    got = events(c)
    assert got[-1] == "[DONE]"
    got = [json.loads(e) for e in got[:-1]]
    deltas = [e["choices"][0]["delta"] for e in got if e["choices"]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "t0 t1 "},
                      {"content": "t2 t3 "}, {}], deltas
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert got[-1]["usage"] == {
        "prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6, "prompt_tokens_details":
        {"cached_tokens": 2, "cached_tokens_details": {"host": 2}}}, got[-1]
    c = Client(server, {"n_tokens": 3, "split": 1}, stream=True)
    c.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert len(events(c)) == 5
    c = Client(server, {"n_tokens": 2, "newline": "\r\n", "framing": "close"}, stream=True)
    assert c.read_until()
    assert c.text.endswith(b"data: [DONE]\r\n\r\n")
    c = Client(server, {"n_tokens": 2, "done": False}, stream=True)
    c.read_until(b"\r\n0\r\n\r\n")
    assert b"[DONE]" not in c.text


def faults_are_played(server):
    c = Client(server, {"n_tokens": 4, "gap_ms": 30, "reset_after": 2}, stream=True)
    assert not c.read_until()
    assert b"t1 " in c.text and b"t2 " not in c.text
    c = Client(server, {"n_tokens": 4, "close_after": 2}, stream=True)
    assert c.read_until()
    assert c.text.endswith(b"\n\n\r\n") and b"t2 " not in c.text
    c = Client(server, {"n_tokens": 4, "half_close_after": 1, "hold_ms": 5000}, stream=True)
    assert c.read_until()
    c.socket.sendall(b"still taken") # the server closed its sending side only
    assert Client(server, {"reset_after": -1}).read_until() is False
    c = Client(server, {"close_after": -1})
    assert c.read_until() and c.text == b""
    c = Client(server, {"status": 429, "retry_after": 2, "error": "later"})
    c.read_until(b"later")
    assert c.text.startswith(b"HTTP/1.1 429 ") and b"\r\nRetry-After: 2\r\n" in c.text
    c = Client(server, {"error_after": 1, "n_tokens": 3}, stream=True)
    c.read_until(b"\r\n0\r\n\r\n")
    assert "error" in json.loads(events(c)[-1]) and b"[DONE]" not in c.text
    c = Client(server, {"garbage": "what?"})
    assert c.read_until() and c.text == b"what?"
    c = Client(server, {"bad_json_after": 1, "n_tokens": 2}, stream=True)
    c.read_until(b"[DONE]")
    assert '{"oops' in events(c)[1] or b'{"oops' in c.text


def what_happened_is_told(server):
    def own(path, method="GET"):
        url = urllib.parse.urlsplit(server.url)
        with socket.create_connection((url.hostname, url.port), timeout=READ_SECONDS) as s:
            s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            text = s.recv(1 << 20)
            return text.split(b"\r\n\r\n", 1)[1].decode()

    own("/scripted/reset", "POST")
    c = Client(server, {"n_tokens": 2}, stream=True)
    c.read_until(b"[DONE]")
    left = Client(server, {"ttft_ms": 60000}, stream=True)
    left.read_until(b"\r\n\r\n")
    left.socket.close()
    for _ in range(100):
        stats = json.loads(own("/scripted/stats"))
        if stats["n_left"] == 1:
            break
        time.sleep(0.05)
    assert stats["n_left"] == 1 and stats["n_done"] == 1 and stats["n_generating"] == 0, stats
    log = [json.loads(line) for line in own("/scripted/log").splitlines()]
    assert [r["end"] for r in log] == ["done", "client left"], log
    assert len(log[0]["sent_ns"]) == 2 and json.loads(log[0]["body"])["prompt"] == "one two three"


def main():
    with ScriptedServer() as server:
        for case in (times_are_kept, contents_are_kept, faults_are_played, what_happened_is_told):
            case(server)
            print(f"ok {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
