#!/usr/bin/env python3
"""The C client (base/http, clients/c, tarnctl) against the scripted server.

Each case plays a script and checks both sides: the counts of the client (tarn-client-calls) and
those of the server. 10,000 connections at once: no callback lost, memory bounded per connection.

    test_client.py [--connections N]
"""
import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from scripted_server import ScriptedServer  # noqa: E402
from tarn_test import is_sanitized, patience, program  # noqa: E402

MS = 1_000_000
KB_PER_CONNECTION_MAX = 40
SANITIZED = is_sanitized(program("tarn-client-calls"))
WAIT_SECONDS = patience(60)  # a guard against hanging


def get(server, path, method="GET"):
    request = urllib.request.Request(server.url + path, method=method)
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        return answer.read().decode()


def calls(server, script=None, **options):
    """Run the calls; underscores of an option are dashes, True is a switch."""
    command = [str(program("tarn-client-calls")), "--url", server.url]
    if script is not None:
        command += ["--script", json.dumps(script)]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    done = subprocess.run(command, capture_output=True, text=True,
                          timeout=patience(300), check=False)
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def expect(seen, **errors):
    assert seen["errors"] == errors, (seen["errors"], seen["message"], errors)
    assert seen["n_ends"] == seen["n"] and seen["n_wrong"] == 0, seen


# --- cases ---

def times_are_those_of_the_server(server):
    """A chunk is never seen before it was sent, nor sent before it was due."""
    get(server, "/scripted/reset", "POST")
    script = {"ttft_ms": 80, "gap_ms": [30, 10, 50], "n_tokens": 8}
    late_ms = []
    seen = calls(server, script, n=5, times=True)
    log = [json.loads(line) for line in get(server, "/scripted/log").splitlines()]
    expect(seen, ok=5)
    for one, sent in zip(sorted(seen["calls"], key=lambda c: c["start"]), log):
        assert len(one["chunks"]) == len(sent["sent_ns"]) == 8
        assert one["start"] <= one["ready"] <= sent["arrived_ns"] <= one["first"]
        for got, gave in zip(one["chunks"], sent["sent_ns"]):
            assert got >= gave, (got, gave)
            late_ms.append((got - gave) / MS)
        due_ms, at = [80], 80
        for i in range(7):
            at += [30, 10, 50][i % 3]
            due_ms.append(at)
        for gave, due in zip(sent["sent_ns"], due_ms):
            assert gave >= sent["arrived_ns"] + (due - 1) * MS
    late_ms.sort()
    print(f"  received after sent: median {late_ms[len(late_ms) // 2]:.3f} ms, "
          f"worst {late_ms[-1]:.3f} ms")


def shapes_of_streams(server):
    script = {"n_tokens": 7}
    for more, deltas in (({}, 7), ({"split": 1}, 7), ({"split": 1, "newline": "\r\n"}, 7),
                         ({"newline": "\r", "split": 3}, 7), ({"tokens_per_chunk": 3}, 3),
                         ({"empty_chunks": 2}, 7), ({"role_chunk": False}, 7),
                         ({"finish_with_last": True}, 7), ({"framing": "close"}, 7),
                         ({"comment_ms": 5, "ttft_ms": 30}, 7), ({"usage": False}, 7),
                         ({"content_type": "text/plain"}, 7), ({"big_event": 200000}, 7)):
        for kind in ({}, {"completion": True}):
            seen = calls(server, {**script, **more}, n=2, **kind)
            expect(seen, ok=2)
            assert seen["n_deltas"] == 2 * deltas, (more, seen)
            assert seen["n_text_bytes"] == 2 * 7 * 3, (more, seen)
    for kind in ({}, {"completion": True}):
        seen = calls(server, script, n=2, no_stream=True, **kind)
        expect(seen, ok=2)
        assert seen["n_text_bytes"] == 2 * 7 * 3
    # Every byte in a write of its own, with time between: no two arrive together.
    seen = calls(server, {"n_tokens": 2, "split": 1, "split_ms": 0.2, "usage": False}, n=1)
    expect(seen, ok=1)


def errors_have_their_kinds(server):
    script = {"n_tokens": 6}
    for more, kind, n_deltas in (
            ({"status": 400}, "http_4xx", 0), ({"status": 429, "retry_after": 3}, "http_429", 0),
            ({"status": 503}, "http_5xx", 0), ({"done": False}, "truncated", 6),
            ({"error_after": 3}, "stream_error", 3),
            ({"error_after": 3, "error_style": "event"}, "stream_error", 3),
            ({"error_after": 0, "error_style": "field"}, "stream_error", 0),
            ({"bad_json_after": 2}, "parse", 2), ({"reset_after": -1}, "reset", 0),
            ({"close_after": -1}, "reset", 0), ({"close_after": 4}, "truncated", 4),
            ({"half_close_after": 4}, "truncated", 4), ({"garbage": "hello\r\n"}, "parse", 0),
            ({"header_bytes": 60000}, "ok", 6), ({"header_bytes": 90000}, "too_large", 0),
            ({"big_event": 5 << 20}, "too_large", 0)):
        seen = calls(server, {**script, **more}, n=3)
        expect(seen, **{kind: 3})
        assert seen["n_deltas"] == 3 * n_deltas, (more, seen)
    # RST may overtake bytes that were sent before it: the gap lets them arrive first.
    seen = calls(server, {**script, "gap_ms": 50, "reset_after": 4}, n=3)
    expect(seen, reset=3)
    assert seen["n_deltas"] <= 12
    expect(calls(server, {"n_tokens": 4, "close_after": 0}, n=3, no_stream=True), truncated=3)


def stalls_time_out(server):
    """Which limit was hit, and that bytes move the idle one: base_http and clients_client."""
    seen = calls(server, {"n_tokens": 6, "stall_after": 3}, n=20, idle_ms=2000)
    expect(seen, timeout=20)
    assert seen["n_deltas"] == 60
    seen = calls(server, {"n_tokens": 3, "stall_after": -1}, n=20, total_ms=200)
    expect(seen, timeout=20)
    expect(calls(server, {"n_tokens": 2, "stall_after": 1, "stall_ms": 100}, n=3, idle_ms=60000),
           ok=3)


def wait_for_stats(server, **wanted):
    """The server notices a lost client a moment later."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        stats = json.loads(get(server, "/scripted/stats"))
        if all(stats[k] == v for k, v in wanted.items()):
            return stats
        assert time.monotonic() < end, (stats, wanted)
        time.sleep(0.05)


def cancelled_calls_leave(server):
    get(server, "/scripted/reset", "POST")
    seen = calls(server, {"n_tokens": 10, "gap_ms": [1, 1, 1, 1, 600000]}, n=50, cancel_after=4)
    expect(seen, cancelled=50)
    assert seen["n_chunks"] == 200
    wait_for_stats(server, n_left=50, n_generating=0)
    # On a slow machine a call may be cancelled before it is sent. All calls that reached the server
    # must have left it.
    seen = calls(server, {"ttft_ms": 600000}, n=50, cancel_after_ms=500)
    expect(seen, cancelled=50)
    stats = wait_for_stats(server, n_generating=0)
    assert stats["n_requests"] == stats["n_left"], stats
    # At every moment of a call, connecting included: 0 to 60 ms after the start of each.
    seen = calls(server, {"n_tokens": 10, "gap_ms": 5, "split": 20}, n=200, spread_ms=60,
                 cancel_after_ms=30, fresh=True)
    assert seen["n_ends"] == 200 and seen["n_wrong"] == 0, seen
    assert set(seen["errors"]) <= {"cancelled", "ok"}, seen
    wait_for_stats(server, n_generating=0)


def a_slow_reader_holds_the_server_up(server):
    get(server, "/scripted/reset", "POST")
    script = {"n_tokens": 600, "token_bytes": 20000, "gap_ms": 0}
    seen = calls(server, script, n=2, pause_ms=1)
    expect(seen, ok=2)
    assert seen["n_text_bytes"] == 2 * 600 * 20000
    stats = json.loads(get(server, "/scripted/stats"))
    assert stats["n_write_pauses"] > 0, stats
    limit_kb = 200_000 if SANITIZED else 40_000 # 24 MB went through, and are not kept
    assert seen["rss_kb"] < limit_kb, seen["rss_kb"]


def connections_are_reused(server):
    seen = calls(server, {"n_tokens": 2}, n=300, spread_ms=500)
    expect(seen, ok=300)
    assert seen["n_connections"] + seen["n_reused"] == 300
    assert seen["n_connections"] <= seen["n_calls_peak"], seen
    seen = calls(server, {"n_tokens": 2}, n=100, spread_ms=300, fresh=True)
    expect(seen, ok=100)
    assert seen["n_connections"] == 100


def many_connections(server, n):
    """All of them are open at the same time: the first token waits for the last one's start."""
    get(server, "/scripted/reset", "POST")
    small = calls(server, {"n_tokens": 3}, n=1)
    seen = calls(server, {"n_together": n, "n_tokens": 3}, n=n, spread_ms=int(n / 2), fresh=True)
    expect(seen, ok=n)
    assert seen["n_deltas"] == 3 * n and seen["n_chunks"] == 5 * n, seen
    assert seen["n_calls_peak"] == n, seen
    stats = json.loads(get(server, "/scripted/stats"))
    assert stats["n_generating_peak"] == n and stats["n_done"] == n + 1, stats
    kb = (seen["rss_kb"] - small["rss_kb"]) / n
    print(f"  {n} at once: {kb:.1f} KB each, loop busy {seen['busy_ms']:.0f} of "
          f"{seen['wall_ms']:.0f} ms, timers late by {seen['lag_ms_mean']:.2f} ms (mean), "
          f"{seen['lag_ms_max']:.1f} ms (worst)")
    assert SANITIZED or kb < KB_PER_CONNECTION_MAX, kb


def many_faults(server):
    """A mixture of everything that goes wrong, at once: each call ends once."""
    n = 300
    for script, kinds in (({"n_tokens": 3, "gap_ms": 20, "reset_after": 2}, {"reset"}),
                          ({"n_tokens": 3, "reset_after": -1}, {"reset"}),
                          ({"n_tokens": 3, "close_after": 2}, {"truncated"})):
        seen = calls(server, script, n=n, spread_ms=100)
        assert set(seen["errors"]) == kinds, seen
        assert seen["n_ends"] == n and seen["n_wrong"] == 0, seen


def run_tarnctl(*args, code=0, stdin=""):
    done = subprocess.run([str(program("tarnctl")), *args], capture_output=True, text=True,
                          timeout=WAIT_SECONDS, check=False, input=stdin,
                          env={k: v for k, v in os.environ.items() if k != "TARN_URL"})
    assert done.returncode == code, (args, done)
    return done


def tarnctl_does_its_commands(server):
    def ctl(*args, **options):
        return run_tarnctl("--url", server.url, *args, **options)

    version = ctl("--version").stdout
    assert re.fullmatch(r"tarnctl \d+\.\d+\.\d+\n", version), version
    assert ctl("chat", "-V").stdout == version  # like --help, whatever else stands there
    assert "ready" in ctl("health").stdout
    assert ctl("models").stdout == "scripted\nother\n"
    assert "scripted_requests_total" in ctl("metrics").stdout
    assert ctl("tokenize", "a bb ccc").stdout == "1 2 3\n"
    table = ctl("cache").stdout
    assert "320 found (50.0 %)" in table and "spans by tokens found, 2 of 9" in table, table
    assert ctl("cache", "--spans", "5").stdout.count("000000000000 ") == 5
    assert json.loads(ctl("cache", "--json").stdout)["tiers"][0]["name"] == "device"
    assert ctl("cache", "reset").stdout.startswith("forgotten: 12 blocks on the device, 3 in host")
    assert json.loads(ctl("--json", "cache", "reset").stdout)["status"] == "ok"
    key = "AB" * 32
    assert ctl("cache", "erase", key).stdout == "erased: a span and what was behind it, 7 blocks\n"
    assert json.loads(ctl("--json", "cache", "erase", key).stdout)["span"] == key
    # Fewer digits are looked up; all of this server's keys begin with 62 zeros.
    assert "more than one of the spans" in ctl("cache", "erase", "0" * 12, code=1).stderr
    assert "none of the spans" in ctl("cache", "erase", "f" * 12, code=1).stderr
    assert ctl("--max-tokens", "3", "chat", "Hi").stdout == "t0 t1 t2 \n"
    assert ctl("--max-tokens", "3", "--no-stream", "complete", "Hi").stdout == "t0 t1 t2 \n"
    done = ctl("--usage", "--max-tokens", "2", "chat", "-", stdin="one two three")
    assert "prompt: 3 tokens" in done.stderr and "answer: 2 tokens" in done.stderr, done.stderr
    get(server, "/scripted/reset", "POST")
    ctl("--document", "T: some text", "--system", "S", "--seed", "7", "--model", "m", "chat", "Q")
    body = json.loads(json.loads(get(server, "/scripted/log"))["body"])
    assert body == {"model": "m", "messages": [{"role": "system", "content": "S"},
                                               {"role": "user", "content": "Q"}],
                    "documents": [{"title": "T", "text": "some text"}], "stream": True,
                    "stream_options": {"include_usage": True}, "max_tokens": 256, "seed": 7}, body
    assert "commands" in ctl("--help").stdout
    for wrong in (["frobnicate"], ["chat"], ["chat", "a", "b"], ["--max-tokens", "x", "chat", "a"],
                  ["--nonsense", "1", "health"], [], ["health", "x"], ["cache", "flush"],
                  ["--spans", "257", "cache"], ["cache", "erase"], ["cache", "erase", "0" * 11],
                  ["cache", "erase", "0" * 65], ["cache", "erase", "x" * 64],
                  ["cache", "erase", "0" * 64, "more"], ["cache", "reset", "x"]):
        assert "tarnctl: " in ctl(*wrong, code=2).stderr
    done = run_tarnctl("--url", "http://127.0.0.1:1", "health", code=1)
    assert "is a server running" in done.stderr


def the_example_is_that_of_the_readme(server):
    folder = Path(__file__).resolve().parents[2] / "clients" / "c"
    assert (folder / "example.c").read_text() in (folder / "README.md").read_text()
    done = subprocess.run([str(program("tarn-client-example")), server.url], capture_output=True,
                          text=True, timeout=WAIT_SECONDS, check=True)
    assert "t63 \n6 tokens, 0 of them cached\n" in done.stdout, done


def tls_is_verified():
    openssl = shutil.which("openssl")
    if not openssl:
        print("  (no openssl here: not checked)")
        return
    with tempfile.TemporaryDirectory() as folder:
        cert, key = folder + "/cert.pem", folder + "/key.pem"
        subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        with ScriptedServer("--tls-cert", cert, "--tls-key", key) as server:
            script = {"n_tokens": 4, "split": 5}
            expect(calls(server, script, n=2), tls=2)
            expect(calls(server, script, n=20, ca_file=cert), ok=20)
            expect(calls(server, script, n=2, insecure=True), ok=2)


def unix_sockets_work():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/s.sock"
        with ScriptedServer("--unix", path) as server:
            done = run_tarnctl("--url", server.url, "--unix", path, "--max-tokens", "2", "chat",
                               "Hi")
            assert done.stdout == "t0 t1 \n"


def run_case(name, function, *args):
    begin = time.monotonic()
    function(*args)
    print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1000)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(args.connections, hard - 100) # each end has one descriptor per connection
    with ScriptedServer() as server:
        for case in (times_are_those_of_the_server, shapes_of_streams, errors_have_their_kinds,
                     stalls_time_out, cancelled_calls_leave, a_slow_reader_holds_the_server_up,
                     connections_are_reused, many_faults, tarnctl_does_its_commands,
                     the_example_is_that_of_the_readme):
            run_case(case.__name__, case, server)
        run_case("many_connections", many_connections, server, n)
    run_case("tls_is_verified", tls_is_verified)
    run_case("unix_sockets_work", unix_sockets_work)


if __name__ == "__main__":
    main()
