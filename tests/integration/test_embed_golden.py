#!/usr/bin/env python3
"""Vectors of encoders equal those of sentence-transformers, for every case in tests/golden/embed-*.

The test needs neither NumPy nor ../shared: make_embed_golden.py wrote models and vectors, which are
in the repository. Tokens, prompts, cut texts, pooling and forward pass are all part of it.
"""
from __future__ import annotations

import array
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

TOLERANCE = 1e-4  # relative to the largest element; f32 arithmetic measures about 1e-6


def embed(model: Path, text: str, role: str, folder: Path,
          *options: str) -> tuple[int, array.array]:
    (folder / "text").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [str(tarn_test.program("tarn-embed")), str(model), str(folder / "text"),
         str(folder / "out"), "--role", role, *options],
        capture_output=True, text=True, timeout=tarn_test.patience(60), check=False)
    if done.returncode:
        raise SystemExit(f"FAIL {model.name}: {done.stderr}")
    vector = array.array("f")
    vector.frombytes((folder / "out").read_bytes())
    return int(done.stdout.split()[1]), vector


def check(model: Path, case: dict, folder: Path, *options: str) -> bool:
    n_tokens, got = embed(model, case["text"], case["role"], folder, *options)
    want = case["vector"]
    scale = max(abs(x) for x in want)
    error = max((abs(a - b) for a, b in zip(got, want)), default=9) / scale
    good = error <= TOLERANCE and len(got) == len(want) and n_tokens == case["n_tokens"]
    print(f"{'ok  ' if good else 'FAIL'} {error:.2e} {model.name} {case['role']} "
          f"{case['text'][:20]!r} {n_tokens} of {case['n_tokens']} tokens {' '.join(options)}")
    return good


def main() -> None:
    models = sorted(p.parent for p in (REPO / "tests" / "golden").glob("embed-*/texts.json"))
    if not models:
        raise SystemExit("no case in tests/golden")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            cases = json.loads((model / "texts.json").read_text(encoding="utf-8"))
            for i, case in enumerate(cases):
                good = check(model, case, Path(folder)) and good
                if i % 5 == 0:
                    good = check(model, case, Path(folder), "--cpu-variant", "portable",
                                 "--threads", "2") and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
