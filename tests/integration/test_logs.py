#!/usr/bin/env python3
"""What stands in the log: JSON from the first line to the last, errors first, each request, nothing
that a client could forge.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from http_helpers import Server, make_model, run_tests, tarn_server
import tarn_test

MODEL: Path


def serve(*options: str, env: dict[str, str] | None = None) -> Server:
    return tarn_server(MODEL, "--threads", "1", "--no-profile-cost", *options, env=env)


def start_fails(*options: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    """stdout and stderr of a server whose start must fail."""
    done = subprocess.run([str(tarn_test.program("tarn-server")), *options], capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, **(env or {})})
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
    for options, env in ((["--log-format=json", "--oops"], {}), (["--oops", "--log-format=json"], {}),
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


def main() -> int:
    global MODEL
    tests: list[Callable[[], None]] = [
        a_start_error_comes_first_and_is_the_last_word,
        with_json_logs_everything_is_json,
        the_variable_of_clients_is_none_of_the_servers,
    ]
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        MODEL = make_model(folder)
        return run_tests(chosen)


if __name__ == "__main__":
    sys.exit(main())
