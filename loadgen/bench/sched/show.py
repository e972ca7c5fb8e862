#!/usr/bin/env python3
"""Measure all figures of the scheduler and compare them with their targets.

    show.py --json OUT.json [--plots DIR] [--parts live,lmsys,...] [--quick] [--fresh]

Parts: live, lmsys, sharegpt, little-kv (policies against each other on a real server),
live-policies (fcfs, MLFQ, learned and auto on real servers beside the simulator), policies
(simulated: all policies over nine kinds of traffic), burst, swap (simulated: the protocol of
FastServe's authors beside their points), long (a short request behind a long prefill), planning
(the cost of a plan). README.md beside this file describes each part, its duration and
the JSON. The machine must be quiet for all but policies, burst and swap.

OUT.json is written after each measurement. A later run continues it: results with the same settings
are kept, unless --fresh. --parts '' measures nothing and makes targets and plots of the results in
OUT.json.

Exit status 1 when something could not run; a target that is not met is no failure. Environment:
TARN_BUILD_DIR (default <repo>/build).
"""
from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
from pathlib import Path

import charts
import figures
import live
import live_policies
import policies
import simulated
from serving import N_CORES, REPO, common, program

LIVE = ("live", "lmsys", "sharegpt", "little-kv")
PARTS = (*LIVE, "live-policies", "policies", "burst", "swap", "long", "planning")
LONG_LIMIT_S, PLAN_LIMITS_S = 0.6, {1000: 50e-6, 100_000: 1e-3}
MEASURED_LEAST = 4000
# The shared data sets that a part reads; they are not in the repository.
READS = {"lmsys": live.LMSYS, "sharegpt": live.SHAREGPT, "live-policies": live.LMSYS,
         "burst": figures.FILE, "swap": figures.FILE}


# --- the file ---

class Store(common.Store):
    """The JSON file, and which of its results can be kept."""

    def __init__(self, path: Path | None, fresh: bool) -> None:
        if path and fresh:
            path.unlink(missing_ok=True)
        super().__init__(path)
        self.out["machine"] = {"cpu": cpu_name(), "cores": N_CORES, "system": platform.release()}

    def old(self, part: str, settings: dict) -> dict:
        """The results of a part, if they were measured with the same settings; else {}."""
        there = self.out.get(part, {})
        return there if there.get("settings") == json.loads(json.dumps(settings)) else {}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


# --- parts ---

def run_live(store: Store, part: str, args: argparse.Namespace) -> None:
    plan = live.Plan(args.rounds, args.count, args.warmup, args.seed)
    old = store.old(part, live.settings(part, args.data, plan))
    store.put(part, live.run(part, args.data, plan, old, lambda out: store.put(part, out)))


def run_simulated(store: Store, part: str, args: argparse.Namespace) -> None:
    points = figures.read(args.data / figures.FILE)
    n_seeds = 1 if args.quick else args.sim_seeds
    n_steady = 300 if args.quick else 8000

    def save(out: dict) -> None:
        store.put(part, out)

    if part == "burst":
        old = store.old(part, simulated.burst_settings(n_seeds, n_steady, args.quick))
        save(simulated.run_burst(points, n_seeds, n_steady, args.quick, old, save))
    else:
        old = store.old(part, simulated.swap_settings(n_seeds, args.quick))
        save(simulated.run_swap(points, n_seeds, args.quick, old, save))


def run_policies(store: Store, args: argparse.Namespace) -> None:
    n_seeds = 1 if args.quick else args.sim_seeds
    old = store.old("policies", policies.settings(args.quick))
    store.put("policies", policies.run(args.data, n_seeds, args.quick, args.again.split(","), old,
                                       lambda out: store.put("policies", out)))


def run_live_policies(store: Store, args: argparse.Namespace) -> None:
    seconds = 5 if args.quick else args.seconds
    old = store.old("live-policies", live_policies.settings(args.data, seconds, args.seed))
    store.put("live-policies", live_policies.run(args.data, args.rounds, seconds, args.seed, old,
                                                 lambda out: store.put("live-policies", out)))


def run_planning(store: Store, args: argparse.Namespace) -> None:
    n_plans = 200 if args.quick else args.plans
    settings = {"n_plans": n_plans}
    if store.old("planning", settings):
        return
    command = [program("tarn-schedbench"), "--json", "--plans", str(n_plans)]
    print("+", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}")
    store.put("planning", {"settings": settings, "rows": json.loads(done.stdout)["planning"]})


def run_long(store: Store, args: argparse.Namespace) -> None:
    repeats = 1 if args.quick else args.long_repeats
    tokens = 4000 if args.quick else live.LONG_TOKENS
    if not store.old("long", live.long_settings(repeats, tokens)):
        store.put("long", live.run_long(repeats, tokens))


def run_part(store: Store, part: str, args: argparse.Namespace) -> None:
    if part in LIVE:
        run_live(store, part, args)
    elif part == "live-policies":
        run_live_policies(store, args)
    elif part == "policies":
        run_policies(store, args)
    elif part in ("burst", "swap"):
        run_simulated(store, part, args)
    elif part == "long":
        run_long(store, args)
    else:
        run_planning(store, args)


# --- targets ---

def live_targets(out: dict) -> list[tuple]:
    rows: list[tuple] = []
    for part, mean_least, p95_least in (("live", 2.5, 4.0), ("lmsys", 1.5, 2.0)):
        if "summary" not in out.get(part, {}):
            continue
        s = out[part]["summary"]
        n = min(p["completed"] for p in s["policies"].values())
        rows.append((f"{part}: measured requests a policy", n, MEASURED_LEAST,
                     n >= MEASURED_LEAST))
        for name, least in (("mean_ratio", mean_least), ("p95_ratio", p95_least)):
            of = name.split("_")[0]
            rows.append((f"{part}: {of} normalized latency, fcfs / skip-join", s[name], least,
                         s[name] >= least))
        if s["gap_closed"] is not None:
            rows.append((f"{part}: share of the gap to srpt that is closed", s["gap_closed"], 0.75,
                         s["gap_closed"] >= 0.75))
    if "summary" in out.get("sharegpt", {}):
        worse = 1 / out["sharegpt"]["summary"]["mean_ratio"]
        rows.append(("sharegpt: mean normalized latency, skip-join / fcfs", worse, 1.05,
                     worse <= 1.05))
    return rows


def other_targets(out: dict) -> list[tuple]:
    rows: list[tuple] = []
    if "long" in out:
        worst = out["long"]["policies"]["skip-join-mlfq"]["worst_added_s"]
        rows.append(("long: worst TTFT behind the prefill, less that alone, s", worst,
                     LONG_LIMIT_S, worst <= LONG_LIMIT_S))
    planning = out.get("planning", {}).get("rows", [])
    for n, limit in PLAN_LIMITS_S.items():
        for of in ("median", "p99"):
            got = [r["plan_s"][of] for r in planning if r["n_queued"] == n]
            if got:
                rows.append((f"planning: {of} at {n} queued, slowest policy, us", max(got) * 1e6,
                             limit * 1e6, max(got) < limit))
    return rows


def targets_of(out: dict) -> list[dict]:
    rows = [dict(zip(("name", "figure", "target", "met"), row))
            for row in live_targets(out) + other_targets(out)]
    for part, module in (("live-policies", live_policies), ("policies", policies)):
        rows += module.targets(out[part]) if part in out else []
    return rows


# --- main ---

def choose_parts(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Make args.parts a list. By default, parts without their data are skipped; a part named on the
    command line without its data is an error."""
    named = None if args.parts is None else [part for part in args.parts.split(",") if part]
    for part in named or ():
        if part not in PARTS:
            p.error(f"there is no part {part}; known: {', '.join(PARTS)}")
    wanted = PARTS if named is None else named
    absent = [part for part in wanted if part in READS and not (args.data / READS[part]).is_file()]
    if absent and named is not None:
        print(f"show.py: {', '.join(absent)}: no shared data, {args.data / READS[absent[0]]} is "
              "not there (another folder: --data DIR; without data: "
              f"--parts {','.join(part for part in PARTS if part not in READS)})", file=sys.stderr)
        sys.exit(2)
    if absent:
        print(f"show.py: no shared data in {args.data}: leaving out {', '.join(absent)} "
              "(another folder: --data DIR)", file=sys.stderr)
    args.parts = [part for part in wanted if part not in absent]


def read_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, help="the result, and where to go on")
    p.add_argument("--plots", type=Path, help="folder for the SVG files")
    p.add_argument("--parts", help="default: all whose data are there")
    p.add_argument("--data", type=Path, default=REPO.parent / "shared" / "data",
                   help=f"the shared data sets, which {', '.join(READS)} read")
    p.add_argument("--quick", action="store_true", help="few and short: to see that it works")
    p.add_argument("--fresh", action="store_true", help="measure again what is there")
    p.add_argument("--rounds", type=int, default=3, help="live: rounds of all policies")
    p.add_argument("--count", type=int, default=1400, help="live: measured requests of one run")
    p.add_argument("--warmup", type=int, default=500, help="live: requests before them")
    p.add_argument("--seed", type=int, default=20, help="live: of the first round")
    p.add_argument("--seconds", type=float, default=20,
                   help="live-policies: of each pair of policies")
    p.add_argument("--sim-seeds", type=int, default=5, 
                   help="policies, burst, swap: seeds of each point")
    p.add_argument("--again", default="", metavar="POLICIES",
                   help="policies: simulate these again, as after a change of their code")
    p.add_argument("--long-repeats", type=int, default=5)
    p.add_argument("--plans", type=int, default=4000, help="planning: plans of each row")
    args = p.parse_args()
    if args.quick:
        args.rounds, args.count, args.warmup = 1, 120, 40
    choose_parts(p, args)
    unknown = set(filter(None, args.again.split(","))) - set(policies.POLICIES)
    if unknown:
        p.error(f"--again: there is no policy {', '.join(sorted(unknown))}; known: "
                f"{', '.join(policies.POLICIES)}")
    if args.rounds < 1 or args.count < 100 or args.warmup < 0 or args.sim_seeds < 1:
        p.error("--rounds and --sim-seeds must be at least 1, --count 100, --warmup 0")
    return args


def end_in_order(*_: object) -> None:
    """End on SIGTERM by an exception, which stops a part's servers and removes its files."""
    raise SystemExit("ended by SIGTERM; what is in the file is kept")


def main() -> int:
    args = read_arguments()
    signal.signal(signal.SIGTERM, end_in_order)
    store = Store(args.json, args.fresh)
    for part in args.parts:
        run_part(store, part, args)
    store.out["targets"] = targets_of(store.out)
    store.save()
    if args.plots:
        args.plots.mkdir(parents=True, exist_ok=True)
        for name, svg in charts.all_of(store.out).items():
            (args.plots / name).write_text(svg)
    if "live-policies" in store.out:
        print(live_policies.table(store.out["live-policies"]), end="\n\n")
    if "policies" in store.out:
        print(policies.table(store.out["policies"]), end="\n\n")
    for row in store.out["targets"]:
        oracle = f"  (srpt {row['oracle']:.4g})" if "oracle" in row else ""
        print(f"{row['name']:76} {row['figure']:10.4g}  target {row['target']:8.4g}  "
              f"{'met' if row['met'] else 'missed'}{oracle}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
