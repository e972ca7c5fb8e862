#!/usr/bin/env python3
"""estimates.py - how far predictions of the first token and the end are off, on a real server.

    loadgen/bench/sched/estimates.py --policies skip-join-mlfq,fcfs --loads 0.5,0.7,0.9

A closed loop measures the capacity. Then Poisson arrivals come at shares of it, and the server's
histograms of |predicted - actual| / actual tell the median error of this load. The error includes
everything: unknown lengths, later arrivals, the machine's noise.
"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

from serving import Load, Server, Shape, buckets, model_files, quantile

SHAPE = Shape(hidden=384, layers=4, heads=6, kv_heads=2, ffn=1024, context=4608)
N_RUNNING = 16
CLOSED_CONCURRENCY = 4 * N_RUNNING
WORK = ["--input-len", "lognormal:200:1", "--output-len", "lognormal:64:1.5",
        "--max-output-len", 2000, "--max-input-len", 2000]
SERVER = ["--max-num-seqs", N_RUNNING, "--kv-device-bytes", "2G"]


def capacity(server: Server, n: int, seed: int) -> float:
    """Requests per second while all places are taken."""
    load = Load(server.url, *WORK, "--seed", seed, "--count", n, "--concurrency",
                CLOSED_CONCURRENCY)
    done = [r for r in load.requests if r["end"] == "ok"]
    begin = sorted(r["end_ns"] for r in done)[n // 10]
    end = max(r["sent_ns"] for r in done)
    tokens = sum(begin < t <= end for r in done for t in r["token_ns"])
    return tokens / (end - begin) * 1e9 / (sum(r["output_tokens"] for r in done) / len(done))


def measure(server: Server, policy: str, share: float, n: int, seed: int) -> dict[str, object]:
    """The capacity is measured anew: the machine's speed may have changed since the last load."""
    rate = share * capacity(server, max(100, n // 4), seed + 1)
    names = {"ttft": "tarn:estimate_ttft_error", "e2e": "tarn:estimate_e2e_error"}
    before = {key: buckets(server, name) for key, name in names.items()}
    load = Load(server.url, *WORK, "--seed", seed, "--count", n, "--rate", f"{rate:.6g}")
    row: dict[str, object] = {"policy": policy, "load": share, "rate": round(rate, 3), "n": n,
                              "mean_ttft_ms": round(load.result["mean_ttft_ms"], 1)}
    for key, name in names.items():
        after = buckets(server, name)
        for q in (0.5, 0.9):
            row[f"{key}_error_p{int(q * 100)}"] = round(quantile(before[key], after, q), 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="skip-join-mlfq,fcfs")
    parser.add_argument("--loads", default="0.5,0.7,0.9")
    parser.add_argument("--count", type=int, default=600, help="requests of each load")
    parser.add_argument("--threads", type=int, default=1, help="of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows = []
    with model_files(SHAPE) as model:
        for policy in args.policies.split(","):
            with Server(model, *SERVER, "--threads", args.threads, "--scheduling-policy",
                        policy) as server:
                for share in map(float, args.loads.split(",")):
                    rows.append(measure(server, policy, share, args.count, args.seed))
                    print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
