#!/usr/bin/env python3
"""Count the instructions of HTTP, JSON, SSE and detokenization per token, and those of the model.

    http_cost.py [--streams 64] [--model DIR]

Run the server under callgrind with --streams streams, once with few tokens each and once with
more. The difference is the cost of the tokens, the rest the cost of the requests. Counted are the
HTTP threads, the watcher, and http_wake() on the engine thread. With --model the server is
tarn-server with its detokenizer, otherwise the HTTP side with the fake engine.

A decode step of the 0.49 B shape is counted by arithmetic: its multiply-adds, 32 of them per
instruction (AVX-512 bf16, the fewest instructions there can be) and nothing else.

System calls count as their entry only, so CPU time is measured as well, without callgrind, from
/proc: user and system time of the HTTP threads and the watcher.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "integration"))
import http_helpers  # noqa: E402
from http_helpers import Server, tarn_test  # noqa: E402

FEW, MORE = 8, 40
LANES = 32
# Under callgrind one thread runs at a time; who waits for it is not late.
NO_DEADLINES = ["--header-timeout", "0", "--body-timeout", "0", "--write-timeout", "0"]


def decode_step_instructions(n_rows: int) -> int:
    """hidden 896, 24 layers, 14 heads, 2 KV heads of 64, ffn 4864, vocab 151,936."""
    layer = 896 * 896 * 2 + 2 * 896 * 128 + 3 * 896 * 4864
    return (24 * layer + 896 * 151936) * n_rows // LANES


def command_of(model: str | None, step_us: int) -> list[str]:
    if model:
        return [str(tarn_test.program("tarn-server")), "--model", model, "--port", "0",
                "--threads", "1", "--cpu-variant", "avx2", "--http-threads", "2",
                "--log-level", "warn"]
    return [str(tarn_test.program("tarn-fake-server")), "0", str(step_us), "0", "1000"]


def stream_all(server: Server, n_streams: int, n_tokens: int) -> int:
    """Tokens that came. One frame each, or the cost of one would be that of a part."""
    counts: list[int] = []

    def one() -> None:
        frames, _ = server.stream("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Who is the captain?"}],
            "max_tokens": n_tokens, "min_tokens": n_tokens, "ignore_eos": True,
            "temperature": 1.0, "seed": len(counts)})
        counts.append(sum(1 for f in frames if f["choices"][0]["delta"].get("content")))

    threads = [threading.Thread(target=one) for _ in range(n_streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(counts) == n_streams, "a stream failed"
    assert sum(counts) > 0.7 * n_streams * n_tokens, f"tokens shared frames: {sum(counts)} frames"
    return n_streams * n_tokens


def thread_cost(path: Path) -> int:
    """Instructions of the HTTP side on one thread."""
    text = path.read_text(errors="replace")
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
    total = int(found.group(1)) if found else 0
    names = set(re.findall(r"^fn=\(\d+\) (\S+)", text, re.M))
    if "on_access" in names or "watch" in names:
        return total
    if "slot_wake" not in names:
        return 0
    table = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100",
                            "--show-percs=no", str(path)], capture_output=True, text=True).stdout
    # http_wake() may have become a jump to slot_wake().
    costs = re.findall(r"^\s*([\d,]+) .*:(?:http|slot)_wake\b", table, re.M)
    return max((int(c.replace(",", "")) for c in costs), default=0)


def count(model: str | None, n_streams: int, n_tokens: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        with Server(["valgrind", "--tool=callgrind", "--separate-threads=yes",
                     "--fair-sched=yes", f"--callgrind-out-file={out}",
                     *command_of(model, 100_000), *NO_DEADLINES]) as server:
            stream_all(server, n_streams, n_tokens)
        return sum(thread_cost(p) for p in Path(folder).iterdir())


def cpu_us(server: Server) -> float:
    """CPU time so far of all threads except the engine and its workers. The thread with the most
    CPU time is the engine's."""
    ticks = []
    for stat in Path(f"/proc/{server.process.pid}/task").glob("*/stat"):
        fields = stat.read_text().rsplit(")", 1)[1].split()
        ticks.append((int(fields[11]) + int(fields[12])))
    return (sum(ticks) - max(ticks)) * 1e6 / os.sysconf("SC_CLK_TCK")


def measure_time(n_streams: int, step_us: int) -> tuple[float, float]:
    """CPU microseconds of the HTTP side per token at the fake engine's pace."""
    with Server(command_of(None, step_us)) as server:
        stream_all(server, n_streams, 10)
        before, start = cpu_us(server), time.monotonic()
        n = stream_all(server, n_streams, 2000)
        return (cpu_us(server) - before) / n, n / (time.monotonic() - start)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--model")
    args = parser.parse_args()
    if not shutil.which("callgrind_annotate"):
        tarn_test.skip("no valgrind")
    http_helpers.TIMEOUT = 1800
    few = count(args.model, args.streams, FEW)
    more = count(args.model, args.streams, MORE)
    token = (more - few) / (args.streams * (MORE - FEW))
    request = few / args.streams - FEW * token
    step = decode_step_instructions(args.streams)
    share = 100 * token * args.streams / step
    print(f"a token on the HTTP side  {token:12,.0f} instructions")
    print(f"a request beside          {request:12,.0f} instructions")
    print(f"{args.streams} tokens                 {token * args.streams:12,.0f} instructions")
    print(f"a decode step, 0.49 B     {step:12,.0f} instructions, matrix products alone")
    print(f"share                     {share:12.2f} %")
    us, rate = measure_time(args.streams, 5000)
    print(f"CPU time, user + system   {us:12.1f} us a token at {rate:,.0f} tokens/s")
    return 0 if share < 5 else 1


if __name__ == "__main__":
    sys.exit(main())
