"""policies.py - the scheduling policies against each other over many kinds of traffic, simulated by
tarn-loadgen sim at a load that is held.

The capacity of each mix and seed is measured once (fcfs, a closed loop), so all policies get the
same requests at the same times. A trace keeps its own arrivals, scaled to the load, and is run once
and whole; the other mixes have Poisson arrivals and several seeds.
"""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Callable

from figures import mean
from serving import program
from simulated import simulate_all

LOADS, QUICK_LOADS = (0.9, 0.7, 0.95), (0.9,)  # the most telling one first
COUNT, QUICK_COUNT = 20000, 200
QUICK_MIXES = ("log-normal CV 4", "bimodal", "change")

PROMPTS = ["--input-len", "lognormal:161:1.5", "--max-input-len", 1024]
SHAREGPT = "lengths-sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
# Files in the shared data; the other mixes need none.
LENGTHS = {"lmsys": "lengths-lmsys-apex/lmsys_05_llama_lengths.csv", "sharegpt": SHAREGPT}
TRACES = {"azure code": "traces-azure-2023/AzureLLMInferenceTrace_code.csv",
          "mooncake": "traces-mooncake/conversation_trace.jsonl", "ragpulse": "traces-ragpulse"}
MIXES = (*LENGTHS, *TRACES, "log-normal CV 1", "log-normal CV 4", "bimodal", "change")
HEAVY = ("lmsys", "log-normal CV 4")  # their answers have a heavy tail

POLICIES = {
    "fcfs": ["--scheduling-policy", "fcfs"],
    "mlfq": ["--scheduling-policy", "skip-join-mlfq", "--mlfq-variant", "tarn"],
    "learned": ["--scheduling-policy", "skip-join-mlfq", "--mlfq-variant", "learned"],
    "auto": ["--scheduling-policy", "auto"],
    "srpt": ["--scheduling-policy", "srpt", "--starvation-ms", "inf"],
}
# Device memory holds the KV of all requests that wait at any time (64 KB a token: 4 M tokens), so
# that the figures are about the order alone. `swap` is about memory.
SERVER = ["--max-num-seqs", 16, "--max-num-queued-reqs", 0, "--kv-bytes-per-token", "64K",
          "--kv-device-bytes", "256G"]

METRICS = {"normalized": "normalized_latency_ms", "e2e": "e2el_ms", "ttft": "ttft_ms"}
STATISTICS = ("mean", "p95", "p99")
FIELDS = tuple(f"{s}_{m}" for m in METRICS.values() for s in STATISTICS)
EVENTS = ("mean_batch", "preempted_for_place", "preempted_for_memory", "starving",
          "recomputed_tokens", "simulated_s")

# Statistic of `learned`, what it is compared with, the most that the ratio may be, the mixes.
CRITERIA = [
    ("mean", "normalized", "fcfs", 1.02, MIXES),
    ("mean", "normalized", "mlfq", 1.02, MIXES),
    ("p95", "normalized", "fcfs", 1.1, MIXES),
    ("p99", "normalized", "fcfs", 1.1, MIXES),
    ("mean", "e2e", "fcfs", 1.2, MIXES),
    ("p99", "e2e", "fcfs", 1.75, MIXES),
    ("mean", "ttft", "mlfq", 1.1, MIXES),
    ("mean", "normalized", "mlfq", 1.02, HEAVY),
    ("p95", "normalized", "mlfq", 1.02, HEAVY),
    ("p99", "normalized", "mlfq", 1.02, HEAVY),
]
GAP_MIXES, GAP_LEAST = ("sharegpt", "azure code"), 0.5


# --- what is simulated ---

def mix_options(mix: str, data: Path, count: int) -> list[object]:
    amount = ["--count", count]
    if mix in LENGTHS:
        return ["--workload", "lengths", "--data", data / LENGTHS[mix], *amount]
    if mix in TRACES:  # --count is the most that is taken of it
        return ["--workload", "trace", "--arrival", "trace", "--data", data / TRACES[mix], *amount]
    return {
        "log-normal CV 1": [*PROMPTS, "--output-len", "lognormal:338:1"],
        "log-normal CV 4": [*PROMPTS, "--output-len", "lognormal:64:4"],
        "bimodal": [*PROMPTS, "--output-len", "80%lognormal:16:0.5+20%lognormal:512:0.5"],
        # From a heavy to a light tail at an equal mean, so that the load stays what it is.
        "change": [*PROMPTS, "--output-len",
                   f"lognormal:200:3/{count // 2}/lognormal:200:0.5"],
    }[mix] + amount


def chosen_mixes(data: Path, quick: bool) -> list[str]:
    """The mixes whose data are there; the others are named on the standard error."""
    wanted, files = QUICK_MIXES if quick else MIXES, {**LENGTHS, **TRACES}
    absent = [m for m in wanted if m in files and not (data / files[m]).exists()]
    if absent:
        print(f"policies: no shared data in {data}: leaving out {', '.join(absent)}",
              file=sys.stderr)
    return [m for m in wanted if m not in absent]


def known_policies() -> list[str]:
    """The policies that this build has."""
    def runs(options: list[object]) -> bool:
        command = [program("tarn-loadgen"), "sim", "--quiet", "--count", "1", *map(str, options)]
        return subprocess.run(command, capture_output=True).returncode == 0

    known = [name for name, options in POLICIES.items() if runs(options)]
    unknown = [name for name in POLICIES if name not in known]
    if unknown:
        print(f"policies: this build has no {', '.join(unknown)}", file=sys.stderr)
    return known


def settings(quick: bool) -> dict:
    """Runs with other seeds, loads or policies can stand beside the old ones."""
    count = QUICK_COUNT if quick else COUNT
    return {"server": SERVER, "count": count,
            "mixes": {m: list(map(str, mix_options(m, Path(), count))) for m in MIXES}}


def seeds_of(mix: str, n_seeds: int) -> list[int]:
    return [1] if mix in TRACES else list(range(1, n_seeds + 1))


def one_run(result: dict) -> dict:
    return {**{f: result[f] for f in FIELDS}, **{e: result["sim"][e] for e in EVENTS},
            "completed": result["completed"], "failed": result["failed"],
            "mean_output": result["total_output_tokens"] / max(1, result["completed"])}


class Contest:
    """The runs of each mix, load and policy, in the order of their seeds."""

    def __init__(self, data: Path, quick: bool, old: dict, save: Callable[[dict], None]) -> None:
        self.data, self.save = data, save
        self.out: dict = {"settings": settings(quick),
                          "capacity_rps": dict(old.get("capacity_rps", {})),
                          "rows": list(old.get("rows", []))}

    def options(self, mix: str) -> list[object]:
        return [*mix_options(mix, self.data, self.out["settings"]["count"]), *SERVER]

    def capacity(self, mix: str, seeds: list[int]) -> list[float]:
        """Requests per second of each seed."""
        found = self.out["capacity_rps"].setdefault(mix, [])
        jobs = [[*self.options(mix), *POLICIES["fcfs"], "--load", 1, "--seed", seed]
                for seed in seeds[len(found):]]
        found += [r["sim"]["capacity_rps"] for r in simulate_all(jobs)]
        return found

    def row(self, mix: str, load: float, policy: str) -> dict:
        for r in self.out["rows"]:
            if (r["mix"], r["load"], r["policy"]) == (mix, load, policy):
                return r
        self.out["rows"].append({"mix": mix, "load": load, "policy": policy,
                                 "options": POLICIES[policy], "runs": []})
        return self.out["rows"][-1]

    def run(self, mix: str, load: float, policies: list[str], seeds: list[int]) -> None:
        """Simulate the runs that are missing, those of all policies at once."""
        rows = [self.row(mix, load, p) for p in policies]
        missing = [(row, seed) for row in rows for seed in seeds[len(row["runs"]):]]
        if not missing:
            return
        names = dict.fromkeys(row["policy"] for row, _ in missing)
        print(f"policies: {mix} at {load}: {', '.join(names)}", file=sys.stderr, flush=True)
        capacity = self.capacity(mix, seeds)
        results = simulate_all([[*self.options(mix), *row["options"], "--seed", seed,
                                 "--rate", repr(load * capacity[seed - 1])]
                                for row, seed in missing])
        for (row, _), result in zip(missing, results):
            row["runs"].append(one_run(result))
        of_case = [r for r in self.out["rows"] if (r["mix"], r["load"]) == (mix, load)]
        n_seeds = min(len(row["runs"]) for row in of_case)  # all policies over the same seeds
        for row in of_case:
            row.update({"n_seeds": n_seeds,
                        **{f: mean([r[f] for r in row["runs"][:n_seeds]]) for f in FIELDS}})
        self.save(self.out)


def run(data: Path, n_seeds: int, quick: bool, again: list[str], old: dict,
        save: Callable[[dict], None]) -> dict:
    """Rows of the policies in `again`, or with other options, are simulated again."""
    old = {**old, "rows": [r for r in old.get("rows", []) if r["policy"] not in again
                           and r["runs"] and r["options"] == POLICIES.get(r["policy"])]}
    contest, policies = Contest(data, quick, old, save), known_policies()
    mixes = chosen_mixes(data, quick)
    for load in QUICK_LOADS if quick else LOADS:
        for mix in mixes:
            contest.run(mix, load, policies, seeds_of(mix, n_seeds))
    return contest.out


# --- what it says ---

def by_case(out: dict) -> dict[tuple[str, float], dict[str, dict]]:
    """(mix, load) -> policy -> row, in the order of the mixes."""
    cases: dict[tuple[str, float], dict[str, dict]] = {}
    for load in sorted({r["load"] for r in out["rows"]}):
        for mix in MIXES:
            rows = {r["policy"]: r for r in out["rows"] if (r["mix"], r["load"]) == (mix, load)}
            if rows:
                cases[mix, load] = rows
    return cases


def ratio_of(rows: dict[str, dict], policy: str, to: str, field: str) -> float:
    return rows[policy][field] / rows[to][field]


def gap_closed(rows: dict[str, dict], policy: str) -> float:
    """Share of the distance from fcfs to srpt, of mean normalized latency."""
    f = FIELDS[0]
    gap = rows["fcfs"][f] - rows["srpt"][f]
    return (rows["fcfs"][f] - rows[policy][f]) / gap if gap > 0 else 1.0


def worst_case(cases: dict, mixes: tuple, needs: set[str],
               of: Callable[[dict], float]) -> tuple[float, str, dict] | None:
    """The largest value, where it is, and that case's rows."""
    found = [(of(rows), f"{mix} at {load}", rows) for (mix, load), rows in cases.items()
             if mix in mixes and needs <= set(rows)]
    return max(found, key=lambda x: x[0], default=None)


def targets(out: dict) -> list[dict]:
    """The worst case of each criterion; `oracle` is the figure of srpt in the same case."""
    cases, rows = by_case(out), []
    for statistic, metric, to, most, mixes in CRITERIA:
        field = f"{statistic}_{METRICS[metric]}"
        worst = worst_case(cases, mixes, {"learned", "srpt", to},
                           lambda r, f=field, t=to: ratio_of(r, "learned", t, f))
        if worst:
            kind = "heavy tails, " if mixes is HEAVY else ""
            rows.append({"name": f"policies: {kind}{statistic} {metric}, learned / {to}, worst "
                                 f"{worst[1]}", "figure": worst[0], "target": most,
                         "met": worst[0] <= most,
                         "oracle": ratio_of(worst[2], "srpt", to, field)})
    worst = worst_case(cases, GAP_MIXES, {"learned", "srpt", "fcfs"},
                       lambda r: -gap_closed(r, "learned"))
    if worst:
        rows.append({"name": f"policies: gap to srpt closed, least {worst[1]}",
                     "figure": -worst[0], "target": GAP_LEAST, "met": -worst[0] >= GAP_LEAST,
                     "oracle": 1.0})
    return rows


def cell(rows: dict[str, dict], policy: str, field: str) -> str:
    """Of fcfs the value (s, normalized latency in ms/token), of others the multiple of it."""
    if policy != "fcfs" and "fcfs" in rows:
        return f"x{ratio_of(rows, policy, 'fcfs', field):.3f}"
    value = rows[policy][field] / (1 if "normalized" in field else 1e3)
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def table(out: dict) -> str:
    """All figures: a line for each mix and policy, by load."""
    lines, last = [], None
    for (mix, load), rows in by_case(out).items():
        if load != last:
            head = "  ".join(f"{name:>26}" for name in ("normalized latency, ms/token",
                                                        "end-to-end, s", "first token, s"))
            lines += ["", f"{'load ' + format(load, 'g'):26}{head}",
                      " " * 26 + "  ".join("".join(f"{s:>9}" for s in STATISTICS)
                                           for _ in METRICS)]
            last = load
        for policy in [p for p in POLICIES if p in rows]:
            cells = ["".join(f"{cell(rows, policy, f'{s}_{m}'):>9}" for s in STATISTICS)
                     for m in METRICS.values()]
            lines.append(f"{mix:17}{policy:9}" + "  ".join(cells))
    return "\n".join(lines)
