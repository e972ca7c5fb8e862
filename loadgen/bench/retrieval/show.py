#!/usr/bin/env python3
"""show.py - recall, latency and build time of Tarn's vector search beside plain Faiss in Python.

    loadgen/bench/retrieval/show.py --folder DIR --json FILE [--vectors N] [--dim N]
        [--python INTERPRETER_WITH_FAISS] [--rounds N] [--parts build,search]

`build` makes the vectors and all indexes, once; what DIR has is not made again. `search` loads the
indexes and asks the same queries, Tarn and Faiss in turn, --rounds times; the machine should be
quiet then, and the median over the rounds is shown. The table is printed at the end.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import common  # noqa: E402

# Tarn's "auto" chooses 2 sqrt(n) lists when an index has grown fourfold; the same number for both.
KINDS = ("Flat", "IVF{lists},Flat", "HNSW32")
FIELDS = ("recall", "median_us", "p99_us", "cpu_us")


class Show:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder = args.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = common.Store(args.json)
        self.factories = [k.format(lists=int(2 * args.vectors ** 0.5)) for k in KINDS]
        about = {"vectors": args.vectors, "dim": args.dim, "queries": args.queries}
        if self.store.out.setdefault("about", about) != about:
            raise SystemExit(f"{args.json} has other sizes; use another file and folder")

    def run(self, who: str, factory: str, queries: int) -> dict:
        file = self.folder / "vectors.bin"
        tarn = [common.program("tarn-retrievalbench"), "--vectors", self.args.vectors, "--dim",
                self.args.dim, "--queries", queries, "--quiet", "--stages", 1, "--file", file]
        faiss = [self.args.python, HERE / "faiss_peer.py", file]
        command = {"tarn": tarn, "faiss": faiss}[who]
        command += ["--factories", factory, "--keep", self.folder, "--json"]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{who}, {factory}: ended with {done.returncode}")
        return json.loads(done.stdout)["results"][0]

    def build(self) -> None:
        for factory in self.factories:
            for who in ("tarn", "faiss"):
                row = self.store.out.setdefault("build", {}).setdefault(factory, {})
                if who in row:
                    continue
                common.progress(f"build, {factory}, {who}")
                one = self.run(who, factory, self.args.queries)
                if one["loaded"]:
                    raise SystemExit(f"{self.folder} has {factory} of {who} already, but its build "
                                     "time is not known: delete it")
                row[who] = {key: one[key] for key in ("build_s", "memory_bytes", "recall")
                            if key in one}
                self.store.save()

    def search(self) -> None:
        rounds = self.store.out.setdefault("rounds", [])
        for i in range(self.args.rounds):
            one: dict = {}
            for factory in self.factories:
                order = ("tarn", "faiss") if i % 2 == 0 else ("faiss", "tarn")
                for who in order:
                    got = self.run(who, factory, self.args.queries)
                    one.setdefault(factory, {})[who] = {key: got[key] for key in FIELDS}
            rounds.append(one)
            self.store.save()

    def table(self) -> None:
        print("index             who     build s    recall  median ms    P99 ms    CPU ms")
        for factory in self.factories:
            for who in ("tarn", "faiss"):
                built = self.store.out.get("build", {}).get(factory, {}).get(who)
                if not built:
                    continue
                line = f"{factory:17} {who:6} {built['build_s']:8.1f} {built['recall']:9.4f}"
                rounds = [r[factory][who] for r in self.store.out.get("rounds", [])]
                for key in FIELDS[1:] if rounds else ():
                    line += f"{statistics.median(r[key] for r in rounds) / 1e3:10.2f}"
                print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="build,search")
    args = parser.parse_args()
    show = Show(args)
    for part in filter(None, args.parts.split(",")):
        {"build": show.build, "search": show.search}[part]()
    show.table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
