#!/usr/bin/env python3
"""Checks of RFC 9112 that a server behind a proxy needs, and clients that half-close.

If two programs read a head in two ways, it can hide one request in another. Each malformed head is
sent as the first request of a connection, as the second one, together with another one in one
piece, and over TLS; a request that must never run follows it. The engine is the fake one; only on
127.0.0.1.
"""
from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import ssl
import sys
import tempfile
import time
from pathlib import Path

from http_helpers import run_tests, tarn_test
from network_helpers import CHAT, SLOW_US, Net, ask_unix, chat, make_certificate, post_bytes

HOST = b"Host: x\r\n"
BODY = b'{"prompt":"abc"}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"


def post(fields: bytes, body: bytes = BODY) -> bytes:
    return b"POST /tokenize HTTP/1.1\r\n" + fields + b"\r\n" + body


def get(target: bytes, fields: bytes = HOST) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\n" + fields + b"\r\n"


# name: request, status, a word of the message (None: the HTTP library's own page)
MALFORMED: dict[str, tuple[bytes, int, str | None]] = {
    "two lengths, the first is 0": (post(HOST + b"Content-Length: 0\r\n" + LENGTH), 400,
                                    "more than"),
    "two lengths, the second is 0": (post(HOST + LENGTH + b"Content-Length: 0\r\n"), 400,
                                     "more than"),
    "two equal lengths": (post(HOST + LENGTH + LENGTH), 400, "more than one Content-Length"),
    "a blank before the colon": (post(HOST + b"Transfer-Encoding : chunked\r\n" + LENGTH), 400,
                                 "in its name"),
    "a blank before the colon, alone": (post(HOST + b"Transfer-Encoding : chunked\r\n", b""), 400,
                                        "in its name"),
    "a tab before the colon": (post(HOST + b"Content-Length\t: 16\r\n"), 400, "in its name"),
    "chunked and a length": (post(HOST + b"Transfer-Encoding: chunked\r\n" + LENGTH, b"0\r\n\r\n"),
                             400, "exclude"),
    "chunked twice": (post(HOST + b"Transfer-Encoding: chunked\r\n" * 2, b"0\r\n\r\n"), 400,
                      "more than one Transfer-Encoding"),
    "chunked in HTTP/1.0": (post(HOST + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")
                            .replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "HTTP/1.0"),
    "an unknown coding": (post(HOST + b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501,
                          "chunked"),
    "identity and a length": (post(HOST + b"Transfer-Encoding: identity\r\n" + LENGTH), 400,
                              "exclude"),
    "no host": (post(LENGTH), 400, "no Host"),
    "two hosts": (post(HOST + b"Host: y\r\n" + LENGTH), 400, "more than one Host"),
    "two hosts in HTTP/1.0": (get(b"/health", HOST + HOST).replace(b"1.1", b"1.0"), 400, "Host"),
    "a host that is none": (get(b"/health", b"Host: a/b\r\n"), 400, "Host"),
    "a host with a blank": (get(b"/health", b"Host: a b\r\n"), 400, "Host"),
    "NUL in the path": (get(b"/health\0x"), 400, "NUL"),
    "NUL behind the path": (get(b"/health/live\0"), 400, "NUL"),
    "NUL in the query": (get(b"/health/live?a=\0b"), 400, "NUL"),
    "encoded NUL in the path": (get(b"/health/live%00x"), 400, "NUL"),
    "encoded NUL in an absolute target": (get(b"http://host/health/live%00"), 400, "NUL"),
    "NUL in the method": (b"GE\0T /health HTTP/1.1\r\n" + HOST + b"\r\n", 400, "NUL"),
    "NUL in a value": (get(b"/health", HOST + b"X: a\0b\r\n"), 400, "NUL"),
    "NUL at the end of a value": (get(b"/health", HOST + b"X: a\0\r\n"), 400, "NUL"),
    "NUL before a value": (get(b"/health", HOST + b"X:\0a\r\n"), 400, "NUL"),
    "NUL in the host": (get(b"/health", b"Host: x\0y\r\n"), 400, "NUL"),
    "NUL in a length": (post(HOST + b"Content-Length: 16\0" + b"0\r\n"), 400, "NUL"),
    "NUL in a name": (get(b"/health", HOST + b"X\0Y: a\r\n"), 400, None),
    "NUL as a line's start": (get(b"/health", HOST + b"\0oops\r\nX: y\r\n"), 400, "NUL"),
    "NUL as a short line": (get(b"/health", b"Host: x\n\0o\n"), 400, "NUL"),
    "a folded value": (get(b"/health", HOST + b"X: a\r\n b\r\n"), 400, "folded"),
    "a folded name that becomes chunked": (
        post(HOST + b"Transfer-Encod: chunked\r\n ing\r\n" + LENGTH), 400, "folded"),
    "an empty folded line": (get(b"/health", HOST + b"X: a\r\n \r\nY: b\r\n"), 400, "folded"),
    "a folded last line": (get(b"/health", HOST + b"X: a\r\n\tb\r\n"), 400, "folded"),
    "a first field that is folded": (get(b"/health", b" X: a\r\n" + HOST), 400, "name"),
    "an empty name": (get(b"/health", HOST + b": a\r\n"), 400, ""),
    "a carriage return in a value": (get(b"/health", HOST + b"X: a\rY: b\r\n"), 400, "control"),
    "length -1": (post(HOST + b"Content-Length: -1\r\n"), 400, "not a number"),
    "length +16": (post(HOST + b"Content-Length: +16\r\n"), 400, "not a number"),
    "length 16, 16": (post(HOST + b"Content-Length: 16, 16\r\n"), 400, "not a number"),
    "length 0x10": (post(HOST + b"Content-Length: 0x10\r\n"), 400, "not a number"),
    "no length at all": (post(HOST + b"Content-Length:\r\n"), 400, "not a number"),
    "length 10^30": (post(HOST + b"Content-Length: 1" + b"0" * 30 + b"\r\n"), 413, "too large"),
    "length 2^64": (post(HOST + b"Content-Length: 18446744073709551616\r\n"), 413, "too large"),
    "length 2^64 - 1": (post(HOST + b"Content-Length: 18446744073709551615\r\n"), 413, "too large"),
    "a blank in the target": (get(b"/a b"), 400, "blank"),
    "two blanks before the target": (get(b" /health"), 400, "blank"),
    "a target without slash": (get(b"health"), 400, "path"),
    "a foreign scheme": (get(b"ftp://host/health"), 400, "path"),
    "an encoded slash in the host": (get(b"http://ho%2Fst/health"), 400, "%"),
    "cookies without end": (get(b"/health", HOST + b"Cookie: " + b"a," * 5000 + b"\r\n"), 431,
                            "large"),
    "arguments without end": (get(b"/health?" + b"&a" * 3000), 431, "arguments"),
}


def read_all(s: socket.socket, seconds: float = 10) -> tuple[bytes, bool]:
    """The received bytes, and whether the server ended the connection."""
    s.settimeout(seconds)
    data = b""
    try:
        while piece := s.recv(1 << 16):
            data += piece
        return data, True
    except TimeoutError:
        return data, False
    except (ConnectionError, ssl.SSLError):
        return data, True


def check_refused(name: str, data: bytes, ended: bool, n_before: int) -> None:
    _, status, word = MALFORMED[name]
    answers = re.findall(rb"HTTP/1\.1 (\d+) ", data)
    assert ended, (name, "the connection stayed open", data)
    assert b"hidden" not in data, (name, data)
    assert answers == [b"200"] * n_before + [b"%d" % status], (name, answers, data)
    head, _, body = data[data.rindex(b"HTTP/1.1 "):].partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower(), (name, head)
    assert int(re.search(rb"(?i)content-length: (\d+)", head).group(1)) == len(body), (name, data)
    if word is not None:
        error = json.loads(body)["error"]
        assert word in error["message"], (name, error)
        assert error["type"] == "invalid_request_error", (name, error)


def malformed_heads_get_one_answer_and_the_connection_ends() -> None:
    with Net() as server:
        for name, (request, _, _) in MALFORMED.items():
            for n_before, together in ((0, True), (1, False), (1, True), (3, True)):
                s = server.connect()
                if together:  # in one piece: MHD has all of it in its buffer
                    s.sendall(HEALTH * n_before + request + HIDDEN)
                    data, ended = read_all(s)
                else:
                    s.sendall(HEALTH)
                    data = s.recv(4096)
                    s.sendall(request + HIDDEN)
                    more, ended = read_all(s)
                    data += more
                check_refused(name, data, ended, n_before)
                s.close()
        server.post(CHAT, chat())


def malformed_heads_in_pieces_are_refused_too() -> None:
    with Net() as server:
        for name in ("two lengths, the second is 0", "length -1", "a folded value",
                     "a blank before the colon", "NUL in a value", "no host"):
            s = server.connect()
            for i in range(0, len(MALFORMED[name][0]), 7):
                try:
                    s.sendall(MALFORMED[name][0][i:i + 7])
                except ConnectionError:
                    break  # it is answered before the body has come
                time.sleep(0.002)
            data, ended = read_all(s)
            # The bytes sent after the answer may reset the connection before the answer is read.
            if data:
                check_refused(name, data, ended, 0)
            assert ended
            s.close()


def malformed_heads_are_refused_over_tls() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        context = ssl.create_default_context(cafile=cert)
        with Net("--tls-cert", cert, "--tls-key", key) as server:
            for name, (request, _, _) in MALFORMED.items():
                with context.wrap_socket(server.connect(), server_hostname="localhost") as s:
                    s.sendall(HEALTH + request + HIDDEN)
                    check_refused(name, *read_all(s), 1)


WELL_FORMED: dict[str, bytes] = {
    "HTTP/1.0 without a host": b"GET /health/live HTTP/1.0\r\n\r\n",
    "an empty host": get(b"/health", b"Host:\r\n"),
    "a host with a port": get(b"/health", b"Host: [::1]:8000\r\n"),
    "blanks around values": get(b"/health", b"Host:   x  \r\nX:\ty \t\r\nZ:\r\n"),
    "lines that end with LF": b"GET /health HTTP/1.1\nHost: x\nX: y\n\n",
    "an empty line before": b"\r\n" + HEALTH,
    "bytes above 127": get("/health?q=ä".encode(), HOST + "X: ä".encode() + b"\r\n"),
    "many fields": get(b"/health", HOST + b"".join(b"X-%d: v\r\n" % i for i in range(150))),
    "many arguments": get(b"/health?" + b"&".join(b"a%d=1" % i for i in range(100))),
    "a long field": get(b"/health", HOST + b"X: " + b"a" * 16_000 + b"\r\n"),
    "a length with zeros": post(HOST + b"Content-Length: 0016\r\n"),
    "chunked": post(HOST + b"Transfer-Encoding: Chunked\r\n", b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an absolute target": get(b"http://host:8000/health/live"),
    "an absolute target with a query": get(b"HTTPS://host/health?a=b"),
    "a blank in a path, encoded": get(b"/v1/models/a%20b"),
}


def well_formed_heads_are_accepted() -> None:
    with Net() as server:
        for name, request in WELL_FORMED.items():
            for n_before in (0, 2):
                s = server.connect()
                s.sendall(HEALTH * n_before + request + HEALTH)
                s.shutdown(socket.SHUT_WR)
                data, ended = read_all(s)
                answers = re.findall(rb"HTTP/1\.1 (\d+) ", data)
                this = b"404" if "models" in request.decode(errors="replace") else b"200"
                after = [] if b"HTTP/1.0" in request else [b"200"]
                assert ended and answers == [b"200"] * n_before + [this] + after, (name, data)
                s.close()
        s = server.connect()
        s.sendall(get(b"http://host"))
        assert b"there is no GET / here" in s.recv(4096)
        s.close()


def a_compressed_body_gets_415() -> None:
    with Net() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                timeout=tarn_test.patience(30))
        for coding, status in (("gzip", 415), ("br", 415), ("gzip, identity", 415),
                               ("identity", 200), ("Identity", 200), ("", 200)):
            connection.request("POST", "/tokenize", BODY, {"Content-Encoding": coding})
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == status, (coding, response.status, answer)
            if status == 415:
                assert "uncompressed" in answer["error"]["message"], answer
                assert answer["error"]["code"] == "unsupported_content_encoding", answer
                assert response.getheader("Accept-Encoding") == "identity"
        connection.request("GET", "/health", None, {"Content-Encoding": "gzip"})
        assert connection.getresponse().status == 200  # there is no body
        connection.close()


# --- clients that shut down their sending side ---

def without_interim(data: bytes) -> bytes:
    """The final answer: `data` without the 1xx answers before it."""
    while data.startswith(b"HTTP/1.1 100 "):
        data = data.partition(b"\r\n\r\n")[2]
    return data


def ask_half_closed(s: socket.socket, request: bytes) -> bytes:
    s.sendall(request)
    s.shutdown(socket.SHUT_WR)
    data, ended = read_all(s, 30)
    assert ended
    s.close()
    return without_interim(data)


def a_half_closed_client_gets_its_answer() -> None:
    long = json.dumps(chat()).encode() + b" " * 100_000  # goes through a work thread
    requests = {
        "health": HEALTH,
        "chat": post_bytes(CHAT, json.dumps(chat()).encode()),
        "stream": post_bytes(CHAT, json.dumps(chat(True)).encode()),
        "long": post_bytes(CHAT, long),
        "n": post_bytes(CHAT, json.dumps({**chat(), "n": 4}).encode()),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tarn.sock"
        for flags in ((), ("--uds", str(path))):
            with Net(*flags, step_us=20_000, prefill_us=300_000) as server:
                def connect() -> socket.socket:
                    if server.port:
                        return server.connect()
                    s = socket.socket(socket.AF_UNIX)
                    s.settimeout(30)
                    s.connect(str(path))
                    return s
                for name, request in requests.items():
                    data = ask_half_closed(connect(), request)
                    assert data.startswith(b"HTTP/1.1 200 "), (flags, name, data)
                    if name == "stream":
                        assert b"data: [DONE]" in data, data
                    elif name != "health":
                        assert b'"abcde"' in data, (name, data)


def standard_clients_skip_what_shows_that_they_are_there() -> None:
    """http.client reads the answer, although its socket is half closed and 100 Continue came."""
    with Net(prefill_us=2_000_000) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                timeout=tarn_test.patience(30))
        connection.request("POST", CHAT, json.dumps(chat()))
        connection.sock.shutdown(socket.SHUT_WR)
        response = connection.getresponse()
        assert response.status == 200 and b'"abcde"' in response.read()
        connection.close()


def a_half_closed_client_that_leaves_is_noticed() -> None:
    with Net(prefill_us=SLOW_US) as server:
        for stream in (False, True):
            s = server.connect()
            s.sendall(post_bytes(CHAT, json.dumps(chat(stream)).encode()))
            s.shutdown(socket.SHUT_WR)
            server.wait_blocks(lambda n: n == 1)
            time.sleep(0.5)
            assert server.blocks_in_use() == 1, "it waits for its answer"
            s.settimeout(0.3)
            try:
                while s.recv(4096):  # unread bytes would make the kernel send a reset by itself
                    pass
            except TimeoutError:
                pass
            s.close()
            seconds = server.wait_blocks(lambda n: n == 0)
            print(f"      stream={stream}: noticed {seconds:.2f} s after it left")


def where_nothing_can_be_sent_a_fin_counts_as_leaving() -> None:
    """HTTP/1.0 knows no 100 Continue, and over TLS only the HTTP library may send."""
    with Net(prefill_us=SLOW_US) as server:
        s = server.connect()
        s.sendall(post_bytes(CHAT, json.dumps(chat()).encode()).replace(b"HTTP/1.1", b"HTTP/1.0"))
        server.wait_blocks(lambda n: n == 1)
        s.shutdown(socket.SHUT_WR)
        server.wait_blocks(lambda n: n == 0)
        assert read_all(s)[0] == b""
        s.close()


def an_answer_to_a_unix_socket_waits_without_a_word() -> None:
    """The kernel tells a half-closed Unix socket from a closed one: nothing is sent before."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tarn.sock"
        with Net("--uds", str(path), prefill_us=1_500_000):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(30)
            s.connect(str(path))
            s.sendall(post_bytes(CHAT, json.dumps(chat()).encode()))
            s.shutdown(socket.SHUT_WR)
            data, _ = read_all(s, 30)
            assert data.startswith(b"HTTP/1.1 200 ") and b'"abcde"' in data, data
            assert ask_unix(path).startswith(b"HTTP/1.1 200 ")
            s.close()


TESTS = [
    malformed_heads_get_one_answer_and_the_connection_ends,
    malformed_heads_in_pieces_are_refused_too,
    malformed_heads_are_refused_over_tls,
    well_formed_heads_are_accepted,
    a_compressed_body_gets_415,
    a_half_closed_client_gets_its_answer,
    standard_clients_skip_what_shows_that_they_are_there,
    a_half_closed_client_that_leaves_is_noticed,
    where_nothing_can_be_sent_a_fin_counts_as_leaving,
    an_answer_to_a_unix_socket_waits_without_a_word,
]


if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    if not shutil.which("openssl"):
        print("      no openssl: without TLS")
        chosen = [t for t in chosen if "tls" not in t.__name__]
    sys.exit(run_tests(chosen))
