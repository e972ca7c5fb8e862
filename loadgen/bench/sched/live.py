"""live.py - compare policies on a real server with the same requests at the same times.

Two servers run at the same time, each on its own core, and swap cores ten times a second, so that
drifts of the machine affect both equally: fcfs beside skip-join-mlfq, then fcfs beside
srpt. A round is, for each of these pairs, the capacity for this round's requests (two closed loops
at once, first come first served) and then one run of both at 0.9 of the smaller one, open loop.
"""
from __future__ import annotations

import concurrent.futures
import http.client
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from figures import mean, percentile
from serving import Load, Server, Shape, model_files

LOAD = 0.9
N_RUNNING = 16
POLICIES = ("fcfs", "skip-join-mlfq", "srpt")
PAIRS = (("fcfs", "skip-join-mlfq"), ("fcfs", "srpt"))
NEVER_MS = 86_400_000
CLOSED_CONCURRENCY = 4 * N_RUNNING
N_QUANTILES = 200
BLOCK_TOKENS = 32

SHAPE = Shape(hidden=384, layers=4, heads=6, kv_heads=2, ffn=1024, context=4608)
OUTPUT_MOST = 4096
# Both lengths of a data set are scaled equally, to a mean output of 64 tokens.
LMSYS_SCALE, SHAREGPT_SCALE = 64 / 162.1, 64 / 438.7
LMSYS = "lengths-lmsys-apex/lmsys_05_llama_lengths.csv"
SHAREGPT = "lengths-sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
# Little memory: 16 sequences of the mean length (112 tokens, so 4 blocks of 32) fit, and no
# sequence may need more than all of it.
LITTLE_BLOCKS = N_RUNNING * 4
LITTLE_OUTPUT_MOST = 1500


class Plan:
    """The amount of measurements."""

    def __init__(self, rounds: int, count: int, warmup: int, seed: int) -> None:
        self.rounds, self.count, self.warmup, self.seed = rounds, count, warmup, seed


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


# --- requests ---

def workload(part: str, data: Path) -> list[object]:
    made = ["--input-len", "uniform:32:64", "--output-len", "lognormal:64:4"]
    if part == "live":
        return [*made, "--max-output-len", OUTPUT_MOST]
    if part == "little-kv":
        return [*made, "--max-output-len", LITTLE_OUTPUT_MOST]
    name, scale = (LMSYS, LMSYS_SCALE) if part == "lmsys" else (SHAREGPT, SHAREGPT_SCALE)
    return ["--workload", "lengths", "--data", data / name, "--scale-input", f"{scale:.6g}",
            "--scale-output", f"{scale:.6g}"]


def server_options(part: str) -> list[object]:
    block_bytes = BLOCK_TOKENS * SHAPE.kv_bytes_per_token()
    if part == "little-kv":
        return ["--max-num-seqs", N_RUNNING, "--kv-device-bytes", LITTLE_BLOCKS * block_bytes,
                "--kv-host-bytes", "2G"]
    # Room for every request that could wait at any time: no policy ever lacks memory.
    return ["--max-num-seqs", N_RUNNING, "--kv-device-bytes", "4G"]


def settings(part: str, data: Path, plan: Plan) -> dict:
    return {"model": SHAPE.describe(), "server": [str(x) for x in server_options(part)],
            "workload": [Path(str(x)).name if "/" in str(x) else str(x)
                         for x in workload(part, data)],
            "load": LOAD, "rounds": plan.rounds, "count": plan.count, "warmup": plan.warmup,
            "seed": plan.seed, "policies": list(POLICIES)}


# --- one run ---

def shares(server: Server, load: Load, before: dict[str, float]) -> dict:
    """Shares of a core's time: the computing thread (the busiest), the server's other threads, the
    generator."""
    used = sorted((s - before.get(tid, 0) for tid, s in server.cpu_s().items()), reverse=True)
    return {"server_compute": used[0] / load.wall_s, "server_other": sum(used[1:]) / load.wall_s,
            "loadgen": load.cpu_s / load.wall_s}


def start(model: Path, part: str, policy: str, core: int) -> Server:
    never = ["--starvation-ms", NEVER_MS] if policy == "srpt" else []
    return Server(model, *server_options(part), "--threads", 1, "--scheduling-policy", policy,
                  *never, core=core)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(c) for c in calls]]


def quantiles(values: list[float]) -> list[float]:
    return [float(f"{percentile(values, 100 * (i + 0.5) / N_QUANTILES):.5g}")
            for i in range(N_QUANTILES)]


def measure_capacity(model: Path, part: str, work: list[object], n: int, seed: int,
                     core: int) -> dict:
    """Tokens per second while all places are taken, and the same in requests per second for these
    n requests, whose mean length varies between seeds because of heavy tails."""
    with start(model, part, "fcfs", core) as server:
        before = server.cpu_s()
        load = Load(server.url, *work, "--seed", seed, "--count", n, "--concurrency",
                    CLOSED_CONCURRENCY)
        cpu = shares(server, load, before)
    done = [r for r in load.requests if r["end"] == "ok"]
    if len(done) < n:
        raise SystemExit(f"{part}: {n - len(done)} of {n} requests failed in the closed loop")
    begin = sorted(r["end_ns"] for r in done)[n // 10]
    end = max(r["sent_ns"] for r in done)
    if end <= begin:
        raise SystemExit(f"{part}: {n} requests are too few for a steady part")
    tokens_per_s = sum(begin < t <= end for r in done for t in r["token_ns"]) / (end - begin) * 1e9
    n_out = mean([r["output_tokens"] for r in done])
    return {"tokens_per_s": tokens_per_s, "mean_input": mean([r["prompt_tokens"] for r in done]),
            "mean_output": n_out, "requests_per_s": tokens_per_s / n_out,
            "steady_s": (end - begin) / 1e9, "step_ms": load.result["median_tpot_ms"], "cpu": cpu,
            "lengths": [(r["prompt_tokens"], r["output_tokens"]) for r in done]}


def measure_policy(model: Path, part: str, policy: str, work: list[object], rate: float,
                   plan: Plan, seed: int, core: int) -> tuple[dict, list]:
    with start(model, part, policy, core) as server:
        before = server.cpu_s()
        load = Load(server.url, *work, "--seed", seed, "--count", plan.count, "--warmup",
                    f"{plan.warmup / rate:.6g}", "--rate", f"{rate:.6g}")
        cpu = shares(server, load, before)
        n_preempted = server.metric("vllm:num_preemptions_total")
    r, done = load.result, load.measured()
    normalized = [(q["last_ns"] - q["intended_ns"]) / q["output_tokens"] / 1e6 for q in done]
    row = {"completed": r["completed"], "failed": r["failed"], "duration_s": r["duration"],
           "requests_per_s": r["request_throughput"], "tokens_per_s": r["output_throughput"],
           "max_in_flight": r["max_concurrent_requests"], "preemptions": n_preempted,
           "send_lag_p99_ms": r["p99_send_lag_ms"], "generator_late": r["generator_late"],
           "cpu": cpu, "normalized_quantiles_ms": quantiles(normalized)}
    for name in ("normalized_latency", "ttft", "tpot", "e2el"):
        for of in ("mean", "median", "p95", "p99"):
            row[f"{of}_{name}_ms"] = r[f"{of}_{name}_ms"]
    asked = [(q["prompt_tokens"], q["output_tokens"], q["intended_ns"] - q["start_ns"])
             for q in load.requests]
    return row, asked


def check_same(asked: list[list], lengths: list) -> None:
    """Check that both servers and the closed loop got the same requests at the same times."""
    first = asked[0]
    if any(other != first for other in asked):
        raise SystemExit("the policies were not asked the same: their figures are no comparison")
    n = min(len(first), len(lengths))
    if [(a, b) for a, b, _ in first[:n]] != [tuple(x) for x in lengths[:n]]:
        raise SystemExit("the closed loop was asked something else than the policies")


# --- a part ---

def run_pair(model: Path, part: str, data: Path, plan: Plan, k: int, pair: tuple) -> dict:
    seed, work = plan.seed + k, workload(part, data)
    words = f"{part}, round {k + 1} of {plan.rounds}, {' beside '.join(pair)}:"
    say(f"{words} capacity")
    capacities = at_once([lambda core=core: measure_capacity(
        model, part, work, plan.warmup + plan.count, seed, core) for core in range(2)])
    lengths = [c.pop("lengths") for c in capacities][0]
    rate = LOAD * min(c["requests_per_s"] for c in capacities)
    say(f"{words} {rate:.2f} requests/s, about {(plan.warmup + plan.count) / rate:.0f} s")
    answers = at_once([lambda policy=policy, core=(i + k) % 2: measure_policy(
        model, part, policy, work, rate, plan, seed, core) for i, policy in enumerate(pair)])
    check_same([asked for _, asked in answers], lengths)
    return {"seed": seed, "capacity": capacities, "rate": rate,
            "runs": {policy: row for policy, (row, _) in zip(pair, answers)}}


def run_round(model: Path, part: str, data: Path, plan: Plan, k: int) -> dict:
    return {"pairs": [run_pair(model, part, data, plan, k, pair) for pair in PAIRS]}


def run(part: str, data: Path, plan: Plan, old: dict, save: Callable[[dict], None]) -> dict:
    """old: the results of an earlier run with the same settings; save() after each round."""
    out = {"settings": settings(part, data, plan), "rounds": list(old.get("rounds", []))}
    with model_files(SHAPE) as model:
        for k in range(len(out["rounds"]), plan.rounds):
            out["rounds"].append(run_round(model, part, data, plan, k))
            out["summary"] = summary(out["rounds"])
            save(out)
    out["summary"] = summary(out["rounds"])
    return out


def spread(values: list[float]) -> dict:
    return {"rounds": values, "min": min(values), "max": max(values)}


def over_rounds(runs: list[dict]) -> dict:
    """Combine the rounds of one policy; all rounds have equally many requests."""
    pooled = [x for run in runs for x in run["normalized_quantiles_ms"]]
    return {"completed": sum(run["completed"] for run in runs),
            "failed": sum(run["failed"] for run in runs),
            "mean_normalized_ms": mean([run["mean_normalized_latency_ms"] for run in runs]),
            "p95_normalized_ms": percentile(pooled, 95),
            "median_normalized_ms": percentile(pooled, 50),
            "mean_ttft_ms": mean([run["mean_ttft_ms"] for run in runs]),
            "p95_ttft_ms": mean([run["p95_ttft_ms"] for run in runs]),
            "tokens_per_s": mean([run["tokens_per_s"] for run in runs]),
            "compute_share": mean([run["cpu"]["server_compute"] for run in runs]),
            "preemptions": sum(run["preemptions"] for run in runs)}


def summary(rounds: list[dict]) -> dict:
    def runs(pair: int, policy: str) -> list[dict]:
        return [r["pairs"][pair]["runs"][policy] for r in rounds]

    fcfs, skip = over_rounds(runs(0, "fcfs")), over_rounds(runs(0, "skip-join-mlfq"))
    fcfs_2, srpt = over_rounds(runs(1, "fcfs")), over_rounds(runs(1, "srpt"))
    gained = 1 - skip["mean_normalized_ms"] / fcfs["mean_normalized_ms"]
    could = 1 - srpt["mean_normalized_ms"] / fcfs_2["mean_normalized_ms"]

    def ratios(name: str) -> dict:
        return spread([a[name] / b[name] for a, b in zip(runs(0, "fcfs"),
                                                          runs(0, "skip-join-mlfq"))])

    return {"policies": {"fcfs": fcfs, "skip-join-mlfq": skip, "srpt": srpt,
                         "fcfs beside srpt": fcfs_2},
            "mean_ratio": fcfs["mean_normalized_ms"] / skip["mean_normalized_ms"],
            "mean_ratio_of_rounds": ratios("mean_normalized_latency_ms"),
            "p95_ratio": fcfs["p95_normalized_ms"] / skip["p95_normalized_ms"],
            "p95_ratio_of_rounds": ratios("p95_normalized_latency_ms"),
            "gap_closed": gained / could if could > 0 else None}


# --- a short request behind a long prefill ---

LONG_SHAPE = Shape(hidden=256, layers=4, heads=4, kv_heads=4, ffn=704, context=40000)
LONG_TOKENS, SHORT_TOKENS, HEAD_START_S = 32000, 100, 0.3


class Stream:
    """One streamed completion of made-up ids; the time of its first piece of text."""

    def __init__(self, port: int, n_tokens: int, number: int, max_tokens: int = 4) -> None:
        ids = [(i * 7919 + number * 104729) % 3000 + 512 for i in range(n_tokens)]
        body = json.dumps({"model": self.model_of(port), "prompt": ids, "stream": True,
                           "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0})
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.start = time.monotonic()
        self.connection.request("POST", "/v1/completions", body,
                                {"Content-Type": "application/json"})

    @staticmethod
    def model_of(port: int) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/models")
        name = json.loads(connection.getresponse().read())["data"][0]["id"]
        connection.close()
        return name

    def ttft_s(self) -> float:
        """TTFT, after reading the stream to its end."""
        answer, first = self.connection.getresponse(), 0.0
        if answer.status != 200:
            raise SystemExit(f"/v1/completions: {answer.status} {answer.read()[:300]!r}")
        for line in answer:
            if line.startswith(b"data: {") and not first:
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0].get("text"):
                    first = time.monotonic()
        self.connection.close()
        if not first:
            raise SystemExit("/v1/completions: a stream without any text")
        return first - self.start


def behind_long(server: Server, number: int, long_tokens: int) -> tuple[float, float]:
    """TTFT of the short request and of the long one."""
    long_ttft: list[float] = []
    long = Stream(server.port, long_tokens, 2 * number)
    reader = threading.Thread(target=lambda: long_ttft.append(long.ttft_s()))
    reader.start()
    time.sleep(max(0.0, long.start + HEAD_START_S - time.monotonic()))
    short = Stream(server.port, SHORT_TOKENS, 2 * number + 1).ttft_s()
    reader.join()
    if not long_ttft:
        raise SystemExit("the long request failed")
    return short, long_ttft[0]


def long_settings(repeats: int, long_tokens: int) -> dict:
    return {"model": LONG_SHAPE.describe(), "long_tokens": long_tokens,
            "short_tokens": SHORT_TOKENS, "head_start_s": HEAD_START_S, "repeats": repeats}


def run_long(repeats: int, long_tokens: int) -> dict:
    out: dict = {"settings": long_settings(repeats, long_tokens), "policies": {}}
    with model_files(LONG_SHAPE) as model:
        for policy, n in (("skip-join-mlfq", repeats), ("fcfs", min(repeats, 2))):
            say(f"long: {policy}, {n} times")
            with Server(model, "--max-num-seqs", N_RUNNING, "--kv-device-bytes", "2G",
                        "--scheduling-policy", policy) as server:
                for i in range(2):
                    Stream(server.port, SHORT_TOKENS, 1000 + i).ttft_s()
                alone = [Stream(server.port, SHORT_TOKENS, 2000 + i).ttft_s()
                         for i in range(max(repeats, 5))]
                pairs = [behind_long(server, i, long_tokens) for i in range(n)]
            out["policies"][policy] = {
                "alone_s": alone, "alone_median_s": statistics.median(alone),
                "behind_s": [p[0] for p in pairs], "long_s": [p[1] for p in pairs],
                "worst_added_s": max(p[0] for p in pairs) - statistics.median(alone)}
    return out
