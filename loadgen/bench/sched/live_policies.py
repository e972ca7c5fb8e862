"""live_policies.py - the scheduling policies against each other on real servers, beside what the
simulator says of the same requests.

A round of a mix: the capacity (two closed loops at once, fcfs), then two pairs of servers, fcfs
beside the MLFQ and learned beside auto. The servers of a pair run at the same time, each on a core
of its own, and change places ten times a second, so that drifts of the machine affect both. All
four get the same requests at the same times, at 0.9 of the smaller capacity, and all requests
count.
The simulator serves the same requests with the step times that the server measured at its start, at
0.9 of its own capacity.

Each capacity, pair and simulation is saved when it ends. Rounds go over all mixes, so that one
round of all mixes is a whole table.
"""
from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Callable, Iterator

from figures import mean
from live import (CLOSED_CONCURRENCY, LMSYS, LMSYS_SCALE, N_RUNNING, SHAREGPT, SHAREGPT_SCALE,
                  at_once, check_same, say, shares)
from serving import Load, Server, Shape, buckets, model_files, quantile
from simulated import simulate_all

LOAD = 0.9
AZURE = "traces-azure-2023/AzureLLMInferenceTrace_code.csv"
READS = {"sharegpt": SHAREGPT, "lmsys": LMSYS, "azure code": AZURE}
MIXES = ("sharegpt", "lmsys", "azure code", "log-normal CV 1", "log-normal CV 4", "agents")
TURNS = 10
POLICIES = {
    "fcfs": ["--scheduling-policy", "fcfs"],
    "mlfq": ["--scheduling-policy", "skip-join-mlfq", "--mlfq-variant", "tarn"],
    "learned": ["--scheduling-policy", "skip-join-mlfq", "--mlfq-variant", "learned"],
    "auto": ["--scheduling-policy", "auto"],
}
PAIRS = (("fcfs", "mlfq"), ("learned", "auto"))
# A step of 16 takes a few milliseconds on one core.
SHAPE = Shape(hidden=256, layers=3, heads=4, kv_heads=2, ffn=704, context=4608)
DEVICE_BYTES = "2G"  # more than all requests that wait at any time need
# Requests of a closed loop that measures the capacity, as a share of those of a run.
CAPACITY_SHARE = 0.5
FIGURES = tuple(f"{of}_{name}_ms" for name in ("normalized_latency", "e2el", "ttft")
                for of in ("mean", "p95", "p99"))
PROGRAM = "mean_program_ms"
# |predicted - actual| / actual of each request: the server's histograms, the quantiles taken.
ERRORS = {"ttft": "tarn:estimate_ttft_error", "e2e": "tarn:estimate_e2e_error"}
ERROR_QUANTILES = (0.5, 0.9)
ERROR_MOST = 0.15  # median of the first token


def workload(mix: str, data: Path) -> list[object]:
    """All lengths are scaled down, so that a minute holds thousands of answers: those of sharegpt
    and lmsys to a mean answer of 64 tokens, log-normal CV 1 by 0.19, prompts of azure by 0.125,
    agents by a fifth, with pauses of 0.2 s instead of 5."""
    if mix in ("sharegpt", "lmsys"):
        scale = SHAREGPT_SCALE if mix == "sharegpt" else LMSYS_SCALE
        return ["--workload", "lengths", "--data", data / READS[mix], "--scale-input",
                f"{scale:.6g}", "--scale-output", f"{scale:.6g}"]
    return {
        "azure code": ["--workload", "trace", "--arrival", "trace", "--data", data / AZURE,
                       "--scale-input", 0.125],
        "log-normal CV 1": ["--input-len", "lognormal:30:1.5", "--max-input-len", 200,
                            "--output-len", "lognormal:64:1", "--max-output-len", 4000],
        "log-normal CV 4": ["--input-len", "lognormal:30:1.5", "--max-input-len", 200,
                            "--output-len", "lognormal:64:4", "--max-output-len", 4000],
        "agents": ["--workload", "multiturn", "--turns", TURNS, "--input-len", "lognormal:60:1",
                   "--max-input-len", 150, "--output-len", "lognormal:30:1", "--max-output-len",
                   200, "--think-time", 0.2, "--think-cv", 1, "--send-session-id",
                   "--finish-conversations"],
    }[mix]


def closed_loop(mix: str, data: Path) -> list[object]:
    """The same requests, without the arrivals of a trace or the pauses of agents."""
    work = workload(mix, data)
    if mix == "azure code":
        work = [*work[:2], *work[4:]]
    if mix == "agents":
        work[work.index("--think-time") + 1] = 0
    return work


def settings(data: Path, seconds: float, seed: int) -> dict:
    return {"model": SHAPE.describe(), "load": LOAD, "seconds": seconds, "seed": seed,
            "max_num_seqs": N_RUNNING, "policies": POLICIES, "errors": ERRORS,
            "workloads": {m: [Path(str(x)).name if "/" in str(x) else str(x)
                              for x in workload(m, data)] for m in MIXES}}


def start(model: Path, policy: str, core: int) -> Server:
    return Server(model, "--max-num-seqs", N_RUNNING, "--kv-device-bytes", DEVICE_BYTES,
                  "--threads", 1, *POLICIES[policy], core=core)


# --- a round of a mix ---

def capacity_of(model: Path, mix: str, data: Path, n: int, seed: int, core: int) -> dict:
    """Tokens per second while all places are taken."""
    with start(model, "fcfs", core) as server:
        load = Load(server.url, *closed_loop(mix, data), "--seed", seed, "--count", n,
                    "--concurrency", CLOSED_CONCURRENCY)
    done = [r for r in load.requests if r["end"] == "ok"]
    if len(done) < 0.99 * len(load.requests) or len(done) < 50:
        raise SystemExit(f"{mix}: {len(load.requests) - len(done)} of {len(load.requests)} "
                         "requests failed in the closed loop")
    begin = sorted(r["end_ns"] for r in done)[len(done) // 10]
    end = max(r["sent_ns"] for r in done)
    if end <= begin:
        raise SystemExit(f"{mix}: {n} requests are too few for a steady part")
    tokens_per_s = sum(begin < t <= end for r in done for t in r["token_ns"]) / (end - begin) * 1e9
    n_out = mean([r["output_tokens"] for r in done])
    return {"tokens_per_s": tokens_per_s, "requests_per_s": tokens_per_s / n_out,
            "mean_output": n_out, "step_ms": load.result["median_tpot_ms"]}


def row_of(result: dict, requests: int) -> dict:
    row = {name: result[name] for name in FIGURES}
    if PROGRAM in result:
        row[PROGRAM] = result[PROGRAM]
    return {**row, "completed": result["completed"], "failed": result["failed"],
            "requests": requests}


def run_policy(model: Path, policy: str, options: list[object], core: int) -> tuple[dict, list]:
    with start(model, policy, core) as server:
        before = server.cpu_s()
        counted = {key: buckets(server, name) for key, name in ERRORS.items()}
        load = Load(server.url, *options)
        cpu = shares(server, load, before)
        errors = {f"{key}_error_p{q * 100:.0f}": quantile(counted[key], buckets(server, name), q)
                  for key, name in ERRORS.items() for q in ERROR_QUANTILES}
        n_changes = server.metric("tarn:sched_policy_changes_total")
    row = {**row_of(load.result, len(load.requests)), **errors, "cpu": cpu,
           "policy_changes": n_changes,
           "send_lag_p99_ms": load.result["p99_send_lag_ms"]}
    return row, [(q["prompt_tokens"], q["output_tokens"], q["intended_ns"] - q["start_ns"])
                 for q in load.requests]


def n_requests(per_s: float, seconds: float) -> int:
    return max(100, round(LOAD * per_s * seconds))


def measure_round(model: Path, mix: str, data: Path, seconds: float, seed: int, done: dict,
                  save: Callable[[], None]) -> None:
    """Measure what is missing in `done`."""
    if "capacity" not in done:
        guess = n_requests(done.get("guess", 60), seconds * CAPACITY_SHARE)
        say(f"live-policies: {mix}, seed {seed}: capacity")
        done["capacity"] = at_once([lambda core=core: capacity_of(model, mix, data, guess, seed,
                                                                   core) for core in range(2)])
        save()
    per_s = min(c["requests_per_s"] for c in done["capacity"])
    count, rate = n_requests(per_s, seconds), LOAD * per_s
    if mix == "agents":
        rate /= TURNS
    options = [*workload(mix, data), "--seed", seed, "--count", count, "--rate", f"{rate:.6g}"]
    done.update({"count": count, "rate": rate})
    runs = done.setdefault("runs", {})
    for pair in PAIRS:
        if set(pair) <= set(runs):
            continue
        say(f"live-policies: {mix}, seed {seed}: {' beside '.join(pair)}, {count} at {rate:.2f}/s")
        rows = at_once([lambda policy=policy, core=(i + seed) % 2: run_policy(
            model, policy, options, core) for i, policy in enumerate(pair)])
        if mix != "agents":  # later turns follow the answers
            check_same([asked for _, asked in rows], [])
        runs.update({policy: row for policy, (row, _) in zip(pair, rows)})
        save()
    if "simulated" not in done:
        done["simulated"] = simulate_round(model, mix, data, count, seed)
        save()


def simulate_round(model: Path, mix: str, data: Path, count: int, seed: int) -> dict:
    costs = sorted((model / "cache").rglob("cost-*.json"))
    if not costs:  # all was measured by an earlier run: this one started no server
        with start(model, "fcfs", 0):
            pass
        costs = sorted((model / "cache").rglob("cost-*.json"))
    say(f"live-policies: {mix}, seed {seed}: simulated")
    common = [*workload(mix, data), "--seed", seed, "--count", count, "--cost-model", costs[0],
              "--max-num-seqs", N_RUNNING, "--max-num-queued-reqs", 0, "--load", LOAD,
              "--kv-bytes-per-token", SHAPE.kv_bytes_per_token(), "--kv-device-bytes",
              DEVICE_BYTES, "--max-step-ms", 200]
    results = simulate_all([[*common, *options] for options in POLICIES.values()])
    return {p: row_of(r, r["completed"] + r["failed"]) for p, r in zip(POLICIES, results)}


# --- all of it ---

@contextlib.contextmanager
def one_model(data: Path) -> Iterator[Path]:
    """Compute threads have a core each; a third is of use to the generators."""
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("live-policies: two cores are needed")
    with model_files(SHAPE) as model:
        yield model


def run(data: Path, rounds: int, seconds: float, seed: int, old: dict,
        save: Callable[[dict], None]) -> dict:
    out = {"settings": settings(data, seconds, seed), "mixes": dict(old.get("mixes", {}))}
    mixes = [m for m in MIXES if m not in READS or (data / READS[m]).exists()]
    if len(mixes) < len(MIXES):
        print(f"live-policies: no shared data in {data}: leaving out "
              f"{', '.join(m for m in MIXES if m not in mixes)}", file=sys.stderr)
    with one_model(data) as model:
        for k in range(rounds):
            for mix in mixes:
                all_rounds = out["mixes"].setdefault(mix, {"rounds": []})["rounds"]
                if k == len(all_rounds):
                    all_rounds.append({"seed": seed + k})
                    if k > 0:
                        all_rounds[k]["guess"] = all_rounds[0]["capacity"][0]["requests_per_s"]
                measure_round(model, mix, data, seconds, seed + k, all_rounds[k],
                              lambda: save(out))
    return out


# --- what it says ---

def complete(out: dict) -> dict[str, list[dict]]:
    """The complete rounds of each mix that has some."""
    rounds = {mix: [r for r in of["rounds"] if "simulated" in r]
              for mix, of in out["mixes"].items()}
    return {mix: of for mix, of in rounds.items() if of}


def targets(out: dict) -> list[dict]:
    """The median error of the predicted first token, of the worst policy and mix."""
    errors = [(figure(rounds, "runs", p, "ttft_error_p50"), f"{p}, {mix}")
              for mix, rounds in complete(out).items() for p in POLICIES]
    if not errors:
        return []
    worst, where = max(errors)
    return [{"name": f"live-policies: median error of first tokens, worst {where}",
             "figure": worst, "target": ERROR_MOST, "met": worst <= ERROR_MOST}]


def figure(rounds: list[dict], source: str, policy: str, field: str) -> float:
    return mean([r[source][policy][field] for r in rounds])


def cell(rounds: list[dict], source: str, field: str, scale: float) -> str:
    return " / ".join(f"{figure(rounds, source, p, field) / scale:.3g}" for p in POLICIES)


def table(out: dict) -> str:
    """Means over the complete rounds, live and simulated side by side, in Markdown."""
    columns = (("mean normalized, ms/token", "mean_normalized_latency_ms", 1),
               ("P99", "p99_normalized_latency_ms", 1), ("mean end-to-end, s", "mean_e2el_ms", 1e3),
               ("mean first token, s", "mean_ttft_ms", 1e3),
               ("median error of its prediction, %", "ttft_error_p50", 0.01))
    lines = [f"| {' / '.join(POLICIES)} | | " + " | ".join(c[0] for c in columns) + " |",
             "|---|---|" + "---|" * len(columns)]
    for mix, rounds in complete(out).items():
        n = sum(r["runs"]["fcfs"]["completed"] for r in rounds)
        for source, words in (("runs", f"live, {n} requests"), ("simulated", "simulated")):
            lines.append(f"| {mix} | {words} | " + " | ".join(
                cell(rounds, source, field, scale) if field in rounds[0][source]["fcfs"] else "-"
                for _, field, scale in columns) + " |")
    return "\n".join(lines)
