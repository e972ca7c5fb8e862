#!/usr/bin/env python3
"""Builds and searches the same vectors with plain Faiss in Python (faiss-cpu of PyPI).

    build/tarn-retrievalbench --write vectors.bin ...
    faiss_peer.py vectors.bin --factories 'Flat;IVF632,Flat' [--n-probe N] [--threads N] [--json]
"""
import argparse
import json
import time

import faiss
import numpy as np


def read(path):
    with open(path, "rb") as f:
        head = json.loads(f.readline())
        offset = f.tell()
    flat = np.memmap(path, dtype=np.float32, mode="r", offset=offset)
    n = head["n"] * head["dim"]
    return (np.array(flat[:n]).reshape(-1, head["dim"]),
            np.array(flat[n:]).reshape(-1, head["dim"]))


def measure(x, q, kth, factory, args):
    faiss.omp_set_num_threads(args.threads)
    begin = time.perf_counter()
    index = faiss.index_factory(x.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        ivf = faiss.extract_index_ivf(index)
        rng = np.random.default_rng(1)
        some = min(len(x), 64 * ivf.nlist)  # as tarn does
        index.train(x[rng.choice(len(x), some, replace=False)])
        ivf.nprobe = args.n_probe or max(16, ivf.nlist // 16)
    index.add(x)
    build_s = time.perf_counter() - begin
    if "HNSW" in factory and "IVF" not in factory:
        index.hnsw.efSearch = 64
    faiss.omp_set_num_threads(1)
    us, found, cpu = [], 0, time.thread_time_ns()
    for i in range(len(q)):
        begin = time.perf_counter_ns()
        scores, _ = index.search(q[i:i + 1], args.top_k)
        us.append((time.perf_counter_ns() - begin) / 1e3)
        found += int((scores[0] >= kth[i] - 1e-5).sum())
    cpu_us = (time.thread_time_ns() - cpu) / 1e3 / len(q)
    us.sort()
    return {"factory": factory, "build_s": round(build_s, 3),
            "recall": found / (len(q) * args.top_k), "median_us": round(us[len(us) // 2], 1),
            "p99_us": round(us[len(us) * 99 // 100], 1), "cpu_us": round(cpu_us, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--factories", default="Flat;IVF632,Flat;HNSW16")
    parser.add_argument("--n-probe", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="that build the index")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    x, q = read(args.file)
    exact = faiss.IndexFlatIP(x.shape[1])
    exact.add(x)
    kth = exact.search(q, args.top_k)[0][:, -1]
    del exact
    results = [measure(x, q, kth, f, args) for f in args.factories.split(";")]
    if args.json:
        print(json.dumps({"format": 1, "faiss": faiss.__version__, "vectors": len(x),
                          "dim": x.shape[1], "results": results}, indent=1))
        return
    for r in results:
        print(f"{r['factory']:18} {r['build_s']:8.1f} {r['recall']:8.4f} {r['median_us']:10.1f} "
              f"{r['p99_us']:10.1f} {r['cpu_us']:10.1f}")


if __name__ == "__main__":
    main()
