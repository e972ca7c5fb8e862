"""simulated.py - the scenario in tarn-loadgen's simulator: the real scheduler and cache in virtual
time, a cost model of a large model in place of the device."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Callable

from scenario import BLOCK, Scenario, program

# Mistral-7B on an A10G, the smaller setting of RAGCache (Jin et al., 2024, arXiv 2404.12457): a
# step reads 14.5 GB of weights at 600 GB/s, a prefill of 4,000 tokens takes a second, and reading
# the KV of a cached token takes KV_BYTES_PER_TOKEN at that bandwidth.
MODEL = "Mistral-7B on an A10G"
STEP_S, TOKEN_S, CACHED_TOKEN_S = 24e-3, 0.244e-3, 0.22e-6
KV_BYTES_PER_TOKEN = 131072
ROOM_TOKENS = 32768          # memory beside the cache, for the requests that run; the control's too
SLO_FACTOR = 5
RATE_PRECISION = 0.02
UNLOADED_RATE = 0.01         # requests/s: no request meets another
ENDLESS = 4                  # memory of the oracle, as a share of the path tokens
BACKGROUND_LOAD, N_BACKGROUND = 0.7, 1000
BACKGROUND_TOKENS = 740
N_COST_DOCUMENTS, N_COST_REQUESTS, COST_TOKENS = 10_000, 10_000, 20_000_000

# name -> options of tarn-loadgen sim
SYSTEMS: dict[str, list[str]] = {
    "control": ["--no-prefix-caching"],
    "lru": ["--cache-policy", "lru"],
    "tree": [],
    "oracle": [],  # the tree with memory for everything
    "cold": [],    # the tree, with requests of its own
}


def systems() -> list[str]:
    """The systems of this build; with reordering, `tree` is the cache without it."""
    done = subprocess.run([program("tarn-loadgen"), "--help"], capture_output=True, text=True)
    if "--cache-reorder-window " in done.stdout:
        for options in SYSTEMS.values():
            options += ["--cache-reorder-window", "0"]
        SYSTEMS["cold"] = []
        SYSTEMS["reordered"] = []
        SYSTEMS["oracle, reordered"] = []
    return [name for name in SYSTEMS if name != "cold"]


def write_cost_model(path: Path) -> None:
    """The file that tarn-server writes for a measured model, with the formula's values."""
    cached, new, batch = [0, 8192], [1, 8192], [1, 64]
    path.write_text(json.dumps({
        "format": 2, "fingerprint": "00" * 32, "device": MODEL, "cached": cached, "new": new,
        "seconds": [[STEP_S + TOKEN_S * n + CACHED_TOKEN_S * c for n in new] for c in cached],
        "batch": batch,
        "decode": [[STEP_S + CACHED_TOKEN_S * c * n for n in batch] for c in cached]}))


def figures(result: dict) -> dict:
    """What the report keeps of a run; times in seconds."""
    out = {f"{name}_ttft_s": result[f"{key}_ttft_ms"] / 1e3
           for name, key in (("mean", "mean"), ("p50", "median"), ("p95", "p95"), ("p99", "p99"))}
    prompt, cached = result["total_input_tokens"], result["cached_tokens"] or 0
    out |= {"hit_share": cached / prompt, "tokens_computed": prompt - cached,
            "completed": result["completed"], "failed": result["failed"]}
    return out


class Simulation:
    """The runs of one scenario; the last command is kept for the report."""

    def __init__(self, scenario: Scenario, folder: Path, output_len: int, extra: list[str]) -> None:
        self.scenario, self.extra = scenario, extra
        self.folder = scenario.write(folder)
        write_cost_model(self.folder / "cost.json")
        self.output_len = output_len
        self.path_tokens = scenario.describe()["path_tokens"]

    def command(self, system: str, share: float, rate: float, *options: object) -> list[str]:
        memory = ENDLESS if system.startswith("oracle") else share
        n_tokens = (int(memory * self.path_tokens) + ROOM_TOKENS) // BLOCK * BLOCK
        requests = [] if system == "cold" else [
            "--workload", "rag", "--data", str(self.folder), "--no-shuffle", "--count",
            str(self.scenario.count)]
        return [program("tarn-loadgen"), "sim", *requests,
                "--docs-per-request", str(self.scenario.k), "--seed", str(self.scenario.seed),
                "--cost-model", str(self.folder / "cost.json"), "--rate", f"{rate:.6g}",
                "--output-len", str(self.output_len),
                "--kv-bytes-per-token", str(KV_BYTES_PER_TOKEN), "--kv-host-bytes", "0",
                "--kv-device-bytes", str(n_tokens * KV_BYTES_PER_TOKEN),
                "--max-num-queued-reqs", "0", "--no-token-times",
                *SYSTEMS[system], *self.extra, *map(str, options)]

    def run(self, system: str, share: float, rate: float, *options: object) -> dict:
        command = self.command(system, share, rate, *options, "--quiet", "--json", "-")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}")
        return json.loads(done.stdout)


class Average:
    """The same measurement on several seeds: means of its figures."""

    def __init__(self, simulations: list[Simulation]) -> None:
        self.simulations = simulations

    def run(self, system: str, share: float, rate: float, *options: object) -> dict:
        runs = [figures(s.run(system, share, rate, *options)) for s in self.simulations]
        return {key: sum(r[key] for r in runs) / len(runs) for key in runs[0]}

    def ttft(self, system: str, share: float, rate: float) -> float:
        return self.run(system, share, rate)["mean_ttft_s"]

    def largest_rate(self, system: str, share: float, slo_s: float, low: float) -> float:
        """The largest rate at which the mean TTFT keeps the SLO."""
        while self.ttft(system, share, low) > slo_s:
            low /= 2
        high = 2 * low
        while self.ttft(system, share, high) <= slo_s:
            low, high = high, 2 * high
        while high / low > 1 + RATE_PRECISION:
            middle = (low * high) ** 0.5
            if self.ttft(system, share, middle) <= slo_s:
                low = middle
            else:
                high = middle
        return low


def compare(runs: Average, shares: list[float], loads: list[float], systems: list[str],
            note: Callable[[str], None]) -> dict:
    """All systems at the control's rates: figures, and ratios to the control."""
    unloaded = runs.ttft("control", shares[0], UNLOADED_RATE)
    slo_s = SLO_FACTOR * unloaded
    control_rate = runs.largest_rate("control", 1, slo_s, 1 / unloaded)
    out: dict = {"unloaded_ttft_s": unloaded, "slo_s": slo_s, "control_largest_rate": control_rate,
                 "control": {f"{x:g}": runs.run("control", 1, x * control_rate) for x in loads},
                 "caches": {}}
    for share in shares:
        cache: dict = {}
        for system in systems:
            if system == "control":
                continue
            note(f"cache {share:g}, {system}")
            largest = runs.largest_rate(system, share, slo_s, control_rate)
            row = {"largest_rate": largest, "throughput_ratio": largest / control_rate, "loads": {}}
            for x in loads:
                one = runs.run(system, share, x * control_rate)
                one["ttft_ratio"] = (out["control"][f"{x:g}"]["mean_ttft_s"] / one["mean_ttft_s"])
                row["loads"][f"{x:g}"] = one
            cache[system] = row
        out["caches"][f"{share:g}"] = cache
    return out


def speculation(runs: Average, finals: list[float], control_rate: float) -> dict:
    """TTFT with the prefill of provisional lists over TTFT without. A search takes as long as the
    control's prefill and has four stages. `alone`: requests far apart, whose documents no earlier
    request had. `scenario`: half of the control's largest rate, all memory."""
    cold = ["--workload", "rag", "--num-documents", 1000000, "--zipf", 0, "--document-len",
            BACKGROUND_TOKENS, "--input-len", 16, "--count", 200]
    first = runs.simulations[0]
    prefill_s = figures(first.run("cold", 1, UNLOADED_RATE, *cold))["mean_ttft_s"]
    search = ["--search-ms", 1e3 * prefill_s, "--search-stages", 4]
    out: dict = {"prefill_s": prefill_s, "search_s": prefill_s, "stages": 4, "final": {}}
    for final in finals:
        here: dict = {"ideal_alone": 2 / (1 + final)}
        for place in ("alone", "scenario"):
            row = {}
            for mode in ("off", "auto"):
                options = [*search, "--search-final", final, "--speculative-prefill", mode]
                row[mode] = (figures(first.run("cold", 1, UNLOADED_RATE, *cold, *options))
                             if place == "alone" else
                             runs.run("tree", 1, 0.5 * control_rate, *options))
            row["ttft_ratio"] = row["off"]["mean_ttft_s"] / row["auto"]["mean_ttft_s"]
            here[place] = row
        out["final"][f"{final:g}"] = here
    return out


def background(runs: Average, control_rate: float) -> dict:
    """P99 TTFT of requests with and without documents that are prefilled in idle steps, at a share
    of the largest rate that the tree keeps the SLO at."""
    slo_s = SLO_FACTOR * runs.ttft("control", 1, UNLOADED_RATE)
    rate = BACKGROUND_LOAD * runs.largest_rate("tree", 1, slo_s, control_rate)
    options = ["--background-documents", N_BACKGROUND, "--background-tokens", BACKGROUND_TOKENS]
    alone, beside = runs.run("tree", 1, rate), runs.run("tree", 1, rate, *options)
    n_done = [s.run("tree", 1, rate, *options)["sim"]["background_documents"]
              for s in runs.simulations]
    return {"rate": rate, "n_documents": N_BACKGROUND, "n_prefilled": n_done, "alone": alone,
            "beside": beside, "p99_ratio": beside["p99_ttft_s"] / alone["p99_ttft_s"]}


def cost(runs: Average) -> dict:
    """CPU time of a request in scheduler and cache with 10,000 documents, tree, reordering and
    speculation on (two prefills of provisional lists a request), and with none of them: what the
    simulator takes, so an upper limit."""
    options = ["--workload", "rag", "--num-documents", N_COST_DOCUMENTS, "--document-len",
               BACKGROUND_TOKENS, "--input-len", 16, "--count", N_COST_REQUESTS, "--search-ms", 400,
               "--search-stages", 4, "--kv-device-bytes", COST_TOKENS * KV_BYTES_PER_TOKEN]
    out: dict = {"n_documents": N_COST_DOCUMENTS, "n_requests": N_COST_REQUESTS}
    first = runs.simulations[0]
    for name, system, more in (("off", "control", ["--speculative-prefill", "off"]),
                               ("on", "cold", ["--search-final", 0.5])):
        sim = first.run(system, 1, 1, *options, *more)["sim"]
        out[name] = {"cpu_s_per_request": sim["cpu_s"] / N_COST_REQUESTS,
                     "speculative_prefills": sim["speculative_prefills"], "steps": sim["steps"]}
    out["cpu_s_per_request"] = out["on"]["cpu_s_per_request"]
    out["added_s_per_request"] = (out["on"]["cpu_s_per_request"]
                                  - out["off"]["cpu_s_per_request"])
    return out
