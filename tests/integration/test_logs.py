#!/usr/bin/env python3
"""The log: JSON from the first line to the last, errors before other lines, a line per request,
and no line that a client could forge.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from http_helpers import REPO, TIMEOUT, Server, make_model, run_tests, tarn_server, wait_until
import tarn_test

TEXT = "/v1/completions"
FOLDER: Path
MODEL: Path


def key_file() -> str:
    path = FOLDER / "keys.json"
    path.write_text(json.dumps({"keys": [
        {"name": "a", "key": "sk-aaaaaaaa", "tenant": "ta"},
        {"name": "l", "key": "sk-llllllll", "requests_per_minute": 1}]}))
    path.chmod(0o600)
    return str(path)


def serve(*options: str, env: dict[str, str] | None = None) -> Server:
    return tarn_server(MODEL, "--threads", "1", "--no-profile-cost", *options, env=env)


def start_fails(*options: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    """stdout and stderr of a server whose start must fail."""
    done = subprocess.run([str(tarn_test.program("tarn-server")), *options], capture_output=True,
                          text=True,
                          timeout=tarn_test.patience(60), check=False,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 1, done
    return done.stdout, done.stderr


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def wrong_starts() -> list[list[str]]:
    model = str(MODEL)
    return [["--model", model, "--no-such-flag"], ["--model", '/there/is/"none"'], [],
            ["--model", model, "--port", "x"], ["--model", model, "--host", "300.1.1.1"],
            ["--model", model, "--tls-cert", "/nowhere", "--tls-key", "/nowhere"],
            ["--model", model, "--no-profile-cost", "--kv-device-bytes", "1K"]]


# --- the start ---

def a_start_error_comes_first_and_is_the_last_word() -> None:
    for options in wrong_starts():
        out, err = start_fails(*options)
        assert out == "" and "configuration" not in err, (options, out, err)
        assert err.splitlines()[-1].startswith("tarn-server: "), (options, err)
    with serve() as s:
        pass
    lines = s.log_text().splitlines()
    assert sum("configuration model=" in line for line in lines) == 1, lines


def with_json_logs_everything_is_json() -> None:
    for options in wrong_starts():
        out, err = start_fails(*options, "--log-format", "json")
        (last,) = [e for e in events(err) if e["level"] == "error"]
        assert out == "" and last["event"] == "tarn-server failed" and last["why"], (options, err)
    # Wherever the wish stands, and whatever else is wrong.
    for options, env in ((["--log-format=json", "--oops"], {}),
                         (["--oops", "--log-format=json"], {}),
                         (["--oops"], {"TARN_LOG_FORMAT": "json"})):
        assert "--oops" in events(start_fails(*options, env=env)[1])[-1]["why"]
    _, err = start_fails("--oops", "--log-format", "text", env={"TARN_LOG_FORMAT": "json"})
    assert err.startswith("tarn-server: --oops"), err
    why = events(start_fails("--model", '/there/is/"none"', "--log-format", "json")[1])[-1]["why"]
    assert '/there/is/"none"' in why, why  # quotes do not cut it
    with serve("--log-format", "json", env={"TARN_ODD": "1"}) as s:
        s.post("/v1/completions", {"prompt": [5] * 40, "max_tokens": 2})
    banner = events(s.first_lines)
    assert len(banner) == 1 and banner[0]["event"] == "serving", banner
    assert banner[0]["url"] == f"{s.url}/v1" and banner[0]["kv_tokens"] > 0, banner
    seen = {e["event"]: e for e in events(s.log_text())}
    assert {"configuration", "request", "draining", "stopped"} <= seen.keys(), seen
    assert seen["configuration"]["max-num-seqs"] == 64 and seen["configuration"]["model"], seen
    assert seen["unknown variable ignored"]["name"] == "TARN_ODD", seen


def the_variable_of_clients_is_none_of_the_servers() -> None:
    with serve(env={"TARN_URL": "http://127.0.0.1:1", "TARN_ODD": "x"}) as s:
        assert s.request("GET", "/health")[0] == 200
    assert "TARN_URL" not in s.log_text() and 'name="TARN_ODD"' in s.log_text(), s.log_text()


def ask_names_what_it_could_not_reach() -> None:
    def ask(url: str) -> str:
        done = subprocess.run([sys.executable, str(REPO / "deploy" / "ask.py"), "--url", url, "Hi"],
                              capture_output=True, text=True,
                              timeout=tarn_test.patience(60), check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done
        return done.stderr

    url = f"http://127.0.0.1:{tarn_test.free_port()}"
    words = ask(url)
    assert f"cannot reach {url}: " in words and "deploy/quickstart" in words, words
    for url in ("ftp://x", "127.0.0.1:8000", "http://[::1", "http://"):
        assert f"--url {url}: expected http://HOST:PORT" in ask(url), ask(url)
    with serve("--api-key", "k-12345678") as s:
        assert f"{s.url} answered 401: " in ask(s.url), ask(s.url)


# --- requests ---

def http_lines(server: Server) -> dict[str, dict[str, Any]]:
    """The lines about requests of a server with JSON logs, by the request's id."""
    return {e["id"]: e for e in events(server.log_text()) if e["event"] == "http"}


def every_request_has_a_line() -> None:
    long_body = {"prompt": "x" * 100000}
    good = {"prompt": "secretprompt", "max_tokens": 2}
    # id, method, path, body, key -> status, error, key in the line
    asked = [("ok", "POST", TEXT, good, "sk-aaaaaaaa", 200, None, "a"),
             ("stream", "POST", TEXT, {**good, "stream": True}, "sk-aaaaaaaa", 200, None, "a"),
             ("models", "GET", "/v1/models?secretquery=1", None, "sk-aaaaaaaa", 200, None, "a"),
             ("nokey", "POST", TEXT, good, "", 401, "invalid_api_key", None),
             ("badkey", "GET", "/cache", None, "sk-secretkey", 401, "invalid_api_key", None),
             ("forbidden", "GET", "/cache", None, "sk-aaaaaaaa", 403, "forbidden", "a"),
             ("nopath", "GET", "/no/such", None, "sk-aaaaaaaa", 404, "not_found", "a"),
             ("method", "PUT", TEXT, {}, "sk-aaaaaaaa", 405, "method_not_allowed", "a"),
             ("large", "POST", TEXT, long_body, "sk-aaaaaaaa", 413, "body_too_large", "a"),
             ("json", "POST", TEXT, b'{"secretprompt', "sk-aaaaaaaa", 400, "malformed_json", "a"),
             ("value", "POST", TEXT, {**good, "max_tokens": "secretvalue"}, "sk-aaaaaaaa", 400,
              "invalid_value", "a"),
             ("limit", "POST", TEXT, good, "sk-llllllll", 200, None, "l"),
             ("limited", "POST", TEXT, good, "sk-llllllll", 429, "rate_limit_exceeded", "l"),
             ("boss", "GET", "/cache", None, "boss-key", 200, None, "admin-api-key-1")]
    with serve("--api-key-file", key_file(), "--admin-api-key", "boss-key", "--log-format", "json",
               "--max-body-bytes", "64K") as s:
        for name, method, path, body, key, status, _, _ in asked:
            headers = {"X-Request-Id": name, **({"Authorization": f"Bearer {key}"} if key else {})}
            got = s.request(method, path, body, headers)[0]
            assert got == status, (name, got)
    lines = http_lines(s)
    for name, method, path, body, _, status, error, key in asked:
        line = lines[name]
        assert line["method"] == method and line["path"] == path.split("?")[0], line
        assert line["status"] == status and line.get("error") == error, line
        assert line.get("key") == key, line
        assert line.get("tenant") == ("ta" if key == "a" else key), line
        assert line["duration_us"] > 0 and line["n_out"] > 0 and "whole" not in line, line
        if isinstance(body, dict) and status == 200:
            assert line["n_in"] == len(json.dumps(body)), line
    assert not re.search("secret(prompt|query|key|value)", s.log_text())


def a_client_that_leaves_has_a_line_too() -> None:
    with serve("--log-format", "json") as s:
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "n": 16}
        whole = s.open_raw(TEXT, body)
        stream = s.open_raw(TEXT, {**body, "stream": True})
        stream.recv(1)
        whole.close()
        stream.close()
        wait_until(lambda: len(http_lines(s)) >= 2, s.log_text)
        ends = sorted((e["status"], e["whole"]) for e in http_lines(s).values())
        assert ends == [(0, False), (200, False)], ends


def requests_that_never_reached_a_handler_have_a_line() -> None:
    raw = {b"GET /no-host?secretquery=1 HTTP/1.1\r\nX-Request-Id: nohost\r\n\r\n": 400,
           b"POST /two HTTP/1.1\r\nHost: x\r\nX-Request-Id: two\r\nContent-Length: 1\r\n"
           b"Content-Length: 2\r\n\r\nab": 400,
           b"GET /many?" + b"&".join(b"a%d" % i for i in range(5000)) + b" HTTP/1.1\r\n": 431}

    def answer(port: int, text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as c:
            try:
                c.sendall(text)
                return c.recv(100)
            except ConnectionError:
                return b""

    with serve("--log-format", "json", "--body-timeout", "1") as s:
        for text, status in raw.items():
            assert answer(s.port, text).startswith(b"HTTP/1.1 %d" % status), text[:50]
        late = b"POST /late-body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"
        assert answer(s.port, late).startswith(b"HTTP/1.1 408")
    log = s.log_text()
    with serve("--log-format", "json", "--header-timeout", "1") as s:
        late = b"GET /late-head HTTP/1.1\r\nHost: x\r\n"
        # On a slow machine the timeout may pass before the first byte: then there is no answer.
        wait_until(lambda: answer(s.port, late).startswith(b"HTTP/1.1 408"))
    log += s.log_text()
    lines = {e["path"]: e for e in events(log) if e["event"] == "http"}
    assert not re.search("secret(query|key)", log)
    for path, status, error in (("/no-host", 400, "malformed_request"),
                                ("/two", 400, "malformed_request"),
                                ("/many", 431, "malformed_request"),
                                ("/late-head", 408, "request_timeout"),
                                ("/late-body", 408, "request_timeout")):
        assert (lines[path]["status"], lines[path]["error"]) == (status, error), lines[path]
        assert lines[path]["id"], lines[path]
    assert lines["/two"]["id"] == "two" and lines["/late-body"]["n_in"] == 2, lines


def probes_are_logged_at_debug_unless_they_fail() -> None:
    for level, n in (("info", 0), ("debug", 3)):
        with serve("--log-format", "json", "--log-level", level) as s:
            for path in ("/health", "/health/live", "/metrics"):
                assert s.request("GET", path)[0] == 200
            assert s.request("PUT", "/health", None, {"X-Request-Id": "wrong"})[0] == 405
        lines = http_lines(s)
        assert len(lines) == n + 1 and lines["wrong"]["error"] == "method_not_allowed", lines


def a_client_can_forge_no_line() -> None:
    evil = ["/x%0a2026-01-01T00:00:00.000Z%20error%20forged%20line", "/%1b%5b31mred%1b%5b0m",
            "/%22%20status=200%20x=%22", "/%c2%9b31m", "/%e2%80%aeabc", "/" + "y" * 5000,
            "/%ff%fe", "/v1/models/%0d%0aforged%20line"]
    fields = {f"forged\nline\x1b[31m{i}\u202e": 1 for i in range(1000)}
    for form in ("text", "json"):
        with serve("--log-format", form, "--log-level", "debug") as s:
            for path in evil:
                assert s.request("GET", path)[0] == 404
            s.request("A" * 3000, "/")
            s.request("POST", TEXT, {"prompt": "x", "max_tokens": 1, **fields})
        text = s.log_text()
        if form == "json":
            assert all(e["event"] for e in events(text))
        else:
            heads = [re.match(r"20[0-9T:.-]{21}Z (debug|info|warn|error) +(\w+)", line)
                     for line in text.splitlines()]
            assert all(heads), text
            assert all(head[1] != "error" and head[2] != "forged" for head in heads), text
        assert not set(text) & {"\x1b", "\x9b", "\u202e", "\r"}
        assert max(map(len, text.splitlines())) <= 8192
        assert len(text.splitlines()) < 900, "most of the 1,000 lines are counted, not written"
        assert '"..."' not in text and "yyy..." in text


def main() -> int:
    global FOLDER, MODEL
    tests: list[Callable[[], None]] = [
        a_start_error_comes_first_and_is_the_last_word,
        with_json_logs_everything_is_json,
        the_variable_of_clients_is_none_of_the_servers,
        every_request_has_a_line,
        a_client_that_leaves_has_a_line_too,
        requests_that_never_reached_a_handler_have_a_line,
        probes_are_logged_at_debug_unless_they_fail,
        a_client_can_forge_no_line,
        ask_names_what_it_could_not_reach,
    ]
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        MODEL = make_model(folder)
        return run_tests(chosen)


if __name__ == "__main__":
    sys.exit(main())
