#!/usr/bin/env python3
"""Count the instructions that prefix caching adds when every lookup misses.

    miss_instructions.py [--requests 6 14] [--prompt 128] [--max-tokens 4] [--json] [--top 12]

Run `tarn-cachebench --part miss` under callgrind with prefix caching and without it, each with few
requests and with more; the difference is the cost of the requests without start and end. Each
request misses in the lookup, enters the tree and evicts another one.

The model is small (1.6 M multiply-adds a token), so that a run takes minutes. The instructions
added by caching do not depend on the model, so they are also compared with a lower bound for the
0.49 B shape: its matrix products only, at 32 multiply-adds an instruction (AVX-512 BF16) and at
8192 (AMX tiles).

Both sides compute keys, so the script also compares caching with a side that neither caches nor
computes keys.

Exit status 1 when the total grows by 1 % or more; 77 without valgrind. Environment: TARN_BUILD_DIR
(default <repo>/build).
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SKIPPED = 77
MOST_PERCENT = 1.0
SECONDS_MAX = 1800
# Multiply-adds of a token in the layers: width 1024, 28 layers, 16 heads, 8 KV heads of 128, ffn
# 3072. The output layer runs once a prompt.
SHAPE_MACS = 28 * (1024 * (16 + 2 * 8) * 128 + 16 * 128 * 1024 + 3 * 1024 * 3072)
MACS_AVX512, MACS_AMX = 32, 8192
# The functions that compute keys, by name.
HASHING = re.compile(r"blake2b|kv_chain|key_of_block|close_block|hash_prompt")
# The loop over all slots in each turn of the engine's thread. The number of turns per request
# varies at random, by 10,000 instructions a request, so both sides leave the loop out.
CHANCE = {"step.c:drop_cancelled"}
CACHE_FILES = {path.name for path in (REPO / "cache").rglob("*.c")}


def program() -> Path:
    path = Path(os.environ.get("TARN_BUILD_DIR") or REPO / "build") / "tarn-cachebench"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: build it first, or set TARN_BUILD_DIR")
    return path


def self_costs(file: Path) -> dict[str, int]:
    """Instructions of each function without its callees."""
    done = subprocess.run(["callgrind_annotate", "--threshold=100", "--show-percs=no", str(file)],
                          capture_output=True, text=True, check=True)
    costs: dict[str, int] = {}
    for number, name in re.findall(r"^\s*([\d,]+)\s+(\S+:[^\s\[]+)", done.stdout, re.M):
        name = name.rsplit("/", 1)[-1] # cache.c:cache_match
        costs[name] = costs.get(name, 0) + int(number.replace(",", ""))
    return costs


def count(caching: str, n_requests: int, args: argparse.Namespace) -> tuple[int, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        command = ["valgrind", "--tool=callgrind", "--fair-sched=yes",
                   f"--callgrind-out-file={out}", str(program()), "--part", "miss", "--quiet",
                   "--json", "--prefix-caching", caching, "--threads", "1",
                   "--cpu-variant", args.cpu_variant, "--requests", str(n_requests),
                   "--prompt", str(args.prompt), "--max-tokens", str(args.max_tokens)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX,
                              check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n"
                             f"{done.stderr[-2000:]}")
        found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(errors="replace"), re.M)
        if not found:
            raise SystemExit("callgrind wrote no total")
        if not args.json:
            print(f"  {caching:3} {n_requests:5} requests {int(found.group(1)):16,}", flush=True)
        return int(found.group(1)), self_costs(out)


def difference(few: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {name: more.get(name, 0) - few.get(name, 0) for name in more.keys() | few.keys()}


def measure(args: argparse.Namespace) -> dict:
    few, more = args.requests
    n_tokens = args.prompt + args.max_tokens - 1 # the last generated token is not computed
    total, costs = {}, {}
    for caching in ("on", "off"):
        n_few, few_costs = count(caching, few, args)
        n_more, more_costs = count(caching, more, args)
        costs[caching] = difference(few_costs, more_costs)
        by_chance = sum(costs[caching].pop(name, 0) for name in CHANCE)
        total[caching] = (n_more - n_few - by_chance) / (more - few)
    added = total["on"] - total["off"]
    by_function = difference(costs["off"], costs["on"])
    hashing = {side: sum(n for name, n in c.items() if HASHING.search(name)) / (more - few)
               for side, c in costs.items()}
    in_cache = sum(n for name, n in by_function.items() if name.split(":")[0] in CACHE_FILES)
    without = total["off"] - hashing["off"]
    strict = total["on"] - without
    top = sorted(by_function.items(), key=lambda item: -abs(item[1]))[:args.top]
    return {
        "kernels": args.cpu_variant,
        "n_requests": [few, more],
        "tokens_per_request": n_tokens,
        "instructions_per_request_on": total["on"],
        "instructions_per_request_off": total["off"],
        "added_percent": 100 * added / total["off"],
        "added_per_token": added / n_tokens,
        "added_in_cache_per_token": in_cache / (more - few) / n_tokens,
        "hashing_per_token_on": hashing["on"] / n_tokens,
        "hashing_per_token_off": hashing["off"] / n_tokens,
        "with_hashing_percent": 100 * strict / without,
        "with_hashing_per_token": strict / n_tokens,
        "with_hashing_percent_of_0.49b_avx512":
            100 * strict / n_tokens / (SHAPE_MACS / MACS_AVX512),
        "with_hashing_percent_of_0.49b_amx": 100 * strict / n_tokens / (SHAPE_MACS / MACS_AMX),
        "added_per_request_by_function": {name: n / (more - few) for name, n in top if n},
        "target_percent": MOST_PERCENT,
    }


def print_text(r: dict) -> None:
    print(f"a request, caching on     {r['instructions_per_request_on']:14,.0f} instructions")
    print(f"a request, caching off    {r['instructions_per_request_off']:14,.0f}")
    print(f"caching adds              {r['added_percent']:14.3f} %  (target: under "
          f"{r['target_percent']} %)")
    print(f"  a token                 {r['added_per_token']:14,.0f} instructions")
    print(f"  in cache/**.c           {r['added_in_cache_per_token']:14,.0f}")
    print(f"hashing, caching on       {r['hashing_per_token_on']:14,.0f} instructions a token; "
          f"off: {r['hashing_per_token_off']:,.0f}")
    print(f"against no hashing at all {r['with_hashing_percent']:14.3f} %")
    print(f"  a token                 {r['with_hashing_per_token']:14,.0f} instructions")
    print(f"  of the 0.49 B shape     {r['with_hashing_percent_of_0.49b_avx512']:14.4f} %  (its "
          "products alone, AVX-512 BF16)")
    print(f"                          {r['with_hashing_percent_of_0.49b_amx']:14.4f} %  (its "
          "products alone, AMX tiles)")
    print("by function, a request:")
    for name, n in r["added_per_request_by_function"].items():
        print(f"  {n:+12,.0f}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs=2, default=[6, 14], metavar=("FEW", "MORE"),
                        help="the tree is full from the fifth on [6 14]")
    parser.add_argument("--prompt", type=int, default=128, help="tokens [128]")
    parser.add_argument("--max-tokens", type=int, default=4, help="generated by each request [4]")
    parser.add_argument("--cpu-variant", default="avx2",
                        help="valgrind knows neither AVX-512 nor AMX [avx2]")
    parser.add_argument("--top", type=int, default=12, help="functions to list [12]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not 0 < args.requests[0] < args.requests[1]:
        parser.error("--requests: FEW must be at least 1 and MORE above it")
    if not shutil.which("callgrind_annotate"):
        print("SKIP: no valgrind")
        return SKIPPED
    result = measure(args)
    if args.json:
        print(json.dumps({"format": 1, "miss_instructions": result}))
    else:
        print_text(result)
    return 0 if max(result["added_percent"], result["with_hashing_percent"]) < MOST_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
