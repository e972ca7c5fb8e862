"""Helpers of the tests of tarn-loadgen: running the program, the log of the scripted server, exact
statistics, and an independent client (asyncio, no code of Tarn) that measures the same requests."""
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from tarn_test import is_sanitized, patience, program  # noqa: E402

SANITIZED = is_sanitized(program("tarn-loadgen"))
MS = 1e6


class Result:
    """One run: its exit status, output, JSON and raw records (by index)."""

    def __init__(self, code, out, err, result, raw):
        self.code, self.out, self.err, self.json, self.raw = code, out, err, result, raw


def command_of(url, arguments, folder):
    return [str(program("tarn-loadgen")), *(["--url", url] if url else []),
            "--json", f"{folder}/out.json", "--raw", f"{folder}/raw.jsonl",
            *[str(a) for a in arguments]]


def read_result(done, folder):
    result, raw = None, []
    if Path(folder, "out.json").exists():
        result = json.loads(Path(folder, "out.json").read_text())
    if Path(folder, "raw.jsonl").exists():
        raw = [json.loads(line) for line in Path(folder, "raw.jsonl").read_text().splitlines()]
    return Result(done.returncode, done.stdout, done.stderr, result, raw)


def loadgen(url, *arguments, code=0, first=(), env=None):
    """Run tarn-loadgen and check its exit status. `first`: words before all flags."""
    with tempfile.TemporaryDirectory(prefix="tarn-loadgen-") as folder:
        command = command_of(url, arguments, folder)
        command[1:1] = first
        if first:
            command = [c for i, c in enumerate(command)
                       if c != "--raw" and command[i - 1] != "--raw"]
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=patience(300), check=False,
                              env={**os.environ, **(env or {})})
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return read_result(done, folder)


def get(server, path, method="GET"):
    request = urllib.request.Request(server.url + path, method=method)
    with urllib.request.urlopen(request, timeout=patience(120)) as answer:
        return answer.read().decode()


def reset(server):
    get(server, "/scripted/reset", "POST")


def log_of(server):
    return [json.loads(line) for line in get(server, "/scripted/log").splitlines()]


def stats_of(server):
    return json.loads(get(server, "/scripted/stats"))


def script_flag(script):
    return ["--extra-body", json.dumps({"script": script})]


def write_lines(folder, name, rows):
    path = Path(folder, name)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


# --- statistics, written again from their definitions ---

def percentile(values, p):
    v = sorted(values)
    rank = p / 100 * (len(v) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(v) - 1)
    return v[below] + (v[above] - v[below]) * (rank - below)


def summary(values):
    mean = math.fsum(values) / len(values)
    return {"mean": mean, "median": percentile(values, 50),
            "std": math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values)),
            "p90": percentile(values, 90), "p95": percentile(values, 95),
            "p99": percentile(values, 99), "max": max(values)}


def metrics_of(requests):
    """requests: [{intended, tokens: [ns], n_output}] -> {metric: summary in ms}."""
    series = {"ttft": [], "tpot": [], "itl": [], "e2el": [], "normalized_latency": []}
    for r in requests:
        first, last, n = r["tokens"][0], r["tokens"][-1], r["n_output"]
        series["ttft"].append((first - r["intended"]) / MS)
        series["e2el"].append((last - r["intended"]) / MS)
        series["normalized_latency"].append((last - r["intended"]) / MS / n)
        if n > 1:
            series["tpot"].append((last - first) / MS / (n - 1))
        series["itl"] += [(b - a) / MS for a, b in zip(r["tokens"], r["tokens"][1:])]
    return {name: summary(values) for name, values in series.items()}


def compare_metrics(result, expected, relative, absolute_ms=0.0, skip=()):
    """The largest relative difference; asserts that none is above both limits."""
    worst = 0.0
    for metric, figures in expected.items():
        for name, value in figures.items():
            if name in skip:
                continue
            seen = result[f"{name}_{metric}_ms"]
            off = abs(seen - value)
            worst = max(worst, off / max(abs(value), 1e-9) if off > absolute_ms else 0)
            assert off <= max(absolute_ms, relative * abs(value)), (metric, name, seen, value)
    return worst


# --- the independent client ---

async def read_stream(reader, arrivals):
    """Time of each piece of text of a chunked SSE answer."""
    pending = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        now = time.monotonic_ns()
        if size == 0:
            return
        pending += data[:-2]
        while b"\n\n" in pending:
            event, pending = pending.split(b"\n\n", 1)
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            choices = json.loads(event[6:]).get("choices")
            if choices and choices[0].get("delta", {}).get("content"):
                arrivals.append(now)


async def ask(host, port, start, offset_ns, body):
    intended = start + offset_ns
    await asyncio.sleep(max(0.0, (intended - time.monotonic_ns()) / 1e9))
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: "
                 f"application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    arrivals = []
    await read_stream(reader, arrivals)
    writer.close()
    return {"intended": intended, "tokens": arrivals, "n_output": len(arrivals)}


def measure_independently(url, offsets_ns, bodies):
    """Send bodies at their offsets with asyncio; return the argument of metrics_of()."""
    host, port = url.rsplit("/", 1)[1].split(":")

    async def all_of_them():
        start = time.monotonic_ns() + 50_000_000
        return await asyncio.gather(*(ask(host, int(port), start, o, b)
                                      for o, b in zip(offsets_ns, bodies)))

    return asyncio.run(all_of_them())
