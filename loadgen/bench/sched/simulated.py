"""simulated.py - the burst protocol and the swapping study of FastServe's authors, simulated
by tarn-loadgen sim.

OPT-13B on one A100-40GB (the simulator's built-in cost model): a fixed number of prompts per rate,
Poisson arrivals, so that high rates are one short burst. The data sets are not in
the repository: lengths are log-normal with the published mean lengths. Each point is simulated with
several seeds.
"""
from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

from figures import BLUE, GREEN, ORANGE, RED, Points, curve, first_crossing, mean
from serving import N_CORES, program

LEVELS = (0.1, 0.3)              # s/token: the authors read their throughput at 0.3
# 40 GB at 0.9 less 26 GB of weights, and their CPU swap space.
DEVICE_BYTES, HOST_BYTES = 10_000_000_000, 48_000_000_000
COPY_BYTES_PER_S = 24_000_000_000  # PCIe 4.0 x16, each way
STEP_TOKENS = 2048                 # no prefill is cut by time: the authors' system has no chunks

DATA = {
    "sharegpt": ["--input-len", "lognormal:161:1.5", "--max-input-len", "1024",
                 "--output-len", "lognormal:338:1", "--max-output-len", "1900"],
    "alpaca": ["--input-len", "lognormal:19.3:0.6", "--max-input-len", "1024",
               "--output-len", "lognormal:58.5:1", "--max-output-len", "1024"],
}
RATES = {
    ("sharegpt", 16): [0.1, 0.2, 0.5, 1, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 8,
                       10],
    ("sharegpt", 64): [1, 2, 2.5, 2.75, 3, 3.25, 3.5, 4, 5, 6],
    ("sharegpt", 128): [1, 2, 2.5, 2.75, 3, 3.25, 3.5, 4, 5, 6],
    ("alpaca", 16): [1, 3, 5, 8, 11, 12, 13, 15, 17, 20, 24, 30, 40],
}
QUICK_RATES = {("sharegpt", 16): [1, 2], ("alpaca", 16): [5, 20]}
# Published for ShareGPT 13B, not for Alpaca.
PROMPTS = [(0.1, 20), (0.2, 50), (0.5, 100), (1, 200), (1.5, 300), (1.75, 350)]
PROMPTS_MOST = 400
# Our policy; the published one with the paper's starvation limit; the one of the authors' code.
VARIANTS = {
    "fcfs": ["--scheduling-policy", "fcfs"],
    "skip-join-mlfq": ["--scheduling-policy", "skip-join-mlfq", "--mlfq-variant", "tarn"],
    "alpha 300 ms": ["--scheduling-policy", "skip-join-mlfq", "--starvation-ms", "300",
                     "--mlfq-variant", "paper"],
    "as released": ["--scheduling-policy", "skip-join-mlfq", "--starvation-ms", "3000",
                    "--quantum-ms", "10", "--mlfq-variant", "released"],
    "srpt": ["--scheduling-policy", "srpt", "--starvation-ms", "inf"],
}
# Without alpha = 300 ms, which cannot sustain a steady load.
STEADY_VARIANTS = ("fcfs", "skip-join-mlfq", "as released", "srpt")
STEADY_LOADS = [0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95]
SWAPS = ("off", "recompute", "reactive", "proactive")
SWAP_RATES = [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]

# (figure, panel, data, batch, statistic, whose)
FIGURES = [
    ("overall__fig11_sharegpt", 0, "sharegpt", 16, "mean", "rerun"),
    ("overall__fig11_alpaca", 0, "alpaca", 16, "mean", "rerun"),
    ("overall__fig12", 0, "sharegpt", 16, "p95", "rerun"),
    ("large_bs__large_bs=64", 0, "sharegpt", 64, "mean", "rerun"),
    ("large_bs__large_bs=128", 0, "sharegpt", 128, "mean", "rerun"),
    ("eval__overall", 0, "sharegpt", 16, "mean", "paper"),
    ("eval__overall2", 0, "alpaca", 16, "mean", "paper"),
    ("eval__fairness", 0, "sharegpt", 16, "p95", "paper"),
    ("eval__large_bs", 0, "sharegpt", 64, "mean", "paper"),
    ("eval__large_bs", 1, "sharegpt", 128, "mean", "paper"),
]
SYSTEMS = {"vLLM": ORANGE, "FCFS": GREEN, "FastServe": RED}
SWAP_FIGURE = ("eval__abaltion_swapping", {"proactive": BLUE, "reactive": ORANGE,
                                           "recompute": GREEN})


# --- running the simulator ---

def simulate(options: list[object]) -> dict:
    command = [program("tarn-loadgen"), "sim", "--quiet", "--json", "-",
               "--token-times=false", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}: "
                         f"{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def simulate_all(jobs: list[list[object]]) -> list[dict]:
    """Simulate on all cores at once; results in order."""
    n_done, lock = 0, threading.Lock()

    def one(options: list[object]) -> dict:
        nonlocal n_done
        result = simulate(options)
        with lock:
            n_done += 1
            if sys.stderr.isatty():
                end = "\n" if n_done == len(jobs) else ""
                print(f"\r{n_done} of {len(jobs)} simulations", end=end, file=sys.stderr,
                      flush=True)
        return result

    with ThreadPoolExecutor(N_CORES) as pool:
        return list(pool.map(one, jobs))


def server(batch: int) -> list[object]:
    return ["--max-num-seqs", batch, "--max-num-batched-tokens", STEP_TOKENS,
            "--max-step-ms", 0, "--max-num-queued-reqs", 0, "--kv-device-bytes", DEVICE_BYTES,
            "--kv-host-bytes", HOST_BYTES, "--copy-in-bytes-per-s", COPY_BYTES_PER_S,
            "--copy-out-bytes-per-s", COPY_BYTES_PER_S]


def n_prompts(rate: float) -> int:
    return next((n for at, n in PROMPTS if rate <= at), PROMPTS_MOST)


def seconds(result: dict, of: str) -> float:
    return result[f"{of}_normalized_latency_ms"] / 1e3


def point(rate: float, n: int, results: list[dict]) -> dict:
    means, p95s = [seconds(r, "mean") for r in results], [seconds(r, "p95") for r in results]
    return {"rate": rate, "n_prompts": n, "n_seeds": len(results),
            "mean_s": mean(means), "mean_low_s": min(means), "mean_high_s": max(means),
            "p95_s": mean(p95s), "p95_low_s": min(p95s), "p95_high_s": max(p95s),
            "mean_ttft_s": mean([r["mean_ttft_ms"] for r in results]) / 1e3,
            "simulated_s": mean([r["sim"]["simulated_s"] for r in results]),
            "waited_for_copies_s": mean([r["sim"]["compute_waited_s"] for r in results]),
            "preempted": mean([r["sim"]["preempted_for_place"] + r["sim"]["preempted_for_memory"]
                               for r in results]),
            "starving": mean([r["sim"]["starving"] for r in results]),
            "recomputed_tokens": mean([r["sim"]["recomputed_tokens"] for r in results]),
            "failed": sum(r["failed"] for r in results)}


def points_of(row: dict, statistic: str) -> Points:
    return [(p["rate"], p[f"{statistic}_s"]) for p in row["points"]]


def crossings(points: Points) -> dict[str, float | None]:
    """Level -> the rate at which the curve first rises to it."""
    return {str(level): first_crossing(points, level) for level in LEVELS}


def burst_points(rates: list[float], options: list[object], n_seeds: int) -> list[dict]:
    jobs = [[*options, "--rate", rate, "--count", n_prompts(rate), "--seed", seed]
            for rate in rates for seed in range(1, n_seeds + 1)]
    results = simulate_all(jobs)
    return [point(rate, n_prompts(rate), results[i * n_seeds:(i + 1) * n_seeds])
            for i, rate in enumerate(rates)]


# --- the burst protocol ---

def our_curve(data: str, batch: int, variant: str, rates: list[float], n_seeds: int) -> dict:
    print(f"burst: {data}, batch {batch}, {variant}", file=sys.stderr, flush=True)
    row: dict = {"data": data, "batch": batch, "policy": variant,
                 "points": burst_points(rates, [*DATA[data], *server(batch), *VARIANTS[variant]],
                                        n_seeds)}
    row["crossings"] = {of: crossings(points_of(row, of)) for of in ("mean", "p95")}
    return row


def their_curves(figures: dict) -> list[dict]:
    rows = []
    for figure, panel, data, batch, of, whose in FIGURES:
        for system, colour in SYSTEMS.items():
            points = curve(figures, figure, panel, colour)
            rows.append({"figure": figure, "panel": panel, "data": data, "batch": batch,
                         "statistic": of, "source": whose, "system": system, "points": points,
                         "crossings": crossings(points)})
    return rows


def steady_curve(data: str, batch: int, variant: str, loads: list[float], n: int) -> dict:
    """The same requests under a load so long that its beginning hardly counts."""
    print(f"burst: steady, {data}, batch {batch}, {variant}", file=sys.stderr, flush=True)
    options = [*DATA[data], *server(batch), *VARIANTS[variant]]
    results = simulate_all([[*options, "--load", load, "--count", n, "--seed", 1]
                            for load in loads])
    points = [{"load": load, "rate": r["sim"]["rate"], "mean_s": seconds(r, "mean"),
               "p95_s": seconds(r, "p95"), "n_prompts": n}
              for load, r in zip(loads, results)]
    row: dict = {"data": data, "batch": batch, "policy": variant, "points": points}
    row["crossings"] = {of: crossings(points_of(row, of)) for of in ("mean", "p95")}
    return row


def ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


def gain_row(ours: dict[str, dict], theirs: list[dict], of: str, level: str) -> dict:
    row: dict = {"statistic": of, "level_s": float(level)}
    for variant in VARIANTS:
        row[variant] = ours[variant]["crossings"][of][level]
    row["gain"] = ratio(row["skip-join-mlfq"], row["fcfs"])
    row["gain_alpha_300_ms"] = ratio(row["alpha 300 ms"], row["fcfs"])
    row["gain_as_released"] = ratio(row["as released"], row["fcfs"])
    for source in ("rerun", "paper"):
        got = {t["system"]: t["crossings"][level] for t in theirs
               if (t["statistic"], t["source"]) == (of, source)}
        if got:
            row[source] = {**got, "gain": ratio(got.get("FastServe"), got.get("FCFS"))}
    return row


def gains(curves: list[dict], theirs: list[dict]) -> list[dict]:
    """Throughput of MLFQ over FCFS at equal latency: Tarn's and the authors'."""
    out = []
    for key in dict.fromkeys((c["data"], c["batch"]) for c in curves):
        ours = {c["policy"]: c for c in curves if (c["data"], c["batch"]) == key}
        beside = [t for t in theirs if (t["data"], t["batch"]) == key]
        out += [{"data": key[0], "batch": key[1], **gain_row(ours, beside, of, str(level))}
                for of in ("mean", "p95") for level in LEVELS]
    return out


def burst_settings(n_seeds: int, n_steady: int, quick: bool) -> dict:
    rates = QUICK_RATES if quick else RATES
    return {"n_seeds": n_seeds, "n_steady": n_steady, "levels_s": LEVELS, "data": DATA,
            "variants": VARIANTS, "server": server(16),
            "rates": [[*key, at] for key, at in rates.items()]}


def run_burst(figures: dict, n_seeds: int, n_steady: int, quick: bool, old: dict,
              save: Callable[[dict], None]) -> dict:
    rates = QUICK_RATES if quick else RATES
    out: dict = {"settings": burst_settings(n_seeds, n_steady, quick),
                 "curves": list(old.get("curves", [])), "steady": list(old.get("steady", []))}

    def missing(rows: list[dict], data: str, batch: int, variant: str) -> bool:
        return (data, batch, variant) not in [(r["data"], r["batch"], r["policy"]) for r in rows]

    for (data, batch), at in rates.items():
        for variant in VARIANTS:
            if missing(out["curves"], data, batch, variant):
                out["curves"].append(our_curve(data, batch, variant, at, n_seeds))
                save(out)
    for batch in (16, 64):
        for variant in STEADY_VARIANTS:
            if missing(out["steady"], "sharegpt", batch, variant) and not (quick and batch > 16):
                loads = STEADY_LOADS[-3:-1] if quick else STEADY_LOADS
                out["steady"].append(steady_curve("sharegpt", batch, variant, loads, n_steady))
                save(out)
    out["authors"] = their_curves(figures)
    out["gains"] = gains(out["curves"], out["authors"])
    return out


# --- swapping ---

def swap_settings(n_seeds: int, quick: bool) -> dict:
    return {"n_seeds": n_seeds, "levels_s": LEVELS, "data": DATA["sharegpt"], "server": server(16),
            "policy": VARIANTS["skip-join-mlfq"], "rates": [1, 2] if quick else SWAP_RATES}


def run_swap(figures: dict, n_seeds: int, quick: bool, old: dict,
             save: Callable[[dict], None]) -> dict:
    settings = swap_settings(n_seeds, quick)
    name, colours = SWAP_FIGURE
    out: dict = {"settings": settings, "curves": list(old.get("curves", []))}
    for swap in SWAPS:
        if swap in [c["swap"] for c in out["curves"]]:
            continue
        print(f"swap: {swap}", file=sys.stderr, flush=True)
        options = [*DATA["sharegpt"], *server(16), *VARIANTS["skip-join-mlfq"], "--kv-swap", swap]
        row: dict = {"swap": swap, "points": burst_points(settings["rates"], options, n_seeds)}
        row["crossings"] = {"mean": crossings(points_of(row, "mean"))}
        out["curves"].append(row)
        save(out)
    out["authors"] = [{"swap": swap, "points": curve(figures, name, 0, colour),
                       "crossings": {"mean": crossings(curve(figures, name, 0, colour))}}
                      for swap, colour in colours.items()]
    return out
