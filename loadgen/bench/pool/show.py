#!/usr/bin/env python3
"""Measure what a pool of instances gives beside other ways of routing.

    show.py --json OUT.json [--parts rag,conversations,decode,instructions]
            [--policies pool,hash,...] [--requests 400] [--quick]

Parts: rag and conversations (instances on this machine behind a router, each policy with the same
requests and the same memory), decode (answers whose prefix lies on another instance, read or
queried), instructions (what a connected pool adds to a step when there is nothing to pull; needs
valgrind and redis-server). README.md beside this file describes them and the JSON. The machine must
be quiet.

OUT.json is written after each policy; a later run keeps what it does not measure. `--parts ''`
prints what OUT.json has.

Exit status 1 when something could not run; a target that is not met is no failure. Environment:
TARN_BUILD_DIR (default <repo>/build), TARN_SHARED.
"""
from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import decode
import instructions
from cluster import POLICIES, Cluster, common, write_model
from cpu_share import CpuShares, chosen_share
from oracle import BLOCK, Paths
from router import ConsistentHash, Instance
from saturated import Saturated
from workloads import WORKLOADS, Workload

PARTS = (*WORKLOADS, "decode", "instructions")
SHAPE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
         "max_position_embeddings": 8192}
KV_BYTES_PER_TOKEN = 4 * 2 * 1 * 64 * 2  # layers, K and V, heads, width, bf16
LOAD = 0.7  # of what round robin answers when it is saturated
HITS_RATIO, POINTS = 2.0, 0.01


# --- measure ---

class Bench:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.model = write_model(folder / "model", SHAPE)
        self.cache_dir = folder / "costs"

    def server_options(self) -> list[object]:
        a = self.args
        return ["--threads", a.threads, "--max-num-seqs", a.max_num_seqs, "--max-step-ms",
                a.max_step_ms, *a.server_option]

    def prompts(self, workload: Workload) -> list[list[int]]:
        """Token ids by the server's own rendering. The same server measures the cost of steps,
        which all instances then use, with as much processor time as one of them has."""
        command = [common.program("tarn-server"), "--model", str(self.model), "--load-format",
                   "dummy", "--port", "0", "--log-level", "warn", "--cache-dir",
                   str(self.cache_dir), "--documents-path", "none",
                   *map(str, self.server_options())]
        with contextlib.ExitStack() as stack:
            if self.args.cpu_share:
                shares = stack.enter_context(contextlib.closing(CpuShares(1, self.args.cpu_share)))
                command = shares.command(0, command)
            server = stack.enter_context(common.Server(command))
            return [server.must("POST", "/tokenize", r)["tokens"] for r in workload.requests]

    def cluster(self, policy: str, kv_bytes: int) -> Cluster:
        a = self.args
        return Cluster(self.model, self.cache_dir, policy, a.instances,
                       [*self.server_options(), "--kv-device-bytes", kv_bytes],
                       ["--pool-lookup-ms", a.pool_lookup_ms, "--pool-pull-ms", a.pool_pull_ms,
                        *a.pool_option], self.folder / "instances", a.cpu_share)

    def run(self, policy: str, kv_bytes: int, workload: Path, n: int, *arrivals: object) -> dict:
        """One run from empty caches."""
        with self.cluster(policy, kv_bytes) as cluster:
            began = time.monotonic()
            load = common.Load(cluster.router.url, "--workload", "file", "--data", workload,
                               "--count", n, "--calibrate", "off", "--seed", self.args.seed,
                               "--temperature", 0, *arrivals)
            out = cluster.figures()
            out |= {"run_s": time.monotonic() - began, **times_of(load.result)}
            out["refused"] = sum(n for status, n in out["router"]["statuses"].items()
                                 if status in ("429", "503"))
            out["switches_per_request"] = out.pop("switches") / n
            out["router_busy"] = out["router"]["cpu_s"] / out["router"]["wall_s"]
            return out


def times_of(result: dict) -> dict:
    out = {f"{name}_ttft_s": result[f"{key}_ttft_ms"] / 1e3
           for name, key in (("mean", "mean"), ("p50", "median"), ("p99", "p99"))}
    return out | {"requests_per_s": result["request_throughput"],
                  "completed": result["completed"], "failed": result["failed"]}


def oracle_of(paths: Paths, n_blocks: int, n: int) -> dict:
    """Ideal hit shares for the total memory, and what LRU would give without a pool."""
    return {"endless": paths.endless, "best_shared": paths.best(n_blocks),
            "lru_shared": paths.lru(n_blocks),
            "lru_round_robin": paths.lru(n_blocks // n, n, lambda i: i % n)}


def saturated_of(args: argparse.Namespace, paths: Paths, workload: Workload, lengths: list[int],
                 n_blocks: int) -> dict:
    """The same with requests that run and hold their memory, args.concurrency inside."""
    n = args.instances
    ring = ConsistentHash([Instance(f"http://none:{i}") for i in range(n)])
    hashed = [ring.place_of(r) for r in workload.requests]

    def run(server_of: Callable[[int], int], is_shared: bool, knows_future: bool = False) -> dict:
        one = Saturated(paths, lengths, server_of, n, args.max_num_seqs, args.concurrency)
        return one.run(n_blocks, is_shared, knows_future)
    return {"hash": run(hashed.__getitem__, False), "round_robin": run(lambda i: i % n, False),
            "lru_shared": run(lambda i: i % n, True),
            "best_shared": run(lambda i: i % n, True, True)}


def run_workload(bench: Bench, name: str, store: common.Store) -> None:
    args = bench.args
    workload = WORKLOADS[name](args)
    common.progress(f"{name}: tokens of {len(workload.requests)} prompts")
    prompts = bench.prompts(workload)
    paths = Paths(prompts)
    # Whatever the share, the requests that run must fit (--quick).
    room = args.max_num_seqs * (max(map(len, prompts)) + args.output_len + BLOCK)
    n_tokens = max(int(args.memory * paths.distinct_tokens / args.instances), room)
    n_blocks = n_tokens // BLOCK * args.instances
    kv_bytes = n_tokens // BLOCK * BLOCK * KV_BYTES_PER_TOKEN
    old = store.out.get(name, {})
    settings = {"workload": workload.description, "shape": SHAPE, "instances": args.instances,
                "memory": n_blocks * BLOCK / paths.distinct_tokens, "prompt_tokens": paths.n_tokens,
                "distinct_tokens": paths.distinct_tokens,
                "tokens_of_an_instance": n_tokens // BLOCK * BLOCK,
                "concurrency": args.concurrency, "output_len": args.output_len,
                "server_options": list(map(str, bench.server_options())),
                "cpu_share": args.cpu_share}
    out = {"settings": settings, "oracle": oracle_of(paths, n_blocks, args.instances),
           "saturated_oracle": saturated_of(args, paths, workload, list(map(len, prompts)),
                                            n_blocks),
           "policies": old.get("policies", {}) if old.get("settings") == settings else {}}
    file = workload.write(bench.folder / f"{name}.jsonl", args.output_len)
    n = len(workload.requests)
    for policy in args.policies:
        common.progress(f"{name}, {policy}: saturated")
        row = {"saturated": bench.run(policy, kv_bytes, file, n, "--concurrency",
                                      args.concurrency)}
        out.setdefault("rate", args.rate or LOAD * row["saturated"]["requests_per_s"])
        common.progress(f"{name}, {policy}: {out['rate']:.1f} requests/s")
        row["offered"] = bench.run(policy, kv_bytes, file, n, "--rate", out["rate"])
        out["policies"][policy] = row
        store.put(name, out)


# --- targets and tables ---

def targets_of(out: dict) -> list[dict]:
    rows: list[tuple[str, float, float]] = []
    for name in WORKLOADS:
        policies = out.get(name, {}).get("policies", {})
        pool = policies.get("pool")
        if not pool:
            continue
        for other, row in policies.items():
            if other == "pool":
                continue
            hits, theirs = pool["saturated"]["hit_share"], row["saturated"]["hit_share"]
            if other == "round-robin" and theirs:
                rows.append((f"{name}: hits, pool / {other}", hits / theirs, HITS_RATIO))
            elif other != "round-robin":
                rows.append((f"{name}: hits, pool - {other}", hits - theirs, -POINTS))
            rows.append((f"{name}: requests/s, pool / {other}", pool["saturated"]["requests_per_s"]
                         / row["saturated"]["requests_per_s"], 1.0))
    found = [{"name": n, "figure": f, "target": t, "met": f >= t} for n, f, t in rows]
    if "instructions" in out:
        added = out["instructions"]["added_percent"]
        most = out["instructions"]["target_percent"]
        found.append({"name": "instructions that a pool adds, nothing remote, %", "figure": added,
                      "target": most, "met": added < most})
    return found


def print_workload(name: str, part: dict) -> None:
    o, s = part["oracle"], part["settings"]
    print(f"\n{name}: {s['prompt_tokens']:,} prompt tokens, {s['distinct_tokens']:,} distinct; "
          f"{s['instances']} instances of {s['tokens_of_an_instance']:,} tokens, " +
          (f"{s['cpu_share']:.2f} cores each" if s.get("cpu_share") else "which share the cores"))
    print(f"an ideal shared cache would find {100 * o['best_shared']:.1f} %, one without limit "
          f"{100 * o['endless']:.1f} %; LRU shared {100 * o['lru_shared']:.1f} %, behind round "
          f"robin {100 * o['lru_round_robin']:.1f} %")
    ideal = part.get("saturated_oracle", {})
    if ideal:
        print(f"with {s['concurrency']} inside: " + ", ".join(
            f"{name} {100 * o['hit_share']:.1f} % ({o['held_blocks']:.0f} blocks held, "
            f"{o['running']:.1f} running)" for name, o in ideal.items()))
    print(f"{'policy':12} {'run':9} {'hits':>6} {'remote':>6} {'req/s':>6} {'mean':>7} {'P50':>7} "
          f"{'P99':>7} {'refused':>7} {'failed':>6} {'computed':>9} {'CPU s':>6} {'busiest':>7} "
          f"{'waited':>6} {'CV':>5} {'access':>6} {'B/token':>8} {'switch':>6} {'router':>6}")
    for policy, row in part["policies"].items():
        for run, r in row.items():
            per = r["pulled_bytes_per_remote_token"]
            print(f"{policy:12} {run:9} {100 * r['hit_share']:5.1f}% "
                  f"{100 * r['hit_share_by_tier'].get('remote', 0):5.1f}% "
                  f"{r['requests_per_s']:6.2f} " + " ".join(
                      f"{r[f'{t}_ttft_s']:7.3f}" for t in ("mean", "p50", "p99"))
                  + f" {r['refused']:7} {r['failed']:6} {r['computed_tokens']:9.0f} "
                  f"{r.get('cpu_s', 0):6.2f} {r.get('busiest') or 0:7.2f} "
                  f"{100 * r.get('waited_for_cpu', 0):5.1f}% "
                  f"{r['computed_cv']:5.2f} {r.get('access_cv', 0):6.2f} "
                  f"{f'{per:8.0f}' if per else '        '} "
                  f"{r.get('switches_per_request', 0):6.0f} "
                  f"{100 * r['router_busy']:5.1f}%")


def print_all(out: dict) -> None:
    for name in WORKLOADS:
        if "policies" in out.get(name, {}):
            print_workload(name, out[name])
    if "decode" in out:
        decode.print_text(out["decode"])
    if "instructions" in out:
        instructions.print_text(out["instructions"])
    print()
    for row in out.get("targets", []):
        print(f"{row['name']:56} {row['figure']:9.3f}  target {row['target']:6.2f}  "
              f"{'met' if row['met'] else 'missed'}")


# --- main ---

def read_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, help="file of the results")
    p.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    p.add_argument("--policies", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}")
    p.add_argument("--documents", type=Path, help="JSON lines {title, text, id}")
    p.add_argument("--questions", type=Path, help="JSON lines {question, docs}, as of rag/show.py")
    p.add_argument("--data", type=Path, help="folder of the shared data sets")
    p.add_argument("--requests", type=int, default=400,
                   help="rag: so many; conversations: half as many again [400]")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--instances", type=int, default=4)
    p.add_argument("--memory", type=float, default=0.2,
                   help="KV memory of all instances, as a share of the distinct tokens [0.2]")
    p.add_argument("--concurrency", type=int, default=16, help="requests inside, saturated [16]")
    p.add_argument("--rate", type=float, default=0, help="offered requests/s; 0: "
                   f"{LOAD} of what the first policy answers when saturated")
    p.add_argument("--output-len", type=int, default=2, help="tokens of an answer [2]")
    p.add_argument("--top-k", type=int, default=2, help="rag: documents of a request [2]")
    p.add_argument("--paragraphs", type=int, default=1, help="rag: of a document [1]")
    p.add_argument("--open-conversations", type=int, default=24, help="at a time [24]")
    p.add_argument("--turn-words", type=int, default=60, help="of a turn [60]")
    p.add_argument("--threads", type=int, default=1, help="compute threads of an instance [1]")
    p.add_argument("--cpu-share", type=float, help="cores that each instance may use, by a "
                   "cgroup's quota; 0: all share the cores [0.8 of the cores, divided evenly]")
    p.add_argument("--max-num-seqs", type=int, default=2, help="of an instance [2]")
    p.add_argument("--max-step-ms", type=int, default=20, help="of an instance [20]")
    p.add_argument("--pool-lookup-ms", type=int, default=500)
    p.add_argument("--pool-pull-ms", type=int, default=5000)
    p.add_argument("--server-option", action="append", default=[],
                   help="one more option of each tarn-server, as --server-option=--name=value")
    p.add_argument("--pool-option", action="append", default=[],
                   help="the same for the instances of the policy pool only")
    p.add_argument("--quick", action="store_true", help="few requests: to see that it works")
    args = p.parse_args()
    if args.quick:
        args.requests = min(args.requests, 40)
    for name, known in (("parts", PARTS), ("policies", tuple(POLICIES))):
        chosen = [x for x in getattr(args, name).split(",") if x]
        if set(chosen) - set(known):
            p.error(f"--{name}: {', '.join(sorted(set(chosen) - set(known)))}: not one of "
                    f"{', '.join(known)}")
        setattr(args, name, [x for x in known if x in chosen])
    return args


def end_in_order(*_: object) -> None:
    """End on SIGTERM by an exception, which stops the servers and removes their files."""
    raise SystemExit("ended by SIGTERM; what is in the file is kept")


def main() -> int:
    args = read_arguments()
    signal.signal(signal.SIGTERM, end_in_order)
    store = common.Store(args.json)
    args.cpu_share, why_not = chosen_share(args.cpu_share, args.instances)
    if why_not:
        common.progress(why_not)
    with tempfile.TemporaryDirectory(prefix="tarn-poolbench-") as folder:
        bench = Bench(args, Path(folder)) if args.parts else None
        for part in args.parts:
            common.progress(part)
            if part == "instructions":
                store.put(part, instructions.measure(bench.model, bench.folder))
            elif part == "decode":
                model = write_model(bench.folder / "decode-model", decode.SHAPE)
                store.put(part, decode.measure(model, bench.folder / "decode", args.quick))
            else:
                run_workload(bench, part, store)
    store.put("targets", targets_of(store.out))
    print_all(store.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
