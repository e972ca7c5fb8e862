#!/usr/bin/env python3
"""tarn-loadgen against a scripted server whose every delay is known, and an independent client.

    test_loadgen.py [--connections N]     only the many-connections case, with N of them
    test_loadgen.py --times               also bounds on time, which a busy machine misses
"""
import argparse
import http.server
import json
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from loadgen_helpers import (  # noqa: E402
    MS, SANITIZED, command_of, compare_metrics, loadgen, log_of, measure_independently, metrics_of,
    read_result, reset, script_flag, stats_of, write_lines)
from http_helpers import TIMEOUT, wait_until  # noqa: E402
from scripted_server import ScriptedServer  # noqa: E402

LATE_MS = 150  # the longest delay that a quiet machine of two cores may add
TIMES = "--times" in sys.argv[1:]


def timely(holds, seen):
    """A bound on time; one that a busy machine misses fails with --times only."""
    assert holds or not TIMES, seen


def bodies_of(log):
    return [record["body"] for record in log]


def requests_of(raw):
    return [{"intended": r["intended_ns"], "tokens": r["token_ns"], "n_output": r["output_tokens"]}
            for r in raw if r["measured"] and r["end"] == "ok"]


# --- statistics ---

def every_statistic_is_that_of_the_raw_times(server):
    """The report is recomputed from --raw by other code: equal to the last digits."""
    seen = loadgen(server.url, "--rate", 40, "--count", 60, "--warmup", 0.5, "--output-len",
                   "uniform:2:9", "--input-len", 20, "--goodput", "ttft:60000",
                   *script_flag({"ttft_ms": 30, "gap_ms": [5, 12]}))
    requests = requests_of(seen.raw)
    assert len(requests) == 60 == seen.json["completed"]
    assert len(seen.raw) > 60, "no warm-up request"
    compare_metrics(seen.json, metrics_of(requests), 1e-9)
    start = min(r["start_ns"] for r in seen.raw) + 0.5e9
    duration = (max(r["end_ns"] for r in seen.raw if r["measured"]) - start) / 1e9
    tokens = sum(r["n_output"] for r in requests)
    for name, value in {"duration": duration, "total_output_tokens": tokens,
                        "request_throughput": 60 / duration, "output_throughput": tokens / duration,
                        "request_goodput": 60 / duration,
                        "total_input_tokens": sum(r["prompt_tokens"] for r in seen.raw
                                                  if r["measured"])}.items():
        assert abs(seen.json[name] - value) <= 1e-9 * value, (name, seen.json[name], value)


def times_are_those_of_the_servers_log(server):
    """Each token is seen after the server sent it, and the statistics are late by no more."""
    reset(server)
    seen = loadgen(server.url, "--rate", 25, "--arrival", "constant", "--count", 40,
                   "--output-len", "6", "--input-len", 30, "--calibrate", "off",
                   *script_flag({"ttft_ms": 60, "gap_ms": [20, 35, 50]}))
    log = sorted(log_of(server), key=lambda r: r["arrived_ns"])
    raw = sorted(seen.raw, key=lambda r: r["sent_ns"])
    assert len(log) == len(raw) == 40
    late = []
    for r, record in zip(raw, log):
        assert len(r["token_ns"]) == len(record["sent_ns"]) == 6
        assert r["intended_ns"] <= r["sent_ns"] <= record["arrived_ns"]
        late += [got - gave for got, gave in zip(r["token_ns"], record["sent_ns"])]
    assert min(late) >= 0, min(late)
    timely(statistics.median(late) < 2 * MS * (5 if SANITIZED else 1), statistics.median(late))
    timely(max(late) < LATE_MS * MS, max(late))
    expected = metrics_of([{"intended": r["intended_ns"], "tokens": g["sent_ns"], "n_output": 6}
                           for r, g in zip(raw, log)])
    # No statistic of times differs by more than the latest token did, but for floating-point
    # rounding: the latest token may belong to the request with the greatest time.
    compare_metrics(seen.json, expected, 0, absolute_ms=max(late) / MS + 1e-6)
    # Where noise averages out, the agreement is much closer.
    for name in ("mean_tpot_ms", "mean_itl_ms"):
        metric = name.split("_")[1]
        timely(abs(seen.json[name] - expected[metric]["mean"]) < 2, name)


def latency_counts_from_the_intended_time(server):
    """Two places, 200 ms each, four at once: the last two wait, and that is in their TTFT."""
    seen = loadgen(server.url, "--rate", "1000", "--arrival", "constant", "--count", 4,
                   "--concurrency", 2, "--output-len", 1, "--calibrate", "off",
                   *script_flag({"ttft_ms": 200}))
    assert len(seen.raw) == 4 and all(r["first_ns"] for r in seen.raw)
    for r in seen.raw[2:]:
        assert r["first_ns"] - r["intended_ns"] > 350 * MS
        # The request was sent when an earlier one had ended, and could have been sent from then on.
        assert r["sent_ns"] >= r["free_ns"] >= min(x["end_ns"] for x in seen.raw)
        timely(r["first_ns"] - r["sent_ns"] < (200 + 2 * LATE_MS) * MS, r)
        timely(r["sent_ns"] - r["free_ns"] < LATE_MS * MS, "a wait for a place is no lag")


def agrees_with_an_independent_client(server):
    """Within 2 % on every statistic: with --times only. One of two runs may meet a busy machine:
    three tries."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"prompt": f"question {i}", "output_len": 10, "timestamp": i * 0.09, "body":
                 {"script": {"ttft_ms": 300 + 20 * (i % 20),
                              "gap_ms": [g + 5 * (i % 10) for g in (80, 80, 160)]}}}
                for i in range(60)]
        path = write_lines(folder, "workload.jsonl", rows)
        for attempt in range(3):
            reset(server)
            seen = loadgen(server.url, "--workload", "file", "--data", path, "--arrival", "trace",
                           "--calibrate", "off")
            log = log_of(server)
            bodies = {json.loads(b)["messages"][0]["content"]: b.encode() for b in bodies_of(log)}
            theirs = measure_independently(
                server.url, [int(r["timestamp"] * 1e9) for r in rows],
                [bodies[r["prompt"]] for r in rows])
            try:
                worst = compare_metrics(seen.json, metrics_of(theirs), 0.02, skip=("max",))
                print(f"  largest difference {100 * worst:.2f} %")
                return
            except AssertionError as e:
                if attempt == 2:
                    raise
                print(f"  again: {e}")


# --- requests ---

def equal_seeds_send_equal_requests(server):
    for flags in (["--workload", "mix", "--rate", 100, "--count", 60],
                  ["--workload", "prefix", "--concurrency", 5, "--count", 40, "--zipf", 1],
                  ["--workload", "rag", "--rate", 80, "--count", 40, "--document-order",
                   "shuffled"],
                  # One by one: else it is the server that says whose turns are the first 40.
                  ["--workload", "multiturn", "--concurrency", 1, "--count", 40, "--think-time",
                   0.01],
                  ["--workload", "random", "--prompt-format", "ids", "--rate", 80, "--count", 40]):
        runs = []
        for seed in (11, 11, 12):
            reset(server)
            seen = loadgen(server.url, *flags, "--seed", seed, "--max-output-len", 3,
                           "--max-input-len", 200, "--calibrate", "off")
            schedule = [(r["index"], r["intended_ns"] - r["start_ns"]) for r in seen.raw
                        if r["turn"] == 0]
            runs.append((sorted(bodies_of(log_of(server))), schedule))
        assert len(runs[0][0]) >= 40
        assert runs[0][0] == runs[1][0] and runs[0][0] != runs[2][0], flags
        if "--rate" in flags:
            assert runs[0][1] == runs[1][1] and runs[0][1] != runs[2][1], flags


def prompts_have_the_length_that_was_asked_for(server):
    """The scripted server counts words, and says so in its usage."""
    seen = loadgen(server.url, "--rate", 200, "--count", 30, "--input-len", "constant:150",
                   "--output-len", 1)
    assert seen.json["calibration"] == "requests"
    assert [r["prompt_tokens"] for r in seen.raw] == [150] * 30
    assert seen.json["prompt_tokens"] == seen.json["total_input_tokens"] == 4500


def conversations_wait_for_their_answers(server):
    reset(server)
    seen = loadgen(server.url, "--workload", "multiturn", "--concurrency", 3, "--count", 30,
                   "--turns", 4, "--think-time", 0.02, "--output-len", 3, "--input-len", 10,
                   "--history", "real", "--calibrate", "off", *script_flag({"ttft_ms": 10}))
    assert stats_of(server)["n_generating_peak"] <= 3 and seen.json["completed"] == 30
    by_session = {}
    for r in seen.raw:
        by_session.setdefault(r["session"], []).append(r)
    for turns in by_session.values():
        turns.sort(key=lambda r: r["turn"])
        for before, after in zip(turns, turns[1:]):
            assert after["turn"] == before["turn"] + 1
            assert after["intended_ns"] >= before["end_ns"]
    later = [json.loads(b) for b in bodies_of(log_of(server)) if b.count('"role"') > 1]
    assert later and all(m["content"] == "t0 t1 t2 " for b in later for m in b["messages"]
                         if m["role"] == "assistant")


def a_closed_loop_keeps_its_concurrency(server):
    reset(server)
    seen = loadgen(server.url, "--concurrency", 7, "--duration", 1.5, "--warmup", 0.3,
                   "--output-len", 4, "--input-len", 5, *script_flag({"ttft_ms": 40, "gap_ms": 10}))
    assert stats_of(server)["n_generating_peak"] == 7
    # 7 places, 70 ms each and a little more: 100 a second at the most.
    assert 0 < seen.json["completed"] <= 157, seen.json["completed"]
    timely(seen.json["completed"] > 0.6 * 150, seen.json["completed"])
    assert seen.json["max_concurrency"] == 7


def tenants_and_priorities_have_rows(server):
    reset(server)
    seen = loadgen(server.url, "--rate", 200, "--count", 80, "--calibrate", "off",
                   "--tenant",
                   "name=gold,share=1,priority=-1,input=8,output=2,ttft=500,key=sk-gold",
                   "--tenant", "name=dust,share=3,priority=4,input=9,output=3",
                   *script_flag({"cached_tokens": 5, "cached_tiers": {"host": 3, "disk": 2}}))
    gold, dust = seen.json["tenants"]
    assert (gold["tenant"], dust["tenant"]) == ("gold", "dust")
    assert gold["completed"] + dust["completed"] == 80 and dust["completed"] > gold["completed"] > 5
    assert gold["total_output_tokens"] == 2 * gold["completed"]
    assert gold["good"] <= gold["with_slo"] == gold["completed"] and dust["with_slo"] == 0
    timely(gold["good"] == gold["completed"], gold)
    assert [p["priority"] for p in seen.json["priorities"]] == ["-1", "4"]
    assert seen.json["cached_tokens"] == 400
    assert (seen.json["cached_tokens_host"], seen.json["cached_tokens_disk"]) == (240, 160)
    assert {json.loads(b)["priority"] for b in bodies_of(log_of(server))} == {-1, 4}
    assert re.search(r"^gold +\d+ ", seen.out, re.M) and "of these from host:" in seen.out


# --- faults ---

def errors_have_their_kinds(server):
    faults = {"http_429": {"status": 429, "retry_after": 1}, "http_4xx": {"status": 404},
              "http_5xx": {"status": 503}, "reset": {"reset_after": 2},
              "stream_error": {"error_after": 2},
              "truncated": {"close_after": 2, "framing": "close"},
              "parse": {"bad_json_after": 1}, "timeout": {"stall_after": 1}}
    rows = [{"prompt": f"{kind} {i}", "output_len": 4, "body": {"script": script}}
            for kind, script in faults.items() for i in range(3)]
    rows += [{"prompt": f"good {i}", "output_len": 4} for i in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        seen = loadgen(server.url, "--workload", "file", "--data",
                       write_lines(folder, "faults.jsonl", rows), "--rate", 50,
                       "--request-timeout", 5, "--calibrate", "off")
    kinds = seen.json["errors_by_kind"]
    assert seen.json["completed"] == 5 and seen.json["failed"] == 3 * len(faults), seen.json
    assert kinds == {k: 3 for k in faults}, kinds
    for kind in faults:
        assert re.search(rf"^Errors, {kind}: +3 *$", seen.out, re.M), kind


def disconnects_and_slow_readers_are_counted_apart(server):
    reset(server)
    seen = loadgen(server.url, "--rate", 60, "--count", 90, "--output-len", 12, "--input-len", 5,
                   "--disconnect-rate", 0.3, "--slow-rate", 0.3, "--slow-pause", 0.4,
                   "--calibrate", "off", "--seed", 5,
                   *script_flag({"ttft_ms": 20, "gap_ms": 5}))
    r = seen.json
    gone = [x for x in seen.raw if x["end"] == "disconnected"]
    slow = [x for x in seen.raw if x["slow_reader"]]
    assert r["disconnected"] == len(gone) > 12 and r["slow_readers"] == len(slow) > 8
    assert r["completed"] + r["disconnected"] == 90 and r["failed"] == 0
    wait_until(lambda: stats_of(server)["n_generating"] == 0)
    # The server may have sent everything before a client hung up.
    left = stats_of(server)["n_left"]
    assert 0 < left <= len(gone), (left, len(gone))
    timely(left >= len(gone) - 8, (left, len(gone)))
    assert all(x["end_ns"] - x["intended_ns"] > 0.4e9 for x in slow)
    # The statistics leave the slow readers out: the others take 20 + 11 * 5 ms.
    timely(r["median_e2el_ms"] < 75 + LATE_MS and r["max_e2el_ms"] < 75 + 4 * LATE_MS, r)
    compare_metrics(r, metrics_of(requests_of([x for x in seen.raw if not x["slow_reader"]])), 1e-9)


def an_overload_does_not_look_like_fewer_requests(server):
    """One place, half a second each, twenty at once, 1.2 seconds to drain: the rest is named."""
    seen = loadgen(server.url, "--rate", 100, "--count", 20, "--concurrency", 1, "--drain", 1.2,
                   "--output-len", 1, "--calibrate", "off", *script_flag({"ttft_ms": 500}))
    r = seen.json
    assert r["completed"] <= 3 and r["completed"] + r["unfinished"] == 20, r
    timely(r["completed"] >= 1, r)
    assert re.search(r"^Unfinished when the run ended: +\d+ *$", seen.out, re.M)


def interrupted_runs_print_their_report(server):
    with tempfile.TemporaryDirectory() as folder:
        reset(server)
        command = command_of(server.url, ["--rate", 30, "--duration", 600, "--output-len", 5,
                                          *script_flag({"ttft_ms": 300, "gap_ms": 50})], folder)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: stats_of(server)["n_done"] > 20 and
                   stats_of(server)["n_generating"] > 5)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=TIMEOUT)
        seen = read_result(subprocess.CompletedProcess(command, child.returncode, out, err), folder)
    assert seen.code == 0, (seen.code, err)
    assert seen.json["interrupted"] and seen.json["unfinished"] > 0 and seen.json["completed"] > 15
    assert seen.json["failed"] == 0 and "Successful requests:" in out and "Interrupted:" in out


def many_connections(server, n):
    """All at once, each held open by the server until all are there."""
    reset(server)
    begin = time.monotonic()
    seen = loadgen(server.url, "--rate", "inf", "--count", n, "--output-len", 2, "--input-len", 4,
                   "--calibrate", "off", *script_flag({"n_together": n, "gap_ms": 10}))
    assert seen.json["completed"] == n and seen.json["failed"] == 0, seen.json["errors_by_kind"]
    stats = stats_of(server)
    assert stats["n_generating_peak"] == n, stats
    print(f"  {n} connections at once in {time.monotonic() - begin:.1f} s, send lag p99 "
          f"{seen.json['p99_send_lag_ms']:.1f} ms")


# --- checks and reports ---

class Moody(http.server.BaseHTTPRequestHandler):
    """Answers "calm" when it is asked alone, another text while others wait."""
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    n_active = 0
    n_resets = 0

    def log_message(self, *_):
        pass

    def reply(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply("application/json", b'{"object": "list", "data": [{"id": "moody"}]}')

    def do_DELETE(self):
        with self.lock:
            Moody.n_resets += self.path == "/cache"
        self.reply("application/json", b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        with self.lock:
            Moody.n_active += 1
        time.sleep(0.05)
        with self.lock:
            text = "calm" if Moody.n_active == 1 else "call"
        event = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
        end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.reply("text/event-stream",
                   f"data: {event}\n\ndata: {end}\n\ndata: [DONE]\n\n".encode())
        with self.lock:
            Moody.n_active -= 1


def verify_finds_other_texts(server):
    seen = loadgen(server.url, "--rate", 100, "--count", 30, "--verify", 0.3, "--output-len", 3,
                   "--seed", 3, "--calibrate", "off")
    v = seen.json["verify"]
    assert v["checked"] >= 4 and v["cold"] and v["load_differs"] == v["warm_differs"] == 0
    moody = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    threading.Thread(target=moody.serve_forever, daemon=True).start()
    seen = loadgen(f"http://127.0.0.1:{moody.server_port}", "--concurrency", 4, "--count", 20,
                   "--verify", 1, "--calibrate", "off", code=3)
    moody.shutdown()
    moody.server_close()
    v = seen.json["verify"]
    assert v["checked"] == 20 and v["load_differs"] > 10 and v["warm_differs"] == 0, v
    assert Moody.n_resets == 20
    assert re.search(r"^  first: request \d+, from byte 3 on$", seen.out, re.M), seen.out


def compare_finds_the_ratio(_server):
    with tempfile.TemporaryDirectory() as folder:
        scripts = [write_lines(folder, name, [{"ttft_ms": ttft, "gap_ms": gap}])
                   for name, ttft, gap in (("a", 60, 20), ("b", 120, 30))]
        with ScriptedServer("--script", str(scripts[0])) as a, \
                ScriptedServer("--script", str(scripts[1])) as b:
            for flags in (["--concurrency", 1], ["--rate", 20, "--block", 6]):
                reset(a)
                reset(b)
                seen = loadgen(None, "--a", a.url, "--b", b.url, "--count", 18, "--output-len", 4,
                               "--input-len", 12, "--calibrate", "off", "--seed", 2, *flags,
                               first=["compare"])
                logs = [log_of(a), log_of(b)]
                bodies = [bodies_of(log) for log in logs]
                assert len(bodies[0]) == 18 and sorted(bodies[0]) == sorted(bodies[1])
                n_block = 1 if flags[0] == "--concurrency" else 6
                order = "".join(which for _, which in sorted(
                    (r["arrived_ns"], "AB"[k]) for k in (0, 1) for r in logs[k]))
                blocks = ["A" * n_block + "B" * n_block, "B" * n_block + "A" * n_block]
                assert order == "".join(blocks[i % 2] for i in range(18 // n_block)), order
                for metric, ratio in (("ttft", 2.0), ("tpot", 1.5), ("e2el", 210 / 120)):
                    for name in ("mean", "median", "pairwise"):
                        key = f"{name}_{metric}_ratio"
                        assert seen.json[key + "_low"] <= seen.json[key] <= seen.json[key + "_high"]
                        timely(abs(seen.json[key] / ratio - 1) < 0.2, (key, seen.json[key], ratio))
                        timely(seen.json[key + "_low"] > 1.2, key)
            each_request_goes_to_both(a, b)


def each_request_goes_to_both(a, b):
    """Each request is sent at its time, and the servers take turns in getting it first."""
    reset(a)
    reset(b)
    seen = loadgen(None, "--a", a.url, "--b", b.url, "--count", 16, "--output-len", 4,
                   "--input-len", 12, "--calibrate", "off", "--rate", 10, "--arrival", "constant",
                   "--interleave", "requests", first=["compare"])
    assert seen.json["interleave"] == "requests" and seen.json["completed_b"] == 16
    logs = [sorted(log_of(s), key=lambda r: r["arrived_ns"]) for s in (a, b)]
    assert bodies_of(logs[0]) == bodies_of(logs[1])
    apart = [(y["arrived_ns"] - x["arrived_ns"]) / MS for x, y in zip(*logs)]
    timely(max(map(abs, apart)) < LATE_MS, apart)
    # The two servers poll their sockets at their own times, so the order of arrival differs from
    # the order of sending now and then; the difference is one-sided if one server always gets the
    # request first.
    timely(3 <= sum(d > 0 for d in apart) <= 13, apart)


VLLM_TABLE = [
    r"={12} Serving Benchmark Result ={12}", r"Successful requests: {21}10 +",
    r"Failed requests: +0 +",
    r"Maximum request concurrency: +4 +", r"Request rate configured \(RPS\): +50\.00 +",
    r"Benchmark duration \(s\): +\d+\.\d\d +", r"Total input tokens: +200 +",
    r"Total generated tokens: +30 +", r"Request throughput \(req/s\): +[\d.]+ +",
    r"Request goodput \(req/s\): +[\d.]+ +", r"Output token throughput \(tok/s\): +[\d.]+ +",
    r"Peak output token throughput \(tok/s\): +[\d.]+ +", r"Peak concurrent requests: +[\d.]+ +",
    r"Total token throughput \(tok/s\): +[\d.]+ +", r"-{15}Time to First Token-{16}",
    r"Mean TTFT \(ms\): +[\d.]+ +", r"Median TTFT \(ms\): +[\d.]+ +", r"P99 TTFT \(ms\): +[\d.]+ +",
    r"-{5}Time per Output Token \(excl\. 1st token\)-{6}", r"Mean TPOT \(ms\): +[\d.]+ +",
    r"Median TPOT \(ms\): +[\d.]+ +", r"P99 TPOT \(ms\): +[\d.]+ +",
    r"-{15}Inter-token Latency-{16}", r"Mean ITL \(ms\): +[\d.]+ +",
    r"Median ITL \(ms\): +[\d.]+ +",
    r"P99 ITL \(ms\): +[\d.]+ +", r"={50}",
]


def the_table_and_the_files_are_vllms(server):
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder, "out.csv")
        for _ in range(2):
            seen = loadgen(server.url, "--backend", "openai-chat", "--request-rate", 50,
                           "--num-prompts", 10, "--max-concurrency", 4, "--random-input-len", 20,
                           "--random-output-len", 3, "--goodput", "ttft:60000", "--save-detailed",
                           "--metadata", "commit=abc", "note=a,b", "--csv", csv)
        rows = csv.read_text().splitlines()
    lines = seen.out.splitlines()
    for line, pattern in zip(lines, VLLM_TABLE):
        assert re.fullmatch(pattern, line), (line, pattern)
    r = seen.json
    for name in ("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id",
                 "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
                 "completed", "failed", "total_input_tokens", "total_output_tokens",
                 "request_throughput", "request_goodput", "output_throughput",
                 "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"):
        assert name in r, name
    assert r["model_id"] == "scripted" and r["commit"] == "abc" and r["note"] == "a,b"
    assert r["input_lens"] == [20] * 10 and r["output_lens"] == [3] * 10
    assert r["errors"] == [""] * 10
    assert len(r["ttfts"]) == 10 and all(len(g) == 2 for g in r["itls"])
    assert r["generated_texts"] == ["t0 t1 t2 "] * 10
    assert abs(statistics.mean(r["ttfts"]) * 1e3 - r["mean_ttft_ms"]) < 1e-6
    assert len(rows) == 3 and rows[0].startswith("date,endpoint_type,backend,")
    assert all('"a,b"' in row for row in rows[1:])


def nothing_measured_is_no_zero(server):
    """Where all requests fail there are no latency rows, and null in the JSON."""
    seen = loadgen(server.url, "--count", 3, "--calibrate", "off", "--concurrency", 1,
                   *script_flag({"status": 500}), code=1)
    assert "No request succeeded: there are no latencies." in seen.out
    for words in ("TTFT", "TPOT", "ITL", "E2EL", "Mean normalized"):
        assert words not in seen.out, words
    for key in ("mean_ttft_ms", "p99_itl_ms", "max_e2el_ms", "std_tpot_ms"):
        assert seen.json[key] is None, (key, seen.json[key])
    assert seen.json["failed"] == 3 and seen.json["request_throughput"] == 0
    # One token has a TTFT, but no TPOT and no ITL.
    seen = loadgen(server.url, "--count", 3, "--calibrate", "off", "--output-len", 1)
    assert "Mean TTFT (ms):" in seen.out and "TPOT" not in seen.out and "ITL" not in seen.out
    assert seen.json["mean_ttft_ms"] > 0 and seen.json["mean_tpot_ms"] is None


def pieces_of_several_tokens_are_reported(server):
    flags = ["--count", 5, "--concurrency", 1, "--output-len", 12, "--calibrate", "off"]
    note = "ITL is the time between\n      pieces here, not between tokens"
    seen = loadgen(server.url, *flags, *script_flag({"tokens_per_chunk": 3, "gap_ms": 2}))
    assert seen.json["tokens_per_piece"] == 3 and note in seen.out
    assert re.search(r"^Tokens per piece of text: +3\.00 *$", seen.out, re.M)
    seen = loadgen(server.url, *flags, *script_flag({"gap_ms": 2}))
    assert seen.json["tokens_per_piece"] == 1 and note not in seen.out


def a_ratio_of_nothing_is_none(server):
    flags = ["--a", server.url, "--b", server.url, "--count", 4, "--concurrency", 1,
             "--output-len", 3, "--calibrate", "off"]
    seen = loadgen(None, *flags, first=["compare"])
    assert re.search(r"^Failed requests +0\.00 +0\.00 +none$", seen.out, re.M), seen.out
    assert re.search(r"^Cached prompt tokens +0\.00 +0\.00 +none$", seen.out, re.M)
    assert seen.json["mean_ttft_ratio"] > 0
    seen = loadgen(None, *flags, *script_flag({"status": 500}), first=["compare"], code=1)
    assert "there are no latencies to compare" in seen.out and "ttft" not in seen.out
    assert re.search(r"^Successful requests +0\.00 +0\.00 +none$", seen.out, re.M), seen.out
    for key in ("mean_ttft_ratio", "p99_e2el_ms_a", "pairwise_tpot_ratio_high"):
        assert seen.json[key] is None, (key, seen.json[key])


def vllms_command_line_saves_vllms_file(server):
    """A command line of `vllm bench serve` has the same effect in tarn-loadgen."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "made", "results")
        command = ["--backend", "vllm", "--base-url", server.url, "--endpoint", "/v1/completions",
                   "--model", "org/scripted", "--served-model-name", "scripted",
                   "--tokenizer", "org/tokenizer", "--dataset-name", "random",
                   "--random-input-len", 20, "--random-output-len", 4, "--num-prompts", 6,
                   "--calibrate", "off",
                   "--request-rate", 40, "--max-concurrency", 4, "--save-result", "--result-dir",
                   results, "--disable-tqdm", "--trust-remote-code"]
        reset(server)
        seen = loadgen(None, *command)
        saved = list(results.iterdir())
        assert len(saved) == 1 and json.loads(saved[0].read_text()) == seen.json
        assert re.fullmatch(r"vllm-40\.0qps-concurrency4-scripted-\d{8}-\d{6}\.json",
                            saved[0].name), saved
        assert str(saved[0]) in seen.err
        assert {r["path"] for r in log_of(server)} == {"/v1/completions"}
        bodies = [json.loads(b) for b in bodies_of(log_of(server))]
        assert all(b["model"] == "scripted" for b in bodies)
        assert sum(b.get("ignore_eos", False) for b in bodies) == 6 == seen.json["completed"]
        assert (seen.json["backend"], seen.json["model_id"], seen.json["tokenizer_id"]) == (
            "vllm", "org/scripted", "org/tokenizer")
        for _ in range(2):
            loadgen(None, *command, "--append-result", "--result-filename", "all.json")
        lines = (results / "all.json").read_text().splitlines()
        assert [json.loads(line)["completed"] for line in lines] == [6, 6]
        Path(folder, "file").write_text("")
        seen = loadgen(None, *command, "--result-dir", f"{folder}/file/x", code=2)
        assert f"--result-dir {folder}/file" in seen.err, seen.err


def vllms_datasets_are_read(server):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sharegpt.json")
        path.write_text(json.dumps([
            {"id": str(i), "conversations": [{"from": "human", "value": f"Question {i} is long."},
                                             {"from": "gpt", "value": "x" * 4 * (4 + i)}]}
            for i in range(9)]))
        reset(server)
        seen = loadgen(server.url, "--dataset-name", "sharegpt", "--dataset-path", path,
                       "--num-prompts", 12, "--calibrate", "off", "--seed", 3)
        asked = [json.loads(b)["messages"][0]["content"] for b in bodies_of(log_of(server))]
        assert len(asked) == 12 and set(asked) == {f"Question {i} is long." for i in range(9)}
        assert sorted(r["output_tokens"] for r in seen.raw if r["index"] < 9) == list(range(4, 13))
        rows = write_lines(folder, "custom.jsonl", [{"prompt": f"row {i}"} for i in range(5)])
        reset(server)
        loadgen(server.url, "--dataset-name", "custom", "--dataset-path", rows, "--no-oversample",
                "--disable-shuffle", "--custom-output-len", 2, "--concurrency", 1, "--calibrate",
                "off")
        asked = [json.loads(b)["messages"][0]["content"] for b in bodies_of(log_of(server))]
        assert asked == [f"row {i}" for i in range(5)]


def wrong_use_is_said(server):
    seen = loadgen(server.url, "--rtae", "5", code=2)
    assert "did you mean --rate?" in seen.err
    seen = loadgen(server.url, "--workload", "trace", "--data", "/no/such/file", code=2)
    assert "/no/such/file" in seen.err
    seen = loadgen("http://127.0.0.1:1", "--count", 1, "--ready-timeout", 0, code=1)
    assert "does not answer" in seen.err
    seen = loadgen(server.url, "--count", 3, "--calibrate", "off", *script_flag({"status": 500}),
                   code=1)
    assert seen.json["failed"] == 3 and "first error, request 0: " in seen.out


CASES = (every_statistic_is_that_of_the_raw_times, times_are_those_of_the_servers_log,
         latency_counts_from_the_intended_time,
         equal_seeds_send_equal_requests, prompts_have_the_length_that_was_asked_for,
         conversations_wait_for_their_answers, a_closed_loop_keeps_its_concurrency,
         tenants_and_priorities_have_rows, errors_have_their_kinds,
         disconnects_and_slow_readers_are_counted_apart,
         an_overload_does_not_look_like_fewer_requests, interrupted_runs_print_their_report,
         verify_finds_other_texts, compare_finds_the_ratio, the_table_and_the_files_are_vllms,
         nothing_measured_is_no_zero, pieces_of_several_tokens_are_reported,
         a_ratio_of_nothing_is_none, vllms_command_line_saves_vllms_file, vllms_datasets_are_read,
         wrong_use_is_said)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--only", help="part of a case's name")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ScriptedServer() as server:
        if args.connections:
            many_connections(server, min(args.connections, hard - 100))
            return
        for case in CASES + ((agrees_with_an_independent_client,) if TIMES else ()):
            if args.only and args.only not in case.__name__:
                continue
            begin = time.monotonic()
            case(server)
            print(f"ok {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        if not args.only:
            many_connections(server, 500)


if __name__ == "__main__":
    main()
