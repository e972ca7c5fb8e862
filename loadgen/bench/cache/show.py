#!/usr/bin/env python3
"""Measure all figures of the KV store and compare them with their targets.

    show.py [--data DIR] [--json] [--rounds N] [--segments N] [--disk-path DIR] [--without PART ...]

Run tarn-cachesim on the traces in DIR (default: ../shared/data beside the clone; skipped if
missing), tarn-cachebench (ttft, tree, miss, disk, write, index) and miss_instructions.py. A run
takes about twelve minutes on a machine without other work. --without leaves parts out: simulated,
miss_instructions, or those of tarn-cachebench. --disk-path DIR: where disk, write and index make
their directories (default: $TMPDIR or /tmp; it should be on the disk that a server would use).

JSON: `format` 1; `simulated`: {"ragpulse", "mooncake"}, each as loadgen/bench/policy/README.md
documents it; `ttft`, `tree`, `miss`, `disk`, `writes`, `index`, `miss_instructions` as README.md
beside this file does; `targets`: a list of
{"name", "figure", "target", "met"}.

Exit status 1 when something could not run; a target that is not met is no failure. Environment:
TARN_BUILD_DIR (default <repo>/build).
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("TARN_BUILD_DIR") or REPO / "build")
TRACES = {"ragpulse": "traces-ragpulse",
          "mooncake": "traces-mooncake/conversation_trace.jsonl"}
BENCH_PARTS = ("ttft", "tree", "miss", "disk", "writes", "index")
PARTS = ("simulated", *BENCH_PARTS, "miss_instructions")


def run(command: list[str]) -> dict:
    print("+", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}")
    return json.loads(done.stdout)


def simulate(data: Path) -> dict:
    return {name: run([str(BUILD / "tarn-cachesim"), str(data / where), "--json"])
            for name, where in TRACES.items() if (data / where).exists()}


def share(sim: dict, policy: str, memory: float) -> float:
    return 100 * next(r["hit_share_of_ideal"] for r in sim["results"]
                      if r["policy"] == policy and abs(r["memory_share"] - memory) < 1e-9)


def targets_of_disk(out: dict) -> list[tuple[str, float, float, bool]]:
    rows: list[tuple[str, float, float, bool]] = []
    if "disk" in out:
        got, most = out["disk"]["disk"]["of_floor"]["median"], out["disk"]["disk_of_floor_target"]
        rows.append(("TTFT of a cached prefix, disk, of its byte floor", got, most, got <= most))
    if "writes" in out:
        most = out["writes"]["cost_percent_target"]
        for side, words in (("min_uses_1", "first"), ("min_uses_2", "second")):
            got = out["writes"][side]["cost_percent"]["median"]
            rows.append((f"time that writing on the {words} use costs, %", got, most, got < most))
    if "index" in out:
        got, most = out["index"]["cold_s"]["median"], out["index"]["cold_s_target"]
        rows.append((f"opening {out['index']['n_records']} records, s", got, most, got < most))
    return rows


def targets_of(out: dict) -> list[dict]:
    rows: list[tuple[str, float, float, bool]] = []
    sims = out.get("simulated", {})
    if "ragpulse" in sims:
        got = share(sims["ragpulse"], "contest", 0.2)
        rows.append(("RAGPulse, 20 % of memory, default policy, % of ideal", got, 90, got >= 90))
    if "mooncake" in sims:
        sizes = sorted({r["memory_share"] for r in sims["mooncake"]["results"]})
        worst = max(share(sims["mooncake"], "lru", m) - share(sims["mooncake"], "contest", m)
                    for m in sizes)
        rows.append(("Mooncake, points under lru at most, any memory", worst, 0.5, worst <= 0.5))
    if "ttft" in out:
        for tier in ("device", "host"):
            got = out["ttft"][tier]["of_floor"]["median"]
            most = out["ttft"][f"{tier}_of_floor_target"]
            rows.append((f"TTFT of a cached prefix, {tier}, of its byte floor", got, most,
                         got <= most))
    if "tree" in out:
        tree = out["tree"]
        got = tree["hash_s_per_segment"]["median"]
        rows.append(("hashing a segment, us", got * 1e6, tree["hash_s_target"] * 1e6,
                     got <= tree["hash_s_target"]))
        got = tree["cold"]["walk_and_pin_s"]["median"]
        rows.append(("walk and pin of 100 segments, cold, us", got * 1e6,
                     tree["walk_and_pin_s_target"] * 1e6, got <= tree["walk_and_pin_s_target"]))
    rows += targets_of_disk(out)
    if "miss_instructions" in out:
        got = out["miss_instructions"]["added_percent"]
        rows.append(("instructions added where nothing is found, %", got, 1.0, got < 1.0))
    return [dict(zip(("name", "figure", "target", "met"), row)) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="default: ../shared/data beside the clone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--segments", type=int)
    parser.add_argument("--disk-path")
    parser.add_argument("--without", nargs="*", default=[], choices=PARTS)
    args = parser.parse_args()
    wanted = [p for p in PARTS if p not in args.without]
    out: dict = {"format": 1}

    data = args.data or REPO.parent / "shared" / "data"
    if "simulated" in wanted and not any((data / where).exists() for where in TRACES.values()):
        if args.data:
            print(f"show.py: --data {data}: holds none of {', '.join(TRACES.values())}",
                  file=sys.stderr)
            return 2
        print(f"show.py: no shared data in {data}: leaving out simulated (another folder: --data "
              "DIR)", file=sys.stderr)
        wanted.remove("simulated")
    if "simulated" in wanted:
        out["simulated"] = simulate(data)
    for part in BENCH_PARTS:
        command = [str(BUILD / "tarn-cachebench"), "--json", "--part", part]
        if part == "ttft" and args.rounds:
            command += ["--rounds", str(args.rounds)]
        if part == "tree" and args.segments:
            command += ["--segments", str(args.segments)]
        if args.disk_path:
            command += ["--disk-path", args.disk_path]
        if part in wanted:
            out[part] = run(command)[part]
    if "miss_instructions" in wanted:
        out |= {"miss_instructions": run([sys.executable, str(Path(__file__).parent /
                                          "miss_instructions.py"), "--json"])["miss_instructions"]}
    out["targets"] = targets_of(out)
    if args.json:
        print(json.dumps(out))
        return 0
    for row in out["targets"]:
        print(f"{row['name']:55} {row['figure']:9.3f}  target {row['target']:6.2f}  "
              f"{'met' if row['met'] else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
