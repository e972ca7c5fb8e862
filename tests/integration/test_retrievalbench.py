#!/usr/bin/env python3
"""tarn-retrievalbench on a small scale: every index finds what it must, the JSON has all fields,
and the file for faiss_peer.py has the stated sizes. No time is checked."""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

SMALL = ["--vectors", 3000, "--dim", 16, "--queries", 30, "--clusters", 20, "--stages", 3]


def bench(*options: object) -> subprocess.CompletedProcess[str]:
    command = [str(tarn_test.program("tarn-retrievalbench")), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True,
                          timeout=tarn_test.patience(300), check=False)


def main() -> int:
    assert bench("--factories", "Flat", *SMALL, "--top-k", 5000, "--vectors", 100).returncode == 2
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vectors"
        done = bench(*SMALL, "--factories", "Flat;IVF32,Flat;HNSW8", "--json", "--file", file,
                     "--keep", folder)
        if done.returncode == 1 and "without Faiss" in done.stderr:
            print("skipped: built without Faiss")
            return 77
        assert done.returncode == 0, done
        head, rest = file.read_bytes().split(b"\n", 1)
        sizes = json.loads(head)
        assert sizes == {"dim": 16, "n": 3000, "n_queries": 30, "top_k": 10, "clusters": 20,
                         "seed": 1}, sizes
        assert len(rest) == (3030 * 16 + 30) * 4, len(rest)
        again = bench(*SMALL, "--factories", "Flat;IVF32,Flat;HNSW8", "--json", "--file", file,
                      "--keep", folder)
        other = bench(*SMALL, "--seed", 2, "--factories", "Flat", "--json", "--file", file)
        assert again.returncode == other.returncode == 0, (again, other)
        assert file.read_bytes().split(b"\n", 1)[1] != rest  # another seed, so made again
    report = json.loads(done.stdout)
    assert report["format"] == 1 and report["vectors"] == 3000 and report["dim"] == 16, report
    flat, ivf, hnsw = report["results"]
    assert flat["recall"] == 1 and flat["factory"] == "Flat", flat
    assert flat["final_after"] == [1, 1, 1], flat
    assert ivf["factory"] == "IVF32,Flat" and ivf["n_rebuilds"] >= 1 and ivf["recall"] > 0.8, ivf
    assert hnsw["factory"] == "HNSW8" and hnsw["recall"] > 0.97, hnsw
    for r, kept in zip(report["results"], json.loads(again.stdout)["results"]):
        assert not r["loaded"] and kept["loaded"], (r, kept)
        assert all(r[key] == kept[key] for key in ("factory", "recall", "final_after")), (r, kept)
        assert r["final_after"][2] == 1 and r["final_after"] == sorted(r["final_after"]), r
        assert 0 < r["median_us"] <= r["p99_us"] and r["build_s"] > 0, r
        assert r["memory_bytes"] >= 3000 * 16 * 4, r
    text = bench(*SMALL, "--factories", "Flat")
    assert text.returncode == 0 and "Flat" in text.stdout, text
    print(f"recall: IVF {ivf['recall']:.3f}, HNSW {hnsw['recall']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
