#!/usr/bin/env python3
"""Builds and searches the same vectors with plain Faiss in Python (faiss-cpu of PyPI).

    build/tarn-retrievalbench --file vectors.bin ...
    faiss_peer.py vectors.bin --factories 'Flat;IVF632,Flat' [--keep DIR] [--json]
"""
import argparse
import json
import time
from pathlib import Path

import faiss
import numpy as np


def read(path):
    """Vectors, queries, and the score of the k-th nearest of each query."""
    with open(path, "rb") as f:
        head = json.loads(f.readline())
        offset = f.tell()
    flat = np.memmap(path, dtype=np.float32, mode="r", offset=offset)
    n, n_q, dim = head["n"], head["n_queries"], head["dim"]
    return (flat[:n * dim].reshape(-1, dim), flat[n * dim:(n + n_q) * dim].reshape(-1, dim),
            flat[(n + n_q) * dim:], head["top_k"])


def build(x, factory, threads):
    faiss.omp_set_num_threads(threads)
    index = faiss.index_factory(x.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        ivf = faiss.extract_index_ivf(index)
        rng = np.random.default_rng(1)
        some = min(len(x), 64 * ivf.nlist)  # as tarn does
        index.train(x[rng.choice(len(x), some, replace=False)])
    index.add(x)
    return index


def build_or_read(x, factory, args):
    path = args.keep and Path(args.keep) / (factory.replace(",", "_") + ".faiss")
    if path and path.exists():
        return faiss.read_index(str(path)), True
    index = build(x, factory, args.threads)
    if path:
        part = path.with_suffix(".part")
        faiss.write_index(index, str(part))
        part.rename(path)
    return index, False


def measure(x, q, kth, top_k, factory, args):
    begin = time.perf_counter()
    index, is_loaded = build_or_read(x, factory, args)
    build_s = time.perf_counter() - begin
    if factory.startswith("IVF"):
        ivf = faiss.extract_index_ivf(index)
        ivf.nprobe = args.n_probe or max(16, ivf.nlist // 16)
    elif "HNSW" in factory:
        index.hnsw.efSearch = 64
    faiss.omp_set_num_threads(1)
    us, found, cpu = [], 0, time.thread_time_ns()
    for i in range(len(q)):
        begin = time.perf_counter_ns()
        scores, _ = index.search(q[i:i + 1], top_k)
        us.append((time.perf_counter_ns() - begin) / 1e3)
        found += int((scores[0] >= kth[i] - 1e-5).sum())
    cpu_us = (time.thread_time_ns() - cpu) / 1e3 / len(q)
    us.sort()
    return {"factory": factory, "loaded": is_loaded, "build_s": round(build_s, 3),
            "recall": found / (len(q) * top_k), "median_us": round(us[len(us) // 2], 1),
            "p99_us": round(us[len(us) * 99 // 100], 1), "cpu_us": round(cpu_us, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--factories", default="Flat;IVF632,Flat;HNSW16")
    parser.add_argument("--n-probe", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="that build the index")
    parser.add_argument("--keep", help="folder of built indexes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    x, q, kth, top_k = read(args.file)
    results = [measure(x, q, kth, top_k, f, args) for f in args.factories.split(";")]
    if args.json:
        print(json.dumps({"format": 1, "faiss": faiss.__version__, "vectors": len(x),
                          "dim": x.shape[1], "results": results}, indent=1))
        return
    for r in results:
        print(f"{r['factory']:18} {r['build_s']:8.1f} {r['recall']:8.4f} {r['median_us']:10.1f} "
              f"{r['p99_us']:10.1f} {r['cpu_us']:10.1f}")


if __name__ == "__main__":
    main()
