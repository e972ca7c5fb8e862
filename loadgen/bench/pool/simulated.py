#!/usr/bin/env python3
"""simulated.py - the pool in tarn-loadgen's simulator: llm-d's published ladders, traces, and 4 to
1,000 instances. README.md says what is simulated and how well it agrees with what was measured.

Every run is kept in the JSON file as soon as it has ended, so an interrupted command goes on where
it was."""
from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
PARTS = ("validate", "ladder-8", "ladder-4", "traces", "scale", "failure", "elastic")


@dataclass(frozen=True)
class Machine:
    """An instance: times of a step in seconds, sizes in bytes and tokens."""
    name: str
    step_s: float          # of a step that has nothing to do: weights, launches
    token_s: float         # of a prompt's token
    kv_token_s: float      # of a cached token that a sequence decodes behind
    kv_bytes: int          # per token
    kv_tokens: int         # that fit into memory
    layers: int
    heads: int
    head_dim: int

    def write(self, path: Path) -> None:
        """As a file that tarn-server writes for a measured model, with the formula's values."""
        cached, new, batch = [0, 8192], [1, 8192], [1, 64]
        path.write_text(json.dumps({
            "format": 2, "fingerprint": "00" * 32, "device": self.name, "cached": cached,
            "new": new, "batch": batch,
            "seconds": [[self.step_s + self.token_s * n + self.kv_token_s * c for n in new]
                        for c in cached],
            "decode": [[self.step_s + self.kv_token_s * c * n for n in batch] for c in cached]}))

    def query_bytes(self) -> int:
        """One row's tile of one segment, in all layers: H (d + 2) fp32 numbers each."""
        return self.layers * self.heads * (self.head_dim + 2) * 4


# The published ladders give two things. The time per output token: twice the mean ITL of their
# tables, because more than half of the gaps there are 0 (p50 = 0: an event of the stream counts
# twice). Fitted over the rates of precise routing this is 20.5 ms and 0.026 us per cached token and
# sequence for both models. And a prompt token: 0.1 ms, by which random routing reaches the
# published throughput; 32.8 GFLOP per GPU and token are 0.066 ms at half of an H100's peak.
QWEN = Machine("Qwen3-32B on 2 H100", 20.5e-3, 0.1e-3, 0.026e-6, 262144, 307328, 64, 64, 128)
LLAMA = Machine("Llama-3.1-70B on 4 H100", 20.5e-3, 0.1e-3, 0.026e-6, 327680, 461376, 80, 64, 128)
LINK = ("--link-bytes-per-s", 50_000_000_000, "--link-us", 10)  # 400 Gb/s
SEEDS = 1


@dataclass(frozen=True)
class Ladder:
    machine: Machine
    instances: int
    groups: int
    users: int
    system: int
    question: int
    output: int
    block: int             # tokens of a hash id; divides both lengths
    warm: tuple[int, int]  # requests/s, seconds
    stages: tuple[tuple[int, int], ...]
    poisson: bool
    # (rate, tokens/s, P90 TTFT in s, mean TTFT in s): llm-d, benchmarking/73-capacity, 37-capacity
    precise: tuple[tuple[float, ...], ...]
    random: tuple[tuple[float, ...], ...]


LADDERS = {
    "ladder-8": Ladder(
        QWEN, 8, 150, 5, 6000, 1200, 1000, 400, (15, 50),
        ((3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38),
         (43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)), True,
        ((3, 1219.1, .498, .291), (10, 3902.1, .600, .335), (15, 5761.1, .400, .249),
         (20, 9184.5, .600, .363), (22, 9382.0, .500, .300), (25, 9242.2, .583, .303),
         (30, 9221.8, .509, .296), (35, 9780.6, .500, .275), (40, 10270.8, .488, .269),
         (43, 10054.8, .500, .281), (46, 10128.7, .589, .293), (49, 10296.5, .600, .311),
         (52, 10284.6, .507, .288), (55, 10140.9, .600, .308), (57, 10313.9, .600, .319),
         (60, 10496.9, .500, .283)),
        ((3, 1314.0, .820, .622), (10, 3568.5, 1.398, .826), (15, 3791.1, 2.299, 1.278),
         (20, 4933.1, 70.273, 25.073), (22, 4765.4, 78.420, 28.185), (25, 4781.3, 82.943, 30.689),
         (30, 4636.3, 86.182, 32.212), (35, 4332.6, 91.519, 34.043), (40, 4773.8, 101.272, 54.196),
         (43, 4844.6, 101.142, 53.247), (46, 4969.5, 101.265, 53.572),
         (49, 4783.2, 103.514, 56.130), (52, 4845.1, 105.004, 56.035),
         (55, 4921.7, 104.321, 54.844), (57, 4764.2, 106.816, 56.803),
         (60, 4835.2, 105.988, 57.426))),
    "ladder-4": Ladder(
        LLAMA, 4, 83, 3, 8000, 1000, 1000, 500, (10, 25),
        ((3, 210), (4, 180), (5, 120), (6, 120), (8, 90), (10, 70), (12, 60), (15, 50), (20, 50)),
        False,
        ((3, 2590.0, .400, .246), (4, 3345.2, .486, .304), (5, 3916.7, .400, .270),
         (6, 4640.3, .400, .271), (8, 5557.1, .400, .248), (10, 6264.0, .400, .242),
         (12, 6765.9, .400, .255), (15, 7345.1, .400, .247), (20, 8003.9, .400, .250)),
        ((3, 2505.7, 2.000, 1.102), (4, 2829.5, 22.814, 7.257), (5, 2898.2, 30.994, 11.988),
         (6, 2955.9, 56.371, 23.742), (8, 3108.8, 74.757, 40.124), (10, 3117.3, 88.089, 46.359),
         (12, 3140.8, 96.284, 49.556), (15, 3126.2, 128.434, 58.760),
         (20, 3241.0, 197.010, 93.345))),
}
# name -> options
POLICIES: dict[str, list[object]] = {
    "random": ["--routing", "random"],
    "precise": ["--routing", "precise"],
    "hash": ["--routing", "hash"],
    "bounded hash": ["--routing", "hash", "--routing-hash-factor", 1.25],
    "random, pool": ["--routing", "random", "--pool"],
    "least-loaded, pool": ["--routing", "least-loaded", "--pool"],
    "bounded hash, pool": ["--routing", "hash", "--routing-hash-factor", 1.25, "--pool"],
    "precise, pool": ["--routing", "precise", "--pool"],
}


class Runs:
    """Results of commands, kept in the JSON file."""

    def __init__(self, path: Path, folder: Path, quick: bool) -> None:
        self.path, self.folder, self.quick = path, folder, quick
        self.all: dict = {"format": 1, "quick": quick, "runs": {}}
        if path.exists():
            old = json.loads(path.read_text())
            if old.get("quick") == quick:
                self.all = old

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.all, indent=1))
        os.replace(part, self.path)

    def run(self, key: str, machine: Machine, instances: int, trace: Path,
            *options: object) -> dict:
        if key in self.all["runs"]:
            return self.all["runs"][key]
        cost = self.folder / "cost.json"
        machine.write(cost)
        command = [str(REPO / "build" / "tarn-loadgen"), "sim", "--workload", "trace",
                   "--trace-format", "mooncake", "--data", trace, "--cost-model", cost,
                   "--instances", instances, "--kv-bytes-per-token", machine.kv_bytes,
                   "--kv-device-bytes", machine.kv_tokens * machine.kv_bytes,
                   "--kv-host-bytes", 0, "--kv-swap", "recompute", "--max-num-seqs", 256,
                   "--max-num-batched-tokens", 8192, "--max-step-ms", 0,
                   "--scheduling-policy", "fcfs", "--cache-policy", "lru",
                   "--max-num-queued-reqs", 0, "--no-token-times", "--seed", SEEDS,
                   "--pool-query-bytes", machine.query_bytes(),
                   "--pool-query-layers", machine.layers, *LINK, *options,
                   "--quiet", "--json", "-"]
        print(f"{time.strftime('%H:%M:%S')} {key}", file=sys.stderr, flush=True)
        command = list(map(str, command))
        done = subprocess.run(["nice", *command], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}")
        self.all["runs"][key] = figures(json.loads(done.stdout), instances)
        self.save()
        return self.all["runs"][key]


def figures(r: dict, instances: int) -> dict:
    s = r["sim"]
    out = {"tokens_per_s": r["output_throughput"], "requests_per_s": r["request_throughput"],
           "p90_ttft_s": r["p90_ttft_ms"] / 1e3, "mean_ttft_s": r["mean_ttft_ms"] / 1e3,
           "mean_tpot_s": r["mean_tpot_ms"] / 1e3,
           "hit_share": (r["cached_tokens"] or 0) / r["prompt_tokens"],
           "remote_share": (r["cached_tokens_remote"] or 0) / r["prompt_tokens"],
           "completed": r["completed"], "failed": r["failed"], "instances": instances,
           "preempted": s["preempted_for_memory"], "busy_share": s["busy_share"],
           "wall_s": s["wall_s"], "cpu_s": s["cpu_s"], "simulated_s": s["simulated_s"],
           "requests": s["requests"]}
    keep = ("pool_", "access_", "directory_", "link_", "moved_", "memory_")
    return out | {k: v for k, v in s.items() if k.startswith(keep)}


def write_rows(path: Path, rows: list[dict]) -> None:
    with path.open("w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")


def ladder_trace(ladder: Ladder, rate: int, seconds: int, path: Path, seed: int = SEEDS) -> float:
    """Warm-up with one full set of prompts, a pause, and a stage. Returns the stage's beginning."""
    r = random.Random(seed)
    prompts = [(g, u) for g in range(ladder.groups) for u in range(ladder.users)]
    r.shuffle(prompts)
    rows: list[dict] = []

    def add(t: float) -> None:
        group, user = prompts[len(rows) % len(prompts)]
        own = 10**6 + (group * ladder.users + user) * 100
        rows.append({"timestamp": t * 1e3, "input_length": ladder.system + ladder.question,
                     "output_length": ladder.output,
                     "hash_ids": [group * 100 + k for k in range(ladder.system // ladder.block)]
                     + [own + k for k in range(ladder.question // ladder.block)]})

    t = 0.0
    for _ in range(ladder.warm[0] * ladder.warm[1]):
        add(t)
        t += r.expovariate(ladder.warm[0])
    begin = t = t + 400
    for _ in range(rate * seconds):
        add(t)
        t += r.expovariate(rate) if ladder.poisson else 1 / rate
    write_rows(path, rows)
    return begin


def run_ladder(runs: Runs, name: str) -> dict:
    ladder = LADDERS[name]
    stages = ladder.stages[::4] if runs.quick else ladder.stages
    policies = ["random", "precise", "random, pool"] if runs.quick else list(POLICIES)
    out: dict = {"published": {"precise": ladder.precise, "random": ladder.random}, "policies": {}}
    trace = runs.folder / f"{name}.jsonl"
    for rate, seconds in stages:
        seconds = min(seconds, 10) if runs.quick else seconds
        begin = ladder_trace(ladder, rate, seconds, trace)
        for policy in policies:
            out["policies"].setdefault(policy, {})[str(rate)] = runs.run(
                f"{name} {policy} {rate}", ladder.machine, ladder.instances, trace,
                "--trace-block", ladder.block, "--warmup", f"{begin - .001:.3f}",
                "--instance-model", "light", "--routing-hash-tokens", ladder.system,
                *POLICIES[policy])
    for policy, rows in out["policies"].items():
        mean = {k: sum(r[k] for r in rows.values()) / len(rows)
                for k in ("tokens_per_s", "p90_ttft_s", "mean_ttft_s", "hit_share")}
        out.setdefault("mean", {})[policy] = mean
    return out


def print_ladder(name: str, part: dict) -> None:
    print(f"\n{name}: output tokens/s, P90 TTFT in s; measured by llm-d, then simulated")
    policies = list(part["policies"])
    print(f"{'rate':>5} {'precise, measured':>20} {'random, measured':>20}" +
          "".join(f"{p:>20}" for p in policies))
    for k, (precise, rand) in enumerate(zip(part["published"]["precise"],
                                            part["published"]["random"])):
        rate = str(precise[0])
        if rate not in part["policies"][policies[0]]:
            continue
        cells = [f"{x[1]:10.0f} {x[2]:9.2f}" for x in (precise, rand)]
        cells += [f"{r['tokens_per_s']:10.0f} {r['p90_ttft_s']:9.2f}"
                  for r in (part["policies"][p][rate] for p in policies)]
        print(f"{rate:>5} " + " ".join(cells))
    cells = [f"{sum(x[1] for x in v) / len(v):10.0f} {sum(x[2] for x in v) / len(v):9.2f}"
             for v in (part["published"]["precise"], part["published"]["random"])]
    cells += [f"{m['tokens_per_s']:10.0f} {m['p90_ttft_s']:9.2f}" for m in part["mean"].values()]
    print(" mean " + " ".join(cells))


# --- traces ---

def mooncake_rows(data: Path, seconds: float) -> list[dict]:
    path = data / "traces-mooncake" / "conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.open() if line.strip()]
    return [r for r in rows if r["timestamp"] < seconds * 1e3 and r["input_length"] < 100_000]


RAG_BLOCK = 64


def ragpulse_rows(data: Path, count: int) -> tuple[list[dict], set[int]]:
    """As blocks of 64 tokens, in the order in which documents can be reused: system prompt parts 1
    and 2, passages, then all the rest. Also returns the blocks of the first three."""
    folder = data / "traces-ragpulse"
    lengths: dict[int, int] = {}
    for name in ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search"):
        for line in (folder / f"{name}.jsonl").open():
            if line.strip():
                row = json.loads(line)
                own_id = next(v for k, v in row.items() if k.endswith("id"))
                lengths[int(own_id)] = int(row["token_length"])
    rows: list[dict] = []
    shared: set[int] = set()
    trace = [json.loads(line) for line in (folder / "0_trace.jsonl").open() if line.strip()]
    trace.sort(key=lambda r: float(r["timestamp"]))
    for row in trace[:count]:
        ids = row["hash_ids"]
        parts = (ids["sys_prompt"][:2] + ids["passages_ids"] + ids["sys_prompt"][2:] +
                 ids["history"] + ids["web_search"] + ids["user_input"])
        common = {int(p) for p in ids["sys_prompt"][:2] + ids["passages_ids"]}
        blocks = [int(p) * 1000 + k for p in parts
                  for k in range(max(1, round(lengths[int(p)] / RAG_BLOCK)))]
        shared |= {b for b in blocks if b // 1000 in common}
        rows.append({"input_length": len(blocks) * RAG_BLOCK, "hash_ids": blocks,
                     "output_length": max(1, int(row["output_length"]))})
    return rows, shared


def repeated(rows: list[dict], copies: int, path: Path, rate: float, shared: set[int],
             rotated: bool) -> int:
    """The trace several times, each copy with conversations of its own, and from another row on if
    it is rotated; blocks in `shared` are those of all. Poisson arrivals."""
    r = random.Random(SEEDS)
    step = len(rows) // copies if rotated else 0
    t = 0.0
    with path.open("w") as f:
        for i in range(len(rows)):
            for copy in range(copies):
                row = rows[(i + copy * step) % len(rows)]
                t += r.expovariate(rate)
                ids = [b if b in shared else b + copy * 10**8 for b in row["hash_ids"]]
                f.write(json.dumps({"timestamp": t * 1e3, "input_length": row["input_length"],
                                    "output_length": row["output_length"],
                                    "hash_ids": ids}) + "\n")
    return len(rows) * copies


TRACES = ("mooncake", "ragpulse")
PER_INSTANCE = {"mooncake": 0.4, "ragpulse": 2.0}  # requests/s
SCALE_SHARE = 0.25  # of the rows: 1,000 instances then have 50,000 requests
SATURATED = 48                                      # requests inside per instance


def trace_of(runs: Runs, data: Path, name: str, instances: int, path: Path,
             share: float = 1, load: float = 1) -> tuple[int, int]:
    """Rows in proportion to the instances. Returns their number and the tokens of a block."""
    if name == "mooncake":
        rows = mooncake_rows(data, 60 if runs.quick else 600 * share)
        shared = {row["hash_ids"][0] for row in rows}
        block = 512
    else:
        rows, shared = ragpulse_rows(data, 200 if runs.quick else int(1600 * share))
        block = RAG_BLOCK
    copies = max(1, round(instances / 8))
    return repeated(rows, copies, path, load * PER_INSTANCE[name] * instances, shared,
                    name == "ragpulse"), block


def run_at_size(runs: Runs, data: Path, part: str, name: str, instances: int,
                policies: list[str], saturated: bool) -> dict:
    trace = runs.folder / f"{part}-{name}-{instances}.jsonl"
    kinds = ["offered", "saturated"] if saturated else ["offered"]
    keys = [f"{part} {name} {instances} {policy} {kind}" for policy in policies for kind in kinds]
    out: dict = {}
    block = 512 if name == "mooncake" else RAG_BLOCK
    if any(key not in runs.all["runs"] for key in keys):
        trace_of(runs, data, name, instances, trace, SCALE_SHARE if part == "scale" else 1)
    for policy in policies:
        for kind in kinds:
            load = [] if kind == "offered" else ["--arrival", "closed", "--concurrency",
                                                 SATURATED * instances]
            out.setdefault(policy, {})[kind] = runs.run(
                f"{part} {name} {instances} {policy} {kind}", QWEN, instances, trace,
                "--trace-block", block, "--instance-model", "light", *POLICIES[policy], *load)
    trace.unlink(missing_ok=True)
    return out


def run_traces(runs: Runs, data: Path) -> dict:
    return {name: run_at_size(runs, data, "traces", name, 8, list(POLICIES), True)
            for name in TRACES}


def run_scale(runs: Runs, data: Path, sizes: list[int]) -> dict:
    sizes = [4, 8] if runs.quick else sizes
    names = TRACES[:1] if runs.quick else TRACES
    return {name: {str(n): run_at_size(runs, data, "scale", name, n,
                                       ["random", "precise", "random, pool"], False)
                   for n in sizes} for name in names}


def run_validate(runs: Runs, data: Path) -> dict:
    """The light model beside the real scheduler and cache, 4 instances."""
    trace = runs.folder / "validate.jsonl"
    _, block = trace_of(runs, data, "mooncake", 4, trace)
    ladder = runs.folder / "validate-ladder.jsonl"
    begin = ladder_trace(LADDERS["ladder-4"], 6, 20 if runs.quick else 120, ladder)
    out: dict = {}
    for name, machine, path, options in (
            ("mooncake", QWEN, trace, ["--trace-block", block]),
            ("ladder-4, 6 req/s", LLAMA, ladder,
             ["--trace-block", LADDERS["ladder-4"].block, "--warmup", f"{begin - .001:.3f}"])):
        for routing in ("random", "precise"):
            row: dict = {}
            for model in ("real", "light"):
                row[model] = runs.run(f"validate {name} {routing} {model}", machine, 4, path,
                                      "--routing", routing, "--instance-model", model, *options)
            out[f"{name}, {routing}"] = row
    return out


def run_failure(runs: Runs, data: Path) -> dict:
    """One of 8 instances dies, and comes back empty."""
    trace = runs.folder / "failure.jsonl"
    _, block = trace_of(runs, data, "mooncake", 8, trace)
    fail_at, join_at = (20, 40) if runs.quick else (100, 160)
    when = ["--fail-at", fail_at, "--join-at", join_at]
    return {policy: {kind: runs.run(f"failure {policy} {kind}", QWEN, 8, trace, "--trace-block",
                                    block, "--instance-model", "light", *POLICIES[policy], *extra)
                     for kind, extra in (("none", []), ("one", when))}
            for policy in ("random", "random, pool")}


def run_elastic(runs: Runs, data: Path) -> dict:
    """Idle instances compute parts of others' prompts, at three shares of the usual load."""
    out: dict = {}
    for name in TRACES:
        for n in (4, 16):
            for load in (0.25, 0.5, 1.0):
                trace = runs.folder / "elastic.jsonl"
                _, block = trace_of(runs, data, name, n, trace, load=load)
                out[f"{name} {n} at {load}"] = {way: runs.run(
                    f"elastic {name} {n} {load} {way}", QWEN, n, trace, "--trace-block", block,
                    "--instance-model", "light", *POLICIES["random, pool"], *options)
                    for way, options in (("alone", []), ("elastic", ["--elastic"]))}
    return out


def print_rows(title: str, rows: list[tuple[str, dict]]) -> None:
    columns = (("hit_share", "hits", ".3f"), ("remote_share", "remote", ".3f"),
               ("requests_per_s", "req/s", ".1f"), ("mean_ttft_s", "TTFT s", ".2f"),
               ("p90_ttft_s", "P90", ".2f"), ("access_cv", "CV", ".2f"),
               ("access_cv_windows", "CV 10 s", ".2f"),
               ("directory_commands_per_s", "dir/s", ".0f"),
               ("directory_busy_share", "dir busy", ".3f"), ("link_busy_share", "link", ".3f"),
               ("memory_bytes", "MB", ".0f"), ("wall_s", "wall s", ".1f"))
    print(f"\n{title}\n{'':44}" + "".join(f"{c[1]:>9}" for c in columns))
    for name, r in rows:
        cells = []
        for key, _, form in columns:
            v = r.get(key)
            if v is not None:
                v = format(v / 1e6 if key == "memory_bytes" else v, form)
            cells.append(f"{v or '':>9}")
        print(f"{name:44}" + "".join(cells))


def show(name: str, part: dict) -> None:
    if name.startswith("ladder"):
        print_ladder(name, part)
    elif name == "scale":
        print_rows("scale", [(f"{t} {n} {p}", r["offered"]) for t, sizes in part.items()
                             for n, ps in sizes.items() for p, r in ps.items()])
    elif name == "traces":
        print_rows("traces, 8 instances", [(f"{t} {p}, {k}", r) for t, ps in part.items()
                                           for p, ks in ps.items() for k, r in ks.items()])
    else:
        print_rows(name, [(f"{a}, {b}", r) for a, row in part.items() for b, r in row.items()])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--json", type=Path, required=True, help="results; runs in it are not repeated")
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--data", type=Path,
                   default=Path(os.environ.get("TARN_SHARED", "shared")) / "data",
                   help="folder of traces-mooncake and traces-ragpulse")
    p.add_argument("--sizes", default="4,16,64,256,1000", help="instances of the part `scale`")
    p.add_argument("--quick", action="store_true", help="everything on a small scale")
    a = p.parse_args()
    parts = a.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        p.error(f"--parts: {', '.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    if not a.data.is_dir() and any(not x.startswith("ladder") for x in parts):
        p.error(f"--data: {a.data}: no such folder")
    with tempfile.TemporaryDirectory(prefix="tarn-simulated-") as folder:
        runs = Runs(a.json, Path(folder), a.quick)
        for name in parts:
            if name.startswith("ladder"):
                part = run_ladder(runs, name)
            elif name == "scale":
                part = run_scale(runs, a.data, list(map(int, a.sizes.split(","))))
            else:
                part = globals()[f"run_{name}"](runs, a.data)
            runs.all[name] = part
            runs.save()
            show(name, part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
