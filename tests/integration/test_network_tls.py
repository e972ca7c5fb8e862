#!/usr/bin/env python3
"""Unix sockets, TLS, CORS and request ids.

    test_network_tls.py [NAME...]        only these tests
"""
from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import stat
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, wait_until
from network_helpers import (CHAT, SLOW_US, Net, ask_unix, chat, fails, main, make_certificate,
                             post_bytes, read_to_end)


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


def a_client_that_leaves_a_unix_socket_is_noticed() -> None:
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
            wait_until(lambda: in_use() == 1)
            s.close()
            wait_until(lambda: in_use() == 0)


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
        assert "not a socket" in fails("--uds", str(path))
        assert path.read_text() == "precious"
        assert "cannot listen" in fails("--uds", str(Path(folder) / "none" / "tarn.sock"))
        assert "has more than" in fails("--uds", "/tmp/" + "x" * 200)
        assert "--uds-mode" in fails("--uds", str(path), "--uds-mode", "rw")


def tls_serves() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        with Net("--tls-cert", cert, "--tls-key", key) as server:
            context = ssl.create_default_context(cafile=cert)
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=TIMEOUT,
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
            s = server.connect()  # plain HTTP gets no answer
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" not in read_to_end(s)


def half_a_handshake_is_late_like_half_a_header() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "a")
        with Net("--tls-cert", cert, "--tls-key", key, "--header-timeout", "1") as server:
            s = server.connect()
            s.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert b"200" not in read_to_end(s)


def a_client_that_leaves_over_tls_is_noticed() -> None:
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
            wait_until(lambda: in_use() == b"1")
            c.close()
            wait_until(lambda: in_use() == b"0")


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


if __name__ == "__main__":
    sys.exit(main([
        a_unix_socket_serves,
        a_client_that_leaves_a_unix_socket_is_noticed,
        a_stale_unix_socket_is_replaced_nothing_else_is,
        tls_serves,
        half_a_handshake_is_late_like_half_a_header,
        a_client_that_leaves_over_tls_is_noticed,
        wrong_tls_files_are_named,
        cors_is_off_by_default,
        cors_answers_allowed_origins,
        request_ids_go_in_and_out,
    ]))
